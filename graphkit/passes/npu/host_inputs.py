"""Make inputs of the values that the host looks up in a table, or computes from positions, lengths and masks."""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping
from contextlib import suppress
from dataclasses import dataclass
from typing import ClassVar

from onnx import TensorProto

from graphkit.graph.declared_types import declared_type
from graphkit.graph.names import free_name, names_in
from graphkit.graph.roles import Role
from graphkit.graph.traversal import chain_end, follow_chain
from graphkit.graph.view import Node, Value
from graphkit.model import Model
from graphkit.passes.npu.scores import score_readers
from graphkit.rewrite import Declined, Editor, Matched, MatchFailure, NewNode, NodeRewrite, Pass, run_to_fixpoint
from graphkit.rewrite.host_values import HostValue, host_values
from graphkit.rewrite.new_interface import NewInput, drop_dead_inputs, with_inputs
from graphkit.rewrite.pattern import Op, Pattern, nodes_of
from graphkit.shapes import Shapes, infer

__all__ = [
    "DequantizeAfterGather",
    "Embedding",
    "ExtractEmbedding",
    "ExtractHostValues",
    "HostInput",
    "freezable_symbols",
    "id_input",
]

TABLE, SCALE, INDICES = Pattern(), Pattern(), Pattern()
ROWS = Op("DequantizeLinear", TABLE, SCALE, more=True)
LOOKUP = Op("Gather", ROWS, INDICES)


@dataclass(frozen=True)
class DequantizeAfterGather(NodeRewrite):
    """Look rows up in a constant quantised table, and dequantise these rows alone.

    The table stays as small as it is, and a host can look rows up in it: see `extract-embedding`.

    Legality: the DequantizeLinear is of a constant, with one scale for all of it or one for each column, and rows are
    gathered along axis 0. Each element is dequantised as before.

    Before:

        agraph (int64[N, L] input_ids) => (float[N, L, 2] y)
        <int8[3, 2] table = {1, 2, 3, 4, 5, 6}, float scale = {0.5}> {
            rows = DequantizeLinear (table, scale)
            y = Gather (rows, input_ids)
        }

    After:

        agraph (int64[N, L] input_ids) => (float[N, L, 2] y)
        <int8[3, 2] table = {1, 2, 3, 4, 5, 6}, float scale = {0.5}> {
            y_quantized = Gather (table, input_ids)
            y = DequantizeLinear (y_quantized, scale)
        }
    """

    operators: ClassVar[tuple[str, ...]] = ("Gather",)

    def edit_node(self, editor: Editor, node: Node) -> None:
        out = node.outputs[0]
        match = LOOKUP.match(editor, out)
        if out is None or match is None or not match[TABLE].is_constant:
            return
        table, indices, (dequantize,) = match[TABLE], match[INDICES], nodes_of(match, ROWS)
        rank, of_scale, of_indices = (editor.shapes[value].rank for value in (table, match[SCALE], indices))
        if rank is None or of_scale is None or of_indices is None:
            raise MatchFailure("a rank is not known")
        if dequantize.attributes.keys() - {"axis"}:
            raise MatchFailure("its DequantizeLinear has more attributes than an axis")
        if (node.attr("axis", 0) or 0) % rank != 0:
            raise MatchFailure("it does not gather rows")
        axis = (dequantize.attr("axis", 1) or 0) % rank
        if of_scale > 1 or (of_scale == 1 and axis == 0):
            raise MatchFailure("each row of its table has a scale of its own")
        attributes = {"axis": axis + of_indices - 1} if of_scale == 1 else {}
        rows = editor.unique_name(f"{out.name}_quantized")
        editor.replace(
            node,
            NewNode("Gather", [table, indices], [rows], like=node),
            NewNode("DequantizeLinear", [rows, *dequantize.inputs[1:]], [out.name], attributes),
        )
        editor.note("lookup(s) of rows dequantised afterwards")


WIDE = (TensorProto.INT32, TensorProto.INT64)  # a Cast to these keeps token ids
KEEPS_ELEMENTS = ("Cast", "Flatten", "Identity", "Reshape", "Squeeze", "Unsqueeze")
NAMES: Mapping[Role, str] = {
    "tokens": "inputs_embeds",
    "encoder tokens": "inputs_embeds",
    "positions": "position_embeds",
    "token types": "token_type_embeds",
}


@dataclass(frozen=True, slots=True)
class Embedding:
    """A lookup of rows of a table.

    Attributes:
        node: The Gather or GatherND.
        table: The constant of rank 2 whose rows it gives.
        ids: The graph input that says which.
        role: Of these ids.
        name: The input that takes its place.
    """

    node: Node
    table: Value
    ids: Value
    role: Role
    name: str


@dataclass(frozen=True)
class ExtractEmbedding(Pass):
    """Make each lookup in a table by an integer input an input of the model, which the host fills.

    Legality: the table is a constant of rank 2 and is looked up along its rows; the indices are the elements of an
    integer graph input, as they are or reshaped. A table that is dequantised first stays quantised. A table of
    activations, indices that are computed, and lookups in bodies of other nodes stay.

    Before:

        agraph (int64[N, L] input_ids) => (float[N, L, 2] y) <float[3, 2] table = {1, 2, 3, 4, 5, 6}> {
            e = Gather (table, input_ids)
            y = Neg (e)
        }

    After:

        agraph (float[N, L, 2] inputs_embeds) => (float[N, L, 2] y) {
            y = Neg (inputs_embeds)
        }
    """

    changes_interface: ClassVar[bool] = True

    def run(self, model: Model) -> Matched[Embedding]:
        before = model
        model = run_to_fixpoint(model, [DequantizeAfterGather()]).model
        shapes = infer(model)
        declined: list[Declined] = []
        embeddings = tuple(_find_embeddings(model, shapes, declined))
        declined += _in_bodies(model, shapes)
        if not embeddings:
            return Matched(before, declined=tuple(declined))
        replaced = {}
        for each in embeddings:
            value = each.node.result()
            dims = shapes[value].dims
            assert dims is not None
            text = f"rows of '{each.table.name}' at '{each.ids.name}'"
            replaced[value] = NewInput(each.name, shapes[each.table].dtype, dims, text)
        changes = tuple(f"'{each.ids.name}' is looked up by the host, as '{each.name}'" for each in embeddings)
        return Matched(drop_dead_inputs(with_inputs(model, replaced)), changes, tuple(declined), embeddings)


def _find_embeddings(model: Model, shapes: Shapes, declined: list[Declined]) -> Iterator[Embedding]:
    """Yield the lookups of rows by integer inputs, in node order; other lookups are declined with their reasons."""
    names: dict[tuple[Value, Value], str] = {}
    for node in model.graph.nodes:
        if not node.is_op("Gather", "GatherND"):
            continue
        try:
            table, ids, out = _read_lookup(node, shapes)
        except MatchFailure as failure:
            declined.append(Declined(node.path, failure.reason))
            continue
        if any(consumer.scope is not out.scope for consumer, _ in out.consumers):
            continue
        name = names.setdefault((table, ids), _input_name(ids, set(names.values()), model))
        yield Embedding(node, table, ids, model.roles.of(ids), name)


def _in_bodies(model: Model, shapes: Shapes) -> Iterator[Declined]:
    """Yield the lookups of rows by integer inputs in bodies of other nodes."""
    for scope in model.graph.walk():
        for node in scope.nodes if scope is not model.graph else ():
            if node.is_op("Gather", "GatherND"):
                with suppress(MatchFailure):
                    _read_lookup(node, shapes)
                    yield Declined(node.path, "it is in a body of another node - split or inline that first")


def _read_lookup(node: Node, shapes: Shapes) -> tuple[Value, Value, Value]:
    """Return the table, the integer input and the rows of a lookup.

    Raises:
        MatchFailure: It is no lookup of rows by an integer input.
    """
    table, indices, out = node.input(0), node.input(1), node.outputs[0]
    if table is None or indices is None or out is None:
        raise MatchFailure("an input is missing")
    axis = node.attr("axis", 0)
    if not table.is_constant:
        raise MatchFailure("it gathers from what is computed, not from a table")
    dims = shapes[table].dims
    if dims is None or len(dims) != 2:
        raise MatchFailure("its table is not of rank 2")
    if axis is None or axis % 2 != 0:
        raise MatchFailure("it gathers columns, not rows")
    ids = id_input(indices, node.op_type == "GatherND")
    if ids is None:
        raise MatchFailure("its indices are not the elements of an integer input")
    if shapes[out].dims is None:
        raise MatchFailure(f"the rank of its output is not known: {shapes.reason(out)}")
    return table, ids, out


def id_input(value: Value | None, in_tuples: bool = False) -> Value | None:
    """Return the integer graph input whose elements, in order, these indices are."""
    if value is None:
        return None
    source, in_tuples = chain_end((value, in_tuples), _before_reshaping)
    declared = declared_type(source)
    is_integer = declared is not None and not declared.is_float and source.tensor is None
    is_input = source.kind == "input" and not source.scope.path
    return source if is_input and is_integer and not in_tuples else None


def _before_reshaping(indices: tuple[Value, bool]) -> tuple[Value, bool] | None:
    value, in_tuples = indices
    producer = value.producer
    if producer is None or not producer.is_op(*KEEPS_ELEMENTS):
        return None
    if producer.is_op("Cast") and producer.attr("to", 0) not in WIDE:
        return None
    source = producer.input(0)
    is_tuple = in_tuples and not producer.is_op("Unsqueeze")  # which makes tuples of one element each
    return (source, is_tuple) if source is not None else None


def _input_name(ids: Value, taken: set[str], model: Model) -> str:
    base = NAMES.get(model.roles.of(ids)) or re.sub(
        r"[^A-Za-z0-9_]+", "_", f"{ids.name[:64]}_embeds"
    )  # names a file too
    return free_name(base, taken | names_in(model.scopes))


ELEMENTWISE_TO_SOFTMAX = ("Add", "Mul", "Div", "Max", "Sub", "Reshape", "Transpose", "Cast", "Concat")


@dataclass(frozen=True, slots=True)
class HostInput:
    """A value that becomes an input.

    Attributes:
        source: The value, its sources, and where it meets data.
        declared: The input that takes its place.
        is_mask: Whether it is added to the scores of an attention.
    """

    source: HostValue
    declared: NewInput
    is_mask: bool

    @property
    def name(self) -> str:
        """The name of the input."""
        return self.declared.name


@dataclass(frozen=True)
class ExtractHostValues(Pass):
    """Make values that depend on positions, lengths and masks alone, and meet data, inputs of the model.

    Position embeddings, rotary tables, biases of relative positions and additive masks are functions of how many tokens
    came before, or of which are valid. A length that is frozen later would make them constants, which are right at
    one step only.

    Legality: the value depends on no floating-point input but a mask, and varies with the elements of an integer input
    or with the length of the cache. Shapes stay: they are constants once the dims are numbers.

    Attributes:
        kept: Tokens and masks that the host cannot make, by name: they stay inputs.

    Before:

        agraph (float[N, L] x, int64[N, L] mask) => (float[N, L] y) <float[1] floor = {-100}, int64[1] one = {1}> {
            m = Sub (one, mask)
            f = Cast <to = 1> (m)
            bias = Mul (f, floor)
            s = Add (x, bias)
            y = Softmax (s)
        }

    After:

        agraph (float[N, L] x, float[N, L] attention_bias) => (float[N, L] y) {
            s = Add (x, attention_bias)
            y = Softmax (s)
        }
    """

    changes_interface: ClassVar[bool] = True
    kept: frozenset[str] = frozenset()

    def run(self, model: Model) -> Matched[HostInput]:
        shapes = infer(model)
        declined: list[Declined] = []
        host_inputs = _host_inputs(model, shapes, self.kept, declined)
        replaced = {host_input.source.value: host_input.declared for host_input in host_inputs}
        if not replaced:
            return Matched(model, declined=tuple(declined))
        changes = tuple(f"'{value.name}' is an input, '{declared.name}'" for value, declared in replaced.items())
        return Matched(drop_dead_inputs(with_inputs(model, replaced)), changes, tuple(declined), host_inputs)


def _host_inputs(model: Model, shapes: Shapes, kept: frozenset[str], declined: list[Declined]) -> tuple[HostInput, ...]:
    """Return the values that would become inputs, in node order; others are declined with their reasons."""
    names = names_in(model.scopes)
    host_inputs = []
    for source in host_values(model, shapes, freezable_symbols(model, shapes), kept):
        value = source.value
        dims, dtype = shapes[value].dims, shapes[value].dtype
        if dims is None or not dtype:
            declined.append(Declined(value.name, f"its type is not known: {shapes.reason(value)}"))
            continue
        is_mask = any(_reaches_softmax(node, index) for node, index in source.uses)
        name = free_name("attention_bias" if is_mask else "position_values", names)
        names.add(name)
        host_inputs.append(HostInput(source, NewInput(name, dtype, dims, f"'{value.name}' of the original"), is_mask))
    return tuple(host_inputs)


def freezable_symbols(model: Model, shapes: Shapes) -> frozenset[str]:
    """Return the dims of the inputs that may become numbers: all but the length of a growing cache, and of its masks.

    A cache that does not grow (of cross-attention) is as long as the source.
    """
    growing: set[str] = set()
    others: set[str] = set()
    for value in model.roles.inputs:
        for axis, dim in enumerate(shapes[value].dims or ()):
            counts = model.roles.axis(value, axis)
            grows = counts == "past" or (counts == "total" and bool(model.roles.pasts))
            (growing if grows else others).update(dim.symbols)
    return frozenset(others - growing)


def _reaches_softmax(node: Node, index: int) -> bool:
    return any(reader.is_op("Softmax") for reader, _ in follow_chain((node, index), _next_reader))


def _next_reader(use: tuple[Node, int]) -> tuple[Node, int] | None:
    """Return the only reader of an elementwise node's output, which may be on the way to a Softmax."""
    node, index = use
    out = node.outputs[0] if node.outputs else None
    uses = score_readers(out) if out is not None else ()
    if not node.is_op(*ELEMENTWISE_TO_SOFTMAX) or len(uses) != 1 or (node.is_op("Sub", "Div") and index > 0):
        return None
    return uses[0]
