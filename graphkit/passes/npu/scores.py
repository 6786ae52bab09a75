"""Scores of an attention: their sources, and the Softmax that they reach."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from onnx import TensorProto

from graphkit.graph.operator_traits import RESHAPING
from graphkit.graph.traversal import walk_breadth_first, walk_postorder
from graphkit.graph.view import Node, Value
from graphkit.rewrite import Editor, MatchFailure
from graphkit.rewrite.host_values import Dependence

__all__ = ["ENOUGH", "NEGLIGIBLE", "Reach", "Scores", "is_product", "score_readers"]

ELEMENTWISE = ("Add", "Cast", "Div", "Dropout", "Expand", "Identity", "Max", "Mul", "Sub", "Sum", "Where")
PASSING = (*ELEMENTWISE, *RESHAPING, "Concat", "Transpose")
PRODUCTS = ("Einsum", "Gemm", "MatMul", "MatMulInteger", "com.microsoft.FusedMatMul", "com.microsoft.MatMulNBits")
WIDE = (TensorProto.FLOAT, TensorProto.DOUBLE, TensorProto.BFLOAT16)
ENOUGH = -20.0  # exp of it is 2e-9: with less a mask lets scores through
NEGLIGIBLE = -1e4  # what is filled in for scores that do not count is at most this, in any export


@dataclass(frozen=True, slots=True)
class Reach:
    """How scores reach a Softmax.

    Attributes:
        axis: Over which it sums, counted from the end.
        scale: The factor of scores on the way, the least of all ways.
        is_half: Whether they are float16 somewhere on the way.
    """

    axis: int
    scale: float = 1.0
    is_half: bool = False


class Scores:
    """The values of a graph that reach a Softmax as scores.

    Args:
        editor: The editor, which knows shapes and constants.
        known: The sources of each value.
    """

    def __init__(self, editor: Editor, known: Mapping[Value, Dependence]) -> None:
        self.editor, self.known = editor, known
        self._reaches: dict[Value, Reach | MatchFailure] = {}

    def are(self, value: Value) -> bool:
        """Whether a value is made of data, or is a product: a mask is neither."""
        known = self.known.get(value)
        return (known is not None and known.data) or is_product(value)

    def reach(self, value: Value) -> Reach:
        """Return how a value reaches the one Softmax axis that all its consumers lead to.

        Raises:
            MatchFailure: It does not.
        """
        for each in walk_postorder([value], self._passed_on):
            if each not in self._reaches:
                try:
                    self._reaches[each] = self._compute_reach(each)
                except MatchFailure as failure:
                    self._reaches[each] = failure
        return self._reach(value)

    def _passed_on(self, value: Value) -> Sequence[Value | None]:
        """Return the values that nodes make of a value on the way to a Softmax."""
        passing = [] if value in self._reaches else [node for node, _ in score_readers(value) if node.is_op(*PASSING)]
        return [out for node in passing for out in node.outputs[:1] if node.scope is value.scope]

    def _reach(self, value: Value) -> Reach:
        """Return how a value reaches a Softmax, once that is computed."""
        reach = self._reaches[value]
        if isinstance(reach, MatchFailure):
            raise MatchFailure(reach.reason)
        return reach

    def _compute_reach(self, value: Value) -> Reach:
        if self.editor.is_output(value):
            raise MatchFailure("what it gives is an output of the graph")
        ways = [self._reach_through(node, index, value) for node, index in score_readers(value)]
        if not ways:
            raise MatchFailure("what it gives reaches no Softmax")
        if any(way.axis != ways[0].axis for way in ways):
            raise MatchFailure("what it gives reaches Softmaxes over different axes")
        is_half = self.editor.shapes[value].dtype == TensorProto.FLOAT16 or any(way.is_half for way in ways)
        return Reach(ways[0].axis, min(way.scale for way in ways), is_half)

    def _reach_through(self, node: Node, index: int, value: Value) -> Reach:
        out = node.outputs[0] if node.outputs else None
        if node.is_op("Softmax"):
            return self._reach_of_softmax(node, value)
        if out is None or node.scope is not value.scope:
            raise MatchFailure(f"'{node.label}' reads it in another graph")
        if node.is_op(*ELEMENTWISE):
            return self._reach_of_elementwise(node, index, out)
        if node.is_op(*RESHAPING) and index == 0:
            reach = self._reach(out)
            before, after = self.editor.shapes[value].dims, self.editor.shapes[out].dims
            if reach.axis == -1 and before and after and before[-1] == after[-1]:
                return reach
            raise MatchFailure(f"'{node.label}' does not keep the axis of the Softmax")
        if node.is_op("Transpose"):
            return self._reach_of_transpose(node, out)
        if node.is_op("Concat"):
            return self._reach(out)  # beside scores of no mask, such as those of sinks
        raise MatchFailure(f"'{node.label}' ({node.operator}) reads what it gives, before any Softmax")

    def _reach_of_softmax(self, node: Node, value: Value) -> Reach:
        is_flat = node.scope.opset() < 13  # over all axes from this one on
        axis, rank = node.attr("axis", 1 if is_flat else -1), self.editor.shapes[value].rank
        if axis is None:
            raise MatchFailure(f"the axis of '{node.label}' is not known")
        if axis >= 0 or is_flat:
            if rank is None:
                raise MatchFailure(f"the rank of the scores of '{node.label}' is not known")
            axis = axis - rank if axis >= 0 else axis
        if axis >= 0 or (rank is not None and axis < -rank):
            raise MatchFailure(f"'{node.label}' is over an axis that its scores do not have")
        if is_flat and axis != -1:
            raise MatchFailure(f"'{node.label}' is over several axes at once")
        return Reach(axis)

    def _reach_of_elementwise(self, node: Node, index: int, out: Value) -> Reach:
        if node.is_op("Where") and index == 0:
            raise MatchFailure(f"'{node.label}' takes it for a condition")
        if node.is_op("Expand", "Dropout") and index > 0:
            raise MatchFailure(f"'{node.label}' takes it for an option")
        scale = 1.0
        if node.is_op("Mul", "Div"):
            factor = self._positive_factor(node, index)
            if factor is None:
                raise MatchFailure(f"'{node.label}' scales it by what is no positive constant")
            scale = factor
        elif node.is_op("Sub") and index == 1:
            raise MatchFailure(f"'{node.label}' subtracts it")
        elif node.is_op("Max") and not self._is_negligible(node, index):
            raise MatchFailure(f"'{node.label}' compares it with what may count")
        elif node.is_op("Cast") and self.editor.shapes[out].dtype not in (*WIDE, TensorProto.FLOAT16):
            raise MatchFailure(f"'{node.label}' makes it no floating-point number")
        reach = self._reach(out)
        return Reach(reach.axis, reach.scale * scale, reach.is_half)

    def _positive_factor(self, node: Node, index: int) -> float | None:
        operand = node.input(1 - index)
        factor = self.editor.uniform(operand) if operand is not None else None
        if factor is None or factor <= 0 or (node.is_op("Div") and index == 1):
            return None
        return 1 / factor if node.is_op("Div") else factor

    def _is_negligible(self, node: Node, index: int) -> bool:
        others = [self.editor.uniform(each) for at, each in enumerate(node.inputs) if at != index and each is not None]
        return all(each is not None and each <= NEGLIGIBLE for each in others)

    def _reach_of_transpose(self, node: Node, out: Value) -> Reach:
        reach, rank = self._reach(out), self.editor.shapes[out].rank
        if rank is None:
            raise MatchFailure(f"the rank of '{node.label}' is not known")
        perm = node.attr("perm", tuple(range(rank))[::-1])
        if perm is None or sorted(perm) != list(range(rank)) or reach.axis < -rank:
            raise MatchFailure(f"the axes of '{node.label}' are not known")
        return Reach(perm[reach.axis] - rank, reach.scale, reach.is_half)


def score_readers(value: Value) -> Sequence[tuple[Node, int]]:
    """Return the readers of scores, without the ReduceMax whose result is only subtracted from them."""
    return [(node, index) for node, index in value.consumers if not _is_shift(node, value)]


def _is_shift(node: Node, value: Value) -> bool:
    largest = node.outputs[0] if node.is_op("ReduceMax") and node.outputs else None
    return (
        largest is not None
        and bool(largest.consumers)
        and all(reader.is_op("Sub") and index == 1 and reader.inputs[0] is value for reader, index in largest.consumers)
    )


def is_product(value: Value) -> bool:
    """Whether a value is a product of matrices, scaled, shifted or reshaped."""
    sources = walk_breadth_first([value], _scaled_from)
    return any(source.producer is not None and source.producer.operator in PRODUCTS for source in sources)


def _scaled_from(value: Value) -> Sequence[Value | None]:
    """Return the inputs that a value scales, shifts, chooses or moves."""
    node = value.producer
    if node is not None and node.is_op(*ELEMENTWISE):
        return node.inputs[node.is_op("Where") :]
    return node.inputs[:1] if node is not None and node.is_op(*RESHAPING, "Transpose", "Slice") else ()
