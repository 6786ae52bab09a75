// Declarations of the parts of onnxruntime's Java API that the loop calls, so that a compiler can check it.
package ai.onnxruntime

import java.nio.ByteBuffer
import java.nio.FloatBuffer
import java.util.Optional

enum class OnnxJavaType(@JvmField val size: Int) { FLOAT(4), INT64(8), INT32(4), BOOL(1), FLOAT16(2) }

interface OnnxValue : AutoCloseable {
    override fun close()
}

class TensorInfo(val shape: LongArray)

abstract class OnnxTensorLike : OnnxValue {
    abstract val info: TensorInfo
}

abstract class OnnxTensor : OnnxTensorLike() {
    abstract val byteBuffer: ByteBuffer
    abstract val floatBuffer: FloatBuffer

    companion object {
        @JvmStatic
        fun createTensor(env: OrtEnvironment, data: ByteBuffer, shape: LongArray, type: OnnxJavaType): OnnxTensor = TODO()
    }
}

abstract class OrtEnvironment {
    abstract fun createSession(path: String): OrtSession

    companion object {
        @JvmStatic
        fun getEnvironment(): OrtEnvironment = TODO()
    }
}

abstract class OrtSession : AutoCloseable {
    abstract fun run(inputs: Map<String, OnnxTensorLike>): Result

    abstract fun run(
        inputs: Map<String, OnnxTensorLike>,
        requested: Set<String>,
        pinned: Map<String, OnnxValue>,
    ): Result

    abstract class Result : AutoCloseable {
        abstract fun get(name: String): Optional<OnnxValue>
    }
}
