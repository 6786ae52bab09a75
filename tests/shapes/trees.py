"""Random expressions as trees, and what they are in integers."""

from __future__ import annotations

from hypothesis import strategies as st

from graphkit.shapes import Expr, ceil_div, const, maximum, minimum, symbol

POINTS = {"b": st.integers(1, 9), "h": st.integers(1, 40), "x": st.integers(1, 200), "past": st.integers(0, 50)}
POINTS["y"] = st.integers(-20, 20)
Y = symbol("y", -20, 20)
Tree = tuple  # ("+", left, right) | "name" | number


def trees(depth: int = 4) -> st.SearchStrategy:
    leaves = st.sampled_from(["b", "h", "x", "past", "y"]) | st.integers(-8, 70)
    operators = st.sampled_from(["+", "-", "*", "//", "%", "min", "max", "ceil"])
    return st.recursive(leaves, lambda inner: st.tuples(operators, inner, inner), max_leaves=2**depth // 2)


def build(tree: object) -> Expr:
    if isinstance(tree, int):
        return const(tree)
    if isinstance(tree, str):
        return Y if tree == "y" else symbol(tree)
    operator, left, right = tree
    return OPERATIONS[operator](build(left), build(right))


def direct(tree: object, point: dict[str, int]) -> int:
    if not isinstance(tree, tuple):
        return point[tree] if isinstance(tree, str) else tree
    operator, left, right = tree
    return NUMBERS[operator](direct(left, point), direct(right, point))


OPERATIONS = {
    "+": lambda a, c: a + c,
    "-": lambda a, c: a - c,
    "*": lambda a, c: a * c,
    "//": lambda a, c: a // c,
    "%": lambda a, c: a % c,
    "min": minimum,
    "max": maximum,
    "ceil": ceil_div,
}
NUMBERS = {**OPERATIONS, "min": min, "max": max, "ceil": lambda a, c: -(-a // c)}
