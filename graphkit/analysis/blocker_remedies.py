"""Which pass removes which blocker: one table, by cause and operator."""

from __future__ import annotations

from collections.abc import Callable, Collection
from dataclasses import dataclass
from typing import Literal, NamedTuple, get_args

from onnx import TensorProto

from graphkit.graph.shape_tensors import ShapeTensors
from graphkit.graph.uses import lookups, table_entries
from graphkit.graph.view import Node, Value

__all__ = ["CAUSES", "INPUT_DIMS", "REMEDIES", "Cause", "Known", "remedy"]

Cause = Literal["opset", "control flow", "function", "operator", "rank", "dtype", "dynamic shape"]
INPUT_DIMS = "dims of the inputs"
CAUSES: tuple[Cause, ...] = get_args(Cause)  # in the order of a report


@dataclass(frozen=True)
class Known:
    """The facts that decide between passes.

    Attributes:
        tensors: Which values are shape arithmetic.
        lookups: Nodes that look rows of a constant table up by ids as they come in.
        hosted: Values that rest on no floating-point data, such as token ids, positions and masks.
        parts: Sequences that a Split can give, each part by itself.
        passed: Names of passes that have run already, and have left what is there.
    """

    tensors: ShapeTensors
    lookups: Collection[Node]
    hosted: Collection[Value]
    parts: Collection[Value]
    passed: Collection[str] = ()

    def rests_on_hosted(self, node: Node) -> bool:
        """Whether a node computes from such values alone."""
        return all(value in self.hosted for value in node.results)


Applies = Callable[[Known, Node], bool]


class Remedy(NamedTuple):
    """A row: of those that fit a blocker, the first one counts.

    Attributes:
        of: Its operator, or another property of the node, such as a dtype; "" for any.
        applies: A further condition on the node.
    """

    cause: Cause
    of: str
    pass_name: str
    applies: Applies = lambda *_: True


def _looks_tokens_up(known: Known, node: Node) -> bool:
    """Whether a node looks tokens up, or does nothing but move the ids to such a node."""
    if node in known.lookups:
        return True
    outputs = node.results
    return known.rests_on_hosted(node) and any(
        reader in known.lookups for value in outputs for reader, _ in lookups(value)
    )


def _looks_up(known: Known, node: Node) -> bool:
    """Whether the first input is a constant table, perhaps dequantized, and the indices are computed."""
    table = node.input(0)
    is_table = table is not None and (table in known.tensors.static or table_entries(node, table) is not None)
    return is_table and node.input(1) not in known.tensors.static


def _second_is_static(known: Known, node: Node) -> bool:
    return node.input(1) in known.tensors.static


def _fills(known: Known, node: Node) -> bool:
    """Whether one of the values that a Where chooses from is computed from no data, as the floor of a mask is."""
    return any(node.input(index) in known.tensors.derived for index in (1, 2))


def _masks(known: Known, node: Node) -> bool:
    return node.is_op("Where") and _fills(known, node)


def _chooses(_: Known, node: Node) -> bool:
    return node.is_op("Where")


def _is_inverted(_: Known, node: Node) -> bool:
    readers = [reader for value in node.results for reader, _ in value.consumers]
    return bool(readers) and all(reader.is_op("Reciprocal") for reader in readers)


def _gives_int64(_: Known, node: Node) -> bool:
    return node.attr("to", 0) == TensorProto.INT64


def _guards_softmax(_: Known, node: Node) -> bool:
    source = node.input(0)
    return source is not None and source.producer is not None and source.producer.is_op("Softmax")


QUANTISED = (  # products, whose second input is the weight
    "MatMulInteger",
    "ConvInteger",
    "com.microsoft.MatMulNBits",
    "com.microsoft.DynamicQuantizeMatMul",
    "com.microsoft.MatMulIntegerToFloat",
)
REMEDIES: tuple[Remedy, ...] = (
    Remedy("operator", "", "extract-embedding", _looks_tokens_up),
    Remedy("operator", "", "extract-host-values", Known.rests_on_hosted),
    Remedy("operator", "Gather", "extract-embedding", _looks_up),
    Remedy("operator", "GatherND", "extract-embedding", _looks_up),
    Remedy("operator", "Gather", "gather-to-slice", _second_is_static),
    Remedy("operator", "GatherND", "gather-to-slice", _second_is_static),
    Remedy("operator", "Where", "masked-fill-to-add", _fills),
    Remedy("operator", "Where", "where-to-arithmetic"),
    Remedy("operator", "IsNaN", "masked-fill-to-add", _guards_softmax),
    Remedy("operator", "Attention", "decompose-attention"),
    Remedy("operator", "Einsum", "einsum-to-matmul"),
    Remedy("operator", "Trilu", "tril-to-constant"),
    Remedy("operator", "Expand", "expand-to-broadcast"),
    Remedy("operator", "Erf", "gelu-to-tanh"),
    Remedy("operator", "Gelu", "gelu-to-tanh"),
    Remedy("operator", "Cast", "cast-int64-away", _gives_int64),
    Remedy("operator", "LayerNormalization", "layer-norm-to-primitives"),
    Remedy("operator", "Neg", "neg-to-mul"),
    Remedy("operator", "SequenceAt", "sequence-to-split", lambda known, node: node.input(0) in known.parts),
    Remedy("operator", "SplitToSequence", "sequence-to-split", lambda known, node: node.outputs[0] in known.parts),
    Remedy("operator", "Pow", "pow-to-mul", _second_is_static),
    Remedy("operator", "RMSNormalization", "layer-norm-to-primitives"),
    Remedy("operator", "Reciprocal", "reciprocal-to-div"),
    Remedy("operator", "Sqrt", "reciprocal-to-div", _is_inverted),
    Remedy("operator", "DynamicQuantizeLinear", "dequantize"),
    *(Remedy("operator", operator, "dequantize", _second_is_static) for operator in QUANTISED),
    Remedy("control flow", "If", "specialize-input"),
    Remedy("function", "", "inline-functions"),
    Remedy("rank", "Einsum", "einsum-to-matmul"),
    Remedy("rank", "", "reduce-rank"),
    Remedy("dynamic shape", INPUT_DIMS, "freeze-dims"),
    Remedy("dtype", "", "extract-embedding", _looks_tokens_up),
    Remedy("dtype", "", "extract-host-values", Known.rests_on_hosted),
    Remedy("dtype", "IsNaN", "masked-fill-to-add", _guards_softmax),
    Remedy("dtype", "bool", "masked-fill-to-add", _masks),
    Remedy("dtype", "bool", "where-to-arithmetic", _chooses),
    Remedy("dtype", "int64", "cast-int64-away"),
)


def remedy(cause: Cause, what: str, node: Node, known: Known) -> str | None:
    """Return the pass that removes a blocker and has not run yet, None where none is known."""
    fitting = (row for row in REMEDIES if row.cause == cause and row.of in ("", node.operator, what))
    names = (row.pass_name for row in fitting if row.pass_name not in known.passed and row.applies(known, node))
    return next(names, None)
