"""Operators of two versions that are taken for one give the same in onnxruntime, bit by bit."""

from __future__ import annotations

from collections.abc import Iterator
from functools import cache, lru_cache
from pathlib import Path

import numpy as np
import onnx
import onnx.defs
import onnx.parser
import onnxruntime
import pytest
from properties import how_many

from graphkit.equivalence import check_equivalence, spelling
from graphkit.errors import ModelError
from graphkit.graph.operator_traits import REDUCTIONS, operator_set
from graphkit.model import Model
from graphkit.runtime.session import Session

EDGES = np.array([0, -0.0, 1, -1.5, 0.1, 2.5, 7, -3, np.nan, np.inf, -np.inf, 3e38, -3e38, 1e-45], np.float32)
UNARY = operator_set(
    """
    Abs Acos Acosh Asin Asinh Atan Atanh Ceil Cos Cosh Elu Erf Exp Floor HardSigmoid HardSwish IsInf IsNaN LeakyRelu Log
    Mish Neg Reciprocal Relu Round Selu Sigmoid Sign Sin Sinh Softplus Softsign Sqrt Tan Tanh ThresholdedRelu Identity
    Softmax LogSoftmax Hardmax Shape Size Transpose Flatten ArgMax ArgMin NonZero MeanVarianceNormalization
    LpNormalization
    """
)
BINARY = operator_set("Add Div Equal Greater Less Mul PRelu Pow Sub Max Mean Min Sum GreaterOrEqual LessOrEqual")
BODIES = {
    **{name: f"y = {name} (x)" for name in UNARY},
    **{name: f"y = {name} (x, z)" for name in BINARY},
    **{name: f"y = {name} (c, d)" for name in ("And", "Or", "Xor")},
    **{name: f"y = {name} <axis = 0> (x)" for name in ("Softmax", "LogSoftmax", "Hardmax")},
    "Cast": "y = Cast <to = 11> (x)",
    "Compress": "y = Compress <axis = 0> (x, two)",
    "Concat": "y = Concat <axis = 1> (x, z)",
    "ConstantOfShape": "s = Shape (x) y = ConstantOfShape (s)",
    "CumSum": "y = CumSum (x, axis)",
    "Det": "s = MatMul (x, w) y = Det (s)",
    "Expand": "y = Expand (x, grown)",
    "EyeLike": "y = EyeLike (x)",
    "Gather": "y = Gather (x, picks)",
    "GatherElements": "y = GatherElements (x, places)",
    "GatherND": "y = GatherND (x, places)",
    "Gemm": "y = Gemm (x, w)",
    "MatMul": "y = MatMul (x, w)",
    "Mod": "y = Mod (k, m)",
    "NonMaxSuppression": "y = NonMaxSuppression (boxes, scores, most)",
    "OneHot": "y = OneHot (picks, axis, values)",
    "Reshape": "y = Reshape (x, flat)",
    "ScatterElements": "y = ScatterElements (x, places, two_rows)",
    "ScatterND": "y = ScatterND (x, places, pair)",
    "Tile": "y = Tile (x, times)",
    "Where": "y = Where (c, x, z)",
    "Split": "y, q = Split <axis = 1> (x, parts)",
    "Squeeze": "u = Reshape (x, grown) y = Squeeze (u)",
    "Slice": "y = Slice (x, axis, far, axis)",
    "TopK": "y, i = TopK (x, far)",
    "Clip": "y = Clip (x, low, high)",
    "Pad": "y = Pad (x, around)",
    "Unsqueeze": "y = Unsqueeze (x, axis)",
    "Conv": "y = Conv (image, kernel)",
    "ConvTranspose": "y = ConvTranspose <strides = [2, 2]> (image, kernel)",
    "MaxPool": "y = MaxPool <kernel_shape = [2, 2], ceil_mode = 1, strides = [2, 2]> (image)",
    "AveragePool": "y = AveragePool <kernel_shape = [2, 2]> (image)",
    "GlobalAveragePool": "y = GlobalAveragePool (image)",
    "GlobalMaxPool": "y = GlobalMaxPool (image)",
    "LRN": "y = LRN <size = 3> (image)",
    "DepthToSpace": "y = DepthToSpace <blocksize = 2> (image)",
    "SpaceToDepth": "y = SpaceToDepth <blocksize = 2> (image)",
    "InstanceNormalization": "y = InstanceNormalization (image, four, four)",
    "BatchNormalization": "y = BatchNormalization (image, four, four, four, four)",
    "Resize": "y = Resize <mode = \"linear\"> (image, none, scales)",
    "QuantizeLinear": "y = QuantizeLinear (x, high)",
    "DequantizeLinear": "q = QuantizeLinear (x, high) y = DequantizeLinear (q, high)",
    "QLinearMatMul": "q = QuantizeLinear (x, high) r = QuantizeLinear (w, high) y = QLinearMatMul "
                     "(q, high, point, r, high, point, high, point)",
    "LSTM": "y = LSTM <hidden_size = 2> (line, gates, states)",
    "GRU": "y = GRU <hidden_size = 2> (line, gates3, states3)",
    "RNN": "y = RNN <hidden_size = 2> (line, gates1, states1)",
    "LayerNormalization": "y = LayerNormalization (x, row)",
    "SimplifiedLayerNormalization": "y = SimplifiedLayerNormalization (x, row)",
    "SplitToSequence": "q = SplitToSequence <axis = 1> (x) y = SequenceAt (q, first)",
    "Loop": "y = Loop (trip, , x) <body = b (int64 i, bool go, float[A, B] a) => (bool on, float[A, B] n) "
            "{ on = Identity (go) n = Add (a, z) }>",
    "Scan": "y = Scan <num_scan_inputs = 1, body = b (float[B] a) => (float[B] n) { n = Neg (a) }> (x)",
}  # fmt: skip
REDUCED = {name: f"y = {name} (x)" for name in REDUCTIONS}
BODIES |= REDUCED
SEEDS = how_many(4, 12)
UNTESTED = {"Multinomial", "RandomNormal", "RandomNormalLike", "RandomUniform", "RandomUniformLike"}  # of one name
rng = np.random.default_rng(0)
CONSTANTS = {
    "two": np.array([1, 0], bool), "axis": np.array(1), "grown": np.array([1, 3, 3]), "picks": np.array([0, 1, 2]),
    "places": np.array([[0, 1], [2, 0]]), "boxes": rng.random((1, 3, 4)), "scores": rng.random((1, 1, 3)),
    "most": np.array([2]), "values": np.array([0.0, 1.0]), "flat": np.array([0, -1]), "times": np.array([2, 1]),
    "two_rows": np.ones((2, 2)), "pair": np.ones(2), "parts": np.array([1, 2]), "far": np.array([2]), "low": -1.0,
    "high": 2.0, "around": np.array([0, 1, 0, 1]), "kernel": rng.random((4, 4, 2, 2)), "four": np.ones(4),
    "image": rng.normal(size=(1, 4, 4, 4)), "none": np.zeros(0), "scales": np.array([1, 1, 1.5, 2]),
    "point": np.uint8(0), "line": rng.normal(size=(3, 1, 2)), "gates": rng.random((1, 8, 2)),
    "states": rng.random((1, 8, 2)), "gates3": rng.random((1, 6, 2)), "states3": rng.random((1, 6, 2)),
    "gates1": rng.random((1, 2, 2)), "states1": rng.random((1, 2, 2)), "row": np.ones(3), "trip": np.array(2),
    "first": np.array(0), "w": rng.random((3, 3)), "k": np.array([5, -5, 7]), "m": np.array([3, 3, -3]),
}  # fmt: skip
LISTS = {"OneHot": {"axis": np.array(3), "picks": np.array([0, -1, 2])}, "CumSum": {}, "Compress": {},
         **{name: {"axis": np.array([1])} for name in ("Slice", "Unsqueeze")}}  # fmt: skip
HEAD = "g (float[3, 3] x, float[3, 3] z, bool[3, 3] c, bool[3, 3] d) => (y)"


def built(body: str, version: int, **more: object) -> Model:
    text = f'<ir_version: 8, opset_import: ["" : {version}]>\n{HEAD} {{ {body} }}'
    proto = onnx.parser.parse_model(text)
    words = set(body.replace("(", " ").replace(")", " ").replace(",", " ").split())
    for name, content in {**CONSTANTS, **more}.items():
        if name in words:
            array = np.asarray(content)
            array = array.astype(np.float32) if array.dtype == np.float64 else array
            proto.graph.initializer.append(onnx.numpy_helper.from_array(array, name))
    for name in "xzcd":
        if name not in words:
            del proto.graph.input[[value.name for value in proto.graph.input].index(name)]
    return Model.from_proto(proto)


@cache
def history(operator: str) -> list[int]:
    """Return the versions in which an operator changed, from the oldest that onnxruntime has on."""
    found = {
        schema.since_version
        for schema in onnx.defs.get_all_schemas_with_history()
        if (schema.name, schema.domain) == (operator, "")
    }
    found |= {12, 22} if operator.endswith("LayerNormalization") else set()  # onnxruntime's own in each version
    return sorted({max(each, 7) for each in found if each <= 24})


@lru_cache(maxsize=2)
def opened(model: Model) -> list[Session]:
    return [Session(model, threads=1, optimize=is_optimized) for is_optimized in (False, True)]


def run(model: Model, feeds: dict[str, np.ndarray]) -> list[np.ndarray] | None:
    try:
        return [next(iter(session.run(feeds).values())) for session in opened(model)]
    except ModelError:
        return None


def fed(model: Model, seed: int) -> dict[str, np.ndarray]:
    draw = np.random.default_rng(seed)
    found = {"x": draw.choice(EDGES, (3, 3)), "z": draw.choice(EDGES, (3, 3))}
    if seed % 2:
        found = {"x": draw.normal(size=(3, 3)).astype(np.float32), "z": draw.normal(size=(3, 3)).astype(np.float32)}
    found |= {"c": draw.random((3, 3)) < 0.5, "d": draw.random((3, 3)) < 0.5}
    return {name: found[name] for name in (value.name for value in model.graph.inputs)}


def bits(array: np.ndarray) -> np.ndarray:
    """Return the bits, those of every NaN the same."""
    if array.dtype.kind != "f":
        return array
    return np.where(np.isnan(array), array.dtype.type(np.nan), array).view(f"u{array.dtype.itemsize}")


def differing(operator: str, *, of_one_meaning: bool = True) -> Iterator[str]:
    """Yield versions of an operator that are taken for one and do not give the same."""
    starts = spelling.MEANINGS[operator]
    pairs = [(old, new) for old, new in zip(history(operator), history(operator)[1:], strict=False)]
    for old, new in pairs:
        is_one = max([s for s in starts if s <= old], default=old) == max([s for s in starts if s <= new], default=new)
        if is_one is not of_one_meaning:
            continue
        models = [built(BODIES[operator], version, **LISTS.get(operator, {})) for version in (old, new)]
        for seed in range(SEEDS):
            made = [run(model, fed(model, seed)) for model in models]
            if made[0] is None or made[1] is None:
                break
            for before, after in zip(*made, strict=True):
                if before.shape != after.shape or not np.array_equal(bits(before), bits(after)):
                    yield f"{operator} of {old} and {new}"


@pytest.mark.cases(43)
@pytest.mark.examples
@pytest.mark.parametrize("operator", sorted(spelling.MEANINGS.keys() - UNTESTED))
def test_versions_that_are_taken_for_one_give_the_same(operator: str) -> None:
    assert set(differing(operator)) == set()


@pytest.mark.parametrize("operator", ["Softmax", "LogSoftmax", "Hardmax"])
def test_a_meaning_that_changed_is_found(operator: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(spelling.MEANINGS, operator, (1,))  # type: ignore[arg-type]
    assert set(differing(operator)) != set()


WITH_FUNCTIONS = sorted(
    {
        schema.name
        for schema in onnx.defs.get_all_schemas_with_history()
        if not schema.domain and schema.since_version <= spelling.NEWEST_MEANING
        if schema.has_function or schema.has_context_dependent_function
    }
    & spelling.MEANINGS.keys()
)
OF_HALVES = {
    "Clip": "y = Clip (x, low, high)", "PRelu": "y = PRelu (x, low)",
    "LayerNormalization": "y = LayerNormalization (x, row)",
    **{name: f"y = {name} (x, x)" for name in ("GreaterOrEqual", "LessOrEqual")},
    **{name: f"y = {name} <axis = 1> (x)" for name in ("Softmax", "LogSoftmax")},
}  # fmt: skip
HALVES = np.arange(-(1 << 15), 1 << 15, dtype=np.int16).view(np.float16)
HALVES = np.sort(HALVES[np.isfinite(HALVES)]).reshape(-1, 64)


def halves_in(operator: str) -> Iterator[tuple[int, Model]]:
    """Yield each version, and a model of it."""
    body = OF_HALVES.get(operator, f"y = {operator} (x)")
    for version in range(7, spelling.NEWEST_MEANING + 1):
        text = f'<ir_version: 8, opset_import: ["" : {version}]> g (float16[n, m] x) => (y) {{ {body} }}'
        proto = onnx.parser.parse_model(text)
        numbers = {"low": -1.3, "high": 2.7, "row": np.ones(64)}
        proto.graph.initializer.extend(
            onnx.numpy_helper.from_array(np.array(number, np.float16), name)
            for name, number in numbers.items()
            if name in body
        )
        yield version, Model.from_proto(proto)


@pytest.mark.cases(8)
@pytest.mark.parametrize("operator", WITH_FUNCTIONS)
def test_float16_is_computed_alike_by_versions_that_are_taken_for_one(operator: str) -> None:
    """onnxruntime has no kernel for many, and runs the body that ONNX has where that is of the model's version."""
    found = dict[int, tuple[Model, bytes]]()
    for version, model in halves_in(operator):
        if (arrays := run(model, {"x": HALVES})) is not None:
            found[version] = model, b"".join(array.tobytes() for array in arrays)
    assert len(found) > 6
    for version, (model, made) in found.items():
        others = [other for other, (_, result) in found.items() if other > version and result != made]
        for other in others:
            assert not check_equivalence(model, found[other][0]).proven, f"{version} and {other}"


def kernels(model: Model, folder: Path) -> list[str] | None:
    """Return the operators of the kernels that onnxruntime runs for a model, None where it has none."""
    options = onnxruntime.SessionOptions()
    options.graph_optimization_level = onnxruntime.GraphOptimizationLevel.ORT_DISABLE_ALL
    options.log_severity_level = 4
    options.optimized_model_filepath = str(folder / "run.onnx")
    try:
        onnxruntime.InferenceSession(model.proto.SerializeToString(), options, providers=["CPUExecutionProvider"])
    except Exception:  # of which onnxruntime has many kinds
        return None
    return [node.op_type for node in onnx.load(folder / "run.onnx").graph.node]


def test_rows_of_float16_are_reduced_by_other_kernels_in_version_18(tmp_path: Path) -> None:
    found = {}
    for version in (18, 19):
        text = f'<ir_version: 8, opset_import: ["" : {version}]> g (float16[n, m] x) => (float16[n] y)'
        proto = onnx.parser.parse_model(text + "<int64[1] one = {1}> { y = ReduceL2 <keepdims = 0> (x, one) }")
        found[version] = Model.from_proto(proto)
    assert kernels(found[18], tmp_path) != kernels(found[19], tmp_path)
    assert not check_equivalence(found[18], found[19]).proven


@pytest.mark.cases(7)
@pytest.mark.parametrize("operator", [each for each in WITH_FUNCTIONS if not each.endswith("OrEqual")])
def test_float16_is_computed_by_the_same_kernels_in_versions_that_are_taken_for_one(
    operator: str, tmp_path: Path
) -> None:
    found = {version: (model, kernels(model, tmp_path)) for version, model in halves_in(operator)}
    known = {version: (model, run_by) for version, (model, run_by) in found.items() if run_by is not None}
    assert len(known) > 6
    for version, (model, run_by) in known.items():
        for other in (other for other, (_, others) in known.items() if other > version and others != run_by):
            assert not check_equivalence(model, known[other][0]).proven, f"{version} and {other}"


def test_quantizing_float16_rounds_otherwise_since_version_23() -> None:
    feeds = {"x": np.random.default_rng(0).normal(size=(64, 64)).astype(np.float16)}
    found = {}
    for version in (13, 19, 21, 23, 24):
        text = f'<ir_version: 10, opset_import: ["" : {version}]> g (float16[n, m] x) => (uint8[n, m] y)'
        proto = onnx.parser.parse_model(f"{text} {{ y = QuantizeLinear (x, s) }}")
        proto.graph.initializer.append(onnx.numpy_helper.from_array(np.float16(0.05), "s"))
        found[version] = model = Model.from_proto(proto)
        assert check_equivalence(model, Model.from_proto(proto)).is_proven
    right, made = (run(found[version], feeds) for version in (21, 23))
    assert right is not None
    assert made is not None
    assert (right[0] != made[0]).any()
    for version in (13, 19, 21):
        assert not check_equivalence(found[version], found[23]).proven
    assert check_equivalence(found[23], found[24]).is_proven


SPELLED = {
    "ReduceMean": ("y = ReduceMean <axes = [-1]> (x)", "y = ReduceMean (x, axes)"),
    "ReduceSum": ("y = ReduceSum <axes = [-1], keepdims = 0> (x)", "y = ReduceSum <keepdims = 0> (x, axes)"),
    "ReduceMax": ("y = ReduceMax <axes = [0, 1]> (x)", "y = ReduceMax (x, both)"),
    "Clip": ("y = Clip <min = -1.0, max = 2.0> (x)", "y = Clip (x, low, high)"),
    "Clip below": ("y = Clip <min = -1.0> (x)", "y = Clip (x, low)"),
    "Clip above": ("y = Clip <max = 2.0> (x)", "y = Clip (x, , high)"),
    "Pad": ("y = Pad <pads = [0, 1, 0, 1]> (x)", "y = Pad (x, around)"),
    "Pad with 2": ("y = Pad <pads = [0, 1, 0, 1], value = 2.0> (x)", "y = Pad (x, around, high)"),
    "Pad with 0": ("y = Pad <pads = [0, 1, 0, 1], value = 0.0> (x)", "y = Pad (x, around, zero)"),
    "TopK": ("y, i = TopK <k = 2> (x)", "y, i = TopK (x, far)"),
    "Split": ("y, q = Split <axis = 1, split = [1, 2]> (x)", "y, q = Split <axis = 1> (x, parts)"),
    "Slice": ("y = Slice <axes = [1], starts = [1], ends = [2]> (x)", "y = Slice (x, one, far, one)"),
    "Softmax": ("y = Softmax <axis = 1> (x)", "y = Softmax (x)"),
    "Softmax over all": (
        "y = Softmax <axis = 0> (x)", "s = Shape (x) f = Flatten <axis = 0> (x) r = Softmax (f) y = Reshape (r, s)"),
    "LogSoftmax": ("y = LogSoftmax (x)", "y = LogSoftmax <axis = -1> (x)"),
}  # fmt: skip
MORE = {"axes": np.array([-1]), "both": np.array([0, 1]), "zero": 0.0, "one": np.array([1])}
WRONG = {
    "other axes": ("y = ReduceMean <axes = [-1]> (x)", "y = ReduceMean (x, zeroth)"),
    "no axes": ("y = ReduceSum <axes = [-1]> (x)", "y = ReduceSum (x)"),
    "min and max": ("y = Clip <min = -1.0, max = 2.0> (x)", "y = Clip (x, high, low)"),
    "another value": ("y = Pad <pads = [0, 1, 0, 1]> (x)", "y = Pad (x, around, high)"),
    "a value of -0": ("y = Pad <pads = [0, 1, 0, 1]> (x)", "y = Pad (x, around, minus)"),
    "other pads": ("y = Pad <pads = [0, 1, 0, 1]> (x)", "y = Pad (x, aside)"),
    "one more": ("y, i = TopK <k = 2> (x)", "y, i = TopK (x, one)"),
    "Softmax over all": ("y = Softmax <axis = 0> (x)", "y = Softmax <axis = 0> (x)"),
    "Hardmax over all": ("y = Hardmax <axis = 0> (x)", "y = Hardmax <axis = 0> (x)"),
}
MORE |= {"zeroth": np.array([0]), "minus": -0.0, "aside": np.array([1, 0, 1, 0])}


@pytest.mark.parametrize("name", SPELLED)
def test_attributes_that_became_inputs_are_the_same(name: str) -> None:
    before, after = built(SPELLED[name][0], 9, **MORE), built(SPELLED[name][1], 21, **MORE)
    found = check_equivalence(before, after)
    assert found.is_proven, str(found)
    assert found.outputs[0].exactness == "bit for bit"
    for seed in range(12):
        made = [run(model, fed(model, seed)) for model in (before, after)]
        assert made[0] is not None
        assert made[1] is not None
        assert all(np.array_equal(bits(one), bits(other)) for one, other in zip(*made, strict=True))


@pytest.mark.parametrize("name", WRONG)
def test_a_wrong_conversion_is_not_proven(name: str) -> None:
    before, after = built(WRONG[name][0], 9, **MORE), built(WRONG[name][1], 21, **MORE)
    assert not check_equivalence(before, after).is_proven
    feeds = [fed(before, seed) for seed in range(12)]
    pairs = [(run(before, feed), run(after, feed)) for feed in feeds]
    assert any(one and other and not np.array_equal(bits(one[0]), bits(other[0])) for one, other in pairs)


def test_an_operator_that_is_not_named_keeps_its_version() -> None:
    assert "Dropout" not in spelling.MEANINGS
    assert not check_equivalence(built("y = Dropout (x)", 12), built("y = Dropout (x)", 13)).is_proven


@pytest.mark.parametrize(("axis", "is_proven"), [(-1, True), (1, True), (0, False)])
def test_a_new_node_may_have_attributes_that_became_inputs(axis: int, is_proven: bool) -> None:
    head = '<ir_version: 8, opset_import: ["" : 16]> agraph (float[N, 1, 3] x) => (float[N, 1, 1] y)'
    squeezed = f"s = Squeeze (x, one) m = ReduceMean <axes = [{axis}]> (s) y = Unsqueeze (m, one)"
    texts = [f"{head} {{ y = ReduceMean <axes = [-1]> (x) }}", f"{head} <int64[1] one = {{1}}> {{ {squeezed} }}"]
    before, after = (Model.from_proto(onnx.parser.parse_model(text)) for text in texts)
    assert check_equivalence(before, after).is_proven == is_proven


def averages(attributes: str, version: int) -> Model:
    body = f"u = Reshape (x, image_dims) y = AveragePool <{attributes}> (u)"
    return built(body, version, image_dims=np.array([1, 1, 3, 3]))


@pytest.mark.parametrize("attributes", ["", ", pads = [1, 1, 1, 1]", ", ceil_mode = 1, strides = [2, 2]"])
def test_averages_of_a_newer_kernel_are_equal_up_to_rounding(attributes: str) -> None:
    """It adds up each window in another order, and its numbers differ in the last digit."""
    before, after = (averages(f"kernel_shape = [2, 2]{attributes}", version) for version in (18, 19))
    feeds = [{"x": rng.normal(size=(3, 3)).astype(np.float32)} for _ in range(20)]
    right, made = ([Session(each).run(feed)["y"] for feed in feeds] for each in (before, after))
    np.testing.assert_allclose(right, made, rtol=0, atol=1e-6)
    assert np.array(right).tobytes() != np.array(made).tobytes()
    assert [output.exactness for output in check_equivalence(before, after).outputs] == ["in exact arithmetic"]


@pytest.mark.parametrize(
    ("one", "other"),
    [
        ("kernel_shape = [2, 2]", "kernel_shape = [2, 2], strides = [2, 2]"),
        ("kernel_shape = [2, 2], pads = [1, 1, 0, 0]", "kernel_shape = [2, 2], pads = [0, 0, 1, 1]"),
        (
            "kernel_shape = [2, 2], pads = [1, 1, 0, 0]",
            "pads = [1, 1, 0, 0], kernel_shape = [2, 2], count_include_pad = 1",
        ),
        ("kernel_shape = [2, 2], ceil_mode = 1, count_include_pad = 1",) * 2,
        ("kernel_shape = [4, 4], strides = [4, 4], count_include_pad = 1",) * 2,  # as large as no window
    ],
)
def test_averages_of_other_windows_are_others(one: str, other: str) -> None:
    before, after = averages(one, 18), averages(other, 19)
    assert not check_equivalence(before, after).proven
