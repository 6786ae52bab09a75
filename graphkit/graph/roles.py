"""Roles: the purpose of each input and output of a model, and the meaning of each axis of its inputs.

`Model.roles` finds them once for each model.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from functools import cached_property
from typing import Literal

from onnx import TensorProto

from graphkit.graph.kv import CacheEntry
from graphkit.graph.merged import MergedDecoder
from graphkit.graph.recurrent import StateEntry
from graphkit.graph.types import Dim, TensorType, declared_dims, declared_type
from graphkit.graph.view import Value, unwrapped

__all__ = ["MASKS", "Axis", "Role", "Roles", "dim_at", "may_be_pixels", "rank"]

Role = Literal[
    "tokens", "embeddings", "mask", "positions", "token types",
    "encoder tokens", "encoder mask", "encoder state",
    "image", "image mask", "audio",
    "past", "present", "state", "next state", "condition", "logits", "other",
]  # fmt: skip
Axis = Literal["batch", "sequence", "past", "encoder", "total", "channels", "space", "other"]

MASKS: tuple[Role, ...] = ("mask", "encoder mask", "image mask")


@dataclass(frozen=True, eq=False)
class Roles:
    """The roles of a model's inputs and outputs.

    Attributes:
        inputs: The role of each input without a default. "tokens", "mask" and so on are the model's own: those of an
            encoder in an encoder, those of the decoder in a decoder, whose "encoder mask" is that of cross-attention.
        outputs: The role of each output; an "encoder state" is what a decoder takes.
        cache: The KV cache: which past goes with which present, of which layer.
        merged: The Ifs that hold both steps of a decoder.
        states: The recurrent state: which input each output replaces.
    """

    inputs: Mapping[Value, Role]
    outputs: Mapping[Value, Role]
    cache: tuple[CacheEntry, ...]
    merged: tuple[MergedDecoder, ...]
    states: tuple[StateEntry, ...] = ()

    def of(self, value: Value) -> Role:
        """Return the role of an input or output, "other" for any other value."""
        return self.inputs.get(value) or self.outputs.get(value) or "other"

    def all(self, *roles: Role) -> tuple[Value, ...]:
        """Return the inputs of some roles, in their order."""
        return tuple(value for value, role in self.inputs.items() if role in roles)

    def first(self, role: Role) -> Value | None:
        """Return the first input of a role, None if there is none."""
        return next(iter(self.all(role)), None)

    @cached_property
    def pasts(self) -> Mapping[Value, CacheEntry]:
        """The inputs that are a cache, and the entry of each."""
        return {entry.past: entry for entry in self.cache if entry.past is not None}

    @property
    def decoder(self) -> MergedDecoder | None:
        """The first If that holds both steps of a decoder."""
        return self.merged[0] if self.merged else None

    @cached_property
    def empty(self) -> tuple[Value, ...]:
        """The outputs of a merged decoder that have no elements once it reads the past."""
        return tuple(value for found in self.merged for value in found.zero_length)

    @property
    def logits(self) -> Value | None:
        """The first output that is logits."""
        return next((value for value, role in self.outputs.items() if role == "logits"), None)

    def is_cross(self, entry: CacheEntry) -> bool:
        """Whether a cache tensor belongs to cross-attention: by its name, or because later steps do not change it."""
        if entry.slot.attention or entry.present is None:
            return entry.slot.attention == "encoder" or entry.present in self.empty
        return entry.present in self.empty or unwrapped(entry.present, ("Identity",)) is entry.past

    def spans_past(self, value: Value) -> bool:
        """Whether an input is a mask over past and new tokens, whatever length an exporter declares it to have."""
        grows = any(entry.axis is not None and not self.is_cross(entry) for entry in self.pasts.values())
        return grows and self.inputs.get(value) == "mask" and rank(value) == 2

    def axis(self, value: Value, at: int) -> Axis:
        """Return the meaning of an axis of an input."""
        dims, dim = declared_dims(value) or (), dim_at(value, at)
        if (entry := self.pasts.get(value)) is not None:
            return self._cache_axis(entry, dims, at)
        role, last = self.inputs.get(value, "other"), len(dims) - 1
        if role == "state":
            return "other" if isinstance(dim, int) else "batch"
        if "batch" in str(dim) or (at == 0 and not (last == 0 and self._is_sequence(dim))):
            return "batch"
        if role in ("encoder mask", "mask"):
            return self._mask_axis(role, dim) if at == last else "sequence" if at == last - 1 else "other"
        if role == "image mask":
            return "space"
        if at == 1 and (role.startswith("encoder") or "encoder" in str(dim)):
            return "encoder"
        if role in ("tokens", "positions", "token types", "embeddings"):
            return "sequence" if at == (1 if role == "embeddings" else last) else "other"
        declared = declared_type(value)
        if role in ("image", "other") and last == 3 and declared is not None and may_be_pixels(declared):
            return "channels" if at == 1 else "space"
        return "other"

    def _cache_axis(self, entry: CacheEntry, dims: tuple[Dim, ...], at: int) -> Axis:
        if at == entry.axis:
            return "encoder" if self.is_cross(entry) else "past"
        named = [axis for axis, dim in enumerate(dims) if "batch" in str(dim)]
        open_ones = [axis for axis, dim in enumerate(dims) if not isinstance(dim, int) and axis != entry.axis]
        return "batch" if at in (named or open_ones[:1]) else "other"

    def _mask_axis(self, role: Role, dim: Dim) -> Axis:
        """Return the meaning of the last axis of a mask. The axis before it counts the new tokens, as in the scores."""
        if role == "encoder mask" or "encoder" in str(dim):
            return "encoder"
        return "sequence" if not self.pasts and self._is_sequence(dim) else "total"

    def _is_sequence(self, dim: Dim) -> bool:
        """Whether a dim is declared as that of the new tokens."""
        return dim is not None and any(dim_at(value, 1) == dim for value in self.all("tokens", "embeddings"))


def may_be_pixels(declared: TensorType) -> bool:
    """Whether a tensor has a dtype that images have."""
    return declared.is_float or declared.dtype == TensorProto.UINT8


def dim_at(value: Value | None, axis: int | None) -> Dim:
    """Return a declared dim of a value, None if it is not declared."""
    dims = declared_dims(value) if value is not None else None
    return dims[axis] if dims is not None and axis is not None and -len(dims) <= axis < len(dims) else None


def rank(value: Value) -> int | None:
    """Return the declared rank of a value."""
    declared = declared_type(value)
    return None if declared is None else declared.rank
