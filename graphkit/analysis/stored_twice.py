"""Weights that a model stores twice, as they are or transposed: an embedding, and the head that is tied to it."""

from __future__ import annotations

from collections.abc import Iterable, Iterator

import numpy as np
import onnx

from graphkit.analysis.findings import Finding
from graphkit.graph.view import as_text
from graphkit.io.byte_source import source_of
from graphkit.model import Model
from graphkit.render.document_blocks import size_text

PLACES, FIRST = 64, 4  # elements that are read of each matrix, and those that must be equal before the others are
TELLING = 8  # numbers among them that differ, without which they say nothing
BLOCK = 1024  # columns
STEPS = 2654435761, 40503  # that spread the places over rows and columns


def find_stored_twice(
    model: Model, matrices: Iterable[tuple[onnx.TensorProto, int]], *, reads_all: bool = False
) -> Iterator[Finding]:
    """Yield which of some matrices in files, given with their bytes, are stored twice.

    A few elements are read, and all of those that agree in these where that is asked for; nothing where a data file is
    missing, or on a server.
    """
    groups: dict[tuple[int, int, int], dict[object, onnx.TensorProto]] = {}
    for tensor, size in matrices:
        place = tuple(sorted((entry.key, entry.value) for entry in tensor.external_data))
        most, least = sorted(tensor.dims, reverse=True)
        if size in (most * least * width for width in (1, 2, 4, 8)):
            groups.setdefault((tensor.data_type, most, least), {}).setdefault(place, tensor)
    several = {key: list(members.values()) for key, members in groups.items() if len(members) > 1}
    if not several or any(data.size is None for data in model.source.data_files):
        return
    if not all(source_of(path).is_local for path in model.files):
        return
    for (_, most, least), members in several.items():
        alike = [members]
        for count in (FIRST, PLACES):
            alike = [same for group in alike for same in _group_by_elements(model, group, count) if len(same) > 1]
        for one, *others in alike:
            equal = [other for other in others if not reads_all or _are_equal(model, one, other)]
            if equal:
                yield _make_finding(one, equal, most * least * _element_bytes(model, one).itemsize, reads_all=reads_all)


def _group_by_elements(model: Model, members: list[onnx.TensorProto], count: int) -> list[list[onnx.TensorProto]]:
    """Return the matrices that agree in some elements, which are not all one number where they are many."""
    groups: dict[bytes, list[onnx.TensorProto]] = {}
    for tensor in members:
        array = _element_bytes(model, tensor)
        numbers = np.arange(1, count + 1)
        found = array[numbers * STEPS[0] % array.shape[0], numbers * STEPS[1] % array.shape[1]]
        if count < PLACES or len(np.unique(found)) >= TELLING:
            groups.setdefault(found.tobytes(), []).append(tensor)
    return list(groups.values())


def _element_bytes(model: Model, tensor: onnx.TensorProto) -> np.ndarray:
    """Return the bytes of each element of a matrix, whose longer side comes first."""
    payload, rows, columns = model.payload(tensor), *tensor.dims
    array = np.frombuffer(payload, f"u{len(payload) // (rows * columns)}").reshape(rows, columns)
    return array if rows >= columns else array.T


def _are_equal(model: Model, one: onnx.TensorProto, other: onnx.TensorProto) -> bool:
    a, b = _element_bytes(model, one), _element_bytes(model, other)
    return all(np.array_equal(a[at : at + BLOCK], b[at : at + BLOCK]) for at in range(0, len(a), BLOCK))


def _make_finding(one: onnx.TensorProto, equal: list[onnx.TensorProto], size: int, *, reads_all: bool) -> Finding:
    others = [f"{'' if each.dims == one.dims else 'transposed '}'{as_text(each.name)}'" for each in equal]
    wasted, first = size_text(size * len(equal), "B"), as_text(one.name)
    sure = "" if reads_all else f" (as far as {PLACES} of its elements tell; --hash reads all)"
    text = f"The weight '{first}' is stored again as {', '.join(others)}, which takes {wasted}{sure}."
    key = "x".join(map(str, sorted(one.dims)))
    return Finding("stored-twice", f"{wasted}, '{first}' as {others[0]}", text, key, len(equal))
