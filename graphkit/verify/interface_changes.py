"""The interface of a rewritten model against that of its original, or of a branch: all that callers see but elements.

What a model declares is a claim. A dim of an output counts as declared wrongly where a run contradicts it; a dim of an
input as narrowed where the original runs at a size that the rewritten model does not take, and nobody asked for that.
"""

from __future__ import annotations

import itertools
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import suppress
from types import MappingProxyType

import numpy as np
from msgspec import Struct

from graphkit.dtypes import HELD, dtype_name
from graphkit.graph.declared_types import Dim, declared_dims, declared_type, shape_text
from graphkit.graph.names import family_labels
from graphkit.graph.roles import MergedDecoder, count_captured_values, trace_condition
from graphkit.graph.view import Node, Scope, Value, unwrap_value, walk_breadth_first
from graphkit.matching.interfaces import compare_ports
from graphkit.model import Model
from graphkit.runtime.session import RunError, Runner
from graphkit.shapes import DimSpec, Expr, Relation, infer
from graphkit.shapes.constraints.dim_equalities import Pair, fed_inputs
from graphkit.shapes.constraints.legal_sizes import legal_sizes
from graphkit.shapes.constraints.node_constraints import Values
from graphkit.shapes.graph_inputs import Inputs
from graphkit.shapes.input_dims import declared_inputs, read_dim
from graphkit.verify.feeder import Feeder, Run
from graphkit.verify.input_generator import TooLargeError
from graphkit.verify.rewrite_proof import WeightProof
from graphkit.verify.run_sizes import propose_assignments

ASK = "give --dim or --input where that is meant"
Symbols = Iterable[tuple[str, str]]  # of the original, and the dims that they are to be in the rewritten model
MAX_OTHERS = 6  # sizes to look through for those that a rewritten model does not take


class Change(Struct, frozen=True):
    """A difference of two interfaces."""

    text: str
    narrows: bool  # whether something that the original can do cannot be done any more, or is declared wrongly
    gap: str = ""  # which callers it concerns, where it narrows nothing that runs; "" for none


def input_changes(
    before: Model, after: Model, fixed_inputs: Sequence[str] = (), symbols: Mapping[str, str] = MappingProxyType({})
) -> list[Change]:
    """Return the changes of the inputs, without the sizes that they take.

    `fixed_inputs` are always one array; `symbols` are those of the original by those that are to stand for them.
    """
    changes, ports = list[Change](), compare_ports(before.graph.inputs, after.graph.inputs)
    if plain := [value.name for value in ports.lost if value.tensor is None]:
        gone = ", ".join(name for name in plain if name not in fixed_inputs)
        gap = f"callers that feed {gone}, which is no input any more" if gone else ""
        changes.append(Change(f"the rewritten model has no input {', '.join(plain)}", narrows=False, gap=gap))
    for value in ports.lost:
        if value.tensor is not None and value.name not in fixed_inputs:
            text = f"input {value.name}, which has a default, is gone"
            changes.append(Change(text, narrows=bool(value.consumers)))
    for value, twin in ports.pairs:
        if value.tensor is None and twin.tensor is not None:
            changes.append(Change(f"input {value.name} has a default now", narrows=False))
    known = compare_ports([*fed_inputs(before).values()], after.graph.inputs).pairs
    fed = compare_ports([value for value, _ in known], [*fed_inputs(after).values()])
    if fed.order_a != fed.order_b:
        changes.append(Change(f"the inputs come in another order: {', '.join(fed.order_b)}", narrows=True))
    renamed: dict[str, str] = {}  # labels of dims: new ones, or those that stood for other dims before
    ours, theirs = (declared_inputs(model).groups for model in (before, after))
    now = {place: name for name, groups in theirs.items() for group in groups for place in group}
    for old, groups in ours.items():
        for new in {now[place] for group in groups for place in group if place in now} - {old}:
            if old != symbols.get(new):
                renamed.setdefault(old, new)
    if taken := sorted(f"{new} stands for what was {old}" for old, new in renamed.items() if new in renamed):
        changes.append(Change(f"dims have changed their labels: {'; '.join(taken)}", narrows=True))
    if fresh := sorted(f"{old} is called {new}" for old, new in renamed.items() if new not in ours):
        changes.append(Change(f"dims have other labels: {'; '.join(fresh)}", narrows=False))
    return changes


def output_changes(
    before: Model, after: Model, runs: Sequence[Run], shapes: Sequence[Mapping[str, tuple[int, ...] | None]]
) -> list[Change]:
    """Return the outputs that are declared otherwise, and whether a run contradicts that.

    The rewritten model has the names of the original, which made the runs, on inputs of these shapes.
    """
    claims = [*map(_Claims, (before, after))]
    known = {symbol for dims in claims[1].inputs.dims.values() for dim in dims or () for symbol in dim.symbols}
    wrong = [[claim.contradicted_axes(*each) for claim in claims] for each in zip(runs, shapes, strict=True)]
    changes = []
    for name, now in claims[1].outputs.items():
        was = claims[0].outputs.get(name)
        if now is None or was == now or name not in claims[0].outputs:
            continue
        fault = ""  # which run contradicts it, where the original's declaration is better
        for run, both in zip(runs, wrong, strict=True):
            right, odd = (each.get(name, set()) for each in both)
            array = run.expected.get(name)
            if odd and not odd <= right and isinstance(array, np.ndarray):
                fault = f", and is {list(array.shape)} at {run}"
                break
        pairs = [*zip(was or (), now, strict=False)]
        # a dim that had a number or another label has one that stands for no dim of the inputs
        is_less = any(x != y and isinstance(y, str) and not claims[1].read(y).symbols <= known for x, y in pairs)
        is_fixed = any(isinstance(x, str) and isinstance(y, int) for x, y in pairs)
        is_other = was is not None and (len(was) != len(now) or is_fixed)
        if fault or is_less or is_other:
            texts = f"{_dims_text(now)}, {_dims_text(was)} in the original"
            gap = f"callers that go by the dims of {name}: {texts}" if is_less and not fault else ""
            changes.append(Change(f"output {name} is declared {texts}{fault}", narrows=bool(fault), gap=gap))
    return changes


def _dims_text(dims: Sequence[Dim] | None) -> str:
    return "without dims" if dims is None else shape_text(tuple(dims))


class _Claims:
    def __init__(self, model: Model) -> None:
        self.inputs = declared_inputs(model)
        self.outputs = {value.name: declared_dims(value) for value in model.graph.outputs}

    def read(self, dim: str) -> Expr:
        """Return a dim in symbols of the inputs."""
        return read_dim(dim, self.inputs.groups)

    def contradicted_axes(self, run: Run, fed: Mapping[str, tuple[int, ...] | None]) -> dict[str, set[int]]:
        """Return the axes of each output whose size in a run is not the declared one; -1 for another rank.

        `fed` are the shapes of the inputs. A label that stands for no dim of these has one size, if it is one dim.
        """
        sizes: dict[str, int] = {}
        for input_name, input_dims in self.inputs.dims.items():
            for dim, size in zip(input_dims or (), fed.get(input_name) or (), strict=False):
                if dim.name is not None:
                    sizes.setdefault(dim.name, size)
        arrays = {name: array for name, array in run.expected.items() if isinstance(array, np.ndarray)}
        outputs = [(name, dims) for name, dims in self.outputs.items() if name in arrays and dims is not None]
        declared = {name: (dims, arrays[name].shape) for name, dims in outputs}
        label_sizes: dict[Dim, set[int]] = {}
        for label, size in (pair for dims, shape in declared.values() for pair in zip(dims, shape, strict=False)):
            label_sizes.setdefault(label, set()).add(size)

        def is_wrong(label: Dim, size: int) -> bool:
            if not isinstance(label, str):
                return label is not None and label != size
            expr = self.read(label)
            return expr.evaluate(sizes) != size if expr.symbols <= sizes.keys() else len(label_sizes[label]) > 1

        wrong: dict[str, set[int]] = {}
        for name, (dims, shape) in declared.items():
            axes = enumerate(zip(dims, shape, strict=False))
            found = {axis for axis, (label, size) in axes if is_wrong(label, size)}
            wrong[name] = found if len(dims) == len(shape) else {-1}
        return wrong


class Branch(Struct, frozen=True):
    """A step of a merged decoder."""

    merged: Model
    condition: str  # the boolean input that chooses the step
    flag: bool  # its value on this step
    is_cache: bool  # whether the step reads the past

    @classmethod
    def of(cls, merged: Model, decoder: MergedDecoder, *, is_cache: bool) -> Branch:
        """Return the first step, or the later ones."""
        return cls(merged, decoder.condition.input.name, decoder.cache_when == is_cache, is_cache)

    def outputs(self) -> list[str]:
        """Return the outputs that it gives; constants without elements do not count."""
        empty = self.merged.roles.empty
        return [value.name for value in self.merged.graph.outputs if not (self.is_cache and value in empty)]

    def passes_input(self, output: Value) -> bool:
        """Whether an output is an input as it is, such as the encoder's part of a cache, so that nobody needs it."""
        body = self.body(output.producer) if output.producer is not None else None
        return body is not None and unwrap_value(body.outputs[output.output_index], ("Identity",)).kind == "input"

    def inputs(self) -> set[str]:
        """Return the inputs that its outputs need, without the condition."""
        output_names = set(self.outputs())
        values = [value for value in self.merged.graph.outputs if value.name in output_names]
        return _needed_inputs(self.merged, values, self) - {self.condition}

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


class Part(Struct, frozen=True):
    """What a model has of the whole that it was made of: a subgraph, or a branch of a merged decoder."""

    cuts: tuple[str, ...]  # values of the whole that are inputs of the part
    ends: tuple[str, ...]
    branch: Branch | None = None  # the branch that it is made of; None for a subgraph

    def fault(self, part: Model) -> str:
        """Return why the part cannot be fed from the whole, "" where it can."""
        for value in part.graph.inputs:
            declared = declared_type(value) if value.name in self.cuts else None
            if declared is not None and declared.dtype not in HELD:
                subgraph = f"a subgraph that begins at '{value.name}'"
                return f"onnxruntime hands out no {dtype_name(declared.dtype)}, so nothing can be proven of {subgraph}"
        return ""

    def weights(self, part: Model) -> WeightProof | None:
        """Compare the weights of a part of a branch with those that the branch reads; None for a subgraph."""
        if self.branch is None:
            return None
        from graphkit.verify.weight_comparison import foreign_weights  # which few proofs need

        return foreign_weights(self.branch.merged, self.branch.scopes(), part)

    def unread(self, whole: Model) -> list[str]:
        """Return the inputs of the whole that the part need not have."""
        needed = self.branch.inputs() if self.branch is not None else set()
        return [value.name for value in whole.graph.inputs if value.name not in needed]

    def unwritten_outputs(self, whole: Model) -> list[str]:
        """Return the outputs of the whole that a branch does not give."""
        return [value.name for value in whole.graph.outputs if self.branch is not None and value.name not in self.ends]


def interface_failures(branch: Branch, model: Model) -> tuple[str, ...]:
    """Return where the inputs and outputs of a model are not those of a branch, a sentence each."""
    before, after = branch.outputs(), [value.name for value in model.graph.outputs]
    read, inputs = branch.inputs(), fed_inputs(model)
    known = {value.name for value in branch.merged.graph.inputs}
    used = _needed_inputs(model, model.graph.outputs, None)
    strange = [name for name in inputs if name not in known or (name in used and name not in read)]
    whose = "none of the later steps'" if branch.is_cache else "none of the first step's"
    values = branch.merged.graph.values
    missing = [name for name in before if name not in after and not branch.passes_input(values[name])]
    return (
        *_change_sentences("output", missing, "missing"),
        *_change_sentences("output", [name for name in after if name not in before], whose),
        *_change_sentences("input", sorted(read - inputs.keys()), "missing"),
        *_change_sentences("input", strange, whose),
    )


def _change_sentences(kind: str, names: Sequence[str], fault: str) -> Iterator[str]:
    if names:
        ending, verb = ("s", "are") if len(names) > 1 else ("", "is")
        yield f"{kind}{ending} {family_labels(names)} {verb} {fault}"


def _needed_inputs(model: Model, outputs: Sequence[Value], branch: Branch | None) -> set[str]:
    def sources(value: Value) -> list[Value | None]:
        if (node := value.producer) is None:
            return []
        if branch is not None and (body := branch.body(node)) is not None:
            return [*body.outputs[value.output_index : value.output_index + 1]]
        return [*node.inputs, *(captured for body in node.bodies.values() for captured in count_captured_values(body))]

    seen = set(walk_breadth_first(outputs, sources))
    return {value.name for value in model.graph.inputs if value in seen}


def find_narrowing(
    session: Callable[[], Runner], feeder: Feeder, after: Model, fixed: Sequence[Pair], spec: DimSpec, symbols: Symbols
) -> list[Change]:
    """Return the change of dims that a model fixes though nobody asked for that, and its original takes others.

    Whoever asks for a size of a name, or calls it an expression in others, asks for all dims of that name. `session`
    opens the original, where it has to run. There is one change at most.
    """
    before = feeder.models[0]
    read = declared_inputs(before)
    asked: dict[str, int | Expr] = {**Inputs(before, spec).numbers}
    called = {old: dim for old, new in symbols if (dim := read_dim(new, read.groups)).name is None}
    for name, size in [*asked.items(), *called.items()]:
        for group in read.groups.get(name, ()):
            asked.setdefault(str(read.at(group[0]).name), size)
    relations = [(pair, Relation.equal(pair.dim, pair.size).substitute(asked).against_zero()) for pair in fixed]
    if not (todo := [(pair, relation) for pair, relation in relations if relation.symbols]):
        return []
    whole, opened = feeder.at(legal_sizes(before, spec)), session()

    def takes_others(relation: Relation) -> bool:
        for flags in whole.flags():
            proposals = itertools.islice(propose_assignments(whole.legal(flags), []), MAX_OTHERS)
            others = [one.dims for one in proposals if not Values.at(one.dims).is_met(relation).all()]
            for dims in others[:2]:
                with suppress(RunError, TooLargeError):
                    opened.run(whole.feed(dims, flags, 0))
                    return True
        return False

    if not (narrowed := [pair for pair, relation in todo if takes_others(relation)]):
        return []
    names = list(dict.fromkeys(pair.name for pair in narrowed))
    now, was = fed_inputs(after)[names[0]], fed_inputs(before).get(names[0])
    who = f"input {names[0]}" if len(names) == 1 else f"inputs {family_labels(names)}"
    whose = "and computed otherwise" if was is None else f"{_dims_text(declared_dims(was))} in the original"
    declared = f"declared {_dims_text(declared_dims(now))}, {whose}"
    sizes = "; ".join(dict.fromkeys(f"{pair.dim} is {pair.size}" for pair in narrowed))
    takes = "takes" if len(names) == 1 else "take"
    return [Change(f"{who} {takes} fewer sizes ({declared}): {sizes} - {ASK}", narrows=True)]


def computed_dims(model: Model, names: Sequence[str]) -> dict[str, Sequence[Expr] | None]:
    """Return the dims that a model computes of some values, in the symbols of its inputs; None for an unknown rank."""
    if not names:
        return {}
    shapes, symbols = infer(model), Inputs(model).symbols
    found = {name: shapes[model.graph.values[name]].dims for name in names if name in model.graph.values}
    return {name: None if dims is None else [dim.substitute(symbols) for dim in dims] for name, dims in found.items()}
