"""The mask of a source whose encoder gives fewer states than the mask has places, as that of a sound does."""

from __future__ import annotations

from collections.abc import Sequence

from graphkit.constraints.triggers import SizeCheck
from graphkit.errors import UsageError
from graphkit.graph.roles import dim_at
from graphkit.model import Model
from graphkit.rewrite.base import copy_proto
from graphkit.shapes import infer

__all__ = ["MASK_LENGTH", "has_shorter_output", "with_mask_length"]

MASK_LENGTH = "source_mask_length"  # the dim of a decoder's mask that counts what the encoder's input does
TRIED = (61, 7)  # lengths of a mask and of an output that are not equal, and no multiple of each other


def has_shorter_output(encoder: Model) -> bool:
    """Whether an encoder has a mask of its input, which is no text, and an output of another length."""
    if encoder.roles.all("tokens", "encoder tokens", "embeddings"):
        return False
    mask = encoder.roles.first("mask")
    named = [value for value, role in encoder.roles.outputs.items() if role == "encoder state"]
    output = next(iter([*named, *encoder.graph.outputs]), None)
    if mask is None or output is None:
        return False
    shapes = infer(encoder)
    one, other = shapes[mask].dims, shapes[output].dims
    return one is None or other is None or one[1:2] != other[1:2]


def with_mask_length(encoder: Model, decoder: Model) -> Model:
    """Return a decoder whose mask of the source has a length of its own, which exporters declare as that of the states.

    The runtime of an export passes the encoder's mask on as it is, so that its length is that of the encoder's input.

    Args:
        encoder: What runs before it.
        decoder: The decoder; the same is returned where the encoder's output is as long as its mask.

    Raises:
        UsageError: The nodes need a mask as long as the encoder's output, which nothing makes.
    """
    mask = decoder.roles.first("encoder mask")
    if mask is None or not has_shorter_output(encoder):
        return decoder
    declared = dim_at(mask, 1)
    proto = copy_proto(decoder)
    for info in proto.graph.input:
        if info.name == mask.name and len(info.type.tensor_type.shape.dim) > 1:
            info.type.tensor_type.shape.dim[1].dim_param = MASK_LENGTH
    made = decoder.with_proto(proto)
    if isinstance(declared, str) and (fault := _fault(made, (declared,))):
        raise UsageError(
            f"{decoder.name}: its '{mask.name}' must be as long as the output of {encoder.name}, whose own mask is "
            f"longer ({fault}) - export both together"
        )
    return made


def _fault(decoder: Model, states: Sequence[str]) -> str:
    """Return the node that does not run where the mask is longer than the states."""
    return SizeCheck(decoder).fault({MASK_LENGTH: TRIED[0], **dict.fromkeys(states, TRIED[1])})
