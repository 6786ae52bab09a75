"""Insert an additive mask where an attention reads slots or a padded source without one."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import ClassVar, Literal

from onnx import helper

from graphkit.graph.names import count_things, free_name, names_in
from graphkit.graph.traversal import follow_chain
from graphkit.graph.view import Node, Value
from graphkit.model import Model
from graphkit.passes.npu.host_inputs import freezable_symbols
from graphkit.rewrite import Matched, Pass, copy_proto
from graphkit.rewrite.host_values import Dependence, find_dependences
from graphkit.rewrite.new_interface import NewInput
from graphkit.shapes import Expr, Shapes, const, infer

__all__ = ["InsertAttentionMask", "MissingMask"]

SCORES = ("Add", "Mul", "Div", "Sub", "Reshape", "Cast", "Identity", "Where")
Over = Literal["slots", "source"]


@dataclass(frozen=True, slots=True)
class MissingMask:
    """An attention without a mask.

    Attributes:
        softmax: Its Softmax.
        over: What its keys are: the slots of a cache, or the positions of the source.
        keys: How many.
        sequences: The first dim of its scores.
        rank: Of its scores.
        dtype: Of its scores.
        name: The input that becomes its mask; attentions alike share it.
    """

    softmax: Node
    over: Over
    keys: Expr
    sequences: Expr
    rank: int
    dtype: int
    name: str


@dataclass(frozen=True)
class InsertAttentionMask(Pass):
    """Add a mask input to the scores of each attention over a cache or over a padded source that has none.

    An export without a mask is right as long as all slots and all positions of the source are in use. At fixed lengths
    they are not: unused ones must be masked. All attentions of a kind share one input, `slots_mask` or `source_mask`.

    Legality: the Softmax is over the last axis of scores that a MatMul gives, and that axis is as long as the cache
    with the new tokens, or as a source of tokens whose length is a symbol.

    Attributes:
        per_sequence: Whether each sequence of a batch gets a mask over its own source, instead of one for all.

    Before:

        agraph (float[1, 1, 4] q, float[1, S, 4] encoder_hidden_states) => (float[1, 1, S] y) {
            keys = Transpose <perm = [0, 2, 1]> (encoder_hidden_states)
            scores = MatMul (q, keys)
            y = Softmax <axis = -1> (scores)
        }

    After:

        agraph (float[1, 1, 4] q, float[1, S, 4] encoder_hidden_states, float[1, 1, S] source_mask_3d)
        => (float[1, 1, S] y) {
            keys = Transpose <perm = [0, 2, 1]> (encoder_hidden_states)
            scores = MatMul (q, keys)
            scores_masked = Add (scores, source_mask_3d)
            y = Softmax <axis = -1> (scores_masked)
        }
    """

    changes_interface: ClassVar[bool] = True
    per_sequence: bool = False

    def run(self, model: Model) -> Matched[MissingMask]:
        shapes = infer(model)
        missing = tuple(_missing_masks(model, shapes))
        if not missing:
            return Matched(model)
        proto, taken = copy_proto(model), names_in(model.scopes) | {each.name for each in missing}
        changed = {each.softmax.index: each for each in missing}
        nodes = []
        for index, node in enumerate(proto.graph.node):
            if (each := changed.get(index)) is not None:
                masked = free_name(f"{node.input[0]}_masked", taken)
                taken.add(masked)
                nodes.append(helper.make_node("Add", [node.input[0], each.name], [masked]))
                node.input[0] = masked
            nodes.append(node)
        copies = [type(node).FromString(node.SerializeToString()) for node in nodes]
        del proto.graph.node[:]
        proto.graph.node.extend(copies)
        for name, each in {each.name: each for each in missing}.items():
            first = each.sequences if self.per_sequence and each.over == "source" else const(1)
            dims = (*(first, *[const(1)] * each.rank)[: each.rank - 1], each.keys)
            proto.graph.input.append(NewInput(name, each.dtype, dims).info())
        return Matched(
            model.with_proto(proto), (count_things(len(missing), "attention(s) given a mask"),), matches=missing
        )


def _missing_masks(model: Model, shapes: Shapes) -> Iterator[MissingMask]:
    """Yield the attentions over a cache or a source that nothing masks, in node order."""
    known = find_dependences(model, shapes)
    frozen = freezable_symbols(model, shapes)
    text = _text_symbols(model, shapes)
    taken, names = names_in(model.scopes), dict[tuple[Over, Expr | None, int, int], str]()
    for node in model.graph.nodes:
        scores = node.input(0)
        if not node.is_op("Softmax") or scores is None or not known[scores].data:
            continue
        dims = shapes[scores].dims
        axis = node.attr("axis", -1)
        if not dims or axis is None or axis % len(dims) != len(dims) - 1 or dims[-1].constant is not None:
            continue
        if not _is_unmasked_product(scores, known):
            continue
        over: Over = "source" if dims[-1].symbols <= frozen else "slots"
        if over == "source" and not dims[-1].symbols <= text:
            continue
        dtype = shapes[scores].dtype
        alike = (over, dims[0] if over == "source" else None, len(dims), dtype)
        if alike not in names:
            base = f"{over}_mask" if len(dims) == 4 else f"{over}_mask_{len(dims)}d"
            names[alike] = free_name(base, {*taken, *names.values()})
        yield MissingMask(
            softmax=node, over=over, keys=dims[-1], sequences=dims[0], rank=len(dims), dtype=dtype, name=names[alike]
        )


def _text_symbols(model: Model, shapes: Shapes) -> frozenset[str]:
    """Return the dims of the inputs that count tokens: some may be padding, which no part of an image is."""
    symbols: set[str] = set()
    for value in model.roles.inputs:
        for axis, dim in enumerate(shapes[value].dims or ()):
            if model.roles.axis(value, axis) in ("encoder", "sequence"):
                symbols |= dim.symbols
    return frozenset(symbols)


def _is_unmasked_product(scores: Value, known: Mapping[Value, Dependence]) -> bool:
    """Whether scores come from a MatMul, and nothing is added that depends on valid lengths or masks."""

    def data(value: Value) -> Value | None:
        return next((each for each in value.sources if each is not None and each in known and known[each].data), None)

    for value in follow_chain(scores, data):
        node = value.producer
        if node is None:
            return False
        if node.is_op("MatMul"):
            return True
        if not node.is_op(*SCORES):
            return False
        inputs = node.operands
        if node.is_op("Add", "Where", "Sub") and any(_is_mask(known.get(operand)) for operand in inputs):
            return False
    return False


def _is_mask(known: Dependence | None) -> bool:
    return known is not None and not known.data and bool(known.inputs or known.symbols)
