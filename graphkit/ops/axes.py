"""How operators treat the axes of their tensors: which may go, merge with others or be split.

The tensors of a node are laid out over common axes, as broadcasting aligns them. An axis is free where the node does
the same at each of its positions: a free axis of 1 may be left out, free neighbours may be one axis where every tensor
has both of them or neither, and a free first axis may be split into several.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence

from msgspec import Struct

from graphkit.graph import operator_traits
from graphkit.graph.view import Node
from graphkit.ops.rule_context import NodeFacts, UnknownError
from graphkit.ops.tensor import Dims
from graphkit.symbolic.expr import const

FREE, ALIKE, OWN = 0, 1, 2  # an axis may go, merge and be split; may merge with others of its kind; stays as it is

Groups = Sequence[Sequence[int]]


class Layout(Struct, frozen=True):
    """How the tensors of a node lie over its common axes."""

    # the dims of inputs over the axes, by index; inputs that are not here are read as they are
    inputs: Mapping[int, Dims]
    outputs: Sequence[Dims]  # those of the first outputs; where one lacks axes that are reduced, ones stand for them
    kinds: Sequence[int]  # of each axis: FREE, ALIKE or OWN
    axis: int | None = None  # the attribute `axis`, None where no attribute names one axis
    axes: Sequence[int] = ()  # the axes that an attribute `axes` or an input names
    axes_input: int | None = None  # which input that is, None for the attribute
    # the inputs that give a number for each axis, by index, where groups of the axes are one axis each
    sizes: Callable[[Groups], Mapping[int, Sequence[int]]] | None = None


Rule = Callable[[NodeFacts], Layout]


def find_layout(facts: NodeFacts) -> Layout:
    """Return how the tensors of a node lie over its axes; UnknownError with the reason where no rule knows."""
    node = facts.node
    rule = _of_elementwise if operator_traits.is_elementwise(node) else RULES.get(node.operator)
    if rule is None:
        raise UnknownError(f"no rule says how {node.operator} works with fewer axes")
    return rule(facts)


def _is_vector(facts: NodeFacts, index: int, most: int | None = None) -> bool:
    """Whether an input is left out, or has at most one axis, and so many elements at most."""
    tensor = facts.inputs[index] if facts.has(index) else None
    if tensor is None:
        return True
    count = tensor.count()
    return tensor.dims is not None and len(tensor.dims) < 2 and (most is None or (count or most + 1) <= most)


def _pad_dims(dims: Dims, rank: int) -> Dims:
    return (const(1),) * (rank - len(dims)) + dims


def _mark_axes(rank: int, axes: Sequence[int], kind: int = OWN) -> list[int]:
    if any(not -rank <= axis < rank for axis in axes):
        raise UnknownError("it has no such axis")
    marked = {axis % rank for axis in axes}
    return [kind if axis in marked else FREE for axis in range(rank)]


def _with_ones(dims: Dims, kinds: Sequence[int]) -> Dims:
    return tuple(dim if kind == FREE else const(1) for dim, kind in zip(dims, kinds, strict=True))


def _read_axis(node: Node, default: int) -> int:
    axis = node.attr("axis", default)
    if axis is None:
        raise UnknownError("its axis is not known")
    return axis


def _of_elementwise(facts: NodeFacts) -> Layout:
    node, out = facts.node, facts.output()
    read = (
        [0]
        if node.operator in operator_traits.UNARY
        else [index for index, value in enumerate(node.inputs) if value is not None]
    )
    return Layout({index: _pad_dims(facts.dims(index), len(out)) for index in read}, [out], [FREE] * len(out))


def _of_each_element(facts: NodeFacts) -> Layout:
    dims = facts.dims(0)
    return Layout({0: dims}, [dims], [FREE] * len(dims))


def _along_axis(default: int) -> Rule:
    def rule(facts: NodeFacts) -> Layout:
        node = facts.node
        axis = _read_axis(node, default)
        outputs = [facts.output(index) for index in range(len(node.outputs))]
        data = range(len(operator_traits.joined_parts(node) or node.inputs[:1]))
        inputs = {index: facts.dims(index) for index in data}
        return Layout(inputs, outputs, _mark_axes(len(outputs[0]), [axis]), axis)

    return rule


def _of_softmax(facts: NodeFacts) -> Layout:
    """Before opset 13 all axes from one on are taken together."""
    dims, is_flat = facts.dims(0), facts.node.scope.opset() < operator_traits.ONE_AXIS_SINCE
    axis = _read_axis(facts.node, 1 if is_flat else -1)
    own = range(axis % len(dims), len(dims)) if is_flat and -len(dims) <= axis < len(dims) else [axis]
    return Layout({0: dims}, [dims], _mark_axes(len(dims), own), axis)


def _of_argument(facts: NodeFacts) -> Layout:
    dims, axis = facts.dims(0), _read_axis(facts.node, 0)
    kinds = _mark_axes(len(dims), [axis])
    return Layout({0: dims}, [_with_ones(dims, kinds)], kinds, axis)


def _named_axes(facts: NodeFacts, index: int) -> tuple[Sequence[int], int | None]:
    """Return the axes that an attribute or an input names, and which input that is."""
    if (attribute := facts.node.attr("axes", tuple)) is not None:
        return attribute, None
    if facts.node.input(index) is None:
        raise UnknownError("it names no axes")
    return facts.numbers(index), index


def _of_reduction(facts: NodeFacts) -> Layout:
    dims, (axes, axes_input) = facts.dims(0), _named_axes(facts, 1)
    if not axes:
        raise UnknownError("it names no axes")
    kinds = _mark_axes(len(dims), axes, ALIKE)
    return Layout({0: dims}, [_with_ones(dims, kinds)], kinds, None, axes, axes_input)


def _at_named_axes(facts: NodeFacts) -> Layout:
    """The data, of a Squeeze with its axes of 1, or the result with those that it gets."""
    axes, axes_input = _named_axes(facts, 1)
    dims = facts.output() if facts.node.is_op("Unsqueeze") else facts.dims(0)
    return Layout({0: dims}, [dims], _mark_axes(len(dims), axes), None, axes, axes_input)


def _of_slice(facts: NodeFacts) -> Layout:
    dims, out = facts.dims(0), facts.output()
    if facts.node.input(3) is None and not operator_traits.has_attributes_only(facts.node):
        places = range(len(facts.numbers(1)))
        return Layout({0: dims}, [out], _mark_axes(len(dims), places), None, places, 3)
    axes, axes_input = _named_axes(facts, 3)
    return Layout({0: dims}, [out], _mark_axes(len(dims), axes), None, axes, axes_input)


def _matmul_rule(operator: str, single: Sequence[int] = (), per_column: Sequence[int] = ()) -> Rule:
    """Return the rule of a MatMul of two inputs, with scales and zero points of which some may be one a column."""

    def rule(facts: NodeFacts) -> Layout:
        out, pair = facts.output(), {index: facts.dims(index) for index in FACTORS[operator]}
        if any(len(dims) < 2 for dims in (out, *pair.values())):
            raise UnknownError("it multiplies a vector")
        fits = [*(_is_vector(facts, index, 1) for index in single), *(_is_vector(facts, index) for index in per_column)]
        if not all(fits):
            raise UnknownError("its scales are more than one for each column")
        inputs = {index: _pad_dims(dims, len(out)) for index, dims in pair.items()}
        return Layout(inputs, [out], _mark_axes(len(out), [-2, -1]))

    return rule


def _of_normalization(facts: NodeFacts) -> Layout:
    dims, axis = facts.dims(0), _read_axis(facts.node, -1)
    if any(value is not None and value.consumers for value in facts.node.outputs[1:]):
        raise UnknownError("its mean or deviation is in use")
    if any(len(facts.dims(index)) >= len(dims) for index in (1, 2) if facts.has(index)):
        raise UnknownError("its scale or its bias has as many axes as its data")
    kinds = _mark_axes(len(dims), [axis])
    first = kinds.index(OWN)
    return Layout({0: dims}, [dims], [FREE] * first + [OWN] * (len(dims) - first), axis)


def _of_quantized(facts: NodeFacts) -> Layout:
    if not _is_vector(facts, 1) or not _is_vector(facts, 2) or facts.node.attr("block_size", 0):
        raise UnknownError("it has a scale for each block")
    if _is_vector(facts, 1, 1):
        return _of_each_element(facts)
    dims, axis = facts.dims(0), _read_axis(facts.node, 1)
    return Layout({0: dims}, [dims], _mark_axes(len(dims), [axis]), axis)


def _of_pad(facts: NodeFacts) -> Layout:
    dims, out, node = facts.dims(0), facts.output(), facts.node
    if operator_traits.has_attributes_only(node):
        raise UnknownError("its opset has no pads as an input")
    pads, has_axes = facts.numbers(1), node.input(3) is not None
    named = facts.numbers(3) if has_axes else list(range(len(dims)))
    if len(pads) != 2 * len(named):
        raise UnknownError("it has no two pads for each axis")
    around = {axis % len(dims): (pads[i], pads[i + len(named)]) for i, axis in enumerate(named)}
    padded = [axis for axis, pair in around.items() if any(pair)]

    def sizes(groups: Groups) -> Mapping[int, Sequence[int]]:
        pairs = [around[group[0]] if group[0] in padded else (0, 0) for group in groups]
        inputs = {1: [pair[side] for side in (0, 1) for pair in pairs]}
        return inputs | ({3: list(range(len(pairs)))} if has_axes else {})

    return Layout({0: dims}, [out], _mark_axes(len(dims), padded), sizes=sizes)


def _of_expand(facts: NodeFacts) -> Layout:
    out = facts.output()

    def sizes(groups: Groups) -> Mapping[int, Sequence[int]]:
        return {1: [math.prod(int(out[axis]) for axis in group) for group in groups]}

    return Layout({0: _pad_dims(facts.dims(0), len(out))}, [out], [FREE] * len(out), sizes=sizes)


def _of_tile(facts: NodeFacts) -> Layout:
    dims, out, repeats = facts.dims(0), facts.output(), facts.numbers(1)
    if len(repeats) != len(dims):
        raise UnknownError("it has no number of repeats for each axis")
    kinds = _mark_axes(len(dims), [axis for axis, count in enumerate(repeats) if count != 1])

    def sizes(groups: Groups) -> Mapping[int, Sequence[int]]:
        return {1: [math.prod(repeats[axis] for axis in group) for group in groups]}

    return Layout({0: dims}, [out], kinds, sizes=sizes)


FACTORS: Mapping[str, tuple[int, int]] = {"MatMul": (0, 1), "MatMulInteger": (0, 1), "QLinearMatMul": (0, 3)}
RULES: Mapping[str, Rule] = {
    **dict.fromkeys(sorted(operator_traits.REDUCTIONS), _of_reduction),
    **dict.fromkeys(operator_traits.SOFTMAXES, _of_softmax),
    **dict.fromkeys(("ArgMax", "ArgMin"), _of_argument),
    **dict.fromkeys(("Concat", "Split"), _along_axis(0)),
    **dict.fromkeys(operator_traits.NORMALIZATIONS, _of_normalization),
    **dict.fromkeys(("QuantizeLinear", "DequantizeLinear"), _of_quantized),
    **dict.fromkeys(("CumSum", "Squeeze", "Unsqueeze"), _at_named_axes),
    "DynamicQuantizeLinear": _of_each_element,
    "Expand": _of_expand,
    "MatMul": _matmul_rule("MatMul"),
    "MatMulInteger": _matmul_rule("MatMulInteger", (2,), (3,)),
    "Pad": _of_pad,
    "QLinearMatMul": _matmul_rule("QLinearMatMul", (1, 2, 6, 7), (4, 5)),
    "Slice": _of_slice,
    "Tile": _of_tile,
}
