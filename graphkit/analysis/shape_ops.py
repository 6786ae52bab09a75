"""Shape operators: how many there are, whether they compute shapes or data, and which nodes need each Shape."""

from __future__ import annotations

from collections import Counter, defaultdict
from collections.abc import Collection, Iterator, Sequence
from dataclasses import astuple, dataclass, field
from typing import ClassVar

from graphkit.analysis.findings import Finding, Judged
from graphkit.graph.operator_traits import MEASURING, SHAPE_OPERATORS, value_inputs
from graphkit.graph.view import Node, Value, all_nodes
from graphkit.model import Model, ModelLike, as_model
from graphkit.render.document_blocks import Block, Prose, Table, table, table_of
from graphkit.render.result import Result, tabled
from graphkit.suggest import count_things


@dataclass(frozen=True)
class ValueRead:
    """How often an operator reads one input by value: `static` from constants alone, otherwise `dynamic`."""

    input: str
    static: int
    dynamic: int


@dataclass(frozen=True)
class ShapeOp:
    """Counts of one operator: `on_shapes` for nodes that compute a shape tensor, `on_data` for others."""

    op: str
    total: int
    on_shapes: int
    on_data: int
    reads: tuple[ValueRead, ...]


@dataclass(frozen=True)
class Change:
    """Nodes of one operator before and after a rewrite."""

    op: str
    before: int
    after: int

    @property
    def change(self) -> str:
        """The difference with its sign."""
        return f"{self.after - self.before:+,}" if self.after != self.before else "0"


@dataclass(frozen=True)
class ShapeOps(Judged):
    """The shape operators of a model, subgraphs and functions included.

    Attributes:
        ops: A row for each shape operator that occurs.
        measured: Nodes that read the shape of a computed tensor, which folding derives from the shapes of inputs.
        changes: Counts before and after onnxoptimizer's default passes, empty without a comparison.
    """

    title: ClassVar[str] = "Shape operators"
    nodes: int
    ops: tuple[ShapeOp, ...]
    measured: int = 0
    changes: tuple[Change, ...] = ()
    nodes_after: int | None = None

    @property
    def on_shapes(self) -> int:
        """Nodes that do nothing but compute shapes."""
        return sum(op.on_shapes for op in self.ops)

    def found(self) -> tuple[Finding, ...]:
        if not (self.measured and self.on_shapes):
            return ()
        text = f"{self.on_shapes:,} of {count_things(self.nodes, 'node(s)')} compute shapes at run time."
        return (Finding("shape-chains", f"{self.on_shapes:,} of {self.nodes:,} nodes", text, count=self.on_shapes),)

    def blocks(self) -> Iterator[Block]:
        if not self.ops:
            yield Prose("None: no operator of this model moves, makes or reads a shape.")
            return
        total = sum(op.total for op in self.ops)
        yield Prose(
            f"{total:,} of {self.nodes:,} nodes are shape operators; {self.on_shapes:,} of them compute shapes."
        )
        rows: list[tuple[str | int | None, ...]] = []
        for op in self.ops:
            counts: tuple[str | int | None, ...] = op.op, op.total, op.on_shapes, op.on_data
            for read in op.reads or (ValueRead("", 0, 0),):
                rows.append((*counts, *(astuple(read) if op.reads else (None, None, None))))
                counts = None, None, None, None  # which the first row of an operator tells
        yield table(
            "Op | Total:number | On shapes:number | On data:number | Reads value of | Static:number | Dynamic:number",
            rows,
        )
        if self.nodes_after is not None:
            every = (*self.changes, Change("all nodes", self.nodes, self.nodes_after))
            yield changes_table(every, "Before and after onnxoptimizer (default passes)")


def changes_table(changes: Sequence[Change], title: str = "") -> Table:
    """Return a table of counts before and after a rewrite."""
    return table_of("Op | Before:number | After:number | Change:number", changes, title)


def shape_ops(model: ModelLike, after: ModelLike | None = None) -> ShapeOps:
    """Count the shape operators of a model.

    Args:
        model: The model, or its path.
        after: The same model after an optimizer, for a comparison.

    Returns:
        The counts, by operator in the order of the report.

    Example:
        >>> graphkit.shape_ops(graphkit.load("example:causal-attention")).on_shapes
        64
    """
    model = as_model(model)
    after = as_model(after) if after is not None else None
    tensors = model.shape_tensors
    totals: Counter[str] = Counter()
    on_shapes: Counter[str] = Counter()
    reads: dict[str, dict[str, list[int]]] = defaultdict(lambda: defaultdict(lambda: [0, 0]))
    nodes = measured = 0
    for node in all_nodes(model.scopes):
        nodes += 1
        measured += node.is_op(*MEASURING) and any(v is not None and v.kind == "node" for v in node.inputs)
        if node.domain or node.op_type not in SHAPE_OPERATORS:
            continue
        totals[node.op_type] += 1
        on_shapes[node.op_type] += tensors.works_on_shapes(node)
        for index, name in value_inputs(node).items():
            reads[node.op_type][name][node.inputs[index] not in tensors.static] += 1
    values_read = {op: tuple(ValueRead(name, *counts) for name, counts in read.items()) for op, read in reads.items()}
    ops = tuple(
        ShapeOp(op, totals[op], on_shapes[op], totals[op] - on_shapes[op], values_read.get(op, ()))
        for op in SHAPE_OPERATORS
        if totals[op]
    )
    if after is None:
        return ShapeOps(nodes, ops, measured)
    later = Counter(node.op_type for node in all_nodes(after.scopes) if not node.domain)
    changes = tuple(Change(op, totals[op], later[op]) for op in SHAPE_OPERATORS if totals[op] or later[op])
    return ShapeOps(nodes, ops, measured, changes, sum(1 for _ in all_nodes(after.scopes)))


SHOWN_CONSUMERS = 3  # consumers of one Shape that are named
SHOWN_NODES = 12  # in a text


@dataclass(frozen=True)
class Feeds:
    """An input that a Shape reaches, directly or through shape computations.

    Attributes:
        node: Path of the node, which does not compute a shape itself.
        input: Name of the input if its value is read, else its index.
    """

    node: str
    op: str
    input: str

    def __str__(self) -> str:
        return f"{self.op} {self.node} ({self.input})"


@dataclass(frozen=True)
class RemainingShape:
    """A Shape or Size node.

    Attributes:
        measures: The tensor whose shape it reads.
        feeds: The inputs that it reaches.
    """

    node: str
    measures: str
    feeds: tuple[Feeds, ...]


@dataclass(frozen=True)
class RemainingShapes(Result):
    """The Shape nodes of a model, and why they are there."""

    title: ClassVar[str] = "Remaining shapes"
    shapes: tuple[RemainingShape, ...] = field(
        metadata=tabled(
            "Node:code | Reads shape of:code | Feeds:number | Such as:note",
            cells=lambda shape: (
                shape.node,
                shape.measures,
                len(shape.feeds),
                f"feeds {', '.join(map(str, shape.feeds[:SHOWN_CONSUMERS])) or 'nothing'}",
            ),
            most=SHOWN_NODES,
            empty="No node reads the shape of a tensor.",
        )
    )


def remaining_shapes(model: ModelLike, *, without: Collection[str] = ()) -> RemainingShapes:
    """List the Shape and Size nodes of a model with the nodes that need them.

    Args:
        model: The model, or its path.
        without: Paths of bodies to leave out.

    Returns:
        Each Shape and Size node, with the inputs that it reaches.

    Example:
        >>> print(graphkit.remaining_shapes(graphkit.load("example:causal-attention")).shapes[0].feeds[0])
        Range /Range (limit)
    """
    model = as_model(model)
    excluded = [scope for scope in model.graph.walk() if scope.path in without]
    nodes = [node for node in all_nodes(model.scopes) if node.is_op(*MEASURING)]
    nodes = [node for node in nodes if not any(body.contains(node.scope) for body in excluded)]
    sources = ("?" if (source := node.input(0)) is None else source.name for node in nodes)
    feeds = (tuple(_find_feeds(model, node)) for node in nodes)
    return RemainingShapes(tuple(map(RemainingShape, (node.path for node in nodes), sources, feeds)))


def _find_feeds(model: Model, node: Node) -> Iterator[Feeds]:
    """Yield the inputs that a node's outputs reach through nodes that compute shapes."""
    seen: set[Value] = set()
    pending = [*node.results]
    while pending:
        value = pending.pop()
        if value in seen:
            continue
        seen.add(value)
        if value in value.scope.outputs:
            owner = value.scope.owner
            if owner is None:
                yield Feeds(value.name, "output", "output")
            elif owner.is_op("If"):
                pairs = zip(owner.outputs, value.scope.outputs, strict=False)
                pending += [outer for outer, inner in pairs if inner is value and outer is not None]
            else:
                yield Feeds(owner.path, owner.operator, "output")
        for consumer, index in value.consumers:
            if model.shape_tensors.works_on_shapes(consumer):
                pending += consumer.results
            else:
                yield Feeds(consumer.path, consumer.operator, value_inputs(consumer).get(index, f"input {index}"))
