"""A user's specification of a model's inputs: sizes of symbols, shapes of inputs, bounds of symbols."""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass

__all__ = ["AS_DECLARED", "Bounds", "DimSpec", "InputShapes", "SymbolRanges", "SymbolSizes"]

Bounds = tuple[int | None, int | None]
SymbolSizes = tuple[tuple[str, int], ...]
InputShapes = tuple[tuple[str, tuple[int, ...]], ...]
SymbolRanges = tuple[tuple[str, int | None, int | None], ...]


@dataclass(frozen=True)
class DimSpec:
    """A user's specification of the dims of a model's inputs, besides their declarations.

        spec = DimSpec.of(dims={"batch_size": 1}, ranges={"sequence_length": (1, 512)})
        proof = verify_rewrite(model, fold(model, spec).model, spec)

    Functions that take one also take its parts as mappings, which add to it. They raise UsageError if the model lacks
    such symbols or inputs.

    Attributes:
        dims: Sizes of symbols.
        inputs: Shapes of inputs; symbols in them get those numbers.
        ranges: Bounds of symbols, (name, least, largest), None for an open end. Other symbols are at least 1, or
            at least 0 if they are named `past...` or a KV cache grows along them.
    """

    dims: SymbolSizes = ()
    inputs: InputShapes = ()
    ranges: SymbolRanges = ()

    @classmethod
    def of(
        cls,
        dims: Mapping[str, int] | None = None,
        inputs: Mapping[str, Sequence[int]] | None = None,
        ranges: Mapping[str, Bounds] | None = None,
    ) -> DimSpec:
        """Return the spec of these mappings: sizes by symbol, shapes by input, (least, largest) by symbol."""
        return cls(
            tuple((name, int(size)) for name, size in (dims or {}).items()),
            tuple((name, tuple(int(size) for size in shape)) for name, shape in (inputs or {}).items()),
            tuple((name, low, high) for name, (low, high) in (ranges or {}).items()),
        )

    @property
    def numbers(self) -> dict[str, int]:
        """The sizes by symbol."""
        return dict(self.dims)

    @property
    def shapes(self) -> dict[str, tuple[int, ...]]:
        """The shapes by input."""
        return dict(self.inputs)

    @property
    def bounds(self) -> dict[str, Bounds]:
        """The least and the largest size by symbol."""
        return {name: (low, high) for name, low, high in self.ranges}

    def __or__(self, other: DimSpec) -> DimSpec:
        """Return both as one; the other one takes precedence."""
        if other == AS_DECLARED:
            return self
        return DimSpec.of(self.numbers | other.numbers, self.shapes | other.shapes, self.bounds | other.bounds)

    def open_ranges(self, frozen: Collection[str]) -> DimSpec:
        """Return the specification for a model in which these symbols are frozen: the bounds of the others."""
        return DimSpec(ranges=tuple(bounds for bounds in self.ranges if bounds[0] not in frozen))


AS_DECLARED = DimSpec()
