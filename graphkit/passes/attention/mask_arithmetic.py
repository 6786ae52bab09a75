"""Make choices and triangles constants, or products with numbers of 0 and 1."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from functools import cache

import numpy as np
from onnx import TensorProto, helper

from graphkit.dtypes import FLOATS, INTEGERS
from graphkit.graph.declared_types import declared_type
from graphkit.graph.operator_traits import COMPARING, COPYING, operator_set, value_inputs
from graphkit.graph.view import Node, Value, walk_breadth_first
from graphkit.passes.clean_up.fold_constants import FoldConstants
from graphkit.passes.shapes.simplify_expand import broadcast_dims
from graphkit.rewrite import Builder, Editor, MatchFailure, NewNode, NodeRewrite
from graphkit.shapes import Expr, const

MAX_CONSTANT = 64 << 20  # bytes of a condition that is read
SOURCES = COMPARING | operator_set("Range Trilu")
FOLLOWING = COPYING | operator_set("Add And Cast ConstantOfShape Mul Neg Not Or Sub Xor")


@dataclass(frozen=True)
class WhereToArithmetic(NodeRewrite):
    """Make `Where(c, a, b)` the sum `c * a + (1 - c) * b`, with c as 0 and 1.

    It gives what the choice gives, except for the sign of a zero; `b + c * (a - b)` would lose digits where a and b
    differ much. A branch of zeros needs no product. A constant condition becomes two constants. For masks of an
    attention, run `masked-fill-to-add` first: it needs fewer nodes.

    Legality: a and b hold floating-point numbers that cannot be infinite or NaN, because 0 times either is NaN:
    no constant in them is infinite, and nothing before them divides, takes logarithms or powers, or is unknown. What
    inputs and products of matrices give is taken to be finite. Integers stay: they are shapes or indices.

    Before:

        agraph (float[N, 2] a, float[N, 2] b) => (float[N, 2] y) <bool[2] c = {1, 0}> {
            y = Where (c, a, b)
        }

    After:

        agraph (float[N, 2] a, float[N, 2] b) => (float[N, 2] y)
        <float[2] c_true = {1.0, 0.0}, float[2] c_false = {0.0, 1.0}> {
            y_true = Mul (a, c_true)
            y_false = Mul (b, c_false)
            y = Add (y_true, y_false)
        }

    Attributes:
        of_data: Whether to leave choices that depend on no data, such as those in a mask: a host makes them.
    """

    of_data: bool = False

    operators = ("Where",)

    def edit_node(self, editor: Editor, node: Node) -> None:
        cond, chosen, otherwise, out = *node.operands, node.result()
        known = editor.dependences.get(out) if self.of_data else None
        if known is not None and not known.data:
            return
        if (dtype := editor.shapes[out].dtype) not in FLOATS:
            raise MatchFailure("it chooses between integers or others that are no float32, float64 or float16")
        for value in (chosen, otherwise):
            if not editor.bounds.of(value).is_finite:
                raise MatchFailure(f"'{value.name}' may be infinite or no number, and 0 times that is no number")
        builder, kind = Builder(editor, node), helper.tensor_dtype_to_np_dtype(dtype)
        array = editor.read_constant(cond, MAX_CONSTANT, kind.itemsize)

        @cache
        def when_true() -> str:  # the condition as 0 and 1, made once
            if array is not None:
                return editor.constant(array.astype(bool).astype(kind), f"{cond.name}_true")
            return builder.add("Cast", cond, role="if", to=dtype)

        def when_false() -> str:
            if array is not None:
                return editor.constant((~array.astype(bool)).astype(kind), f"{cond.name}_false")
            return builder.add("Sub", editor.constant(np.ones((), kind), "one"), when_true(), role="else")

        if _is_nothing(editor, otherwise, (cond, chosen), out):
            builder.add("Mul", chosen, when_true())
        elif _is_nothing(editor, chosen, (cond, otherwise), out):
            builder.add("Mul", otherwise, when_false())
        else:
            true, false = when_true(), when_false()
            parts = builder.add("Mul", chosen, true, role="true"), builder.add("Mul", otherwise, false, role="false")
            builder.add("Add", *parts)
        builder.replace()
        editor.note("choice(s) turned into products")


def _is_nothing(editor: Editor, value: Value, others: tuple[Value, Value], out: Value) -> bool:
    """Whether a branch is zeros, and the others have the shape of the result without it."""
    if editor.uniform(value) != 0:
        return False
    known = [dims for other in others if (dims := editor.shapes[other].dims) is not None]
    together = broadcast_dims(known) if len(known) == len(others) else None
    return editor.shapes[value].dims == () or (together is not None and together == editor.shapes[out].dims)


@dataclass(frozen=True)
class TrilToConstant(FoldConstants):
    """Make a triangle that is constant an initializer, and the triangle of data a product with a constant of 0 and 1.

    These are constant: the Trilu of a constant, or of a ConstantOfShape or an Expand of fixed shape, a Range compared
    with a Range, slices of a buffer, and what makes a mask of them. `fold-constants` does this up to a megabyte; a
    causal mask of a thousand tokens is larger.

    Legality: the diagonal is a constant, and the matrices have a fixed size. The triangle of data is a product where
    the data cannot be infinite or NaN, because 0 times either is NaN: what inputs and products of matrices give
    is taken to be finite. A boolean triangle is an And.

    Before:

        agraph (float[N, 3, 3] x) => (float[N, 3, 3] y) <int64 k = {0}> {
            y = Trilu <upper = 0> (x, k)
        }

    After:

        agraph (float[N, 3, 3] x) => (float[N, 3, 3] y)
        <float[3, 3] triangle = {1, 0, 0, 1, 1, 0, 1, 1, 1}> {
            y = Mul (x, triangle)
        }

    Attributes:
        limit: Bytes of the largest constant to make; all of them together may add 64 times as many to the model.
        half: Whether float16 is calculated with too.
    """

    limit: int = 64 << 20

    def edit(self, editor: Editor) -> None:
        for node in list(editor.nodes("Trilu")):
            with editor.matching(node):
                data, out, at = node.operand(0), node.result(), node.input(1)
                elements = (const(0),) if at is None else editor.shapes[at].elements or ()
                first = elements[0] if len(elements) == 1 else None
                diagonal = first.constant if isinstance(first, Expr) else None
                if diagonal is None or node.attr("upper", 1) is None:
                    raise MatchFailure("its diagonal is not a constant")
                if data.is_constant:
                    self._fold_triangle(editor, node, data, out, diagonal)
                elif not _is_computed_of_constants(data):
                    self._multiply_by_triangle(editor, node, data, out, diagonal)
                elif editor.shapes[out].sizes() is None:
                    raise MatchFailure("its matrices have no fixed size")
        super().edit(editor)

    def takes(self, node: Node) -> bool:
        return super().takes(node) and any(_is_of_mask(value) for value in node.results)

    def _multiply_by_triangle(self, editor: Editor, node: Node, data: Value, out: Value, diagonal: int) -> None:
        dims, dtype = editor.shapes[data].dims or (), editor.shapes[data].dtype
        rows, columns = (dim.constant for dim in dims[-2:]) if len(dims) > 1 else (None, None)
        if rows is None or columns is None:
            raise MatchFailure("its matrices have no fixed size")
        if dtype not in {*INTEGERS, *FLOATS}:
            raise MatchFailure("its dtype is not known, or has no products here")
        kind = helper.tensor_dtype_to_np_dtype(dtype)
        if rows * columns * kind.itemsize > self.limit:
            raise MatchFailure(f"the constant would be larger than {self.limit:,} bytes")
        if dtype in FLOATS and not editor.bounds.of(data).is_finite:
            raise MatchFailure("its data may be infinite, and 0 times that is no number")
        operator = "And" if dtype == TensorProto.BOOL else "Mul"
        triangle = editor.constant(_triangle_mask(node, rows, columns, diagonal).astype(kind), "triangle")
        editor.replace(node, NewNode(operator, [data, triangle], [out.name], like=node))
        editor.note("triangle(s) of data turned into products")

    def _fold_triangle(self, editor: Editor, node: Node, data: Value, out: Value, diagonal: int) -> None:
        tensor, sizes, kind = data.constant, editor.shapes[data].sizes(), editor.shapes[data].dtype
        if tensor is None or sizes is None or len(sizes) < 2 or kind not in {*INTEGERS, *FLOATS}:
            raise MatchFailure("its constant is of a form that is not read")
        if len(data.consumers) > 1 and math.prod(sizes) * helper.tensor_dtype_to_np_dtype(kind).itemsize > self.limit:
            raise MatchFailure(f"its constant result is larger than {self.limit:,} bytes")
        array = editor.model.array(tensor)
        kept = np.where(_triangle_mask(node, sizes[-2], sizes[-1], diagonal), array, np.zeros((), array.dtype))
        if editor.bypass(node, editor.constant(kept.astype(array.dtype), f"{out.name}_value")):
            editor.note("triangle(s) of constants made constant")


def _triangle_mask(node: Node, rows: int, columns: int, diagonal: int) -> np.ndarray:
    shift = max(-rows - 1, min(columns + 1, diagonal))  # further out it is all or nothing
    over = np.arange(columns) - np.arange(rows)[:, None]
    return over <= shift if node.attr("upper", 1) == 0 else over >= shift


def _is_of_mask(value: Value) -> bool:
    """Whether a value goes into a comparison or a triangle, or comes from one, from a range or from booleans."""

    def sources(value: Value) -> Sequence[Value | None]:
        return value.producer.inputs if value.producer is not None and value.producer.is_op(*FOLLOWING) else ()

    def is_mask(value: Value) -> bool:
        node, declared = value.producer, declared_type(value)
        if declared is not None and declared.dtype == TensorProto.BOOL:
            return True
        if node is None or not node.is_op(*SOURCES, *FOLLOWING):
            return False
        return node.is_op(*SOURCES) or any(consumer.is_op(*SOURCES) for consumer, _ in value.consumers)

    return any(map(is_mask, walk_breadth_first([value], sources)))


def _is_computed_of_constants(value: Value) -> bool:
    """Whether a value depends on constants alone, once shapes are numbers."""

    def sources(value: Value) -> Sequence[Value | None]:
        node = value.producer
        if node is None or value.is_constant or node.is_op("ConstantOfShape", "Range"):
            return ()  # which say only how many there are
        return [source for index, source in enumerate(node.inputs) if index not in value_inputs(node)]

    variable = (source for source in walk_breadth_first([value], sources) if not source.is_constant)
    return all(each.producer is not None and each.producer.is_op(*SOURCES, *FOLLOWING) for each in variable)
