"""The table of axioms that hold in exact arithmetic: over the reals, of rounding and overflow nothing is claimed.

A model is read with these before the axioms that hold bit for bit. Integers stay exact, and a Cast between floats an
operator of its own.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping

import numpy as np
from onnx import TensorProto

from graphkit.dtypes import FLOATS
from graphkit.shapes import const, lower
from graphkit.verify.equivalence import cutting, products
from graphkit.verify.equivalence.application import Application, Result
from graphkit.verify.equivalence.axioms import Axiom
from graphkit.verify.equivalence.inlining import OF_KERNEL
from graphkit.verify.equivalence.linear import change_by_constant, fold_into_conv, normalise_batches, take_columns
from graphkit.verify.equivalence.movement import count_elements
from graphkit.verify.equivalence.products import apply_operator
from graphkit.verify.equivalence.terms import Term, without_reshape

__all__ = ["REAL_AXIOMS", "normalise_layer", "normalise_rows"]

# LayerNormalization and the nodes that compute one: both are a normalisation of rows, scaled and shifted.


def normalise_layer(app: Application) -> Result:
    """A LayerNormalization is a normalisation, scaled and shifted."""
    data, scale, bias = app.arg(0), app.arg(1), app.arg(2)
    if data is None or data.dims is None or scale is None or app.index or app.dims != data.dims:
        return None
    epsilon = app.attr("epsilon", 1e-5)
    if app.attr("axis", -1) not in (-1, len(data.dims) - 1) or not epsilon or app.attr("stash_type", 1) != 1:
        return "it is not over the last axis"
    if app.dtype != TensorProto.FLOAT:
        return None
    normal = _normalised_term(app, data, float(epsilon))
    scaled = apply_operator(app, "Mul", [normal, scale], app.dims)
    return scaled if bias is None or scaled is None else apply_operator(app, "Add", [scaled, bias], app.dims)


def _normalised_term(app: Application, data: Term, epsilon: float) -> Term:
    assert data.dims is not None
    rows = (count_elements(data.dims[:-1]), data.dims[-1])
    rounded = float(np.float32(epsilon))
    made = app.tools.terms.make("Normalised", (rounded,), (app.tools.movement.reshape(data, rows),), app.dtype, rows)
    return app.tools.movement.reshape(made, data.dims)


def normalise_rows(app: Application) -> Result:
    """(x - mean) / sqrt(mean of squares + epsilon) is a normalisation."""
    left, right = app.arg(0), app.arg(1)
    if app.dtype != TensorProto.FLOAT or left is None or right is None or app.dims is None:
        return None
    pairs = ((left, right),) if app.node.op_type == "Div" else ((left, right), (right, left))
    for centred, deviation in pairs:
        root = without_reshape(deviation)
        if app.node.op_type == "Mul":
            root = _inverted_term(app, root)
        if root is None or root.op != "Sqrt" or centred.dims != app.dims or not app.dims:
            continue
        if deviation.dims != (*app.dims[:-1], const(1)):
            continue
        found = _match_moments(app, centred, without_reshape(root.args[0]))
        if found is not None:
            data, epsilon = found
            return _normalised_term(app, app.tools.movement.reshape(data, app.dims), epsilon)
    return None


def _inverted_term(app: Application, term: Term | None) -> Term | None:
    if term is None:
        return None
    source = term.args[0] if term.args else None
    if term.op != "Div" or source is None or not source.is_constant:
        return None
    one = app.tools.constants.array(source)
    return without_reshape(term.args[1]) if one is not None and (one == 1).all() else None


def _match_moments(app: Application, centred: Term, positive: Term | None) -> tuple[Term, float] | None:
    """Return the normalised term, and epsilon; None where the terms are not those of a normalisation."""
    if positive is None or positive.op != "Shifted" or positive.args[1] is None:
        return None
    epsilon = app.tools.constants.array(positive.args[1])
    mean_square = without_reshape(positive.args[0])
    difference = without_reshape(centred)
    if epsilon is None or epsilon.ndim or epsilon <= 0 or difference is None or difference.op != "Sub":
        return None
    if (
        mean_square is None
        or mean_square.op != "ReduceMean of rows"
        or not _is_square(app, mean_square.args[0], centred)
    ):
        return None
    data, mean = difference.args[0], without_reshape(difference.args[1])
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
    inner = without_reshape(term)
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


CUTS: Mapping[str, Callable[[Application], Result]] = {
    "Slice": cutting.cut_axes,
    "Split": cutting.cut_part,
    "Gather": cutting.gather_one,
    "SequenceAt": cutting.take_element,
}


def cut_columns(app: Application) -> Result:
    """Some columns of a product are a product with these columns."""
    found = CUTS[app.node.op_type](app)
    return take_columns(app.tools, found) if isinstance(found, Term) else None


def average_windows(app: Application) -> Result:
    """Return the averages of an AveragePool of any version: those of kernels that add up in another order."""
    if app.dtype not in FLOATS or (app.attr("count_include_pad", 0) and not _windows_fit(app)):
        return None  # where a window goes past the end, versions count padding otherwise
    attributes = tuple(each for each in app.attributes if each[0])  # type: ignore[index]
    return app.tools.terms.make("Averages", (*attributes, app.index), app.args, app.dtype, app.dims)


def _windows_fit(app: Application) -> bool:
    """Whether every window of a pool lies in its data and the padding, at all sizes."""
    source, window = app.arg(0), app.attr("kernel_shape", tuple)
    if source is None or source.dims is None or window is None or app.attr("auto_pad", "NOTSET") != "NOTSET":
        return False
    sizes, pads = source.dims[2:], app.attr("pads", ()) or (0,) * (2 * len(window))
    if app.attr("ceil_mode", 0) or app.attr("dilations", ()) or len(sizes) != len(window):
        return False
    padded = [lower(dim) + pads[axis] + pads[axis + len(window)] for axis, dim in enumerate(sizes)]
    return all(size >= length for size, length in zip(padded, window, strict=True))


def run_kernel(app: Application) -> Result:
    """Take what a function's nodes compute for what the kernel of its name does."""
    return app.arg(0) if app.node.proto.overload == OF_KERNEL else None


def _ops(text: str) -> frozenset[str]:
    return frozenset(text.split())


REAL_AXIOMS: tuple[Axiom, ...] = (
    Axiom("one normalisation", "(x - mean) / sqrt(mean of squares + epsilon) is one normalisation.",
          _ops("Div Mul"), normalise_rows),
    Axiom("constants in weights", "What scales or shifts channels may be part of a weight or a bias.",
          _ops("Add Sub Mul Div Neg"), change_by_constant),
    Axiom("normalisation of batches", "A BatchNormalization scales and shifts channels.",
          _ops("BatchNormalization"), normalise_batches),
    Axiom("rows times a matrix", "A product takes up what its rows are scaled and shifted by.",
          _ops("MatMul"), products.multiply_rows),
    Axiom("factors", "A product of what is scaled is a product, scaled.", _ops("MatMul"), products.scale_product),
    Axiom("shared heads", "Rows of several heads are multiplied with one matrix at once.",
          _ops("MatMul"), products.share_heads),
    Axiom("gemm", "A Gemm is a product, scaled, and a sum.", _ops("Gemm"), products.multiply_and_add),
    Axiom("einsum", "An Einsum of two tensors is a product of matrices.", _ops("Einsum"), products.normalize_einsum),
    Axiom("convolution", "A Conv takes up what its channels are scaled and shifted by.", _ops("Conv"), fold_into_conv),
    Axiom("pool", "An AveragePool adds up each window, in whatever order.", _ops("AveragePool"), average_windows),
    Axiom("columns", "Some columns of a product are a product with these columns.", _ops(" ".join(CUTS)), cut_columns),
    Axiom("layer normalisation", "A LayerNormalization is a normalisation, scaled and shifted.",
          _ops("LayerNormalization"), normalise_layer),
    Axiom("kernels of functions", "A kernel computes what the function of its name does.",
          _ops("Identity"), run_kernel),
)  # fmt: skip
