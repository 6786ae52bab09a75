"""Compare the files of two models, without running them."""

from __future__ import annotations

from graphkit.analysis.costs.cost_changes import BeforeAndAfter, cost_change
from graphkit.analysis.report_sections import BLOCKERS
from graphkit.deploy.targets import load_target
from graphkit.matching.graph_side import known_tensor
from graphkit.model import Model, ModelLike, as_model
from graphkit.model_diff.file_changes import (
    finding_changes,
    findings_of,
    interface_changes,
    metadata_changes,
    note_changes,
    opset_changes,
)
from graphkit.model_diff.model_diff import ModelDiff
from graphkit.model_diff.node_changes import node_changes
from graphkit.model_diff.node_matching import NodeMatching, match_nodes, value_path
from graphkit.model_diff.shape_changes import declaration_changes, shape_changes
from graphkit.model_diff.weight_changes import weight_changes
from graphkit.options import DiffOptions
from graphkit.shapes import infer

__all__ = ["diff"]


def diff(a: ModelLike, b: ModelLike, options: DiffOptions = DiffOptions()) -> ModelDiff:
    """Compare the files of two models: interface, operator sets, metadata, nodes, weights, shapes and findings.

    Nodes match by name, and by what they compute; names of values and the order of nodes make no difference. Weights
    are read where two have one dtype and the same dims, and lie at different places.

    Args:
        a: A model.
        b: Another one, such as a later version of it.
        options: What to compare and to list.

    Returns:
        What differs; `is_equal` says whether nothing does.

    Raises:
        ModelError: A model cannot be read, or a file of weights has shrunk since.
        TargetError: There is no such target, or its file cannot be read.

    Example:
        >>> model = graphkit.load("example:causal-attention")
        >>> graphkit.diff(model, graphkit.fold(model).model).differing
        ('nodes', 'weights', 'findings')
    """
    models = first, second = as_model(a), as_model(b)
    target = load_target(options.target) if options.target is not None else None
    shapes, findings = zip(*((infer(model), findings_of(model, target)) for model in models), strict=True)
    matching = match_nodes(first, second, shapes)
    nodes, constants = node_changes(matching)
    weights = weight_changes(matching, constants, first, second)
    changes = tuple(finding_changes(*findings))
    return ModelDiff(
        a=first.label,
        b=second.label,
        interface=tuple(interface_changes(matching.interface)),
        opsets=tuple(opset_changes(first, second)),
        metadata=(
            *metadata_changes(first, second),
            *note_changes(matching, weights.pairs, first, second),
            *declaration_changes(matching),
        ),
        nodes=nodes,
        weights=weights.changes,
        shapes=tuple(shape_changes(matching, shapes)),
        finding_changes=tuple(change for change in changes if change.kind != BLOCKERS.name),
        blockers=tuple(change for change in changes if change.kind == BLOCKERS.name),
        costs=cost_change(BeforeAndAfter([first], second)),
        target=target.name if target is not None else "",
        renamed_values=_renamed_values(matching, first),
        renamed_weights=weights.renamed,
        unread_weights=weights.unread,
        lists_renames=options.renames,
        models=models,
    )


def _renamed_values(matching: NodeMatching, a: Model) -> tuple[tuple[str, str], ...]:
    """Return the values that are called otherwise, inputs and outputs of the main graph aside."""
    ends = {*a.graph.inputs, *a.graph.outputs}
    return tuple(
        (value_path(value_a), value_path(value_b))
        for value_a, value_b in matching.values.forth.items()
        if value_a.name != value_b.name
        and value_a not in ends
        and known_tensor(value_a) is None
        and value_a.producer in matching.forth
    )
