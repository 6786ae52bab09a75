"""What other tools make differs in the last digits: by so much as the original moves when it is rounded anew."""

from __future__ import annotations

import re
from pathlib import Path

import numpy as np
import pytest
from builders import model_of
from onnx import helper, numpy_helper

from graphkit.model import Model, as_model
from graphkit.options import FoldOptions, RewriteProofOptions
from graphkit.verify import verify_rewrite
from graphkit.verify.rewrite_proof import RewriteProof
from graphkit.workflows.fold_file import fold_file

RNG = np.random.default_rng(7)
CHANNELS = 8
NORMALISED = """(float[b, 3, h, w] x) => (float[b, 8, p, q] y) {
    c = Conv (x, kernel) n = BatchNormalization (c, gain, shift, mean, spread) y = Relu (n)
}"""
FUSED = "(float[b, 3, h, w] x) => (float[b, 8, p, q] y) { c = Conv (x, kernel, bias) y = Relu (c) }"
KERNEL = RNG.standard_normal((CHANNELS, 3, 3, 3)).astype(np.float32)
STATISTICS = {
    name: values.astype(np.float32)
    for name, values in {
        "gain": RNG.uniform(0.5, 2, CHANNELS),
        "shift": RNG.standard_normal(CHANNELS),
        "mean": RNG.standard_normal(CHANNELS),
        "spread": RNG.uniform(0.5, 2, CHANNELS),
    }.items()
}
NORM = """(float[b, s, 32] x) => (float[b, s, 16] y) {{
    u = Add (x, far) m = ReduceMean <axes = [-1]> (u) d = Sub (u, m) q = Pow (d, two) v = ReduceMean <axes = [-1]> (q)
    e = Add (v, {}) r = Sqrt (e) n = Div (d, r) g = Mul (n, gain) h = Add (g, shift) y = MatMul (h, weight)
}}"""
TABLE = "(int64[b, s] ids, float[n, 8] x) => (float[b, s, 1] y, float[n, 4] z) {{ y = Gather (table, ids) {} }}"


def fused(*, scaled: float = 1.0, by: float = 0.0) -> Model:
    """Return the model in which the normalisation is part of the convolution, as other tools compute its weights."""
    factor = STATISTICS["gain"] / np.sqrt(STATISTICS["spread"] + np.float32(1e-5))
    kernel = KERNEL * factor[:, None, None, None] * np.float32(scaled)
    bias = STATISTICS["shift"] - STATISTICS["mean"] * factor + np.float32(by)
    return model_of(FUSED, opset=17, kernel=kernel, bias=bias)


def normalised() -> Model:
    return model_of(NORMALISED, opset=17, kernel=KERNEL, **STATISTICS)


@pytest.mark.slow
@pytest.mark.parametrize("seed", [0, 1])
def test_weights_that_another_tool_computed_are_equal_up_to_rounding(seed: int) -> None:
    """The kernel is another one of the same name, which each run reads as a whole."""
    found = verify_rewrite(normalised(), fused(), options=RewriteProofOptions(seed=seed))
    assert found.passed
    assert found.proven().startswith("Proven in exact arithmetic at every size (1 of 1 output)")
    assert "; the runs do not cover: extreme values, NaN and infinities, where rounding decides" in found.proven()
    assert 0 < found.tolerance < 2e-6
    assert "Differences are rounding, of up to " in found.notes[-1]


@pytest.mark.slow
@pytest.mark.parametrize("seed", [0, pytest.param(1, marks=pytest.mark.slow)])
@pytest.mark.parametrize("wrong", [pytest.param({"scaled": 1 + 2e-5}, marks=pytest.mark.slow), {"by": 2e-5}])
def test_a_few_times_as_much_is_none(wrong: dict[str, float], seed: int) -> None:
    found = verify_rewrite(normalised(), fused(**wrong), options=RewriteProofOptions(seed=seed))
    assert "runs differ" in found.failures[0]


def test_equal_bits_that_are_claimed_are_asked_for() -> None:
    found = verify_rewrite(normalised(), fused(), options=RewriteProofOptions(exact=True))
    assert "runs differ" in found.failures[0]


@pytest.mark.slow
def test_a_tolerance_that_is_given_is_the_tolerance() -> None:
    assert not verify_rewrite(normalised(), fused(), options=RewriteProofOptions(tolerance=1e-9)).passed
    found = verify_rewrite(normalised(), fused(), options=RewriteProofOptions(tolerance=1e-3))
    assert (found.passed, found.tolerance, found.is_rounded) == (True, 1e-3, False)


def test_what_no_normal_form_proves_is_tested_up_to_rounding() -> None:
    """A sigmoid is a tanh at half the argument."""
    text = "(float[b, 4, 8] x) => (float[b, 4, 16] y) {{ {} y = MatMul (s, weight) }}"
    nodes = "s = Sigmoid (x)", "h = Mul (x, half) t = Tanh (h) u = Mul (t, half) s = Add (u, half)"
    constants = {"half": 0.5, "weight": RNG.standard_normal((8, 16)).astype(np.float32)}
    found = verify_rewrite(*(model_of(text.format(body), **constants) for body in nodes))
    assert found.passed
    assert re.match(r"Tested in \d+ runs: 1 output equal up to rounding, within [0-9.]+e-0[67] of the", found.proven())


def test_constants_of_nodes_that_stay_in_the_file_are_rounded_anew() -> None:
    """As TorchScript writes them: above 1,024 bytes they are read when they are asked for."""
    text = "(float[b, 4, 8] x) => (float[b, 4, 64] y) {{ weight = Constant () {} y = MatMul (s, weight) }}"
    nodes = "s = Sigmoid (x)", "h = Mul (x, half) t = Tanh (h) u = Mul (t, half) s = Add (u, half)"
    models = [model_of(text.format(body), half=0.5).proto for body in nodes]
    for proto in models:
        weight = numpy_helper.from_array(np.random.default_rng(0).standard_normal((8, 64)).astype(np.float32), "")
        proto.graph.node[0].attribute.append(helper.make_attribute("value", weight))
    found = verify_rewrite(*map(as_model, models))
    assert found.passed
    assert found.proven().startswith("Tested in ")


@pytest.mark.slow
def test_a_row_of_a_table_that_no_run_reads_is_found_beside_what_is_rounded() -> None:
    table, weight = (RNG.standard_normal(shape).astype(np.float32) for shape in ((1_000_000, 1), (8, 4)))
    scaled = (weight * np.float32(1 / 3)).astype(np.float32)
    changed = table.copy()
    changed[77_777] += 1
    nodes = "t = MatMul (x, weight) z = Mul (t, third)", "z = MatMul (x, scaled)"
    before = model_of(TABLE.format(nodes[0]), table=table, weight=weight, third=1 / 3)
    after = [model_of(TABLE.format(nodes[1]), table=rows, scaled=scaled) for rows in (table, changed)]
    assert verify_rewrite(before, after[0]).passed
    assert "weight 'table' (float32[1000000, 1]) differs" in verify_rewrite(before, after[1]).failures[0]


def test_what_a_choice_flips_is_no_measure() -> None:
    """Ties of a TopK move whole rows of the original, and explain no other numbers."""
    text = """(float[b, 64] x) => (float[b, 1] y) {{ n = Mul (x, zeros) s = Add (n, ties) v, i = TopK (s, one)
        f = Cast <to = 1> (i) y = {} (f, far) }}"""
    constants = {"zeros": np.zeros(64, np.float32), "ties": np.full(64, 1 / 3, np.float32), "one": np.array([1])}
    pair = (model_of(text.format("Add"), **constants, far=np.float32(far)) for far in (1, 2))
    assert "runs differ" in verify_rewrite(*pair).failures[0]


def norm(*, epsilon: float, far: float) -> Model:
    constants = {
        "far": far + RNG.standard_normal(32),
        "gain": RNG.uniform(0.5, 2, 32),
        "shift": RNG.standard_normal(32),
        "weight": RNG.standard_normal((32, 16)),
        "two": 2.0,
        "epsilon": epsilon,
    }
    return model_of(NORM.format("epsilon"), opset=17, **{name: np.float32(value) for name, value in constants.items()})


@pytest.mark.cases(1)
@pytest.mark.parametrize("far", [0, pytest.param(1000, marks=pytest.mark.slow), 3000])
def test_fused_operators_may_be_as_far_off_as_the_original_itself(far: float, tmp_path: Path) -> None:
    """A mean of numbers near 3,000 leaves three digits of what is subtracted from it."""
    found = fold_file(norm(epsilon=1e-5, far=far), tmp_path / "m.onnx", FoldOptions(fuse=True)).proof
    assert isinstance(found, RewriteProof)
    assert found.passed
    assert (found.tolerance > 1e-5) == (far > 0)


def test_another_epsilon_is_more_than_rounding() -> None:
    global RNG
    models = []
    for epsilon in (1e-5, 1e-4):
        RNG = np.random.default_rng(3)
        models.append(norm(epsilon=epsilon, far=0))
    assert "runs differ" in verify_rewrite(*models).failures[0]
