"""Patterns: expressions over operators that a value may be computed by.

x = Pattern()
erf = Op("Erf", Op("Div", x, Number(1.41421356)), once=True)
match = Op("Mul", x, Op("Add", erf, Number(1))).match(editor, value)  # match[x], match[erf]: their values
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping

from msgspec import Struct

from graphkit.graph.operator_traits import COMMUTATIVE
from graphkit.graph.view import Node, Value
from graphkit.rewrite.editor import Editor

Match = Mapping["Pattern", Value]  # the values of the parts of a pattern


class Pattern:
    """Any value, the same one wherever the pattern stands."""

    def __or__(self, other: Pattern) -> Pattern:
        """Return the pattern of values that match one or the other."""
        return _Either(self, other)

    def match(self, editor: Editor, value: Value | None, known: Match | None = None) -> Match | None:
        """Return the first way in which a value matches, given the values of known parts; None where it does not."""
        return next(self.solve(editor, value, known or {}), None)

    def solve(self, editor: Editor, value: Value | None, known: Match) -> Iterator[Match]:
        """Yield each way in which a value matches."""
        if value is None or known.get(self, value) is not value:
            return iter(())
        return self._solve(editor, value, {**known, self: value})

    def _solve(self, _: Editor, __: Value, known: Match) -> Iterator[Match]:
        yield known


class _Either(Pattern, Struct, frozen=True, eq=False):
    first: Pattern
    second: Pattern

    def _solve(self, editor: Editor, value: Value, known: Match) -> Iterator[Match]:
        yield from self.first.solve(editor, value, known)
        yield from self.second.solve(editor, value, known)


class Number(Pattern, Struct, frozen=True, eq=False):
    """A constant whose elements are all one number, or within a distance of it."""

    number: float
    distance: float = 0.0

    def _solve(self, editor: Editor, value: Value, known: Match) -> Iterator[Match]:
        uniform = editor.uniform(value)
        if uniform is not None and abs(uniform - self.number) <= self.distance:
            yield known


class Op(Pattern):
    """The output of an operator of the default domain, by its first inputs; of a commutative one in either order.

    There may be `more` inputs. A value of `once` is used once alone, and is no output of its graph.
    """

    def __init__(self, op_type: str, *inputs: Pattern, more: bool = False, once: bool = False) -> None:
        self.op_type, self.inputs, self.more, self.once = op_type, inputs, more, once

    def _solve(self, editor: Editor, value: Value, known: Match) -> Iterator[Match]:
        node = value.producer
        if node is None or not node.is_op(self.op_type) or node.outputs[0] is not value:
            return
        excess = len(node.inputs) - len(self.inputs)
        if excess < 0 or (excess and not self.more):
            return
        if self.once and (value.is_output or len(value.consumers) != 1):
            return
        yield from self._solve_inputs(editor, node.inputs, known, 0)
        if self.op_type in COMMUTATIVE and len(node.inputs) == 2:
            yield from self._solve_inputs(editor, node.inputs[::-1], known, 0)

    def _solve_inputs(
        self, editor: Editor, values: tuple[Value | None, ...], known: Match, index: int
    ) -> Iterator[Match]:
        if index == len(self.inputs):
            yield known
            return
        for match in self.inputs[index].solve(editor, values[index], known):
            yield from self._solve_inputs(editor, values, match, index + 1)


def nodes_of(match: Match, *patterns: Pattern) -> list[Node]:
    """Return the nodes that give the values of those parts that a match has."""
    values = [match[pattern] for pattern in patterns if pattern in match]
    return [value.producer for value in values if value.producer is not None]
