"""TensorProtos of a model: find them all, check their claims, and put their bytes back.

A tensor's payload is inline, or lies in a file: at a place of the model file itself (left there by
`payloads.lighten_model`) or in a data file beside it (`external`). Nothing here loads a payload that nobody asked for.

Source: onnx/onnx.proto (TensorProto).
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping
from pathlib import Path

import onnx
from onnx import TensorProto

from graphkit.dtypes import BITS, COMPLEX, TYPED_FIELDS
from graphkit.errors import ModelError
from graphkit.io.byte_source import DataFile, external_extent, find_data_file, shown_path, source_of
from graphkit.io.wire import Reference, encode_bytes

MAX_ELEMENTS = (1 << 63) - 1
Held = tuple[TensorProto, str | None]  # a tensor, with the name of the node that holds it, if one does


def walk_tensors(model: onnx.ModelProto) -> Iterator[Held]:
    """Yield every TensorProto of a model, at every depth, with the name of the node that holds it, if one does."""
    yield from _graph_tensors(model.graph)
    for training in model.training_info:
        yield from _graph_tensors(training.initialization)
        yield from _graph_tensors(training.algorithm)
    for function in model.functions:
        yield from _node_tensors(function.node)
        for attribute in function.attribute_proto:
            yield from attribute_tensors(attribute, function.name)


def _graph_tensors(graph: onnx.GraphProto) -> Iterator[Held]:
    for tensor in graph.initializer:
        yield tensor, None
    for sparse in graph.sparse_initializer:
        yield sparse.values, None
        yield sparse.indices, None
    yield from _node_tensors(graph.node)


def _node_tensors(nodes: Iterable[onnx.NodeProto]) -> Iterator[Held]:
    for node in nodes:
        if attributes := node.attribute:  # which is quicker than to walk none
            for attribute in attributes:
                yield from attribute_tensors(attribute, node.name or node.op_type)


def attribute_tensors(attribute: onnx.AttributeProto, node: str = "") -> Iterator[Held]:
    """Yield the tensors of an attribute, with the name of its node."""
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
    """Return the number of elements that the dims of a tensor promise, or any number above 2^63 where it is larger."""
    if 0 in tensor.dims:
        return 0
    count = 1
    for dim in tensor.dims:
        count *= dim
        if count > MAX_ELEMENTS:  # a file may claim a million dims, and their product would take hours
            break
    return count


def payload_size(tensor: TensorProto) -> int | None:
    """Return the bytes that dtype and dims promise, or None where a dtype has no fixed size (strings)."""
    bits = BITS.get(tensor.data_type)
    return None if bits is None else (element_count(tensor) * bits + 7) // 8


def is_in_a_file(tensor: TensorProto) -> bool:
    """Whether the bytes of a tensor lie in a file, not in the tensor itself."""
    return tensor.data_location == TensorProto.EXTERNAL


def bytes_place(tensor: TensorProto) -> object:
    """Return where the bytes of a tensor lie, None for one that has them itself."""
    if not is_in_a_file(tensor):
        return None
    at = external_extent(tensor)
    return at.location, at.offset, payload_size(tensor), tensor.data_type


def check_tensors(held: Iterable[Held], file: Path | None, references: Mapping[int, Reference]) -> list[DataFile]:
    """Check the claims of every tensor, and return the data files that they name, the missing ones too, in order.

    Args:
        held: The tensors of a model read by `lighten_model`, or of any other.
        file: Where it was read; external data lies beside it.
        references: Payloads that were left in `file`.

    Raises:
        ModelError: Dims are negative or overflow, a payload has another size than dtype and dims promise,
            or external data lies outside the model's folder or past the end of its file.
    """
    data_files: dict[str, DataFile] = {}
    left_in_file = set(references)
    for tensor, node in held:
        try:
            _check_tensor(tensor)
            if tensor.data_location == TensorProto.EXTERNAL and file is not None:
                place = external_extent(tensor)
                if place.location == file.name and place.offset in references:
                    if place.offset not in left_in_file:
                        problem = f"two tensors have their data at byte {place.offset:,} of the model file"
                        raise ModelError(problem, hint="move the one that is external data into a file of its own")
                    left_in_file.remove(place.offset)
                    continue
                if place.location not in data_files:
                    data_files[place.location] = find_data_file(file, place.location)
                length = place.length if place.length is not None else payload_size(tensor) or 0
                end, size = place.offset + length, data_files[place.location].size  # of a missing file None
                if size is not None and end > size:
                    problem = f"external data ends at byte {end:,} of '{place.location}', which has {size:,}"
                    hint = "it is truncated, a Git LFS pointer or that of another model; fetch both again"
                    raise ModelError(problem, hint=hint)
        except ModelError as error:
            name, path = None if node else str(tensor.name), shown_path(file) if file else None
            raise ModelError(error.problem, file=path, node=node, tensor=name, hint=error.hint) from error
    return list(data_files.values())


def _check_tensor(tensor: TensorProto) -> None:
    dims = tensor.dims
    if dims and (min(dims) < 0 or element_count(tensor) > MAX_ELEMENTS):
        problem = f"dims {list(dims)[:8]} are {'negative' if min(dims) < 0 else 'more than 2^63 elements'}"
        raise ModelError(problem, hint="the tensor is corrupt; export the model again")
    promised, actual, unit = payload_size(tensor), None, "bytes of data"
    if tensor.data_location == TensorProto.EXTERNAL:
        actual = external_extent(tensor).length
    elif tensor.raw_data:
        actual = len(tensor.raw_data)
    elif tensor.data_type in BITS or tensor.data_type == TensorProto.STRING:
        values, unit = len(getattr(tensor, TYPED_FIELDS.get(tensor.data_type, "int32_data"))), "values"
        if BITS.get(tensor.data_type) not in (2, 4):  # which are packed: a value is a byte
            promised = element_count(tensor) * (2 if tensor.data_type in COMPLEX else 1)
        actual = values or None  # a tensor may come without its data
    if promised is not None and actual is not None and actual != promised:
        problem = f"{actual:,} {unit}, but dtype and dims {list(dims)[:8]} need {promised:,}"
        raise ModelError(problem, hint="the file was cut or edited; export the model again")


def restore_payloads(model: onnx.ModelProto, file: Path, references: Mapping[int, Reference]) -> None:
    """Put the payloads that were left in `file` back into `model`, in place: it equals the one in the file then."""
    data = source_of(file).buffer() if references else b""
    for tensor, _ in walk_tensors(model):
        if tensor.data_location != TensorProto.EXTERNAL:
            continue
        place = external_extent(tensor)
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


def fill_tensor(tensor: TensorProto, read: Callable[[TensorProto], memoryview]) -> None:
    """Put the bytes of an external tensor into it."""
    payload = bytes(read(tensor))
    del tensor.external_data[:]
    tensor.ClearField("data_location")
    tensor.raw_data = payload
