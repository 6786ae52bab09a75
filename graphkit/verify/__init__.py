"""Proof by running: original and rewritten model in onnxruntime, on generated inputs, compared."""
