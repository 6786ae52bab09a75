"""Windows of convolutions and pools in small dims, where some do not fit: the dims are those that onnxruntime gives."""

from __future__ import annotations

from collections.abc import Iterator
from itertools import islice, product

import numpy as np
import onnxruntime
import pytest
from graphs import dims, model
from onnx import helper, numpy_helper
from real_models import params

from graphkit.model import Model
from graphkit.shapes import infer, is_known

onnxruntime.set_default_logger_severity(4)

SIZES = range(8)  # of the dim that windows slide along
POOLS = ("MaxPool", "AveragePool", "LpPool")
CONVOLUTIONS = ("Conv", "ConvInteger", "ConvTranspose")
PADS = ([0, 0], [1, 0], [0, 2], [1, 1])
Attributes = dict[str, object]


def windows() -> Iterator[Attributes]:
    """Yield attributes of windows, with the size of their kernel."""
    for kernel, stride, dilation in product((1, 2, 3, 4), (1, 2, 3, 5), (1, 2)):
        common: Attributes = {"kernel_shape": [kernel], "strides": [stride], "dilations": [dilation]}
        yield from ({**common, "pads": pads} for pads in PADS)
        yield from ({**common, "auto_pad": kind} for kind in ("VALID", "SAME_UPPER", "SAME_LOWER"))


def attributes_of(operator: str) -> Iterator[Attributes]:
    for attributes in windows():
        if operator in POOLS:
            yield from ({**attributes, "ceil_mode": mode} for mode in (0, 1))
        elif operator == "ConvTranspose":
            most = max(*attributes["strides"], *attributes["dilations"]) - 1  # type: ignore[misc]
            yield from ({**attributes, "output_padding": [extra]} for extra in {0, most})
        else:
            yield attributes


def node_of(operator: str, attributes: Attributes) -> Model:
    """Return a model of one node, on a dim that may be 0, in a batch that is none."""
    kind = np.uint8 if operator == "ConvInteger" else np.float32
    inputs = ["x"] if operator in POOLS else ["x", "w"]
    weight = np.ones((1, 1, *attributes["kernel_shape"]), kind)  # type: ignore[misc]
    graph = helper.make_graph(
        [helper.make_node(operator, inputs, ["y"], **attributes)],
        "g",
        [helper.make_tensor_value_info("x", helper.np_dtype_to_tensor_dtype(np.dtype(kind)), [1, 1, "past_h"])],
        [helper.ValueInfoProto(name="y")],
        [numpy_helper.from_array(weight, "w")][: len(inputs) - 1],
    )
    return Model.from_proto(helper.make_model(graph, opset_imports=[helper.make_opsetid("", 19)], ir_version=10))


def given(made: Model) -> dict[int, int]:
    """Return the length of onnxruntime's output by that of the input, where the model runs."""
    options = onnxruntime.SessionOptions()
    options.graph_optimization_level = onnxruntime.GraphOptimizationLevel.ORT_DISABLE_ALL
    options.intra_op_num_threads = 1
    refusals = (onnxruntime.capi.onnxruntime_pybind11_state.Fail, *RUN_ERRORS)
    try:
        session = onnxruntime.InferenceSession(made.proto.SerializeToString(), options)
    except refusals:
        return {}
    found = {}
    kind = np.uint8 if session.get_inputs()[0].type == "tensor(uint8)" else np.float32
    for size in SIZES:
        try:
            found[size] = session.run(None, {"x": np.ones((1, 1, size), kind)})[0].shape[2]
        except refusals:
            continue
    return found


RUN_ERRORS = (
    onnxruntime.capi.onnxruntime_pybind11_state.InvalidArgument,
    onnxruntime.capi.onnxruntime_pybind11_state.RuntimeException,
    onnxruntime.capi.onnxruntime_pybind11_state.InvalidGraph,
)


@pytest.mark.cases("Conv-3")
@pytest.mark.parametrize("every", [3, pytest.param(1, marks=pytest.mark.slow)])
@pytest.mark.parametrize("operator", params([*POOLS, *CONVOLUTIONS], slow=("LpPool", "ConvInteger")))
def test_windows_are_counted_as_onnxruntime_does(operator: str, every: int) -> None:
    wrong, known, runs = [], 0, 0
    for attributes in islice(attributes_of(operator), 0, None, every):
        made = node_of(operator, attributes)
        shapes = infer(made)
        dim = shapes[made.graph.outputs[0]].dims[2]
        known += is_known(dim)
        for size, length in given(made).items():
            runs += 1
            met = all(each.left.evaluate({"past_h": size}) >= each.right.constant for each in shapes.inequalities)
            if not met or (is_known(dim) and dim.evaluate({"past_h": size}) != length):
                wrong.append(f"{attributes}: {length} at {size}, not {dim}, where {shapes.inequalities}")
    assert not wrong, wrong[:5]
    assert runs > 500 // every
    assert known > 150 // every


SAME = 'auto_pad = "SAME_UPPER"'
LINE = "g (float[n, 1, h] x, float[1, 1, 2] w) => (y) "
COUNTS = {
    "MaxPool <kernel_shape = [3], strides = [3]> (x)": "max(1, h // 3)",
    "MaxPool <kernel_shape = [3], strides = [3], pads = [1, 1]> (x)": "(h + 2) // 3",
    "LpPool <kernel_shape = [7], strides = [3]> (x)": "max((h + 2) // 3 - 2, min((h + 1) // 3 - 1, 1))",
    "MaxPool <kernel_shape = [3]> (x)": "h - 2",
    f"MaxPool <kernel_shape = [4], strides = [2], {SAME}> (x)": "(h + 1) // 2",
    f"MaxPool <kernel_shape = [4], dilations = [2], {SAME}> (x)": "?0.MaxPool#0",
    f"MaxPool <kernel_shape = [1], dilations = [2], {SAME}> (x)": "h",
    f"ConvTranspose <strides = [2], {SAME}> (x, w)": "2*h",
    f"ConvTranspose <strides = [4], {SAME}> (x, w)": "?0.ConvTranspose#0",
    f"ConvTranspose <strides = [4], output_padding = [2], {SAME}> (x, w)": "4*h",
    f"ConvTranspose <strides = [3], dilations = [2], {SAME}> (x, w)": "3*h",
}


@pytest.mark.parametrize("node", COUNTS)
def test_windows_are_known_where_onnxruntime_counts_as_onnx_does(node: str) -> None:
    assert dims(f"{LINE} {{ y = {node} }}") == f"[n, 1, {COUNTS[node]}]"


def test_what_is_pooled_has_elements_unless_the_batch_may_be_empty() -> None:
    pool = "=> (y) { y = GlobalMaxPool (x) }"
    asked = [infer(model(f"g (float[{batch}, 2, past_h] x) {pool}")).inequalities for batch in ("n", "past_n")]
    assert [len(each) for each in asked] == [1, 0]
