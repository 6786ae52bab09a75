"""The shapes of an original and its rewrite over the same dims of their inputs."""

from __future__ import annotations

from collections.abc import Container, Mapping
from dataclasses import replace

from graphkit.graph.declared_types import declared_dims, shape_text
from graphkit.graph.view import Value
from graphkit.model import Model
from graphkit.shapes import AS_DECLARED, DimSpec, Expr, Shapes, parse, symbol
from graphkit.shapes.graph_inputs import Inputs
from graphkit.shapes.infer import infer_from
from graphkit.shapes.input_dims import DeclaredInputs, read_alike

__all__ = ["common_shapes"]


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
    own = {
        name: _taken_at_their_word(after.graph.values[name], dims, read.groups)
        for name, dims in changed.dims.items()
        if name in free
    }
    first = Inputs(before, values=values, declared=read)
    second = Inputs(after, spec, declared=replace(changed, dims={**changed.dims, **own}))
    theirs = {names.get(name, name): dims for name, dims in second.symbolic.items() if name not in free}
    if narrower:
        both = [(first.symbolic.get(name) or (), dims or ()) for name, dims in theirs.items()]
        pairs = (pair for each in both for pair in zip(*each, strict=False))
        sizes = {dim.name: other for dim, other in pairs if dim.name is not None}
        for name, dims in first.symbolic.items():
            first.symbolic[name] = theirs[name] if name in theirs else _own(name, dims, sizes)
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


def _own(name: str, dims: tuple[Expr, ...] | None, sizes: Mapping[str, Expr]) -> tuple[Expr, ...] | None:
    """Return the dims of an input that only the original has: those of inputs that both have, or dims of its own."""
    if dims is None:
        return None
    own = (symbol(f"{name}.{axis}", 0) for axis in range(len(dims)))
    known = (dim if dim.constant is not None else _sized(dim, sizes) for dim in dims)
    return tuple(mine if dim is None else dim for dim, mine in zip(known, own, strict=True))


def _sized(dim: Expr, sizes: Mapping[str, Expr]) -> Expr | None:
    return None if dim.name is None else sizes.get(dim.name)


def _taken_at_their_word(value: Value, dims: tuple[Expr, ...] | None, names: Container[str]) -> tuple[Expr, ...] | None:
    """Return the dims of an input, of which any text that is not one of these names is an expression."""
    if dims is None:
        return None
    pairs = zip(dims, declared_dims(value) or (), strict=True)
    return tuple(parse(text) if isinstance(text, str) and text not in names else dim for dim, text in pairs)
