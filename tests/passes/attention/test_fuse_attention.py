from __future__ import annotations

import re

import numpy as np
import onnx
import onnx.checker
import onnx.reference
import pytest
from attentions import APART, BACK, MIXED, PLAIN, SCORES, THREE, TURNED, attention
from fusing import TOLERANCE, operators
from hypothesis import given, settings
from hypothesis import strategies as st
from onnx import helper, numpy_helper
from sessions import run

from graphkit.model import Model
from graphkit.passes.attention.fuse_attention import FuseAttention
from graphkit.passes.control_flow.inline_functions import InlineFunctions
from graphkit.passes.registry import parse_pipeline
from graphkit.rewrite.base import run_passes
from graphkit.shapes import infer

PASS = FuseAttention()
DIMS = {"N": 2, "S": 5}


def results(model: Model, **sizes: int) -> list[np.ndarray]:
    rng = np.random.default_rng(1)
    feeds = {}
    for info in model.proto.graph.input:
        dims = [dim.dim_value or sizes[dim.dim_param] for dim in info.type.tensor_type.shape.dim]
        kind = helper.tensor_dtype_to_np_dtype(info.type.tensor_type.elem_type)
        feeds[info.name] = rng.standard_normal(dims).astype(kind) if dims else np.array(1, kind)
    return run(model, feeds)


def fused(model: Model, *, count: int = 1, sizes: tuple[tuple[int, int], ...] = ((2, 5), (0, 3), (1, 0))) -> Model:
    """Fuse; the kernel, and the function once it is inlined, give what the original gives."""
    outcome = PASS.run(model)
    after = Model.from_proto(outcome.model.restore())
    onnx.checker.check_model(after.proto, full_check=True)
    text = f"{count} attention{'s' * (count > 1)} fused: onnxruntime has a kernel for the node, "
    assert outcome.changes == (f"{text}other runtimes inline its function",)
    inlined = InlineFunctions().run(after).model
    assert "Attention" not in operators(inlined)
    for batch, rows in sizes:
        (one,) = results(model, N=batch, S=rows)
        for other in (after, inlined):
            (two,) = results(other, N=batch, S=rows)
            assert (one.shape, one.dtype) == (two.shape, two.dtype)
            assert np.abs(one - two).max(initial=0) <= TOLERANCE * np.abs(one).max(initial=0)
    return after


def added(*names: str) -> str:
    """Return three projections, some with a bias."""
    return "".join(
        f"{n}p = MatMul (x, w{n}) {n} = Add (b{n}, {n}p) " if n in names else f"{n} = MatMul (x, w{n}) " for n in "qkv"
    )


ONE = "qkv = MatMul (x, w) "
SPLIT = ONE + "q, k, v = Split <axis = -1> (qkv) "
PACKED = SCORES + MIXED + BACK
REST = APART + TURNED + PACKED
LAYERS = {
    "three products": PLAIN,
    "one product and a Split": SPLIT + REST,
    "biases": added("q", "k", "v") + REST,
    "no bias of keys": added("q", "v") + REST,
    "one bias": "qp = MatMul (x, w) qkv = Add (qp, b) q, k, v = Split <axis = 2> (qkv) " + REST,
    "in another order": ONE + "v, q, k = Split <axis = 2> (qkv) " + REST,
    "Slices": ONE
    + "q = Slice (qkv, i0, i1, last) k = Slice (qkv, i1, i2, last) v = Slice (qkv, i2, i3, last, one) "
    + REST,
    "a dim of three, and Gathers": ONE
    + "r = Reshape (qkv, packed) a = Transpose <perm = [2, 0, 3, 1, 4]> (r) "
    + "qt = Gather (a, n0) k = Gather (a, n1) vt = Gather (a, n2) kt = Transpose <perm = [0, 1, 3, 2]> (k) "
    + PACKED,
    "three in each head": ONE
    + "r = Reshape (qkv, inner) a = Transpose <perm = [3, 0, 2, 1, 4]> (r) qs, ks, vs = Split <axis = 0> (a) "
    + "qt = Squeeze (qs, first) k = Squeeze (ks, first) vt = Squeeze (vs, first) "
    + "kt = Transpose <perm = [0, 1, 3, 2]> (k) "
    + PACKED,
    "no scale": THREE + APART + TURNED + "t = MatMul (qt, kt) " + MIXED + BACK,
    "scaled queries": THREE + APART + TURNED + "qs = Mul (c, qt) t = MatMul (qs, kt) " + MIXED + BACK,
    "scaled keys": THREE + APART + TURNED + "ks = Mul (kt, c) t = MatMul (qt, ks) " + MIXED + BACK,
    "both scaled": THREE + APART + TURNED + "qs = Mul (qt, c) ks = Div (kt, d) t = MatMul (qs, ks) " + MIXED + BACK,
    "divided scores": THREE + APART + TURNED + "s = MatMul (qt, kt) t = Div (s, d) " + MIXED + BACK,
    "scaled before the heads": added("q")
    + "qs = Mul (q, c) qa = Reshape (qs, heads) ka = Reshape (k, heads) va = Reshape (v, heads) "
    + TURNED
    + "t = MatMul (qt, kt) "
    + MIXED
    + BACK,
    "keys in two steps": THREE
    + APART
    + "qt = Transpose <perm = [0, 2, 1, 3]> (qa) k2 = Transpose <perm = [0, 2, 1, 3]> (ka) "
    + "kt = Transpose <perm = [0, 1, 3, 2]> (k2) vt = Transpose <perm = [0, 2, 1, 3]> (va) "
    + PACKED,
    "one head": THREE + "kt = Transpose <perm = [0, 2, 1]> (k) s = MatMul (q, kt) t = Mul (s, c) "
    "p = Softmax <axis = -1> (t) y = MatMul (p, v) ",
}
GIVEN = {
    "w": (6, 24), "b": (24,), "bq": (8,), "bk": (1, 1, 8), "bv": (),
    "i0": [0], "i1": [8], "i2": [16], "i3": [1 << 40], "last": [-1], "one": [1],
    "packed": [0, 0, 3, 2, 4], "inner": [0, 0, 2, 3, 4], "n0": 0, "n1": 1, "n2": -1,
    "first": [0], "d": np.float32(9.0),
}  # fmt: skip


@pytest.mark.cases(6)
@pytest.mark.parametrize("body", LAYERS.values(), ids=LAYERS)
def test_it_is_one_node(body: str) -> None:
    assert operators(fused(attention(body, **GIVEN))) == ["Attention"]


@pytest.mark.parametrize("opset", [13, 14, 15, 18, 21, 23])
def test_operator_sets(opset: int) -> None:
    after = fused(attention(opset=opset, ir=11 if opset > 20 else 8), sizes=((2, 5),))
    assert operators(after) == ["Attention"]
    assert [(entry.domain, entry.version) for entry in after.proto.functions[0].opset_import] == [("", opset)]


@settings(max_examples=8, deadline=None)
@given(
    heads=st.integers(1, 3),
    sizes=st.tuples(st.integers(1, 4), st.integers(1, 4)),
    hidden=st.integers(1, 5),
    batch=st.integers(0, 2),
    rows=st.integers(0, 4),
    scale=st.sampled_from([-0.5, 0.1, 1.0]),
)
def test_kernel_and_function_give_the_same(
    heads: int, sizes: tuple[int, int], hidden: int, batch: int, rows: int, scale: float
) -> None:
    """Whatever the sizes, those of values other than those of keys, and none at all included."""
    size, value_size = sizes
    body = PLAIN.replace("Reshape (v, heads)", "Reshape (v, values)")
    model = attention(
        body,
        head=f"g (float[N, S, {hidden}] x) => (y)",
        wq=(hidden, heads * size),
        wk=(hidden, heads * size),
        wv=(hidden, heads * value_size),
        heads=[0, 0, heads, size],
        values=[0, 0, heads, value_size],
        flat=[0, 0, heads * value_size],
        c=np.float32(scale),
    )
    after = fused(model, sizes=((batch, rows),))
    (one,), (two,) = results(model, N=batch, S=rows), onnx_results(after.proto, batch, rows, hidden)
    assert np.abs(one - two).max(initial=0) <= 4 * TOLERANCE * np.abs(one).max(initial=0)


def onnx_results(proto: onnx.ModelProto, batch: int, rows: int, hidden: int) -> list[np.ndarray]:
    """Return what onnx's reference implementation makes of the function."""
    x = np.random.default_rng(1).standard_normal((batch, rows, hidden)).astype(np.float32)
    return list(onnx.reference.ReferenceEvaluator(proto).run(None, {"x": x}))  # type: ignore[arg-type]


TORCH = """
    xt = Transpose <perm = [1, 0, 2]> (x) q = MatMul (xt, wq) k = MatMul (xt, wk) v = MatMul (xt, wv)
    qa = Reshape (q, flat_heads) ka = Reshape (k, flat_heads) va = Reshape (v, flat_heads)
    qt = Transpose <perm = [1, 0, 2]> (qa) kt = Transpose <perm = [1, 2, 0]> (ka) vt = Transpose <perm = [1, 0, 2]> (va)
    s = MatMul (qt, kt) t = Mul (s, c) p = Softmax <axis = -1> (t) m = MatMul (p, vt)
    u = Transpose <perm = [1, 0, 2]> (m) f = Reshape (u, rows)
"""
TORCH_GIVEN = {"flat_heads": [5, 6, 4], "rows": [15, 8]}


def test_rows_before_the_batch() -> None:
    """As PyTorch's own layers have them: batch and heads in one dim, and rows of all batches in one."""
    body = TORCH + "y = Gemm (f, wo)"
    model = attention(body, head="g (float[3, 5, 6] x) => (y)", wo=(8, 3), **TORCH_GIVEN)
    after = fused(model, sizes=((0, 0),))
    assert operators(after) == ["Transpose", "Transpose", "Attention", "Transpose", "Reshape", "Gemm"]
    folded = run_passes(after, parse_pipeline("merge-chains,eliminate-identity")).model
    assert operators(folded) == ["Attention", "Transpose", "Reshape", "Gemm"]


def test_a_weight_that_has_them_side_by_side_stays() -> None:
    after = fused(attention(LAYERS["one bias"], **GIVEN), sizes=())
    (node,) = after.proto.graph.node
    assert list(node.input) == ["x", "w", "b"]
    assert sorted(tensor.name for tensor in after.proto.graph.initializer) == ["b", "w"]


def test_columns_are_joined() -> None:
    model = attention(added("q") + REST, bq=(8,))
    given, made = ({t.name: numpy_helper.to_array(t) for t in m.proto.graph.initializer} for m in (model, fused(model)))
    np.testing.assert_array_equal(made["wq_qkv"], np.concatenate([given["wq"], given["wk"], given["wv"]], axis=1))
    np.testing.assert_array_equal(made["wq_bias"], np.concatenate([given["bq"], np.zeros(16, np.float32)]))


def test_layers_share_a_function_and_a_second_run_changes_nothing() -> None:
    second = re.sub(r"\b(q|k|v|[qkv][at]|s|t|p|m|u|y)\b", r"\1_2", PLAIN.replace("(x, w", "(y1, o"))
    body = PLAIN.replace("y = ", "y1 = ") + second
    model = attention(body, head="g (float[N, S, 6] x) => (y_2)", oq=(8, 8), ok=(8, 8), ov=(8, 8))
    after = fused(model, count=2)
    assert [function.name for function in after.proto.functions] == ["Attention"]
    assert PASS.run(after).model is after


def test_the_shape_of_a_call_is_known() -> None:
    after = fused(attention(), sizes=())
    assert str(infer(after)["y"]) == "[N, S, 8]"


def test_older_ir_versions_are_raised() -> None:
    assert fused(attention(opset=13, ir=7), sizes=((2, 5),)).proto.ir_version == 8


def test_a_branch_is_fused() -> None:
    then = PLAIN.replace("y = ", "z = ")
    model = attention(
        f"y = If (f) <then_branch = a () => (float[N, S, 8] z) {{ {then} }}, "
        "else_branch = b () => (float[N, S, 8] o) { o = MatMul (x, wo) }>",
        head="g (float[N, S, 6] x, bool f) => (float[N, S, 8] y)",
        wo=(6, 8),
    )
    fused(model, sizes=((2, 5),))
