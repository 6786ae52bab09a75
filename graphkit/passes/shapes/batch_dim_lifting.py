"""Operators that treat every slice of the leading dim alike, and how to write them if that dim is split into several.

A MatMul of `[p*q, s, d]` does for each of the `p*q` matrices what a MatMul of `[p, q, s, d]` does: such a node can be
lifted, and gives the same elements, only its axes shift. The rules say for which nodes that holds.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np

from graphkit.graph.operator_traits import BROADCASTING, REDUCTIONS, UNARY, UNIDIRECTIONAL, is_elementwise
from graphkit.graph.view import Node
from graphkit.ops.tensor import Dims, Tensor, element_numbers
from graphkit.rewrite import attributes_of
from graphkit.shapes import lower

__all__ = ["Candidate", "Lift", "is_liftable", "lift_node"]


@dataclass(frozen=True)
class Lift:
    """How a node is lifted.

    Attributes:
        inputs: Which inputs have to be lifted; the others are read as they are.
        outputs: Which outputs are lifted then; the others stay as they are.
        axes: The attributes that are axes, as they count in the flat tensor.
        arrays: The inputs that are axes, likewise, from the start.
    """

    inputs: frozenset[int]
    outputs: tuple[int, ...] = (0,)
    axes: Mapping[str, int | Sequence[int]] = field(default_factory=dict)
    arrays: Mapping[int, np.ndarray] = field(default_factory=dict)

    def attributes(self, node: Node, extra: int) -> dict[str, Any]:
        """Return the attributes of the lifted node, whose tensors have so many leading dims more."""
        attributes = attributes_of(node)
        for name, axes in self.axes.items():
            attributes[name] = (
                shift_axis(axes, extra) if isinstance(axes, int) else [shift_axis(axis, extra) for axis in axes]
            )
        if "perm" in self.axes:
            attributes["perm"] = [*range(extra), *attributes["perm"]]
        return attributes

    def constants(self, extra: int) -> dict[int, np.ndarray]:
        """Return the inputs of the lifted node that are other constants than the node's."""
        return {index: (array + extra).astype(array.dtype) for index, array in self.arrays.items()}


def shift_axis(axis: int, extra: int) -> int:
    """Return an axis after the first as it counts with more dims before it; one from the end stays."""
    return axis if axis < 0 else axis + extra


@dataclass(frozen=True)
class Candidate:
    """A node that could be lifted, with the known facts of its tensors.

    Attributes:
        inputs: The known facts of its inputs, None for one that is left out.
        out: The dims of its first output.
        flat: The inputs that can be lifted.
    """

    node: Node
    inputs: Sequence[Tensor | None]
    out: Dims
    flat: frozenset[int]

    def tensor(self, index: int) -> Tensor | None:
        """Return the known facts of an input, None where it is left out."""
        return self.inputs[index] if index < len(self.inputs) else None

    def rank(self, index: int) -> int:
        """Return the rank of an input, -1 where it is left out or not known."""
        tensor = self.tensor(index)
        return -1 if tensor is None or tensor.dims is None else len(tensor.dims)

    def is_single(self, index: int) -> bool:
        """Whether an input is left out or one number for the whole tensor."""
        tensor = self.tensor(index)
        return tensor is None or (tensor.count() == 1 and self.rank(index) < 2)

    def numbers(self, index: int) -> np.ndarray | None:
        """Return the elements of an integer input, None where it is left out or they are not known."""
        tensor = self.tensor(index)
        return element_numbers(tensor) if tensor is not None else None

    def fits(self, index: int) -> bool:
        """Whether an input that is aligned with the output from the right may stay, or is lifted, as it is."""
        tensor = self.tensor(index)
        if tensor is None:
            return True
        if tensor.dims is None or len(tensor.dims) > len(self.out):
            return False
        if index in self.flat:
            return len(tensor.dims) == len(self.out)
        return len(tensor.dims) < len(self.out) or tensor.dims[0] == 1

    def axis(self, default: int | None, rank: int) -> int | None:
        """Return the attribute `axis`, None where it is not after the first."""
        axis = self.node.attr("axis", int if default is None else default)
        return axis if axis is not None and is_trailing(axis, rank) else None


Rule = Callable[[Candidate], Lift | None]


def is_trailing(axis: int, rank: int) -> bool:
    """Whether an axis, which may count from the end, comes after the first."""
    return 0 < (axis if axis >= 0 else axis + rank) < rank


def lift_node(view: Candidate) -> Lift | None:
    """Return how a node is lifted, None where it is not known that it can."""
    rule = RULES.get(view.node.op_type) if not view.node.domain else None
    return rule(view) if rule is not None else None


def is_liftable(node: Node) -> bool:
    """Whether there is a rule for a node's operator."""
    return not node.domain and node.op_type in RULES


def _lift_elementwise(view: Candidate) -> Lift | None:
    fits = is_elementwise(view.node) and all(view.fits(index) for index in range(len(view.inputs)))
    return Lift(view.flat) if fits else None


def _matmul_rule(left: int, right: int, single: Sequence[int] = (), per_column: Sequence[int] = ()) -> Rule:
    """Return the rule of a MatMul of two inputs, with scales and zero points of which some may be one a column."""

    def rule(view: Candidate) -> Lift | None:
        if not view.flat <= {left, right} or not all(view.is_single(index) for index in single):
            return None
        if not all(view.tensor(index) is None or view.rank(index) in (0, 1) for index in per_column):
            return None
        if view.rank(left) == 2 and view.rank(right) == 2:  # rows of one matrix
            return Lift(view.flat) if view.flat == {left} else None
        is_batched = min(view.rank(left), view.rank(right), len(view.out)) >= 2
        if not is_batched or not view.fits(left) or not view.fits(right):
            return None
        if left not in view.flat and lower(view.out[0]) < 1:  # onnxruntime refuses [m, k] by [0, q, k, n]
            return None
        return Lift(view.flat)

    return rule


def _lift_transpose(view: Candidate) -> Lift | None:
    perm = view.node.attr("perm", tuple)
    return Lift(view.flat, axes={"perm": perm}) if perm and perm[0] == 0 else None


def _along_axis_rule(default: int | None, default_since: int = 0, before: int | None = None) -> Rule:
    """Return the rule of an operator that works along an axis of its first input."""

    def rule(view: Candidate) -> Lift | None:
        chosen = default if view.node.scope.opset() >= default_since else before
        axis = view.axis(chosen, view.rank(0))
        outputs = tuple(range(len(view.node.outputs)))
        return Lift(view.flat, outputs, {"axis": axis}) if view.flat == {0} and axis is not None else None

    return rule


def _lift_gather(view: Candidate) -> Lift | None:
    is_first = view.node.attr("axis", 0) in (0, -view.rank(0))
    return Lift(view.flat) if view.flat == {1} and is_first else _along_axis_rule(None)(view)


def _lift_concat(view: Candidate) -> Lift | None:
    axis = view.axis(None, view.rank(0))
    return Lift(view.flat, axes={"axis": axis}) if len(view.flat) == len(view.inputs) and axis is not None else None


def _lift_normalization(view: Candidate) -> Lift | None:
    axis = view.axis(-1, view.rank(0))
    ranks = range(view.rank(0))
    if not all(view.tensor(index) is None or view.rank(index) in ranks for index in range(1, len(view.inputs))):
        return None
    if any(value is not None and value.consumers for value in view.node.outputs[1:]):
        return None
    return Lift(view.flat, axes={"axis": axis}) if view.flat == {0} and axis is not None else None


def _axes_rule(index: int, *, of_output: bool = False) -> Rule:
    """Return the rule of an operator whose axes are an attribute or, in later versions, an input.

    They count from the start then: onnxruntime's reductions of an empty tensor ignore axes that count from the end.
    """

    def rule(view: Candidate) -> Lift | None:
        attribute = view.node.attr("axes", tuple)
        array = np.array(attribute, np.int64) if attribute is not None else view.numbers(index)
        if view.flat != {0} or array is None or not array.size:
            return None
        rank = len(view.out) if of_output else view.rank(0)
        if not all(is_trailing(axis, rank) for axis in array.ravel().tolist()):
            return None
        array = np.where(array < 0, array + rank, array).astype(array.dtype)
        if attribute is not None:
            return Lift(view.flat, axes={"axes": array.tolist()})
        return Lift(view.flat, arrays={index: array})

    return rule


def _lift_quantize(view: Candidate) -> Lift | None:
    if view.flat != {0} or view.node.attr("block_size", 0) != 0:
        return None
    if view.is_single(1) and view.is_single(2):
        return Lift(view.flat)
    axis = view.axis(1, view.rank(0))
    if axis is None or view.rank(1) != 1 or (view.tensor(2) is not None and view.rank(2) != 1):
        return None
    return Lift(view.flat, axes={"axis": axis})


RULES: Mapping[str, Rule] = {
    **dict.fromkeys(UNARY | BROADCASTING.keys() | UNIDIRECTIONAL.keys(), _lift_elementwise),
    **dict.fromkeys(REDUCTIONS, _axes_rule(1)),
    **dict.fromkeys(("Softmax", "LogSoftmax", "Hardmax"), _along_axis_rule(-1, 13, 1)),
    **dict.fromkeys(("ArgMax", "ArgMin", "Split"), _along_axis_rule(None)),
    **dict.fromkeys(("LayerNormalization", "RMSNormalization"), _lift_normalization),
    **dict.fromkeys(("QuantizeLinear", "DequantizeLinear"), _lift_quantize),
    "Concat": _lift_concat,
    "CumSum": _axes_rule(1),
    "DynamicQuantizeLinear": lambda view: Lift(view.flat),
    "Gather": _lift_gather,
    "MatMul": _matmul_rule(0, 1),
    "MatMulInteger": _matmul_rule(0, 1, (2,), (3,)),
    "QLinearMatMul": _matmul_rule(0, 3, (1, 2, 6, 7), (4, 5)),
    "Slice": _axes_rule(3),
    "Squeeze": _axes_rule(1),
    "Transpose": _lift_transpose,
    "Unsqueeze": _axes_rule(1, of_output=True),
}
