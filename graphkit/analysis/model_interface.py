"""Interface: the inputs and outputs of a model, with one row for each numbered family."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from typing import ClassVar

from graphkit.analysis.findings import Finding, Judged
from graphkit.graph.cache_entries import CacheEntry
from graphkit.graph.declared_types import Dim, declared_dims, shape_text, type_dims
from graphkit.graph.mask_polarity import POLARITIES
from graphkit.graph.name_families import family_label, family_pattern
from graphkit.graph.names import runs_of
from graphkit.graph.view import Scope, Value
from graphkit.model import ModelLike, as_model
from graphkit.render.document_blocks import Block, Prose, table

__all__ = ["Interface", "Port", "interface"]

# Meanings of the usual names; a doc string in the model goes before.
MEANINGS = {
    "input_ids": "token ids",
    "decoder_input_ids": "token ids of the decoder",
    "attention_mask": "1 for a token, 0 for padding",
    "encoder_attention_mask": "1 for a token of the encoder, 0 for padding",
    "decoder_attention_mask": "1 for a token of the decoder, 0 for padding",
    "position_ids": "position of each token",
    "token_type_ids": "segment of each token",
    "inputs_embeds": "embeddings in place of token ids",
    "encoder_hidden_states": "what the encoder gives as last_hidden_state",
    "encoder_outputs": "what the encoder gives as last_hidden_state",
    "last_hidden_state": "hidden state of each position",
    "pixel_values": "image",
    "pixel_mask": "1 for a pixel, 0 for padding",
    "input_features": "audio features",
    "input_values": "audio samples",
    "use_cache_branch": "whether to read the past: false on the first step",
    "use_cache": "whether to read the past: false on the first step",
    "logits": "scores before softmax",
    "pred_boxes": "boxes, relative to the image",
}


@dataclass(frozen=True)
class Port:
    """An input or output, or a family of them.

    Attributes:
        indices: Positions among the inputs or outputs.
        names: The names, in that order.
        label: The name, or the pattern of the family: `past_key_values.{0-17}.{key|value}`.
        dtype: Such as `float32`, or `seq(float32)`.
        shape: The dims: numbers, symbols, None for an unknown one, `*` where the family's members differ; None for an
            unknown rank.
        description: From the model's doc string, or the usual meaning of the name.
        optional: Whether it is an input with a default value.
    """

    indices: tuple[int, ...]
    names: tuple[str, ...]
    label: str
    dtype: str
    shape: tuple[Dim, ...] | None
    description: str
    optional: bool = False

    @property
    def index(self) -> str:
        """The positions as text: `3-38`, or `2-3,...,46-47`."""
        texts = [f"{run[0]}-{run[-1]}" if len(run) > 1 else f"{run[0]}" for run in runs_of(self.indices)]
        return ",".join(texts if len(texts) < 4 else [texts[0], "...", texts[-1]])


@dataclass(frozen=True)
class Interface(Judged):
    """Inputs and outputs of a model's main graph; initializers that are listed as inputs are `optional`.

    Attributes:
        inputs, outputs: The declarations of the model.
        contradictions: Where the nodes need other dims than are declared, in one sentence.
    """

    title: ClassVar[str] = "Interface"
    inputs: tuple[Port, ...]
    outputs: tuple[Port, ...]
    contradictions: tuple[str, ...] = ()

    def found(self) -> tuple[Finding, ...]:
        return tuple(Finding("declared-dims", text, text, text) for text in self.contradictions)

    @property
    def input_count(self) -> int:
        """How many inputs there are."""
        return sum(len(port.indices) for port in self.inputs)

    @property
    def output_count(self) -> int:
        """How many outputs there are."""
        return sum(len(port.indices) for port in self.outputs)

    def blocks(self) -> Iterator[Block]:
        sides = ("Inputs", self.input_count, self.inputs), ("Outputs", self.output_count, self.outputs)
        for name, count, ports in sides:
            if not count:
                yield Prose(f"{name}: none.")
                continue
            rows = [(p.index, p.label, p.dtype, shape_text(p.shape), _port_remark(p)) for p in ports]
            yield table("# | Name:code | Dtype | Shape:note | Description:note", rows, f"{name}: {count}")
        yield from (Prose(text, "warning") for text in self.contradictions)


def _port_remark(port: Port) -> str:
    return "; ".join(part for part in (port.description, "has a default" if port.optional else "") if part)


def interface(model: ModelLike) -> Interface:
    """Describe the inputs and outputs of a model.

    Returns:
        The inputs and outputs, a numbered family of them in one row.

    Example:
        >>> [port.label for port in graphkit.interface(graphkit.load("example:causal-attention")).inputs]
        ['input_ids']
    """
    model = as_model(model)
    cache = model.roles.cache
    contradictions: tuple[str, ...] = ()
    if model.roles.pasts:
        from graphkit.shapes import declarations  # which takes as long to import as all else here

        contradictions = declarations(model).notes
    meanings = {entry.past.name: _cache_meaning(entry, "past") for entry in cache if entry.past}
    meanings |= {entry.present.name: _cache_meaning(entry, "present") for entry in cache if entry.present}
    polarities = {value.name: polarity for value, polarity in model.roles.polarities.items() if polarity is not None}
    unusual = {name for name, polarity in polarities.items() if polarity != "keeps" or name not in MEANINGS}
    meanings |= {name: POLARITIES[polarities[name]] for name in unusual}
    meanings |= {entry.past.name: "recurrent state, from the step before" for entry in model.roles.states}
    meanings |= {entry.next.name: "recurrent state, for the next step" for entry in model.roles.states}
    return Interface(
        _make_ports(model.graph, model.graph.inputs, meanings),
        _make_ports(model.graph, model.graph.outputs, meanings),
        contradictions,
    )


def _cache_meaning(entry: CacheEntry, side: str) -> str:
    where = {"decoder": "self-attention ", "encoder": "cross-attention ", "": ""}[entry.slot.attention]
    what = "state" if entry.slot.kind == "state" else f"{where}KV cache"
    return f"{what}, from the step before" if side == "past" else f"{what}, for the next step"


def _make_ports(scope: Scope, values: Sequence[Value], meanings: dict[str, str]) -> tuple[Port, ...]:
    families: dict[tuple[object, ...], list[tuple[Port, tuple[Dim, ...] | None]]] = {}
    for index, value in enumerate(values):
        port = _make_port(scope, index, value, meanings)
        dims = declared_dims(value)
        fixed = port.shape if dims is None else tuple(dim if isinstance(dim, int) else "*" for dim in dims)
        pattern = family_pattern(port.label)
        key = (pattern, port.dtype, fixed, port.description, port.optional)
        families.setdefault(key if "\0" in pattern else (port.label,), []).append((port, dims))
    ports = [port for members in families.values() for port in _join_ports(members)]
    return tuple(sorted(ports, key=lambda port: port.indices[0]))


def _make_port(scope: Scope, index: int, value: Value, meanings: dict[str, str]) -> Port:
    info = scope.infos.get(value.name)
    dtype, shape = type_dims(info.type) if info is not None else ("?", None)
    doc = str(info.doc_string).strip() if info is not None else ""
    description = doc or meanings.get(value.name) or MEANINGS.get(value.name, "")
    optional = value.kind == "input" and value.tensor is not None
    return Port(
        indices=(index,),
        names=(value.name,),
        label=value.name,
        dtype=dtype,
        shape=shape,
        description=description,
        optional=optional,
    )


def _join_ports(members: list[tuple[Port, tuple[Dim, ...] | None]]) -> list[Port]:
    """Return one port for a family, or its members where they do not make one."""
    ports = [port for port, _ in members]
    label = family_label([port.label for port in ports])
    if len(ports) == 1 or label is None:
        return ports
    return [
        replace(
            ports[0],
            indices=tuple(index for port in ports for index in port.indices),
            names=tuple(name for port in ports for name in port.names),
            label=label,
            shape=_common_shape([dims for _, dims in members if dims is not None]),
        )
    ]


def _common_shape(shapes: list[tuple[Dim, ...]]) -> tuple[Dim, ...] | None:
    """Return the shape of a family, `*` where its members differ; None where none has a known rank."""
    columns = zip(*shapes, strict=True)
    return tuple(column[0] if len(set(column)) == 1 else "*" for column in columns) if shapes else None
