"""Outputs that onnxruntime would quantise, were it not for a second reader."""

from __future__ import annotations

import numpy as np
import pytest
from rewriting import model_of
from sessions import ALL, session_of

from graphkit.model import Model
from graphkit.passes.clean_up.exporter_idioms import keep_outputs_float
from graphkit.passes.fold_pipeline import fold
from graphkit.verify import verify_rewrite

CACHE = """g (float[2, p] past, float[2, n] new) => (float[2, m] present, float[o, l] y) {{
    present = Concat <axis = 1> (past, new)
    {}
    q = QuantizeLinear (t, scale, zero)
    d = DequantizeLinear (q, scale, zero)
    y = MatMul (d, w)
}}"""
SHAPE = "k = Shape (present) n = Gather (k, first) u = Unsqueeze (n, axis) e = Concat <axis = 0> (less, u)"


def cache(body: str) -> Model:
    constants = {
        "scale": np.float32(0.01), "zero": np.int8(0), "w": np.eye(2, dtype=np.float32),
        "first": np.int64(0), "axis": np.array([0]), "less": np.array([-1]),
    }  # fmt: skip
    return model_of(CACHE.format(body), **constants)


PLAIN = "t = Transpose <perm = [1, 0]> (present)"
SHIELDED = f"{SHAPE} s = Transpose <perm = [1, 0]> (present) t = Reshape (s, e)"


def test_a_fold_that_takes_the_second_reader_away_keeps_the_output() -> None:
    before = cache(SHIELDED)
    after = fold(before).model
    operators = [node.op_type for node in after.graph.nodes]
    assert ("Shape" in operators, "Identity" in operators) == (False, True)
    assert verify_rewrite(before, after).passed
    again = fold(after)
    assert ([node.op_type for node in again.model.graph.nodes], again.changes) == (operators, ())


def test_without_it_onnxruntime_clips_the_output() -> None:
    feed = {"past": np.full((2, 3), 7, np.float32), "new": np.full((2, 1), 0.5, np.float32)}
    plain = cache(PLAIN)
    kept, count = keep_outputs_float(plain)
    assert count == 1
    found = [session_of(model, ALL).run(["present"], feed)[0].max() for model in (plain, kept)]
    assert found == [pytest.approx(1.27), 7]


@pytest.mark.parametrize(
    "body",
    [
        "t = Identity (present)",  # a QuantizeLinear that reads the output itself goes nowhere
        "n = Neg (present) t = Transpose <perm = [1, 0]> (n)",
        "s = Shape (present) t = Transpose <perm = [1, 0]> (present)",
    ],
)
def test_what_stays(body: str) -> None:
    assert keep_outputs_float(cache(body))[1] == 0
