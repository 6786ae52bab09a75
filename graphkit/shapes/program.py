"""The shape program of a model: what each node reads as a shape, an axis or a count, in terms of the input dims.

A tracer or a JIT that takes concrete numbers from it never traces an int64 tensor: the whole shape computation of a
model is a few sums, products and divisions of input dims. It is data (`to_json`), and a function in Python or in
JavaScript that needs nothing but the shapes of the inputs.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass

from graphkit.graph.types import dtype_name
from graphkit.graph.value_inputs import value_inputs
from graphkit.graph.view import Node, Value, all_nodes
from graphkit.model import Model
from graphkit.shapes.bounds import lower, upper
from graphkit.shapes.code import document, javascript, python
from graphkit.shapes.expr import Expr, TooComplexError, const
from graphkit.shapes.infer import infer
from graphkit.shapes.results import Shapes
from graphkit.shapes.sources import Source, Unread, find_sources
from graphkit.shapes.tensor import Ratio, Tensor, is_known

__all__ = ["Condition", "Consumer", "Element", "Input", "Output", "Program", "Read", "program"]

Element = Expr | Ratio | float | None  # None where it is not known


@dataclass(frozen=True)
class Input:
    """A graph input that a caller gives.

    Attributes:
        name: Of the input.
        dims: Expressions in the symbols; None where it is no tensor, or of unknown rank.
    """

    name: str
    dims: tuple[Expr, ...] | None


@dataclass(frozen=True)
class Condition:
    """What must hold for the main graph to run; the program relies on it.

    Attributes:
        left: An expression.
        relation: `==` or `>=`.
        right: The other one.
    """

    left: Expr
    relation: str
    right: Expr

    def __str__(self) -> str:
        return f"{self.left} {self.relation} {self.right}"


@dataclass(frozen=True)
class Read:
    """An input of a node that is read for its value.

    Attributes:
        key: `SCOPE/NODE:NAME`, unlike every other key of the program.
        index: Which input of the node it is.
        name: What the ONNX specification calls that input, such as `shape`.
        tensor: Name of the tensor.
        dtype: Such as `int64`; "" where unknown.
        dims: Of the tensor; None where unknown.
        elements: In row-major order; those of a float tensor are rounded to its dtype. None where none is known.
        unknown: Why elements are not known, "" where all are.
    """

    key: str
    index: int
    name: str
    tensor: str
    dtype: str
    dims: tuple[int, ...] | None
    elements: tuple[Element, ...] | None
    unknown: str


@dataclass(frozen=True)
class Output:
    """An output of a node that reads a shape.

    Attributes:
        key: `SCOPE/NODE:output.INDEX`, unlike every other key of the program.
        index: Which output of the node it is.
        tensor: Name of the tensor.
        dims: Its shape, None in the place of a dim that is not known; None where not even the rank is.
        unknown: Why dims are not known, "" where all are.
    """

    key: str
    index: int
    tensor: str
    dims: tuple[Expr | None, ...] | None
    unknown: str


@dataclass(frozen=True)
class Consumer:
    """A node that reads a shape, an axis or a count.

    Attributes:
        scope: Path of its scope, "" for the main graph.
        node: Its name, or its operator and position where it has none.
        op: Its operator.
        reads: Inputs that are read for their value.
        outputs: What it gives, those left out not counted.
    """

    scope: str
    node: str
    op: str
    reads: tuple[Read, ...]
    outputs: tuple[Output, ...]


@dataclass(frozen=True)
class Program:
    """All shape consumers of a model, in file order, and where the symbols in their expressions are read.

    Attributes:
        model: Name of the model.
        inputs: Graph inputs, those with a default left out.
        sources: Where each symbol is read, in an order in which each needs only those before it.
        unread: Symbols that no shape of an input gives; what has them is unknown to a generated function.
        conditions: What must hold for the main graph to run. Bodies may have further ones.
        consumers: The nodes. What a body's node reads holds where the body runs.
    """

    model: str
    inputs: tuple[Input, ...]
    sources: tuple[Source, ...]
    unread: tuple[Unread, ...]
    conditions: tuple[Condition, ...]
    consumers: tuple[Consumer, ...]

    def to_json(self) -> str:
        """Return the program as JSON, one input, symbol, condition, consumer or expression a line.

        A number in it is a number. Any other element or dim is a text that `expressions` maps to a tree, null one that
        is not known. `graphkit.shapes.parse` reads such a text where names of symbols are plain words; fractions of
        float tensors, such as `(height) / 32`, it does not read.

        A tree is a number, the name of a symbol, or a list of an operation and trees: `+` and `*` of any number of
        trees; `//` (rounded down) and `%` (with the sign of the divisor) of two; `min` and `max` of two or more; `/`
        of two, rounded to the dtype of the tensor. `["int", "9223372036854775807"]` is a number that JSON readers may
        round (above 2**53 - 1), `["float", "inf"]` one that JSON has not.
        """
        return document.json_text(self)

    def python(self) -> str:
        """Return a Python module with one function, `shapes(inputs)`, that needs the standard library only.

        It takes the shapes of graph inputs by name, and returns a dict of tuples by `Read.key` and `Output.key`. It
        checks what it is given: names, ranks, dims that are numbers, that equal symbols have equal sizes, ranges of
        symbols, and `conditions`; and raises ValueError. An input may be left out where no symbol is read from it.

        Integers are exact. Elements of a float tensor are floats, rounded to its dtype as onnxruntime rounds. None
        stands in the place of a number that is not known, and of one whose computation divides by 0: the node cannot
        run at these dims. A tensor of which nothing is known has no entry.
        """
        return python.source(self)

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
        return javascript.source(self, export)


def program(
    model: Model,
    *,
    dims: Mapping[str, int] | None = None,
    inputs: Mapping[str, Sequence[int]] | None = None,
    ranges: Mapping[str, tuple[int | None, int | None]] | None = None,
    values: Mapping[str, object] | None = None,
) -> Program:
    """Return what every node at every scope reads as a shape, an axis or a count, as expressions in the input dims.

    Args:
        model: The model.
        dims: Numbers for symbols; the program is then for these only.
        inputs: Shapes of graph inputs.
        ranges: Bounds of symbols, None for an open end; a symbol without is at least 1, one named `past...` at least 0.
        values: Elements of graph inputs, such as `{"use_cache_branch": True}`; the program is then for these only.

    Raises:
        UsageError: An input or a symbol does not exist, or the numbers contradict each other.
    """
    shapes = infer(model, dims=dims, inputs=inputs, ranges=ranges, values=values)
    given = tuple(Input(value.name, shapes[value].dims) for value in model.graph.inputs if value.tensor is None)
    sources, unread = find_sources([(entry.name, entry.dims) for entry in given if entry.dims is not None])
    keys = _Keys()
    consumers = tuple(_consumer(shapes, node, keys) for node in all_nodes(model.scopes) if value_inputs(node))
    return Program(model.name, given, sources, unread, _conditions(shapes, given), consumers)


class _Keys:
    """Gives keys of which no two are the same; names of nodes need not be unique."""

    def __init__(self) -> None:
        self.taken: set[str] = set()

    def __call__(self, node: Node, name: str) -> str:
        key, number = f"{node.path}:{name}", 1
        while key in self.taken:
            number += 1
            key = f"{node.path}({number}):{name}"
        self.taken.add(key)
        return key


def _consumer(shapes: Shapes, node: Node, keys: _Keys) -> Consumer:
    reads = [
        _read(shapes, keys(node, name), index, name, value)
        for index, name in value_inputs(node).items()
        if (value := node.inputs[index]) is not None
    ]
    outputs = [
        _output(shapes, keys(node, f"output.{index}"), index, value)
        for index, value in enumerate(node.outputs)
        if value is not None
    ]
    return Consumer(node.scope.path, node.label, node.op_type, tuple(reads), tuple(outputs))


def _read(shapes: Shapes, key: str, index: int, name: str, value: Value) -> Read:
    found = shapes[value]
    dtype = dtype_name(found.dtype) if found.dtype else ""
    elements = found.elements
    if elements is None:
        return Read(key, index, name, value.name, dtype, found.sizes(), None, _reason(value, found))
    unknown = [shapes.reason(expr) for expr in map(_expr, elements) if expr is not None]
    kept = tuple(
        None if (expr := _expr(element)) is not None and not is_known(expr) else element for element in elements
    )
    return Read(key, index, name, value.name, dtype, found.sizes(), kept, _joined(unknown))


def _expr(element: Expr | Ratio | float) -> Expr | None:
    """Return the expression in an element, where it is no number."""
    if isinstance(element, Ratio):
        return element.dividend
    return element if isinstance(element, Expr) else None


def _reason(value: Value, found: Tensor) -> str:
    if found.reason:
        return found.reason
    if value.producer is None:
        return "its values cannot be read" if value.kind == "initializer" else f"it is an {value.kind} of its scope"
    return f"the elements that {value.producer.label} gives are not followed"


def _output(shapes: Shapes, key: str, index: int, value: Value) -> Output:
    dims = shapes[value].dims
    kept = None if dims is None else tuple(dim if is_known(dim) else None for dim in dims)
    return Output(key, index, value.name, kept, shapes.reason(value))


def _joined(reasons: Iterable[str]) -> str:
    return "; ".join(dict.fromkeys(reason for reason in reasons if reason))


def _conditions(shapes: Shapes, given: Sequence[Input]) -> tuple[Condition, ...]:
    """Return the conditions of the main graph that the ranges of the symbols leave open."""
    dims = [dim for entry in given for dim in entry.dims or ()]
    symbols = {symbol.name: Expr.from_atom(symbol) for dim in dims for symbol in dim.walk_symbols()}
    noted = dict.fromkeys(_narrowed(condition, symbols) for condition in _noted(shapes))
    return tuple(condition for condition in noted if _is_open(condition, symbols.keys()))


def _narrowed(condition: Condition, symbols: Mapping[str, Expr]) -> Condition:
    """Return a condition, noted before all ranges were known, in the symbols that have them."""
    try:
        left, right = condition.left.substitute(symbols), condition.right.substitute(symbols)
    except TooComplexError:
        return condition
    return Condition(left, condition.relation, right)


def _is_open(condition: Condition, symbols: Collection[str]) -> bool:
    """Whether a condition can be told from the symbols, and not without them."""
    left, right = condition.left, condition.right
    if not all(name in symbols for name in left.symbols | right.symbols):
        return False
    try:
        difference = left - right
    except TooComplexError:
        return True
    return lower(difference) < 0 or (condition.relation == "==" and upper(difference) > 0)


def _noted(shapes: Shapes) -> Iterator[Condition]:
    main = shapes.model.graph
    for equality in shapes.equalities:
        if equality.scope is main:
            yield Condition(equality.left, "==", equality.right)
    for requirement in shapes.requirements:
        if requirement.scope is main:
            yield Condition(requirement.expr, ">=", const(requirement.least))
