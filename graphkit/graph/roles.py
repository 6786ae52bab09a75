"""Roles: what each input and output of a model is for, and what each axis of its inputs counts.

What the nodes do with an input goes first, then its dtype and rank, then its name; what none of these tells is
"other". An input that looks rows up may be tokens, positions or token types, and only its name says which.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from typing import Literal

from onnx import TensorProto

from graphkit.graph.kv import CROSS, CacheEntry, cache_entries, tokens
from graphkit.graph.merged import MergedDecoder, merged_decoders
from graphkit.graph.types import Dim, TensorType, declared_type
from graphkit.graph.uses import Use, lookups, table_entries, uses
from graphkit.graph.view import Scope, Value

__all__ = ["MASKS", "Axis", "Role", "Roles", "find_roles"]

Role = Literal[
    "tokens", "embeddings", "mask", "positions", "token types",
    "encoder tokens", "encoder mask", "encoder state",
    "image", "image mask", "audio",
    "past", "present", "condition", "logits", "other",
]  # fmt: skip
Axis = Literal["batch", "sequence", "past", "encoder", "total", "channels", "space", "other"]

MASKS: tuple[Role, ...] = ("mask", "encoder mask", "image mask")
MAX_STEPS = 8
INTEGERS = {TensorProto.INT32, TensorProto.INT64}
IMAGE = re.compile(r"pixel_values|image|img", re.IGNORECASE)
AUDIO = ("input_features", "input_values", "audio")
MASK_WORDS = {"mask", "masks"}
STATE_WORDS = {"hidden", "output", "outputs", "state", "states", "embeds"}
OF_ENCODER: Mapping[Role, Role] = {"tokens": "encoder tokens", "embeddings": "encoder state", "mask": "encoder mask"}
OF_MODEL: Mapping[Role, Role] = {"encoder tokens": "tokens", "encoder mask": "mask"}


@dataclass(frozen=True, eq=False)
class Roles:
    """What the inputs and outputs of a model are for.

    Attributes:
        inputs: The role of each input without a default. "tokens", "mask" and so on are the model's own: those of an
            encoder in an encoder, those of the decoder in a decoder, whose "encoder mask" is that of cross-attention.
        outputs: The role of each output; an "encoder state" is what a decoder takes.
        cache: The KV cache: which past goes with which present, of which layer.
        merged: The Ifs that hold both steps of a decoder.
    """

    inputs: Mapping[Value, Role]
    outputs: Mapping[Value, Role]
    cache: tuple[CacheEntry, ...]
    merged: tuple[MergedDecoder, ...]
    _pasts: Mapping[Value, CacheEntry] = field(init=False)
    _empty: tuple[Value, ...] = field(init=False)

    def __post_init__(self) -> None:
        object.__setattr__(self, "_pasts", {entry.past: entry for entry in self.cache if entry.past is not None})
        object.__setattr__(self, "_empty", tuple(out for found in self.merged for out in found.zero_length))

    def of(self, value: Value) -> Role:
        """Return the role of an input or output, "other" for any other value."""
        return self.inputs.get(value) or self.outputs.get(value) or "other"

    def all(self, *roles: Role) -> tuple[Value, ...]:
        """Return the inputs of some roles, in their order."""
        return tuple(value for value, role in self.inputs.items() if role in roles)

    def first(self, role: Role) -> Value | None:
        """Return the first input of a role, None where there is none."""
        return next(iter(self.all(role)), None)

    @property
    def pasts(self) -> Mapping[Value, CacheEntry]:
        """The inputs that are a cache, and what each is for."""
        return self._pasts

    @property
    def decoder(self) -> MergedDecoder | None:
        """The first If that holds both steps of a decoder."""
        return self.merged[0] if self.merged else None

    @property
    def empty(self) -> tuple[Value, ...]:
        """The outputs that a merged decoder gives without elements once it reads the past."""
        return self._empty

    @property
    def logits(self) -> Value | None:
        """The first output that is logits."""
        return next((value for value, role in self.outputs.items() if role == "logits"), None)

    def is_cross(self, entry: CacheEntry) -> bool:
        """Whether a cache tensor is of cross-attention: by its name, or because later steps do not change it."""
        if entry.slot.attention or entry.present is None:
            return entry.slot.attention == "encoder" or entry.present in self._empty
        return entry.present in self._empty or _unmoved(entry.present) is entry.past

    def spans_past(self, value: Value) -> bool:
        """Whether an input is a mask over past and new tokens, whatever length an exporter declares it to have."""
        grows = any(entry.axis is not None and not self.is_cross(entry) for entry in self._pasts.values())
        return grows and self.inputs.get(value) == "mask" and _rank(value) == 2

    def axis(self, value: Value, at: int) -> Axis:
        """Return what an axis of an input counts."""
        dims, dim = _dims(value) or (), _dim(value, at)
        if (entry := self._pasts.get(value)) is not None:
            return self._cache_axis(entry, dims, at)
        role, last = self.inputs.get(value, "other"), len(dims) - 1
        if "batch" in str(dim) or (at == 0 and not (last == 0 and self._is_sequence(dim))):
            return "batch"
        if role in ("encoder mask", "mask"):
            return self._mask_axis(role, dim) if at == last else "sequence" if at == last - 1 else "other"
        if at == 1 and (role.startswith("encoder") or "encoder" in str(dim)):
            return "encoder"
        if role in ("tokens", "positions", "token types", "embeddings"):
            return "sequence" if at == (1 if role == "embeddings" else last) else "other"
        declared = declared_type(value)
        if role in ("image", "other") and last == 3 and declared is not None and _may_be_pixels(declared):
            return "channels" if at == 1 else "space"
        return "other"

    def _cache_axis(self, entry: CacheEntry, dims: tuple[Dim, ...], at: int) -> Axis:
        if at == entry.axis:
            return "encoder" if self.is_cross(entry) else "past"
        named = [axis for axis, dim in enumerate(dims) if "batch" in str(dim)]
        open_ones = [axis for axis, dim in enumerate(dims) if not isinstance(dim, int) and axis != entry.axis]
        return "batch" if at in (named or open_ones[:1]) else "other"

    def _mask_axis(self, role: Role, dim: Dim) -> Axis:
        """Return what the last axis of a mask counts; that before it goes with the new tokens, as in the scores."""
        if role == "encoder mask" or "encoder" in str(dim):
            return "encoder"
        return "sequence" if not self._pasts and self._is_sequence(dim) else "total"

    def _is_sequence(self, dim: Dim) -> bool:
        """Whether a dim is declared as that of the new tokens."""
        return dim is not None and any(_dim(value, 1) == dim for value in self.all("tokens", "embeddings"))


def find_roles(main: Scope) -> Roles:
    """Return what the inputs and outputs of a model's main graph are for."""
    cache = cache_entries(main)
    merged = tuple(merged_decoders(main, cache))
    known: dict[Value, Role] = {found.condition.input: "condition" for found in merged}
    known |= {entry.past: "past" for entry in cache if entry.past is not None}
    inputs = {value: known.get(value) or _input_role(value) for value in main.inputs if value.tensor is None}
    inputs = _crossing(_with_tokens(_sided(inputs, has_cache=bool(cache))), cache)
    presents = {entry.present for entry in cache}
    outputs: dict[Value, Role] = {v: "present" if v in presents else _output_role(v) for v in main.outputs}
    return Roles(inputs, _with_logits(inputs, outputs), cache, merged)


def _input_role(value: Value) -> Role:
    """Return the role of one input, by what the nodes do with it, its dtype and rank, and its name."""
    declared = declared_type(value)
    if declared is None:
        return "other"
    if declared.is_float or declared.dtype in (TensorProto.UINT8, TensorProto.INT8):
        return _float_role(value, declared)
    found, words = uses(value), set(tokens(value.name))
    if declared.dtype == TensorProto.BOOL:
        is_mask = words & MASK_WORDS or ("mask" in found and _rank(value) in (2, 3, 4))
        return _mask_role(words) if is_mask else "other"
    return _integer_role(value, found, words) if declared.dtype in INTEGERS else "other"


def _integer_role(value: Value, found: frozenset[Use], words: set[str]) -> Role:
    if words & MASK_WORDS and not ("lookup" in found and "mask" not in found):
        return _mask_role(words)
    if words & {"position", "positions", "pos"} or (found == {"angle"} and "ids" not in words):
        return "positions"
    if _rank(value) == 0:
        return "other"
    if {"token", "type"} <= words or words & {"segment", "segments"}:
        return "token types"
    if re.search(r"(^|_)(ids|tokens)$", value.name, re.IGNORECASE) or {"input", "ids"} <= words:
        return "encoder tokens" if words & CROSS else "tokens"
    return _mask_role(words) if found == {"mask"} and _rank(value) == 2 else "other"


def _mask_role(words: set[str]) -> Role:
    if words & {"pixel", "pixels", "image", "images"}:
        return "image mask"
    return "encoder mask" if words & CROSS else "mask"


def _float_role(value: Value, declared: TensorType) -> Role:
    words, rank = set(tokens(value.name)), _rank(value)
    if words & MASK_WORDS:
        found = uses(value) if value.consumers else frozenset[Use]({"mask"})
        return _mask_role(words) if found & {"mask", "hidden"} else "other"
    if rank == 3 and declared.is_float:
        if words & CROSS and words & STATE_WORDS:
            return "encoder state"
        if words & {"input", "inputs"} and words & {"embeds", "embeddings"}:
            return "embeddings"
    if value.name.startswith(AUDIO) and declared.is_float:
        return "audio"
    return "image" if _is_image(value, declared) else "other"


def _is_image(value: Value, declared: TensorType) -> bool:
    if declared.dims is None or len(declared.dims) != 4:
        return False
    channels = {declared.dims[1], declared.dims[3]}
    return bool(IMAGE.search(value.name)) or (bool(channels & {1, 3}) and _may_be_pixels(declared))


def _may_be_pixels(declared: TensorType) -> bool:
    return declared.is_float or declared.dtype == TensorProto.UINT8


def _sided(inputs: dict[Value, Role], *, has_cache: bool) -> dict[Value, Role]:
    """Return roles that tell the model's own tokens and masks from those of an encoder.

    Where some are called the decoder's, those that are called nothing are the encoder's; where a model without a cache
    takes none but an encoder's, it is an encoder.
    """
    own = [value for value, role in inputs.items() if role in ("tokens", "embeddings")]
    is_named = [bool({"decoder", "dec"} & set(tokens(value.name))) for value in own]
    if any(is_named) and not all(is_named):
        plain = [v for v, role in inputs.items() if role in OF_ENCODER and not {"decoder", "dec"} & set(tokens(v.name))]
        return inputs | {value: OF_ENCODER[inputs[value]] for value in plain}
    is_encoder = not own and not has_cache and "encoder state" not in inputs.values()
    if is_encoder and "encoder tokens" in inputs.values():
        return {value: OF_MODEL.get(role, role) for value, role in inputs.items()}
    return inputs


def _with_tokens(inputs: dict[Value, Role]) -> dict[Value, Role]:
    """Return roles in which the one input [batch, sequence] that rows are looked up by is tokens, if no other is."""
    if any(role in ("tokens", "embeddings") for role in inputs.values()):
        return inputs
    found = [
        value for value, role in inputs.items() if role == "other" and _rank(value) == 2 and "lookup" in uses(value)
    ]
    return inputs | {found[0]: "tokens"} if len(found) == 1 else inputs


def _crossing(inputs: dict[Value, Role], cache: Iterable[CacheEntry]) -> dict[Value, Role]:
    """Return roles in which what is declared as long as the cache of cross-attention is the encoder's."""
    own = {_dim(value, 1) for value, role in inputs.items() if role == "tokens"}
    cross = {_dim(entry.past or entry.present, entry.axis) for entry in cache if entry.slot.attention == "encoder"}
    cross |= {_dim(value, 1) for value, role in inputs.items() if role == "encoder state"}
    lengths = {dim for dim in cross - own if isinstance(dim, str)}
    long = {value: role for value, role in inputs.items() if _dim(value, 1) in lengths}
    masks = [value for value, role in long.items() if role == "mask" and _rank(value) == 2]
    states = [value for value, role in long.items() if role == "other" and _rank(value) == 3 and _is_float(value)]
    return inputs | dict.fromkeys(masks, OF_ENCODER["mask"]) | dict.fromkeys(states, OF_ENCODER["embeddings"])


def _output_role(value: Value) -> Role:
    """Return the role of an output by its dtype, rank and name."""
    declared, words = declared_type(value), set(tokens(value.name))
    if declared is None or not declared.is_float:
        return "other"
    if "logits" in words:
        return "logits"
    is_state = "hidden" in words and words & {"state", "states"} and _rank(value) in (3, None)
    return "encoder state" if is_state else "other"


def _with_logits(inputs: Mapping[Value, Role], outputs: dict[Value, Role]) -> dict[Value, Role]:
    """Return roles in which the one output of a MatMul that is as wide as the vocabulary is logits, if no other is."""
    if "logits" in outputs.values():
        return outputs
    tables = [found for value, role in inputs.items() if role == "tokens" for found in lookups(value)]
    sizes = {table_entries(*found) for found in tables}
    found = [v for v, role in outputs.items() if role == "other" and (_dims(v) or (None,))[-1] in sizes - {None}]
    found = [value for value in found if _rank(value) in (2, 3) and _is_projected(value)]
    return outputs | {found[0]: "logits"} if len(found) == 1 else outputs


def _is_projected(value: Value) -> bool:
    """Whether a value is what a MatMul gives, biased, scaled or cast at most."""
    for _ in range(MAX_STEPS):
        producer = value.producer
        if producer is None or not producer.is_op("Add", "Mul", "Div", "Tanh", "Cast", "Identity"):
            return producer is not None and ("MatMul" in producer.op_type or producer.is_op("Gemm"))
        value = next((one for one in producer.inputs if one is not None and not one.is_constant), value)
    return False


def _unmoved(value: Value) -> Value:
    """Return the value that another one is, Identities left out."""
    for _ in range(MAX_STEPS):
        source = value.producer.input(0) if value.producer is not None and value.producer.is_op("Identity") else None
        if source is None:
            break
        value = source
    return value


def _dims(value: Value) -> tuple[Dim, ...] | None:
    declared = declared_type(value)
    return declared.dims if declared is not None else None


def _dim(value: Value | None, axis: int | None) -> Dim:
    dims = _dims(value) if value is not None else None
    return dims[axis] if dims is not None and axis is not None and axis < len(dims) else None


def _is_float(value: Value) -> bool:
    declared = declared_type(value)
    return declared is not None and declared.is_float


def _rank(value: Value) -> int | None:
    dims = _dims(value)
    return None if dims is None else len(dims)
