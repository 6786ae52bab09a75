from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import numpy as np
import onnx
import onnx.numpy_helper
import onnx.parser
import pytest
from onnx import TensorProto, helper

from graphkit.analysis.summary import (
    DataFileRow,
    OperatorCount,
    Summary,
    TensorRow,
    TiedTensors,
    WeightBytes,
    summary,
)
from graphkit.errors import ModelError
from graphkit.graph.view import as_text
from graphkit.model import Model, load

RealModel = Callable[[str], Model]

FULL = """
<
    ir_version: 8, opset_import: ["" : 17, "com.microsoft" : 1, "mine" : 2, "local" : 1],
    producer_name: "maker", producer_version: "1.2", domain: "org.example", model_version: 7,
    doc_string: "What it does", metadata_props: ["license": "MIT"]
>
g (float[N,2] x) => (float[N,2] y) <float[2,2] w = {1, 2, 3, 4}> {
    a = MatMul(x, w)  b = com.microsoft.FusedGelu(a)  c = mine.Twist(b)  d = local.f(c)  e = mine.Twist(d)  y = Relu(e)
}
<domain: "local", opset_import: ["" : 17]> f (a) => (b) { b = Neg(a) }
"""


def proto(graph: str) -> onnx.ModelProto:
    return onnx.parser.parse_model(f'<ir_version: 8, opset_import: ["" : 17]> {graph}')


def summed(graph: str) -> Summary:
    return summary(Model.from_proto(proto(graph)))


def full() -> Summary:
    return summary(Model.from_proto(onnx.parser.parse_model(FULL)))


def test_operators_are_counted_the_most_frequent_first() -> None:
    assert full().operators == (
        OperatorCount("Twist", "mine", 2),
        OperatorCount("FusedGelu", "com.microsoft", 1),
        OperatorCount("MatMul", "", 1),
        OperatorCount("Neg", "", 1),
        OperatorCount("Relu", "", 1),
        OperatorCount("f", "local", 1),
    )


def test_operators_of_onnx_runtime_are_contrib() -> None:
    assert full().contrib == (OperatorCount("FusedGelu", "com.microsoft", 1),)


def test_operators_of_other_domains_are_custom() -> None:
    assert full().custom == (OperatorCount("Twist", "mine", 2),)


def test_a_call_of_a_function_is_not_custom() -> None:
    assert full().functions == ("f",)
    assert "f" not in {operator.op for operator in full().custom}


def test_operators_of_onnx_ml_are_neither() -> None:
    found = summed("g (float[N] x) => (y) { y = ai.onnx.ml.Scaler(x) }")
    assert (found.contrib, found.custom) == ((), ())


def test_versions_are_those_of_the_model() -> None:
    found = full()
    assert (found.ir_version, found.model_version, found.opsets) == (
        8,
        7,
        (("", 17), ("com.microsoft", 1), ("mine", 2), ("local", 1)),
    )


def test_origin_is_as_the_model_says() -> None:
    found = full()
    assert (found.producer, found.domain, found.doc_string, found.metadata) == (
        "maker 1.2",
        "org.example",
        "What it does",
        (("license", "MIT"),),
    )


def test_the_description_of_the_graph_stands_in_for_that_of_the_model() -> None:
    model = proto("g () => () {}")
    model.graph.doc_string = "\n  A graph.\n"
    assert summary(Model.from_proto(model)).doc_string == "A graph."


def test_nodes_scopes_and_initializers_count_at_every_depth() -> None:
    found = summed(
        """g (bool c, float[N] x) => (y) <float[1] w = {1}> { y = If (c) <
            then_branch = t () => (float[N] a) <float[1] v = {2}> { a = Mul(x, v) },
            else_branch = e () => (float[N] b) { b = Mul(x, w) }
        > }"""
    )
    assert (found.nodes, found.scopes, found.initializers) == (3, 3, 2)


def test_weight_bytes_are_summed_by_dtype_the_largest_first() -> None:
    found = summed(
        """g () => (y) <float[3] w = {1, 2, 3}, int64[1] i = {0}, float[1] v = {1}> {
            y = Constant <value = int64[4] {1, 2, 3, 4}> ()
        }"""
    )
    assert found.weight_bytes == (WeightBytes("int64", 2, 40), WeightBytes("float32", 2, 16))


def test_the_total_is_that_of_all_dtypes() -> None:
    assert summed("g () => () <float[3] w = {1, 2, 3}, int64[1] i = {0}> {}").total_weight_bytes == 20


def test_the_largest_five_tensors_are_named() -> None:
    weights = ", ".join(f"float[{n}] w{n} = {{{', '.join(['0'] * n)}}}" for n in range(1, 8))
    assert summed(f"g () => () <{weights}> {{}}").largest == tuple(
        TensorRow(f"w{n}", "float32", (n,), 4 * n) for n in (7, 6, 5, 4, 3)
    )


def test_a_constant_without_a_name_is_named_by_its_node() -> None:
    tensor = helper.make_tensor("", TensorProto.FLOAT, [2], [1.0, 2.0])
    node = helper.make_node("Constant", [], ["y"], name="fixed", value=tensor)
    model = helper.make_model(helper.make_graph([node], "g", [], []))
    assert summary(Model.from_proto(model)).largest == (TensorRow("value of node fixed", "float32", (2,), 8),)


def test_a_tensor_without_elements_is_not_among_the_largest() -> None:
    assert summed("g () => () <float[0] w = {}> {}").largest == ()


def test_a_model_as_text() -> None:
    model = Model.from_proto(onnx.parser.parse_model(FULL))
    assert summary(model).to_text() == (
        f"""\
Summary

Property           Value
────────────────────────────────────────────────────────────────
file               g ({model.source.size} bytes)
graph              {model.source.size} bytes without the weights
weights            16 bytes
nodes              7 in 2 graphs
initializers       1
IR version         8
opsets             ai.onnx 17, com.microsoft 1, mine 2, local 1
producer           maker 1.2
model version      7
domain             org.example
functions          f
contrib operators  com.microsoft.FusedGelu (1)
custom operators   mine.Twist (2)
quantisation       none
metadata license   MIT
description        What it does

Weights and constants
Dtype    Tensors  Bytes   MiB
──────────────────────────────
float32        1     16  0.00

Largest tensors
Tensor  Dtype    Bytes
───────────────────────
w       float32     16
  [2, 2]

Operators
Operator                 Count
───────────────────────────────
mine.Twist                   2
com.microsoft.FusedGelu      1
MatMul                       1
Neg                          1
Relu                         1
local.f                      1

"""
    )


def test_long_metadata_are_cut() -> None:
    model = proto("g () => () {}")
    model.metadata_props.add(key="notes", value="n" * 1234)
    rendered = " ".join(summary(Model.from_proto(model)).to_text(width=400).split())
    assert f"metadata notes {'n' * 200}... (1,234 characters)" in rendered


@pytest.mark.parametrize(
    ("name", "file", "megabytes"),
    [
        ("gemma-270m/model", "model.weights", 1743),
        ("detr-resnet-50/model_quantized", "model_quantized.weights", 41),
        ("nllb-600m/decoder_model_merged", "decoder_model_merged.weights", None),
    ],
)
def test_a_missing_data_file_is_named(name: str, file: str, megabytes: int | None, real_model: RealModel) -> None:
    found = summary(real_model(name))
    assert found.data_files == (DataFileRow(file, None),)
    assert found.findings() == (
        f"The data file '{file}' is missing: the model cannot run, and its weights cannot be read.",
    )
    assert megabytes is None or found.total_weight_bytes // 10**6 == megabytes


def test_a_data_file_that_is_there_has_a_size(tmp_path: Path) -> None:
    path = saved(tmp_path, {"w": np.zeros((16, 16), np.float32)}, location="w.bin")
    assert summary(load(path)).data_files == (DataFileRow("w.bin", 1024),)


@pytest.mark.parametrize(
    ("name", "styles"),
    [
        (
            "detr-resnet-50/model_quantized",
            ("dynamic (DynamicQuantizeLinear 127)", "integer operators (MatMulInteger 100, ConvInteger 54)"),
        ),
        ("vit-qdq/model", ("QDQ (DequantizeLinear 167, QuantizeLinear 109)",)),
        ("llama-int4/model", ("block-quantised (com.microsoft.MatMulNBits 11)",)),
        ("gemma-270m/model", ()),
        ("bert-fill-mask/model", ()),
    ],
)
def test_the_quantisation_of_a_real_model(name: str, styles: tuple[str, ...], real_model: RealModel) -> None:
    assert summary(real_model(name)).quantization == styles


def test_every_operator_on_quantised_integers_counts() -> None:
    model = proto("g (uint8[N] x) => (y) { y = com.microsoft.QLinearAdd(x, s, z, x, s, z, s, z) }")
    found = summary(Model.from_proto(model)).quantization
    assert found == ("integer operators (com.microsoft.QLinearAdd 1)",)


def test_dynamic_quantisation_in_branches_is_found(real_model: RealModel) -> None:
    found = summary(real_model("nllb-tiny/decoder_model_merged_quantized")).quantization
    assert {"dynamic (DynamicQuantizeLinear 147)", "integer operators (MatMulInteger 218)"} <= set(found)


def test_sizes_of_a_real_model(model_file: Callable[[str], Path]) -> None:
    path = model_file("bert-fill-mask/model")
    found = summary(load(path))
    assert (found.file, found.file_bytes) == ("model.onnx", path.stat().st_size)
    assert found.graph_bytes < found.file_bytes


def test_contrib_operators_of_a_real_model(real_model: RealModel) -> None:
    assert summary(real_model("llama-int4/model")).contrib == (
        OperatorCount("MatMulNBits", "com.microsoft", 11),
        OperatorCount("SkipSimplifiedLayerNormalization", "com.microsoft", 4),
        OperatorCount("GroupQueryAttention", "com.microsoft", 2),
    )


def saved(folder: Path, weights: dict[str, np.ndarray], location: str | None = None) -> Path:
    """Write a model with these weights, into one external file where asked."""
    tensors = [onnx.numpy_helper.from_array(array, name) for name, array in weights.items()]
    model = helper.make_model(helper.make_graph([], "g", [], [], tensors))
    path = folder / "model.onnx"
    onnx.save(model, path, save_as_external_data=location is not None, location=location, size_threshold=0)
    return path


ONES, ZEROS = np.ones((16, 16), np.float32), np.zeros((16, 16), np.float32)


def test_tied_weights_are_not_looked_for_unasked(tmp_path: Path) -> None:
    assert summary(load(saved(tmp_path, {"a": ONES, "b": ONES}))).tied is None


@pytest.mark.parametrize("location", [None, "w.bin"])
def test_tied_weights_are_those_with_the_same_bytes(tmp_path: Path, location: str | None) -> None:
    path = saved(tmp_path, {"a": ONES, "b": ZEROS, "c": ONES, "d": ONES.reshape(-1)}, location)
    assert summary(load(path), hash_weights=True).tied == (TiedTensors(("a", "c", "d"), 1024),)


def test_the_largest_tied_weights_come_first(tmp_path: Path) -> None:
    larger = np.ones((32, 32), np.float32)
    path = saved(tmp_path, {"a": ONES, "b": ONES, "c": larger, "d": larger})
    tied = summary(load(path), hash_weights=True).tied
    assert tied == (TiedTensors(("c", "d"), 4096), TiedTensors(("a", "b"), 1024))


def test_tied_weights_as_text(tmp_path: Path) -> None:
    rendered = summary(load(saved(tmp_path, {"a": ONES, "b": ONES})), hash_weights=True).to_text()
    assert rendered.endswith(
        """\
Tied tensors
Same bytes  Bytes each
───────────────────────
a = b            1,024

"""
    )


def test_no_tied_weights_as_text(tmp_path: Path) -> None:
    rendered = summary(load(saved(tmp_path, {"a": ONES, "b": ZEROS})), hash_weights=True).to_text()
    assert rendered.endswith("\nNo two large tensors have the same bytes.\n\n")


@pytest.fixture(scope="module")
def head_of_embedding(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A model with an embedding, its transpose, one that differs in one element, and two constants, 1.2 MB each."""
    table = np.random.default_rng(0).standard_normal((600, 500)).astype(np.float32)
    other, zeros = table.T.copy(), np.zeros((600, 500), np.float32)
    other[0, 0] += 1
    arrays = {"embed": table, "head": np.ascontiguousarray(table.T), "other": other, "a": zeros, "b": zeros}
    return saved(tmp_path_factory.mktemp("tied"), arrays, "w.bin")


def test_a_transposed_weight_is_found_by_a_few_elements_and_known_by_all(head_of_embedding: Path) -> None:
    found = [one for one in summary(load(head_of_embedding)).found() if one.kind == "stored-twice"]
    assert [(one.where, one.count, one.is_fault) for one in found] == [
        ("2.4 MB, 'embed' as transposed 'head'", 2, False)  # zeros say nothing
    ]
    assert "which takes 2.4 MB (as far as 64 of its elements tell; --hash reads all)." in found[0].text
    (sure,) = (one for one in summary(load(head_of_embedding), hash_weights=True).found() if one.kind == "stored-twice")
    assert (sure.where, sure.count) == ("1.2 MB, 'embed' as transposed 'head'", 1)
    assert sure.text == "The weight 'embed' is stored again as transposed 'head', which takes 1.2 MB."


def test_nothing_is_said_of_weights_that_are_not_there(head_of_embedding: Path, tmp_path: Path) -> None:
    (tmp_path / "model.onnx").write_bytes(head_of_embedding.read_bytes())
    assert [one.kind for one in summary(load(tmp_path / "model.onnx")).found()] == ["missing-data"]


def test_weights_that_are_missing_cannot_be_compared(real_model: RealModel) -> None:
    with pytest.raises(ModelError, match="its data file is missing"):
        summary(real_model("gemma-270m/model"), hash_weights=True)


def test_weights_without_others_of_their_size_are_not_read(tmp_path: Path) -> None:
    path = saved(tmp_path, {"a": ONES, "b": np.ones((32, 32), np.float32)}, "w.bin")
    (tmp_path / "w.bin").unlink()
    assert summary(load(path), hash_weights=True).tied == ()


def test_problems_of_the_graph_are_findings() -> None:
    assert summed("g (float[N] x) => (y) { a = Add(x, p)  y = Add(a, q) }").findings() == (
        "The graph is not valid: 'p' is used but never defined before (and 1 more).",
    )


@pytest.mark.parametrize("operator", ["Erfc", "Swish"])  # of no opset, and of a later one
def test_an_operator_that_an_opset_lacks_is_a_finding(operator: str) -> None:
    (finding,) = summed(f"g (float[N] x) => (float[N] y) {{ a = {operator} (x)  y = {operator} (a) }}").found()
    assert finding.kind == "invalid-graph"
    assert str(finding) == (
        f"The graph is not valid: 2 nodes of '{operator}', which opset 17 has not, so no runtime loads it - look at "
        "what its exporter said of them."
    )


WRONG_DTYPES = {
    "a = Cast <to = 10> (x) y = Add (a, x)": "Add 'Add#1' reads float16 and float32 where both must be one",
    "b = Cast <to = 7> (x) y = Concat <axis = 0> (x, b)":
        "Concat 'Concat#1' reads float32 and int64 where both must be one",
    "a = Cast <to = 7> (x) b = Sqrt (a) y = Sqrt (b)": "Sqrt 'Sqrt#1' reads int64",
    "y = Where (x, x, x)": "Where 'Where#0' reads float32",
}  # fmt: skip


@pytest.mark.parametrize("body", WRONG_DTYPES)
def test_dtypes_that_an_operator_does_not_take_are_a_finding(body: str) -> None:
    found = summed(f"g (float[N] x) => (y) {{ {body} }}").found()
    assert [(one.kind, str(one)) for one in found] == [
        (
            "invalid-graph",
            f"The graph is not valid: {WRONG_DTYPES[body]}, so no runtime loads it - a Cast before it would do.",
        )
    ]


DTYPES = {
    "an exponent": "a = Cast <to = 7> (x) y = Pow (x, a)",
    "a custom operator": "a = Cast <to = 10> (x) y = custom.Add (a, x)",
    "the state of a loop": """
        l, y = Loop (three, true, n, x) <body = b (int64 i, bool c, int64 s, float[N] t) =>
            (bool d, int64 u, float[N] v) { d = Identity (c) u = Add (s, i) v = Neg (t) }>""",
    "without a dtype": "a = custom.What (x) y = Add (a, x)",
}


@pytest.mark.parametrize("body", DTYPES.values(), ids=DTYPES)
def test_dtypes_that_an_operator_takes_are_no_finding(body: str) -> None:
    constants = "int64 three = {3}, bool true = {1}, int64 n = {0}"
    assert summed(f"g (float[N] x) => (y) <{constants}> {{ {body} }}").findings() == ()


@pytest.mark.parametrize("operator", ["SimplifiedLayerNormalization", "EfficientNMS_TRT", "com.microsoft.Gelu"])
def test_operators_that_runtimes_add_are_no_finding(operator: str) -> None:
    assert summed(f"g (float[N] x, float[N] s) => (float[N] y) {{ y = {operator} (x, s) }}").findings() == ()


def test_problems_of_a_body_say_where() -> None:
    graph = "g (bool c) => (y) { [pick] y = If (c) <then_branch = t () => (float[1] a) { a = Relu(ghost) }, "
    graph += "else_branch = e () => (float[1] b) { b = Constant<value = float[1] {1}>() }> }"
    assert summed(graph).findings() == (
        "The graph is not valid in pick/then_branch: 'ghost' is used but never defined before.",
    )


def test_a_sound_model_has_no_findings() -> None:
    assert full().findings() == ()


@pytest.mark.parametrize(("string", "shown"), [("plain", "plain"), (b"ok", "ok"), (b"\xffab", "\\xffab")])
def test_text_that_is_not_utf8_is_written_out(string: str | bytes, shown: str) -> None:
    assert as_text(string) == shown


PLACEHOLDERS = {
    "producer_name": "PPPP",
    "producer_version": "VVVV",
    "domain": "DDDD",
    "doc_string": "SSSS",
}


def corrupted(letter: str) -> Model:
    """Return a model in which four letters are bytes that are not UTF-8."""
    model = proto("g () => () <float[1] w = {1}> {}")
    for field, placeholder in PLACEHOLDERS.items():
        setattr(model, field, placeholder)
    model.metadata_props.add(key="KKKK", value="MMMM")
    raw = model.SerializeToString().replace(letter.encode() * 4, b"\xffbad")
    return Model.from_proto(onnx.ModelProto.FromString(raw))


@pytest.mark.parametrize("letter", "PVDSKM")
def test_strings_of_a_model_that_are_not_utf8_are_written_out(letter: str) -> None:
    assert "\\xffbad" in summary(corrupted(letter)).to_text()


@pytest.mark.parametrize("letter", "PVDSKM")
def test_strings_of_a_model_that_are_not_utf8_fit_into_json(letter: str) -> None:
    assert r"\\xffbad" in summary(corrupted(letter)).to_json()
