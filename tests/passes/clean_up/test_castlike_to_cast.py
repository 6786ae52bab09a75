from __future__ import annotations

from rewriting import check, constants, lines, model_of

from graphkit.passes.clean_up.exporter_idioms import CastlikeToCast
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
