"""Let a batched MatMul and its neighbours work on `[b, h, s, d]` where an export flattens it to `[b*h, s, d]`.

A value is flat where a Reshape merges leading dims into its first, or where a node gives it that reads flat values and
can be lifted: one that treats every slice of the leading dim alike, so that only its axes shift. Values that another
node needs flat stay so, with all that they are computed from; the rest falls into connected regions, and each is lifted
as a whole or not at all.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import suppress
from typing import Any

import numpy as np
from msgspec import Struct, field

from graphkit.graph.new_nodes import RESHAPE_SINCE
from graphkit.graph.operator_traits import BROADCASTING, EXTREMES, UNARY, UNIDIRECTIONAL, joined_parts
from graphkit.graph.view import Node, Value, connected_groups
from graphkit.ops.axes import FACTORS, FREE, RULES, find_layout
from graphkit.ops.rule_context import NodeFacts, UnknownError
from graphkit.ops.tensor import Dims, element_numbers
from graphkit.passes.shapes.simplify_reshape import merged_dims, reshape_spec
from graphkit.rewrite import Editor, NodeInput, Rewrite, copy_node
from graphkit.rewrite.fusions_to_keep import spoils_product
from graphkit.shapes import lower

Spec = tuple[int, ...]
Nodes = dict[Node, None]  # in graph order
Exit = Callable[[Node, Value], bool]  # whether a node that reads a flat value can read the lifted one instead


LIFTABLE = UNARY | BROADCASTING.keys() | UNIDIRECTIONAL.keys() | RULES.keys() | {"Gather", "Transpose"}
LIFTABLE -= {"Expand", "Pad", "SimplifiedLayerNormalization", "Tile"}
Names = dict[Value, Value | str]  # by flat value, the lifted one


class Lift(Struct, frozen=True):
    """How a node is lifted: written for tensors whose leading dim is split into several."""

    inputs: frozenset[int]  # which inputs have to be lifted; the others are read as they are
    outputs: Sequence[int] = (0,)  # which outputs are lifted then; the others stay as they are
    axis: int | None = None  # the attributes that are axes, as they count in the flat tensor
    axes: Sequence[int] = ()
    perm: Sequence[int] = ()
    arrays: Mapping[int, np.ndarray] = field(default_factory=dict)  # the inputs that are axes, likewise, from the start

    def attributes(self, extra: int) -> dict[str, Any]:
        """Return the attributes that change where the tensors of a node have so many leading dims more."""
        attributes: dict[str, Any] = {}
        if self.axis is not None:
            attributes["axis"] = self.axis if self.axis < 0 else self.axis + extra
        if self.axes:
            attributes["axes"] = [axis + extra for axis in self.axes]
        if self.perm:
            attributes["perm"] = [*range(extra), *(axis + extra for axis in self.perm)]
        return attributes


def _is_liftable(node: Node) -> bool:
    return not node.domain and node.op_type in LIFTABLE


def _find_lift(facts: NodeFacts, flat: frozenset[int]) -> Lift | None:
    """Return how a node is lifted of which these inputs are, None where it cannot be, or raise an UnknownError."""
    node = facts.node
    if node.is_op("Transpose"):
        perm = node.attr("perm", tuple)
        return Lift(flat, perm=perm) if perm and perm[0] == 0 else None
    if node.is_op("Gather"):
        axis, rank = node.attr("axis", 0), len(facts.dims(0))
        if flat == {1}:
            return Lift(flat) if axis in (0, -rank) else None
        is_trailing = axis is not None and -rank < axis < rank and axis != 0
        return Lift(flat, axis=axis) if flat == {0} and is_trailing else None
    if node.operator in EXTREMES and len(flat) < len(node.inputs):
        return None
    layout = find_layout(facts)
    if layout.sizes is not None or not layout.kinds or not flat <= layout.inputs.keys():
        return None
    left, right = FACTORS.get(node.op_type, (0, 0))
    if right and len(facts.dims(left)) == len(facts.dims(right)) == 2:  # rows of one matrix
        return Lift(flat) if flat == {left} else None
    if layout.kinds[0] != FREE:
        return None
    for index in layout.inputs:  # each is lifted, or stays, as it is
        dims, rank = facts.dims(index), len(layout.kinds)
        if index in flat and len(dims) != rank and not node.is_op("Unsqueeze"):
            return None
        if index not in flat and (joined_parts(node) or not (len(dims) < rank or dims[0] == 1)):
            return None
    if right and left not in flat and lower(layout.outputs[0][0]) < 1:  # onnxruntime refuses [m, k] by [0, q, k, n]
        return None
    outputs, positive = range(len(layout.outputs)), [axis % len(layout.kinds) for axis in layout.axes]
    if layout.axes_input is None:
        return Lift(flat, outputs, layout.axis, positive)
    array = element_numbers(facts.tensor(layout.axes_input)) if facts.has(layout.axes_input) else None
    if array is None:
        return None
    # from the start: onnxruntime's reductions of an empty tensor ignore axes that count from the end
    arrays = {layout.axes_input: np.array(positive, array.dtype).reshape(array.shape)}
    return Lift(flat, outputs, layout.axis, arrays=arrays)


class Region(Struct):
    """Nodes to lift together."""

    lead: Dims  # the dims in the place of the first one
    nodes: tuple[Node, ...]  # in graph order
    # for the flat value of each Reshape to the region: the shape of a Reshape that gives the lifted value of the same
    # tensor, None where that tensor is it
    sources: dict[Value, Spec | None] = field(default_factory=dict)
    # for each Reshape from the region likewise, None where the lifted value is its output
    exits: dict[Node, Spec | None] = field(default_factory=dict)
    saved: int = 0  # how many Reshapes go


class FlatRegions:
    """The flat values of a model, and the nodes that could be lifted; all in graph order."""

    def __init__(self, editor: Editor) -> None:
        self.editor = editor
        self.makers: dict[Value, Node] = {}  # the node that gives each flat value, a Reshape where a region begins
        self.lifts: dict[Node, Lift] = {}  # how nodes are lifted, as far as their inputs tell
        self.reasons: dict[Node, str] = {}  # why Reshapes to a flat value stay
        for node in editor.nodes():
            self._visit_node(node)

    def find(self) -> Iterator[Region]:
        """Yield the regions that are worth it."""
        for value, maker in self.makers.items():
            blocking = (node for node, _ in value.consumers if _is_liftable(node) and node not in self.lifts)
            if maker.is_op("Reshape") and (first := next(blocking, None)) is not None:
                self.reasons[maker] = _reading_text(first, value)
        alive = dict.fromkeys(self.lifts)
        self._drop_nodes(alive, self._blocked_nodes(alive, self._is_exit), lambda _: True)
        for part in connected_groups(alive, self._neighbours):
            votes: Counter[Dims] = Counter()  # the dims that Reshapes of a region merge, or split into
            for value in self._lifted_values(part):
                around = [self.dims(node.outputs[0]) for node, _ in value.consumers if self._is_exit(node, value)]
                if self.makers[value].is_op("Reshape"):
                    around.append(self.dims(self.makers[value].input(0)))
                votes.update(lead for dims in around if (lead := merged_dims(dims, self.dims(value))))
            if not votes:
                continue
            ((lead, _),) = votes.most_common(1)
            fitting = dict.fromkeys(part)
            self._fit(fitting, lead)
            for nodes in connected_groups(fitting, self._neighbours):
                region = self._region(nodes, lead)
                if not region.saved:
                    for value in region.sources:
                        self.reasons.setdefault(self.makers[value], "no Reshape would go")
                else:
                    read = (value for node in region.nodes for value in node.operands if node.is_op("MatMul"))
                    for each in read if self.editor.keep_fusions else ():
                        second = each.producer
                        if second in region.nodes and second is not None and self._can_merge(second, region):
                            source = second.operand(0)  # a Reshape stays between the two Transposes
                            region.sources[source] = (0,) * len(self._lifted_dims(source, region.lead))
                    yield region

    def _neighbours(self, node: Node) -> Iterator[Node]:
        for value in [*self._inputs(node), *self._outputs(node)]:
            yield from (self.makers[value], *(consumer for consumer, _ in value.consumers))

    def _can_merge(self, second: Node, region: Region) -> bool:
        """Whether onnxruntime would merge a Transpose with the one before it, were there no Reshape between them.

        A FusedMatMul takes in the Transpose of `[b, h, s, d]` to `[b, h, d, s]`, not that of `[b, s, h, d]`.
        """
        source = second.input(0)
        if source is None or region.sources.get(source, ()) is not None or not second.is_op("Transpose"):
            return False
        if (first := self.makers[source].operand(0).producer) is None or not first.is_op("Transpose"):
            return False
        lifted = self.lifts[second].attributes(len(region.lead) - 1)
        return spoils_product(first.attr("perm", tuple), lifted.get("perm"))

    # Which values are flat

    def dims(self, value: Value | None) -> Dims:
        """Return the dims of a value, () where they are not known: a scalar is not flat either."""
        return () if value is None else self.editor.shapes[value].dims or ()

    def _visit_node(self, node: Node) -> None:
        if node.is_op("Reshape"):
            out = node.outputs[0]
            if out is not None and self._may_enter(node) and merged_dims(self.dims(node.input(0)), self.dims(out)):
                self.makers[out] = node
        elif _is_liftable(node) and (lifting := self._lift_reader(node)) is not None:
            self.lifts[node] = lifting
            for value in self._inputs(node):
                if value.producer is not None:
                    self.makers.setdefault(value, value.producer)
            self.makers.update((value, node) for value in self._outputs(node))

    def _may_enter(self, node: Node) -> bool:
        """Whether a Reshape can be where a region begins: not where another one ends."""
        is_new = self.editor.is_untouched(node.result()) and node.input(0) not in self.makers
        return is_new and self.editor.is_free(node)

    def _lift_reader(self, node: Node) -> Lift | None:
        """Return how a node is lifted that reads flat values; those that Reshapes give count where it needs them."""
        flat = frozenset(index for index, value in enumerate(node.inputs) if value in self.makers)
        outputs = node.results
        if not flat or not outputs or not all(map(self.editor.is_untouched, outputs)):
            return None
        first = self.dims(node.inputs[min(flat)])[:1]
        if any(self.dims(node.inputs[index])[:1] != first for index in flat):
            return None
        more = set[int]()  # what Reshapes give
        for index, value in enumerate(node.inputs):
            maker = value.producer if value is not None else None
            if maker is not None and maker.is_op("Reshape") and self.dims(value)[:1] == first:
                more |= {index} if value in self.makers or self._may_enter(maker) else set()
        facts = self.editor.facts(node)
        for inputs in (flat, flat | more):
            with suppress(UnknownError):
                if (lifting := _find_lift(facts, inputs)) is None:
                    continue
                others = [v for i, v in enumerate(node.outputs) if i not in lifting.outputs and v is not None]
                has_lead = all(self.dims(node.outputs[index])[:1] == first for index in lifting.outputs)
                if has_lead and not any(value.is_output for value in others):  # others may have other names
                    return lifting
        return None

    # Which of them stay

    def _inputs(self, node: Node) -> list[Value]:
        return [value for index in self.lifts[node].inputs if (value := node.inputs[index]) is not None]

    def _outputs(self, node: Node) -> list[Value]:
        return [value for index in self.lifts[node].outputs if (value := node.outputs[index]) is not None]

    def _lifted_values(self, nodes: Iterable[Node]) -> dict[Value, None]:
        return dict.fromkeys(value for node in nodes for value in [*self._inputs(node), *self._outputs(node)])

    def _is_exit(self, node: Node, value: Value) -> bool:
        out = node.outputs[0]
        is_free = out is not None and self.editor.is_free(node) and out not in self.editor.aliases
        is_last = is_free and out not in self.makers and len(self.dims(out)) > 0
        return node.is_op("Reshape") and node.input(0) is value and is_last

    def _find_obstacle(self, value: Value, alive: Nodes, is_exit: Exit) -> str:
        """Return which node needs a value flat, "" where none does."""
        if value.is_output:
            return f"'{value.name}' is an output"
        for node, index in value.consumers:
            if not (node in alive and index in self.lifts[node].inputs) and not is_exit(node, value):
                return _reading_text(node, value)
        return ""

    def _blocked_nodes(self, alive: Nodes, is_exit: Exit) -> list[tuple[Node, str]]:
        """Return the nodes whose outputs are needed flat, and why."""
        given = ((node, value) for node in alive for value in self._outputs(node))
        return [(node, why) for node, value in given if (why := self._find_obstacle(value, alive, is_exit))]

    def _drop_nodes(self, alive: Nodes, pending: list[tuple[Node, str]], may_stay: Callable[[Value], bool]) -> None:
        """Take nodes out of those to lift, and with them all that cannot be lifted then.

        `may_stay` says of the value that a Reshape gives whether it can be had both flat and lifted.
        """
        spoiled: set[Value] = set()
        while pending:
            node, reason = pending.pop()
            if node not in alive:
                continue
            del alive[node]
            for value in self._inputs(node):
                maker = self.makers[value]
                self.reasons.setdefault(maker, reason)
                if maker in self.lifts:
                    pending.append((maker, reason))
                elif value not in spoiled and not may_stay(value):
                    spoiled.add(value)
                    pending += [(consumer, reason) for consumer, _ in value.consumers]
            pending += [(consumer, reason) for value in self._outputs(node) for consumer, _ in value.consumers]

    # What replaces the first dim

    def _lifted_dims(self, value: Value, lead: Dims) -> Dims:
        return lead + self.dims(value)[1:]

    def _exit_at(self, lead: Dims) -> Exit:
        def is_exit(node: Node, value: Value) -> bool:
            lifted, out = self._lifted_dims(value, lead), node.outputs[0]
            return self._is_exit(node, value) and reshape_spec(lifted, self.dims(out)) is not None

        return is_exit

    def _fit(self, nodes: Nodes, lead: Dims) -> None:
        """Take out the nodes that cannot be lifted to these dims."""

        def is_direct(value: Value) -> bool:
            return self.dims(self.makers[value].input(0)) == self._lifted_dims(value, lead)

        is_exit = self._exit_at(lead)
        pending = self._blocked_nodes(nodes, is_exit)
        for value in self._lifted_values(nodes):
            if self.makers[value] in self.lifts or is_direct(value):
                continue
            reason = self._find_obstacle(value, nodes, is_exit)
            lifted = self._lifted_dims(value, lead)
            if reshape_spec(self.dims(self.makers[value].input(0)), lifted) is None:
                reason = f"no constant shape gives [{', '.join(map(str, lifted))}]"
            if reason:
                pending += [(consumer, reason) for consumer, _ in value.consumers]
        self._drop_nodes(nodes, pending, is_direct)

    def _region(self, part: Sequence[Node], lead: Dims) -> Region:
        region, nodes = Region(lead, tuple(part)), dict.fromkeys(part)
        is_exit = self._exit_at(lead)
        for value in self._lifted_values(nodes):
            lifted, maker = self._lifted_dims(value, lead), self.makers[value]
            if maker not in self.lifts:
                before = self.dims(maker.input(0))
                region.sources[value] = None if before == lifted else reshape_spec(before, lifted)
                if reason := self._find_obstacle(value, nodes, is_exit):
                    self.reasons.setdefault(maker, reason)
                    continue
                region.saved += before == lifted
            for node in dict.fromkeys(node for node, _ in value.consumers if is_exit(node, value)):
                after = self.dims(node.outputs[0])
                region.exits[node] = None if after == lifted else reshape_spec(lifted, after)
                region.saved += after == lifted
        return region


def _reading_text(node: Node, value: Value) -> str:
    return f"{node.operator} '{node.label}' reads '{value.name}' flat"


class FlattenFreeMatmul(Rewrite):
    """Remove the Reshapes to `[b*h, s, d]` and back around batched MatMuls, which work on `[b, h, s, d]` as well.

    The nodes between such Reshapes are lifted if their operator treats every slice of the leading dim alike: MatMul,
    Transpose, Softmax, elementwise operators, reductions and others; their axes shift. Legality: a connected region is
    lifted as a whole; at least one Reshape is removed and none is added; no value in between is an output, or read by a
    node that needs it flat; tensors that are combined with these are flattened likewise, or lack the leading dim.
    Results are equal bit for bit. In a fold, a Reshape that copies all dims stays if onnxruntime would otherwise merge
    two Transposes, and lose a FusedMatMul.

    Before:

        agraph (float[N, 4, 5, 8] q, float[N, 4, 8, 5] k, float[N, 1, 5, 5] mask) => (float[N, 4, 5, 5] y)
        <int64[3] rows = {-1, 5, 8}, int64[3] columns = {-1, 8, 5}, int64[4] heads = {-1, 4, 5, 5}> {
            a = Reshape (q, rows)
            b = Reshape (k, columns)
            c = MatMul (a, b)
            d = Reshape (c, heads)
            y = Add (d, mask)
        }

    After:

        agraph (float[N, 4, 5, 8] q, float[N, 4, 8, 5] k, float[N, 1, 5, 5] mask) => (float[N, 4, 5, 5] y) {
            c_lifted = MatMul (q, k)
            y = Add (c_lifted, mask)
        }
    """

    def edit(self, editor: Editor) -> None:
        reshapes = (node for node in editor.nodes("Reshape") if node.scope.opset() >= RESHAPE_SINCE)
        if not any(_is_liftable(reader) for node in reshapes for reader, _ in node.result().consumers):
            return
        regions = FlatRegions(editor)
        for region in regions.find():
            _lift_region(editor, regions, region)
            editor.note("Reshape(s) around batched nodes removed", region.saved)
        for node in regions.makers.values():
            if node.is_op("Reshape") and node in regions.reasons:
                editor.decline(node, f"its flat form stays: {regions.reasons[node]}")


def _lift_region(editor: Editor, regions: FlatRegions, region: Region) -> None:
    lifted: Names = {}
    for value, spec in region.sources.items():
        reshape = regions.makers[value]
        source = lifted[value] = reshape.operand(0)
        if spec is not None:
            name = lifted[value] = editor.unique_name(f"{value.name}_lifted")
            editor.insert_before(reshape, editor.make_reshape(source, spec, name, reshape))
    for node in region.nodes:
        lift = regions.lifts[node]
        extra = len(region.lead) - 1
        inputs: list[NodeInput] = [*node.inputs]
        for index in lift.inputs:
            inputs[index] = lifted[node.operand(index)]
        label = node.outputs[0].name if node.outputs[0] else node.label
        for index, array in lift.arrays.items():
            inputs[index] = editor.constant((array + extra).astype(array.dtype), f"{label}_axes")
        outputs: list[str] = []
        for index, made in enumerate(node.outputs):
            is_lifted = index in lift.outputs
            if made is None or not (is_lifted or made.consumers):
                outputs.append("")
                continue
            outputs.append(editor.unique_name(f"{made.name}_lifted" if is_lifted else made.name))
            if is_lifted:
                lifted[made] = outputs[-1]
            else:
                editor.replace_all_uses(made, outputs[-1])
        editor.insert_before(node, copy_node(node, inputs, outputs, **lift.attributes(extra)))
    for reshape, spec in region.exits.items():
        flat, out = reshape.operand(0), reshape.result()
        if spec is None:
            editor.bypass(reshape, lifted[flat])
        else:
            editor.replace(reshape, editor.make_reshape(lifted[flat], spec, out.name, reshape))
