"""Give the logits of the last tokens alone: as many as a new input says."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import ClassVar

from onnx import TensorProto

from graphkit.graph.names import names_in
from graphkit.graph.operator_traits import UNARY, broadcasts_inputs, operator_set
from graphkit.graph.view import Node, Value
from graphkit.model import Model
from graphkit.ops.tensor import Dims
from graphkit.rewrite import Declined, Editor, NewNode, NodeInput, Outcome, Pass, attributes_of
from graphkit.rewrite.new_interface import NewInput, with_interface
from graphkit.shapes import const, symbol

__all__ = ["KEPT", "KeepLastLogits"]

KEPT = "logits_kept"  # the input; the dim of the logits is called so too
TOKENS = 1  # the axis
END = 2**63 - 1
PRODUCTS = operator_set("MatMul") | operator_set("MatMulNBits", "com.microsoft")


@dataclass(frozen=True)
class KeepLastLogits(Pass):
    """Give the logits of the last tokens alone: as many as the new input `logits_kept` says, all of them for 0.

    A prompt needs the logits of its last token, and those of all tokens are often the largest tensor of the model: 2.1
    GB for 2,047 tokens of Gemma 3 270M, and half of the time. The Slice goes in front of the product that makes logits
    of the hidden state, so that the others are not computed.

    Legality: the output that holds the logits is [batch, tokens, vocabulary]. It comes from a product with a matrix by
    nodes that treat each token alike and that nothing else reads.

    Before:

        agraph (float[N, L, 4] x, float[4, 6] w) => (float[N, L, 6] logits) {
            y = MatMul (x, w)
            logits = Tanh (y)
        }

    After:

        agraph (float[N, L, 4] x, float[4, 6] w, int64[1] logits_kept) => (float[N, logits_kept, 6] logits)
        <int64[1] "int/max" = {9223372036854775807}, int64[1] "int/1" = {1}> {
            first_kept = Neg (logits_kept)
            x_kept = Slice (x, first_kept, "int/max", "int/1")
            y_kept = MatMul (x_kept, w)
            logits = Tanh (y_kept)
        }
    """

    changes_interface: ClassVar[bool] = True

    def run(self, model: Model) -> Outcome:
        logits, editor = model.roles.logits, Editor(model)
        dims = editor.shapes[logits].dims
        if logits is None or dims is None or len(dims) != 3:
            return _decline_model(model, "no output is known to be logits, [batch, tokens, vocabulary]")
        if KEPT in names_in(model.scopes):
            return _decline_model(model, f"'{KEPT}' is a name in it already")
        nodes = _find_head(editor, logits)
        if not nodes:
            return _decline_model(model, "its logits are not known to be a product that treats each token alike")
        _insert_slice(editor, nodes, logits)
        inputs = {KEPT: NewInput(KEPT, TensorProto.INT64, (const(1),), "for how many of the last tokens; 0 for all")}
        declared = NewInput(logits.name, editor.shapes[logits].dtype, (dims[0], symbol(KEPT), dims[2]))
        result = with_interface(editor.result(), inputs, {logits.name: declared})
        return Outcome(result, ("logits of the last tokens alone",))


def _decline_model(model: Model, reason: str) -> Outcome:
    return Outcome(model, declined=(Declined(model.name, reason),))


def _find_head(editor: Editor, logits: Value) -> list[tuple[Node, int]]:
    """Return the nodes from the product to the logits, each with the input that holds the tokens; none if unknown."""
    path: list[tuple[Node, int]] = []
    value: Value | None = logits
    while value is not None and value.producer is not None:
        node = value.producer
        index = _tokens_at(node, editor)
        is_read_alone = not value.consumers if value is logits else editor.only_reader(value) is not None
        if index is None or not is_read_alone:
            return []
        path.insert(0, (node, index))
        if node.operator in PRODUCTS:
            return path
        value = node.input(index)
    return []


def _tokens_at(node: Node, editor: Editor) -> int | None:
    """Return which input of a node holds the tokens, where each token of its output follows from that token alone."""
    out = node.outputs[0]
    dims = [editor.shapes[value].dims for value in node.inputs]
    whole = editor.shapes[out].dims
    if whole is None or len(whole) != 3 or node.scope is not editor.model.graph or len(node.outputs) != 1:
        return None
    if node.operator in PRODUCTS:
        is_matrix = node.op_type != "MatMul" or len(dims[1] or ()) == 2
        return 0 if is_matrix and _has_tokens(dims[0], whole) else None
    if node.operator in UNARY:
        return 0 if _has_tokens(dims[0], whole) else None
    if not broadcasts_inputs(node):
        return None
    holding = [index for index, each in enumerate(dims) if not _is_alike(each)]
    return holding[0] if len(holding) == 1 and _has_tokens(dims[holding[0]], whole) else None


def _has_tokens(dims: Dims | None, whole: Dims) -> bool:
    return dims is not None and len(dims) == 3 and dims[:2] == whole[:2]


def _is_alike(dims: Dims | None) -> bool:
    """Whether an input that broadcasts is the same for all tokens."""
    return dims is not None and (len(dims) < 2 or dims[-2] == 1)


def _insert_slice(editor: Editor, nodes: Sequence[tuple[Node, int]], logits: Value) -> None:
    """Put the Slice in front of the product, and let the nodes behind it give fewer tokens, under other names."""
    product, index = nodes[0]
    source = product.inputs[index]
    assert source is not None
    first, kept = editor.unique_name("first_kept"), editor.unique_name(f"{source.name}_kept")
    end, axes = editor.integers([END], "int/max"), editor.integers([TOKENS], f"int/{TOKENS}")
    made = [NewNode("Neg", [KEPT], [first]), NewNode("Slice", [source, first, end, axes], [kept])]
    for node, place in nodes:
        inputs: list[NodeInput] = list(node.inputs)
        inputs[place] = kept
        out = node.outputs[0]
        assert out is not None
        kept = out.name if out is logits else editor.unique_name(f"{out.name}_kept")
        made.append(NewNode(node.op_type, inputs, [kept], attributes_of(node), like=node, domain=node.domain))
        editor.replace(node, *made)
        made = []
