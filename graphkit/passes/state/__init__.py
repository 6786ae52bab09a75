"""Passes that keep the state of a model, such as its KV cache, in buffers that are written in place."""
