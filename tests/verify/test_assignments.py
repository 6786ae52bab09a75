from __future__ import annotations

import itertools
from collections.abc import Callable

import numpy as np
from hypothesis import given
from hypothesis import strategies as st
from properties import examples
from small_models import CONV, KERNEL, model

from graphkit.model import Model
from graphkit.shapes import DimSpec, Relation, const, symbol
from graphkit.shapes.constraints.legal_sizes import LegalSizes, Variable, legal_sizes
from graphkit.shapes.constraints.node_constraints import Values
from graphkit.verify.feeder import Lengths
from graphkit.verify.run_sizes import propose_assignments

RealModel = Callable[[str], Model]


def first(found: Model | LegalSizes, count: int = 6, **options: Lengths | bool) -> list[dict[str, int]]:
    legal = found if isinstance(found, LegalSizes) else legal_sizes(found).for_branch(is_first=False, reads_past=False)
    return [one.dims for one in itertools.islice(propose_assignments(legal, [], **options), count)]  # type: ignore[arg-type]


def run(model: Model, count: int, lengths: Lengths, longest: int = 9999) -> list[dict[str, int]]:
    """Return the first assignments that run, of a model that takes no more than so many positions."""
    successes: list[dict[str, int]] = []
    for proposal in propose_assignments(legal_sizes(model), successes, lengths=lengths):
        if sum(size for name, size in proposal.dims.items() if name in ("s", "past")) <= longest:
            successes.append(proposal.dims)
        else:
            assert proposal.is_probe
        if len(successes) == count:
            break
    return successes


def spaced(variables: list[Variable], *relations: Relation) -> LegalSizes:
    return LegalSizes(
        tuple(variables), tuple(one.against_zero() for one in relations), {}, {}, {}, frozenset(), (), None, None, ()
    )


def test_a_decoder_runs_a_prompt_steps_with_and_without_a_past_and_a_long_past(real_model: RealModel) -> None:
    found = run(real_model("gemma-270m/model"), 7, Lengths((515, 35)))
    rows = [(1, 7, 0), (2, 1, 4), (3, 1, 0), (1, 3, 9), (1, 1, 515), (1, 35, 0), (2, 5, 1)]
    assert found == [
        {
            "batch_size": batch,
            "sequence_length": sequence,
            "past_sequence_length": past,
            "total_sequence_length": past + sequence,
        }
        for batch, sequence, past in rows
    ]


CACHED = """g (int64[b, s] input_ids, float[b, 2, past, 4] past_key_values_0_key)
  => (float[b, 2, p, 4] present_0_key) {
    row = Gather (table, input_ids) split = Reshape (row, heads) key = Transpose <perm = [0, 2, 1, 3]> (split)
    present_0_key = Concat <axis = 2> (past_key_values_0_key, key) }"""


def test_a_table_of_positions_is_run_to_its_last_row_which_may_be_shifted() -> None:
    found = run(model(CACHED, table=np.ones((9, 8)), heads=[0, 0, 2, 4]), 7, Lengths((35,), (64, 63, 62)), longest=62)
    assert [(one["s"], one["past"]) for one in found[4:]] == [(1, 35), (35, 0), (1, 61)]


def test_an_encoder_runs_short_and_long_sequences(real_model: RealModel) -> None:
    found = first(real_model("bert-fill-mask/model"))
    assert [tuple(one.values()) for one in found] == [(1, 7), (2, 1), (3, 1), (1, 3), (1, 35), (2, 5)]


def test_every_cache_input_has_the_same_past_where_each_has_a_symbol_of_its_own(real_model: RealModel) -> None:
    legal = legal_sizes(real_model("cache-styles/cache_k_l0"))
    names = [variable.name for variable in legal.variables if variable.role == "past"]
    assert all(len({one[name] for name in names}) == 1 for one in first(legal))


def test_what_the_weights_need_is_respected() -> None:
    found = first(model(CONV, kernel=KERNEL))
    assert {one["channels"] for one in found} == {3}
    assert [(one["batch"], one["height"], one["width"]) for one in found] == [
        (1, 33, 49),
        (2, 49, 39),
        (3, 39, 48),
        (1, 48, 32),
        (1, 32, 64),
        (2, 49, 32),
    ]


def test_windows_fit_into_the_smallest_image() -> None:
    legal = legal_sizes(model(CONV, kernel=KERNEL.repeat(8, axis=2).repeat(8, axis=3)))
    assert {variable.name: variable.low for variable in legal.variables}["height"] == 64
    assert all(one["height"] >= 64 and one["width"] >= 64 for one in first(legal, 30))


def test_positions_stay_within_a_table() -> None:
    found = first(
        model(
            "g (int64[b, s] input_ids) => (float[b, s, 4] y) {"
            "shape = Shape (input_ids) n = Gather (shape, one) row = Slice (table, zero, n, zero)"
            "x = Cast <to = 1> (input_ids) wide = Unsqueeze (x, two) y = Add (wide, row) }",
            table=[[1.0] * 4] * 5,
            zero=[0],
            one=[1],
            two=[2],
        ),
        20,
    )
    assert max(one["s"] for one in found) == 5


def test_dims_without_a_name_are_told_apart() -> None:
    found = first(model("g (float[?, ?] x, float[?, ?] y) => (float[a, b] z) { z = Add (x, y) }"))
    assert set(found[0]) == {"x.0", "x.1", "y.0", "y.1"}
    assert all(one["x.0"] == one["y.0"] for one in found)


def test_sizes_that_are_given_are_no_choice() -> None:
    legal = legal_sizes(model(CONV, kernel=KERNEL), DimSpec.of({"batch": 2}, {"image": (2, 3, 16, 24)}))
    assert (legal.variables, legal.fixed) == ((), {"batch": 2, "channels": 3, "height": 16, "width": 24})
    assert legal.shapes({}) == {"image": (2, 3, 16, 24)}


def test_a_range_bounds_the_choice() -> None:
    found = first(legal_sizes(model(CONV, kernel=KERNEL), DimSpec.of(ranges={"batch": (2, 3), "height": (20, 21)})), 30)
    assert {one["batch"] for one in found} == {2, 3}
    assert {one["height"] for one in found} == {20, 21}


def test_there_may_be_fewer_assignments_than_wanted() -> None:
    legal = legal_sizes(model("g (float[n, 2] x) => (float[n, 2] y) { y = Neg (x) }"), DimSpec.of(ranges={"n": (1, 3)}))
    assert sorted(one["n"] for one in first(legal, 99)) == [1, 2, 3]


def test_an_equality_forces_the_last_symbol_however_large() -> None:
    past, new = symbol("past"), symbol("new")
    legal = spaced(
        [Variable("new", "sequence", 1, 9e9), Variable("past", "past", 0, 9e9)],
        Relation.equal(past + new * 2, const(5001)),
    )
    assert first(legal, 2) == [{"new": 7, "past": 4987}, {"new": 1, "past": 4999}]


def test_what_costs_much_is_tried_only_where_nothing_else_runs() -> None:
    legal = legal_sizes(model(CONV, kernel=KERNEL))
    cheap = first(legal, max_cost=10_000)
    assert cheap
    assert all(legal.cost(one) <= 10_000 for one in cheap)
    dear = first(legal, 3, max_cost=0)
    assert [legal.cost(one) for one in dear] == sorted(legal.cost(one) for one in dear)
    assert list(propose_assignments(legal, [dear[0]], max_cost=0)) == []


def test_sizes_at_which_models_are_exported_come_next_and_what_ran_with_one_size_changed() -> None:
    legal = legal_sizes(model("g (float[n, features] x) => (float[n, features] y) { y = Neg (x) }"))
    successes: list[dict[str, int]] = []
    found = []
    for one, _ in itertools.islice(propose_assignments(legal, successes), 40):
        found.append(one)
        if one["features"] == 64:
            successes.append(one)
    assert 64 not in {one["features"] for one in found[:8]}
    assert {"n": 1, "features": 64} in found[8:11]
    assert {"n": 2, "features": 64} in found[9:]
    assert {"n": 1, "features": 65} in found[9:]


@examples(5, 60)
@given(st.integers(1, 4), st.integers(-3, 3), st.integers(0, 40), st.integers(0, 30), st.integers(0, 30))
def test_all_are_legal_and_different_and_one_is_found_where_there_is_one(
    a: int, b: int, c: int, low_x: int, low_y: int
) -> None:
    x, y = symbol("x", 0), symbol("y", 0)
    variables = [Variable("x", "other", low_x, low_x + 20), Variable("y", "space", low_y, low_y + 20)]
    relations = (Relation.equal(x * a + y * b, const(c)), Relation.at_least(x // 2 + y, 3))
    found = first(spaced(variables, *relations), 50)
    assert all(Values.at(one).is_met(relation).all() for relation in relations for one in found)
    assert len({tuple(one.items()) for one in found}) == len(found)
    ranges = (range(low_x, low_x + 21), range(low_y, low_y + 21))
    every = Values.of_all([{"x": x, "y": y} for x, y in itertools.product(*ranges)])
    legal = np.all([every.is_met(relation) for relation in relations], axis=0).any()
    assert bool(found) == legal


def test_a_model_that_runs_with_a_batch_of_2_and_multiples_of_4_alone_gets_such_sizes() -> None:
    legal = legal_sizes(model("g (int64[batch, s] input_ids) => (int64[batch, s] y) { y = Neg (input_ids) }"))
    successes: list[dict[str, int]] = []
    for proposal in propose_assignments(legal, successes):
        if proposal.dims["batch"] == 2 and proposal.dims["s"] % 4 == 0:
            successes.append(proposal.dims)
    assert {sizes["s"] for sizes in successes} >= {32, 64}
