"""Branches, loops, scans and functions: which nodes count, and how often."""

from __future__ import annotations

import time

import onnx.parser
import pytest

import graphkit
from graphkit.analysis.model_costs import Costs
from graphkit.model import Model

HEAD = '<ir_version: 10, opset_import: ["" : 21, "f" : 1]>'
BRANCHES = """{ y = If (k) <
    then_branch = one () => (float[8, 8] c) { c = Add (x, w) },
    else_branch = two () => (float[8, 8] c) { m = MatMul (x, w) c = Relu (m) }> }"""


def costs_of(text: str, **options: object) -> Costs:
    return graphkit.costs(Model.from_proto(onnx.parser.parse_model(f"{HEAD} {text}")), **options)  # type: ignore[arg-type]


def loop(limit: str, body: str = "{ n = MatMul (s, w) c = Identity (b) }") -> str:
    return f"""g (float[4, 8] x, float[8, 8] w, {limit}) => (float[4, 8] y)
        {{ y = Loop (t, , x) <body = inner (int64 i, bool b, float[4, 8] s) => (bool c, float[4, 8] n) {body}> }}"""


def test_the_dearer_branch_of_an_if_counts_and_both_are_told() -> None:
    found = costs_of(f"g (float[8, 8] x, float[8, 8] w, bool k) => (float[8, 8] y) {BRANCHES}")
    assert (found.macs.value, found.operations.value) == (512, 64)
    rows = [(row.branch, row.is_counted, row.macs.value, row.operations.value) for row in found.branches]
    assert sorted(rows) == [("else_branch", True, 512, 64), ("then_branch", False, 0, 64)]


def test_a_constant_condition_leaves_one_branch() -> None:
    found = costs_of(f"g (float[8, 8] x, float[8, 8] w) => (float[8, 8] y) <bool k = {{1}}> {BRANCHES}")
    assert (found.macs.value, found.operations.value, found.branches) == (0, 64, ())


def test_a_loop_costs_its_body_times_its_steps() -> None:
    found = costs_of(loop("int64 k").replace("=> (float[4, 8] y)", "=> (float[4, 8] y) <int64 t = {7}>"))
    assert found.macs.value == 7 * 256
    assert [(row.op, row.steps and row.steps.value) for row in found.sequential] == [("Loop", 7)]


def test_a_loop_of_an_unknown_number_of_steps_is_not_guessed() -> None:
    found = costs_of(loop("int64 t"))
    assert found.macs.value == 0
    assert found.macs.uncounted == 2
    (row,) = found.sequential
    assert (row.steps, row.reason) == (
        None,
        "the number of iterations of Loop 'Loop#0': ?0.t: it is an element of the input 't'",
    )


def test_a_loop_that_may_end_early_is_not_guessed() -> None:
    body = "{ n = MatMul (s, w) q = ReduceSum <keepdims = 0> (n) z = Cast <to = 9> (q) c = Identity (z) }"
    found = costs_of(loop("int64 k", body).replace("=> (float[4, 8] y)", "=> (float[4, 8] y) <int64 t = {7}>"))
    assert found.macs.uncounted == 4
    assert "depends on data" in found.unknown[0].reason


def test_a_scan_costs_its_body_at_each_step_of_its_input() -> None:
    found = costs_of(
        """g (float[n, 1, 8] x, float[8, 8] w, float[1, 8] s) => (float[1, 8] y) {
        y = Scan <num_scan_inputs = 1, body = b (float[1, 8] a, float[1, 8] e) => (float[1, 8] o)
            { p = MatMul (e, w) o = Add (a, p) }> (s, x) }""",
        dims={"n": 10},
    )
    assert (found.macs.value, found.operations.value) == (10 * 64, 10 * 8)
    symbolic = costs_of(
        """g (float[n, 1, 8] x, float[8, 8] w, float[1, 8] s) => (float[1, 8] y) {
        y = Scan <num_scan_inputs = 1, body = b (float[1, 8] a, float[1, 8] e) => (float[1, 8] o)
            { p = MatMul (e, w) o = Add (a, p) }> (s, x) }"""
    )
    assert symbolic.macs.expression == "64*n"
    assert [row.steps and row.steps.expression for row in symbolic.sequential] == ["n"]


def test_recurrent_operators_are_sequential() -> None:
    found = costs_of(
        "g (float[n, 2, 3] x, float[1, 20, 3] w, float[1, 20, 5] r) => (float[n, 1, 2, 5] y)"
        " { y = LSTM <hidden_size = 5> (x, w, r) }"
    )
    assert [(row.op, row.steps and row.steps.expression) for row in found.sequential] == [("LSTM", "n")]


FUNCTIONS = """g (float[4, 8] x, float[8, 8] w) => (float[4, 8] y) { a = f.twice (x, w) y = f.twice (a, w) }
    <domain: "f", opset_import: ["" : 21]> twice (p, q) => (r) { m = MatMul (p, q) r = MatMul (m, q) }"""


def test_a_function_counts_at_each_call() -> None:
    assert costs_of(FUNCTIONS).macs.value == 4 * 256


def test_a_function_that_calls_itself_is_unknown() -> None:
    found = costs_of(
        """g (float[4, 8] x) => (float[4, 8] y) { y = f.again (x) }
        <domain: "f", opset_import: ["" : 21, "f" : 1]> again (p) => (r) { r = f.again (p) }"""
    )
    assert [row.reason for row in found.unknown] == ["the function calls itself, at once or through others"]


@pytest.mark.slow
def test_functions_in_functions_take_bounded_time() -> None:
    calls = "".join(
        f'<domain: "f", opset_import: ["" : 21, "f" : 1]> f{n} (p) => (r) {{ m = f.f{n + 1} (p) r = f.f{n + 1} (m) }} '
        for n in range(40)
    )
    last = '<domain: "f", opset_import: ["" : 21]> f40 (p) => (r) { r = Relu (p) }'
    before = time.process_time()
    found = costs_of(f"g (float[4, 8] x) => (float[4, 8] y) {{ y = f.f0 (x) }} {calls} {last}")
    assert time.process_time() - before < 60
    assert found.operations.uncounted


@pytest.mark.parametrize("steps", [1 << 62, (1 << 63) - 1])
def test_huge_trip_counts_are_numbers_of_any_size(steps: int) -> None:
    found = costs_of(loop("int64 k").replace("=> (float[4, 8] y)", f"=> (float[4, 8] y) <int64 t = {{{steps}}}>"))
    assert found.macs.value == steps * 256
    assert found.to_text()


def test_sizes_that_overflow_are_unknown() -> None:
    dims = ", ".join(["1000000"] * 4)
    found = costs_of(f"g (float[{dims}] x) => (float[{dims}] y) {{ y = Relu (x) }}")
    assert found.operations.uncounted == 1
    assert found.to_text()
    assert "64 bits" in found.unknown[0].reason
