"""Products of floats against quantised ones, on data that is rounded alike: what holds, and what is caught."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

import numpy as np
import onnx
import pytest
from onnx import numpy_helper
from quantised import MERGED
from quantised import quantised as export_of
from rewriting import model_of

from graphkit import examples
from graphkit.graph.view import all_nodes
from graphkit.model import Model, load
from graphkit.options import RewriteOptions, RewriteProofOptions
from graphkit.passes.npu.change_dtypes import Dequantize
from graphkit.rewrite import Outcome
from graphkit.verify.quantized_rounding import TOLERANCE, as_rounded
from graphkit.verify.rewrite_proof import RewriteProof
from graphkit.verify.rewrite_verifier import verify_rewrite
from graphkit.workflows.rewrite_file import rewrite_file

OUTPUTS = ["y", "data/x", "data/h", "data/original/x", "data/original/h"]
RNG = np.random.default_rng(3)
WEIGHT = RNG.integers(-64, 65, (16, 16)).astype(np.int8)  # 7 bits: exact on processors that add products in 16 bits too
COLUMNS = RNG.integers(-5, 5, 16).astype(np.int8)
SCALES = (RNG.uniform(0.5, 1.5, 16) / 400).astype(np.float32)
LAYER = """
    q{n}, s{n}, z{n} = DynamicQuantizeLinear ({x})
    i{n} = MatMulInteger (q{n}, w, z{n}, wz) f{n} = Cast <to = 1> (i{n}) k{n} = Mul (s{n}, ws)
    p{n} = Mul (f{n}, k{n}) b{n} = Add (p{n}, bias)"""
DYNAMIC = f"{LAYER.format(n=1, x='x')} h = Tanh (b1) {LAYER.format(n=2, x='h')} y = Sigmoid (b2)"
QDQ = """
    q = QuantizeLinear (x, s, z) d = DequantizeLinear (q, s, z) v = DequantizeLinear <axis = 1> (w, ws, wz)
    p = MatMul (d, v) h = Tanh (p) r = QuantizeLinear (h, s, z) e = DequantizeLinear (r, s, z)
    o = MatMul (e, v) y = Add (o, bias)"""


def quantised(nodes: str = DYNAMIC, head: str = "(float[N, 16] x) => (y)", *, weight: np.ndarray = WEIGHT) -> Model:
    return model_of(
        f"g {head} {{ {nodes} }}",
        w=weight, wz=COLUMNS, ws=SCALES, bias=RNG.uniform(-1, 1, 16).astype(np.float32),
        s=np.float32(0.1), t=np.float32(0.2), z=np.uint8(9),
    )  # fmt: skip


def proof(original: Model, rewritten: Model) -> RewriteProof:
    two = as_rounded(original, rewritten)
    assert not isinstance(two, str)
    return verify_rewrite(*two, options=RewriteProofOptions(tolerance=TOLERANCE, of_magnitude=True))


@pytest.mark.cases("static")
@pytest.mark.usefixtures("runs_alone")
@pytest.mark.parametrize("nodes", [DYNAMIC, QDQ], ids=["dynamic", "static"])
def test_products_on_rounded_data_are_equal_within_the_rounding_of_floats(nodes: str) -> None:
    model = quantised(nodes)
    found = proof(model, Dequantize(qdq=True).run(model).model)
    assert found.passed
    assert [output.name for output in found.outputs] == OUTPUTS


def test_a_contributed_product_rounds_its_own_data() -> None:
    domain = "com.microsoft"
    model = quantised("p = Tanh (x) y = Identity (p)")
    proto = onnx.ModelProto.FromString(model.proto.SerializeToString())
    node = onnx.helper.make_node("DynamicQuantizeMatMul", ["p", "w", "ws", "wz", "bias"], ["y"], domain=domain)
    proto.graph.node[1].CopyFrom(node)
    proto.opset_import.append(onnx.helper.make_opsetid(domain, 1))
    model = Model.from_proto(proto)
    found = proof(model, Dequantize().run(model).model)
    assert found.passed
    assert [output.name for output in found.outputs] == ["y", "data/p", "data/original/p"]


Fault = Callable[[Model, onnx.GraphProto], None]


def weights(change: Callable[[np.ndarray], None]) -> Fault:
    def edit(model: Model, graph: onnx.GraphProto) -> None:
        tensor = next(each for each in graph.initializer if each.name == "w_float")
        array = model.array(tensor).copy()
        change(array)
        tensor.CopyFrom(numpy_helper.from_array(array, tensor.name))

    return edit


def operator(output: str, op_type: str) -> Fault:
    def edit(_: Model, graph: onnx.GraphProto) -> None:
        next(node for node in graph.node if output in node.output).op_type = op_type

    return edit


def faulty(model: Model, fault: Fault) -> Model:
    """Return a quantised model with products of floats, and a fault in it."""
    rewritten = Dequantize().run(model).model
    proto = onnx.ModelProto()
    proto.CopyFrom(rewritten.proto)
    fault(rewritten, proto.graph)
    return rewritten.with_proto(proto)


def _one_percent(array: np.ndarray) -> None:
    array[:, 3] *= 1.01


def _zero_point(array: np.ndarray) -> None:
    array[:, 5] += SCALES[5]


def _element(array: np.ndarray) -> None:
    array[7, 7] += 2 * SCALES[7]


FAULTS = {
    "a scale is off by 1 %": weights(_one_percent),
    "a zero point is off by one": weights(_zero_point),
    "an element is off by two": weights(_element),
    "another operator between products": operator("h", "Softsign"),
    "another operator behind them": operator("y", "HardSigmoid"),
}


@pytest.mark.cases("another operator between products")
@pytest.mark.parametrize("fault", FAULTS.values(), ids=FAULTS)
def test_faults_are_caught(fault: Fault) -> None:
    model = quantised()
    assert not proof(model, faulty(model, fault)).passed


def test_a_comparison_as_a_whole_misses_such_faults() -> None:
    model = quantised()
    rewritten = faulty(model, weights(_one_percent))
    assert verify_rewrite(model, rewritten, options=RewriteProofOptions(tolerance=0.1, of_magnitude=True)).passed


def test_what_cannot_be_taken_apart_is_said() -> None:
    body = (
        "y = If (p) <then_branch = t () => (float[N, 16] u) { u = Neg (x) }, else_branch = e () => (v) { v = Abs (x) }>"
    )
    model = quantised(body, "(float[N, 16] x, bool p) => (y)")
    assert as_rounded(model, model) == "bodies or functions, in which products cannot be taken apart"
    model = quantised(QDQ.replace("(h, s, z)", "(x, t, z)").replace("(r, s, z)", "(r, t, z)"))
    assert as_rounded(model, Dequantize(qdq=True).run(model).model) == "'x' is rounded in two ways"


@pytest.fixture(scope="module")
def merged(tmp_path_factory: pytest.TempPathFactory) -> Model:
    """Return a merged decoder whose products are of integers, in both branches."""
    folder = tmp_path_factory.mktemp("merged")
    (folder / "float").mkdir()
    (folder / "float" / MERGED).write_bytes((Path(examples.__file__).parent / "merged-decoder.onnx").read_bytes())
    made = load(export_of("dynamic uint8", folder / "float", folder / "uint8") / MERGED)
    assert sum(node.op_type == "MatMulInteger" for node in all_nodes(made.scopes)) > 2
    return made


@pytest.mark.slow
def test_both_branches_of_a_merged_decoder_are_proven(merged: Model, tmp_path: Path) -> None:
    report = rewrite_file(merged, tmp_path / "out.onnx", "dequantize")
    assert report.proof is not None
    assert report.proof.passed
    assert report.proof.tolerance == TOLERANCE
    flags = [run.flags["use_cache_branch"] for run in report.proof.runs]
    assert flags == sorted(flags)
    assert set(flags) == {False, True}
    names = {output.name for output in report.proof.outputs}
    assert {"logits (use_cache_branch=false)", "logits (use_cache_branch=true)"} <= names


@pytest.mark.slow
@pytest.mark.parametrize(("branch", "number"), [("then_branch", 1.01), ("else_branch", 1 - 1e-3)])
def test_a_fault_in_a_branch_is_caught(
    branch: str, number: float, merged: Model, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    """The last product of floats is off, in the model in memory and in the file."""
    run = Dequantize.run

    def faulty_run(self: Dequantize, model: Model) -> Outcome:
        outcome = run(self, model)
        proto = outcome.model.proto
        (decider,) = (node for node in proto.graph.node if node.op_type == "If")
        (body,) = (each.g for each in decider.attribute if each.name == branch)
        at, node = [(at, node) for at, node in enumerate(body.node) if node.op_type == "MatMul"][-1]
        off = onnx.helper.make_node("Mul", [f"{node.output[0]}_right", "off"], [node.output[0]])
        node.output[0] = off.input[0]
        body.node.insert(at + 1, off)
        proto.graph.initializer.append(numpy_helper.from_array(np.float32(number), "off"))
        return replace(outcome, model=outcome.model.with_proto(proto))

    monkeypatch.setattr(Dequantize, "run", faulty_run)
    report = rewrite_file(merged, tmp_path / "out.onnx", "dequantize")
    assert report.proof is not None
    assert not report.proof.passed
    failing = {run.flags["use_cache_branch"] for run in report.proof.runs if run.failure}
    assert len(failing) == 1
    assert report.failures == ()


FUNCTIONS = """
<ir_version: 8, opset_import: ["" : 18, "local" : 1]>
g (float[N, 16] x) => (float[N, 16] y)
<int8 wz = {0}, float ws = {0.002}> {
    h = local.same (x)
    q, s, z = DynamicQuantizeLinear (h) i = MatMulInteger (q, m, z, wz)
    f = Cast <to = 1> (i) k = Mul (s, ws) y = Mul (f, k)
}
<domain: "local", opset_import: ["" : 18]> same (a) => (b) { b = Tanh (a) }
"""


def test_nothing_is_proven_where_no_bound_is_known(tmp_path: Path) -> None:
    proto = onnx.parser.parse_model(FUNCTIONS)
    proto.graph.initializer.append(numpy_helper.from_array(WEIGHT, "m"))
    model = Model.from_proto(proto)
    report = rewrite_file(model, tmp_path / "out.onnx", "dequantize")
    assert report.proof is None
    assert report.unproven.startswith("the model has bodies or functions, in which products cannot be taken apart")
    assert report.unproven.endswith("give --tolerance to compare them as a whole")
    told = rewrite_file(model, tmp_path / "told.onnx", "dequantize", RewriteOptions(tolerance=0.1))
    assert told.proof is not None
    assert told.proof.passed


def test_nor_where_other_passes_change_the_model_too(tmp_path: Path) -> None:
    model = quantised(DYNAMIC.replace("h = Tanh (b1)", "same = Identity (b1) h = Tanh (same)"))
    report = rewrite_file(model, tmp_path / "out.onnx", "dequantize,eliminate-identity")
    assert report.unproven.startswith("other passes changed the model beside the one that takes roundings away")


def test_a_rewrite_proves_products_and_measures_roundings(tmp_path: Path) -> None:
    model = quantised()
    report = rewrite_file(model, tmp_path / "out.onnx", "dequantize")
    assert report.proof is not None
    assert report.proof.passed
    assert report.proof.tolerance == TOLERANCE
    assert [output.name for output in report.proof.outputs] == OUTPUTS
    (note,) = report.notes
    assert "results differ from those of the original by up to 0.00" in note


def test_a_tolerance_that_is_given_is_that_of_the_whole(tmp_path: Path) -> None:
    report = rewrite_file(quantised(), tmp_path / "out.onnx", "dequantize", RewriteOptions(tolerance=0.5))
    assert report.proof is not None
    assert [output.name for output in report.proof.outputs] == ["y"]


@pytest.mark.slow
def test_the_products_of_a_vision_model_are_proven_bit_for_bit(
    model_file: Callable[[str], Path], tmp_path: Path
) -> None:
    report = rewrite_file(model_file("vit-qdq/model"), tmp_path / "out.onnx", "dequantize{qdq=true}")
    assert report.proof is not None
    assert report.proof.passed
    assert report.proof.equivalence.is_exact
