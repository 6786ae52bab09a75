"""Sizes for the symbolic dims of a model's inputs, such that they fit together.

What a symbol stands for is read from the KV cache's layout and from the usual names of inputs; a dim that is an
expression (`past_sequence_length + sequence_length`) follows from its symbols.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass

from graphkit.graph.kv import cache_entries, growing_axis
from graphkit.graph.types import Dim, declared_type
from graphkit.graph.view import Scope, Value
from graphkit.shapes import parse

__all__ = ["Sizes", "input_shape", "symbol_sizes"]

OTHER = 5  # for a symbol of which nothing is known
DECODER_MASK = re.compile(r"(decoder_)?attention_mask")
TOKENS = re.compile(r"(^|_)(input_ids|decoder_input_ids|position_ids|token_type_ids|inputs_embeds)$")


@dataclass(frozen=True)
class Sizes:
    """What to run a model at.

    Attributes:
        batch: Sequences.
        sequence: New tokens of each.
        past: Positions in the KV cache.
        encoder: Positions of the encoder's output.
        symbols: Sizes for symbols by name, before all else.
    """

    batch: int = 1
    sequence: int = 1
    past: int = 0
    encoder: int = 4
    symbols: tuple[tuple[str, int], ...] = ()

    def __str__(self) -> str:
        text = f"batch {self.batch}, sequence {self.sequence}, past {self.past}, encoder {self.encoder}"
        return text + "".join(f", {name} {size}" for name, size in self.symbols)


def symbol_sizes(main: Scope, sizes: Sizes) -> dict[str, int]:
    """Return a size for each symbol in the declared shapes of a model's inputs."""
    found: dict[str, int] = {}
    has_past = False
    for entry in cache_entries(main):
        declared = declared_type(entry.past) if entry.past is not None else None
        if declared is None or declared.dims is None:
            continue
        has_past = True
        axis = growing_axis(declared, declared_type(entry.present) if entry.present is not None else None)
        for at, dim in enumerate(declared.dims):
            if isinstance(dim, str) and at == axis:
                found.setdefault(dim, sizes.encoder if entry.slot.attention == "encoder" else sizes.past)
            elif isinstance(dim, str):
                found.setdefault(dim, sizes.batch)
    for value in main.inputs:
        declared = declared_type(value)
        for axis, dim in enumerate(declared.dims if declared is not None and declared.dims is not None else ()):
            if isinstance(dim, str) and re.fullmatch(r"\w+", dim):
                found.setdefault(dim, _by_name(value.name, dim, axis, sizes, has_past))
    return {**found, **dict(sizes.symbols)}


def _by_name(name: str, dim: str, axis: int, sizes: Sizes, has_past: bool) -> int:
    if axis == 0 or "batch" in dim:
        return sizes.batch
    if axis == 1 and ("encoder" in name or "encoder" in dim):
        return sizes.encoder
    if axis == 1 and TOKENS.search(name):
        return sizes.sequence
    if axis == 1 and "mask" in name:
        return sizes.sequence + (sizes.past if has_past else 0)
    return OTHER


def input_shape(value: Value, symbols: Mapping[str, int], sizes: Sizes) -> tuple[int, ...] | None:
    """Return the shape of an input at these sizes, or None where its rank is unknown.

    The mask of a decoder spans past and new tokens, whatever a merged decoder declares of it: that is what one of
    its two branches wanted.
    """
    declared = declared_type(value)
    if declared is None or declared.dims is None:
        return None
    shape = tuple(_size(dim, symbols) for dim in declared.dims)
    if DECODER_MASK.fullmatch(value.name) and len(shape) == 2 and isinstance(declared.dims[1], str):
        return shape[0], sizes.past + sizes.sequence
    return shape


def _size(dim: Dim, symbols: Mapping[str, int]) -> int:
    if isinstance(dim, int):
        return dim
    if dim is None:
        return OTHER
    expression = parse(dim)
    return max(expression.evaluate({name: symbols.get(name, OTHER) for name in expression.symbols}), 0)
