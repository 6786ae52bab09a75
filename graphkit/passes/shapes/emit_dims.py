"""Emit nodes that compute expressions in the dims of graph inputs, each symbol and each expression once.

Everything is an int64 tensor of rank 1 with one element until it is put together; only what is asked for as a scalar
is squeezed. ONNX's Div rounds towards zero, so that a dividend that may be negative takes a Mod as well.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Sequence
from itertools import groupby

import onnx

from graphkit.graph.types import declared_type
from graphkit.graph.view import Value
from graphkit.rewrite.editor import Editor
from graphkit.rewrite.edits import NewNode, NodeInput
from graphkit.shapes import Expr, lower
from graphkit.shapes.expr import Atom, Call
from graphkit.shapes.symbols import Symbol

__all__ = ["DimsEmitter"]

SHAPE_SLICE_SINCE = 15  # opset from which Shape has start and end
INTEGER_MIN_SINCE = 12  # opset from which Min and Max take int64
MOD_SINCE = 10
INT64 = onnx.TensorProto.INT64


class DimsEmitter:
    """Makes nodes for expressions; they go to the start of the main graph.

    Attributes:
        nodes: What was made, in order.
    """

    def __init__(self, editor: Editor) -> None:
        self.editor = editor
        self.nodes: list[NewNode] = []
        self._opset = editor.model.graph.opset()
        self._sources = _sources(editor)
        self._known: dict[object, str] = {}
        self._preferred: Counter[Value] = Counter()

    @property
    def count(self) -> int:
        """How many nodes were made."""
        return len(self.nodes)

    def can_emit(self, elements: Iterable[Expr]) -> bool:
        """Whether nodes can compute these elements from the graph inputs at all legal dims."""
        return all(self._can_emit(element) for element in elements)

    def _can_emit(self, expr: Expr) -> bool:
        for monomial, factor in expr.terms:
            if not abs(factor) < 2**63:
                return False
            if not all(self._can_emit_atom(atom) for atom in monomial):
                return False
        return True

    def _can_emit_atom(self, atom: Atom) -> bool:
        if isinstance(atom, Symbol):
            return atom.name in self._sources
        if atom.op in ("min", "max"):
            return self._opset >= INTEGER_MIN_SINCE and self.can_emit(atom.args)
        dividend, divisor = atom.args
        if lower(divisor) < 1 or (self._opset < MOD_SINCE and (atom.op == "%" or lower(dividend) < 0)):
            return False
        return self.can_emit(atom.args)

    def tensor(self, elements: Sequence[Expr], rank: int, dtype: int) -> str:
        """Return the name of a tensor of rank 0 or 1 with these elements."""
        name = self._vector(elements)
        if rank == 0:
            name = self._node("Squeeze", [name], f"{_text(elements)}_scalar")
        if dtype != INT64:
            name = self._node("Cast", [name], f"{_text(elements)}_cast", to=dtype)
        return name

    def _vector(self, elements: Sequence[Expr]) -> str:
        parts: list[str] = []
        for is_number, group in groupby(elements, key=lambda element: element.constant is not None):
            if is_number:
                numbers = [int(element) for element in group]
                parts.append(self.editor.integers(numbers, f"dims/{','.join(map(str, numbers))}"))
            else:
                parts += [self._expr(element) for element in group]
        return parts[0] if len(parts) == 1 else self._node("Concat", parts, _text(elements), axis=0)

    def _expr(self, expr: Expr) -> str:
        """Return the name of a tensor of one element."""
        if expr.constant is not None:
            return self.editor.integers([expr.constant], f"dims/{expr}")
        if expr not in self._known:
            self._known[expr] = self._sum(expr)
        return self._known[expr]

    def _sum(self, expr: Expr) -> str:
        terms = sorted(expr.terms, key=lambda term: (not term[0], term[1] < 0))  # a number last, a minus not first
        (monomial, factor), *rest = terms
        if factor < 0 and rest and not rest[-1][0] and rest[-1][1] > 0:
            terms = [rest[-1], (monomial, factor), *rest[:-1]]
            (monomial, factor), *rest = terms
        so_far = Expr(((monomial, factor),))
        name = self._product(monomial, factor)
        for monomial, factor in rest:
            so_far = so_far + Expr(((monomial, factor),))
            operation = "Sub" if factor < 0 else "Add"
            name = self._node(operation, [name, self._product(monomial, abs(factor))], str(so_far))
        return name

    def _product(self, monomial: Sequence[Atom], factor: int) -> str:
        if not monomial:
            return self.editor.integers([factor], f"dims/{factor}")
        name, so_far = self._atom(monomial[0]), Expr.from_atom(monomial[0])
        for atom in monomial[1:]:
            so_far = so_far * Expr.from_atom(atom)
            name = self._node("Mul", [name, self._atom(atom)], str(so_far))
        if factor != 1:
            name = self._node("Mul", [name, self.editor.integers([factor], f"dims/{factor}")], str(so_far * factor))
        return name

    def _atom(self, atom: Atom) -> str:
        expr = Expr.from_atom(atom)
        if expr not in self._known:
            self._known[expr] = self._symbol(atom) if isinstance(atom, Symbol) else self._call(atom)
        return self._known[expr]

    def _call(self, call: Call) -> str:
        args = [self._expr(arg) for arg in call.args]
        if call.op in ("min", "max"):
            return self._node(call.op.capitalize(), args, repr(call))
        dividend, _ = call.args
        if call.op == "%":
            return self._node("Mod", args, repr(call))
        if lower(dividend) < 0:
            rest = self._node("Mod", args, f"{dividend} % {call.args[1]}")
            args = [self._node("Sub", [args[0], rest], f"{dividend} - rest"), args[1]]
        return self._node("Div", args, repr(call))

    def _symbol(self, symbol: Symbol) -> str:
        value, axis = self._source(symbol.name)
        if self._opset >= SHAPE_SLICE_SINCE:
            return self._node("Shape", [value], symbol.name, start=axis, end=axis + 1)
        shape = self._node("Shape", [value], f"shape of {value.name}")
        return self._node("Gather", [shape, self.editor.integers([axis], f"dims/{axis}")], symbol.name, axis=0)

    def _source(self, name: str) -> tuple[Value, int]:
        """Return an input and an axis that give a symbol, an input that is read already where there is one."""
        found = max(self._sources[name], key=lambda source: self._preferred[source[0]])
        self._preferred[found[0]] += 1
        return found

    def _node(self, op_type: str, inputs: Sequence[NodeInput], text: str, **attributes: int) -> str:
        key = (op_type, *inputs, *sorted(attributes.items()))
        if key not in self._known:
            name = self.editor.unique_name(f"dims/{text}")
            self._known[key] = name
            self.nodes.append(NewNode(op_type, tuple(inputs), [name], attributes, name))
        return self._known[key]


def _text(elements: Sequence[Expr]) -> str:
    return ",".join(map(str, elements))


def _sources(editor: Editor) -> dict[str, list[tuple[Value, int]]]:
    """Return the inputs of the main graph and axes that give each symbol."""
    found: dict[str, list[tuple[Value, int]]] = {}
    for value in editor.model.graph.inputs:
        if declared_type(value) is None:
            continue
        for axis, dim in enumerate(editor.shapes[value].dims or ()):
            if isinstance(dim.atom, Symbol):
                found.setdefault(dim.atom.name, []).append((value, axis))
    return found
