"""Which elements of a mask hide, by what nodes do with it."""

from __future__ import annotations

import numpy as np
import pytest
from onnx import parser

from graphkit.graph.mask_polarity import Polarity, make_open_mask, mask_elements
from graphkit.model import Model

TEXT = """
<ir_version: 10, opset_import: ["" : 23, "com.microsoft" : 1]>
g (float[N, H, L, L] scores, float[N, L, 8] data, %DTYPE%[N, L] attention_mask) => (float[N, H, L, L] y)
<float zero = {0}, float one = {1}, float lowest = {-3.4e38}, float much = {-1e9}, float[1] hundred = {-100},
 int64 none = {0}, int64 some = {1}, int64[2] axes = {1, 2}, int64[1] last = {-1}, int64 step = {1}, int64[1] two = {2},
 float infinite = {-inf}, float[2,2] floors = {-3.4e38, -3.4e38, -3.4e38, -3.4e38},
 float[1,1,1,1] sink = {0.5}, float[2,2] distances = {0, -30, -30, 0}> {
%NODES%
}
"""
ADDED = "wide = Unsqueeze (bias, axes) sums = Add (scores, wide) y = Softmax (sums)"
FILLED = "wide = Unsqueeze (hidden, axes) sums = Where (wide, lowest, scores) y = Softmax (sums)"
COUNTED = "ends = ReduceSum <keepdims = 1> (mask, last)"


def polarity(nodes: str, dtype: str) -> Polarity | None:
    text = TEXT.replace("%NODES%", nodes).replace("%DTYPE%", dtype)
    model = Model.from_proto(parser.parse_model(text))
    return model.roles.polarities[model.graph.values["attention_mask"]]


CASES: dict[str, tuple[str, str, Polarity | None]] = {
    "padding is True": ("bool", FILLED.replace("hidden", "attention_mask"), "pads"),
    "a choice with -inf first": ("bool", f"bias = Where (attention_mask, infinite, zero) {ADDED}", "pads"),
    "a choice with -inf second": ("bool", f"bias = Where (attention_mask, zero, infinite) {ADDED}", "keeps"),
    "the opposite": ("bool", f"hidden = Not (attention_mask) {FILLED}", "keeps"),
    "twice the opposite": ("bool", f"keep = Not (attention_mask) hidden = Not (keep) {FILLED}", "pads"),
    "zero hides": ("int64", f"hidden = Equal (attention_mask, none) {FILLED}", "keeps"),
    "one hides": ("int32", f"whole = Cast <to = 7> (attention_mask) hidden = Equal (whole, some) {FILLED}", "pads"),
    "one less the mask": (
        "int64",
        f"m = Cast <to = 1> (attention_mask) rest = Sub (one, m) bias = Mul (rest, lowest) {ADDED}",
        "keeps",
    ),
    "times a large number": ("int64", f"m = Cast <to = 1> (attention_mask) bias = Mul (m, much) {ADDED}", "pads"),
    "a floor of -100": ("int64", f"m = Cast <to = 1> (attention_mask) bias = Mul (m, hundred) {ADDED}", "pads"),
    "with a causal mask": (
        "bool",
        """rows = Shape <start = 1, end = 2> (attention_mask) end = Squeeze (rows) places = Range (none, end, step)
        column = Unsqueeze (places, last) seen = LessOrEqual (places, column) row = Unsqueeze (attention_mask, axes)
        both = And (seen, row) sums = Where (both, scores, lowest) y = Softmax (sums)""",
        "keeps",
    ),
    "a token sees itself whatever the mask says": (  # XLNet
        "int64",
        """m = Cast <to = 1> (attention_mask) rest = Sub (one, m) wide = Unsqueeze (rest, axes)
        own = EyeLike <dtype = 1> (attention_mask) less = Neg (own) sums = Add (wide, less)
        hidden = Greater (sums, zero)
        h = Cast <to = 1> (hidden) moved = Einsum <equation = "ijbn->bnij"> (h) bias = Mul (moved, much)
        masked = Add (scores, bias) y = Softmax (masked)""",
        "keeps",
    ),
    "filled where another mask and the bias of this one give nothing": (  # Nemotron
        "int64",
        """m = Cast <to = 1> (attention_mask) wide = Unsqueeze (m, axes) causal = Trilu <upper = 1> (floors, some)
        sums = Add (causal, wide) hidden = Equal (sums, zero) bias = Where (hidden, lowest, causal)
        masked = Add (scores, bias) y = Softmax (masked)""",
        "keeps",
    ),
    "less the greatest of a row, which one without a mask hides from bounds": (  # MiMo v2
        "bool",
        """wide = Unsqueeze (attention_mask, axes) places = EyeLike <dtype = 9> (attention_mask)
        seen = And (wide, places) bias = Where (seen, zero, lowest) masked = Add (scores, bias)
        most = ReduceMax (masked, last) sums = Sub (masked, most) y = Softmax (sums)""",
        "keeps",
    ),
    "less the greatest of a row that was squeezed": (
        "bool",
        """wide = Unsqueeze (attention_mask, axes) masked = Where (wide, lowest, scores)
        flat = ReduceMax <keepdims = 0> (masked, last) most = Unsqueeze (flat, last)
        sums = Sub (masked, most) y = Softmax (sums)""",
        "pads",
    ),
    "less the greatest of a row, beside a sink": (
        "bool",
        """wide = Unsqueeze (attention_mask, axes) masked = Where (wide, scores, lowest)
        sunk = Concat <axis = -1> (masked, sink) most = ReduceMax (sunk, last) sums = Sub (sunk, most)
        y = Softmax (sums)""",
        "keeps",
    ),
    "less the greatest of other scores": (
        "bool",
        """wide = Unsqueeze (attention_mask, axes) masked = Where (wide, scores, lowest)
        most = ReduceMax (scores, last) sums = Sub (masked, most) y = Softmax (sums)""",
        "keeps",
    ),
    "with a bias of distances": (
        "bool",
        """bias = Where (attention_mask, much, zero) wide = Unsqueeze (bias, axes) sums = Add (wide, distances)
        masked = Add (scores, sums) y = Softmax (masked)""",
        "pads",
    ),
    "above the least number": (
        "int64",
        """m = Cast <to = 1> (attention_mask) rest = Sub (one, m) bias = Mul (rest, lowest)
        wide = Unsqueeze (bias, axes) sums = Add (scores, wide) most = Max (sums, lowest) y = Softmax (most)""",
        "keeps",
    ),
    "added from outside": ("float", f"bias = Identity (attention_mask) {ADDED}", "adds"),
    "floats of which 1 counts": ("float", f"rest = Sub (one, attention_mask) bias = Mul (rest, much) {ADDED}", "keeps"),
    "an Attention": (
        "bool",
        "m = Unsqueeze (attention_mask, axes) x = Attention <q_num_heads = 2, kv_num_heads = 2> (data, data, data, m) "
        "y = Identity (scores)",
        "keeps",
    ),
    "data times the mask": (
        "int64",
        "m = Cast <to = 1> (attention_mask) wide = Unsqueeze (m, last) x = Mul (data, wide) y = Softmax (scores)",
        "keeps",
    ),
    "data where the mask is false": (
        "bool",
        "wide = Unsqueeze (attention_mask, last) x = Where (wide, zero, data) y = Softmax (scores)",
        "pads",
    ),
    "a length that is counted": (
        "int64",
        f"{COUNTED.replace('mask,', 'attention_mask,')} y = Softmax (scores)",
        "keeps",
    ),
    "nothing": ("int64", "y = Softmax (scores)", None),
    "both ways": (
        "bool",
        f"""{FILLED.replace("hidden", "attention_mask").replace("y =", "p =")} keep = Not (attention_mask)
        other = Unsqueeze (keep, axes) more = Where (other, lowest, scores) y = Softmax (more)""",
        None,
    ),
}


@pytest.mark.parametrize(("dtype", "nodes", "expected"), CASES.values(), ids=CASES)
def test_the_nodes_tell_which_elements_hide(dtype: str, nodes: str, expected: Polarity | None) -> None:
    assert polarity(nodes, dtype) == expected


@pytest.mark.parametrize(
    ("meaning", "elements"), [("keeps", [1, 0]), ("pads", [0, 1]), ("adds", [0, -1e9]), (None, [1, 0])]
)
def test_a_mask_has_the_elements_of_its_polarity(meaning: Polarity | None, elements: list[float]) -> None:
    assert mask_elements(np.array([True, False]), meaning).tolist() == elements
    assert make_open_mask(np.ones((1, 2), np.float32), meaning).tolist() == [[elements[0]] * 2]
