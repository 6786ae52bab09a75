"""Placement: the nodes and the work of a model on a device and on the CPU, by onnxruntime's own record.

The model is loaded on the device, and does not run. What onnxruntime removes or fuses before it places nodes is not in
its record. Where the device compiles parts of a model, onnxruntime counts these; where it has a kernel for each
operator, a new part begins after a tensor that goes back to the CPU, and from there to the device again.
"""

from __future__ import annotations

import re
from collections.abc import Collection, Iterator, Mapping
from dataclasses import dataclass, field
from typing import Any, ClassVar

from msgspec import Struct

from graphkit.analysis.blockers import NO_REWRITE
from graphkit.analysis.node_costs import node_costs
from graphkit.analysis.target_lint import CONTROL_FLOW, Cause, Lint
from graphkit.analysis.typical_sizes import TypicalSizes
from graphkit.equivalence.spelling import inline_model
from graphkit.errors import count_things
from graphkit.graph.names import group_pairs
from graphkit.graph.operator_traits import MEASURING
from graphkit.graph.view import Node, Value, all_nodes
from graphkit.model import Model, ModelLike, as_model
from graphkit.render.document_blocks import Block, NodeMark, Prose, size_cell, table
from graphkit.render.result import Result, Sizes
from graphkit.runtime.providers import Provider
from graphkit.runtime.session import as_provider, place_model
from graphkit.shapes import AS_DECLARED, DimSpec, Shapes, infer
from graphkit.targets import load_target

NUMBERED = re.compile(r"n(\d+)(?!\d)")  # a node's name while onnxruntime places it, at the start of that of a fused one
REMEDIED = "generic-npu"  # the target whose remedies are those of any device


class CpuNodes(Struct, frozen=True):
    """The nodes of an operator that stay on the CPU."""

    operator: str
    nodes: int
    macs: int  # their multiply-accumulates, at the sizes
    # those that part what runs on the device: they read what it computed, and it waits for what they give
    cuts: tuple[str, ...]
    removed_by: str  # the pass that removes them, or that no rewrite is known


@dataclass(frozen=True)
class NodePlacement(Result):
    """Where onnxruntime places the nodes of a model.

    Attributes:
        provider: The device.
        runtime: The version of onnxruntime.
        package: Where the provider is from, with its version.
        sizes: The sizes at which work is counted; those that were given are fixed before the model is placed.
        device, cpu: Nodes there, as onnxruntime placed them.
        gone: Nodes of the model that onnxruntime removed or fused before.
        device_macs, cpu_macs: Multiply-accumulates of these nodes, at the sizes.
        partitions: Parts on the device.
        is_compiled: Whether the device compiles its parts.
        copies: Tensors that are copied between the two, inputs among them; None where onnxruntime does not say.
        operators: The nodes on the CPU, by operator and by what removes them.
        places: The provider of each node that onnxruntime placed, by its path.
    """

    title: ClassVar[str] = "Placement"
    provider: str
    runtime: str
    package: str
    sizes: Sizes
    device: int
    cpu: int
    gone: int
    device_macs: int
    cpu_macs: int
    partitions: int
    is_compiled: bool
    copies: int | None
    operators: tuple[CpuNodes, ...]
    places: Mapping[str, str] = field(default_factory=dict, compare=False, metadata={"in_json": False})

    def marks(self) -> Iterator[NodeMark]:
        for path, place in self.places.items():
            yield NodeMark(self.heading(), place, "fine" if self.provider.startswith(place) else "doubt", path)

    def heading(self) -> str:
        return f"{self.title} on {self.provider}"

    def blocks(self) -> Iterator[Block]:
        yield Prose(f"By the record of onnxruntime {self.runtime}; the provider is {self.package}.")
        nodes, macs = self.device + self.cpu, self.device_macs + self.cpu_macs
        places = [(self.provider, self.device, self.device_macs), ("cpu", self.cpu, self.cpu_macs)]
        yield table(
            "Runs on:code | Nodes:number | Of all:number | MACs:number | Of all:number",
            [(at, n, _part_text(n, nodes), size_cell(m), _part_text(m, macs)) for at, n, m in places if n or m],
        )
        how = "compiled" if self.is_compiled else "a kernel for each node"
        parts = f"{count_things(self.partitions, 'partition(s)')} on {self.provider} ({how})"
        copies = "" if self.copies is None else f", {count_things(self.copies, 'tensor(s)')} copied"
        gone = f" onnxruntime removed or fused {count_things(self.gone, 'node(s)')} before." if self.gone else ""
        yield Prose(f"{parts}{copies}.{gone}", "warning" if self.partitions > 1 else "plain")
        rows = [
            (r.operator, r.nodes, size_cell(r.macs), len(r.cuts) or None, r.removed_by, "".join(r.cuts[:1]))
            for r in self.operators
        ]
        if rows:
            yield table("On the CPU | Nodes:number | MACs:number | Cut:number | Removed by | Such as:note", rows)


def placement(
    model: ModelLike, provider: Provider | str, spec: DimSpec = AS_DECLARED, *, shapes: Shapes | None = None
) -> NodePlacement:
    """Return where onnxruntime places the nodes of a model.

    Args:
        model: The model, or its path; its weights have to be there.
        provider: The device, such as "webgpu": see `graphkit providers`.
        spec: Sizes of input dims; those of symbols are fixed before the model is placed.
        shapes: The inferred shapes of the model at these sizes, if they are known already.

    Raises:
        UsageError: The provider is not installed.
        ModelError: Its device is not there, or onnxruntime does not load the model.

    Example:
        >>> graphkit.placement("example:causal-attention", "cpu").partitions
        1
    """
    model, provider = as_model(model), as_provider(provider)
    shapes = shapes or infer(model, spec)
    record = place_model(number_nodes(model), provider, dict(spec.dims))
    if model.proto.functions and not all(NUMBERED.match(node["name"]) for node in record["nodes"]):
        return placement(inline_model(model), provider, spec)  # as onnxruntime has inlined them
    return _Placed(shapes, provider, record, spec).result()


def number_nodes(model: Model) -> Model:
    """Return a model whose nodes have numbers as their names, as `NUMBERED` reads them."""
    proto = type(model.proto)()
    proto.CopyFrom(model.proto)
    named = model.with_proto(proto)
    for number, node in enumerate(all_nodes(named.scopes)):
        node.proto.name = f"n{number}"
    return named


class _Placed:
    """The record of a placement, beside the nodes of the model."""

    def __init__(self, shapes: Shapes, provider: Provider, record: Mapping[str, Any], spec: DimSpec) -> None:
        self.shapes, self.provider, self.record, self.spec = shapes, provider, record, spec
        self.name, self.is_compiled = provider.name, record["copies"] is None
        self.nodes = [*all_nodes(shapes.model.scopes)]
        self.where: dict[Node, str] = {}
        for each in record["nodes"]:
            if (match := NUMBERED.match(each["name"])) and int(match[1]) < len(self.nodes):
                self.where.setdefault(self.nodes[int(match[1])], each["provider"])
        self.lint = Lint(load_target(REMEDIED), shapes)
        self.is_static = all(shapes[value].sizes() is not None for value in shapes.model.graph.inputs)

    def result(self) -> NodePlacement:
        record, counts = self.record, self.record["counts"]
        partitions, cuts = self._find_cuts()
        typical = TypicalSizes(self.shapes.model, self.spec, self.shapes)
        costs = node_costs(self.shapes, typical.sizes).nodes
        macs = {each.node: each.costs["macs"].at(typical.sizes) or 0 for each in costs if "macs" in each.costs}
        work = sum(count for node, count in macs.items() if self._is_there(node))
        here = [node for node, place in self.where.items() if place != self.name]
        operators = list[CpuNodes]()
        groups = group_pairs(((node.operator, self._remedy(node)), node) for node in here)
        for (operator, remedy), nodes in sorted(groups.items(), key=lambda item: (-len(item[1]), item[0])):
            parting = tuple(node.path for node in nodes if node in cuts)
            operators.append(CpuNodes(operator, len(nodes), sum(macs.get(node, 0) for node in nodes), parting, remedy))
        return NodePlacement(
            provider=str(self.provider),
            runtime=record["runtime"],
            package=record["package"],
            sizes=Sizes((*self.spec.dims, *typical.sizes.items())),
            device=counts.get(self.name, 0),
            cpu=sum(count for place, count in counts.items() if place != self.name),
            gone=sum(node not in self.where and not node.is_op("Constant") for node in self.nodes),
            device_macs=work,
            cpu_macs=sum(macs.values()) - work,
            partitions=record["parts"].get(self.name, 0) if self.is_compiled else partitions,
            is_compiled=self.is_compiled,
            copies=None if self.is_compiled else sum(record["copies"].values()),
            operators=tuple(operators),
            places={node.path: place for node, place in self.where.items()},
        )

    def _is_there(self, node: Node | None) -> bool:
        """Whether a node is on the device; one that was fused is where a node is that it reads, or its reader."""
        if node is None or node in self.where:
            return node is not None and self.where[node] == self.name
        readers = [reader for value in node.results for reader, _ in value.consumers]
        near = (each for each in (*(value.producer for value in node.operands), *readers) if each in self.where)
        return self.where.get(next(near, node), "") == self.name

    def _find_cuts(self) -> tuple[int, set[Node]]:
        """Return how many parts a device has that runs node by node, and the nodes on the CPU that it waits for.

        Work goes on in phases, on the device (even ones) and on the CPU in turn: what comes back begins the next one.
        """
        there = {node for node in self.nodes if self._is_there(node)}
        leads = set[Node]()  # to the device
        for node in reversed(self.nodes):
            readers = (reader for value in node.results for reader, _ in value.consumers)
            leads |= {node} if any(reader in there or reader in leads for reader in readers) else set()
        phases, reached, cuts = dict[Value, int](), set[int](), set[Node]()
        for node in self.nodes:
            phase = 0
            for value in node.operands:
                before = phases.get(value, 0)
                if node in self.where and node not in there and self._comes_back(value, there) and before % 2 == 0:
                    before += 1
                    cuts |= {node} & leads
                phase = max(phase, before)
            phase += node in there and phase % 2
            reached |= {phase} if node in there else set()
            phases |= dict.fromkeys(node.results, phase)
        return len(reached), cuts

    def _comes_back(self, value: Value, there: Collection[Node]) -> bool:
        """Whether the CPU waits for a value: a kernel that measures one has its result on the CPU anyway."""
        source, copies = value.producer, self.record["copies"]
        if source is None or source not in there:
            return False
        if copies is not None and (not copies["cpu"] or source.is_op(*MEASURING)):
            return False
        return source in self.where or any(each.producer in self.where for each in source.operands)  # not if folded

    def _remedy(self, node: Node) -> str:
        """Return the pass that removes a node, or that no rewrite is known."""
        if self.lint.folds(node):
            return "fold" if self.is_static else "fold --dim"
        values = (*node.operands, *node.results)
        if self.is_compiled and any(self.shapes[value].sizes() is None for value in values):
            return "freeze-dims"  # a device that compiles takes no other
        cause: Cause = "control flow" if node.is_op(*CONTROL_FLOW) else "operator"
        return self.lint.remedy(node, cause, node.operator) or NO_REWRITE


def _part_text(part: int, whole: int) -> str:
    return f"{100 * part / whole:.3g} %" if whole else ""
