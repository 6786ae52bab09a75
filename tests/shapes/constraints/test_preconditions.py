"""Preconditions against onnxruntime's kernels at random dims; how dims are tried."""

from __future__ import annotations

from functools import lru_cache

import numpy as np
import onnx.parser
import pytest
from builders import model_of
from hypothesis import given
from hypothesis import strategies as st
from properties import examples

from graphkit.errors import ModelError
from graphkit.model import Model
from graphkit.ops.data_movement import Concatenated, Reshaped
from graphkit.ops.indexing import Sliced
from graphkit.ops.preconditions import FAILS, FINE, WRONG, Broadcast, Precondition
from graphkit.runtime.session import Session
from graphkit.shapes import Expr, const, infer, symbol
from graphkit.shapes.constraints import find_triggers
from graphkit.shapes.constraints.node_constraints import collect_preconditions
from graphkit.shapes.constraints.size_grid import candidate_sizes, free_symbols, size_pools, ties_of

SIZE = st.integers(0, 4)


@lru_cache
def session(graph: str) -> Session:
    return Session(model_of(graph))


def shape_of(graph: str, **feed: np.ndarray) -> tuple[int, ...] | None:
    """Return the shape of the output `y`, None where onnxruntime fails."""
    try:
        return session(graph).run(feed)["y"].shape
    except ModelError:
        return None


def outcome(precondition: Precondition, values: list[int]) -> int:
    return int(precondition.outcome([np.array([value]) for value in values])[0])


def names(letter: str, count: int) -> tuple[Expr, ...]:
    return tuple(symbol(f"{letter}{index}", 0) for index in range(count))


@examples(75, 300)
@given(st.lists(SIZE, min_size=1, max_size=3), st.lists(st.integers(-2, 4), min_size=1, max_size=3), st.booleans())
def test_a_reshape_is_read_as_onnxruntime_reads_it(source: list[int], target: list[int], allow_zero: bool) -> None:
    if allow_zero and -1 in target and 0 in target:
        return  # the specification forbids it, and onnxruntime takes -1 for anything
    precondition = Reshaped(names("a", len(source)), names("b", len(target)), allow_zero)
    dims = ", ".join(f"a{index}" for index in range(len(source)))
    given_shape = shape_of(
        f"(float[{dims}] x, int64[k] t) => (float y) {{ y = Reshape <allowzero = {int(allow_zero)}> (x, t) }}",
        x=np.zeros(source, np.float32),
        t=np.array(target),
    )
    found = outcome(precondition, source + target)
    assert (found == FAILS) == (given_shape is None)
    if found == WRONG:
        assert precondition.violation(source + target).shape == given_shape
    if found == FINE:
        assert given_shape is not None
        assert all(wanted in (-1, size) for wanted, size in zip(target, given_shape, strict=True))


@examples(50, 200)
@given(SIZE, SIZE, SIZE)
def test_dims_broadcast_as_in_onnxruntime(a: int, b: int, c: int) -> None:
    given_shape = shape_of(
        "(float[a] p, float[b] q, float[c] r) => (float y) { y = Sum(p, q, r) }",
        p=np.zeros(a, np.float32),
        q=np.zeros(b, np.float32),
        r=np.zeros(c, np.float32),
    )
    assert (outcome(Broadcast(names("a", 3), ""), [a, b, c]) == FAILS) == (given_shape is None)


@examples(50, 200)
@given(st.tuples(SIZE, SIZE), st.tuples(SIZE, SIZE), st.tuples(SIZE, SIZE))
def test_inputs_are_joined_as_in_onnxruntime(a: tuple[int, int], b: tuple[int, int], c: tuple[int, int]) -> None:
    given_shape = shape_of(
        "(float[a, b] p, float[c, d] q, float[e, f] r) => (float y) { y = Concat <axis = 1> (p, q, r) }",
        p=np.zeros(a, np.float32),
        q=np.zeros(b, np.float32),
        r=np.zeros(c, np.float32),
    )
    precondition = Concatenated((names("a", 2), names("b", 2), names("c", 2)), 1)
    assert (outcome(precondition, [*a, *b, *c]) == FAILS) == (given_shape is None)


@examples(50, 200)
@given(st.integers(-5, 5), st.integers(-5, 5), SIZE)
def test_a_slice_is_cut_as_in_onnxruntime(start: int, end: int, size: int) -> None:
    precondition = Sliced(symbol("s"), symbol("e"), names("d", 1), 0)
    given_shape = shape_of(
        "(float[n] x, int64[1] s, int64[1] e) => (float y) { y = Slice(x, s, e) }",
        x=np.zeros(size, np.float32),
        s=np.array([start]),
        e=np.array([end]),
    )
    if outcome(precondition, [start, end, size]) == WRONG:
        assert precondition.violation([start, end, size]).shape == given_shape
    elif start >= 0 and end >= 0:
        assert given_shape == (max(min(end, size) - min(start, size), 0),)


def test_a_range_that_begins_before_and_ends_behind_all_there_is_has_too_few_elements() -> None:
    """Positions that are counted from the middle of a table: a longer text gets all of it, and fewer than it needs."""
    length = symbol("length")
    precondition = Sliced(const(4) - length, length + 3, names("d", 1), 0)
    assert [outcome(precondition, [4 - n, n + 3, 7]) for n in (1, 4, 5, 12)] == [FINE, FINE, WRONG, WRONG]
    assert "it lies before all that there is, 7 of 7 are left" in str(precondition.violation([-8, 15, 7]))


PAST = symbol("past")


def test_candidates_are_legal_and_bounded() -> None:
    symbols = free_symbols([symbol(f"n{index}", 2, 9) for index in range(12)])
    preconditions = [Broadcast((symbol("n0", 2, 9), const(7)), "")]
    found = candidate_sizes(dict.fromkeys(symbols, 2), size_pools(preconditions, symbols, {}), {}, symbols)
    assert len(found) < 6000
    assert {size for one in found for size in one.values()} <= set(range(2, 10))
    assert all(sum(size != 2 for size in one.values()) <= 2 for one in found)


def test_what_follows_from_others_is_solved() -> None:
    total, now = symbol("total"), symbol("now")
    preconditions = [Broadcast((total, PAST + now), ""), Broadcast((symbol("keys"), total), "")]
    symbols = free_symbols([total, now, PAST, symbol("keys")])
    ties = ties_of(preconditions, symbols)
    assert {name: str(expr) for name, expr in ties.items()} == {"total": "now + past", "keys": "now + past"}


def value_ranges(graph: str) -> list[str]:
    """Return the preconditions of the indices in a graph, as text."""
    return [
        str([str(expr) for expr in one.precondition.exprs[:3]]) for one in collect_preconditions(infer(model_of(graph)))
    ]


TABLE = "(float[8, 4] t, int64[b, n] input_ids, int64[b, n] attention_mask, float[past_n] p) => (float y)"
WORDS = "<int64 z = {0}, int64 o = {1}, int64[1] i0 = {0}, int64[1] i1 = {1}, int64 two = {2}>"
SIZES = "s = Shape(input_ids)  n = Gather(s, o)  r = Range(z, n, o)  ps = Shape(p)  past = Gather(ps, z)"


@pytest.mark.parametrize(
    ("nodes", "reach"),
    [
        ("i = Identity(r)", ("0", "n - 1")),
        ("i = Add(r, past)", ("past_n", "n + past_n - 1")),
        ("i = Sub(r, past)", ("-past_n", "n - past_n - 1")),
        ("i = Mul(r, two)", ("0", "2*n - 2")),
        ("k = Range(z, past, o)  c = Unsqueeze(r, i1)  d = Unsqueeze(k, i0)  i = Add(c, d)", ("0", "n + past_n - 2")),
        ("k = Range(z, past, o)  c = Unsqueeze(r, i1)  d = Unsqueeze(k, i0)  i = Sub(c, d)", ("1 - past_n", "n - 1")),
        ("i = CumSum(attention_mask, o)", ("1", "n")),
        ("q = Equal(input_ids, o)  w = Not(q)  c = Cast <to = 7> (w)  i = CumSum(c, o)", ("1", "n")),
        ("q = Equal(attention_mask, z)  c = CumSum(attention_mask, o)  i = Where(q, o, c)", ("1", "n")),
        ("m = Constant <value_int = 20> ()  i = Min(r, m)", ("0", "min(20, n - 1)")),
        ("m = Constant <value_int = 20> ()  i = Clip(r, z, m)", ("0", "min(20, n - 1)")),
        ("i = CumSum <reverse = 1> (attention_mask, o)", ("1", "n")),
        ("i = Add(r, r)", ("0", "2*n - 2")),
        ("i = Range(z, n, two)", ("0", "2*((n + 1) // 2) - 2")),
        ("q = ConstantOfShape <value = int64[1] {9}> (s)  i = Identity(q)", ("9", "9")),
        (
            "e = Add(n, past)  k = Range(z, e, o)  pu = Unsqueeze(past, i0)"
            "  m = Constant <value_ints = [9223372036854775807]> ()  i = Slice(k, pu, m, i0)",
            ("past_n", "n + past_n - 1"),
        ),
    ],
)
def test_positions_are_followed(nodes: str, reach: tuple[str, str]) -> None:
    found = value_ranges(f"{TABLE} {WORDS} {{ {SIZES}  {nodes}  y = Gather(t, i) }}")
    assert str([*reach, "8"]) in found


@pytest.mark.parametrize(
    "nodes",
    [
        "i = Identity(input_ids)",
        "k = Mul(r, r)  i = Identity(k)",
        "k = Neg(r)  i = Abs(k)",
        "i = Slice(r, i0, i1)",
        "c = ReduceSum <keepdims = 0> (attention_mask)  i = Range(z, c, o)",
    ],
)
def test_what_is_not_known_to_be_reached_is_not_told(nodes: str) -> None:
    found = value_ranges(f"{TABLE} {WORDS} {{ {SIZES}  {nodes}  y = Gather(t, i) }}")
    assert [one for one in found if "'8'" in one] == []


def test_where_nothing_fits_no_hazards_are_looked_for() -> None:
    found = find_triggers(
        infer(
            model_of(
                "(float[n] x, float[m] w) => (float y) { a = Concat <axis = 0> (x, x, w)"
                "  b = Concat <axis = 0> (x, w)  s = Shape(b)  y = Reshape(a, s) }"
            )
        )
    )
    assert (found.triggers, found.base, [one.nodes[0].label for one in found.unmet]) == ((), None, ["Reshape#3"])


def test_what_a_function_needs_is_known_at_each_call_with_the_attributes_of_the_call() -> None:
    text = """<ir_version: 8, opset_import: ["" : 17, "local" : 1]> g (float[n, m] x, float[n, k] w) => (y, z) {
      y = local.joined <at = 0> (x, w) z = local.joined <at = 1> (x, w)
    }
    <domain: "local", opset_import: ["" : 17]> joined <at> (a, b) => (c) { c = Concat <axis: int = @at> (a, b) }"""
    found = collect_preconditions(infer(Model.from_proto(onnx.parser.parse_model(text))))
    assert [place.precondition.equalities() for place in found] == [((symbol("m"), symbol("k")),)]
