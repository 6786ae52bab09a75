"""Control flow: If, Loop, Scan and search operators, the values they capture, and the conditions of Ifs."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import ClassVar

from graphkit.analysis.findings import Finding, Judged
from graphkit.graph.name_families import family_labels
from graphkit.graph.roles import count_captured_values, trace_condition, zero_length_outputs
from graphkit.graph.view import Node, Scope, Value, all_nodes
from graphkit.model import ModelLike, as_model
from graphkit.render.document_blocks import Block, NodeMark, Prose, table

# Operators of ONNX Runtime that run whole decoders as attributes.
SEARCHES = {"BeamSearch", "GreedySearch", "Sampling", "WhisperBeamSearch"}


@dataclass(frozen=True)
class Branch:
    """A body of a control-flow node."""

    name: str  # the attribute: `then_branch`, `body`, `decoder`
    nodes: int  # nodes in it, those of nested bodies included
    captures: tuple[str, ...]  # names of the outer values that it reads: activations and inputs
    captured_constants: int  # how many outer initializers and constants it reads
    past_captures: int  # how many of `captures` are past inputs of a KV cache
    zero_length: int  # how many of its outputs are constants without elements


@dataclass(frozen=True)
class ControlNode:
    """A node with bodies."""

    path: str  # the node, with the scopes around it
    op: str  # the operator, with its domain where that is not the default
    depth: int  # how many bodies it is nested in
    condition: str  # the condition of an If, in words; "" for other operators
    branches: tuple[Branch, ...]
    role: str  # "merged decoder", "search with a decoder inside", or ""


@dataclass(frozen=True)
class Merged:
    """A merged decoder."""

    path: str  # the If
    condition: str  # the boolean input that decides
    first_branch: str  # the branch of the first step, and the one that reads the past
    cache_branch: str
    cache_when: bool  # the value of `condition` that runs the cache branch
    zero_length: tuple[str, ...]  # outputs that the cache branch gives without elements


@dataclass(frozen=True)
class ControlFlow(Judged):
    """The control flow of a model, in all scopes."""

    title: ClassVar[str] = "Control flow"
    nodes: tuple[ControlNode, ...]
    merged: tuple[Merged, ...]

    def found(self) -> tuple[Finding, ...]:
        return tuple(Finding("merged-if", f"'{each.path}'", _both_steps(each), each.condition) for each in self.merged)

    def marks(self) -> Iterator[NodeMark]:
        return (NodeMark("Findings", "fault", "fault", merged.path, _both_steps(merged)) for merged in self.merged)

    def in_short(self) -> str:
        return ", ".join(f"{count} {op}" for op, count in Counter(node.op for node in self.nodes).items())

    def blocks(self) -> Iterator[Block]:
        if not self.nodes:
            yield Prose("None: no node of this model has a body.")
            return
        rows: list[tuple[str | int | None, ...]] = []
        for node in self.nodes:
            about: tuple[str | None, ...] = node.path, ", ".join(filter(None, (node.op, node.role, node.condition)))
            for each in node.branches:
                counts = each.nodes, len(each.captures), each.past_captures, each.captured_constants
                rows.append((*about, each.name, *counts))
                about = None, None  # which the first row of a node tells
        headings = "Node:code | What:note | Branch | Nodes:number | Captures:number | Past:number | Constants:number"
        yield table(headings, rows)
        for merged in self.merged:
            yield from _explain_merged(merged)


def _explain_merged(merged: Merged) -> Iterator[Block]:
    yield Prose(_both_steps(merged))
    if merged.zero_length:
        label = family_labels(merged.zero_length)
        yield Prose(
            f"{merged.cache_branch} gives {label} as zero-length constants: carry the encoder KV from step 1; "
            "do not feed these back.",
            "warning",
        )
    yield Prose(
        "Running a merged decoder can cost speed, because an If hides its branches from the runtime's optimizers, and "
        f"{'keeps this trap open' if merged.zero_length else 'some runtimes refuse it'}: "
        "`graphkit split-merged` makes two plain models of it."
    )


def _both_steps(merged: Merged) -> str:
    when, first = str(merged.cache_when).lower(), str(not merged.cache_when).lower()
    return (
        f"Merged decoder: '{merged.path}' runs the first step in {merged.first_branch} ({merged.condition} = {first}) "
        f"and later steps, with the cache, in {merged.cache_branch} ({merged.condition} = {when})."
    )


def control_flow(model: ModelLike) -> ControlFlow:
    """Describe the nodes with bodies of a model, and recognise merged decoders among them.

    Returns:
        Each node with bodies, and each merged decoder.

    Example:
        >>> graphkit.control_flow(graphkit.load("example:merged-decoder")).merged[0].condition
        'use_cache_branch'
    """
    model = as_model(model)
    merged = {decoder.node: decoder for decoder in model.roles.merged}
    past = model.roles.pasts
    nodes = []
    for node in (node for node in all_nodes(model.scopes) if node.bodies):
        is_search = node.domain == "com.microsoft" and (node.op_type in SEARCHES or "decoder" in node.bodies)
        role = "merged decoder" if node in merged else "search with a decoder inside" if is_search else ""
        branches = tuple(_read_branch(name, body, past) for name, body in node.bodies.items())
        nodes.append(ControlNode(node.path, node.operator, node.scope.depth, _condition_text(node), branches, role))
    decoders = (
        Merged(
            *(node.path, decoder.condition.input.name, decoder.first_branch, decoder.cache_branch, decoder.cache_when),
            tuple(value.name for value in decoder.zero_length),
        )
        for node, decoder in merged.items()
    )
    return ControlFlow(tuple(nodes), tuple(decoders))


def _condition_text(node: Node) -> str:
    if not node.is_op("If"):
        return ""
    condition = trace_condition(node)
    if condition is not None:
        return f"on {'not ' if condition.negated else ''}input {condition.input.name}"
    value = node.input(0)
    if value is None:
        return "without a condition"
    return f"on {value.producer.operator} ({value.name})" if value.producer else f"on {value.name}"


def _read_branch(name: str, body: Scope, past: Mapping[Value, object]) -> Branch:
    outer = count_captured_values(body)
    live = tuple(value for value in outer if not value.is_constant)
    return Branch(
        name,
        sum(len(scope.nodes) for scope in body.walk()),
        tuple(value.name for value in live),
        len(outer) - len(live),
        len(past.keys() & live),
        sum(1 for _ in zero_length_outputs(body)),
    )
