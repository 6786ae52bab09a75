"""The proof of a rewrite that no longer rounds quantised data: on data that is rounded as the original rounds it."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

from graphkit.model import Model
from graphkit.options import RewriteOptions
from graphkit.rewrite.base import ALWAYS, Premise
from graphkit.verify.quantized_rounding import TOLERANCE, as_rounded
from graphkit.verify.rewrite_proof import RewriteProof
from graphkit.verify.rewrite_verifier import verify_rewrite
from graphkit.workflows.proven import prove

__all__ = ["prove_unrounded"]


def prove_unrounded(
    model: Model,
    rewritten: Model,
    output: Path,
    options: RewriteOptions,
    progress: Callable[[str], None],
    premise: Premise = ALWAYS,
) -> tuple[RewriteProof | None, str]:
    """Prove that products of floats are those of the original, and measure what rounding makes of them.

    Args:
        model: The original.
        rewritten: What became of it, in memory.
        output: The same as it was written.
        options: How to prove it; they give no tolerance.
        progress: Called with the name of each step before it starts.
        premise: What the passes took for granted of the inputs.

    Returns:
        The proof with a note of what was measured. Without a proof, the note says why there is none.

    Raises:
        UsageError: The options name a symbol or an input that does not exist.
        ModelError: The weights are missing, or onnxruntime cannot run the original.
    """
    two = as_rounded(model, rewritten)
    if isinstance(two, str):
        return None, f"Results are compared as a whole, within the pass's loose tolerance, because the model has {two}."
    written = prove(rewritten, output, options, progress, premise=premise)
    if not written.passed:
        return written, "The written file is compared with the result in memory."
    spec, limits = premise.spec | options.spec, options.limits
    proof = verify_rewrite(*two, spec, tolerance=TOLERANCE, of_magnitude=True, limits=limits, progress=progress)
    whole = prove(model, output, replace(options, tolerance=float("inf")), progress, premise=premise)
    moved = max((found.absolute or 0.0 for found in whole.outputs), default=0.0)
    note = (
        "The proof rounds the data of each product as the original does, and compares the products and all that is "
        f"between them. Without these roundings, results differ from those of the original by up to {moved:.2g}."
    )
    if whole.failures:
        proof = replace(proof, failures=(*proof.failures, *whole.failures))
    return proof, note
