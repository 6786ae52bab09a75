"""Shape operators: how many there are, whether they compute shapes or data, and which inputs they read by value."""

from __future__ import annotations

from collections import Counter, defaultdict
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import ClassVar

from graphkit.analysis.findings import Finding, Judged
from graphkit.graph.names import counted
from graphkit.graph.value_inputs import value_inputs
from graphkit.graph.view import all_nodes
from graphkit.model import ModelLike, as_model
from graphkit.render.blocks import Bars, Block, Prose, Table, table

__all__ = ["SHAPE_OPS", "Change", "ShapeOp", "ShapeOps", "ValueRead", "changes_table", "shape_ops"]

# Operators that move, make or measure shapes, in the order of the report.
SHAPE_OPS = (
    *("Shape", "Size", "Gather", "Unsqueeze", "Squeeze", "Concat", "Slice", "Reshape"),
    *("Flatten", "Expand", "ConstantOfShape", "Range", "Tile", "Resize", "Upsample", "Where"),
    *("Pad", "Split", "TopK", "OneHot", "CenterCropPad", "Col2Im", "AffineGrid", "MaxUnpool"),
)


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
        text = f"{self.on_shapes:,} of {counted(self.nodes, 'node(s)')} compute shapes at run time."
        return (Finding("shape-chains", f"{self.on_shapes:,} of {self.nodes:,} nodes", text, count=self.on_shapes),)

    def blocks(self) -> Iterator[Block]:
        if not self.ops:
            yield Prose("None: no operator of this model moves, makes or reads a shape.")
            return
        total = sum(op.total for op in self.ops)
        yield Prose(
            f"{total:,} of {self.nodes:,} nodes are shape operators; {self.on_shapes:,} of them compute shapes."
        )
        yield table(
            "Op | Total:number | On shapes:number | On data:number | Reads value of | Static:number | Dynamic:number",
            [row for op in self.ops for row in _rows(op)],
        )
        if self.nodes_after is not None:
            yield from self._comparison(self.nodes_after)

    def _comparison(self, nodes_after: int) -> Iterator[Block]:
        rows = (*self.changes, Change("all nodes", self.nodes, nodes_after))
        yield changes_table(rows, "Before and after onnxoptimizer (default passes)")
        changed = [(c.op, (c.before, c.after)) for c in self.changes if c.before != c.after]
        if changed:
            yield Bars("Before and after", ("before", "after"), changed)


def changes_table(changes: Sequence[Change], title: str = "") -> Table:
    """Return a table of counts before and after a rewrite."""
    signed = (f"{c.after - c.before:+,}" if c.after != c.before else "0" for c in changes)
    return table(
        "Op | Before:number | After:number | Change:number",
        [(c.op, c.before, c.after, text) for c, text in zip(changes, signed, strict=True)],
        title,
    )


def _rows(op: ShapeOp) -> Iterator[Sequence[str | int | None]]:
    first = op.reads[0] if op.reads else None
    counts = op.total, op.on_shapes, op.on_data
    yield (op.op, *counts, *((first.input, first.static, first.dynamic) if first else (None, None, None)))
    for read in op.reads[1:]:
        yield None, None, None, None, read.input, read.static, read.dynamic


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
        measured += node.is_op("Shape", "Size") and any(v is not None and v.kind == "node" for v in node.inputs)
        if node.domain or node.op_type not in SHAPE_OPS:
            continue
        totals[node.op_type] += 1
        on_shapes[node.op_type] += tensors.works_on_shapes(node)
        for index, name in value_inputs(node).items():
            reads[node.op_type][name][node.inputs[index] not in tensors.static] += 1
    ops = tuple(
        ShapeOp(
            op,
            totals[op],
            on_shapes[op],
            totals[op] - on_shapes[op],
            tuple(ValueRead(name, static, dynamic) for name, (static, dynamic) in reads[op].items()),
        )
        for op in SHAPE_OPS
        if totals[op]
    )
    if after is None:
        return ShapeOps(nodes, ops, measured)
    later = Counter(node.op_type for node in all_nodes(after.scopes) if not node.domain)
    changes = tuple(Change(op, totals[op], later[op]) for op in SHAPE_OPS if totals[op] or later[op])
    return ShapeOps(nodes, ops, measured, changes, sum(1 for _ in all_nodes(after.scopes)))
