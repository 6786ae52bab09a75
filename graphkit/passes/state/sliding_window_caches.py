"""Attention over a sliding window: which caches need to keep no more than the last tokens, and the masks for it."""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping, Sequence

import numpy as np
from msgspec import Struct
from onnx import TensorProto

from graphkit.dtypes import FLOATS, INTEGERS, dtype_name
from graphkit.graph.operator_traits import REARRANGING, SAME_ORDER, joined_parts, operator_set, value_inputs
from graphkit.graph.view import Node, Value, follow_chain, walk_breadth_first
from graphkit.io.tensors import walk_tensors
from graphkit.model import Model
from graphkit.passes.npu.cache_interface import Growth
from graphkit.rewrite import Editor
from graphkit.rewrite.host_values import Dependence, find_dependences
from graphkit.rewrite.new_interface import NewInput, with_outputs
from graphkit.runtime.isolation import shared_isolation
from graphkit.runtime.session import IsolatedSession
from graphkit.shapes import Expr

MASKED = -1e4  # a score that gets this much or less counts for nothing
MAX_ELEMENTS = 1 << 24  # of an input of the nodes that make masks
ALL_LENGTHS = 64  # as many lengths are all looked at; of more, some
JOINING = SAME_ORDER - {"Flatten"} | operator_set("Add Cast Div Mul Sub Where")  # scores, masks
MAKING = REARRANGING | operator_set("Cast Div Expand Mul")  # what attention reads
GUARDING = SAME_ORDER | operator_set("Cast Dropout IsNaN Where")  # probabilities
Place = tuple[Node, int]


class Ring(Struct, frozen=True):
    """The slots and masks that an attention over a sliding window needs."""

    window: int  # how many tokens count, the new one included
    masks: tuple[Place, ...]  # the nodes that join a mask to its scores, and which input of theirs is the mask


class _Mask(Struct, frozen=True):
    """A mask, and its element for a key that counts: True or False, None where it is added to scores."""

    value: Value
    visible: bool | None


def rings_of(editor: Editor, growths: Sequence[Growth], slots: int) -> Mapping[Growth, Ring]:
    """Return the caches that can be rings, each with the needs of its attention.

    A cache is left out where its attention cannot be followed, or where what its masks let through is not the last
    tokens, whatever the length of the past: that is found by running the nodes that make the masks.

    Args:
        editor: That of a decoder with a growing cache.
        growths: Where its caches grow.
        slots: How many tokens the cache holds; a window as long needs no ring.

    Raises:
        ModelError: onnxruntime cannot run what makes a mask.
    """
    known = find_dependences(editor.model, editor.shapes)
    softmaxes = [node for node in editor.model.graph.nodes if node.is_op("Softmax")]
    attentions = [each for node in softmaxes if (each := _read_attention(editor, known, node, growths)) is not None]
    caches = [growth for pair, _ in attentions for growth in pair]
    rings: dict[Growth, Ring] = {}
    windows: dict[tuple[_Mask, ...], int | None] = {}
    with shared_isolation():
        for pair, places in attentions:
            masks = tuple(mask for place in places if (mask := _read_mask(editor, *place)) is not None)
            if not masks or len(masks) < len(places) or any(caches.count(growth) > 1 for growth in pair):
                continue
            if masks not in windows:
                windows[masks] = _window_length(editor, masks, slots)
            if (window := windows[masks]) is not None:
                rings.update((growth, Ring(window, places)) for growth in pair)
    return rings


def _read_attention(
    editor: Editor, known: Mapping[Value, Dependence], softmax: Node, growths: Sequence[Growth]
) -> tuple[tuple[Growth, Growth], tuple[Place, ...]] | None:
    """Return the caches of keys and values, and the masks, of a Softmax; None where they cannot be followed."""
    scores, out = softmax.operand(0), softmax.result()
    dims = editor.shapes[scores].dims
    if not dims or softmax.attr("axis", -1) not in (-1, len(dims) - 1):
        return None
    by_joined = {each.concat_out: each for each in growths if each.concat_out is not None}
    trace = _Trace(editor, known, dims[-1], by_joined)
    keys, masks = trace.scores(scores)
    key, value = trace.cache(keys), trace.cache(trace.weighted_values(out))
    return ((key, value), masks) if key is not None and value is not None else None


class _Trace:
    """Follows values of an attention whose scores are for so many keys."""

    def __init__(
        self, editor: Editor, known: Mapping[Value, Dependence], keys: Expr, by_joined: Mapping[Value, Growth]
    ) -> None:
        self.shapes, self.known, self.keys, self.by_joined = editor.shapes, known, keys, by_joined

    def scores(self, value: Value | None) -> tuple[Value | None, tuple[Place, ...]]:
        """Return the keys of the product that scores come from, None if unknown, and the masks that join on the way."""
        masks: list[Place] = []
        for source in follow_chain(value, self._data):
            node = source.producer
            if node is None or self._is_measured(source):
                break
            if node.is_op("MatMul"):
                return node.inputs[1], tuple(masks)
            if not node.is_op(*JOINING) or self._holds_keys(node):
                break
            for index, operand in enumerate(node.inputs):
                if operand is None or self._is_data(operand) or index in value_inputs(node):
                    continue
                dims = self.shapes[operand].dims  # where an exporter may call the number of keys otherwise
                if dims is None or (dims and dims[-1].constant != 1):
                    masks.append((node, index))
        return None, ()

    def _is_data(self, value: Value) -> bool:
        return value in self.known and self.known[value].data

    def _data(self, value: Value) -> Value | None:
        """Return the only input of a value's producer that depends on data."""
        inputs = value.producer.inputs if value.producer is not None else ()
        sources = [source for source in inputs if source is not None and self._is_data(source)]
        return sources[0] if len(sources) == 1 else None

    def weighted_values(self, value: Value) -> Value | None:
        """Return the values that the probabilities of a Softmax are multiplied by, None if unknown."""

        def guarded_inputs(value: Value) -> Iterator[Value | None]:
            """Yield what replaces NaN in probabilities, casts or reshapes them."""
            return (out for node, _ in value.consumers if node.is_op(*GUARDING) for out in node.outputs[:1])

        values = set[Value | None]()
        for each in walk_breadth_first([value], guarded_inputs):
            for node, index in each.consumers:
                if node.is_op("MatMul") and index == 0:
                    values.add(node.inputs[1])
                elif not node.is_op(*GUARDING) or self._holds_keys(node):
                    return None
        return values.pop() if len(values) == 1 else None

    def cache(self, value: Value | None) -> Growth | None:
        """Return the cache that keys or values are made of, None where the number of keys has a part in that."""
        for source in follow_chain(value, self._made_from):
            if self._is_measured(source):
                return None
            if source in self.by_joined:
                return self.by_joined[source]
        return None

    def _made_from(self, value: Value) -> Value | None:
        """Return the data that keys or values are moved or computed from, where their number has no part in that."""
        node = value.producer
        if node is not None and joined_parts(node):
            return node.input(0)
        return None if node is None or not node.is_op(*MAKING) or self._holds_keys(node) else self._data(value)

    def _is_measured(self, value: Value) -> bool:
        return any(node.is_op("Shape", "Size") for node, _ in value.consumers)

    def _holds_keys(self, node: Node) -> bool:
        """Whether the number of keys is in a shape that a node reads."""
        for value in (node.inputs[index] for index in value_inputs(node)):
            elements = self.shapes[value].elements if value is not None else ()
            if elements is None:
                return True
            if any(self.keys.symbols <= each.symbols for each in elements if isinstance(each, Expr)):
                return True
        return False


def _read_mask(editor: Editor, node: Node, index: int) -> _Mask | None:
    """Return the mask that a node joins to scores, None where it is joined in another way."""
    if node.is_op("Add"):
        return _Mask(node.operand(index), None)
    if not node.is_op("Where") or index != 0:
        return None
    floors: list[int] = []
    for at in (1, 2):
        tensor = node.operand(at).constant
        array = editor.model.array(tensor) if tensor is not None else None
        floors += [at] if array is not None and array.size == 1 and float(array.reshape(())) <= MASKED else []
    return _Mask(node.operand(index), floors[0] == 2) if len(floors) == 1 else None


def _window_length(editor: Editor, masks: Sequence[_Mask], slots: int) -> int | None:
    """Return how many of the last tokens masks let through, None where it is not the last, or all."""
    model, shapes = editor.model, editor.shapes
    outputs = []
    for number, mask in enumerate(masks):
        dims = shapes[mask.value].dims
        if dims is None:
            return None
        outputs.append((mask.value.name, NewInput(f"mask_{number}", shapes[mask.value].dtype, dims)))
    part = with_outputs(model, outputs)
    lengths = range(slots) if slots <= ALL_LENGTHS else sorted({*np.linspace(0, slots - 1, ALL_LENGTHS, dtype=int)})
    is_whole = all(t.data_location != TensorProto.EXTERNAL for t, _ in walk_tensors(part.proto))
    session = IsolatedSession(Model.from_proto(part.proto) if is_whole else part)  # which needs no file of weights
    window: int | None = None
    for past in reversed(lengths):  # the longest first: it tells the window
        feed = _mask_feeds(editor, part.graph.inputs, int(past))
        if feed is None:
            return None
        arrays = list(session.run(feed).values())
        visible = np.ones(int(past) + 1, bool)
        for mask, array in zip(masks, arrays, strict=True):
            seen = array > MASKED if mask.visible is None else array.astype(bool) == mask.visible
            flat = seen.reshape(-1, seen.shape[-1])
            if flat.shape[1] != len(visible) or (flat != flat[:1]).any():
                return None
            visible &= flat[0]
        window = int(visible.sum()) if window is None else window
        last = min(window, len(visible))
        if not visible[-last:].all() or visible[:-last].any():
            return None
    return window if window is not None and window < slots else None


def _mask_feeds(editor: Editor, inputs: Sequence[Value], past: int) -> dict[str, np.ndarray] | None:
    """Return the feeds of the nodes that make masks, for one new token after so many; None where they are not known."""
    roles, sizes = editor.model.roles, {"batch": 1, "sequence": 1, "past": past, "total": past + 1}
    feed = {}
    for value in (editor.model.graph.values[value.name] for value in inputs):
        dims, role = editor.shapes[value].dims, roles.of(value)
        if dims is None or role not in ("tokens", "embeddings", "mask", "positions", "past"):
            return None
        counted = [sizes.get(roles.axis(value, at), -1) for at in range(len(dims))]
        shape = [count if dim.constant is None else dim.constant for dim, count in zip(dims, counted, strict=True)]
        dtype = editor.shapes[value].dtype
        if min((0, *shape)) < 0 or math.prod(shape) > MAX_ELEMENTS or dtype not in INTEGERS | FLOATS.keys():
            return None
        fill = 1 if role == "mask" else past if role == "positions" else 0
        feed[value.name] = np.full(shape, fill, dtype_name(dtype))
    return feed
