"""The diff of a model and what graphkit made of it says what the report says: the same counts, and nothing else."""

from __future__ import annotations

import inspect
import re
import textwrap
from collections import Counter
from collections.abc import Callable, Iterable
from pathlib import Path

import onnx
import pytest
from onnx import parser
from real_models import params

from graphkit.graph.view import all_nodes
from graphkit.model import Model, load
from graphkit.model_diff.model_diff import ModelDiff, diff
from graphkit.model_diff.node_changes import LoneNode
from graphkit.options import FoldOptions
from graphkit.passes import PASSES
from graphkit.passes.npu.decompose_operators import WriteLayerNormDefaults
from graphkit.rewrite.base import Pass
from graphkit.shapes import DimSpec
from graphkit.workflows.fold_file import fold_file

NAMES = (
    *("marian-tiny/encoder_model", "marian-tiny/decoder_model_merged", "t5-tiny/encoder_model"),
    *("t5-tiny/decoder_model_merged", "qwen2-tiny/model", "whisper-tiny/decoder_model_merged"),
    *("gpt2-tiny/decoder_model_merged", "cache-styles/bshd", "nllb-tiny/decoder_model_quantized"),
    *("table-transformer/model", "vit-qdq/model"),
)
SLOW = {*NAMES} - {"t5-tiny/encoder_model"}


def operators(model: Model) -> Counter[str]:
    """Return how many nodes there are of each operator, bodies and functions included, constants aside."""
    return Counter(node.operator for node in all_nodes(model.scopes) if not node.is_op("Constant"))


def tally(nodes: Iterable[LoneNode]) -> Counter[str]:
    return Counter(node.operator for node in nodes)


def gained(found: ModelDiff) -> Counter[str]:
    """Return how many nodes of each operator there are more in B, as the diff tells it."""
    counts = tally(found.nodes.added)
    counts.subtract(tally(found.nodes.removed))
    for node in found.nodes.changed:
        for change in node.changes:
            if change.what == "operator":
                counts[str(change.before)] -= 1
                counts[str(change.after)] += 1
    return Counter({operator: count for operator, count in counts.items() if count})


def difference(a: Model, b: Model) -> Counter[str]:
    counts = operators(b)
    counts.subtract(operators(a))
    return Counter({operator: count for operator, count in counts.items() if count})


@pytest.mark.cases("frozen-t5-tiny/encoder_model")
@pytest.mark.parametrize("name", params(NAMES, slow=SLOW))
@pytest.mark.parametrize("dims", [{}, {"batch_size": 1}], ids=["dynamic", "frozen"])
def test_a_fold_is_told_as_its_report_tells_it(
    name: str, dims: dict[str, int], model_file: Callable[[str], Path], tmp_path: Path
) -> None:
    model, out = load(model_file(name)), tmp_path / "folded.onnx"
    if dims and not any("batch_size" in str(info.type) for info in model.proto.graph.input):
        pytest.skip("it has no such dim")
    report = fold_file(model, out, FoldOptions(spec=DimSpec.of(dims=dims), verify=False))
    found = diff(model, load(out))

    assert gained(found) == difference(model, load(out))
    counts = {row.op: row.after - row.before for row in report.counts if row.op[0].isupper() and row.op != "Constant"}
    assert {operator: gained(found)[operator] for operator in counts} == counts

    changes = {change.what for node in found.nodes.changed for change in node.changes}
    assert changes <= {"axes", "perm"}  # two Unsqueezes in one, two Transposes in one
    joined = {
        weight.kind for weight in found.weights if (weight.other or "").endswith("_axes")
    }  # two Unsqueezes in one
    assert joined <= {"dims", "added", "storage"}
    kinds = {weight.kind for weight in found.weights if not (weight.other or "").endswith("_axes")}
    assert kinds <= {"removed", "added", "storage"}
    assert found.opsets == ()
    assert found.shapes == () or "perm" in changes  # a Reshape that stands before a Transpose now
    assert {change.what for change in found.metadata} <= {"declared types", "types that are declared otherwise"}
    worse = {change.kind for change in found.finding_changes if change.is_worse}
    assert worse <= ({"frozen-size"} if dims else set())  # which was asked for
    frozen = {change.what.split("'")[1] for change in found.interface if change.what.startswith("input")}
    symbolic = {info.name for info in model.proto.graph.input if "batch_size" in str(info.type)}
    assert frozen >= (symbolic if dims else set())
    assert bool(frozen) == bool(report.frozen or report.notes)


EXAMPLE = re.compile(
    r"Before(?: \(opset (?P<opset>\d+)\))?:\n\n(?P<before>.*?)\n\n\s*After(?: `[^`]*`)?:\n\n(?P<after>.*?)(?:\n\n|\Z)",
    re.S,
)


def example(kind: type[Pass]) -> tuple[Model, Model]:
    """Return the Before and the After of a pass's docstring."""
    match = EXAMPLE.search(inspect.getdoc(kind) or "")
    assert match is not None
    header = f'<ir_version: 8, opset_import: ["" : {match["opset"] or 17}, "local" : 1]>\n'
    before, after = (parser.parse_model(header + textwrap.dedent(match[part])) for part in ("before", "after"))
    return Model.from_proto(before), Model.from_proto(after)


@pytest.mark.cases(27)
@pytest.mark.parametrize("kind", PASSES, ids=lambda kind: kind.name())
def test_what_a_pass_does_is_told(kind: type[Pass]) -> None:
    before, after = example(kind)
    if kind is WriteLayerNormDefaults:  # an attribute that is written out says what leaving it out did
        assert diff(before, after).is_equal
        return
    for a, b in ((before, after), (after, before)):
        found = diff(a, b)
        assert found.differing or found.renamed_weights
        if len(a.scopes) == len(b.scopes):  # nodes of a function that one model lacks are not listed
            assert gained(found) == difference(a, b)
    assert diff(after, after).is_equal


@pytest.mark.slow
def test_an_edit_of_a_real_model_is_all_that_is_told(model_file: Callable[[str], Path]) -> None:
    model = load(model_file("marian-tiny/encoder_model"))
    numbers = [at for at, node in enumerate(model.proto.graph.node) if node.op_type in ("Add", "Mul", "Sub")]
    for number in numbers[::20]:
        node = model.proto.graph.node[number]
        proto = onnx.ModelProto()
        proto.CopyFrom(model.proto)
        proto.graph.node[number].op_type = "Div"
        found = diff(model, model.with_proto(proto))
        assert [each.node for each in found.nodes.changed] == [node.name]
        assert (found.nodes.removed, found.nodes.added, found.weights) == ((), (), ())
        assert str(found.nodes.changed[0].changes[0]) == f"operator: {node.op_type} -> Div"
