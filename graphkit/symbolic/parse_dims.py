"""Read the symbolic dims that exporters write: `past_sequence_length + 1`, `((s0 - 127) // 64 + 1)`, `floor(h/2)`.

Any other text is a symbol: `unk__12`, `batch-size`, `LayerNormalizationlast_hidden_state_dim_1`. In an expression the
name of a symbol that is no word is in quotes: `'batch-size' + 1`. `graphkit.shapes.input_dims` says which of the dims
that a model declares are expressions.
"""

from __future__ import annotations

import ast
import re
from collections.abc import Callable, Mapping
from math import prod

from graphkit.symbolic.algebra import ceil_div, floor_div, maximum, minimum, modulo
from graphkit.symbolic.expr import WORD, Expr, TooComplexError, const, symbol

MAX_LENGTH, MAX_DEPTH = 400, 64
MAX_NUMBER = 1 << 63
QUOTED = r"'(?:[^']|'')*'"
TOKEN = re.compile(rf"\s*(\d+|{WORD}|{QUOTED}|\*\*|//|[-+*/%(),])")
HYPHENATED = re.compile(r"^[^']*[A-Za-z_]-[A-Za-z_]")  # a name, no difference: exporters put spaces around a minus
OPERATORS: Mapping[type[ast.operator], Callable[[Expr, Expr], Expr]] = {
    ast.Add: lambda left, right: left + right,
    ast.Sub: lambda left, right: left - right,
    ast.Mult: lambda left, right: left * right,
    ast.FloorDiv: floor_div,
    ast.Mod: modulo,
}
FUNCTIONS: Mapping[str, Callable[..., Expr]] = {
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
    if len(text) <= MAX_LENGTH and not HYPHENATED.search(text):
        try:
            source, names = _read_tokens(text)
            return _evaluate(ast.parse(source, mode="eval").body, names, MAX_DEPTH)
        except (_NotAnExpressionError, TooComplexError, ZeroDivisionError, SyntaxError, RecursionError, MemoryError):
            pass
    return symbol(text)


def _read_tokens(text: str) -> tuple[str, dict[str, str]]:
    """Return a text in the syntax of Python, with words of its own for names, and the name of each."""
    tokens: list[str] = []
    names: dict[str, str] = {}
    position = 0
    while position < len(text):
        match = TOKEN.match(text, position)
        if match is None:
            raise _NotAnExpressionError
        token, position = match[1], match.end()
        if token.isdigit():
            tokens.append(str(min(int(token), MAX_NUMBER + 1)))
        elif token[0].isalpha() or token[0] in "_'":
            tokens.append(f"n{len(names)}")
            names[tokens[-1]] = token
        else:
            tokens.append(token)
    return " ".join(tokens), names


def _evaluate(node: ast.expr, names: Mapping[str, str], depth: int) -> Expr:
    if not depth:
        raise _NotAnExpressionError

    def value(inner: ast.expr) -> Expr:
        return _evaluate(inner, names, depth - 1)

    match node:
        case ast.Constant(value=int(number)) if number <= MAX_NUMBER:
            return const(number)
        case ast.Name(id=name):
            token = names[name]
            return symbol(token[1:-1].replace("''", "'") if token[0] == "'" else token)
        case ast.UnaryOp(op=ast.USub(), operand=inner):
            return -value(inner)
        case ast.BinOp(left=base, op=ast.Pow(), right=ast.Constant(value=int(exponent))) if exponent in (1, 2, 3, 4):
            return prod([value(base)] * exponent, start=const(1))
        case ast.BinOp(left=left, op=operator, right=right) if type(operator) in OPERATORS:
            return OPERATORS[type(operator)](value(left), value(right))
        case ast.Call(ast.Name(id=name), [ast.BinOp(left=dividend, op=ast.Div(), right=divisor)], []):
            rounded = ROUNDING.get(names[name].lower())
            if rounded is not None:
                return rounded(value(dividend), value(divisor))
        case ast.Call(ast.Name(id=name), args, []):
            called, values = names[name].lower(), list(map(value, args))
            if called in ROUNDING and len(values) == 1:
                return values[0]  # floor of an integer
            if called in FUNCTIONS and (len(values) == 2 or (len(values) > 2 and called in ("min", "max"))):
                return FUNCTIONS[called](*values)
    raise _NotAnExpressionError
