"""Recurrence in lowered models: state that a step replaces, and nodes that run over a source with its padding."""

from __future__ import annotations

from collections.abc import Iterator

from graphkit.errors import UsageError
from graphkit.graph.recurrent import RECURRENT
from graphkit.graph.view import Node, all_nodes
from graphkit.model import Model

__all__ = ["check_recurrence", "is_step"]

LENGTHS = 4  # the input of a recurrent node that has the length of each sequence


def is_step(model: Model) -> bool:
    """Whether a model runs token by token on recurrent state, which the host can keep."""
    return bool(model.roles.states and model.roles.all("tokens"))


def check_recurrence(model: Model) -> None:
    """Check that no padding reaches valid positions through a recurrence, and that steps give logits.

    Raises:
        UsageError: It does, or they do not, with the node and what to do.
    """
    roles = model.roles
    if is_step(model):
        if roles.logits is None:
            raise UsageError(
                f"{model.name}: it runs on recurrent state, '{roles.states[0].past.name}', and no output is known to "
                "be its logits - name it 'logits', or make a bundle of it: graphkit bundle"
            )
        return
    if roles.pasts or not roles.all("tokens", "encoder tokens"):
        return
    for node, problem in _over_padding(model):
        raise UsageError(
            f"{model.name}: '{node.label}' ({node.op_type}) {problem}: a recurrence over padding, which no mask keeps "
            "out. Texts shorter than the fixed length would be wrong - export it without padding, or with the lengths "
            f"of the sequences as sequence_lens of the {node.op_type}"
        )


def _over_padding(model: Model) -> Iterator[tuple[Node, str]]:
    """Yield recurrent nodes whose results at tokens that count depend on padding behind them, and how."""
    for node in all_nodes(model.scopes):
        if not node.is_op(*RECURRENT) or node.input(LENGTHS) is not None:
            continue
        direction = node.attr("direction", "forward")
        if direction != "forward":
            yield node, "begins at the end of the source"
        elif any(out is not None and (out.consumers or out in model.graph.outputs) for out in node.outputs[1:]):
            yield node, "gives its state at the end of the source"
