from __future__ import annotations

import pytest
from rewriting import check, constants, lines, model_of

from graphkit.model import Model
from graphkit.passes.clean_up.exporter_idioms import CastlikeToCast, SequenceToSplit
from graphkit.passes.fold_pipeline import fold


def test_the_type_of_the_other_is_an_attribute() -> None:
    model = model_of("g (float[N] x, int64[M] other) => (y, z) { y = CastLike (x, other) z = CastLike (y, x) }", 17)
    outcome = check(CastlikeToCast(), model)
    assert lines(outcome.model) == ["y = Cast <to: int = 7> (x)", "z = Cast <to: int = 1> (y)"]
    assert outcome.changes == ("2 CastLikes written as Cast",)


def test_an_unknown_type_stays() -> None:
    model = model_of("g (float[N] x, int64[1] p) => (float[N] y) { other = Mine.f (p) y = CastLike (x, other) }", 17)
    assert CastlikeToCast().run(model).model is model


def test_a_bias_of_zeros_that_has_the_type_of_the_data_is_a_constant() -> None:
    model = model_of(
        """g (float[N, 3, 8, 8] x) => (y)
        <double zero = {0}, int64[1] two = {2}, float[2, 3, 1, 1] w = {1, 2, 3, 4, 5, 6}> {
        typed = CastLike (zero, x) bias = Expand (typed, two) y = Conv (x, w, bias) }""",
        17,
    )
    folded = fold(model).model
    assert lines(folded) == ["y = Conv (x, w, bias_value)"]
    assert constants(folded)["bias_value"] == [0, 0]


PASS = SequenceToSplit()
INITS = "int64[2] sizes = {2, 4}, int64 four = {4}, int64 zero = {0}, int64 last = {-1}"
HEAD = "(float[N, 6] x) => (y, z)"


def graph(nodes: str, head: str = HEAD, opset: int = 17) -> Model:
    return model_of(f"g {head} <{INITS}> {{ {nodes} }}", opset)


TAKEN = "y = SequenceAt (parts, zero) z = SequenceAt (parts, last)"


def test_sizes_that_are_listed() -> None:
    outcome = check(PASS, graph(f"parts = SplitToSequence <axis = 1> (x, sizes) {TAKEN}"))
    assert lines(outcome.model) == [
        "parts_0, parts_1 = Split <axis: int = 1> (x, parts_sizes)",
        "y = Identity (parts_0)",
        "z = Identity (parts_1)",
    ]
    assert constants(outcome.model) == {"parts_sizes": [2, 4]}
    assert outcome.changes == ("1 sequence of parts written without a sequence",)


def test_one_size_leaves_a_shorter_last_part() -> None:
    outcome = check(PASS, graph(f"parts = SplitToSequence <axis = -1> (x, four) {TAKEN}"))
    assert constants(outcome.model) == {"parts_sizes": [4, 2]}


def test_rows_that_keep_their_dim() -> None:
    outcome = check(PASS, graph(f"parts = SplitToSequence <axis = 1> (x) {TAKEN}"))
    assert constants(outcome.model) == {"parts_sizes": [1] * 6}


def test_rows_that_lose_their_dim() -> None:
    outcome = check(PASS, graph(f"parts = SplitToSequence <axis = 1, keepdims = 0> (x) {TAKEN}"))
    assert lines(outcome.model) == [
        "y = Gather <axis: int = 1> (x, y_index)",
        "z = Gather <axis: int = 1> (x, z_index)",
    ]
    assert constants(outcome.model) == {"y_index": 0, "z_index": 5}


def test_a_part_that_two_take() -> None:
    nodes = """parts = SplitToSequence <axis = 1> (x, sizes) a = SequenceAt (parts, zero) y = SequenceAt (parts, zero)
    z = Add (a, y)"""
    assert lines(check(PASS, graph(nodes)).model)[1:] == ["y = Identity (parts_0)", "z = Add (parts_0, parts_0)"]


KEPT = {
    "a computed place": graph(
        "parts = SplitToSequence <axis = 1> (x, sizes) y = SequenceAt (parts, p)", "(float[N, 6] x, int64 p) => (y)"
    ),
    "no such place": graph(
        "parts = SplitToSequence <axis = 1> (x, sizes) y = SequenceAt (parts, four)", "(float[N, 6] x) => (y)"
    ),
    "computed sizes": graph(
        "parts = SplitToSequence <axis = 1> (x, p) y = SequenceAt (parts, zero)", "(float[N, 6] x, int64[2] p) => (y)"
    ),
    "an unknown number": graph(
        "parts = SplitToSequence (x, four) y = SequenceAt (parts, zero)", "(float[N, 6] x) => (y)"
    ),
    "another reader": graph(
        "parts = SplitToSequence <axis = 1> (x, sizes) y = SequenceAt (parts, zero) z = SequenceLength (parts)"
    ),
    "an old Split": graph(f"parts = SplitToSequence <axis = 1> (x, sizes) {TAKEN}", opset=12),
}


@pytest.mark.parametrize("model", KEPT.values(), ids=KEPT)
def test_they_stay(model: Model) -> None:
    assert PASS.run(model).model is model


def test_rows_of_one_size_without_their_dim_are_gathered() -> None:
    text = "parts = SplitToSequence <axis = 1, keepdims = 0> (x, one)"
    outcome = check(PASS, model_of(f"g {HEAD} <{INITS}, int64 one = {{1}}> {{ {text} {TAKEN} }}", 17))
    assert lines(outcome.model) == [
        "y = Gather <axis: int = 1> (x, y_index)",
        "z = Gather <axis: int = 1> (x, z_index)",
    ]
    assert constants(outcome.model) == {"y_index": 0, "z_index": 5}
