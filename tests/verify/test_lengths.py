from __future__ import annotations

import math
from collections.abc import Callable

import numpy as np
import pytest
from small_models import model

from graphkit.model import Model
from graphkit.verify.feeder import Lengths, lengths_of

RealModel = Callable[[str], Model]
# relative positions as T5 puts them into buckets: 16 exact ones, then ever wider ones up to 128
BUCKETS = """g (float[n] distance) => (float[n] y) {
    part = Div (distance, exact) log = Log (part) scaled = Div (log, width) y = Mul (scaled, exact) }"""
POSITIONS = """g (int64[b, s] input_ids) => (float[b, s, 4] y) {{
    shape = Shape (input_ids) n = Gather (shape, one) positions = {}
    row = Gather (table, positions) word = Gather (words, input_ids) y = Add (word, row) }}"""


@pytest.mark.parametrize(
    ("name", "expected"),
    [
        ("gemma-270m/model", Lengths((515, 35))),  # a sliding window of 512
        ("bert-fill-mask/model", Lengths((35,), (64, 63, 62))),  # position ids are a constant, cut
        ("llama-int4/model", Lengths((35,))),
        ("gpt2-tiny/decoder_model_merged", Lengths((35,), (64, 63, 62))),
        ("nllb-tiny/decoder_model_merged_quantized", Lengths((35,), (66, 65, 64))),  # a table of 8-bit numbers
        ("nllb-600m/decoder_model", Lengths((35,), (1026, 1025, 1024))),  # in a file that is missing
        ("merged-decoder/decoder_model", Lengths((), (32, 31, 30))),
        ("detr-resnet-50/model_quantized", Lengths((35,))),
    ],
)
def test_real_models(name: str, expected: Lengths, real_model: RealModel) -> None:
    assert lengths_of(real_model(name)) == expected


def test_a_sliding_window_of_an_operator() -> None:
    text = "g (float[n] x) => (float[n] y) { y = com.microsoft.GroupQueryAttention <local_window_size = 99> (x) }"
    assert lengths_of(model(text)).beyond == (102, 35)


def test_the_last_so_many_of_a_cache() -> None:
    text = "g (float[b, n, 4] x) => (float[b, m, 4] y) { y = Slice (x, start, end, axis) }"
    assert lengths_of(model(text, start=[-48], end=[2**62], axis=[1])).beyond == (51, 35)


def test_the_last_bucket_of_distances() -> None:
    assert lengths_of(model(BUCKETS, exact=16.0, width=math.log(128 / 16))).beyond == (131, 35)


@pytest.mark.parametrize("scale", [np.nan, np.inf, -1.0, 0.0])
def test_numbers_that_are_no_length(scale: float) -> None:
    assert lengths_of(model(BUCKETS, exact=16.0, width=scale)).beyond == (35,)
    text = "g (float[n] x) => (float[n] y) { y = Max (x, c) }"
    assert lengths_of(model(text, c=scale)).beyond == (35,)


@pytest.mark.parametrize("positions", ["Range (zero, n, one)", "CumSum (input_ids, one)"])
def test_a_table_of_positions_ends(positions: str) -> None:
    found = model(
        POSITIONS.format(positions), table=np.ones((50, 4)), words=np.ones((9, 4)), one=np.int64(1), zero=np.int64(0)
    )
    assert lengths_of(found) == Lengths((35,), (50, 49, 48))


def test_a_table_of_words_is_none() -> None:
    found = model(POSITIONS.format("Neg (input_ids)"), table=np.ones((50, 4)), words=np.ones((9, 4)), one=np.int64(1))
    assert lengths_of(found) == Lengths((35,))


@pytest.mark.parametrize("clamp", ["Min (all, last)", "Clip (all, zero, last)"])
def test_a_table_of_distances_has_no_end(clamp: str) -> None:
    """Its last row serves all distances from there on, so that a proof must go on past it."""
    found = model(
        POSITIONS.format(f"{clamp} all = Range (zero, n, one)"),
        table=np.ones((20, 4)),
        words=np.ones((9, 4)),
        one=np.int64(1),
        zero=np.int64(0),
        last=np.int64(19),
    )
    assert lengths_of(found) == Lengths((35,))


def test_lengths_past_the_end_of_the_table_are_not_tried() -> None:
    found = model(
        POSITIONS.format("Range (zero, n, one)"), table=np.ones((20, 4)), words=np.ones((9, 4)), one=1, zero=0
    )
    assert lengths_of(found) == Lengths((), (20, 19, 18))
