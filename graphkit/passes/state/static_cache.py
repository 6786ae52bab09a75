"""Run a decoder whose cache has slots from the start: its positions and masks follow from how many are in use."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass

from onnx import TensorProto

from graphkit.errors import count_things
from graphkit.graph.cache_entries import CacheEntry
from graphkit.graph.dataflow import find_readers
from graphkit.graph.names import free_name, names_in
from graphkit.graph.new_nodes import make_concat
from graphkit.graph.view import Value, unwrap_value, walk_breadth_first
from graphkit.model import Model
from graphkit.passes.npu.cache_interface import Growth
from graphkit.passes.npu.host_inputs import SCORES
from graphkit.passes.state.update_cache_in_place import LENGTH, Slots
from graphkit.rewrite import Declined, Editor, Matched, NewNode, Outcome, Pass
from graphkit.rewrite.edits import remove_dead_code
from graphkit.rewrite.new_interface import NewInput, drop_dead_inputs, with_interface
from graphkit.shapes import Expr, Shapes, const, infer

Ports = dict[str, NewInput]
WRITES = {"ScatterND": (0, 2), "ScatterElements": (0, 2), "TensorScatter": (0, 1), "Where": (2, 1)}
"""The inputs of nodes that write slots: the slots, and what is new."""


def find_slot_axes(model: Model) -> dict[Value, int]:
    """Return the axis of the slots of each static cache, by its input, where the node that writes them tells."""
    shapes, axes = infer(model), dict[Value, int]()
    for past, entry in model.roles.pasts.items():
        if not entry.is_static or entry.present is None:
            continue
        axis = entry.axis
        node = unwrap_value(entry.present, ("Identity", "Transpose")).producer
        rank = len(shapes[past].dims or ())
        if node is not None and node.is_op("ScatterND"):
            turn = node.inputs[0].producer if node.inputs[0] is not None else None
            perm = turn.attr("perm", tuple) if turn is not None and turn.is_op("Transpose") else None
            axis = perm[0] if perm else axis
        elif node is not None and node.is_op("ScatterElements", "TensorScatter"):
            axis = (node.attr("axis", -2 if node.is_op("TensorScatter") else 0) or 0) % max(rank, 1)
        elif node is not None and node.is_op("Where") and (chosen := node.inputs[0]) is not None:
            dims = shapes[chosen].dims or ()
            wide = [at - len(dims) for at, dim in enumerate(dims) if dim.constant != 1]
            axis = wide[0] + rank if len(wide) == 1 else axis
        if axis is not None and 0 <= axis < rank:
            axes[past] = axis
    return axes


def count_slots(step: Model, first: Model) -> int | None:
    """Return how many slots static caches have in the layer that has the fewest; None where it may be any number."""
    shapes, given = (infer(step), infer(first))
    presents = {entry.slot: entry.present for entry in first.roles.cache if entry.past is None}
    found = []
    for past, axis in find_slot_axes(step).items():
        present = presents.get(step.roles.pasts[past].slot)
        dims = (shapes[past].dims, given[present].dims if present is not None else None)
        found += [size for each in dims if each and (size := each[axis].constant) is not None]
    return min(found, default=None)


def writes_rows(model: Model) -> bool:
    """Whether ScatterND writes the slots of all static caches, so that they can come first."""
    own = (entry.present for entry in model.roles.pasts.values() if not model.roles.is_cross(entry))
    makers = (unwrap_value(present, ("Identity", "Transpose")).producer for present in own if present is not None)
    return all(maker is not None and maker.is_op("ScatterND") for maker in makers)


def join_new_rows(model: Model, axes: Mapping[str, int], sizes: Mapping[str, int]) -> Matched[Growth]:
    """Return a decoder whose static caches have one slot fewer, behind which the new token comes last.

    A step of one token writes its keys and values into the next slot. Here they are joined to the other slots, so that
    attention reads as many as before, and the model gives them alone, for its host to write. Masks have to say of the
    last place what they said of the slot that was written. Axes are those of slots, by the names of inputs; sizes are
    numbers for symbols, such as 1 for that of new tokens.
    """
    editor, names, slots = Editor(model), names_in(model.scopes), set[Expr]()
    inputs, outputs, last, growths = dict[str, NewInput](), dict[str, NewInput](), list[NewNode](), list[Growth]()
    for name, axis in axes.items():
        past, tensor = model.graph.values[name], editor.shapes[model.graph.values[name]]
        dims, rank = tensor.dims or (), len(tensor.dims or ())
        uses = [*find_readers(past, lambda node, _: node.is_op("Transpose"))]
        readers = [use for use in uses if not use[0].is_op("Transpose", "Shape")]
        node, place = readers[0] if len(readers) == 1 else (None, 0)
        if node is None or WRITES.get(node.operator, (None, 0))[0] != place:
            return Matched(model, declined=(Declined(name, "it is not read by one node that writes its slots"),))
        data, new = node.operand(place), unwrap_value(node.operand(WRITES[node.operator][1]), ("Expand",))
        perm = (data.producer.attr("perm", tuple) if data.producer is not None else None) or tuple(range(rank))
        written = tuple(dim.substitute(sizes) for dim in editor.shapes[new].dims or ())
        expected = tuple(const(1) if at == axis else dims[at].substitute(sizes) for at in perm)
        if len(slots := {dims[axis], *slots}) > 1 or dims[axis].constant is None:
            text = " and ".join(sorted(map(str, slots)))
            return Matched(model, declined=(Declined(name, f"caches have {text} slots, and a host counts one number"),))
        if written != expected:
            return Matched(model, declined=(Declined(node.path, f"it does not write one token: {editor.shapes[new]}"),))
        editor.replace(node, make_concat([data.name, new.name], perm.index(axis), node.result().name, like=node))
        given = free_name(f"{name}_new", names)
        names.add(given)
        last.append(NewNode("Transpose", [new.name], [given], {"perm": [perm.index(at) for at in range(rank)]}))
        outputs[given] = NewInput(given, tensor.dtype, (*dims[:axis], const(1), *dims[axis + 1 :]))
        inputs[name] = NewInput(name, tensor.dtype, (*dims[:axis], dims[axis] - 1, *dims[axis + 1 :]))
        growths.append(Growth(past, node.result(), axis, new, given))
    writers = {growth.present.producer for growth in growths}
    made_of = {value.name: unwrap_value(value, ("Identity", "Transpose")).producer for value in model.graph.outputs}
    dropped = [name for name, maker in made_of.items() if maker in writers]
    made = with_interface(editor.result(), inputs, outputs, dropped, last)
    change = f"{count_things(len(growths), 'cache(s)')} written by the host"
    return Matched(drop_dead_inputs(remove_dead_code(made).model), (change,), matches=tuple(growths))


def find_unequal_addend(model: Model, slots: int) -> Value | None:
    """Return a constant that adds something else for each of so many slots to scores; None where there is none."""
    shapes = infer(model)

    def score_operands(value: Value) -> Iterable[Value | None]:
        return value.producer.operands if value.producer is not None and value.producer.is_op(*SCORES) else ()

    scores = (value for node in model.graph.nodes if node.is_op("Softmax") for value in node.operands)
    for value in walk_breadth_first(scores, score_operands):
        sizes = shapes[value].sizes() or ()
        array = model.array(value.constant) if value.constant is not None and sizes[-1:] == (slots,) else None
        if array is not None and (array != array[..., :1]).any():
            return value
    return None


@dataclass(frozen=True)
class CountSlotsInUse(Pass):
    """Let a decoder with a static cache count the slots in use itself, from `past_length`, a new input.

    Exporters write such a decoder for a cache that is as long from the start as it can get: a step writes its keys and
    values into the next slots and gives all of them back. Positions of the new tokens, and a boolean mask over the
    slots, are inputs that the caller has to make, and a counter for each layer may be state. Here all of them follow
    from how many slots are in use: a new token sees what is past, itself and those before it.

    With `slots_first=1` the caches are [slots, batch, heads, width] where they come in and go out, as ScatterND writes
    them: it writes in place then, once Transposes are folded.

    Legality: the one mask is boolean, hides what is False, and has four axes; positions have one or two. No row is
    padded, and the mask hides nothing of the past, such as what lies before a window.

    Before:

        agraph (int64[N, 1] input_ids, int64[1] cache_position, float[N, 2, 8, 4] past_key_0, float[1, N, 2, 4] k)
        => (float[N, 2, 8, 4] present_key_0) <int64[1] axis = {1}> {
            at = Unsqueeze (cache_position, axis)
            slots = Transpose <perm = [2, 0, 1, 3]> (past_key_0)
            written = ScatterND (slots, at, k)
            present_key_0 = Transpose <perm = [1, 2, 0, 3]> (written)
        }

    After `count-slots-in-use{slots_first=1}`:

        agraph (int64[N, 1] input_ids, float[8, N, 2, 4] past_key_0, float[1, N, 2, 4] k, int64[1] past_length)
        => (float[8, N, 2, 4] past_key_0_after)
        <int64[1] axis = {1}, int64[1] "int/0" = {0}, int64[1] "int/1" = {1}> {
            ["state/new_length"] "state/new_length" = Shape <end = 2, start = 1> (input_ids)
            ["state/squeeze"] "state/squeeze" = Squeeze ("int/0")
            ["state/squeeze_1"] "state/squeeze_1" = Squeeze ("state/new_length")
            ["state/squeeze_2"] "state/squeeze_2" = Squeeze ("int/1")
            ["state/range"] "state/range" = Range ("state/squeeze", "state/squeeze_1", "state/squeeze_2")
            ["state/places"] "state/places" = Add (past_length, "state/range")
            past_key_0_moved = Transpose <perm = [1, 2, 0, 3]> (past_key_0)
            at = Unsqueeze ("state/places", axis)
            slots = Transpose <perm = [2, 0, 1, 3]> (past_key_0_moved)
            past_key_0_after = ScatterND (slots, at, k)
        }

    Attributes:
        slots_first: 1 where caches have their slots first.
        start: 1 where no slot is in use yet.
        axis: The axis of the slots where no cache comes in.
    """

    changes_interface = True

    slots_first: int = 0
    start: int = 0
    axis: int = 2

    def run(self, model: Model) -> Outcome:
        roles, axes, editor = model.roles, find_slot_axes(model), Editor(model)
        entries = [entry for entry in roles.cache if entry.present is not None and not roles.is_cross(entry)]
        static = [entry for entry in entries if entry.is_static or self.start]
        declined = tuple(_find_obstacles(model, editor.shapes, entries, axes, is_start=bool(self.start)))
        tokens = roles.first("tokens") or roles.first("embeddings")
        if declined or not static or tokens is None:
            return Outcome(model, declined=declined)
        slots = Slots(editor, tokens, "scatter-nd", is_start=bool(self.start))
        inputs, outputs, last = Ports(), Ports(), list[NewNode]()
        if not self.start:
            inputs[LENGTH] = NewInput(LENGTH, TensorProto.INT64, (const(1),), "how many slots are in use")
        dropped = {name_of(entry) for entry in static}
        dropped |= {e.present.name for e in roles.cache if e.past and e.present and roles.is_cross(e)}  # as it was
        dropped |= self._count_instead(slots, static[0], axes)
        for entry in static:
            self._place(entry, self._axis_of(entry, axes), slots, inputs, outputs, last)
        made = with_interface(editor.result(), inputs, outputs, dropped, last)
        change = f"{count_things(len(static), 'cache(s)')} whose slots in use are counted"
        return Outcome(drop_dead_inputs(remove_dead_code(made).model), (change,))

    def _count_instead(self, slots: Slots, entry: CacheEntry, axes: Mapping[Value, int]) -> set[str]:
        """Compute positions, the mask and counters from the slots in use; return the inputs and outputs that go."""
        editor, roles, shapes = slots.editor, slots.editor.model.roles, slots.editor.shapes
        dropped = {value.name for value in roles.all("positions", "mask")}
        for value in roles.all("positions"):
            rank, dtype = len(shapes[value].dims or ()), shapes[value].dtype
            editor.replace_all_uses(value, slots.positions(None, dtype) if rank == 2 else slots.new_places(dtype))
        for mask in roles.all("mask"):
            sized = mask if entry.past is not None else entry.present  # which a first step makes whole
            count = (shapes[sized].dims or ())[-1 if sized is mask else self.axis].constant
            axis = 0 if self.slots_first else self._axis_of(entry, axes)
            length = slots.number(count) if count is not None else slots.length_of(entry.past or mask, axis)
            editor.replace_all_uses(mask, slots.causal_mask(length))
        for state in roles.states:  # an integer that grows counts as well
            dims, node = shapes[state.past].dims, unwrap_value(state.next, ("Identity",)).producer
            is_sum = node is not None and node.is_op("Add") and state.past in node.inputs
            dtype = shapes[state.past].dtype
            if is_sum and dims in ((), (const(1),)) and dtype in (TensorProto.INT64, TensorProto.INT32):
                editor.replace_all_uses(state.past, slots.length(len(dims), dtype))
                dropped |= {state.past.name, state.next.name}
        return dropped

    def _axis_of(self, entry: CacheEntry, axes: Mapping[Value, int]) -> int:
        return self.axis if entry.past is None else axes.get(entry.past, self.axis)

    def _place(
        self, entry: CacheEntry, axis: int, slots: Slots, inputs: Ports, outputs: Ports, last: list[NewNode]
    ) -> None:
        """Give a cache the layout that it is to have, and the name of its output."""
        present, past, editor = entry.present, entry.past, slots.editor
        assert present is not None
        dims, dtype = editor.shapes[present].dims or (), editor.shapes[present].dtype
        rest = [at for at in range(len(dims)) if at != axis]
        order = [axis, *rest] if self.slots_first else [*range(len(dims))]
        after = editor.unique_name(f"{past.name if past is not None else present.name}_after")
        outputs[after] = NewInput(after, dtype, [dims[at] for at in order])
        turn = [order.index(at) for at in range(len(dims))]
        node = unwrap_value(present, ("Identity",)).producer
        perm = node.attr("perm", tuple) if node is not None and node.is_op("Transpose") else None
        if self.slots_first and node is not None and perm == tuple(turn):
            editor.rename(node.operand(0), after)  # which gives it in this layout
        else:
            last.append(NewNode("Transpose", [present.name], [after], {"perm": order}))
        if past is None:
            return
        past_dims, lies_at = editor.shapes[past].dims or dims, 0 if self.slots_first else axis
        slots.replace_shapes(past, axis, slots.dim(past_dims[axis]) or slots.length_of(past, lies_at))
        if self.slots_first:
            inputs[past.name] = NewInput(past.name, dtype, [past_dims[at] for at in order])
            moved = editor.unique_name(f"{past.name}_moved")
            editor.replace_all_uses(past, moved)
            editor.insert_first(editor.model.graph, NewNode("Transpose", [past.name], [moved], {"perm": turn}))


def _find_obstacles(
    model: Model, shapes: Shapes, entries: Sequence[CacheEntry], axes: Mapping[Value, int], *, is_start: bool
) -> Iterator[Declined]:
    """Yield why the slots in use cannot be counted instead of what a caller makes."""
    roles, tokens = model.roles, model.roles.first("tokens") or model.roles.first("embeddings")
    if tokens is None or len(shapes[tokens].dims or ()) < 2:
        yield Declined(model.name, "no input is known to be its tokens")
    for entry in entries:
        if not (entry.is_static or is_start):
            yield Declined(name_of(entry), "it is not as long after a step as before")
        elif entry.past is not None and entry.past not in axes:
            yield Declined(entry.past.name, "nothing tells which axis has its slots")
    for mask in roles.all("mask"):
        if shapes[mask].dtype != TensorProto.BOOL or len(shapes[mask].dims or ()) != 4:
            yield Declined(mask.name, f"it is {shapes[mask]}, and no boolean mask over slots")
        elif roles.polarities[mask] != "keeps":
            yield Declined(mask.name, "it is not True for what a token sees")
        elif roles.first("tokens") is None:
            yield Declined(mask.name, "it may show a picture before a text all of itself")
    if len(masks := roles.all("mask")) > 1:
        yield Declined(masks[1].name, f"it may hide other slots than '{masks[0].name}'")
    for value in roles.all("positions"):
        if len(shapes[value].dims or ()) not in (1, 2):
            yield Declined(value.name, f"it is {shapes[value]}, which are no positions of tokens")


def name_of(entry: CacheEntry) -> str:
    """Return the name of what a cache becomes."""
    value: Value | None = entry.present or entry.past
    return value.name if value is not None else ""
