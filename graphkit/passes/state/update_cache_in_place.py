"""Write the KV cache in place: slots that the model gets, writes the new keys and values into, and gives back."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from msgspec.structs import replace
from onnx import TensorProto

from graphkit.dtypes import INT64_MAX
from graphkit.errors import UsageError, count_things
from graphkit.graph.names import free_name, names_in
from graphkit.graph.new_nodes import make_concat, make_gather, make_reshape, make_slice
from graphkit.graph.roles import declared_rank
from graphkit.graph.view import Value, unwrap_value
from graphkit.model import Model
from graphkit.options import Update
from graphkit.passes.npu.cache_interface import Growth, find_growths
from graphkit.passes.state.sliding_window_caches import Ring, rings_of
from graphkit.rewrite import Declined, Editor, NewNode, Outcome, Pass, keep_members
from graphkit.rewrite.edits import remove_dead_code
from graphkit.rewrite.new_interface import NewInput, declared_dims_in, drop_dead_inputs, with_interface, with_names
from graphkit.shapes import Expr, const, symbol

LENGTH = "past_length"
SLOTS = "slots"  # what their dim is called where it is a symbol; that of rings, with the window behind it
SINCE: Mapping[Update, int] = {"tensor-scatter": 24, "scatter-nd": 16}  # the opset that has the operators


class Slots:
    """Makes nodes for the slots of a decoder's state.

    Lengths are int64 tensors of one element: nodes at the start of the graph compute them from `past_length` and from
    the input of new tokens, [batch, tokens] or [batch, tokens, width]. At the start no slot is in use yet.
    """

    def __init__(self, editor: Editor, tokens: Value, update: Update, *, is_start: bool) -> None:
        self.editor, self.tokens, self.update, self.is_start = editor, tokens, update, is_start
        dims = editor.shapes[tokens].dims
        assert dims is not None
        self._batch, self.count = dims[:2]
        self._batches = {self._batch}  # exporters may give the rows of each input a name of their own
        for value in editor.model.roles.inputs:
            for axis, dim in enumerate(editor.shapes[value].dims or ()):
                if dim.atom is not None and editor.model.roles.axis(value, axis) == "batch":
                    self._batches.add(dim)
        self._known: dict[object, str] = {}

    # Lengths

    @property
    def past(self) -> str:
        """How many slots are in use before."""
        return self.number(0) if self.is_start else LENGTH

    @property
    def new(self) -> str:
        """How many tokens are new."""
        return self.node("Shape", self.tokens.name, as_="new_length", start=1, end=2)

    @property
    def end(self) -> str:
        """How many slots are in use after."""
        return self.new if self.is_start else self.node("Add", LENGTH, self.new, as_="total_length")

    def number(self, number: int) -> str:
        """Return a constant of one element."""
        return self.editor.integers([number], f"int/{number}")

    def dim(self, dim: Expr) -> str | None:
        """Return a dim that is a number, or so many times the batch; None for any other."""
        if dim.constant is not None:
            return self.number(dim.constant)
        batch = self.node("Shape", self.tokens.name, as_="batch", start=0, end=1)
        if dim in self._batches:
            return batch
        factor = dim.terms[0][1]
        return self.node("Mul", batch, self.number(factor), as_="rows") if dim == self._batch * factor else None

    def replace_shapes(self, past: Value, axis: int, count: str) -> None:
        """Let nodes that read the shape of a cache read one of the batch, of numbers, and of a count along an axis."""
        dims = self.editor.shapes[past].dims or ()
        parts = [count if at == axis else self.dim(dim) for at, dim in enumerate(dims)]
        for node, _ in past.consumers:
            read = parts[slice(node.attr("start", 0), node.attr("end", len(dims)))] if node.is_op("Shape") else [None]
            names = [part for part in read if part is not None]
            if len(names) == len(read):
                names = names or [self.editor.integers([], "int/none")]
                self.editor.replace(node, make_concat(names, 0, node.result().name, like=node))

    # Writing and reading

    def layout(self, dims: Sequence[Expr], axis: int, count: Expr) -> tuple[Expr, ...]:
        """Return the dims of so many slots of a cache that has these dims, and grows along an axis.

        What ScatterND writes has its slots first, so that those in use lie together, one behind the other.
        """
        others = (*dims[:axis], *dims[axis + 1 :])
        return (count, *others) if self.update == "scatter-nd" else (*dims[:axis], count, *dims[axis + 1 :])

    def write(self, slots: str, new: str, dims: Sequence[Expr], axis: int, out: str, window: int = 0) -> list[NewNode]:
        """Return the nodes that write what is new behind the slots in use, which lie in their `layout`.

        The cache has these dims, the first of which has a `dim`, and grows along an axis; a window is the length of a
        ring, 0 for none.
        """
        nodes: list[NewNode] = []
        at, count = self.past, self.new
        if window:
            if self.is_start:  # what is older than the window need not be written
                at = self.node("Sub", count, self.node("Min", count, self.number(window), as_="kept"), as_="first_kept")
                kept = self.editor.unique_name(f"{new}_kept")
                nodes.append(make_slice(new, at, self.number(INT64_MAX), self.number(axis), out=kept))
                new, count = kept, self.node("Min", count, self.number(window), as_="kept")
            at = self.node("Mod", at, self.number(window), as_="ring_slot")
        if self.update == "tensor-scatter":
            first = self.dim(dims[0])
            assert first is not None
            where = None if self.is_start and not window else self.node("Expand", at, first, as_="write_at")
            attributes: dict[str, Any] = {"axis": axis, "mode": "circular"} if window else {"axis": axis}
            return [*nodes, NewNode("TensorScatter", [slots, new, where], [out], attributes)]
        rows = self.editor.unique_name(f"{new}_rows")
        perm = [axis, *(each for each in range(len(dims)) if each != axis)]
        nodes.append(NewNode("Transpose", [new], [rows], {"perm": perm}))
        places = self.node("Add", at, self._range(count), as_="slots")
        if window:
            places = self.node("Mod", places, self.number(window), as_="ring_slots")
        indices = self.node("Unsqueeze", places, self.number(1), as_="write_at")  # [tokens, 1]
        return [*nodes, NewNode("ScatterND", [slots, indices, rows], [out])]

    def read(self, slots: str, rank: int, axis: int, out: str, window: int = 0) -> NewNode:
        """Return the node that reads the slots in use, after new ones are written.

        Of slots that come first, the host gives those in use alone.
        """
        if self.update == "scatter-nd":
            return NewNode("Transpose", [slots], [out], {"perm": [*range(1, axis + 1), 0, *range(axis + 1, rank)]})
        return make_slice(slots, self.number(0), self.used_slots(window), self.number(axis), out=out)

    def used_slots(self, window: int) -> str:
        """Return how many slots are in use after, of a ring if there is a window."""
        return self.node("Min", self.end, self.number(window), as_="ring_length") if window else self.end

    def ring_positions(self, window: int) -> str:
        """Return the position of the token in each slot of a ring that is in use, after one token is written."""
        slots = self._range(self.used_slots(window))
        age = self.node("Mod", self.node("Sub", self.past, slots, as_="since"), self.number(window), as_="age")
        return self.node("Sub", self.past, age, as_="ring_positions")

    def _range(self, count: str) -> str:
        return self.node("Range", *[self.node("Squeeze", each) for each in (self.number(0), count, self.number(1))])

    def positions(self, mask: str | None, dtype: int) -> str:
        """Return the positions of the new tokens, [batch, tokens], without those that a mask [batch, total] hides."""
        shape = self.node("Shape", self.tokens.name, as_="tokens_shape", start=0, end=2)
        if mask is None:
            positions = self.node("Expand", self.node("Add", self.past, self._range(self.new)), shape, as_="positions")
        else:
            counted = self.node("CumSum", self.node("Cast", mask, to=TensorProto.INT64), self.number(1))
            positions = self.node("Max", self.node("Sub", counted, self.number(1)), self.number(0))
            if not self.is_start:
                positions = self.append(make_slice(positions, self.past, self.end, self.number(1)))
                positions = self.append(make_reshape(positions, shape), "positions")
        return self._cast(positions, dtype)

    def length(self, rank: int, dtype: int) -> str:
        """Return how many slots are in use before, of rank 0 or 1."""
        return self._cast(self.node("Squeeze", self.past) if rank == 0 else self.past, dtype)

    def new_places(self, dtype: int) -> str:
        """Return the positions of the new tokens, [tokens]."""
        return self._cast(self.node("Add", self.past, self._range(self.new), as_="places"), dtype)

    def _cast(self, value: str, dtype: int) -> str:
        return value if dtype == TensorProto.INT64 else self.node("Cast", value, to=dtype)

    def causal_mask(self, slots: str) -> str:
        """Return the mask [batch, 1, tokens, slots] that lets a token see what is past, itself and those before it."""
        own = self.node("Unsqueeze", self.new_places(TensorProto.INT64), self.number(1), as_="own_place")
        seen = self.node("LessOrEqual", self._range(slots), own, as_="seen")
        batch = self.node("Shape", self.tokens.name, as_="batch", start=0, end=1)
        name, parts = self.editor.unique_name("state/mask_shape"), [batch, self.number(1), self.new, slots]
        self.editor.insert_first(self.editor.model.graph, make_concat(parts, 0, name))
        return self.node("Expand", seen, name, as_="mask")

    def length_of(self, value: Value, axis: int) -> str:
        """Return how long an axis of an input is."""
        return self.node("Shape", value.name, as_="slots", start=axis, end=axis + 1)

    def node(self, op_type: str, *inputs: str, as_: str = "", **attributes: int) -> str:
        """Return the output of a node at the start of the graph, the same for equal ones."""
        return self.append(NewNode(op_type, inputs, [], attributes), as_)

    def append(self, node: NewNode, as_: str = "") -> str:
        """Return the output of a node at the start of the graph, the same for equal ones."""
        key = (node.op_type, *node.inputs, *sorted(node.attributes.items()))
        if key not in self._known:
            name = self._known[key] = self.editor.unique_name(f"state/{as_ or node.op_type.lower()}")
            self.editor.insert_first(self.editor.model.graph, replace(node, outputs=[name], name=name))
        return self._known[key]


@dataclass(frozen=True)
class UpdateCacheInPlace(Pass):
    """Write new tokens into slots of the KV cache instead of joining them to a copy of the past.

    Each past input becomes slots, of which `past_length`, a new input, are in use. The new keys and values are written
    behind them, and the slots are an output: bound to the memory of the input, they are written in place. Whatever took
    the length of the past from a shape takes it from `past_length`. An attention mask over past and new tokens is kept
    in slots too, so that its input holds the mask of the new tokens alone; position ids follow from it, and are no
    input.

    ScatterND writes slots that come first, [slots, batch, heads, width], so that those in use lie together: a host
    binds these alone, the new ones included, and attention reads them where they lie. onnxruntime takes the Transpose
    into the products. TensorScatter (opset 24) writes slots that lie where the past grew; the host binds all of them,
    and attention reads a Slice, so that nothing depends on what the others hold.

    Layers that attend to a sliding window keep the last tokens in a ring: a token goes into the slot of its position
    modulo the window. Such a model takes one token at a time.

    With `start=1` the past is empty: the model takes no past, attends to the new keys and values directly, and writes
    them into the first slots. So does a decoder that has no past inputs.

    Legality: each past is read by one Concat with what is new, and by Shapes. Every reader of the slots reads what the
    write gives, because onnxruntime runs nodes that do not depend on each other in any order.

    Before:

        agraph (int64[N, L] input_ids, float[N, 2, past, 4] past_key_0, float[N, 2, L, 4] k)
        => (float[N, 2, all, 4] present_key_0, float[N, 2, all, 4] y) {
            present_key_0 = Concat <axis = 2> (past_key_0, k)
            y = Neg (present_key_0)
        }

    After `update-cache-in-place{slots=8}`:

        agraph (int64[N, L] input_ids, float[slots, N, 2, 4] past_key_0, float[N, 2, L, 4] k, int64[1] past_length)
        => (float[N, 2, all, 4] y, float[slots, N, 2, 4] past_key_0_after)
        <int64[1] "int/0" = {0}, int64[1] "int/1" = {1}> {
            ["state/new_length"] "state/new_length" = Shape <end = 2, start = 1> (input_ids)
            ["state/squeeze"] "state/squeeze" = Squeeze ("int/0")
            ["state/squeeze_1"] "state/squeeze_1" = Squeeze ("state/new_length")
            ["state/squeeze_2"] "state/squeeze_2" = Squeeze ("int/1")
            ["state/range"] "state/range" = Range ("state/squeeze", "state/squeeze_1", "state/squeeze_2")
            ["state/slots"] "state/slots" = Add (past_length, "state/range")
            ["state/write_at"] "state/write_at" = Unsqueeze ("state/slots", "int/1")
            k_rows = Transpose <perm = [2, 0, 1, 3]> (k)
            past_key_0_after = ScatterND (past_key_0, "state/write_at", k_rows)
            present_key_0 = Transpose <perm = [1, 2, 0, 3]> (past_key_0_after)
            y = Neg (present_key_0)
        }

    Attributes:
        slots: How many, or with ScatterND the most that a host may give.
        update: `scatter-nd` writes with ScatterND (opset 16), `tensor-scatter` with TensorScatter (opset 24).
        rings: 0 where layers with a sliding window are to keep all tokens.
        start: 1 where the past is empty.
        axis: Along which caches without a past grow, where the model does not tell.
    """

    changes_interface = True

    slots: int
    update: Update = "scatter-nd"
    rings: int = 1
    start: int = 0
    axis: int | None = None

    def run(self, model: Model) -> Outcome:
        if self.slots < 1:
            raise UsageError(f"{self.slots} slots hold nothing - give at least 1")
        opset = model.graph.opset()
        if opset < SINCE[self.update]:
            reason = f"{self.update} needs opset {SINCE[self.update]}, it has {opset} - run convert-opset first"
            return Outcome(model, declined=(Declined(model.name, reason),))
        ports, taken = (*model.graph.inputs, *model.graph.outputs), names_in(model.scopes)
        names, declined = dict[str, str](), list[Declined]()
        for name in (LENGTH, *(f"{value.name}_slots" for value in ports)):
            value = model.graph.values.get(name)
            if value is not None and value.producer is not None and value not in ports:
                names[name] = free_name(name, taken)
            elif name in taken:
                declined.append(Declined(name, "slots or their length are to have its name - rename it"))
        if declined:
            return Outcome(model, declined=tuple(declined))
        named = with_names(model, names) if names else model
        outcome = _Caches(self, named).run()
        return outcome if outcome.model is not named else Outcome(model, declined=outcome.declined)


class _Caches:
    """The caches of a model, on their way into slots."""

    def __init__(self, options: UpdateCacheInPlace, model: Model) -> None:
        self.options, self.model, self.roles = options, model, model.roles
        self.editor = Editor(model)
        self.shapes = self.editor.shapes
        self.declined: list[Declined] = []
        self.growths = find_growths(model, self.shapes, self.declined)
        self.inputs: dict[str, NewInput] = {}
        self.outputs: dict[str, NewInput] = {}
        self.dropped: set[str] = set()
        self.counts: dict[int, Expr] = {}  # of slots, by the window of a ring, 0 for no ring
        self.last: list[NewNode] = []  # nodes for the end of the graph

    def run(self) -> Outcome:
        roles = self.roles
        cache = [each for each in roles.cache if not roles.is_cross(each)]
        fresh = [each for each in cache if each.past is None] if not self.growths else []  # to be filled
        new = [(e.present, self.options.axis if e.axis is None else e.axis) for e in fresh if e.present is not None]
        tokens = roles.first("tokens") or roles.first("embeddings")
        dims = self.shapes[tokens].dims
        if tokens is None or dims is None or len(dims) < 2:
            self.declined.append(Declined(self.model.name, "no input is known to be its tokens"))
        if self.declined or tokens is None or dims is None or not (self.growths or new):
            return Outcome(self.model, declined=tuple(self.declined))
        self.is_start = bool(self.options.start or new)
        self.slots = Slots(self.editor, tokens, self.options.update, is_start=self.is_start)
        rings = rings_of(self.editor, self.growths, self.options.slots) if self.options.rings else {}
        self.masks = [value for value in roles.all("mask") if self._is_own(value, dims)]
        self.positions = [value for value in roles.all("positions") if self.growths or self._is_own(value, dims)]
        if self.is_start and any(declared_rank(value) == 4 for value in roles.all("mask")):
            self.positions = []  # who makes a mask for each pair of tokens says where they stand, too
        self._check(new)
        if self.declined:
            return Outcome(self.model, declined=tuple(self.declined))
        if not self.is_start:
            self.inputs[LENGTH] = NewInput(LENGTH, TensorProto.INT64, (const(1),), "how many slots are in use")
        mask = self._keep_mask()
        for value in self.positions:  # they follow from the mask, or else from the length of the past
            self.editor.replace_all_uses(value, self.slots.positions(mask, self.shapes[value].dtype))
            self.dropped.add(value.name)
        for growth in self.growths:
            self.slots.replace_shapes(growth.past, growth.axis, self.slots.past)
            self._store(growth, rings.get(growth))
        for present, axis in new:  # the first slots
            slots, present_dims = f"{present.name}_slots", self.shapes[present].dims or ()
            after = self._declare(slots, present, present_dims, axis or 0)
            self.dropped.add(present.name)
            self.last += self.slots.write(slots, present.name, present_dims, axis or 0, after)
        self._select_masks(rings)
        for entry in roles.cache:
            if roles.is_cross(entry) and entry.past is not None and entry.present is not None:
                self.dropped.add(entry.present.name)  # it is the state as it was
        for value in self.model.graph.outputs:
            out_dims = self.shapes[value].dims
            if roles.of(value) != "present" and out_dims is not None and _symbols_in(out_dims) <= _symbols_in(dims):
                self.outputs[value.name] = NewInput(value.name, self.shapes[value].dtype, out_dims)
        if rings and not self.is_start:
            self.inputs[tokens.name] = NewInput(tokens.name, self.shapes[tokens].dtype, (dims[0], const(1), *dims[2:]))
        model = with_interface(self.editor.result(), self.inputs, self.outputs, self.dropped, self.last)
        if rings:  # whose scores are shorter than the past, by which an exporter may have declared both
            infos, inputs = model.proto.graph.value_info, declared_dims_in(model.proto.graph.input)
            known = {"", *(dim.dim_param for dim in inputs)}
            keep_members(infos, [known.issuperset(dim.dim_param for dim in declared_dims_in([info])) for info in infos])
        caches = count_things(len(self.growths) or len(new), "cache(s)")
        changes = [f"{caches} of {self.options.slots:,} slots"]
        for window, count in sorted(Counter(ring.window for ring in rings.values()).items()):
            changes.append(count_things(count, f"cache(s) in rings of {window:,} slots"))
        return Outcome(drop_dead_inputs(remove_dead_code(model).model), tuple(changes))

    def _check(self, new: Sequence[tuple[Value, int | None]]) -> None:
        """Decline entries that have no slots, or are not known."""
        for growth in self.growths:
            past, present = growth.past, growth.present
            if growth.new is None:
                self._decline(past, "it is moved before what is new joins it")
            elif self._dims(past, growth.axis) is None:
                self._decline(past, f"it is {self.shapes[past]}, and slots need dims that are numbers, or the batch")
            elif unwrap_value(present, ("Identity",)) is not growth.concat_out:
                self._decline(present, "it is not past and new as they are joined")
        for present, axis in new:
            if axis is None or self._dims(present, axis) is None:
                self._decline(present, f"it is {self.shapes[present]}, and its slots are not known")
        for value in self.masks[1:]:
            self._decline(value, f"it is another mask for each token, beside '{self.masks[0].name}'")
        others = [value for value in self.roles.all("mask") if self.growths and value not in self.masks]
        for value in (*self.masks[:1], *others, *self.positions):
            dims = self.shapes[value].dims
            if dims is None or len(dims) != 2 or self.slots.dim(dims[0]) is None:
                self._decline(value, f"it is {self.shapes[value]}, which is no mask and no positions for each token")

    def _is_own(self, mask: Value, tokens: Sequence[Expr]) -> bool:
        """Whether a mask, or positions, are for the tokens of the decoder: an encoder in the same model has others."""
        dims = self.shapes[mask].dims
        return self.roles.spans_past(mask) if self.growths else dims is not None and dims[1:] == tuple(tokens[1:2])

    def _decline(self, value: Value, reason: str) -> None:
        self.declined.append(Declined(value.name, reason))

    def _dims(self, value: Value, axis: int) -> tuple[Expr, ...] | None:
        """Return the dims of slots, None where those before the slots are not known."""
        dims = self.shapes[value].dims
        if dims is None or axis == 0 or any(self.slots.dim(d) is None for at, d in enumerate(dims) if at != axis):
            return None
        return dims

    def _store(self, growth: Growth, ring: Ring | None) -> None:
        past, joined, new, window = growth.past, growth.concat_out, growth.new, ring.window if ring is not None else 0
        dims = self.shapes[past].dims or ()
        assert joined is not None
        assert joined.producer is not None
        assert new is not None
        after = self._declare(past.name, past, dims, growth.axis, window)
        self.dropped.add(growth.present.name)
        written = self.slots.write(past.name, new.name, dims, growth.axis, after, window)
        if self.is_start:
            self.editor.replace(joined.producer, NewNode("Identity", [new], [joined.name]))
            self.last += written
        else:
            read = self.slots.read(after, len(dims), growth.axis, joined.name, window)
            self.editor.replace(joined.producer, *written, read)

    def _keep_mask(self) -> str | None:
        """Keep the attention mask in slots; return the mask over past and new tokens, None where there is none."""
        if not self.masks:
            return None
        mask = self.masks[0]
        dims = self.shapes[mask].dims
        assert dims is not None
        slots = f"{mask.name}_slots"
        after = self._declare(slots, mask, dims, 1)
        self.inputs[mask.name] = NewInput(mask.name, self.shapes[mask].dtype, (dims[0], self.slots.count))
        written = self.slots.write(slots, mask.name, dims, 1, after)
        if self.is_start:
            self.last += written
            return mask.name
        read = self.slots.read(after, 2, 1, self.editor.unique_name(f"{mask.name}_in_use"))
        for node in (*written, read):
            self.editor.insert_first(self.model.graph, node)
        self.editor.replace_all_uses(mask, read.outputs[0])
        return read.outputs[0]

    def _select_masks(self, rings: Mapping[Growth, Ring]) -> None:
        """Let attention over a ring read the columns of its masks in the order of the slots."""
        if self.is_start:
            return
        made: dict[tuple[Value, int], str] = {}
        places = {place: ring.window for ring in rings.values() for place in ring.masks}
        for (node, index), window in sorted(places.items(), key=lambda item: (item[0][0].index, item[0][1])):
            mask = node.inputs[index]
            assert mask is not None
            if (mask, window) not in made:
                name = made[mask, window] = self.editor.unique_name(f"{mask.name}_ring")
                self.editor.insert_before(node, make_gather(mask, self.slots.ring_positions(window), -1, name))
            self.editor.set_inputs(node, {index: made[mask, window]})

    def _declare(self, name: str, value: Value, dims: Sequence[Expr], axis: int, window: int = 0) -> str:
        """Declare slots as input and output, and return the name of the output."""
        declared = self.slots.layout(dims, axis, self._count(window))
        after = self.editor.unique_name(f"{name}_after")
        dtype = self.shapes[value].dtype
        self.inputs[name] = NewInput(name, dtype, declared)
        self.outputs[after] = NewInput(after, dtype, declared)
        return after

    def _count(self, window: int) -> Expr:
        """Return the number of slots of a ring, or of a cache that is none: a symbol where they come first."""
        if self.options.update == "tensor-scatter":
            return const(window or self.options.slots)
        if window not in self.counts:
            name = f"{SLOTS}_{window}" if window else SLOTS
            ports = (*self.model.graph.inputs, *self.model.graph.outputs)
            taken = _symbols_in(dim for value in ports for dim in self.shapes[value].dims or ())
            self.counts[window] = symbol(free_name(name, taken))
        return self.counts[window]


def _symbols_in(dims: Iterable[Expr]) -> frozenset[str]:
    return frozenset().union(*(dim.symbols for dim in dims))
