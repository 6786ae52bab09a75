"""onnx's own cases of operators, converted: they give the same."""

from __future__ import annotations

from collections.abc import Iterator

import numpy as np
import onnx
import pytest
from node_cases import node_cases
from sessions import session_of

from graphkit.graph.operator_traits import RANDOM
from graphkit.model import Model
from graphkit.passes.opset.convert_opset import NEWEST, ConvertOpset

OPSET = 17
NO_KERNEL = {"Bernoulli", "RoiAlign"}  # onnxruntime 1.31 has none of opset 22
OTHER_SUMS = {"AveragePool"}  # its kernel of opset 19 adds up in another order


def stamped() -> Iterator[tuple[Model, dict[str, object], list[object]]]:
    """Yield the first case of each operator that runs in the older operator set, with what it gives there."""
    done = set(NO_KERNEL)
    for case in node_cases():
        op_type = case.model.graph.node[0].op_type
        if len(case.model.graph.node) > 1 or op_type in done:
            continue
        proto = onnx.ModelProto()
        proto.CopyFrom(case.model)
        proto.ir_version = 8
        del proto.opset_import[:]
        proto.opset_import.append(onnx.helper.make_opsetid("", OPSET))
        feeds = dict(zip([info.name for info in proto.graph.input], case.inputs, strict=True))
        try:
            expected = session_of(proto).run(None, feeds)
        except Exception:  # onnxruntime raises many kinds: the case is of a newer operator
            continue
        done.add(op_type)
        yield Model.from_proto(proto), feeds, expected


def with_constants() -> Iterator[tuple[Model, dict[str, object], list[object]]]:
    """Yield the cases that run as they are, all inputs but the first one constants, with what they give."""
    for case in node_cases():
        proto = onnx.ModelProto()
        proto.CopyFrom(case.model)
        proto.ir_version = min(proto.ir_version, 10)
        for entry in proto.opset_import:
            entry.version = min(entry.version, NEWEST)
        feeds = dict(zip([info.name for info in proto.graph.input], case.inputs, strict=False))
        for info in list(proto.graph.input)[1:]:
            array = feeds.get(info.name)
            if isinstance(array, np.ndarray) and array.dtype.kind in "biuf":
                proto.graph.initializer.append(onnx.numpy_helper.from_array(array, info.name))
                proto.graph.input.remove(info)
                del feeds[info.name]
        try:
            expected = session_of(proto).run(None, feeds)
        except Exception:  # onnxruntime raises many kinds
            continue
        yield Model.from_proto(proto), feeds, expected


def same(one: object, other: object) -> bool:
    if isinstance(one, list) and isinstance(other, list):
        return len(one) == len(other) and all(map(same, one, other))
    return bool(np.array_equal(np.asarray(one), np.asarray(other), equal_nan=np.asarray(one).dtype.kind == "f"))


@pytest.mark.slow
def test_an_operator_that_stays_as_it_is_gives_the_same_in_the_newest_opset() -> None:
    differing, count = set(), 0
    for model, feeds, expected in stamped():
        outcome = ConvertOpset().run(model)
        count += not outcome.declined
        if not outcome.declined and not same(expected, session_of(outcome.model).run(None, feeds)):
            differing.add(model.graph.nodes[0].op_type)
    assert count > 100
    assert not differing - OTHER_SUMS


NO_OLD_KERNEL = {("Max", 7), ("Min", 7)}  # of float64


@pytest.mark.slow
@pytest.mark.parametrize("version", [17, 12, 9, 7])
def test_an_operator_that_an_older_opset_knows_gives_the_same_there(version: int) -> None:
    differing, count = set(), 0
    for model, feeds, expected in with_constants():
        outcome = ConvertOpset(version).run(model)
        op_type = model.graph.nodes[0].op_type
        if model.graph.opset() <= version or outcome.declined or (op_type, version) in NO_OLD_KERNEL:
            continue
        count += 1
        if not same(expected, session_of(outcome.model).run(None, feeds)):
            differing.add(op_type)
    assert count > 400
    assert not differing - OTHER_SUMS - RANDOM
