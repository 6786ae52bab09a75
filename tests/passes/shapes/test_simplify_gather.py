"""Lookups by a grid of indices, as `x[rows, columns]` of ranges is exported, beside what is cut in their place."""

from __future__ import annotations

import numpy as np
import pytest
from rewriting import check, constants, lines, model_of, reasons
from sessions import run

from graphkit.equivalence import check_equivalence
from graphkit.graph.view import Value
from graphkit.model import Model
from graphkit.passes.fold_pipeline import fold
from graphkit.passes.shapes.simplify_reshape import open_spec
from graphkit.passes.shapes.simplify_scatter import SimplifyGather
from graphkit.shapes import const, symbol
from graphkit.symbolic.algebra import minimum

NUMBERS = "<int64 zero = {0}, int64 one = {1}, int64[1] front = {0}, int64[1] i1 = {1}, int64[1] last = {-1}>"
SIZES = "n = Shape <end = 1> (z) l = Shape <start = 1, end = 2> (z) n0 = Squeeze (n) l0 = Squeeze (l)"
RANGES = f"{SIZES} rows = Range (zero, n0, one) columns = Range (zero, l0, one)"
GRID = (
    "r = Unsqueeze (rows, behind) whole = Concat <axis = 0> (n, i1, l) i = Expand (r, whole)"
    " j = Expand (columns, whole) iu = Unsqueeze (i, last) ju = Unsqueeze (j, last) at = Concat <axis = -1> (iu, ju)"
)
APART = "(float[past_a, past_b] x, float[past_n, past_l] z) => (y)"


def grid(
    heads: str, nodes: str = f"{RANGES} {GRID} y = GatherND (x, at)", behind: tuple[int, ...] = (1, 2), **more: object
) -> Model:
    return model_of(f"agraph {heads} {NUMBERS} {{ {nodes} }}", behind=np.array(behind), **more)


def operators(model: Model) -> list[str]:
    return [node.op_type for node in model.graph.nodes]


def test_a_mask_looked_up_by_all_rows_and_columns_gets_axes_of_1() -> None:
    same = "(bool[N, L] x, bool[N, L] z) => (y) "
    model = grid(same, f"both = And (x, z) {RANGES} {GRID} y = GatherND (both, at)")
    outcome = check(SimplifyGather(), model, [{"N": 0, "L": 3}])
    assert lines(outcome.model)[1:] == ["y = Unsqueeze (both, y_axes)"]
    assert constants(outcome.model)["y_axes"] == [1]


def test_a_lookup_of_all_elements_in_their_places_is_the_tensor() -> None:
    model = grid(
        "(float[N, L] x) => (y)",
        "z = Neg (x) "
        + RANGES
        + " r = Unsqueeze (rows, i1) whole = Concat <axis = 0> (n, l) i = Expand (r, whole) j = Expand (columns, whole)"
        " iu = Unsqueeze (i, last) ju = Unsqueeze (j, last) at = Concat <axis = -1> (iu, ju) g = GatherND (z, at)"
        " y = Abs (g)",
    )
    assert lines(check(SimplifyGather(), model, [{"N": 0, "L": 3}]).model) == ["z = Neg (x)", "y = Abs (z)"]


def test_a_part_of_a_longer_mask_is_cut_and_has_the_sizes_of_the_ranges() -> None:
    """The dims of a mask have names of their own: only those who run it know that it is no longer than the tokens."""
    model = grid(APART)
    result = SimplifyGather().run(model).model
    assert lines(result)[2:] == [
        "y_ends = Concat <axis: int = 0> (n, l)",
        "y_part = Slice (x, y_starts, y_ends, y_axes)",
        "y_box = Reshape (y_part, y_ends)",
        "y = Unsqueeze (y_box, y_axes_1)",
    ]
    for rows, columns, own in (((2, 5), (2, 5), 0), ((4, 7), (2, 5), 1), ((3, 2), (3, 0), 2), ((0, 4), (0, 4), 3)):
        feeds = {"x": np.random.default_rng(own).normal(size=rows), "z": np.zeros(columns)}
        both = [run(each, {k: v.astype(np.float32) for k, v in feeds.items()}) for each in (model, result)]
        np.testing.assert_array_equal(both[0][0], both[1][0], strict=True)
    assert operators(fold(model).model) == operators(result)
    assert str(check_equivalence(model, result)) == "y: proven bit for bit"


@pytest.mark.parametrize(("rows", "runs"), [((5, 0), True), ((5, 4), False), ((2, 4), False), ((3, 2), True)])
def test_a_mask_that_is_too_short_runs_or_fails_as_before(rows: tuple[int, int], runs: bool) -> None:
    """No index is looked up where there is none: then a mask of too few rows does."""
    model = grid(APART)
    for each in (model, SimplifyGather().run(model).model):
        feeds = {"x": np.zeros((3, 2), np.float32), "z": np.zeros(rows, np.float32)}
        if runs:
            assert run(each, feeds)[0].shape == (rows[0], 1, rows[1])
        else:
            with pytest.raises(Exception, match=r"GatherND|Reshape"):
                run(each, feeds)


def lookup(columns: str, head: str = "(float[N, 6] x, float[N, 2] z) => (y)", **more: object) -> Model:
    """Return a lookup of all rows, and of these columns, of the sum of `x` and its rows in `z`."""
    nodes = f"s = ReduceSum (z, i1) x0 = Add (x, s) {RANGES} {columns} r = Unsqueeze (rows, i1)"
    nodes += " m = Shape (w) whole = Concat <axis = 0> (n, m) i = Expand (r, whole) j = Expand (w, whole)"
    nodes += " iu = Unsqueeze (i, last) ju = Unsqueeze (j, last) at = Concat <axis = -1> (iu, ju) y = GatherND (x0, at)"
    return grid(head, nodes, **more)


@pytest.mark.parametrize(
    ("columns", "starts", "ends"),
    [
        ("w = Add (columns, i1)", [1], [3]),
        ("w = Sub (columns, two)", [4], [2**63 - 1]),
        ("w = Add (columns, four)", [4], [2**63 - 1]),
    ],
)
def test_columns_that_do_not_begin_at_the_first_are_cut_from_where_they_do(
    columns: str, starts: list[int], ends: list[int]
) -> None:
    model = lookup(columns, two=np.array(2), four=np.array(4))
    outcome = check(SimplifyGather(), model, [{"N": 0}])
    assert operators(outcome.model)[-1] == "Slice"
    bounds = [value.name for value in outcome.model.graph.nodes[-1].inputs[1:3] if isinstance(value, Value)]
    assert [constants(outcome.model)[name] for name in bounds] == [starts, ends]
    assert check_equivalence(model, outcome.model).is_proven


@pytest.mark.parametrize(
    ("columns", "reason"),
    [
        ("w = Mul (columns, two)", "its indices do not go up by one along one axis"),
        ("w = Mul (columns, zero)", "its indices may name an element more than once"),
        ("w = Cast <to = 7> (z1)", "its indices are not known to be consecutive"),
    ],
)
def test_other_indices_stay(columns: str, reason: str) -> None:
    model = lookup(f"z1 = ReduceSum <keepdims = 0> (z, front) {columns}", two=np.array(2))
    assert [each.split(": ", 1)[1] for each in reasons(SimplifyGather().run(model))] == [reason]


def test_a_grid_of_another_order_stays() -> None:
    swapped = GRID.replace("(iu, ju)", "(ju, iu)")
    model = grid("(float[6, 6] x, float[6, 6] z) => (y)", f"{RANGES} {swapped} y = GatherND (x, at)")
    assert reasons(SimplifyGather().run(model)) == ["GatherND#13: its indices are in another order than the axes"]


def test_indices_below_zero_of_a_range_that_may_be_empty_stay() -> None:
    model = lookup("w = Sub (columns, l0)", "(float[N, 6] x, float[N, past] z) => (y)")
    assert [each.split(": ", 1)[1] for each in reasons(SimplifyGather().run(model))] == ["its indices may be negative"]


def test_an_index_that_is_a_constant_is_one_node_and_stays() -> None:
    model = grid("(float[N, 6] x) => (y)", "y = GatherND <batch_dims = 1> (x, at)", at=np.zeros((2, 3, 1), np.int64))
    assert operators(SimplifyGather().run(model).model) == ["GatherND"]


def test_rows_that_are_looked_up_in_a_batch_each_stay() -> None:
    nodes = f"{RANGES} whole = Concat <axis = 0> (n, l, i1) c = Unsqueeze (columns, i1) at = Expand (c, whole)"
    model = grid("(float[N, 6] x, float[N, 2] z) => (y)", f"{nodes} y = GatherND <batch_dims = 1> (x, at)")
    assert reasons(SimplifyGather().run(model)) == ["GatherND#9: its rows are looked up in a batch each"]


def test_masks_that_share_a_grid_are_all_cut() -> None:
    """One alone would take more nodes than go, as the other one needs those of the grid."""
    model = grid("(float[A, B] x, float[C, D] v, float[N, L] z) => (y)",
                 f"{RANGES} {GRID} a = GatherND (x, at) b = GatherND (v, at) y = Add (a, b)")  # fmt: skip
    result = fold(model).model
    assert "GatherND" not in operators(result)
    assert len(result.graph.nodes) < len(model.graph.nodes)
    assert check_equivalence(model, result).is_proven


SHAPED = "b = Reshape (p, ends) y = Unsqueeze (b, behind)"
WRONG = {
    "a Slice alone, which is shorter where its data is": "p = Slice (x, fronts, ends, both) y = Unsqueeze (p, behind)",
    "one that begins later": f"p = Slice (x, later, ends, both) {SHAPED}",
    "one that ends later": f"e = Add (ends, i1) p = Slice (x, fronts, e, both) {SHAPED}",
    "one of other sizes": f"p = Slice (x, fronts, ends, both) {SHAPED.replace('ends', 'turned')}",
}


@pytest.mark.parametrize("nodes", WRONG.values(), ids=WRONG)
def test_what_is_cut_otherwise_is_not_proven(nodes: str) -> None:
    numbers = {"fronts": np.array([0, 0]), "later": np.array([0, 1]), "both": np.array([0, 1])}
    after = grid(APART, f"{SIZES} ends = Concat <axis = 0> (n, l) turned = Concat <axis = 0> (l, n) {nodes}", **numbers)
    assert not check_equivalence(grid(APART), after).is_proven


def test_a_cut_is_not_proven_of_a_lookup_that_does_not_say_its_sizes() -> None:
    """A Reshape to the sizes of the ranges may fail, unless the original looks all of them up."""
    ends = f"{SIZES} ends = Concat <axis = 0> (n, l) p = Slice (x, fronts, ends, both)"
    numbers = {"fronts": np.array([0, 0]), "both": np.array([0, 1])}
    before = grid(APART, f"{ends} t = Shape (p) b = Reshape (p, t) y = Unsqueeze (b, behind)", **numbers)
    after = grid(APART, f"{ends} b = Reshape (p, ends) y = Unsqueeze (b, behind)", **numbers)
    assert not check_equivalence(before, after).is_proven


def test_a_reshape_to_sizes_that_a_cut_may_not_have_says_all_of_them() -> None:
    """With a -1 it would give what there is, and the dims of what follows would be a quotient."""
    n, length, rows, columns = (symbol(name, 1) for name in "NLAB")
    cut = minimum(n, rows), minimum(length, columns)
    assert open_spec(cut, (n, length)) == (n, length)
    assert open_spec((n, cut[1]), (n, length)) == (0, length)
    assert open_spec((n, length * 8), (n, length, const(8))) == (0, -1, 8)
