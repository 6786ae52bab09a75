"""Products of matrices over the reals: MatMul, Gemm, Einsum, what scales their factors, and heads that share one."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace

import numpy as np
from onnx import NodeProto

from graphkit.dtypes import FLOATS
from graphkit.graph.view import Node
from graphkit.ops.tensor import Dims
from graphkit.shapes import const
from graphkit.verify.equivalence import flat
from graphkit.verify.equivalence.application import Application, Result
from graphkit.verify.equivalence.linear import Change, change_by_constant, change_term, linear_product, split_off_scale
from graphkit.verify.equivalence.movement import Movement, count_elements
from graphkit.verify.equivalence.terms import Term, without_reshape

__all__ = ["apply_operator", "multiply_and_add", "multiply_rows", "normalize_einsum", "scale_product", "share_heads"]


def multiply_rows(app: Application) -> Result:
    """Take constants that rows are scaled and shifted by into the matrix."""
    left, right = app.arg(0), app.arg(1)
    if left is None or right is None or left.dims is None or app.dims is None or app.dtype not in FLOATS:
        return None
    if {left.dtype, right.dtype} != {app.dtype}:
        return None  # no model that runs
    if not right.is_constant or len(right.dims or ()) != 2 or len(left.dims) < 2 or left.is_constant:
        return None
    rows = count_elements(left.dims[:-1])
    data = app.tools.movement.reshape(left, (rows, left.dims[-1]))
    assert right.dims
    return app.tools.movement.reshape(
        linear_product(app.tools, ("MatMul",), data, right, (rows, right.dims[1])), app.dims
    )


def scale_product(app: Application) -> Result:
    """Scale the product of two tensors, not the tensors."""
    left, right = app.arg(0), app.arg(1)
    if left is None or right is None or left.dims is None or right.dims is None or app.dims is None:
        return None
    if app.dtype not in FLOATS or left.is_constant or right.is_constant:
        return None
    (one, factor, is_weight), (other, more, is_other_weight) = (
        split_off_scale(app.tools, each) for each in (left, right)
    )
    if is_weight and not is_other_weight:
        one, factor = left, Change.by(1)
    if is_other_weight and not is_weight:
        other, more = right, Change.by(1)
    if one is left and other is right:
        return None
    made = apply_operator(app, "MatMul", [one, other], app.dims)
    both = factor.after(more)
    return None if made is None or both is None else change_term(app.tools, made, both)


def share_heads(app: Application) -> Result:
    """Multiply the rows of several heads with the matrix that they share, not each with a copy."""
    left, right = app.arg(0), app.arg(1)
    if left is None or right is None or left.dims is None or right.dims is None or app.dims is None:
        return None
    if len(left.dims) < 3 or left.dims[:-2] != right.dims[:-2] or app.dims[:-2] != left.dims[:-2]:
        return None
    move, (rows, inner) = app.tools.movement, left.dims[-2:]
    flat_right = without_reshape(right)
    assert flat_right is not None
    is_turned = flat_right.op == "Transpose" and flat_right.attributes == (0, 2, 1)
    if is_turned and flat_right.dims != (count_elements(left.dims[:-2]), inner, right.dims[-1]):
        return None  # other axes change places than those of the matrices
    whole = flat_right.args[0] if is_turned else flat_right
    copies = without_reshape(whole)
    if copies is None or copies.op != "Expand" or copies.dims is None or len(copies.dims) < 2 or whole is None:
        return None
    heads, count = copies.dims[:2]
    source = copies.args[0]
    if source is None or source.dims is None or source.dims != (heads, const(1), *copies.dims[2:]):
        return None
    if heads * count != count_elements(left.dims[:-2]):
        return None
    if is_turned:
        once = move.transpose(move.reshape(source, (heads, right.dims[-1], inner)), (0, 2, 1))
    else:
        once = move.reshape(source, (heads, inner, right.dims[-1]))
    made = apply_operator(app, "MatMul", [move.reshape(left, (heads, count * rows, inner)), once],
                    (heads, count * rows, right.dims[-1]))  # fmt: skip
    return None if made is None else move.reshape(made, app.dims)


def multiply_and_add(app: Application) -> Result:
    """A Gemm is a MatMul, and an Add."""
    left, right, bias = app.arg(0), app.arg(1), app.arg(2)
    if left is None or right is None or app.dims is None or left.dims is None or right.dims is None:
        return "some dims are not known"
    alpha, beta = app.attr("alpha", 1.0), app.attr("beta", 1.0)
    if app.dtype not in FLOATS or app.node.scope.opset() < 7 or alpha is None or beta is None:
        return None
    move = app.tools.movement
    left = move.transpose(left, (1, 0)) if app.attr("transA", 0) else left
    if app.attr("transB", 0):
        right = _transpose_constant(app, right)
    made = apply_operator(app, "MatMul", [left, right], app.dims)
    made = None if made is None else change_term(app.tools, made, Change.by(alpha))
    if bias is None or made is None or not beta:
        return made
    if beta != 1:
        return None
    return apply_operator(app, "Add", [made, bias], app.dims)


def normalize_einsum(app: Application) -> Result:
    """An Einsum of two tensors is a MatMul, with the axes of both in another order."""
    found = _read_contraction(app)
    if not isinstance(found, _Contraction):
        return found
    made = apply_operator(app, "MatMul", [found.left, found.right], found.product)
    return None if made is None else found.output(app.tools.movement, made)


ELLIPSIS = "..."


@dataclass(frozen=True)
class _Contraction:
    """The operands of a MatMul that computes an Einsum.

    Attributes:
        left, right: The operands, `[batch, rows, inner]` and `[batch, inner, columns]`.
        dims: What each axis of the product is made of: those of the batch, the rows and the columns.
        perm: The axes of the output, by their place in `dims`.
    """

    left: Term
    right: Term
    dims: Dims
    perm: tuple[int, ...]

    @property
    def product(self) -> Dims:
        """The dims of the MatMul."""
        assert self.left.dims is not None
        assert self.right.dims is not None
        return (*self.left.dims[:2], self.right.dims[2])

    def output(self, move: Movement, made: Term) -> Term:
        """Return the output of the Einsum, of the MatMul of its operands."""
        return move.transpose(move.reshape(made, self.dims), self.perm)


def _read_contraction(app: Application) -> _Contraction | str | None:
    """Return the operands of the MatMul that an Einsum is, or why it is none."""
    operands, equation = app.args, app.attr("equation", "")
    if len(operands) != 2 or not equation or "->" not in equation:
        return "it is not of two tensors, with its output told"
    terms = [term for term in operands if term is not None and term.dims is not None]
    if len(terms) < 2 or app.dims is None:
        return "some dims are not known"
    inputs, output = equation.replace(" ", "").split("->", 1)
    ranks = [len(term.dims or ()) for term in terms]
    texts = inputs.split(",")
    named = [_axis_labels(text, rank) for text, rank in zip((*texts, output), (*ranks, len(app.dims)), strict=True)]
    left, right, out = named
    if left is None or right is None or out is None or any(len({*each}) < len(each) for each in (left, right, out)):
        return "an axis occurs twice in a tensor"
    sizes = dict(zip(left, terms[0].dims or (), strict=True))
    sizes_right = dict(zip(right, terms[1].dims or (), strict=True))
    if any(sizes[label] != dim for label, dim in sizes_right.items() if label in sizes):
        return "which of its axes broadcast depends on sizes"
    sizes |= sizes_right
    if tuple(sizes.get(label) for label in out) != app.dims:
        return "an axis of its output is in no input"
    inner = [label for label in left if label not in out]
    if {*inner} != {label for label in right if label not in out}:
        return "it sums along an axis of one tensor"
    batch = [label for label in out if label in left and label in right]
    rows = [label for label in out if label not in right]
    columns = [label for label in out if label not in left]

    def moved(term: Term, labels: Sequence[str], parts: Sequence[Sequence[str]]) -> Term:
        move = app.tools.movement
        turned = move.transpose(term, [labels.index(label) for part in parts for label in part])
        return move.reshape(turned, tuple(count_elements([sizes[label] for label in part]) for part in parts))

    order = [*batch, *rows, *columns]
    return _Contraction(
        moved(terms[0], left, (batch, rows, inner)),
        moved(terms[1], right, (batch, inner, columns)),
        tuple(sizes[label] for label in order),
        tuple(order.index(label) for label in out),
    )


def _axis_labels(text: str, rank: int) -> list[str] | None:
    """Return a label for each axis, those of an ellipsis counted from its end; None where they do not come out even."""
    before, dots, behind = text.partition(ELLIPSIS)
    letters = [*before, *behind]
    if not all(letter.isascii() and letter.isalpha() for letter in letters):
        return None
    count = rank - len(letters)
    if count < 0 or (count and not dots):
        return None
    return [*before, *(f"{ELLIPSIS}{count - at}" for at in range(count)), *behind]


def _transpose_constant(app: Application, term: Term) -> Term:
    array = app.tools.constants.array(term) if term.is_constant else None
    if array is None:
        return app.tools.movement.transpose(term, (1, 0))
    return app.tools.constants.of_array(np.ascontiguousarray(array.T), term.dtype)


def apply_operator(app: Application, op: str, args: list[Term | None], dims: Dims) -> Term | None:
    """Return the normal form of another operator on terms."""
    proto = NodeProto(op_type=op, name=app.node.proto.name, output=["y"])
    version = {"MatMul": 1, "Add": 7, "Mul": 7}[op]
    node = Node(proto, app.node.scope, app.node.index)
    made = replace(app, node=node, attributes=(("", 0, version),), args=args, index=0, dims=dims)
    functions: tuple[Callable[[Application], Result], ...] = (
        (multiply_rows, scale_product, share_heads, flat.multiply_matrices)
        if op == "MatMul"
        else (change_by_constant, flat.merge_elementwise)
    )
    for function in functions:
        found = function(made)
        if isinstance(found, Term):
            return found
    return None
