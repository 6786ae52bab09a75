"""Unknown shapes: the tensors whose shapes are not known before a run, and the values they depend on."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from typing import TYPE_CHECKING, ClassVar

from graphkit.analysis.findings import Finding, Judged
from graphkit.graph.names import counted
from graphkit.graph.view import Value
from graphkit.model import ModelLike, as_model
from graphkit.render.blocks import Block, Prose, table

if TYPE_CHECKING:
    from graphkit.shapes import Shapes

__all__ = ["UnknownCause", "UnknownShapes", "unknown_shapes"]

SHOWN = 10  # causes in a text


@dataclass(frozen=True)
class UnknownCause:
    """Why the shapes of some tensors are not known.

    Attributes:
        reason: Why, as `graphkit shapes` says it of the first one.
        op, node: The operator and the node that compute the first one.
        first: The first tensor, by its name in `scope`.
        scope: Path of its scope, "" for the main graph.
        tensors: How many tensors depend on it.
    """

    reason: str
    op: str
    node: str
    first: str
    scope: str
    tensors: int

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
        causes: What they depend on, in the order of the graph.
    """

    title: ClassVar[str] = "Unknown shapes"
    tensors: int
    unknown: int
    causes: tuple[UnknownCause, ...]

    def found(self) -> tuple[Finding, ...]:
        return tuple(_finding(cause) for cause in self.causes)

    def blocks(self) -> Iterator[Block]:
        if not self.unknown:
            yield Prose("None: the shape of every tensor follows from those of the inputs.")
            return
        yield Prose(
            f"{self.unknown:,} of {self.tensors:,} tensors have a rank or a dim that does not follow from the inputs: "
            "`graphkit shapes` shows them."
        )
        yield table(
            "First:code | Reason:note | Tensors:number",
            [(cause.name, cause.reason, cause.tensors) for cause in self.causes[:SHOWN]],
        )
        if len(self.causes) > SHOWN:
            yield Prose(f"... and {len(self.causes) - SHOWN:,} more in the JSON report.")


def _finding(cause: UnknownCause) -> Finding:
    tensors = counted(cause.tensors, "tensor(s)")
    text = f"{tensors} of unknown shape from '{cause.name}' on: {cause.reason}"
    return Finding("unknown-shapes", f"{tensors} behind {cause.op} '{cause.node}'", text, cause.op, cause.tensors)


def unknown_shapes(model: ModelLike, *, shapes: Shapes | None = None) -> UnknownShapes:
    """Find the tensors whose shapes are not known before a run.

    Args:
        model: The model, or its path.
        shapes: The inferred shapes of the model, if they are known already.

    Returns:
        How many there are, and what they depend on.

    Example:
        >>> graphkit.unknown_shapes(graphkit.load("example:causal-attention")).unknown
        0
    """
    from graphkit.shapes import infer  # which takes as long to import as most sections take

    shapes = shapes or infer(as_model(model))
    computed = [value for value in shapes if value.kind == "node" and not value.is_constant]
    unknown = [value for value in computed if not shapes[value].is_known]
    groups: dict[object, list[Value]] = {}
    origins: dict[object, object] = {}
    for value in unknown:
        origin = origins.setdefault(_root(shapes, value), value.producer)
        groups.setdefault(origin, []).append(value)
    causes = (_cause(shapes, values) for values in groups.values())
    return UnknownShapes(len(computed), len(unknown), tuple(causes))


def _root(shapes: Shapes, value: Value) -> object:
    """Return the origin of an unknown shape: an unknown symbol, or the reason of an unknown rank."""
    found = shapes[value]
    if found.dims is None:
        return found.reason
    return next(name for dim in found.dims for name in sorted(dim.symbols) if name[:1] == "?")


def _cause(shapes: Shapes, values: list[Value]) -> UnknownCause:
    first = values[0]
    node = first.producer
    op, path = (node.operator, node.path) if node is not None else ("", "")
    return UnknownCause(shapes.reason(first), op, path, first.name, first.scope.path, len(values))
