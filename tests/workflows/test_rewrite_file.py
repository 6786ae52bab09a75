"""Rewriting a file by passes: what is written is proven, and what cannot be proven is said."""

from __future__ import annotations

import json
from dataclasses import dataclass
from pathlib import Path
from typing import ClassVar

import numpy as np
import onnx
import pytest
from onnx import parser

from graphkit.errors import OutputError
from graphkit.model import Model, load
from graphkit.options import RewriteOptions
from graphkit.passes.control_flow.inline_constant_if import SpecializeInput
from graphkit.rewrite.base import Outcome, Pass, Premise, copy_proto
from graphkit.rewrite.editor import Editor
from graphkit.rewrite.edits import NewNode
from graphkit.rewrite.fixpoint import Rewrite
from graphkit.shapes import DimSpec
from graphkit.workflows.rewrite_file import RewriteReport, rewrite_file

TEXT = """
<ir_version: 8, opset_import: ["" : 17]>
g (float[N, 4] x, bool flag) => (float[N, 4] y, float[0] empty) <float two = {2}, float[0] empty = {}> {
    [chosen] a = If (flag) <
        then_branch = t () => (float[N, 4] b) { b = Neg (x) },
        else_branch = e () => (float[N, 4] b) { b = Abs (x) }
    >
    [square] y = Pow (a, two)
}
"""
REPORT = """\
Rewrite of m.onnx

pow-to-mul: 4 -> 4 nodes.
! not proven: the proof was not run

Wrote out.onnx.

Op         Before  After  Change
─────────────────────────────────
Mul             0      1      +1
Pow             1      0      -1
all nodes       4      4       0

What was done

Pass        Change
──────────────────────────────────
pow-to-mul  1 Pow spelled as Muls

Proof

Warning: Not run: the file is unverified. `graphkit verify` runs it.

Costs before and after

Costs at N 1
Cost                         Before  After  Ratio
──────────────────────────────────────────────────
file and weights              297 B  280 B   0.94
nodes                             4      4   1.00
multiply-accumulates (MACs)       0      0
peak memory of activations     32 B   32 B   1.00

"""


@pytest.fixture
def source(tmp_path: Path) -> Path:
    path = tmp_path / "m.onnx"
    onnx.save(parser.parse_model(TEXT), path)
    return path


def rewritten(source: Path, passes: str | list[Pass], options: RewriteOptions = RewriteOptions()) -> RewriteReport:
    return rewrite_file(source, source.with_name("out.onnx"), passes, options)


@dataclass(frozen=True)
class PowToSum(Rewrite):
    """A pass that is wrong, and says nothing of what it does."""

    def edit(self, editor: Editor) -> None:
        for node in editor.nodes("Pow"):
            editor.replace(node, NewNode("Add", [node.inputs[0], node.inputs[0]], [node.outputs[0].name]))


@dataclass(frozen=True)
class NegToScale(Rewrite):
    """A pass that is off by a little, and says so."""

    largest_error: ClassVar[float] = 1e-3

    def edit(self, editor: Editor) -> None:
        for node in editor.nodes("Neg"):
            scale = editor.constant(np.array(-1.0001, np.float32), "scale")
            editor.replace(node, NewNode("Mul", [*node.inputs, scale], [node.outputs[0].name]))


@dataclass(frozen=True)
class Rename(Pass):
    """Give an input or an output another name."""

    old: str

    def run(self, model: Model) -> Outcome:
        proto = copy_proto(model)
        for names in (*(node.input for node in proto.graph.node), *(node.output for node in proto.graph.node)):
            names[:] = ["new" if name == self.old else name for name in names]
        for node in proto.graph.node:
            for attribute in node.attribute:
                for inner in attribute.g.node:
                    inner.input[:] = ["new" if name == self.old else name for name in inner.input]
        for info in (*proto.graph.input, *proto.graph.output):
            info.name = "new" if info.name == self.old else info.name
        return Outcome(model.with_proto(proto))


@dataclass(frozen=True)
class RenameOnPurpose(Rename):
    changes_interface: ClassVar[bool] = True


@dataclass(frozen=True)
class OnlyPositive(Pass):
    """Drop the input, as if it were always true."""

    def premise(self) -> Premise:
        return Premise(values={"flag": True})

    def run(self, model: Model) -> Outcome:
        return SpecializeInput("flag", True).run(model)


def test_the_report(source: Path) -> None:
    report = rewritten(source, "pow-to-mul", RewriteOptions(verify=False))
    assert report.to_text() == REPORT
    assert json.loads(report.to_json())["passes"] == ["pow-to-mul"]


def test_what_is_written_is_proven(source: Path) -> None:
    report = rewritten(source, "pow-to-mul,eliminate-dead-code")
    assert report.proof is not None
    assert (report.proof.passed, report.findings(), report.unproven) == (True, (), "")
    assert {run.flags["flag"] for run in report.proof.runs} == {False, True}
    assert "Pow" not in {node.op_type for node in onnx.load(source.with_name("out.onnx")).graph.node}


def test_a_pass_that_is_wrong_is_found(source: Path) -> None:
    report = rewritten(source, [PowToSum()])
    assert report.proof is not None
    assert (report.proof.passed, report.changes) == (False, ("pow-to-sum: the model is another",))
    assert "runs differ" in report.findings()[0]


def test_a_premise_holds_in_the_proof(source: Path) -> None:
    report = rewritten(source, "specialize-input{input=flag,value=true},freeze-dims{dims=N=3}")
    assert report.proof is not None
    assert report.proof.passed
    assert report.proof.fixed == {"N": 3}
    assert [run.flags for run in report.proof.runs] == [{"flag": True}] * len(report.proof.runs)


def test_without_its_premise_the_same_rewrite_fails(source: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    assert rewritten(source, [OnlyPositive()]).findings() == ()
    proto = onnx.load(source)
    proto.graph.node[0].attribute[0].g.node[0].op_type = "Exp"
    onnx.save(proto, source)
    assert rewritten(source, [OnlyPositive()], RewriteOptions(overwrite=True)).findings() == ()
    monkeypatch.setattr(OnlyPositive, "premise", Pass.premise)
    assert "runs differ" in rewritten(source, [OnlyPositive()], RewriteOptions(overwrite=True)).findings()[0]


def test_a_pass_may_be_off_by_its_largest_error(source: Path) -> None:
    report = rewritten(source, [NegToScale()])
    assert report.proof is not None
    assert (report.proof.passed, report.proof.tolerance, report.proof.of_magnitude) == (True, 1e-3, True)
    strict = rewritten(source, [NegToScale()], RewriteOptions(tolerance=1e-5, overwrite=True))
    assert "runs differ" in strict.findings()[0]


def test_outputs_that_are_dropped_on_purpose_are_told_and_the_others_proven(source: Path) -> None:
    report = rewritten(source, "drop-empty-outputs")
    assert report.proof is not None
    assert (report.proof.passed, report.notes) == (True, ("Output empty is gone.",))
    assert [*report.proof.equivalence.proven] == ["y"]


@pytest.mark.parametrize(
    ("name", "failures"),
    [
        ("x", ("The interface has changed, which no pass claims to do: input new is new.",)),
        (
            "y",
            (
                "The interface has changed, which no pass claims to do: output new is new.",
                "Output y is gone, which no pass claims to do.",
            ),
        ),
    ],
)
def test_an_interface_that_changes_unasked_is_a_failure(source: Path, name: str, failures: tuple[str, ...]) -> None:
    report = rewritten(source, [Rename(name)])
    assert (report.findings(), report.proof) == (failures, None)


def test_an_interface_that_changes_on_purpose_is_unproven_and_no_failure(source: Path) -> None:
    report = rewritten(source, [RenameOnPurpose("x")])
    assert (report.findings(), report.proof) == ((), None)
    assert report.unproven == (
        "rename-on-purpose changed the interface (input new is new), and the two models cannot be compared on the same "
        "inputs"
    )
    assert f"Warning: Nothing is proven: {report.unproven}." in report.to_text(width=200)


def test_the_dims_of_the_proof_can_be_given(source: Path) -> None:
    report = rewritten(source, "pow-to-mul", RewriteOptions(spec=DimSpec.of(ranges={"N": (3, 4)})))
    assert report.proof is not None
    assert {run.dims["N"] for run in report.proof.runs} == {3, 4}


def test_an_edited_model_is_its_own_original(source: Path) -> None:
    model = load(source)
    proto = copy_proto(model)
    proto.graph.node[0].attribute[0].g.node[0].op_type = "Exp"
    report = rewrite_file(model.with_proto(proto), source.with_name("out.onnx"), "pow-to-mul")
    assert report.findings() == ()


def test_the_source_is_never_replaced(source: Path) -> None:
    with pytest.raises(OutputError, match="is an input, which is never overwritten"):
        rewrite_file(source, source, "pow-to-mul", RewriteOptions(overwrite=True))


def test_what_changes_nothing_says_so(source: Path) -> None:
    report = rewritten(source, "neg-to-mul,gather-to-slice", RewriteOptions(verify=False))
    assert report.passes == ("neg-to-mul", "gather-to-slice")
    assert report.changes == ("neg-to-mul: 1 Neg spelled as Muls",)
    report = rewritten(source, "gather-to-slice", RewriteOptions(verify=False, overwrite=True))
    assert "No pass changed anything." in report.to_text()
