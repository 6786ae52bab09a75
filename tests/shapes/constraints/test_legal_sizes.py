"""The search for legal sizes."""

from __future__ import annotations

import itertools

import pytest
from builders import model_of
from onnx import parser

from graphkit.model import Model
from graphkit.ops.preconditions import Broadcast
from graphkit.shapes import Expr, Relation, const, floor_div, symbol
from graphkit.shapes.constraints.legal_sizes import Variable, legal_sizes, search_nearest_sizes
from graphkit.shapes.constraints.node_constraints import Constraint

INFINITE = float("inf")


def variables(count: int) -> tuple[list[Variable], list[Expr]]:
    names = [f"n{index}" for index in range(count)]
    return [Variable(name, "sequence", 1, INFINITE) for name in names], [symbol(name) for name in names]


def test_preconditions_and_relations_are_met_together() -> None:
    chosen, (a, b) = variables(2)
    constraints: list[Constraint] = [Broadcast((a, b), ""), Relation.at_least(a + b, 9)]
    found = list(itertools.islice(search_nearest_sizes(chosen, constraints, {"n0": 3, "n1": 4}), 2))
    assert found == [{"n0": 1, "n1": 8}, {"n0": 1, "n1": 9}]


@pytest.mark.parametrize("apart", [2, 12])
def test_what_lies_between_two_symbols_is_not_searched(apart: int) -> None:
    """The last symbol suits the first one or nothing: the free ones between have 256 sizes each."""
    chosen, exprs = variables(apart)
    first, last = exprs[0], exprs[-1]
    constraints = [Relation.equal(last * 7, first), Relation.at_least(last, 2)]
    wish = dict.fromkeys((one.name for one in chosen), 3)
    expected = {**wish, "n0": 14, f"n{apart - 1}": 2}
    assert next(search_nearest_sizes(chosen, constraints, wish)) == expected


def test_there_may_be_very_many_symbols() -> None:
    chosen, exprs = variables(1500)
    constraints = [Relation.equal(one, other) for one, other in itertools.pairwise(exprs)]
    assert set(next(search_nearest_sizes(chosen, constraints, {"n0": 5})).values()) == {5}


def test_a_search_ends_after_so_many_sizes() -> None:
    chosen, (a, b) = variables(2)
    assert list(search_nearest_sizes(chosen, [Relation.equal(a * a * 2, b * b)], {}, visits=1000)) == []


def test_a_picture_of_so_many_patches_is_square_where_none_is_found_near_the_wish() -> None:
    chosen = [Variable(name, "space", 1, INFINITE) for name in ("height", "width")]
    patches = floor_div(symbol("height") + 31, 32) * floor_div(symbol("width") + 31, 32)
    found = search_nearest_sizes(chosen, [Relation.equal(patches, const(400))], {"height": 224, "width": 224})
    assert next(found) == {"height": 640, "width": 640}


def test_sizes_that_are_preferred_come_after_the_one_wished_for() -> None:
    chosen = [Variable("n", "sequence", 1, 20, (12, 8))]
    found = [one["n"] for one in search_nearest_sizes(chosen, [Relation.at_least(symbol("n"), const(3))], {"n": 5})]
    assert found[:5] == [5, 12, 8, 4, 6]
    assert sorted(found) == list(range(3, 21))


@pytest.mark.parametrize("wish", [{"past": 10, "new": 6, "total": 8}, {"past": 6, "new": 8, "total": 12}])
def test_dims_that_nodes_broadcast_do_so_at_all_sizes(wish: dict[str, int]) -> None:
    legal = legal_sizes(
        model_of("""g (float[past, 4] old, float[new, 4] x, float[total, 4] mask) => (float[n, 4] y) {
            both = Concat <axis = 0> (old, x)
            y = Mul (both, mask)
        }""")
    )
    found = list(itertools.islice(legal.near(wish), 50))
    lengths = [(sizes["past"] + sizes["new"], sizes["total"]) for sizes in found]
    assert len(found) == 50
    assert all(1 in pair or pair[0] == pair[1] for pair in lengths), lengths


def test_no_symbols_have_one_assignment() -> None:
    assert list(search_nearest_sizes([], [], {})) == [{}]


def test_the_scores_of_an_attention_in_one_node_cost_their_elements() -> None:
    """The node gives [1, 2, s, 4] alone, and holds as many scores as the nodes that it may be written as."""
    opset = '<ir_version: 10, opset_import: ["" : 23]>'
    graph = "g (float[1, 2, s, 4] q, float[1, 2, t, 4] k) => (float[1, 2, s, 4] y) { y = Attention (q, k, k) }"
    legal = legal_sizes(Model.from_proto(parser.parse_model(f"{opset} {graph}")))
    assert legal.cost({"s": 1000, "t": 3000}) == 2 * 1000 * 4 + 2 * 1000 * 3000
