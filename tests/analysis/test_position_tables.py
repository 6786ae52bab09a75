"""Positions of tables, at any depth of the arithmetic on the way to a lookup, in time that grows with the model."""

from __future__ import annotations

import numpy as np
import pytest
from builders import model_of

from graphkit.analysis import kv_cache
from graphkit.analysis.kv_cache import table_positions
from graphkit.graph.view import Node
from graphkit.model import Model

HEAD = "(int64[batch, sequence] position_ids) => (y)"


def lookups(layers: int) -> Model:
    """Return a model that adds 1 to its positions layer by layer, and looks up each sum."""
    nodes = [f"p{layer + 1} = Add (one, p{layer}) e{layer} = Gather (table, p{layer + 1})" for layer in range(layers)]
    sums = [f"y{layer + 1} = Add (y{layer}, e{layer})" for layer in range(layers)]
    text = " ".join(["p0 = Identity (position_ids) y0 = Gather (table, p0)", *nodes, *sums, f"y = Neg (y{layers})"])
    return model_of(f"{HEAD} {{ {text} }}", 18, table=np.ones((200, 8), np.float32), one=np.array(1))


@pytest.mark.parametrize("layers", [1, 120])
def test_numbers_are_taken_off_at_any_depth(layers: int) -> None:
    assert table_positions(lookups(layers)) == 200 - layers


@pytest.mark.parametrize(
    ("node", "rows"),
    [
        ("y = com.microsoft.RotaryEmbedding (x, position_ids, table, table)", 16),
        ("y = RotaryEmbedding (x, table, table, position_ids)", 16),
        ("y = RotaryEmbedding (x, angles, angles)", None),
        (
            "y, k, v = com.microsoft.GroupQueryAttention <num_heads = 1, kv_num_heads = 1, do_rotary = 1> "
            "(rows, rows, rows, , , last, total, table, table)",
            16,
        ),
    ],
)
def test_tables_of_rotary_embeddings_have_a_row_for_each_position(node: str, rows: int | None) -> None:
    inputs = "int64[batch, sequence] position_ids, float[batch, 1, sequence, 16] x, float[batch, sequence, 16] rows"
    text = f"({inputs}, float[batch, sequence, 8] angles, int32[batch] last, int32 total) => (y) {{ {node} }}"
    assert table_positions(model_of(text, 23, table=np.ones((16, 8), np.float32))) == rows


def test_each_sum_is_asked_once(monkeypatch: pytest.MonkeyPatch) -> None:
    asked, shift = list[Node](), kv_cache._position_shift

    def ask(model: Model, node: Node) -> int | None:
        asked.append(node)
        return shift(model, node)

    monkeypatch.setattr(kv_cache, "_position_shift", ask)
    assert table_positions(lookups(120)) == 80
    assert len(asked) == len(set(asked)) == 121


def test_sums_of_two_positions_are_not_followed_to_a_number() -> None:
    text = (
        f"{HEAD} {{ c = CumSum (position_ids, axis) n = Add (c, position_ids) p = Add (n, one) y = Gather (table, p) }}"
    )
    model = model_of(text, 18, table=np.ones((16, 8), np.float32), one=np.array(1), axis=np.array(1))
    assert table_positions(model) == 14


@pytest.mark.parametrize("dtype", [np.int8, np.uint8])
def test_a_table_that_is_rounded_to_8_bits_has_positions(dtype: type[np.generic]) -> None:
    text = f"{HEAD} {{ e = Gather (table, position_ids) y = DequantizeLinear (e, scale) }}"
    assert table_positions(model_of(text, 18, table=np.ones((16, 8), dtype), scale=np.float32(0.1))) == 16


@pytest.mark.parametrize("axis", [1, -2])
def test_a_table_that_is_repeated_for_each_sequence_has_its_rows(axis: int) -> None:
    text = (
        f"{HEAD} {{ batched = Unsqueeze (table, first)  repeated = Tile (batched, repeats)  "
        "wide = Unsqueeze (position_ids, last)  indices = Expand (wide, width)  "
        f"y = GatherElements <axis = {axis}> (repeated, indices) }}"
    )
    numbers = {"first": [0], "last": [-1], "repeats": [2, 1, 1], "width": [1, 1, 8]}
    arrays = {name: np.array(value) for name, value in numbers.items()}
    assert table_positions(model_of(text, 18, table=np.ones((40, 8), np.float32), **arrays)) == 40


def test_columns_that_are_looked_up_are_no_positions() -> None:
    text = f"{HEAD} {{ y = Gather <axis = 1> (table, position_ids) }}"
    assert table_positions(model_of(text, 18, table=np.ones((40, 8), np.float32))) is None


def test_a_table_of_8_bits_has_its_rows() -> None:
    text = f"{HEAD} {{ table = DequantizeLinear (numbers, scale)  y = Gather (table, position_ids) }}"
    model = model_of(text, 18, numbers=np.ones((40, 8), np.int8), scale=np.array(0.5, np.float32))
    assert table_positions(model) == 40


@pytest.mark.parametrize("cut", ["zero, total", "other, far", "other, total"])
def test_a_table_that_is_cut_to_the_length_has_its_positions(cut: str) -> None:
    """As that of MPT is, from its end: beyond it, a negative start would count from there."""
    model = model_of(
        f"""g (int64[b, s] input_ids, float[b, 2, past, 4] past_key_values_0_key,
               float[b, 2, past, 4] past_key_values_0_value)
            => (float[b, s, 4] logits, float[b, 2, t, 4] present_0_key, float[b, 2, t, 4] present_0_value) {{
            token = Gather (words, input_ids)
            x = Unsqueeze (token, one)
            present_0_key = Concat <axis = 2> (past_key_values_0_key, x)
            present_0_value = Concat <axis = 2> (past_key_values_0_value, x)
            shape = Shape (present_0_key)
            total = Slice (shape, two, three, zero)
            other = Sub (rows, total)
            near = Slice (table, {cut}, last)
            turned = Transpose <perm = [0, 1, 3, 2]> (present_0_key)
            scores = MatMul (x, turned)
            biased = Add (scores, near)
            mixed = MatMul (biased, present_0_value)
            logits = ReduceSum <keepdims = 0> (mixed, one)
        }}""",
        words=np.ones((50, 4), np.float32),
        table=np.ones((1, 2, 1, 24), np.float32),
        rows=np.array([24]),
        far=np.array([1 << 40]),
        **{name: np.array([size]) for name, size in {"zero": 0, "one": 1, "two": 2, "three": 3, "last": -1}.items()},
    )
    assert table_positions(model) == 24
