"""Read the symbolic dims that exporters write: `past_sequence_length + 1`, `((s0 - 127) // 64 + 1)`, `floor(h/2)`.

Any other text is a symbol: `unk__12`, `batch-size`, `LayerNormalizationlast_hidden_state_dim_1`. In an expression the
name of a symbol that is no word is in quotes: `'batch-size' + 1`. `graphkit.shapes.input_dims` says which of the dims
that a model declares are expressions.
"""

from __future__ import annotations

import re
from collections.abc import Callable

from graphkit.symbolic.algebra import ceil_div, floor_div, maximum, minimum, modulo
from graphkit.symbolic.expr import WORD, Expr, TooComplexError, const, symbol

__all__ = ["parse"]

MAX_LENGTH, MAX_DEPTH = 400, 24
MAX_NUMBER = 1 << 63
QUOTED = r"'(?:[^']|'')*'"
TOKEN = re.compile(rf"\s*(\d+|{WORD}|{QUOTED}|\*\*|//|[-+*/%(),])")
HYPHENATED = re.compile(r"^[^']*[A-Za-z_]-[A-Za-z_]")  # a name, no difference: exporters put spaces around a minus
FUNCTIONS: dict[str, Callable[..., Expr]] = {
    "floordiv": floor_div,
    "ceildiv": ceil_div,
    "ceiltointdiv": ceil_div,
    "cleandiv": floor_div,
    "mod": modulo,
    "pythonmod": modulo,
    "min": minimum,
    "max": maximum,
}
ROUNDING = {"floor": floor_div, "ceil": ceil_div, "ceiling": ceil_div}


class _NotAnExpressionError(Exception):
    pass


def parse(text: str) -> Expr:
    """Return the expression that a dim's name stands for, or a symbol of that name.

    Example:
        >>> from graphkit.shapes import parse
        >>> print(parse("floor(height/2) + 1"))
        height // 2 + 1
    """
    text = text.strip()
    if len(text) <= MAX_LENGTH and not HYPHENATED.search(text) and (tokens := _split_tokens(text)):
        try:
            return _Parser(tokens).whole()
        except (_NotAnExpressionError, TooComplexError, ZeroDivisionError):
            pass
    return symbol(text)


def _split_tokens(text: str) -> list[str]:
    tokens, position = [], 0
    while position < len(text):
        match = TOKEN.match(text, position)
        if match is None:
            return []
        tokens.append(match[1])
        position = match.end()
    return tokens


class _Parser:
    """Recursive descent: sum, product, factor."""

    def __init__(self, tokens: list[str]) -> None:
        self.tokens, self.position, self.depth = tokens, 0, 0

    def whole(self) -> Expr:
        result = self.sum()
        if self.peek():
            raise _NotAnExpressionError
        return result

    def peek(self) -> str:
        return self.tokens[self.position] if self.position < len(self.tokens) else ""

    def take(self, expected: str = "") -> str:
        token = self.peek()
        if not token or (expected and token != expected):
            raise _NotAnExpressionError
        self.position += 1
        return token

    def sum(self) -> Expr:
        self.depth += 1
        if self.depth > MAX_DEPTH:
            raise _NotAnExpressionError
        result = self.product()
        while self.peek() in ("+", "-"):
            result = result + self.product() if self.take() == "+" else result - self.product()
        self.depth -= 1
        return result

    def product(self) -> Expr:
        result = self.factor()
        while (operator := self.peek()) in ("*", "//", "%"):
            self.take()
            right = self.factor()
            result = result * right if operator == "*" else result // right if operator == "//" else result % right
        return result

    def factor(self) -> Expr:
        token = self.take()
        if token == "-":
            self.depth += 1
            if self.depth > MAX_DEPTH:
                raise _NotAnExpressionError
            result = -self.factor()
            self.depth -= 1
            return result
        if token.isdigit():
            if int(token) > MAX_NUMBER:
                raise _NotAnExpressionError
            return self.power(const(int(token)))
        if token == "(":
            result = self.sum()
            self.take(")")
            return self.power(result)
        if token[0] == "'":
            return self.power(symbol(token[1:-1].replace("''", "'")))
        if not (token[0].isalpha() or token[0] == "_"):
            raise _NotAnExpressionError
        return self.power(self.call(token.lower()) if self.peek() == "(" else symbol(token))

    def power(self, base: Expr) -> Expr:
        if self.peek() != "**":
            return base
        self.take()
        exponent = self.take()
        if exponent not in ("1", "2", "3", "4"):
            raise _NotAnExpressionError
        result = base
        for _ in range(int(exponent) - 1):
            result = result * base
        return result

    def call(self, name: str) -> Expr:
        self.take("(")
        if name in ROUNDING:
            dividend = self.sum()
            if self.peek() == ")":
                self.take()
                return dividend  # floor of an integer
            self.take("/")
            divisor = self.factor()
            self.take(")")
            return ROUNDING[name](dividend, divisor)
        if name not in FUNCTIONS:
            raise _NotAnExpressionError
        args = [self.sum()]
        while self.peek() == ",":
            self.take()
            args.append(self.sum())
        self.take(")")
        if len(args) < 2 or (len(args) > 2 and name not in ("min", "max")):
            raise _NotAnExpressionError
        return FUNCTIONS[name](*args)
