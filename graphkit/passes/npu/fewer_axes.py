"""How a node is written with fewer axes: axes of 1 left out, neighbours that it treats alike as one.

The tensors of a node are laid out over common axes, as broadcasting aligns them. An axis is free where the node does
the same at each of its positions; a free axis of 1 may be left out, and free neighbours may be one axis where every
tensor has both of them or neither. What the rules here say of a node is how its tensors lie, and what its attributes
and constants become.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from graphkit.graph.operator_traits import REDUCTIONS, UNARY, is_elementwise
from graphkit.graph.view import Node, Value
from graphkit.rewrite import Editor, MatchFailure, attributes_of

__all__ = ["Axes", "Layout", "find_layout", "fold_axes", "sizes_of"]

Sizes = tuple[int, ...]
FREE, ALIKE, OWN = 0, 1, 2  # an axis may go and merge, may merge with others of its kind, or stays as it is

SOFTMAX_SINCE, SLICE_SINCE, PAD_SINCE = 13, 10, 11


@dataclass(frozen=True)
class Axes:
    """Which axes of the common ones are left, as groups; each group is one axis then."""

    groups: tuple[tuple[int, ...], ...]

    def of(self, axis: int) -> int:
        """Return the axis that an axis which was not left out is now."""
        return next(index for index, group in enumerate(self.groups) if axis in group)

    def dims(self, dims: Sequence[int], own_rank: int) -> Sizes:
        """Return the dims of a tensor that is laid out over the axes, without ones in front that it did not have."""
        sizes = [math.prod(dims[axis] for axis in group) for group in self.groups]
        while len(sizes) > own_rank and sizes[0] == 1:
            del sizes[0]
        return tuple(sizes)


@dataclass(frozen=True)
class Layout:
    """How the tensors of a node lie over its common axes.

    Attributes:
        inputs: The dims of inputs over the axes, by index; inputs that are not here are read as they are.
        outputs: Those of outputs; where an output lacks axes that are reduced, ones stand for them.
        kinds: Of each axis: FREE, ALIKE or OWN.
        attributes: The attributes over the axes that are left.
        constants: The integer inputs over the axes that are left, by index.
    """

    inputs: Mapping[int, Sizes]
    outputs: Sequence[Sizes]
    kinds: Sequence[int]
    attributes: Callable[[Axes], Mapping[str, Any]] = field(default=lambda _: {})
    constants: Callable[[Axes], Mapping[int, Sequence[int]]] = field(default=lambda _: {})


Rule = Callable[[Editor, Node], Layout]


def fold_axes(layout: Layout, rank: int) -> Axes:
    """Return at most `rank` axes for a node.

    Raises:
        MatchFailure: It needs more.
    """
    tensors = [*layout.inputs.values(), *layout.outputs]
    groups: list[tuple[int, ...]] = [(axis,) for axis in range(len(layout.kinds))]
    single = [all(dims[axis] == 1 for dims in tensors) for axis in range(len(groups))]
    for axis, kind in enumerate(layout.kinds):
        if len(groups) > rank and kind == FREE and single[axis]:
            groups.remove((axis,))
    index = 0
    while len(groups) > rank and index + 1 < len(groups):
        first, second = (
            next((axis for axis in group if not single[axis]), group[0]) for group in groups[index : index + 2]
        )
        is_alike = single[first] or single[second] or all((dims[first] == 1) == (dims[second] == 1) for dims in tensors)
        if layout.kinds[first] == layout.kinds[second] != OWN and is_alike:
            groups[index] += groups.pop(index + 1)
        else:
            index += 1
    if len(groups) > rank:
        raise MatchFailure(f"{len(groups)} of its axes can neither go nor merge")
    return Axes(tuple(groups))


def sizes_of(editor: Editor, value: Value | None) -> Sizes:
    """Return the dims of a tensor.

    Raises:
        MatchFailure: They are not all numbers.
    """
    sizes = editor.shapes[value].sizes()
    if value is None or sizes is None:
        raise MatchFailure(f"the dims of '{value.name if value is not None else ''}' are not all numbers")
    return sizes


def find_layout(editor: Editor, node: Node) -> Layout:
    """Return how the tensors of a node lie over its axes.

    Raises:
        MatchFailure: No rule knows, with the reason.
    """
    if is_elementwise(node):
        return _layout_of_elementwise(editor, node)
    rule = RULES.get(node.operator)
    if rule is None:
        raise MatchFailure(f"no rule says how {node.operator} works with fewer axes")
    return rule(editor, node)


def _pad_dims(dims: Sizes, rank: int) -> Sizes:
    return (1,) * (rank - len(dims)) + dims


def _read_integers(editor: Editor, node: Node, index: int) -> list[int]:
    integers = editor.known_integers(node.input(index))
    if integers is None:
        raise MatchFailure(f"its input {index} is not a constant")
    return integers


def _mark_axes(rank: int, axes: Sequence[int], kind: int = OWN) -> list[int]:
    if any(not -rank <= axis < rank for axis in axes):
        raise MatchFailure("it has no such axis")
    marked = {axis % rank for axis in axes}
    return [kind if axis in marked else FREE for axis in range(rank)]


def _layout_of_elementwise(editor: Editor, node: Node) -> Layout:
    out = sizes_of(editor, node.outputs[0])
    read = [0] if node.operator in UNARY else [i for i, value in enumerate(node.inputs) if value is not None]
    inputs = {index: _pad_dims(sizes_of(editor, node.inputs[index]), len(out)) for index in read}
    return Layout(inputs, [out], [FREE] * len(out), lambda _: attributes_of(node))


def _along_axis_rule(default: int) -> Rule:
    """Return the rule of an operator that works along one axis of its data."""

    def rule(editor: Editor, node: Node) -> Layout:
        if node.is_op("Softmax", "LogSoftmax") and node.scope.opset() < SOFTMAX_SINCE:
            raise MatchFailure("its opset takes all axes from one on together")
        data = node.inputs if node.is_op("Concat") else node.inputs[:1]
        outputs = [sizes_of(editor, value) for value in node.outputs]
        rank, axis = len(outputs[0]), node.attr("axis", default) or 0
        inputs = {index: sizes_of(editor, value) for index, value in enumerate(data)}
        kinds = _mark_axes(rank, [axis])
        return Layout(inputs, outputs, kinds, lambda axes: attributes_of(node, axis=axes.of(axis % rank)))

    return rule


def _layout_of_reduction(editor: Editor, node: Node) -> Layout:
    dims = sizes_of(editor, node.inputs[0])
    attribute = node.attr("axes", tuple)
    from_input = node.input(1) is not None
    reduced_axes = _read_integers(editor, node, 1) if from_input else list(attribute or ())
    if not reduced_axes:
        raise MatchFailure("it names no axes")
    kinds = _mark_axes(len(dims), reduced_axes, ALIKE)
    out = tuple(1 if kind == ALIKE else dim for dim, kind in zip(dims, kinds, strict=True))

    def reduced(axes: Axes) -> list[int]:
        return sorted({axes.of(axis % len(dims)) for axis in reduced_axes})

    def attributes(axes: Axes) -> Mapping[str, Any]:
        return attributes_of(node, keepdims=1, **({} if from_input else {"axes": reduced(axes)}))

    return Layout({0: dims}, [out], kinds, attributes, lambda axes: {1: reduced(axes)} if from_input else {})


def _layout_of_matmul(editor: Editor, node: Node) -> Layout:
    out = sizes_of(editor, node.outputs[0])
    pair = [sizes_of(editor, value) for value in node.inputs]
    if any(len(dims) < 2 for dims in pair):
        raise MatchFailure("it multiplies a vector")
    inputs = {index: _pad_dims(dims, len(out)) for index, dims in enumerate(pair)}
    return Layout(inputs, [out], _mark_axes(len(out), [-2, -1]))


def _layout_of_normalization(editor: Editor, node: Node) -> Layout:
    dims = sizes_of(editor, node.inputs[0])
    if any(value is not None and value.consumers for value in node.outputs[1:]):
        raise MatchFailure("its mean or deviation is in use")
    axis = (node.attr("axis", -1) or 0) % len(dims)
    normalized = range(axis, len(dims))
    return Layout(
        {0: dims}, [dims], _mark_axes(len(dims), normalized), lambda _: attributes_of(node, axis=-len(normalized))
    )


def _layout_of_slice(editor: Editor, node: Node) -> Layout:
    dims, out = sizes_of(editor, node.inputs[0]), sizes_of(editor, node.outputs[0])
    if node.scope.opset() < SLICE_SINCE:
        raise MatchFailure("its opset has no axes as an input")
    named = _read_integers(editor, node, 3 if node.input(3) is not None else 1)
    sliced = named if node.input(3) is not None else list(range(len(named)))

    def constants(axes: Axes) -> Mapping[int, Sequence[int]]:
        return {3: [axes.of(axis % len(dims)) for axis in sliced]}

    return Layout({0: dims}, [out], _mark_axes(len(dims), sliced), constants=constants)


def _layout_of_pad(editor: Editor, node: Node) -> Layout:
    dims, out = sizes_of(editor, node.inputs[0]), sizes_of(editor, node.outputs[0])
    if node.scope.opset() < PAD_SINCE:
        raise MatchFailure("its opset has no pads as an input")
    pads = _read_integers(editor, node, 1)
    named = _read_integers(editor, node, 3) if node.input(3) is not None else list(range(len(dims)))
    if len(pads) != 2 * len(named):
        raise MatchFailure("it has no two pads for each axis")
    around = {axis % len(dims): (pads[i], pads[i + len(named)]) for i, axis in enumerate(named)}
    padded = [axis for axis, pair in around.items() if any(pair)]

    def constants(axes: Axes) -> Mapping[int, Sequence[int]]:
        pairs = [around.get(group[0], (0, 0)) if group[0] in padded else (0, 0) for group in axes.groups]
        inputs = {1: [pair[side] for side in (0, 1) for pair in pairs]}
        return inputs | ({3: list(range(len(pairs)))} if node.input(3) is not None else {})

    return Layout({0: dims}, [out], _mark_axes(len(dims), padded), lambda _: attributes_of(node), constants)


def _layout_of_expand(editor: Editor, node: Node) -> Layout:
    dims, out = sizes_of(editor, node.inputs[0]), sizes_of(editor, node.outputs[0])
    padded = _pad_dims(dims, len(out))
    return Layout({0: padded}, [out], [FREE] * len(out), constants=lambda axes: {1: axes.dims(out, len(out))})


def _layout_of_tile(editor: Editor, node: Node) -> Layout:
    dims, out = sizes_of(editor, node.inputs[0]), sizes_of(editor, node.outputs[0])
    repeats = _read_integers(editor, node, 1)
    if len(repeats) != len(dims):
        raise MatchFailure("it has no number of repeats for each axis")
    repeated = [axis for axis, count in enumerate(repeats) if count != 1]

    def constants(axes: Axes) -> Mapping[int, Sequence[int]]:
        return {1: [math.prod(repeats[axis] for axis in group) for group in axes.groups]}

    return Layout({0: dims}, [out], _mark_axes(len(dims), repeated), constants=constants)


def _layout_of_quantized(editor: Editor, node: Node) -> Layout:
    dims, scale = sizes_of(editor, node.inputs[0]), sizes_of(editor, node.inputs[1])
    if len(scale) > 1:
        raise MatchFailure("it has a scale for each block")
    if math.prod(scale) == 1:
        return Layout({0: dims}, [dims], [FREE] * len(dims), lambda _: attributes_of(node))
    return _along_axis_rule(1)(editor, node)


RULES: Mapping[str, Rule] = {
    "Softmax": _along_axis_rule(-1),
    "LogSoftmax": _along_axis_rule(-1),
    "MatMul": _layout_of_matmul,
    "LayerNormalization": _layout_of_normalization,
    "SimplifiedLayerNormalization": _layout_of_normalization,
    "RMSNormalization": _layout_of_normalization,
    "Concat": _along_axis_rule(0),
    "Split": _along_axis_rule(0),
    "Slice": _layout_of_slice,
    "Pad": _layout_of_pad,
    "Expand": _layout_of_expand,
    "Tile": _layout_of_tile,
    "QuantizeLinear": _layout_of_quantized,
    "DequantizeLinear": _layout_of_quantized,
    **dict.fromkeys(sorted(REDUCTIONS), _layout_of_reduction),
}
