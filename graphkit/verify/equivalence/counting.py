"""Up to which sizes what is known of tensors holds: where a dtype holds the numbers that are computed of sizes."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from contextlib import suppress

from graphkit.dtypes import FLOATS, HALVES, INTEGERS
from graphkit.graph.declared_types import declared_dims
from graphkit.graph.view import all_nodes
from graphkit.model import Model
from graphkit.ops.control import has_first_iteration
from graphkit.ops.data_movement import dims_product
from graphkit.ops.number_limits import EXACT, bound_up_to, exact_range, term_span
from graphkit.ops.tensor import Ratio, Tensor
from graphkit.shapes import Expr, Shapes, infer
from graphkit.symbolic.algebra import lower, minimum, upper
from graphkit.symbolic.expr import Monomial, TooComplexError
from graphkit.verify.equivalence.equivalence_result import ExprPair, SizeLimit
from graphkit.verify.equivalence.required_products import needed_nodes

__all__ = ["counting_conditions", "size_limits", "stacks_of_nothing", "turning_numbers"]

ROUNDED = "float16 is rounded after each node, by one kernel for each operator"
MOST_ELEMENTS = 1 << 48  # of a tensor: no memory holds more
Part = tuple[Monomial, int]  # a product of dims, and its factor


def size_limits(models: Sequence[Shapes], plain: Callable[[Expr], Expr] = lambda expr: expr) -> tuple[SizeLimit, ...]:
    """Return up to which sizes what is known of some models holds, without limits that others imply.

    Args:
        models: Their shapes.
        plain: Returns an expression with what the models require put into it.
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
            for expr in _expressions_of(tensor):
                yield from ((expr, most), (-expr, -least))
    for limit in shapes.limits:
        most_of_rule = limit.right.constant
        assert most_of_rule is not None
        yield limit.left, most_of_rule


def counting_conditions(*models: Shapes) -> tuple[str, ...]:
    """Return what else the arithmetic of some models is taken to do."""
    return (ROUNDED,) if any(map(_computes_halves, models)) else ()


def stacks_of_nothing(model: Model) -> Counter[tuple[int, ...]]:
    """Return the dims of what Loops stack where they have no iteration: 0 for each that is no number when it loads."""
    found, shapes = Counter[tuple[int, ...]](), infer(model)
    for node in all_nodes(model.scopes):
        body = node.bodies.get("body") if node.is_op("Loop") else None
        limit, start = (None if (value := node.input(index)) is None else shapes[value] for index in (0, 1))
        for value in (
            body.outputs[len(node.inputs) - 1 :] if body is not None and not has_first_iteration(limit, start) else ()
        ):
            known, declared = shapes[value].dims or (), declared_dims(value) or ()
            inferred = tuple(dim.constant or 0 for dim in known)
            found[inferred or tuple(dim if isinstance(dim, int) else 0 for dim in declared)] += 1
    return found


def _computes_halves(shapes: Shapes) -> bool:
    """Whether a node gives float16, which onnxruntime keeps in float32 up to a node that it has a kernel for."""
    return any(value.producer is not None and tensor.dtype in HALVES for value, tensor in shapes.first.items())


def _expressions_of(tensor: Tensor) -> list[Expr]:
    parts = [each.dividend if isinstance(each, Ratio) else each for each in tensor.elements or ()]
    return [each for each in parts if isinstance(each, Expr) and each.constant is None]


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
