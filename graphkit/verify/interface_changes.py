"""The interface of a rewritten model against that of its original, or of a branch: all that callers see but elements.

What a model declares is a claim. A dim of an output counts as declared wrongly where a run contradicts it; a dim of an
input as narrowed where the original runs at a size that the rewritten model does not take, and nobody asked for that.
"""

from __future__ import annotations

import itertools
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from types import MappingProxyType

import numpy as np

from graphkit.graph.declared_types import Dim, declared_dims, shape_text
from graphkit.graph.merged_decoder import MergedDecoder, captures, trace_condition
from graphkit.graph.name_families import family_labels
from graphkit.graph.traversal import reachable
from graphkit.graph.view import Node, Scope, Value
from graphkit.matching.interfaces import compare_ports
from graphkit.model import Model
from graphkit.runtime.session import RunError, Runner
from graphkit.shapes import Expr, Relation, infer, is_known
from graphkit.shapes.constraints.dim_equalities import Pair, fed_inputs
from graphkit.shapes.constraints.evaluate_constraints import Values
from graphkit.shapes.graph_inputs import Inputs
from graphkit.shapes.input_dims import DeclaredInputs, declared_inputs, read_dim
from graphkit.verify.input_generator import TooLargeError
from graphkit.verify.original_runs import Feeder, Flags, Run
from graphkit.verify.run_sizes import assignments

__all__ = [
    "Branch",
    "Change",
    "InterfaceFailures",
    "computed_dims",
    "input_changes",
    "interface_failures",
    "narrowed",
    "narrowing",
    "output_changes",
    "unknown_pairs",
]

ASK = "give --dim or --input where that is meant"


@dataclass(frozen=True)
class Change:
    """A difference of two interfaces.

    Attributes:
        text: What changed, a clause.
        narrows: Whether something that could be done with the original cannot be done any more, or is declared wrongly.
        gap: Which callers it concerns, where it narrows nothing that runs; "" for none.
    """

    text: str
    narrows: bool
    gap: str = ""


def input_changes(
    before: Model, after: Model, fixed_inputs: Sequence[str] = (), symbols: Mapping[str, str] = MappingProxyType({})
) -> list[Change]:
    """Return the changes of the inputs, without the sizes that they take.

    Args:
        before: The original.
        after: What was made of it.
        fixed_inputs: Inputs that are always one array.
        symbols: Symbols of the original by those of the rewritten model that are to stand for them.
    """
    return [*_gone(before, after, fixed_inputs), *_order(before, after), *_labels(before, after, symbols)]


def _gone(before: Model, after: Model, fixed_inputs: Sequence[str]) -> Iterator[Change]:
    ports = compare_ports(before.graph.inputs, after.graph.inputs)
    if plain := [value.name for value in ports.lost if value.tensor is None]:
        gone = ", ".join(name for name in plain if name not in fixed_inputs)
        gap = f"callers that feed {gone}, which is no input any more" if gone else ""
        yield Change(f"the rewritten model has no input {', '.join(plain)}", narrows=False, gap=gap)
    for value in ports.lost:
        if value.tensor is not None and value.name not in fixed_inputs:
            yield Change(f"input {value.name}, which has a default, is gone", narrows=bool(value.consumers))
    for value, twin in ports.pairs:
        if value.tensor is None and twin.tensor is not None:
            yield Change(f"input {value.name} has a default now", narrows=False)


def _order(before: Model, after: Model) -> Iterator[Change]:
    ports = compare_ports([*fed_inputs(before).values()], after.graph.inputs)
    fed = compare_ports([pair[0] for pair in ports.pairs], [*fed_inputs(after).values()])
    if fed.order_a != fed.order_b:
        yield Change(f"the inputs come in another order: {', '.join(fed.order_b)}", narrows=True)


def _labels(before: Model, after: Model, symbols: Mapping[str, str]) -> Iterator[Change]:
    """Yield dims of inputs by other labels: new ones, or those that stood for other dims before."""
    renamed: dict[str, str] = {}
    ours, theirs = (declared_inputs(model).groups for model in (before, after))
    now = {place: name for name, groups in theirs.items() for group in groups for place in group}
    for old, groups in ours.items():
        for new in {now[place] for group in groups for place in group if place in now} - {old}:
            if old != symbols.get(new):
                renamed.setdefault(old, new)
    taken = sorted(f"{new} stands for what was {old}" for old, new in renamed.items() if new in renamed)
    fresh = sorted(f"{old} is called {new}" for old, new in renamed.items() if new not in ours)
    if taken:
        yield Change(f"dims have changed their labels: {'; '.join(taken)}", narrows=True)
    if fresh:
        yield Change(f"dims have other labels: {'; '.join(fresh)}", narrows=False)


def narrowed(pairs: Sequence[Pair], before: Model, after: Model, *, hint: str = ASK) -> Change:
    """Return the change of dims that are fixed, or equal to others, though the original takes more."""
    names = list(dict.fromkeys(pair.name for pair in pairs))
    now, was = fed_inputs(after)[names[0]], fed_inputs(before).get(names[0])
    who = f"input {names[0]}" if len(names) == 1 else f"inputs {family_labels(names)}"
    whose = "and computed otherwise" if was is None else f"{_text(declared_dims(was))} in the original"
    declared = f"declared {_text(declared_dims(now))}, {whose}"
    sizes = "; ".join(dict.fromkeys(f"{pair.dim} is {pair.size}" for pair in pairs))
    takes = "takes" if len(names) == 1 else "take"
    return Change(f"{who} {takes} fewer sizes ({declared}): {sizes} - {hint}", narrows=True)


def output_changes(
    before: Model, after: Model, runs: Sequence[Run], shapes: Sequence[Mapping[str, tuple[int, ...] | None]]
) -> list[Change]:
    """Return the outputs that are declared otherwise, and whether a run contradicts that.

    Args:
        before: The original.
        after: What was made of it, by the names of the original.
        runs: Of the original.
        shapes: Those of the inputs in each run.
    """
    claims = [_Claims.of(model) for model in (before, after)]
    changes = []
    for name, now in claims[1].outputs.items():
        was = claims[0].outputs.get(name)
        if now is None or was == now or name not in claims[0].outputs:
            continue
        change = f"output {name} is declared {_text(now)}, {_text(was)} in the original"
        fault = next(
            (text for run, fed in zip(runs, shapes, strict=True) if (text := _fault(name, claims, run, fed))), ""
        )
        gap = f"callers that go by the dims of {name}: {_text(now)}, {_text(was)} in the original"
        is_less = _says_less(was, now, claims[1])
        if fault or is_less or _is_told(was, now):
            changes.append(Change(f"{change}{fault}", narrows=bool(fault), gap=gap if is_less and not fault else ""))
    return changes


def _says_less(was: Sequence[Dim] | None, now: Sequence[Dim], claims: _Claims) -> bool:
    """Whether a dim that had a number or another label has one that stands for no dim of the inputs."""
    known = {symbol for dims in claims.inputs.dims.values() for dim in dims or () for symbol in dim.symbols}
    pairs = zip(was or (), now, strict=False)
    return any(
        a != b and isinstance(b, str) and not read_dim(b, claims.inputs.groups).symbols <= known for a, b in pairs
    )


def _text(dims: Sequence[Dim] | None) -> str:
    return "without dims" if dims is None else shape_text(tuple(dims))


def _is_told(was: Sequence[Dim] | None, now: Sequence[Dim]) -> bool:
    """Whether a declaration says something else, not only more than before."""
    if was is None or len(was) != len(now):
        return was is not None
    return any(isinstance(a, str) and isinstance(b, int) for a, b in zip(was, now, strict=True))


@dataclass(frozen=True)
class _Claims:
    """The dims that a model declares of its inputs and outputs."""

    inputs: DeclaredInputs
    outputs: Mapping[str, tuple[Dim, ...] | None]

    @classmethod
    def of(cls, model: Model) -> _Claims:
        return cls(declared_inputs(model), {value.name: declared_dims(value) for value in model.graph.outputs})

    def sizes(self, fed: Mapping[str, tuple[int, ...] | None]) -> dict[str, int]:
        """Return the size of each symbol in a run, from the inputs that were fed."""
        sizes: dict[str, int] = {}
        for name, dims in self.inputs.dims.items():
            for dim, size in zip(dims or (), fed.get(name) or (), strict=False):
                if dim.name is not None:
                    sizes.setdefault(dim.name, size)
        return sizes

    def contradicted(self, name: str, run: Run, fed: Mapping[str, tuple[int, ...] | None]) -> frozenset[int]:
        """Return the axes of an output whose size in a run is not the declared one; -1 for another rank."""
        dims, array = self.outputs.get(name), run.expected.get(name)
        if dims is None or not isinstance(array, np.ndarray):
            return frozenset()
        if len(dims) != array.ndim:
            return frozenset({-1})
        sizes = self.sizes(fed)
        unbound = self._unbound(run, sizes)
        wrong = set()
        for axis, (dim, size) in enumerate(zip(dims, array.shape, strict=True)):
            if isinstance(dim, int) and dim != size:
                wrong.add(axis)
            elif isinstance(dim, str):
                expr = read_dim(dim, self.inputs.groups)
                if expr.symbols <= sizes.keys():
                    wrong |= {axis} if expr.evaluate(sizes) != size else set()
                elif len(unbound.get(dim, ())) > 1:
                    wrong.add(axis)
        return frozenset(wrong)

    def _unbound(self, run: Run, sizes: Mapping[str, int]) -> dict[str, set[int]]:
        """Return the sizes that each label of outputs alone has in a run: one, if it is one dim."""
        label_sizes: dict[str, set[int]] = {}
        for name, dims in self.outputs.items():
            array = run.expected.get(name)
            if dims is None or not isinstance(array, np.ndarray) or len(dims) != array.ndim:
                continue
            for dim, size in zip(dims, array.shape, strict=True):
                if isinstance(dim, str) and not read_dim(dim, self.inputs.groups).symbols <= sizes.keys():
                    label_sizes.setdefault(dim, set()).add(size)
        return label_sizes


def _fault(name: str, claims: Sequence[_Claims], run: Run, fed: Mapping[str, tuple[int, ...] | None]) -> str:
    """Return which run contradicts the declaration, "" where none does, or the original's declaration is no better."""
    was, now = (claim.contradicted(name, run, fed) for claim in claims)
    if not now or now <= was:
        return ""
    array = run.expected[name]
    return f", and is {list(array.shape)} at {run}" if isinstance(array, np.ndarray) else ""


@dataclass(frozen=True)
class Branch:
    """A step of a merged decoder.

    Attributes:
        condition: The boolean input that chooses the step.
        flag: Its value on this step.
        is_cache: Whether the step reads the past.
    """

    merged: Model
    condition: str
    flag: bool
    is_cache: bool

    @classmethod
    def of(cls, merged: Model, decoder: MergedDecoder, *, is_cache: bool) -> Branch:
        """Return the first step, or the later ones."""
        return cls(merged, decoder.condition.input.name, decoder.cache_when == is_cache, is_cache)

    def outputs(self) -> list[str]:
        """Return the outputs that it gives; constants without elements do not count."""
        empty = self.merged.roles.empty
        values = self.merged.graph.outputs
        return [value.name for value in values if not (self.is_cache and value in empty)]

    def inputs(self) -> set[str]:
        """Return the inputs that its outputs need, without the condition."""
        output_names = set(self.outputs())
        values = [value for value in self.merged.graph.outputs if value.name in output_names]
        return _needed(self.merged, values, self) - {self.condition}

    def body(self, node: Node) -> Scope | None:
        """Return the body of an If that this step runs, None for another node."""
        condition = trace_condition(node) if node.is_op("If") else None
        if condition is None or condition.input.name != self.condition:
            return None
        return node.bodies.get("then_branch" if self.flag != condition.negated else "else_branch")

    def scopes(self) -> Iterator[Scope]:
        """Yield the scopes that it reads from: the main graph, its body and those in it, and functions."""
        yield from self._walk(self.merged.graph)
        for function in self.merged.scopes[1:]:
            yield from function.walk()

    def _walk(self, scope: Scope) -> Iterator[Scope]:
        yield scope
        for node in scope.nodes:
            chosen = self.body(node)
            for body in node.bodies.values() if chosen is None else (chosen,):
                yield from self._walk(body)


@dataclass(frozen=True)
class InterfaceFailures:
    """Where the inputs and outputs of a model are not those of a branch, a sentence each."""

    inputs: list[str]
    outputs: list[str]


def interface_failures(branch: Branch, model: Model) -> InterfaceFailures:
    """Compare the inputs and outputs of a model with those of a branch."""
    branch_outputs, model_outputs = branch.outputs(), [value.name for value in model.graph.outputs]
    read, inputs = branch.inputs(), {value.name: value for value in model.graph.inputs if value.tensor is None}
    known = {value.name for value in branch.merged.graph.inputs}
    used = _needed(model, model.graph.outputs, None)
    strange = [name for name in inputs if name not in known or (name in used and name not in read)]
    whose = "none of the later steps'" if branch.is_cache else "none of the first step's"
    outputs = {"missing": [name for name in branch_outputs if name not in model_outputs]}
    outputs[whose] = [name for name in model_outputs if name not in branch_outputs]
    faults = {"input": {"missing": sorted(read - inputs.keys()), whose: strange}, "output": outputs}
    failures = {
        kind: [_fault_text(kind, names, fault) for fault, names in names_by_fault.items() if names]
        for kind, names_by_fault in faults.items()
    }
    return InterfaceFailures(failures["input"], failures["output"])


def _fault_text(kind: str, names: Sequence[str], fault: str) -> str:
    return (
        f"{kind} {family_labels(names)} is {fault}"
        if len(names) == 1
        else f"{kind}s {family_labels(names)} are {fault}"
    )


def _needed(model: Model, outputs: Sequence[Value], branch: Branch | None) -> set[str]:
    """Return the names of the graph inputs that values are computed from, in a branch if there is one."""
    seen = set(reachable(outputs, lambda value: _sources(value, branch)))
    return {value.name for value in model.graph.inputs if value in seen}


def _sources(value: Value, branch: Branch | None) -> list[Value | None]:
    """Return the values that a value is computed from, in a branch if there is one."""
    node = value.producer
    if node is None:
        return []
    body = branch.body(node) if branch is not None else None
    if body is not None:
        return [*body.outputs[value.output_index : value.output_index + 1]]
    return [*node.inputs, *(captured for scope in node.bodies.values() for captured in captures(scope))]


MAX_OTHERS = 6  # sizes to look through for those that a rewritten model does not take


def narrowing(
    session: Callable[[], Runner],
    fixed: Sequence[Pair],
    asked: Mapping[str, int],
    whole: Callable[[], Feeder],
    flags: Sequence[Flags] = (),
) -> list[Pair]:
    """Return the dims that a model fixes though nobody asked for that, and its original takes others.

    Args:
        session: Opens the original, where it has to run.
        fixed: The dims, with the size of each.
        asked: Sizes that somebody asked for, by symbol.
        whole: Gives what makes inputs at all sizes of the original.
        flags: Those to run with; by default all.
    """
    relations = [(pair, Relation.equal(pair.dim, pair.size).substitute(asked).against_zero()) for pair in fixed]
    todo = [(pair, relation) for pair, relation in relations if relation.symbols]
    if not todo:
        return []
    feeder, opened = whole(), session()
    return [pair for pair, relation in todo if _takes_others(opened, feeder, relation, flags or feeder.flags())]


def _takes_others(session: Runner, feeder: Feeder, relation: Relation, choices: Sequence[Flags]) -> bool:
    """Whether a model runs at sizes that do not meet a relation."""
    for flags in choices:
        proposals = itertools.islice(assignments(feeder.legal(flags), []), MAX_OTHERS)
        others = [one.dims for one in proposals if not Values.at(one.dims).is_met(relation).all()]
        for dims in others[:2]:
            try:
                session.run(feeder.feed(dims, flags, 0))
            except (RunError, TooLargeError):
                continue
            return True
    return False


def computed_dims(model: Model, names: Sequence[str]) -> dict[str, Sequence[Expr] | None]:
    """Return the dims that a model computes of some values, in the symbols of its inputs; None for an unknown rank."""
    if not names:
        return {}
    shapes, symbols = infer(model), Inputs(model).symbols
    found = {name: shapes[model.graph.values[name]].dims for name in names if name in model.graph.values}
    return {name: None if dims is None else [dim.substitute(symbols) for dim in dims] for name, dims in found.items()}


def unknown_pairs(pairs: Sequence[Pair]) -> list[Pair]:
    """Return those of which no size of an input tells whether they hold: dims that depend on data."""
    return [pair for pair in pairs if not (is_known(pair.dim) and is_known(pair.size))]
