"""The generated functions against the expressions that they are made of, and what they look like."""

from __future__ import annotations

import json
import math

from generated import MAX_SAFE, JSEvalException, in_javascript, in_python, program_of
from hypothesis import given
from hypothesis import strategies as st
from properties import examples
from trees import POINTS, Y, build, trees

from graphkit.shapes import Expr, const, floor_div, parse, symbol
from graphkit.symbolic.expr import TooComplexError

b, h, x, past = (symbol(name) for name in ("b", "h", "x", "past"))
SYMBOLS = (b, h, x, past, Y)
NAMES = ("b", "h", "x", "past", "y")


def value(expr: Expr, point: dict[str, int]) -> int | None:
    try:
        return expr.evaluate(point)
    except ZeroDivisionError:
        return None


def built(found: list[object]) -> list[Expr]:
    exprs = []
    for tree in found:
        try:
            exprs.append(build(tree))
        except (ZeroDivisionError, TooComplexError):
            exprs.append(const(7))
    return exprs


@examples(30, 250)
@given(st.lists(trees(), min_size=1, max_size=5), st.lists(st.fixed_dictionaries(POINTS), min_size=1, max_size=3))
def test_generated_numbers_are_those_of_the_expressions(found, points):
    exprs = built(found)
    made = program_of([exprs, exprs[::-1], exprs[:1]], SYMBOLS)
    run_python, run_javascript = in_python(made), in_javascript(made)
    for point in points:
        inputs = {"x": [point[name] for name in NAMES]}
        expected = tuple(value(expr, point) for expr in exprs)
        assert run_python(inputs) == {"n0:in": expected, "n1:in": expected[::-1], "n2:in": expected[:1]}
        assert run_javascript(inputs) == run_python(inputs)


def evaluate(tree: object, point: dict[str, int]) -> float | None:
    """Evaluate a tree of the JSON, as the docstring of `to_json` says it."""
    if not isinstance(tree, list):
        return point[tree] if isinstance(tree, str) else tree
    operation, *rest = tree
    if operation in ("int", "float"):
        return {"int": int, "float": float}[operation](rest[0])
    args = [evaluate(arg, point) for arg in rest]
    if operation in ("//", "%", "/") and args[1] == 0:
        raise ZeroDivisionError
    return {
        "+": sum,
        "*": math.prod,
        "//": lambda pair: pair[0] // pair[1],
        "%": lambda pair: pair[0] % pair[1],
        "/": lambda pair: pair[0] / pair[1],
        "min": min,
        "max": max,
    }[operation](args)


@examples(30, 250)
@given(st.lists(trees(), min_size=1, max_size=5), st.fixed_dictionaries(POINTS))
def test_json_says_the_same(found, point):
    exprs = built(found)
    read = json.loads(program_of([exprs], SYMBOLS).to_json())
    elements = read["consumers"][0]["reads"][0]["elements"]
    assert len(elements) == len(exprs)
    for element, expr in zip(elements, exprs, strict=True):
        expected = value(expr, point)
        if isinstance(element, int):
            assert expr == element
            continue
        assert element == str(expr)
        again = parse(element)
        if (
            again != expr and element not in again.symbols
        ):  # which the parser has not read: too long, or a division by 0
            sizes = {**point, "y": max(point["y"], 1)}  # names that are read are sizes
            assert value(again, sizes) == value(expr, sizes) or value(expr, sizes) is None
        try:
            assert evaluate(read["expressions"][element], point) == expected
        except ZeroDivisionError:
            assert expected is None


LARGE = st.fixed_dictionaries({name: st.integers(1, 1 << 53) for name in NAMES})


@examples(30, 250)
@given(trees(), LARGE)
def test_javascript_is_exact_or_refuses(tree, point):
    (expr,) = built([tree])
    open_symbols = [symbol(name, -math.inf) for name in NAMES]
    expr = expr.substitute(dict(zip(NAMES, open_symbols, strict=True)))
    made = program_of([[expr]], open_symbols)
    inputs = {"x": [point[name] for name in NAMES]}
    try:
        (found,) = in_javascript(made)(inputs)["n0:in"]
    except JSEvalException as error:
        refusal = str(error)
        assert "beyond Number.MAX_SAFE_INTEGER" in refusal or "give integers" in refusal
        return
    expected = value(expr, point)
    assert found == expected or (expr.constant is not None and abs(found) == MAX_SAFE)


@given(st.integers(-MAX_SAFE, MAX_SAFE), st.integers(-MAX_SAFE, MAX_SAFE))
def test_division_of_safe_integers_is_exact_in_javascript(dividend, divisor):
    open_symbols = symbol("a", -math.inf), symbol("c", -math.inf)
    made = program_of([[floor_div(*open_symbols), open_symbols[0] % open_symbols[1]]], open_symbols)
    expected = (None, None) if divisor == 0 else divmod(dividend, divisor)
    assert in_python(made)({"x": [dividend, divisor]}) == {"n0:in": expected}
    assert in_javascript(made)({"x": [dividend, divisor]}) == {"n0:in": expected}
