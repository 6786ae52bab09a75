"""The nodes that read a shape, an axis or a count, with the operands they read and the dims of their outputs."""

from __future__ import annotations

from dataclasses import dataclass

from graphkit.dtypes import dtype_name
from graphkit.graph.value_inputs import value_inputs
from graphkit.graph.view import Node, Value, all_nodes
from graphkit.shapes.expr import Expr
from graphkit.shapes.results import Shapes
from graphkit.shapes.tensor import Ratio, Tensor, is_known

__all__ = ["Consumer", "Element", "Output", "Read", "consumers", "known_dims"]

Element = Expr | Ratio | float | None  # None where it is not known


@dataclass(frozen=True)
class Read:
    """An input that a node reads for its value.

    Attributes:
        key: `SCOPE/NODE:NAME`, unlike every other key of the program.
        index: Which input of the node it is.
        name: What the ONNX specification calls that input, such as `shape`.
        dtype: Such as `int64`; "" if unknown.
        elements: In row-major order; those of a float tensor are rounded to its dtype. None if none is known.
        unknown: Why elements are not known, "" if all are.
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
        dims: Its shape, with None for each dim that is not known; None if the rank is unknown.
        unknown: Why dims are not known, "" if all are.
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
        node: Its name, or its operator and position if it has none.
        outputs: Its outputs, without those left out.
    """

    scope: str
    node: str
    op: str
    reads: tuple[Read, ...]
    outputs: tuple[Output, ...]


def consumers(shapes: Shapes) -> tuple[Consumer, ...]:
    """Return the consumers at every scope, in file order."""
    keys = _Keys()
    return tuple(_consumer(shapes, node, keys) for node in all_nodes(shapes.model.scopes) if value_inputs(node))


class _Keys:
    """Makes unique keys; names of nodes need not be unique."""

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
        Output(keys(node, f"output.{index}"), index, value.name, known_dims(shapes[value]), shapes.reason(value))
        for index, value in enumerate(node.outputs)
        if value is not None
    ]
    return Consumer(node.scope.path, node.label, node.op_type, tuple(reads), tuple(outputs))


def _read(shapes: Shapes, key: str, index: int, name: str, value: Value) -> Read:
    found = shapes[value]
    dtype = dtype_name(found.dtype) if found.dtype else ""
    elements = found.elements
    if elements is None:
        return Read(
            key=key,
            index=index,
            name=name,
            tensor=value.name,
            dtype=dtype,
            dims=found.sizes(),
            elements=None,
            unknown=_reason(value, found),
        )
    exprs = [_expr(element) for element in elements]
    unknown = dict.fromkeys(shapes.reason(expr) for expr in exprs if expr is not None and not is_known(expr))
    pairs = zip(elements, exprs, strict=True)
    kept = tuple(element if expr is None or is_known(expr) else None for element, expr in pairs)
    return Read(
        key=key,
        index=index,
        name=name,
        tensor=value.name,
        dtype=dtype,
        dims=found.sizes(),
        elements=kept,
        unknown="; ".join(filter(None, unknown)),
    )


def _expr(element: Expr | Ratio | float) -> Expr | None:
    """Return the expression in an element, None for a number."""
    if isinstance(element, Ratio):
        return element.dividend
    return element if isinstance(element, Expr) else None


def _reason(value: Value, found: Tensor) -> str:
    if found.reason:
        return found.reason
    if value.producer is None:
        return "its values cannot be read" if value.kind == "initializer" else f"it is an {value.kind} of its scope"
    return f"the elements that {value.producer.label} gives are not followed"


def known_dims(found: Tensor) -> tuple[Expr | None, ...] | None:
    """Return the dims of a tensor, with None for each that is not known."""
    return None if found.dims is None else tuple(dim if is_known(dim) else None for dim in found.dims)
