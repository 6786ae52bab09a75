"""Products of matrices up to rounding: MatMul, Gemm, Einsum, what scales their factors, and heads that share one."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace

import numpy as np
from onnx import NodeProto

from graphkit.dtypes import FLOATS
from graphkit.graph.view import Node
from graphkit.shapes import const
from graphkit.shapes.tensor import Dims
from graphkit.verify.equivalence import flat
from graphkit.verify.equivalence.application import Application, Result
from graphkit.verify.equivalence.constants_in_weights import arithmetic
from graphkit.verify.equivalence.einsum import Contraction, contraction
from graphkit.verify.equivalence.linear import changed, linear, unscaled
from graphkit.verify.equivalence.movement import product
from graphkit.verify.equivalence.scale_and_shift import Change
from graphkit.verify.equivalence.terms import Term, unreshaped

__all__ = ["applied", "einsum", "factors", "gemm", "matmul", "shared_heads"]


def matmul(app: Application) -> Result:
    """Take constants that rows are scaled and shifted by into the matrix."""
    left, right = app.arg(0), app.arg(1)
    if left is None or right is None or left.dims is None or app.dims is None or app.dtype not in FLOATS:
        return None
    if {left.dtype, right.dtype} != {app.dtype}:
        return None  # no model that runs
    if not right.is_constant or len(right.dims or ()) != 2 or len(left.dims) < 2 or left.is_constant:
        return None
    rows = product(left.dims[:-1])
    data = app.tools.movement.reshape(left, (rows, left.dims[-1]))
    assert right.dims
    return app.tools.movement.reshape(linear(app.tools, ("MatMul",), data, right, (rows, right.dims[1])), app.dims)


def factors(app: Application) -> Result:
    """Scale the product of two tensors, not the tensors."""
    left, right = app.arg(0), app.arg(1)
    if left is None or right is None or left.dims is None or right.dims is None or app.dims is None:
        return None
    if app.dtype not in FLOATS or left.is_constant or right.is_constant:
        return None
    (one, factor, is_weight), (other, more, is_other_weight) = (unscaled(app.tools, each) for each in (left, right))
    nothing = Change("Scaled", np.float64(1), None)
    if is_weight and not is_other_weight:
        one, factor = left, nothing
    if is_other_weight and not is_weight:
        other, more = right, nothing
    if one is left and other is right:
        return None
    made = applied(app, "MatMul", [one, other], app.dims)
    both = factor.after(more)
    return None if made is None or both is None else changed(app.tools, made, both)


def shared_heads(app: Application) -> Result:
    """Multiply the rows of several heads with the matrix that they share, not each with a copy."""
    left, right = app.arg(0), app.arg(1)
    if left is None or right is None or left.dims is None or right.dims is None or app.dims is None:
        return None
    if len(left.dims) < 3 or left.dims[:-2] != right.dims[:-2] or app.dims[:-2] != left.dims[:-2]:
        return None
    move, (rows, inner) = app.tools.movement, left.dims[-2:]
    flat_right = unreshaped(right)
    assert flat_right is not None
    is_turned = flat_right.op == "Transpose" and flat_right.attributes == (0, 2, 1)
    if is_turned and flat_right.dims != (product(left.dims[:-2]), inner, right.dims[-1]):
        return None  # other axes change places than those of the matrices
    whole = flat_right.args[0] if is_turned else flat_right
    copies = unreshaped(whole)
    if copies is None or copies.op != "Expand" or copies.dims is None or len(copies.dims) < 2 or whole is None:
        return None
    heads, count = copies.dims[:2]
    source = copies.args[0]
    if source is None or source.dims is None or source.dims != (heads, const(1), *copies.dims[2:]):
        return None
    if heads * count != product(left.dims[:-2]):
        return None
    if is_turned:
        once = move.transpose(move.reshape(source, (heads, right.dims[-1], inner)), (0, 2, 1))
    else:
        once = move.reshape(source, (heads, inner, right.dims[-1]))
    made = applied(app, "MatMul", [move.reshape(left, (heads, count * rows, inner)), once],
                    (heads, count * rows, right.dims[-1]))  # fmt: skip
    return None if made is None else move.reshape(made, app.dims)


def gemm(app: Application) -> Result:
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
        right = _transposed(app, right)
    made = applied(app, "MatMul", [left, right], app.dims)
    factor = Change("Scaled", np.float64(alpha), None)
    if isinstance(made, Term) and factor.is_moderate(app.dtype):
        made = changed(app.tools, made, factor)
    elif alpha != 1:
        return "it scales by a very large or small number"
    if bias is None or not isinstance(made, Term) or not beta:
        return made
    if beta != 1:
        return None
    return applied(app, "Add", [made, bias], app.dims)


def einsum(app: Application) -> Result:
    """An Einsum of two tensors is a MatMul, with the axes of both in another order."""
    found = contraction(app)
    if not isinstance(found, Contraction):
        return found
    made = applied(app, "MatMul", [found.left, found.right], found.product)
    return None if made is None else found.output(app.tools.movement, made)


def _transposed(app: Application, term: Term) -> Term:
    array = app.tools.constants.array(term) if term.is_constant else None
    if array is None:
        return app.tools.movement.transpose(term, (1, 0))
    return app.tools.constants.of_array(np.ascontiguousarray(array.T), term.dtype)


def applied(app: Application, op: str, args: list[Term | None], dims: Dims) -> Term | None:
    """Return the normal form of another operator on terms."""
    proto = NodeProto(op_type=op, name=app.node.proto.name, output=["y"])
    version = {"MatMul": 1, "Add": 7, "Mul": 7}[op]
    node = Node(proto, app.node.scope, app.node.index)
    made = replace(app, node=node, attributes=(("", 0, version),), args=args, index=0, dims=dims)
    functions: tuple[Callable[[Application], Result], ...] = (
        (matmul, factors, shared_heads, flat.matmul) if op == "MatMul" else (arithmetic, flat.elementwise)
    )
    for function in functions:
        found = function(made)
        if isinstance(found, Term):
            return found
    return None
