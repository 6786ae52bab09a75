from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest

from graphkit.errors import ModelError, UsageError
from graphkit.model import Model, load
from graphkit.runtime.session import Session
from graphkit.shapes.constraints.symbol_sizes import Sizes
from graphkit.verify.decoding import Decoder
from graphkit.verify.input_generator import InputGenerator
from graphkit.verify.oracle import decode

RealModel = Callable[[str], Model]
PROMPT = Sizes(batch=2, sequence=3, encoder=5)


def without_cache(path: Path, ids: np.ndarray) -> np.ndarray:
    """Return the logits of the last position for whole sequences, with an empty past."""
    session = Session(path)
    model = load(path)
    feed = InputGenerator(model).make(Sizes(*ids.shape), {"input_ids": ids})
    return session.run(feed)["logits"][:, -1]


@pytest.mark.parametrize("style", ["stacked", "two-stacked", "past_0-2bhsd", "anonymous", "cache_k_l0", "bshd"])
def test_decoding_with_the_cache_equals_running_whole_sequences(style: str, model_file: Callable[[str], Path]) -> None:
    path = model_file(f"cache-styles/{style}")
    prompt = np.array([[5, 6, 7], [8, 9, 10]])
    decoded = decode(Decoder.open(load(path)), sizes=PROMPT, steps=4, given={"input_ids": prompt})
    whole = prompt
    for step in range(4):
        np.testing.assert_allclose(decoded.logits[step], without_cache(path, whole), atol=1e-5)
        whole = np.concatenate([whole, decoded.tokens[:, step : step + 1]], axis=1)


def test_a_merged_decoder_and_the_pair_it_was_merged_from_decode_the_same(model_file: Callable[[str], Path]) -> None:
    pair = [load(model_file(f"merged-decoder/{name}")) for name in ("decoder_model", "decoder_with_past_model")]
    one = decode(Decoder.open(load("example:merged-decoder")), sizes=PROMPT, steps=6)
    two = decode(Decoder.open(*pair), sizes=PROMPT, steps=6)
    np.testing.assert_array_equal(one.tokens, two.tokens)
    np.testing.assert_array_equal(np.stack(one.logits), np.stack(two.logits))


def test_encoder_states_can_be_given() -> None:
    states = np.zeros((2, 5, 16), np.float32)
    decoder = Decoder.open(load("example:merged-decoder"))
    one = decode(decoder, sizes=PROMPT, steps=2, given={"encoder_hidden_states": states})
    two = decode(decoder, sizes=PROMPT, steps=2)
    assert not np.array_equal(one.logits[0], two.logits[0])


def test_a_model_without_tokens_cannot_decode(model_file: Callable[[str], Path]) -> None:
    with pytest.raises(ModelError, match="no input takes token ids"):
        decode(Decoder.open(load(model_file("vit-qdq/model"))))


def test_a_model_that_was_never_written_cannot_be_run() -> None:
    model = load("example:merged-decoder")
    with pytest.raises(UsageError, match="was never written"):
        Decoder.open(Model.from_proto(model.restore()))


def test_a_model_with_missing_weights_gives_one_error(real_model: RealModel) -> None:
    with pytest.raises(ModelError, match="its data file is missing"):
        Decoder.open(real_model("gemma-270m/model"))
