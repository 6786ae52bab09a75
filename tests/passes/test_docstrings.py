"""The Before and After of each pass's docstring: parsed, rewritten, compared, run."""

from __future__ import annotations

import numpy as np
import onnx
import pytest
from onnx import printer
from sessions import run
from site_pages.pass_pages import example as docstring_example

from graphkit.model import Model
from graphkit.passes import PASSES
from graphkit.passes.registry import parse_pipeline
from graphkit.rewrite.base import Pass


def example(kind: type[Pass]) -> tuple[onnx.ModelProto, str, onnx.ModelProto]:
    shown = docstring_example(kind)
    before, after = shown.models()
    return before, shown.call, after


def feed(model: onnx.ModelProto) -> dict[str, np.ndarray]:
    arrays = {}
    for info in model.graph.input:
        tensor = info.type.tensor_type
        shape = [dim.dim_value or 3 for dim in tensor.shape.dim]
        arrays[info.name] = np.full(shape, 1, onnx.helper.tensor_dtype_to_np_dtype(tensor.elem_type))
    return arrays


@pytest.mark.parametrize("kind", PASSES, ids=lambda kind: kind.name())
def test_the_pass_does_what_its_docstring_shows(kind: type[Pass]) -> None:
    before, call, after = example(kind)
    (step,) = parse_pipeline(call)
    result = step.run(Model.from_proto(before)).model.proto
    assert printer.to_text(result.graph) == printer.to_text(after.graph)


@pytest.mark.parametrize("kind", PASSES, ids=lambda kind: kind.name())
def test_before_and_after_give_the_same(kind: type[Pass]) -> None:
    before, call, after = example(kind)
    if [info.SerializeToString() for info in before.graph.input] != [i.SerializeToString() for i in after.graph.input]:
        pytest.skip("the pass changes the inputs: the proof of `graphkit lower` covers what a host makes of them")
    expected = dict(zip((o.name for o in before.graph.output), run(before, feed(before)), strict=True))
    (step,) = parse_pipeline(call)
    made = step.run(Model.from_proto(before)).model.proto
    after.ir_version = made.ir_version  # of the After: its text does not say
    del after.opset_import[:]
    after.opset_import.extend(made.opset_import)
    actual = run(after, feed(after))
    tolerance = min(kind.largest_error, 0.01)  # of `dequantize` no error is the largest: these examples round little
    for info, value in zip(after.graph.output, actual, strict=True):
        np.testing.assert_allclose(value, expected[info.name], rtol=0, atol=tolerance)


@pytest.mark.parametrize("kind", PASSES, ids=lambda kind: kind.name())
def test_a_pass_that_changes_the_interface_says_so(kind: type[Pass]) -> None:
    before, _, after = example(kind)
    given, taken = ({info.name for info in model.graph.output} for model in (before, after))
    read, needed = (
        {info.name: len(info.type.tensor_type.shape.dim) for info in model.graph.input} for model in (before, after)
    )
    assert taken <= given or kind.changes_interface
    assert taken == given or kind.changes_interface or kind.drops_outputs
    assert needed.items() <= read.items() or kind.changes_interface
