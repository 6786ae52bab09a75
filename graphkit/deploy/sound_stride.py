"""The number of valid positions of a sound by its length, found by running the nodes that make the encoder's mask."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace

import numpy as np

from graphkit.deploy.deploy_sizes import Setting, Sound
from graphkit.deploy.host_part import host_part
from graphkit.errors import UsageError
from graphkit.graph.declared_types import declared_type
from graphkit.graph.view import Value
from graphkit.model import Model
from graphkit.passes.npu.extract_host_values import HostInput
from graphkit.shapes import Shapes, infer

__all__ = ["with_sound"]


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
    length, states = _size(mask, shapes, setting), _size(model.graph.outputs[0], shapes, setting)
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


def _size(value: Value, shapes: Shapes, setting: Setting) -> int:
    dims = shapes[value].dims
    size = dims[1].substitute(setting.dims).constant if dims is not None and len(dims) > 1 else None
    if size is None or size < 1:
        raise UsageError(f"how long '{value.name}' is is not known: {shapes[value]} - give its dims with --dim")
    return size
