"""Passes that bring a model to the form that NPU compilers take."""
