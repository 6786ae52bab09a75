"""What rules have said of nodes, so that a node like another one, with the same facts of its inputs, is inferred once.

Models have many layers, and are inferred after each change. A rule sees nothing of a node but its attributes and these
facts; where it tells a name, or makes a symbol, nothing is kept. Tensors of the same facts are one here.
"""

from __future__ import annotations

from collections.abc import Hashable, Sequence
from dataclasses import dataclass
from typing import Any

from graphkit.graph.view import Node
from graphkit.ops.registry import forget_on_registration
from graphkit.ops.rule_context import InferenceContext, Notes, Rule
from graphkit.ops.tensor import Tensor
from graphkit.symbolic.expr import Expr
from graphkit.symbolic.relations import Relation, Requirement

MAX_KNOWN = 1 << 15
MAX_COMPARED, COMPARED = 64, frozenset({int, Expr})  # elements: floats have signs of zeros
UNLIKE = ("Constant", "ConcatFromSequence")  # may hold much; asks another rule


@dataclass(frozen=True)
class Known:
    """What a rule says: of the outputs, and of what must hold; the inputs keep their identity as long as it is kept."""

    inputs: Sequence[Tensor | None]
    results: Sequence[Tensor]
    notes: Sequence[tuple[int, Any]]  # in which list of the notes

    def repeat(self, node: Node, notes: Notes) -> Sequence[Tensor]:
        """Note of a node what the rule noted of another one, and return its outputs."""
        for at, noted in self.notes:
            is_relation = isinstance(noted, Relation)
            again = Requirement(noted.left, noted.relation, noted.right, node) if is_relation else (node, noted)
            notes.lists[at].append(again)
        return self.results


KNOWN_RESULTS: dict[Hashable, Known] = {}
_TENSORS: dict[Hashable, Tensor] = {}
forget_on_registration(KNOWN_RESULTS.clear)


def share_tensor(tensor: Tensor) -> Tensor:
    """Return the one tensor of these facts."""
    key: Hashable = None
    if type(tensor) is Tensor and not tensor.may_have_data:
        key = tensor.dtype, tensor.dims, tensor.reason
    elif type(tensor) is Tensor and not tensor.is_unread and (data := tensor.data) is not None:
        elements = tuple(data.ravel().tolist()) if data.size <= MAX_COMPARED else (None,)
        if COMPARED.issuperset(kinds := tuple(map(type, elements))):
            key = tensor.dtype, tensor.dims, tensor.reason, data.shape, elements, kinds
    if key is None:
        return tensor
    if len(_TENSORS) >= MAX_KNOWN:
        _TENSORS.clear()
    return _TENSORS.setdefault(key, tensor)


def result_key(rule: Rule, node: Node, inputs: Sequence[Tensor | None]) -> Hashable | None:
    """Return all that a rule of graphkit's own sees of a node; None for rules that see more."""
    if node.op_type in UNLIKE or not str(getattr(rule, "__module__", "")).startswith("graphkit.ops."):
        return None
    return rule, node.signature, *map(id, inputs)


def keep_results(
    key: Hashable, ctx: InferenceContext, results: Sequence[Tensor], symbols: int, mark: Sequence[int]
) -> None:
    """Keep what a rule said beyond some symbols and a mark of the notes, unless that names something of its node."""
    notes = ctx.notes
    if ctx.is_named or len(notes.reasons) > symbols or len(notes.findings) > mark[0]:
        return
    given = [each for each in ctx.inputs if each is not None]
    reasons = {"", *(each.reason for each in given)}
    if any(type(each) is not Tensor or each.is_unread for each in (*given, *results)):
        return  # it would keep its model
    if all(each.reason in reasons for each in results):
        noted = [(at, _without_node(each)) for at, listed in enumerate(notes.lists) for each in listed[mark[at] :]]
        if len(KNOWN_RESULTS) >= MAX_KNOWN:
            KNOWN_RESULTS.clear()
        KNOWN_RESULTS[key] = Known(tuple(ctx.inputs), results, noted)


def _without_node(noted: Any) -> Any:
    is_relation = isinstance(noted, Requirement)
    return Relation(noted.left, noted.relation, noted.right) if is_relation else noted[1]
