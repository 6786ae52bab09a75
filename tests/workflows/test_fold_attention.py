"""`fold --fuse` on a file with attentions: what it writes, what the proof finds, and what others make of the file."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import onnx
import onnx.inliner
import pytest
from attentions import PLAIN, attention
from fusing import operators
from onnx import numpy_helper
from sessions import run

from graphkit.deploy.lower import lower_folder
from graphkit.model import Model, load
from graphkit.options import FoldingOptions, LowerOptions, RewriteProofOptions
from graphkit.passes.control_flow.inline_functions import InlineFunctions
from graphkit.passes.fold_pipeline import fold
from graphkit.rewrite.base import Declined, Outcome
from graphkit.shapes import DimSpec
from graphkit.verify import verify_rewrite
from graphkit.workflows.fold_file import FoldOptions, fold_file

SAYS = "fuse-attention: 1 attention fused: onnxruntime has a kernel for the node, other runtimes inline its function"


@pytest.fixture
def file(tmp_path: Path) -> Path:
    """Write an attention whose shapes are computed at run time."""
    body = PLAIN.replace("heads)", "computed)") + "r = Relu (y)"
    sizes = "d = Shape <end = 2> (x) computed = Concat <axis = 0> (d, size) "
    path = tmp_path / "m.onnx"
    onnx.save(attention(sizes + body, head="g (float[N, S, 6] x) => (r)", size=[2, 4]).proto, path)
    return path


def test_a_file_is_fused_and_proven(file: Path) -> None:
    out = file.with_name("out.onnx")
    report = fold_file(file, out, FoldOptions(fuse=True))
    assert report.proof is not None
    assert report.proof.passed
    assert operators(load(out)) == ["Attention", "Relu"]
    assert SAYS in report.changes
    counts = {row.op: (row.before, row.after) for row in report.counts}
    assert counts["all nodes"] == (18, 2)
    assert counts["nodes that compute shapes"] == (2, 0)
    assert counts["nodes of functions"] == (0, len(load(out).proto.functions[0].node))
    again = fold(load(out), options=FoldingOptions(fuse=True))
    assert not again.changes
    assert not again.declined


def test_without_asking_nothing_is_fused(file: Path) -> None:
    assert "Attention" not in operators(fold(load(file)).model)


def fault(proto: onnx.ModelProto, name: str) -> None:
    """Put a mistake into a fused model."""
    (node,) = (node for node in proto.graph.node if node.op_type == "Attention")
    weight = next(tensor for tensor in proto.graph.initializer if tensor.name == node.input[1])
    columns = np.split(numpy_helper.to_array(weight), 3, axis=1)
    if name == "scale":
        next(attribute for attribute in node.attribute if attribute.name == "scale").f *= 1.1
    elif name == "heads":
        next(attribute for attribute in node.attribute if attribute.name == "num_heads").i = 4
    else:
        order = [0, 2, 1] if name == "keys for values" else [1, 0, 2]
        swapped = np.concatenate([columns[index] for index in order], axis=1)
        weight.CopyFrom(numpy_helper.from_array(swapped, weight.name))


@pytest.mark.cases("heads")
@pytest.mark.parametrize("name", ["scale", "heads", "keys for values"])
def test_the_proof_finds_a_mistake(file: Path, name: str) -> None:
    proto = fold(load(file), options=FoldingOptions(fuse=True)).model.restore()
    spec = DimSpec.of({"N": 2, "S": 3})
    assert verify_rewrite(
        file, Model.from_proto(proto), spec, RewriteProofOptions(tolerance=1e-5, of_magnitude=True)
    ).passed
    fault(proto, name)
    assert not verify_rewrite(
        file, Model.from_proto(proto), spec, RewriteProofOptions(tolerance=1e-5, of_magnitude=True)
    ).passed


def test_the_proof_runs_the_function_too(file: Path) -> None:
    """onnxruntime runs its kernel, whatever the function says; others run the function."""
    proto = fold(load(file), options=FoldingOptions(fuse=True)).model.restore()
    spec = DimSpec.of({"N": 2, "S": 3})
    proof = verify_rewrite(file, Model.from_proto(proto), spec, RewriteProofOptions(tolerance=1e-5, of_magnitude=True))
    assert proof.notes[-1].startswith("With its functions inlined, as other runtimes run it, outputs ")
    softmax = next(node for node in proto.functions[0].node if node.op_type == "Softmax")
    softmax.attribute[0].i = 1
    proof = verify_rewrite(file, Model.from_proto(proto), spec, RewriteProofOptions(tolerance=1e-5, of_magnitude=True))
    (failure,) = proof.failures
    assert failure.startswith("with its functions inlined, as other runtimes run it: 4 of 4 runs differ, the first at ")


def test_functions_of_the_original_are_its_own(file: Path) -> None:
    """What onnxruntime has kernels for is what its users get, whatever a function of that name says."""
    proto = fold(load(file), options=FoldingOptions(fuse=True)).model.restore()
    softmax = next(node for node in proto.functions[0].node if node.op_type == "Softmax")
    softmax.attribute[0].i = 1
    original = Model.from_proto(proto)
    proof = verify_rewrite(original, Model.from_proto(proto), DimSpec.of({"N": 2, "S": 3}))
    assert proof.passed
    assert not any("inlined" in note for note in proof.notes)


def test_functions_that_cannot_be_inlined_are_not_proven(file: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    rewritten = fold(load(file), options=FoldingOptions(fuse=True)).model
    said = (Declined("function Attention", "it needs another version"),)
    monkeypatch.setattr(InlineFunctions, "run", lambda _, model: Outcome(model, (), said))
    proof = verify_rewrite(
        file, rewritten, DimSpec.of({"N": 2, "S": 3}), RewriteProofOptions(tolerance=1e-5, of_magnitude=True)
    )
    assert proof.failures == (
        "its functions cannot be inlined, as other runtimes do: function Attention: it needs another version",
    )


def test_other_tools_inline_the_function(file: Path) -> None:
    proto = fold(load(file), options=FoldingOptions(fuse=True)).model.restore()
    inlined = onnx.inliner.inline_local_functions(proto)
    assert {node.domain for node in inlined.graph.node} == {""}
    x = np.random.default_rng(0).standard_normal((2, 3, 6)).astype(np.float32)
    (one,), (two,) = (run(Model.from_proto(each), {"x": x}) for each in (onnx.load(file), inlined))
    np.testing.assert_allclose(one, two, rtol=0, atol=1e-6)


def test_a_fused_model_is_lowered(file: Path, tmp_path: Path) -> None:
    out = file.with_name("out.onnx")
    fold_file(file, out, FoldOptions(spec=DimSpec.of({"N": 1, "S": 3}), fuse=True, verify=False))
    (lowered,) = lower_folder(out, tmp_path / "lowered", LowerOptions(target="generic-npu", verify=False)).files
    assert not lowered.blockers.blockers
    assert "inline-functions: 1 call of function 'Attention' inlined" in lowered.changes
