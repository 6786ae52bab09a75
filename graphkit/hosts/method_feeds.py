"""The checks of hosts before anything runs: files and proof of a folder, a bundle and its models, feeds of a method."""

from __future__ import annotations

import warnings
from collections.abc import Iterator, Mapping
from functools import cache
from pathlib import Path

import numpy as np
import numpy.typing as npt
import onnx
from msgspec import Struct

from graphkit.contract.bundle_contract import BundleContract, BundleMethod, BundlePort, LegalSize
from graphkit.contract.contract_files import check_files
from graphkit.contract.host_contract import AnyContract
from graphkit.dtypes import dtype_name, inline_array
from graphkit.errors import ModelError, UnprovenWarning, UsageError
from graphkit.graph.declared_types import declared_type
from graphkit.graph.view import Value, unwrap_value
from graphkit.model import Model, load

Tokens = int | npt.ArrayLike
Inputs = Mapping[str, npt.ArrayLike]
MOVING = ("TensorScatter", "ScatterND", "Identity", "Gather")  # what gives its first input, some elements changed


class Feeds(Struct, frozen=True):
    """The feeds of a caller."""

    arrays: Mapping[str, np.ndarray]
    sizes: Mapping[str, int]  # the size that each name in the shapes of the inputs stands for
    rows: int | None  # how many rows, None where no input has any


def join_inputs(*given: Inputs) -> dict[str, npt.ArrayLike]:
    """Return all inputs by name. Raises UsageError where one is given twice."""
    found: dict[str, npt.ArrayLike] = {}
    for name, array in (pair for inputs in given for pair in inputs.items()):
        if name in found:
            raise UsageError(f"'{name}' is given twice - give it once")
        found[name] = array
    return found


def told_apart(
    method: BundleMethod,
    tokens: Tokens | Inputs | None,
    mask: npt.ArrayLike | None,
    inputs: Inputs | None,
    named: Inputs,
) -> tuple[Tokens | None, npt.ArrayLike | None, dict[str, npt.ArrayLike]]:
    """Return the tokens, their mask and the other inputs by name, however a caller has named them.

    An input of the model that is called `tokens` or `mask` comes before the decoder's. Inputs by name may stand in the
    place of the tokens, too, or come by keyword; UsageError where one is given twice.
    """
    given: dict[str, npt.ArrayLike | None] = {"tokens": None, "mask": mask}
    if isinstance(tokens, Mapping):
        found = join_inputs(tokens, inputs or {}, named)
    else:
        found, given["tokens"] = join_inputs(inputs or {}, named), tokens
    users = {port.name for port in method.inputs if port.kind == "user"}
    kinds = {port.kind: port.name for port in method.inputs}
    if given["mask"] is not None and "mask" in users - set(found) and "mask" not in kinds:
        found["mask"] = given["mask"]
        given["mask"] = None
    for kind in given:
        for name in {kind, kinds.get(kind, kind)} - users:
            if name in found and given[kind] is not None:
                raise UsageError(f"the {kind} are given twice, by '{name}' too - give them once")
            given[kind] = found.pop(name, given[kind])
    return given["tokens"], given["mask"], found


def checked_feeds(
    method: BundleMethod,
    most: Mapping[str, int],
    tokens: Tokens | None,
    mask: npt.ArrayLike | None,
    inputs: Mapping[str, npt.ArrayLike],
    kept: int = 0,
    legal: Mapping[str, LegalSize] = {},
) -> Feeds:
    """Return the feeds of a method, a mask that is left out as ones; UsageError for what is missing or too large.

    `most` says the largest that each size may be, and `legal` which sizes are legal where not all up to that are. Where
    a method can choose, it gives the logits of `kept` of the last tokens; 0 for all of them.
    """
    users = {port.name for port in method.sources.get("user", ())}
    if odd := sorted(set(inputs) - users):
        takes = ", ".join(sorted(users)) or "no other input than tokens"
        raise UsageError(f"'{method.name}' has no input '{odd[0]}': it takes {takes}")
    for kind, said in (("tokens", tokens), ("mask", mask)):
        if said is not None and kind not in method.sources:
            raise UsageError(f"'{method.name}' takes no {kind}")
    sizes: dict[str, int] = {}
    feeds: dict[str, np.ndarray] = {}
    for kind, port in method.fed:
        given: npt.ArrayLike | None
        if kind == "tokens":
            given = None if tokens is None else as_rows(tokens)
        else:
            given = mask if kind == "mask" else inputs.get(port.name)
        if given is None:
            if "mask" not in port.name or any(isinstance(dim, str) and dim not in sizes for dim in port.shape):
                raise UsageError(f"'{method.name}' needs '{port.name}', {port.dtype}{list(port.shape)}")
            given = np.ones([dim if isinstance(dim, int) else sizes[dim] for dim in port.shape], port.dtype)
        try:
            array = np.asarray(given)
            if array.dtype.kind != np.dtype(port.dtype).kind and array.dtype.kind not in "biu":
                raise ValueError(f"it is {array.dtype}")
            array = feeds[port.name] = np.asarray(array, port.dtype, order="C")  # which leaves a scalar a scalar
        except (TypeError, ValueError) as error:
            raise UsageError(f"'{port.name}' is no {port.dtype}{list(port.shape)}: {error}") from error
        wanted = tuple(sizes.get(dim, -1) if isinstance(dim, str) else dim for dim in port.shape)
        if len(wanted) != array.ndim or any(w not in (-1, size) for w, size in zip(wanted, array.shape, strict=True)):
            known = [dim if size == -1 else size for dim, size in zip(port.shape, wanted, strict=True)]
            raise UsageError(f"'{port.name}' of {method.name} is {list(array.shape)}, and must be {known}")
        for dim, size in zip(port.shape, array.shape, strict=True):
            if isinstance(dim, str):
                largest = most.get(dim)
                if size < 1 or (largest is not None and size > largest):
                    raise UsageError(f"'{port.name}' has {size} for {dim}: the bundle takes 1 to {largest}")
                sizes[dim] = size
        for dim in port.shape:
            rule = legal.get(dim) if isinstance(dim, str) else None
            if rule is not None and not rule.allows(sizes[str(dim)]):
                why = f"at which the model does not run: {dim} is {rule.words}"
                raise UsageError(f"'{port.name}' has {sizes[str(dim)]} for {dim}, {why}")
    counted = [*method.sources.get("tokens", ()), *(port for _, port in method.fed)]
    rows = next((len(feeds[port.name]) for port in counted if feeds[port.name].ndim), None)
    for port in method.sources.get("kept", ()):
        feeds[port.name] = np.array([kept], np.int64)
        sizes[port.name] = kept or feeds[method.sources["tokens"][-1].name].shape[1]
    return Feeds(feeds, sizes, sizes.get("batch", rows))


def of_source(method: BundleMethod, ids: npt.ArrayLike, mask: npt.ArrayLike | None) -> dict[str, np.ndarray]:
    """Return ids and their mask by the names of the inputs that take them; UsageError where none takes one of them.

    Nothing where only tokens are taken: they are rows of embeddings, beside which there are positions.
    """
    takes_rows = any(len(port.shape) == 3 for port in method.sources.get("tokens", ()))
    users = [port.name for port in method.inputs if port.kind == "user" and not takes_rows]
    found: dict[str, np.ndarray] = {}
    for array, is_mask in ((ids, False), (mask, True)) if users else ():
        name = next((name for name in users if ("mask" in name) == is_mask), "")
        if not (name or is_mask) and "tokens" in method.sources:
            continue  # they are the prompt's
        if array is not None and not name:
            raise UsageError(f"no input of the bundle takes {'a mask' if is_mask else 'ids'}")
        if array is not None:
            found[name] = np.atleast_2d(as_array(name, array))
    return found


def as_rows(tokens: Tokens) -> np.ndarray:
    """Return tokens as [batch, tokens]."""
    array = as_array("tokens", tokens)
    return array.reshape(-1, 1) if array.ndim < 2 else array


def as_array(what: str, given: npt.ArrayLike) -> np.ndarray:
    """Return a caller's value as an array. Raises UsageError where it is none."""
    try:
        return np.asarray(given)
    except ValueError as error:
        raise UsageError(f"'{what}' is no array: {error}") from error


def check_folder(folder: Path, contract: AnyContract, record: str, *, checksums: bool = False) -> None:
    """Check the files that a contract records, and warn, once for each folder, where it is not proven.

    `record` is the file of the contract. With `checksums` all files are read to compare theirs, instead of sizes alone.
    Raises ModelError where a file is missing, or another one than was recorded.
    """
    check_files(folder, contract.files, record, checksums=checksums)
    if not contract.proof.passed:
        folder, sentence = folder.resolve(), contract.proof.sentence()
        warn_once(f"{folder}: {sentence} - `graphkit verify EXPORT {folder} --record` proves it", UnprovenWarning, 4)


@cache
def warn_once(text: str, kind: type[Warning], level: int) -> None:
    """Warn those who call a host, so many calls above, once with one text."""
    warnings.warn(text, kind, stacklevel=level)


def check_bundle(folder: Path, contract: BundleContract) -> None:
    """Check that the methods of a bundle are those of its models: names, dtypes, dims, and the state that each moves.

    Raises ModelError where a model is missing or broken, or `bundle.json` says something else of it.
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
        output = next(value for value in model.graph.outputs if value.name == port.name)
        origin = unwrap_value(output, MOVING)  # whose elements it has, but for those that are written anew
        before = read.get(origin.name, "")
        is_written = bool(port.writes) and contract.state(port.writes).axis is not None
        if before and is_written and before != port.writes:
            yield f"'{port.name}' writes state '{port.writes}' into '{origin.name}', which is said to be '{before}'"
        if method.when == "init":
            yield from _initial_problems(port, origin, contract)


def _port_problems(port: BundlePort, value: Value) -> Iterator[str]:
    if (declared := declared_type(value)) is None:
        return
    if dtype_name(declared.dtype) != port.dtype:
        yield f"is {dtype_name(declared.dtype)}, and said to be {port.dtype}"
    # symbols have other names in a bundle, which may have a number where its model would take more
    dims = declared.dims if declared.dims is not None else port.shape
    pairs = zip(dims, port.shape, strict=False)
    if len(dims) != len(port.shape) or any(isinstance(dim, int) and dim != said for dim, said in pairs):
        yield f"is {list(dims)}, and said to be {list(port.shape)}"


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
