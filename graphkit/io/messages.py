"""The messages of ONNX in the wire format: which field holds which message, and a walk that finds every fault.

Source: onnx/onnx.proto (field numbers).
"""

from __future__ import annotations

from graphkit.io.wire import BYTES, MAX_DEPTH, TOO_DEEP, Buffer, Fault, fields, read_varint

__all__ = ["CHILDREN", "SINGULAR", "validate"]

# Message kind -> field number -> kind of the message in it; only the paths that lead to tensors.
CHILDREN: dict[str, dict[int, str]] = {
    "ModelProto": {7: "GraphProto", 20: "TrainingInfoProto", 25: "FunctionProto"},
    "TrainingInfoProto": {1: "GraphProto", 2: "GraphProto"},
    "GraphProto": {1: "NodeProto", 5: "TensorProto", 15: "SparseTensorProto"},
    "FunctionProto": {7: "NodeProto", 11: "AttributeProto"},
    "NodeProto": {5: "AttributeProto"},
    "AttributeProto": {
        5: "TensorProto",
        6: "GraphProto",
        10: "TensorProto",
        11: "GraphProto",
        22: "SparseTensorProto",
        23: "SparseTensorProto",
    },
    "SparseTensorProto": {1: "TensorProto", 2: "TensorProto"},
}
# Fields that hold at most one message. Protobuf merges a second occurrence into the first, so a message
# with two of them is copied unchanged.
SINGULAR = {
    "ModelProto": {7},
    "TrainingInfoProto": {1, 2},
    "AttributeProto": {5, 6, 22},
    "SparseTensorProto": {1, 2},
}
# Where else messages are nested (types, shapes, key-value entries): walked by `validate` only.
PLAIN_CHILDREN: dict[str, dict[int, str]] = {
    "ModelProto": {8: "Opset", 14: "Entry", 26: "Device"},
    "TrainingInfoProto": {3: "Entry", 4: "Entry"},
    "GraphProto": {11: "ValueInfo", 12: "ValueInfo", 13: "ValueInfo", 14: "Annotation", 16: "Entry"},
    "FunctionProto": {9: "Opset", 12: "ValueInfo", 14: "Entry"},
    "NodeProto": {9: "Entry", 10: "NodeDevice"},
    "AttributeProto": {14: "Type", 15: "Type"},
    "TensorProto": {3: "Segment", 13: "Entry", 16: "Entry"},
    "Annotation": {2: "Entry"},
    "NodeDevice": {2: "Sharding"},
    "ValueInfo": {2: "Type", 4: "Entry"},
    "Type": {1: "TensorType", 4: "ElementType", 5: "MapType", 7: "OpaqueType", 8: "TensorType", 9: "ElementType"},
    "TensorType": {2: "Shape"},
    "ElementType": {1: "Type"},
    "MapType": {2: "Type"},
    "Shape": {1: "Dimension"},
}
# Numbers that may lie packed in one length-delimited field: bytes of one, 0 for varints.
PACKED: dict[str, dict[int, int]] = {
    "AttributeProto": {7: 4, 8: 0},
    "SparseTensorProto": {3: 0},
    "TensorProto": {1: 0, 4: 4, 5: 0, 7: 0, 10: 8, 11: 0},
}


def validate(data: Buffer) -> None:
    """Walk every message of a serialized ModelProto, for the byte offset of a fault that protobuf reports without one.

    Raises:
        Fault: On the first fault.
    """
    _validate(data, "ModelProto", 0, len(data), 0)


def _validate(data: Buffer, kind: str, begin: int, end: int, depth: int) -> None:
    if depth > MAX_DEPTH:
        raise Fault(begin, TOO_DEEP)
    children = {**CHILDREN.get(kind, {}), **PLAIN_CHILDREN.get(kind, {})}
    packed = PACKED.get(kind, {})
    for start, field, wire_type, value, stop in fields(data, begin, end):
        if wire_type == BYTES and field in children:
            _validate(data, children[field], value, stop, depth + 1)
        elif wire_type == BYTES and field in packed:
            _validate_packed(data, start, value, stop, packed[field])


def _validate_packed(data: Buffer, start: int, value: int, stop: int, width: int) -> None:
    if width and (stop - value) % width:
        raise Fault(start, f"{stop - value:,} bytes are no whole number of {width}-byte values")
    while not width and value < stop:
        _, value = read_varint(data, value, stop)
