"""Attention over a sliding window: which caches need to keep no more than the last tokens, and the masks for it."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence

from msgspec import Struct

from graphkit.analysis.sliding_windows import find_windows
from graphkit.graph.operator_traits import REARRANGING, SAME_ORDER, joined_parts, operator_set, value_inputs
from graphkit.graph.view import Node, Value, follow_chain, walk_breadth_first
from graphkit.passes.npu.cache_interface import Growth
from graphkit.rewrite import Editor
from graphkit.rewrite.host_values import Dependence, find_dependences
from graphkit.shapes import Expr

GIVEN = ("tokens", "embeddings", "mask", "positions", "past")  # roles of what a step is given
JOINING = SAME_ORDER - {"Flatten"} | operator_set("Add Cast Div Mul Sub Tanh Where")  # scores, masks
MAKING = REARRANGING | operator_set("Cast Div Expand Mul")  # what attention reads
GUARDING = SAME_ORDER | operator_set("Cast Dropout IsNaN Where")  # probabilities
Place = tuple[Node, int]


class Ring(Struct, frozen=True):
    """The slots and masks that an attention over a sliding window needs."""

    window: int  # how many tokens count, the new one included
    masks: tuple[Place, ...]  # the nodes that join a mask to its scores, and which input of theirs is the mask


def rings_of(editor: Editor, growths: Sequence[Growth], slots: int) -> Mapping[Growth, Ring]:
    """Return the caches that can be rings, each with the needs of its attention; one of so many slots needs no ring.

    A cache is left out where its attention cannot be followed, or where its masks let more through than the last
    tokens, whatever the length of the past, or rest on other inputs than tokens, masks and positions.
    """
    known = find_dependences(editor.model, editor.shapes)
    windows = {entry.past: window for entry, window in find_windows(editor.model).items() if window < slots}
    softmaxes = [node for node in editor.model.graph.nodes if node.is_op("Softmax")] if windows else []
    attentions = [each for node in softmaxes if (each := _read_attention(editor, known, node, growths)) is not None]
    caches = [growth for pair, _ in attentions for growth in pair]
    rings: dict[Growth, Ring] = {}
    for pair, masks in attentions:
        found = {windows.get(growth.past) for growth in pair}
        if not masks or len(found) > 1 or any(caches.count(growth) > 1 for growth in pair):
            continue
        if (window := found.pop()) is not None and all(_is_of_step(editor, *place) for place in masks):
            rings.update((growth, Ring(window, masks)) for growth in pair)
    return rings


def _is_of_step(editor: Editor, node: Node, index: int) -> bool:
    """Whether a node adds a mask to scores, or chooses by it, that is made of what each step is given."""
    made_of = walk_breadth_first([node.operand(index)], lambda value: value.sources)
    inputs = [value for value in made_of if value.kind == "input" and value.tensor is None]
    is_joined = node.is_op("Add") or (node.is_op("Where") and index == 0)
    return is_joined and all(editor.model.roles.of(value) in GIVEN for value in inputs)


def _read_attention(
    editor: Editor, known: Mapping[Value, Dependence], softmax: Node, growths: Sequence[Growth]
) -> tuple[tuple[Growth, Growth], tuple[Place, ...]] | None:
    """Return the caches of keys and values, and the masks, of a Softmax; None where they cannot be followed."""
    scores, out = softmax.operand(0), softmax.result()
    if not (dims := editor.shapes[scores].dims) or softmax.attr("axis", -1) not in (-1, len(dims) - 1):
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
            if (node := source.producer) is None or self._is_measured(source):
                break
            if node.is_op("MatMul"):
                return node.inputs[1], tuple(masks)
            if joined_parts(node) and node.input(0) is self._data(source):  # sinks come behind them, which are no keys
                self.keys = (self.shapes[node.operand(0)].dims or (self.keys,))[-1]
                continue
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
        inputs = value.producer.inputs if value.producer is not None else ()
        sources = [source for source in inputs if source is not None and self._is_data(source)]
        return sources[0] if len(sources) == 1 else None

    def weighted_values(self, value: Value) -> Value | None:
        """Return the values that the probabilities of a Softmax are multiplied by, None if unknown."""

        def guarded_inputs(value: Value) -> Iterator[Value | None]:
            """Yield what replaces NaN in probabilities, casts or reshapes them."""
            readers = (node for node, _ in value.consumers if node.is_op(*GUARDING) or self._drops_sinks(node))
            return (out for node in readers for out in node.outputs[:1])

        values = set[Value | None]()
        for each in walk_breadth_first([value], guarded_inputs):
            for node, index in each.consumers:
                if node.is_op("MatMul") and index == 0:
                    values.add(node.inputs[1])
                elif not self._drops_sinks(node) and (not node.is_op(*GUARDING) or self._holds_keys(node)):
                    return None
        return values.pop() if len(values) == 1 else None

    def _drops_sinks(self, node: Node) -> bool:
        """Whether a Slice leaves the probabilities of all keys, and none of what has none."""
        starts = node.input(1) if node.is_op("Slice") else None
        dims = self.shapes[node.result()].dims or ()
        return starts is not None and dims[-1:] == (self.keys,) and self.shapes[starts].elements == (0,)

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
        if (node := value.producer) is not None and joined_parts(node):
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
