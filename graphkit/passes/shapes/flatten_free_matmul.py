"""Let a batched MatMul and its neighbours work on `[b, h, s, d]` where an export flattens it to `[b*h, s, d]`."""

from __future__ import annotations

from dataclasses import dataclass

from graphkit.graph.view import Node, Value
from graphkit.passes.shapes.flat_regions import FlatRegions, Region, Spec
from graphkit.rewrite.batch_dim_lifting import Lift, is_liftable
from graphkit.rewrite.editor import Editor
from graphkit.rewrite.edits import NewNode, NodeInput
from graphkit.rewrite.fixpoint import Rewrite

__all__ = ["FlattenFreeMatmul"]

RESHAPE_SINCE = 5
Names = dict[Value, Value | str]  # by flat value, the lifted one


@dataclass(frozen=True)
class FlattenFreeMatmul(Rewrite):
    """Remove the Reshapes to `[b*h, s, d]` and back around batched MatMuls, which work on `[b, h, s, d]` as well.

    The nodes between such Reshapes are lifted if their operator treats every slice of the leading dim alike: MatMul,
    Transpose, Softmax, elementwise operators, reductions and others; their axes shift. Legality: a connected region is
    lifted as a whole; at least one Reshape is removed and none is added; no value in between is an output, or read by a
    node that needs it flat; tensors that are combined with these are flattened likewise, or lack the leading dim.
    Results are equal bit for bit. In a fold, a Reshape that copies all dims stays if onnxruntime would otherwise merge
    two Transposes, and lose a FusedMatMul.

    Before:

        agraph (float[N, 4, 5, 8] q, float[N, 4, 8, 5] k, float[N, 1, 5, 5] mask) => (float[N, 4, 5, 5] y)
        <int64[3] rows = {-1, 5, 8}, int64[3] columns = {-1, 8, 5}, int64[4] heads = {-1, 4, 5, 5}> {
            a = Reshape (q, rows)
            b = Reshape (k, columns)
            c = MatMul (a, b)
            d = Reshape (c, heads)
            y = Add (d, mask)
        }

    After:

        agraph (float[N, 4, 5, 8] q, float[N, 4, 8, 5] k, float[N, 1, 5, 5] mask) => (float[N, 4, 5, 5] y) {
            c_lifted = MatMul (q, k)
            y = Add (c_lifted, mask)
        }
    """

    def edit(self, editor: Editor) -> None:
        if not any(_begins(node) for node in editor.nodes("Reshape")):
            return
        found = FlatRegions(editor)
        for region in found.find():
            _lift(editor, found, region)
            editor.note("Reshape(s) around batched nodes removed", region.saved)
        for node in found.makers.values():
            if node.is_op("Reshape") and node in found.reasons:
                editor.decline(node, f"its flat form stays: {found.reasons[node]}")


def _begins(node: Node) -> bool:
    """Whether a node that can be lifted reads a Reshape."""
    readers = [consumer for value in node.outputs if value is not None for consumer, _ in value.consumers]
    return node.scope.opset() >= RESHAPE_SINCE and any(is_liftable(consumer) for consumer in readers)


def _lift(editor: Editor, found: FlatRegions, region: Region) -> None:
    lifted: Names = {}
    for value, spec in region.sources.items():
        reshape = found.makers[value]
        source = reshape.inputs[0]
        assert source is not None
        lifted[value] = source
        if spec is not None:
            name = lifted[value] = editor.unique_name(f"{value.name}_lifted")
            editor.insert_before(reshape, _reshape(editor, reshape, source, name, spec))
    for node in region.nodes:
        _lift_node(editor, node, found.lifts[node], lifted, len(region.lead) - 1)
    for reshape, spec in region.exits.items():
        flat, out = reshape.inputs[0], reshape.outputs[0]
        assert flat is not None
        assert out is not None
        if spec is None:
            editor.bypass(reshape, lifted[flat])
        else:
            editor.replace(reshape, _reshape(editor, reshape, lifted[flat], out.name, spec))


def _reshape(editor: Editor, node: Node, source: NodeInput, name: str, spec: Spec) -> NewNode:
    """Return a Reshape in the place of another one."""
    return NewNode("Reshape", [source, editor.integers(spec, f"{name}_shape")], [name], like=node)


def _lift_node(editor: Editor, node: Node, lift: Lift, lifted: Names, extra: int) -> None:
    """Put the lifted node before the flat one, which nothing reads then."""
    inputs: list[NodeInput] = [
        lifted[v] if v is not None and i in lift.inputs else v for i, v in enumerate(node.inputs)
    ]
    for index, array in lift.constants(extra).items():
        inputs[index] = editor.constant(array, f"{node.outputs[0].name if node.outputs[0] else node.label}_axes")
    outputs = [_output(editor, value, index in lift.outputs, lifted) for index, value in enumerate(node.outputs)]
    editor.insert_before(node, NewNode(node.op_type, inputs, outputs, lift.attributes(node, extra), like=node))


def _output(editor: Editor, value: Value | None, is_lifted: bool, lifted: Names) -> str:
    """Return the name of an output of a lifted node, "" for one that nothing reads."""
    if value is None or not (is_lifted or value.consumers):
        return ""
    name = editor.unique_name(f"{value.name}_lifted" if is_lifted else value.name)
    if is_lifted:
        lifted[value] = name
    else:
        editor.replace_all_uses(value, name)
    return name
