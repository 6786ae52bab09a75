"""Write models, with weights that are shared, left in place or inlined: all files or none.

Everything is written to a hidden folder first, and put in place at the end: see `graphkit.io.transaction`. Weights are
copied from file to file, and never pass through a protobuf: see `graphkit.save`.

Source: onnx's docs/ExternalData.md (location, offset, length; offsets aligned to pages for mapping).
"""

from __future__ import annotations

import contextlib
import copy
import os
import shutil
from collections.abc import Callable, Iterable, Mapping, Sequence
from functools import partial
from io import FileIO
from pathlib import Path
from typing import BinaryIO, Literal, NamedTuple, Protocol

import onnx
from msgspec import Struct, field

from graphkit.errors import ModelError, OutputError
from graphkit.io import tensors
from graphkit.io.byte_source import external_extent, name_as_staged, refer_to_bytes, shown_path
from graphkit.io.read import Source, read_model_file
from graphkit.io.transaction import recover_unfinished, write_all_or_none
from graphkit.io.wire import MAX_PROTO, inflate_payloads

# Copy bytes of source files into new files: data files with each distinct tensor once, and models with weights.
#
# Source files are read, not mapped, so that a file that has shrunk since its model was read raises an error, and does
# not end the process.

ALIGNMENT = 4096
CHUNK = 4 << 20
SAMPLE = 4096  # bytes at either end that tell most different tensors of one size apart


class Piece(NamedTuple):
    """Bytes of a source file."""

    path: Path
    offset: int
    length: int

    def part(self, start: int, length: int) -> Piece:
        """Return at most so many of its bytes."""
        return Piece(self.path, self.offset + start, min(length, self.length - start))


class Files:
    """Source files, each opened once."""

    def __init__(self) -> None:
        self._files: dict[Path, BinaryIO] = {}

    def __enter__(self) -> Files:
        return self

    def __exit__(self, *_: object) -> None:
        for file in self._files.values():
            file.close()

    def open(self, path: Path) -> BinaryIO:
        """Return an open file. Raises ModelError where it cannot be opened."""
        if path not in self._files:
            try:
                self._files[path] = path.open("rb", buffering=0)
            except OSError as error:
                raise _unreadable_error(path, error) from error
        return self._files[path]

    def read(self, piece: Piece) -> bytes:
        """Return bytes, all of them. Raises ModelError where the file cannot be read, or ends before."""
        file = self.open(piece.path)
        try:
            file.seek(piece.offset)
            data = file.read(piece.length)
            while len(data) < piece.length and (more := file.read(piece.length - len(data))):
                data += more
        except OSError as error:
            raise _unreadable_error(piece.path, error) from error
        if len(data) < piece.length:
            raise shrunk_file_error(piece.path)
        return data


def _unreadable_error(path: Path, error: OSError) -> ModelError:
    return ModelError(
        f"cannot be read: {error.strerror}", file=shown_path(path), hint="check its permissions and its disk"
    )


def shrunk_file_error(path: Path, tensor: str | None = None) -> ModelError:
    """Return the error for a file that ends before the data it should hold."""
    return ModelError(
        "it ends before its tensors do: it has shrunk since the model was read",
        file=shown_path(path),
        tensor=tensor,
        hint="fetch or export it again",
    )


Body = Sequence["bytes | memoryview | Piece"]  # a file, part by part


class DataPlan(Struct):
    """A data file to write: each distinct piece once, aligned."""

    body: list[bytes | Piece] = field(default_factory=list)
    size: int = 0
    _placed: dict[Piece, int] = field(default_factory=dict)
    _samples: dict[tuple[int, bytes, bytes], list[Piece]] = field(default_factory=dict)

    def place(self, piece: Piece, files: Files) -> int:
        """Return the offset of a piece in the data file, that of an equal one where there is one."""
        if piece not in self._placed:
            head, tail = piece.part(0, SAMPLE), piece.part(max(piece.length - SAMPLE, 0), SAMPLE)
            sample = (piece.length, files.read(head), files.read(tail))
            same = (stored for stored in self._samples.get(sample, ()) if _has_equal_bytes(stored, piece, files))
            if (twin := next(same, None)) is not None:
                self._placed[piece] = self._placed[twin]
            else:
                offset = -(-self.size // ALIGNMENT) * ALIGNMENT
                self.body += [bytes(offset - self.size), piece]
                self.size = offset + piece.length
                self._placed[piece] = offset
                self._samples.setdefault(sample, []).append(piece)
        return self._placed[piece]


def _has_equal_bytes(a: Piece, b: Piece, files: Files) -> bool:
    starts = range(0, a.length, CHUNK)
    return all(files.read(a.part(at, CHUNK)) == files.read(b.part(at, CHUNK)) for at in starts)


def write_body(path: Path, body: Body, files: Files) -> None:
    """Write a new file in pieces, the small ones together."""
    try:
        with path.open("xb", buffering=0) as target:
            offset, small = 0, bytearray()
            for part in body:
                if not isinstance(part, Piece):
                    small += part
                    continue
                offset = _copy_piece(part, files, target, _write_at(target, offset, small))
                small.clear()
            _write_at(target, offset, small)
    except OSError as error:
        error.filename = str(path)  # which errors of writing lack
        raise


def _write_at(target: FileIO, offset: int, data: bytes | bytearray) -> int:
    """Write bytes at an offset, and return the one behind them."""
    target.seek(offset)
    with memoryview(data) as view:
        done = 0
        while done < len(view):
            done += target.write(view[done:])
    return offset + len(data)


def _copy_piece(piece: Piece, files: Files, target: FileIO, offset: int) -> int:
    """Copy bytes from file to file, in the kernel where it can; return the offset behind them."""
    done, source = 0, files.open(piece.path).fileno()
    if hasattr(os, "copy_file_range"):
        try:
            while done < piece.length:
                remaining, start = piece.length - done, piece.offset + done
                count = os.copy_file_range(source, target.fileno(), remaining, start, offset + done)
                if not count:
                    break
                done += count
        except OSError as error:
            if error.errno not in (1, 18, 22, 38, 95):  # EPERM, EXDEV, EINVAL, ENOSYS, EOPNOTSUPP: not here
                raise
    while done < piece.length:
        part = piece.part(done, CHUNK)
        _write_at(target, offset + done, files.read(part))
        done += part.length
    return offset + piece.length


Placement = Literal["kept", "shared", "in-place", "inline"]

HINT = "nothing was left behind; check the folder and the space on its disk"


class _Weighted(Protocol):
    """The interface of a `graphkit.Model` for writing."""

    @property
    def source(self) -> Source: ...
    @property
    def proto(self) -> onnx.ModelProto: ...
    @property
    def path(self) -> Path | None: ...
    @property
    def files(self) -> tuple[Path, ...]: ...
    @property
    def label(self) -> str: ...
    @property
    def tensors(self) -> Sequence[tuple[onnx.TensorProto, str | None]]: ...
    def piece(self, tensor: onnx.TensorProto) -> tuple[Path, int, int]: ...
    def fetch(self, weights: Iterable[onnx.TensorProto]) -> None: ...
    def payload(self, tensor: onnx.TensorProto) -> memoryview: ...
    def is_made(self, tensor: onnx.TensorProto) -> bool: ...


class Saved(tuple[Path, ...]):
    """The files that were written.

    Attributes:
        unused: Data files of the replaced models that the new ones do not use; other models may use them.
    """

    unused: tuple[Path, ...]

    def __new__(cls, files: Iterable[Path], unused: Iterable[Path] = ()) -> Saved:
        """Return the written files."""
        saved = super().__new__(cls, files)
        saved.unused = tuple(unused)
        return saved


def save_models(
    models: Mapping[Path, _Weighted] | Mapping[str, _Weighted],
    *,
    weights: Placement = "shared",
    data_name: str | None = None,
    others: Mapping[Path, bytes | memoryview] | Mapping[str, bytes | memoryview] = {},
    overwrite: bool = False,
    before: Callable[[Path], None] | None = None,
) -> Saved:
    """Write models, all or none.

    Args:
        models: The models by the path to write; all in one folder.
        weights: `kept`: in the models themselves where they were there and still fit, else shared. `shared`: one data
            file beside the models, each distinct tensor once. `in-place`: no weight is copied, the models refer to
            the files that they were read from, which must be in the same folder. `inline`: in the models themselves,
            up to 2 GB each.
        data_name: Name of the data file; default: that of the first model with `_data` appended.
        others: The content of files that belong to the models, by path; in the same folder.
        overwrite: Replace existing files; inputs are never replaced.
        before: Called with a folder that has all files, before any of them gets its place, so that they can be proven
            there; where it raises an error, or a signal ends it, nothing is written or replaced.

    Returns:
        The files written, all of them; its `unused` has the data files that only replaced models used.

    Raises:
        OutputError: A file exists or cannot be written, or the placement is not possible; nothing is left behind.
        ModelError: A file of weights is missing, or has shrunk since its model was read.

    Example:
        >>> import tempfile
        >>> with tempfile.TemporaryDirectory() as folder:
        ...     saved = graphkit.save_models({f"{folder}/copy.onnx": graphkit.load("example:causal-attention")})
        >>> [path.name for path in saved]
        ['copy.onnx_data', 'copy.onnx']
    """
    models_by_path = {Path(path): model for path, model in models.items()}
    contents = {Path(path): content for path, content in others.items()}
    first = next(iter(models_by_path))
    weights = resolve_placement(weights, models_by_path.values())
    data_path = first.parent / (data_name or f"{first.name}_data")
    targets = [*([data_path] if weights == "shared" else []), *models_by_path, *contents]
    check_targets(targets, models_by_path.values(), overwrite=overwrite)
    plan, former = DataPlan(), data_files(models_by_path) if overwrite else set()
    with Files() as files:
        bodies = {path: _model_body(model, data_path, weights, plan, files) for path, model in models_by_path.items()}
        bodies |= {path: [content] for path, content in contents.items()}
        written = {data_path: plan.body, **bodies} if plan.body else bodies
        finish = partial(_stage_models, first.parent, models_by_path.values(), before, weights)
        with write_all_or_none([*written], key=first, overwrite=overwrite, hint=HINT, before=finish) as place:
            for path, body in written.items():
                write_body(place(path), body, files)
    former -= {path for model in models_by_path.values() for path in model.files}
    return Saved(written, sorted(former - data_files(models_by_path)) if former else ())


def fits_inline(model: _Weighted) -> bool:
    """Whether a model fits into one file with its weights."""
    external = [t for t, _ in model.tensors if tensors.is_in_a_file(t)]
    return model.proto.ByteSize() + sum(tensors.payload_size(t) or 0 for t in external) <= MAX_PROTO


def resolve_placement(weights: Placement, models: Iterable[_Weighted]) -> Placement:
    """Return where the weights of models go, with `kept` resolved."""
    if weights != "kept":
        return weights
    is_inside = all(not model.source.data_files and fits_inline(model) for model in models)
    return "inline" if is_inside else "shared"


def unused_text(names: Sequence[str]) -> str:
    """Return a sentence that names data files which are no longer used."""
    verb, them = ("is", "it") if len(names) == 1 else ("are", "them")
    return f"{' and '.join(names)} {verb} left from the replaced models; the new ones do not use {them}."


def data_files(paths: Iterable[Path]) -> set[Path]:
    """Return the data files of the models under some names; other files have none."""
    paths_of_data: set[Path] = set()
    for path in paths:
        if path.is_file():
            with contextlib.suppress(ModelError):
                paths_of_data.update(data.path for data in read_model_file(path).data_files if data.size is not None)
    return paths_of_data


def _stage_models(
    folder: Path, models: Iterable[_Weighted], before: Callable[[Path], None] | None, weights: Placement, stage: Path
) -> None:
    """Call `before` with a folder in which models find their weights, before files get their places."""
    if before is None:
        return
    if weights == "in-place":
        external = (t for model in models for t, _ in tensors.walk_tensors(model.proto) if tensors.is_in_a_file(t))
        for location in {place for t in external if (folder / (place := external_extent(t).location)).is_file()}:
            link = stage / location
            link.parent.mkdir(parents=True, exist_ok=True)
            try:
                os.link((folder / location).resolve(), link)
            except OSError:  # no hard links here
                shutil.copyfile(folder / location, link)
    with name_as_staged(stage, folder):
        before(stage)


def check_targets(targets: Sequence[Path], models: Iterable[_Weighted], *, overwrite: bool) -> None:
    """Check that files of one folder can be written: leftovers of killed runs are undone, nothing stands in the way.

    The files of their sources, `models`, are never replaced. An OutputError says that there is no such folder, or that
    a file exists.
    """
    for target in targets:
        recover_unfinished(target)
    sources = [path for model in models for path in model.files if path.exists()]
    for target in targets:
        if not target.parent.is_dir():
            raise OutputError(f"{target.parent}: is not a folder - create it, or name another with -o")
        if not os.path.lexists(target):
            continue
        if target.is_symlink():
            hint = "name what it leads to, or another output"
            raise OutputError(f"{target}: is a link, which is never replaced - {hint}")
        if target.is_dir():
            raise OutputError(f"{target}: is a folder - name a file in it, or another output")
        if not target.is_file():
            raise OutputError(f"{target}: is not a regular file - name another output")
        if any(target.samefile(source) for source in sources):
            raise OutputError(f"{target}: is an input, which is never overwritten - name another output with -o")
        if not overwrite:
            raise OutputError(f"{target}: exists - name another output with -o, or replace it with --overwrite")


def _model_body(model: _Weighted, data_path: Path, weights: Placement, plan: DataPlan, files: Files) -> Body:
    """Return the bytes to write for a model, with its weights where they are wanted."""
    proto = copy.deepcopy(model.proto)
    external = [t for t, _ in tensors.walk_tensors(proto) if tensors.is_in_a_file(t)]
    if weights == "in-place":
        folder = data_path.parent
        if external and model.path is not None and folder.resolve() != model.path.parent.resolve():
            there = shown_path(model.path)
            problem = f"is not the folder of {there}, and data in place can only be referred to from there"
            raise OutputError(f"{folder}: {problem} - write there, or use --weights shared")
        if made := next((tensor for tensor in external if model.is_made(tensor)), None):
            problem = f"'{made.name}' is a new weight, which is in no file that can be referred to in place"
            raise OutputError(f"{model.label}: {problem} - use --weights shared")
        missing = {each.location for each in model.source.data_files if each.size is None}  # which may come later
        _tensor_pieces(model, [tensor for tensor in external if external_extent(tensor).location not in missing])
        return [proto.SerializeToString()]
    pieces = _tensor_pieces(model, external)
    if weights == "inline":
        size = proto.ByteSize() + sum(piece.length for piece in pieces)
        if size > MAX_PROTO:
            problem = f"{size:,} bytes do not fit into one protobuf file of at most {MAX_PROTO:,}"
            raise OutputError(f"{model.label}: {problem} - write a file with --weights shared")
        # the weights stay in their files until they are written
        nonce = os.urandom(16)
        stand_ins: dict[bytes, memoryview] = {}  # of the right lengths; their content is not read
        for number, tensor in enumerate(external):
            mark = nonce + number.to_bytes(8, "little")
            stand_ins[mark] = model.payload(tensor)
            del tensor.external_data[:]
            tensor.ClearField("data_location")
            tensor.raw_data = mark
        known = {id(view): piece for view, piece in zip(stand_ins.values(), pieces, strict=True)}
        return [known.get(id(part), part) for part in inflate_payloads(proto.SerializeToString(), stand_ins)]
    for tensor, piece in zip(external, pieces, strict=True):
        refer_to_bytes(tensor, data_path.name, plan.place(piece, files), piece.length)
    return [proto.SerializeToString()]


def _tensor_pieces(model: _Weighted, external: Sequence[onnx.TensorProto]) -> list[Piece]:
    """Return where the bytes of tensors lie. Raises ModelError where a file is missing, or has shrunk."""
    model.fetch(external)
    pieces = [Piece(*model.piece(tensor)) for tensor in external]
    sizes = {path: path.stat().st_size for path in {piece.path for piece in pieces}}
    for tensor, piece in zip(external, pieces, strict=True):
        if piece.offset + piece.length > sizes[piece.path]:
            raise shrunk_file_error(piece.path, tensor.name)
    return pieces
