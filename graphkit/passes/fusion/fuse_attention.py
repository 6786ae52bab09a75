"""Make self-attention one node that onnxruntime has a kernel for, with a function that says the same to others."""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar

import numpy as np
import onnx
import onnx.parser

from graphkit.graph.view import Node, Value, all_nodes
from graphkit.model import Model
from graphkit.passes.fusion.self_attention import SelfAttention, self_attention
from graphkit.rewrite import ROUNDING, Editor, MatchFailure, NewNode, NodeInput, NodeRewrite
from graphkit.rewrite.functions import functions_of
from graphkit.rewrite.weight_arithmetic import columns_of, read_elements, round_numbers

__all__ = ["DOMAIN", "NAME", "FuseAttention", "attention_function"]

DOMAIN, NAME = "com.microsoft", "Attention"
INITIALIZERS_SINCE = 4  # IR version from which raising it changes nothing
SAYS = (
    "Self-attention of an input, whose queries, keys and values are input * weights + bias, side by side. onnxruntime "
    "has a kernel of this name; other runtimes inline the function."
)
TEXT = """
<domain: "com.microsoft", opset_import: ["" : {opset}]>
Attention <num_heads, qkv_hidden_sizes, scale> (input, weights, bias) => (output) {{
    hidden_sizes = Constant <value_ints: ints = @qkv_hidden_sizes> ()
    heads = Constant <value_int: int = @num_heads> ()
    factor = Constant <value_float: float = @scale> ()
    head_sizes = Div (hidden_sizes, heads)
    each = Constant <value_ints: ints = [1, 1, 1]> ()
    head_size, key_size, value_size = Split <axis: int = 0> (head_sizes, each)
    queries_size, keys_size, values_size = Split <axis: int = 0> (hidden_sizes, each)
    batch_and_rows = Constant <value_ints: ints = [0, 0]> ()
    first = Constant <value_ints: ints = [0]> ()
    head_count = Unsqueeze (heads, first)
    by_heads = Concat <axis: int = 0> (batch_and_rows, head_count, head_size)
    values_by_heads = Concat <axis: int = 0> (batch_and_rows, head_count, value_size)
    side_by_side = Concat <axis: int = 0> (batch_and_rows, values_size)
    product = MatMul (input, weights)
    projected = Add (product, bias)
    queries, keys, values = Split <axis: int = -1> (projected, hidden_sizes)
    queries_apart = Reshape (queries, by_heads)
    keys_apart = Reshape (keys, by_heads)
    values_apart = Reshape (values, values_by_heads)
    q = Transpose <perm: ints = [0, 2, 1, 3]> (queries_apart)
    k = Transpose <perm: ints = [0, 2, 3, 1]> (keys_apart)
    v = Transpose <perm: ints = [0, 2, 1, 3]> (values_apart)
    scores = MatMul (q, k)
    scaled = Mul (scores, factor)
    probabilities = Softmax <axis: int = -1> (scaled)
    mixed = MatMul (probabilities, v)
    mixed_by_rows = Transpose <perm: ints = [0, 2, 1, 3]> (mixed)
    output = Reshape (mixed_by_rows, side_by_side)
}}
"""


def attention_function(opset: int) -> onnx.FunctionProto:
    """Return the function, in operators of a version that is at least 13."""
    function = onnx.parser.parse_function(TEXT.format(opset=opset))
    function.doc_string = SAYS
    return function


def _check_function(model: Model, function: onnx.FunctionProto) -> None:
    """Check that a model can have the function."""
    if model.proto.ir_version < INITIALIZERS_SINCE:
        raise MatchFailure(f"its IR version is below {INITIALIZERS_SINCE}, and functions need 8")
    has = functions_of(model.proto).get((DOMAIN, NAME, ""))
    if has is not None:
        if list(has.node) != list(function.node) or list(has.input) != list(function.input):
            raise MatchFailure(f"the model has another function '{DOMAIN}.{NAME}'")
    elif any((node.domain, node.op_type) == (DOMAIN, NAME) for node in all_nodes(model.scopes)):
        redefines = f"the model has nodes of {DOMAIN}.{NAME}, which the function would redefine for other runtimes"
        raise MatchFailure(redefines)


ROWS_AND_BATCH = (1, 0, 2)  # the order that swaps these two
CHANGE = "attention(s) fused: onnxruntime has a kernel for the node, other runtimes inline its function"


@dataclass(frozen=True)
class FuseAttention(NodeRewrite):
    """Make self-attention, from the projections to the heads side by side, one com.microsoft.Attention.

    onnxruntime has a kernel of that name. The model gets a function of the same name, in standard operators, so that it
    stays standard ONNX: every other runtime and compiler can inline it, as `inline-functions` does. Sums may be added
    up in another order: the last digits of results may change.

    Legality: queries, keys and values are columns of products of one tensor of rank 3 and constant weights, float32, in
    one MatMul or several, with or without biases, moved to heads in whatever way; constant numbers scale queries, keys
    or scores. Nothing masks the scores, no past is joined, and nothing else reads what is in between. The operator set
    is at least 13. The model has no other function of that name, and no nodes of it without a function.

    Before:

        agraph (float[N, 3, 2] x) => (float[N, 3, 2] y)
        <float[2, 6] w = {1.0, 0.0, 1.0, 0.0, 1.0, 2.0, 0.0, 1.0, 0.0, 1.0, 3.0, 1.0},
         float[6] bias = {0.0, 1.0, 0.0, 2.0, 0.0, 0.0}, int64[4] heads = {0, 0, 2, 1}, int64[3] flat = {0, 0, 2}> {
            product = MatMul (x, w)
            qkv = Add (product, bias)
            q, k, v = Split <axis: int = 2> (qkv)
            a = Reshape (q, heads)
            b = Reshape (k, heads)
            c = Reshape (v, heads)
            d = Transpose <perm: ints = [0, 2, 1, 3]> (a)
            e = Transpose <perm: ints = [0, 2, 3, 1]> (b)
            f = Transpose <perm: ints = [0, 2, 1, 3]> (c)
            g = MatMul (d, e)
            h = Softmax (g)
            i = MatMul (h, f)
            j = Transpose <perm: ints = [0, 2, 1, 3]> (i)
            y = Reshape (j, flat)
        }

    After:

        agraph (float[N, 3, 2] x) => (float[N, 3, 2] y)
        <float[2, 6] w = {1.0, 0.0, 1.0, 0.0, 1.0, 2.0, 0.0, 1.0, 0.0, 1.0, 3.0, 1.0},
         float[6] bias = {0.0, 1.0, 0.0, 2.0, 0.0, 0.0}> {
            y = com.microsoft.Attention
                <num_heads: int = 2, qkv_hidden_sizes: ints = [2, 2, 2], scale: float = 1> (x, w, bias)
        }
    """

    largest_error: ClassVar[float] = ROUNDING
    operators: ClassVar[tuple[str, ...]] = ("Softmax",)

    def edit_node(self, editor: Editor, node: Node) -> None:
        attention = self_attention(editor, node)
        if not all(map(editor.is_free, attention.nodes)):
            return
        function = attention_function(attention.product.scope.opset())
        _check_function(editor.model, function)
        nodes = _make_nodes(editor, attention, _joined_weight(editor, attention), _joined_bias(editor, attention))
        last = attention.result.value.producer
        assert last is not None
        editor.functions[DOMAIN, NAME] = function
        editor.replace(last, *nodes)
        for gone in attention.nodes - {last}:
            editor.take(gone)
        editor.note(CHANGE)


def _make_nodes(editor: Editor, attention: SelfAttention, weight: NodeInput, bias: NodeInput) -> list[NewNode]:
    """Return the node, with the Transposes of its rows before and of its result after it where they lie otherwise."""
    result = attention.result
    data: NodeInput = attention.data
    nodes: list[NewNode] = []
    if attention.is_turned:
        data = editor.unique_name(f"{result.value.name}_data")
        nodes.append(NewNode("Transpose", [attention.data], [data], {"perm": ROWS_AND_BATCH}))
    attributes = {
        "num_heads": attention.heads,
        "qkv_hidden_sizes": [len(columns) for columns in attention.columns],
        "scale": attention.scale,
    }
    after: list[tuple[str, list[NodeInput], dict[str, object]]] = []
    if result.is_turned:
        after.append(("Transpose", [], {"perm": ROWS_AND_BATCH}))
    if result.spec is not None:
        after.append(("Reshape", [editor.integers(result.spec, f"{result.value.name}_shape")], {}))
    names = [editor.unique_name(f"{result.value.name}_mixed") for _ in after]
    names.append(result.value.name)
    inputs: list[NodeInput] = [data, weight, bias]
    nodes.append(NewNode(NAME, inputs, names[:1], attributes, domain=DOMAIN, like=attention.product))
    for (operator, others, settings), source, name in zip(after, names, names[1:], strict=False):
        nodes.append(NewNode(operator, [source, *others], [name], settings))
    return nodes


def _is_whole(attention: SelfAttention) -> bool:
    """Whether the columns are those of one weight, in order."""
    first = attention.projections[0]
    is_one = all(projection.linear.node is first.linear.node for projection in attention.projections)
    return is_one and np.array_equal(np.concatenate(attention.columns), np.arange(first.linear.result.count))


def _joined_weight(editor: Editor, attention: SelfAttention) -> NodeInput:
    """Return the weight of queries, keys and values side by side, the old one where it is so."""
    first = attention.projections[0]
    if _is_whole(attention):
        return first.weight
    for projection in attention.projections:
        if any(reader not in attention.nodes for reader, _ in projection.weight.consumers):
            raise MatchFailure(f"its weight '{projection.weight.name}' is read elsewhere too")
    weights = [read_elements(editor.model, projection.linear.tensor) for projection in attention.projections]
    dims = [weights[0].shape[0], sum(map(len, attention.columns))]
    parts = columns_of(weights, attention.columns)
    return editor.weight(f"{first.weight.name.removesuffix('_joined')}_qkv", first.linear.tensor.data_type, dims, parts)


def _joined_bias(editor: Editor, attention: SelfAttention) -> NodeInput:
    """Return the bias of queries, keys and values side by side, the old one where it is so; zeros for none."""
    first = attention.projections[0]
    if _is_whole(attention) and (same := _added_vector(attention)) is not None:
        return same
    numbers = [
        np.broadcast_to(projection.shift, (projection.linear.result.count,))[columns]
        for projection, columns in zip(attention.projections, attention.columns, strict=True)
    ]
    return editor.constant(
        round_numbers(np.concatenate(numbers), first.linear.tensor.data_type), f"{first.weight.name}_bias"
    )


def _added_vector(attention: SelfAttention) -> Value | None:
    """Return the constant that the one Add adds, if it has a number for each column."""
    first = attention.projections[0]
    operands = first.add.inputs if first.add is not None else ()
    constants = [value for value in operands if value is not None and value.constant is not None]
    dims = [first.linear.result.count]
    return next((value for value in constants if value.constant and list(value.constant.dims) == dims), None)
