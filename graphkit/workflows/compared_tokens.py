"""The tokens that a model treats as no others: those that it compares its ids with."""

from __future__ import annotations

from collections.abc import Iterator

import numpy as np

from graphkit.graph.view import all_nodes
from graphkit.model import Model
from graphkit.passes.npu.extract_embedding import id_input
from graphkit.shapes import infer
from graphkit.shapes.tensor import number

__all__ = ["compared_tokens", "placed"]

COMPARING = ("Equal", "Greater", "GreaterOrEqual", "Less", "LessOrEqual")


def compared_tokens(model: Model) -> list[int]:
    """Return the constants with which a model compares its token ids, in node order."""
    shapes, found = infer(model), dict[int, None]()
    for node in all_nodes(model.scopes):
        if not node.is_op(*COMPARING):
            continue
        pair = node.input(0), node.input(1)
        for value, other in (pair, pair[::-1]):
            ids = id_input(value)
            if ids is None or model.roles.of(ids) not in ("tokens", "encoder tokens") or other is None:
                continue
            data = shapes[other].data
            for element in data.ravel() if data is not None else ():
                if (token := number(element)) is not None and token >= 0:
                    found[token] = None
    return list(found)


def placed(token: int, ids: np.ndarray) -> Iterator[np.ndarray]:
    """Yield tokens with one of them at the first, a middle and the last place, twice, and not at all."""
    last = len(ids) - 1
    without = np.where(ids == token, token + 1 if token == 0 else token - 1, ids)
    yield without
    for places in ((0,), (last // 2,), (last,), (last // 3, last), (0, last // 2)):
        row = without.copy()
        row[list(places)] = token
        yield row
