"""A shape program as JSON: expressions as text, and for each text a tree that needs no parser."""

from __future__ import annotations

import json
import math
from collections.abc import Sequence
from dataclasses import fields, replace

from graphkit.ops.tensor import Ratio
from graphkit.shapes.program_contents import ProgramContents
from graphkit.symbolic.expr import Bound, Expr, Monomial, Symbol

__all__ = ["SCHEMA", "json_text"]

SCHEMA = 1  # another number where a reader of this one would misread
MAX_SAFE = (1 << 53) - 1  # readers that have doubles only round larger integers
Tree = int | float | str | list["Tree"]


def json_text(program: ProgramContents) -> str:
    """Return the program as JSON."""
    from graphkit import __version__

    plain = _Plain()
    sources = [
        {
            **plain.fields(replace(source, least=0, most=0)),
            "least": _finite_bound(source.least),
            "most": _finite_bound(source.most),
        }
        for source in program.sources
    ]
    begin = {"graphkit": __version__, "schema": f"program/{SCHEMA}", "model": program.model}
    parts = {name: json.dumps(text) for name, text in begin.items()}
    for name, entries in (
        ("inputs", map(plain.fields, program.inputs)),
        ("symbols", sources),
        ("unread", map(plain.fields, program.unread)),
        ("conditions", map(plain.fields, program.conditions)),
        ("consumers", map(plain.fields, program.consumers)),
    ):
        parts[name] = _join_lines("[]", [json.dumps(entry, allow_nan=False) for entry in entries])
    trees = [f"{json.dumps(text)}: {json.dumps(tree, allow_nan=False)}" for text, tree in plain.trees.items()]
    parts["expressions"] = _join_lines("{}", trees)
    return "{\n" + ",\n".join(f'"{name}": {text}' for name, text in parts.items()) + "\n}\n"


def _join_lines(brackets: str, lines: Sequence[str]) -> str:
    joined = ",\n  ".join(lines)
    return f"{brackets[0]}\n  {joined}\n{brackets[1]}" if lines else brackets


def _finite_bound(bound: Bound) -> int | None:
    return int(bound) if math.isfinite(bound) else None


class _Plain:
    """Converts values to JSON, and keeps the tree of each text that stands for an expression."""

    def __init__(self) -> None:
        self.trees: dict[str, Tree] = {}

    def fields(self, entry: object) -> dict[str, object]:
        """Return a dataclass by the names of its fields."""
        return {field.name: self.value(getattr(entry, field.name)) for field in fields(entry)}  # type: ignore[arg-type]

    def value(self, value: object) -> object:
        """Return a value as JSON has it."""
        if value is None or isinstance(value, str):
            return value
        if isinstance(value, tuple):
            return [self.value(entry) for entry in value]
        if isinstance(value, (Expr, Ratio, int, float)):
            tree = _expression_tree(value)
            return tree if isinstance(tree, (int, float)) else self.text(value, tree)
        return self.fields(value)

    def text(self, value: Expr | Ratio | float, tree: Tree) -> str:
        """Return the text that stands for a tree, and for no other one."""
        text = str(value)
        while self.trees.setdefault(text, tree) != tree:  # a symbol may be called `a-b + 1`
            text += " "
        return text


def _expression_tree(value: Expr | Ratio | float) -> Tree:
    if isinstance(value, Ratio):
        return ["/", _expression_tree(value.dividend), value.divisor]
    if isinstance(value, float):
        return value if math.isfinite(value) else ["float", str(value)]
    if isinstance(value, Expr):
        terms = [_term_tree(monomial, factor) for monomial, factor in value.terms]
        return _integer_tree(0) if not terms else terms[0] if len(terms) == 1 else ["+", *terms]
    return _integer_tree(value)


def _integer_tree(value: int) -> Tree:
    return value if abs(value) <= MAX_SAFE else ["int", str(value)]


def _term_tree(monomial: Monomial, factor: int) -> Tree:
    atoms = [
        atom.name if isinstance(atom, Symbol) else [atom.op, *map(_expression_tree, atom.args)] for atom in monomial
    ]
    factors = atoms if factor == 1 and atoms else [_integer_tree(factor), *atoms]
    return factors[0] if len(factors) == 1 else ["*", *factors]
