"""An encoder inside of a first step becomes a model of its own."""

from __future__ import annotations

import numpy as np
import pytest
from rewriting import model_of
from sessions import run

from graphkit.deploy.export_pipeline import SOURCES, take_encoder_apart
from graphkit.errors import UsageError
from graphkit.model import Model

WEIGHTS = {"table": (9, 4), "wk": (4, 4), "wv": (4, 4)}
IDS = "int64[b, s] encoder_input_ids, int64[b, t] decoder_input_ids"
INPUTS = f"{IDS}, float[9, 4] table, float[4, 4] wk, float[4, 4] wv"
OUTPUTS = "float[b, t, s] logits, float[b, s, 4] present_key_encoder, float[b, s, 4] present_value_encoder"
ENCODER = """
    rows = Gather (table, encoder_input_ids)
    squashed = Tanh (rows)
    states = Add (rows, squashed)
"""
DECODER = """
    present_key_encoder = MatMul (states, wk)
    present_value_encoder = MatMul ({values}, wv)
    asked = Gather (table, decoder_input_ids)
    turned = Transpose <perm = [0, 2, 1]> (present_key_encoder)
    logits = MatMul (asked, turned)
"""


def first_step(values: str = "states") -> Model:
    return model_of(f"first ({INPUTS}) => ({OUTPUTS}) {{ {ENCODER} {DECODER.format(values=values)} }}")


def test_the_states_are_all_that_the_decoder_reads_of_the_source() -> None:
    first = first_step()
    encoder, rest = take_encoder_apart(first, SOURCES)
    assert [value.name for value in encoder.graph.outputs] == ["last_hidden_state"]
    rng = np.random.default_rng(0)
    feed = {"encoder_input_ids": rng.integers(0, 9, (2, 5)), "decoder_input_ids": rng.integers(0, 9, (2, 1))}
    weights = {name: rng.standard_normal(shape).astype(np.float32) for name, shape in WEIGHTS.items()}
    (states,) = run(encoder, {"encoder_input_ids": feed["encoder_input_ids"], "table": weights["table"]})
    given = run(rest, {"encoder_hidden_states": states, "decoder_input_ids": feed["decoder_input_ids"], **weights})
    for found, expected in zip(given, run(first, {**feed, **weights}), strict=True):
        np.testing.assert_array_equal(found, expected)


def test_a_decoder_that_reads_a_layer_before_the_last_one_as_well_gets_the_first_value_of_both() -> None:
    encoder, _ = take_encoder_apart(first_step("squashed"), SOURCES)
    assert [node.op_type for node in encoder.graph.nodes] == ["Gather", "Identity"]


def test_a_source_that_reaches_the_decoder_in_two_ways_is_declined() -> None:
    both = "states = Gather (table, encoder_input_ids) other = Gather (wk, encoder_input_ids)"
    model = model_of(f"first ({INPUTS}) => ({OUTPUTS}) {{ {both} {DECODER.format(values='other')} }}")
    with pytest.raises(UsageError, match=r"no one value \[batch, length, width\] is all that its decoder reads of it"):
        take_encoder_apart(model, SOURCES)
