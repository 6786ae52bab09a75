"""Model: a graph read without its weights, and where each weight's bytes lie."""

from __future__ import annotations

import copy
import os
from collections.abc import Hashable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from functools import cached_property
from pathlib import Path
from typing import TYPE_CHECKING, Any, TypeAlias

import numpy as np
import onnx
import onnx.numpy_helper
from msgspec.structs import replace

from graphkit.dtypes import array_of_bytes, typed_payload
from graphkit.errors import ModelError, count_things
from graphkit.examples import example_name, resolve
from graphkit.graph.dataflow import ShapeTensors, check_scopes, find_shape_tensors
from graphkit.graph.roles import Roles, find_roles
from graphkit.graph.view import Node, Scope, all_nodes, as_text, build_scopes
from graphkit.io import tensors
from graphkit.io.byte_source import (
    Scratch,
    external_extent,
    find_data_file,
    map_file,
    refer_to_bytes,
    shown_path,
    source_of,
)
from graphkit.io.read import DEFAULT_THRESHOLD, Source, read_model_file
from graphkit.io.urls import RemoteOptions, current_options, is_url
from graphkit.io.wire import Mapped, Reference

if TYPE_CHECKING:
    import onnx_ir

    from graphkit.glance import Glance
    from graphkit.io.memory import InMemory, MemoryWeights
    from graphkit.save import Placement, Saved


@dataclass(frozen=True, eq=False)
class Model:
    """A model whose large tensors stay on disk until something asks for their values.

    Attributes:
        source: The source that was read: the weightless proto, the file, the data files, the references.
        related_dims: Which dims of its inputs nodes relate, once that was asked; its rewrites, made later, know too.
        constants: What is known of small constants in its files, for its rewrites too.
        is_edited: Whether a rewrite made it, so that it differs from its file.
    """

    source: Source
    _maps: dict[Path, Mapped] = field(default_factory=dict, repr=False)
    _is_sound: list[bool] = field(default_factory=list, repr=False)  # True in it: shared with its rewrites
    _scratch: Scratch = field(default_factory=Scratch, repr=False)
    _adopted: dict[str, tuple[Path, Model]] = field(default_factory=dict, repr=False)  # by location
    related_dims: dict[object, Any] = field(default_factory=dict, repr=False)
    constants: dict[Hashable, Any] = field(default_factory=dict, repr=False)
    is_edited: bool = False
    _memory: MemoryWeights | None = field(default=None, repr=False)  # of a model that came from memory

    @classmethod
    def from_proto(cls, proto: onnx.ModelProto, path: Path | None = None) -> Model:
        """Return a model that is already in memory; external data lies beside `path` where one is given.

        Raises:
            ModelError: A tensor has impossible claims.
        """
        data_files = tensors.check_tensors(tensors.walk_tensors(proto), path, {})
        return cls(Source(proto, path, proto.ByteSize(), {}, tuple(data_files)))

    def with_proto(self, proto: onnx.ModelProto) -> Model:
        """Return a rewritten model whose weights lie where they lie for this one."""
        source = replace(self.source, proto=proto, tensors=())
        kept = self._maps, self._is_sound, self._scratch, self._adopted, dict(self.related_dims), self.constants
        return Model(source, *kept, is_edited=True, _memory=self._memory)

    def check_soundness(self) -> None:
        """Check, once, that the meaning of the graph is certain; a rewrite of a sound model is sound.

        Raises:
            ModelError: A name is defined twice or never, nodes read each other in a circle, or a node does not fit its
                operator.
        """
        if not self._is_sound:
            check_scopes(self.scopes, self.file)
            self._is_sound.append(True)

    def __repr__(self) -> str:
        return f"Model({self.name!r}, {count_things(len(self.nodes), 'node(s)')})"

    @property
    def nodes(self) -> tuple[Node, ...]:
        """All nodes, those of bodies and functions included, in the order of the graph."""
        return tuple(all_nodes(self.scopes))

    def _repr_html_(self) -> str:
        return self._glance()._repr_html_()

    def _repr_markdown_(self) -> str:
        return self._glance().to_markdown()

    def _glance(self) -> Glance:
        from graphkit.glance import make_glance  # renderers are not loaded with a model

        return make_glance(self.name, self.proto, self.scopes)

    def save(self, path: str | os.PathLike[str], weights: Placement = "kept", *, overwrite: bool = False) -> Saved:
        """Write it to a file, all of it or nothing; the file that it was read from is never replaced.

        Args:
            path: The file to write; with shared weights, NAME_data is written beside it.
            weights: `kept`: in the file itself where they were there, and it has up to 2 GB; else shared. `shared`: in
                that data file, each distinct tensor once. `in-place`: no weight is copied, the file
                refers to those that this model was read from, in whose folder it must be. `inline`: in the file itself,
                which may have up to 2 GB.
            overwrite: Replace existing files.

        Returns:
            The files written; their `unused` has the data files that only a replaced model used.

        Raises:
            OutputError: A file exists or cannot be written, or the placement is not possible; nothing is left behind.
            ModelError: A file of weights is missing, or has shrunk since the model was read.

        Example:
            >>> import tempfile
            >>> folded = graphkit.fold("example:causal-attention", dims={"batch_size": 1}).model
            >>> with tempfile.TemporaryDirectory() as folder:
            ...     [path.name for path in folded.save(f"{folder}/folded.onnx")]
            ['folded.onnx']
        """
        from graphkit.save import save_models

        return save_models({Path(path): self}, weights=weights, overwrite=overwrite)

    @property
    def proto(self) -> onnx.ModelProto:
        """The weightless ModelProto: an ordinary one, whose large tensors are external data."""
        return self.source.proto

    @property
    def path(self) -> Path | None:
        """The file it was read from."""
        return self.source.path

    @property
    def file(self) -> str | None:
        """The file it was read from, as errors name it."""
        return shown_path(self.path) if self.path else None

    @property
    def references(self) -> Mapping[int, Reference]:
        """The payloads that were left in the file, by offset."""
        return self.source.references

    @property
    def name(self) -> str:
        """The file's name, or the graph's where there is no file."""
        return self.path.name if self.path else as_text(self.proto.graph.name) or "model"

    @property
    def files(self) -> tuple[Path, ...]:
        """The files that it consists of, its data files included."""
        read_files = [*([self.path] if self.path else []), *(data.path for data in self.source.data_files)]
        return tuple(dict.fromkeys([*read_files, *(path for path, _ in self._adopted.values())]))

    @property
    def label(self) -> str:
        """Its name beside others, which is its path, the name of an example, or that of its graph."""
        return example_name(self.path) or shown_path(self.path) if self.path else self.name

    @property
    def lineage(self) -> int:
        """A number that a model shares with its rewrites alone, whose weights lie where its own lie."""
        return id(self._maps)

    @cached_property
    def scopes(self) -> tuple[Scope, ...]:
        """The main graph, then the functions; bodies hang on their nodes."""
        return build_scopes(self.proto, self.file)

    @property
    def graph(self) -> Scope:
        """The main graph."""
        return self.scopes[0]

    @cached_property
    def tensors(self) -> Sequence[tuple[onnx.TensorProto, str | None]]:
        """Every tensor of the proto, at every depth, with the name of the node that holds it, if one does."""
        return self.source.tensors or [*tensors.walk_tensors(self.proto)]

    @cached_property
    def roles(self) -> Roles:
        """The role of each input and output."""
        return find_roles(self.graph)

    @cached_property
    def shape_tensors(self) -> ShapeTensors:
        """Which values are shape arithmetic, at every scope."""
        return find_shape_tensors(self.scopes)

    def growth(self) -> int:
        """Return how many bytes rewrites have added to the weightless proto, 0 where they took some away."""
        source = self.source
        held = self._memory.size if self._memory else 0
        before: int = source.size - held - sum(reference.length for reference in source.references.values())
        after: int = self.proto.ByteSize()
        return max(after - before, 0)

    def payload(self, tensor: onnx.TensorProto) -> memoryview:
        """Return a tensor's bytes, little-endian, mapped from its file where it is external.

        Raises:
            ModelError: The data file is missing, or the tensor has strings.
        """
        if tensor.data_location != onnx.TensorProto.EXTERNAL:
            if tensor.HasField("raw_data"):
                return memoryview(tensor.raw_data)
            return memoryview(typed_payload(tensor))
        held = self._memory.payload(external_extent(tensor).location) if self._memory is not None else None
        if held is not None:
            return memoryview(held)
        path, offset, length = self.piece(tensor)
        if offset + length > path.stat().st_size:  # reading a map beyond the end of its file would end the process
            problem = "it ends before its tensor does: it has shrunk since the model was read"
            raise ModelError(problem, file=shown_path(path), tensor=tensor.name, hint="fetch or export it again")
        if path not in self._maps or len(self._maps[path]) < offset + length:  # the scratch file grows
            self._maps[path] = map_file(path)
        return memoryview(self._maps[path])[offset : offset + length]

    def piece(self, tensor: onnx.TensorProto) -> tuple[Path, int, int]:
        """Return the file, the offset and the length of an external tensor's bytes.

        Raises:
            ModelError: The file is missing.
        """
        path, offset, length = self._find_bytes(tensor)
        source = source_of(path)
        if source.is_local and not path.is_file():
            raise ModelError("its data file is missing", file=shown_path(path), tensor=tensor.name, hint="put it there")
        end = offset + length if length is not None else source.size
        return source.local([(offset, end)]), offset, end - offset

    def fetch(self, weights: Iterable[onnx.TensorProto]) -> None:
        """Fetch the bytes of external tensors that are on a server, together; all others are where they are.

        Raises:
            ModelError: They cannot be fetched.
        """
        remote = {path: source for path in self.files if not (source := source_of(path)).is_local}
        found = [self._find_bytes(tensor) for tensor in weights if remote]
        for path, source in remote.items():
            places = [(start, length) for at, start, length in found if at == path]
            if places:
                source.local([(start, source.size if length is None else start + length) for start, length in places])

    def _find_bytes(self, tensor: onnx.TensorProto) -> tuple[Path, int, int | None]:
        """Return the path that an external tensor's bytes lie at, their offset and length, None for up to its end."""
        location, offset, length = external_extent(tensor)
        if self.path is not None and location == self.path.name and offset in self.references:
            path = self.path
        elif location == self._scratch.location:
            path = self._scratch.path
        elif location in self._adopted:
            path = self._adopted[location][0]
        elif self._memory is not None and location in self._memory:
            path, start = self._memory.find(location)
            offset = offset if start is None else start
        else:
            path = find_data_file(self.path or Path("model.onnx"), location).path
        return path, offset, length if length is not None else tensors.payload_size(tensor)

    def is_inside(self, tensor: onnx.TensorProto) -> bool:
        """Whether the bytes of an external tensor are in the file of the model, where reading has left them."""
        place = external_extent(tensor)
        return self.path is not None and place.location == self.path.name and place.offset in self.references

    def is_made(self, tensor: onnx.TensorProto) -> bool:
        """Whether `make_tensor` made a tensor, or it is another model's: no file beside this model has it."""
        places = (self._scratch.location, *self._adopted)
        return any(
            entry.key == "location" and (entry.value in places or entry.value in (self._memory or ()))
            for entry in tensor.external_data
        )

    def adopt(self, other: Model) -> onnx.ModelProto:
        """Return the weightless proto of another model, whose weights this model and rewrites of it find."""
        proto = onnx.ModelProto()
        proto.CopyFrom(other.proto)
        for tensor, _ in tensors.walk_tensors(proto):
            if tensor.data_location != onnx.TensorProto.EXTERNAL:
                continue
            path, offset, length = other._find_bytes(tensor)
            location = f"{self._scratch.location}:{path}"  # which no model file can claim
            self._adopted[location] = path, other
            del tensor.external_data[:]
            for key, value in (("location", location), ("offset", offset), ("length", length)):
                if value is not None:
                    tensor.external_data.add(key=key, value=str(value))
        self._is_sound.clear()
        return proto

    def make_tensor(self, name: str, dtype: int, dims: Sequence[int], parts: Iterable[bytes]) -> onnx.TensorProto:
        """Return a tensor of new bytes, little-endian, kept on disk, for this model and rewrites of it.

        Raises:
            OutputError: There is no room for them.
        """
        start, length = self._scratch.append(parts)
        tensor = onnx.TensorProto(name=name, data_type=dtype, dims=dims, data_location=onnx.TensorProto.EXTERNAL)
        refer_to_bytes(tensor, self._scratch.location, start, length)
        return tensor

    def array(self, tensor: onnx.TensorProto) -> np.ndarray:
        """Return a tensor's values, read from its file where it is external.

        Raises:
            ModelError: The data file is missing, or the content of the tensor does not fit its dtype and dims.
        """
        try:
            if tensor.data_type == onnx.TensorProto.STRING:
                return onnx.numpy_helper.to_array(tensor)
            return array_of_bytes(tensor, self.payload(tensor))
        except (KeyError, TypeError, ValueError) as error:  # an unknown dtype, or no data
            hint = "export the model again, with its weights"
            raise ModelError(f"no values can be read: {error}", tensor=tensor.name, hint=hint) from error

    def restore(self) -> onnx.ModelProto:
        """Return the model as it stands in the file, weights included, equal field by field.

        Existing external data stays external. Needs as much memory as the file has bytes.
        """
        full = copy.deepcopy(self.proto)
        if self.path is not None:
            source_of(self.path).local([(each.offset, each.offset + each.length) for each in self.references.values()])
            tensors.restore_payloads(full, self.path, self.references)
        for tensor, _ in tensors.walk_tensors(full):
            if self.is_made(tensor):
                tensors.fill_tensor(tensor, self.payload)
        return full

    def to_proto(self) -> onnx.ModelProto:
        """Return the model with all of its weights in it, those in data files too, as `onnx.load` gives it.

        Example:
            >>> graphkit.fold("example:causal-attention").model.to_proto().graph.node[0].op_type
            'Shape'
        """
        full = self.restore()
        for tensor, _ in tensors.walk_tensors(full):
            if tensor.data_location == onnx.TensorProto.EXTERNAL:
                tensors.fill_tensor(tensor, self.payload)
        return full

    def to_ir(self) -> onnx_ir.Model:
        """Return the model for onnx_ir, whose weights are read when they are asked for, and never all at once.

        Weights that came from a model of onnx_ir or of torch.onnx are the tensors that it has.

        Raises:
            UsageError: onnx_ir is not installed.
        """
        from graphkit.io.memory import make_ir_model

        return make_ir_model(self.proto, self._memory, self.payload)


def load(
    path: str | os.PathLike[str] | InMemory,
    *,
    threshold: int = DEFAULT_THRESHOLD,
    remote: RemoteOptions | None = None,
    folder: str | os.PathLike[str] | None = None,
) -> Model:
    """Read a model without its weights.

    Args:
        path: A model file (.onnx, or a text format that `onnx.load` reads), `example:NAME`, or a URL, such as
            hf://ORGANISATION/NAME/onnx/model.onnx, https://… or s3://…, with the packages of onnx-graphkit[remote]. Or
            a model in memory: an `onnx.ModelProto`, an `onnx_ir.Model` or a `torch.onnx.ONNXProgram`, which keeps its
            weights, and is not to change as long as the returned model is used.
        threshold: Tensors of at least so many bytes stay in the file; smaller ones are read.
        remote: How a model on a server is read; default: as the command line does.
        folder: The folder of the external data of a ModelProto; default: the current one.

    Returns:
        The model, whose large tensors are read when something asks for their values.

    Raises:
        ModelError: The file is missing, broken, hostile, or not a model; or its server is.
        UsageError: The packages for a URL are not installed, or nothing is known of its scheme; or it is no model.

    Example:
        >>> graphkit.load("example:causal-attention")
        Model('causal-attention.onnx', 213 nodes)
    """
    if isinstance(path, str | os.PathLike):
        if not isinstance(path, str) or not is_url(path):
            return Model(read_model_file(resolve(path), threshold))
        from graphkit.io.remote.open_url import open_url

        name, _source = open_url(path, remote or current_options())  # the name stands for it as long as this is here
        return Model(read_model_file(name, threshold))
    from graphkit.io.memory import MemoryWeights, read_memory

    scratch = Scratch()
    memory = MemoryWeights(scratch)
    source = read_memory(path, memory, threshold, None if folder is None else Path(folder))
    return Model(source, _scratch=scratch, _memory=memory)


ModelLike: TypeAlias = "Model | str | os.PathLike[str] | InMemory"


def as_model(model: ModelLike) -> Model:
    """Return a model as it is, or read it where a path is given, or one in memory: see `load`.

    Example:
        >>> graphkit.as_model("example:causal-attention")
        Model('causal-attention.onnx', 213 nodes)
    """
    return model if isinstance(model, Model) else load(model)
