// The parts of onnxruntime's Java API that the loops call; whoever reads the output of the program runs the models.
package ai.onnxruntime

import java.nio.ByteBuffer
import java.nio.ByteOrder
import java.nio.FloatBuffer
import java.util.Optional

enum class OnnxJavaType(@JvmField val size: Int) { FLOAT(4), INT64(8), INT32(4), BOOL(1), FLOAT16(2) }

private val NAMES = mapOf(
    "float32" to OnnxJavaType.FLOAT,
    "int64" to OnnxJavaType.INT64,
    "int32" to OnnxJavaType.INT32,
    "bool" to OnnxJavaType.BOOL,
    "float16" to OnnxJavaType.FLOAT16,
)

interface OnnxValue : AutoCloseable {
    override fun close()
}

class TensorInfo(val shape: LongArray, val type: OnnxJavaType)

abstract class OnnxTensorLike : OnnxValue {
    abstract val info: TensorInfo
}

class OnnxTensor(override val info: TensorInfo, internal val data: ByteBuffer) : OnnxTensorLike() {
    internal var isClosed = false

    val byteBuffer: ByteBuffer // a copy on the heap
        get() = ByteBuffer.allocate(data.remaining()).order(ByteOrder.nativeOrder()).put(bytes()).also { it.rewind() }

    val floatBuffer: FloatBuffer get() = byteBuffer.asFloatBuffer()

    internal fun bytes(): ByteBuffer = data.duplicate().order(ByteOrder.nativeOrder())

    override fun close() {
        isClosed = true
    }

    companion object {
        @JvmStatic
        fun createTensor(env: OrtEnvironment, data: ByteBuffer, shape: LongArray, type: OnnxJavaType): OnnxTensor {
            check(data.isDirect || type == OnnxJavaType.BOOL) { "a buffer on the heap cannot be cast to one of $type" }
            check(data.remaining().toLong() == shape.fold(type.size.toLong(), Long::times)) { "shape and data disagree" }
            return OnnxTensor(TensorInfo(shape, type), data.slice().order(ByteOrder.nativeOrder()))
        }
    }
}

class OrtEnvironment {
    fun createSession(path: String) = OrtSession(path.substringAfterLast('/'))

    companion object {
        @JvmStatic
        fun getEnvironment() = OrtEnvironment()
    }
}

class OrtSession(private val file: String) : AutoCloseable {
    fun run(inputs: Map<String, OnnxTensorLike>) = run(inputs, setOf(), mapOf())

    fun run(inputs: Map<String, OnnxTensorLike>, requested: Set<String>, pinned: Map<String, OnnxValue>): Result {
        println("run $file ${inputs.size}")
        for ((name, value) in inputs) {
            val tensor = value as OnnxTensor
            check(!tensor.isClosed) { "$name is closed" }
            val bytes = tensor.bytes().let { buffer -> List(buffer.remaining()) { buffer.get().toInt() and 0xff } }
            val dtype = NAMES.entries.first { it.value == tensor.info.type }.key
            println("$name|$dtype|${tensor.info.shape.toList()}|$bytes")
        }
        System.out.flush()
        return Result(List(readLine()!!.toInt()) { read(pinned) }.toMap())
    }

    private fun read(pinned: Map<String, OnnxValue>): Pair<String, OnnxValue> {
        val (name, dtype, dims, content) = readLine()!!.split('|')
        val numbers = { text: String -> text.split(',').filter { it.isNotEmpty() }.map { it.toLong() } }
        val bytes = numbers(content).map { it.toByte() }.toByteArray()
        val held = pinned[name] as OnnxTensor?
        if (held != null) return name to held.also { it.bytes().put(bytes) }
        val data = ByteBuffer.allocateDirect(bytes.size).put(bytes).also { it.rewind() } as ByteBuffer
        return name to OnnxTensor(TensorInfo(numbers(dims).toLongArray(), NAMES.getValue(dtype)), data)
    }

    override fun close() = Unit

    class Result(private val values: Map<String, OnnxValue>) : AutoCloseable {
        fun get(name: String): Optional<OnnxValue> = Optional.ofNullable(values[name])

        override fun close() = values.values.forEach { it.close() }
    }
}
