"""The table of axioms that hold in exact arithmetic: over the reals, of rounding and overflow nothing is claimed.

A model is read with these before the axioms that hold bit for bit. Integers stay exact, and a Cast between floats an
operator of its own.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping

from graphkit.dtypes import FLOATS
from graphkit.shapes import lower
from graphkit.verify.equivalence import cutting, products
from graphkit.verify.equivalence.application import Application, Result
from graphkit.verify.equivalence.axioms import Axiom
from graphkit.verify.equivalence.inlining import OF_KERNEL
from graphkit.verify.equivalence.linear import change_by_constant, fold_into_conv, normalise_batches, take_columns
from graphkit.verify.equivalence.normalisation import normalise_layer, normalise_rows
from graphkit.verify.equivalence.terms import Term

__all__ = ["REAL_AXIOMS"]

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
