"""How often a Loop runs its body, against onnxruntime."""

from __future__ import annotations

import numpy as np
import pytest
from rewriting import model_of
from sessions import session_of

from graphkit.analysis.model_costs import costs
from graphkit.shapes import infer, is_known

# name -> (nodes before the Loop, its limit and condition, the condition that its body gives)
LOOPS = {
    "false at first": ("", "n, no", "still = Identity (on)"),
    "false at first, without a limit": ("", ", no", "still = Identity (on)"),
    "false at first by a comparison": ("c = Less (two, zero)", "n, c", "still = Identity (on)"),
    "false after the first": ("", "two, yes", "still = Constant <value = bool {0}> ()"),
    "false after the first, without a limit": ("", ", yes", "still = Constant <value = bool {0}> ()"),
    "false after the first, of none": ("", "zero, yes", "still = Constant <value = bool {0}> ()"),
    "no iteration, whatever the condition is": ("", "zero, flag", "still = Identity (on)"),
    "fewer than none": ("m = Neg (two)", "m, ", "still = Identity (on)"),
    "as many as rows": ("s = Shape (x) r = Gather (s, zero)", "r, ", "still = Identity (on)"),
    "as many as rows, or one": (
        "s = Shape (x) r = Gather (s, zero)",
        "r, yes",
        "still = Constant <value = bool {0}> ()",
    ),
}


@pytest.mark.parametrize(("before", "inputs", "condition"), LOOPS.values(), ids=LOOPS)
def test_the_number_of_iterations_is_that_of_onnxruntime(before: str, inputs: str, condition: str) -> None:
    text = f"""g (float[R, 2] x, int64 n, bool flag) => (float[R, 2] y, float[K, R, 2] rows) {{
        {before}
        y, rows = Loop ({inputs}, x) <
            body = b (int64 i, bool on, float[R, 2] now) => (bool still, float[R, 2] next, float[R, 2] row) {{
                {condition}
                next = Neg (now)
                row = Identity (next)
            }}
        >
    }}"""
    numbers = {"no": np.array(False), "yes": np.array(True), "zero": np.int64(0), "two": np.int64(2)}
    model = model_of(text, 17, **{name: number for name, number in numbers.items() if name in before + inputs})
    count = infer(model)["rows"].dims[0]
    assert is_known(count)
    for rows, limit in ((1, 3), (4, 2)):
        feed = {"x": np.ones((rows, 2), np.float32), "n": np.array(limit), "flag": np.array(True)}
        found = session_of(model).run(["rows"], feed)[0]
        assert count.evaluate({"R": rows}) == found.shape[0]
    assert "depends on data" not in costs(model).to_text()


def test_a_state_that_never_grows_is_as_it_was() -> None:
    text = """g (float[R, 2] x) => (float[K, 2] y) {
        y = Loop (, no, x) <
            body = b (int64 i, bool on, float[P, 2] now) => (bool still, float[Q, 2] next) {
                still = Identity (on) next = Concat <axis = 0> (now, now)
            }
        >
    }"""
    model = model_of(text, 17, no=np.array(False))
    assert str(infer(model)["y"]) == "[R, 2]"
    assert session_of(model).run(["y"], {"x": np.ones((3, 2), np.float32)})[0].shape == (3, 2)


def test_a_condition_that_data_decides_is_not_known() -> None:
    text = """g (float[R, 2] x, bool flag) => (float[R, 2] y, float[K, R, 2] rows) {
        y, rows = Loop (, flag, x) <
            body = b (int64 i, bool on, float[R, 2] now) => (bool still, float[R, 2] next, float[R, 2] row) {
                still = Identity (on) next = Neg (now) row = Identity (next)
            }
        >
    }"""
    assert not is_known(infer(model_of(text, 17))["rows"].dims[0])
