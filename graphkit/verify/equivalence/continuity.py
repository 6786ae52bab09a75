"""Which operators give nearly the same for nearly the same: those that may read terms that are equal up to rounding.

An operator that jumps, such as ArgMax, a comparison or a Cast to integers, reads exact terms; so do a quotient and a
root unless what they read is shown to stay away from 0, or to be no less than 0, also when rounded.
"""

from __future__ import annotations

import numpy as np
from onnx import AttributeProto

from graphkit.dtypes import FLOATS
from graphkit.graph.operator_traits import names
from graphkit.graph.recurrent_states import RECURRENT
from graphkit.verify.equivalence.application import Application
from graphkit.verify.equivalence.terms import Term

__all__ = ["OF_OVERFLOWS", "is_continuous", "is_indifferent", "is_nonnegative", "is_positive", "obstacle"]

EVERY = names(
    """
    Add Sub Mul Sum Mean Max Min Concat MatMul Gemm Conv ConvTranspose LayerNormalization PRelu LSTM GRU RNN Einsum
    """
)
FIRST = names(
    """
    Abs AveragePool BatchNormalization Celu Clip CumSum DepthToSpace Elu Erf Exp Expand Flatten Gather
    GatherElements GatherND Gelu GlobalAveragePool GlobalMaxPool HardSigmoid HardSwish Identity
    InstanceNormalization LRN LeakyRelu LogSoftmax MaxPool Mish Neg Pad ReduceL1 ReduceL2 ReduceLogSumExp ReduceMax
    ReduceMean ReduceMin ReduceProd ReduceSum ReduceSumSquare Relu Reshape Resize Selu Sigmoid Slice Softmax
    Softplus Softsign SpaceToDepth Split Squeeze Tanh Tile Transpose Trilu Unsqueeze
    """
)
NONNEGATIVE = ("Abs", "Relu", "Sigmoid", "Exp", "Softplus", "Softmax of rows", "Sqrt", "ReduceL2", "ReduceL2 of rows")
# By operator, the attribute that keeps it from a quotient by 0, its default, and the least that is no quotient by a
# rounding; an epsilon of 1e-12 is common in LayerNormalization, of rows whose numbers are not all nearly equal.
KEPT_OPEN = {
    "LayerNormalization": ("epsilon", 1e-5, 1e-20), "InstanceNormalization": ("epsilon", 1e-5, 1e-7),
    "BatchNormalization": ("epsilon", 1e-5, 1e-7), "LRN": ("bias", 1.0, 1e-3),
}  # fmt: skip
# Of a recurrent node, those that do not jump.
ACTIVATIONS = names("affine elu hardsigmoid leakyrelu relu scaledtanh sigmoid softplus softsign tanh")
OF_ACTIVATIONS, NONE = ("activations", "activation_alpha", "activation_beta"), AttributeProto()
STEEP = 16.0  # the largest slope that is no jump
ONE_OUTPUT = {"MaxPool", "BatchNormalization"}  # whose second output jumps
OTHERS = {"Where": (1, 2), "ScatterND": (0, 2), "ScatterElements": (0, 2), "TensorScatter": (0, 1), "Pad": (0, 2)}
SEQUENCES = ("SplitToSequence", "SequenceAt")
MOVES = ("Reshape", "Expand", "Transpose", "Slice", "Strided")
OBSTACLES = {
    "Reciprocal": "its divisor may be 0", "Log": "its argument may be 0", "Sqrt": "its argument may be below 0",
    "Pow": "its argument may be below 0, or its exponent is none of 0.5, 1, 2, 3 and 4",
}  # fmt: skip
OF_OVERFLOWS = names("IsInf IsNaN")
MAX_DEPTH = 40
# The least number that keeps a divisor from 0, as models add it or clip to it: 1e-12, which is less in float32.
LEAST = 2.0**-40


def is_indifferent(app: Application, index: int) -> bool:
    """Whether an operator gives the same for an input that is rounded in another way, where nothing overflows."""
    return index == 0 and (app.node.operator in OF_OVERFLOWS or app.node.operator in ("Shape", "Size"))


def is_continuous(app: Application, index: int) -> bool:
    """Whether an output changes little where an input does."""
    op, term = app.node.operator, app.arg(index)
    if term is None or app.node.bodies:
        return False
    if op in SEQUENCES:  # whose sequences have no dtype
        return index == 0 and (term if op == "SplitToSequence" else app).dtype in FLOATS
    if app.dtype not in FLOATS or term.dtype not in FLOATS:
        return False
    if op in OTHERS:
        return index in OTHERS[op] and app.attr("reduction", "none") == "none"
    if _may_jump(app):
        return False
    if op in EVERY:
        return True
    if op == "Cast":
        return True
    if op == "Div":
        return index == 0 or is_positive(app, term)
    if op in ("Reciprocal", "Log"):
        return is_positive(app, term)
    if op == "Sqrt":
        return is_nonnegative(app, term)
    if op == "Pow" and index == 0 and (exponent := _number(app, app.arg(1))) is not None:
        return exponent in (1, 2, 3, 4) or (exponent == 0.5 and is_nonnegative(app, term))
    return index == 0 and op in FIRST and not (op in ONE_OUTPUT and app.index)


def _may_jump(app: Application) -> bool:
    """Whether the attributes of an operator make it jump, or divide by what may be 0."""
    op = app.node.operator
    if op in KEPT_OPEN:
        name, default, least = KEPT_OPEN[op]
        if not (app.attr(name, default) or 0) >= least:
            return True
    if op == "LRN":
        return not (app.attr("alpha", 1e-4) or 0) >= 0
    if op in RECURRENT:
        given, *numbers = (app.node.attributes.get(name, NONE) for name in OF_ACTIVATIONS)
        activations = {each.decode(errors="replace").lower() for each in given.strings}
        is_flat = all(abs(number) <= STEEP for each in numbers for number in each.floats)
        return not (is_flat and activations <= ACTIVATIONS)
    return op == "HardSigmoid" and not abs(app.attr("alpha", 0.2) or 0) <= STEEP


def obstacle(app: Application, index: int) -> str:
    """Return what a node that is not continuous reads, and why that is not enough."""
    op = app.node.operator
    default = "its divisor may be 0" if op == "Div" and index else "it may jump where that is rounded in another way"
    return f"what is equal up to rounding alone, and {OBSTACLES.get(op, default)}"


def _number(app: Application, term: Term | None) -> float | None:
    """Return the number that all elements of a constant are."""
    array = None if term is None or not term.is_constant else app.tools.constants.array(term)
    if array is None or not array.size or not (array == array.ravel()[0]).all():
        return None
    return float(array.ravel()[0])


def _least(app: Application, term: Term | None) -> float:
    """Return the least element of a constant, minus infinity for any other term."""
    array = None if term is None or not term.is_constant else app.tools.constants.array(term)
    return float(np.min(array)) if array is not None and array.size and not np.isnan(array).any() else -np.inf


def is_positive(app: Application, term: Term | None, depth: int = 0) -> bool:
    """Whether each element is larger than some number above 0, also when rounded."""
    if term is None or depth > MAX_DEPTH:
        return False
    if term.is_constant:
        return _least(app, term) >= LEAST
    if term.op in (*MOVES, "Sqrt", "ReduceMean of rows"):
        return is_positive(app, term.args[0], depth + 1)
    if term.op in ("Shifted", "Add"):
        pairs = (term.args, term.args[::-1])
        return any(is_nonnegative(app, a, depth + 1) and is_positive(app, b, depth + 1) for a, b in pairs)
    if term.op == "Clip":
        return len(term.args) > 1 and all(_least(app, arg) >= LEAST for arg in term.args[1:])
    if term.op == "Max":
        return any(_least(app, arg) >= LEAST for arg in term.args)
    return term.op == "Scaled" and all(is_positive(app, arg, depth + 1) for arg in term.args)


def is_nonnegative(app: Application, term: Term | None, depth: int = 0) -> bool:
    """Whether no element is below 0, also when rounded."""
    if term is None or depth > MAX_DEPTH:
        return False
    if term.is_constant:
        return _least(app, term) >= 0
    if term.op in NONNEGATIVE:
        return True
    if term.op in (*MOVES, "ReduceMean of rows", "ReduceSum of rows", "ReduceMean", "ReduceSum", "ReduceMax of rows"):
        return is_nonnegative(app, term.args[0], depth + 1)
    if term.op == "Pow":
        return _number(app, term.args[1]) in (2, 4)
    if term.op == "Mul" and term.args[0] is term.args[1]:
        return True
    is_every = term.op in ("Add", "Mul", "Shifted", "Scaled") and all(
        is_nonnegative(app, arg, depth + 1) for arg in term.args
    )
    return is_every or is_positive(app, term, depth + 1)
