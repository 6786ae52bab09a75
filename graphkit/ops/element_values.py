"""Value propagation: the elements of small tensors, numbers as the dtype of the operator has them, expressions exactly.

Operations whose last bit IEEE 754 does not fix (Exp, Log, Sin, ...) are left out: a value off by one bit may be cast to
another integer than in onnxruntime. A result that cannot be decided is None.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from functools import partial
from itertools import product
from typing import TypeGuard

import numpy as np
from onnx import TensorProto

from graphkit.dtypes import FLOATS, INTEGERS, integer_range
from graphkit.ops.tensor import MAX_DIVISOR, Array, Element, Ratio, fits_dtype, is_exact, is_same, plain_element
from graphkit.symbolic.algebra import floor_div, lower, maximum, minimum, modulo, upper
from graphkit.symbolic.expr import Expr, TooComplexError


def round_to_dtype(value: float, dtype: int) -> float:
    """Return a number as a float dtype holds it."""
    with np.errstate(over="ignore"):
        return float(FLOATS[dtype].type(value))


def cast_number(value: float, dtype: int) -> float | None:
    """Return a number cast to a float dtype; None where it matters whether it is rounded once or by way of others."""
    ways = {round_to_dtype(value, dtype), round_to_dtype(float(np.float64(value)), dtype)}
    if FLOATS[dtype].itemsize < 4:
        with np.errstate(over="ignore"):
            ways.add(round_to_dtype(float(np.float32(value)), dtype))
    if isinstance(value, int):
        ways.add(float(np.asarray(value).astype(FLOATS[dtype])))
    return ways.pop() if len(ways) == 1 or math.isnan(value) else None


def is_negative_zero(value: float) -> bool:
    """Whether a number is -0."""
    return value == 0 and math.copysign(1, value) < 0


Result = Element | None
Operation = Callable[[tuple[Element, ...], int], Result]  # of elements and the dtype of the operator


def apply_operation(
    name: str, arrays: Sequence[Array], dtype: int, refused: Callable[[Element, int], object] = lambda *_: None
) -> Array:
    """Return an operation's result on broadcast arrays; elements that cannot be decided are None.

    `refused` is called with each result that the dtype may not hold, and the dtype. A division by zero is an
    ArithmeticError.
    """
    function = OPERATORS[name]

    def decide_element(*args: Element) -> Result:
        try:
            return function(args, dtype)
        except TooComplexError:
            if dtype not in FLOATS:
                raise
            return None  # a float of unknowns that no 64 bits hold, such as `(1 - mask) * -3.4e38`

    is_held = is_exact if dtype in FLOATS else fits_dtype

    def held(element: Element | None) -> Result:
        if element is None or is_held(element, dtype):
            return element
        refused(element, dtype)
        return None

    return for_each_element(held, for_each_element(decide_element, *arrays))


def for_each_element(function: Callable[..., Result], *arrays: Array) -> Array:
    """Return the results of a function for the elements of broadcast arrays."""
    with np.errstate(all="ignore"):
        return np.asarray(np.frompyfunc(function, len(arrays), 1)(*arrays), object)


def _are_numbers(args: tuple[Element, ...]) -> TypeGuard[tuple[int | float, ...]]:
    return all(isinstance(arg, (int, float)) for arg in args)


def _settle_fraction(dividend: Expr, divisor: int, dtype: int) -> Result:
    if divisor < 0:
        dividend, divisor = -dividend, -divisor
    shared = math.gcd(divisor, *(factor for _, factor in dividend.terms))
    if shared > 1:
        dividend, divisor = floor_div(dividend, shared), divisor // shared
    value = dividend.constant
    if value is not None and dtype in FLOATS:  # the sign of a zero would depend on what the unknowns were
        quotient = value / divisor
        return quotient if quotient and round_to_dtype(quotient, dtype) == quotient else None
    if value is not None:
        return value
    if divisor > MAX_DIVISOR:
        return None
    return dividend if divisor == 1 else Ratio(dividend, divisor)


def _add_elements(args: tuple[Element, ...], dtype: int) -> Result:
    if _are_numbers(args):
        return round_to_dtype(args[0] + args[1], dtype) if dtype in FLOATS else args[0] + args[1]
    a, b = Ratio.of(args[0]), Ratio.of(args[1])
    if a is None or b is None:
        return None
    return _settle_fraction(a.dividend * b.divisor + b.dividend * a.divisor, a.divisor * b.divisor, dtype)


def _negate_element(args: tuple[Element, ...], _dtype: int) -> Element:
    element = args[0]
    return Ratio(-element.dividend, element.divisor) if isinstance(element, Ratio) else -element


def _multiply_elements(args: tuple[Element, ...], dtype: int) -> Result:
    if _are_numbers(args):
        return round_to_dtype(args[0] * args[1], dtype) if dtype in FLOATS else args[0] * args[1]
    a, b = Ratio.of(args[0]), Ratio.of(args[1])
    return None if a is None or b is None else _settle_fraction(a.dividend * b.dividend, a.divisor * b.divisor, dtype)


def _divide_elements(args: tuple[Element, ...], dtype: int) -> Result:
    left, right = args
    if dtype not in FLOATS:
        return _truncate_quotient(Expr.of(left), Expr.of(right))  # type: ignore[arg-type]
    if _are_numbers(args):
        return float(FLOATS[dtype].type(left) / FLOATS[dtype].type(right))
    a, b = Ratio.of(left), Ratio.of(right)
    divisor = b.dividend.constant if b is not None else None
    if a is None or b is None or not divisor:
        return None
    return _settle_fraction(a.dividend * b.divisor, a.divisor * divisor, dtype)


def _truncate_quotient(dividend: Expr, divisor: Expr) -> Result:
    """Return the quotient rounded towards 0, as C does it."""
    if upper(divisor) < 0:
        dividend, divisor = -dividend, -divisor
    if lower(dividend) >= 0:
        return plain_element(floor_div(dividend, divisor)) if lower(divisor) >= 0 else None
    if upper(dividend) <= 0 and lower(divisor) >= 0:
        return plain_element(-floor_div(-dividend, divisor))
    quotient = floor_div(dividend, divisor)
    return plain_element(quotient) if lower(divisor) > 0 and quotient * divisor == dividend else None


def _modulo_elements(args: tuple[Element, ...], dtype: int) -> Result:
    if dtype in FLOATS:
        return None
    left, right = args
    return plain_element(modulo(Expr.of(left), Expr.of(right)))  # type: ignore[arg-type]


def _power_elements(args: tuple[Element, ...], dtype: int) -> Result:
    base, exponent = args
    if exponent == 0.5 and isinstance(base, (int, float)) and base >= 0 and math.isqrt(int(base)) ** 2 == base:
        root = math.isqrt(int(base))
        return float(root) if dtype in FLOATS else root
    if exponent not in (0, 1, 2, 3) or (dtype in FLOATS and exponent == 3):
        return None
    result: Result = 1.0 if dtype in FLOATS else 1
    for _ in range(int(exponent)):
        result = None if result is None else _multiply_elements((result, base), dtype)
    return result if dtype in FLOATS or is_exact(result, TensorProto.DOUBLE) else None  # it counts integers in float64


def _extreme_element(
    of_numbers: Callable[..., float], of_exprs: Callable[..., Expr], args: tuple[Element, ...], dtype: int
) -> Result:
    if _are_numbers(args):  # None beside NaN, and where the sign of a zero depends on the order
        found = of_numbers(args)
        signs = {math.copysign(1, value) for value in args if value == found}
        return None if any(value != value for value in args) or len(signs) > 1 else found
    ratios = [ratio for arg in args if (ratio := Ratio.of(arg)) is not None]
    if len(ratios) < len(args):
        return None
    divisor = math.lcm(*(ratio.divisor for ratio in ratios))
    dividends = (ratio.dividend * (divisor // ratio.divisor) for ratio in ratios)
    return _settle_fraction(of_exprs(*dividends), divisor, dtype)


def _absolute_element(args: tuple[Element, ...], dtype: int) -> Result:
    element = args[0]
    if isinstance(element, (int, float)):
        return abs(element)
    dividend = element.dividend if isinstance(element, Ratio) else element
    if lower(dividend) >= 0:
        return element
    return _negate_element(args, dtype) if upper(dividend) <= 0 else None


def _sign_of_element(args: tuple[Element, ...], dtype: int) -> Result:
    element = args[0]
    dividend = element.dividend if isinstance(element, Ratio) else element
    if isinstance(dividend, float) and (math.isnan(dividend) or is_negative_zero(dividend)):
        return None
    if isinstance(dividend, (int, float)):
        sign = (dividend > 0) - (dividend < 0)
    elif lower(dividend) > 0 or upper(dividend) < 0:
        sign = 1 if lower(dividend) > 0 else -1
    elif dtype in FLOATS or lower(dividend) < 0:
        return None
    else:
        return plain_element(minimum(dividend, 1))
    return float(sign) if dtype in FLOATS else sign


def _round_element(function: Callable[[float], int], args: tuple[Element, ...], _dtype: int) -> Result:
    element = args[0]
    if isinstance(element, float):  # which keeps its sign where it becomes 0
        return (float(function(element)) or math.copysign(0.0, element)) if math.isfinite(element) else element
    if not isinstance(element, Ratio):
        return element
    if function is round:
        return None
    return element.floor() if function is math.floor else -Ratio(-element.dividend, element.divisor).floor()


def _root_of_element(args: tuple[Element, ...], dtype: int) -> Result:
    element = args[0]
    is_known = dtype in FLOATS and isinstance(element, (int, float)) and element >= 0
    return float(np.sqrt(FLOATS[dtype].type(element))) if is_known else None


def compare_elements(name: str, left: Element, right: Element) -> int | None:
    """Return 1 or 0 where bounds decide a comparison, else None."""
    if isinstance(left, (int, float)) and isinstance(right, (int, float)):
        return int({"==": left == right, "<": left < right, "<=": left <= right}[name])
    a, b = Ratio.of(left), Ratio.of(right)
    if a is None or b is None:
        return None
    difference = a.dividend * b.divisor - b.dividend * a.divisor
    low, high = lower(difference), upper(difference)
    if name == "==":
        return 1 if low == high == 0 else 0 if low > 0 or high < 0 else None
    limit = 0 if name == "<=" else -1
    return 1 if high <= limit else 0 if low > limit else None


def _equal_elements(args: tuple[Element, ...], dtype: int) -> Result:
    decided = compare_elements("==", *args)
    if decided is not None or dtype in FLOATS:
        return decided
    difference = Expr.of(args[0]) - Expr.of(args[1])  # type: ignore[arg-type]
    if lower(difference) < 0:
        difference = -difference
    return plain_element(1 - minimum(difference, 1)) if lower(difference) >= 0 else None


def choose_element(condition: Element, if_true: Element, if_false: Element) -> Result:
    """Return the element that Where chooses; onnxruntime may give 0 for -0."""
    decided = compare_elements("==", condition, 0)
    if decided is None and not is_same(if_true, if_false):
        return None
    chosen = if_false if decided else if_true
    return None if isinstance(chosen, float) and is_negative_zero(chosen) else chosen


def _combine_booleans(function: Callable[[tuple[bool, ...]], bool], args: tuple[Element, ...], _dtype: int) -> Result:
    zeros = [compare_elements("==", arg, 0) for arg in args]
    cases = product(*((False, True) if zero is None else (not zero,) for zero in zeros))
    results = set(map(function, cases))
    return int(results.pop()) if len(results) == 1 else None


def _negate_boolean(args: tuple[Element, ...], _dtype: int) -> Result:
    decided = compare_elements("==", args[0], 0)
    return 1 - args[0] if decided is None and _is_boolean(args[0]) else decided


def _conjoin_booleans(args: tuple[Element, ...], dtype: int) -> Result:
    """Return whether both hold: they never do if their sum is 1 at most, as `x == 0` and `x % 32 != 0` of x >= 0.

    torch corrects a quotient of integers that C rounds towards 0 by such a pair.
    """
    decided = _combine_booleans(all, args, dtype)
    exprs = [Expr.of(arg) for arg in args if _is_boolean(arg)]
    is_never = len(exprs) == len(args) and upper(sum(exprs, Expr.of(0))) <= 1
    return 0 if decided is None and is_never else decided


def _is_boolean(element: Element) -> TypeGuard[Expr | int]:
    return isinstance(element, (Expr, int)) and lower(Expr.of(element)) >= 0 and upper(Expr.of(element)) <= 1


def cast_element(element: Element, to: int, from_float: bool) -> Result:
    """Return an element in another dtype; None where that is not known."""
    if to in FLOATS:
        if isinstance(element, (int, float)):
            return cast_number(element, to)
        return element if is_exact(element, to) else None
    if to == 9:
        zero = compare_elements("==", element, 0)
        if zero is not None:
            return 1 - zero
        return minimum(element, 1) if isinstance(element, Expr) and lower(element) >= 0 else None
    if to not in INTEGERS:
        return None
    if isinstance(element, float):
        if not math.isfinite(element):
            return None
        element = int(element)
    least, most = integer_range(to)
    if isinstance(element, Ratio):
        if not element.is_positive:
            return None
        element = plain_element(element.floor())
    if isinstance(element, int):
        wrapped = (element - least) % (most - least + 1) + least
        return None if from_float and wrapped != element else wrapped
    return element if fits_dtype(element, to) else None


COMPARISONS: dict[str, Operation] = {
    "Equal": _equal_elements,
    "Less": lambda args, _: compare_elements("<", *args),
    "LessOrEqual": lambda args, _: compare_elements("<=", *args),
    "Greater": lambda args, _: compare_elements("<", *args[::-1]),
    "GreaterOrEqual": lambda args, _: compare_elements("<=", *args[::-1]),
    "And": _conjoin_booleans,
    "Or": partial(_combine_booleans, any),
    "Xor": partial(_combine_booleans, lambda pair: pair[0] != pair[1]),
}
OPERATORS: dict[str, Operation] = {
    **COMPARISONS,
    "Add": _add_elements,
    "Sub": lambda args, dtype: _add_elements((args[0], _negate_element(args[1:], dtype)), dtype),
    "Mul": _multiply_elements,
    "Div": _divide_elements,
    "Mod": _modulo_elements,
    "Pow": _power_elements,
    "Min": partial(_extreme_element, min, minimum),
    "Max": partial(_extreme_element, max, maximum),
    "Sum": _add_elements,
    "Neg": _negate_element,
    "Abs": _absolute_element,
    "Sign": _sign_of_element,
    "Floor": partial(_round_element, math.floor),
    "Ceil": partial(_round_element, math.ceil),
    "Round": partial(_round_element, round),
    "Sqrt": _root_of_element,
    "Reciprocal": lambda args, dtype: _divide_elements((1.0, args[0]), dtype),
    "Not": _negate_boolean,
}
