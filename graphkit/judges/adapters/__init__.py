"""Scripts that ask compilers, each in the environment of its compiler, without graphkit."""
