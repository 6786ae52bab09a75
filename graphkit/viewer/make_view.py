"""One or two models as Model Explorer shows them: graphs with the results of the analyses at their nodes."""

from __future__ import annotations

import json
import os
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING

from graphkit.graph.names import join_words
from graphkit.graph.view import Node, Scope, as_text
from graphkit.model import Model, ModelLike, as_model
from graphkit.model_diff.node_changes import node_changes
from graphkit.model_diff.node_matching import NodeMatching, match_nodes
from graphkit.shapes import AS_DECLARED, DimSpec, Shapes, infer, symbol
from graphkit.targets import load_target
from graphkit.viewer.explorer_format import Graph, GraphNodeData, NodeDataResult
from graphkit.viewer.graph_of_model import NodeIds, graph_ids, matched_ids, model_graphs, node_ids
from graphkit.viewer.overlays import (
    HEAT,
    NodeAmounts,
    Overlay,
    colored_text,
    error_overlay,
    make_overlays,
    measured_errors,
    node_amounts,
)

if TYPE_CHECKING:
    from graphkit.verify.layers.comparison import ModelComparison

__all__ = ["ModelView", "NodeData", "View", "diff_overlays", "view"]

# The nodes that differ between two models, laid over the graphs of both.


REMOVED, ADDED, CHANGED = "#ef9a9a", "#a5d6a7", "#ffe082"


def diff_overlays(matching: NodeMatching) -> tuple[Overlay, Overlay]:
    """Return the nodes of each model that the other one lacks, or has in another way."""
    changes, _ = node_changes(matching)
    texts = {(each.node, each.other): "; ".join(map(str, each.changes)) for each in changes.changed}
    pairs = [
        (pair, texts[paths]) for pair in matching.forth.items() if (paths := (pair[0].path, pair[1].path)) in texts
    ]
    results: tuple[dict[Node, NodeDataResult], dict[Node, NodeDataResult]] = {}, {}
    for (node_a, node_b), text in pairs:
        results[0][node_a] = results[1][node_b] = colored_text(f"changed: {text}", CHANGED)
    for result, nodes, word, color in zip(results, matching.alone, ("removed", "added"), (REMOVED, ADDED), strict=True):
        result.update({node: colored_text(word, color) for node in nodes if not node.is_op("Constant")})
    return Overlay("diff", results[0]), Overlay("diff", results[1])


@dataclass(frozen=True)
class NodeData:
    """An overlay.

    Attributes:
        name: What Model Explorer calls it.
        nodes: How many nodes it tells of.
        by_graph: What it tells, by the id of a graph.
    """

    name: str
    nodes: int
    by_graph: dict[str, GraphNodeData]

    def to_json(self) -> str:
        """Return the JSON that Model Explorer loads as node data."""
        return _to_json(self.by_graph)


@dataclass(frozen=True)
class ModelView:
    """A model as Model Explorer shows it.

    Attributes:
        label: What to call it.
        graphs: The main graph, and each function.
        overlays: What is known of its nodes; Model Explorer shows the last one first.
    """

    label: str
    graphs: tuple[Graph, ...]
    overlays: tuple[NodeData, ...]


@dataclass(frozen=True)
class View:
    """One model, or two side by side, in which nodes that match have one id."""

    models: tuple[ModelView, ...]

    @property
    def synchronised(self) -> int:
        """How many nodes of the second model have the id of a node of the first one, inputs and outputs too."""
        first, *others = [{node.id for graph in model.graphs for node in graph.nodes} for model in self.models]
        return sum(len(first & ids) for ids in others)

    def to_json(self) -> str:
        """Return the JSON that Model Explorer loads as a model, without overlays."""
        if len(self.models) == 1:
            return _to_json({"label": self.models[0].label, "graphs": self.models[0].graphs})
        return _to_json([{"label": model.label, "subgraphs": model.graphs} for model in self.models])


def view(
    model: ModelLike,
    other: ModelLike | None = None,
    spec: DimSpec = AS_DECLARED,
    *,
    target: str | None = None,
    errors: ModelComparison | str | os.PathLike[str] | None = None,
) -> View:
    """Return a model, or two, as Model Explorer shows them. No weight is read.

    Args:
        model: A model.
        other: Another one to look at beside it.
        spec: Sizes of input dims. Costs are at these, and at typical ones of others.
        target: The name of a target whose blockers are told, or the path of its file.
        errors: A comparison of the two models, or the JSON that `graphkit compare` wrote of it.

    Returns:
        The graphs, with overlays that tell of any node: shape origins, shapes, hazards, weight bytes, bytes moved,
        operations, MACs, blockers, diff, errors.

    Raises:
        ModelError: A model cannot be read.
        TargetError: There is no such target, or its file cannot be read.
        UsageError: A size contradicts a model, or `errors` is no comparison of these models.

    Example:
        >>> shown = graphkit.view("example:causal-attention").models[0]
        >>> [overlay.name for overlay in shown.overlays][-2:]
        ['operations', 'MACs']
    """
    models = [as_model(each) for each in (model, other) if each is not None]
    facts = load_target(target) if target is not None else None
    measured = measured_errors(errors) if errors is not None else None
    inferred = [infer(each, spec) for each in models]
    ids = [node_ids(inferred[0].model)]
    extra: list[list[Overlay]] = [[] for _ in models]
    if len(models) == 2:
        matching = match_nodes(inferred[0].model, inferred[1].model, (inferred[0], inferred[1]))
        ids.append(matched_ids(inferred[1].model, matching, ids[0]))
        for overlay, added in zip(diff_overlays(matching), extra, strict=True):
            added.append(overlay)
    if measured is not None:
        for number, shapes in enumerate(inferred):
            extra[number].append(error_overlay(shapes.model, measured, is_other=number == 1))
    shown = []
    for each, label, shapes, id_of, added in zip(models, _model_labels(models), inferred, ids, extra, strict=True):
        amounts = node_amounts(shapes, spec)
        names = graph_ids(shapes.model, label)
        made = model_graphs(shapes, names, id_of, amounts.lines, _model_facts(each, shapes, spec, amounts))
        model_overlays = [*make_overlays(shapes, amounts, facts), *added]
        shown.append(
            ModelView(label, tuple(made), tuple(_overlay_data(overlay, names, id_of) for overlay in model_overlays))
        )
    return View(tuple(shown))


def _model_labels(models: Sequence[Model]) -> list[str]:
    """Return labels for models: Model Explorer takes no slash, and no name twice."""
    labels = [model.label.rpartition("/")[2] for model in models]
    return [f"{name} {label}" for name, label in zip("AB", labels, strict=False)] if len(labels) == 2 else labels


def _model_facts(model: Model, shapes: Shapes, spec: DimSpec, amounts: NodeAmounts) -> dict[str, str]:
    """Return the facts about a model as a whole."""
    proto = shapes.model.proto
    producer = f"{as_text(proto.producer_name)} {as_text(proto.producer_version)}".strip()
    sizes = [f"{symbol(name)} {size:,}" for name, size in (*spec.dims, *amounts.sizes.items())]
    return {
        "model": model.label,
        "producer": producer,
        "opsets": ", ".join(
            f"{domain or 'ai.onnx'} {version}" for domain, version in shapes.model.graph.opsets.items()
        ),
        "costs at": join_words(sizes) if sizes else "the sizes of the file",
    }


def _overlay_data(overlay: Overlay, names: Mapping[Scope, str], ids: NodeIds) -> NodeData:
    """Return an overlay by graphs and ids of nodes; all graphs have it, so that all can show it."""
    by_graph: dict[str, dict[str, NodeDataResult]] = {graph: {} for graph in names.values()}
    for node, result in overlay.results.items():
        scope = node.scope
        while scope.parent is not None:
            scope = scope.parent
        by_graph[names[scope]][ids.of[node]] = result
    gradient, hides = (list(HEAT), False) if overlay.is_heat else ([], True)
    data = {graph: GraphNodeData(results, gradient, hides, hides) for graph, results in by_graph.items()}
    return NodeData(overlay.name, len(overlay.results), data)


def _to_json(value: object) -> str:
    """Return JSON, of a dataclass the fields that say something."""
    return json.dumps(value, default=lambda each: {key: of for key, of in vars(each).items() if of is not None})
