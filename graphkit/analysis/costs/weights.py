"""Weights as they are stored: parameters and bytes by dtype and bit width, each tensor once, read from no file.

Operators that unpack blocks of 4 or 2 bits read tensors of bytes: these count as as many parameters as they hold. Two
tensors at the same place of a file are tied, and count once.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass
from weakref import WeakKeyDictionary

import onnx

from graphkit.dtypes import BITS, INTEGERS, dtype_name
from graphkit.graph.view import Node, all_nodes, all_scopes
from graphkit.io.external import external_extent
from graphkit.io.tensors import element_count, payload_size, walk_tensors
from graphkit.io.wire import encode_varint
from graphkit.model import Model

__all__ = ["Weight", "WeightBits", "stored_bytes", "stored_weights", "weight_bits"]

# Operator -> the inputs that hold packed weights, and the attribute and its default that says of how many bits
PACKED: Mapping[str, tuple[tuple[int, ...], str, int]] = {
    "com.microsoft.MatMulNBits": ((1,), "bits", 4),
    "com.microsoft.MatMulBnb4": ((1,), "", 4),
    "com.microsoft.MatMulFpQ4": ((1,), "", 4),
    "com.microsoft.GatherBlockQuantized": ((0,), "bits", 4),
    "com.microsoft.QMoE": ((2, 5, 8), "expert_weight_bits", 4),
}
WHOLE = (onnx.TensorProto.UINT8, onnx.TensorProto.INT8)  # dtypes that may hold packed elements


@dataclass(frozen=True)
class Weight:
    """A tensor that is stored in the model.

    Attributes:
        bits: Of each element, as it is packed.
        parameters: Its elements if it holds weights: numbers of floating point, or integers of at most 8 bits.
        bytes: As it is stored.
    """

    name: str
    dtype: str
    bits: int
    parameters: int
    bytes: int


@dataclass(frozen=True)
class WeightBits:
    """All tensors of one dtype and bit width.

    Attributes:
        dtype: The dtype in which they are stored, such as `uint8`.
        bits: Of each element: 4 where two are packed into a byte.
        tensors, parameters, bytes: How many, and as in `Weight`.
    """

    dtype: str
    bits: int
    tensors: int
    parameters: int
    bytes: int


def stored_weights(model: Model) -> list[tuple[Weight, Node | None]]:
    """Return the tensors that are stored in a model, tied ones once, each with the first node that reads it."""
    if model not in _KNOWN:
        _KNOWN[model] = _stored_weights(model)
    return list(_KNOWN[model])


_KNOWN: WeakKeyDictionary[Model, list[tuple[Weight, Node | None]]] = WeakKeyDictionary()  # a report asks twice


def _stored_weights(model: Model) -> list[tuple[Weight, Node | None]]:
    packed = _packed_bits(all_nodes(model.scopes))
    places: set[object] = set()
    weight_readers = []
    for number, (tensor, reader) in enumerate(_stored_tensors(model)):
        place = _bytes_place(tensor) or number
        if place not in places:
            places.add(place)
            weight_readers.append((_make_weight(tensor, packed), reader))
    return weight_readers


def stored_bytes(model: Model) -> int:
    """Return the bytes of a model: those of its graph, and of its weights wherever these are, tied ones once."""
    external = [tensor for tensor, _ in walk_tensors(model.proto) if tensor.data_location == onnx.TensorProto.EXTERNAL]
    payloads = {_bytes_place(tensor): payload_size(tensor) or 0 for tensor in external}
    inside = sum(_inside_bytes(tensor) for tensor in external if model.is_inside(tensor))
    return model.proto.ByteSize() + sum(payloads.values()) + inside


def _inside_bytes(tensor: onnx.TensorProto) -> int:
    """Return what a tensor that was left in the file of its model takes more there than here, without its payload."""
    reference = onnx.TensorProto(external_data=tensor.external_data, data_location=tensor.data_location).ByteSize()
    payload, size = payload_size(tensor) or 0, tensor.ByteSize()
    header = 1 + len(encode_varint(payload)) - reference
    return header + len(encode_varint(size + header + payload)) - len(encode_varint(size))


def _stored_tensors(model: Model) -> Iterator[tuple[onnx.TensorProto, Node | None]]:
    """Yield every tensor, and the first node that reads it, the node that holds it, or None."""
    readers: dict[int, Node] = {}
    constants: dict[str, Node] = {}
    for scope in all_scopes(model.scopes):
        for value in scope.initializers:
            tensor = value.tensor
            if tensor is not None and value.consumers:
                readers[id(tensor)] = value.consumers[0][0]
        for node in scope.nodes:
            if node.is_op("Constant"):
                out = node.outputs[0] if node.outputs else None
                constants[node.proto.name or node.op_type] = out.consumers[0][0] if out and out.consumers else node
    for tensor, holder in walk_tensors(model.proto):
        yield tensor, constants.get(holder) if holder is not None else readers.get(id(tensor))


def _packed_bits(nodes: Iterable[Node]) -> dict[str, int]:
    """Return the bits of the elements that tensors of bytes hold, by name."""
    bits_of = {}
    for node in nodes:
        inputs, attribute, default = PACKED.get(node.operator, ((), "", 0))
        bits = node.attr(attribute, default) if attribute else default
        for index in inputs:
            if (value := node.input(index)) is not None:
                bits_of[value.name] = min(max(bits or default, 1), 8)
    return bits_of


def _bytes_place(tensor: onnx.TensorProto) -> object:
    """Return where the bytes of a tensor lie, None for one that has them itself."""
    if tensor.data_location != onnx.TensorProto.EXTERNAL:
        return None
    at = external_extent(tensor)
    return at.location, at.offset, payload_size(tensor), tensor.data_type


def _make_weight(tensor: onnx.TensorProto, packed: Mapping[str, int]) -> Weight:
    dtype, whole = tensor.data_type, BITS.get(tensor.data_type, 0)
    bits = packed.get(tensor.name, whole) if dtype in WHOLE else whole
    is_weight = whole and dtype != onnx.TensorProto.BOOL and (dtype not in INTEGERS or whole <= 8)
    parameters = element_count(tensor) * (whole // bits) if is_weight else 0
    return Weight(str(tensor.name), dtype_name(dtype), bits, parameters, payload_size(tensor) or 0)


def weight_bits(all_weights: Iterable[Weight]) -> tuple[WeightBits, ...]:
    """Return weights by dtype and bit width, the most bytes first."""
    groups: dict[tuple[str, int], list[Weight]] = {}
    for weight in all_weights:
        groups.setdefault((weight.dtype, weight.bits), []).append(weight)
    rows = (
        WeightBits(dtype, bits, len(group), sum(w.parameters for w in group), sum(w.bytes for w in group))
        for (dtype, bits), group in groups.items()
    )
    return tuple(sorted(rows, key=lambda row: -row.bytes))
