"""Causes of a wrong tensor: one idea a file, each a function from a `Case` to causes."""
