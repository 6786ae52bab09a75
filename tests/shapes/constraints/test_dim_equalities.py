"""What the inputs of one model fix of another's."""

from __future__ import annotations

from collections.abc import Mapping

import pytest
from small_models import model

from graphkit.errors import UsageError
from graphkit.shapes import DimSpec
from graphkit.shapes.constraints.dim_equalities import fixed_by, solve_dims


def bound(original: str, rewritten: str, dims: Mapping[str, int] | None = None) -> tuple[dict[str, int], list[str]]:
    """Return what the inputs of one model fix of another's."""
    one, two = (model(f"g ({inputs}) => (float[n] y) {{ y = Identity (x) }}") for inputs in (original, rewritten))
    numbers, relations = solve_dims(fixed_by(one, two)[0], dims or {})
    return numbers, [str(relation) for relation in relations]


def test_numbers_of_the_rewritten_model_fix_symbols() -> None:
    assert bound("float[b, s] x", "float[2, s] x") == ({"b": 2}, [])


def test_numbers_follow_through_expressions() -> None:
    original = "float[b, s] x, float[b, past_plus_s] mask, float[past] p"
    assert bound(original, "float[b, 1] x, float[b, 8] mask, float[past] p")[0] == {"s": 1, "past": 7}


def test_what_one_number_leaves_open_stays_open() -> None:
    others = "float[past] p, float[s] q"
    numbers, relations = bound(f"float[b, past_plus_s] x, {others}", f"float[b, 9] x, {others}")
    assert (numbers, relations) == ({}, ["past + s - 9 == 0"])


def test_symbols_may_have_other_names() -> None:
    original = "float[b, s] x, float[b, p_plus_s] m, float[p] k"
    assert bound(original, "float[n, 1] x, float[n, q] m, float[r] k") == ({"s": 1}, [])


def test_a_symbol_in_two_places_makes_dims_equal() -> None:
    numbers, relations = bound("float[a, 2] x, float[b, 2] m", "float[n, 2] x, float[n, 2] m")
    assert (numbers, relations) == ({}, ["b - a == 0"])


def test_a_more_general_model_fixes_nothing() -> None:
    assert bound("float[2, 3] x", "float[n, m] x") == ({}, [])


@pytest.mark.parametrize(
    ("original", "rewritten", "message"),
    [
        ("float[n] x", "float[n] x, float[n] z", "its input 'z' is none of g - compare other models"),
        ("float[n] x", "int64[n] x", "input 'x' is float32 in g and int64 in g"),
        (
            "float[n] x",
            "float[n, 2] x",
            r"input 'x' is \[n\] in g and \[n, 2\] in g - compare models of the same inputs",
        ),
        (
            "float[n, 3] x",
            "float[n, 4] x",
            r"input 'x' is \[n, 3\] in g and \[n, 4\] in g - compare models of the same inputs",
        ),
        ("float[n_plus_4] x, float[n] z", "float[2] x, float[n] z", "'n' would be -2 - give sizes that fit together"),
    ],
)
def test_models_that_no_inputs_fit(original: str, rewritten: str, message: str) -> None:
    with pytest.raises(UsageError, match=message):
        bound(original, rewritten)


def test_sizes_that_contradict_the_rewritten_model() -> None:
    with pytest.raises(UsageError, match="it cannot be 3 with n=4"):
        bound("float[n] x", "float[3] x", {"n": 4})


def test_dims_of_one_name_may_get_two_sizes() -> None:
    assert bound("float[n, n] x", "float[3, 4] x") == ({"n": 3, "x.1": 4}, [])
    assert bound("float[n, n] x", "float[3, n] x") == ({"x.0": 3}, [])


def test_dims_that_a_spec_sets_apart_have_symbols_of_their_own() -> None:
    one, two = (model(f"g (float[{dims}] x) => (float[n] y) {{ y = Identity (x) }}") for dims in ("n, n", "3, 4"))
    pairs, spec = fixed_by(one, two, DimSpec.of({"x.0": 3}))
    assert [(str(pair.dim), str(pair.size)) for pair in pairs] == [("x.0", "3"), ("x.1", "4")]
    assert (spec.numbers, spec.bounds) == ({"x.0": 3}, {})


def test_an_input_that_has_lost_its_default_is_said_to_have_one_in_the_original() -> None:
    text = "g (float[n] x, float z) => (float[n] y) { y = Add (x, z) }"
    with pytest.raises(UsageError, match="its input 'z' has no default, as it has in g - compare other models"):
        fixed_by(model(text, z=2.0), model(text))
