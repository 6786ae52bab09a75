"""`onnxruntime.transformers.optimizer` finds as much in a folded model, whatever the type of the model."""

from __future__ import annotations

from collections.abc import Callable
from importlib.util import find_spec
from pathlib import Path

import onnx
import onnx.parser
import pytest
from optimized import complete, folded
from test_fused_attention import constant, decoder, dim
from test_fusions_to_keep import MASKS, PATTERNS, POSITIONS, encoder, model

pytestmark = pytest.mark.skipif(find_spec("sympy") is None, reason="the optimizer needs sympy for shapes")

T5_CONSTANTS = ", ".join(
    [
        *(constant(name, 8, 8) for name in ("wq", "wk", "wv", "wo")),
        constant("distances", 32, 2),
        "float unit = {1}, float low = {-10000}, float near = {8}, float range = {2.772589}",
        "int64 zero = {0}, int64 one = {1}, int64 exact = {8}, int64 half = {16}",
        "int64[1] axis0 = {0}, int64[1] axis1 = {1}, int64[1] axis2 = {2}, int64[1] axis3 = {3}, int64[1] step = {1}",
        "int64[1] never = {9223372036854775807}, int64[4] heads = {0, 0, 2, 4}, int64[1] rest = {-1}",
        "int64[1] whole = {8}",
    ]
)


def t5() -> str:
    """Return the attention of a small T5 encoder, with biases by distance, as ONNX text."""
    split = "".join(
        f"{name}1 = MatMul (h, w{name}) {name}2 = Reshape ({name}1, heads) "
        f"{name} = Transpose <perm = {perm}> ({name}2) "
        for name, perm in (("q", "[0, 2, 1, 3]"), ("k", "[0, 2, 3, 1]"), ("v", "[0, 2, 1, 3]"))
    )
    return (
        f"(float[N, L, 8] x, int64[N, L] mask) => (float[N, L, 8] y) <{T5_CONSTANTS}> {{ h = Neg (x) {split}"
        "s = Shape (h) l = Gather (s, one) l1 = Unsqueeze (l, axis0) at = Range (zero, l, one) "
        "rows = Unsqueeze (at, axis1) columns = Unsqueeze (at, axis0) d1 = Sub (columns, rows) "
        "d2 = Greater (d1, zero) d3 = Cast <to = 7> (d2) d4 = Mul (d3, half) d5 = Abs (d1) d6 = Less (d5, exact) "
        "d7 = Cast <to = 1> (d5) d8 = Div (d7, near) d9 = Log (d8) d10 = Div (d9, range) d11 = Mul (d10, near) "
        "d12 = Cast <to = 7> (d11) d13 = Add (d12, exact) e1 = Shape (d13) "
        "e2 = ConstantOfShape <value = int64[1] {15}> (e1) e3 = Min (d13, e2) e4 = Where (d6, d5, e3) "
        "e5 = Add (d4, e4) b1 = Gather (distances, e5) b2 = Transpose <perm = [2, 0, 1]> (b1) "
        "b3 = Unsqueeze (b2, axis0) back = Neg (l1) b4 = Slice (b3, back, never, axis2, step) "
        "m1 = Unsqueeze (mask, axis1) m2 = Unsqueeze (m1, axis2) m3 = Cast <to = 1> (m2) m4 = Sub (unit, m3) "
        "m5 = Mul (m4, low) m6 = Slice (m5, axis0, l1, axis3, step) biases = Add (b4, m6) "
        "a1 = MatMul (q, k) a2 = Add (a1, biases) a3 = Softmax <axis = -1> (a2) a4 = MatMul (a3, v) "
        f"a5 = Transpose <perm = [0, 2, 1, 3]> (a4) {dim('n', 'h', 'zero').replace('<axes = [0]> (n1)', '(n1, axis0)')}"
        "a6 = Concat <axis = 0> (n, rest, whole) a7 = Reshape (a5, a6) y = MatMul (a7, wo) }"
    )


def pattern(name: str) -> onnx.ModelProto:
    """Return a model of one pattern."""
    opset, _, text = PATTERNS[name]
    return model(text, opset)


MODELS: dict[str, tuple[Callable[[], onnx.ModelProto], str]] = {  # by type: a model, and what is made of it
    "bert": (lambda: model(encoder(POSITIONS["a Range"], MASKS["a Cast"]), 12), "Attention"),
    "gpt2": (lambda: model(decoder(), 12), "Attention"),
    "t5": (lambda: model(t5(), 14), "Attention"),
    "bart": (lambda: pattern("skip layer norm"), "SkipLayerNormalization"),
    "vit": (lambda: pattern("skip layer norm with a bias"), "SkipLayerNormalization"),
    "swin": (lambda: pattern("gelu"), "BiasGelu"),
    "clip": (lambda: pattern("quick gelu"), "QuickGelu"),
    "gpt_neox": (lambda: pattern("gelu with the half first"), "BiasGelu"),
}


@pytest.mark.cases("swin", "bart", "clip", "vit", "gpt_neox", "t5")
@pytest.mark.parametrize("kind", MODELS)
def test_the_transformers_optimizer_finds_as_much(kind: str, tmp_path: Path) -> None:
    make, operator = MODELS[kind]
    path = tmp_path / "model.onnx"
    complete(make(), path, jitter=0.1)
    before, after = statistics(path, kind), statistics(folded(path), kind)
    assert before[operator]
    assert all(after[name] >= count for name, count in before.items())


def statistics(path: Path, kind: str) -> dict[str, int]:
    """Return what the optimizer makes of a model."""
    from onnxruntime.transformers.optimizer import optimize_model

    made = optimize_model(str(path), kind, num_heads=2, hidden_size=8, opt_level=0)
    return dict(made.get_fused_operator_statistics())
