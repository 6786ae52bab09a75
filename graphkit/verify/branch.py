"""The interface of one branch of a merged decoder: the inputs that it reads, and the outputs that it gives."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass

from graphkit.graph.families import family_labels
from graphkit.graph.merged import MergedDecoder, captures, trace_condition
from graphkit.graph.view import Node, Scope, Value
from graphkit.model import Model

__all__ = ["Branch", "InterfaceFailures", "interface_failures"]


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
    def of(cls, merged: Model, found: MergedDecoder, *, is_cache: bool) -> Branch:
        """Return the first step, or the later ones."""
        return cls(merged, found.condition.input.name, found.cache_when == is_cache, is_cache)

    def outputs(self) -> list[str]:
        """Return the outputs that it gives; constants without elements do not count."""
        empty = self.merged.roles.empty
        values = self.merged.graph.outputs
        return [value.name for value in values if not (self.is_cache and value in empty)]

    def inputs(self) -> set[str]:
        """Return the inputs that its outputs need, without the condition."""
        wanted = set(self.outputs())
        values = [value for value in self.merged.graph.outputs if value.name in wanted]
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
    wanted, given = branch.outputs(), [value.name for value in model.graph.outputs]
    read, inputs = branch.inputs(), {value.name: value for value in model.graph.inputs if value.tensor is None}
    known = {value.name for value in branch.merged.graph.inputs}
    used = _needed(model, model.graph.outputs, None)
    strange = [name for name in inputs if name not in known or (name in used and name not in read)]
    whose = "none of the later steps'" if branch.is_cache else "none of the first step's"
    outputs = {"missing": [name for name in wanted if name not in given]}
    outputs[whose] = [name for name in given if name not in wanted]
    faults = {"input": {"missing": sorted(read - inputs.keys()), whose: strange}, "output": outputs}
    told = {
        kind: [_told(kind, names, what) for what, names in found.items() if names] for kind, found in faults.items()
    }
    return InterfaceFailures(told["input"], told["output"])


def _told(kind: str, names: Sequence[str], what: str) -> str:
    return (
        f"{kind} {family_labels(names)} is {what}" if len(names) == 1 else f"{kind}s {family_labels(names)} are {what}"
    )


def _needed(model: Model, outputs: Sequence[Value], branch: Branch | None) -> set[str]:
    """Return the names of the graph inputs that values are computed from, in a branch if there is one."""
    todo, seen = list(outputs), set(outputs)
    while todo:
        value = todo.pop()
        sources = _sources(value.producer, value, branch) if value.producer is not None else []
        todo += [one for one in sources if one not in seen]
        seen.update(sources)
    return {value.name for value in model.graph.inputs if value in seen}


def _sources(node: Node, value: Value, branch: Branch | None) -> list[Value]:
    body = branch.body(node) if branch is not None else None
    if body is not None:
        return [body.outputs[value.output_index]] if value.output_index < len(body.outputs) else []
    inside = [one for scope in node.bodies.values() for one in captures(scope)]
    return [*(one for one in node.inputs if one is not None), *inside]
