from __future__ import annotations

import numpy as np
import pytest
from rewriting import model_of

from graphkit.errors import UsageError
from graphkit.passes.fold_pipeline import fold
from graphkit.shapes import AS_DECLARED, DimSpec, infer, program
from graphkit.verify.rewrite_verifier import verify_rewrite

TEXT = "agraph (float[N, L] x) => (int64[2] y) { y = Shape (x) }"
SPEC = DimSpec((("N", 2),), (("x", (2, 3)),), (("L", 1, None),))


def test_mappings_make_the_same_as_tuples() -> None:
    assert DimSpec.of({"N": 2}, {"x": [2, np.int64(3)]}, {"L": (1, None)}) == SPEC
    assert DimSpec.of() == DimSpec.of({}, {}, {}) == AS_DECLARED == DimSpec()


def test_it_gives_back_mappings() -> None:
    assert (SPEC.numbers, SPEC.shapes, SPEC.bounds) == ({"N": 2}, {"x": (2, 3)}, {"L": (1, None)})


def test_it_is_hashable_and_does_not_change() -> None:
    assert len({SPEC, DimSpec.of({"N": 2}, {"x": (2, 3)}, {"L": (1, None)}), AS_DECLARED}) == 2
    SPEC.numbers["N"] = 7
    assert SPEC.numbers == {"N": 2}
    with pytest.raises(AttributeError):
        SPEC.dims = ()  # type: ignore[misc]


def test_of_two_the_second_wins() -> None:
    other = DimSpec.of({"N": 5, "M": 1}, ranges={"L": (None, 9)})
    assert SPEC | other == DimSpec.of({"N": 5, "M": 1}, {"x": (2, 3)}, {"L": (None, 9)})
    assert SPEC | AS_DECLARED is SPEC
    assert AS_DECLARED | SPEC == SPEC


def test_of_a_frozen_model_it_says_the_ranges_of_what_is_open() -> None:
    spec = DimSpec.of({"N": 2}, {"x": (2, 3)}, {"N": (1, 4), "L": (1, 9)})
    assert spec.open_ranges({"N": 2}) == DimSpec.of(ranges={"L": (1, 9)})
    assert spec.open_ranges(["N", "L"]) == AS_DECLARED


def test_functions_take_it_whole_or_in_parts() -> None:
    model, whole = model_of(TEXT), DimSpec.of({"N": 2}, {"x": (2, 3)})
    parts = {"dims": {"N": 2}, "inputs": {"x": (2, 3)}}
    assert str(infer(model, whole)["x"]) == str(infer(model, **parts)["x"]) == "[2, 3]"
    assert program(model, whole) == program(model, **parts)
    folded = fold(model, whole)
    assert folded.changes == fold(model, **parts).changes
    assert folded.model.proto == fold(model, DimSpec.of({"N": 2}), inputs={"x": (2, 3)}).model.proto
    assert verify_rewrite(model, folded.model, whole).fixed == {"N": 2, "L": 3}


def test_what_is_not_in_the_model_is_an_error_of_the_function() -> None:
    with pytest.raises(UsageError, match="no input has a dim 'Q' - there are L, N"):
        infer(model_of(TEXT), DimSpec.of(ranges={"Q": (1, 2)}))
