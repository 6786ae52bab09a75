"""Tensor shapes: the dims of every tensor as expressions in the input dims, and where they come from."""

from __future__ import annotations

import itertools
import re
import string
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import ClassVar

from graphkit.dtypes import dtype_name
from graphkit.graph.families import by_family
from graphkit.graph.lookup import fixed_values, in_order, matching
from graphkit.graph.types import Dim, shape_text
from graphkit.graph.view import Value
from graphkit.model import ModelLike, as_model
from graphkit.render.blocks import Block, Prose, table
from graphkit.render.result import Result
from graphkit.shapes import AS_DECLARED, Bounds, DimSpec, Shapes, declarations, infer
from graphkit.shapes.tensor import plain_dims

__all__ = ["ShapeRow", "TensorShapes", "WhyShape", "tensor_shapes", "why_shape"]

UNKNOWN = re.compile(r"\?(\d+)\.")  # how the name of an unknown dim begins


@dataclass(frozen=True)
class ShapeRow:
    """A tensor of one scope.

    Attributes:
        scope: Path of the scope, "" for the main graph.
        dtype: Such as `float32`, "?" if unknown.
        shape: The dims: numbers, and expressions as text; None if even the rank is unknown.
        unknown: Why a dim is unknown, "" if all are known.
    """

    scope: str
    name: str
    dtype: str
    shape: tuple[Dim, ...] | None
    unknown: str


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

    def findings(self) -> tuple[str, ...]:
        return self.contradictions

    def blocks(self) -> Iterator[Block]:
        share = 100 * self.known / len(self.rows) if self.rows else 100
        yield Prose(f"{self.known:,} of {len(self.rows):,} tensors have known shapes ({share:.4g} %).")
        for fact in self.facts:
            yield Prose(f"The model runs only where {fact}.")
        for scope in dict.fromkeys(row.scope for row in self.rows):
            yield table(
                "Tensor:code | Dtype | Shape:code | Unknown because:note",
                list(_rows([row for row in self.rows if row.scope == scope])),
                title=scope or "main graph",
            )
        for contradiction in self.contradictions:
            yield Prose(contradiction, "warning")


def _rows(found: Sequence[ShapeRow]) -> Iterator[tuple[str, str, str, str | None]]:
    """Yield a row for each family of names of one dtype and shape."""
    texts = {row.name: (shape_text(row.shape), row.unknown) for row in found}
    tensors_of = Counter(number for shape, _ in texts.values() for number in set(UNKNOWN.findall(shape)))
    cells = ((row.name, (row.dtype, *_lettered(texts[row.name], tensors_of))) for row in found)
    for label, (dtype, shape, unknown), count in by_family(cells):
        yield label, dtype, *(texts[label] if count == 1 else (shape, unknown or None))


def _lettered(texts: Sequence[str], tensors_of: Mapping[str, int]) -> tuple[str, ...]:
    """Return a shape and its reason with a letter in place of the number of an unknown dim that only this tensor has.

    So tensors whose dims are unknown for the same reason become a family: `?7.if` of one and `?8.if` of the next are
    `?a.if` of each.
    """
    letters: dict[str, str] = {}

    def renamed(found: re.Match[str]) -> str:
        number = found[1]
        if number not in letters and tensors_of.get(number) == 1 and len(letters) < len(string.ascii_lowercase):
            letters[number] = string.ascii_lowercase[len(letters)]
        return f"?{letters[number]}." if number in letters else found[0]

    return tuple(UNKNOWN.sub(renamed, text) for text in texts)


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
        yield table("Step:number | Tensor and shape:code", list(self._rows()))

    def _rows(self) -> Iterator[tuple[str, str]]:
        """Yield the steps, those that keep the shape as one, but for the last."""
        last = len(self.steps) - 1
        for keeps, run in itertools.groupby(range(len(self.steps)), lambda i: self.kept[i] and i != last):
            numbers = list(run)
            if keeps and len(numbers) > 1:
                yield f"{numbers[0] + 1}-{numbers[-1] + 1}", f"{len(numbers):,} nodes that keep the shape"
            else:
                yield from ((str(number + 1), self.steps[number]) for number in numbers)


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
    """Infer the shape of every tensor.

    Args:
        model: The model, or its path.
        spec: What is known about the input dims; `dims`, `inputs` and `ranges` add to it.
        filters: Globs such as `/model/layers.0/*`, or families such as `present.{0-5}.key`: only tensors that one of
            them matches, by name, as `SCOPE::NAME` or by the path of their node.
        constants: Whether to have rows also for initializers and what follows from them alone.
        dims: Sizes of symbols.
        inputs: Shapes of inputs.
        ranges: Bounds of symbols, None for an open end.

    Returns:
        A row for each tensor, and what must hold for the model to run.

    Raises:
        UsageError: A symbol or an input does not exist, a size contradicts the model, or a filter matches nothing.

    Example:
        >>> graphkit.tensor_shapes(graphkit.load("example:causal-attention"), dims={"batch_size": 1}).rows[-1].shape
        (1, 'sequence_length', 64)
    """
    model = as_model(model)
    shapes = infer(declarations(model).model, spec | DimSpec.of(dims, inputs, ranges))
    fixed = fixed_values(shapes.model.scopes)
    values = list(in_order(shapes.model.scopes))
    shown = [value for value in values if constants or value not in fixed]
    rows = tuple(_row(shapes, value) for value in (matching(filters, shown, values) if filters else shown))
    return TensorShapes(
        sum(not row.unknown for row in rows),
        rows,
        tuple(f"{fact.left} = {fact.right}" for fact in shapes.equalities if not fact.scope.path),
        tuple(f"{finding.node}: {finding.message}" for finding in shapes.findings),
    )


def _row(shapes: Shapes, value: Value) -> ShapeRow:
    found = shapes[value]
    dtype = dtype_name(found.dtype) if found.dtype else "?"
    return ShapeRow(value.scope.path, value.name, dtype, plain_dims(found.dims), shapes.reason(value))


def why_shape(
    model: ModelLike,
    name: str,
    spec: DimSpec = AS_DECLARED,
    *,
    dims: Mapping[str, int] | None = None,
    inputs: Mapping[str, Sequence[int]] | None = None,
    ranges: Mapping[str, Bounds] | None = None,
) -> WhyShape:
    """Explain where the shape of one tensor comes from.

    Args:
        model: The model, or its path.
        name: A tensor of the main graph, or `SCOPE::NAME`.
        spec: What is known about the input dims; `dims`, `inputs` and `ranges` add to it.
        dims: Sizes of symbols.
        inputs: Shapes of inputs.
        ranges: Bounds of symbols, None for an open end.

    Returns:
        The shape, and a step for each tensor on the way to it.

    Raises:
        UsageError: There is no such tensor.

    Example:
        >>> graphkit.why_shape(graphkit.load("example:causal-attention"), "logits").shape
        ('batch_size', 'sequence_length', 64)
    """
    model = as_model(model)
    shapes = infer(declarations(model).model, spec | DimSpec.of(dims, inputs, ranges))
    path, separator, inner = name.rpartition("::")
    key = (path, inner) if separator and name not in model.graph.values else name
    chain = shapes.chain(key)
    kept = [False, *(_keeps(shapes, before, after) for before, after in itertools.pairwise(chain))]
    return WhyShape(
        name, plain_dims(shapes[key].dims), tuple(shapes.line(value) for value in chain), tuple(kept[: len(chain)])
    )


def _keeps(shapes: Shapes, before: Value, after: Value) -> bool:
    """Whether a node reads a value and gives one of the same known shape, whose elements are not followed."""
    found = shapes[after]
    is_same = bool(found.dims) and found.dims == shapes[before].dims and found.elements is None
    return is_same and after.producer is not None and before in after.producer.inputs
