"""TensorProtos of a model: find them all, check what they claim, and read their bytes.

A tensor's payload is inline, or lies in a file: at a place of the model file itself (left there by
`wire.lighten`) or in a data file beside it. Nothing here loads a payload that nobody asked for.

Source: onnx/onnx.proto (TensorProto, external data), onnx's docs/ExternalData.md.
"""

from __future__ import annotations

import math
import mmap
import os
import stat
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path, PurePosixPath, PureWindowsPath

import onnx
from onnx import TensorProto

from graphkit.errors import ModelError
from graphkit.io.wire import Reference, encode_bytes

__all__ = [
    "DataFile",
    "Extent",
    "check_tensors",
    "element_count",
    "extent",
    "map_file",
    "payload_size",
    "restore",
    "walk_tensors",
]

# Bits of one element; STRING and dtypes newer than this table have no fixed size.
BITS: Mapping[int, int] = {
    TensorProto.FLOAT: 32,
    TensorProto.UINT8: 8,
    TensorProto.INT8: 8,
    TensorProto.UINT16: 16,
    TensorProto.INT16: 16,
    TensorProto.INT32: 32,
    TensorProto.INT64: 64,
    TensorProto.BOOL: 8,
    TensorProto.FLOAT16: 16,
    TensorProto.DOUBLE: 64,
    TensorProto.UINT32: 32,
    TensorProto.UINT64: 64,
    TensorProto.COMPLEX64: 64,
    TensorProto.COMPLEX128: 128,
    TensorProto.BFLOAT16: 16,
    **dict.fromkeys((17, 18, 19, 20, 24), 8),  # FLOAT8E4M3FN, E4M3FNUZ, E5M2, E5M2FNUZ, E8M0
    **dict.fromkeys((21, 22, 23), 4),  # UINT4, INT4, FLOAT4E2M1
    **dict.fromkeys((25, 26), 2),  # UINT2, INT2
}
TYPED_FIELDS = ("float_data", "int32_data", "int64_data", "double_data", "uint64_data", "string_data")
MAX_ELEMENTS = (1 << 63) - 1


@dataclass(frozen=True, slots=True)
class DataFile:
    """A file that holds external data of a model.

    Attributes:
        location: As the model writes it, relative to the model's folder.
        path: Where that is.
        size: Bytes, or None where the file is missing.
    """

    location: str
    path: Path
    size: int | None


@dataclass(frozen=True, slots=True)
class Extent:
    """The bytes location[offset : offset + length] of a data file; length None means up to its end."""

    location: str
    offset: int
    length: int | None


def walk_tensors(model: onnx.ModelProto) -> Iterator[tuple[TensorProto, str | None]]:
    """Yield every TensorProto of a model, at every depth, with the name of the node that holds it, if one does."""
    yield from _graph_tensors(model.graph)
    for training in model.training_info:
        yield from _graph_tensors(training.initialization)
        yield from _graph_tensors(training.algorithm)
    for function in model.functions:
        for node in function.node:
            yield from _node_tensors(node)
        for attribute in function.attribute_proto:
            yield from _attribute_tensors(attribute, function.name)


def _graph_tensors(graph: onnx.GraphProto) -> Iterator[tuple[TensorProto, str | None]]:
    for tensor in graph.initializer:
        yield tensor, None
    for sparse in graph.sparse_initializer:
        yield sparse.values, None
        yield sparse.indices, None
    for node in graph.node:
        yield from _node_tensors(node)


def _node_tensors(node: onnx.NodeProto) -> Iterator[tuple[TensorProto, str | None]]:
    for attribute in node.attribute:
        if attribute.type in (4, 5, 9, 10, 11, 12) or not attribute.type:  # TENSOR(S), GRAPH(S), SPARSE_TENSOR(S)
            yield from _attribute_tensors(attribute, node.name or node.op_type)


def _attribute_tensors(attribute: onnx.AttributeProto, node: str) -> Iterator[tuple[TensorProto, str | None]]:
    if attribute.HasField("t"):
        yield attribute.t, node
    for tensor in attribute.tensors:
        yield tensor, node
    sparse = [attribute.sparse_tensor] if attribute.HasField("sparse_tensor") else []
    for sparse_tensor in [*sparse, *attribute.sparse_tensors]:
        yield sparse_tensor.values, node
        yield sparse_tensor.indices, node
    if attribute.HasField("g"):
        yield from _graph_tensors(attribute.g)
    for graph in attribute.graphs:
        yield from _graph_tensors(graph)


def element_count(tensor: TensorProto) -> int:
    """Return the number of elements that the dims of a tensor promise."""
    return math.prod(tensor.dims)


def payload_size(tensor: TensorProto) -> int | None:
    """Return the bytes that dtype and dims promise, or None where a dtype has no fixed size (strings)."""
    bits = BITS.get(tensor.data_type)
    return None if bits is None else (element_count(tensor) * bits + 7) // 8


def extent(tensor: TensorProto) -> Extent:
    """Return where the payload of an external tensor lies.

    Raises:
        ModelError: An entry is missing or is not a non-negative integer.
    """
    entries = {entry.key: entry.value for entry in tensor.external_data}
    numbers: dict[str, int | None] = {"offset": 0, "length": None}
    for key in numbers:
        if key in entries:
            if not entries[key].isascii() or not entries[key].isdigit() or len(entries[key]) > 19:
                raise ModelError(
                    f"external data has the {key} '{entries[key][:40]}', not a number of bytes",
                    tensor=tensor.name,
                    hint="the reference is corrupt; export the model again",
                )
            numbers[key] = int(entries[key])
    if not entries.get("location"):
        raise ModelError(
            "external data without a location",
            tensor=tensor.name,
            hint="the reference is incomplete; export the model again",
        )
    return Extent(entries["location"], numbers["offset"] or 0, numbers["length"])


def check_tensors(model: onnx.ModelProto, file: Path | None, references: Mapping[int, Reference]) -> list[DataFile]:
    """Check what every tensor claims, and find the model's data files.

    Args:
        model: A model read by `wire.lighten`, or any other.
        file: Where it was read; external data lies beside it.
        references: Payloads that were left in `file`.

    Returns:
        The data files that external tensors name, the missing ones too, in order of first use.

    Raises:
        ModelError: Dims are negative or overflow, a payload has another size than dtype and dims promise,
            or external data lies outside the model's folder or past the end of its file.
    """
    data_files: dict[str, DataFile] = {}
    for tensor, node in walk_tensors(model):
        try:
            _check_tensor(tensor, file, references, data_files)
        except ModelError as error:
            raise ModelError(
                error.problem,
                file=str(file) if file else None,
                node=node,
                tensor=None if node else str(tensor.name),
                hint=error.hint,
            ) from error
    return list(data_files.values())


def _check_tensor(
    tensor: TensorProto, file: Path | None, references: Mapping[int, Reference], data_files: dict[str, DataFile]
) -> None:
    dims = tensor.dims
    if dims and (min(dims) < 0 or (0 not in dims and element_count(tensor) > MAX_ELEMENTS)):
        raise ModelError(
            f"dims {list(dims)[:8]} are {'negative' if min(dims) < 0 else 'more than 2^63 elements'}",
            hint="the tensor is corrupt; export the model again",
        )
    promised = payload_size(tensor)
    if tensor.data_location == TensorProto.EXTERNAL:
        place = extent(tensor)
        if file is not None and not (place.location == file.name and place.offset in references):
            if place.location not in data_files:
                data_files[place.location] = find_data_file(file.parent, place.location)
            check_bounds(place, data_files[place.location], promised)
        size = place.length
    else:
        size = len(tensor.raw_data) or None
    if promised is not None and size is not None and size != promised:
        raise ModelError(
            f"{size:,} bytes of data, but dtype and dims {list(dims)[:8]} need {promised:,}",
            hint="the file was cut or edited; export the model again",
        )


def find_data_file(folder: Path, location: str) -> DataFile:
    """Return the data file that a location names, inside the model's folder.

    Raises:
        ModelError: The location leaves the folder, or is not a regular file.
    """
    hint = "put the data file into the model's folder and name it by a relative path"
    if "\0" in location or PurePosixPath(location).is_absolute() or PureWindowsPath(location).anchor:
        raise ModelError(f"external data at '{location!r:.80}' is not a relative path", hint=hint)
    path = folder / location
    inside = os.path.realpath(folder)
    if Path(os.path.normpath(location)).parts[:1] == ("..",):
        raise ModelError(f"external data at '{location:.80}' lies outside the model's folder", hint=hint)
    if os.path.commonpath([inside, os.path.realpath(path)]) != inside:
        raise ModelError(f"external data at '{location:.80}' is a link that leads out of the model's folder", hint=hint)
    try:
        status = os.stat(path)
    except FileNotFoundError:
        return DataFile(location, path, None)
    except OSError as error:
        raise ModelError(f"external data at '{location:.80}' cannot be opened: {error.strerror}", hint=hint) from error
    if not stat.S_ISREG(status.st_mode):
        raise ModelError(f"external data at '{location:.80}' is not a regular file", hint=hint)
    return DataFile(location, path, status.st_size)


def check_bounds(place: Extent, data_file: DataFile, promised: int | None) -> None:
    """Check that an extent lies within its data file; a missing file has no bounds.

    Raises:
        ModelError: It ends past the end of the file.
    """
    if data_file.size is None:
        return
    end = place.offset + (place.length if place.length is not None else promised or 0)
    if end > data_file.size:
        raise ModelError(
            f"external data ends at byte {end:,} of '{place.location}', which has {data_file.size:,}",
            hint="the data file is truncated or belongs to another model; fetch both again",
        )


def map_file(path: Path) -> mmap.mmap:
    """Return a read-only memory map of a file that is not empty."""
    with path.open("rb") as file:
        return mmap.mmap(file.fileno(), 0, access=mmap.ACCESS_READ)


def restore(model: onnx.ModelProto, file: Path, references: Mapping[int, Reference]) -> None:
    """Put the payloads that were left in `file` back into `model`, in place.

    Afterwards the model equals the one in the file, field by field.
    """
    data = map_file(file) if references else b""
    for tensor, _ in walk_tensors(model):
        if tensor.data_location != TensorProto.EXTERNAL:
            continue
        place = extent(tensor)
        reference = references.get(place.offset)
        if place.location != file.name or reference is None:
            continue
        del tensor.external_data[:]
        tensor.ClearField("data_location")
        if reference.location_was_set:
            tensor.data_location = TensorProto.DEFAULT
        payload = data[reference.offset : reference.offset + reference.length]
        if reference.field == 9:
            tensor.raw_data = payload
        else:
            tensor.MergeFromString(encode_bytes(reference.field, payload))
