"""The roles of dims by what nodes bring together, and rules for legal sizes beside dims that have none."""

from __future__ import annotations

import numpy as np
import pytest
from onnx import numpy_helper, parser

from graphkit.model import Model
from graphkit.shapes import const, infer, symbol
from graphkit.shapes.constraints.failing_sizes import find_triggers
from graphkit.shapes.constraints.legal_sizes import symbol_roles, tied_symbols

CASES = {
    "boxes that are added to tokens": (
        "int64[b, n] input_ids, float[b, boxes, 8] bbox",
        "x = Gather (table, input_ids) y = Add (x, bbox)",
        {"b": "batch", "n": "sequence", "boxes": "sequence"},
    ),
    "boxes that are cut to the tokens": (
        "int64[b, n] input_ids, float[b, boxes, 8] bbox",
        """x = Gather (table, input_ids) size = Shape <start = 1, end = 2> (x)
        part = Slice (bbox, zero, size, one) y = Add (x, part)""",
        {"b": "batch", "n": "sequence", "boxes": "sequence"},
    ),
    "pairs of boxes for pairs of tokens": (
        "int64[2, n] input_ids, float[2, boxes, 1] bbox",
        """x = Gather (table, input_ids) xt = Transpose <perm = [0, 2, 1]> (x) scores = MatMul (x, xt)
        bt = Transpose <perm = [0, 2, 1]> (bbox) pairs = Sub (bbox, bt) size = Shape (scores)
        bias = Reshape (pairs, size) y = Add (scores, bias)""",
        {"n": "sequence", "boxes": "sequence"},
    ),
    "the memory of a decoder": (
        "int64[b, n] input_ids, float[b, m, 8] memory, bool[b, k] memory_mask",
        """x = Gather (table, input_ids) mt = Transpose <perm = [0, 2, 1]> (memory) scores = MatMul (x, mt)
        row = Unsqueeze (memory_mask, one) masked = Where (row, scores, least) p = Softmax (masked)
        y = MatMul (p, memory)""",
        {"b": "batch", "n": "sequence", "m": "other", "k": "other"},
    ),
    "a sound whose mask is summed": (
        "float[b, frames, 8] input_features, int64[b, mask_frames] attention_mask",
        """lengths = ReduceSum (attention_mask, one) end = Shape <start = 1, end = 2> (input_features)
        last = Squeeze (end) places = Range (nothing, last, step) keep = Less (places, lengths)
        wide = Unsqueeze (keep, minus) y = Where (wide, input_features, least)""",
        {"b": "batch", "frames": "other", "mask_frames": "other"},
    ),
}


def made(inputs: str, nodes: str) -> Model:
    text = f"""<ir_version: 9, opset_import: ["" : 17]> g ({inputs}) => (float y)
    <int64[1] zero = {{0}}, int64[1] one = {{1}}, float least = {{-1e9}}, int64 nothing = {{0}},
     int64 step = {{1}}, int64[1] minus = {{-1}}> {{ {nodes} }}"""
    model = parser.parse_model(text)
    model.graph.initializer.append(numpy_helper.from_array(np.ones((11, 8), np.float32), "table"))
    return Model.from_proto(model)


@pytest.mark.parametrize(("inputs", "nodes", "roles"), CASES.values(), ids=CASES)
def test_dims_that_nodes_bring_together_have_one_role(inputs: str, nodes: str, roles: dict[str, str]) -> None:
    model = made(inputs, nodes)
    assert symbol_roles(model) == roles
    (tied,) = tied_symbols(model)
    assert tied == {"n", "boxes"} or tied == {"m", "k"} or tied == {"frames", "mask_frames"}


def test_a_size_that_depends_on_another_one_has_no_rule() -> None:
    """At 3 tokens there are 3 boxes, and at 5 there are 5: "only 3" would be wrong."""
    model = made(*CASES["pairs of boxes for pairs of tokens"][:2])
    assert find_triggers(infer(model)).rules == ()


@pytest.mark.parametrize("size", [600, 4096])
def test_one_size_is_a_rule_where_no_multiple_of_it_is_legal(size: int) -> None:
    alone, several = (
        Model.from_proto(
            parser.parse_model(
                f"""<ir_version: 9, opset_import: ["" : 17]> g (float[n] x) => (y)
                <int64[{len(dims)}] shape = {{{str(dims)[1:-1]}}}> {{ y = Reshape (x, shape) }}"""
            )
        )
        for dims in ([size], [-1, size])
    )
    assert [str(rule) for rule in find_triggers(infer(alone)).rules] == [f"only {size}"]
    assert find_triggers(infer(several)).rules == ()


def test_dims_that_have_numbers_need_no_role() -> None:
    """The mask of a sound is as long as it is, also where one of both has a number and the other has none."""
    model = made(
        "float[b, n] input_values, int64[b, m] attention_mask, float[1, k] other", "y = ReduceSum (input_values)"
    )
    dims = {
        "input_values": (symbol("b"), const(9)),
        "attention_mask": (symbol("b"), symbol("m")),
        "other": (const(1), symbol("k")),
    }
    assert symbol_roles(model, dims)["k"] == "other"


def test_sizes_of_a_picture_whose_windows_fit_are_found() -> None:
    """They are one in four, of both dims together; other numbers that nodes meet come first, and none of them fits."""
    others = "".join(
        f"c{n} = Constant <value_int = {n}> () i{n} = Div (high, c{n}) r{n} = Gather (rows, i{n})\n"
        for n in range(11, 30, 3)
    )
    text = f"""<ir_version: 9, opset_import: ["" : 17]> g (float[h, w] x, float[999] rows) => (float[p, q] y)
    <int64 four = {{4}}, int64 seven = {{7}}, int64 eight = {{8}}, int64 more = {{31}}, int64 window = {{32}}> {{
        size = Shape (x) high = Shape <end = 1> (x) {others}
        a = Add (size, more) windows = Div (a, window) wide = Mul (windows, four)
        padded = ConstantOfShape (wide) b = Add (size, seven) patches = Div (b, eight) y = Reshape (padded, patches)
    }}"""
    found = find_triggers(infer(Model.from_proto(parser.parse_model(text))))
    assert found.base == {"h": 32, "w": 32}
