"""Recognise merged decoders: an If on a boolean input with one branch that reads the past.

Names of nodes and exporters play no part.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass

from onnx import TensorProto

from graphkit.graph.cache_entries import CacheEntry
from graphkit.graph.declared_types import declared_dims, declared_type
from graphkit.graph.operator_traits import PRESERVING
from graphkit.graph.traversal import follow_chain
from graphkit.graph.view import Node, Scope, Value, branch_fault, unwrap_value

__all__ = [
    "Condition",
    "MergedDecoder",
    "count_captured_values",
    "merged_decoders",
    "trace_condition",
    "zero_length_outputs",
]

KEEPS_A_FLAG = PRESERVING | {"Cast", "Not"}


@dataclass(frozen=True, slots=True)
class Condition:
    """The graph input that decides an If, negated or not."""

    input: Value
    negated: bool

    @property
    def shape(self) -> tuple[int, ...]:
        """The shape of the input, with 1 for each dim that is not a number."""
        return tuple(dim if isinstance(dim, int) else 1 for dim in declared_dims(self.input) or ())


@dataclass(frozen=True, slots=True)
class MergedDecoder:
    """An If that holds both steps of a decoder.

    Attributes:
        condition: The boolean graph input behind its condition.
        cache_branch: The branch that reads the past, run on later steps.
        first_branch: The other one, run on the first step.
        zero_length: Outputs of the If that the cache branch gives as constants without elements.
    """

    node: Node
    condition: Condition
    cache_branch: str
    first_branch: str
    zero_length: tuple[Value, ...]

    @property
    def cache_when(self) -> bool:
        """The value of the condition's input that runs the cache branch."""
        return (self.cache_branch == "then_branch") != self.condition.negated


def trace_condition(node: Node) -> Condition | None:
    """Return the graph input that decides an If, or None if anything else does."""
    negated = False
    for value in follow_chain(node.input(0), _before_flag_operator):
        if value.kind == "input":
            return Condition(value, negated) if not value.scope.path else None
        negated ^= value.producer is not None and value.producer.op_type == "Not"
    return None


def _before_flag_operator(flag: Value) -> Value | None:
    producer = flag.producer
    return producer.input(0) if producer is not None and producer.operator in KEEPS_A_FLAG else None


def count_captured_values(body: Scope) -> dict[Value, int]:
    """Return the values of outer scopes that a body reads, with the number of reads, in order of first use."""
    reads: dict[Value, int] = {}
    for scope in body.walk():
        used = [value for node in scope.nodes for value in node.operands]
        for value in [*used, *scope.outputs]:
            if not body.contains(value.scope):
                reads[value] = reads.get(value, 0) + 1
    return reads


def zero_length_outputs(body: Scope) -> Iterator[int]:
    """Yield the indices of a body's outputs that are constants without elements."""
    for index, value in enumerate(body.outputs):
        constant = unwrap_value(value, ("Identity",)).constant
        if constant is not None and 0 in constant.dims:
            yield index


def merged_decoders(main: Scope, cache: Sequence[CacheEntry]) -> Iterator[MergedDecoder]:
    """Yield the merged decoders among the Ifs of a graph with this cache, at any depth."""
    past = {entry.past for entry in cache if entry.past is not None}
    for scope in main.walk():
        for node in scope.nodes:
            if node.is_op("If") and (decoder := _read_merged_decoder(node, past)) is not None:
                yield decoder


def _read_merged_decoder(node: Node, past: set[Value]) -> MergedDecoder | None:
    condition = trace_condition(node)
    if condition is None or not {"then_branch", "else_branch"} <= set(node.bodies):
        return None
    if branch_fault(node):
        return None
    declared = declared_type(condition.input)
    if declared is None or declared.dtype != TensorProto.BOOL:
        return None
    readers = [
        name for name in ("then_branch", "else_branch") if past.intersection(count_captured_values(node.bodies[name]))
    ]
    if len(readers) != 1:
        return None
    cache = readers[0]
    first = "else_branch" if cache == "then_branch" else "then_branch"
    zero = tuple(node.outputs[index] for index in zero_length_outputs(node.bodies[cache]) if index < len(node.outputs))
    return MergedDecoder(node, condition, cache, first, tuple(value for value in zero if value is not None))
