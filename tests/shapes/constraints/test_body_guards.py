"""Hazards in the body of an If or a Loop count at sizes at which it runs; onnxruntime says which these are."""

from __future__ import annotations

import numpy as np
import pytest
from rewriting import model_of as model
from sessions import session_of

from graphkit.analysis.hazards import hazards
from graphkit.model import Model
from graphkit.ops.preconditions import FINE
from graphkit.shapes import infer
from graphkit.shapes.constraints.node_constraints import Values, collect_preconditions

# A branch cuts 8 of T, and needs all of them: what chooses it, and whether it is the then_branch.
CHOICES = {
    "less": ("c = Less (t, eight)", False),
    "less, in the other branch": ("c = Less (t, eight)", True),
    "less or equal": ("c = LessOrEqual (t, eight)", False),
    "greater": ("c = Greater (t, five)", True),
    "greater or equal": ("c = GreaterOrEqual (t, eight)", True),
    "equal": ("c = Equal (t, eight)", True),
    "unequal": ("c = Equal (t, five)", False),
    "not": ("b = Less (t, eight) c = Not (b)", True),
    "all": ("a = Greater (t, five) b = Less (t, eight) d = Not (b) c = And (a, d)", True),
    "one of two": ("a = Greater (t, five) b = Equal (t, one) c = Or (a, b)", True),
    "none of two": ("a = Less (t, five) b = Less (t, eight) c = Or (a, b)", False),
    "not all": ("a = Greater (t, five) b = Less (t, eight) c = And (a, b)", False),
    "a number": ("d = Div (t, eight) c = Cast <to = 9> (d)", True),
    "one of two, unknown": ("a = Less (t, five) c = Or (a, flag)", False),
    "not known": ("c = Identity (flag)", True),
}


def chosen(condition: str, is_then: bool) -> Model:
    needy = "cut = Slice (x, zero, eights, one_axis) shaped = Reshape (cut, rows)"
    bodies = needy, "kept = Identity (x)"
    then, other = bodies if is_then else bodies[::-1]
    names = ("shaped", "kept") if is_then else ("kept", "shaped")
    text = f"""g (float[B, T] x, bool flag) => (float[B, K] y) {{
        dims = Shape (x) t = Gather (dims, one) {condition}
        y = If (c) <then_branch = p () => (float[B, I] {names[0]}) {{ {then} }},
                    else_branch = q () => (float[B, J] {names[1]}) {{ {other} }}>
    }}"""
    numbers = {"one": np.int64(1), "five": np.int64(5), "eight": np.int64(8)}
    lists = {"zero": [0], "eights": [8], "one_axis": [1], "rows": [-1, 8]}
    return model(text, 17, **numbers, **{name: np.array(array) for name, array in lists.items()})


def fails(proto: Model, size: int, flag: bool) -> bool:
    try:
        session_of(proto).run(None, {"x": np.zeros((1, size), np.float32), "flag": np.array(flag)})
    except Exception as error:
        if "cannot be reshaped" not in str(error):
            raise
        return True
    return False


@pytest.mark.cases(5)
@pytest.mark.parametrize(("condition", "is_then"), CHOICES.values(), ids=CHOICES)
def test_a_branch_counts_where_its_condition_lets_it_run(condition: str, is_then: bool) -> None:
    found = chosen(condition, is_then)
    sizes = range(1, 12)
    run = {size for size in sizes if any(fails(found, size, flag) for flag in (True, False))}
    foretold = set[int]()
    for place in collect_preconditions(infer(found)):
        if place.nodes[0].op_type == "Reshape":
            outcome = Values.of_all([{"B": 1, "T": size} for size in sizes]).outcome(place.precondition)
            foretold |= {size for size, one in zip(sizes, outcome, strict=True) if one != FINE}
    assert foretold == run
    assert bool(hazards(found).hazards) is bool(run)


def test_the_body_of_a_loop_counts_where_it_runs() -> None:
    text = """g (float[B, T] x) => (float[B, T] y) {
        dims = Shape (x) t = Gather (dims, one) rest = Sub (t, eight) zeros = Sub (eight, eight)
        times = Max (rest, zeros)
        y = Loop (times, , x) <body = p (int64 i, bool on, float[B, T] now) => (bool still, float[B, T] next) {
            still = Identity (on) row = Slice (now, zero, eights, one_axis) wide = Reshape (row, rows)
            next = Identity (now)
        }>
    }"""
    numbers = {"one": np.int64(1), "eight": np.int64(8)}
    lists = {"zero": [0], "eights": [8], "one_axis": [1], "rows": [-1, 8]}
    found = model(text, 17, **numbers, **{name: np.array(array) for name, array in lists.items()})
    assert hazards(found).hazards == ()


def test_a_branch_inside_of_another_counts_where_both_run() -> None:
    text = """g (float[B, T] x) => (float[B, K] y) {
        dims = Shape (x) t = Gather (dims, one) c = Less (t, eight)
        y = If (c) <
            then_branch = p () => (float[B, I] a) { a = Identity (x) },
            else_branch = q () => (float[B, J] b) {
                d = Less (t, twelve)
                b = If (d) <
                    then_branch = r () => (float[B, L] e) {
                        cut = Slice (x, zero, eights, one_axis) e = Reshape (cut, rows)
                    },
                    else_branch = s () => (float[B, M] f) { f = Identity (x) }
                >
            }
        >
    }"""
    numbers = {"one": np.int64(1), "eight": np.int64(8), "twelve": np.int64(12)}
    lists = {"zero": [0], "eights": [8], "one_axis": [1], "rows": [-1, 8]}
    found = model(text, 17, **numbers, **{name: np.array(array) for name, array in lists.items()})
    assert hazards(found).hazards == ()
