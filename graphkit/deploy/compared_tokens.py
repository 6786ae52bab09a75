"""The tokens that a model treats as no others: those that it compares its ids with."""

from __future__ import annotations

from collections.abc import Iterator

from graphkit.graph.uses import readers
from graphkit.graph.view import Node, Value, all_nodes
from graphkit.model import Model
from graphkit.passes.npu.extract_embedding import id_input
from graphkit.shapes import infer
from graphkit.shapes.tensor import Array, number

__all__ = ["compared_tokens", "padding_token"]

COMPARING = ("Equal", "Greater", "GreaterOrEqual", "Less", "LessOrEqual")


def compared_tokens(model: Model) -> list[int]:
    """Return the constants with which a model compares its token ids, in node order."""
    numbers = (number(element) for _, _, data in _comparisons(model) for element in data.ravel())
    return list(dict.fromkeys(token for token in numbers if token is not None and token >= 0))


def padding_token(model: Model) -> int | None:
    """Return the constant that a model looks for in its token ids to tell padding, None where it does not.

    A comparison whose place is looked for, such as that with an end-of-text token, tells nothing of padding.
    """
    for node, ids, data in _comparisons(model):
        is_of_tokens = node.is_op("Equal") and node.scope is model.graph and model.roles.of(ids) == "tokens"
        if not is_of_tokens or data.size != 1 or _is_looked_for(node.outputs[0]):
            continue
        if (token := number(data.item())) is not None:
            return token
    return None


def _comparisons(model: Model) -> Iterator[tuple[Node, Value, Array]]:
    """Yield the nodes that compare token ids with constants, the ids, and the constants."""
    shapes = infer(model)
    for node in all_nodes(model.scopes):
        if not node.is_op(*COMPARING):
            continue
        pair = node.input(0), node.input(1)
        for value, constants in (pair, pair[::-1]):
            ids = id_input(value)
            if ids is None or model.roles.of(ids) not in ("tokens", "encoder tokens") or constants is None:
                continue
            if (data := shapes[constants].data) is not None:
                yield node, ids, data


def _is_looked_for(value: Value | None) -> bool:
    uses = readers(value, lambda node, _: node.is_op("Cast")) if value is not None else ()
    return any(node.is_op("ArgMax") for node, _ in uses)
