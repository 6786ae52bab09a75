"""Models from ONNX text, rewritten by a pass, and run before and after."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence

import numpy as np
import onnx
import onnx.checker
import onnxruntime
from onnx import helper, numpy_helper, parser, printer
from sessions import session_of

from graphkit.graph.declared_types import declared_type
from graphkit.model import Model
from graphkit.rewrite.base import Outcome, Pass
from graphkit.shapes import infer, parse

onnxruntime.set_default_logger_severity(4)

Sizes = Mapping[str, int]
SIZES: tuple[Sizes, ...] = (
    {"N": 2, "L": 5, "M": 3, "past": 0},
    {"N": 1, "L": 1, "M": 1, "past": 4},
    {"N": 3, "L": 2, "M": 7, "past": 1},
)


def model_of(text: str, opset: int = 17, ir: int = 8, **constants: object) -> Model:
    """Return the model of a graph in ONNX text; keywords become initializers, outputs without a type get one."""
    head = f'<ir_version: {ir}, opset_import: ["" : {opset}, "com.microsoft" : 1, "local" : 1]>\n'
    proto = parser.parse_model(head + text)
    for name, value in constants.items():
        proto.graph.initializer.append(numpy_helper.from_array(np.asarray(value), name))
    if any(not info.HasField("type") for info in proto.graph.output):
        shapes = infer(Model.from_proto(proto))
        for info in proto.graph.output:
            if not info.HasField("type"):
                found = shapes[info.name]
                info.CopyFrom(helper.make_tensor_value_info(info.name, found.dtype, [None] * (found.rank or 0)))
    return Model.from_proto(proto)


def lines(model: Model) -> list[str]:
    """Return the nodes of the main graph as ONNX text."""
    return [" ".join(printer.to_text(node).split()) for node in model.proto.graph.node]


def constants(model: Model) -> dict[str, list[object]]:
    """Return the initializers of the main graph."""
    return {tensor.name: numpy_helper.to_array(tensor).tolist() for tensor in model.proto.graph.initializer}


def reasons(outcome: Outcome) -> list[str]:
    return [str(declined) for declined in outcome.declined]


def feeds_of(model: Model, sizes: Sizes, seed: int = 0) -> dict[str, np.ndarray]:
    """Return an array for each input that has no default: whole numbers of either sign, so that sums are exact."""
    rng = np.random.default_rng(seed)
    feeds = {}
    for value in model.graph.inputs:
        declared = declared_type(value)
        if value.tensor is not None or declared is None:
            continue
        shape = [dim if isinstance(dim, int) else parse(str(dim)).evaluate(sizes) for dim in declared.dims or ()]
        feeds[value.name] = rng.integers(-4, 5, shape).astype(helper.tensor_dtype_to_np_dtype(declared.dtype))
    return feeds


def assert_same(before: Model, after: Model, feeds: Sequence[Mapping[str, np.ndarray]]) -> None:
    """Run both models on the same inputs; every element is equal, NaN to NaN."""
    first, second = session_of(before), session_of(after)
    names = [output.name for output in first.get_outputs()]
    assert names == [output.name for output in second.get_outputs()]
    for feed in feeds:
        for name, one, two in zip(names, first.run(None, dict(feed)), second.run(None, dict(feed)), strict=True):
            np.testing.assert_array_equal(one, two, err_msg=name, strict=True)


def check(
    step: Pass | Callable[[Model], Outcome],
    model: Model,
    sizes: Sequence[Sizes] = SIZES,
    feeds: Sequence[Mapping[str, np.ndarray]] | None = None,
) -> Outcome:
    """Rewrite; the result is valid, gives what the original gives, and the original stays as it is."""
    before = model.proto.SerializeToString(deterministic=True)
    outcome = step.run(model) if isinstance(step, Pass) else step(model)
    assert model.proto.SerializeToString(deterministic=True) == before
    onnx.checker.check_model(outcome.model.proto, full_check=True)
    given = [feeds_of(model, size, seed) for seed, size in enumerate(sizes)] if feeds is None else feeds
    assert_same(model, outcome.model, given)
    return outcome
