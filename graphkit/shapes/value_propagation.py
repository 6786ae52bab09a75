"""Value propagation: the elements of small tensors, numbers as the dtype of the operator has them, expressions exactly.

Operations whose last bit IEEE 754 does not fix (Exp, Log, Sin, ...) are left out: a value off by one bit may be cast to
another integer than in onnxruntime. A result that cannot be decided is None.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from fractions import Fraction
from typing import Any, TypeGuard

import numpy as np

from graphkit.dtypes import BITS, FLOATS, INTEGERS, UNSIGNED
from graphkit.shapes.algebra import floor_div, maximum, minimum, modulo
from graphkit.shapes.bounds import lower, upper
from graphkit.shapes.expr import Expr, TooComplexError, const
from graphkit.shapes.tensor import Array, Element, Ratio, array_of

__all__ = ["COMPARISONS", "OPERATORS", "apply", "cast", "choose", "compare"]

MAX_FACTOR = 1 << 40  # of a dim: with larger ones, elements wrap around at sizes that are legal
MAX_EXACT = 1 << 12  # largest divisor of a fraction that is calculated with
Result = Element | None


def apply(name: str, arrays: list[Array], dtype: int) -> Array | None:
    """Return an operation's result on broadcast arrays; elements that cannot be decided are None.

    Raises:
        ArithmeticError: A division by zero.
    """
    function = OPERATORS[name]
    is_float = dtype in FLOATS

    def decided(*args: Element) -> Result:
        try:
            return function(args, is_float, dtype)
        except TooComplexError:
            if not is_float:
                raise
            return None  # a float of unknowns that no 64 bits hold, such as `(1 - mask) * -3.4e38`

    with np.errstate(all="ignore"):
        result: Any = np.frompyfunc(decided, len(arrays), 1)(*arrays)
    shape = np.broadcast_shapes(*(array.shape for array in arrays))
    elements = result.ravel().tolist() if isinstance(result, np.ndarray) else [result]
    if not is_float:
        bits = BITS[dtype] if dtype in INTEGERS else 64
        elements = [element if _fits(element, bits) else None for element in elements]
    return array_of(elements, shape)


def _fits(element: Element | None, bits: int) -> bool:
    """Whether an element of an integer tensor is not so large that it wraps around."""
    if isinstance(element, int):
        return not abs(element) >> (bits - 1)
    return not isinstance(element, Expr) or all(abs(k) <= MAX_FACTOR for monomial, k in element.terms if monomial)


def _are_numbers(args: tuple[Element, ...]) -> TypeGuard[tuple[int | float, ...]]:
    return all(isinstance(arg, (int, float)) for arg in args)


def _rounded(value: float, dtype: int) -> float:
    return float(FLOATS[dtype].type(value))


def _ratio(element: Element) -> Ratio | None:
    """Return an element as a fraction that is exact in a float, None where it is none."""
    if isinstance(element, Ratio):
        return element if element.is_exact else None
    if isinstance(element, (int, Expr)):
        return Ratio(Expr.of(element), 1)
    if not math.isfinite(element):
        return None
    exact = Fraction(element)
    return Ratio(const(exact.numerator), exact.denominator) if exact.denominator <= MAX_EXACT else None


def _settled(dividend: Expr, divisor: int, is_float: bool) -> Result:
    """Return a fraction in its plainest form."""
    if divisor < 0:
        dividend, divisor = -dividend, -divisor
    shared = math.gcd(divisor, *(factor for _, factor in dividend.terms))
    if shared > 1:
        dividend, divisor = floor_div(dividend, shared), divisor // shared
    value = dividend.constant
    if value is not None:
        return value / divisor if is_float else value
    if divisor > MAX_EXACT:
        return None
    return dividend if divisor == 1 else Ratio(dividend, divisor)


def _add(args: tuple[Element, ...], is_float: bool, dtype: int) -> Result:
    if _are_numbers(args):
        return _rounded(args[0] + args[1], dtype) if is_float else args[0] + args[1]
    a, b = _ratio(args[0]), _ratio(args[1])
    if a is None or b is None:
        return None
    return _settled(a.dividend * b.divisor + b.dividend * a.divisor, a.divisor * b.divisor, is_float)


def _negate(args: tuple[Element, ...], is_float: bool, dtype: int) -> Result:  # noqa: ARG001 - one signature for all
    element = args[0]
    return Ratio(-element.dividend, element.divisor) if isinstance(element, Ratio) else -element


def _subtract(args: tuple[Element, ...], is_float: bool, dtype: int) -> Result:
    negative = _negate(args[1:], is_float, dtype)
    return None if negative is None else _add((args[0], negative), is_float, dtype)


def _multiply(args: tuple[Element, ...], is_float: bool, dtype: int) -> Result:
    if _are_numbers(args):
        return _rounded(args[0] * args[1], dtype) if is_float else args[0] * args[1]
    a, b = _ratio(args[0]), _ratio(args[1])
    return None if a is None or b is None else _settled(a.dividend * b.dividend, a.divisor * b.divisor, is_float)


def _divide(args: tuple[Element, ...], is_float: bool, dtype: int) -> Result:
    left, right = args
    if not is_float:
        return _truncated(Expr.of(left), Expr.of(right))  # type: ignore[arg-type]
    if _are_numbers(args):
        return float(FLOATS[dtype].type(left) / FLOATS[dtype].type(right))
    a, b = _ratio(left), _ratio(right)
    divisor = b.dividend.constant if b is not None else None
    if a is None or b is None or not divisor:
        return None
    return _settled(a.dividend * b.divisor, a.divisor * divisor, is_float)


def _truncated(dividend: Expr, divisor: Expr) -> Result:
    """Return the quotient rounded towards 0, as C does it."""
    if upper(divisor) < 0:
        dividend, divisor = -dividend, -divisor
    if lower(dividend) >= 0:
        return _plain(floor_div(dividend, divisor)) if lower(divisor) >= 0 else None
    if upper(dividend) <= 0 and lower(divisor) >= 0:
        return _plain(-floor_div(-dividend, divisor))
    quotient = floor_div(dividend, divisor)
    return _plain(quotient) if lower(divisor) > 0 and quotient * divisor == dividend else None


def _plain(expr: Expr) -> Element:
    value = expr.constant
    return expr if value is None else value


def _modulo(args: tuple[Element, ...], is_float: bool, dtype: int) -> Result:  # noqa: ARG001 - one signature for all
    if is_float:
        return None
    left, right = args
    return _plain(modulo(Expr.of(left), Expr.of(right)))  # type: ignore[arg-type]


def _power(args: tuple[Element, ...], is_float: bool, dtype: int) -> Result:
    base, exponent = args
    if exponent == 0.5 and isinstance(base, (int, float)) and base >= 0 and math.isqrt(int(base)) ** 2 == base:
        return float(math.isqrt(int(base)))
    if exponent not in (0, 1, 2, 3) or (is_float and exponent == 3):
        return None
    result: Result = 1.0 if is_float else 1
    for _ in range(int(exponent)):
        result = None if result is None else _multiply((result, base), is_float, dtype)
    return result


def _extreme(name: str) -> Callable[[tuple[Element, ...], bool, int], Result]:
    def extreme(args: tuple[Element, ...], is_float: bool, dtype: int) -> Result:  # noqa: ARG001
        if _are_numbers(args):
            return min(args) if name == "min" else max(args)
        ratios = [ratio for arg in args if (ratio := _ratio(arg)) is not None]
        if len(ratios) < len(args):
            return None
        divisor = math.lcm(*(ratio.divisor for ratio in ratios))
        dividends = [ratio.dividend * (divisor // ratio.divisor) for ratio in ratios]
        return _settled((minimum if name == "min" else maximum)(*dividends), divisor, is_float)

    return extreme


def _absolute(args: tuple[Element, ...], is_float: bool, dtype: int) -> Result:
    element = args[0]
    if isinstance(element, (int, float)):
        return abs(element)
    dividend = element.dividend if isinstance(element, Ratio) else element
    if lower(dividend) >= 0:
        return element
    return _negate(args, is_float, dtype) if upper(dividend) <= 0 else None


def _sign(args: tuple[Element, ...], is_float: bool, dtype: int) -> Result:  # noqa: ARG001 - one signature for all
    element = args[0]
    dividend = element.dividend if isinstance(element, Ratio) else element
    if isinstance(dividend, (int, float)):
        sign = (dividend > 0) - (dividend < 0)
    elif lower(dividend) > 0 or upper(dividend) < 0:
        sign = 1 if lower(dividend) > 0 else -1
    else:
        return None
    return float(sign) if is_float else sign


def _round(name: str) -> Callable[[tuple[Element, ...], bool, int], Result]:
    def rounded(args: tuple[Element, ...], is_float: bool, dtype: int) -> Result:  # noqa: ARG001
        element = args[0]
        if isinstance(element, float):
            if not math.isfinite(element):
                return element
            return float(
                math.floor(element) if name == "floor" else math.ceil(element) if name == "ceil" else round(element)
            )
        if not isinstance(element, Ratio):
            return element
        if name == "round":
            return None
        if name == "floor":
            return element.floor()
        return -Ratio(-element.dividend, element.divisor).floor()

    return rounded


def _root(args: tuple[Element, ...], is_float: bool, dtype: int) -> Result:
    element = args[0]
    if not is_float or not isinstance(element, (int, float)) or element < 0:
        return None
    return float(np.sqrt(FLOATS[dtype].type(element)))


def _reciprocal(args: tuple[Element, ...], is_float: bool, dtype: int) -> Result:
    return _divide((1.0, args[0]), is_float, dtype)


def compare(name: str, left: Element, right: Element) -> int | None:
    """Return 1 or 0 where bounds decide a comparison, else None."""
    if isinstance(left, (int, float)) and isinstance(right, (int, float)):
        return int({"==": left == right, "<": left < right, "<=": left <= right}[name])
    a, b = _ratio(left), _ratio(right)
    if a is None or b is None:
        return None
    difference = a.dividend * b.divisor - b.dividend * a.divisor
    low, high = lower(difference), upper(difference)
    if name == "==":
        return 1 if low == high == 0 else 0 if low > 0 or high < 0 else None
    limit = 0 if name == "<=" else -1
    return 1 if high <= limit else 0 if low > limit else None


def choose(condition: Element, if_true: Element, if_false: Element) -> Result:
    """Return what Where gives for one element."""
    decided = compare("==", condition, 0)
    if decided is None:
        return if_true if if_true == if_false else None
    return if_false if decided else if_true


def _logic(name: str) -> Callable[[tuple[Element, ...], bool, int], Result]:
    def logic(args: tuple[Element, ...], is_float: bool, dtype: int) -> Result:  # noqa: ARG001
        known = [None if (zero := compare("==", arg, 0)) is None else not zero for arg in args]
        if name == "and" and False in known:
            return 0
        if name == "or" and True in known:
            return 1
        if None in known:
            return None
        return int({"and": all(known), "or": any(known), "xor": sum(map(bool, known)) % 2, "not": not known[0]}[name])

    return logic


def _comparison(name: str, is_swapped: bool = False) -> Callable[[tuple[Element, ...], bool, int], Result]:
    def comparison(args: tuple[Element, ...], is_float: bool, dtype: int) -> Result:  # noqa: ARG001
        return compare(name, args[1], args[0]) if is_swapped else compare(name, args[0], args[1])

    return comparison


def cast(element: Element, to: int, from_float: bool) -> Result:
    """Return an element in another dtype; None where that is not known."""
    if to in FLOATS:
        if isinstance(element, (int, float)):
            with np.errstate(over="ignore"):
                return _rounded(element, to)
        return None if FLOATS[to].itemsize < 4 else element  # float16 holds integers up to 2048
    if to == 9:
        zero = compare("==", element, 0)
        return None if zero is None else 1 - zero
    if to not in INTEGERS:
        return None
    if isinstance(element, float):
        if not math.isfinite(element):
            return None
        element = int(element)
    if isinstance(element, Ratio):
        return _plain(element.floor()) if element.is_positive else None
    return _fitted(element, BITS[to], to in UNSIGNED, from_float)


def _fitted(element: int | Expr, bits: int, is_unsigned: bool, from_float: bool) -> Result:
    least, most = (0, (1 << bits) - 1) if is_unsigned else (-(1 << bits - 1), (1 << bits - 1) - 1)
    if isinstance(element, int):
        if least <= element <= most:
            return element
        return None if from_float else (element - least) % (1 << bits) + least
    if bits >= 32:  # dims are small
        return element if not is_unsigned or lower(element) >= 0 else None
    return element if lower(element) >= least and upper(element) <= most else None


COMPARISONS = {
    "Equal": _comparison("=="),
    "Less": _comparison("<"),
    "LessOrEqual": _comparison("<="),
    "Greater": _comparison("<", is_swapped=True),
    "GreaterOrEqual": _comparison("<=", is_swapped=True),
    "And": _logic("and"),
    "Or": _logic("or"),
    "Xor": _logic("xor"),
}
OPERATORS: dict[str, Callable[[tuple[Element, ...], bool, int], Result]] = {
    **COMPARISONS,
    "Add": _add,
    "Sub": _subtract,
    "Mul": _multiply,
    "Div": _divide,
    "Mod": _modulo,
    "Pow": _power,
    "Min": _extreme("min"),
    "Max": _extreme("max"),
    "Sum": _add,
    "Neg": _negate,
    "Abs": _absolute,
    "Sign": _sign,
    "Floor": _round("floor"),
    "Ceil": _round("ceil"),
    "Round": _round("round"),
    "Sqrt": _root,
    "Reciprocal": _reciprocal,
    "Not": _logic("not"),
}
