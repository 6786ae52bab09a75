"""Attention in plain operators against onnx's reference and onnxruntime: every kind of mask, rows without keys too."""

from __future__ import annotations

import itertools
from collections.abc import Mapping, Sequence

import numpy as np
import onnx
import pytest
from onnx import TensorProto, helper
from onnx.reference import ReferenceEvaluator
from sessions import ONNXRUNTIME, run, session_of

from graphkit.model import Model
from graphkit.passes.attention.decompose_attention import DecomposeAttention

ONNX = tuple(int(number) for number in onnx.__version__.split(".")[:2])
pytestmark = pytest.mark.skipif(ONNX < (1, 23), reason="its reference gives NaN for queries without keys")

HEAD, VALUE = 8, 6  # the size of a head of queries and keys, and of values
LOWEST = float(np.finfo(np.float32).min)
FLOORS = (-np.inf, LOWEST, -1e4)
LENGTHS = ((3, 3), (2, 5), (5, 2), (1, 4))
TOLERANCE = 1e-5  # absolute; a score of -1e4 has 3 digits behind the point, and its weights as many


def attention(
    opset: int = 23,
    mask: Sequence[object] = (),
    *,
    is_boolean: bool = False,
    has_past: bool = False,
    is_flat: bool = False,
    heads: tuple[int, int] = (4, 2),
    dtype: int = TensorProto.FLOAT,
    **attributes: object,
) -> onnx.ModelProto:
    """Return a model of one Attention, with a mask of these dims."""
    queries, groups = heads
    shapes: dict[str, tuple[int, list[object]]] = {}
    for name, count, length, size in (("q", queries, "s", HEAD), ("k", groups, "t", HEAD), ("v", groups, "t", VALUE)):
        shapes[name] = dtype, ["b", length, count * size] if is_flat else ["b", count, length, size]
    if mask:
        shapes["m"] = TensorProto.BOOL if is_boolean else dtype, list(mask)
    names = ["q", "k", "v", "m" if mask else ""]
    outputs = ["y"]
    if has_past:
        shapes["pk"], shapes["pv"] = (dtype, ["b", groups, "p", HEAD]), (dtype, ["b", groups, "p", VALUE])
        names, outputs = [*names, "pk", "pv"], ["y", "ck", "cv"]
    if is_flat:
        attributes |= {"q_num_heads": queries, "kv_num_heads": groups}
    while not names[-1]:
        names.pop()
    graph = helper.make_graph(
        [helper.make_node("Attention", names, outputs, **attributes)],
        "g",
        [helper.make_tensor_value_info(name, *shape) for name, shape in shapes.items()],
        [helper.make_tensor_value_info(name, dtype, None) for name in outputs],
    )
    return helper.make_model(graph, opset_imports=[helper.make_opsetid("", opset)], ir_version=10)


def decomposed(proto: onnx.ModelProto) -> onnx.ModelProto:
    outcome = DecomposeAttention().run(Model.from_proto(proto))
    assert not outcome.declined
    assert "Attention" not in {node.op_type for node in outcome.model.proto.graph.node}
    return outcome.model.proto


def feed_of(
    proto: onnx.ModelProto, sizes: Mapping[str, int], rng: np.random.Generator, floor: float
) -> dict[str, np.ndarray]:
    """Return normal numbers; in the mask, about half of the keys do not count, in its first row none does."""
    feed = {}
    for value in proto.graph.input:
        kind = value.type.tensor_type
        shape = [sizes[dim.dim_param] if dim.dim_param else dim.dim_value for dim in kind.shape.dim]
        array = rng.normal(size=shape)
        if value.name == "m":
            keep = rng.random(shape) < 0.5
            keep[..., :1, :] = False
            keep[..., 1:2, :1] = True
            array = keep if kind.elem_type == TensorProto.BOOL else np.where(keep, array, floor)
        feed[value.name] = array.astype(helper.tensor_dtype_to_np_dtype(kind.elem_type))
    return feed


MASKS = {  # dims, with the length of the keys and of the past joined as `u`
    "none": (),
    "of queries": ("s", "u"),
    "of heads": (4, "s", "u"),
    "of a batch": ("b", 1, "s", "u"),
    "of all": ("b", 4, "s", "u"),
}
KINDS = [(name, is_boolean) for name in MASKS for is_boolean in ((False, True) if MASKS[name] else (False,))]


@pytest.mark.cases(3)
@pytest.mark.parametrize(("mask", "is_boolean"), KINDS)
def test_every_kind_of_mask_gives_what_the_reference_gives(mask: str, is_boolean: bool) -> None:
    """onnxruntime takes a row of the least number for one without keys too; it lets a single query see all keys."""
    rng = np.random.default_rng(0)
    for is_causal, has_past, is_flat, groups in itertools.product((0, 1), (False, True), (False, True), (4, 2)):
        opset = int(rng.choice([23, 24]))
        proto = attention(
            opset,
            MASKS[mask],
            is_boolean=is_boolean,
            has_past=has_past,
            is_flat=is_flat,
            heads=(4, groups),
            is_causal=is_causal,
        )
        plain, original, reference = session_of(decomposed(proto)), session_of(proto), ReferenceEvaluator(proto)
        for queries, keys in LENGTHS:
            past, floor = int(rng.choice([0, 2])) if has_past else 0, float(rng.choice(FLOORS))
            sizes = {"b": 2, "s": queries, "t": keys, "p": past, "u": keys + past}
            feed = feed_of(proto, sizes, rng, floor)
            found = plain.run(None, feed)
            expected = []
            if floor != LOWEST or is_boolean or not MASKS[mask]:
                expected.append(reference.run(None, feed))
            if ONNXRUNTIME >= (1, 32) and (queries > 1 or not is_causal):
                expected.append(original.run(None, feed))
            for outputs in expected:
                for one, two in zip(outputs, found, strict=True):
                    tolerance = 1e-3 if floor == -1e4 else TOLERANCE
                    np.testing.assert_allclose(
                        two, one, rtol=0, atol=tolerance, err_msg=f"{is_causal=} {sizes} {floor}"
                    )
            if MASKS[mask] and (floor != -1e4 or is_boolean):
                first = found[0][:, :1] if is_flat else found[0][:, :, :1]
                assert not first.any()


@pytest.mark.parametrize("is_boolean", [False, True])
def test_a_mask_that_ends_before_the_keys_hides_the_rest(is_boolean: bool) -> None:
    rng = np.random.default_rng(0)
    proto = attention(24, ("b", 1, "s", "u"), is_boolean=is_boolean)
    plain, reference = session_of(decomposed(proto)), ReferenceEvaluator(proto)
    for length in (5, 4, 1):
        feed = feed_of(proto, {"b": 2, "s": 3, "t": 5, "u": length}, rng, -np.inf)
        np.testing.assert_allclose(plain.run(None, feed)[0], reference.run(None, feed)[0], rtol=0, atol=TOLERANCE)


def test_a_mask_known_to_be_as_long_as_the_keys_is_not_padded() -> None:
    proto = attention(24, ("b", 1, "s", "t"), is_boolean=True)
    for value in proto.graph.input:
        for dim in value.type.tensor_type.shape.dim:
            if dim.dim_param == "t":
                dim.dim_value = 5
    assert "Pad" not in {node.op_type for node in decomposed(proto).graph.node}


@pytest.mark.parametrize("is_boolean", [False, True])
def test_float64_is_computed_as_the_reference_does(is_boolean: bool) -> None:
    """onnxruntime has no kernel for it, and computes the function of the operator."""
    rng, lowest = np.random.default_rng(0), float(np.finfo(np.float64).min)
    proto = attention(mask=MASKS["of all"], is_boolean=is_boolean, dtype=TensorProto.DOUBLE, is_causal=1)
    plain, reference = session_of(decomposed(proto)), ReferenceEvaluator(proto)
    for floor in (-np.inf, lowest, -1e4):
        feed = feed_of(proto, {"b": 2, "s": 3, "t": 3, "u": 3}, rng, floor)
        for expected in (reference.run(None, feed), run(proto, feed)):
            np.testing.assert_allclose(plain.run(None, feed)[0], expected[0], rtol=0, atol=1e-6)


def test_float16_scores_do_not_overflow_before_they_are_scaled() -> None:
    proto = attention(dtype=TensorProto.FLOAT16, scale=0.01)
    feed = {name: np.full((1, heads, 2, size), 100, np.float16) for name, heads, size in (("q", 4, 8), ("k", 2, 8))}
    feed["v"] = np.ones((1, 2, 2, VALUE), np.float16)
    np.testing.assert_array_equal(run(decomposed(proto), feed)[0], np.ones((1, 4, 2, VALUE), np.float16))


LAYERS = """
    <ir_version: 10, opset_import: ["" : 23]>
    agraph (float[b, 2, s, 4] x, int64[b, s] attention_mask) => (float[b, 2, s, 4] y) {
        row = Unsqueeze (attention_mask, axes)
        columns = Transpose <perm = [0, 2, 1]> (row)
        pairs = Mul (row, columns)
        seen = Unsqueeze (pairs, one)
        MASK
        first = Attention <is_causal = 1> (x, x, x, mask)
        y = Attention <is_causal = 1> (first, first, first, mask)
    }
"""


@pytest.mark.parametrize(
    "mask", ["mask = Cast <to = 9> (seen)", "kept = Cast <to = 9> (seen) mask = Where (kept, zero, hidden)"]
)
def test_rows_of_padding_on_the_left_do_not_spoil_a_second_layer(mask: str) -> None:
    proto = onnx.parser.parse_model(LAYERS.replace("MASK", mask))
    numbers = {"axes": np.array([1]), "one": np.array([1])}
    if "hidden" in mask:
        numbers |= {"zero": np.float32(0), "hidden": np.float32(-np.inf)}
    for name, number in numbers.items():
        proto.graph.initializer.append(onnx.numpy_helper.from_array(np.asarray(number), name))
    feed = {"x": np.random.default_rng(0).normal(size=(2, 2, 5, 4)).astype(np.float32)}
    feed["attention_mask"] = np.array([[1] * 5, [0, 0, 1, 1, 1]])
    found = run(decomposed(proto), feed)[0]
    np.testing.assert_allclose(found, ReferenceEvaluator(proto).run(None, feed)[0], rtol=0, atol=TOLERANCE)
    assert not found[1, :, :2].any()
