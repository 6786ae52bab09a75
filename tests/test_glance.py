"""A model at a glance: its name, what it is made of, its inputs and outputs."""

from __future__ import annotations

from onnx import parser

import graphkit
from graphkit.model import Model

SHOWN = """\
# merged-decoder.onnx

opset 18, made by optimum-onnx. 720 nodes: 252 Constant, 76 Unsqueeze, 52 Shape, 41 Add, 38 Gather and 20 other \
operators. 297 constant tensors, 21,928 bytes.

|  | Name | Dtype | Shape |
|---|---|---|---|
| input | `encoder_attention_mask` | int64 | `[batch_size, encoder_sequence_length]` |
| input | `input_ids` | int64 | `[batch_size, decoder_sequence_length]` |
| input | `encoder_hidden_states` | float32 | `[batch_size, encoder_sequence_length, 16]` |
| input | `past_key_values.0.decoder.{key\\|value}` | float32 | `[batch_size, 2, past_decoder_sequence_length, 8]` |
| input | `past_key_values.0.encoder.{key\\|value}` | float32 | `[batch_size, 2, encoder_sequence_length, 8]` |
| input | `use_cache_branch` | bool | `[1]` |
| output | `logits` | float32 | `[batch_size, decoder_sequence_length, 64]` |
| output | `present.0.decoder.{key\\|value}` | float32 | \
`[batch_size, 2, past_decoder_sequence_length + decoder_sequence_length, 8]` |
| output | `present.0.encoder.{key\\|value}` | float32 | `[batch_size, 2, encoder_sequence_length, 8]` |
"""


def of(text: str) -> Model:
    return Model.from_proto(parser.parse_model(text))


def test_a_model_shows_itself_in_a_notebook() -> None:
    model = graphkit.load("example:merged-decoder")
    assert model._repr_markdown_().strip() == SHOWN.strip()
    assert "<h1>merged-decoder.onnx</h1>" in model._repr_html_()
    assert repr(model) == "Model('merged-decoder.onnx', 720 nodes)"


def test_an_empty_model_shows_itself() -> None:
    model = of('<ir_version: 8, opset_import: ["" : 17]> g () => () {}')
    assert "opset 17. 0 nodes. 0 constant tensors, 0 bytes." in model._repr_markdown_()


def test_one_of_a_kind_is_singular() -> None:
    model = of('<ir_version: 8, opset_import: ["" : 17]> g (float x) => (float y) <float w = {1}> { y = Add (x, w) }')
    assert "1 node: 1 Add. 1 constant tensor, 4 bytes." in model._repr_markdown_()
    assert repr(model) == "Model('g', 1 node)"


def test_many_inputs_are_counted() -> None:
    inputs = ", ".join(f"float[{size + 1}] x{size}" for size in range(20))
    model = of(f'<ir_version: 8, opset_import: ["" : 17]> g ({inputs}) => (float[1] y) {{ y = Neg (x0) }}')
    assert "... and 9 more." in model._repr_markdown_()


def test_names_are_no_markup() -> None:
    model = of('<ir_version: 8, opset_import: ["" : 17]> g (float x) => (float y) { y = Neg (x) }')
    model.proto.graph.input[0].name = model.proto.graph.node[0].input[0] = "<script>\x1b"
    assert "<script>" not in Model.from_proto(model.proto)._repr_html_()
