"""A model at a glance: its display in a notebook."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import ClassVar

import onnx

from graphkit.errors import count_things
from graphkit.graph.declared_types import type_text
from graphkit.graph.names import family_labels, family_pattern, group_pairs, join_words
from graphkit.graph.view import Scope, Value, all_nodes, as_text
from graphkit.io.tensors import payload_size, walk_tensors
from graphkit.render.document_blocks import Block, Prose, table
from graphkit.render.result import Result

SHOWN_OPERATORS = 5
SHOWN_PORTS = 12


@dataclass(frozen=True)
class Glance(Result):
    """A few lines about a model."""

    title: ClassVar[str] = "Model"
    name: str
    origin: str  # its opset and its producer
    nodes: str  # how many nodes there are, of which operators most
    weights: str  # how many tensors there are, and their bytes
    ports: tuple[tuple[str, str, str, str], ...]  # `input` or `output`, the names of a family, dtype and shape

    def heading(self) -> str:
        """Return the name of the model."""
        return self.name

    def blocks(self) -> Iterator[Block]:
        """Yield the blocks to show, in order."""
        yield Prose(f"{self.origin}. {self.nodes}. {self.weights}.")
        yield table(" | Name:code | Dtype | Shape:code", self.ports[:SHOWN_PORTS])
        if len(self.ports) > SHOWN_PORTS:
            yield Prose(f"... and {len(self.ports) - SHOWN_PORTS:,} more.")


def make_glance(name: str, proto: onnx.ModelProto, scopes: tuple[Scope, ...]) -> Glance:
    """Return a few lines about a model, from its weightless proto and the view of it."""
    opsets = [f"{as_text(entry.domain) or 'opset'} {entry.version}" for entry in proto.opset_import]
    producer = f"{as_text(proto.producer_name)} {as_text(proto.producer_version)}".strip()
    operators = Counter(node.op_type for node in all_nodes(scopes)).most_common()
    most = [f"{count:,} {operator}" for operator, count in operators[:SHOWN_OPERATORS]]
    others = len(operators) - len(most)
    most += [count_things(others, "other operator(s)")] if others else []
    tensors = [tensor for tensor, _ in walk_tensors(proto)]
    size = sum(payload_size(tensor) or 0 for tensor in tensors)
    ports = [*_port_rows("input", scopes[0].inputs), *_port_rows("output", scopes[0].outputs)]
    return Glance(
        name,
        f"{', '.join(opsets) or 'No opset'}{f', made by {producer}' if producer else ''}",
        f"{count_things(sum(count for _, count in operators), 'node(s)')}{f': {join_words(most)}' if most else ''}",
        f"{count_things(len(tensors), 'constant tensor(s)')}, {size:,} bytes",
        tuple(ports),
    )


def _port_rows(kind: str, values: Sequence[Value]) -> Iterator[tuple[str, str, str, str]]:
    infos = ((value.name, value.scope.infos.get(value.name)) for value in values)
    types = ((name, ("?", "?") if info is None else type_text(info.type)) for name, info in infos)
    families = group_pairs(((family_pattern(name), *texts), name) for name, texts in types)
    for (_, dtype, shape), names in families.items():
        yield kind, family_labels(names), dtype, shape
