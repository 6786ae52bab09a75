"""The contents of a shape program: where symbols are read, which nodes read shapes, and the conditions."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from functools import partial

from msgspec import Struct

from graphkit.dtypes import dtype_name
from graphkit.graph.operator_traits import value_inputs
from graphkit.graph.view import Node, Value, all_nodes
from graphkit.ops.tensor import Ratio, Tensor, is_known
from graphkit.shapes.inferred_shapes import Shapes
from graphkit.symbolic.algebra import Relation
from graphkit.symbolic.expr import Bound, Expr, Symbol, const

Shaped = Sequence[tuple[str, tuple[Expr | None, ...]]]


class Source(Struct, frozen=True):
    """The axis from which a symbol's number is read: its size is `factor*symbol + rest`."""

    symbol: str
    least: Bound  # perhaps minus infinity
    most: Bound  # perhaps infinity
    input: str
    axis: int  # counted from the front
    factor: int  # other than 0; it must divide `size - rest`
    rest: Expr  # a polynomial in symbols of earlier sources


class Unread(Struct, frozen=True):
    """A symbol whose number no shape of an input gives."""

    symbol: str
    reason: str  # the dims that contain it


def find_sources(inputs: Shaped) -> tuple[tuple[Source, ...], tuple[Unread, ...]]:
    """Return the sources of the symbols of inputs, plain dims first, and the symbols without one."""
    symbols = {symbol.name: symbol for _, _, dim in _input_dims(inputs) for symbol in dim.walk_symbols()}
    sources: dict[str, Source] = {}
    for name, axis, dim in _input_dims(inputs):
        if isinstance(dim.atom, Symbol):
            sources.setdefault(dim.atom.name, _symbol_source(dim.atom, name, axis, 1, const(0)))
    count = -1
    while count != len(sources):
        count = len(sources)
        for name, axis, dim in _input_dims(inputs):
            missing = dim.symbols - sources.keys()
            if len(missing) == 1 and (line := _linear_terms(dim, symbol := symbols[min(missing)])) is not None:
                sources[symbol.name] = _symbol_source(symbol, name, axis, *line)
    unread: list[Unread] = []
    for name in (name for name in symbols if name not in sources):
        places = [f"'{dim}' of input '{entry}'" for entry, _, dim in _input_dims(inputs) if name in dim.symbols]
        reason = f"it stands only in {', '.join(dict.fromkeys(places))}, which cannot be solved for it"
        unread.append(Unread(name, reason))
    return tuple(sources.values()), tuple(unread)


def _input_dims(inputs: Shaped) -> Iterator[tuple[str, int, Expr]]:
    for name, dims in inputs:
        for axis, dim in enumerate(dims):
            if dim is not None:
                yield name, axis, dim


def _symbol_source(symbol: Symbol, name: str, axis: int, factor: int, rest: Expr) -> Source:
    return Source(symbol.name, symbol.lower, symbol.upper, name, axis, factor=factor, rest=rest)


def _linear_terms(dim: Expr, symbol: Symbol) -> tuple[int, Expr] | None:
    if any(not isinstance(atom, Symbol) for monomial, _ in dim.terms for atom in monomial):
        return None
    factor = next((factor for monomial, factor in dim.terms if monomial == (symbol,)), 0)
    rest = dim - Expr.from_atom(symbol) * factor
    return (factor, rest) if factor and symbol.name not in rest.symbols else None


Element = Expr | Ratio | float | None  # None where it is not known


class Read(Struct, frozen=True):
    """An input that a node reads for its value."""

    key: str  # `SCOPE/NODE:NAME`, unlike every other key of the program
    index: int  # which input of the node it is
    name: str  # the name of that input in the ONNX specification, such as `shape`
    tensor: str
    dtype: str  # such as `int64`; "" if unknown
    dims: tuple[int, ...] | None
    # In row-major order; those of a float tensor are rounded to its dtype. None if none is known.
    elements: tuple[Element, ...] | None
    unknown: str  # why elements are not known, "" if all are


class Output(Struct, frozen=True):
    """An output of a node that reads a shape."""

    key: str  # `SCOPE/NODE:output.INDEX`, unlike every other key of the program
    index: int  # which output of the node it is
    tensor: str
    # its shape, with None for each dim that is not known; None if the rank is unknown
    dims: tuple[Expr | None, ...] | None
    unknown: str  # why dims are not known, "" if all are


class Consumer(Struct, frozen=True):
    """A node that reads a shape, an axis or a count."""

    scope: str  # path of its scope, "" for the main graph
    node: str  # its name, or its operator and position if it has none
    op: str
    reads: tuple[Read, ...]
    outputs: tuple[Output, ...]  # its outputs, without those left out


def find_consumers(shapes: Shapes) -> tuple[Consumer, ...]:
    """Return the consumers at every scope, in file order."""
    keys = partial(_unique_key, set())
    return tuple(_make_consumer(shapes, node, keys) for node in all_nodes(shapes.model.scopes) if value_inputs(node))


def _unique_key(taken: set[str], node: Node, name: str) -> str:
    key, number = f"{node.path}:{name}", 1
    while key in taken:  # names of nodes need not be unique
        number += 1
        key = f"{node.path}({number}):{name}"
    taken.add(key)
    return key


def _make_consumer(shapes: Shapes, node: Node, keys: Callable[[Node, str], str]) -> Consumer:
    read = [(index, name, node.inputs[index]) for index, name in value_inputs(node).items()]
    reads = [_make_read(shapes, keys(node, name), at, name, value) for at, name, value in read if value is not None]
    outputs = [
        Output(keys(node, f"output.{index}"), index, value.name, known_dims(shapes[value]), shapes.reason(value))
        for index, value in enumerate(node.outputs)
        if value is not None
    ]
    return Consumer(node.scope.path, node.label, node.op_type, tuple(reads), tuple(outputs))


def _make_read(shapes: Shapes, key: str, index: int, name: str, value: Value) -> Read:
    facts = shapes[value]
    dtype = dtype_name(facts.dtype) if facts.dtype else ""
    known, unknown = None, facts.reason
    if not unknown and value.producer is not None:
        unknown = f"the elements that {value.producer.label} gives are not followed"
    elif not unknown:
        unread = "its values cannot be read"
        unknown = unread if value.kind == "initializer" else f"it is an {value.kind} of its scope"
    if (elements := facts.elements) is not None:
        parts = [element.dividend if isinstance(element, Ratio) else element for element in elements]
        exprs = [part if isinstance(part, Expr) else None for part in parts]
        reasons = dict.fromkeys(shapes.reason(expr) for expr in exprs if expr is not None and not is_known(expr))
        pairs = zip(elements, exprs, strict=True)
        known = tuple(element if expr is None or is_known(expr) else None for element, expr in pairs)
        unknown = "; ".join(filter(None, reasons))
    return Read(key, index, name, value.name, dtype, dims=facts.sizes(), elements=known, unknown=unknown)


def known_dims(tensor: Tensor) -> tuple[Expr | None, ...] | None:
    """Return the dims of a tensor, with None for each that is not known."""
    return None if tensor.dims is None else tuple(dim if is_known(dim) else None for dim in tensor.dims)


class Input(Struct, frozen=True):
    """A graph input that the caller must give."""

    name: str
    # Expressions in the symbols, with None for each dim that may be any number (its name starts with `?`). None
    # if the input is not a tensor or its rank is unknown.
    dims: tuple[Expr | None, ...] | None


class ProgramContents(Struct, frozen=True):
    """All shape consumers of a model, in file order, and where the symbols in their expressions are read."""

    model: str
    inputs: tuple[Input, ...]  # the graph inputs without a default
    sources: tuple[Source, ...]  # where each symbol is read, in an order in which each needs only those before it
    # Symbols that no shape of an input gives. A generated function does not know expressions with them.
    unread: tuple[Unread, ...]
    # The relations that must hold for the main graph to run. Bodies may have further ones.
    conditions: tuple[Relation, ...]
    consumers: tuple[Consumer, ...]  # The nodes. The operands of a body's node hold where the body runs.
