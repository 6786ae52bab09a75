// Declarations of the parts of Android that the program of the docs calls.
package android.content

import java.io.File
import java.io.InputStream

abstract class AssetManager {
    abstract fun list(path: String): Array<String>?

    abstract fun open(path: String): InputStream
}

abstract class Context {
    abstract val filesDir: File
    abstract val assets: AssetManager
}
