"""How small the numbers of a term are, as far as constants and operators tell: beside large ones, small ones are lost.

Numbers of about 1 that are scaled by 2^-20 are lost beside a constant of 100 that is added to them: what was added does
not go away again without them. Inputs are taken for numbers of about 1.
"""

from __future__ import annotations

import struct
from collections.abc import Callable, Iterator, Sequence

import numpy as np
from onnx import AttributeProto

from graphkit.graph.operator_traits import names
from graphkit.verify.equivalence.application import Tools
from graphkit.verify.equivalence.movement import product
from graphkit.verify.equivalence.terms import Term

__all__ = ["scale", "size"]

TINY_WEIGHT = 2.0**-10  # an attribute below it scales down
UNKNOWN = 0.0  # what may be as small as it likes
SUMS, PRODUCTS = names("Add Mean Sub Sum"), names("Conv ConvTranspose MatMul Mul")
CHOICES = names("Clip Concat Max Min Where")
# What gives numbers as small as those that it reads, where no attribute is small.
PASSING = names(
    """
    Abs AveragePool Celu DepthToSpace Elu Erf Expand Gather GlobalMaxPool HardSwish Identity
    LeakyRelu MaxPool Neg Pad ReduceMax ReduceMin ReduceSum Relu Reshape Selu Sin Slice Softsign
    SpaceToDepth Strided Tanh Tile Transpose
    """
) | {"Averages", "Gather of rows", "ReduceMax of rows", "ReduceSum of rows"}
MEANS = names("GlobalAveragePool ReduceMean") | {"ReduceMean of rows"}
NORMALISED = names("GroupNormalization InstanceNormalization LayerNormalization Normalised")
MOST_ENLARGED = 2.0**7  # by a normalisation, unless its epsilon keeps it from that
OF_SOFTMAX = 2.0**-7  # one of many shares
Rule = Callable[[Tools, Term, Sequence[float]], float]


def size(tools: Tools, term: Term | None) -> float:
    """Return how small the numbers of a term may be, at most 1; 0 where that is not known."""
    return _known(tools, term, "size", _size)


def scale(tools: Tools, term: Term | None) -> float:
    """Return how much constants have scaled the numbers of a term down, at most 1."""
    return _known(tools, term, "scale", _scale)


def _known(tools: Tools, term: Term | None, name: str, rule: Rule) -> float:
    known = tools.near.sizes.setdefault(name, {})
    waiting = [] if term is None else [term]
    while waiting:
        last = waiting[-1]
        inner = [arg for arg in last.args if arg is not None and arg not in known]
        if inner and last not in known:
            waiting += inner
            continue
        waiting.pop()
        if last not in known:
            known[last] = min(1.0, rule(tools, last, [1.0 if arg is None else known[arg] for arg in last.args]))
    return 1.0 if term is None else known[term]


def _scale(tools: Tools, term: Term, scales: Sequence[float]) -> float:
    array = _second(tools, term)
    if term.op in ("Scaled", "Scaled apart") and array is not None:
        return scales[0] * float(np.abs(array).max())
    if term.op == "Linear" and array is not None and term.args[1] is not None:
        return scales[0] * tools.near.norms_of(term.args[1], array)[1]
    if term.op in PRODUCTS:
        return float(np.prod(scales))
    return max(scales) if term.op in SUMS else min(scales, default=1.0)


def _size(tools: Tools, term: Term, sizes: Sequence[float]) -> float:
    op, array = term.op, _second(tools, term)
    if term.is_constant:
        return _of_constant(tools.constants.array(term))
    if op == "Input":
        return 1.0
    if op in ("Scaled", "Scaled apart") and array is not None:
        return sizes[0] * float(np.abs(array[array != 0]).min(initial=1.0))  # zeros are exact beside any numbers
    if op in ("Shifted", "Shifted apart") and array is not None:
        return max(sizes[0], float(np.abs(array).min()))
    if op == "Linear" and array is not None and term.args[1] is not None:
        return max(sizes[0] * tools.near.norms_of(term.args[1], array)[0], _of_bias(tools, term))
    if op in SUMS:
        return max(sizes)
    if op == "Mul":
        return float(np.prod([_of_factor(tools, arg, each) for arg, each in zip(term.args, sizes, strict=True)]))
    if op in PRODUCTS:
        return float(np.prod(sizes))
    if op in CHOICES:
        return min(sizes[1:] if op == "Where" else sizes)
    if op in MEANS:
        return sizes[0] * _of_mean(term)
    if op in PASSING:
        return sizes[0] if all(abs(number) >= TINY_WEIGHT for number in _numbers(term)) else UNKNOWN
    if op in NORMALISED:
        epsilon = max(_numbers(term), default=0.0)
        enlarged = sizes[0] * min(MOST_ENLARGED, epsilon**-0.5 if epsilon else np.inf)
        return min(1.0, enlarged) * (sizes[1] if len(sizes) > 1 else 1.0)
    if op == "Softmax of rows":
        return OF_SOFTMAX
    if op in ("Pow", "Sqrt"):
        return _of_power(op, array, sizes[0])
    return UNKNOWN


def _of_bias(tools: Tools, term: Term) -> float:
    """Return the size of what is added to all products, 0 for nothing."""
    bias = term.args[2] if len(term.args) > 2 else None
    array = None if bias is None else tools.constants.array(bias)
    return 0.0 if array is None or not array.size else float(np.abs(array).min())


def _of_mean(term: Term) -> float:
    """Return how much smaller a mean of so many numbers is than these, 0 where their number is not known."""
    source = term.args[0]
    if source is None or source.dims is None or term.dims is None:
        return UNKNOWN
    whole, made = (product(dims).constant for dims in (source.dims, term.dims))
    return float(np.sqrt(made / whole)) if whole and made else UNKNOWN


def _of_factor(tools: Tools, term: Term | None, known: float) -> float:
    """Return the size of a factor, of each element for itself."""
    array = tools.constants.array(term) if term is not None and term.is_constant else None
    return known if array is None or array.dtype.kind != "f" else _least(np.abs(array))


def _second(tools: Tools, term: Term) -> np.ndarray | None:
    constant = term.args[1] if len(term.args) > 1 else None
    return None if constant is None else tools.constants.array(constant)


def _of_constant(array: np.ndarray | None) -> float:
    """Return the size of the numbers that a model holds: the least of a row, a column and so on that is not all zeros.

    Zeros are exact beside any others.
    """
    if array is None or array.dtype.kind != "f":
        return UNKNOWN if array is None else 1.0
    found = [_least(_largest(array, axis)) for axis in range(max(1, array.ndim))]
    return min(found)


def _largest(array: np.ndarray, axis: int) -> np.ndarray:
    """Return the largest size of each part of an array along an axis, without a copy of it."""
    others = tuple(at for at in range(array.ndim) if at != axis)
    if not array.size or not others:
        return np.asarray(np.abs(array))
    return np.asarray(np.maximum(array.max(axis=others), -array.min(axis=others)))


def _least(sizes: np.ndarray) -> float:
    return float(sizes[sizes > 0].min(initial=1.0))


def _of_power(op: str, exponent: np.ndarray | None, inner: float) -> float:
    if op == "Sqrt":
        return float(np.sqrt(inner))
    return UNKNOWN if exponent is None or exponent.size != 1 else inner ** max(1.0, float(exponent.ravel()[0]))


def _numbers(term: Term) -> Iterator[float]:
    """Yield the floats among the attributes of a node's term."""
    for entry in term.attributes:
        if isinstance(entry, tuple) and len(entry) == 3 and entry[1] == AttributeProto.FLOAT:
            yield struct.unpack("<f", entry[2])[0]
        elif isinstance(entry, float):
            yield entry
