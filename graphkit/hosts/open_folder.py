"""The checks of hosts before anything runs: the files of a folder, its proof, and a bundle against its models."""

from __future__ import annotations

import warnings
from collections.abc import Iterator
from functools import cache
from pathlib import Path

import numpy as np
import onnx

from graphkit.contract.bundle_contract import BundleContract, BundleMethod, BundlePort
from graphkit.contract.contract_files import check_files
from graphkit.contract.contract_parts import AnyContract
from graphkit.dtypes import dtype_name, inline_array
from graphkit.errors import ModelError, UnprovenWarning
from graphkit.graph.declared_types import declared_type
from graphkit.graph.operator_traits import LOOKUPS
from graphkit.graph.view import Value
from graphkit.model import Model, load

MOVING = ("TensorScatter", "ScatterND", "Identity", *LOOKUPS)  # what gives its first input, some elements changed


def check_folder(folder: Path, contract: AnyContract, record: str, *, checksums: bool = False) -> None:
    """Check the files that a contract records, and warn, once for each folder, where it is not proven.

    `record` is the file of the contract. With `checksums` all files are read to compare theirs, instead of sizes alone.

    Raises:
        ModelError: A file is missing, or another one than was recorded.
    """
    check_files(folder, contract.files, record, checksums=checksums)
    if not contract.proof.passed:
        _warn_unproven(folder.resolve(), contract.proof.sentence())


@cache
def _warn_unproven(folder: Path, sentence: str) -> None:
    text = f"{folder}: {sentence} - `graphkit verify EXPORT {folder} --record` proves it"
    warnings.warn(text, UnprovenWarning, stacklevel=4)


def check_bundle(folder: Path, contract: BundleContract) -> None:
    """Check that the methods of a bundle are those of its models: names, dtypes, dims, and the state that each moves.

    Raises:
        ModelError: A model is missing or broken, or `bundle.json` says something else of it.
    """
    models = {file: load(folder / file) for file in dict.fromkeys(method.file for method in contract.methods)}
    for method in contract.methods:
        for problem in _method_problems(method, models[method.file], contract):
            text, file = f"method '{method.name}' is not what bundle.json says: {problem}", folder / method.file
            raise ModelError(text, file=str(file), hint="make the bundle again")


def _method_problems(method: BundleMethod, model: Model, contract: BundleContract) -> Iterator[str]:
    fed = [value for value in model.graph.inputs if value.tensor is None]
    for what, ports, values in (("input", method.inputs, fed), ("output", method.outputs, model.graph.outputs)):
        named = {value.name: value for value in values}
        if odd := sorted({port.name for port in ports} ^ set(named)):
            yield f"its {what}s are others, such as '{odd[0]}'"
            return
        for port in ports:
            yield from (f"{what} '{port.name}' {text}" for text in _port_problems(port, named[port.name]))
    read = {port.name: port.state for port in method.inputs}
    for port in method.outputs:
        origin = _written_origin(next(value for value in model.graph.outputs if value.name == port.name))
        before = read.get(origin.name, "")
        is_written = bool(port.writes) and contract.state(port.writes).axis is not None
        if before and is_written and before != port.writes:
            yield f"'{port.name}' writes state '{port.writes}' into '{origin.name}', which is said to be '{before}'"
        if method.when == "init":
            yield from _initial_problems(port, origin, contract)


def _port_problems(port: BundlePort, value: Value) -> Iterator[str]:
    declared = declared_type(value)
    if declared is None:
        return
    if dtype_name(declared.dtype) != port.dtype:
        yield f"is {dtype_name(declared.dtype)}, and said to be {port.dtype}"
    # symbols have other names in a bundle, which may have a number where its model would take more
    dims = declared.dims if declared.dims is not None else port.shape
    pairs = zip(dims, port.shape, strict=False)
    if len(dims) != len(port.shape) or any(isinstance(dim, int) and dim != said for dim, said in pairs):
        yield f"is {list(dims)}, and said to be {list(port.shape)}"


def _written_origin(value: Value) -> Value:
    """Return the value whose elements another one has, but for those that are written anew."""
    node = value.producer
    while node is not None and node.op_type in MOVING and (source := node.input(0)) is not None:
        value, node = source, source.producer
    return value


def _initial_problems(port: BundlePort, value: Value, contract: BundleContract) -> Iterator[str]:
    """Yield the states that begin with another number than the contract says."""
    node = value.producer
    if node is None or not node.is_op("ConstantOfShape", "Expand") or not port.writes:
        return
    state = contract.state(port.writes)
    if (state.initial is None) != node.is_op("Expand"):
        number = "one number" if state.initial is None else "several numbers"
        yield f"state '{state.name}' begins with {number}, unlike what is said"
        return
    if state.initial is None:
        return
    tensor = node.attr("value", onnx.TensorProto)
    array = np.zeros(1, np.float32) if tensor is None else inline_array(tensor)
    begins = np.zeros(0) if array is None else array.reshape(-1)
    if begins.size != 1 or begins[0] != np.asarray(state.initial).astype(begins.dtype):
        yield f"state '{state.name}' begins with {begins.tolist()}, and is said to begin with {state.initial:g}"
