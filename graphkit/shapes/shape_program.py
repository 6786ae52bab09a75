"""The shape program of a model, as data and as a function in Python or JavaScript (ES2015): operands of each node as
expressions in the input dims.

A tracer or a JIT that takes concrete numbers from it never traces an int64 tensor: the whole shape computation of a
model is a few sums, products and divisions of input dims. It is data (`to_json`), and a function in Python or in
JavaScript that needs nothing but the shapes of the inputs.
"""

from __future__ import annotations

import json
import math
import re
from collections import Counter
from collections.abc import Iterable, Iterator, Mapping, Sequence
from importlib.resources import files
from typing import cast

from msgspec import Struct, structs

from graphkit.graph.declared_types import shape_text
from graphkit.model import ModelLike, as_model
from graphkit.ops.tensor import Ratio, is_known
from graphkit.shapes.corrected_declarations import declarations
from graphkit.shapes.graph_inputs import AS_DECLARED, Bounds, DimSpec
from graphkit.shapes.infer import infer
from graphkit.shapes.inferred_shapes import Shapes
from graphkit.shapes.program_contents import (
    Element,
    Input,
    ProgramContents,
    Source,
    find_consumers,
    find_sources,
    known_dims,
)
from graphkit.symbolic.algebra import Relation, is_nonzero, lower, upper
from graphkit.symbolic.expr import Call, Expr, Monomial, Symbol, TooComplexError

SCHEMA = 1  # another number where a reader of this one would misread


class Program(ProgramContents, frozen=True):
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
        sources = [plain.fields(structs.replace(source, least=0, most=0)) for source in self.sources]
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
        return _Function(self).whole(ascii(self.model))

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
        writer = _JavaScript(self)
        return writer.whole(writer.text(self.model)) + ("export { shapes };\n" if export else "")


Tree = int | float | str | list["Tree"]


def _join_lines(brackets: str, lines: Sequence[str]) -> str:
    joined = ",\n  ".join(lines)
    return f"{brackets[0]}\n  {joined}\n{brackets[1]}" if lines else brackets


class _Plain:
    """Converts values to JSON, and keeps the tree of each text that stands for an expression."""

    def __init__(self) -> None:
        self.trees: dict[str, Tree] = {}

    def fields(self, entry: Struct) -> dict[str, object]:
        """Return a Struct by the names of its fields."""
        return {name: self.value(value) for name, value in structs.asdict(entry).items()}

    def value(self, value: object) -> object:
        """Return a value as JSON has it."""
        if value is None or isinstance(value, str):
            return value
        if isinstance(value, tuple):
            return [self.value(entry) for entry in value]
        if isinstance(value, (Expr, Ratio, int, float)):
            tree = _expression_tree(value)
            return tree if isinstance(tree, (int, float)) else self.text(value, tree)
        return self.fields(cast(Struct, value))

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
    open_ones: list[Relation] = []
    for condition in narrowed:
        if condition.symbols <= symbols.keys():
            try:
                difference = condition.left - condition.right
            except TooComplexError:
                open_ones.append(condition)
                continue
            if lower(difference) < 0 or (condition.relation == "==" and upper(difference) > 0):
                open_ones.append(condition)
    return tuple(open_ones)


MAX_SAFE = (1 << 53) - 1  # Number.MAX_SAFE_INTEGER; other readers that have doubles only round larger integers too


class _Function:
    """Writes the function of a program in Python; in another language with other words."""

    template = "program_function.py.txt"  # names between @ stand for the parts that a program gives
    statement = "    {}\n"
    assignment = "    {} = {}\n"
    unknown = "None"
    equal = "=="
    checked = result = "        {}: {},\n"  # lines of the table of the inputs' dims, and of the result

    def __init__(self, program: ProgramContents) -> None:
        self.program = program
        self.lines: list[str] = []
        self.symbols: dict[str, str] = {}  # the variable of each
        self.steps: dict[tuple[str, ...], str] = {}  # the variable of each operation
        self.failing: set[str] = set()  # variables that are unknown where a division by 0 leads to them

    def text(self, text: str) -> str:
        """Return a string in quotes."""
        return ascii(text)

    def not_finite(self, value: float) -> str:
        """Return an infinity, or the number that is none."""
        return f'float("{value}")'

    def operation(self, op: str, args: Sequence[str]) -> str:
        """Return an operation on variables and numbers: `+`, `*`, `//`, `%`, `min`, `max`, or a quotient of floats."""
        if op in ("min", "max"):
            return f"{op}({', '.join(args)})"
        if op == "float32":
            return f"single(single({args[0]}) / {args[1]})"
        return f" {op.replace('float64', '/')} ".join(args).replace(" + -", " - ")

    def choice(self, unknown: Iterable[str], zero: str, otherwise: str) -> str:
        """Return an expression that is unknown where one of some variables is, or one is 0."""
        conditions = [*(f"{each} is None" for each in unknown), *([f"{zero} == 0"] if zero else [])]
        return f"None if {' or '.join(conditions)} else {otherwise}"

    def sequence(self, items: Sequence[str]) -> str:
        """Return a list of some items."""
        return f"({items[0]},)" if len(items) == 1 else f"({', '.join(items)})"

    def whole(self, model: str) -> str:
        """Return the text of the function, with the name of the model in quotes."""
        program = self.program
        dims_of = {entry.name: entry.dims or () for entry in program.inputs}
        variables = {name: f"x{n}" for n, name in enumerate(dict.fromkeys(each.input for each in program.sources))}
        for name, variable in variables.items():
            dims = dims_of[name]
            self.call("read", self.text(name), self.text(shape_text(dims)), str(len(dims)), variable=variable)
        for source in program.sources:
            self.read_symbol(source, f"{variables[source.input]}[{source.axis}]")
        shapes = [(entry, [self.expr(dim) for dim in entry.dims or ()]) for entry in program.inputs]
        claims = [(each, self.expr(each.left), self.expr(each.right)) for each in program.conditions]
        lists = dict(self.lists())
        tables: dict[object, str] = {}
        for entry, sizes in shapes:
            if entry.dims is not None and entry.dims not in tables:
                parts = [self.text(shape_text(entry.dims)), self.sequence(sizes)]
                tables[entry.dims] = self.assign(f"c{len(tables)}", self.sequence(parts))
        rows = [(entry.name, tables[entry.dims] if entry.dims is not None else self.unknown) for entry, _ in shapes]
        steps, self.lines = self.lines, []
        for condition, left, right in claims:
            if not {left, right} & {self.unknown, *self.failing}:
                relation = self.equal if condition.relation == "==" else condition.relation
                self.call("ensure", f"{left} {relation} {right}", self.text(str(condition)), left, right)
        several = [text for text, count in Counter(lists.values()).items() if count > 1]
        shared = {text: self.assign(f"v{number}", text) for number, text in enumerate(several)}
        pieces = {
            "MODEL": [model],
            "STEPS": steps,
            "CHECKS": [self.checked.format(self.text(name), table) for name, table in rows],
            "CLAIMS": self.lines,
            "RESULT": [self.result.format(self.text(key), shared.get(text, text)) for key, text in lists.items()],
        }
        template = (files("graphkit.shapes") / self.template).read_text("utf-8")
        return re.sub("@([A-Z]+)@", lambda part: "".join(pieces[part[1]]), template)

    def lists(self) -> Iterator[tuple[str, str]]:
        """Yield each list of the result that has numbers, with its key."""
        for consumer in self.program.consumers:
            for read in consumer.reads:
                if read.elements is not None:
                    yield read.key, self.sequence([self.element(each, read.dtype) for each in read.elements])
            for output in consumer.outputs:
                if output.dims is not None:
                    yield output.key, self.sequence([self.item(dim) for dim in output.dims])

    def assign(self, variable: str, text: str) -> str:
        self.lines.append(self.assignment.format(variable, text))
        return variable

    def call(self, function: str, *args: str, variable: str = "") -> None:
        text = f"{function}({', '.join(args)})"
        self.lines.append(self.assignment.format(variable, text) if variable else self.statement.format(text))

    def read_symbol(self, source: Source, size: str) -> None:
        if source.rest != 0:
            size = self.step("+", [size, self.expr(source.rest * -1)])
        if source.factor != 1:
            size = self.step("//", [size, str(source.factor)])
        subject = f"{source.symbol}, which axis {source.axis} of input '{source.input}' gives,"
        bounds = [str(bound) if math.isfinite(bound) else self.unknown for bound in (source.least, source.most)]
        variable = self.symbols[source.symbol] = f"s{len(self.symbols)}"
        self.call("inside", size, *bounds, self.text(subject), self.text(_range_words(source)), variable=variable)

    def element(self, element: Element, dtype: str) -> str:
        """Return an element of a tensor, rounded to its dtype."""
        if element is None or isinstance(element, float):
            return self.unknown if element is None else self.number(element)
        if not dtype.startswith("float"):
            return self.unknown if isinstance(element, Ratio) else self.item(element)
        ratio = element if isinstance(element, Ratio) else Ratio(element, 1)
        number = ratio.dividend.constant
        if number is not None and ratio.divisor == 1 and abs(number) < 2048:  # exact in float16 too
            return self.number(float(number))
        dividend = self.expr(ratio.dividend)
        if dividend == self.unknown or dtype not in ("float32", "float64"):  # no rule follows symbols in float16
            return self.unknown
        return self.step(dtype, [dividend, str(ratio.divisor)])

    def item(self, expr: Expr | None) -> str:
        """Return a number of a list."""
        return self.expr(expr)

    def expr(self, expr: Expr | None) -> str:
        """Return the variable of an expression, or its number; the word for None where it is not known."""
        if expr is None or not expr.symbols <= self.symbols.keys():
            return self.unknown
        terms = sorted(expr.terms, key=lambda term: (not term[0], term[1] < 0))  # begin with something positive
        return self.step("+", [self.term(*term) for term in terms]) if terms else "0"

    def term(self, monomial: Monomial, factor: int) -> str:
        if not monomial:
            return str(factor)
        product = self.step("*", [self.atom(atom) for atom in monomial])
        return product if factor == 1 else self.step("*", [str(factor), product])

    def atom(self, atom: Symbol | Call) -> str:
        if isinstance(atom, Symbol):
            return self.symbols[atom.name]
        args = [self.expr(arg) for arg in atom.args]
        return self.step(atom.op, args, args[1] if atom.op in ("//", "%") and not is_nonzero(atom.args[1]) else "")

    def step(self, op: str, args: Sequence[str], zero: str = "") -> str:
        """Return the variable of an operation, which has no result where one that is given as `zero` is 0."""
        if op in ("+", "*") and len(args) == 1:
            return args[0]
        key = (op, *args, zero)
        if key not in self.steps:
            unknown, text = [arg for arg in args if arg in self.failing], self.operation(op, args)
            text = self.choice(dict.fromkeys(unknown), zero, text) if unknown or zero else text
            self.steps[key] = self.assign(f"t{len(self.steps)}", text)
            self.failing |= {self.steps[key]} if unknown or zero else set()
        return self.steps[key]

    def number(self, value: float) -> str:
        return repr(value) if math.isfinite(value) else self.not_finite(value)


def _range_words(source: Source) -> str:
    """Return the words for the range of a symbol: `1 or more`, `3`, `2 to 8`, `at most 8`."""
    least, most = source.least, source.most
    if least == most:
        return str(least)
    if math.isinf(most):
        return f"{least} or more" if math.isfinite(least) else "an integer"
    return f"{least} to {most}" if math.isfinite(least) else f"at most {most}"


class _JavaScript(_Function):
    template = "program_function.js"
    statement = "  {};\n"
    assignment = "  const {} = {};\n"
    unknown = "null"
    equal = "==="
    checked = "    [{}, {}],\n"
    result = "    {}: {},\n"  # no key is `__proto__`: each has a colon

    def text(self, text: str) -> str:
        return json.dumps(text).replace("<", "\\u003c")  # no tag where a page has the script in it

    def not_finite(self, value: float) -> str:
        return "NaN" if math.isnan(value) else "Infinity" if value > 0 else "-Infinity"

    def choice(self, unknown: Iterable[str], zero: str, otherwise: str) -> str:
        conditions = [*(f"{each} === null" for each in unknown), *([f"{zero} === 0"] if zero else [])]
        return f"{' || '.join(conditions)} ? null : {otherwise}"

    def sequence(self, items: Sequence[str]) -> str:
        return f"[{', '.join(items)}]"

    def item(self, expr: Expr | None) -> str:
        number = None if expr is None else expr.constant
        return self.expr(expr) if number is None else str(max(-MAX_SAFE, min(MAX_SAFE, number)))

    def operation(self, op: str, args: Sequence[str]) -> str:
        if op == "+":  # every partial sum is exact: the last one may be small where an earlier one is not
            text = args[0]
            for arg in args[1:]:
                text = f"int({text} - {arg[1:]})" if arg.startswith("-") else f"int({text} + {arg})"
            return text
        if op == "*":
            return f"int({' * '.join(args)})"
        if op in ("//", "%"):
            return f"{'div' if op == '//' else 'mod'}({', '.join(args)})"
        if op == "float32":
            return f"Math.fround(Math.fround({args[0]}) / {args[1]})"
        return f"int(Math.{op}({', '.join(args)}))" if op in ("min", "max") else f"{args[0]} / {args[1]}"
