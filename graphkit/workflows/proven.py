"""The proof of a workflow that rewrites one file: of the written file against its original."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import TypeVar

import numpy as np
from onnx.helper import tensor_dtype_to_np_dtype

from graphkit.graph.types import declared_type
from graphkit.model import Model
from graphkit.options import RewriteOptions
from graphkit.rewrite.base import ALWAYS, Premise
from graphkit.save import Saved, check_targets, placed, save_models
from graphkit.verify.rewrite_proof import RewriteProof
from graphkit.verify.rewrite_verifier import verify_rewrite
from graphkit.verify.tolerances import error_tolerance

__all__ = ["check_output", "prove", "written_and_proven"]

T = TypeVar("T")


def check_output(model: Model, output: Path, options: RewriteOptions) -> None:
    """Check before any work that a model can be written to a file.

    Raises:
        OutputError: There is no such folder, or a file exists and is not to be replaced.
    """
    data = [output.with_name(f"{output.name}_data")] if placed(options.weights, [model]) == "shared" else []
    check_targets([*data, output], [model], overwrite=options.overwrite)


def written_and_proven(
    model: Model,
    output: Path,
    options: RewriteOptions,
    progress: Callable[[str], None],
    proof: Callable[[Path], T],
) -> tuple[Saved, T | None]:
    """Write a model, and prove it before it gets its name: a run that breaks off leaves all as it was.

    Args:
        model: What to write.
        output: The file.
        options: How to write it, and whether to prove it.
        progress: Called with the name of each step before it starts.
        proof: Proves the file that it is given.

    Returns:
        What was written, and the proof, None where none is asked for.

    Raises:
        OutputError: It cannot be written; nothing is left behind.
    """
    found: list[T] = []

    def run(stage: Path) -> None:
        found.append(proof(stage / output.name))

    progress("writing")
    before = run if options.verify else None
    written = save_models({output: model}, weights=options.weights, overwrite=options.overwrite, before=before)
    return written, found[0] if found else None


def prove(
    model: Model,
    output: Path,
    options: RewriteOptions,
    progress: Callable[[str], None],
    *,
    premise: Premise = ALWAYS,
    error: float = 0.0,
) -> RewriteProof:
    """Prove that the model that was written to a file gives the results of its original.

    Args:
        model: The original.
        output: What was written.
        options: How to prove it.
        progress: Called with the name of each step before it starts.
        premise: What the passes took for granted of the inputs.
        error: The largest error of a node, 0 where results are equal to the last bit.

    Raises:
        UsageError: The inputs differ, or the options name a symbol or an input that does not exist.
        ModelError: The weights are missing, or onnxruntime cannot run the original.
    """
    is_default = options.tolerance is None and error > 0
    return verify_rewrite(
        model if model.path is None or model.is_edited else model.path,
        output,
        premise.spec | options.spec,
        values=_arrays(model, premise),
        tolerance=error_tolerance(model, error) if is_default else options.tolerance,
        of_magnitude=is_default,
        limits=options.limits,
        progress=progress,
    )


def _arrays(model: Model, premise: Premise) -> dict[str, np.ndarray]:
    """Return the arrays of inputs that are always one value; a dim that is not fixed is 1."""
    arrays = {}
    for value in model.graph.inputs:
        declared = declared_type(value) if value.name in premise.values else None
        if declared is not None:
            shape = tuple(dim if isinstance(dim, int) else 1 for dim in declared.dims or ())
            arrays[value.name] = np.full(shape, premise.values[value.name], tensor_dtype_to_np_dtype(declared.dtype))
    return arrays
