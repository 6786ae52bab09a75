"""Read the graph of a model file into memory, and leave the weights in the file.

Binary protobuf goes through `payloads.lighten_model`; the text formats that `onnx.load` knows (textproto, json,
onnxtxt) are read whole, so their size is limited.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path

import onnx
import onnx.serialization
from google.protobuf.message import DecodeError
from msgspec import Struct

from graphkit.errors import ModelError
from graphkit.io.byte_source import ByteSource, DataFile, shown_path, source_of
from graphkit.io.tensors import Held, check_tensors, walk_tensors
from graphkit.io.wire import TOO_DEEP, Buffer, Fault, Reference, lighten_model, validate_model_bytes

DEFAULT_THRESHOLD = 1024
MAX_TEXT_SIZE = 64 << 20
MAX_TEXT_DEPTH = 200
NO_MEMORY = "Arena alloc failed"  # protobuf's words for memory that ran out, which is no fault of the file
NO_BRACKETS = bytes(set(range(256)) - set(b"[]{}()<>"))

# Files that are often passed by mistake: offset and bytes that identify them, their kind, and a hint.
LOOKALIKES: tuple[tuple[int, bytes, str, str], ...] = (
    (0, b"version https://git-lfs", "a Git LFS pointer", "fetch the real file with `git lfs pull`"),
    (0, b"PK\x03\x04", "a zip archive (a PyTorch checkpoint?)", "unpack it, or export the model to ONNX first"),
    (0, b"\x1f\x8b", "a gzip archive", "unpack it with gunzip first"),
    (0, b"\x89HDF", "an HDF5 file", "convert it to ONNX first (tf2onnx)"),
    (4, b"TFL3", "a TensorFlow Lite model", "convert it to ONNX first (tf2onnx --tflite)"),
    (4, b"ORTM", "an ORT-format model", "use the .onnx file that it was made from"),
    (0, b"GGUF", "a GGUF model", "export the original model to ONNX"),
    (8, b'{"', "a safetensors file", "export the model to ONNX first"),
)
PAGES = (b"<!doctype html", b"<html")
CONFIGURATIONS = ("generation_config.json", "config.json", "genai_config.json")
TOKENIZER: tuple[str, ...] = (
    "tokenizer.json", "tokenizer_config.json", "special_tokens_map.json", "added_tokens.json", "vocab.json",
    "merges.txt", "vocab.txt", "tokenizer.model", "spiece.model", "source.spm", "target.spm", "chat_template.jinja",
)  # fmt: skip


class Source(Struct, frozen=True):
    """A model as read from a file or from memory."""

    proto: onnx.ModelProto  # the model; large tensors are external-data references
    # the file, or None for a model that came from memory; of a file on a server the path that names it
    path: Path | None
    size: int  # bytes of the file, or of the serialized model
    references: Mapping[int, Reference]  # the payloads that were left in the file, by offset
    data_files: tuple[DataFile, ...]  # the files that external tensors name, including missing ones
    origin: ByteSource | None = None  # what the file's bytes are read from, None for a model that came from memory
    tensors: Sequence[Held] = ()  # those of the model, empty where they are to be found again


def read_model_file(path: Path, threshold: int = DEFAULT_THRESHOLD) -> Source:
    """Read a model file without its weights.

    Args:
        path: A `.onnx` file, or one of the text formats of `onnx.load`, chosen by the suffix.
        threshold: Tensors of at least this many bytes stay in the file.

    Raises:
        ModelError: The file is missing, broken or hostile, or is not a model.
    """
    origin = source_of(path)
    if not (size := origin.size):
        raise ModelError("is empty", file=shown_path(path), hint="fetch or export it again")
    try:
        path.name.encode()
    except UnicodeEncodeError as error:
        raise ModelError("has a name that is not UTF-8", file=shown_path(path), hint="rename the file") from error
    kind = onnx.serialization.registry.get_format_from_file_extension(path.suffix)
    references: Mapping[int, Reference] = {}
    if kind in (None, "protobuf"):
        proto, references = _read_binary(origin, threshold)
    else:
        proto = _read_text(origin, size, str(kind))
    if not proto.HasField("graph"):
        hint = "the file is not an ONNX model, or only part of one"
        raise ModelError("no graph in it", file=shown_path(path), hint=hint)
    held = [*walk_tensors(proto)]
    data_files = check_tensors(held, path, references)
    origin.read()
    return Source(proto, path, size, references, tuple(data_files), origin=origin, tensors=held)


def _read_binary(source: ByteSource, threshold: int) -> tuple[onnx.ModelProto, Mapping[int, Reference]]:
    data, file = source.buffer(), shown_path(source.path)
    for offset, magic, what, hint in LOOKALIKES:
        if data[offset : offset + len(magic)] == magic:
            raise ModelError(f"is {what}, not an ONNX model", file=file, hint=hint)
    if data[:64].lstrip().lower().startswith(PAGES):
        hint = "the download went wrong; fetch the file again"
        raise ModelError("is an HTML page, not an ONNX model", file=file, hint=hint)
    try:
        light, references = lighten_model(data, source.path.name, threshold)
        proto = _parse_light_bytes(light, data)
    except Fault as fault:
        hint = "the file is truncated, corrupted or not an ONNX model; fetch or export it again"
        if str(fault) == TOO_DEEP:
            hint = "export it with fewer If and Loop nodes in each other, or again where the file is corrupted"
        raise ModelError(str(fault), file=file, offset=fault.offset, hint=hint) from fault
    return proto, references


def _parse_light_bytes(light: bytes, data: Buffer) -> onnx.ModelProto:
    """Parse the light bytes; where that fails or leaves something unknown, walk all of `data` for the fault."""
    try:
        proto = onnx.ModelProto.FromString(light)
    except DecodeError as error:
        if NO_MEMORY in str(error):
            raise MemoryError(str(error)) from error
        validate_model_bytes(data)
        raise Fault(0, f"protobuf cannot parse it ({error})") from error
    size = proto.ByteSize()
    proto.DiscardUnknownFields()
    if proto.ByteSize() == size:
        return proto
    validate_model_bytes(data)
    return onnx.ModelProto.FromString(light)


def _read_text(source: ByteSource, size: int, kind: str) -> onnx.ModelProto:
    file = shown_path(source.path)
    if size > MAX_TEXT_SIZE:
        problem = f"{size:,} bytes of {kind}; text is read up to {MAX_TEXT_SIZE:,}"
        raise ModelError(problem, file=file, hint="convert it to binary .onnx with onnx.load and onnx.save")
    hint = f"it does not read as {kind}; the suffix decides the format"
    content = source.buffer()[:]
    # brackets outside of strings and comments; an escaped quote does not end a string
    plain = re.sub(rb"\\[^\n]", b"", content)
    plain = re.sub(rb"""#[^\n]*|"[^"]*"?|'[^']*'?|=>""", b"", plain)
    depth = 0
    for bracket in plain.translate(None, NO_BRACKETS):
        depth = depth + 1 if bracket in b"{[(<" else max(depth - 1, 0)
        if depth > MAX_TEXT_DEPTH:  # for a recursive parser
            raise ModelError(f"brackets are nested more than {MAX_TEXT_DEPTH} deep", file=file, hint=hint)
    try:
        return onnx.load_model_from_string(content, format=kind)
    except Exception as error:  # each format's parser raises errors of its own
        reason = " ".join(str(error).split())[:200]
        raise ModelError(f"cannot be parsed: {reason}", file=file, hint=hint) from error


def find_beside(folder: Path, names: Iterable[str] = (*CONFIGURATIONS, *TOKENIZER)) -> dict[str, Path]:
    """Return the files of these names in the folder of an export; of one that is `onnx`, also in its parent."""
    places = (folder, folder.parent) if folder.name == "onnx" else (folder,)
    found = {name: [place / name for place in places if (place / name).is_file()] for name in names}
    return {name: files[0] for name, files in found.items() if files}
