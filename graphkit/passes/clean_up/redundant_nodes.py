"""Remove nodes, inputs and outputs that nothing needs, and merge equal nodes and constants."""

from __future__ import annotations

import copy
from collections import ChainMap

import onnx

from graphkit.dtypes import INTEGERS
from graphkit.errors import count_things
from graphkit.graph.names import family_labels
from graphkit.graph.operator_traits import RANDOM
from graphkit.graph.roles import zero_length_outputs
from graphkit.graph.view import Node, Scope, Value
from graphkit.model import Model
from graphkit.rewrite import Editor, Outcome, Pass, Rewrite, copy_proto, keep_members
from graphkit.rewrite.edits import live_names, remove_dead_code, without_outputs
from graphkit.shapes import Expr, is_known

MAX_CONSTANT = 64 << 10  # bytes; larger inline constants are not compared
Key = tuple[object, ...]


class EliminateDeadCode(Pass):
    """Remove nodes whose outputs nothing reads, and the initializers, types and functions that are then unused.

    A node stays if one of its outputs is an output of its graph or feeds a node that stays, bodies included;
    a node without outputs stays. Inputs and outputs of the model stay as they are; a model without outputs stays whole.

    Before:

        agraph (float[N] x) => (float[N] y) <float[1] w = {2.0}> {
            unused = Add (x, w)
            y = Neg (x)
        }

    After:

        agraph (float[N] x) => (float[N] y) {
            y = Neg (x)
        }
    """

    def run(self, model: Model) -> Outcome:
        return remove_dead_code(model)


class DropUnusedInputs(Pass):
    """Drop the inputs of the model that no output depends on, with their default values, and the nodes that read them.

    This changes the interface: callers must stop feeding these inputs. A model without outputs keeps its inputs, as it
    keeps its nodes.

    Before:

        agraph (float[N] x, float[N] unused) => (float[N] y) {
            y = Neg (x)
        }

    After:

        agraph (float[N] x) => (float[N] y) {
            y = Neg (x)
        }
    """

    def run(self, model: Model) -> Outcome:
        from graphkit.rewrite.new_interface import drop_dead_inputs  # which folds do without

        if (declined := without_outputs(model)) is not None:
            return Outcome(model, declined=(declined,))
        live = live_names(model.proto.graph)
        if not (names := [value.name for value in model.graph.inputs if value.name not in live]):
            return Outcome(model)
        if any(model.graph.values[name].consumers for name in names):  # which no output depends on either
            model = remove_dead_code(model).model
        change = f"{count_things(len(names), 'input(s) dropped')}: {family_labels(names)}"
        return Outcome(drop_dead_inputs(model), (change,))


class DropEmptyOutputs(Pass):
    """Drop the outputs of the model that are constants without elements, directly or through Identity.

    Exporters give the cache branch of a merged decoder such outputs, because both branches of an If must
    have the same. They carry nothing, and fed back they would erase the encoder's KV cache.

    Before:

        agraph (float[N] x) => (float[N] y, float[0] empty) {
            y = Neg (x)
            empty = Constant <value = float[0] {}> ()
        }

    After:

        agraph (float[N] x) => (float[N] y) {
            y = Neg (x)
            empty = Constant <value = float[0] {}> ()
        }
    """

    drops_outputs = True

    def run(self, model: Model) -> Outcome:
        if not (empty := sorted(zero_length_outputs(model.graph))):
            return Outcome(model)
        proto = copy_proto(model)
        names = [proto.graph.output[index].name for index in empty]
        keep_members(proto.graph.output, [index not in empty for index in range(len(proto.graph.output))])
        change = f"{count_things(len(names), 'output(s) dropped')}: {family_labels(names)}"
        return Outcome(model.with_proto(proto), (change,))


class MergeCommonSubexpressions(Rewrite):
    """Merge nodes of the same operator, attributes and inputs, equal constants, and integers known to be equal.

    A node in a body may be replaced by an equal one of a graph around it, never by one of another body. Legality:
    the node draws no random numbers, has no bodies, and belongs to the domain of onnx or com.microsoft. The node of a
    graph output stays, and gets no new consumers, because onnxruntime's fusions of Gemm and Transpose lose an output
    that also has a consumer.

    Before:

        agraph (float[N] x) => (float[N] y) {
            a = Exp (x)
            b = Exp (x)
            y = Add (a, b)
        }

    After:

        agraph (float[N] x) => (float[N] y) {
            a = Exp (x)
            y = Add (a, a)
        }
    """

    def edit(self, editor: Editor) -> None:
        _merge_duplicates(editor, editor.model.graph, ChainMap())


def _merge_duplicates(editor: Editor, scope: Scope, known: ChainMap[Key, Value | Node]) -> None:
    meet = known.setdefault if known.parents else known.maps[0].setdefault  # which takes a fifth of the time
    for value in scope.initializers:
        if value.kind == "initializer" and value.tensor is not None and not value.is_output:
            key = _tensor_key(value.tensor)
            first = meet(key, value) if key is not None else value
            if not isinstance(first, Value) or first is value or value in editor.aliases:
                continue
            if editor.replace_all_uses(value, first):
                editor.note("duplicate constant(s) merged")
    for node in scope.nodes:
        for body in node.bodies.values() if node.bodies else ():
            _merge_duplicates(editor, body, known.new_child())
        key = _node_key(editor, node)
        if key is None or any(value.is_output and not value.consumers for value in node.results):
            continue
        twin = meet(key, node)
        if not isinstance(twin, Node) or twin is node or editor.is_fused(node):
            continue
        pairs = list(zip(node.results, twin.results, strict=True))  # whether outputs are left out is in the key
        if any(out.is_output or out in editor.aliases for out, _ in pairs):
            continue
        if all(editor.can_replace_all_uses(out, same) for out, same in pairs):
            for out, same in pairs:
                editor.replace_all_uses(out, same)
            editor.note("duplicate node(s) merged")


def _node_key(editor: Editor, node: Node) -> Key | None:
    is_changed = bool(editor.inputs.get(node))  # which gives it other inputs, and may make it equal
    if node.bodies or node.domain not in ("", "com.microsoft") or node.operator in RANDOM:
        return None
    if editor.is_taken(node) and not is_changed:
        return None
    if len(node.results) == 1 and node.scope in editor.scopes and (numbers := _known_numbers(editor, node)) is not None:
        return numbers  # whatever makes them
    sources = editor.inputs_of(node) if is_changed else node.inputs
    inputs = tuple([editor.resolve(each) if each in editor.aliases else each for each in sources])
    if not node.attributes or not any(attribute.HasField("t") for attribute in node.attributes.values()):
        return node.signature, inputs
    attributes = tuple(sorted(map(_attribute_key, node.proto.attribute)))
    if any(not text for _, text in attributes):
        return None
    return (node.domain, node.op_type, inputs, attributes, tuple(value is None for value in node.outputs))


def _known_numbers(editor: Editor, node: Node) -> Key | None:
    """Return dtype, dims and elements of integers that are known: of one dim, or where they follow from no input.

    Others are computed anew from the dims of inputs: see rematerialize-shapes.
    """
    tensor = editor.shapes[node.results[0]]
    if not (tensor.may_have_data and tensor.dtype in INTEGERS and (elements := tensor.elements)):
        return None
    exprs = tuple(each for each in elements if isinstance(each, Expr))
    is_short = node.is_op("Shape") and len(exprs) == 1
    if len(exprs) < len(elements) or not exprs or (not is_short and all(map(is_known, exprs))):
        return None
    return tensor.dtype, tensor.dims, exprs


def _attribute_key(attribute: onnx.AttributeProto) -> tuple[str, bytes]:
    """Return name and content, b"" where it is too large to compare."""
    if attribute.HasField("t"):
        key = _tensor_key(attribute.t)
        return attribute.name, repr(key).encode() if key is not None else b""
    return attribute.name, attribute.SerializeToString(deterministic=True)


def _tensor_key(tensor: onnx.TensorProto) -> Key | None:
    if tensor.data_location == onnx.TensorProto.EXTERNAL:
        places = sorted((entry.key, entry.value) for entry in tensor.external_data)
        return (tensor.data_type, tuple(tensor.dims), tuple(places))
    if tensor.HasField("raw_data"):
        if len(tensor.raw_data) > MAX_CONSTANT:
            return None
        if not tensor.metadata_props and not tensor.HasField("segment"):
            return tensor.data_type, tuple(tensor.dims), tensor.raw_data
    if tensor.ByteSize() > 2 * MAX_CONSTANT:
        return None
    plain = copy.deepcopy(tensor)
    plain.ClearField("name")
    plain.ClearField("doc_string")
    return (plain.SerializeToString(deterministic=True),)
