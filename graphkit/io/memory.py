"""Models in memory: read ONNX protos, models of onnx_ir and programs of torch.onnx, and hand models back to onnx_ir.

Weights stay with the object that has them: the weightless proto refers to each by a location that no file can claim,
and asks for its bytes when something needs them. onnx_ir is imported only for an object that comes from it or goes to
it.
"""

from __future__ import annotations

import copy
from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any, Protocol, TypeAlias

import onnx
from google.protobuf.message import Message
from onnx import TensorProto

from graphkit.errors import UsageError
from graphkit.io.byte_source import Scratch, refer_to_bytes
from graphkit.io.read import Source
from graphkit.io.tensors import check_tensors, fill_tensor, payload_size, walk_tensors

if TYPE_CHECKING:
    import onnx_ir

InMemory: TypeAlias = "onnx.ModelProto | onnx_ir.Model | Program"
Tensor: TypeAlias = "onnx_ir.TensorProtocol"


class Program(Protocol):
    """The part of a `torch.onnx.ONNXProgram` that has the graph and its weights."""

    @property
    def model(self) -> onnx_ir.Model:
        """The model of onnx_ir."""


class MemoryWeights:
    """Weights that an object in memory has, by the location that a model refers to each of them by."""

    def __init__(self, scratch: Scratch) -> None:
        self._scratch = scratch
        self._reads: dict[str, Callable[[], bytes]] = {}
        self._written: dict[str, int] = {}
        self.files: dict[str, Path] = {}  # of those that lie in one
        self.size = 0  # of the others, in bytes
        self.tensors: dict[str, Tensor] = {}  # of onnx_ir, as they were given

    def hold(self, read: Callable[[], bytes], length: int) -> str:
        """Return a new location for so many bytes that a function gives."""
        self.size += length
        location = f"{self._scratch.location}:memory-{len(self._reads)}"
        self._reads[location] = read
        return location

    def payload(self, location: str) -> bytes | None:
        """Return the bytes of a weight in memory, None where it lies in a file."""
        return self._reads[location]() if location in self._reads else None

    def find(self, location: str) -> tuple[Path, int | None]:
        """Return the file of a location, and the offset in it where that is not the tensor's own.

        A weight in memory is written to a temporary file, as it has to lie in one for onnxruntime, and to be saved.
        """
        if location in self.files:
            return self.files[location], None
        if location not in self._written:
            self._written[location], _ = self._scratch.append([self._reads[location]()])
        return self._scratch.path, self._written[location]

    def __contains__(self, location: object) -> bool:
        return location in self._reads or location in self.files


def read_memory(given: object, weights: MemoryWeights, threshold: int, folder: Path | None) -> Source:
    """Return a model in memory, which is not changed, without its weights of at least `threshold` bytes.

    Raises UsageError where it is none of these, ModelError where a tensor has impossible claims.
    """
    if isinstance(given, onnx.ModelProto):
        return _read_proto(given, weights, threshold, folder or Path())
    modules = {base.__module__.partition(".")[0] for base in type(given).__mro__}
    if "torch" in modules and hasattr(given, "model_proto"):
        given = getattr(given, "model", None)
        modules = {type(given).__module__.partition(".")[0]}
    if "onnx_ir" not in modules or not hasattr(given, "clone") or not hasattr(given, "graphs"):
        kinds = "a path, an onnx.ModelProto, an onnx_ir.Model (of 0.1.14 or newer) or a torch.onnx.ONNXProgram"
        raise UsageError(f"a {type(given).__module__}.{type(given).__qualname__} is no model - give {kinds}")
    return _read_ir(given, weights, threshold)


def _read_proto(proto: onnx.ModelProto, weights: MemoryWeights, threshold: int, folder: Path) -> Source:
    light = onnx.ModelProto()
    _copy_fields(proto, light, ("graph",))
    light.graph.SetInParent()
    _copy_fields(proto.graph, light.graph, ("initializer",))
    for tensor in proto.graph.initializer:
        header = light.graph.initializer.add()
        is_large = _is_large(tensor, threshold)
        _copy_fields(tensor, header, ("raw_data",) if is_large else ())
        if is_large and tensor.ByteSize() - header.ByteSize() != _field_size(payload_size(tensor) or 0):
            check_tensors([(tensor, None)], folder / "model.onnx", {})
    data_files = check_tensors(walk_tensors(light), folder / "model.onnx", {})
    for (tensor, _), (copied, _) in zip(walk_tensors(proto), walk_tensors(light), strict=True):
        if _is_large(tensor, threshold):
            copied.ClearField("raw_data")
            copied.data_location = TensorProto.EXTERNAL
            length = payload_size(tensor) or 0
            refer_to_bytes(copied, weights.hold(partial(getattr, tensor, "raw_data"), length), 0, length)
    weights.files |= {data.location: data.path for data in data_files}
    return Source(light, None, light.ByteSize() + weights.size, {}, tuple(data_files))


def _is_large(tensor: TensorProto, threshold: int) -> bool:
    return tensor.HasField("raw_data") and (payload_size(tensor) or 0) >= threshold


def _field_size(length: int) -> int:
    """Return how many bytes a field of so many takes, with its key and its length; no payload has to be copied."""
    return 1 + (length.bit_length() + 6) // 7 + length


def _copy_fields(source: Message, target: Message, without: tuple[str, ...]) -> None:
    for field in source.DESCRIPTOR.fields:
        if field.name in without or (field.has_presence and not source.HasField(field.name)):
            continue
        value = getattr(source, field.name)
        if hasattr(value, "MergeFrom"):  # repeated, or a message
            getattr(target, field.name).MergeFrom(value)
        else:
            setattr(target, field.name, value)


def _read_ir(given: Any, weights: MemoryWeights, threshold: int) -> Source:
    import onnx_ir

    light = given.clone()
    for graph in light.graphs():
        for value in graph.initializers.values():
            tensor = value.const_value
            if tensor is None or tensor.dtype == onnx_ir.DataType.STRING:
                continue
            if isinstance(tensor, onnx_ir.ExternalTensor):
                location, offset, length = str(tensor.path), tensor.offset, tensor.length
                weights.files[location] = Path(tensor.path)
            elif tensor.nbytes >= threshold:
                location, offset, length = weights.hold(tensor.tobytes, tensor.nbytes), 0, tensor.nbytes
                weights.tensors[location] = tensor
            else:
                continue
            words = {"doc_string": tensor.doc_string, "metadata_props": dict(tensor.metadata_props)}
            value.const_value = onnx_ir.ExternalTensor(
                location, offset, length, tensor.dtype, shape=tensor.shape, name=value.name, **words
            )
    proto = onnx_ir.to_proto(light)
    check_tensors(walk_tensors(proto), None, {})
    return Source(proto, None, proto.ByteSize() + weights.size, {}, ())


def make_ir_model(
    proto: onnx.ModelProto, weights: MemoryWeights | None, read: Callable[[TensorProto], memoryview]
) -> onnx_ir.Model:
    """Return a model of onnx_ir, its large weights given, or read when asked for; UsageError without onnx_ir."""
    try:
        import onnx_ir
    except ImportError as error:
        raise UsageError("onnx_ir is not installed - pip install onnx-ir") from error
    proto = copy.deepcopy(proto)
    for tensor, node in walk_tensors(proto):
        if node is not None and tensor.data_location == TensorProto.EXTERNAL:
            fill_tensor(tensor, read)
    model, given = onnx_ir.from_proto(proto), weights.tensors if weights else {}

    def full_tensor(light: TensorProto) -> Tensor:
        full = copy.deepcopy(light)
        fill_tensor(full, read)
        return onnx_ir.from_proto(full)

    for graph in model.graphs():
        for value in graph.initializers.values():
            held = value.const_value
            if isinstance(held, onnx_ir.ExternalTensor):
                fill, words = partial(full_tensor, onnx_ir.to_proto(held)), dict(held.metadata_props)
                value.const_value = given.get(str(held.location)) or onnx_ir.LazyTensor(
                    fill, held.dtype, held.shape, name=held.name, doc_string=held.doc_string, metadata_props=words
                )
    return model
