"""Compute an Einsum of two tensors by a MatMul, and Transposes and Reshapes around it."""

from __future__ import annotations

import string
from dataclasses import dataclass
from typing import ClassVar

from graphkit.dtypes import FLOATS
from graphkit.graph.view import Node
from graphkit.ops.tensor import Dims
from graphkit.rewrite import ROUNDING, Builder, Editor, MatchFailure, NodeInput, NodeRewrite
from graphkit.rewrite.reshape_spec import reshape_spec
from graphkit.shapes import Expr, const

__all__ = ["EinsumToMatmul"]

RESHAPE_SINCE = 5
MOST_APART = 2  # axes of the batch that a MatMul keeps; more become one


@dataclass(frozen=True)
class EinsumToMatmul(NodeRewrite):
    """Replace an Einsum of two tensors by a MatMul, with Transposes and Reshapes where the axes are in another order.

    Sums may be added up in another order: the last digits of results may change.

    Legality: no axis occurs twice in one tensor, or in one tensor alone and not in the result; axes of the same name
    have the same length; the shapes can be written as constants.

    Before:

        agraph (float[N, 5, 2, 4] q, float[N, 6, 2, 4] k) => (float[N, 2, 5, 6] y) {
            y = Einsum <equation = "bqhd,bkhd->bhqk"> (q, k)
        }

    After:

        agraph (float[N, 5, 2, 4] q, float[N, 6, 2, 4] k) => (float[N, 2, 5, 6] y) {
            y_left = Transpose <perm: ints = [0, 2, 1, 3]> (q)
            y_right = Transpose <perm: ints = [0, 2, 3, 1]> (k)
            y = MatMul (y_left, y_right)
        }
    """

    largest_error: ClassVar[float] = ROUNDING
    operators: ClassVar[tuple[str, ...]] = ("Einsum",)

    def edit_node(self, editor: Editor, node: Node) -> None:
        plan = _Plan(editor, node)
        plan.compute(_read_product(editor, node))
        plan.replace()
        editor.note("Einsum(s) computed by a MatMul")


@dataclass(frozen=True)
class _Product:
    """The product that an Einsum computes, by the letters of its axes.

    Attributes:
        left, right, result: The axes of each tensor.
        sizes: The length of each.
    """

    left: str
    right: str
    result: str
    sizes: dict[str, Expr]

    @property
    def batch(self) -> str:
        """The axes of all three."""
        return "".join(axis for axis in self.result if axis in self.left and axis in self.right)

    @property
    def summed(self) -> str:
        """The axes of both tensors that the result lacks."""
        return "".join(axis for axis in self.left if axis in self.right and axis not in self.result)

    def free(self, axes: str) -> str:
        """Return the axes of one tensor that are in the result, and not in the other tensor."""
        return "".join(axis for axis in self.result if axis in axes and axis not in self.batch)

    def dims(self, axes: str) -> Dims:
        return tuple(self.sizes[axis] for axis in axes)

    def count(self, axes: str) -> Expr:
        total = const(1)
        for axis in axes:
            total = total * self.sizes[axis]
        return total


def _read_product(editor: Editor, node: Node) -> _Product:
    equation, values = node.attr("equation", ""), node.operands
    if not equation or len(values) != 2 or node.scope.opset() < RESHAPE_SINCE:
        raise MatchFailure("it is not of two tensors")
    dims = [editor.shapes[value].dims for value in values]
    if dims[0] is None or dims[1] is None or editor.shapes[values[0]].dtype not in FLOATS:
        raise MatchFailure("its dims are not known, or it is not of floats")
    named = _name_axes(equation.replace(" ", ""), (len(dims[0]), len(dims[1])))
    if named is None:
        raise MatchFailure(f"its equation is not understood: {equation}")
    left, right, result = named
    if any(len(set(axes)) < len(axes) for axes in named) or set(left) ^ set(right) != set(result) - (
        set(left) & set(right)
    ):
        raise MatchFailure("an axis occurs twice in a tensor, or is summed up in one tensor alone")
    sizes = dict(zip(left, dims[0], strict=True))
    if any(sizes.setdefault(axis, dim) != dim for axis, dim in zip(right, dims[1], strict=True)):
        raise MatchFailure("axes of one name have other lengths")
    return _Product(left, right, result, sizes)


def _name_axes(equation: str, ranks: tuple[int, int]) -> tuple[str, str, str] | None:
    """Return a letter for each axis of both tensors and of the result, those of an ellipsis too."""
    inputs, arrow, result = equation.partition("->")
    terms = inputs.split(",")
    if len(terms) != 2 or (not arrow and "..." in inputs):
        return None
    if not arrow:
        result = "".join(sorted(axis for axis in set(inputs) - {","} if inputs.count(axis) == 1))
    free = [letter for letter in string.ascii_letters if letter not in equation]
    counts = [
        rank - len(term.replace("...", "")) if "..." in term else 0 for term, rank in zip(terms, ranks, strict=True)
    ]
    most = max(counts)
    if min(counts) < 0 or len(free) < most or any(count not in (0, most) for count in counts):
        return None
    filled = [term.replace("...", "".join(free[:count])) for term, count in zip(terms, counts, strict=True)]
    result = result.replace("...", "".join(free[:most]))
    letters = all(text.isascii() and (not text or text.isalpha()) for text in (*filled, result))
    if not letters or [len(term) for term in filled] != list(ranks):
        return None
    return filled[0], filled[1], result


class _Plan(Builder):
    """The nodes that compute a product."""

    def compute(self, product: _Product) -> None:
        """Add the MatMul, between the Transposes and Reshapes that it needs."""
        batch = product.batch
        kept = batch if len(batch) <= MOST_APART else ""
        lead = product.dims(batch) if kept == batch else (product.count(batch),)
        first, second = product.free(product.left), product.free(product.right)
        sides: list[NodeInput] = []
        for role, value, axes, order, last in (
            ("left", self.node.inputs[0], product.left, batch + first + product.summed, (first, product.summed)),
            ("right", self.node.inputs[1], product.right, batch + product.summed + second, (product.summed, second)),
        ):
            turned = self._transpose_axes(value, axes, order, role)
            dims = (*lead, *(product.count(part) for part in last))
            sides.append(self._reshape_to(turned, product.dims(order), dims, role))
        axes = batch + first + second
        dims = (*lead, product.count(first), product.count(second))
        made = self.add("MatMul", *sides, role="product", like=self.node)
        self._transpose_axes(self._reshape_to(made, dims, product.dims(axes), "apart"), axes, product.result, "turned")

    def _transpose_axes(self, value: NodeInput, axes: str, order: str, role: str) -> NodeInput:
        """Return a tensor with its axes in an order."""
        if axes == order:
            return value
        return self.add("Transpose", value, role=role, perm=[axes.index(axis) for axis in order])

    def _reshape_to(self, value: NodeInput, before: Dims, after: Dims, role: str) -> NodeInput:
        """Return a tensor with other dims."""
        if before == after:
            return value
        spec = reshape_spec(before, after)
        if spec is None:
            raise MatchFailure("its shapes cannot be written as constants")
        shape = self.integers(spec, f"{role}_shape")
        return self.add("Reshape", value, shape, role=f"{role}_shaped")
