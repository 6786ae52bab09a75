"""Tensor shapes: the dims of every tensor as expressions in the input dims, and where they come from."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import ClassVar

from graphkit.dtypes import dtype_name
from graphkit.graph.types import shape_text
from graphkit.graph.view import Value
from graphkit.model import Model
from graphkit.render.blocks import Block, Prose, table
from graphkit.render.result import Result
from graphkit.shapes import AS_DECLARED, Bounds, DimSpec, Shapes, declarations, infer

__all__ = ["ShapeRow", "TensorShapes", "WhyShape", "tensor_shapes", "why_shape"]


@dataclass(frozen=True)
class ShapeRow:
    """A tensor of one scope.

    Attributes:
        scope: Path of the scope, "" for the main graph.
        dtype: Such as `float32`, "?" if unknown.
        shape: Such as `[batch_size, 8, past_sequence_length + 1, 64]`, "?" if even the rank is unknown.
        unknown: Why a dim is unknown, "" if all are known.
    """

    scope: str
    name: str
    dtype: str
    shape: str
    unknown: str


@dataclass(frozen=True)
class TensorShapes(Result):
    """The shapes of all tensors that nodes compute.

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
                "Tensor:code | Dtype | Shape:note | Unknown because:note",
                [(r.name, r.dtype, r.shape, r.unknown or None) for r in self.rows if r.scope == scope],
                title=scope or "main graph",
            )
        for contradiction in self.contradictions:
            yield Prose(contradiction, "warning")


@dataclass(frozen=True)
class WhyShape(Result):
    """The steps from the input dims to the shape of one tensor."""

    title: ClassVar[str] = "Why"
    tensor: str
    shape: str
    steps: tuple[str, ...]

    def heading(self) -> str:
        return f"{self.title} {self.tensor} is {self.shape}"

    def blocks(self) -> Iterator[Block]:
        yield table("Step:number | Tensor and shape:code", list(enumerate(self.steps, start=1)))


def tensor_shapes(
    model: Model,
    spec: DimSpec = AS_DECLARED,
    *,
    dims: Mapping[str, int] | None = None,
    inputs: Mapping[str, Sequence[int]] | None = None,
    ranges: Mapping[str, Bounds] | None = None,
) -> TensorShapes:
    """Infer the shape of every tensor.

    Args:
        model: The model.
        spec: What is known about the input dims; `dims`, `inputs` and `ranges` add to it.
        dims: Sizes of symbols.
        inputs: Shapes of inputs.
        ranges: Bounds of symbols, None for an open end.

    Returns:
        A row for each tensor that a node computes, and what must hold for the model to run.

    Raises:
        UsageError: A symbol or an input does not exist, or a size contradicts the model.

    Example:
        >>> graphkit.tensor_shapes(graphkit.load("example:causal-attention"), dims={"batch_size": 1}).rows[-1].shape
        '[1, sequence_length, 64]'
    """
    shapes = infer(declarations(model).model, spec | DimSpec.of(dims, inputs, ranges))
    rows = tuple(_row(shapes, value) for value in shapes if value.kind == "node" and not value.is_constant)
    return TensorShapes(
        sum(not row.unknown for row in rows),
        rows,
        tuple(f"{fact.left} = {fact.right}" for fact in shapes.equalities if not fact.scope.path),
        tuple(f"{finding.node}: {finding.message}" for finding in shapes.findings),
    )


def _row(shapes: Shapes, value: Value) -> ShapeRow:
    found = shapes[value]
    dtype = dtype_name(found.dtype) if found.dtype else "?"
    return ShapeRow(value.scope.path, value.name, dtype, shape_text(found.dims), shapes.reason(value))


def why_shape(
    model: Model,
    name: str,
    spec: DimSpec = AS_DECLARED,
    *,
    dims: Mapping[str, int] | None = None,
    inputs: Mapping[str, Sequence[int]] | None = None,
    ranges: Mapping[str, Bounds] | None = None,
) -> WhyShape:
    """Explain where the shape of one tensor comes from.

    Args:
        model: The model.
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
        '[batch_size, sequence_length, 64]'
    """
    shapes = infer(declarations(model).model, spec | DimSpec.of(dims, inputs, ranges))
    path, separator, inner = name.rpartition("::")
    key = (path, inner) if separator and name not in model.graph.values else name
    return WhyShape(name, shape_text(shapes[key].dims), shapes.why(key))
