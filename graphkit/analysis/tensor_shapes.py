"""Tensor shapes: the dims of every tensor as expressions in the input dims and where they come from; unknown shapes."""

from __future__ import annotations

import itertools
import re
import string
from collections import Counter
from collections.abc import Collection, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import ClassVar

from msgspec import Struct

from graphkit.dtypes import dtype_name
from graphkit.errors import did_you_mean
from graphkit.graph.declared_types import Dim, shape_text
from graphkit.graph.names import by_family, find_matching_values, fixed_values, in_order
from graphkit.graph.operator_traits import MEASURING, value_inputs
from graphkit.graph.view import Node, Value, all_nodes
from graphkit.model import Model, ModelLike, as_model
from graphkit.ops.tensor import plain_dims
from graphkit.render.document_blocks import Block, Prose, Table, table, table_of
from graphkit.render.result import Result, tabled
from graphkit.shapes import AS_DECLARED, Bounds, DimSpec, declarations, infer

UNKNOWN = re.compile(r"\?(\d+)\.")  # how the name of an unknown dim begins
SHOWN_CONSUMERS = 3  # consumers of one Shape that are named
SHOWN_NODES = 12  # in a text


class ShapeRow(Struct, frozen=True):
    """A tensor of one scope."""

    scope: str  # path of the scope, "" for the main graph
    name: str
    dtype: str  # such as `float32`, "?" if unknown
    shape: tuple[Dim, ...] | None  # the dims: numbers, and expressions as text; None if even the rank is unknown
    unknown: str  # why a dim is unknown, "" if all are known

    @property
    def dims(self) -> str:
        return shape_text(self.shape)


@dataclass(frozen=True)
class TensorShapes(Result):
    """The shapes of tensors, in the order of the graph: its inputs, and the outputs of its nodes.

    Attributes:
        known: Number of tensors whose dims are all known.
        facts: Equalities that must hold for the model to run.
        contradictions: Reasons why the model cannot run.
    """

    title: ClassVar[str] = "Tensor shapes"
    known: int
    rows: tuple[ShapeRow, ...]
    facts: tuple[str, ...]
    contradictions: tuple[str, ...]

    def __getitem__(self, name: str) -> ShapeRow:
        """Return the row of a tensor of the main graph, or of the first body that has one; KeyError if none has."""
        found = [row for row in self.rows if row.name == name]
        if not found:
            raise KeyError(f"no tensor '{name}' - {did_you_mean(name, (row.name for row in self.rows))}")
        return found[0]

    def findings(self) -> tuple[str, ...]:
        return self.contradictions

    def csv_tables(self) -> Iterator[Table]:
        yield table_of("Scope:code | Tensor:code=name | Dtype | Shape:code=dims | Unknown because=unknown", self.rows)

    def blocks(self) -> Iterator[Block]:
        share = 100 * self.known / len(self.rows) if self.rows else 100
        yield Prose(f"{self.known:,} of {len(self.rows):,} tensors have known shapes ({share:.4g} %).")
        for fact in self.facts:
            yield Prose(f"The model runs only where {fact}.")
        for scope in dict.fromkeys(row.scope for row in self.rows):
            there = [row for row in self.rows if row.scope == scope]
            texts = {row.name: (row.dims, row.unknown) for row in there}
            tensors_of = Counter(number for shape, _ in texts.values() for number in set(UNKNOWN.findall(shape)))
            cells = ((row.name, (row.dtype, *_letter_unknowns(texts[row.name], tensors_of))) for row in there)
            rows = [
                (label, dtype, *(texts[label] if count == 1 else (shape, unknown or None)))
                for label, (dtype, shape, unknown), count in by_family(cells)
            ]
            yield table("Tensor:code | Dtype | Shape:code | Unknown because:note", rows, scope or "main graph")
        for contradiction in self.contradictions:
            yield Prose(contradiction, "warning")


def _letter_unknowns(texts: Sequence[str], tensors_of: Mapping[str, int]) -> tuple[str, ...]:
    """Return a shape and its reason with a letter in place of the number of an unknown dim that only this tensor has.

    So tensors whose dims are unknown for the same reason become a family: `?7.if` of one and `?8.if` of the next are
    `?a.if` of each.
    """
    letters: dict[str, str] = {}

    def rename(unknown_dim: re.Match[str]) -> str:
        number = unknown_dim[1]
        if number not in letters and tensors_of.get(number) == 1 and len(letters) < len(string.ascii_lowercase):
            letters[number] = string.ascii_lowercase[len(letters)]
        return f"?{letters[number]}." if number in letters else unknown_dim[0]

    return tuple(UNKNOWN.sub(rename, text) for text in texts)


@dataclass(frozen=True)
class WhyShape(Result):
    """The steps from the input dims to the shape of one tensor.

    Attributes:
        kept: For each step, whether its shape is that of the step before, which it reads.
    """

    title: ClassVar[str] = "Why"
    tensor: str
    shape: tuple[Dim, ...] | None
    steps: tuple[str, ...]
    kept: tuple[bool, ...]

    def heading(self) -> str:
        return f"{self.title} {self.tensor} is {shape_text(self.shape)}"

    def blocks(self) -> Iterator[Block]:
        last, rows = len(self.steps) - 1, list[tuple[str, str]]()
        for keeps, run in itertools.groupby(range(len(self.steps)), lambda i: self.kept[i] and i != last):
            numbers = list(run)
            if keeps and len(numbers) > 1:
                rows.append((f"{numbers[0] + 1}-{numbers[-1] + 1}", f"{len(numbers):,} nodes that keep the shape"))
            else:
                rows += ((str(number + 1), self.steps[number]) for number in numbers)
        yield table("Step:number | Tensor and shape:code", rows)


def tensor_shapes(
    model: ModelLike,
    spec: DimSpec = AS_DECLARED,
    *,
    filters: Sequence[str] = (),
    constants: bool = False,
    dims: Mapping[str, int] | None = None,
    inputs: Mapping[str, Sequence[int]] | None = None,
    ranges: Mapping[str, Bounds] | None = None,
) -> TensorShapes:
    """Return a row for the shape of every tensor, and the equalities that must hold for the model to run.

    Args:
        model: The model, or its path.
        spec: The known facts about the input dims; `dims`, `inputs` and `ranges` add to it.
        filters: Globs such as `/model/layers.0/*`, or families such as `present.{0-5}.key`: only tensors that one of
            them matches, by name, as `SCOPE::NAME` or by the path of their node.
        constants: Whether to have rows also for initializers and values that follow from them alone.
        dims: Sizes of symbols.
        inputs: Shapes of inputs.
        ranges: Bounds of symbols, None for an open end.

    Raises:
        UsageError: A symbol or an input does not exist, a size contradicts the model, or a filter matches nothing.

    Example:
        >>> graphkit.tensor_shapes(graphkit.load("example:causal-attention"), dims={"batch_size": 1}).rows[-1].shape
        (1, 'sequence_length', 64)
    """
    shapes = infer(declarations(as_model(model)).model, spec | DimSpec.of(dims, inputs, ranges))
    fixed = fixed_values(shapes.model.scopes)
    values = list(in_order(shapes.model.scopes))
    shown = [value for value in values if constants or value not in fixed]
    rows = []
    for value in find_matching_values(filters, shown, values) if filters else shown:
        tensor = shapes[value]
        dtype = dtype_name(tensor.dtype) if tensor.dtype else "?"
        rows.append(ShapeRow(value.scope.path, value.name, dtype, plain_dims(tensor.dims), shapes.reason(value)))
    return TensorShapes(
        sum(not row.unknown for row in rows),
        tuple(rows),
        tuple(dict.fromkeys(f"{fact.left} = {fact.right}" for fact in shapes.equalities if not fact.scope.path)),
        tuple(f"{finding.node}: {finding.message}" for finding in shapes.findings),
    )


def why_shape(
    model: ModelLike,
    name: str,
    spec: DimSpec = AS_DECLARED,
    *,
    dims: Mapping[str, int] | None = None,
    inputs: Mapping[str, Sequence[int]] | None = None,
    ranges: Mapping[str, Bounds] | None = None,
) -> WhyShape:
    """Return the shape of one tensor, and a step for each tensor on the way to it.

    Args:
        model: The model, or its path.
        name: A tensor of the main graph, a node there, whose first output is meant, or `SCOPE::NAME`.
        spec: The known facts about the input dims; `dims`, `inputs` and `ranges` add to it.
        dims: Sizes of symbols.
        inputs: Shapes of inputs.
        ranges: Bounds of symbols, None for an open end.

    Raises:
        UsageError: There is no such tensor.

    Example:
        >>> graphkit.why_shape(graphkit.load("example:causal-attention"), "logits").shape
        ('batch_size', 'sequence_length', 64)
    """
    model = as_model(model)
    shapes = infer(declarations(model).model, spec | DimSpec.of(dims, inputs, ranges))
    if name not in model.graph.values:
        nodes = (node for node in model.graph.nodes if name and node.proto.name == name)
        name = next((value.name for node in nodes for value in node.results), name)
    path, separator, inner = name.rpartition("::")
    key = (path, inner) if separator and name not in model.graph.values else name
    chain = shapes.chain(key)
    kept = [False]  # where a node reads a value and gives one of the same known shape, whose elements are not followed
    for before, after in itertools.pairwise(chain):
        tensor, reads = shapes[after], after.producer is not None and before in after.producer.inputs
        kept.append(reads and bool(tensor.dims) and tensor.dims == shapes[before].dims and tensor.elements is None)
    lines = tuple(shapes.line(value) for value in chain)
    return WhyShape(name, plain_dims(shapes[key].dims), lines, tuple(kept[: len(chain)]))


class Feeds(Struct, frozen=True):
    """An input that a Shape reaches, directly or through shape computations."""

    node: str  # path of the node, which does not compute a shape itself
    op: str
    input: str  # name of the input if its value is read, else its index

    def __str__(self) -> str:
        return f"{self.op} {self.node} ({self.input})"


class RemainingShape(Struct, frozen=True):
    """A Shape or Size node."""

    node: str
    measures: str  # the tensor whose shape it reads
    feeds: tuple[Feeds, ...]  # the inputs that it reaches


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
    """Return the Shape and Size nodes of a model with the nodes that need them, and the inputs that each reaches.

    Args:
        model: The model, or its path.
        without: Paths of bodies to leave out.

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
