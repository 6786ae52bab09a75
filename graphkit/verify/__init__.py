"""Proof by running: original and rewritten model in onnxruntime, on generated inputs, compared; hazards checked."""

from importlib import import_module
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from graphkit.shapes.constraints.symbol_sizes import Sizes
    from graphkit.verify.decoding import Decoded, Decoder, decode
    from graphkit.verify.input_generator import InputGenerator
    from graphkit.verify.originals import Originals
    from graphkit.verify.rewrite_proof import OutputProof, RewriteProof, RunProof, SkippedRun
    from graphkit.verify.rewrite_verifier import verify_extract, verify_rewrite
    from graphkit.verify.runs_at_hazards import check_hazards
    from graphkit.verify.split_verifier import SplitProof, verify_split

# Imported when they are first used: one module of a proof is often all that is needed
_HOMES = {
    "graphkit.shapes.constraints.symbol_sizes": ("Sizes",),
    "graphkit.verify.decoding": ("Decoded", "Decoder", "decode"),
    "graphkit.verify.input_generator": ("InputGenerator",),
    "graphkit.verify.originals": ("Originals",),
    "graphkit.verify.rewrite_proof": ("OutputProof", "RewriteProof", "RunProof", "SkippedRun"),
    "graphkit.verify.rewrite_verifier": ("verify_extract", "verify_rewrite"),
    "graphkit.verify.runs_at_hazards": ("check_hazards",),
    "graphkit.verify.split_verifier": ("SplitProof", "verify_split"),
}
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


def __getattr__(name: str) -> object:
    home = next((module for module, names in _HOMES.items() if name in names), None)
    if home is None:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    return getattr(import_module(home), name)
