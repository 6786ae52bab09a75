"""Rewrites: passes that edit a view, run together to a fixpoint, until none of them changes anything.

A round infers shapes once, collects the edits of all rewrites, builds the model once and removes dead code: ten
rewrites cost little more than one.
"""

from __future__ import annotations

from abc import abstractmethod
from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass, field, replace
from typing import ClassVar

from graphkit.errors import ModelError, count_things
from graphkit.graph.view import Node
from graphkit.model import Model
from graphkit.progress import check_time
from graphkit.rewrite.base import Declined, MatchFailure, Outcome, Pass, PassChange, Premise
from graphkit.rewrite.editor import Editor
from graphkit.rewrite.edits import without_outputs
from graphkit.shapes.graph_inputs import AS_DECLARED, DimSpec, SymbolRanges

MAX_ROUNDS = 20
Counts = Counter[tuple[str, str]]  # by pass and change


@dataclass(frozen=True)
class Rewrite(Pass):
    """Base of the passes that edit a view; each is repeated until it changes nothing.

    Attributes:
        ranges: Bounds of symbols, (name, least, largest), None for an open end.
    """

    ranges: SymbolRanges = field(default=(), kw_only=True)

    @abstractmethod
    def edit(self, editor: Editor) -> None:
        """Record changes in the editor, among the nodes that no other edit has taken."""

    def run(self, model: Model) -> Outcome:
        counts: Counts = Counter()
        outcome = run_to_fixpoint(model, [self], DimSpec(ranges=self.ranges), counts)
        return replace(outcome, changes=tuple(count_things(count, text) for (_, text), count in counts.items()))

    def premise(self) -> Premise:
        return Premise(DimSpec(ranges=self.ranges))


class NodeRewrite(Rewrite):
    """Base of the rewrites that look at one node after the other, each with its first input and its first output.

    Attributes:
        operators: The operators of the nodes that they look at, with their domain unless it is onnx's.
    """

    operators: ClassVar[tuple[str, ...]]

    def edit(self, editor: Editor) -> None:
        for node in editor.nodes(*self.operators):
            if node.inputs and node.inputs[0] is not None and node.outputs and node.outputs[0] is not None:
                try:
                    self.edit_node(editor, node)
                except (MatchFailure, ModelError) as failure:
                    editor.decline_failed(node, failure)

    @abstractmethod
    def edit_node(self, editor: Editor, node: Node) -> None:
        """Record the change of a node in the editor; MatchFailure where the node stays."""


def describe_counts(counts: Counts) -> tuple[PassChange, ...]:
    """Return the counted rewrites, a sentence each."""
    return tuple(PassChange(count_things(count, text), name) for (name, text), count in counts.items())


def run_to_fixpoint(
    model: Model,
    rewrites: Sequence[Rewrite],
    spec: DimSpec = AS_DECLARED,
    counts: Counts | None = None,
    *,
    last: Sequence[Rewrite] = (),
    keep_fusions: bool = False,
) -> Outcome:
    """Run rewrites, in the order in which they may take nodes, together until none changes anything.

    The `last` run in a round in which the others change nothing. The counts of this run are added to those of earlier
    ones. With `keep_fusions`, the nodes stay that fusions of onnxruntime look for. Dead code goes if anything has
    changed; declined is what the last round declined. A model that cannot run, according to the shape engine, stays
    unchanged, because its shapes may be wrong. The same holds for a body that cannot run, such as the first-step branch
    at the dims of a later step; the rest is rewritten.
    """
    counts = Counter() if counts is None else counts
    if (without := without_outputs(model)) is not None:
        return Outcome(model, describe_counts(counts), (without,))
    declined: list[Declined] = []
    for _ in range(MAX_ROUNDS):
        editor = Editor(model, spec, keep_fusions=keep_fusions)
        if contradictions := editor.shapes.contradictions:
            why = "nothing is rewritten, because the shapes of the model contradict each other: "
            declined = [Declined(finding.node, why + finding.message) for finding in contradictions]
            break
        for group in (rewrites, last):
            for rewrite in () if editor.is_changed else group:
                check_time()
                before = Counter(editor.changes)
                rewrite.edit(editor)
                counts.update({(rewrite.name(), text): n for text, n in (editor.changes - before).items()})
        why = "is left unchanged, because it cannot run at these dims: "
        bodies = editor.shapes.impossible.items()
        declined = [Declined(body.path, f"{why}{finding.message} ('{finding.node}')") for body, finding in bodies]
        declined += editor.declined
        if not editor.is_changed:
            break
        model = editor.result(clean=True)
    return Outcome(model, describe_counts(counts), tuple(declined))
