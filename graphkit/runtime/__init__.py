"""onnxruntime: sessions in this process, and sessions in a process that may die, with limits of time and memory.

Nothing is imported here, because the child process starts from this package and must be quick.
"""
