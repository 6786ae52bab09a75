"""Up to which numbers the arithmetic of sizes holds, where a dtype does not hold all that a model computes of them."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from contextlib import suppress

from onnx import TensorProto

from graphkit.dtypes import BITS, FLOATS, HALVES, INTEGERS, integer_range
from graphkit.graph.operator_traits import names
from graphkit.graph.view import Node, all_nodes
from graphkit.shapes import Expr, Shapes, symbol
from graphkit.shapes.bounds import lower, upper
from graphkit.shapes.expr import Monomial
from graphkit.shapes.expr_limits import TooComplexError
from graphkit.shapes.number_limits import EXACT, MOST_OF_INPUTS, is_between, term_span
from graphkit.shapes.rules.control import begins
from graphkit.shapes.rules.data_movement import product
from graphkit.shapes.symbols import Bound, Symbol
from graphkit.shapes.tensor import Element, Ratio, Tensor, sizes_of
from graphkit.verify.equivalence.required_products import needed_nodes

__all__ = ["counting_conditions"]

COUNTED: Mapping[int, str] = {
    TensorProto.FLOAT: "numbers and numerators up to 2^24 where float32 computes sizes",
    TensorProto.INT32: "numbers up to 2^31 where int32 computes sizes",
    TensorProto.UINT32: "numbers up to 2^32 where uint32 computes sizes",
    TensorProto.INT64: "numbers up to 2^63 where int64 computes sizes",
    TensorProto.UINT64: "numbers up to 2^64 where uint64 computes sizes",
    TensorProto.DOUBLE: "numbers and numerators up to 2^53 where float64 computes sizes",
}
OF_INPUTS = "elements of int64 inputs up to 2^62 where something is added to them"
OF_COMPARED = "elements of int64 inputs up to 2^62 where they are compared with larger numbers, or divided by them"
BEGUN = "each Loop that stacks outputs has an iteration"
# What may be decided by how large numbers are.
DECIDED = names("Clip Div Equal Greater GreaterOrEqual Less LessOrEqual Max Min Mod")
MOST_ELEMENTS = 1 << 48  # of a tensor: no memory holds more
Part = tuple[Monomial, int]  # a product of dims, and its factor

ROUNDED = "float16 is rounded after each node, by one kernel for each operator"


def counting_conditions(*models: Shapes) -> tuple[str, ...]:
    """Return up to which numbers what is known of the tensors of some models holds, by dtype."""
    found = set().union(*map(_counting, models))
    of_elements = ((_adds_to_inputs, OF_INPUTS), (_compares_inputs, OF_COMPARED))
    elements = tuple(text for asks, text in of_elements if any(map(asks, models)))
    halves = (ROUNDED,) if any(map(_computes_halves, models)) else ()
    loops = (BEGUN,) if any(map(_may_stack_nothing, models)) else ()
    return (*(text for dtype, text in COUNTED.items() if dtype in found), *elements, *halves, *loops)


def _may_stack_nothing(shapes: Shapes) -> bool:
    """Whether a Loop that may have no iteration stacks outputs, whose dims are then those that something declares."""
    loops = [node for node in all_nodes(shapes.model.scopes) if node.is_op("Loop")]
    return any(not _begins(shapes, node) and any(_stacked(shapes, node)) for node in loops)


def _begins(shapes: Shapes, node: Node) -> bool:
    limit, start = (None if (value := node.input(index)) is None else shapes[value] for index in (0, 1))
    return begins(limit, start)


def _stacked(shapes: Shapes, node: Node) -> Iterator[bool]:
    """Yield of each output of all iterations whether the dims of one are no numbers."""
    for value in node.outputs[max(0, len(node.inputs) - 2) :]:
        dims = None if value is None else shapes[value].dims
        if value is not None:
            yield dims is None or sizes_of(dims[1:]) is None


def _computes_halves(shapes: Shapes) -> bool:
    """Whether a node gives float16, which onnxruntime keeps in float32 up to a node that it has a kernel for."""
    return any(value.producer is not None and tensor.dtype in HALVES for value, tensor in shapes.first.items())


def _adds_to_inputs(shapes: Shapes) -> bool:
    """Whether a model computes numbers of elements of an int64 input that wrap around where these are the largest."""
    for value, tensor in shapes.first.items():
        if value.tensor is None and tensor.dtype == TensorProto.INT64 and tensor.may_have_data:
            for expr in _exprs(tensor):
                wide = {each.name: _of_dtype(each) for each in expr.walk_symbols() if each.upper == MOST_OF_INPUTS}
                if wide and not is_between(expr.substitute(wide), *_range(tensor.dtype)):
                    return True
    return False


def _compares_inputs(shapes: Shapes) -> bool:
    """Whether a node may be decided by an element of an int64 input being smaller than a number above its limit."""
    for node in all_nodes(shapes.model.scopes):
        if node.operator not in DECIDED or not _reads_elements(shapes, node):
            continue
        read = (shapes[value] for value in node.inputs if value is not None)
        ends = [end for tensor in read for each in tensor.elements or () for end in _ends(each)]
        if max(map(abs, ends), default=0) > MOST_OF_INPUTS:
            return True
    return False


def _reads_elements(shapes: Shapes, node: Node) -> bool:
    exprs = (expr for value in node.inputs if value is not None for expr in _exprs(shapes[value]))
    return any(each.upper == MOST_OF_INPUTS for expr in exprs for each in expr.walk_symbols())


def _ends(element: Element) -> tuple[Bound, Bound]:
    """Return the least and the largest number that an element may be."""
    dividend = element.dividend if isinstance(element, Ratio) else element
    return (dividend, dividend) if isinstance(dividend, (int, float)) else (lower(dividend), upper(dividend))


def _of_dtype(element: Symbol) -> Expr:
    """Return an element as one that may be any int64."""
    return symbol(f"{element.name} of int64", *integer_range(TensorProto.INT64))


def _counting(shapes: Shapes) -> set[int]:
    """Return the dtypes in which a model computes sizes that they may not hold.

    One of 64 bits holds each size, and most of their products.
    """
    found, wide = set[int](), list[tuple[int, Expr]]()
    for value, tensor in shapes.first.items():
        if value.tensor is not None or tensor.dtype not in COUNTED or not tensor.may_have_data:
            continue
        exprs = _exprs(tensor)
        if BITS[tensor.dtype] == 32 and exprs:
            found.add(tensor.dtype)
        else:
            wide += [(tensor.dtype, expr) for expr in exprs if not _is_held(expr, tensor.dtype)]
    wide += [(int(TensorProto.DOUBLE), expr) for expr in _raised(shapes) if not _is_held(expr, TensorProto.DOUBLE)]
    if wide:
        parts = [*_parts_of_counts(shapes)]
        found.update(dtype for dtype, expr in wide if not _is_held_in_memory(expr, dtype, parts))
    return found | ({TensorProto.FLOAT} if _is_scaled(shapes) else set())


def _raised(shapes: Shapes) -> Iterator[Expr]:
    """Yield the integers that a node raises to a power, which onnxruntime does in float64."""
    for node in all_nodes(shapes.model.scopes):
        tensor = shapes[node.outputs[0]] if node.is_op("Pow") and node.outputs and node.outputs[0] else None
        if tensor is not None and tensor.dtype in INTEGERS and tensor.may_have_data:
            yield from _exprs(tensor)


def _exprs(tensor: Tensor) -> list[Expr]:
    parts = [each.dividend if isinstance(each, Ratio) else each for each in tensor.elements or ()]
    return [each for each in parts if isinstance(each, Expr) and each.constant is None]


def _is_held(expr: Expr, dtype: int) -> bool:
    return is_between(expr, *_range(dtype))


def _range(dtype: int) -> tuple[int, int]:
    if dtype in FLOATS:
        return -EXACT[BITS[dtype]], EXACT[BITS[dtype]]
    return integer_range(dtype)


def _is_held_in_memory(expr: Expr, dtype: int, parts: Sequence[Part]) -> bool:
    """Whether a dtype holds an expression where its products are parts of the numbers of elements of tensors."""
    ends = [term_span(*term) for term in expr.terms]
    limits = [max(-low, high) for low, high in ends]
    for index, (monomial, factor) in enumerate(expr.terms):
        bounds = [-(-abs(factor) * MOST_ELEMENTS // whole) for atoms, whole in parts if _is_part(monomial, atoms)]
        limits[index] = min([limits[index], *bounds])
    return sum(limits) <= _range(dtype)[1]


def _is_part(monomial: Monomial, whole: Monomial) -> bool:
    """Whether a product is at most another one: what this has besides is never 0."""
    atoms, others = Counter(monomial), Counter(whole)
    return atoms <= others and all(lower(Expr.from_atom(atom)) >= 1 for atom in others - atoms)


def _parts_of_counts(shapes: Shapes) -> Iterator[Part]:
    """Yield products of dims that are at most the number of elements of a tensor that is there when the model runs."""
    values = [*shapes.model.graph.inputs]
    values += [value for node in needed_nodes(shapes.model) for value in node.outputs if value is not None]
    for dims in dict.fromkeys(shapes.first[value].dims for value in values if value in shapes.first):
        with suppress(TooComplexError):
            terms = product(dims).terms if dims else ()
            if all(factor > 0 and all(lower(Expr.from_atom(atom)) >= 0 for atom in atoms) for atoms, factor in terms):
                yield from terms


def _is_scaled(shapes: Shapes) -> bool:
    """Whether a node computes dims that are no numbers in float32: by scales, or by windows that are rounded up."""
    for node in all_nodes(shapes.model.scopes):
        if not _counts_in_float32(node) or node.input(0) is None or not node.outputs or node.outputs[0] is None:
            continue
        before, after = (shapes[value].dims for value in (node.inputs[0], node.outputs[0]) if value is not None)
        if before is None or after is None:
            continue
        windows = after[2:] if node.op_type.endswith("Pool") else ()
        changed = [dim for old, dim in zip(before, after, strict=False) if dim != old]
        if any(dim.constant is None for dim in (*windows, *changed)):
            return True
    return False


def _counts_in_float32(node: Node) -> bool:
    if node.op_type.endswith("Pool"):
        return bool(node.attr("ceil_mode", 0))
    return node.op_type == "STFT" or (node.op_type in ("Resize", "Upsample") and node.input(3) is None)
