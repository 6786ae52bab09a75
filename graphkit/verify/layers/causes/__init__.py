"""Why a tensor is not what it should be: one idea a file, each a function from a `Case` to causes."""
