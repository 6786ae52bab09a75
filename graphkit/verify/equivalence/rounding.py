"""Axioms that hold for real numbers: terms that are equal by them are equal up to rounding, where nothing overflows.

Each works on terms that are equal up to rounding themselves; `continuity` says which operators may read such terms.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import replace

import numpy as np
from onnx import NodeProto, TensorProto

from graphkit.dtypes import FLOATS
from graphkit.graph.view import Node
from graphkit.shapes import const, lower
from graphkit.shapes.tensor import Dims
from graphkit.verify.equivalence import cutting, flat, movement
from graphkit.verify.equivalence.application import Application, Result
from graphkit.verify.equivalence.axioms import Axiom
from graphkit.verify.equivalence.einsum import Contraction, contraction
from graphkit.verify.equivalence.kernel_functions import OF_KERNEL
from graphkit.verify.equivalence.linear import changed, columns, linear, unscaled
from graphkit.verify.equivalence.movement import product
from graphkit.verify.equivalence.near_constants import EXACT, Doubt, of_sum
from graphkit.verify.equivalence.padding import padded
from graphkit.verify.equivalence.scale_and_shift import Change, vector_of
from graphkit.verify.equivalence.terms import Key, Term

__all__ = ["ROUNDING_AXIOMS"]

STEPS = 3.0  # that make a factor of a scale, a variance and an epsilon


def constant_of(app: Application, term: Term | None) -> tuple[np.ndarray, Doubt] | None:
    """Return the elements of a constant of floats, without those that only repeat along an axis, and their doubt."""
    if term is None or app.dtype not in FLOATS:
        return None
    while term.op in ("Expand", "Reshape") and term.args[0] is not None and not term.is_constant:
        if term.op == "Reshape" and (term.args[0].op != "Expand" or product(term.args[0].args[0].dims or ()) != 1):  # type: ignore[union-attr]
            return None
        term = term.args[0]
    if not term.is_constant or term.dtype != app.dtype:
        return None
    bare = app.tools.movement.unexpanded(term)
    array = app.tools.constants.array(bare)
    return (array, app.tools.near.doubt_of(bare)) if array is not None and np.isfinite(array).all() else None


def arithmetic(app: Application) -> Result:
    """Scale and shift by constants: Add, Sub, Mul, Div and Neg."""
    op, left, right = app.node.op_type, app.arg(0), app.arg(1)
    if left is None or app.dims is None or app.dtype not in FLOATS or app.node.scope.opset() < 7:
        return None
    if any(term is not None and term.dtype != app.dtype for term in (left, right)):
        return None  # no model that runs
    if op == "Neg":
        return changed(app.tools, left, Change("Scaled", np.float64(-1), None)) if left.dims == app.dims else None
    for term, other, is_left in ((left, right, True), (right, left, False)):
        if term is None or other is None or term.is_constant or (known := constant_of(app, other)) is None:
            continue
        found = vector_of(known[0], len(app.dims))
        if found is None:
            near = app.tools.movement.unexpanded(other)
            if op in ("Mul", "Div") or Change("Shifted", known[0], None).is_moderate(app.dtype):
                near = app.tools.near.of_term(near, op)
            return flat.elementwise(replace(app, args=[term, near] if is_left else [near, term]))
        if not movement.expands_to(term.dims or app.dims, app.dims) or term.dims is None:
            return None
        if term.dims != app.dims:
            return None
        doubt = known[1] if isinstance(known[1], float) else known[1].reshape(found[0].shape)
        return _changed_by(app, op, term, Change("Scaled", *found, doubt), is_left=is_left)
    return None


def _changed_by(app: Application, op: str, term: Term, by: Change, *, is_left: bool) -> Term | str | None:
    if op in ("Mul", "Div") and not isinstance(by.doubt, float):
        return "its constant is a sum"
    if op == "Div" and (not is_left or not by.vector.all()):
        return None
    if op in ("Mul", "Div"):
        change = by if op == "Mul" else by.inverse()
    else:
        change = Change("Shifted", -by.vector if op == "Sub" and is_left else by.vector, by.axis, by.doubt)
    if not change.is_moderate(app.dtype):
        return "its constant is very large, or very small"
    if op == "Sub" and not is_left:
        term = changed(app.tools, term, Change("Scaled", np.float64(-1), None))
    return changed(app.tools, term, change)


def batch_norm(app: Application) -> Result:
    data = app.arg(0)
    known = [constant_of(app, term) for term in app.args[1:]]
    arrays = [each[0] for each in known if each is not None]
    if data is None or data.dims is None or len(arrays) != 4 or len(known) != 4 or any(a.ndim > 1 for a in arrays):
        return "its parameters are not constant"
    if app.node.scope.opset() < 9 or any(app.node.outputs[1:]) or app.attr("training_mode", 0) or len(data.dims) < 2:
        return "it may learn"
    count = data.dims[1].constant
    if count is None or any(each.size not in (1, count) for each in arrays) or data.dtype != app.dtype:
        return "how many channels it has is not known"
    scale, bias, mean, variance = (np.broadcast_to(each.astype(np.float64), (count,)) for each in arrays)
    epsilon = app.attr("epsilon", 1e-5) or 0.0
    with np.errstate(invalid="ignore", divide="ignore"):  # what a wrong variance makes is not moderate
        factor = scale / np.sqrt(variance + epsilon)
    moved = mean * factor
    doubts = STEPS, of_sum(bias, moved, (EXACT, STEPS + 1))
    changes = Change("Scaled", factor, 1, doubts[0]), Change("Shifted", bias - moved, 1, doubts[1])
    if not all(change.is_moderate(app.dtype) for change in changes):
        return "its parameters are very large, or very small"
    return changed(app.tools, changed(app.tools, data, changes[0]), changes[1])


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
    made = _applied(app, "MatMul", [one, other], app.dims)
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
    flat_right = _stripped(right)
    assert flat_right is not None
    is_turned = flat_right.op == "Transpose" and flat_right.attributes == (0, 2, 1)
    if is_turned and flat_right.dims != (product(left.dims[:-2]), inner, right.dims[-1]):
        return None  # other axes change places than those of the matrices
    whole = flat_right.args[0] if is_turned else flat_right
    copies = _stripped(whole)
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
    made = _applied(app, "MatMul", [move.reshape(left, (heads, count * rows, inner)), once],
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
    made = _applied(app, "MatMul", [left, right], app.dims)
    factor = Change("Scaled", np.float64(alpha), None)
    if isinstance(made, Term) and factor.is_moderate(app.dtype):
        made = changed(app.tools, made, factor)
    elif alpha != 1:
        return "it scales by a very large or small number"
    if bias is None or not isinstance(made, Term) or not beta:
        return made
    if beta != 1:
        return None
    return _applied(app, "Add", [made, bias], app.dims)


def einsum(app: Application) -> Result:
    """An Einsum of two tensors is a MatMul, with the axes of both in another order."""
    found = contraction(app)
    if not isinstance(found, Contraction):
        return found
    made = _applied(app, "MatMul", [found.left, found.right], found.product)
    return None if made is None else found.output(app.tools.movement, made)


def _transposed(app: Application, term: Term) -> Term:
    array = app.tools.constants.array(term) if term.is_constant else None
    if array is None:
        return app.tools.movement.transpose(term, (1, 0))
    return app.tools.constants.of_array(np.ascontiguousarray(array.T), term.dtype)


def _applied(app: Application, op: str, args: list[Term | None], dims: Dims) -> Term | None:
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


def conv(app: Application) -> Result:
    data, weight, bias = app.arg(0), app.arg(1), app.arg(2)
    if data is None or weight is None or not weight.is_constant or app.dims is None or app.dtype not in FLOATS:
        return None
    if data.is_constant or data.dims is None or len(data.dims) < 3 or {data.dtype, weight.dtype} != {app.dtype}:
        return None
    known = None if bias is None else constant_of(app, bias)
    if bias is not None and known is None:
        return "its bias is not constant"
    data, key, is_padded = _padded(app, data)
    made = linear(app.tools, ("Conv", *key), data, weight, app.dims, is_padded=is_padded)
    if known is None:
        return made
    vector = known[0].astype(np.float64).reshape(-1)
    if vector.size == 1:
        return changed(app.tools, made, Change("Shifted", vector[0], None, _of_one(known[1])))
    return changed(app.tools, made, Change("Shifted", vector, 1, known[1]))


def _of_one(doubt: Doubt) -> Doubt:
    return doubt if isinstance(doubt, float) else doubt.reshape(())


def _padded(app: Application, data: Term) -> tuple[Term, Key, bool]:
    """Return the data of a Conv without the zeros that a Pad sets around it, with the attributes that set them."""
    assert data.dims is not None
    zeros = (0,) * (2 * (len(data.dims) - 2))
    automatic, pads = app.attr("auto_pad", "NOTSET"), app.attr("pads", zeros)
    if automatic != "NOTSET" or pads is None or len(pads) != len(zeros):
        return data, app.attributes, True
    if (found := padded(app.tools.movement, data)) is not None and not any(map(any, found[1][:2])):
        data, around = found
        sides = (side for ends in zip(*around[2:], strict=True) for side in ends)
        pads = tuple(one + other for one, other in zip(pads, sides, strict=True))
    rest = tuple(each for each in app.attributes if each[0] != "pads")  # type: ignore[index]
    return data, (*rest, tuple(pads)), any(pads)


CUTS: Mapping[str, Callable[[Application], Result]] = {
    "Slice": cutting.cut,
    "Split": cutting.split,
    "Gather": cutting.gather_one,
    "SequenceAt": cutting.sequence_at,
}


def part(app: Application) -> Result:
    """Some columns of a product are a product with these columns."""
    found = CUTS[app.node.op_type](app)
    return columns(app.tools, found) if isinstance(found, Term) else None


def layer_norm(app: Application) -> Result:
    """A LayerNormalization is a normalisation, scaled and shifted."""
    data, scale, bias = app.arg(0), app.arg(1), app.arg(2)
    if data is None or data.dims is None or scale is None or app.index or app.dims != data.dims:
        return None
    epsilon = app.attr("epsilon", 1e-5)
    if app.attr("axis", -1) not in (-1, len(data.dims) - 1) or not epsilon or app.attr("stash_type", 1) != 1:
        return "it is not over the last axis"
    if app.dtype != TensorProto.FLOAT:
        return None
    normal = _normal(app, data, float(epsilon))
    scaled = _applied(app, "Mul", [normal, scale], app.dims)
    return scaled if bias is None or scaled is None else _applied(app, "Add", [scaled, bias], app.dims)


def _normal(app: Application, data: Term, epsilon: float) -> Term:
    assert data.dims is not None
    rows = (product(data.dims[:-1]), data.dims[-1])
    rounded = float(np.float32(epsilon))
    made = app.tools.terms.make("Normalised", (rounded,), (app.tools.movement.reshape(data, rows),), app.dtype, rows)
    return app.tools.movement.reshape(made, data.dims)


def normalisation(app: Application) -> Result:
    """(x - mean) / sqrt(mean of squares + epsilon) is a normalisation."""
    left, right = app.arg(0), app.arg(1)
    if app.dtype != TensorProto.FLOAT or left is None or right is None or app.dims is None:
        return None
    pairs = ((left, right),) if app.node.op_type == "Div" else ((left, right), (right, left))
    for centred, deviation in pairs:
        root = _stripped(deviation)
        if app.node.op_type == "Mul":
            root = _inverted(app, root)
        if root is None or root.op != "Sqrt" or centred.dims != app.dims or not app.dims:
            continue
        if deviation.dims != (*app.dims[:-1], const(1)):
            continue
        found = _moments(app, centred, _stripped(root.args[0]))
        if found is not None:
            data, epsilon = found
            return _normal(app, app.tools.movement.reshape(data, app.dims), epsilon)
    return None


def _stripped(term: Term | None) -> Term | None:
    return term.args[0] if term is not None and term.op == "Reshape" else term


def _inverted(app: Application, term: Term | None) -> Term | None:
    if term is None:
        return None
    if term.op == "Reciprocal":
        return _stripped(term.args[0])
    source = term.args[0] if term.args else None
    if term.op != "Div" or source is None or not source.is_constant:
        return None
    one = app.tools.constants.array(source)
    return _stripped(term.args[1]) if one is not None and (one == 1).all() else None


def _moments(app: Application, centred: Term, positive: Term | None) -> tuple[Term, float] | None:
    """Return the normalised term, and epsilon; None where the terms are not those of a normalisation."""
    if positive is None or positive.op != "Shifted" or positive.args[1] is None:
        return None
    epsilon = app.tools.constants.array(positive.args[1])
    mean_square = _stripped(positive.args[0])
    difference = _stripped(centred)
    if epsilon is None or epsilon.ndim or epsilon <= 0 or difference is None or difference.op != "Sub":
        return None
    if (
        mean_square is None
        or mean_square.op != "ReduceMean of rows"
        or not _is_square(app, mean_square.args[0], centred)
    ):
        return None
    data, mean = difference.args[0], _stripped(difference.args[1])
    if data is None or mean is None or mean.op != "ReduceMean of rows" or data.dims is None:
        return None
    rows = mean.args[0]
    assert rows is not None
    assert centred.dims is not None
    width = centred.dims[-1]
    if rows.dims is None or rows.dims[-1] != width or app.tools.movement.reshape(data, rows.dims) is not rows:
        return None
    beside = difference.args[1]
    if data.dims != rows.dims or beside is None or beside.dims != (rows.dims[0], const(1)):
        return None
    return app.tools.movement.reshape(data, centred.dims), float(epsilon)


def _is_square(app: Application, term: Term | None, base: Term) -> bool:
    """Whether rows are the square of a term."""
    inner = _stripped(term)
    if inner is None or base.dims is None or term is None or term.dims is None or term.dims[-1] != base.dims[-1]:
        return False
    source, other = (*inner.args, None)[:2]
    if source is None or source.dims is None or app.tools.movement.reshape(base, source.dims) is not source:
        return False
    if inner.op == "Mul":
        return other is source
    exponent = (
        app.tools.constants.array(other) if inner.op == "Pow" and other is not None and other.is_constant else None
    )
    return exponent is not None and exponent.size == 1 and float(exponent.reshape(-1)[0]) == 2


def average_pool(app: Application) -> Result:
    """Return the averages of an AveragePool of any version: those of kernels that add up in another order."""
    if app.dtype not in FLOATS or (app.attr("count_include_pad", 0) and not _fits(app)):
        return None  # where a window goes past the end, versions count padding otherwise
    attributes = tuple(each for each in app.attributes if each[0])  # type: ignore[index]
    return app.tools.terms.make("Averages", (*attributes, app.index), app.args, app.dtype, app.dims)


def _fits(app: Application) -> bool:
    """Whether every window of a pool lies in its data and the padding, at all sizes."""
    source, window = app.arg(0), app.attr("kernel_shape", tuple)
    if source is None or source.dims is None or window is None or app.attr("auto_pad", "NOTSET") != "NOTSET":
        return False
    sizes, pads = source.dims[2:], app.attr("pads", ()) or (0,) * (2 * len(window))
    if app.attr("ceil_mode", 0) or app.attr("dilations", ()) or len(sizes) != len(window):
        return False
    padded = [lower(dim) + pads[axis] + pads[axis + len(window)] for axis, dim in enumerate(sizes)]
    return all(size >= length for size, length in zip(padded, window, strict=True))


def of_kernel(app: Application) -> Result:
    """Take what a function's nodes compute for what the kernel of its name does."""
    return app.arg(0) if app.node.proto.overload == OF_KERNEL else None


def _ops(text: str) -> frozenset[str]:
    return frozenset(text.split())


ROUNDING_AXIOMS: tuple[Axiom, ...] = (
    Axiom("one normalisation", "(x - mean) / sqrt(mean of squares + epsilon) is one normalisation.",
          _ops("Div Mul"), normalisation),
    Axiom("constants in weights", "What scales or shifts channels may be part of a weight or a bias.",
          _ops("Add Sub Mul Div Neg"), arithmetic),
    Axiom("normalisation of batches", "A BatchNormalization scales and shifts channels.",
          _ops("BatchNormalization"), batch_norm),
    Axiom("rows times a matrix", "A product takes up what its rows are scaled and shifted by.",
          _ops("MatMul"), matmul),
    Axiom("factors", "A product of what is scaled is a product, scaled.", _ops("MatMul"), factors),
    Axiom("shared heads", "Rows of several heads are multiplied with one matrix at once.",
          _ops("MatMul"), shared_heads),
    Axiom("gemm", "A Gemm is a product, scaled, and a sum.", _ops("Gemm"), gemm),
    Axiom("einsum", "An Einsum of two tensors is a product of matrices.", _ops("Einsum"), einsum),
    Axiom("convolution", "A Conv takes up what its channels are scaled and shifted by.",
          _ops("Conv"), conv),
    Axiom("powers", "A Pow of whatever dims takes powers.", _ops("Pow"), flat.by_dims),
    Axiom("pool", "An AveragePool adds up each window, in whatever order.", _ops("AveragePool"), average_pool),
    Axiom("columns", "Some columns of a product are a product with these columns.",
          _ops(" ".join(CUTS)), part),
    Axiom("layer normalisation", "A LayerNormalization is a normalisation, scaled and shifted.",
          _ops("LayerNormalization"), layer_norm),
    Axiom("kernels of functions", "A kernel computes what the function of its name does.",
          _ops("Identity"), of_kernel),
)  # fmt: skip
