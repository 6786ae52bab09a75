"""External data: where the bytes of a tensor lie in another file, and whether that file is allowed.

Source: onnx's docs/ExternalData.md.
"""

from __future__ import annotations

import os
from dataclasses import dataclass
from pathlib import Path, PurePosixPath, PureWindowsPath

from onnx import TensorProto

from graphkit.errors import ModelError
from graphkit.io.byte_source import source_of

__all__ = ["DataFile", "Extent", "check_bounds", "external_extent", "find_data_file", "refer_to_bytes"]


@dataclass(frozen=True, slots=True)
class DataFile:
    """A file that holds external data of a model.

    Attributes:
        location: As in the model, relative to the model's folder.
        size: Size in bytes, None if the file is missing.
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


def external_extent(tensor: TensorProto) -> Extent:
    """Return where the payload of an external tensor lies.

    Raises:
        ModelError: An entry is missing or is not a non-negative integer.
    """
    hint = "the reference is corrupt; export the model again"
    entries = {entry.key: entry.value for entry in tensor.external_data}
    numbers: dict[str, int | None] = {"offset": 0, "length": None}
    for key in numbers:
        if key in entries:
            if not entries[key].isascii() or not entries[key].isdigit() or len(entries[key]) > 19:
                problem = f"external data has the {key} '{entries[key][:40]}', not a number of bytes"
                raise ModelError(problem, tensor=tensor.name, hint=hint)
            numbers[key] = int(entries[key])
    location = entries.get("location")
    if not location or type(location) is not str:  # protobuf gives bytes where a string is not UTF-8
        where = f"at {location!r:.80}, which is not UTF-8" if location else "without a location"
        raise ModelError(f"external data {where}", tensor=tensor.name, hint=hint)
    return Extent(location, numbers["offset"] or 0, numbers["length"])


def refer_to_bytes(tensor: TensorProto, location: str, offset: int, length: int) -> None:
    """Let a tensor refer to bytes of a data file."""
    del tensor.external_data[:]
    for key, value in (("location", location), ("offset", str(offset)), ("length", str(length))):
        tensor.external_data.add(key=key, value=value)


def find_data_file(model: Path, location: str) -> DataFile:
    """Return the data file that a location names, inside the model's folder.

    Raises:
        ModelError: The location leaves the folder, or is not a regular file.
    """
    hint = "put the data file into the model's folder and name it by a relative path"
    if "\0" in location or PurePosixPath(location).is_absolute() or PureWindowsPath(location).anchor:
        raise ModelError(f"external data at {location!r:.80} is not a relative path", hint=hint)
    if Path(os.path.normpath(location)).parts[:1] == ("..",):
        raise ModelError(f"external data at {location!r:.80} lies outside the model's folder", hint=hint)
    path, size = source_of(model).beside(location)
    return DataFile(location, path, size)


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
