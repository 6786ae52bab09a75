"""The KV cache and recurrent state: their contract (which output feeds which input, which stay constant) and memory.

A decoder has as many positions as tables that positions are looked up in have rows, or tables cut to a length have.
"""

from __future__ import annotations

import math
from collections import defaultdict
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from functools import lru_cache
from typing import ClassVar, NamedTuple

from msgspec import Struct
from onnx import TensorProto

from graphkit.analysis.findings import Finding, Judged
from graphkit.analysis.sliding_windows import cut_caches, find_windows
from graphkit.dtypes import BITS, dtype_name
from graphkit.errors import count_things
from graphkit.graph.cache_entries import CacheEntry, growing_axis
from graphkit.graph.dataflow import MOVES, moved_from
from graphkit.graph.declared_types import Dim, TensorType, declared_type, shape_text
from graphkit.graph.names import family_labels, family_pattern
from graphkit.graph.operator_traits import COSINES, CUTTING, GATHERING, PRESERVING, cut_bounds, operator_set
from graphkit.graph.roles import Roles, declared_rank
from graphkit.graph.view import (
    Node,
    Value,
    all_nodes,
    find_nodes,
    follow_chain,
    unwrap_value,
    walk_breadth_first,
    walk_postorder,
)
from graphkit.model import Model, ModelLike, as_model
from graphkit.render.document_blocks import Block, Cell, Prose, line, size_text, table
from graphkit.shapes import Expr, infer
from graphkit.shapes.constraints.legal_sizes import legal_sizes

DEFAULT_CONTEXT = 2048
COUNTERS = ("Range", "CumSum")
# Operators that keep which positions are counted
KEEPING = PRESERVING | CUTTING | operator_set("Cast Clip Max Min Mul")
QUANTIZED = (TensorProto.INT8, TensorProto.UINT8)  # dtypes of tables that are rounded to 8 bits


class Feed(Struct, frozen=True):
    """A family of cache tensors: its inputs, its outputs, and how it changes."""

    past: str  # label of the inputs, "" if there are none
    present: str  # label of the outputs, "" if there are none
    pairs: tuple[tuple[str, str], ...]  # (past, present) names; "" for a missing one
    rule: str  # its handling from step to step, in words


class Memory(Struct, frozen=True):
    """Bytes of the cache for a number of positions of one sequence."""

    context: int
    bytes: int
    windowed: int  # bytes where no more is kept than sliding windows let attention see; `bytes` where there are none


class SlidingWindow(Struct, frozen=True):
    """Layers whose attention sees the last tokens alone, as masks or the lengths of their caches say."""

    tokens: int  # how many, the new one included
    layers: int  # how many layers look back so far
    bytes_per_token: int  # of their cache


class StateFeed(Struct, frozen=True):
    """A family of recurrent states of one dtype and shape: inputs that outputs replace at each step."""

    input: str  # labels of the states before and after a step
    output: str
    pairs: tuple[tuple[str, str], ...]  # (input, output) names
    dtype: str  # such as `float32`
    shape: tuple[Dim, ...]  # its dims
    bytes: int  # of all of the family, for one sequence


@dataclass(frozen=True)
class KVCache(Judged):
    """The cache of a decoder, and recurrent state.

    Attributes:
        layers, kv_heads, head_dim: Sizes of the self-attention cache, None if unknown.
        dtype: Of the cache, such as `float32`.
        layout: Dims of one cache tensor, None for an unknown rank.
        feeds: The contract, one family a row.
        bytes_per_token: Of the cache that grows with every step; None if a dim is unknown.
        bytes_per_encoder_token: Of the cache that is as long as the encoder's output; 0 if there is none.
        fixed_bytes: Of cache tensors that do not grow.
        warnings: Ways to break the contract.
        states: The recurrent state, one family a row.
        length: The dim along which it grows, as declared; "" if that is no symbol.
        positions: How many positions the tables of the model have; None where it has none, or it is not known.
        windows: The sliding windows that were found, the longest last.
    """

    title: ClassVar[str] = "KV cache"
    layers: int | None
    kv_heads: int | None
    head_dim: int | None
    dtype: str
    layout: tuple[Dim, ...] | None
    feeds: tuple[Feed, ...]
    bytes_per_token: int | None
    bytes_per_encoder_token: int | None
    fixed_bytes: int
    memory: tuple[Memory, ...]
    warnings: tuple[Finding, ...]
    states: tuple[StateFeed, ...] = ()
    length: str = field(default="", metadata={"in_json": False})
    positions: int | None = None
    windows: tuple[SlidingWindow, ...] = ()

    def found(self) -> tuple[Finding, ...]:
        return self.warnings

    def in_short(self) -> str:
        if not (self.memory and self.bytes_per_token):
            return super().in_short()
        first = self.memory[0]
        inside = f", in windows {size_text(first.windowed, 'B')}" if self.windows else ""
        size = f"{first.context:,} tokens {size_text(first.bytes, 'B')}{inside}"
        return f"{self.bytes_per_token:,} B a token; {size}"

    def blocks(self) -> Iterator[Block]:
        if not self.feeds:
            yield Prose("None: no input or output of this model is a KV cache.")
            yield from self._states()
            return
        sizes = ((self.layers, "layer(s)"), (self.kv_heads, "KV head(s)"))
        parts = [count_things(size, name) for size, name in sizes if size is not None]
        known = ", ".join([*parts, f"head dim {self.head_dim}"] if self.head_dim is not None else parts)
        yield Prose(f"{known or 'Sizes unknown'}; {self.dtype}, each tensor {shape_text(self.layout)}.")
        if self.bytes_per_token is None:
            yield Prose("Memory per token: unknown, because a dim besides batch and sequence is symbolic.")
        elif self.bytes_per_token:
            yield from self._growth(self.bytes_per_token)
        yield table(
            "Past:code | Present:note | Rule:note | Tensors:number",
            [(f.past or "(none)", f"from {f.present or 'no output'}", f.rule, len(f.pairs)) for f in self.feeds],
            title="Contract: each past takes the present of the step before",
        )
        if self.bytes_per_encoder_token:
            yield Prose(f"{self.bytes_per_encoder_token:,} more bytes for each encoder token, constant after step 1.")
        if self.fixed_bytes:
            yield Prose(f"{self.fixed_bytes:,} bytes for each sequence, which do not grow.")
        yield from self._states()
        for warning in self.warnings:
            yield Prose(warning.text, "warning")

    def _growth(self, per_token: int) -> Iterator[Block]:
        found = f"{self.positions:,} positions are in its tables" if self.positions else ""
        tables, first = found or "no table of positions was found", self.memory[0]
        size = f"{first.context:,} tokens = {_size_text(first.bytes)}"
        yield Prose(f"{per_token:,} bytes for each token; {size}; {tables}.")
        if self.windows:
            layers = f" of {count_things(self.layers, 'layer(s)')}" if self.layers else ""
            back = ", ".join(
                f"{window.layers}{layers} {'looks' if window.layers == 1 else 'look'} back {window.tokens:,} tokens"
                for window in self.windows
            )
            kept = f"{first.context:,} tokens = {_size_text(first.windowed)} where a host keeps no more of these"
            yield Prose(f"{back}: {kept}.")
        headings = "Context:number | Bytes:number | MB:number | MiB:number"
        rows: list[Sequence[Cell]] = [
            (m.context, m.bytes, f"{m.bytes / 1e6:,.1f}", _mebibytes_text(m.bytes)) for m in self.memory
        ]
        if self.windows:
            headings += " | Bytes in windows:number | MB in windows:number"
            inside = [(m.windowed, f"{m.windowed / 1e6:,.1f}") for m in self.memory]
            rows = [(*row, *more) for row, more in zip(rows, inside, strict=True)]
        yield table(headings, rows, "Memory of one sequence")
        sizes = {0: self.fixed_bytes, **{m.context: m.bytes + self.fixed_bytes for m in self.memory}}
        points = [(f"{at:,} tokens", at, size) for at, size in sorted(sizes.items())]
        here = (self.length, f"{per_token}*{self.length} + {self.fixed_bytes}") if self.length else None
        yield line("Growth of the cache of one sequence", "tokens", points, here)

    def _states(self) -> Iterator[Block]:
        if not self.states:
            return
        yield table(
            "State:code | Next:note | Dtype | Shape:note | Tensors:number",
            [(s.input, f"from {s.output}", s.dtype, shape_text(s.shape), len(s.pairs)) for s in self.states],
            title="Recurrent state: each step replaces all of it",
        )
        total = sum(state.bytes for state in self.states)
        yield Prose(f"{total:,} bytes of recurrent state for each sequence, however long it is.")


def kv_cache(model: ModelLike, context: int = DEFAULT_CONTEXT) -> KVCache:
    """Return the KV cache of a decoder: the contract from step to step, and the memory that it takes.

    Args:
        model: The model; one without a cache gives a result without feeds.
        context: Positions for which to state the memory; no more than the model has.

    Example:
        >>> graphkit.kv_cache(graphkit.load("example:merged-decoder")).bytes_per_token
        128
    """
    model = as_model(model)
    roles = model.roles
    layouts = {entry: cache_layout(*_types_of(entry), entry) for entry in roles.cache}
    growing = {entry: layout for entry, layout in layouts.items() if not roles.is_cross(entry)}
    per_token = _add_bytes(growing.values())
    main = next((each for each in growing.values() if each.axis is not None), next(iter(layouts.values()), None))
    declared = next((each for entry in layouts for each in _types_of(entry) if each), None)
    types = ((next(filter(None, _types_of(entry)), None), layout.axis) for entry, layout in growing.items())
    lengths = (known.dims[axis] for known, axis in types if known and known.dims and axis is not None)
    most = table_positions(model)
    contexts = dict.fromkeys(n if most is None else min(n, most) for n in (context, 4 * context))
    found = find_windows(model) if per_token else {}
    windows = list[SlidingWindow]()
    for tokens in sorted(set(found.values())):
        inside = {entry: layout for entry, layout in growing.items() if found.get(entry) == tokens}
        layers = {entry.slot.index[:1] or entry for entry in inside}
        windows.append(SlidingWindow(tokens, len(layers), _add_bytes(inside.values()) or 0))
    kept = {**found, **cut_caches(model)} if windows else {}
    sizes = [(kept[entry], layout.bytes_per_token or 0) for entry, layout in growing.items() if entry in kept]

    def unused_bytes(n: int) -> int:
        """Return the bytes of tokens before the windows, of so many tokens."""
        return sum(max(n - tokens, 0) * size for tokens, size in sizes)

    families: dict[tuple[str, str, str], list[tuple[str, str]]] = defaultdict(list)
    for entry in roles.cache:
        past, present = (value.name if value else "" for value in (entry.past, entry.present))
        families[family_pattern(past), family_pattern(present), _feed_rule(entry, roles)].append((past, present))
    return KVCache(
        layers=_count_layers(growing),
        kv_heads=main.heads if main else None,
        head_dim=main.head_dim if main else None,
        dtype=dtype_name(declared.dtype) if declared else "",
        layout=declared.dims if declared else None,
        feeds=tuple(Feed(*_pair_labels(pairs), tuple(pairs), rule) for (_, _, rule), pairs in families.items()),
        bytes_per_token=per_token,
        bytes_per_encoder_token=_add_bytes(layout for entry, layout in layouts.items() if entry not in growing),
        fixed_bytes=sum(layout.fixed_bytes or 0 for layout in layouts.values()),
        memory=tuple(Memory(n, n * per_token, n * per_token - unused_bytes(n)) for n in contexts) if per_token else (),
        warnings=tuple(_cache_warnings(roles)),
        states=tuple(_state_feeds(roles)),
        length=next((dim for dim in lengths if isinstance(dim, str)), ""),
        positions=most if layouts else None,
        windows=tuple(windows),
    )


def _mebibytes_text(size: int) -> str:
    return f"{size / (1 << 20):,.2f}".rstrip("0").rstrip(".")


def _size_text(size: int) -> str:
    return size_text(size, "B") + (f" = {_mebibytes_text(size)} MiB" if size >= 1e6 else "")


def _types_of(entry: CacheEntry) -> tuple[TensorType | None, TensorType | None]:
    past, present = (declared_type(value) if value is not None else None for value in (entry.past, entry.present))
    return past, present


def _add_bytes(layouts: Iterable[Layout]) -> int | None:
    sizes = [layout.bytes_per_token for layout in layouts]
    return None if None in sizes else sum(size for size in sizes if size is not None)


def _count_layers(self_attention: Mapping[CacheEntry, Layout]) -> int | None:
    indices = {entry.slot.index[0] for entry in self_attention if entry.slot.index}
    if not indices:
        return max((layout.layers for layout in self_attention.values()), default=None)
    kinds = {entry.slot.kind for entry in self_attention}
    values = (value for entry in self_attention for value in (entry.past, entry.present) if value is not None)
    if kinds == {"both"} and all(declared_rank(value) in (None, 4) for value in values):
        return None  # keys and values are not told apart: one tensor a layer, or two
    return len(indices)


def _pair_labels(pairs: Sequence[tuple[str, str]]) -> tuple[str, str]:
    past, after = (family_labels(filter(None, column)) for column in zip(*pairs, strict=True))
    return past, after


def _state_feeds(roles: Roles) -> Iterator[StateFeed]:
    families: dict[tuple[str, str, TensorType], list[tuple[str, str]]] = defaultdict(list)
    for entry in roles.states:
        if (declared := declared_type(entry.past)) is not None:
            names = entry.past.name, entry.next.name
            families[family_pattern(names[0]), family_pattern(names[1]), declared].append(names)
    for (_, _, declared), pairs in families.items():
        dims = declared.dims or ()
        size = math.prod(dim for dim in dims if isinstance(dim, int)) * BITS.get(declared.dtype, 0) // 8
        yield StateFeed(*_pair_labels(pairs), tuple(pairs), dtype_name(declared.dtype), dims, size * len(pairs))


def _feed_rule(entry: CacheEntry, roles: Roles) -> str:
    if entry.slot.kind == "state":
        return "state: replaced by every step"
    if not roles.pasts:
        kept = "encoder KV: constant, keep it for all later steps" if roles.is_cross(entry) else "decoder KV"
        return f"{kept}; made by this first step, read by the decoder with past"
    if entry.past is None:
        return "no input takes it"
    if entry.present is None:
        return "no output gives it: encoder KV, constant; carry over that of step 1"
    if entry.present in roles.empty:
        return "encoder KV: constant after step 1; the cache branch gives it back empty, so carry over that of step 1"
    if roles.is_cross(entry):
        return "encoder KV: constant after step 1, given back unchanged"
    return "decoder KV: changes with every step, feed it back"


def _cache_warnings(roles: Roles) -> Iterator[Finding]:
    if roles.empty:
        label = family_labels(value.name for value in roles.empty)
        text = (
            f"{count_things(len(roles.empty), 'zero-length output(s)')} of the cache branch ({label}): "
            "carry the encoder KV from step 1; do not feed these back."
        )
        yield Finding("zero-length-kv", label, text, count=len(roles.empty))
    orphans = [e.past.name for e in roles.cache if e.past and not e.present and not roles.is_cross(e)]
    if orphans and any(entry.present for entry in roles.cache):
        label = family_labels(orphans)
        text = f"{count_things(len(orphans), 'past input(s)')} without a present output: {label}."
        yield Finding("lost-past", label, text, count=len(orphans))


class Layout(NamedTuple):
    """How one cache tensor is laid out."""

    heads: int | None  # sizes, None if the shape does not show them
    head_dim: int | None
    axis: int | None  # the axis that grows with the sequence, None if there is none or it is unknown
    bytes_per_token: int | None  # bytes for one position of one sequence; None if a dim is unknown
    fixed_bytes: int | None  # bytes for one sequence of a tensor that does not grow
    layers: int = 1  # layers in this tensor


def cache_layout(past: TensorType | None, present: TensorType | None, entry: CacheEntry) -> Layout:
    """Read the layout of a cache tensor from the type of its input, or of its output where it has no input."""
    declared = past or present
    unknown = Layout(None, None, None, None, None)
    if declared is None or declared.dims is None:
        return unknown
    dims, bits = declared.dims, BITS.get(declared.dtype, 0)
    if past is not None and present is not None and present.dims is not None and len(present.dims) == len(dims):
        dims = tuple(there if isinstance(there, int) else dim for dim, there in zip(dims, present.dims, strict=True))
    axis = growing_axis(declared, present if past is not None else None, entry.rows)
    leading = max(len(dims) - 4, 0)  # axes before the batch: a stack of layers, of key and value, or both
    leading = leading if all(isinstance(dim, int) for dim in dims[:leading]) else 0
    rest = [dim for at, dim in enumerate(dims) if at >= leading and at not in (axis, leading)]
    if any(not isinstance(dim, int) for dim in rest):
        return Layout(None, rest[-1] if rest and isinstance(rest[-1], int) else None, axis, None, None)
    sizes = [dim for dim in [*dims[:leading], *rest] if isinstance(dim, int)]
    size = math.prod(sizes) * bits // 8
    layers = 1
    if not entry.slot.index and leading:  # a tensor of all layers; one of keys and values has an axis of 2 for these
        is_of_both = entry.slot.kind == "both" and leading == 2 and sizes[0] == 2 != sizes[1]
        layers = sizes[1] if is_of_both else sizes[0]
    if axis is None:
        return Layout(None, None, None, 0, size, layers)
    inner = [dim for dim in rest if isinstance(dim, int)]
    heads, head_dim = (inner[0], inner[1]) if len(inner) == 2 else (None, inner[0] if len(inner) == 1 else None)
    return Layout(heads, head_dim, axis, size, 0, layers)


@lru_cache(maxsize=4)  # the sections of a report ask several times
def table_positions(model: Model) -> int | None:
    """Return how many positions the tables of a model have, None where it has none, or it is not known.

    More is known of a folded model.
    """
    found = ((node.input(1), _count_table_rows(model, node)) for node in find_nodes(model.scopes, *GATHERING))
    rows = [(indices, count) for indices, count in found if indices is not None and count is not None]
    offsets = _find_offsets(model, [indices for indices, _ in rows])
    alone = [(indices, count) for indices, count in rows if offsets.get(indices) is None]
    counts = [count - offset for indices, count in rows if (offset := offsets.get(indices)) is not None]
    counts += [count - offset for indices, count in alone for offset in _past_offsets(model, indices)]
    tables = (node.input(COSINES[node.operator]) for node in all_nodes(model.scopes) if node.operator in COSINES)
    shapes = (infer(model)[table].dims or () for table in tables if table is not None and table.is_constant)
    counts += [dims[0].constant or 0 for dims in shapes if len(dims) == 2]
    return min((count for count in (*counts, *_count_cut_tables(model)) if count > 0), default=None)


def _past_offsets(model: Model, indices: Value) -> list[int]:
    """Return how far one index is from the length of a past, nothing where it is no index of one new token."""
    shapes, roles = infer(model), model.roles
    own = [(shapes[past].dims, entry.axis) for past, entry in roles.pasts.items() if not roles.is_cross(entry)]
    pasts = dict.fromkeys(dims[axis] for dims, axis in own if dims is not None and axis is not None)
    moved = follow_chain(indices, lambda value: next(iter(moved_from(value, MOVES)), None))
    ones = (elements for value in moved if len(elements := shapes[value].elements or ()) == 1)
    index = next(iter(next(ones, ())), None)
    found = [(index - past).constant for past in pasts] if isinstance(index, Expr) else []
    return [offset for offset in found if offset is not None]


def _count_cut_tables(model: Model) -> Iterator[int]:
    """Yield the lengths of tables that nodes cut to as many positions as there are, from either end."""
    cuts = [(node.operand(0), cut_bounds(node)[:3]) for node in model.graph.nodes if cut_bounds(node)]
    cuts = [(data, bounds) for data, bounds in cuts if data.is_constant and None not in bounds]
    legal = legal_sizes(model) if cuts else None
    if legal is None or legal.past is None or legal.tokens is None:
        return
    shapes, total = infer(model), legal.past + legal.tokens
    for data, bounds in cuts:
        dims, elements = shapes[data].dims or (), [shapes[value].elements or () for value in bounds]
        for start, end, axis in zip(*elements, strict=False):
            at = axis.constant if isinstance(axis, Expr) and axis.constant is not None else len(dims)
            size = dims[at] if -len(dims) <= at < len(dims) else None
            if size is not None and size.constant is not None and total in (end, size - start):
                yield size.constant


def _count_table_rows(model: Model, node: Node) -> int | None:
    """Return the number of rows of the table that a node looks up, None where it reads something else."""
    data = node.input(0)
    if data is None:
        return None
    repeating = ("Tile", "Expand", "Unsqueeze") if node.op_type == "GatherElements" else ()
    passed = ("DequantizeLinear", "Cast", "Identity", *repeating)
    table = unwrap_value(data, passed)
    declared = declared_type(table) if table.is_constant else None
    if declared is None or not (declared.is_float or declared.dtype in QUANTIZED):
        return None
    dims, axis = infer(model)[data].dims or (), node.attr("axis", 0)
    return dims[-2].constant if len(dims) > 1 and axis in (len(dims) - 2, -2) else None


def _find_offsets(model: Model, indices: Sequence[Value]) -> Mapping[Value, int | None]:
    """Return the offset of each value that counts positions, None for others, among some and those that they rest on.

    Each value is looked at once, after the one that it counts on from.
    """
    counters = find_nodes(model.scopes, *COUNTERS) if indices else ()
    starts = [*model.roles.all("positions"), *(value for node in counters for value in node.results)]
    counted = {*walk_breadth_first(starts, lambda value: (out for node, _ in value.consumers for out in node.outputs))}
    offsets = dict[Value, int | None]()

    def before(value: Value) -> Value | None:
        return next((each for each in value.sources if each in counted and each and not each.is_constant), None)

    for value in walk_postorder(indices, lambda value: (before(value),)):
        node, source = value.producer, before(value)
        if node is None:
            offsets[value] = 0 if model.roles.of(value) == "positions" else None
        elif node.is_op(*COUNTERS):
            offsets[value] = int(node.is_op("CumSum"))
        else:
            offset, shift = offsets.get(source) if source is not None else None, _position_shift(model, node)
            offsets[value] = offset + shift if offset is not None and shift is not None else None
    return offsets


def _position_shift(model: Model, node: Node) -> int | None:
    """Return the number that a node adds to positions, None where it may compute something else."""
    if not node.is_op("Add", "Sub"):
        return 0 if node.is_op(*KEEPING) else None
    constants = [tensor for each in node.operands if (tensor := each.constant) is not None]
    arrays = [model.array(tensor) for tensor in constants if tensor.data_type in (TensorProto.INT32, TensorProto.INT64)]
    numbers = [int(array.reshape(-1)[0]) for array in arrays if array.size == 1]
    if not numbers:
        return 0
    is_alone = sum(not each.is_constant for each in node.operands) == 1
    return (-numbers[-1] if node.is_op("Sub") else numbers[-1]) if is_alone else None
