"""Axioms that hold for real numbers: terms that are equal by them are equal up to rounding, where nothing overflows.

Each works on terms that are equal up to rounding themselves; `continuity` says which operators may read such terms.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping

import numpy as np

from graphkit.dtypes import FLOATS
from graphkit.shapes import lower
from graphkit.verify.equivalence import cutting, flat
from graphkit.verify.equivalence.application import Application, Result
from graphkit.verify.equivalence.axioms import Axiom
from graphkit.verify.equivalence.constants_in_weights import arithmetic, batch_norm, constant_of
from graphkit.verify.equivalence.kernel_functions import OF_KERNEL
from graphkit.verify.equivalence.linear import changed, columns, linear
from graphkit.verify.equivalence.near_constants import Doubt
from graphkit.verify.equivalence.normalisation import layer_norm, normalisation
from graphkit.verify.equivalence.padding import padded
from graphkit.verify.equivalence.products import einsum, factors, gemm, matmul, shared_heads
from graphkit.verify.equivalence.scale_and_shift import Change
from graphkit.verify.equivalence.terms import Key, Term

__all__ = ["ROUNDING_AXIOMS"]


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
