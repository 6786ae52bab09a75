"""Tensors of both models whose dtype or dims differ, beyond what follows from other dims of the inputs."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping

from graphkit.dtypes import dtype_name
from graphkit.graph.dataflow import in_order
from graphkit.graph.declared_types import shape_text
from graphkit.graph.names import count_things
from graphkit.graph.view import Node, Value
from graphkit.model_diff.changes import NoteChange, ShapeChange
from graphkit.model_diff.node_matching import NodeMatching, value_path
from graphkit.ops.tensor import Tensor, is_known
from graphkit.shapes import Shapes
from graphkit.symbolic.expr import Expr

__all__ = ["declaration_changes", "shape_changes"]

Dims = tuple[Expr, ...] | None


def shape_changes(matching: NodeMatching, shapes: tuple[Shapes, Shapes]) -> Iterator[ShapeChange]:
    """Yield the tensors that matching nodes compute in another dtype or dims.

    Where a symbol of an input is another one, or a number, in B, it is in what follows from it too. A dim that is not
    known in one of the models is no difference.
    """
    ends = (
        *matching.interface.inputs.pairs,
        *matching.interface.outputs.pairs,
    )  # outputs for symbols of inputs that B lacks
    dims = [(shapes[0][value_a].dims, shapes[1][value_b].dims) for value_a, value_b in ends]
    renaming = _renamed_symbols(dims), _renamed_symbols((dims_b, dims_a) for dims_a, dims_b in dims)
    differing: set[Value] = set()
    for node, value_a, value_b in _computed_values(matching):
        first, second = shapes[0][value_a], shapes[1][value_b]
        is_same_dtype = first.dtype == second.dtype or 0 in (first.dtype, second.dtype)  # 0: not known
        if is_same_dtype and _same_dims(first.dims, second.dims, renaming):
            continue
        differing.add(value_a)
        follows = any(value in differing for value in node.inputs)
        yield ShapeChange(
            value_path(value_a),
            value_path(value_b),
            node.operator,
            before=_tensor_text(first),
            after=_tensor_text(second),
            follows=follows,
        )


def _computed_values(matching: NodeMatching) -> Iterator[tuple[Node, Value, Value]]:
    """Yield the nodes of both models with each result, those of a graph after those that they read; no constants."""
    for graph in dict.fromkeys(pair.a for pair in (*matching.graphs, *matching.moves)):
        for node in in_order(graph):
            twin = matching.forth.get(node) if not node.is_op("Constant") else None
            for value_a, value_b in zip(node.outputs, twin.outputs if twin is not None else (), strict=False):
                if value_a is not None and value_b is not None:
                    yield node, value_a, value_b


def _renamed_symbols(ends: Iterable[tuple[Dims, Dims]]) -> Mapping[str, Expr]:
    """Return the counterparts of symbols in the other model: numbers, other symbols, or the same with other bounds."""
    counterparts: dict[Expr, Expr] = {}
    for dims, others in ends:
        if dims is None or others is None or len(dims) != len(others):
            continue
        for dim, other_dim in zip(dims, others, strict=True):
            if dim.name is not None:
                counterparts.setdefault(dim, other_dim)
    return {str(dim.name): other_dim for dim, other_dim in counterparts.items() if dim != other_dim}


def _tensor_text(tensor: Tensor) -> str:
    return f"{dtype_name(tensor.dtype) if tensor.dtype else '?'}{shape_text(tensor.dims)}"


def _same_dims(dims_a: Dims, dims_b: Dims, renaming: tuple[Mapping[str, Expr], Mapping[str, Expr]]) -> bool:
    if dims_a is None or dims_b is None:
        return True
    return len(dims_a) == len(dims_b) and all(
        not (is_known(x) and is_known(y)) or x == y or x.substitute(renaming[0]) == y or x == y.substitute(renaming[1])
        for x, y in zip(dims_a, dims_b, strict=True)
    )


def declaration_changes(matching: NodeMatching) -> Iterator[NoteChange]:
    """Yield how many tensors of both models have their type declared in one of them only, or declared otherwise."""
    counts = {"A": 0, "B": 0, "both": 0}
    for value_a, value_b in matching.values.forth.items():
        ends = (*value_a.scope.outputs, *value_b.scope.outputs)
        if value_a.producer is None or value_a.producer not in matching.forth or value_a in ends or value_b in ends:
            continue
        first, second = value_a.scope.infos.get(value_a.name), value_b.scope.infos.get(value_b.name)
        if first is not None and second is not None:
            counts["both"] += first.type != second.type
        elif first is not None or second is not None:
            counts["B" if first is None else "A"] += 1
    texts = {name: count_things(count, "tensor(s)") for name, count in counts.items() if count}
    if counts["A"] or counts["B"]:
        yield NoteChange("declared types", texts.get("A"), texts.get("B"))
    if counts["both"]:
        yield NoteChange("types that are declared otherwise", texts["both"], texts["both"])
