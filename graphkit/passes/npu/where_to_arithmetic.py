"""Make choices between finite numbers sums of products."""

from __future__ import annotations

import math
from dataclasses import dataclass

import numpy as np
from onnx import helper

from graphkit.dtypes import FLOATS
from graphkit.errors import ModelError
from graphkit.graph.view import Node, Value
from graphkit.passes.shapes.simplify_expand import broadcast
from graphkit.rewrite.builder import Builder
from graphkit.rewrite.editor import Editor
from graphkit.rewrite.edits import NodeInput
from graphkit.rewrite.fixpoint import Rewrite
from graphkit.rewrite.float_bounds import FloatBounds
from graphkit.rewrite.match import MatchFailure

__all__ = ["WhereToArithmetic"]

MAX_CONSTANT = 64 << 20  # bytes of a condition that is read


@dataclass(frozen=True)
class WhereToArithmetic(Rewrite):
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
    """

    def edit(self, editor: Editor) -> None:
        bounds = FloatBounds(editor.model, editor.shapes)
        for node in list(editor.nodes("Where")):
            with editor.matching(node):
                _replace(editor, node, bounds)


def _replace(editor: Editor, node: Node, bounds: FloatBounds) -> None:
    cond, chosen, otherwise, out = *(node.input(index) for index in range(3)), node.outputs[0]
    if cond is None or chosen is None or otherwise is None or out is None:
        raise MatchFailure("an input is missing")
    if editor.shapes[out].dtype not in FLOATS:
        raise MatchFailure("it chooses between integers or others that are no float32, float64 or float16")
    for value in (chosen, otherwise):
        if not bounds.of(value).is_finite:
            raise MatchFailure(f"'{value.name}' may be infinite or no number, and 0 times that is no number")
    choice = _Choice(editor, node, out, cond)
    if _is_nothing(editor, otherwise, (cond, chosen), out):
        choice.add("Mul", chosen, choice.when_true())
    elif _is_nothing(editor, chosen, (cond, otherwise), out):
        choice.add("Mul", otherwise, choice.when_false())
    else:
        true, false = choice.when_true(), choice.when_false()
        parts = choice.add("Mul", chosen, true, role="true"), choice.add("Mul", otherwise, false, role="false")
        choice.add("Add", *parts)
    choice.replace()
    editor.note("choice(s) turned into products")


def _is_nothing(editor: Editor, value: Value, others: tuple[Value, Value], out: Value) -> bool:
    """Whether a branch is zeros, and the others have the shape of the result without it."""
    if editor.uniform(value) != 0:
        return False
    dims = [editor.shapes[other].dims for other in others]
    known = [each for each in dims if each is not None]
    return editor.shapes[value].dims == () or (
        len(known) == len(dims) and broadcast(known) is not None and broadcast(known) == editor.shapes[out].dims
    )


class _Choice(Builder):
    """The products that take the place of a choice, with its condition and the opposite as numbers."""

    def __init__(self, editor: Editor, node: Node, out: Value, cond: Value) -> None:
        super().__init__(editor, node)
        self.cond, self.dtype = cond, editor.shapes[out].dtype
        self.kind = helper.tensor_dtype_to_np_dtype(self.dtype)
        self.array = self._elements()
        self.number: NodeInput = None

    def _elements(self) -> np.ndarray | None:
        sizes = self.editor.shapes[self.cond].sizes()
        tensor = self.cond.constant
        if tensor is None or sizes is None or math.prod(sizes) * self.kind.itemsize > MAX_CONSTANT:
            return None
        try:
            return self.editor.model.array(tensor).astype(bool)
        except ModelError:  # its data file is missing
            return None

    def when_true(self) -> NodeInput:
        """Return 1 where the condition holds, 0 elsewhere."""
        if self.array is not None:
            return self.editor.constant(self.array.astype(self.kind), f"{self.cond.name}_true")
        if self.number is None:
            self.number = self.add("Cast", self.cond, role="if", to=self.dtype)
        return self.number

    def when_false(self) -> NodeInput:
        """Return 0 where the condition holds, 1 elsewhere."""
        if self.array is not None:
            return self.editor.constant((~self.array).astype(self.kind), f"{self.cond.name}_false")
        one = self.editor.constant(np.ones((), self.kind), "one")
        return self.add("Sub", one, self.when_true(), role="else")
