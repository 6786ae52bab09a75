"""Elements that rules compute are those that onnxruntime computes, at the ends of each dtype and at all sizes."""

from __future__ import annotations

from collections.abc import Iterator

import numpy as np
import pytest
from extremes import EXPRS, OPERATORS, SIZES, Case, cases, evaluated, of_sizes, values_of_sizes
from properties import how_many

from graphkit.dtypes import FLOATS
from graphkit.equivalence.sizes import size_limits
from graphkit.graph.operator_traits import operator_set
from graphkit.ops.element_values import OPERATORS as COMPUTED
from graphkit.ops.tensor import Tensor
from graphkit.runtime.isolation import shared_isolation
from graphkit.runtime.session import run_small_models
from graphkit.shapes import Expr, Ratio, Shapes, infer

# Operators whose rules compute elements, besides those of `element_values`.
OTHERS = operator_set(
    """
    Cast CastLike Clip Concat ConstantOfShape Expand Flatten Gather Identity NonZero Pad Range ReduceMax ReduceMin
    ReduceProd ReduceSum Reshape ScatterND Shape Size Slice Split Squeeze Tile Transpose Unsqueeze Where
    """
)


def claims(shapes: Shapes) -> Iterator[tuple[int, Tensor]]:
    """Yield the outputs of which the engine knows elements, with their places."""
    for at, value in enumerate(shapes.model.graph.outputs):
        tensor = shapes.first.get(value)
        if tensor is not None and tensor.data is not None:
            yield at, tensor


def number(element: Expr | Ratio | float, dtype: int, sizes: dict[str, int]) -> float | None:
    """Return an element at sizes, None where it is not known."""
    if isinstance(element, float):
        return element
    expr = element.dividend if isinstance(element, Ratio) else element
    if not expr.symbols <= sizes.keys():
        return None
    value = expr.evaluate(sizes)
    kind = FLOATS[dtype].type if dtype in FLOATS else int
    return (float(kind(value) / kind(element.divisor)) or 0) if isinstance(element, Ratio) else value


def is_same(told: float | None, found: float) -> bool:
    """Whether an element is as told; what is made of sizes has no sign where it is 0."""
    if told is None or (told != told and found != found):
        return True
    return told == found and (not isinstance(told, float) or np.signbit(told) == np.signbit(found))


def checked(listed: list[Case], *, has_sizes: bool) -> tuple[int, int, list[str]]:
    """Return how many cases the engine knows elements of, how many of these were compared, and what is wrong."""
    known, models, wrong, compared = [], [], [], 0
    for case in listed:
        model = case.model()
        shapes = infer(model, values=values_of_sizes() if case.read else None)
        if found := [*claims(shapes)]:
            limits = size_limits([shapes])
            tried = [each for each in SIZES if all(limit.holds(each) for limit in limits)] if has_sizes else [{}]
            known.append((case, found, tried))
            models.append(
                (model.proto.SerializeToString(), [{"s": evaluated(EXPRS, each)} if each else {} for each in tried])
            )
    with shared_isolation():
        answered = [*run_small_models(models)]
    for (case, found, tried), answers in zip(known, answered, strict=True):
        for sizes, outputs in zip(tried, [] if isinstance(answers, str) else answers, strict=False):
            if isinstance(outputs, str):
                continue  # no model that runs
            compared += 1
            for at, tensor in found:
                told = [number(each, tensor.dtype, sizes) for each in tensor.elements or ()]
                actual = outputs[at].ravel().tolist()
                if len(told) != len(actual) or not all(map(is_same, told, actual)):
                    wrong.append(f"{case}: {told} where onnxruntime gives {actual} at {sizes}")
    return len(known), compared, wrong


@pytest.mark.cases(60)
@pytest.mark.examples
@pytest.mark.parametrize("operator", OPERATORS)
def test_numbers_at_the_ends_of_dtypes(operator: str) -> None:
    known, compared, wrong = checked(list(cases(operator, 6, how_many(2, 5))), has_sizes=False)
    assert not wrong, wrong[0]
    assert compared or not known or operator in ("Constant", "OneHot")  # which it has for few dtypes
    assert compared or operator not in {*COMPUTED, *OTHERS}


@pytest.mark.cases(60)
@pytest.mark.examples
@pytest.mark.parametrize("operator", OPERATORS)
def test_numbers_that_are_made_of_sizes(operator: str) -> None:
    listed = list(of_sizes(operator, 0, how_many(1, 2)))[:: how_many(2, 1)]
    assert not (wrong := checked(listed, has_sizes=True)[2]), wrong[0]
