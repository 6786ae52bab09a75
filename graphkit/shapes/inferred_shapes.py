"""The results of shape inference, with reasons, and what requirements of nodes tell the next pass."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping
from contextlib import suppress
from dataclasses import dataclass, field
from functools import cached_property

from graphkit.dtypes import dtype_name
from graphkit.errors import UsageError, did_you_mean
from graphkit.graph.declared_types import declared_type, shape_text
from graphkit.graph.names import group_pairs
from graphkit.graph.operator_traits import value_inputs
from graphkit.graph.view import Node, Scope, Value, all_scopes, walk_breadth_first, walk_postorder
from graphkit.model import Model
from graphkit.ops.preconditions import Precondition
from graphkit.ops.rule_context import Finding
from graphkit.ops.tensor import Dims, Tensor, unknown_tensor
from graphkit.symbolic.algebra import Relation, Requirement, lower, upper, without_common_factor
from graphkit.symbolic.expr import INF, OPERATIONS, Bound, Call, Expr, Symbol, TooComplexError

Preconditions = tuple[tuple[Node, Precondition], ...]


@dataclass(frozen=True, eq=False)
class Shapes:
    """The shape of every tensor of a model.

    Attributes:
        reasons: The meaning of each unknown symbol (`?3.NonZero_1`).
        equalities, inequalities: The relations that must hold for the model to run.
        first: The facts about each value after the first pass, which does not assume that the model runs: it holds at
            all sizes up to the first node that fails.
        certain: The main graph and the bodies that run whenever it does.
        broadcasts: Pairs that broadcast: equal, or 1 on one side. From the first pass.
        limits: Expressions that must be at most a number for its facts to hold: the runtime rounds larger ones.
        wraps: Those of which nothing is followed, because the runtime makes other numbers of larger ones.
        preconditions: What each node needs to run as meant, as each pass knows it, the first one first.
    """

    model: Model
    table: Mapping[Value, Tensor] = field(repr=False)
    reasons: Mapping[str, str] = field(repr=False)
    findings: tuple[Finding, ...]
    equalities: tuple[Requirement, ...] = field(repr=False)
    inequalities: tuple[Requirement, ...] = field(repr=False)
    first: Mapping[Value, Tensor] = field(default_factory=dict, repr=False)
    certain: frozenset[Scope] = field(default_factory=frozenset, repr=False)
    broadcasts: tuple[Requirement, ...] = field(default=(), repr=False)
    limits: tuple[Requirement, ...] = field(default=(), repr=False)
    wraps: tuple[Requirement, ...] = field(default=(), repr=False)
    preconditions: tuple[Preconditions, ...] = field(default=(), repr=False)

    def __getitem__(self, key: Value | str | tuple[str, str] | None) -> Tensor:
        """Return the known facts of a value: the value, the name of one of the main graph, or (scope path, name).

        Nothing is known of an input that is left out, which is None.
        """
        tensor = self.table.get(key)  # type: ignore[arg-type]
        if tensor is None and isinstance(key, (str, tuple)):
            tensor = self.table.get(self.find(key))
        return tensor if tensor is not None else unknown_tensor("nothing leads to it")

    def dims(self, value: Value | None) -> Dims | None:
        """Return the dims of a value, None where it is left out or its rank is unknown."""
        return self[value].dims

    @property
    def contradictions(self) -> tuple[Finding, ...]:
        """The findings that keep the model itself from running."""
        return tuple(finding for finding in self.findings if finding.body is None)

    @cached_property
    def impossible(self) -> Mapping[Scope, Finding]:
        """The bodies that cannot run at any legal dims although the model can, with the first reason of each."""
        reasons: dict[Scope, Finding] = {}
        for finding in self.findings:
            if finding.body is not None:
                reasons.setdefault(finding.body, finding)
        return reasons

    @property
    def required(self) -> tuple[Requirement, ...]:
        """The conditions under which the main graph runs; a body may not run."""
        requirements = (*self.equalities, *self.inequalities)
        return tuple(requirement for requirement in requirements if requirement.scope is self.model.graph)

    def __iter__(self) -> Iterator[Value]:
        return iter(self.table)

    def __len__(self) -> int:
        return len(self.table)

    def find(self, key: Value | str | tuple[str, str]) -> Value:
        """Return the value that a key stands for; UsageError where there is none."""
        if isinstance(key, Value):
            return key
        path, name = ("", key) if isinstance(key, str) else key
        scopes = {scope.path: scope for scope in all_scopes(self.model.scopes)}
        if path not in scopes:
            raise UsageError(f"there is no graph '{path}' - {did_you_mean(path, filter(None, scopes))}")
        value = scopes[path].values.get(name)
        if value is None:
            hint = did_you_mean(name, scopes[path].values, "`graphkit shapes` lists them")
            raise UsageError(f"there is no tensor '{name}' in {path or 'the main graph'} - {hint}")
        return value

    def reason(self, key: Value | str | tuple[str, str] | Expr) -> str:
        """Return why a tensor or a dim is not known, "" if it is; for an unknown rank, with the declared type."""
        if not isinstance(key, Expr):
            value, tensor = self.find(key), self[key]
            if tensor.dims is None:
                declared = declared_type(value)  # a hint for the reader, on which nothing relies
                told = f"{dtype_name(declared.dtype)} {shape_text(declared.dims)}" if declared is not None else ""
                return f"{tensor.reason} (declared as {told})" if told else tensor.reason
            return "; ".join(dict.fromkeys(text for dim in tensor.dims if (text := self.reason(dim))))
        return "; ".join(f"{name}: {reason}" for name, reason in self.unknowns(key).items())

    def unknowns(self, expr: Expr) -> dict[str, str]:
        """Return the symbols of an expression that stand for something unknown, with the reason for each."""
        return {name: self.reasons[name] for name in sorted(expr.symbols) if name in self.reasons}

    def why(self, key: Value | str | tuple[str, str]) -> tuple[str, ...]:
        """Return the chain from graph inputs and constants to a tensor's shape, a line for each step."""
        return tuple(self.line(value) for value in self.chain(key))

    def chain(self, key: Value | str | tuple[str, str]) -> list[Value]:
        """Return the values from graph inputs and constants to a tensor, each after those that it comes from."""
        return list(walk_postorder([self.find(key)], self.shape_sources))

    def shape_sources(self, value: Value) -> list[Value]:
        """Return the inputs of a value's node that its dims and elements come from."""
        node = value.producer
        if node is None or value.is_constant:
            return []
        if node.bodies:
            return [out for body in node.bodies.values() for out in body.outputs[value.output_index :][:1]]
        reads = [source for index in value_inputs(node) if (source := node.input(index)) is not None]
        variable = [source for source in reads if not source.is_constant]
        missing = self._symbols(value) - set().union(*(self._symbols(source) for source in variable))
        for source in node.inputs:
            if source is not None and source not in reads and missing & self._symbols(source):
                missing -= self._symbols(source)
                variable.append(source)
        return variable

    def _symbols(self, value: Value) -> set[str]:
        tensor = self[value]
        names = set().union(*(dim.symbols for dim in tensor.dims or ()))
        if tensor.may_have_data:
            for element in tensor.elements or ():
                names |= element.symbols if isinstance(element, Expr) else set()
        return names

    def line(self, value: Value) -> str:
        """Return a value with its type and where it comes from."""
        text = f"{value.name}: {self[value]}"
        reason = self.reason(value)
        return f"{text}, {_origin_text(value)}" + (f" ({reason})" if reason else "")


def _origin_text(value: Value) -> str:
    node = value.producer
    if node is None:
        return {"input": "an input", "initializer": "a constant"}.get(value.kind, "undefined")
    if value.is_constant:
        return "a constant"
    names = [source.name for source in node.operands]
    return f"{node.operator} of {', '.join(names)}" if names else node.operator


# Facts that follow from the requirements of nodes: equal expressions, and bounds of symbols for the next pass.
#
# A MatMul whose inner dims are `max(total, past + 1)` and `past + 1` runs only where the two are equal: then the max
# may be written as `past + 1` everywhere. An equality holds only in the scope of its node and in the bodies there, for
# a branch may not run. Symbols of the inputs are never replaced: the user must know that two of them must be equal.
#
# A Conv with a kernel of 16 runs only where `height // 16` is at least 1, so the height is at least 16, and a shape
# that asks for `height // 16` cannot mean "copy". Only nodes of the main graph count: a body may not run.


Atom = Symbol | Call
Replacements = dict[Atom, Expr]


def scope_rewriters(equalities: Iterable[Requirement]) -> Callable[[Scope], Rewriter]:
    """Return what gives the rewriter of a scope: it replaces each atom by an expression that it must equal."""
    pairs = group_pairs((each.scope, (each.left, each.right)) for each in equalities)
    replacements = {scope: replaced for scope, equal in pairs.items() if (replaced := rewriter_of(equal).replacements)}
    known: dict[Scope, Rewriter] = {}

    def rewriter(scope: Scope) -> Rewriter:
        if scope not in known:
            around = rewriter(scope.parent).replacements if scope.parent is not None else {}
            known[scope] = Rewriter({**around, **replacements.get(scope, {})})
        return known[scope]

    return rewriter


def find_replacement(left: Expr, right: Expr) -> tuple[Atom, Expr] | None:
    """Return an atom that can be replaced: an unknown, or a max or min by one of its arguments."""
    left, right = without_common_factor(left, right, is_certain=False)
    for side, opposite in ((left, right), (right, left)):
        atom = side.atom
        if isinstance(atom, Symbol) and atom.name[:1] == "?" and atom.name not in opposite.symbols:
            return atom, opposite
        if isinstance(atom, Call) and atom.op in ("min", "max") and opposite in atom.args:
            return atom, opposite
    return None


def rewriter_of(equal: Iterable[tuple[Expr, Expr]]) -> Rewriter:
    """Return the rewriter that applies these equalities."""
    replacements: Replacements = {}
    for pair in equal:
        if (atom := find_replacement(*pair)) is not None:
            replacements.setdefault(*atom)
    return Rewriter(replacements)


class Rewriter:
    """Replaces atoms in expressions, each expression once."""

    def __init__(self, replacements: Replacements) -> None:
        self.replacements = replacements
        self.done: dict[Expr, Expr] = {}

    def tensor(self, tensor: Tensor) -> Tensor:
        """Return a tensor with its dims rewritten."""
        if not self.replacements or tensor.dims is None:
            return tensor
        dims = tuple(self.expr(dim) for dim in tensor.dims)
        if tensor.dims == dims:
            return tensor
        return tensor.with_contents(dims, None if not tensor.may_have_data else tensor.data)

    def expr(self, expr: Expr) -> Expr:
        """Return an expression rewritten."""
        if expr.constant is not None:
            return expr
        if expr not in self.done:
            self.done[expr] = expr  # an atom that is replaced by itself, through others, stays
            with suppress(TooComplexError, ZeroDivisionError):
                self.done[expr] = expr.map_atoms(self._atom)
        return self.done[expr]

    def _atom(self, atom: Atom) -> Expr:
        if atom in self.replacements:
            return self.expr(self.replacements[atom])
        if isinstance(atom, Symbol):
            return Expr.from_atom(atom)
        args = [self.expr(arg) for arg in atom.args]
        return Expr.from_atom(atom) if tuple(args) == atom.args else OPERATIONS[atom.op](*args)


Ranges = dict[str, tuple[Bound, Bound]]


def learned_ranges(relations: Iterable[Relation]) -> Ranges:
    """Return the bounds of symbols that follow from inequalities with a number and from equalities."""
    ranges: Ranges = {}
    for relation in relations:
        if relation.relation == "==":
            _learn_equal(relation.left, relation.right, ranges)
            _learn_equal(relation.right, relation.left, ranges)
        elif relation.right.constant is not None:
            _tighten_ranges(relation.left, relation.right.constant, ranges)
    return ranges


def _learn_equal(side: Expr, opposite: Expr, ranges: Ranges) -> None:
    value, atom = opposite.constant, side.atom
    if value is not None:
        _tighten_ranges(side, value, ranges)
        _tighten_ranges(-side, -value, ranges)
    if isinstance(atom, Call) and atom.op in ("min", "max") and opposite in atom.args:
        for arg in atom.args:
            _tighten_ranges(arg - opposite if atom.op == "min" else opposite - arg, 0, ranges)


def _tighten_ranges(expr: Expr, least: int, ranges: Ranges) -> None:
    """Add the ranges of symbols that follow from `expr >= least`."""
    for inequality in walk_breadth_first([(expr, least)], _implied_inequalities):
        for atom, low, high in _atom_bounds(*inequality):
            if isinstance(atom, Symbol):
                before = ranges.get(atom.name, (-INF, INF))
                ranges[atom.name] = max(before[0], low), min(before[1], high)


def _atom_bounds(expr: Expr, least: int) -> Iterator[tuple[Atom, Bound, Bound]]:
    """Yield the atoms of an expression, each with the bounds that follow from `expr >= least`."""
    for monomial, factor in expr.terms:
        if len(monomial) != 1:
            continue
        atom = monomial[0]
        most = upper(expr - Expr.from_atom(atom) * factor)
        if most in (INF, -INF):
            continue
        room = least - int(most)  # factor*atom >= room
        yield (atom, -(-room // factor), INF) if factor > 0 else (atom, -INF, -room // -factor)


def _implied_inequalities(inequality: tuple[Expr, int]) -> Iterator[tuple[Expr, int]]:
    """Yield the inequalities of the arguments of calls that follow from `expr >= least`."""
    for atom, low, _ in _atom_bounds(*inequality):
        if isinstance(atom, Symbol) or low == -INF:
            continue
        least = int(low)
        if atom.op == "//" and (size := atom.args[1].constant) is not None and size > 0:
            yield atom.args[0], least * size
        elif atom.op == "min":
            yield from ((arg, least) for arg in atom.args)
        elif atom.op == "max":
            large = [arg for arg in atom.args if upper(arg) >= least]
            yield from ((arg, least) for arg in large if len(large) == 1)


def narrower_ranges(learned: Ranges, symbols: Mapping[str, Expr]) -> Ranges:
    """Return those of the ranges that are narrower than their symbols have them, with the bounds of both."""
    result: Ranges = {}
    for name in learned.keys() & symbols.keys():
        before = lower(symbols[name]), upper(symbols[name])
        both = max(learned[name][0], before[0]), min(learned[name][1], before[1])
        if both[0] <= both[1] and both != before:
            result[name] = both
    return result
