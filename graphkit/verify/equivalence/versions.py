"""One spelling of an operator, whichever version of the operator set a model has.

Read in the changelog of the ONNX operators: https://github.com/onnx/onnx/blob/main/docs/Changelog.md. An operator that
is not named here keeps its version, and differs from that of any other version.
"""

from __future__ import annotations

import struct
from collections.abc import Hashable, Mapping, Sequence
from typing import cast

import numpy as np
from onnx import AttributeProto, TensorProto

from graphkit.dtypes import HALVES
from graphkit.graph.operator_traits import REDUCTIONS, operator_set
from graphkit.graph.view import Node
from graphkit.verify.equivalence.constant_terms import Constants
from graphkit.verify.equivalence.terms import Key, Term

__all__ = ["spell_alike"]

NEWEST = 24  # the newest version that was read


def _since_version(version: int, text: str) -> Mapping[str, tuple[int, ...]]:
    return dict.fromkeys(operator_set(text), (version,))


# Since which versions a node, as it stands, means what it means until the next of them. In between there are more
# dtypes, and attributes and inputs that may be left out.
MEANINGS: Mapping[str, tuple[int, ...]] = {
    **_since_version(1, """
        ArgMax ArgMin Conv DepthToSpace Flatten Gather GlobalAveragePool GlobalMaxPool Identity LRN
        LayerNormalization Loop LpNormalization MatMul SimplifiedLayerNormalization Shape Size Softplus Softsign
        SpaceToDepth Transpose RandomNormal RandomNormalLike RandomUniform RandomUniformLike"""),
    **dict.fromkeys(REDUCTIONS, (1,)),
    **_since_version(4, "Concat"),
    **_since_version(5, "Reshape"),
    **_since_version(6, """
        Abs Cast Ceil Elu Exp Floor HardSigmoid InstanceNormalization LeakyRelu Log Neg Reciprocal Relu Selu Sigmoid
        Sqrt Tanh Tile"""),
    **_since_version(7, """
        Acos Add And Asin Atan Cos Div Equal GRU Gemm Greater LSTM Less Mul Multinomial Or PRelu Pow RNN Sin
        Sub Tan Xor"""),
    **_since_version(8, "Expand Max MaxPool Mean Min Sum"),
    **_since_version(9, """
        Acosh Asinh Atanh BatchNormalization Compress ConstantOfShape Cosh Erf EyeLike IsNaN MeanVarianceNormalization
        NonZero Scan Sign Sinh Where"""),
    **_since_version(10, """
        DequantizeLinear IsInf Mod NonMaxSuppression QLinearMatMul QuantizeLinear Slice ThresholdedRelu TopK"""),
    **_since_version(11, """
        Clip ConvTranspose CumSum Det GatherElements GatherND Pad Resize Round ScatterElements ScatterND SplitToSequence
        """),
    **_since_version(12, "GreaterOrEqual LessOrEqual"),
    **_since_version(13, "Split Squeeze Unsqueeze"),
    **_since_version(14, "HardSwish"),
    **_since_version(18, "Mish"),
    **dict.fromkeys(operator_set("Softmax LogSoftmax Hardmax"), (1, 13)),  # over all axes from one on, until 13
    "AveragePool": (7, 19),  # which adds up in another order
    "OneHot": (9, 11),  # of negative indices
}  # fmt: skip
# Since which versions onnxruntime has kernels for float16; before, it computes in float32, whose least bound is lower.
OF_HALVES: Mapping[str, int] = {"Clip": 12, "Max": 12, "Min": 12, "QuantizeLinear": 23}
# Of float16, onnxruntime runs the body that ONNX has for them where the model has the version of that body, and
# elsewhere a kernel of float32: other digits, infinities and signs of zeros.
BODIES_OF_HALVES = operator_set(
    """
    Elu HardSigmoid HardSwish LeakyRelu MeanVarianceNormalization Mish PRelu ReduceL1 ReduceL2 ReduceLogSum
    ReduceLogSumExp ReduceSumSquare Relu Selu Softplus Softsign ThresholdedRelu
    """
)
ONE_OUTPUT = {"BatchNormalization"}  # which learns where it has more

# Attributes that became inputs: since which version, and which.
INPUTS: Mapping[str, tuple[int, Mapping[str, int]]] = {
    **dict.fromkeys(REDUCTIONS - {"ReduceSum"}, (18, {"axes": 1})),
    **dict.fromkeys(("ReduceSum", "Squeeze", "Unsqueeze"), (13, {"axes": 1})),
    "Clip": (11, {"min": 1, "max": 2}),
    "Pad": (11, {"pads": 1, "value": 2}),
    "Slice": (10, {"starts": 1, "ends": 2, "axes": 3}),
    "Split": (13, {"split": 1}),
    "TopK": (10, {"k": 1}),
}
LISTS = {"k"}  # numbers that became lists of one


def spell_alike(
    node: Node, attributes: Key, args: Sequence[Term | None], constants: Constants
) -> tuple[Key, list[Term | None]]:
    """Return the attributes and arguments of a node as a newer version has them; more arguments may follow its own."""
    entries = cast("tuple[tuple[str, int, Hashable], ...]", attributes)
    version, listed = cast(int, entries[0][2]), list(args)
    op = node.operator
    if node.scope.opset() > NEWEST:
        return attributes, listed
    since, moved = INPUTS.get(op, (0, {}))
    kept: list[tuple[str, int, Hashable]] = []
    for name, kind, content in entries[1:]:
        if version >= since or name not in moved:
            kept.append((name, kind, content))
            continue
        constant = _attribute_constant(name, kind, content, listed[0] if listed else None, constants)
        if constant is None:
            return attributes, list(args)
        listed += [None] * (moved[name] + 1 - len(listed))
        listed[moved[name]] = constant
    found = _meaning_version(node, max(version, since))
    if listed and listed[0] is not None and listed[0].dtype in (0, *HALVES):
        found = max(found, min(version, OF_HALVES.get(op, 0)))
        found = node.scope.opset() if op in BODIES_OF_HALVES else found
    if op == "Split" and version < 18 and len(listed) < 2:
        kept.append(("num_outputs", int(AttributeProto.INT), len(node.outputs)))
    if op == "Pad" or (op == "Resize" and version >= 11):  # before, a Resize has its scales where later its region is
        _leave_out(node, listed, constants)
    return (("", 0, found), *sorted(kept, key=lambda each: each[0])), listed


def _meaning_version(node: Node, version: int) -> int:
    """Return the version since which an operator has its meaning."""
    if node.operator in ONE_OUTPUT and any(node.outputs[1:]):
        return version
    return max((since for since in MEANINGS.get(node.operator, ()) if since <= version), default=version)


def _attribute_constant(name: str, kind: int, content: object, data: Term | None, constants: Constants) -> Term | None:
    """Return an attribute as a constant, None where its dtype is not known."""
    if kind == AttributeProto.FLOAT:
        if data is None or data.dtype != TensorProto.FLOAT:
            return None
        assert isinstance(content, bytes)
        return constants.of_array(np.array(struct.unpack("<f", content)[0], np.float32), TensorProto.FLOAT)
    numbers = [content] if name in LISTS else content
    return constants.of_array(np.array(numbers, np.int64), TensorProto.INT64)


def _leave_out(node: Node, args: list[Term | None], constants: Constants) -> None:
    """Leave out operands without effect: a Pad's value of 0, and those that a Resize has empty, or does not read."""
    for index, term in enumerate(args):
        array = constants.array(term) if index and term is not None and term.is_constant else None
        if array is None:
            continue
        is_default = node.op_type == "Pad" and index == 2 and array.size == 1 and not array.any()
        is_default &= not np.signbit(array).any()
        if is_default or (node.op_type == "Resize" and not array.size):
            args[index] = None
    is_cropped = node.attr("coordinate_transformation_mode", "") == "tf_crop_and_resize"
    if node.op_type == "Resize" and len(args) > 1 and not is_cropped:
        args[1] = None
