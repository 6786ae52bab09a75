from __future__ import annotations

import pytest
from rewriting import check, lines, model_of, reasons

from graphkit.model import Model
from graphkit.passes.npu.decompose_operators import RotarySignToTable
from graphkit.passes.registry import NPU_PASSES
from graphkit.rewrite.fixpoint import run_to_fixpoint

PASS = RotarySignToTable()
HALVES = "a, b = Split <axis = 3> (x) n = Neg (b) r = Concat <axis = 3> (n, a)"


def graph(nodes: str, inputs: str = "float[1, 2, 3, 4] x, float[1, 1, 3, 4] s", inits: str = "") -> Model:
    return model_of(f"g ({inputs}) => (y) <{inits}> {{ {nodes} }}")


def operators(model: Model) -> list[str]:
    return [node.op_type for node in model.graph.nodes]


def test_halves() -> None:
    outcome = check(PASS, graph(f"{HALVES} y = Mul (r, s)"))
    assert operators(outcome.model) == ["Split", "Concat", "Mul", "Mul"]


def test_the_table_may_come_first_and_be_a_row() -> None:
    outcome = check(PASS, graph(f"{HALVES} y = Mul (s, r)", "float[1, 2, 3, 4] x, float[4] s"))
    assert operators(outcome.model) == ["Split", "Concat", "Mul", "Mul"]


def test_interleaved() -> None:
    nodes = """
        even = Slice (x, zero, end, last, two) odd = Slice (x, one, end, last, two) n = Neg (odd)
        nu = Unsqueeze (n, four) eu = Unsqueeze (even, four) r = Concat <axis = -1> (nu, eu) flat = Reshape (r, to)
        y = Mul (flat, s)
    """
    inits = (
        "int64[1] zero = {0}, int64[1] one = {1}, int64[1] two = {2}, int64[1] end = {9}, int64[1] last = {3}, "
        "int64[1] four = {4}, int64[4] to = {1, 2, 3, 4}"
    )
    model = graph(nodes, inits=inits)
    outcome = check(PASS, model)
    assert "Neg" not in operators(outcome.model)
    assert "y = Mul (flat_positive, s_signed)" in lines(outcome.model)
    lowered = check(lambda each: run_to_fixpoint(each, [kind() for kind in NPU_PASSES]), model)
    assert "Neg" not in operators(lowered.model)


def test_queries_and_keys_share_a_table() -> None:
    keys = "c, d = Split <axis = 3> (k) m = Neg (d) t = Concat <axis = 3> (m, c) z = Mul (t, s)"
    model = graph(
        f"{HALVES} w = Mul (r, s) {keys} y = Add (w, z)",
        "float[1, 2, 3, 4] x, float[1, 1, 3, 4] k, float[1, 1, 3, 4] s",
    )
    outcome = check(lambda each: run_to_fixpoint(each, [kind() for kind in NPU_PASSES]), model)
    assert operators(outcome.model).count("Mul") == 3


def test_a_constant_table_takes_the_signs() -> None:
    model = graph(f"{HALVES} y = Mul (r, s)", "float[1, 2, 3, 4] x", "float[4] s = {1, 2, 3, 4}")
    outcome = check(lambda each: run_to_fixpoint(each, [kind() for kind in NPU_PASSES]), model)
    assert operators(outcome.model) == ["Split", "Concat", "Mul"]


READERS, TABLE = "what it rotates has other readers", "what it rotates is not multiplied by a table"
DECLINED = {
    "read twice": (graph(f"{HALVES} z = Mul (r, s) y = Add (z, r)"), READERS),
    "added": (graph(f"{HALVES} y = Add (r, s)"), TABLE),
    "squared": (graph(f"{HALVES} y = Mul (r, r)"), READERS),
    "a table for each head and more": (
        graph(f"{HALVES} y = Mul (r, s)", "float[1, 2, 3, 4] x, float[5, 1, 3, 4] s"),
        "its table has more elements than what it rotates",
    ),
    "integers": (
        graph(f"{HALVES} y = Mul (r, s)", "int32[1, 2, 3, 4] x, int32[4] s"),
        "it does not rotate floats",
    ),
    "dynamic": (
        graph(f"{HALVES} y = Mul (r, s)", "float[N, 2, 3, 4] x, float[4] s"),
        "the dims of what it rotates are not all numbers: [N, 2, 3, 4]",
    ),
}


@pytest.mark.parametrize(("model", "reason"), DECLINED.values(), ids=DECLINED)
def test_what_cannot_be_is_declined(model: Model, reason: str) -> None:
    outcome = check(PASS, model)
    assert [text.split(": ", 1)[1] for text in reasons(outcome)] == [reason]
    assert outcome.model is model


def test_a_neg_that_others_read_is_no_sign() -> None:
    outcome = check(PASS, graph(f"{HALVES} z = Mul (r, s) e = Concat <axis = 3> (n, n) y = Add (e, z)"))
    assert operators(outcome.model).count("Neg") == 1
