"""The shapes of an original and its rewrite over the same dims of their inputs."""

from __future__ import annotations

from collections.abc import Container, Iterable, Iterator, Mapping
from dataclasses import replace

from graphkit.graph.declared_types import declared_dims, shape_text
from graphkit.graph.view import Value
from graphkit.model import Model
from graphkit.shapes import AS_DECLARED, DimSpec, Expr, Shapes, parse, symbol
from graphkit.shapes.graph_inputs import Inputs
from graphkit.shapes.infer import infer_from
from graphkit.shapes.input_dims import DeclaredInputs, read_alike

__all__ = ["common_shapes"]

LARGEST = (1 << 63) - 1  # that int64 holds: a proof is about all inputs


def common_shapes(
    before: Model,
    after: Model,
    names: Mapping[str, str],
    values: Mapping[str, object] | None,
    *,
    narrower: bool,
    free: Container[str] = (),
    spec: DimSpec = AS_DECLARED,
    declared: tuple[DeclaredInputs, DeclaredInputs] | None = None,
) -> tuple[Shapes, Shapes] | str:
    """Return the shapes of both models over the same dims of inputs, or why there are none.

    They are about the sizes at which the original runs, as its nodes require, whatever those of the rewritten do.

    Args:
        before: The original.
        after: Its rewrite.
        names: What inputs of the rewrite are called in the original.
        values: Elements of inputs of the original.
        narrower: Whether both have the dims that the rewrite declares.
        free: Inputs that are the rewrite's own.
        spec: Sizes of the inputs of the rewrite.
        declared: The dims of the inputs of both, where they are read in another way than `read_alike` does.
    """
    read, changed = declared or read_alike(before, after, names)
    new = {
        name: _taken_at_their_word(after.graph.values[name], dims, read.groups)
        for name, dims in changed.dims.items()
        if name in free
    }
    first = Inputs(before, values=values, declared=read, largest=LARGEST)
    second = Inputs(after, spec, declared=replace(changed, dims={**changed.dims, **new}), largest=LARGEST)
    theirs = {names.get(name, name): dims for name, dims in second.symbolic.items() if name not in free}
    if narrower:
        both = [(first.symbolic.get(name) or (), dims or ()) for name, dims in theirs.items()]
        pairs = (pair for each in both for pair in zip(*each, strict=False))
        sizes = {dim.name: other for dim, other in pairs if dim.name is not None}
        taken = {each for dims in theirs.values() for dim in dims or () for each in dim.symbols}
        for name, dims in first.symbolic.items():
            own = None if dims is None else tuple(_dims_of_original(name, dims, sizes, taken))
            first.symbolic[name] = theirs.get(name, own)
        first.take_sizes_of(second)
    else:
        for name, dims in theirs.items():
            if first.symbolic.get(name) != dims:
                shown = shape_text(dims), shape_text(first.symbolic.get(name))
                return f"input {name} is declared {shown[0]}, {shown[1]} in the original"
    ranges = dict(first.ranges)
    shapes = infer_from(before, first)
    learned = {
        name: (low, high)
        for name, (low, high) in first.ranges.items()
        if low is not None and (low, high) != ranges.get(name)
    }
    if not learned:
        return shapes, infer_from(after, second)
    second.narrowed({name: bounds for name, bounds in learned.items() if name in second.names})
    return infer_from(before, first), infer_from(after, second)


def _dims_of_original(
    name: str, dims: Iterable[Expr], sizes: Mapping[str, Expr], taken: Container[str]
) -> Iterator[Expr]:
    """Yield the dims of an input that only the original has: those of inputs that both have, or dims of its own."""
    for axis, dim in enumerate(dims):
        own = f"{name}.{axis}"
        while own in taken:
            own += "'"
        yield dim if dim.constant is not None else sizes.get(dim.name or "") or symbol(own, 0)


def _taken_at_their_word(value: Value, dims: tuple[Expr, ...] | None, names: Container[str]) -> tuple[Expr, ...] | None:
    """Return the dims of an input, of which any text that is not one of these names is an expression."""
    if dims is None:
        return None
    pairs = zip(dims, declared_dims(value) or (), strict=True)
    return tuple(parse(text) if isinstance(text, str) and text not in names else dim for dim, text in pairs)
