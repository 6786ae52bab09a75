"""Find the KV cache: which inputs and outputs belong to it, and which output becomes which input.

Names tell (`past_key_values.3.decoder.key` and `present.3.decoder.key`, `cache_k_l0` and `new_cache_k_l0`, ...), or
else shapes: two numbered families of equal size whose members agree in every dim but one. Any other input is not cache.
"""

from __future__ import annotations

import re
from collections import defaultdict
from dataclasses import dataclass
from functools import lru_cache

from onnx import TensorProto

from graphkit.graph.declared_types import Dim, TensorType, declared_type
from graphkit.graph.name_families import is_number
from graphkit.graph.view import Scope, Value

__all__ = ["CacheEntry", "Slot", "cache_entries", "growing_axis"]

PAST = {"past", "prev", "previous", "old"}
PRESENT = {"present", "new", "next", "updated", "cur", "current"}
CACHE = {"cache", "caches", "kv", "kvcache", "pkv"}
KEY, VALUE = {"key", "keys", "k"}, {"value", "values", "v", "val"}
CROSS, SELF = {"encoder", "cross", "enc", "crossattention"}, {"decoder", "self", "dec", "selfattention"}
STATE = {"conv", "ssm", "state", "states", "recurrent"}
FILLER = {"in", "out", "input", "output", "inputs", "outputs", "layer", "layers", "l", "h", "block", "blocks", "model"}
FILLER |= {"attn", "attention", "tensor", "mem", "memory"}
NOT_CACHE = {"mask", "hidden", "ids", "length", "len", "position", "positions", "logits", "index"}
CACHE_RANKS = range(3, 7)
INTEGERS = (TensorProto.INT32, TensorProto.INT64)


@dataclass(frozen=True, slots=True)
class Slot:
    """The place of a tensor in the cache.

    Attributes:
        index: The numbers in its name, the layer first; empty for a stack of all layers.
        attention: "decoder" (self-attention), "encoder" (cross-attention), or "" if the name does not say.
        kind: "key", "value", "both" (in one tensor, or not told apart) or "state" (no attention cache).
    """

    index: tuple[int, ...]
    attention: str
    kind: str


@dataclass(frozen=True, slots=True)
class CacheEntry:
    """A cache tensor: the input that takes it and the output that gives the next one. Either may be missing."""

    slot: Slot
    past: Value | None
    present: Value | None

    @property
    def axis(self) -> int | None:
        """The axis along which it grows, None if that cannot be told."""
        past, present = (None if value is None else declared_type(value) for value in (self.past, self.present))
        declared = present if self.past is None else past
        return None if declared is None else growing_axis(declared, present if self.past else None, self.rows)

    @property
    def rows(self) -> frozenset[Dim]:
        """What the number of rows is called in the graph: the first dim of its tokens and positions."""
        value = self.past or self.present
        return frozenset() if value is None else _batch_dims(value.scope)


def split_name(name: str) -> list[str]:
    """Return the words and numbers in a name, in lower case: `pastKeyValues.10_k` -> past key values 10 k."""
    return [token.lower() for token in re.findall(r"[A-Z]?[a-z]+|[A-Z]+(?![a-z])|\d+", name)]


def parse_cache_name(name: str) -> tuple[Slot, frozenset[str], bool] | None:
    """Return the slot that a name stands for, its other words, and whether the name is clearly that of a cache."""
    words = split_name(name)
    if NOT_CACHE.intersection(words):
        return None
    for first, second in (("key", "values"), ("key", "value")):
        for at in range(len(words) - 1):
            if words[at : at + 2] == [first, second]:
                words[at : at + 2] = ["cache"]
                break
    index = tuple(int(word) for word in words if is_number(word))
    plain = {word for word in words if not word.isdigit()}
    is_key, is_value = bool(plain & KEY), bool(plain & VALUE)
    rest = plain - PAST - PRESENT - CACHE - KEY - VALUE - CROSS - SELF - FILLER - STATE
    step = bool(plain & (PAST | PRESENT | CACHE))
    named = (step and (is_key or is_value or bool(plain & CACHE) or not rest)) or ((is_key or is_value) and bool(index))
    attention = "encoder" if plain & CROSS else "decoder" if plain & SELF else ""
    kind = "key" if is_key and not is_value else "value" if is_value and not is_key else "both"
    if kind == "both" and plain & STATE:
        kind = "state"
    return Slot(index, attention, kind), frozenset(rest), named


def cache_entries(scope: Scope) -> tuple[CacheEntry, ...]:
    """Return the cache of a graph: its past inputs in order, then the present outputs that feed none of them."""
    inputs = [value for value in scope.inputs if value.kind == "input" and value.tensor is None]
    named = [
        (value, key) for value in inputs if (key := _slot_key(value)) and _may_cache(value) and _may_be_past(value)
    ]
    outputs: dict[tuple[Slot, frozenset[str]], list[Value]] = defaultdict(list)
    for value in scope.outputs:
        if (key := _slot_key(value)) is not None and _may_cache(value):
            outputs[key].append(value)
    entries: list[CacheEntry] = []
    taken: list[Value] = []
    for value, key in named:
        match = next((out for out in outputs.get(key, ()) if out not in taken), None)
        if match is None and key[0].kind == "state" and not PAST.intersection(split_name(value.name)):
            continue
        taken += [match] if match is not None else []
        entries.append(CacheEntry(key[0], value, match))
    entries += [
        CacheEntry(slot, None, value)
        for (slot, _), values in outputs.items()
        for value in values
        if value not in taken and slot.kind != "state"
    ]
    only_values = all(entry.slot.kind == "value" and not entry.slot.index for entry in entries)
    if only_values or not any(entry.present for entry in entries):  # `past_values` alone are a time series
        return _by_shape(scope, inputs)
    return tuple(entries)


def _may_be_past(value: Value) -> bool:
    """Whether an input's name does not say that it is new."""
    words = set(split_name(value.name))
    return not words & PRESENT or bool(words & (PAST | CACHE))


def _slot_key(value: Value) -> tuple[Slot, frozenset[str]] | None:
    parsed = parse_cache_name(value.name)
    return (parsed[0], parsed[1]) if parsed is not None and parsed[2] else None


def _may_cache(value: Value) -> bool:
    """Whether a value's declared type allows a cache: of rank 3 to 6, floating-point or 8-bit."""
    declared = declared_type(value)
    if declared is None or not (declared.is_float or declared.dtype in (2, 3)):
        return False
    return declared.rank is None or declared.rank in CACHE_RANKS


def _by_shape(scope: Scope, inputs: list[Value]) -> tuple[CacheEntry, ...]:
    """Pair two numbered families, of inputs and of outputs, whose members differ in one dim: the one that grows."""
    pasts, presents = _name_families(inputs), _name_families(list(scope.outputs))
    for past_family in pasts:
        for present_family in presents:
            pairs = list(zip(past_family, present_family, strict=False))
            if len(past_family) == len(present_family) and all(
                _grows_by_one_dim(past, present) for past, present in pairs
            ):
                return tuple(
                    CacheEntry(Slot((number,), "", "both"), past, present)
                    for number, (past, present) in enumerate(pairs)
                )
    return ()


def _name_families(values: list[Value]) -> list[list[Value]]:
    """Return the families of float tensors of rank 4 or 5 whose names differ in their numbers only."""
    families: dict[tuple[str, int, int], list[Value]] = defaultdict(list)
    for value in values:
        declared = declared_type(value)
        if declared is not None and declared.is_float and declared.rank in (4, 5):
            families[re.sub(r"\d+", "#", value.name), declared.dtype, declared.rank].append(value)
    return [family for family in families.values() if len(family) > 1 and re.search(r"\d", family[0].name)]


def _grows_by_one_dim(past: Value, present: Value) -> bool:
    """Whether two tensors differ in one dim only, which is symbolic in the first."""
    before, after = declared_type(past), declared_type(present)
    if before is None or after is None or before.dtype != after.dtype or before.rank != after.rank:
        return False
    if before.dims is None or after.dims is None:
        return False
    differing = [dim for dim, dim_after in zip(before.dims, after.dims, strict=True) if dim != dim_after]
    return len(differing) == 1 and isinstance(differing[0], str)


def growing_axis(past: TensorType, present: TensorType | None, rows: frozenset[Dim] = frozenset()) -> int | None:
    """Return the axis along which a cache grows, or None if that cannot be told.

    It is the only axis in which past and present differ, a symbolic one before numbers because declarations may be
    wrong; or else the only symbolic axis besides the batch, which other inputs name, too: `rows`.
    """
    dims = past.dims
    if dims is None:
        return None
    differing: list[int] = []
    if present is not None and present.dims is not None and present.rank == past.rank:
        differing = [
            axis for axis, pair in enumerate(zip(dims, present.dims, strict=True)) if str(pair[0]) != str(pair[1])
        ]
    open_ones = [axis for axis in differing if not isinstance(dims[axis], int)]
    if len(open_ones) == 1:
        return open_ones[0]
    batch = {axis for axis, dim in enumerate(dims) if _is_batch(dim) or dim in rows}
    symbolic = [axis for axis, dim in enumerate(dims) if not isinstance(dim, int) and axis not in batch]
    if len(symbolic) > 1 and not batch:
        symbolic = symbolic[1:]  # an unnamed batch stands first
    if len(symbolic) == 1 and (symbolic[0] > 0 or len(dims) < 4):
        return symbolic[0]
    return differing[0] if len(differing) == 1 else None


@lru_cache(maxsize=8)
def _batch_dims(scope: Scope) -> frozenset[Dim]:
    """Return the first dims of tokens, positions and embeddings, whatever an exporter calls them."""
    first = (dims[0] for value in scope.inputs if value.tensor is None and (dims := _dims_of_tokens(value)))
    return frozenset(dim for dim in first if isinstance(dim, str))


def _dims_of_tokens(value: Value) -> tuple[Dim, ...]:
    """Return the dims of an input that is [rows, tokens] or [rows, tokens, width], by its dtype and its name."""
    declared, words = declared_type(value), set(split_name(value.name))
    if declared is None or declared.rank != (3 if declared.is_float else 2) or words & {"mask", "masks"}:
        return ()
    is_tokens = declared.dtype in INTEGERS or words & {"embeds", "embeddings"}
    return (declared.dims or ()) if is_tokens else ()


def _is_batch(dim: Dim) -> bool:
    return isinstance(dim, str) and ("batch" in dim.lower() or dim.lower() in ("b", "n", "bs"))
