"""Two models layer by layer: which tensors match, how far they are apart, and why."""
