"""The shape program of a model: the shape, axis and count operands of each node as expressions in the input dims.

A tracer or a JIT that takes concrete numbers from it never traces an int64 tensor: the whole shape computation of a
model is a few sums, products and divisions of input dims. It is data (`to_json`), and a function in Python or in
JavaScript that needs nothing but the shapes of the inputs.
"""

from __future__ import annotations

import json
import math
from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass, fields, replace

from graphkit.model import ModelLike, as_model
from graphkit.ops.tensor import Ratio, is_known
from graphkit.shapes.corrected_declarations import declarations
from graphkit.shapes.graph_inputs import AS_DECLARED, Bounds, DimSpec
from graphkit.shapes.infer import infer
from graphkit.shapes.inferred_shapes import Shapes
from graphkit.shapes.program_contents import Input, ProgramContents, find_consumers, find_sources, known_dims
from graphkit.shapes.program_functions import MAX_SAFE, javascript_function, python_function
from graphkit.symbolic.algebra import lower, upper
from graphkit.symbolic.expr import Expr, Monomial, Symbol, TooComplexError
from graphkit.symbolic.relations import Relation

SCHEMA = 1  # another number where a reader of this one would misread


@dataclass(frozen=True)
class Program(ProgramContents):
    """A shape program: its contents, and how to write them as JSON or as a function."""

    def to_json(self) -> str:
        """Return the program as JSON, one input, symbol, condition, consumer or expression a line.

        A number in it is a number. Any other element or dim is a text that `expressions` maps to a tree, null one that
        is not known. `graphkit.shapes.parse` reads such a text where names of symbols are plain words; fractions of
        float tensors, such as `(height) / 32`, it does not read.

        A tree is a number, the name of a symbol, or a list of an operation and trees: `+` and `*` of any number of
        trees; `//` (rounded down) and `%` (with the sign of the divisor) of two; `min` and `max` of two or more; `/`
        of two, rounded to the dtype of the tensor. `["int", "9223372036854775807"]` is a number that JSON readers may
        round (above 2**53 - 1), `["float", "inf"]` one that JSON cannot write.
        """
        from graphkit import __version__

        plain = _Plain()
        sources = [plain.fields(replace(source, least=0, most=0)) for source in self.sources]
        for entry, source in zip(sources, self.sources, strict=True):
            ends = {"least": source.least, "most": source.most}
            entry |= {name: int(end) if math.isfinite(end) else None for name, end in ends.items()}
        begin = {"graphkit": __version__, "schema": f"program/{SCHEMA}", "model": self.model}
        parts = {name: json.dumps(text) for name, text in begin.items()}
        for name, entries in (
            ("inputs", map(plain.fields, self.inputs)),
            ("symbols", sources),
            ("unread", map(plain.fields, self.unread)),
            ("conditions", map(plain.fields, self.conditions)),
            ("consumers", map(plain.fields, self.consumers)),
        ):
            parts[name] = _join_lines("[]", [json.dumps(entry, allow_nan=False) for entry in entries])
        trees = [f"{json.dumps(text)}: {json.dumps(tree, allow_nan=False)}" for text, tree in plain.trees.items()]
        parts["expressions"] = _join_lines("{}", trees)
        return "{\n" + ",\n".join(f'"{name}": {text}' for name, text in parts.items()) + "\n}\n"

    def python(self) -> str:
        """Return a Python module with one function, `shapes(inputs)`, that needs the standard library only.

        It takes the shapes of graph inputs by name, and returns a dict of tuples by `Read.key` and `Output.key`. It
        checks its inputs: names, ranks, dims that are numbers, that equal symbols have equal sizes, ranges of
        symbols, and `conditions`; and raises ValueError. An input may be left out where no symbol is read from it.

        Integers are exact. Elements of a float tensor are floats, rounded to its dtype as onnxruntime rounds. None
        stands in the place of a number that is not known, and of one whose computation divides by 0: the node cannot
        run at these dims. A tensor of which nothing is known has no entry.
        """
        return python_function(self)

    def javascript(self, *, export: bool = False) -> str:
        """Return the same function in JavaScript (ES2015), as a script that is a CommonJS module too.

        It takes an object or a Map, and returns an object of arrays, one array for equal lists: copy one before
        changing it. null stands for None, and RangeError for ValueError.

        Numbers are exact or an error: an intermediate result beyond Number.MAX_SAFE_INTEGER (2**53 - 1) is a
        RangeError. A constant beyond it, such as INT64_MAX for the end of a Slice, is given as MAX_SAFE_INTEGER (or
        its negative): the nearest Number, 2**63, would become INT64_MIN in a BigInt64Array, whereas no axis is long
        enough to tell the two bounds apart.

        Args:
            export: Add an `export` statement: then the text is an ES module, and no script any more.
        """
        return javascript_function(self, export)


Tree = int | float | str | list["Tree"]


def _join_lines(brackets: str, lines: Sequence[str]) -> str:
    joined = ",\n  ".join(lines)
    return f"{brackets[0]}\n  {joined}\n{brackets[1]}" if lines else brackets


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
    atoms = [x.name if isinstance(x, Symbol) else [x.op, *map(_expression_tree, x.args)] for x in monomial]
    factors = atoms if factor == 1 and atoms else [_integer_tree(factor), *atoms]
    return factors[0] if len(factors) == 1 else ["*", *factors]


def program(
    model: ModelLike,
    spec: DimSpec = AS_DECLARED,
    *,
    dims: Mapping[str, int] | None = None,
    inputs: Mapping[str, Sequence[int]] | None = None,
    ranges: Mapping[str, Bounds] | None = None,
    values: Mapping[str, object] | None = None,
) -> Program:
    """Return the shape, axis and count operands of every node at every scope as expressions in the input dims.

    Args:
        model: The model, or its path.
        spec: The known facts about the input dims; `dims`, `inputs` and `ranges` add to it.
        dims: Sizes of symbols.
        inputs: Shapes of inputs.
        ranges: Bounds of symbols, None for an open end.
        values: Elements of graph inputs, such as `{"use_cache_branch": True}`. The program is then for these only, and
            for the sizes that are given.

    Returns:
        The program, which writes itself as JSON, Python or JavaScript.

    Raises:
        UsageError: An input or a symbol does not exist, or the numbers contradict each other.

    Example:
        >>> from graphkit.shapes import program
        >>> [source.symbol for source in program(graphkit.load("example:causal-attention")).sources]
        ['batch_size', 'sequence_length']
    """
    model = as_model(model)
    model = declarations(model).model
    shapes = infer(model, spec | DimSpec.of(dims, inputs, ranges), values=values)
    given = (value for value in model.graph.inputs if value.tensor is None)
    entries = tuple(Input(value.name, known_dims(shapes[value])) for value in given)
    sources, unread = find_sources([(entry.name, entry.dims) for entry in entries if entry.dims is not None])
    return Program(model.name, entries, sources, unread, _open_conditions(shapes), find_consumers(shapes))


def _open_conditions(shapes: Shapes) -> tuple[Relation, ...]:
    """Return the conditions of the main graph that the ranges of the symbols leave open."""
    dims = [dim for value in shapes.model.graph.inputs for dim in shapes[value].dims or () if is_known(dim)]
    symbols = {symbol.name: Expr.from_atom(symbol) for dim in dims for symbol in dim.walk_symbols()}
    narrowed: dict[Relation, None] = {}
    for noted in shapes.required:
        try:
            narrowed[noted.substitute(symbols)] = None
        except TooComplexError:
            narrowed[Relation(noted.left, noted.relation, noted.right)] = None
    return tuple(condition for condition in narrowed if _is_open(condition, symbols.keys()))


def _is_open(condition: Relation, symbols: Collection[str]) -> bool:
    """Whether a condition depends on these symbols alone and is not always met."""
    left, right = condition.left, condition.right
    if not all(name in symbols for name in left.symbols | right.symbols):
        return False
    try:
        difference = left - right
    except TooComplexError:
        return True
    return lower(difference) < 0 or (condition.relation == "==" and upper(difference) > 0)
