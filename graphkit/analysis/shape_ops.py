"""Shape operators: how many there are, whether they compute shapes or data, and which nodes need each Shape."""

from __future__ import annotations

from collections import Counter, defaultdict
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from typing import ClassVar

from msgspec import Struct, structs
from onnx import TypeProto

from graphkit.analysis.findings import Finding, Judged
from graphkit.errors import count_things
from graphkit.graph.operator_traits import MEASURING, SHAPE_OPERATORS, value_inputs
from graphkit.graph.view import Value, all_nodes, all_scopes, find_nodes
from graphkit.model import ModelLike, as_model
from graphkit.render.document_blocks import Block, NodeMark, Prose, Table, table, table_of
from graphkit.render.result import tabled
from graphkit.shapes import Shapes, infer


class ValueRead(Struct, frozen=True):
    """How often an operator reads one input by value: `static` from constants alone, otherwise `dynamic`."""

    input: str
    static: int
    dynamic: int


class ShapeOp(Struct, frozen=True):
    """Counts of one operator: `on_shapes` for nodes that compute a shape tensor, `on_data` for others."""

    op: str
    total: int
    on_shapes: int
    on_data: int
    reads: tuple[ValueRead, ...]


class Change(Struct, frozen=True):
    """Nodes of one operator before and after a rewrite."""

    op: str
    before: int
    after: int

    @property
    def change(self) -> str:
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
        which = f"{self.on_shapes:,} of them compute shapes"
        yield Prose(f"{total:,} of {self.nodes:,} nodes are shape operators; {which}.")
        rows: list[tuple[str | int | None, ...]] = []
        for op in self.ops:
            counts: tuple[str | int | None, ...] = op.op, op.total, op.on_shapes, op.on_data
            for read in op.reads or (ValueRead("", 0, 0),):
                rows.append((*counts, *(structs.astuple(read) if op.reads else (None, None, None))))
                counts = None, None, None, None  # which the first row of an operator tells
        counted = "Total:number | On shapes:number | On data:number | Reads value of | Static:number | Dynamic:number"
        yield table(f"Op | {counted}", rows)
        if self.nodes_after is not None:
            every = (*self.changes, Change("all nodes", self.nodes, self.nodes_after))
            yield changes_table(every, "Before and after onnxoptimizer (default passes)")


def changes_table(changes: Sequence[Change], title: str = "") -> Table:
    """Return a table of counts before and after a rewrite."""
    return table_of("Op | Before:number | After:number | Change:number", changes, title)


def shape_ops(model: ModelLike, after: ModelLike | None = None) -> ShapeOps:
    """Return how many shape operators a model has, by operator in the order of the report.

    Args:
        model: The model, or its path.
        after: The same model after an optimizer, for a comparison.

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
    nodes = sum(len(scope.nodes) for scope in all_scopes(model.scopes))
    measured = sum(any(v.kind == "node" for v in node.operands) for node in find_nodes(model.scopes, *MEASURING))
    for node in find_nodes(model.scopes, *SHAPE_OPERATORS):
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


class UnknownCause(Struct, frozen=True):
    """Why the shapes of some tensors are not known."""

    reason: str  # why, as `graphkit shapes` says it of the first one
    op: str  # the operator and the node that compute the first one
    node: str
    first: str  # the first tensor, by its name in `scope`
    scope: str  # path of its scope, "" for the main graph
    tensors: int  # how many tensors depend on it

    @property
    def name(self) -> str:
        """The first tensor as `graphkit shapes --why` takes it."""
        return f"{self.scope}::{self.first}" if self.scope else self.first


@dataclass(frozen=True)
class UnknownShapes(Judged):
    """The unknown shapes of the tensors that nodes compute.

    Attributes:
        tensors: How many there are.
        unknown: How many have an unknown rank or dim.
        causes: The values that they depend on, in the order of the graph.
    """

    title: ClassVar[str] = "Unknown shapes"
    tensors: int
    unknown: int
    causes: tuple[UnknownCause, ...] = field(
        metadata=tabled(
            "First:code=name | Reason:note | Tensors:number",
            most=10,
            empty="None: the shape of every tensor follows from those of the inputs.",
        )
    )

    def found(self) -> tuple[Finding, ...]:
        findings = []
        for cause in self.causes:
            tensors = count_things(cause.tensors, "tensor(s)")
            where = f"{tensors} behind {cause.op} '{cause.node}'"
            text = f"{tensors} of unknown shape from '{cause.name}' on: {cause.reason}"
            findings.append(Finding("unknown-shapes", where, text, cause.op, cause.tensors))
        return tuple(findings)

    def marks(self) -> Iterator[NodeMark]:
        return (NodeMark("Findings", "fault", "fault", cause.node, cause.reason) for cause in self.causes)

    def introduction(self) -> Iterator[str]:
        yield (
            f"{self.unknown:,} of {self.tensors:,} tensors have a rank or a dim that does not follow from the inputs: "
            "`graphkit shapes` shows them."
        )


def _is_map(value: Value) -> bool:
    """Whether it is declared as a map, or a sequence of maps, such as a ZipMap gives, which have no shape."""
    info = value.scope.infos.get(value.name)
    declared = info.type if info is not None else TypeProto()
    return (declared.sequence_type.elem_type if declared.HasField("sequence_type") else declared).HasField("map_type")


def unknown_shapes(model: ModelLike, *, shapes: Shapes | None = None) -> UnknownShapes:
    """Return how many tensors have shapes that are not known before a run, and the values that they depend on.

    Example:
        >>> graphkit.unknown_shapes(graphkit.load("example:causal-attention")).unknown
        0
    """
    shapes = shapes or infer(as_model(model))
    computed = [value for value in shapes if value.kind == "node" and not value.is_constant]
    unknown = [value for value in computed if not shapes[value].is_known and not _is_map(value)]
    groups: dict[object, list[Value]] = {}
    origins: dict[object, object] = {}
    for value in unknown:  # by an unknown symbol, or the reason of an unknown rank; both begin at the first node
        tensor = shapes[value]
        unknowns = (name for dim in tensor.dims or () for name in sorted(dim.symbols) if name[:1] == "?")
        origin = origins.setdefault(tensor.reason if tensor.dims is None else next(unknowns), value.producer)
        groups.setdefault(origin, []).append(value)
    causes = []
    for first, *others in groups.values():
        op, path = (first.producer.operator, first.producer.path) if first.producer is not None else ("", "")
        causes.append(UnknownCause(shapes.reason(first), op, path, first.name, first.scope.path, 1 + len(others)))
    return UnknownShapes(len(computed), len(unknown), tuple(causes))
