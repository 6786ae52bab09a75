"""The results of shape inference, with reasons."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from functools import cached_property

from graphkit.dtypes import dtype_name
from graphkit.errors import UsageError, did_you_mean
from graphkit.graph.declared_types import declared_type, shape_text
from graphkit.graph.operator_traits import value_inputs
from graphkit.graph.view import Node, Scope, Value, all_scopes, walk_postorder
from graphkit.model import Model
from graphkit.ops.preconditions import Precondition
from graphkit.ops.rule_context import Finding
from graphkit.ops.tensor import Dims, Tensor, unknown_tensor
from graphkit.symbolic.expr import Expr
from graphkit.symbolic.relations import Requirement

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
        return tensor or unknown_tensor("nothing leads to it")

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
