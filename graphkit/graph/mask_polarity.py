"""The polarity of a mask: which of its elements hide, as the nodes use them.

The mask is taken to hold one number throughout, and the bounds of what nodes make of it are followed to the scores of
attentions, and to data that is multiplied by 0. A number with which no score can count is one that hides. The names of
inputs tell nothing: `src_key_padding_mask` and `attention_mask` are both booleans, and opposites.
"""

from __future__ import annotations

import math
import operator
from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Literal

import numpy as np
import onnx.numpy_helper
from onnx import TensorProto

from graphkit.graph.attributes import ZERO
from graphkit.graph.dataflow import ForwardAnalysis
from graphkit.graph.declared_types import declared_type
from graphkit.graph.operator_traits import MOVING, names, value_inputs
from graphkit.graph.traversal import reachable
from graphkit.graph.view import Node, Value, unwrapped

__all__ = ["POLARITIES", "Polarity", "find_polarity", "mask_elements", "unmasked"]

Polarity = Literal["keeps", "pads", "adds"]  # 1 counts and 0 hides; 1 hides and 0 counts; it is added to scores
POLARITIES: Mapping[Polarity, str] = {
    "keeps": "1 for what counts, 0 for padding",
    "pads": "1 for padding, 0 for what counts",
    "adds": "added to scores: 0 for what counts, a large negative number for padding",
}
HIDES = -20.0  # exp of it is 2e-9: a score that is so much less counts for nothing
LOW = -1e9  # what a mask that is added to scores may hold


def mask_elements(keep: np.ndarray, polarity: Polarity | None) -> np.ndarray:
    """Return the elements of a mask, from which of them count; unless its polarity is known, 1 counts."""
    if polarity == "adds":
        return np.where(keep, 0.0, LOW)
    return np.logical_not(keep) if polarity == "pads" else np.asarray(keep, np.bool_)


def unmasked(mask: np.ndarray, polarity: Polarity | None) -> np.ndarray:
    """Return a mask of the dtype and shape of another one that hides nothing."""
    return mask_elements(np.ones(mask.shape, np.bool_), polarity).astype(mask.dtype)


@dataclass(frozen=True, slots=True)
class Elements:
    """The least and the greatest element that a value can have.

    Attributes:
        low, high: Both; of data, how much is added to it.
        is_data: Whether activations are among the addends.
    """

    low: float
    high: float
    is_data: bool = False

    @property
    def is_zero(self) -> bool:
        """Whether nothing but zeros is left."""
        return self.low == self.high == 0 and not self.is_data

    @property
    def truth(self) -> bool | None:
        """Whether it is true throughout, or false; None where that is not known."""
        if self.is_data or self.low < 0 < self.high or (self.low == 0) != (self.high == 0):
            return None
        return self.low != 0

    def __or__(self, other: Elements) -> Elements:
        return Elements(min(self.low, other.low), max(self.high, other.high), self.is_data or other.is_data)


DATA = Elements(0, 0, is_data=True)
UNKNOWN = Elements(-math.inf, math.inf, is_data=True)
COUNT, ANY, ONE, NONE, EITHER = (
    Elements(0, math.inf),
    Elements(-math.inf, math.inf),
    Elements(1, 1),
    Elements(0, 0),
    Elements(0, 1),
)


def find_polarity(mask: Value) -> Polarity | None:
    """Return the polarity of a mask, None where the nodes do not tell, or contradict each other."""
    declared = declared_type(mask)
    numbers = (0.0, 1.0, LOW) if declared is not None and declared.is_float else (0.0, 1.0)
    touched = set(reachable([mask], _made_of))
    facts = {number: _Elements(mask, number) for number in numbers}
    for sites in (_scores, _zeroed, _counted):
        found = {polarity for site in sites(touched, facts) if (polarity := _told(site)) is not None}
        if found:
            return found.pop() if len(found) == 1 else None
    return None


Site = Mapping[float, bool]  # whether a number in the mask hides there


def _told(hidden: Site) -> Polarity | None:
    """Return the polarity by which of some numbers hide at a place."""
    if hidden[0.0] != hidden[1.0]:
        return "keeps" if hidden[0.0] else "pads"
    return "adds" if hidden.get(LOW) and not hidden[0.0] else None


def _scores(touched: Collection[Value], facts: Mapping[float, _Elements]) -> Iterator[Site]:
    """Yield for each attention behind a mask which numbers hide scores of it."""
    for value in touched:
        for node, index in value.consumers:
            if node.is_op("Softmax") or index in ADDED.get(node.operator, ()):
                if node.is_op("Attention") and _is_bool(value):
                    yield {number: fact.of(value).truth is False for number, fact in facts.items()}
                else:
                    yield {number: fact.of(value).high <= HIDES for number, fact in facts.items()}
            elif index in KEEPING.get(node.operator, ()):
                yield {number: fact.of(value).is_zero for number, fact in facts.items()}
            elif index in LENGTHS.get(node.operator, ()):
                most = {number: fact.of(value).high for number, fact in facts.items()}
                yield {number: most[number] < most[1.0 - number] for number in (0.0, 1.0)}


def _zeroed(touched: Collection[Value], facts: Mapping[float, _Elements]) -> Iterator[Site]:
    """Yield for each product of data and a mask which numbers leave nothing of the data."""
    for value in touched:
        elements = {number: fact.of(value) for number, fact in facts.items()}
        if any(fact.is_data for fact in elements.values()):
            yield {number: fact.is_zero for number, fact in elements.items()}


def _counted(touched: Collection[Value], facts: Mapping[float, _Elements]) -> Iterator[Site]:
    """Yield for each sum over a mask which numbers are not counted: lengths follow from it."""
    for value in touched:
        if value.producer is not None and value.producer.operator in TOTALS:
            yield {number: fact.of(value).is_zero for number, fact in facts.items()}


ADDED: Mapping[str, tuple[int, ...]] = {  # operator -> inputs that are added to scores
    "Attention": (3,),
    "com.microsoft.Attention": (5,),
    "com.microsoft.QAttention": (),
    "com.microsoft.MultiHeadAttention": (5,),
    "com.microsoft.DecoderMaskedMultiHeadAttention": (4,),
    "com.microsoft.GroupQueryAttention": (10,),
}
KEEPING: Mapping[str, tuple[int, ...]] = {  # operator -> inputs of which 0 hides
    "com.microsoft.Attention": (3,),
    "com.microsoft.QAttention": (5,),
    "com.microsoft.MultiHeadAttention": (4,),
    "com.microsoft.DecoderMaskedMultiHeadAttention": (3,),
    "com.microsoft.EmbedLayerNormalization": (7,),
}
LENGTHS: Mapping[str, tuple[int, ...]] = {  # operator -> inputs that say how many positions count
    "com.microsoft.GroupQueryAttention": (5,),
    "com.microsoft.SparseAttention": (8,),
}
COMPARING = names("Equal Greater GreaterOrEqual Less LessOrEqual")
LOGICAL = COMPARING | names("And IsInf IsNaN Not Or Xor")
ALIKE = names("CastLike Ceil Dropout Floor Identity ReduceMax ReduceMean ReduceMin Resize Round") | (
    MOVING - {"Concat"}
)
TOTALS = names("CumSum ReduceSum")


def _made_of(value: Value) -> Iterator[Value | None]:
    """Yield what nodes make of a value that still tells of the mask."""
    for node, index in value.consumers:
        if node.operator in TRANSFERS and index not in value_inputs(node):
            yield from node.outputs


def _is_bool(value: Value) -> bool:
    source = unwrapped(value, MOVING)
    declared, node = declared_type(source), source.producer
    if declared is not None:
        return declared.dtype == TensorProto.BOOL
    return node is not None and (node.operator in LOGICAL or (node.is_op("Cast") and _is_cast_to_bool(node)))


def _is_cast_to_bool(node: Node) -> bool:
    return node.attr("to", 0) == TensorProto.BOOL


class _Elements(ForwardAnalysis[Elements]):
    """Bounds of the elements of values where a mask holds one number throughout."""

    def __init__(self, mask: Value, number: float) -> None:
        super().__init__(UNKNOWN)
        self._facts[mask] = Elements(number, number)

    def transfer(self, value: Value) -> Elements:
        """Return bounds of the elements of a value."""
        node, declared = value.producer, declared_type(value)
        if value.is_constant:
            return _hull(value.constant)
        if node is None:
            return DATA if declared is None or declared.is_float else ANY
        rule = TRANSFERS.get(node.operator)
        return DATA if rule is None or node.bodies else rule(node, [self.of(operand) for operand in node.inputs])


def _hull(tensor: TensorProto | None) -> Elements:
    if tensor is None or tensor.data_location == TensorProto.EXTERNAL:
        return UNKNOWN
    try:
        array = onnx.numpy_helper.to_array(tensor)
    except (KeyError, TypeError, ValueError):  # an unknown dtype, or no data
        return UNKNOWN
    if array.dtype.kind not in "biuf" or not array.size or np.isnan(array.min()):
        return UNKNOWN
    return Elements(float(array.min()), float(array.max()))


Transfer = Callable[[Node, Sequence[Elements]], Elements]


def _hull_of(_: Node, inputs: Sequence[Elements]) -> Elements:
    total = inputs[0]
    for fact in inputs[1:]:
        total |= fact
    return total


def _sum(_: Node, inputs: Sequence[Elements]) -> Elements:
    inputs = [DATA if fact.high == math.inf else fact for fact in inputs]  # such as a bias of distances
    ends = ([fact.low for fact in inputs], [fact.high for fact in inputs])
    low, high = (-math.inf if -math.inf in addends else sum(addends) for addends in ends)  # what hides wins
    return Elements(low, high, any(fact.is_data for fact in inputs))


def _negative(fact: Elements) -> Elements:
    return Elements(-fact.high, -fact.low, fact.is_data)


def _product(_: Node, inputs: Sequence[Elements]) -> Elements:
    left, right = inputs
    if left.is_zero or right.is_zero:
        return NONE
    return _of_ends(left, right, lambda a, b: a * b if a and b else 0.0)


def _of_ends(left: Elements, right: Elements, function: Callable[[float, float], float]) -> Elements:
    ends = [function(a, b) for a in (left.low, left.high) for b in (right.low, right.high)]
    return Elements(min(ends), max(ends), left.is_data or right.is_data)


def _quotient(_: Node, inputs: Sequence[Elements]) -> Elements:
    left, right = inputs
    if left.is_zero:
        return NONE
    if right.is_data or right.low <= 0 <= right.high or math.inf in (abs(left.low), abs(left.high)):
        return Elements(-math.inf, math.inf, left.is_data or right.is_data)
    return _of_ends(left, right, operator.truediv)


def _choice(_: Node, inputs: Sequence[Elements]) -> Elements:
    condition, chosen, otherwise = inputs
    truth = condition.truth
    return chosen | otherwise if truth is None else chosen if truth else otherwise


def _extreme(choose: Callable[..., float]) -> Transfer:
    def bounds(_: Node, inputs: Sequence[Elements]) -> Elements:
        ends = (choose(fact.low for fact in inputs), choose(fact.high for fact in inputs))
        return Elements(*ends, any(fact.is_data for fact in inputs))

    return bounds


def _cast(node: Node, inputs: Sequence[Elements]) -> Elements:
    return _of_truth(inputs[0].truth) if _is_cast_to_bool(node) else inputs[0]


def _of_truth(truth: bool | None) -> Elements:
    return EITHER if truth is None else ONE if truth else NONE


def _not(_: Node, inputs: Sequence[Elements]) -> Elements:
    truth = inputs[0].truth
    return EITHER if truth is None else _of_truth(not truth)


def _logical(decisive: bool) -> Transfer:
    def combined(_: Node, inputs: Sequence[Elements]) -> Elements:
        truths = [fact.truth for fact in inputs]
        if decisive in truths:
            return _of_truth(decisive)
        return EITHER if None in truths else _of_truth(not decisive)

    return combined


def _xor(_: Node, inputs: Sequence[Elements]) -> Elements:
    left, right = (fact.truth for fact in inputs)
    return EITHER if left is None or right is None else _of_truth(left != right)


def _compared(node: Node, inputs: Sequence[Elements]) -> Elements:
    left, right = inputs
    if left.is_data or right.is_data:
        return EITHER
    if node.is_op("Equal"):
        if left.high < right.low or right.high < left.low:
            return NONE
        return ONE if left == right and left.low == left.high else EITHER
    if node.is_op("Greater", "GreaterOrEqual"):
        left, right = right, left
    is_strict = node.is_op("Less", "Greater")
    if left.high < right.low or (left.high == right.low and not is_strict):
        return ONE
    return NONE if left.low > right.high or (left.low == right.high and is_strict) else EITHER


def _total(_: Node, inputs: Sequence[Elements]) -> Elements:
    """Return the bounds of sums of any number of elements, at least one."""
    fact = inputs[0]
    if fact.is_data:
        return DATA
    low, high = (0.0 if not end else end * math.inf for end in (fact.low, fact.high))
    return Elements(min(low, fact.low), max(high, fact.high))


def _matrix_product(node: Node, inputs: Sequence[Elements]) -> Elements:
    product = _product(node, inputs[:2])
    return DATA if product.is_data else _total(node, [product])


def _clip(node: Node, inputs: Sequence[Elements]) -> Elements:
    low, high = (
        inputs[at] if at < len(inputs) and node.input(at) is not None else Elements(end, end)
        for at, end in ((1, -math.inf), (2, math.inf))
    )
    most = _extreme(min)(node, [inputs[0], high])
    return _extreme(max)(node, [most, low])


def _log(_: Node, inputs: Sequence[Elements]) -> Elements:
    low, high = (math.log(end) if end > 0 else -math.inf for end in (inputs[0].low, inputs[0].high))
    return DATA if inputs[0].is_data else Elements(low, high)


def _filled(node: Node, _: Sequence[Elements]) -> Elements:
    return _hull(node.attr("value", ZERO))


def _padded(_: Node, inputs: Sequence[Elements]) -> Elements:
    return inputs[0] | (inputs[2] if len(inputs) > 2 else NONE)


TRANSFERS: Mapping[str, Transfer] = {
    **dict.fromkeys(ALIKE, lambda _, inputs: inputs[0]),
    **dict.fromkeys(COMPARING, _compared),
    **dict.fromkeys(TOTALS, _total),
    **dict.fromkeys(names("Concat"), _hull_of),
    **dict.fromkeys(names("EyeLike IsInf IsNaN"), lambda _, __: EITHER),
    **dict.fromkeys(names("Shape Size"), lambda _, __: COUNT),
    **dict.fromkeys(names("ScatterElements ScatterND"), lambda _, inputs: inputs[0] | inputs[2]),
    "Abs": lambda _, inputs: inputs[0] | _negative(inputs[0]),
    "Add": _sum,
    "And": _logical(False),
    "Cast": _cast,
    "Clip": _clip,
    "ConstantOfShape": _filled,
    "Div": _quotient,
    "Log": _log,
    "MatMul": _matrix_product,
    "Max": _extreme(max),
    "Min": _extreme(min),
    "Mul": _product,
    "Neg": lambda _, inputs: _negative(inputs[0]),
    "Not": _not,
    "Or": _logical(True),
    "Pad": _padded,
    "Range": lambda _, inputs: COUNT if inputs[0].low >= 0 and inputs[2].low > 0 else ANY,
    "Sub": lambda node, inputs: _sum(node, [inputs[0], _negative(inputs[1])]),
    "Sum": _sum,
    "Trilu": lambda _, inputs: inputs[0] | NONE,
    "Where": _choice,
    "Xor": _xor,
}
