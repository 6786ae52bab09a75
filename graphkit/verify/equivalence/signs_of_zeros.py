"""The sign of zeros: which operators give the same bits for 0 and -0, and which give zeros of another sign at most.

-0 and 0 compare equal, but 1 / x tells them apart, so that `x + 0`, which makes 0 of -0, is x for some readers alone.
An operator that is blind to the sign gives the same bits for both; a faithful one gives at most zeros of another sign.
"""

from __future__ import annotations

from graphkit.dtypes import FLOATS, INTEGERS
from graphkit.graph.operator_traits import operator_set
from graphkit.verify.equivalence.application import Application

__all__ = ["CHANGING", "is_blind", "is_faithful"]

COMPARISONS = operator_set("Equal Greater GreaterOrEqual Less LessOrEqual")
BLIND = COMPARISONS | operator_set(
    """
    Abs Cos Cosh DynamicQuantizeLinear Exp IsInf IsNaN QuantizeLinear ReduceL1 ReduceL2 ReduceSumSquare Shape Sigmoid
    Size Softmax Softplus
    """
)
EVERY = operator_set(
    "Add Sub Mul Sum Mean Max Min Where Concat MatMul Gemm"
)  # faithful in all inputs, others in the first
WRITTEN = {"ScatterND": (0, 2), "TensorScatter": (0, 1)}  # the data, and what is written into it
FAITHFUL = EVERY | operator_set(
    """
    AveragePool Ceil Clip Conv Div Elu Erf Expand Flatten Floor Gather Gelu GlobalAveragePool HardSwish Identity
    LayerNormalization LeakyRelu MaxPool Neg Pad ReduceMax ReduceMean ReduceMin ReduceSum Relu Reshape Round Sin
    Slice Split Sqrt Squeeze Tanh Tile Transpose Unsqueeze
    """
)
CHANGING = operator_set("Add Sub Max Min Where")  # which are another term where the sign of zeros does not matter


def is_blind(app: Application, index: int) -> bool:
    """Whether the sign of zeros in an input makes no difference."""
    op, constants = app.node.operator, app.tools.constants
    if op == "Pow" and index == 0 and (exponent := app.arg(1)) is not None:
        return constants.is_all(exponent, 2.0)
    if op in ("Add", "Sub") and app.dtype in FLOATS and app.node.scope.opset() >= 7:
        return constants.has_no_zero(app.arg(1 - index))  # 0 + y and -0 + y are y
    if op in ("Cast", "QuantizeLinear"):  # a float of 8 bits has a sign of zeros, too
        return index == 0 and app.dtype in INTEGERS
    return op in BLIND and (index == 0 or op in COMPARISONS)


def is_faithful(app: Application, index: int) -> bool:
    """Whether the sign of zeros in an input makes a difference for the sign of zeros alone."""
    op = app.node.operator
    if op == "Cast":
        return app.dtype in FLOATS
    return index in WRITTEN.get(op, range(len(app.args)) if op in EVERY else (0,) if op in FAITHFUL else ())
