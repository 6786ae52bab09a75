"""Products of floats against quantised ones, on data that is rounded alike: what holds, and what is caught."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import numpy as np
import onnx
import pytest
from onnx import numpy_helper
from rewriting import model_of

from graphkit.model import Model
from graphkit.options import RewriteOptions, RewriteProofOptions
from graphkit.passes.npu.dequantize import Dequantize
from graphkit.verify.quantized_rounding import TOLERANCE, as_rounded
from graphkit.verify.rewrite_proof import RewriteProof
from graphkit.verify.rewrite_verifier import verify_rewrite
from graphkit.workflows.rewrite_file import rewrite_file

OUTPUTS = ["y", "data/x", "data/h", "data/original/x", "data/original/h"]
RNG = np.random.default_rng(3)
WEIGHT = RNG.integers(-100, 100, (16, 16)).astype(np.int8)
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


def quantised(nodes: str = DYNAMIC, head: str = "(float[N, 16] x) => (y)") -> Model:
    return model_of(
        f"g {head} {{ {nodes} }}",
        w=WEIGHT, wz=COLUMNS, ws=SCALES, bias=RNG.uniform(-1, 1, 16).astype(np.float32),
        s=np.float32(0.1), t=np.float32(0.2), z=np.uint8(9),
    )  # fmt: skip


def proof(original: Model, rewritten: Model) -> RewriteProof:
    two = as_rounded(original, rewritten)
    assert not isinstance(two, str)
    return verify_rewrite(*two, options=RewriteProofOptions(tolerance=TOLERANCE, of_magnitude=True))


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
def test_a_vision_model_is_proven_at_the_default_level_too(model_file: Callable[[str], Path], tmp_path: Path) -> None:
    """There onnxruntime makes integer kernels of the original's nodes, in both models the same ones."""
    report = rewrite_file(model_file("vit-qdq/model"), tmp_path / "out.onnx", "dequantize{qdq=true}")
    assert report.proof is not None
    assert report.proof.passed
    assert report.proof.level.scaled is not None
    assert report.proof.level.scaled < TOLERANCE
