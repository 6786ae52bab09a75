"""Sizes in a proof: dims that both models share, products that the original requires, and up to where they hold."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Container, Iterable, Iterator, Mapping, Sequence
from contextlib import suppress

from msgspec.structs import replace

from graphkit.dtypes import FLOATS, HALVES, INTEGERS
from graphkit.equivalence.result import ROUNDED, ExprPair, SizeLimit
from graphkit.graph.declared_types import declared_dims, shape_text
from graphkit.graph.roles import count_captured_values
from graphkit.graph.view import Node, Value, all_nodes, walk_breadth_first
from graphkit.model import Model
from graphkit.ops.control_and_sequences import has_first_iteration
from graphkit.ops.rule_context import UnknownError
from graphkit.ops.tensor import EXACT, Dims, Ratio, bound_up_to, dims_product, exact_range, term_span
from graphkit.shapes import AS_DECLARED, DimSpec, Expr, Shapes, const, infer, parse, symbol
from graphkit.shapes.graph_inputs import Inputs
from graphkit.shapes.infer import infer_from, infer_roughly
from graphkit.shapes.input_dims import DeclaredInputs, read_alike
from graphkit.symbolic.algebra import exact_quotient, lower, minimum, upper
from graphkit.symbolic.expr import OPERATIONS, Atom, Call, Monomial, TooComplexError

# The shapes of an original and its rewrite over the same dims of their inputs.

LARGEST = (1 << 63) - 1  # that int64 holds: a proof is about all inputs


def common_shapes(
    before: Model,
    after: Model,
    names: Mapping[str, str],  # what inputs of the rewrite are called in the original
    values: Mapping[str, object] | None,  # elements of inputs of the original
    *,
    narrower: bool,  # whether both have the dims that the rewrite declares
    free: Container[str] = (),  # inputs that are the rewrite's own
    spec: DimSpec = AS_DECLARED,  # sizes of the inputs of the rewrite
    # the dims of the inputs of both, where they are read in another way than `read_alike` does
    declared: tuple[DeclaredInputs, DeclaredInputs] | None = None,
    is_rough: bool = False,  # whether a first pass is enough, which learns nothing from what nodes require
) -> tuple[Shapes, Shapes]:
    """Return the shapes of both models over the same dims of inputs; UnknownError where these are declared otherwise.

    They are about the sizes at which the original runs, as its nodes require, whatever those of the rewritten do.
    """
    read, changed = declared or read_alike(before, after, names)
    own = {name: dims for name, dims in changed.dims.items() if name in free}
    new = {name: _taken_at_their_word(after.graph.values[name], dims, read.groups) for name, dims in own.items()}
    first = Inputs(before, values=values, declared=read, largest=LARGEST)
    second = Inputs(after, spec, declared=replace(changed, dims={**changed.dims, **new}), largest=LARGEST)
    if not narrower:  # which dims of a cache may be 0 follows from declared outputs, too
        first.widen_ranges(second)
    theirs = {names.get(name, name): dims for name, dims in second.symbolic.items() if name not in free}
    if narrower:
        both = [(first.symbolic.get(name) or (), dims or ()) for name, dims in theirs.items()]
        pairs = (pair for each in both for pair in zip(*each, strict=False))
        sizes = {dim.name: other for dim, other in pairs if dim.name is not None}
        taken = {each for dims in theirs.values() for dim in dims or () for each in dim.symbols}
        for name, dims in first.symbolic.items():
            alone = None if dims is None else tuple(_dims_of_original(name, dims, sizes, taken))
            first.symbolic[name] = theirs.get(name, alone)
        first.take_sizes_of(second)
    else:
        for name, dims in theirs.items():
            if first.symbolic.get(name) != dims:
                shown = shape_text(dims), shape_text(first.symbolic.get(name))
                raise UnknownError(f"input {name} is declared {shown[0]}, {shown[1]} in the original")
    if is_rough:
        return infer_roughly(before, first), infer_roughly(after, second)
    ranges = dict(first.ranges)
    shapes = infer_from(before, first, is_settled=True)
    learned = {name: ends for name, ends in first.ranges.items() if ends[0] is not None and ends != ranges.get(name)}
    second.narrow_ranges({name: bounds for name, bounds in learned.items() if name in second.names})
    return shapes, infer_from(after, second)


def _dims_of_original(name: str, dims: Dims, sizes: Mapping[str, Expr], taken: Container[str]) -> Iterator[Expr]:
    """Yield the dims of an input that only the original has: those of inputs that both have, or dims of its own."""
    for axis, dim in enumerate(dims):
        own = f"{name}.{axis}"
        while own in taken:
            own += "'"
        yield dim if dim.constant is not None else sizes.get(dim.name or "") or symbol(own, 0)


def _taken_at_their_word(value: Value, dims: tuple[Expr, ...] | None, names: Container[str]) -> tuple[Expr, ...] | None:
    """Return the dims of an input, of which any text that is not one of these names is an expression."""
    if dims is None:
        return None
    pairs = zip(dims, declared_dims(value) or (), strict=True)
    return tuple(parse(text) if isinstance(text, str) and text not in names else dim for dim, text in pairs)


# Products of dims that the original requires to be another number: `(height // 14)*(width // 14)` is 16.
#
# A model with embeddings of 17 positions runs only where its patches are so many, and one that cuts an image into
# windows only where these are all of it. A rewritten model may have been given that number.

MOST = 8  # products in each other


def required_equalities(shapes: Shapes) -> list[tuple[Expr, Expr]]:
    """Return what is equal wherever a model gives its outputs.

    A branch may not run, and onnxruntime leaves out the nodes that no output needs.
    """
    needed = needed_nodes(shapes.model)
    return [(each.left, each.right) for each in shapes.equalities if each.node in needed]


def needed_nodes(model: Model) -> set[Node]:
    """Return the nodes of the main graph that an output needs; a body may not run."""
    producers = (value.producer for value in model.graph.outputs if value.producer is not None)
    return {*walk_breadth_first(producers, producing_nodes)}


def producing_nodes(node: Node) -> Iterator[Node | None]:
    """Yield the nodes whose outputs a node reads, also in its bodies."""
    yield from (value.producer for value in node.operands)
    yield from (value.producer for body in node.bodies.values() for value in count_captured_values(body))


class RequiredProducts:
    """Replaces products in expressions by what they must be, where the original runs and expressions are `equal`."""

    def __init__(self, equal: Iterable[tuple[Expr, Expr]]) -> None:
        self.known: dict[Monomial, Expr] = {}
        self.done: dict[Expr, Expr] = {}
        for left, right in equal:
            for monomial, factor in (left - right).terms:
                rest = (left - right) - Expr(((monomial, factor),))
                is_within = any(Counter(monomial) <= Counter(other) for other, _ in rest.terms)
                # a product of computed dims, all of them known; those of inputs keep their names
                known = all(isinstance(atom, Call) and "?" not in str(Expr.from_atom(atom)) for atom in monomial)
                if factor in (1, -1) and len(monomial) > 1 and known and not is_within:
                    self.known.setdefault(monomial, rest * -factor)
                    break

    def expr(self, expr: Expr) -> Expr:
        """Return an expression with all such products replaced."""
        if not self.known or expr.constant is not None:
            return expr
        if expr not in self.done:
            self.done[expr] = expr
            with suppress(TooComplexError, ZeroDivisionError):
                self.done[expr] = self._replace_products(expr.map_atoms(self._atom))
        return self.done[expr]

    def _atom(self, atom: Atom) -> Expr:
        if not isinstance(atom, Call):
            return Expr.from_atom(atom)
        args = [self.expr(arg) for arg in atom.args]
        if atom.op == "//" and (quotient := self._known_quotient(*args)) is not None:
            return quotient
        return Expr.from_atom(atom) if tuple(args) == atom.args else OPERATIONS[atom.op](*args)

    def _known_quotient(self, dividend: Expr, divisor: Expr) -> Expr | None:
        """Return the rest of a product that is known to be the dividend, without the divisor in it."""
        if (atom := divisor.atom) is None or lower(divisor) < 1:
            return None
        for product, number in self.known.items():
            if atom in product and (times := exact_quotient(dividend, self.expr(number))) is not None:
                return _without_product(product, (atom,)) * times
        return None

    def _replace_products(self, expr: Expr) -> Expr:
        for _ in range(MOST):
            total, is_same = const(0), True
            for monomial, factor in expr.terms:
                product = next((each for each in self.known if Counter(each) <= Counter(monomial)), None)
                is_same &= product is None
                if product is None:
                    total += Expr(((monomial, factor),))
                else:
                    total += _without_product(monomial, product) * self.known[product] * factor
            if is_same:
                return expr
            expr = total
        return expr


def _without_product(monomial: Monomial, product: Monomial) -> Expr:
    return dims_product(map(Expr.from_atom, (Counter(monomial) - Counter(product)).elements()))


# Up to which sizes what is known of tensors holds: where a dtype holds the numbers that are computed of sizes.

MOST_ELEMENTS = 1 << 48  # of a tensor: no memory holds more
Part = tuple[Monomial, int]  # a product of dims, and its factor


def size_limits(models: Sequence[Shapes], plain: Callable[[Expr], Expr] = lambda expr: expr) -> tuple[SizeLimit, ...]:
    """Return up to which sizes what is known of some models holds, without limits that others imply.

    `plain` puts what the models require into an expression.
    """
    found: dict[SizeLimit, None] = {}
    for shapes in models:
        pairs = dict.fromkeys((plain(expr), most) for expr, most in _limited_expressions(shapes))
        wide = [(expr, most) for expr, most in pairs if upper(expr) > most]
        parts = [*_parts_of_counts(shapes)] if any(most >= EXACT[64] for _, most in wide) else []
        for expr, most in wide:
            if most < EXACT[64] or not _is_held_in_memory(expr, most, parts):
                found[SizeLimit.of(expr, most)] = None
    limits = sorted(found, key=str)
    return tuple(each for each in limits if not any(other != each and other.implies(each) for other in limits))


def turning_numbers(models: Sequence[Shapes], limits: Sequence[SizeLimit]) -> tuple[ExprPair, ...]:
    """Return numbers that may be others beyond some sizes: those with limits, and those that are not followed."""
    wraps = (SizeLimit.of(each.left, int(each.right)) for shapes in models for each in shapes.wraps)
    found: list[ExprPair] = []
    for each in dict.fromkeys((*limits, *wraps)):
        with suppress(TooComplexError):
            found.append((each.expr, minimum(each.expr, each.most)))
    return tuple(found)


def _limited_expressions(shapes: Shapes) -> Iterator[tuple[Expr, int]]:
    """Yield expressions that must be at most a number: elements in their dtype, and what rules say of others."""
    for value, tensor in shapes.first.items():
        if value.tensor is None and tensor.may_have_data and (tensor.dtype in INTEGERS or tensor.dtype in FLOATS):
            least, most = exact_range(tensor.dtype)
            parts = (each.dividend if isinstance(each, Ratio) else each for each in tensor.elements or ())
            for expr in (each for each in parts if isinstance(each, Expr) and each.constant is None):
                yield from ((expr, most), (-expr, -least))
    for limit in shapes.limits:
        most_of_rule = limit.right.constant
        assert most_of_rule is not None
        yield limit.left, most_of_rule


def counting_conditions(*models: Shapes) -> tuple[str, ...]:
    """Return what else the arithmetic of some models is taken to do."""
    # onnxruntime keeps float16 in float32 up to a node that it has a kernel for
    given = (each for shapes in models for each in shapes.first.items())
    return (ROUNDED,) if any(value.producer is not None and tensor.dtype in HALVES for value, tensor in given) else ()


def stacks_of_nothing(model: Model) -> Counter[tuple[int, ...]]:
    """Return the dims of what Loops stack where they have no iteration: 0 for each that is no number when it loads."""
    found, loops = Counter[tuple[int, ...]](), [node for node in all_nodes(model.scopes) if node.is_op("Loop")]
    for node in loops:
        shapes = infer(model)
        body = node.bodies.get("body")
        limit, start = (None if (value := node.input(index)) is None else shapes[value] for index in (0, 1))
        may_be_none = body is not None and not has_first_iteration(limit, start)
        for value in body.outputs[len(node.inputs) - 1 :] if body is not None and may_be_none else ():
            known, declared = shapes[value].dims or (), declared_dims(value) or ()
            inferred = tuple(dim.constant or 0 for dim in known)
            found[inferred or tuple(dim if isinstance(dim, int) else 0 for dim in declared)] += 1
    return found


def _is_held_in_memory(expr: Expr, most: int, parts: Sequence[Part]) -> bool:
    """Whether an expression stays below a number where its products are parts of the numbers of elements of tensors."""
    if bound_up_to(expr)[1] <= most:
        return True
    ends = [term_span(*term) for term in expr.terms]
    limits = [max(-low, high) for low, high in ends]
    for index, (monomial, factor) in enumerate(expr.terms):
        bounds = [-(-abs(factor) * MOST_ELEMENTS // whole) for atoms, whole in parts if _is_part(monomial, atoms)]
        limits[index] = min([limits[index], *bounds])
    return sum(limits) <= most


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
            terms = dims_product(dims).terms if dims else ()
            if all(factor > 0 and all(lower(Expr.from_atom(atom)) >= 0 for atom in atoms) for atoms, factor in terms):
                yield from terms
