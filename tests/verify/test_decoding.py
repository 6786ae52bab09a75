from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import numpy as np
import onnx
import pytest
from real_models import params

from graphkit.errors import ModelError
from graphkit.model import Model, load
from graphkit.runtime.session import Session
from graphkit.shapes.constraints.legal_sizes import Sizes
from graphkit.verify.decoding import Decoder, decode
from graphkit.verify.input_generator import InputGenerator

RealModel = Callable[[str], Model]
PROMPT = Sizes(batch=2, sequence=3, encoder=5)


def without_cache(path: Path, ids: np.ndarray) -> np.ndarray:
    """Return the logits of the last position for whole sequences, with an empty past."""
    session = Session(path)
    model = load(path)
    feed = InputGenerator(model).make(Sizes(*ids.shape), {"input_ids": ids})
    return session.run(feed)["logits"][:, -1]


STYLES = ("stacked", "two-stacked", "past_0-2bhsd", "anonymous", "cache_k_l0", "bshd")


@pytest.mark.cases("past_0-2bhsd")
@pytest.mark.parametrize("style", params(STYLES, slow=("stacked", "anonymous", "cache_k_l0")))
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


def test_a_model_that_was_never_written_decodes_as_its_file() -> None:
    model = load("example:merged-decoder")
    one, two = (
        decode(Decoder.open(each), sizes=PROMPT, steps=4) for each in (model, Model.from_proto(model.restore()))
    )
    np.testing.assert_array_equal(np.stack(one.logits), np.stack(two.logits))


def test_a_model_with_missing_weights_gives_one_error(real_model: RealModel) -> None:
    with pytest.raises(ModelError, match="its data file is missing"):
        Decoder.open(real_model("gemma-270m/model"))


def with_input(name: str, dims: list[str], path: Path) -> Path:
    """Write the example decoder with one more input, of which a share is added to the logits."""
    proto = load("example:merged-decoder").restore()
    graph = proto.graph
    for node in graph.node:
        node.output[:] = ["plain" if out == "logits" else out for out in node.output]
    axes = np.array([2] if len(dims) == 2 else [0, 2])
    words = next(out for out in graph.output if out.name == "logits").type.tensor_type.shape.dim[2].dim_value
    numbers = {"axes": axes, "ramp": np.linspace(0, 50, words, dtype=np.float32)}
    graph.initializer.extend(onnx.numpy_helper.from_array(array, key) for key, array in numbers.items())
    graph.input.append(onnx.helper.make_tensor_value_info(name, onnx.TensorProto.INT64, dims))
    made = ("Cast", [name], "f", {"to": 1}), ("Unsqueeze", ["f", "axes"], "u", {}), ("Mul", ["u", "ramp"], "m", {})
    graph.node.extend(onnx.helper.make_node(op, reads, [out], **more) for op, reads, out, more in made)
    graph.node.append(onnx.helper.make_node("Add", ["plain", "m"], ["logits"]))
    onnx.save(proto, path)
    return path


@pytest.mark.slow
@pytest.mark.parametrize(
    ("name", "dims"),
    [
        ("cache_position", ["decoder_sequence_length"]),
        ("styles", ["batch_size", "decoder_sequence_length"]),
        ("position_ids", ["batch_size", "decoder_sequence_length"]),
        ("token_type_ids", ["batch_size", "decoder_sequence_length"]),
    ],
)
def test_an_input_beside_the_tokens_is_as_long_as_they_are_and_may_be_given(
    name: str, dims: list[str], tmp_path: Path
) -> None:
    decoder = Decoder.open(with_input(name, dims, tmp_path / "m.onnx"))
    prompt = np.array([[5, 7, 2]])
    usual = decode(decoder, given={"input_ids": prompt}, steps=3)
    assert usual.tokens.shape == (1, 3)
    numbers = np.array([7, 8, 9] if len(dims) == 1 else [[7, 8, 9]])
    given = decode(decoder, given={"input_ids": prompt, name: numbers}, steps=1)
    assert not np.array_equal(given.logits[0], usual.logits[0])
