"""Remove nodes that return their input unchanged, additions of zeros included, and initial states of zeros."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass

import numpy as np
import onnx

from graphkit.dtypes import FLOATS, INTEGERS
from graphkit.graph.dataflow import moved_from
from graphkit.graph.operator_traits import BLIND, FAITHFUL, FAITHFUL_IN_FIRST, MOVING, RECURRENT, VARIADIC, value_inputs
from graphkit.graph.view import ZERO, Node, Scope, Value, walk_breadth_first
from graphkit.passes.clean_up.exporter_idioms import is_rounded_behind
from graphkit.rewrite import Editor, Rewrite, copy_node

Rule = Callable[[Editor, Node], Value | None]
ZERO_FLOATS = {*FLOATS, onnx.TensorProto.BFLOAT16}
# Operators whose result is the same for 0.0 and -0.0, or differs at most in the sign of a zero, in all inputs.
BLIND_HERE = BLIND | {"ArgMax", "ArgMin"}
FAITHFUL_HERE = FAITHFUL | {"Cast", "ScatterND"}
DEPENDS = "it adds zeros, but a later node may depend on the sign of a zero"
SIGNS = "it adds zeros, which makes 0 of -0 in an output; with `--fuse` it goes"
STATES = (5, 6)  # of an LSTM, which index holds the hidden and which the cell state; a GRU and an RNN have the first


class EliminateIdentity(Rewrite):
    """Remove nodes that return their input unchanged: Identity, Dropout, a Cast to the same type, x * 1, and the like.

    The nodes are: Identity; Dropout in inference with an unused mask; Cast to the type that the tensor has; Transpose
    that keeps the order; Concat, Max, Min, Sum and Mean of one input; Split into one part; x + 0, x - 0, x * 1, x / 1,
    x ** 1; And with true, Or with false; Tile by ones; Pad by zeros. Legality: dims and type stay the same; x + 0.0 and
    x - -0.0 stay, because they turn -0.0 into 0.0, while x - 0.0 and x + -0.0 go. An Identity that names an output of
    its graph is removed if its input can take that name and nothing else reads either tensor: onnxruntime's fusions of
    Gemm and Transpose lose an output that also has a consumer, and the model then does not load. What a Concat
    or a Split gives, such as a cache, may be read elsewhere too: no fusion takes that away, unless it is moved on its
    way to a QuantizeLinear, which onnxruntime would move up past the output.

    Before:

        agraph (float[N] x) => (float[N] y) {
            a = Neg (x)
            b = Cast <to = 1> (a)
            y = Identity (b)
        }

    After:

        agraph (float[N] x) => (float[N] y) {
            y = Neg (x)
        }
    """

    def edit(self, editor: Editor) -> None:
        for scope in editor.scopes:
            for node in scope.nodes_of(*RULES):
                if not editor.is_free(node) or (source := RULES[node.op_type](editor, node)) is None:
                    continue
                out = node.outputs[0]
                others = (value for value in node.outputs[1:] if value is not None)
                if out is None or any(value.consumers or value.is_output for value in others):
                    continue
                may_rename = node.is_op("Identity") and out.is_output
                if _give_name(editor, source, out) if may_rename else editor.bypass(node, source):
                    editor.note("node(s) without effect removed")


def _give_name(editor: Editor, source: Value, out: Value) -> bool:
    producer = source.producer
    if source.scope is not out.scope or producer is None or source.is_output or editor.is_taken(producer):
        return False
    if source in editor.aliases or source in editor.renamed or out.consumers:
        return False
    if len(source.consumers) > 1 and (not producer.is_op("Concat", "Split") or is_rounded_behind(source)):
        return False
    if editor.inner_names(out.scope) & {source.name, out.name}:
        return False
    editor.rename(source, out.name)
    editor.replace_all_uses(out, source)
    if out.producer is not None:
        editor.replace(out.producer)
    return True


def _match_dropout(editor: Editor, node: Node) -> Value | None:
    mode = node.input(2)
    return node.input(0) if node.scope.opset() >= 7 and (mode is None or editor.uniform(mode) == 0) else None


def _match_cast(editor: Editor, node: Node) -> Value | None:
    to = node.attr("to", int)  # None below opset 6, where it is a text
    return node.input(0) if to and editor.shapes[node.input(0)].dtype == to else None


def _match_transpose(_: Editor, node: Node) -> Value | None:
    perm = node.attr("perm", tuple)
    return node.input(0) if perm is not None and list(perm) == sorted(perm) else None


def _match_split(editor: Editor, node: Node) -> Value | None:
    before, after = (editor.shapes[values[0]].dims for values in (node.inputs, node.outputs))
    return node.input(0) if len(node.outputs) == 1 and before is not None and before == after else None


def _neutral_rule(number: int, *kept: int, sign: int = 0) -> Rule:
    """Return the rule of an operator with one of these inputs where the other one is a number that changes nothing.

    With a sign, floats have to be zeros of this sign: zeros of the other one change -0.0.
    """

    def rule(editor: Editor, node: Node) -> Value | None:
        result = editor.shapes[node.outputs[0]]
        for index in kept if len(node.operands) == 2 else ():
            value, neutral = node.operand(index), node.operand(1 - index)
            before = editor.shapes[value]
            if editor.uniform(neutral) != number or before.dims is None:
                continue
            if (before.dims, before.dtype) != (result.dims, result.dtype):
                continue
            if not sign or before.dtype in INTEGERS or _has_signs(editor, neutral, negative=sign < 0):
                return value
        return None

    return rule


def _match_pad(editor: Editor, node: Node) -> Value | None:
    pads: Sequence[object] | None = editor.shapes[node.input(1)].elements
    if node.input(1) is None:
        pads = node.attr("paddings" if node.scope.opset() < 2 else "pads", tuple)
    return node.input(0) if pads is not None and all(pad == 0 for pad in pads) else None


AUGENDS = {"Add": _neutral_rule(0, 0, 1), "Sub": _neutral_rule(0, 0)}
RULES: Mapping[str, Rule] = {
    "Add": _neutral_rule(0, 0, 1, sign=-1),
    "And": _neutral_rule(1, 0, 1),
    "Cast": _match_cast,
    **dict.fromkeys(sorted(VARIADIC | {"Concat"}), lambda _, node: node.input(0) if len(node.inputs) == 1 else None),
    "Div": _neutral_rule(1, 0),
    "Dropout": _match_dropout,
    "Identity": lambda _, node: node.input(0),
    "Mul": _neutral_rule(1, 0, 1),
    "Or": _neutral_rule(0, 0, 1),
    "Pad": _match_pad,
    "Pow": _neutral_rule(1, 0),
    "Split": _match_split,
    "Sub": _neutral_rule(0, 0, sign=1),
    "Tile": lambda editor, node: node.input(0) if (n := node.input(1)) is not None and editor.uniform(n) == 1 else None,
    "Transpose": _match_transpose,
}


@dataclass(frozen=True)
class DropZeroAdds(Rewrite):
    """Remove the addition (or subtraction) of zeros to floats: biases that were never trained.

    `x + 0.0` changes only the sign of a zero, from -0.0 to 0.0, which compare equal. onnxruntime's own basic
    optimizations remove it too. Legality: the constant is small enough to be read, is all zeros, and does not
    broadcast; and the sign of a zero has no further effect: before an operator such as Softmax or a square discards it,
    no consumer divides by the result, takes a power of it, or is an operator that this pass does not know. An output
    may have zeros of another sign, unless `signs` are to be kept.

    Before:

        agraph (float[N, 2] x) => (float[N, 2] y) <float[2] bias = {0.0, 0.0}> {
            a = Add (x, bias)
            y = Softmax (a)
        }

    After:

        agraph (float[N, 2] x) => (float[N, 2] y) {
            y = Softmax (x)
        }

    Attributes:
        signs: Whether each output keeps the sign of its zeros, as `fold` asks for without `--fuse`.
    """

    signs: bool = False

    def edit(self, editor: Editor) -> None:
        floats = (node for node in editor.nodes("Add", "Sub") if editor.shapes[node.outputs[0]].dtype in ZERO_FLOATS)
        adds = [(node, source) for node in floats if (source := AUGENDS[node.op_type](editor, node)) is not None]
        graph = editor.model.graph
        inner = _find_exposed_values(editor, graph, set()) if adds else set()
        exposed = _find_exposed_values(editor, graph, {*graph.outputs}) if adds and self.signs else inner
        is_sorted = not any(scope.problems for scope in editor.scopes)
        for node, source in adds:
            if (out := node.outputs[0]) is None or out.is_output:
                continue
            zeros = node.operand(node.inputs.index(source) ^ 1)
            keeps_signs = _has_signs(editor, zeros, negative=node.is_op("Add"))  # all signs of zeros
            if (out in exposed or not is_sorted) and not keeps_signs:
                editor.decline(node, SIGNS if out not in inner and is_sorted else DEPENDS)
            elif editor.replace_all_uses(out, source):
                editor.take(node)
                editor.note("addition(s) of zeros removed")


def _find_exposed_values(editor: Editor, scope: Scope, exposed: set[Value]) -> set[Value]:
    """Return the values of a graph for which the sign of a zero may matter, in one pass from its end."""
    for node in reversed(scope.nodes):
        for body in node.bodies.values():
            if node.is_op("If"):
                pairs = zip(node.outputs, body.outputs, strict=False)
                exposed.update(inner for outer, inner in pairs if outer in exposed)
            else:
                exposed.update(body.outputs)
            _find_exposed_values(editor, body, exposed)
        is_open = any(value in exposed for value in node.outputs)
        read = ((index, value) for index, value in enumerate(node.inputs) if value is not None)
        exposed.update(value for index, value in read if _exposes_sign(editor, node, index, is_open))
    return exposed


def _exposes_sign(editor: Editor, node: Node, index: int, is_open: bool) -> bool:
    """Whether a node gives more than zeros of another sign for such at an input; if open, those matter in an output."""
    if node.domain or index in value_inputs(node):
        return True
    if node.is_op("QuantizeLinear") and (index or editor.shapes[node.outputs[0]].dtype not in INTEGERS):
        return bool(index) or is_open  # a float of 8 bits has a sign of zeros, too
    if node.op_type in BLIND_HERE:
        return False
    power = editor.uniform(node.operand(1)) if node.is_op("Pow") and index == 0 else None
    if power is not None and power > 0 and power % 2 == 0:
        return False
    if node.is_op("Cast") and node.attr("to", int) in (None, onnx.TensorProto.STRING):
        return True
    return is_open or node.op_type not in FAITHFUL_HERE or (index > 0 and node.op_type in FAITHFUL_IN_FIRST)


def _has_signs(editor: Editor, value: Value, *, negative: bool) -> bool:
    if value.constant is None or editor.uniform(value) != 0:
        return False
    return bool((np.signbit(editor.model.array(value.constant)) == negative).all())


class DropZeroStates(Rewrite):
    """Leave out the initial states of LSTM, GRU and RNN that are zeros, and with them the nodes that make them.

    Legality: the state is a constant of zeros, or made of such by a ConstantOfShape and nodes that move elements;
    -0.0 stays.

    Before:

        agraph (float[L, N, 3] x) => (float[L, 1, N, 2] y)
        <float[1, 6, 3] w = {1, 1, 1, 1, 1, 1, 1, 1, 1, 1, 1, 1, 1, 1, 1, 1, 1, 1},
         float[1, 6, 2] r = {1, 1, 1, 1, 1, 1, 1, 1, 1, 1, 1, 1}, int64[1] one = {1}, int64[1] two = {2}> {
            batch = Shape <start = 1, end = 2> (x)
            dims = Concat <axis = 0> (one, batch, two)
            zeros = ConstantOfShape (dims)
            y = GRU <hidden_size = 2> (x, w, r, , , zeros)
        }

    After:

        agraph (float[L, N, 3] x) => (float[L, 1, N, 2] y)
        <float[1, 6, 3] w = {1, 1, 1, 1, 1, 1, 1, 1, 1, 1, 1, 1, 1, 1, 1, 1, 1, 1},
         float[1, 6, 2] r = {1, 1, 1, 1, 1, 1, 1, 1, 1, 1, 1, 1}> {
            y = GRU <hidden_size = 2> (x, w, r)
        }
    """

    def edit(self, editor: Editor) -> None:
        for node in editor.nodes(*sorted(RECURRENT)):
            zeros = [index for index in STATES if (value := node.input(index)) is not None and _is_zero(editor, value)]
            if zeros:
                inputs = [None if index in zeros else value for index, value in enumerate(node.inputs)]
                while inputs and inputs[-1] is None:
                    inputs.pop()
                editor.replace(node, copy_node(node, inputs, node.proto.output))
                editor.note("initial state(s) of zeros left out", len(zeros))


def _is_zero(editor: Editor, value: Value) -> bool:
    """Whether all elements of a value are 0.0: constants, and what a ConstantOfShape gives, moved in whatever way."""

    def is_zero_source(value: Value) -> bool:
        node = value.producer
        if value.is_constant:
            return _has_signs(editor, value, negative=False)
        if node is None or not node.is_op("ConstantOfShape"):
            return node is not None and node.is_op(*MOVING)
        tensor = node.attr("value", ZERO)
        array = editor.model.array(tensor) if tensor is not None and tensor.data_type in FLOATS else None
        return array is not None and not array.any() and not np.signbit(array).any()

    return all(map(is_zero_source, walk_breadth_first([value], lambda each: moved_from(each, MOVING))))
