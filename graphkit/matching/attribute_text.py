"""The attributes in which two nodes differ, in words."""

from __future__ import annotations

from collections.abc import Iterator

from onnx import AttributeProto, TensorProto

from graphkit.dtypes import dtype_name
from graphkit.graph.view import Node, as_text
from graphkit.io.tensors import element_count, inline_array
from graphkit.matching.change import Change
from graphkit.matching.value_numbering import ValueNumbers, default_of

__all__ = ["attribute_changes", "tensor_text"]

SHOWN = 8  # elements of a list or a tensor
WIDE = 60  # characters of a text


def attribute_changes(one: Node, two: Node, numbers: ValueNumbers) -> Iterator[Change]:
    """Yield the attributes in which two nodes differ, without their bodies; graphs that one of them lacks are told."""
    first, second = numbers.attributes[one], numbers.attributes[two]
    for name in sorted({*first, *second}, key=str):
        if first.get(name) != second.get(name):
            yield Change(as_text(name), _text(one, name), _text(two, name))
    for name in sorted(one.bodies.keys() ^ two.bodies.keys(), key=str):
        texts = ["a graph" if name in node.bodies else None for node in (one, two)]
        yield Change(as_text(name), *texts)


def _text(node: Node, name: str) -> str | None:
    attribute = node.attributes.get(name)
    if attribute is not None:
        return _value(attribute)
    default = default_of(node, name)
    return f"{_value(default)} (default)" if default is not None else None


def _value(attribute: AttributeProto) -> str:
    if attribute.ref_attr_name:
        return f"that of the call, '{as_text(attribute.ref_attr_name)}'"
    kind = attribute.type
    if kind == AttributeProto.TENSOR:
        return tensor_text(attribute.t)
    if kind == AttributeProto.STRING:
        return _cut(f"'{as_text(attribute.s)}'")
    if kind == AttributeProto.FLOAT:
        return f"{attribute.f:.6g}"
    if kind == AttributeProto.INT:
        return str(attribute.i)
    lists = {
        AttributeProto.FLOATS: [f"{number:.6g}" for number in attribute.floats[: SHOWN + 1]],
        AttributeProto.INTS: [str(number) for number in attribute.ints[: SHOWN + 1]],
        AttributeProto.STRINGS: [f"'{as_text(text)}'" for text in attribute.strings[: SHOWN + 1]],
    }
    if kind in lists:
        items = lists[kind]
        return _cut(f"[{', '.join(items[:SHOWN])}{', ...' if len(items) > SHOWN else ''}]")
    name = AttributeProto.AttributeType.Name(kind) if kind in AttributeProto.AttributeType.values() else str(kind)
    return f"{name.lower().replace('_', ' ')} attribute"


def tensor_text(tensor: TensorProto) -> str:
    """Return the dtype and the dims of a tensor, with the elements of a small one: `int64[2] [1, -1]`."""
    text = f"{dtype_name(tensor.data_type)}{list(tensor.dims)}"
    if element_count(tensor) > SHOWN or tensor.data_type == TensorProto.STRING:
        return text
    array = inline_array(tensor)
    if array is None:
        return text
    items = [f"{item:.6g}" if isinstance(item, float) else str(item) for item in array.ravel().tolist()]
    return f"{text} {items[0]}" if not tensor.dims and items else f"{text} [{', '.join(items)}]"


def _cut(text: str) -> str:
    return text if len(text) <= WIDE else f"{text[:WIDE]}..."
