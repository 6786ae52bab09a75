"""The sign of zeros: where `x + 0` may be taken for x, though it turns -0 into 0.

-0 and 0 compare equal, but 1 / x tells them apart. A loose term stands for a value up to the sign of its zeros. An
operator that is blind to that sign gives the same bits for loose arguments; a faithful one gives at most zeros of
another sign; any other operator gets the exact arguments.
"""

from __future__ import annotations

from graphkit.dtypes import FLOATS, INTEGERS
from graphkit.graph.operator_traits import names
from graphkit.verify.equivalence import flat
from graphkit.verify.equivalence.application import Application
from graphkit.verify.equivalence.axioms import Axiom, Result, turned
from graphkit.verify.equivalence.movement import expands_to
from graphkit.verify.equivalence.signs_of_zeros import has_no_zero, is_all
from graphkit.verify.equivalence.terms import Term

__all__ = ["BLIND", "CHOICES", "EXTREMES", "FAITHFUL", "ZERO_AXIOMS", "is_blind", "is_faithful"]

BLIND = names(
    """
    Abs Cos Cosh DynamicQuantizeLinear Equal Exp Greater GreaterOrEqual IsInf IsNaN Less LessOrEqual
    QuantizeLinear ReduceL1 ReduceL2 ReduceSumSquare Shape Sigmoid Size Softmax Softplus
    """
)
# All of whose inputs may be loose; of others, the first may be.
EVERY = names(
    """
    Add Sub Mul Sum Mean Max Min Where Concat MatMul Gemm
    """
)
WRITTEN = {"ScatterND": (0, 2), "TensorScatter": (0, 1)}  # the data, and what is written into it
FAITHFUL = EVERY | names(
    """
    AveragePool Ceil Clip Conv Div Elu Erf Expand Flatten Floor Gather Gelu GlobalAveragePool HardSwish Identity
    LayerNormalization LeakyRelu MaxPool Neg Pad ReduceMax ReduceMean ReduceMin ReduceSum Relu Reshape Round Sin
    Slice Split Sqrt Squeeze Tanh Tile Transpose Unsqueeze
    """
)


def is_blind(app: Application, index: int) -> bool:
    """Whether the sign of zeros in an input makes no difference."""
    op = app.node.operator
    if op == "Pow" and index == 0 and (exponent := app.arg(1)) is not None:
        return is_all(app, exponent, 2.0)
    if op in ("Add", "Sub") and app.dtype in FLOATS and app.node.scope.opset() >= 7:
        return has_no_zero(app, app.arg(1 - index))  # 0 + y and -0 + y are y
    if op == "Cast" and app.dtype not in FLOATS:
        return app.dtype in (1, 2, 3, 4, 5, 6, 7, 9, 10, 11, 12, 13)
    if op == "QuantizeLinear" and app.dtype not in INTEGERS:  # a float of 8 bits has a sign of zeros, too
        return False
    return op in BLIND and (index == 0 or op in ("Equal", "Greater", "GreaterOrEqual", "Less", "LessOrEqual"))


def is_faithful(app: Application, index: int) -> bool:
    """Whether the sign of zeros in an input makes a difference for the sign of zeros alone."""
    op = app.node.operator
    if op in WRITTEN:
        return index in WRITTEN[op]
    return op in EVERY or (index == 0 and (op in FAITHFUL or (op == "Cast" and app.dtype in FLOATS)))


def without_zero(app: Application) -> Term | None:
    """Return the term that zeros are added to, or taken from, None for any other node."""
    if app.node.operator not in ("Add", "Sub") or app.dtype not in FLOATS or app.node.scope.opset() < 7:
        return None
    left, right = app.arg(0), app.arg(1)
    if left is None or right is None or app.dims is None:
        return None
    pairs = ((left, right), (right, left)) if app.node.operator == "Add" else ((left, right),)
    for kept, gone in pairs:
        is_zero = is_all(app, gone, 0.0) or is_all(app, gone, -0.0)
        if is_zero and kept.dims is not None and expands_to(kept.dims, app.dims):
            return app.tools.movement.expand(kept, app.dims)
    return None


def chosen(app: Application) -> Result:
    """Choose from branches of whatever dims, and by what is negated, the other way round."""
    found = turned(app)
    return found if isinstance(found, Term) else flat.by_dims(app)


# Of 0 and -0, the largest may be either, and a Where may turn -0 into 0: which one stands first, and which repeats,
# decides.
EXTREMES = Axiom("largest and least", "Max and Min of what repeats repeat.", frozenset({"Max", "Min"}), flat.by_dims)
CHOICES = Axiom("choices", "A Where may choose from what repeats, and the other way round.", frozenset({"Where"}),
                chosen)  # fmt: skip
ZERO_AXIOMS = (
    EXTREMES,
    CHOICES,
    Axiom("zeros added", "x + 0 and x - 0 are x but for the sign of zeros.", frozenset({"Add", "Sub"}), without_zero),
)  # fmt: skip
