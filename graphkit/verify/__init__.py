"""Proof by running: original and rewritten model in onnxruntime, on generated inputs, compared."""

from graphkit.verify.decoding import Decoded, Decoder, decode
from graphkit.verify.inputs import InputMaker
from graphkit.verify.proof import OutputProof, RewriteProof, RunProof, SkippedRun
from graphkit.verify.rewrite import verify_rewrite
from graphkit.verify.sizes import Sizes
from graphkit.verify.split import SplitProof, verify_split

__all__ = [
    "Decoded",
    "Decoder",
    "InputMaker",
    "OutputProof",
    "RewriteProof",
    "RunProof",
    "Sizes",
    "SkippedRun",
    "SplitProof",
    "decode",
    "verify_rewrite",
    "verify_split",
]
