"""The polarity of a mask: which of its elements hide, as the nodes use them.

The mask is taken to hold one number throughout, and the bounds of what nodes make of it are followed to the scores of
attentions, and to data that is multiplied by 0. A number with which no score can count is one that hides. The names of
inputs tell nothing: `src_key_padding_mask` and `attention_mask` are both booleans, and opposites.
"""

from __future__ import annotations

import functools
import itertools
import math
import operator
from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from functools import partial
from typing import Literal

import numpy as np
import onnx.numpy_helper
from msgspec import Struct
from onnx import TensorProto

from graphkit.graph import operator_traits
from graphkit.graph.dataflow import ForwardAnalysis
from graphkit.graph.declared_types import declared_type
from graphkit.graph.view import ZERO, Node, Value, unwrap_value, walk_breadth_first

Polarity = Literal["keeps", "pads", "adds"]  # 1 counts and 0 hides; 1 hides and 0 counts; it is added to scores
POLARITIES: Mapping[Polarity, str] = {
    "keeps": "1 for what counts, 0 for padding",
    "pads": "1 for padding, 0 for what counts",
    "adds": "added to scores: 0 for what counts, a large negative number for padding",
}
HIDES = -20.0  # exp of it is 2e-9: a score that is so much less counts for nothing
MAX_CONSTANT = 1 << 20  # elements of a constant that are looked at
LOW = -1e9  # what a mask that is added to scores may hold


def mask_elements(keep: np.ndarray, polarity: Polarity | None) -> np.ndarray:
    """Return the elements of a mask, from which of them count; unless its polarity is known, 1 counts."""
    if polarity == "adds":
        return np.where(keep, 0.0, LOW)
    return np.logical_not(keep) if polarity == "pads" else np.asarray(keep, np.bool_)


def make_open_mask(mask: np.ndarray, polarity: Polarity | None) -> np.ndarray:
    """Return a mask of the dtype and shape of another one that hides nothing."""
    return mask_elements(np.ones(mask.shape, np.bool_), polarity).astype(mask.dtype)


class Elements(Struct, frozen=True):
    """The least and the greatest element that a value can have."""

    low: float  # of data, how much is at least added to it
    high: float
    is_data: bool = False  # whether activations are among the addends

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
COUNT, ANY = Elements(0, math.inf), Elements(-math.inf, math.inf)
ONE, NONE, EITHER = Elements(1, 1), Elements(0, 0), Elements(0, 1)


def find_polarity(mask: Value) -> Polarity | None:
    """Return the polarity of a mask, None where the nodes do not tell, or contradict each other."""
    declared = declared_type(mask)
    numbers = (0.0, 1.0, LOW) if declared is not None and declared.is_float else (0.0, 1.0)
    touched = set(walk_breadth_first([mask], _made_of))
    others = ElementBounds({}, touched)
    facts = {number: ElementBounds({mask: Elements(number, number)}, touched, others) for number in numbers}
    for sites in (_find_score_sites, partial(_find_score_sites, somewhere=True), _find_product_sites, _find_sum_sites):
        found = {polarity for site in sites(touched, facts) if (polarity := _polarity_of_sites(site)) is not None}
        if found:
            return found.pop() if len(found) == 1 else None
    return None


Site = Mapping[float, bool]  # whether a number in the mask hides there
Facts = Mapping[float, "ElementBounds"]  # by the number in the mask


def _polarity_of_sites(hidden: Site) -> Polarity | None:
    """Return the polarity by which of some numbers hide at a place."""
    if hidden[0.0] != hidden[1.0]:
        return "keeps" if hidden[0.0] else "pads"
    return "adds" if hidden.get(LOW) and not hidden[0.0] else None


def _find_score_sites(touched: Collection[Value], facts: Facts, *, somewhere: bool = False) -> Iterator[Site]:
    """Yield for each attention behind a mask which numbers hide scores of it, or may hide some of them.

    In XLNet each token sees itself, whatever the mask says.
    """
    for value in touched:
        for node, index in value.consumers:
            if node.is_op("Softmax") or index in operator_traits.SCORE_BIASES.get(node.operator, ()):
                if node.is_op("Attention") and is_boolean(value):
                    yield {number: fact.of(value).truth is False for number, fact in facts.items()}
                else:
                    known = {number: fact.of(value) for number, fact in facts.items()}
                    yield {n: (fact.low if somewhere else fact.high) <= HIDES for n, fact in known.items()}
            elif index in operator_traits.KEY_MASKS.get(node.operator, ()):
                yield {number: fact.of(value).is_zero for number, fact in facts.items()}
            elif index in operator_traits.KEY_LENGTHS.get(node.operator, ()):
                most = {number: fact.of(value).high for number, fact in facts.items()}
                yield {number: most[number] < most[1.0 - number] for number in (0.0, 1.0)}


def _find_product_sites(touched: Collection[Value], facts: Facts) -> Iterator[Site]:
    """Yield for each product of data and a mask which numbers leave nothing of the data."""
    for value in touched:
        elements = {number: fact.of(value) for number, fact in facts.items()}
        if any(fact.is_data for fact in elements.values()):
            yield {number: fact.is_zero for number, fact in elements.items()}


def _find_sum_sites(touched: Collection[Value], facts: Facts) -> Iterator[Site]:
    """Yield for each sum over a mask which numbers are not counted: lengths follow from it."""
    for value in touched:
        if value.producer is not None and value.producer.operator in TOTALS:
            yield {number: fact.of(value).is_zero for number, fact in facts.items()}


ALIKE = operator_traits.operator_set("CastLike Ceil Dropout Floor ReduceMax ReduceMean ReduceMin Resize Round")
TOTALS = operator_traits.operator_set("CumSum ReduceSum")


def _made_of(value: Value) -> Iterator[Value | None]:
    """Yield what nodes make of a value that still tells of the mask."""
    for node, index in value.consumers:
        if node.operator in TRANSFERS and index not in operator_traits.value_inputs(node):
            yield from node.outputs


def is_boolean(value: Value) -> bool:
    """Whether a value is boolean, as its declaration says, or what makes it."""
    source = unwrap_value(value, operator_traits.MOVING)
    declared, node = declared_type(source), source.producer
    if declared is not None:
        return declared.dtype == TensorProto.BOOL
    return node is not None and (node.operator in TRUTHS or _is_cast_to_bool(node))


def _is_cast_to_bool(node: Node) -> bool:
    return node.is_op("Cast") and node.attr("to", 0) == TensorProto.BOOL


class ElementBounds(ForwardAnalysis[Elements]):
    """Bounds of the elements of values where a mask holds one number; those of `others` do not depend on it."""

    def __init__(
        self, known: Mapping[Value, Elements], touched: Collection[Value], others: ElementBounds | None = None
    ) -> None:
        super().__init__(UNKNOWN)
        self.touched, self.others = touched, others
        self._facts.update(known)

    def transfer(self, value: Value) -> Elements:
        """Return bounds of the elements of a value."""
        if self.others is not None and value not in self.touched:
            return self.others.of(value)
        node, declared = value.producer, declared_type(value)
        if value.is_constant:
            return _constant_bounds(value.constant)
        if node is None:
            return DATA if declared is None or declared.is_float else ANY
        rule = TRANSFERS.get(node.operator)
        if rule is None or (node.is_op("MatMul") and value not in self.touched):
            return DATA
        try:
            # shapes, whose elements are none of the copies
            shapes = operator_traits.value_inputs(node) if rule is _bound_copies else ()
            inputs = enumerate(node.inputs)
            return rule(node, [UNKNOWN if at in shapes else self._operand_bounds(node, each) for at, each in inputs])
        except (IndexError, TypeError, ValueError):  # the node lacks an input, or has one too many
            return UNKNOWN

    def _operand_bounds(self, node: Node, value: Value | None) -> Elements:
        """Return bounds of an operand; of another mask beside this one, those where that hides nothing."""
        fact = self.of(value)
        is_beside = node.is_op("Add", "Sum") and value is not None and self.others is not None
        hides = is_beside and value not in self.touched and fact.low <= HIDES and fact.high == 0
        return NONE if hides and not fact.is_data else fact


def _constant_bounds(tensor: TensorProto | None) -> Elements:
    if tensor is None or tensor.data_location == TensorProto.EXTERNAL or math.prod(tensor.dims) > MAX_CONSTANT:
        return UNKNOWN
    try:
        array = onnx.numpy_helper.to_array(tensor)
    except (KeyError, TypeError, ValueError):  # an unknown dtype, or no data
        return UNKNOWN
    if array.dtype.kind not in "biuf" or not array.size or np.isnan(array.min()):
        return UNKNOWN
    return Elements(float(array.min()), float(array.max()))


Transfer = Callable[[Node, Sequence[Elements]], Elements]


def _at_corners(function: Callable[..., float]) -> Transfer:
    """Return the transfer of an operator that grows with each input, or falls with it."""

    def transfer(node: Node, inputs: Sequence[Elements]) -> Elements:
        is_data = any(fact.is_data for fact in inputs)
        if node.is_op("Mul", "Div") and any(fact.is_zero for fact in inputs):
            return NONE
        if is_data and node.operator in TRUTHS:
            return EITHER
        ends = [function(*corner) for corner in itertools.product(*((fact.low, fact.high) for fact in inputs))]
        return Elements(float(min(ends)), float(max(ends)), is_data)

    return transfer


def _bound_sum(node: Node, inputs: Sequence[Elements]) -> Elements:
    """Return bounds of a sum in which a number without a bound, such as a bias of distances, is data."""
    return _at_corners(_add_bounds)(node, [DATA if fact.high == math.inf else fact for fact in inputs])


def _add_bounds(*addends: float) -> float:
    return -math.inf if -math.inf in addends else sum(addends)  # what hides does so beside anything


def _bound_difference(node: Node, inputs: Sequence[Elements]) -> Elements:
    """Return bounds of a difference; scores less the greatest of their row hide the same places."""
    scores, subtracted = node.inputs
    greatest = None if subtracted is None else unwrap_value(subtracted, operator_traits.MOVING).producer
    if greatest is not None and greatest.is_op("ReduceMax") and greatest.inputs[0] == scores:
        return inputs[0]
    return _at_corners(lambda a, b: _add_bounds(a, -b))(node, inputs)


def _bound_equal(_: Node, inputs: Sequence[Elements]) -> Elements:
    left, right = inputs
    if left.is_data or right.is_data:
        return EITHER
    if left.low > right.high or right.low > left.high:
        return NONE
    return ONE if left == right and left.low == left.high else EITHER


def _bound_choice(_: Node, inputs: Sequence[Elements]) -> Elements:
    condition, chosen, otherwise = inputs
    truth = condition.truth
    return chosen | otherwise if truth is None else chosen if truth else otherwise


def _bound_cast(node: Node, inputs: Sequence[Elements]) -> Elements:
    truth = inputs[0].truth
    return inputs[0] if not _is_cast_to_bool(node) else EITHER if truth is None else ONE if truth else NONE


def _bound_reduction(_: Node, inputs: Sequence[Elements]) -> Elements:
    """Return the bounds of sums of any number of elements, at least one."""
    low, high = inputs[0].low, inputs[0].high
    most = high * math.inf if high else 0
    return Elements(min(low, low * math.inf if low else 0), max(high, most), inputs[0].is_data)


def _matrix_product(node: Node, inputs: Sequence[Elements]) -> Elements:
    product = TRANSFERS["Mul"](node, inputs)
    return DATA if product.is_data else _bound_reduction(node, [product])


def _einsum_bounds(node: Node, inputs: Sequence[Elements]) -> Elements:
    """Return the bounds of a transposed mask; what is summed is data."""
    terms = str(node.attr("equation", "")).replace(" ", "").split("->")
    is_moved = len(inputs) == 1 and len(terms) == 2 and sorted(terms[0]) == sorted(terms[1])
    return inputs[0] if is_moved and len(set(terms[0])) == len(terms[0]) else DATA


def _bound_clip(_: Node, inputs: Sequence[Elements]) -> Elements:
    low, high = inputs[1].low, inputs[2].high if len(inputs) > 2 else math.inf
    return Elements(min(max(inputs[0].low, low), high), min(max(inputs[0].high, low), high), inputs[0].is_data)


def _bound_copies(node: Node, inputs: Sequence[Elements]) -> Elements:
    """Return the bounds of elements of some inputs, and of 0, which a Pad or a Trilu puts beside them."""
    facts = [inputs[index] for index in ((0,) if node.operator in ALIKE else operator_traits.copied_inputs(node))]
    return functools.reduce(operator.or_, [*facts, *([NONE] if node.is_op("Pad", "Trilu") else [])] or [UNKNOWN])


MONOTONE: Mapping[str, Callable[..., float]] = {
    "And": lambda a, b: bool(a) and bool(b),
    "Div": lambda a, b: math.copysign(math.inf, a) if not b or math.isinf(a) else a / b,
    "Greater": operator.gt,
    "GreaterOrEqual": operator.ge,
    "Less": operator.lt,
    "LessOrEqual": operator.le,
    "Log": lambda a: math.log(a) if a > 0 else -math.inf,
    "Max": max,
    "Min": min,
    "Mul": lambda a, b: a * b if a and b else 0.0,
    "Neg": operator.neg,
    "Not": operator.not_,
    "Or": lambda a, b: bool(a) or bool(b),
    "Xor": lambda a, b: bool(a) != bool(b),
}
TRUTHS = operator_traits.COMPARING | operator_traits.operator_set("And IsInf IsNaN Not Or Xor")
TRANSFERS: Mapping[str, Transfer] = {
    **{name: _at_corners(function) for name, function in MONOTONE.items()},
    **dict.fromkeys(operator_traits.operator_set("Add Sum"), _bound_sum),
    **dict.fromkeys(ALIKE | operator_traits.COPYING, _bound_copies),
    **dict.fromkeys(TOTALS, _bound_reduction),
    **dict.fromkeys(operator_traits.MEASURING, lambda *_: COUNT),
    **dict.fromkeys(operator_traits.operator_set("EyeLike IsInf IsNaN"), lambda *_: EITHER),
    "Cast": _bound_cast,
    "Clip": _bound_clip,
    "ConstantOfShape": lambda node, _: _constant_bounds(node.attr("value", ZERO)),
    "Einsum": _einsum_bounds,
    "Equal": _bound_equal,
    "MatMul": _matrix_product,
    "Range": lambda _, inputs: COUNT if inputs[0].low >= 0 and inputs[2].low > 0 else ANY,
    "Sub": _bound_difference,
    "Where": _bound_choice,
}
