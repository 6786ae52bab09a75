"""Recompute the shapes that must stay dynamic, directly from the dims of the graph inputs.

Each symbol and each expression is computed once. Everything is an int64 tensor of rank 1 with one element until it is
put together; only the results that are scalars are squeezed. ONNX's Div rounds towards zero, so that a dividend
that may be negative takes a Mod as well.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Container, Iterable, Iterator, Sequence
from itertools import groupby

import onnx
from msgspec.structs import replace

from graphkit.dtypes import INT32_MAX, INT64_MAX, INTEGERS
from graphkit.graph.declared_types import declared_type
from graphkit.graph.new_nodes import SHAPE_SLICE_SINCE, make_concat, make_gather
from graphkit.graph.operator_traits import requested_shape
from graphkit.graph.view import Node, Value, walk_breadth_first
from graphkit.passes.shapes.simplify_expand import expand_spec
from graphkit.passes.shapes.simplify_reshape import open_spec
from graphkit.passes.shapes.simplify_slice import slice_bounds
from graphkit.rewrite import Editor, NewNode, NodeInput, Rewrite
from graphkit.shapes import Expr, is_known, lower
from graphkit.symbolic.expr import Atom, Call, Symbol

INTEGER_MIN_SINCE = 12  # opset from which Min and Max take int64
MOD_SINCE = 10
INT64, INT32 = onnx.TensorProto.INT64, onnx.TensorProto.INT32
Elements = tuple[Expr, ...]
Place = tuple[Node, int]  # an input of a node
Need = tuple[Elements, int, int]  # the elements, the rank and the dtype of a tensor to compute


class DimsEmitter:
    """Makes nodes for expressions, in order; they go to the start of the main graph."""

    def __init__(self, editor: Editor) -> None:
        self.editor = editor
        self.nodes: list[NewNode] = []
        self._opset = editor.model.graph.opset()
        self._sources: dict[str, list[tuple[Value, int]]] = {}  # inputs of the main graph and axes, by symbol
        for value in editor.model.graph.inputs:
            for axis, dim in enumerate(editor.shapes[value].dims or () if declared_type(value) is not None else ()):
                if isinstance(dim.atom, Symbol):
                    self._sources.setdefault(dim.atom.name, []).append((value, axis))
        self._known: dict[object, str] = {}
        self._preferred: Counter[Value] = Counter()

    def can_emit(self, elements: Iterable[Expr]) -> bool:
        """Whether nodes can compute these elements from the graph inputs at all legal dims."""
        terms = (term for element in elements for term in element.terms)
        return all(abs(factor) < 2**63 and all(map(self._can_emit_atom, monomial)) for monomial, factor in terms)

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
        parts: list[str] = []
        for is_number, group in groupby(elements, key=lambda element: element.constant is not None):
            if is_number:
                numbers = [int(element) for element in group]
                parts.append(self.editor.integers(numbers, f"dims/{','.join(map(str, numbers))}"))
            else:
                parts += [self._expr(element) for element in group]
        name = parts[0] if len(parts) == 1 else self._append(make_concat(parts, 0), _elements_text(elements))
        if rank == 0:
            name = self._node("Squeeze", [name], f"{_elements_text(elements)}_scalar")
        if dtype != INT64:
            name = self._node("Cast", [name], f"{_elements_text(elements)}_cast", to=dtype)
        return name

    def _expr(self, expr: Expr) -> str:
        if expr.constant is not None:
            return self.editor.integers([expr.constant], f"dims/{expr}")
        if expr not in self._known:
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
            self._known[expr] = name
        return self._known[expr]

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
        value, axis = max(self._sources[symbol.name], key=lambda source: self._preferred[source[0]])
        self._preferred[value] += 1  # what is read already is read again
        if self._opset >= SHAPE_SLICE_SINCE:
            return self._node("Shape", [value], symbol.name, start=axis, end=axis + 1)
        shape = self._node("Shape", [value], f"shape of {value.name}")
        return self._append(make_gather(shape, self.editor.integers([axis], f"dims/{axis}"), 0), symbol.name)

    def _node(self, op_type: str, inputs: Sequence[NodeInput], text: str, **attributes: int) -> str:
        return self._append(NewNode(op_type, inputs, [], attributes), text)

    def _append(self, node: NewNode, text: str) -> str:
        key = (node.op_type, *node.inputs, *sorted(node.attributes.items()))
        if key not in self._known:
            name = self._known[key] = self.editor.unique_name(f"dims/{text}")
            self.nodes.append(replace(node, outputs=[name], name=name))
        return self._known[key]


def _elements_text(elements: Sequence[Expr]) -> str:
    return ",".join(map(str, elements))


class RematerializeShapes(Rewrite):
    """Recompute shapes that stay dynamic: read each symbol once, from one graph input, and each expression once.

    Each node gets the simplest shape that serves it, which copies and infers what it can; an Expand gets only the dims
    that grow. Bodies read values of the main graph. Legality: the elements are expressions in the dims of the main
    graph's inputs, and the operator set has the operators to compute them. Anything else stays unchanged, and nothing
    is changed unless fewer nodes result.

    Before:

        agraph (float[N] x, float[1] w) => (float[M] y) {
            a = Neg (x)
            s = Shape (a)
            b = Abs (a)
            t = Shape (b)
            to = Add (s, t)
            y = Expand (w, to)
        }

    After:

        agraph (float[N] x, float[1] w) => (float[M] y) <int64[1] "dims/2" = {2}> {
            ["dims/N"] "dims/N" = Shape <end = 1, start = 0> (x)
            ["dims/2*N"] "dims/2*N" = Mul ("dims/N", "dims/2")
            y = Expand (w, "dims/2*N")
        }
    """

    def edit(self, editor: Editor) -> None:
        if not any(True for _ in editor.nodes("Shape", "Size")):
            return
        plain = (node for scope in editor.scopes for node in scope.nodes if not (node.bodies or node.is_op("Constant")))
        known = (node for node in plain if all(_known_elements(editor, value) is not None for value in node.results))
        nodes = {node for node in known if node.results}
        emitter = DimsEmitter(editor)
        met = {place: need for place, need in _find_needs(editor, nodes) if emitter.can_emit(need[0])}
        dying = len(nodes - _still_needed(editor, nodes, met))
        plan = {place: emitter.tensor(*need) for place, need in met.items()}
        if not met or len(emitter.nodes) >= dying:
            return
        for made in emitter.nodes:
            editor.insert_first(editor.model.graph, made)
        for (node, index), name in plan.items():
            editor.set_inputs(node, {index: name})
        editor.note("node(s) for computing shapes removed", dying)
        editor.note("node(s) added to compute shapes from the graph inputs", len(emitter.nodes))


def _known_elements(editor: Editor, value: Value) -> Elements | None:
    inferred = editor.shapes[value]
    if inferred.dtype not in INTEGERS or not inferred.may_have_data or (elements := inferred.elements) is None:
        return None
    known = tuple(element for element in elements if isinstance(element, Expr) and is_known(element))
    return known if len(known) == len(elements) else None


def _find_needs(editor: Editor, nodes: set[Node]) -> Iterator[tuple[Place, Need]]:
    """Yield the inputs at which other nodes read a shape."""
    for scope in editor.scopes:
        for node in scope.nodes:
            if node in nodes or editor.is_taken(node):
                continue
            for index, value in enumerate(node.inputs):
                if value is None or value.producer not in nodes or value.is_constant:
                    continue
                if editor.is_fused(node) and editor.is_fused(value.producer):
                    continue
                inferred = editor.shapes[value]
                elements = _known_elements(editor, value) if inferred.dtype in (INT64, INT32) else None
                if elements and inferred.rank in (0, 1):
                    plain = _simplest_elements(editor, node, index, value, elements)
                    yield (node, index), (plain, inferred.rank, inferred.dtype)


def _simplest_elements(editor: Editor, node: Node, index: int, value: Value, elements: Elements) -> Elements:
    """Return the simplest elements that serve a node as well."""
    before, after = map(editor.shapes.dims, (node.input(0), node.outputs[0] if node.outputs else None))
    plain: Sequence[Expr | int] | None = None
    if before is None or after is None:
        return elements
    if requested_shape(node) is not None and index == 1 and node.attr("allowzero", 0) == 0:
        plain = open_spec(before, after)
        if any(isinstance(size, Expr) and lower(size) < 1 for size in plain):  # where it is 0, it would mean "copy"
            return elements
    elif node.is_op("Expand") and index == 1:
        whole = (Expr.of(1),) * (len(after) - len(elements)) + tuple(elements)  # for a dim of 0 does not grow
        plain = [n if isinstance(n, int) else given for n, given in zip(expand_spec(before, after), whole, strict=True)]
    elif index in (1, 2) and (bounds := slice_bounds(editor, node)) is not None:
        most = INT32_MAX if editor.shapes[value].dtype == INT32 else INT64_MAX
        plain = [bound if isinstance(bound := pair[index - 1], Expr) else min(bound, most) for pair in bounds]
    return elements if plain is None else tuple(Expr.of(element) for element in plain)


def _still_needed(editor: Editor, nodes: set[Node], met: Container[Place]) -> set[Node]:
    """Return the shape nodes that are needed by inputs other than those recomputed."""
    read = [value for scope in editor.scopes for value in scope.outputs]
    for node in (node for scope in editor.scopes for node in scope.nodes if node not in nodes):
        read += [value for index, value in enumerate(node.inputs) if value is not None and (node, index) not in met]

    def makers(values: Iterable[Value]) -> list[Node]:
        return [value.producer for value in values if value.producer is not None and value.producer in nodes]

    return set(walk_breadth_first(makers(read), lambda node: makers(node.operands)))
