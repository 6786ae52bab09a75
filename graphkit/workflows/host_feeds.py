"""The inputs of the part of a model that computes the values its host is to make."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from typing import Literal

import numpy as np
from onnx import helper

from graphkit.errors import ModelError, UsageError
from graphkit.graph.roles import MASKS, Role
from graphkit.graph.types import declared_type
from graphkit.model import Model
from graphkit.shapes import parse
from graphkit.workflows.lower_sizes import Setting

__all__ = ["By", "is_of_source", "other_tokens", "run_feed"]

MOST_BYTES = 1 << 30  # of an input of the part that is run
TOKENS = range(8)  # that stand for all others, but for the one that pads
By = Literal["position", "valid_length"]


def run_feed(
    part: Model,
    roles: Mapping[str, Role],
    setting: Setting,
    which: By,
    number: int,
    token: int | Sequence[int] | None = None,
    *,
    least: bool = False,
) -> dict[str, np.ndarray]:
    """Return inputs of the part; `token` is one id for all tokens, or ids that repeat; `least` is for sounds alone."""
    dims = setting.at(number if which == "position" else min(1, setting.capacity))
    valid = setting.masked(number if which == "valid_length" else setting.source, least=least)
    token = other_tokens(setting)[0] if token is None else token
    feed = {}
    for value in part.graph.inputs:
        if value.tensor is not None:
            continue
        declared = declared_type(value)
        if declared is None or declared.dims is None:
            raise ModelError(f"the shape of input '{value.name}' is not declared", hint="declare it")
        shape = tuple(_size(dim, dims) for dim in declared.dims)
        kind = helper.tensor_dtype_to_np_dtype(declared.dtype)
        if (size := math.prod(shape) * kind.itemsize) > MOST_BYTES:
            raise UsageError(
                f"input '{value.name}' is {list(shape)} at these sizes, {size:,} bytes, and is fed here to find out "
                "what the host makes - give smaller sizes"
            )
        feed[value.name] = _content(roles.get(value.name, "other"), shape, kind, setting, number, valid, token)
    return feed


def _size(dim: int | str | None, dims: Mapping[str, int]) -> int:
    if isinstance(dim, int):
        return dim
    if dim is None:
        raise ModelError("a dim of an input is not declared", hint="give it a name")
    return int(parse(dim).evaluate(dims))


def _content(
    role: Role,
    shape: tuple[int, ...],
    kind: np.dtype[np.generic],
    setting: Setting,
    number: int,
    valid: int,
    token: int | Sequence[int],
) -> np.ndarray:
    """Return the elements of an input after `number` tokens, or where so many tokens of the source are valid."""
    if kind.kind == "f":
        return np.zeros(shape, kind)
    if role in MASKS:
        ones = np.ones(shape, kind)
        if setting.is_padded and role != "image mask" and is_of_source(role, setting) and shape:
            ones[..., valid:] = 0
        return ones
    if role == "positions":
        start = number if setting.capacity else 0
        return np.broadcast_to(np.arange(start, start + shape[-1]), shape).astype(kind)
    if role == "token types":
        return np.zeros(shape, kind)
    ids = np.resize(np.asarray(token, kind), shape)
    if is_of_source(role, setting) and shape:
        ids[..., valid:] = setting.pad
    return ids


def other_tokens(setting: Setting) -> list[int]:
    """Return tokens that do not pad."""
    return [token for token in TOKENS if token != setting.pad]


def is_of_source(role: Role, setting: Setting) -> bool:
    """Whether an integer input says which tokens of the source are valid."""
    return role == "encoder mask" or not setting.capacity
