"""Where a difference between lowered models and an export begins: the first node that gives another tensor."""

from __future__ import annotations

from collections.abc import Collection, Mapping

import numpy as np

from graphkit.errors import ModelError
from graphkit.graph.view import Value, all_scopes
from graphkit.model import Model
from graphkit.runtime.isolated import IsolatedSession
from graphkit.runtime.session import RunError
from graphkit.verify.lowering_scene import Differ
from graphkit.verify.parts import part_of

__all__ = ["first_node"]

Arrays = Mapping[str, np.ndarray]


def first_node(
    original: Model, feed: Arrays, lowered: Model, lowered_feed: Arrays, differ: Differ, *, is_padded: bool
) -> str:
    """Return the path of the first node of a lowered model that gives something else under a name of the original.

    Args:
        original: The model that was lowered.
        feed: Its inputs.
        lowered: The lowered model.
        lowered_feed: Its inputs.
        differ: Whether an array is not another.
        is_padded: Whether tensors of the lowered model may be longer, with padding behind.

    Returns:
        The path, "" where no tensor of one name differs.
    """
    mine = _floats(lowered, lowered_feed, lowered.graph.values, lowered.graph.values)
    theirs: dict[str, list[np.ndarray]] = {}
    for scope in all_scopes(original.scopes):  # the branches of a merged decoder have values of one name
        found = _floats(original, feed, mine, scope.values)
        for name, array in found.items():
            theirs.setdefault(name, []).append(array)

    def is_wrong(name: str) -> bool:
        pairs = [_cut(mine[name], right, is_padded=is_padded) for right in theirs[name]]
        return all(one.shape == two.shape and differ(one, two) for one, two in pairs)

    for node in lowered.graph.nodes:
        names = [value.name for value in node.outputs if value is not None]
        if any(name in mine and name in theirs and is_wrong(name) for name in names):
            return node.path
    return ""


def _cut(array: np.ndarray, right: np.ndarray, *, is_padded: bool) -> tuple[np.ndarray, np.ndarray]:
    """Return an array without its padding, and the one that it is to be."""
    if is_padded and array.ndim == right.ndim:
        array = array[tuple(slice(size) for size in right.shape)]
    return array, right


def _floats(model: Model, feed: Arrays, names: Collection[str], values: Mapping[str, Value]) -> dict[str, np.ndarray]:
    """Return the computed floating-point tensors of these names; nothing where they do not run."""
    wanted = [values[name] for name in values if name in names]
    wanted = [value for value in wanted if value.producer is not None and not value.producer.bodies]
    part = part_of(model, wanted) if wanted else None
    if part is None or any(value.name not in feed for value in part[1]):
        return {}
    try:
        with IsolatedSession(part[0], prepack=False) as session:
            found = session.run({value.name: feed[value.name] for value in part[1]})
    except (RunError, ModelError):
        return {}
    return {name: array for name, array in found.items() if array.dtype.kind == "f"}
