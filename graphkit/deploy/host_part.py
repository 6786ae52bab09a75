"""Runs of the part of a model that computes the values its host is to make, and the stride of a sound by them."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, replace
from typing import Literal

import numpy as np

from graphkit.deploy.deploy_sizes import Setting, Sound
from graphkit.errors import ModelError, UsageError
from graphkit.graph.declared_types import declared_type
from graphkit.graph.roles import MASKS, Role
from graphkit.graph.view import Value
from graphkit.model import Model
from graphkit.passes.npu.host_inputs import HostInput
from graphkit.rewrite.new_interface import with_outputs
from graphkit.runtime.isolated_session import IsolatedSession
from graphkit.shapes import Shapes, infer
from graphkit.shapes.input_dims import read_dim

__all__ = ["By", "HostPart", "host_part", "is_of_source", "with_sound"]

MOST_BYTES = 1 << 30  # of an input of the part that is run
TOKENS = range(8)  # that stand for all others, but for the one that pads
By = Literal["position", "valid_length"]


@contextmanager
def host_part(model: Model, host_inputs: Sequence[HostInput], setting: Setting) -> Iterator[HostPart]:
    """Open the part of a model that computes some values, under the names of the inputs that take their place.

    Raises:
        ModelError: onnxruntime does not load it.
    """
    part = with_outputs(model, [(host_input.source.value.name, host_input.declared) for host_input in host_inputs])
    roles = {value.name: role for value, role in model.roles.inputs.items()}
    with IsolatedSession(part) as session:
        yield HostPart(part, roles, setting, session)


@dataclass(frozen=True, eq=False)
class HostPart:
    """The part of a model that computes values for its host.

    Attributes:
        model: The part.
        roles: The role of each input of the whole model, by name.
        setting: The sizes.
        session: Runs it; None where feeds alone are asked for.
    """

    model: Model
    roles: Mapping[str, Role]
    setting: Setting
    session: IsolatedSession | None = None

    @property
    def takes_tokens(self) -> bool:
        """Whether it computes on tokens."""
        return any(self.roles.get(value.name) in ("tokens", "encoder tokens") for value in self.model.graph.inputs)

    @property
    def tokens(self) -> list[int]:
        """Tokens that do not pad."""
        return [token for token in TOKENS if token != self.setting.pad]

    def run(
        self, by: By, number: int, tokens: int | Sequence[int] | None = None, *, least: bool = False
    ) -> dict[str, np.ndarray]:
        """Return the values after so many tokens, or where so many positions of the source are valid.

        Args:
            by: Whether the number counts tokens or valid positions.
            number: The tokens, or the valid positions.
            tokens: One id for all tokens, or ids that repeat.
            least: Whether to take the shortest sound of so many positions, not the longest.

        Raises:
            RunError: onnxruntime does not run it there.
        """
        assert self.session is not None
        return self.session.run(self.feed(by, number, tokens, least=least))

    def feed(
        self, by: By, number: int, tokens: int | Sequence[int] | None = None, *, least: bool = False
    ) -> dict[str, np.ndarray]:
        """Return the inputs for a run; see `run`.

        Raises:
            ModelError: The shape of an input is not declared.
            UsageError: An input is too large.
        """
        setting = self.setting
        dims = setting.at(number if by == "position" else min(1, setting.capacity))
        valid = setting.masked(number if by == "valid_length" else setting.source, least=least)
        ids = self.tokens[0] if tokens is None else tokens
        arrays = {}
        for value in self.model.graph.inputs:
            if value.tensor is not None:
                continue
            declared = declared_type(value)
            if declared is None or declared.dims is None:
                raise ModelError(f"the shape of input '{value.name}' is not declared", hint="declare it")
            shape = tuple(_size(dim, dims) for dim in declared.dims)
            kind = declared.numpy_dtype
            if (size := math.prod(shape) * kind.itemsize) > MOST_BYTES:
                raise UsageError(
                    f"input '{value.name}' is {list(shape)} at these sizes, {size:,} bytes, and is fed here to find "
                    "out what the host makes - give smaller sizes"
                )
            role = self.roles.get(value.name, "other")
            array = np.zeros(shape, kind) if kind.kind == "f" else self._integers(role, shape, number, ids).astype(kind)
            if kind.kind != "f" and shape and is_of_source(role, setting):
                if role in MASKS and role != "image mask" and setting.is_padded:
                    array[..., valid:] = 0
                elif role not in (*MASKS, "positions", "token types"):
                    array[..., valid:] = setting.pad
            arrays[value.name] = array
        return arrays

    def _integers(self, role: Role, shape: tuple[int, ...], number: int, tokens: int | Sequence[int]) -> np.ndarray:
        """Return the elements of an integer input all of whose places count."""
        if role in MASKS:
            return np.ones(shape, np.int64)
        if role == "positions":
            start = number if self.setting.capacity else 0
            return np.broadcast_to(np.arange(start, start + shape[-1]), shape)
        return np.zeros(shape, np.int64) if role == "token types" else np.resize(np.asarray(tokens), shape)


def _size(dim: int | str | None, dims: Mapping[str, int]) -> int:
    if isinstance(dim, int):
        return dim
    if dim is None:
        raise ModelError("a dim of an input is not declared", hint="give it a name")
    expr = read_dim(dim, dims)
    if not expr.symbols <= dims.keys():
        raise ModelError(f"the host has to make an input with a dim '{dim}', whose size is not known")
    return int(expr.evaluate(dims))


def is_of_source(role: Role, setting: Setting) -> bool:
    """Whether an integer input says which tokens of the source are valid."""
    return role == "encoder mask" or not setting.capacity


def _sound_mask(model: Model) -> Value | None:
    """Return the input that says which samples or frames of a sound are valid, None for a model without one."""
    mask = model.roles.first("mask")
    declared = declared_type(mask) if mask is not None else None
    is_text = bool(model.roles.all("tokens", "encoder tokens", "embeddings"))
    if is_text or model.roles.pasts or not model.roles.all("audio") or declared is None or declared.rank != 2:
        return None
    return mask


def with_sound(model: Model, host_inputs: Sequence[HostInput], setting: Setting) -> Setting:
    """Return the setting of an encoder of sound: its source is its output, of which a part is valid.

    The valid positions of a sound of `length` samples or frames are `(length + offset) // stride`.

    Args:
        model: The encoder.
        host_inputs: The values that the host is to make.
        setting: As for a source all of which counts; the same is returned where the mask makes nothing.

    Raises:
        UsageError: Valid positions follow from the length by no such rule.
        ModelError: onnxruntime cannot run the nodes that make the mask.
    """
    mask = _sound_mask(model)
    masks = [host_input for host_input in host_inputs if host_input.is_mask]
    masks = [
        host_input for host_input in masks if mask is not None and mask.name in host_input.source.dependence.inputs
    ]
    if mask is None or not masks:
        return setting
    shapes = infer(model)
    length, states = _length_of(mask, shapes, setting), _length_of(model.graph.outputs[0], shapes, setting)
    whole = replace(setting, source=states, is_padded=True, sound=Sound(length, 1, 0))
    with host_part(model, masks, replace(whole, source=length, sound=None)) as part:
        steps = _Steps(lambda valid: list(part.run("valid_length", valid).values()), length)
        return replace(whole, sound=steps.rule(states, model.name))


@dataclass(frozen=True)
class _Steps:
    masks: Callable[[int], list[np.ndarray]]
    length: int

    def rule(self, states: int, name: str) -> Sound:
        """Return the rule by the lengths at which the masks change, from the longest down."""
        if states == 1:
            return Sound(self.length, self.length, self.length - 1)
        last = self._start(self.length)
        before = self._start(last - 1) if last > 1 else 0
        stride = last - before
        if before < 1 or (states > 2 and before - self._start(before - 1) != stride):
            raise UsageError(
                f"{name}: which of its {states} positions are valid follows from the length of a sound by no stride - "
                "export it without a mask"
            )
        return Sound(self.length, stride, states * stride - last)

    def _start(self, valid: int) -> int:
        """Return the least length with the masks of this one; they change in one direction."""
        like = self.masks(valid)
        low, high = 1, valid
        while low < high:
            middle = (low + high) // 2
            is_same = all(map(np.array_equal, self.masks(middle), like))
            low, high = (low, middle) if is_same else (middle + 1, high)
        return low


def _length_of(value: Value, shapes: Shapes, setting: Setting) -> int:
    dims = shapes[value].dims
    size = dims[1].substitute(setting.dims).constant if dims is not None and len(dims) > 1 else None
    if size is None or size < 1:
        raise UsageError(f"how long '{value.name}' is is not known: {shapes[value]} - give its dims with --dim")
    return size
