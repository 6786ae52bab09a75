"""Results of the analyses as node data that Model Explorer lays over a graph: costs, shapes, origins, faults."""

from __future__ import annotations

import json
import math
import os
from collections import defaultdict
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any

from graphkit.analysis.blockers import blockers
from graphkit.analysis.costs.node_costs import MEASURES, Amount, Measure, NodeCost, node_costs, sum_amounts
from graphkit.analysis.costs.typical_sizes import TypicalSizes
from graphkit.analysis.hazards import hazards
from graphkit.analysis.shape_origins import meanings_text, origins
from graphkit.analysis.summary import stored_weights
from graphkit.dtypes import dtype_name
from graphkit.errors import UsageError
from graphkit.graph.declared_types import shape_text
from graphkit.graph.view import Node, all_nodes
from graphkit.model import Model
from graphkit.ops.tensor import plain_dims
from graphkit.render.result import versioned_schema
from graphkit.shapes import DimSpec, Shapes
from graphkit.targets import Target
from graphkit.viewer.explorer_format import Color, GradientItem, NodeDataResult

if TYPE_CHECKING:
    from graphkit.verify.layers.comparison import ModelComparison

__all__ = [
    "MeasuredErrors", "NodeAmounts", "Overlay", "colored_text", "error_overlay", "make_overlays", "measured_errors",
    "node_amounts",
]  # fmt: skip


HEAT = (GradientItem(0, "#fff3e0"), GradientItem(1, "#d84315"))
KNOWN, SYMBOLIC, UNKNOWN = "#e8f5e9", "#bbdefb", "#ffcdd2"  # dims that are numbers, expressions, not known
FAULT, DOUBT, CONSTANT = "#ef9a9a", "#ffe082", "#eeeeee"
GROUPS = ("#a6cee3", "#b2df8a", "#fdbf6f", "#cab2d6", "#ffff99", "#fb9a99", "#80cdc1", "#dfc27d", "#c2a5cf", "#9ecae1")
WORDS: Mapping[Measure, str] = {"macs": "MACs", "operations": "operations", "bytes_moved": "bytes moved"}
LONGEST = 300  # characters of a text
PathText = tuple[str, str, Color]  # the path of a node, a text about it, the colour of that


@dataclass(frozen=True)
class Overlay:
    """Facts about some nodes of a model.

    Attributes:
        name: What Model Explorer calls it.
        results: By node.
        is_heat: Whether nodes without a colour have one of a gradient.
    """

    name: str
    results: Mapping[Node, NodeDataResult] = field(default_factory=dict)
    is_heat: bool = False


@dataclass(frozen=True)
class NodeAmounts:
    """The costs of nodes, all runs of one together.

    Attributes:
        sizes: Those at which numbers are told.
        of: What is known, by node and measure.
    """

    sizes: Mapping[str, int]
    of: Mapping[Node, Mapping[Measure, Amount]]

    def lines(self, node: Node) -> list[tuple[str, str]]:
        """Return the costs of a node as expressions in the input dims."""
        return [
            (WORDS[measure], each.text(self.sizes)) for measure, each in self.of.get(node, {}).items() if each.terms
        ]


def node_amounts(shapes: Shapes, spec: DimSpec) -> NodeAmounts:
    """Return the costs of the nodes of a model, at typical sizes where none are given."""
    sizes = TypicalSizes(shapes.model, spec, shapes).sizes
    runs: defaultdict[Node, list[NodeCost]] = defaultdict(list)
    for cost in node_costs(shapes, sizes).nodes:
        runs[cost.node].append(cost)
    amounts = {
        node: {
            measure: sum_amounts(cost.costs[measure] for cost in costs)
            for measure in MEASURES
            if all(measure in cost.costs for cost in costs)
        }
        for node, costs in runs.items()
    }
    return NodeAmounts(sizes, amounts)


def make_overlays(shapes: Shapes, amounts: NodeAmounts, target: Target | None = None) -> list[Overlay]:
    """Return the results of the analyses for the nodes of a model, the overlay to look at first last."""
    nodes: defaultdict[str, list[Node]] = defaultdict(list)  # by path, several where a broken model repeats it
    for node in all_nodes(shapes.model.scopes):
        nodes[node.path].append(node)
    read: defaultdict[Node, int] = defaultdict(int)  # bytes of the weights that each node is the first to read
    for weight, reader in stored_weights(shapes.model):
        if reader is not None:
            read[reader] += weight.bytes
    candidates = [
        _text_overlay("shape origins", _origin_texts(shapes), nodes),
        _shape_overlay(shapes),
        _text_overlay("hazards", _hazard_texts(shapes), nodes),
        _heat_overlay("weight bytes", read.items()),
    ]
    for measure in reversed(MEASURES):
        values = ((node, known[measure].at(amounts.sizes)) for node, known in amounts.of.items() if measure in known)
        candidates.append(_heat_overlay(WORDS[measure], ((node, value) for node, value in values if value is not None)))
    if target is not None:
        name = f"blockers of {target.name}".replace("/", " ")
        candidates.append(_text_overlay(name, _blocker_texts(shapes, target), nodes))
    return [overlay for overlay in candidates if overlay.results]


def _heat_overlay(name: str, values: Iterable[tuple[Node, int]]) -> Overlay:
    results = {node: NodeDataResult(value) for node, value in values if value and not node.is_op("Constant")}
    return Overlay(name, results, is_heat=True)


def _shape_overlay(shapes: Shapes) -> Overlay:
    results = {}
    for node in all_nodes(shapes.model.scopes):
        tensors = [shapes[value] for value in node.outputs if value is not None]
        if node.is_op("Constant") or not tensors:
            continue
        texts = [
            f"{dtype_name(tensor.dtype) if tensor.dtype else '?'} {shape_text(plain_dims(tensor.dims))}"
            for tensor in tensors
        ]
        is_known = all(tensor.is_known for tensor in tensors)
        numbers = is_known and all(tensor.sizes() is not None for tensor in tensors)
        results[node] = colored_text(", ".join(texts), KNOWN if numbers else SYMBOLIC if is_known else UNKNOWN)
    return Overlay("shapes", results)


def _origin_texts(shapes: Shapes) -> Iterator[PathText]:
    for number, group in enumerate(origins(shapes.model, shapes=shapes).groups, 1):
        color = CONSTANT if group.expression == "CONST" else GROUPS[number % len(GROUPS)]
        words = f"{number}: {group.input}: {group.expression}", meanings_text(group.meanings)
        yield from ((path, " ".join(filter(None, words)), color) for path in group.nodes)


def _hazard_texts(shapes: Shapes) -> Iterator[PathText]:
    for hazard in hazards(shapes.model, shapes=shapes).hazards:
        yield from ((path, str(hazard), FAULT) for path in hazard.nodes)
        yield from ((path, f"also: {hazard}", DOUBT) for path in hazard.also)


def _blocker_texts(shapes: Shapes, target: Target) -> Iterator[PathText]:
    report = blockers(shapes.model, target, shapes=shapes)
    for obstacles, color, word in ((report.blockers, FAULT, "refused"), (report.unknown, DOUBT, "unknown")):
        for each in obstacles:
            mended = f"; pass {each.pass_name} removes it" if each.pass_name else ""
            yield each.path, f"{word}: {each.what}: {each.reason}{mended}", color


def _text_overlay(name: str, annotations: Iterable[PathText], nodes: Mapping[str, Sequence[Node]]) -> Overlay:
    """Return the texts about each node, by its path, with the colour of the first."""
    texts: defaultdict[Node, list[str]] = defaultdict(list)
    colors: dict[Node, Color] = {}
    for path, text, color in annotations:
        for node in nodes.get(path, ()):
            texts[node].append(text)
            colors.setdefault(node, color)
    joined = {node: colored_text("; ".join(dict.fromkeys(lines)), colors[node]) for node, lines in texts.items()}
    return Overlay(name, joined)


def colored_text(text: str, color: Color) -> NodeDataResult:
    """Return a text about a node, on a colour."""
    return NodeDataResult(text if len(text) <= LONGEST else f"{text[:LONGEST]}...", color, "#000000")


SCHEMA = versioned_schema("model-comparison")
FIRST, DIFFERS, PROBLEM = "#b71c1c", "#ff8a65", "#bdbdbd"
AGREES = ("#e8f5e9", "#c8e6c9", "#dcedc8", "#f0f4c3")  # below each of the bounds, and above
BOUNDS = (1e-9, 1e-7, 1e-5)  # of relative errors
HOW_TO = "write one with `graphkit compare A B --report FILE.json`"


@dataclass(frozen=True)
class TensorError:
    """The error of a tensor.

    Attributes:
        names: In A and in B.
        relative: Over the largest magnitude in A, None where none can be told.
        problem: Why not.
        agrees: Whether it is within the tolerance.
        is_first: Whether the difference begins here.
    """

    names: tuple[str, str]
    relative: float | None
    problem: str
    agrees: bool
    is_first: bool

    @property
    def badness(self) -> tuple[bool, bool, float]:
        """A key that is greater for what should rather be seen."""
        return self.is_first, not self.agrees, math.inf if self.relative is None else self.relative


@dataclass(frozen=True)
class MeasuredErrors:
    """The errors of a comparison of two models.

    Attributes:
        source: What to call it.
    """

    source: str
    tensors: tuple[TensorError, ...]


def measured_errors(compared: ModelComparison | str | os.PathLike[str]) -> MeasuredErrors:
    """Return the errors of a comparison, or of the JSON that it was written to.

    Raises:
        UsageError: The file cannot be read, or is no comparison.
    """
    if not isinstance(compared, (str, os.PathLike)):
        return _read_errors(f"{compared.a} and {compared.b}", compared.to_dict())
    path = os.fspath(compared)
    try:
        document = json.loads(Path(path).read_text(encoding="utf-8"))
    except OSError as error:
        raise UsageError(f"{path}: cannot be read: {error.strerror} - {HOW_TO}") from error
    except (ValueError, RecursionError) as error:
        raise UsageError(f"{path}: is not JSON: {error} - {HOW_TO}") from error
    if not isinstance(document, dict) or document.get("schema") != SCHEMA:
        raise UsageError(f"{path}: is not a comparison of two models ({SCHEMA}) - {HOW_TO}")
    try:
        return _read_errors(path, document)
    except (KeyError, TypeError, ValueError) as error:
        raise UsageError(f"{path}: is not a comparison as graphkit writes it: {error!r} - {HOW_TO}") from error


def _read_errors(source: str, document: dict[str, Any]) -> MeasuredErrors:
    firsts = {(each["tensor"], each["other"]) for each in document["divergences"]}
    errors = []
    for each in document["tensors"]:
        names, relative = (str(each["a"]), str(each["b"])), each["relative"]
        known = None if relative is None else float(relative)
        errors.append(TensorError(names, known, str(each["problem"]), bool(each["agrees"]), names in firsts))
    return MeasuredErrors(source, tuple(errors))


def error_overlay(model: Model, errors: MeasuredErrors, *, is_other: bool = False) -> Overlay:
    """Return the errors of the tensors that the nodes of a model give, which is A, or the other one, B.

    Raises:
        UsageError: The comparison is of other models.
    """
    worst: dict[Node, TensorError] = {}
    for tensor in errors.tensors:
        value = model.graph.values.get(tensor.names[is_other])
        if value is not None and value.producer is not None:
            node = value.producer
            worst[node] = max(worst.get(node, tensor), tensor, key=lambda each: each.badness)
    if not worst:
        raise UsageError(f"{errors.source}: compares no tensor that a node of {model.label} gives - {HOW_TO}")
    return Overlay("errors", {node: _error_result(tensor) for node, tensor in worst.items()})


def _error_result(tensor: TensorError) -> NodeDataResult:
    is_number = tensor.relative is not None and math.isfinite(tensor.relative)
    value = tensor.relative if is_number and tensor.relative is not None else tensor.problem or "not a number"
    if tensor.is_first:
        return NodeDataResult(value, FIRST, "#ffffff")
    if not is_number or tensor.relative is None:
        return NodeDataResult(value, PROBLEM, "#000000")
    shade = AGREES[sum(tensor.relative >= bound for bound in BOUNDS)]
    return NodeDataResult(value, shade if tensor.agrees else DIFFERS, "#000000")
