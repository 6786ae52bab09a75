from .decoding import Decoded, Decoder, decode
from .input_generator import InputGenerator, Sizes
from .oracle import Originals
from .rewrite_proof import OutputProof, RewriteProof, RunProof, SkippedRun, SplitProof
from .rewrite_verifier import verify_extract, verify_rewrite
from .runs_at_hazards import check_hazards
from .split_verifier import verify_split

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
