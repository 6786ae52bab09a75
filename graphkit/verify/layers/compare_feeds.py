"""The feeds of two models: the same arrays, given or generated, at sizes that are legal for both."""

from __future__ import annotations

import itertools
from collections.abc import Iterator, Mapping

import numpy as np
from onnx import helper

from graphkit.dtypes import dtype_name
from graphkit.errors import UsageError
from graphkit.graph.types import declared_type, shape_text
from graphkit.model import Model
from graphkit.shapes import DimSpec
from graphkit.shapes.constraints.dim_equalities import fed_inputs, fixed_by, given_shapes, solve
from graphkit.shapes.constraints.legal_sizes import LegalSizes, legal_sizes
from graphkit.verify.original_runs import Feeder
from graphkit.verify.run_sizes import assignments
from graphkit.verify.thresholds import lengths_of

__all__ = ["Feed", "check_given", "feeds", "renamed"]

Feed = Mapping[str, np.ndarray]
MAX_TRIED = 12  # sizes to choose from
TELLING = 24  # positions and sequences that are enough together


def feeds(a: Model, b: Model | None, spec: DimSpec, given: Feed, told: Mapping[str, str], seed: int) -> Iterator[Feed]:
    """Yield inputs for A, those at the most telling sizes first: a batch, several tokens, a past.

    Args:
        a: The model that is right.
        b: The other one; None for dumps.
        spec: Sizes that are wanted.
        given: Arrays to take as they are.
        told: Names of inputs of A, and what they are in B.
        seed: Of the generator.

    Raises:
        UsageError: B has inputs that A has not, or the sizes contradict each other.
        ModelError: No input can be made.
    """
    spec = DimSpec.of(inputs={name: array.shape for name, array in given.items() if name in fed_inputs(a)}) | spec
    same = b is not None and not told and set(fed_inputs(b)) <= set(fed_inputs(a))
    fixed = fixed_by(a, b) if b is not None and same else []
    numbers, relations = solve([*fixed, *given_shapes(a, spec.shapes)], spec.numbers)
    feeder = Feeder(a, legal_sizes(a, spec | DimSpec.of(numbers), relations), given, seed)
    flags = feeder.flags()[0]
    legal = feeder.legal(flags)
    for dims in _telling(legal, a) if legal.variables else [{}]:
        yield feeder.feed(dims, flags, 0)


def _telling(legal: LegalSizes, model: Model) -> list[dict[str, int]]:
    """Return legal sizes, those first that tell most."""
    found = [
        proposal.dims for proposal in itertools.islice(assignments(legal, [], lengths=lengths_of(model)), MAX_TRIED)
    ]
    names = [variable.name for variable in legal.variables]

    def telling(dims: dict[str, int]) -> tuple[int, int]:
        sizes = [dims[name] for name in names if name in dims]
        return sum(size > 1 for size in sizes), min(sum(sizes), TELLING)

    return sorted(found, key=telling, reverse=True)


def renamed(a: Model, b: Model, feed: Feed, given: Feed, told: Mapping[str, str]) -> dict[str, np.ndarray]:
    """Return the feed of B for a feed of A.

    Raises:
        UsageError: B has an input that A has not, and none was given for it.
    """
    theirs = {told.get(name, name): array for name, array in {**given, **feed}.items()}
    wanted = fed_inputs(b)
    for name in wanted:
        if name not in theirs:
            raise UsageError(
                f"{b.label}: its input '{name}' is not one of {a.label} - name the one with --map NAME={name}, or give "
                "an array with --inputs"
            )
    known = {value.name for value in b.graph.inputs}
    return {name: array for name, array in theirs.items() if name in known}


def check_given(given: Feed, a: Model, b: Model | None) -> None:
    """Check that arrays fit the inputs of the models.

    Raises:
        UsageError: One is no input of either, or has another dtype or other dims.
    """
    for name, array in given.items():
        values = [model.graph.values.get(name) for model in (a, b) if model is not None]
        inputs = [value for value in values if value is not None and value.kind in ("input", "initializer")]
        inputs = [value for value in inputs if value in value.scope.inputs]
        if not inputs:
            raise UsageError(f"--inputs: '{name}' is not an input of the models - leave it out")
        for value in inputs:
            declared = declared_type(value)
            if declared is None:
                continue
            if declared.dtype and helper.tensor_dtype_to_np_dtype(declared.dtype) != array.dtype:
                want = dtype_name(declared.dtype)
                raise UsageError(f"--inputs: '{name}' is {array.dtype}, and the model takes {want} - convert it")
            if declared.dims is None:
                continue
            have = list(array.shape)
            if len(declared.dims) != array.ndim:
                raise UsageError(f"--inputs: '{name}' has dims {have}, and the model takes {len(declared.dims)} dims")
            if any(isinstance(dim, int) and dim != size for dim, size in zip(declared.dims, have, strict=True)):
                raise UsageError(f"--inputs: '{name}' has dims {have}, and the model takes {shape_text(declared.dims)}")
