"""Write models: weights copied once, shared, left in place or inlined; all files or none.

Everything is written to temporary files first; these are renamed one after the other at the end, data before models.

Weights go from file to file; they never pass through a protobuf except where they are inlined.

Source: onnx's docs/ExternalData.md (location, offset, length; offsets aligned to pages for mapping).
"""

from __future__ import annotations

import contextlib
import os
import tempfile
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Literal

import onnx

from graphkit.errors import OutputError
from graphkit.io import tensors
from graphkit.io.external import map_file
from graphkit.io.wire import MAX_PROTO, inflate
from graphkit.model import Model

__all__ = ["Placement", "save_models"]

Placement = Literal["shared", "in-place", "inline"]

ALIGNMENT = 4096
CHUNK = 4 << 20
SAMPLE = 4096  # bytes at either end that tell most different tensors of one size apart


@dataclass(frozen=True, slots=True)
class Piece:
    """Bytes of a source file."""

    path: Path
    offset: int
    length: int


@dataclass
class DataPlan:
    """A data file to write: each distinct piece once, aligned."""

    pieces: list[tuple[int, Piece]] = field(default_factory=list)
    size: int = 0
    _placed: dict[Piece, int] = field(default_factory=dict)
    _samples: dict[tuple[int, bytes, bytes], list[Piece]] = field(default_factory=dict)

    def place(self, piece: Piece, data: memoryview) -> int:
        """Return the offset of a piece in the data file, that of an equal one where there is one."""
        if piece not in self._placed:
            sample = (piece.length, bytes(data[:SAMPLE]), bytes(data[-SAMPLE:]))
            twin = next((other for other in self._samples.get(sample, ()) if _equal(other, data)), None)
            if twin is not None:
                self._placed[piece] = self._placed[twin]
            else:
                offset = -(-self.size // ALIGNMENT) * ALIGNMENT
                self.pieces.append((offset, piece))
                self.size = offset + piece.length
                self._placed[piece] = offset
                self._samples.setdefault(sample, []).append(piece)
        return self._placed[piece]


def _equal(piece: Piece, data: memoryview) -> bool:
    other = memoryview(map_file(piece.path))[piece.offset : piece.offset + piece.length]
    return all(bytes(other[at : at + CHUNK]) == bytes(data[at : at + CHUNK]) for at in range(0, len(data), CHUNK))


def save_models(
    models: Mapping[Path, Model],
    *,
    weights: Placement = "shared",
    data_name: str | None = None,
    overwrite: bool = False,
) -> tuple[Path, ...]:
    """Write models, all or none.

    Args:
        models: What to write where; all in one folder.
        weights: `shared`: one data file beside the models, each distinct tensor once. `in-place`: no weight is
            copied, the models refer to the files that they were read from, which must be in the same folder.
            `inline`: in the models themselves, up to 2 GB each.
        data_name: Name of the data file; default: the first model's, with `_data` behind it.
        overwrite: Replace files that exist; inputs are never replaced.

    Returns:
        The files written, data file included.

    Raises:
        OutputError: A file exists or cannot be written, or the placement is not possible; nothing is left behind.
    """
    folder = next(iter(models)).parent
    data_path = folder / (data_name or f"{next(iter(models)).name}_data")
    plan = DataPlan()
    _check_targets([*models, *([data_path] if weights == "shared" else [])], models.values(), overwrite)
    contents = {path: _content(model, folder, weights, plan, data_path.name) for path, model in models.items()}
    with _temporaries() as make:
        renames: list[tuple[Path, Path]] = []
        if plan.pieces:
            renames.append((make(data_path), data_path))
            _write_data(renames[0][0], plan)
        for path, pieces in contents.items():
            renames.append((make(path), path))
            with renames[-1][0].open("wb") as file:
                file.writelines(pieces)
        for temporary, path in renames:
            temporary.replace(path)
    return tuple(path for _, path in renames)


def _check_targets(targets: Sequence[Path], models: Iterable[Model], overwrite: bool) -> None:
    sources = [path for model in models for path in model.files if path.exists()]
    for target in targets:
        if not target.parent.is_dir():
            raise OutputError(f"{target.parent}: is not a folder - create it, or name another with -o")
        if not target.exists():
            continue
        if any(target.samefile(source) for source in sources):
            raise OutputError(f"{target}: is an input, which is never overwritten - name another folder with -o")
        if not overwrite:
            raise OutputError(f"{target}: exists - name another folder with -o, or replace it with --overwrite")


def _content(
    model: Model, folder: Path, weights: Placement, plan: DataPlan, data_name: str
) -> Sequence[bytes | memoryview]:
    """Return what to write for a model, in pieces, with its weights where they are wanted."""
    proto = onnx.ModelProto()
    proto.CopyFrom(model.proto)
    external = [t for t, _ in tensors.walk_tensors(proto) if t.data_location == onnx.TensorProto.EXTERNAL]
    if weights == "in-place":
        _check_in_place(model, folder, external)
    elif weights == "inline":
        _check_inline(model, proto, external)
        return _inlined(model, proto, external)
    else:
        _share(model, external, plan, data_name)
    return [proto.SerializeToString()]


def _share(model: Model, external: Sequence[onnx.TensorProto], plan: DataPlan, data_name: str) -> None:
    """Let tensors refer to their places in a data file."""
    for tensor in external:
        path, offset, length = model.piece(tensor)
        place = plan.place(Piece(path, offset, length), model.payload(tensor))
        del tensor.external_data[:]
        for key, value in (("location", data_name), ("offset", str(place)), ("length", str(length))):
            tensor.external_data.add(key=key, value=value)


def _inlined(
    model: Model, proto: onnx.ModelProto, external: Sequence[onnx.TensorProto]
) -> Sequence[bytes | memoryview]:
    """Return a model with its weights inside, which stay in their files until they are written."""
    nonce = os.urandom(16)
    payloads: dict[bytes, memoryview] = {}
    for number, tensor in enumerate(external):
        mark = nonce + number.to_bytes(8, "little")
        payloads[mark] = model.payload(tensor)
        del tensor.external_data[:]
        tensor.ClearField("data_location")
        tensor.raw_data = mark
    return inflate(proto.SerializeToString(), payloads)


def _check_in_place(model: Model, folder: Path, external: Sequence[onnx.TensorProto]) -> None:
    if external and model.path is not None and folder.resolve() != model.path.parent.resolve():
        raise OutputError(
            f"{folder}: is not the folder of {model.path}, and data in place can only be referred to from there - "
            "write there, or use --weights shared"
        )


def _check_inline(model: Model, proto: onnx.ModelProto, external: Sequence[onnx.TensorProto]) -> None:
    size = proto.ByteSize() + sum(model.piece(tensor)[2] for tensor in external)
    if size > MAX_PROTO:
        raise OutputError(
            f"{model.label}: {size:,} bytes do not fit into one protobuf file of at most {MAX_PROTO:,} - "
            "use --weights shared"
        )


@contextlib.contextmanager
def _temporaries() -> Iterator[Callable[[Path], Path]]:
    """Give a function that makes a temporary file beside a path; remove what was not renamed."""
    made: list[Path] = []

    def make(path: Path) -> Path:
        descriptor, name = tempfile.mkstemp(dir=path.parent, prefix=f".{path.name}.")
        os.close(descriptor)
        umask = os.umask(0)
        os.umask(umask)
        Path(name).chmod(0o666 & ~umask)
        made.append(Path(name))
        return made[-1]

    try:
        yield make
    except OSError as error:
        raise OutputError(
            f"{error.filename or 'output'}: cannot be written: {error.strerror} - nothing was left "
            "behind; check the folder and the space on its disk"
        ) from error
    finally:
        for path in made:
            path.unlink(missing_ok=True)


def _write_data(path: Path, plan: DataPlan) -> None:
    with path.open("r+b") as target:
        for offset, piece in plan.pieces:
            with piece.path.open("rb") as source:
                _copy(source.fileno(), piece, target.fileno(), offset)
        target.truncate(plan.size)


def _copy(source: int, piece: Piece, target: int, offset: int) -> None:
    """Copy bytes from file to file, in the kernel where it can."""
    done = 0
    if hasattr(os, "copy_file_range"):
        try:
            while done < piece.length:
                count = os.copy_file_range(source, target, piece.length - done, piece.offset + done, offset + done)
                if not count:
                    break
                done += count
        except OSError as error:
            if error.errno not in (1, 18, 22, 38, 95):  # EPERM, EXDEV, EINVAL, ENOSYS, EOPNOTSUPP: not here
                raise
    while done < piece.length:
        chunk = os.pread(source, min(CHUNK, piece.length - done), piece.offset + done)
        if not chunk:
            raise OSError(5, "the source ends before its tensors do", None)
        os.pwrite(target, chunk, offset + done)
        done += len(chunk)
