"""Placement: the nodes and the work of a model on a device and on the CPU, by onnxruntime's own record.

The model is loaded on the device, and does not run. What onnxruntime removes or fuses before it places nodes is not in
its record. Where the device compiles parts of a model, onnxruntime counts these; where it has a kernel for each
operator, a new part begins after a tensor that goes back to the CPU, and from there to the device again.
"""

from __future__ import annotations

import re
from collections import Counter, defaultdict
from collections.abc import Collection, Iterator, Mapping
from dataclasses import dataclass, field
from typing import Any, ClassVar

from graphkit.analysis.blockers import NO_REWRITE
from graphkit.analysis.costs.node_costs import node_costs
from graphkit.analysis.costs.typical_sizes import TypicalSizes
from graphkit.analysis.target_lint import CONTROL_FLOW, Cause, Lint
from graphkit.graph.view import Node, Value, all_nodes
from graphkit.model import Model, ModelLike, as_model
from graphkit.render.document_blocks import Block, Prose, size_text, table
from graphkit.render.result import Result, Sizes
from graphkit.runtime.providers import Provider
from graphkit.runtime.session import as_provider, place_model
from graphkit.shapes import AS_DECLARED, DimSpec, Shapes, infer
from graphkit.targets import load_target

__all__ = ["CpuNodes", "CutNode", "NodePlacement", "placement"]

MOST_CUTS = 12
NUMBERED = re.compile(r"n(\d+)(?!\d)")  # a node's name while onnxruntime places it, at the start of that of a fused one
MARKER = "generic-npu"  # the target whose remedies are those of any device


@dataclass(frozen=True)
class CpuNodes:
    """The nodes of an operator that stay on the CPU.

    Attributes:
        macs: Their multiply-accumulates, at the sizes.
        cuts: How many of them part what runs on the device.
        joins: The pass that removes them, or that no rewrite is known.
    """

    operator: str
    nodes: int
    macs: int
    cuts: int
    joins: str


@dataclass(frozen=True)
class CutNode:
    """A node on the CPU between two parts on the device.

    Attributes:
        node: Its path.
        copied: The tensors that are copied for it, as far as onnxruntime says so.
        joins: As in `CpuNodes`.
    """

    node: str
    operator: str
    copied: tuple[str, ...]
    joins: str


@dataclass(frozen=True)
class NodePlacement(Result):
    """Where onnxruntime places the nodes of a model.

    Attributes:
        provider: The device.
        runtime: The version of onnxruntime.
        package: Where the provider is from, with its version.
        sizes: The sizes at which work is counted; the model was placed with those that were given.
        given: The sizes that were given.
        device, cpu: Nodes there, as onnxruntime placed them.
        gone: Nodes of the model that onnxruntime removed or fused before.
        device_macs, cpu_macs: Multiply-accumulates of these nodes, at the sizes.
        partitions: Parts on the device.
        is_compiled: Whether the device compiles its parts.
        copies: Tensors that are copied between the two, inputs among them; None where onnxruntime does not say.
        operators: The nodes on the CPU, by operator, and by what removes them.
        cuts: Those of them that part what runs on the device.
    """

    title: ClassVar[str] = "Placement"
    provider: str
    runtime: str
    package: str
    sizes: Sizes
    given: Sizes
    device: int
    cpu: int
    gone: int
    device_macs: int
    cpu_macs: int
    partitions: int
    is_compiled: bool
    copies: int | None
    operators: tuple[CpuNodes, ...]
    cuts: tuple[CutNode, ...]
    seconds: float = field(default=0.0, metadata={"in_json": False})

    def heading(self) -> str:
        return f"{self.title} on {self.provider}"

    def blocks(self) -> Iterator[Block]:
        of = "onnxruntime" if self.package == "built in" else self.package
        given = ", ".join(f"{name}={size}" for name, size in self.given)
        yield Prose(f"By the record of onnxruntime {self.runtime}, with {of}{f', at {given}' if given else ''}.")
        rows = [
            (name, nodes, _part_text(nodes, self.device + self.cpu), size_text(macs), _part_text(macs, self._macs))
            for name, nodes, macs in ((self.provider, self.device, self.device_macs), ("cpu", self.cpu, self.cpu_macs))
            if nodes or name != "cpu"
        ]
        yield table("Runs on:code | Nodes:number | Of all:number | MACs:number | Of all:number", rows)
        copies = "" if self.copies is None else f", {self.copies:,} tensor{'s' * (self.copies != 1)} copied"
        how = "compiled whole" if self.is_compiled else "a kernel for each node"
        parts = f"{self.partitions:,} partition{'s' * (self.partitions != 1)} on {self.provider} ({how}){copies}."
        gone = f" onnxruntime removed or fused {self.gone:,} more nodes before." if self.gone else ""
        yield Prose(parts + gone, "warning" if self.partitions > 1 else "plain")
        if self.operators:
            yield table(
                "On the CPU | Nodes:number | MACs:number | Cut:number | Removed by",
                [(row.operator, row.nodes, size_text(row.macs), row.cuts or None, row.joins) for row in self.operators],
            )
        if self.cuts:
            yield table(
                "Cuts:code | Operator | Copied:note | Removed by",
                [(cut.node, cut.operator, ", ".join(cut.copied), cut.joins) for cut in self.cuts[:MOST_CUTS]],
                "What parts the device's work",
            )
            if (more := len(self.cuts) - MOST_CUTS) > 0:
                yield Prose(f"... and {more:,} more (see the JSON).")

    @property
    def _macs(self) -> int:
        return self.device_macs + self.cpu_macs


def placement(
    model: ModelLike,
    provider: Provider | str,
    spec: DimSpec = AS_DECLARED,
    *,
    shapes: Shapes | None = None,
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
    named = model.with_proto(_copy_of(model))
    nodes = [*all_nodes(named.scopes)]
    for number, node in enumerate(nodes):
        node.proto.name = f"n{number}"
    record = place_model(named, provider, dict(spec.dims))
    return _Placed(shapes, provider, record, spec).result()


def _copy_of(model: Model) -> Any:
    proto = type(model.proto)()
    proto.CopyFrom(model.proto)
    return proto


class _Placed:
    """The record of a placement, beside the nodes of the model."""

    def __init__(self, shapes: Shapes, provider: Provider, record: Mapping[str, Any], spec: DimSpec) -> None:
        self.shapes, self.provider, self.record, self.spec = shapes, provider, record, spec
        self.nodes = [*all_nodes(shapes.model.scopes)]
        self.where: dict[Node, str] = {}
        for each in record["nodes"]:
            if (match := NUMBERED.match(each["name"])) and int(match[1]) < len(self.nodes):
                self.where.setdefault(self.nodes[int(match[1])], each["provider"])
        self.copied = {
            to: {each["tensor"] for each in record["copied"] if each["to"] == to} for to in ("cpu", "device")
        }
        self.lint = Lint(load_target(MARKER), shapes)
        self.is_static = all(shapes[value].sizes() is not None for value in shapes.model.graph.inputs)

    def result(self) -> NodePlacement:
        record, name = self.record, self.provider.name
        counts, parts = record["counts"], record["parts"]
        is_compiled = record["copies"] is None
        partitions, cuts = self._compiled_cuts() if is_compiled else self._copied_cuts()
        typical = TypicalSizes(self.shapes.model, self.spec, self.shapes)
        costs = node_costs(self.shapes, typical.sizes).nodes
        macs = {each.node: each.costs["macs"].at(typical.sizes) or 0 for each in costs if "macs" in each.costs}
        work: Counter[bool] = Counter()
        for node, count in macs.items():  # of nodes that were fused into others, where their operands are
            work[self._location(node) == name] += count
        return NodePlacement(
            provider=str(self.provider),
            runtime=record["runtime"],
            package=record["package"],
            sizes=Sizes((*self.spec.dims, *typical.sizes.items())),
            given=Sizes(self.spec.dims),
            device=counts.get(name, 0),
            cpu=sum(count for place, count in counts.items() if place != name),
            gone=sum(node not in self.where and not node.is_op("Constant") for node in self.nodes),
            device_macs=work[True],
            cpu_macs=work[False],
            partitions=parts.get(name, 0) if is_compiled else partitions,
            is_compiled=is_compiled,
            copies=record["copies"],
            operators=tuple(self._operator_rows(macs, cuts)),
            cuts=tuple(
                CutNode(node.path, node.operator, tuple(copied), self._joins(node)) for node, copied in cuts.items()
            ),
            seconds=record["seconds"],
        )

    def _location(self, node: Node) -> str:
        """Return where a node is; one that was fused is where its reader is, or what it reads."""
        if node in self.where:
            return self.where[node]
        readers = (reader for value in node.results for reader, _ in value.consumers if reader in self.where)
        sources = (value.producer for value in node.operands if value.producer in self.where)
        near = next(readers, None) or next(sources, None)
        return "" if near is None else self.where[near]

    def _copied_cuts(self) -> tuple[int, dict[Node, list[str]]]:
        """Return how many parts a device has that runs node by node, and the nodes on the CPU between them.

        Work goes on in phases, on the device and on the CPU in turn: a tensor that is copied begins the next one.
        """
        name, phases = self.provider.name, dict[Value, int]()
        reached, cuts = set[int](), dict[Node, list[str]]()
        for node in self.nodes:
            is_device = self._location(node) == name
            phase, copied = 0, list[str]()
            for value in node.operands:
                before = phases.get(value, 0)
                if not is_device and value.name in self.copied["cpu"] and before % 2 == 0:
                    before, copied = before + 1, [*copied, value.name]
                elif is_device and before % 2 and value.name in self.copied["device"]:
                    before += 1
                phase = max(phase, before)
            if is_device and phase % 2:  # it reads a number that stays on the CPU, such as a shape
                phase += 1
            if is_device:
                reached.add(phase)
            if copied:
                cuts[node] = copied
            phases |= dict.fromkeys(node.results, phase)
        return len(reached), cuts

    def _compiled_cuts(self) -> tuple[int, dict[Node, list[str]]]:
        """Return the nodes on the CPU with work of the device before and behind them."""
        name = self.provider.name
        behind, before = set[Node](), set[Node]()  # the device, and it
        for node in self.nodes:
            sources = (value.producer for value in node.operands if value.producer is not None)
            if any(source in behind or self.where.get(source) == name for source in sources):
                behind.add(node)
        for node in reversed(self.nodes):
            readers = (reader for value in node.results for reader, _ in value.consumers)
            if any(reader in before or self.where.get(reader) == name for reader in readers):
                before.add(node)
        return 0, {n: [] for n in self.nodes if n in behind & before and self.where.get(n, name) != name}

    def _operator_rows(self, macs: Mapping[Node, int], cuts: Collection[Node]) -> Iterator[CpuNodes]:
        groups: dict[tuple[str, str], list[Node]] = defaultdict(list)
        for node, place in self.where.items():
            if place != self.provider.name:
                groups[node.operator, self._joins(node)].append(node)
        for (operator, joins), nodes in sorted(groups.items(), key=lambda item: (-len(item[1]), item[0])):
            work = sum(macs.get(node, 0) for node in nodes)
            yield CpuNodes(operator, len(nodes), work, sum(node in cuts for node in nodes), joins)

    def _joins(self, node: Node) -> str:
        """Return the pass that removes a node, or that no rewrite is known."""
        if self.lint.folds(node):
            return "fold" if self.is_static else "fold --dim"
        cause: Cause = "control flow" if node.is_op(*CONTROL_FLOW) else "operator"
        values = (*node.operands, *node.results)
        if self.record["copies"] is None and any(self.shapes[value].sizes() is None for value in values):
            return "freeze-dims"  # a device that compiles takes no other
        return self.lint.remedy(node, cause, node.operator) or NO_REWRITE


def _part_text(part: int, whole: int) -> str:
    return f"{100 * part / whole:.3g} %" if whole else ""
