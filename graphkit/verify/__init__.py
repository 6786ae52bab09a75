"""Proof by running: original and rewritten model in onnxruntime, on generated inputs, compared."""

from graphkit.verify.decoding import Decoded, Decoder, decode
from graphkit.verify.inputs import InputMaker
from graphkit.verify.sizes import Sizes
from graphkit.verify.split import SplitProof, verify_split

__all__ = ["Decoded", "Decoder", "InputMaker", "Sizes", "SplitProof", "decode", "verify_split"]
