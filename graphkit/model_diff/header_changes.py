"""Differences beside nodes and weights: inputs, outputs, operator sets, functions, metadata."""

from __future__ import annotations

import zlib
from collections.abc import Iterator, Sequence
from typing import Any

import onnx
from google.protobuf.descriptor import FieldDescriptor
from google.protobuf.message import Message

from graphkit.graph.declared_types import type_text
from graphkit.graph.names import counted
from graphkit.graph.view import Value, as_text
from graphkit.matching.change import Change
from graphkit.model import Model
from graphkit.model_diff.changed_texts import changed_entries, props, shortened
from graphkit.model_diff.interface_matching import InterfaceMatching
from graphkit.model_diff.node_matching import function_keys

__all__ = ["interface_changes", "metadata_changes", "opset_changes"]

TOLD = {"graph", "functions", "opset_import"}  # fields of a model that other sections tell of
TOLD_OF_GRAPH = {
    *("node", "initializer", "sparse_initializer", "input", "output", "value_info"),
    "quantization_annotation",  # which is told for each tensor
}


def interface_changes(a: Model, b: Model, matching: InterfaceMatching) -> Iterator[Change]:
    """Yield the inputs and outputs that differ: in name, dtype, dims, order, doc string, or by having a default."""
    for kind in ("input", "output"):
        pairs = dict(matching.inputs if kind == "input" else matching.outputs)
        mine, theirs = (model.graph.inputs if kind == "input" else model.graph.outputs for model in (a, b))
        for value_a in dict.fromkeys(mine):
            yield from _port_changes(value_a, pairs.get(value_a), kind)
        twins = set(pairs.values())
        for value_b in dict.fromkeys(theirs):
            if value_b not in twins:
                yield Change(f"{kind} '{value_b.name}'", None, shortened(_port(value_b, kind)))
        orders = (
            [pairs[value_a] for value_a in mine if value_a in pairs],
            [value_b for value_b in theirs if value_b in twins],
        )
        if orders[0] != orders[1]:
            yield Change(
                f"order of {kind}s",
                *(shortened(", ".join(f"'{value_b.name}'" for value_b in order)) for order in orders),
            )


def _port_changes(value_a: Value, value_b: Value | None, kind: str) -> Iterator[Change]:
    """Yield how an input or output differs; one that was renamed has both names."""
    before, after = _port(value_a, kind), None if value_b is None else _port(value_b, kind)
    is_renamed = value_b is not None and value_a.name != value_b.name
    if is_renamed or before != after:
        name = f"'{value_a.name}' -> '{value_b.name}'" if value_b is not None and is_renamed else f"'{value_a.name}'"
        yield Change(f"{kind} {name}", shortened(before), shortened(after))


def _port(value: Value, kind: str) -> str:
    scope = value.scope
    info = scope.infos.get(value.name)
    dtype, shape = type_text(info.type) if info is not None else ("?", "?")
    has_default = kind == "input" and (value.tensor is not None or value.sparse is not None)
    doc = as_text(info.doc_string) if info is not None else ""
    return f"{dtype}{shape}{' with a default' if has_default else ''}{f' {doc!r}' if doc else ''}"


def opset_changes(a: Model, b: Model) -> Iterator[Change]:
    """Yield the versions of operator sets that differ, and the functions that one model lacks or declares otherwise."""
    yield from changed_entries(_opsets(a.proto.opset_import), _opsets(b.proto.opset_import))
    yield from changed_entries(_functions(a), _functions(b))


def _opsets(imports: Any) -> dict[str, str]:
    return {as_text(entry.domain) or "ai.onnx": str(entry.version) for entry in imports}


def _functions(model: Model) -> dict[str, str]:
    keys = function_keys(model)
    return {
        f"function '{'.'.join(filter(None, map(as_text, key)))}'": _signature(function)
        for key, function in zip(keys, model.proto.functions, strict=False)
    }


def _signature(function: onnx.FunctionProto) -> str:
    parts = [counted(len(function.input), "input(s)"), counted(len(function.output), "output(s)")]
    names = [*function.attribute, *(attribute.name for attribute in function.attribute_proto)]
    if names:
        parts.append(f"attributes {', '.join(map(as_text, names))}")
    parts += [f"{domain} {version}" for domain, version in _opsets(function.opset_import).items()]
    return ", ".join(parts)


def metadata_changes(a: Model, b: Model) -> Iterator[Change]:
    """Yield the notes of models and their graphs that differ: producer, versions, doc strings, metadata."""
    yield from changed_entries(dict(_notes(a.proto, TOLD)), dict(_notes(b.proto, TOLD)))
    graphs = [{f"graph {name}": text for name, text in _notes(m.proto.graph, TOLD_OF_GRAPH)} for m in (a, b)]
    yield from changed_entries(*graphs)


def _notes(message: Message, without: set[str]) -> Iterator[tuple[str, str]]:
    """Yield the fields of a message as texts; metadata by key."""
    for field, value in message.ListFields():
        if field.name in without:
            continue
        if field.name == "metadata_props":
            yield from ((f"metadata '{key}'", text) for key, text in props(value).items())
        elif field.type == FieldDescriptor.TYPE_MESSAGE:
            parts = value if isinstance(value, Sequence) or hasattr(value, "__len__") else [value]
            yield field.name, _content(parts)
        else:
            yield field.name, as_text(value) if isinstance(value, str | bytes) else str(value)


def _content(parts: Any) -> str:
    """Return a text that tells messages apart: how many there are, and a checksum of what they say."""
    content = b"".join(part.SerializeToString(deterministic=True) for part in parts)
    return f"{counted(len(parts), 'entry(s)').replace('entrys', 'entries')}, checksum {zlib.crc32(content):08x}"
