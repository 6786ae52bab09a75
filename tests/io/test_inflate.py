from __future__ import annotations

import onnx
from hypothesis import given, settings
from hypothesis import strategies as st
from onnx import TensorProto, helper

from graphkit.io.wire import inflate

MARK = b"a mark of some length"


def marked(raw: bytes, mark: bytes) -> onnx.ModelProto:
    """Return a model that holds a tensor as initializer, as constant and in a body; `mark` stands for `raw`."""
    tensor = TensorProto(name="w", data_type=TensorProto.UINT8, dims=[len(raw)], raw_data=mark, doc_string="kept")
    constant = helper.make_node("Constant", [], ["c"], value=tensor)
    body = helper.make_graph([constant], "body", [], [helper.make_tensor_value_info("c", TensorProto.UINT8, None)])
    branch = helper.make_node("If", ["cond"], ["y"], then_branch=body, else_branch=body)
    return helper.make_model(helper.make_graph([constant, branch], "g", [], [], [tensor]))


@settings(deadline=None, derandomize=True)
@given(st.binary(max_size=300))
def test_every_mark_becomes_its_payload(raw: bytes) -> None:
    pieces = inflate(marked(raw, MARK).SerializeToString(), {MARK: memoryview(raw)})
    assert onnx.ModelProto.FromString(b"".join(pieces)) == marked(raw, raw)


def test_payloads_are_referred_to_and_not_copied() -> None:
    payload = memoryview(bytes(1000))
    pieces = inflate(marked(b"x" * 1000, MARK).SerializeToString(), {MARK: payload})
    assert sum(piece is payload for piece in pieces) == 4


def test_without_marks_the_bytes_are_the_same() -> None:
    data = marked(b"abc", b"abc").SerializeToString()
    assert b"".join(inflate(data, {})) == data
