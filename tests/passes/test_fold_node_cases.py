"""onnx's own test cases of every operator: folded, they give what they gave."""

from __future__ import annotations

from collections.abc import Callable

import numpy as np
import onnx
import onnxruntime
import pytest
import sessions
from node_cases import node_cases, symbolic
from onnx import numpy_helper
from onnx.reference import ReferenceEvaluator

from graphkit.model import Model
from graphkit.passes.fold_pipeline import fold

onnxruntime.set_default_logger_severity(4)
Feed = dict[str, object]
Change = Callable[[onnx.ModelProto, list[object]], onnx.ModelProto]


def all_constant(proto: onnx.ModelProto, arrays: list[object]) -> onnx.ModelProto:
    """Return a model whose inputs are constants, as far as they are tensors of numbers."""
    model = onnx.ModelProto()
    model.CopyFrom(proto)
    for info, array in zip(list(model.graph.input), arrays, strict=False):
        if isinstance(array, np.ndarray) and array.dtype.kind in "fiub":
            tensor = numpy_helper.from_array(array, info.name)
            if tensor.data_type == info.type.tensor_type.elem_type:
                model.graph.initializer.append(tensor)
                model.graph.input.remove(info)
    return model


def with_symbols(proto: onnx.ModelProto, arrays: list[object]) -> onnx.ModelProto:
    """Return a model with a symbol for each dim, whose small integer inputs are constants."""
    return symbolic(proto, arrays)[0]


def run(proto: onnx.ModelProto, feed: Feed, in_onnxruntime: bool) -> list[object]:
    if not in_onnxruntime:
        return ReferenceEvaluator(proto).run(None, feed)
    return sessions.run(proto, feed)


def expected(proto: onnx.ModelProto, feed: Feed) -> tuple[list[object], bool]:
    """Return the outputs, and whether they are those of onnxruntime: of onnx where it has no such operator."""
    try:
        return run(proto, feed, True), True
    except Exception as error:
        if "onnxruntime" not in type(error).__module__ and not isinstance(error, RuntimeError):
            raise
        return run(proto, feed, False), False


def _array(given: object) -> object:
    """Return the array of a tensor: cases of CastLike have tensors of types that numpy has not."""
    return numpy_helper.to_array(given) if isinstance(given, onnx.TensorProto) else given


def assert_same(one: object, two: object, name: str) -> None:
    if isinstance(one, (list, tuple)):
        assert isinstance(two, (list, tuple)), name
        assert len(one) == len(two), name
        for left, right in zip(one, two, strict=True):
            assert_same(left, right, name)
    elif one is None or two is None:
        assert one is two, name
    else:
        np.testing.assert_array_equal(_bits(one), _bits(two), err_msg=name, strict=True)


def _bits(value: object) -> np.ndarray:
    """Return an array; of the types that numpy has not, whose NaNs it finds unequal, the bits."""
    array = np.asarray(value)
    return array.view(f"u{array.itemsize}") if array.dtype.isbuiltin == 2 and array.ndim else array


@pytest.mark.cases("6-with_symbols-50")
@pytest.mark.filterwarnings("ignore::RuntimeWarning")
@pytest.mark.parametrize(("change", "least"), [(with_symbols, 50), (all_constant, 500)])
@pytest.mark.parametrize("part", [6, pytest.param(1, marks=pytest.mark.slow)])
def test_every_operator_gives_what_it_gave(change: Change, least: int, part: int) -> None:
    """All cases, and without the slow tests every sixth of them: an operator has several."""
    changed = 0
    for name, proto, arrays, _ in node_cases()[::part]:
        if "_expanded" in name:  # the same as a function, which has many nodes
            continue
        model = change(proto, arrays)
        outcome = fold(Model.from_proto(model))
        if not outcome.changes:
            continue
        changed += 1
        given = dict(zip((info.name for info in proto.graph.input), arrays, strict=False))
        feed = {info.name: _array(given[info.name]) for info in model.graph.input}
        first, in_onnxruntime = expected(model, feed)
        assert_same(first, run(outcome.model.proto, feed, in_onnxruntime), name)
    assert changed > least / part, changed
