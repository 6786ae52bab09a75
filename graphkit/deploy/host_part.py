"""Runs of the part of a model that computes the values its host is to make; which masks a host can make, and how."""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field, replace
from typing import Literal

import numpy as np

from graphkit.deploy.deploy_sizes import Setting, Sound
from graphkit.errors import ModelError, UsageError
from graphkit.graph.declared_types import declared_dims, declared_type
from graphkit.graph.mask_polarity import Polarity, mask_elements
from graphkit.graph.roles import MASKS, Role
from graphkit.graph.view import Value
from graphkit.model import Model
from graphkit.passes.npu.host_inputs import HostInput
from graphkit.rewrite.new_interface import with_outputs
from graphkit.runtime.session import IsolatedSession
from graphkit.shapes import Shapes, infer
from graphkit.shapes.constraints.symbol_sizes import tied_symbols
from graphkit.shapes.input_dims import read_dim

__all__ = ["By", "HostPart", "host_part", "is_of_source", "kept_inputs", "sound_mask", "with_sound"]

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
    polarities = {value.name: polarity for value, polarity in model.roles.polarities.items()}
    with IsolatedSession(part) as session:
        yield HostPart(part, roles, setting, session, polarities)


@dataclass(frozen=True, eq=False)
class HostPart:
    """The part of a model that computes values for its host.

    Attributes:
        model: The part.
        roles: The role of each input of the whole model, by name.
        setting: The sizes.
        session: Runs it; None where feeds alone are asked for.
        polarities: Which elements of the masks of the whole model hide, by name.
    """

    model: Model
    roles: Mapping[str, Role]
    setting: Setting
    session: IsolatedSession | None = None
    polarities: Mapping[str, Polarity | None] = field(default_factory=dict)

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
        valid = setting.masked(number if by == "valid_length" else setting.positions, least=least)
        ids = self.tokens[0] if tokens is None else tokens
        arrays = {}
        for value in self.model.graph.inputs:
            if value.tensor is not None:
                continue
            declared = declared_type(value)
            if declared is None or declared.dims is None:
                raise ModelError(f"the shape of input '{value.name}' is not declared", hint="declare it")
            shape = tuple(_evaluate_size(dim, dims) for dim in declared.dims)
            kind = declared.numpy_dtype
            if (size := math.prod(shape) * kind.itemsize) > MOST_BYTES:
                raise UsageError(
                    f"input '{value.name}' is {list(shape)} at these sizes, {size:,} bytes, and is fed here to find "
                    "out what the host makes - give smaller sizes"
                )
            role = self.roles.get(value.name, "other")
            array = (
                np.zeros(shape, kind)
                if kind.kind == "f"
                else self._integer_input(role, shape, number, ids).astype(kind)
            )
            if role in MASKS:
                counts = np.ones(shape, np.bool_)
                if shape and is_of_source(role, setting) and role != "image mask" and setting.is_padded:
                    counts[..., valid:] = False
                array = mask_elements(counts, self.polarities.get(value.name)).astype(kind)
            elif (
                kind.kind != "f" and shape and is_of_source(role, setting) and role not in ("positions", "token types")
            ):
                array[..., valid:] = setting.pad
            arrays[value.name] = array
        return arrays

    def _integer_input(
        self, role: Role, shape: tuple[int, ...], number: int, tokens: int | Sequence[int]
    ) -> np.ndarray:
        """Return the elements of an integer input that is no mask."""
        if role == "positions":
            start = number if self.setting.capacity else 0
            return np.broadcast_to(np.arange(start, start + shape[-1]), shape)
        return np.zeros(shape, np.int64) if role == "token types" else np.resize(np.asarray(tokens), shape)


def _evaluate_size(dim: int | str | None, dims: Mapping[str, int]) -> int:
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


def kept_inputs(model: Model, original: Model, *, has_text: bool) -> frozenset[str]:
    """Return the tokens and masks that the host of a model which runs once cannot make: the caller gives them.

    A host knows how long the text is, where it looks up its tokens, or the sound. So it makes a mask over one of these,
    if it is known which of its elements hide. A mask over patches or over another model's output counts something else.
    A mask of an image is fixed: the image fills its size. What only folding shows to be a mask is the caller's.
    """
    known = {value.name for value in original.roles.all(*MASKS)}
    sound, polarities = sound_mask(model), model.roles.polarities
    masks = [value for value in model.roles.all("mask", "encoder mask") if value.consumers]
    made = [mask for mask in masks if mask is sound or (has_text and _counts_tokens(mask, model, original))]
    kept = [mask for mask in masks if mask not in made or polarities[mask] is None or mask.name not in known]
    tokens = () if has_text else model.roles.all("tokens", "encoder tokens")
    return frozenset(value.name for value in (*kept, *tokens))


def _counts_tokens(mask: Value, model: Model, original: Model) -> bool:
    """Whether a mask has the length of the tokens: the same dim, or one that nodes bring together with it."""
    roles, dims = model.roles, declared_dims(mask)
    tokens = [
        value for value in roles.all("tokens", "encoder tokens", "embeddings") if len(declared_dims(value) or ()) > 1
    ]
    if not tokens or not dims:
        return False
    lengths = {dims_of_tokens[1] for value in tokens if (dims_of_tokens := declared_dims(value))}
    of_tokens = ("tokens", "encoder tokens", "embeddings", "positions", "token types", *MASKS)
    others = {
        dim
        for value, role in roles.inputs.items()
        if role not in of_tokens and value.name in original.graph.values
        for dim in declared_dims(value) or ()
    }
    if dims[-1] in lengths:
        return dims[-1] not in others or not isinstance(dims[-1], int)
    tied = [group for group in tied_symbols(model) if dims[-1] in group]
    return bool(tied and tied[0] & lengths) or not (tied or others or isinstance(dims[-1], int))


def sound_mask(model: Model) -> Value | None:
    """Return the input that says which samples or frames of a sound are valid, None for a model without one."""
    mask = model.roles.first("mask")
    declared = declared_type(mask) if mask is not None else None
    is_text = bool(model.roles.all("tokens", "encoder tokens", "embeddings"))
    if is_text or model.roles.pasts or not model.roles.all("audio") or declared is None or declared.rank != 2:
        return None
    return mask


def with_sound(model: Model, host_inputs: Sequence[HostInput], setting: Setting) -> Setting | None:
    """Return the setting of a model of sound, of which a part may be valid.

    The valid positions of a sound of `length` samples or frames are `(length + offset) // stride`; of the masks that
    count differently, the finest one counts.

    Args:
        model: The model.
        host_inputs: The values that the host is to make.
        setting: As for a source all of which counts.

    Returns:
        The setting, the same where the mask makes nothing; None where valid positions follow from the length by no such
        rule.

    Raises:
        ModelError: onnxruntime cannot run the nodes that make the values.
    """
    mask = sound_mask(model)
    made = [each for each in host_inputs if mask is not None and mask.name in each.source.dependence.inputs]
    if mask is None or not made:
        return setting
    length = _length_of(mask, infer(model), setting)
    whole = replace(setting, source=length, is_padded=True)
    with host_part(model, made, whole) as part:
        sound = _Steps(part, length).rule()
    return None if sound is None else replace(whole, source=sound.positions, sound=sound)


@dataclass(frozen=True)
class _Steps:
    """The lengths of a sound at which values change."""

    part: HostPart
    length: int

    def rule(self) -> Sound | None:
        """Return the rule by the lengths at which values change, from the longest down; None where there is none."""
        last = self._run_start(self.length)
        if last == 1:
            return Sound(self.length, self.length, self.length - 1)
        stride = last - self._run_start(last - 1)
        changed = [a != b for a, b in zip(self._values_at_length(last), self._values_at_length(last - 1), strict=True)]
        sizes = {change.shape[axis] for change in changed for axis in range(change.ndim) if _varies_along(change, axis)}
        for positions in sorted(sizes or {1}, reverse=True):
            first = last - (positions - 1) * stride  # from which on there is a position
            if first == 1 or self._changes_at(first):
                return Sound(self.length, stride, positions * stride - last)
        return None

    def _run_start(self, valid: int) -> int:
        """Return the least length with the values of this one; they change in one direction."""
        low, high = 1, valid
        while low < high:
            middle = (low + high) // 2
            low, high = (low, middle) if self._are_equal(middle, valid) else (middle + 1, high)
        return low

    def _changes_at(self, valid: int) -> bool:
        return valid > 1 and not self._are_equal(valid, valid - 1)

    def _are_equal(self, valid: int, other: int) -> bool:
        return all(map(np.array_equal, self._values_at_length(valid), self._values_at_length(other)))

    def _values_at_length(self, valid: int) -> list[np.ndarray]:
        return list(self.part.run("valid_length", valid).values())


def _varies_along(array: np.ndarray, axis: int) -> bool:
    """Whether an array differs along an axis."""
    return bool((array != np.take(array, [0], axis)).any())


def _length_of(value: Value, shapes: Shapes, setting: Setting) -> int:
    dims = shapes[value].dims
    size = dims[1].substitute(setting.dims).constant if dims is not None and len(dims) > 1 else None
    if size is None or size < 1:
        raise UsageError(f"how long '{value.name}' is is not known: {shapes[value]} - give its dims with --dim")
    return size
