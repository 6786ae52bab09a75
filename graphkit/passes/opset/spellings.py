"""How a node is spelled for a version of the operator set in which, or before which, its operator changed.

Source: the operator schemas of onnx, and https://github.com/onnx/onnx/blob/main/docs/Changelog.md.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any

import numpy as np
import onnx
from onnx import AttributeProto, TensorProto
from onnx.defs import OpSchema

from graphkit.dtypes import FLOATS, INTEGERS, dtype_name
from graphkit.graph.new_nodes import make_gather, make_reshape
from graphkit.graph.operator_traits import BECAME_INPUTS, REDUCTIONS, SOFTMAXES, VARIADIC
from graphkit.graph.view import Node, Value, constant_tensor
from graphkit.ops.tensor import TensorSequence, element_numbers
from graphkit.rewrite import Editor, MatchFailure, NewNode, NodeInput, attributes_of

ALLOW_ZERO_SINCE = 14  # from which a Reshape can be told that a 0 is a length
ROI_IS_OPTIONAL_SINCE = 13
MAX_SCALES = 1 << 10  # bytes
MAX_CONSTANT = 1 << 20  # bytes of an input that becomes an attribute
NUMBERS = {"k", "max", "min", "ratio", "value"}  # attributes of one number
AXES_FROM_THE_BACK = 11  # since when an axis may be negative
ERF_SINCE = 9
ROOT, CUBIC = (2 / np.pi) ** 0.5, 0.044715  # of the tanh that is nearly a Gelu
OPTIONS = OpSchema.FormalParameterOption
# Values of attributes that are younger than the attribute.
NEW_VALUES: Mapping[tuple[str, str, bytes], int] = {
    ("Pad", "mode", b"wrap"): 19,
    ("Resize", "coordinate_transformation_mode", b"half_pixel_symmetric"): 19,
    **{(f"Scatter{kind}", "reduction", way): 18 for kind in ("Elements", "ND") for way in (b"max", b"min")},
}


class Draft:
    """A node on its way to another version of the operator set."""

    def __init__(self, editor: Editor, node: Node, version: int) -> None:
        self.editor, self.node, self.version = editor, node, version
        self.op_type, self.attributes = node.op_type, attributes_of(node)  # the node as it is so far
        self.inputs: list[NodeInput] = [*node.inputs]
        self.outputs: list[str] = [*node.proto.output]
        self.before: list[NewNode] = []  # other nodes that it needs
        self.after: list[NewNode] = []
        self._former = self.op_type, [*self.inputs], [*self.outputs], dict(self.attributes)

    @property
    def is_changed(self) -> bool:
        """Whether it has to be made again."""
        return (self.op_type, self.inputs, self.outputs, self.attributes) != self._former

    def take_attribute(self, name: str) -> Any:
        """Remove an attribute and return its value, None if the node does not have it."""
        if name in self.node.attributes and self.node.attributes[name].ref_attr_name:
            raise MatchFailure(f"the call of a function gives its attribute '{name}': run inline-functions first")
        value = self.attributes.pop(name, None)
        return onnx.helper.get_attribute_value(value) if isinstance(value, AttributeProto) else value

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

    def input_rank(self) -> int:
        """Return the rank of its first input."""
        if (rank := self.editor.shapes[self.node.operand(0)].rank) is None:
            raise MatchFailure("the rank of its input is not known")
        return rank

    def name(self, suffix: str) -> str:
        """Return a new name, made from that of its first output."""
        return self.editor.unique_name(f"{self.node.proto.output[0]}_{suffix}")


Adapter = Callable[[Draft], None]

# For the version in which an operator changed


def _attributes_to_inputs(**places: int) -> Adapter:
    """Attributes became inputs at these places: floats as they are, integers as a list."""

    def adapt(draft: Draft) -> None:
        for name, place in places.items():
            if (numbers := draft.take_attribute(name)) is not None:
                is_float = draft.node.attributes[name].type in (AttributeProto.FLOAT, AttributeProto.FLOATS)
                array = np.array(numbers, np.float32) if is_float else np.array(numbers, np.int64, ndmin=1)
                draft.give(place, draft.editor.constant(array, f"{draft.op_type.lower()}_{name}"))

    return adapt


def _over_one_axis(draft: Draft) -> None:
    """Softmax was over all axes from one on, and by default from axis 1; it is over that axis, by default the last."""
    axis, data = draft.node.attr("axis", 1), draft.node.operand(0)
    rank, dims = draft.editor.shapes[data].rank, draft.editor.shapes[data].dims
    if axis is None:
        raise MatchFailure("its axis is not known")
    if axis == -1 or (rank is not None and axis == rank - 1):
        draft.attributes["axis"] = axis
        return
    takes_zeros = {"allowzero": 1} if draft.version >= ALLOW_ZERO_SINCE else {}
    behind = () if dims is None else dims if axis in (0, -len(dims)) else dims[1:]  # what a 0 there does not stand for
    if not takes_zeros and (dims is None or not all(dim.constant for dim in behind)):
        since = f"which takes a Reshape of opset {ALLOW_ZERO_SINCE} where one has no elements"
        raise MatchFailure(f"it is over several axes, {since}")
    shape, flat, result = draft.name("shape"), draft.name("flat"), draft.name("rows")
    draft.before += [NewNode("Shape", [data], [shape]), NewNode("Flatten", [data], [flat], {"axis": axis})]
    draft.after.append(make_reshape(result, shape, draft.outputs[0], attributes=takes_zeros))
    draft.inputs, draft.outputs, draft.attributes["axis"] = [flat], [result], -1


def _equal_parts(draft: Draft) -> None:
    """A Split without lengths has to say how many parts there are."""
    if draft.node.input(1) is None and "split" not in draft.node.attributes:
        draft.attributes["num_outputs"] = len(draft.outputs)


def _keep_first_output(draft: Draft) -> None:
    """Only its first output is the same as before."""
    used = [value for value in draft.node.outputs[1:] if value is not None]
    if any(value.consumers or value.is_output for value in used):
        raise MatchFailure(f"its output '{used[0].name}' is another one now")
    draft.outputs = draft.outputs[:1]


def _leave_out_empty(draft: Draft) -> None:
    """Inputs that do not count may be left out, and had to be empty."""
    if draft.node.attr("coordinate_transformation_mode", "half_pixel") == "tf_half_pixel_for_nn":
        raise MatchFailure("its coordinate_transformation_mode 'tf_half_pixel_for_nn' is gone")
    for index, value in enumerate(draft.inputs[1:], 1):
        if isinstance(value, Value) and value.constant is not None and 0 in value.constant.dims:
            draft.inputs[index] = None


def _rename_operator(draft: Draft) -> None:
    """The operator has another name: an Upsample is a Resize whose scales are at least 1."""
    draft.op_type = {"Scatter": "ScatterElements", "Upsample": "Resize"}[draft.op_type]


def _asymmetric_resize(draft: Draft) -> None:
    """A Resize had no modes: pixel i of the result was i / scale, rounded down, or up where the scale is below 1."""
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
        draft.inputs = [larger, roi, draft.editor.constant(np.minimum(array, np.float32(1)), "resize_scales")]
    draft.attributes["nearest_mode"] = "ceil"


def _groups_to_channels(draft: Draft) -> None:
    """Scale and bias are of channels, no longer of groups; the dtype in which it computes is an attribute."""
    shape, groups = draft.editor.shapes[draft.node.operand(0)], draft.node.attr("num_groups", int)
    channels = shape.dims[1].constant if shape.dims is not None and len(shape.dims) > 1 else None
    if not groups or not channels or channels % groups or not shape.dtype:
        raise MatchFailure("its scale and bias are of channels, no longer of groups, whose size is not known")
    if shape.dtype == TensorProto.DOUBLE:
        draft.attributes["stash_type"] = shape.dtype
    group_of = np.repeat(np.arange(groups), channels // groups)
    places = draft.editor.integers(group_of.tolist(), "groupnormalization_group_of_channel")
    for index, name in ((1, draft.name("scale")), (2, draft.name("bias"))):
        draft.before.append(make_gather(draft.inputs[index], places, None, name))
        draft.inputs[index] = name


# For a version before an operator changed


def fit_older_version(draft: Draft, before: OpSchema, after: OpSchema) -> None:
    """Leave out what the older version of an operator does not have where that is its default; else a MatchFailure."""
    given, since = dict(draft.attributes), after.since_version
    for name, value in given.items():
        if name not in before.attributes:
            if value != _default_of(after, name):
                raise MatchFailure(f"its attribute '{name}' came with opset {since}")
            draft.take_attribute(name)
        elif isinstance(value, bytes) and NEW_VALUES.get((draft.op_type, name, value)) == since:
            raise MatchFailure(f"its {name} '{value.decode()}' came with opset {since}")
    for name, attribute in before.attributes.items():
        if name in given:
            continue
        default, former, is_kept = _default_of(after, name), _default_of(before, name), name in after.attributes
        if attribute.required or (is_kept and default is None and former is not None):
            raise MatchFailure(f"it has no attribute '{name}', which it needs before opset {since}")
        if is_kept and default != former:
            draft.attributes[name] = default
    if after.since_version == AXES_FROM_THE_BACK:
        _count_axes_from_the_front(draft)
    outputs = draft.node.outputs[: len(draft.outputs)]
    if not _fit_formals(draft, "input", before.inputs, after.inputs, draft.inputs, after.since_version):
        draft.inputs = draft.inputs[: len(before.inputs)]
    if not _fit_formals(draft, "output", before.outputs, after.outputs, outputs, after.since_version):
        draft.outputs = draft.outputs[: len(before.outputs)]


def _default_of(schema: OpSchema, name: str) -> Any:
    attribute = schema.attributes.get(name)
    if attribute is None or attribute.default_value.type == AttributeProto.UNDEFINED:
        return None
    return onnx.helper.get_attribute_value(attribute.default_value)


def _fit_formals(
    draft: Draft,
    what: str,
    before: Sequence[OpSchema.FormalParameter],
    after: Sequence[OpSchema.FormalParameter],
    values: Sequence[Value | str | None],
    since: int,
) -> bool:
    """Check inputs or outputs, and return whether all have a place, those too that are left out."""
    dtypes: dict[str, int] = {}
    for index, value in enumerate(values):
        if value is None:
            continue
        old, new = _formal_parameter(before, index), _formal_parameter(after, index)
        if old is None:
            raise MatchFailure(f"its {what} '{new.name if new is not None else index}' came with opset {since}")
        if isinstance(value, str):  # made here
            continue
        tensor = draft.editor.shapes[value]
        common = tensor.common if isinstance(tensor, TensorSequence) else None
        dtype = tensor.dtype if common is None else common.dtype
        kind = f"tensor({TensorProto.DataType.Name(dtype).lower()})"
        if not dtype and (new is None or not new.types <= old.types):
            raise MatchFailure(f"the dtype of '{value.name}' is not known, of which opset {since} takes more")
        if dtype and (kind if common is None else f"seq({kind})") not in old.types:
            raise MatchFailure(f"its {what} '{value.name}' is {dtype_name(dtype)}, which came with opset {since}")
        if dtypes.setdefault(old.type_str, dtype) != dtype and old.is_homogeneous:
            raise MatchFailure(f"its {what}s are of several dtypes, which came with opset {since}")
    for index, formal in enumerate(before):
        if formal.option == OPTIONS.Single and (index >= len(values) or values[index] is None):
            raise MatchFailure(f"it has no {what} '{formal.name}', which it needs before opset {since}")
    return not values or _formal_parameter(before, len(values) - 1) is not None


def _formal_parameter(formals: Sequence[OpSchema.FormalParameter], index: int) -> OpSchema.FormalParameter | None:
    if index < len(formals):
        return formals[index]
    return formals[-1] if formals and formals[-1].option == OPTIONS.Variadic else None


def _count_axes_from_the_front(draft: Draft) -> None:
    for name, value in dict(draft.attributes).items():
        axes = [value] if isinstance(value, int) else value
        if name not in ("axis", "axes") or not isinstance(axes, list) or min(axes, default=0) >= 0:
            continue
        more = {"Unsqueeze": len(axes), "OneHot": 1}.get(draft.op_type, 0)
        positive = _positive_axes(axes, draft.input_rank() + more)
        draft.attributes[name] = positive[0] if isinstance(value, int) else positive


def _positive_axes(axes: Sequence[int], rank: int) -> list[int]:
    return [axis + rank if axis < 0 else axis for axis in axes]


def _constant_elements(draft: Draft, index: int) -> np.ndarray | None:
    """Return the elements of an input, None where it is left out, or raise a MatchFailure where it is no constant."""
    value = draft.inputs[index] if index < len(draft.inputs) else None
    if not isinstance(value, Value):
        return None
    array = element_numbers(draft.editor.shapes[value])
    array = draft.editor.read_constant(value, MAX_CONSTANT) if array is None else array
    if array is None:
        raise MatchFailure(f"'{value.name}' is no constant, and has to be an attribute")
    return array


def _inputs_to_attributes(*names: str) -> Adapter:
    """Inputs from the second one on were attributes."""

    def adapt(draft: Draft) -> None:
        for index, name in enumerate(names, 1):
            if (array := _constant_elements(draft, index)) is not None:
                draft.inputs[index] = None
                draft.attributes[name] = array.reshape(-1)[0].item() if name in NUMBERS else array.reshape(-1).tolist()

    return adapt


def _reduction_axes(draft: Draft) -> None:
    """The axes of a reduction; none are all of them, or none at all where `noop_with_empty_axes` says so."""
    array = _constant_elements(draft, 1)
    is_all = array is None or not array.size
    if is_all and draft.node.attr("noop_with_empty_axes", 0) != 0:
        raise MatchFailure("it reduces nothing (noop_with_empty_axes)")
    draft.take_attribute("noop_with_empty_axes")
    if is_all:
        draft.inputs[1:] = []
    _inputs_to_attributes("axes")(draft)


def _unequal_parts(draft: Draft) -> None:
    """A Split without lengths has equal parts."""
    count, dims = draft.take_attribute("num_outputs"), draft.editor.shapes[draft.node.operand(0)].dims or ()
    axis = draft.node.axis(len(dims))
    size = dims[axis].constant if axis is not None else None
    if count is not None and (size is None or size % count):
        raise MatchFailure("its parts are not known to be equal")


def _last_axis(draft: Draft) -> None:
    """Softmax is over one axis; it was over all axes from one on."""
    axis, rank = draft.node.attr("axis", -1), draft.input_rank()
    if axis is None or not -rank <= axis < rank:
        raise MatchFailure("its axis is not known")
    draft.attributes["axis"] = rank - 1
    if axis in (-1, rank - 1):
        return
    perm = list(range(rank))
    perm[axis], perm[-1] = perm[-1], perm[axis]
    turned, result = draft.name("turned"), draft.name("rows")
    draft.before.append(NewNode("Transpose", [draft.inputs[0]], [turned], {"perm": perm}))
    draft.after.append(NewNode("Transpose", [result], [draft.outputs[0]], {"perm": perm}))
    draft.inputs, draft.outputs = [turned], [result]


def _drop_input(index: int, number: int, reason: str) -> Adapter:
    """An input was not there, and has to be this number throughout."""

    def adapt(draft: Draft) -> None:
        if (array := _constant_elements(draft, index)) is not None and (array != number).any():
            raise MatchFailure(reason)
        if array is not None:
            draft.inputs[index] = None

    return adapt


def _sliced_axes(draft: Draft) -> None:
    axes = _constant_elements(draft, 3)
    if draft.version == AXES_FROM_THE_BACK - 1 and axes is not None and (axes < 0).any():
        positive = _positive_axes(axes.tolist(), draft.input_rank())
        draft.inputs[3] = draft.editor.constant(np.array(positive, axes.dtype), "slice_axes")


def _empty_inputs(draft: Draft) -> None:
    """Inputs that do not count had to be there."""
    empty = draft.editor.constant(np.zeros(0, np.float32), "resize_none")
    draft.inputs += [None] * (3 - len(draft.inputs))
    draft.inputs = [empty if index in (1, 2) and value is None else value for index, value in enumerate(draft.inputs)]


def _adapt_constant(draft: Draft) -> None:
    """A Constant had a tensor."""
    if (tensor := constant_tensor(draft.node.attributes)) is None:
        raise MatchFailure("its value is not known")
    if "value" not in draft.node.attributes and "sparse_value" not in draft.node.attributes:
        draft.attributes = {"value": tensor}


def _rename_modes(default: str, names: Mapping[str, str]) -> Adapter:
    """The modes of a GridSample have other names; only the newer operator samples volumes."""

    def adapt(draft: Draft) -> None:
        if default == "linear" and draft.input_rank() != 4:
            raise MatchFailure("it samples a volume")
        mode = draft.node.attr("mode", default) or ""
        draft.attributes["mode"] = names.get(mode, mode)

    return adapt


def _require(reason: str, holds: Callable[[Draft], bool], drop: str = "") -> Adapter:
    """What must hold of a node, which has an attribute less then."""

    def adapt(draft: Draft) -> None:
        if not holds(draft):
            raise MatchFailure(reason)
        draft.take_attribute(drop)

    return adapt


def _spell_gelu(draft: Draft) -> None:
    """There was no Gelu: it is x (1 + erf(x / sqrt(2))) / 2, in onnxruntime's order, or by the tanh of a cubic."""
    x, dtype = draft.node.operand(0), FLOATS.get(_first_dtype(draft))
    if dtype is None:
        raise MatchFailure("it is not known to be of a float dtype")
    is_tanh = draft.node.attr("approximate", "none") == "tanh"
    if not is_tanh and draft.version < ERF_SINCE:
        raise MatchFailure(f"it is spelled by Erf, which came with opset {ERF_SINCE}")

    def add(op_type: str, name: str, data: NodeInput, number: float | None = None) -> str:
        scalar = [] if number is None else [draft.editor.constant(np.array(number, dtype), f"gelu_{name}")]
        draft.before.append(NewNode(op_type, [data, *scalar], [made := draft.name(name)]))
        return made

    if is_tanh:
        square, inner = draft.name("square"), draft.name("inner")
        draft.before.append(NewNode("Mul", [add("Mul", "cubic", x, ROOT * CUBIC), x], [square]))
        draft.before.append(NewNode("Mul", [x, add("Add", "factor", square, ROOT)], [inner]))
        squashed = add("Tanh", "tanh", inner)
    else:
        squashed = add("Erf", "erf", add("Mul", "scaled", x, 0.5**0.5))
    weighted, shifted = draft.name("weighted"), add("Add", "shifted", squashed, 1)
    draft.before.append(NewNode("Mul", [x, shifted], [weighted]))
    draft.take_attribute("approximate")
    draft.op_type, draft.inputs = "Mul", [weighted, draft.editor.constant(np.array(0.5, dtype), "gelu_half")]


def _pixel_corner(draft: Draft) -> None:
    draft.attributes.setdefault("coordinate_transformation_mode", "output_half_pixel")


def _first_dtype(draft: Draft) -> int:
    return draft.editor.shapes[draft.node.operand(0)].dtype


def _in_turn(*adapters: Adapter) -> Adapter:
    def adapt(draft: Draft) -> None:
        for adapter in adapters:
            adapter(draft)

    return adapt


IS_FLOAT32 = _require("its data is not known to be float32", lambda draft: _first_dtype(draft) == TensorProto.FLOAT)
WINDOWS = _require(
    "it counts padding in windows that go past the end (ceil_mode), which has changed",
    lambda draft: draft.node.attr("ceil_mode", 0) == 0 or draft.node.attr("count_include_pad", 0) == 0,
)
OF_TENSOR = _require(
    "its scale is not known to be one number",
    lambda draft: draft.editor.shapes[draft.node.input(1)].dims in ((), (1,)),
    drop="axis",
)
ONE_SHAPE = _require(
    "its inputs are not known to have one shape",
    lambda draft: (
        len(dims := {draft.editor.shapes[each].dims for each in draft.node.operands}) < 2 and None not in dims
    ),
)
# Operator and the version since which attributes of integers are inputs, the first of them input 1.
MOVED: Mapping[tuple[str, int], tuple[str, ...]] = {
    (name, since): names for name, (since, names) in BECAME_INPUTS.items() if name not in ("Clip", "Pad")
}  # of integers
# Operator and the version since which it is another one -> how a node is spelled for it.
NEWER: Mapping[tuple[str, int], Adapter] = {
    **{
        place: _attributes_to_inputs(**{name: at for at, name in enumerate(names, 1)}) for place, names in MOVED.items()
    },
    **{(name, 13): _over_one_axis for name in sorted(SOFTMAXES)},
    ("AveragePool", 19): WINDOWS,
    ("BatchNormalization", 9): _require(
        "its attribute 'spatial' is gone", lambda draft: draft.node.attr("spatial", 1) == 1, drop="spatial"
    ),
    ("BatchNormalization", 14): _keep_first_output,
    ("Clip", 11): _in_turn(IS_FLOAT32, _attributes_to_inputs(min=1, max=2)),
    ("Dropout", 10): _keep_first_output,
    ("Dropout", 12): _in_turn(_keep_first_output, _attributes_to_inputs(ratio=1)),
    ("Erf", 13): _require("its data is not known to be of a float dtype", lambda draft: _first_dtype(draft) in FLOATS),
    ("GridSample", 20): _rename_modes("bilinear", {"bilinear": "linear", "bicubic": "cubic"}),
    ("GroupNormalization", 21): _groups_to_channels,
    ("Pad", 11): _in_turn(IS_FLOAT32, _attributes_to_inputs(value=2, pads=1)),
    ("Resize", 11): _asymmetric_resize,
    ("Resize", 13): _leave_out_empty,
    ("RoiAlign", 16): _pixel_corner,
    ("Scatter", 11): _rename_operator,
    ("Split", 18): _equal_parts,
    ("Upsample", 9): _in_turn(
        _require("it has no scales", lambda draft: "scales" in draft.node.attributes), _attributes_to_inputs(scales=1)
    ),
    ("Upsample", 10): _rename_operator,
}
# Operator and the version since which it is another one -> how a node is spelled before it.
OLDER: Mapping[tuple[str, int], Adapter] = {
    **{place: _inputs_to_attributes(*names) for place, names in MOVED.items()},
    **{place: _reduction_axes for place in MOVED if place[0] in REDUCTIONS},
    **{(name, 13): _last_axis for name in sorted(SOFTMAXES)},
    **{(name, 13): OF_TENSOR for name in ("QuantizeLinear", "DequantizeLinear")},
    **{(name, 8): ONE_SHAPE for name in sorted(VARIADIC)},
    ("AveragePool", 19): WINDOWS,
    ("BatchNormalization", 9): _in_turn(),
    ("BatchNormalization", 14): _keep_first_output,
    ("Clip", 11): _in_turn(IS_FLOAT32, _inputs_to_attributes("min", "max")),
    ("Constant", 12): _adapt_constant,
    ("Dropout", 10): _keep_first_output,
    ("Dropout", 12): _in_turn(
        _drop_input(2, 0, "it is in training mode"), _keep_first_output, _inputs_to_attributes("ratio")
    ),
    ("Erf", 13): _in_turn(),
    ("Gelu", 20): _spell_gelu,
    ("GridSample", 20): _rename_modes("linear", {"linear": "bilinear", "cubic": "bicubic"}),
    ("Mod", 28): _require(
        "it rounds down the quotients of floats (fmod is 0), which came with opset 28",
        lambda draft: draft.node.attr("fmod", 0) == 1 or _first_dtype(draft) in INTEGERS,
    ),
    ("Pad", 11): _inputs_to_attributes("pads", "value"),
    ("Resize", 13): _empty_inputs,
    ("RoiAlign", 16): _require(
        "its coordinate_transformation_mode came with opset 16",
        lambda draft: draft.node.attr("coordinate_transformation_mode", "half_pixel") == "output_half_pixel",
        drop="coordinate_transformation_mode",
    ),
    ("Slice", 10): _in_turn(
        _drop_input(4, 1, "it has steps"), _inputs_to_attributes("starts", "ends", "axes"), _count_axes_from_the_front
    ),
    ("Slice", 11): _sliced_axes,
    ("Split", 18): _unequal_parts,
}
