"""How a node is spelled for a version of the operator set in which its operator changed.

Source: the operator schemas of onnx, and https://github.com/onnx/onnx/blob/main/docs/Changelog.md.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Any

import numpy as np
from onnx import TensorProto

from graphkit.dtypes import FLOATS
from graphkit.graph.operator_traits import REDUCTIONS
from graphkit.graph.view import Node, Value
from graphkit.rewrite import Editor, MatchFailure, NewNode, NodeInput, attributes_of

__all__ = ["ADAPTERS", "MOVED", "Draft", "check_windows", "keep_first_output"]

ALLOW_ZERO_SINCE = 14  # from which a Reshape can be told that a 0 is a length
ROI_IS_OPTIONAL_SINCE = 13
MAX_SCALES = 1 << 10  # bytes


@dataclass
class Draft:
    """A node on its way to another operator set.

    Attributes:
        editor: The editor of its model.
        node: The node as it was.
        version: Where it goes.
        op_type, inputs, outputs, attributes: The node as it is so far.
        before, after: Other nodes that it needs.
        is_changed: Whether it has to be made again.
    """

    editor: Editor
    node: Node
    version: int
    op_type: str = ""
    inputs: list[NodeInput] = field(default_factory=list)
    outputs: list[str] = field(default_factory=list)
    attributes: dict[str, Any] = field(default_factory=dict)
    before: list[NewNode] = field(default_factory=list)
    after: list[NewNode] = field(default_factory=list)
    is_changed: bool = False

    def __post_init__(self) -> None:
        self.op_type, self.inputs = self.node.op_type, list(self.node.inputs)
        self.outputs = list(self.node.proto.output)

    def begin(self) -> None:
        """Make ready for a change."""
        if not self.is_changed:
            self.attributes, self.is_changed = attributes_of(self.node), True

    def taken(self, name: str) -> Any:
        """Remove an attribute and return its value, None if the node does not have it."""
        if name not in self.node.attributes:
            return None
        if self.node.attributes[name].ref_attr_name:
            raise MatchFailure(f"the call of a function gives its attribute '{name}': run inline-functions first")
        self.begin()
        return self.attributes.pop(name, None)

    def give(self, index: int, source: NodeInput) -> None:
        """Give it an input, after those that it has."""
        self.inputs += [None] * (index + 1 - len(self.inputs))
        self.inputs[index] = source

    def finish(self) -> None:
        """Put it in the place of its node."""
        if self.is_changed:
            while self.inputs and self.inputs[-1] is None:
                self.inputs.pop()
            made = NewNode(self.op_type, self.inputs, self.outputs, self.attributes, like=self.node)
            self.editor.replace(self.node, *self.before, made, *self.after)

    def first(self) -> Value:
        """Return its first input."""
        value = self.node.input(0)
        if value is None:
            raise MatchFailure("it lacks its first input")
        return value

    def name(self, suffix: str) -> str:
        """Return a new name, made from that of its first output."""
        return self.editor.unique_name(f"{self.node.proto.output[0]}_{suffix}")


Adapter = Callable[[Draft], None]


def _attributes_to_integers(*names: str) -> Adapter:
    """Attributes of integers became inputs, the first of them input 1."""

    def adapt(draft: Draft) -> None:
        for index, name in enumerate(names, 1):
            numbers = draft.taken(name)
            if numbers is not None:
                values = [numbers] if isinstance(numbers, int) else list(numbers)
                draft.give(index, draft.editor.integers(values, f"{draft.op_type.lower()}_{name}"))

    return adapt


def _attributes_to_floats(**indices: int) -> Adapter:
    """Attributes became inputs of the dtype of the data."""

    def adapt(draft: Draft) -> None:
        if draft.editor.shapes[draft.first()].dtype != TensorProto.FLOAT:
            raise MatchFailure("its data is not known to be float32")
        for name, index in indices.items():
            number = draft.taken(name)
            if number is not None:
                draft.give(
                    index, draft.editor.constant(np.array(number, np.float32), f"{draft.op_type.lower()}_{name}")
                )

    return adapt


def _both_adapters(*adapters: Adapter) -> Adapter:
    def adapt(draft: Draft) -> None:
        for each in adapters:
            each(draft)

    return adapt


def _last_axis(draft: Draft) -> None:
    """Softmax was over all axes from one on, and by default from axis 1; it is over that axis, by default the last."""
    axis = draft.node.attr("axis", 1)
    data = draft.first()
    rank = draft.editor.shapes[data].rank
    if axis is None:
        raise MatchFailure("its axis is not known")
    draft.begin()
    if axis == -1 or (rank is not None and axis == rank - 1):
        draft.attributes["axis"] = axis
        return
    if draft.version < ALLOW_ZERO_SINCE:
        raise MatchFailure(f"it is over several axes, which takes a Reshape of opset {ALLOW_ZERO_SINCE}")
    shape, flat, result = draft.name("shape"), draft.name("flat"), draft.name("rows")
    draft.before += [NewNode("Shape", [data], [shape]), NewNode("Flatten", [data], [flat], {"axis": axis})]
    draft.after.append(NewNode("Reshape", [result, shape], [draft.outputs[0]], {"allowzero": 1}))
    draft.inputs, draft.outputs, draft.attributes["axis"] = [flat], [result], -1


def _equal_parts(draft: Draft) -> None:
    """A Split without lengths has to say how many parts there are."""
    if draft.node.input(1) is None and "split" not in draft.node.attributes:
        draft.begin()
        draft.attributes["num_outputs"] = len(draft.outputs)


def _no_spatial(draft: Draft) -> None:
    if draft.node.attr("spatial", 1) != 1:
        raise MatchFailure("its numbers differ from place to place (spatial = 0)")
    draft.taken("spatial")


def keep_first_output(draft: Draft) -> None:
    """Only its first output is the same as before."""
    used = [value for value in draft.node.outputs[1:] if value is not None]
    if any(value.consumers or draft.editor.is_output(value) for value in used):
        raise MatchFailure(f"its output '{used[0].name}' is another one now")
    if len(draft.node.outputs) > 1:
        draft.begin()
        draft.outputs = draft.outputs[:1]


def _adapt_dropout(draft: Draft) -> None:
    """How much a Dropout drops in training is an input."""
    ratio = draft.taken("ratio")
    if ratio is not None:
        draft.give(1, draft.editor.constant(np.array(ratio, np.float32), "dropout_ratio"))


def _adapt_resize(draft: Draft) -> None:
    """Inputs that do not count may be left out, and had to be empty."""
    if draft.node.attr("coordinate_transformation_mode", "half_pixel") == "tf_half_pixel_for_nn":
        raise MatchFailure("its coordinate_transformation_mode 'tf_half_pixel_for_nn' is gone")
    empty = [i for i, value in enumerate(draft.inputs) if i and isinstance(value, Value) and _is_empty(value)]
    if empty:
        draft.begin()
        draft.inputs = [None if i in empty else value for i, value in enumerate(draft.inputs)]


def _is_empty(value: Value) -> bool:
    return value.constant is not None and 0 in value.constant.dims


def _adapt_scales(draft: Draft) -> None:
    scales = draft.taken("scales")
    if scales is None:
        raise MatchFailure("it has no scales")
    draft.give(1, draft.editor.constant(np.array(scales, np.float32), "upsample_scales"))


def _adapt_upsample(draft: Draft) -> None:
    """An Upsample is a Resize whose scales are at least 1."""
    draft.begin()
    draft.op_type = "Resize"


def _adapt_asymmetric_resize(draft: Draft) -> None:
    """A Resize had no modes: pixel i of the result was i / scale, rounded down, or up where the scale is below 1."""
    draft.begin()
    data, scales = (*draft.inputs, None, None)[:2]
    empty = draft.editor.constant(np.zeros(0, np.float32), "resize_roi")
    roi = None if draft.version >= ROI_IS_OPTIONAL_SINCE else empty
    draft.attributes["coordinate_transformation_mode"] = "asymmetric"
    draft.inputs = [data, roi, scales]
    if draft.attributes.get("mode", b"nearest") != b"nearest":
        return
    draft.attributes["nearest_mode"] = "floor"
    if draft.node.is_op("Upsample"):
        return
    array = draft.editor.read_constant(scales, MAX_SCALES) if isinstance(scales, Value) else None
    if array is None:
        raise MatchFailure("its scales are no constant, and it rounds up where one is below 1")
    if (array >= 1).all():
        return
    if (array > 1).any():
        larger = draft.name("larger")
        growing = draft.editor.constant(np.maximum(array, np.float32(1)), "resize_scales")
        draft.before.append(NewNode("Resize", [*draft.inputs[:2], growing], [larger], dict(draft.attributes)))
        shrinking = draft.editor.constant(np.minimum(array, np.float32(1)), "resize_scales")
        draft.inputs = [larger, roi, shrinking]
    draft.attributes["nearest_mode"] = "ceil"


def _pixel_corner(draft: Draft) -> None:
    draft.begin()
    draft.attributes.setdefault("coordinate_transformation_mode", "output_half_pixel")


def _short_modes(draft: Draft) -> None:
    draft.begin()
    mode = draft.node.attr("mode", "bilinear") or ""
    draft.attributes["mode"] = {"bilinear": "linear", "bicubic": "cubic"}.get(mode, mode)


def _scatter_elements(draft: Draft) -> None:
    draft.begin()
    draft.op_type = "ScatterElements"


def check_windows(draft: Draft) -> None:
    """Check that windows do not count padding past the end, which opset 19 does otherwise."""
    if draft.node.attr("ceil_mode", 0) != 0 and draft.node.attr("count_include_pad", 0) != 0:
        raise MatchFailure("it counts padding in windows that go past the end (ceil_mode), which has changed")


def _floats_only(draft: Draft) -> None:
    if draft.editor.shapes[draft.first()].dtype not in FLOATS:
        raise MatchFailure("its data is not known to be of a float dtype")


def _of_channels(draft: Draft) -> None:
    """Scale and bias are of channels, no longer of groups; the dtype in which it computes is an attribute."""
    shape, groups = draft.editor.shapes[draft.first()], draft.node.attr("num_groups", int)
    channels = shape.dims[1].constant if shape.dims is not None and len(shape.dims) > 1 else None
    if not groups or not channels or channels % groups or not shape.dtype:
        raise MatchFailure("its scale and bias are of channels, no longer of groups, whose size is not known")
    draft.begin()
    if shape.dtype == TensorProto.DOUBLE:
        draft.attributes["stash_type"] = shape.dtype
    group_of = np.repeat(np.arange(groups), channels // groups)
    places = draft.editor.integers(group_of.tolist(), "groupnormalization_group_of_channel")
    for index, name in ((1, draft.name("scale")), (2, draft.name("bias"))):
        draft.before.append(NewNode("Gather", [draft.inputs[index], places], [name]))
        draft.inputs[index] = name


# Operator and the version since which attributes of integers are inputs, the first of them input 1.
MOVED: Mapping[tuple[str, int], tuple[str, ...]] = {
    **{(name, 18): ("axes",) for name in REDUCTIONS - {"ReduceSum"}},
    **{(name, 13): ("axes",) for name in ("ReduceSum", "Squeeze", "Unsqueeze")},
    ("Slice", 10): ("starts", "ends", "axes"),
    ("Split", 13): ("split",),
    ("TopK", 10): ("k",),
}
# Operator and the version since which it is another one -> how a node is spelled for it.
ADAPTERS: Mapping[tuple[str, int], Adapter] = {
    **{place: _attributes_to_integers(*names) for place, names in MOVED.items()},
    **{(name, 13): _last_axis for name in ("Softmax", "LogSoftmax", "Hardmax")},
    ("AveragePool", 19): check_windows,
    ("BatchNormalization", 9): _no_spatial,
    ("BatchNormalization", 14): keep_first_output,
    ("Clip", 11): _attributes_to_floats(min=1, max=2),
    ("Dropout", 10): keep_first_output,
    ("Dropout", 12): _adapt_dropout,
    ("Erf", 13): _floats_only,
    ("GridSample", 20): _short_modes,
    ("GroupNormalization", 21): _of_channels,
    ("Pad", 11): _both_adapters(_attributes_to_floats(value=2), _attributes_to_integers("pads")),
    ("Resize", 11): _adapt_asymmetric_resize,
    ("Resize", 13): _adapt_resize,
    ("RoiAlign", 16): _pixel_corner,
    ("Scatter", 11): _scatter_elements,
    ("Split", 18): _equal_parts,
    ("Upsample", 9): _adapt_scales,
    ("Upsample", 10): _adapt_upsample,
}
