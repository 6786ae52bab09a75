"""The function that computes com.microsoft.Attention, for constant weights, in standard operators."""

from __future__ import annotations

import onnx
import onnx.parser

from graphkit.graph.view import all_nodes
from graphkit.model import Model
from graphkit.rewrite.functions import functions_of

__all__ = ["DOMAIN", "NAME", "attention_function", "obstacle"]

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


def obstacle(model: Model, function: onnx.FunctionProto) -> str:
    """Return why a model cannot have the function, "" where it can."""
    if model.proto.ir_version < INITIALIZERS_SINCE:
        return f"its IR version is below {INITIALIZERS_SINCE}, and functions need 8"
    has = functions_of(model.proto).get((DOMAIN, NAME, ""))
    if has is not None:
        is_same = list(has.node) == list(function.node) and list(has.input) == list(function.input)
        return "" if is_same else f"the model has another function '{DOMAIN}.{NAME}'"
    if any((node.domain, node.op_type) == (DOMAIN, NAME) for node in all_nodes(model.scopes)):
        return f"the model has nodes of {DOMAIN}.{NAME}, which the function would redefine for other runtimes"
    return ""
