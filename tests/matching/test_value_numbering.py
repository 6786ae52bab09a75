"""Numbers of what two models compute: equal where they compute the same."""

from __future__ import annotations

import onnx
import pytest

from graphkit.matching.value_numbering import ValueNumbers
from graphkit.model import Model


@pytest.mark.parametrize("version", [1 << 31, (1 << 63) - 1])
def test_a_version_that_no_operator_set_has_is_no_traceback(version: int) -> None:
    text = '<ir_version: 9, opset_import: ["" : 18]> g (float[n] x) => (float[n] y) { y = Softmax <axis = -1> (x) }'
    proto = onnx.parser.parse_model(text)
    proto.opset_import[0].version = version
    numbers, models = ValueNumbers(), [Model.from_proto(proto) for _ in range(2)]
    for each in models:
        numbers.add(each)
    assert len({numbers.graphs[each.graph] for each in models}) == 1
