"""What if: how many nodes that compute shapes would vanish if some input dims were frozen to numbers.

A shape op is a node that computes a shape tensor (`ShapeTensors.works_on_shapes`), constants not counted. It vanishes

- when every element of all its outputs is then a number: constant folding replaces it, or
- when nothing reads its outputs but shape ops that vanish: it is dead.

One inference answers all of it. An element is a number as soon as all its symbols are frozen, to whatever sizes;
`past_sequence_length + 1` counts as its symbol. An element that depends on data, or that the engine cannot decide,
stays. An element that becomes a number for one size only, such as `min(batch_size, sequence_length)` for a batch of 1,
does not count.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from itertools import combinations
from typing import ClassVar

from graphkit.analysis.shape_origins import shape_meaning
from graphkit.graph.dataflow import in_order
from graphkit.graph.names import count_things
from graphkit.graph.view import Node, Scope, Value
from graphkit.model import ModelLike, as_model
from graphkit.render.document_blocks import Block, Prose, table
from graphkit.render.result import Result
from graphkit.shapes import Expr, Ratio, Shapes, infer, is_known

__all__ = ["Freeze", "OpCount", "Stay", "WhatIf", "what_if"]

MAX_SYMBOLS = 10  # whose sets are looked at: a node has a bit for each of 2**10 sets
SHOWN = 3  # sets of each size that are shown


@dataclass(frozen=True)
class Freeze:
    """A set of symbols that could be frozen.

    Attributes:
        removes: Number of shape ops that vanish, including those that are numbers already.
    """

    symbols: tuple[str, ...]
    removes: int


@dataclass(frozen=True)
class OpCount:
    """How many nodes of an operator there are."""

    op: str
    count: int


@dataclass(frozen=True)
class Stay:
    """Shape ops that stay even if all symbols are frozen.

    Attributes:
        reason: What their elements depend on.
    """

    reason: str
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
    """Count the shape ops that vanish if each symbol of the inputs, or a small set of them, is frozen.

    Args:
        model: The model, or its path.
        shapes: The inferred shapes of the model, if they are known already.

    Returns:
        How many shape ops there are, how many each set of symbols removes, and which stay.

    Example:
        >>> graphkit.what_if(graphkit.load("example:causal-attention")).freezes[1]
        Freeze(symbols=('sequence_length',), removes=33)
    """
    model = as_model(model)
    sets = _Sets(shapes or infer(model))
    gone = sets.vanishing()
    today = Counter(node.operator for node, bits in gone.items() if bits & 1)
    stays: dict[str, list[str]] = {}
    for node, bits in gone.items():
        if not bits >> sets.everything & 1:
            stays.setdefault(sets.reason(node), []).append(node.path)
    return WhatIf(
        len(gone),
        tuple(OpCount(op, count) for op, count in sorted(today.items(), key=lambda item: (-item[1], item[0]))),
        tuple(_choose_freezes(sets, Counter(gone.values()))),
        tuple(Stay(reason, tuple(nodes)) for reason, nodes in stays.items()),
    )


class _Sets:
    """The shape ops, and the sets of symbols that make each vanish.

    A set of symbols is a number with a bit for each symbol; a table is a number with a bit for each set. So one pass
    over the graph answers for all sets at once.
    """

    def __init__(self, shapes: Shapes) -> None:
        self.shapes, self.tensors = shapes, shapes.model.shape_tensors
        self.symbols = _group_symbols(shapes)
        self.bits = {name: 1 << index for index, names in enumerate(self.symbols) for name in names}
        self.everything = (1 << len(self.symbols)) - 1
        self.always = (1 << (self.everything + 1)) - 1
        self.tables: dict[int, int] = {}

    def vanishing(self) -> dict[Node, int]:
        """Return the table of each shape op."""
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
                table = tables[node] = self._numbers(node) | self._dead(node, outputs, outside, tables)
            for body in node.bodies.values():
                self._scope(body, table, tables)

    def _numbers(self, node: Node) -> int:
        """Return for which sets all outputs are numbers."""
        values = node.results
        if all(value in self.tensors.static for value in values):
            return self.always
        needed = 0
        for value in values:
            elements = self.shapes[value].elements
            for name in _symbol_names(elements) if elements is not None else ("?",):
                if name not in self.bits:
                    return 0
                needed |= self.bits[name]
        return self._supersets(needed)

    def _supersets(self, needed: int) -> int:
        if needed not in self.tables:
            sets = range(self.everything + 1)
            self.tables[needed] = sum(1 << chosen for chosen in sets if chosen & needed == needed)
        return self.tables[needed]

    def _dead(self, node: Node, outputs: set[Value], outside: int, tables: dict[Node, int]) -> int:
        """Return for which sets nothing that stays reads an output."""
        table = self.always
        for value in node.outputs:
            if value is None:
                continue
            table &= outside if value in outputs else self.always
            for reader, _ in value.consumers:
                table &= tables.get(reader, 0)
        return table

    def reason(self, node: Node) -> str:
        """Return why a shape op stays with all symbols frozen."""
        for value in node.outputs:
            if value is not None and not (self._table_of(value) >> self.everything & 1):
                return shape_meaning(value, self.shapes)[1] or "its elements are not followed"
        return "an output of the graph is computed from it"

    def _table_of(self, value: Value) -> int:
        elements = self.shapes[value].elements
        known = elements is not None and all(name in self.bits for name in _symbol_names(elements))
        return self.always if known else 0


def _symbol_names(elements: Sequence[Expr | Ratio | float]) -> Iterator[str]:
    for element in elements:
        expr = element.dividend if isinstance(element, Ratio) else element
        if isinstance(expr, Expr):
            yield from expr.symbols


def _group_symbols(shapes: Shapes) -> list[tuple[str, ...]]:
    """Return the symbols of the inputs, in order; if there are too many, the last ones form one group."""
    names: dict[str, None] = {}
    for value in shapes.model.graph.inputs:
        for dim in shapes[value].dims or ():
            names.update((symbol.name, None) for symbol in dim.walk_symbols() if is_known(Expr.from_atom(symbol)))
    alone: list[tuple[str, ...]] = [(name,) for name in names]
    if len(alone) <= MAX_SYMBOLS:
        return alone
    return [*alone[: MAX_SYMBOLS - 1], tuple(names)[MAX_SYMBOLS - 1 :]]


def _choose_freezes(sets: _Sets, tables: Counter[int]) -> list[Freeze]:
    """Return the sets to show: of the larger ones, those that remove nodes that no part of them removes."""

    def freeze(chosen: Sequence[int]) -> Freeze:
        mask = sum(1 << index for index in chosen)
        removed = sum(count for table, count in tables.items() if table >> mask & 1)
        return Freeze(tuple(name for index in chosen for name in sets.symbols[index]), removed)

    def adds(chosen: Sequence[int]) -> bool:
        mask = sum(1 << index for index in chosen)
        parts = [mask & ~(1 << index) for index in chosen]
        return any(table >> mask & 1 and not any(table >> part & 1 for part in parts) for table in tables)

    indices = range(len(sets.symbols))
    shown = [freeze(())]
    for size in (1, 2, 3):
        freezes = [freeze(chosen) for chosen in combinations(indices, size) if size == 1 or adds(chosen)]
        shown += sorted(freezes, key=lambda shown_freeze: -shown_freeze.removes)[: None if size == 1 else SHOWN]
    every = freeze(indices)
    return shown if any(shown_freeze.removes == every.removes for shown_freeze in shown) else [*shown, every]
