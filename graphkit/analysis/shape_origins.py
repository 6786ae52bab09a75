"""Shape origins: the expression that computes each shape operand, and its meaning in the input dims."""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from itertools import combinations
from typing import ClassVar

from msgspec import Struct

from graphkit.errors import UsageError, count_things
from graphkit.graph.dataflow import ShapeTensors, in_order
from graphkit.graph.names import group_pairs
from graphkit.graph.operator_traits import JOINING, LOOKUPS, SHAPE_READERS, joined_parts, value_inputs
from graphkit.graph.view import Node, Scope, Value, all_nodes, walk_postorder
from graphkit.model import Model, ModelLike, as_model
from graphkit.ops.tensor import Tensor, without_huge_numbers
from graphkit.render.document_blocks import Block, Cell, Drawing, NodeMark, Prose, Shortened, table
from graphkit.render.result import Result
from graphkit.shapes import Expr, Ratio, Shapes, infer, is_known

AXES = {"axes", "axis", "roi"}  # are left out: nearly always constants, they do not tell where a shape comes from
LIST_LIMIT = 3
MAX_LENGTH = 4000  # beyond it, an expression shows only the name of the operator
DRAWN_GROUPS, DRAWN_NODES = 3, 60
SHOWN = 3  # meanings of a group in a text, and sets of symbols of each size
WIDTH = 120  # characters of a meaning in a text
UNKNOWN_DIM = re.compile(r"\?[0-9]+")
MAX_SYMBOLS = 10  # of which pairs and triples are looked at


class Source(Struct, frozen=True):
    """A tensor whose shape a group depends on, through a Shape or Size."""

    tensor: str
    producer: str  # the operator that computes it, "graph input", "initializer" or "body input"
    count: int  # number of consumers in the group that depend on it


class OriginGroup(Struct, frozen=True):
    """Consumers whose shape input is computed by the same expression."""

    op: str
    input: str
    expression: str
    nodes: tuple[str, ...]
    sources: tuple[Source, ...]  # the tensors whose shapes it depends on, the most used first
    meanings: tuple[Meaning, ...] = ()  # the shapes as expressions in the input dims, the most frequent first

    @property
    def count(self) -> int:
        return len(self.nodes)

    def __str__(self) -> str:
        return f"{self.count}x {self.expression}"


@dataclass(frozen=True)
class Origins(Result):
    """Where the shapes of a model come from.

    Attributes:
        groups: Of consumers in the order of `SHAPE_READERS`, then of the others; the largest group first.
        drawings: The largest groups that compute something, each with the cone of its first consumer.
        optimized: Whether this is the graph after onnxoptimizer.
        full: Whether to show the nodes of each group.
    """

    title: ClassVar[str] = "Shape origins"
    groups: tuple[OriginGroup, ...]
    drawings: tuple[Drawing, ...] = ()
    optimized: bool = False
    full: bool = False

    def heading(self) -> str:
        return f"{self.title} after onnxoptimizer" if self.optimized else self.title

    def marks(self) -> Iterator[NodeMark]:
        for number, group in enumerate(self.groups, 1):
            meaning = f"{number}: {group.op} {group.input}: {_cut_text(group.expression)}"
            text = f"{number}: {meanings_text(group.meanings) or group.expression}"
            yield from (NodeMark("Shape origins", meaning, "", path, text) for path in group.nodes)

    def blocks(self) -> Iterator[Block]:
        if not self.groups:
            yield Prose("No node reads a shape from a tensor.")
            return
        yield Prose(
            "Each expression that computes a shape input, listed once, and what it means in the input dims. CONST is a "
            "constant; a part that is not expanded is named by its operator."
        )
        rows: dict[str, list[tuple[Cell, ...]]] = {}
        for number, group in enumerate(self.groups, 1):
            at, meant = f"at {', '.join(group.nodes)}" if self.full else None, meanings_text(group.meanings, self.full)
            if meant is not None:
                whole = meanings_text(group.meanings, full=True) or ""
                meant = Shortened.of(meant, whole.removeprefix("= "))
            shown = group.sources if self.full else group.sources[:1]
            more = f" and {len(group.sources) - len(shown)} more" if len(shown) < len(group.sources) else ""
            sources = f"depends on {', '.join(f'{each.tensor} ({each.producer})' for each in shown)}{more}"
            told = Shortened.of(sources, ", ".join(each.tensor for each in group.sources)) if shown else None
            row = number, f"{group.count}x", group.expression, meant, told, at
            rows.setdefault(f"{group.op}: {group.input}", []).append(row)
        headings = "#:number | Count:number | Expression:code | Meaning:note | Source:note | Nodes:note"
        yield from (table(headings, members, title) for title, members in rows.items())
        yield from self.drawings


def origins(model: ModelLike, *, full: bool = False, optimized: bool = False, shapes: Shapes | None = None) -> Origins:
    """Return the shapes that nodes read, grouped by the expressions that compute them, with what these depend on.

    Args:
        model: The model, or its path.
        full: Show lists in full, not just three items, and name all nodes and sources of each group.
        optimized: Whether the model is one after onnxoptimizer.
        shapes: The inferred shapes of the model, if they are known already.

    Example:
        >>> graphkit.origins(graphkit.load("example:causal-attention")).groups[0].op
        'Reshape'
    """
    model = as_model(model)
    inferred, consumers = shapes or infer(model), _find_consumers(model, full)
    groups = tuple(_make_group(key, nodes, inferred) for key, nodes in consumers.items())
    largest = sorted((key for key in consumers if key[2] != "CONST"), key=lambda key: -len(consumers[key]))
    drawings = (_draw_cone(key[2], consumers[key][0], key[1], model.shape_tensors) for key in largest[:DRAWN_GROUPS])
    return Origins(groups, tuple(d for d in drawings if len(d.nodes) <= DRAWN_NODES), optimized, full)


def group_drawing(model: Model, number: int) -> Drawing:
    """Return the cone of the first consumer of one group, to draw or to export.

    The groups are numbered from 1, as in the report; a UsageError says that there is no such group.
    """
    consumers = _find_consumers(model, False)
    if not 1 <= number <= len(consumers):
        raise UsageError(f"no group {number} - this model has {len(consumers)}, numbered from 1, see `graphkit report`")
    (_, name, text), nodes = list(consumers.items())[number - 1]
    return _draw_cone(text, nodes[0], name, model.shape_tensors)


def _find_consumers(model: Model, full: bool) -> dict[tuple[str, str, str], list[Node]]:
    """Return the nodes that read a shape by (operator, input, expression), in the order of the report."""
    consumers: dict[tuple[str, str, str], list[Node]] = {}
    position: dict[tuple[str, str], int] = {}
    known: dict[Value, str] = {}
    for node in all_nodes(model.scopes):
        for index, name in value_inputs(node).items():
            position[node.op_type, name] = index
            if name not in AXES:
                text = origin_expression(node.inputs[index], full, known=known)
                consumers.setdefault((node.op_type, name, text), []).append(node)
    ranks = {op: rank for rank, op in enumerate(SHAPE_READERS)}

    def place(key: tuple[str, str, str]) -> tuple[object, ...]:
        return ranks.get(key[0], len(SHAPE_READERS)), key[0], position[key[:2]], -len(consumers[key]), key[2]

    return {key: consumers[key] for key in sorted(consumers, key=place)}


def origin_expression(value: Value | None, full: bool = False, known: dict[Value, str] | None = None) -> str:
    """Return the computation of a value: what joins, picks or measures dims expanded, other producers named.

    Lists are shown in full, or just three items of each; `known` has the expressions found so far.
    """
    if value is None:
        return ""
    known = {} if known is None else known
    for each in walk_postorder([value], lambda each: () if each in known else _shown_operands(each, full)):
        if each not in known:
            known[each] = _cut_expression(each, full, known)
    return known[value]


def _shown_operands(value: Value, full: bool) -> Sequence[Value | None]:
    node = value.producer
    if node is None or not node.is_op("Unsqueeze", *LOOKUPS):
        return () if node is None else joined_parts(node)[: None if full else LIST_LIMIT]
    return node.inputs[:1]


def _cut_expression(value: Value, full: bool, known: Mapping[Value, str]) -> str:
    node = value.producer
    if value.is_constant:
        return "CONST"
    if node is None:
        return value.name
    items = [known[item] if item is not None else "" for item in _shown_operands(value, full)]
    if node.is_op(*JOINING):
        text = f"Concat([{', '.join(items + (['...'] if len(items) < len(node.inputs) else []))}])"
    elif node.is_op("Unsqueeze", *LOOKUPS):
        text = f"{node.op_type}({''.join(items)})"
    else:
        return "Shape(...)" if node.is_op("Shape") else node.operator
    return text if len(text) <= MAX_LENGTH else node.operator


def _make_group(key: tuple[str, str, str], nodes: list[Node], shapes: Shapes) -> OriginGroup:
    op, name, text = key
    counts: Counter[Value] = Counter()
    reads = [read for node in nodes if (read := _value_read(node, name)) is not None]
    for read in reads:
        counts.update(shapes.model.shape_tensors.sources(read))
    sources = []
    for value, count in sorted(counts.items(), key=lambda item: (-item[1], item[0].name)):
        kind = value.kind if value.kind != "input" else "body input" if value.scope.depth else "graph input"
        sources.append(Source(value.name, value.producer.operator if value.producer is not None else kind, count))
    meanings = Counter[tuple[str, str]]()
    for first, *others in group_pairs((shapes[value], value) for value in reads).values():  # layers repeat
        meanings[shape_meaning(first, shapes)] += 1 + len(others)
    shown = tuple(Meaning(shape, count, why) for (shape, why), count in meanings.most_common())
    return OriginGroup(op, name, text, tuple(node.path for node in nodes), tuple(sources), shown)


def _value_read(node: Node, name: str) -> Value | None:
    return next(node.inputs[index] for index, input_name in value_inputs(node).items() if input_name == name)


def _draw_cone(title: str, consumer: Node, name: str, shapes: ShapeTensors) -> Drawing:
    """Return the cone of a consumer's shape input: nodes, the constants they read, the tensors they measure."""
    ids: dict[object, str] = {}
    nodes: list[tuple[str, str, str]] = []
    edges: list[tuple[str, str]] = []

    def vertex(item: object, label: str, role: str) -> str:
        if item not in ids:
            ids[item] = f"{len(ids)}"
            nodes.append((ids[item], label, role))
        return ids[item]

    todo = [(_value_read(consumer, name), vertex(consumer, f"{consumer.op_type} {consumer.label}", "consumer"))]
    for value, below in todo:
        if value is None:
            continue
        producer = value.producer
        if value.is_constant:
            edges.append((vertex((value, below), "CONST", "const"), below))
        elif producer is None or value not in shapes.feeding:
            edges.append((vertex(value, value.name, "data"), below))
        else:
            known = producer in ids
            here = vertex(producer, producer.op_type, "shape" if producer.is_op("Shape", "Size") else "op")
            edges.append((here, below))
            todo += [] if known else [(item, here) for item in producer.inputs]
    return Drawing(title, tuple(nodes), tuple(dict.fromkeys(edges)))


class Meaning(Struct, frozen=True):
    """The elements that some shape tensors of a group share."""

    # the elements as expressions in the input dims, such as `[batch_size, -1, 8]`; `?` for an unknown one, and a
    # single `?` if even their number is unknown
    shape: str
    count: int  # number of consumers that read it
    unknown: str = ""  # why an element is unknown, "" if all are known


def shape_meaning(value: Value, shapes: Shapes) -> tuple[str, str]:
    """Return the elements of a shape tensor as text, and why some are unknown."""
    tensor = shapes[value]
    elements = tensor.elements
    if elements is None:
        reason = tensor.reason or shapes.reason(value) or "its elements are not followed"
        return "?", UNKNOWN_DIM.sub("?", reason)
    texts: list[str] = []
    reasons: dict[str, None] = {}
    for element in elements:
        expr = element.dividend if isinstance(element, Ratio) else element
        unknown = shapes.unknowns(expr).values() if isinstance(expr, Expr) else ()
        texts.append("?" if unknown else str(element))
        if unknown:
            reasons[UNKNOWN_DIM.sub("?", "; ".join(dict.fromkeys(unknown)))] = None
    text = ", ".join(texts)
    return (text if tensor.rank == 0 else f"[{text}]"), "; ".join(filter(None, reasons))


def meanings_text(meanings_found: tuple[Meaning, ...], full: bool = False) -> str | None:
    """Return meanings in one line, shortened unless `full`: `= [batch_size, 8] (36x); [2, 8] (18x)`."""
    if not meanings_found:
        return None
    shown = meanings_found if full else meanings_found[:SHOWN]
    texts = []
    for each in shown:
        plain = without_huge_numbers(each.shape)
        shape, reason = (plain, each.unknown) if full else (_cut_text(plain), _cut_text(each.unknown))
        notes = [f"{each.count}x"] if len(meanings_found) > 1 else []
        notes += [f"not known: {reason}"] if each.unknown else []
        texts.append(shape + (f" ({'; '.join(notes)})" if notes else ""))
    more = f" and {len(meanings_found) - len(shown)} more" if len(shown) < len(meanings_found) else ""
    return f"= {'; '.join(texts)}{more}"


def _cut_text(text: str) -> str:
    """Return a text without its end if it is too long, cut at a space so that no name is, if there is one."""
    if len(text) <= WIDTH:
        return text
    head, space, _ = text[: WIDTH - 3].rpartition(" ")
    return f"{head} ..." if space else f"{text[: WIDTH - 3]}..."


class Freeze(Struct, frozen=True):
    """A set of symbols that could be frozen."""

    symbols: tuple[str, ...]
    removes: int  # number of shape ops that vanish, including those that are numbers already


class OpCount(Struct, frozen=True):
    """How many nodes of an operator there are."""

    op: str
    count: int


class Stay(Struct, frozen=True):
    """Shape ops that stay even if all symbols are frozen."""

    reason: str  # what their elements depend on
    nodes: tuple[str, ...]


@dataclass(frozen=True)
class WhatIf(Result):
    """The nodes that freezing input dims would remove.

    Attributes:
        today: Shape ops that vanish with nothing frozen, by operator.
        freezes: Nothing, each symbol, pairs and triples that remove what no part of them does; all symbols,
            where none of these removes as much.
        stays: Shape ops that stay with all symbols frozen.
    """

    title: ClassVar[str] = "What if"
    total: int
    today: tuple[OpCount, ...]
    freezes: tuple[Freeze, ...]
    stays: tuple[Stay, ...]

    def blocks(self) -> Iterator[Block]:
        if not self.total:
            yield Prose("No node computes a shape.")
            return
        verb = "computes" if self.total == 1 else "compute"
        yield Prose(f"{count_things(self.total, 'node(s)')} {verb} shapes, operators of arithmetic on them included.")
        if self.today:
            ops = ", ".join(f"{op.op} {op.count:,}" for op in self.today)
            yield Prose(f"Numbers already, at any dims: {sum(op.count for op in self.today):,} ({ops}).")
        shown = [freeze for freeze in self.freezes if not freeze.symbols or freeze.removes > self.freezes[0].removes]
        if len(shown) > 1:
            rows = [(", ".join(each.symbols) or "nothing", each.removes, self.total - each.removes) for each in shown]
            title = f"Of {self.total:,} shape ops, with input dims frozen"
            yield table("Frozen:code | Removes:number | Leaves:number", rows, title)
        if vain := [", ".join(freeze.symbols) for freeze in self.freezes if freeze not in shown]:
            yield Prose(f"Freezing these alone removes nothing more: {', '.join(vain)}.")
        for stay in self.stays:
            verb = "stays" if len(stay.nodes) == 1 else "stay"
            yield Prose(
                f"{count_things(len(stay.nodes), 'node(s)')} {verb} even so, such as {stay.nodes[0]}: {stay.reason}."
            )


def what_if(model: ModelLike, *, shapes: Shapes | None = None) -> WhatIf:
    """Return how many shape ops vanish if each symbol of the inputs, or a small set of them, is frozen, and which stay.

    Example:
        >>> graphkit.what_if(graphkit.load("example:causal-attention")).freezes[1]
        Freeze(symbols=('sequence_length',), removes=33)
    """
    model = as_model(model)
    sets = _Sets(shapes or infer(model))
    gone = sets.tables_by_op()
    today = Counter(node.operator for node, bits in gone.items() if bits & 1)
    stays = group_pairs((sets.reason(node), node.path) for node, bits in gone.items() if not bits & sets.everything)
    return WhatIf(
        len(gone),
        tuple(OpCount(op, count) for op, count in sorted(today.items(), key=lambda item: (-item[1], item[0]))),
        tuple(sets.freezes(Counter(gone.values()))),
        tuple(Stay(reason, tuple(nodes)) for reason, nodes in stays.items()),
    )


class _Sets:
    """The shape ops, and the sets of symbols that make each vanish.

    A table is a number with a bit for each set that is looked at: of up to three symbols, and all. So one pass over
     the graph answers for all sets at once.
    """

    def __init__(self, shapes: Shapes) -> None:
        self.shapes, self.tensors = shapes, shapes.model.shape_tensors
        dims = (dim for value in shapes.model.graph.inputs for dim in shapes[value].dims or ())
        symbols = (symbol for dim in dims for symbol in dim.walk_symbols() if is_known(Expr.from_atom(symbol)))
        self.names = tuple(dict.fromkeys(symbol.name for symbol in symbols))
        larger = (chosen for size in (2, 3) for chosen in combinations(self.names[:MAX_SYMBOLS], size))
        sets = dict.fromkeys([(), *((name,) for name in self.names), *larger, self.names])
        self.bits: Mapping[tuple[str, ...], int] = {chosen: 1 << index for index, chosen in enumerate(sets)}
        self.always = (1 << len(sets)) - 1
        self.everything = self.bits[self.names]
        self.tables: dict[Tensor, int] = {}

    def tables_by_op(self) -> dict[Node, int]:
        tables: dict[Node, int] = {}
        for scope in self.shapes.model.scopes:
            self._scope(scope, 0, tables)
        return dict(reversed(tables.items()))

    def _scope(self, scope: Scope, outside: int, tables: dict[Node, int]) -> None:
        """Add the tables of a scope's nodes, last first; `outside` is the table of the node around it."""
        outputs = set(scope.outputs)
        for node in reversed(in_order(scope) if scope.problems else scope.nodes):
            table = 0
            if self.tensors.works_on_shapes(node) and not node.is_op("Constant"):
                table = self.always
                for value in node.results:  # for which sets nothing that stays reads an output
                    table &= outside if value in outputs else self.always
                    for reader, _ in value.consumers:
                        table &= tables.get(reader, 0)
                table = tables[node] = table | self._numbers(node.results)
            for body in node.bodies.values():
                self._scope(body, table, tables)

    def _numbers(self, values: Sequence[Value]) -> int:
        """Return for which sets all elements of some values are numbers."""
        sets = self.always
        for tensor in (self.shapes[value] for value in values if value not in self.tensors.static):
            if tensor not in self.tables:  # layers repeat
                elements = tensor.elements
                every = [each.dividend if isinstance(each, Ratio) else each for each in elements or ()]
                needed = {name for each in every if isinstance(each, Expr) for name in each.symbols}
                bits = () if elements is None else self.bits.items()
                self.tables[tensor] = sum(bit for chosen, bit in bits if needed.issubset(chosen))
            sets &= self.tables[tensor]
        return sets

    def reason(self, node: Node) -> str:
        value = next(value for value in node.results if not self._numbers([value]) & self.everything)
        return shape_meaning(value, self.shapes)[1] or "its elements are not followed"

    def freezes(self, tables: Counter[int]) -> list[Freeze]:
        """Return the sets to show: of the larger ones, those that remove nodes that no part of them removes."""

        def adds(chosen: tuple[str, ...]) -> bool:
            parts = sum(self.bits[part] for part in combinations(chosen, len(chosen) - 1))
            return any(table & self.bits[chosen] and not table & parts for table in tables)

        def freeze(chosen: tuple[str, ...]) -> Freeze:
            return Freeze(chosen, sum(count for table, count in tables.items() if table & self.bits[chosen]))

        shown = [freeze(())]
        for size in (1, 2, 3):
            alike = (chosen for chosen in self.bits if len(chosen) == size and (size == 1 or adds(chosen)))
            shown += sorted(map(freeze, alike), key=lambda each: -each.removes)[: None if size == 1 else SHOWN]
        every = freeze(self.names)
        return shown if any(each.removes == every.removes for each in shown) else [*shown, every]
