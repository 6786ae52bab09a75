"""Tools of others, in processes of their own."""

from __future__ import annotations

import onnx
import onnx.parser

from graphkit.runtime.external_tools import convert_bytes

MODEL = """
<ir_version: 8, opset_import: ["" : 18]>
agraph (float[N, 4] x) => (float[N] y) <int64[1] axes = {1}> { y = ReduceMean <keepdims = 0> (x, axes) }"""


def test_onnx_converts_a_model_in_another_process() -> None:
    model = onnx.parser.parse_model(MODEL).SerializeToString()
    assert onnx.load_model_from_string(convert_bytes(model, 17)).opset_import[0].version == 17
