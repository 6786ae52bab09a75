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
from graphkit.passes.shapes.simplify_scatter import SimplifyGather

NUMBERS = "<int64 zero = {0}, int64 one = {1}, int64[1] front = {0}, int64[1] i1 = {1}, int64[1] last = {-1}>"
SIZES = "n = Shape <end = 1> (z) l = Shape <start = 1, end = 2> (z) n0 = Squeeze (n) l0 = Squeeze (l)"
RANGES = f"{SIZES} rows = Range (zero, n0, one) columns = Range (zero, l0, one)"
GRID = (
    "r = Unsqueeze (rows, behind) whole = Concat <axis = 0> (n, i1, l) i = Expand (r, whole)"
    " j = Expand (columns, whole) iu = Unsqueeze (i, last) ju = Unsqueeze (j, last) at = Concat <axis = -1> (iu, ju)"
)
APART = "(float[A, B] x, float[N, L] z) => (y)"
EMPTY = "(float[past_a, past_b] x, float[past_n, past_l] z) => (y)"


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


def test_a_part_of_a_longer_mask_is_looked_up_by_each_range_alone() -> None:
    """The dims of a mask have names of their own: only those who run it know that it is no longer than the tokens."""
    model = grid(APART)
    result = SimplifyGather().run(model).model
    assert lines(result)[4:] == [
        "rows = Range (zero, n0, one)",
        "columns = Range (zero, l0, one)",
        "y_part = Gather <axis: int = 0> (x, rows)",
        "y_part_1 = Gather <axis: int = 1> (y_part, columns)",
        "y = Unsqueeze (y_part_1, y_axes)",
    ]
    for rows, columns in (((2, 5), (2, 5)), ((4, 7), (2, 5)), ((3, 2), (3, 0)), ((0, 4), (0, 4))):
        feeds = {"x": np.random.default_rng(0).normal(size=rows), "z": np.zeros(columns)}
        both = [run(each, {k: v.astype(np.float32) for k, v in feeds.items()}) for each in (model, result)]
        np.testing.assert_array_equal(both[0][0], both[1][0], strict=True)
    assert operators(fold(model).model) == operators(result)
    assert str(check_equivalence(model, result)) == "y: proven bit for bit"


@pytest.mark.parametrize("rows", [(5, 4), (2, 4), (4, 2)])
def test_a_mask_that_is_too_short_fails_as_before(rows: tuple[int, int]) -> None:
    model = grid(APART)
    for each in (model, SimplifyGather().run(model).model):
        with pytest.raises(Exception, match="Gather"):
            run(each, {"x": np.zeros((3, 2), np.float32), "z": np.zeros(rows, np.float32)})


def test_a_box_that_may_be_empty_past_the_end_stays() -> None:
    """No index is looked up where there are no columns: then a mask of too few rows does."""
    model = grid(EMPTY)
    assert run(model, {"x": np.zeros((3, 2), np.float32), "z": np.zeros((5, 0), np.float32)})[0].shape == (5, 1, 0)
    assert [each.split(": ", 1)[1] for each in reasons(SimplifyGather().run(model))] == [
        "its box may be empty, past the end of its data"
    ]
    each = "g = Gather <axis = 0> (x, rows) h = Gather <axis = 1> (g, columns) y = Unsqueeze (h, i1)"
    assert not check_equivalence(model, grid(EMPTY, f"{RANGES} {each}")).is_proven


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


WRONG = {
    "a Slice, which is shorter where its data is": "ends = Concat <axis = 0> (n, l) h = Slice (x, fronts, ends)",
    "rows that begin later": "r = Add (rows, one) g = Gather <axis = 0> (x, r) h = Gather <axis = 1> (g, columns)",
    "rows that end later": "m = Add (n0, one) r = Range (zero, m, one) s = Gather <axis = 0> (x, r) "
    "g = Slice (s, front, n, front) h = Gather <axis = 1> (g, columns)",
    "rows as columns": "g = Gather <axis = 0> (x, columns) t = Gather <axis = 1> (g, rows) "
    "h = Transpose <perm = [1, 0]> (t)",
    "all columns": "h = Gather <axis = 0> (x, rows)",
}


@pytest.mark.parametrize("nodes", WRONG.values(), ids=WRONG)
def test_what_is_cut_otherwise_is_not_proven(nodes: str) -> None:
    after = grid(APART, f"{RANGES} {nodes} y = Unsqueeze (h, i1)", fronts=np.array([0, 0]))
    assert not check_equivalence(grid(APART), after).is_proven


def test_a_lookup_by_a_range_may_fail_where_a_cut_does_not() -> None:
    before = grid(APART, f"{RANGES} ends = Concat <axis = 0> (n, l) h = Slice (x, fronts, ends) y = Unsqueeze (h, i1)",
                  fronts=np.array([0, 0]))  # fmt: skip
    after = grid(APART, f"{RANGES} g = Gather <axis = 0> (x, rows) h = Gather <axis = 1> (g, columns) "
                 "y = Unsqueeze (h, i1)")  # fmt: skip
    assert not check_equivalence(before, after).is_proven
