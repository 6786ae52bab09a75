"""What one model's inputs fix of another's: a folded model has numbers where its original has symbols."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence

from graphkit.errors import UsageError
from graphkit.graph.types import declared_type, dtype_name
from graphkit.graph.view import Value
from graphkit.model import Model
from graphkit.shapes import Expr, const
from graphkit.verify.sizes import input_dims
from graphkit.verify.space import Fact

__all__ = ["fed_inputs", "fixed_by", "given_shapes", "solve"]

Pair = tuple[Expr, Expr]


def fed_inputs(model: Model) -> dict[str, Value]:
    """Return the inputs that must be fed, by name: those without a default."""
    return {value.name: value for value in model.graph.inputs if value.tensor is None}


def fixed_by(original: Model, rewritten: Model) -> list[Pair]:
    """Return what must be equal for inputs of one model to be inputs of the other: a dim of `original`, and its size.

    A symbol of the rewritten model is what it stands for in the original: a symbol that is there twice makes the two
    dims equal.

    Raises:
        UsageError: The rewritten model has another input, or one of another dtype, rank or size.
    """
    pairs: list[Pair] = []
    theirs, ours = fed_inputs(rewritten), fed_inputs(original)
    for name in theirs:
        if name not in ours:
            raise UsageError(
                f"{rewritten.label}: its input '{name}' is none of {original.label} - compare other models"
            )
        pairs += _dims(original, ours[name], rewritten, theirs[name])
    meanings: dict[str, Expr] = {}
    for ours_dim, dim in pairs:
        if dim.atom is not None and len(dim.symbols) == 1 and repr(dim.atom) in dim.symbols:
            meanings.setdefault(repr(dim.atom), ours_dim)
    return [
        (ours_dim, dim.substitute(meanings))
        for ours_dim, dim in pairs
        if dim.symbols <= meanings.keys() and ours_dim != dim.substitute(meanings)
    ]


def _dims(original: Model, ours: Value, rewritten: Model, theirs: Value) -> list[Pair]:
    was, now = declared_type(ours), declared_type(theirs)
    if was is not None and now is not None and was.dtype != now.dtype:
        raise UsageError(
            f"input '{ours.name}' is {dtype_name(was.dtype)} in {original.label} and {dtype_name(now.dtype)} in "
            f"{rewritten.label} - compare models of the same inputs"
        )
    dims, fixed = input_dims(ours), input_dims(theirs)
    if dims is None or fixed is None:
        return []
    if len(dims) != len(fixed):
        raise UsageError(
            f"input '{ours.name}' has {len(dims)} dims in {original.label} and {len(fixed)} in {rewritten.label} - "
            "compare models of the same inputs"
        )
    for dim, size in zip(dims, fixed, strict=True):
        if dim.constant is not None and size.constant is not None and dim != size:
            raise UsageError(
                f"a dim of input '{ours.name}' is {dim} in {original.label} and {size} in {rewritten.label} - "
                "no inputs fit both"
            )
    return list(zip(dims, fixed, strict=True))


def given_shapes(model: Model, inputs: Mapping[str, Sequence[int]]) -> list[Pair]:
    """Return what shapes that a user gives fix; wrong names and ranks are left to the shape engine."""
    pairs: list[Pair] = []
    for value in model.graph.inputs:
        dims = input_dims(value)
        if value.name in inputs and dims is not None:
            pairs += [(dim, const(size)) for dim, size in zip(dims, inputs[value.name], strict=False)]
    return pairs


def solve(pairs: Iterable[Pair], dims: Mapping[str, int]) -> tuple[dict[str, int], list[Fact]]:
    """Return the symbols that equal expressions fix, those that are given included, and what stays open.

    Raises:
        UsageError: They contradict each other.
    """
    numbers = dict(dims)
    open_facts = [Fact.equal(*pair) for pair in pairs]
    for _ in range(len(open_facts) + 1):
        open_facts = [fact.at(numbers) for fact in open_facts]
        for fact in open_facts:
            if not fact.symbols and not fact.holds({}):
                raise UsageError("no inputs fit both models: dims that they fix contradict each other - check --dim")
        open_facts = [fact for fact in open_facts if fact.symbols]
        found = {name: size for fact in open_facts for name in fact.symbols if (size := _only(fact, name)) is not None}
        if not found:
            break
        numbers.update(found)
    return numbers, open_facts


def _only(fact: Fact, name: str) -> int | None:
    """Return the size of the one symbol of a fact."""
    if len(fact.symbols) != 1:
        return None
    size = fact.forced({}, name)
    if size is not None and size < 0:
        raise UsageError(f"no inputs fit both models: '{name}' would be {size} - check --dim")
    return size
