"""Sizes for the symbolic dims of a model's inputs, such that they fit together.

What a symbol stands for is read from the KV cache's layout and from the usual names of inputs; a dim that is an
expression (`past_sequence_length + sequence_length`) follows from its symbols.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import Literal

from graphkit.graph.kv import cache_entries, growing_axis
from graphkit.graph.types import declared_type
from graphkit.graph.view import Scope, Value
from graphkit.shapes import Expr, const, parse, symbol

__all__ = [
    "DECODER_MASK",
    "TOKENS",
    "Role",
    "Sizes",
    "input_dims",
    "input_shape",
    "plain_symbol",
    "symbol_roles",
    "symbol_sizes",
]

Role = Literal["batch", "sequence", "past", "encoder", "total", "channels", "space", "other"]
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


def input_dims(value: Value) -> tuple[Expr, ...] | None:
    """Return the declared dims of an input, an unnamed one as the symbol `INPUT.AXIS`; None without a rank."""
    declared = declared_type(value)
    if declared is None or declared.dims is None:
        return None
    return tuple(
        const(dim) if isinstance(dim, int) else symbol(f"{value.name}.{axis}") if dim is None else parse(dim)
        for axis, dim in enumerate(declared.dims)
    )


def symbol_roles(main: Scope) -> dict[str, Role]:
    """Return what each symbol in the declared dims of a model's inputs stands for."""
    found: dict[str, Role] = {}
    cached = set()
    for entry in cache_entries(main):
        declared = declared_type(entry.past) if entry.past is not None else None
        if entry.past is None or declared is None or declared.dims is None:
            continue
        cached.add(entry.past)
        axis = growing_axis(declared, declared_type(entry.present) if entry.present is not None else None)
        grows: Role = "encoder" if entry.slot.attention == "encoder" else "past"
        for at, name in _plain_symbols(entry.past):
            found.setdefault(name, grows if at == axis else "batch")
    inputs = [value for value in main.inputs if value.tensor is None and value not in cached]
    for value in sorted(inputs, key=lambda value: "mask" in value.name):  # a mask's dims may be those of the tokens
        for axis, name in _plain_symbols(value):
            found.setdefault(name, _by_place(value, name, axis))
    for value in inputs:
        for dim in input_dims(value) or ():
            for name in sorted(dim.symbols):
                found.setdefault(name, _by_name(name))
    return found


def plain_symbol(dim: Expr) -> str | None:
    """Return the name of the symbol that a dim is, None where it is anything else."""
    return repr(dim.atom) if dim.atom is not None and repr(dim.atom) in dim.symbols else None


def _plain_symbols(value: Value) -> Iterator[tuple[int, str]]:
    """Yield the axes whose dim is one symbol, and its name."""
    for axis, dim in enumerate(input_dims(value) or ()):
        if (name := plain_symbol(dim)) is not None:
            yield axis, name


def _by_place(value: Value, name: str, axis: int) -> Role:
    declared = declared_type(value)
    rank = len(declared.dims) if declared is not None and declared.dims is not None else 0
    if axis == 0 or "batch" in name:
        return "batch"
    if axis == 1 and ("encoder" in value.name or "encoder" in name):
        return "encoder"
    if axis == 1 and TOKENS.search(value.name):
        return "sequence"
    if axis == 1 and "mask" in value.name:
        return "total"
    if rank == 4 and declared is not None and (declared.is_float or declared.dtype in (2, 3)):
        return "channels" if axis == 1 else "space"
    return "other"


def _by_name(name: str) -> Role:
    words: tuple[tuple[str, Role], ...] = (("past", "past"), ("batch", "batch"), ("total", "total"))
    words += (("encoder", "encoder"), ("seq", "sequence"))
    return next((role for word, role in words if word in name), "other")


def symbol_sizes(main: Scope, sizes: Sizes) -> dict[str, int]:
    """Return a size for each symbol in the declared shapes of a model's inputs."""
    roles = symbol_roles(main)
    past = sizes.past if any(entry.past is not None for entry in cache_entries(main)) else 0
    by_role: dict[Role, int] = {
        "batch": sizes.batch,
        "sequence": sizes.sequence,
        "past": sizes.past,
        "encoder": sizes.encoder,
        "total": sizes.sequence + past,
    }
    return {**{name: by_role.get(role, OTHER) for name, role in roles.items()}, **dict(sizes.symbols)}


def input_shape(value: Value, symbols: Mapping[str, int], sizes: Sizes) -> tuple[int, ...] | None:
    """Return the shape of an input at these sizes, or None where its rank is unknown.

    The mask of a decoder spans past and new tokens, whatever a merged decoder declares of it: that is what one of
    its two branches wanted.
    """
    dims = input_dims(value)
    if dims is None:
        return None
    shape = tuple(_size(dim, symbols) for dim in dims)
    if DECODER_MASK.fullmatch(value.name) and len(shape) == 2 and dims[1].constant is None:
        return shape[0], sizes.past + sizes.sequence
    return shape


def _size(dim: Expr, symbols: Mapping[str, int]) -> int:
    return max(dim.evaluate({name: symbols.get(name, OTHER) for name in dim.symbols}), 0)
