"""Make inputs of the values that the host looks up in a table, or computes from positions, lengths and masks."""

from __future__ import annotations

import re
from collections.abc import Mapping
from contextlib import suppress
from dataclasses import dataclass
from typing import Literal, NamedTuple

from msgspec import Struct
from onnx import TensorProto

from graphkit.errors import UsageError, count_things
from graphkit.graph.declared_types import declared_type
from graphkit.graph.names import find_value, free_name, names_in
from graphkit.graph.new_nodes import make_gather
from graphkit.graph.operator_traits import REARRANGING, SAME_ORDER, joined_parts, operator_set
from graphkit.graph.roles import Role
from graphkit.graph.view import Node, Value, chain_end, find_nodes, follow_chain
from graphkit.model import Model
from graphkit.ops.tensor import is_known
from graphkit.passes.attention.masks import SUMS, score_readers
from graphkit.passes.npu.change_dtypes import DequantizeTable
from graphkit.rewrite import Builder, Declined, Editor, Matched, MatchFailure, NewNode, NodeRewrite, Outcome, Pass
from graphkit.rewrite.base import Renames
from graphkit.rewrite.fixpoint import run_to_fixpoint
from graphkit.rewrite.host_values import Dependence, HostValue, find_dependences, host_values
from graphkit.rewrite.new_interface import NewInput, drop_dead_inputs, with_inputs, with_interface
from graphkit.rewrite.pattern import Op, Pattern, nodes_of
from graphkit.shapes import Expr, Shapes, const, infer

TABLE, SCALE, INDICES = Pattern(), Pattern(), Pattern()
ROWS = Op("DequantizeLinear", TABLE, SCALE, more=True)
LOOKUP = Op("Gather", ROWS, INDICES)
WIDE = (TensorProto.INT32, TensorProto.INT64)  # a Cast to these keeps token ids
KEEPS_ELEMENTS = SAME_ORDER | {"Cast"}
NAMES: Mapping[Role, str] = {
    "tokens": "inputs_embeds",
    "encoder tokens": "inputs_embeds",
    "positions": "position_embeds",
    "token types": "token_type_embeds",
}
TO_SOFTMAX = REARRANGING | operator_set("Add Cast Div Max Mul Sub")
SCORES = SAME_ORDER | operator_set("Add Cast Div Expand Mul Sub Tanh Where")
Over = Literal["slots", "source"]


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

    operators = ("Gather",)

    def edit_node(self, editor: Editor, node: Node) -> None:
        out = node.result()
        if (match := LOOKUP.match(editor, out)) is None or not match[TABLE].is_constant:
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
            make_gather(table, indices, None, rows, like=node),
            NewNode("DequantizeLinear", [rows, *dequantize.inputs[1:]], [out.name], attributes),
        )
        editor.note("lookup(s) of rows dequantised afterwards")


class Embedding(Struct, frozen=True):
    """A lookup of rows of a table."""

    node: Node  # the Gather or GatherND
    table: Value  # the constant of rank 2 whose rows it gives
    ids: Value  # the graph input that says which
    role: Role  # of these ids
    name: str  # the input that takes its place


@dataclass(frozen=True)
class ExtractEmbedding(Pass):
    """Make each lookup in a table by an integer input an input of the model, which the host fills.

    Legality: the table is a constant of rank 2 and is looked up along its rows; the indices are the elements of an
    integer graph input, as they are or reshaped. A table that is dequantised first stays quantised. A table of
    activations, indices that are computed, and lookups in bodies of other nodes stay.

    Attributes:
        known_only: Whether lookups by inputs of which nothing is known, such as a class, stay: the matches name them.

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

    known_only: bool = False
    changes_interface = True

    def run(self, model: Model) -> Matched[Embedding]:
        before = model
        model = run_to_fixpoint(model, [DequantizeAfterGather(), DequantizeTable()]).model
        shapes, declined, embeddings = infer(model), list[Declined](), list[Embedding]()
        replaced, names, changes = dict[Value, NewInput](), dict[tuple[Value, Value], str](), list[str]()
        for node in model.graph.nodes_of("Gather", "GatherND"):
            try:
                table, ids, out = _read_lookup(node, shapes)
            except MatchFailure as failure:
                declined.append(Declined(node.path, failure.reason))
                continue
            if any(consumer.scope is not out.scope for consumer, _ in out.consumers):
                continue
            role, dims = model.roles.of(ids), shapes[out].dims or ()
            base = NAMES.get(role) or re.sub(r"[^A-Za-z0-9_]+", "_", f"{ids.name[:64]}_embeds")  # names a file too
            name = names.setdefault((table, ids), free_name(base, {*names.values(), *names_in(model.scopes)}))
            embeddings.append(Embedding(node, table, ids, role, name))
            if role != "other" or not self.known_only:
                replaced[out] = NewInput(name, shapes[table].dtype, dims, f"rows of '{table.name}' at '{ids.name}'")
                changes.append(f"'{ids.name}' is looked up by the host, as '{name}'")
        for node in find_nodes(model.graph.bodies, "Gather", "GatherND"):
            with suppress(MatchFailure):
                _read_lookup(node, shapes)
                declined.append(Declined(node.path, "it is in a body of another node - split or inline that first"))
        if not replaced:
            return Matched(before, declined=tuple(declined), matches=tuple(embeddings))
        model = drop_dead_inputs(with_inputs(model, replaced))
        return Matched(model, tuple(changes), tuple(declined), tuple(embeddings))


def _read_lookup(node: Node, shapes: Shapes) -> tuple[Value, Value, Value]:
    """Return the table, the integer input and the rows of a lookup, or raise a MatchFailure where it is none."""
    table, indices, out = node.operand(0), node.operand(1), node.result()
    if not table.is_constant:
        raise MatchFailure("it gathers from what is computed, not from a table")
    if shapes[table].rank != 2:
        raise MatchFailure("its table is not of rank 2")
    if node.axis(2) != 0:
        raise MatchFailure("it gathers columns, not rows")
    if (ids := id_input(indices, node.op_type == "GatherND")) is None:
        raise MatchFailure("its indices are not the elements of an integer input")
    if shapes[out].dims is None:
        raise MatchFailure(f"the rank of its output is not known: {shapes.reason(out)}")
    return table, ids, out


def id_input(value: Value | None, in_tuples: bool = False) -> Value | None:
    """Return the integer graph input whose elements, in order, these indices are."""

    def before(indices: tuple[Value, bool]) -> tuple[Value, bool] | None:
        value, in_tuples = indices
        node = value.producer
        if node is None or not node.is_op(*KEEPS_ELEMENTS) or (source := node.input(0)) is None:
            return None
        if node.is_op("Cast") and node.attr("to", 0) not in WIDE:
            return None
        return source, in_tuples and not node.is_op("Unsqueeze")  # which makes tuples of one element each

    if value is None:
        return None
    source, in_tuples = chain_end((value, in_tuples), before)
    declared = declared_type(source)
    is_integer = declared is not None and not declared.is_float and source.tensor is None
    return source if source.kind == "input" and not source.scope.path and is_integer and not in_tuples else None


class HostInput(Struct, frozen=True):
    """A value that becomes an input."""

    source: HostValue  # the value, its sources, and where it meets data
    declared: NewInput  # the input that takes its place
    is_mask: bool  # whether it is added to the scores of an attention

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

    changes_interface = True
    kept: frozenset[str] = frozenset()

    def run(self, model: Model) -> Matched[HostInput]:
        declined: list[Declined] = []
        host_inputs = _host_inputs(model, infer(model), self.kept, declined)
        if not (replaced := {host_input.source.value: host_input.declared for host_input in host_inputs}):
            return Matched(model, declined=tuple(declined))
        changes = tuple(f"'{value.name}' is an input, '{declared.name}'" for value, declared in replaced.items())
        return Matched(drop_dead_inputs(with_inputs(model, replaced)), changes, tuple(declined), host_inputs)


def _host_inputs(model: Model, shapes: Shapes, kept: frozenset[str], declined: list[Declined]) -> tuple[HostInput, ...]:
    """Return the values that would become inputs, in node order; others are declined with their reasons."""

    def next_use(use: tuple[Node, int]) -> tuple[Node, int] | None:
        """Return the only reader of an elementwise node's output, which may be on the way to a Softmax."""
        node, index = use
        out = node.outputs[0] if node.outputs else None
        uses = [use for use in score_readers(out) if not use[0].is_op(SUMS)] if out is not None else []
        is_passing = node.is_op(*TO_SOFTMAX) or joined_parts(node)
        is_divisor = node.is_op("Sub", "Div") and index > 0
        return uses[0] if is_passing and len(uses) == 1 and not is_divisor else None

    names, host_inputs = names_in(model.scopes), list[HostInput]()
    for source in host_values(model, shapes, freezable_symbols(model, shapes), kept):
        value = source.value
        dims, dtype = shapes[value].dims, shapes[value].dtype
        if dims is None or not dtype:
            declined.append(Declined(value.name, f"its type is not known: {shapes.reason(value)}"))
            continue
        is_mask = any(reader.is_op("Softmax") for use in source.uses for reader, _ in follow_chain(use, next_use))
        name = free_name("attention_bias" if is_mask else "position_values", names)
        names.add(name)
        host_inputs.append(HostInput(source, NewInput(name, dtype, dims, f"'{value.name}' of the original"), is_mask))
    return tuple(host_inputs)


def freezable_symbols(model: Model, shapes: Shapes) -> frozenset[str]:
    """Return the dims of the inputs that may become numbers: all but the length of a growing cache, and of its masks.

    A cache that does not grow (of cross-attention) is as long as the source.
    """
    growing, others = set[str](), set[str]()
    for value in model.roles.inputs:
        for axis, dim in enumerate(shapes[value].dims or ()):
            counts = model.roles.axis(value, axis)
            grows = counts == "past" or (counts == "total" and bool(model.roles.pasts))
            (growing if grows else others).update(dim.symbols)
    return frozenset(others - growing)


class MissingMask(NamedTuple):
    """An attention without a mask."""

    over: Over  # what its keys are: the slots of a cache, or the positions of the source
    name: str  # the input that becomes its mask; attentions alike share it


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

    changes_interface = True
    per_sequence: bool = False

    def run(self, model: Model) -> Matched[MissingMask]:
        shapes, editor, inputs, missing = infer(model), Editor(model), dict[str, NewInput](), list[MissingMask]()
        known, frozen = find_dependences(model, shapes), freezable_symbols(model, shapes)
        text: set[str] = set()  # dims that count tokens: some may be padding, which no part of an image is
        for value in model.roles.inputs:
            for at, dim in enumerate(shapes[value].dims or ()):
                if model.roles.axis(value, at) in ("encoder", "sequence"):
                    text |= dim.symbols
        taken, names = names_in(model.scopes), dict[tuple[Over, Expr | None, int, int], str]()
        for node in model.graph.nodes:
            scores = node.input(0)
            if not node.is_op("Softmax") or scores is None or not known[scores].data:
                continue
            dims, dtype = shapes[scores].dims, shapes[scores].dtype
            is_last = dims and node.axis(len(dims), -1) == len(dims) - 1
            if not dims or not is_last or not dims[-1].symbols or not is_known(dims[-1]):
                continue
            over: Over = "source" if dims[-1].symbols <= frozen else "slots"
            if not is_unmasked_product(scores, known, shapes) or (over == "source" and not dims[-1].symbols <= text):
                continue
            alike = (over, dims[0] if over == "source" else None, len(dims), dtype)
            if alike not in names:
                base = f"{over}_mask" if len(dims) == 4 else f"{over}_mask_{len(dims)}d"
                names[alike] = free_name(base, {*taken, *names.values()})
            name, masked = names[alike], editor.unique_name(f"{scores.name}_masked")
            missing.append(MissingMask(over, name))
            editor.insert_before(node, NewNode("Add", [scores, name], [masked]))
            editor.set_inputs(node, {0: masked})
            first = dims[0] if self.per_sequence and over == "source" else const(1)
            inputs[name] = NewInput(name, dtype, (*(first, *[const(1)] * len(dims))[: len(dims) - 1], dims[-1]))
        if not missing:
            return Matched(model)
        changes = (count_things(len(missing), "attention(s) given a mask"),)
        return Matched(with_interface(editor.result(), inputs, {}), changes, matches=tuple(missing))


def is_unmasked_product(
    scores: Value, known: Mapping[Value, Dependence], shapes: Shapes, *, by_symbols: bool = True
) -> bool:
    """Whether scores come from a MatMul, and nothing is added that depends on valid lengths or masks.

    What is the same for all keys, as a mask of one that an exporter froze, is none. Sizes alone may tell what is valid
    where they are asked by symbols.
    """

    def data(value: Value) -> Value | None:
        return next((each for each in value.sources if each is not None and each in known and known[each].data), None)

    for value in follow_chain(scores, data):
        if (node := value.producer) is None:
            return False
        if node.is_op("MatMul"):
            return True
        if not node.is_op(*SCORES):
            return False
        is_wide = (shapes[value].dims or (1,))[-1] != 1
        operands = [each for each in node.operands if not is_wide or (shapes[each].dims or (None,))[-1] != 1]
        facts = [known[operand] for operand in operands if operand in known and not known[operand].data]
        if node.is_op("Add", "Where", "Sub") and any(f.inputs or (by_symbols and f.symbols) for f in facts):
            return False  # a mask
    return False


@dataclass(frozen=True)
class PoolRowByOneHot(Pass):
    """Take rows of states by products with one-hot rows, which become inputs.

    Which row it is may follow from tokens that an NPU does not see; whoever knows them makes a row of zeros with a 1
    at its place. Rows that are chosen alike share an input.

    Legality: the states are `[batch, source, hidden]`, and the row, which one node gives, is `[batch, hidden]` or
    `[batch, 1, hidden]`.

    Before:

        agraph (float[2, 3, 4] states, int64[2, 2] places) => (float[2, 4] row) {
            row = GatherND (states, places)
        }

    After `pool-row-by-one-hot{rows=row=states,inputs=row=pooling}`:

        agraph (float[2, 3, 4] states, float[2, 1, 3] pooling) => (float[2, 4] row)
        <int64[1] row_axes = {1}> {
            row_product = MatMul (pooling, states)
            row = Squeeze (row_product, row_axes)
        }

    Attributes:
        rows: The states that each row is taken from: `row=states`.
        inputs: The input that says which row it is: `row=pooling`.
    """

    changes_interface = True

    rows: Renames = ()
    inputs: Renames = ()

    def run(self, model: Model) -> Outcome:
        if not self.rows:
            return Outcome(model)
        editor, inputs, new = Editor(model), dict(self.inputs), dict[str, NewInput]()
        for row, states in self.rows:
            name, values = inputs.get(row, ""), [find_value(model.scopes, each, model.label) for each in (states, row)]
            whole, part = (editor.shapes[value] for value in values)
            dims, of_row = whole.dims or (), part.dims or ()
            is_row = len(dims) == 3 and len(of_row) in (2, 3) and of_row[-1:] == dims[-1:]
            if not name or name in model.graph.values or not is_row:
                problem = f"'{row}' is {part}, no row of '{states}', {whole}, or has no new input"
                raise UsageError(f"{model.label}: {self.name()}: {problem} - name a row, its states and an input")
            new[name] = NewInput(name, whole.dtype, (dims[0], 1, dims[1]), "1 at the place of the row, 0 elsewhere")
            node = values[1].producer
            if node is None or node.scope is not model.graph or len(node.outputs) != 1:
                raise UsageError(f"{model.label}: {self.name()}: no node gives '{row}' alone - name such a row")
            builder = Builder(editor, node)
            product = builder.add("MatMul", name, model.graph.values[states], role="product")
            if len(of_row) == 2:
                builder.add("Squeeze", product, builder.integers([1], "axes"))
            builder.replace()
        made = drop_dead_inputs(with_interface(editor.result(clean=True), new, {}))
        text = "'{}' is the product of '{}', made by the host, and the states"
        return Outcome(made, tuple(text.format(row, inputs[row]) for row, _ in self.rows))
