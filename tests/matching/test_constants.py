"""Bytes of tensors are compared block by block, in files and in memory; what models share is read once."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import onnx
import pytest
from onnx import helper, numpy_helper

from graphkit.matching import value_numbering
from graphkit.matching.value_numbering import BLOCK, ConstantNumbers, first_difference
from graphkit.model import Model, load

SIZE = 2 * BLOCK + 12  # two blocks and a part of one


def model(path: Path, array: np.ndarray) -> Model:
    """Return a model of a file that holds one weight."""
    nodes = [helper.make_node("Identity", ["w"], ["y"])]
    outputs = [helper.make_tensor_value_info("y", onnx.TensorProto.UINT8, None)]
    graph = helper.make_graph(nodes, "g", [], outputs, [numpy_helper.from_array(array, "w")])
    onnx.save(helper.make_model(graph), path)
    return load(path)


def difference(one: Model, other: Model) -> int | None:
    return first_difference(one, one.proto.graph.initializer[0], other, other.proto.graph.initializer[0])


@pytest.mark.parametrize("place", [0, BLOCK - 1, BLOCK, 2 * BLOCK + 11])
def test_the_first_byte_that_differs_is_told_in_every_block(place: int, tmp_path: Path) -> None:
    array = np.arange(SIZE, dtype=np.uint8)
    changed = array.copy()
    changed[place:] += 1
    one = model(tmp_path / "one.onnx", array)
    assert difference(one, model(tmp_path / "other.onnx", changed)) == place
    assert difference(one, model(tmp_path / "same.onnx", array)) is None


def test_a_tensor_that_ends_earlier_differs_there(tmp_path: Path) -> None:
    array = np.zeros(SIZE, np.uint8)
    shorter = model(tmp_path / "shorter.onnx", array[:BLOCK])
    assert difference(model(tmp_path / "one.onnx", array), shorter) == BLOCK


def test_small_tensors_in_memory_are_compared_too(tmp_path: Path) -> None:
    one, other = (model(tmp_path / f"{n}.onnx", np.array([1, 2, n], np.uint8)) for n in (3, 4))
    assert (difference(one, one), difference(one, other)) == (None, 2)


def test_what_lies_at_one_place_is_read_once(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    array = np.zeros(SIZE, np.uint8)
    one, other = model(tmp_path / "one.onnx", array), model(tmp_path / "other.onnx", array)
    read, blocks = [], value_numbering._payload_blocks
    monkeypatch.setattr(value_numbering, "_payload_blocks", lambda *of: (read.append(of), blocks(*of))[1])
    numbers, tensors = ConstantNumbers(), [each.proto.graph.initializer[0] for each in (one, other)]
    assert all(numbers.of(one, tensors[0]) == numbers.of(other, tensors[1]) for _ in range(3))
    assert len(read) == 2
    assert difference(one, load(tmp_path / "one.onnx")) is None  # of one file: nothing is read
    assert len(read) == 2
