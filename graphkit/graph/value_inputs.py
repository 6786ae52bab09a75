"""The inputs that operators read for their value: shapes, axes, counts, and the bounds of a Slice.

Such an input decides the output's shape or the place of its elements, not only its numbers.
Source: the ONNX operator specification, per operator the version from which the parameter is an input.
"""

from __future__ import annotations

import re
from collections.abc import Mapping

from graphkit.graph.operators import REDUCTIONS
from graphkit.graph.view import Node

__all__ = ["INT32_MAX", "INT64_MAX", "VALUE_INPUTS", "is_to_the_end", "value_inputs", "without_huge_numbers"]

_AXES_FROM_13 = ((13, {1: "axes"}),)
_AXES_FROM_18 = ((18, {1: "axes"}),)

# Operator -> (first opset, {input index: name}), newest last.
VALUE_INPUTS: Mapping[str, tuple[tuple[int, Mapping[int, str]], ...]] = {
    "AffineGrid": ((20, {1: "size"}),),
    "BlackmanWindow": ((17, {0: "size"}),),
    "CenterCropPad": ((18, {1: "shape"}),),
    "Col2Im": ((18, {1: "image_shape", 2: "block_shape"}),),
    "ConstantOfShape": ((9, {0: "shape"}),),
    "CumProd": ((26, {1: "axis"}),),
    "CumSum": ((11, {1: "axis"}),),
    "DFT": ((17, {1: "dft_length"}), (20, {1: "dft_length", 2: "axis"})),
    "Expand": ((8, {1: "shape"}),),
    "HammingWindow": ((17, {0: "size"}),),
    "HannWindow": ((17, {0: "size"}),),
    "MaxUnpool": ((9, {2: "output_shape"}),),
    "MelWeightMatrix": ((17, {0: "num_mel_bins", 1: "dft_length"}),),
    "NonMaxSuppression": ((10, {2: "max_output_boxes_per_class"}),),
    "OneHot": ((9, {1: "depth"}),),
    "Pad": ((11, {1: "pads"}), (18, {1: "pads", 3: "axes"})),
    "Range": ((11, {0: "start", 1: "limit", 2: "delta"}),),
    **dict.fromkeys(sorted(REDUCTIONS - {"ReduceSum"}), _AXES_FROM_18),
    "ReduceSum": _AXES_FROM_13,
    "Reshape": ((5, {1: "shape"}),),
    "Resize": ((10, {1: "scales"}), (11, {1: "roi", 2: "scales", 3: "sizes"})),
    "Slice": ((10, {1: "starts", 2: "ends", 3: "axes", 4: "steps"}),),
    "Split": ((1, {1: "split"}), (2, {}), (13, {1: "split"})),
    "SplitToSequence": ((11, {1: "split"}),),
    "Squeeze": _AXES_FROM_13,
    "STFT": ((17, {1: "frame_step", 3: "frame_length"}),),
    "Tile": ((1, {1: "tiles", 2: "axis"}), (6, {1: "repeats"})),
    "TopK": ((10, {1: "k"}),),
    "Trilu": ((14, {1: "k"}),),
    "Unsqueeze": _AXES_FROM_13,
    "Upsample": ((9, {1: "scales"}),),
}


def value_inputs(node: Node) -> Mapping[int, str]:
    """Return the inputs whose value a node reads: name by index, without those that it leaves out."""
    versions = () if node.domain else VALUE_INPUTS.get(node.op_type, ())
    opset = node.scope.opset()
    found: Mapping[int, str] = {}
    for since, inputs in versions:
        if opset >= since:
            found = inputs
    return {index: name for index, name in found.items() if node.input(index) is not None}


INT32_MAX = (1 << 31) - 1
INT64_MAX = (1 << 63) - 1


HUGE = re.compile(rf"(?<![\w.])(-?)(?:{INT64_MAX}|{INT64_MAX + 1}|{INT32_MAX}|{INT32_MAX + 1})(?![\w.])")


def without_huge_numbers(text: str) -> str:
    """Return a text for people in which the numbers that stand for no bound are words: `[unbounded]`."""
    return HUGE.sub(r"\1unbounded", text)


def is_to_the_end(bound: int | None) -> bool:
    """Whether an end lies behind every axis: exporters write INT32_MAX or INT64_MAX, and no dim is that large."""
    return bound is not None and bound >= INT32_MAX
