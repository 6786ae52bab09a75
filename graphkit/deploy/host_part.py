"""Runs of the part of a model that computes the values its host is to make: its inputs and its session."""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Literal

import numpy as np
from onnx import helper

from graphkit.deploy.deploy_sizes import Setting
from graphkit.errors import ModelError, UsageError
from graphkit.graph.declared_types import declared_type
from graphkit.graph.roles import MASKS, Role
from graphkit.model import Model
from graphkit.passes.npu.extract_host_values import HostInput
from graphkit.rewrite.new_interface import with_outputs
from graphkit.runtime.isolated_session import IsolatedSession
from graphkit.shapes import parse

__all__ = ["By", "HostPart", "host_part", "is_of_source"]

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
            kind = helper.tensor_dtype_to_np_dtype(declared.dtype)
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
    return int(parse(dim).evaluate(dims))


def is_of_source(role: Role, setting: Setting) -> bool:
    """Whether an integer input says which tokens of the source are valid."""
    return role == "encoder mask" or not setting.capacity
