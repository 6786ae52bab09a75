"""The methods that every bundle has: `init` gives all state its initial value, `reorder` chooses its rows."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import replace

import numpy as np
import onnx
from onnx import helper, numpy_helper

from graphkit import __version__
from graphkit.deploy.bundle_description import Initial
from graphkit.deploy.contract.bundle_contract import Access, BundleContract, BundleMethod, BundlePort, Feed, StateTensor
from graphkit.errors import UsageError
from graphkit.model import Model

__all__ = ["init_method", "reorder_method", "with_initial"]

INDICES = "rows"
OPSET = 16  # what older runtimes have too


def init_method(contract: BundleContract, arrays: Mapping[str, np.ndarray] = {}) -> tuple[BundleMethod, Model]:
    """Return the method that sets all state to its initial value, for all rows, and its model.

    Args:
        contract: What there is of state.
        arrays: The initial values of one row, by state, where they are not all the same.
    """
    nodes, tensors, outputs = [], [], []
    for number, state in enumerate(contract.states):
        dtype = helper.np_dtype_to_tensor_dtype(np.dtype(state.dtype))
        shape, out = f"shape_{number}", f"{state.name}_initial"
        tensors.append(helper.make_tensor(shape, onnx.TensorProto.INT64, [len(state.shape)], state.shape))
        if state.initial is None:
            tensors.append(numpy_helper.from_array(arrays[state.name], f"row_{number}"))
            nodes.append(helper.make_node("Expand", [f"row_{number}", shape], [out]))
        else:
            first = state.initial if "float" in state.dtype else int(state.initial)
            value = helper.make_tensor("value", dtype, [1], [first])
            nodes.append(helper.make_node("ConstantOfShape", [shape], [out], value=value))
        outputs.append(BundlePort(out, state.dtype, state.shape, "its initial value", writes=state.name))
    access: dict[str, Access] = dict.fromkeys((state.name for state in contract.states), "write")
    method = BundleMethod("init", "init.onnx", "init", (), tuple(outputs), access)
    return method, _make_model("init", nodes, tensors, method, contract)


def reorder_method(contract: BundleContract) -> tuple[BundleMethod, Model]:
    """Return the method that makes each row of the state a copy of another one, and its model."""
    indices = BundlePort(INDICES, "int64", ("batch",), "the row that each row becomes", Feed("indices"))
    inputs, outputs, nodes = [indices], [], []
    access: dict[str, Access] = dict.fromkeys((state.name for state in contract.states), "none")
    for state in contract.states:
        if state.batch is None:
            continue
        out = f"{state.name}_after"
        free = (state.batch, state.axis if state.prefix else None) if state.length else range(len(state.shape))
        dims = [f"{state.name}_{axis}" if axis in free else size for axis, size in enumerate(state.shape)]
        after = ["batch" if axis == state.batch else dim for axis, dim in enumerate(dims)]
        nodes.append(helper.make_node("Gather", [state.name, INDICES], [out], axis=state.batch))
        inputs.append(BundlePort(state.name, state.dtype, tuple(dims), "before", Feed("state", state.name)))
        outputs.append(BundlePort(out, state.dtype, tuple(after), "after", writes=state.name))
        access[state.name] = "read and write"
    method = BundleMethod("reorder", "reorder.onnx", "reorder", tuple(inputs), tuple(outputs), access)
    return method, _make_model("reorder", nodes, [], method, contract)


def with_initial(contract: BundleContract, initial: Initial) -> tuple[BundleContract, Mapping[str, np.ndarray]]:
    """Return a contract whose states have their initial values, and the arrays of those that have more than one.

    Raises:
        UsageError: A value does not fit its state, or there is no such state.
    """
    names = {state.name for state in contract.states}
    if unknown := sorted(set(initial) - names):
        raise UsageError(f"state '{unknown[0]}' has an initial value, and no method writes it")
    states, arrays = [], {}
    for state in contract.states:
        if state.name not in initial:
            states.append(state)
            continue
        array = _fitting_initial(state, initial[state.name])
        is_number = array.size > 0 and bool(np.isfinite(array.flat[0])) and bool((array == array.flat[0]).all())
        if not is_number:
            arrays[state.name] = array
        number = initial[state.name].flat[0] if is_number else None  # as it was written, such as -1e38
        states.append(replace(state, initial=None if number is None else float(number)))
    return replace(contract, states=tuple(states)), arrays


def _fitting_initial(state: StateTensor, initial: np.ndarray) -> np.ndarray:
    for problem in _initial_problems(state, initial):
        raise UsageError(f"the initial value of state '{state.name}' {problem}")
    return initial.astype(state.dtype)


def _initial_problems(state: StateTensor, initial: np.ndarray) -> Iterator[str]:
    """Yield why an initial value does not fit a state, a clause each."""
    dtype = np.dtype(state.dtype)
    row = tuple(1 if axis == state.batch else size for axis, size in enumerate(state.shape))
    if state.axis is not None:
        yield "means nothing: it is a cache, of which no slot is in use at first - leave it out"
    elif initial.ndim == 0 and initial.dtype.kind in "iuf":
        with np.errstate(over="ignore", invalid="ignore"):
            cast = initial.astype(dtype)
        is_whole = dtype.kind == "f" or bool(cast == initial)
        if not np.isfinite(initial) or not np.isfinite(cast.astype(np.float64)) or not is_whole:
            yield f"is {initial.item()!r}, which {dtype} does not hold - give another one, or an array in a .npy file"
    elif initial.dtype != dtype:
        yield f"is an array of {initial.dtype}, and the state is {dtype} - write it with that dtype"
    elif initial.shape != row:
        yield f"is {list(initial.shape)}, and a row of the state is {list(row)} - give that"


def _make_model(
    name: str,
    nodes: Sequence[onnx.NodeProto],
    tensors: Sequence[onnx.TensorProto],
    method: BundleMethod,
    contract: BundleContract,
) -> Model:
    graph = helper.make_graph(
        nodes,
        name,
        [_port_info(port) for port in method.inputs],
        [_port_info(port) for port in method.outputs],
        tensors,
    )
    opset = helper.make_opsetid("", min(OPSET, contract.opset))
    proto = helper.make_model(
        graph, opset_imports=[opset], ir_version=8, producer_name="graphkit", producer_version=__version__
    )
    return Model.from_proto(proto)


def _port_info(port: BundlePort) -> onnx.ValueInfoProto:
    return helper.make_tensor_value_info(port.name, helper.np_dtype_to_tensor_dtype(np.dtype(port.dtype)), port.shape)
