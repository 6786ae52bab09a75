"""The matrix of logits given a third axis, where it is wide and makes the logits of one token."""

from __future__ import annotations

from collections.abc import Mapping

import numpy as np
import pytest
from bundles import decoder
from fusing import check_close
from rewriting import lines, model_of, reasons

from graphkit.model import Model
from graphkit.passes.state.decode_step import KeepLastLogits, UnpackLogitsWeight
from graphkit.rewrite import Outcome

PASS = UnpackLogitsWeight(large=0)
WEIGHTS = {
    "w": np.random.default_rng(0).normal(0, 1, (4, 32)).astype(np.float32),
    "square": np.eye(4, dtype=np.float32),
    "b": np.linspace(-3, 3, 32, dtype=np.float32),
    "two": np.float32(2),
    "axis": np.array([1]),
}
SIZES = ({"N": 1}, {"N": 3}, {"N": 0})
ONE = "float[N, 1, 32] logits"


def graph(
    nodes: str, outputs: str = ONE, inputs: str = "float[N, 1, 4] x", opset: int = 17, **changed: object
) -> Model:
    known: Mapping[str, object] = {**WEIGHTS, **changed}
    words = set(nodes.replace(",", " ").replace("(", " ").replace(")", " ").split())
    used = {name: value for name, value in known.items() if name in words}
    return model_of(f"agraph ({inputs}) => ({outputs}) {{ {nodes} }}", opset, **used)


def checked(nodes: str) -> Outcome:
    *_, outcome = [check_close(PASS, graph(nodes), sizes) for sizes in SIZES]
    return outcome


def test_a_product_of_three_axes_reads_another_matrix() -> None:
    outcome = checked("logits = MatMul (x, w)")
    assert lines(outcome.model) == ["logits = MatMul (x, w_unpacked)"]
    assert outcome.changes == ("1 matrix of logits given a third axis, so that onnxruntime does not pack it",)
    (tensor,) = outcome.model.proto.graph.initializer
    assert list(tensor.dims) == [1, 4, 32]


def test_a_product_of_two_axes_loses_the_new_one() -> None:
    text = "s = Squeeze (x, axis) y = MatMul (s, w) z = Add (y, b) logits = Unsqueeze (z, axis)"
    outcome = checked(text)
    assert lines(outcome.model) == [
        "s = Squeeze (x, axis)",
        "y_raised = MatMul (s, w_unpacked)",
        "y = Squeeze (y_raised, first_axis)",
        "z = Add (y, b)",
        "logits = Unsqueeze (z, axis)",
    ]


def test_what_follows_the_product_may_read_constants() -> None:
    text = "y = MatMul (x, w) z = Add (b, y) d = Div (z, two) t = Tanh (d) logits = Mul (t, two)"
    assert checked(text).changes


def test_logits_of_as_many_tokens_as_asked_for() -> None:
    model = KeepLastLogits().run(Model.from_proto(decoder())).model
    assert UnpackLogitsWeight(large=0, wide=1).run(model).changes
    assert not UnpackLogitsWeight(large=0, wide=1).run(Model.from_proto(decoder())).changes  # those of all tokens


HALF = np.ones((4, 32), np.float16)
STAYING = {
    "a narrow matrix": graph("logits = MatMul (x, square)", "float[N, 1, 4] logits"),
    "other floats": graph("logits = MatMul (x, w)", "float16[N, 1, 32] logits", "float16[N, 1, 4] x", w=HALF),
    "a matrix that is an input": graph("logits = MatMul (x, v)", inputs="float[N, 1, 4] x, float[4, 32] v"),
    "several tokens": graph("logits = MatMul (x, w)", "float[N, L, 32] logits", "float[N, L, 4] x"),
    "no logits": graph("scores = MatMul (x, w)", "float[N, 1, 32] scores"),
    "two sources": graph("y = MatMul (x, w) logits = Mul (y, z)", inputs="float[N, 1, 4] x, float[N, 1, 1] z"),
    "an older opset": graph("logits = MatMul (x, w)", opset=12),
}


@pytest.mark.parametrize("model", STAYING.values(), ids=STAYING)
def test_what_stays(model: Model) -> None:
    outcome = PASS.run(model)
    assert outcome.model is model
    assert not outcome.declined


def test_a_small_matrix_stays() -> None:
    model = graph("logits = MatMul (x, w)")
    assert UnpackLogitsWeight(large=4 * 4 * 32 + 1).run(model).model is model
    assert UnpackLogitsWeight(large=4 * 4 * 32).run(model).changes


def test_a_matrix_that_is_read_elsewhere_too() -> None:
    model = graph("y = MatMul (x, w) n = Neg (w) logits = Identity (y)", f"{ONE}, float[4, 32] n")
    assert reasons(PASS.run(model)) == ["MatMul#0: 'w' is read elsewhere too"]


def test_a_product_whose_axes_are_not_known() -> None:
    model = model_of(f"agraph (float x) => ({ONE}) {{ logits = MatMul (x, w) }}", w=WEIGHTS["w"])
    model.proto.graph.input[0].type.tensor_type.ClearField("shape")
    outcome = PASS.run(Model.from_proto(model.proto))
    assert reasons(outcome) == ["MatMul#0: how many axes its other operand has is not known"]
