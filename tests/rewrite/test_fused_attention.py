"""A layer of GPT-2 as PyTorch 1.5 exported it, which computes each size where it is needed, keeps its Attention."""

from __future__ import annotations

from pathlib import Path

import onnx
import onnx.parser
import pytest
from builders import proto_of
from optimized import folded, lost, operators

from graphkit.model import Model
from graphkit.passes.fold_pipeline import fold

ATTENTION = "com.microsoft.Attention"


def constant(name: str, *dims: int) -> str:
    """Return a float constant of these dims, as ONNX text."""
    size = 1
    for dim in dims:
        size *= dim
    numbers = ", ".join(str((i * 7 % 11 - 5) / 10) for i in range(size))
    return f"float[{', '.join(map(str, dims))}] {name} = {{{numbers}}}"


TRIANGLE = ", ".join(str(int(row >= column)) for row in range(8) for column in range(8))
WEIGHTS = {"scale": [8], "shift": [8], "wide": [8, 24], "bias": [24], "square": [8, 8], "small": [8]}
CONSTANTS = ", ".join(
    [
        *(constant(name, *dims) for name, dims in WEIGHTS.items()),
        f"float[1, 1, 8, 8] triangle = {{{TRIANGLE}}}",
        "float unit = {1}, float root = {2}, float low = {-10000}",
        "int64 zero = {0}, int64 one = {1}, int64 two = {2}",
        "int64[1] first = {0}, int64[1] step = {1}, int64[1] axis2 = {2}, int64[1] axis3 = {3}",
        "int64[1] rest = {-1}, int64[1] before = {-2}, int64[1] never = {9223372036854775807}",
        "int64[1] both = {2}, int64[1] whole = {8}, int64[1] thrice = {24}",
    ]
)


def dim(name: str, tensor: str, axis: str) -> str:
    return f"{name}0 = Shape ({tensor}) {name}1 = Gather ({name}0, {axis}) {name} = Unsqueeze <axes = [0]> ({name}1) "


def dim_from_end(name: str, tensor: str, start: str = "rest", end: str = "never") -> str:
    return (
        f"{name}0 = Shape ({tensor}) {name}1 = Slice ({name}0, {start}, {end}, first) "
        f"{name} = Squeeze <axes = [0]> ({name}1) "
    )


def projected(name: str, tensor: str, weight: str, bias: str, size: str) -> str:
    """Return a Gemm that reads a tensor of rank 3."""
    return (
        f"{dim(f'{name}n', tensor, 'zero')}{dim(f'{name}l', tensor, 'one')}{dim_from_end(f'{name}d', tensor)}"
        f"{name}1 = Unsqueeze <axes = [0]> ({name}d) {name}2 = Concat <axis = 0> (rest, {name}1) "
        f"{name}3 = Reshape ({tensor}, {name}2) {name}4 = Gemm ({name}3, {weight}, {bias}) "
        f"{name}5 = Concat <axis = 0> ({name}n, {name}l, {size}) {name} = Reshape ({name}4, {name}5) "
    )


def heads(name: str, perm: str) -> str:
    tensor = f"flat_{name}"
    return (
        f"{dim(f'{name}n', tensor, 'zero')}{dim(f'{name}l', tensor, 'one')}{dim_from_end(f'{name}d', tensor)}"
        f"{name}1 = Div ({name}d, two) {name}2 = Unsqueeze <axes = [0]> ({name}1) "
        f"{name}3 = Concat <axis = 0> ({name}n, {name}l, both, {name}2) {name}4 = Reshape ({tensor}, {name}3) "
        f"{name} = Transpose <perm = {perm}> ({name}4) "
    )


PAST = (
    "pk0 = Gather (past, zero) pk = Transpose <perm = [0, 1, 3, 2]> (pk0) pv = Gather (past, one) "
    "keys = Concat <axis = -1> (pk, k) values = Concat <axis = -2> (pv, v) "
    "nk0 = Transpose <perm = [0, 1, 3, 2]> (keys) nk = Unsqueeze <axes = [0]> (nk0) "
    "nv = Unsqueeze <axes = [0]> (values) present = Concat <axis = 0> (nk, nv) "
)
MASK = (
    "p1 = Unsqueeze <axes = [1]> (mask) p2 = Unsqueeze <axes = [2]> (p1) p3 = Sub (unit, p2) p4 = Mul (p3, low) "
    "masked = Add (causal, p4) "
)


def decoder(*, past: bool = False, mask: bool = False) -> str:
    """Return a layer of a small GPT-2 with two heads, as ONNX text."""
    inputs = "float[N, L, 8] x" + ", float[2, N, 2, P, 4] past" * past + ", float[N, T] mask" * mask
    keys, values = ("keys", "values") if past else ("k", "v")
    return (
        f"({inputs}) => (float[N, L, 8] y{', float[2, N, 2, T, 4] present' * past}) <{CONSTANTS}> {{ "
        "residual = Add (x, shift) h = LayerNormalization <axis = -1, epsilon = 0.00001> (residual, scale, shift) "
        f"{projected('qkv', 'h', 'wide', 'bias', 'thrice')} "
        "flat_q, flat_k, flat_v = Split <axis = 2, split = [8, 8, 8]> (qkv) "
        f"{heads('q', '[0, 2, 1, 3]')}{heads('k', '[0, 2, 3, 1]')}{heads('v', '[0, 2, 1, 3]')}{PAST * past}"
        f"product = MatMul (q, {keys}) scores = Div (product, root) "
        f"{dim_from_end('all', 'scores')}{dim_from_end('new', 'scores', 'before', 'rest')}old = Sub (all, new) "
        "t1 = Unsqueeze <axes = [0]> (old) t2 = Unsqueeze <axes = [0]> (all) "
        "t3 = Slice (triangle, t1, t2, axis2, step) t4 = Unsqueeze <axes = [0]> (all) "
        "t5 = Slice (t3, first, t4, axis3, step) t6 = Cast <to = 9> (t5) causal = Where (t6, scores, low) "
        f"{MASK * mask}weights = Softmax <axis = 3> ({'masked' if mask else 'causal'}) "
        f"o1 = MatMul (weights, {values}) o2 = Transpose <perm = [0, 2, 1, 3]> (o1) "
        f"{dim('on', 'o2', 'zero')}{dim('ol', 'o2', 'one')}{dim_from_end('oh', 'o2', 'before', 'rest')}"
        f"{dim_from_end('od', 'o2')}o3 = Mul (oh, od) o4 = Unsqueeze <axes = [0]> (o3) "
        f"o5 = Concat <axis = 0> (on, ol, o4) o = Reshape (o2, o5) {projected('z', 'o', 'square', 'small', 'whole')} "
        "sum = Add (residual, z) y = LayerNormalization <axis = -1, epsilon = 0.00001> (sum, scale, shift) }"
    )


@pytest.mark.parametrize("mask", [False, True], ids=["causal", "masked"])
@pytest.mark.parametrize("past", [False, True], ids=["prompt", "past"])
def test_a_causal_attention_is_fused_after_folding(past: bool, mask: bool, tmp_path: Path) -> None:
    path = tmp_path / "model.onnx"
    onnx.save(proto_of(decoder(past=past, mask=mask), 12), path)
    before, after = operators(path), operators(folded(path))
    assert before[ATTENTION] == 1
    assert lost(before, after) == {}
    assert after[ATTENTION] == 1
    assert sum(after.values()) <= sum(before.values())


def left(text: str, **options: object) -> list[str]:
    """Return the operators of a folded model."""
    return [node.op_type for node in fold(Model.from_proto(proto_of(text, 12)), **options).model.graph.nodes]


def test_what_is_the_same_at_all_sizes_is_folded() -> None:
    assert "Shape" in left(decoder(past=True), dims={"N": 1, "L": 1})
    assert "Shape" not in left(decoder(past=True), dims={"N": 1, "L": 1, "P": 3})


LOOKALIKES = {
    "a table that is an input": [
        ("(float[N, L, 8] x", "(float[1, 1, 8, 8] given, float[N, L, 8] x"),
        ("Slice (triangle", "Slice (given"),
    ],
    "scores that are multiplied": [("scores = Div (product", "scores = Mul (product")],
    "a product and a sum": [("qkv4 = Gemm (qkv3, wide, bias)", "m = MatMul (qkv3, wide) qkv4 = Add (m, bias)")],
    "a projection without a bias": [("z4 = Gemm (z3, square, small)", "z4 = MatMul (z3, square)")],
    "a last dim as PyTorch takes it now": [
        ("qkvd1 = Slice (qkvd0, rest, never, first) qkvd = Squeeze <axes = [0]> (qkvd1)", "qkvd = Gather (qkvd0, two)")
    ],
}


@pytest.mark.parametrize("name", LOOKALIKES)
def test_what_only_looks_like_it_is_folded(name: str, tmp_path: Path) -> None:
    text = decoder()
    for written, instead in LOOKALIKES[name]:
        assert written in text
        text = text.replace(written, instead)
    path = tmp_path / "model.onnx"
    onnx.save(proto_of(text, 12), path)
    assert operators(path)[ATTENTION] == 0
    assert "Squeeze" not in left(text)
