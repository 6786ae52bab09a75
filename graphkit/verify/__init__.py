"""Proof by running: original and rewritten model in onnxruntime, on generated inputs, compared; hazards checked."""

from graphkit.shapes.constraints.symbol_sizes import Sizes
from graphkit.verify.decoding import Decoded, Decoder, decode
from graphkit.verify.input_generator import InputGenerator
from graphkit.verify.originals import Originals
from graphkit.verify.rewrite_proof import OutputProof, RewriteProof, RunProof, SkippedRun
from graphkit.verify.rewrite_verifier import verify_extract, verify_rewrite
from graphkit.verify.runs_at_hazards import check_hazards
from graphkit.verify.split_verifier import SplitProof, verify_split

__all__ = [
    "Decoded",
    "Decoder",
    "InputGenerator",
    "Originals",
    "OutputProof",
    "RewriteProof",
    "RunProof",
    "Sizes",
    "SkippedRun",
    "SplitProof",
    "check_hazards",
    "decode",
    "verify_extract",
    "verify_rewrite",
    "verify_split",
]
