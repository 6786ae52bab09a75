"""Wrong models whose names, bodies, versions or axes are taken for others: a run shows each to differ."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field

import numpy as np
import onnx
import pytest
from onnx import TensorShapeProto, parser
from small_models import model

from graphkit.equivalence import check_equivalence
from graphkit.equivalence.spelling import inline_model
from graphkit.errors import ModelError
from graphkit.model import Model
from graphkit.passes.attention.fuse_attention import attention_function
from graphkit.passes.control_flow.inline_functions import InlineFunctions
from graphkit.runtime.session import Session

RNG = np.random.default_rng(0)
LOOP = """g (float[3] x, int64 m, bool c) => (float[3] y) {{
    {around} y = Loop (m, c, x) <body = outer (int64 i, bool k, float[3] v) => (bool k2, float[3] w) {{
        k2 = Identity (k) {inner} }}>
}}"""
INNER = """{} = Loop (m, c, x) <body = inner (int64 j, bool l, float[3] u) => (bool l2, float[3] r) {{
    l2 = Identity (l) r = Add (u, {}) }}>"""
SCAN = """g (float[n, 3] x, float[3] h) => (float[3] y, float[n, 3] all) {{
    y, all = Scan (h, x) <num_scan_inputs = 1, body = outer (float[3] v, float[3] e) => (float[3] w, float[3] o) {{
        w, p = Scan (h, x) <num_scan_inputs = 1, body = inner (float[3] u, float[3] f) => (float[3] r, float[3] q) {{
            r = Add (u, {}) q = Identity (f) }}>
        o = Identity (e) }}>
}}"""
RESIZE = 'g (float[1, 1, 2, 2] x) => (float[1, 1, 3, 3] y) { y = Resize <mode = "linear"> (x, scales) }'
HEADS = """g (float[2, 3, 5, 3] x, float[2, 1, 12] k) => (float[2, 3, 5, 4] y) {
    e = Expand (k, repeated) r = Reshape (e, apart) t = Transpose <perm = [0, 2, 1]> (r) w = Reshape (t, matrices)
    y = MatMul (x, w) }"""
MATRICES = {"repeated": [2, 3, 12], "matrices": [2, 3, 3, 4]}


@dataclass(frozen=True)
class Wrong:
    """An original and a wrong model as text, with their constants, and inputs that show it."""

    before: str
    after: str
    feed: Mapping[str, np.ndarray]
    constants: tuple[Mapping[str, object], Mapping[str, object]] = field(default=({}, {}))
    opset: int = 18


def scales(size: float) -> Mapping[str, object]:
    return {"scales": np.array([1, 1, size, size], np.float32)}


TURNED = np.array([[1.0, -1.0], [-1.0, 1.0]])
REPEATED = {"x": np.array([1.0, 2.0, 3.0], np.float32), "m": np.array(3), "c": np.array(True)}
ROWS = {"x": RNG.normal(size=(4, 3)).astype(np.float32), "h": np.ones(3, np.float32)}
LARGE = {"x": RNG.normal(size=(2, 3, 5, 3)).astype(np.float32), "k": RNG.normal(size=(2, 1, 12)).astype(np.float32)}
PAIRS = {
    "a Loop in an equal one: its own state": Wrong(
        LOOP.format(around="", inner=INNER.format("w", "v")), LOOP.format(around="", inner=INNER.format("w", "u")),
        REPEATED),
    "a Loop in an equal one, moved out": Wrong(
        LOOP.format(around="", inner=INNER.format("w", "v")),
        LOOP.format(around=INNER.format("z", "u"), inner="w = Identity (z)"), REPEATED),
    "a Scan in an equal one: its own elements": Wrong(SCAN.format("e"), SCAN.format("f"), ROWS),
    "a Scan in an equal one: its own state": Wrong(SCAN.format("v"), SCAN.format("u"), ROWS),
    "other scales, in version 10": Wrong(
        RESIZE, RESIZE, {"x": RNG.normal(size=(1, 1, 2, 2)).astype(np.float32)}, (scales(1.5), scales(1.9)), 10),
    **{f"heads turned as {apart}": Wrong(
        HEADS, HEADS, LARGE, ({**MATRICES, "apart": [6, 4, 3]}, {**MATRICES, "apart": apart}))
       for apart in ([2, 3, 12], [3, 4, 6], [6, 3, 4], [6, 2, 6])},
}  # fmt: skip


def built(text: str, constants: Mapping[str, object], opset: int) -> Model:
    made = model(text, **{name: np.asarray(each) for name, each in constants.items()})
    made.proto.opset_import[0].version = opset
    return made


@pytest.mark.parametrize("name", PAIRS)
def test_a_wrong_model_is_not_proven(name: str) -> None:
    pair = PAIRS[name]
    texts = zip((pair.before, pair.after), pair.constants, strict=True)
    before, after = (built(text, constants, pair.opset) for text, constants in texts)
    right, made = (Session(each, threads=1).run(pair.feed)["y"] for each in (before, after))
    assert np.abs(right - made).max() > 1e-2
    assert check_equivalence(before, built(pair.before, pair.constants[0], pair.opset)).is_proven
    assert not check_equivalence(before, after).proven


def test_a_scale_of_a_scalar_is_no_list() -> None:
    text = "g (float x) => (float y) {{ q, s, z = DynamicQuantizeLinear (x) {} }}"
    found = [model(text.format(end)) for end in ("y = Identity (s)", "y = Unsqueeze (s, first)")]
    found[1] = model(text.format("y = Unsqueeze (s, first)"), first=np.array([0]))
    for each in found:
        each.proto.graph.input[0].type.tensor_type.shape.CopyFrom(TensorShapeProto())
        each.proto.graph.output[0].type.tensor_type.ClearField("shape")
    before, after = (Model.from_proto(each.proto) for each in found)
    assert Session(before, threads=1).run({"x": np.array(3.5, np.float32)})["y"].shape == ()
    assert Session(after, threads=1).run({"x": np.array(3.5, np.float32)})["y"].shape == (1,)
    assert not check_equivalence(before, after).proven


def test_a_name_of_a_dim_may_not_stand_for_another_one_without_a_name() -> None:
    made = []
    for name in "xu":
        proto = model(f"g (float[n] x, float[k] u) => (int64[1] y) {{ y = Shape ({name}) }}").proto
        proto.graph.input[0].type.tensor_type.shape.dim[0].dim_param = "u.0"
        proto.graph.input[1].type.tensor_type.shape.dim[0].ClearField("dim_param")
        made.append(Model.from_proto(proto))
    feed = {"x": np.ones(3, np.float32), "u": np.ones(4, np.float32)}
    assert [int(Session(each, threads=1).run(feed)["y"][0]) for each in made] == [3, 4]
    assert not check_equivalence(*made).proven


OWN = """<ir_version: 10, opset_import: ["" : 20, "com.microsoft" : 1]>
g (float[n] x) => (float[n] y) {{ y = {}{} (x) }}
<opset_import: ["" : 20], domain: "{}"> {} (a) => (b) {{ b = Neg (a) }}"""


@pytest.mark.parametrize(
    ("domain", "operator"), [("", "Relu"), ("ai.onnx", "Relu"), ("", "Softplus"), ("com.microsoft", "Gelu")]
)
def test_a_function_that_has_the_name_of_an_operator_has_no_proof(domain: str, operator: str) -> None:
    call = f"{domain}." if domain == "com.microsoft" else ""
    before = Model.from_proto(parser.parse_model(OWN.format(call, operator, domain, operator)))
    after = model("g (float[n] x) => (float[n] y) { y = Neg (x) }")
    x = np.array([1.0, 2.0], np.float32)
    right, made = (Session(each, threads=1).run({"x": x})["y"] for each in (before, after))
    assert (right != made).all()
    for pair in ((before, after), (after, before)):
        with pytest.raises(ModelError, match="onnxruntime may run an operator of its own"):
            check_equivalence(*pair)


@pytest.mark.parametrize("domain", ["com.microsoft.nchwc", "com.ms.internal.nhwc", "ai.onnx.ml", "org.pytorch.aten"])
def test_a_function_in_a_domain_of_the_runtime_has_no_proof(domain: str) -> None:
    made = Model.from_proto(parser.parse_model(OWN.format(f"{domain}.", "ReorderInput", domain, "ReorderInput")))
    with pytest.raises(ModelError, match="onnxruntime may run an operator of its own for the function 'ReorderInput'"):
        check_equivalence(made, made)


def attention(opset: int, *inputs: str, **attributes: object) -> Model:
    """Return a model of one node that is fused attention, without the function."""
    text = "g (float[b, s, 4] x, float[4, 12] w, float[12] v) => (float[b, s, 4] y) { y = Identity (x) }"
    proto = onnx.ModelProto.FromString(model(text).proto.SerializeToString())
    named = {"num_heads": 2, "qkv_hidden_sizes": [4, 4, 4], "scale": 0.5, **attributes}
    node = onnx.helper.make_node("Attention", inputs or ["x", "w", "v"], ["y"], domain="com.microsoft", **named)
    proto.graph.node[0].CopyFrom(node)
    proto.opset_import[0].version = opset
    proto.opset_import.append(onnx.helper.make_opsetid("com.microsoft", 1))
    return Model.from_proto(proto)


def with_function(kernel: Model) -> Model:
    proto = onnx.ModelProto.FromString(kernel.proto.SerializeToString())
    proto.functions.append(attention_function(proto.opset_import[0].version))
    return Model.from_proto(proto)


@pytest.mark.parametrize("opset", [13, 18, 21])
def test_the_function_of_fused_attention_computes_what_its_kernel_does(opset: int) -> None:
    kernel = attention(opset)
    feed = {name: RNG.normal(size=size).astype(np.float32) for name, size in
            (("x", (2, 3, 4)), ("w", (4, 12)), ("v", (12,)))}  # fmt: skip
    right, made = (Session(each, threads=1).run(feed)["y"] for each in (kernel, inline_model(with_function(kernel))))
    assert np.allclose(right, made, atol=1e-5)


@pytest.mark.parametrize(
    ("inputs", "attributes"),
    [
        ((), {"unidirectional": 1}), ((), {"do_rotary": 1}), ((), {"mask_filter_value": -1.0}), ((), {"scale": 0.0}),
        ((), {"scale": None}), (("x", "w", ""), {}), (("x", "w", "v", ""), {}),
    ],
)  # fmt: skip
def test_a_call_of_fused_attention_has_what_the_function_reads_and_nothing_else(
    inputs: tuple[str, ...], attributes: dict[str, object]
) -> None:
    right, wrong = (with_function(attention(17, *inputs, **given)) for given in ({}, attributes))
    for pair in ((right, wrong), (wrong, right)):
        with pytest.raises(ModelError, match="operator 'Attention' may compute something else than its function"):
            check_equivalence(*pair)


def test_fused_attention_is_its_function_in_exact_arithmetic() -> None:
    fused = with_function(attention(17))
    plain = InlineFunctions().run(fused).model
    for pair in ((fused, plain), (plain, fused)):
        assert [output.exactness for output in check_equivalence(*pair).outputs] == ["in exact arithmetic"]
    for pair in ((fused, fused), (plain, plain)):
        assert [output.exactness for output in check_equivalence(*pair).outputs] == ["bit for bit"]


@pytest.mark.parametrize(
    ("declared", "other"),
    [
        ("float[b, s, 4] x", "float[s, 4] x"), ("float[b, s, 4] x", "float[b, t, s, 4] x"),
        ("float[4, 12] w", "float[1, 4, 12] w"), ("float[12] v", "float[1] v"), ("float[12] v", "float[1, 12] v"),
    ],
)  # fmt: skip
def test_fused_attention_takes_the_axes_of_its_kernel_alone(declared: str, other: str) -> None:
    proto = with_function(attention(17)).restore()
    infos = {
        info.name: info for info in model(f"g ({other}) => (y) {{ y = Identity ({other[-1]}) }}").proto.graph.input
    }
    for info in proto.graph.input:
        if info.name in infos:
            info.CopyFrom(infos[info.name])
    fused = Model.from_proto(proto)
    assert declared[-1] == other[-1]
    assert "takes three axes, a matrix and a bias of its columns" in str(check_equivalence(fused, fused))


def test_fused_attention_of_constants_is_its_function_in_exact_arithmetic() -> None:
    proto = with_function(attention(17)).restore()
    del proto.graph.input[:]
    arrays = {"x": RNG.normal(size=(1, 2, 4)), "w": RNG.normal(size=(4, 12)), "v": RNG.normal(size=12)}
    proto.graph.initializer.extend(
        onnx.numpy_helper.from_array(array.astype(np.float32), name) for name, array in arrays.items()
    )
    fused = Model.from_proto(proto)
    found = check_equivalence(fused, InlineFunctions().run(fused).model)
    assert not any(output.exactness == "bit for bit" for output in found.outputs)


def test_fused_attention_that_a_function_calls_has_no_proof() -> None:
    proto = with_function(attention(17)).restore()
    call = proto.graph.node[0]
    opsets = [*proto.opset_import]
    proto.functions.append(onnx.helper.make_function("own", "f", ["x", "w", "v"], ["y"], [call], opsets))
    proto.graph.node[0].CopyFrom(onnx.helper.make_node("f", ["x", "w", "v"], ["y"], domain="own"))
    proto.opset_import.append(onnx.helper.make_opsetid("own", 1))
    nested = Model.from_proto(proto)
    assert "its axes are not known" in str(check_equivalence(nested, nested))


def test_weights_beside_models_that_no_folder_has_are_those_of_rewrites_alone() -> None:
    proto = model("g (int64[2] x) => (int64[2] y) { y = Add (x, w) }", w=[1, 2]).proto
    (weight,) = proto.graph.initializer
    weight.ClearField("raw_data")
    weight.ClearField("int64_data")
    weight.data_location = onnx.TensorProto.EXTERNAL
    for key, value in (("location", "weights"), ("offset", "0"), ("length", "16")):
        weight.external_data.add(key=key, value=value)
    one, other = (Model.from_proto(onnx.ModelProto.FromString(proto.SerializeToString())) for _ in range(2))
    assert check_equivalence(one, one.with_proto(other.proto)).is_proven
    assert not check_equivalence(one, other).is_proven


def test_functions_that_would_be_billions_of_nodes_are_not_inlined() -> None:
    head = '<domain: "local", opset_import: ["": 18, "local": 1]>'
    bodies = [f"{head} f{i} (v) => (r) {{ a = local.f{i + 1} (v) r = local.f{i + 1} (a) }}" for i in range(40)]
    text = """<ir_version: 9, opset_import: ["": 18, "local": 1]> g (float[n] x) => (float[n] y) { y = local.f0 (x) }"""
    last = f"{head} f40 (v) => (r) {{ r = Neg (v) }}"
    with pytest.raises(ModelError, match="without its functions it would have more than 200,000 nodes"):
        inline_model(Model.from_proto(parser.parse_model("\n".join([text, *bodies, last]))))
