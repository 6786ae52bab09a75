"""Notes that differ, of single nodes, weights, inputs and outputs: doc strings, metadata, denotations, quantisation."""

from __future__ import annotations

from collections import Counter
from collections.abc import Hashable, Iterable, Iterator, Mapping
from typing import Any

import onnx

from graphkit.graph.view import Value, as_text
from graphkit.model import Model
from graphkit.model_diff.changed_texts import changed_entries, props
from graphkit.model_diff.changes import NoteChange
from graphkit.model_diff.node_matching import NodeMatching
from graphkit.model_diff.weight_changes import tensor_of, value_path

__all__ = ["note_changes"]

Pairs = Iterable[tuple[Value, Value]]


def note_changes(matching: NodeMatching, weights: Pairs, a: Model, b: Model) -> Iterator[NoteChange]:
    """Yield the notes that differ of what both models have, one for each note.

    Args:
        matching: The nodes, inputs and outputs that match.
        weights: The constants that do.
        a: A model.
        b: The other one.
    """
    for kind, ends in (("input", matching.interface.inputs), ("output", matching.interface.outputs)):
        for value_a, value_b in ends:
            yield from _of(kind, value_a.name, _port_notes(value_a), _port_notes(value_b))
    for value_a, value_b in weights:
        first, second = tensor_of(value_a), tensor_of(value_b)
        if first is not None and second is not None:
            yield from _of("weight", value_path(value_a), _notes(first), _notes(second))
    for node, twin in matching.forth.items():
        yield from _of("node", node.path, _notes(node.proto), _notes(twin.proto))
    yield from _quantization_changes(matching, a, b)


def _of(kind: str, name: str, before: Mapping[str, str], after: Mapping[str, str]) -> Iterator[NoteChange]:
    if before != after:
        for change in changed_entries(before, after):
            note = change.what
            yield NoteChange(f"{note} of {kind} '{name}'", change.before, change.after, note=note, of=kind)


def _notes(message: Any) -> dict[str, str]:
    """Return the doc string and the metadata of a node or a tensor."""
    doc = {"doc string": as_text(message.doc_string)} if message.doc_string else {}
    return doc | {f"metadata '{key}'": text for key, text in props(message.metadata_props).items()}


def _port_notes(value: Value) -> dict[str, str]:
    """Return the metadata and the denotations of an input or output; the interface has its doc string."""
    info = value.scope.infos.get(value.name)
    if info is None:
        return {}
    dims = info.type.tensor_type.shape.dim if info.type.HasField("tensor_type") else ()
    denotations = {"denotation": info.type.denotation}
    denotations |= {f"denotation of dim {axis}": dim.denotation for axis, dim in enumerate(dims)}
    notes = {f"metadata '{key}'": text for key, text in props(info.metadata_props).items()}
    return notes | {name: as_text(text) for name, text in denotations.items() if text}


def _quantization_changes(matching: NodeMatching, a: Model, b: Model) -> Iterator[NoteChange]:
    """Yield the tensors whose quantisation is annotated in another way, whatever they and its tensors are called."""
    mine, theirs = (_annotations(model, matching) for model in (a, b))
    for token in dict.fromkeys([*mine, *theirs]):
        before, after = mine.get(token, []), theirs.get(token, [])
        if Counter(said for said, _ in before) != Counter(said for said, _ in after):
            name = (before or after)[0][1].tensor_name
            was, now = (", ".join(map(_annotation_text, annotations)) or None for annotations in (before, after))
            note = "quantization annotation"
            yield NoteChange(f"{note} of '{as_text(name)}'", was, now, note=note, of="tensor")


Annotated = tuple[frozenset[tuple[str, Hashable]], onnx.TensorAnnotation]  # what it says, and itself


def _annotations(model: Model, matching: NodeMatching) -> dict[Hashable, list[Annotated]]:
    """Return the annotations by the tensors that they are for, those of A as the tensors of B that they are."""

    def token(name: str) -> Hashable:
        value = model.graph.find(name)
        if value is None:
            return name
        twin = matching.values.forth.get(value, value)
        return twin if twin in matching.values.back else matching.values.numbers.value(value)

    annotations: dict[Hashable, list[Annotated]] = {}
    for each in model.proto.graph.quantization_annotation:
        said = frozenset((as_text(e.key), token(e.value)) for e in each.quant_parameter_tensor_names)
        annotations.setdefault(token(each.tensor_name), []).append((said, each))
    return annotations


def _annotation_text(annotated: Annotated) -> str:
    return ", ".join(f"{key} '{name}'" for key, name in props(annotated[1].quant_parameter_tensor_names).items())
