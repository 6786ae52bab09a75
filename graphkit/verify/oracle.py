"""The oracle of proofs: runs an export as its own runtime does, as `generate` of transformers and optimum do.

The mask of the encoder goes to the decoder as it is, in samples or frames where the encoder takes these. The decoder
itself joins what is new to what is past, at each step.

Nothing of what rewrites models imports this module, and it imports nothing of that: an assumption that both shared
would prove itself. A test keeps it so.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from copy import deepcopy
from functools import cached_property

import numpy as np
import onnx
from onnx import helper, numpy_helper

from graphkit.equivalence.originals import Originals as Originals
from graphkit.errors import ModelError
from graphkit.graph.cache_entries import Slot, count_window_slots
from graphkit.graph.declared_types import declared_type, hinted_type
from graphkit.graph.names import join_words, names_in
from graphkit.graph.new_nodes import make_slice
from graphkit.graph.roles import declared_rank, dim_at
from graphkit.graph.view import Node, Value, unwrap_value
from graphkit.model import Model
from graphkit.progress import FEW_RUNS
from graphkit.runtime.session import IsolatedSession, as_read
from graphkit.shapes.constraints.dim_equalities import forced_sizes
from graphkit.verify.decoding import Decoder
from graphkit.verify.probe_inputs import KEEPING, InputProbe, fixed_length, nearest_length

Arrays = dict[str, np.ndarray]
GOLDEN = (5**0.5 - 1) / 2  # whose multiples spread evenly
TOKENS, TO_THE_END = 1, 2**63 - 1
ALONE = ("Tanh", "Identity", "Cast")  # operators of one input, which treat each number alone
BESIDE = ("Add", "Sub", "Mul", "Div")  # with constants that are the same for each token
NAME = "oracle/last"
LAST = f"{NAME}_from"  # the input that says where the logits begin, counted from the end: -1 for the last token alone


class Oracle:
    """Encoder and decoder as they were exported, for rows of tokens with padding.

    With `optimize` onnxruntime may fuse operators; with `prepack` it may pick other kernels for weights, whose last
    digits differ. `can_choose` says whether some calls need the logits of the last tokens alone: where the decoder can,
    it gives no others then, and its weights are mapped.
    """

    def __init__(
        self, originals: Originals, *, optimize: bool = False, prepack: bool = True, can_choose: bool = False
    ) -> None:
        self._optimize, self._prepack, self._is_changed = optimize, prepack, originals.is_changed
        self._encoder = originals.encoder
        self._session = None if originals.encoder is None else self._open_session(originals.encoder)
        self._sliding = originals.sliding  # which runs in the place of the decoder that its caches were let grow in
        first = originals.sliding or originals.first
        chosen = None if first is None or not can_choose else with_logits_choice(first)
        self._can_choose = chosen is not None
        self._decoder: Decoder | None = None
        if (first := originals.first) is not None and (step := originals.step) is not None:
            opened = self._open_session(originals.sliding or first, chosen)
            self._decoder = Decoder(first, step, opened, opened if first is step else self._open_session(step))
        self._head = None if originals.head is None else self._open_session(originals.head)
        self.cache: dict[Slot, np.ndarray] = {}  # what is past, by place
        self.outputs: Arrays = {}  # all that the decoder gave last, by name
        self._states: Arrays = {}  # recurrent ones, by input
        self._inputs: Mapping[str, np.ndarray] = {}
        self._given: Arrays = {}  # what decoders read of the encoder, by role
        self._mask = np.ones((0, 0), np.int64)
        self._placed: np.ndarray | None = None  # positions that the caller gave, and those that follow
        self.encoder_inputs: InputProbe | None = None
        if self._encoder is not None and self._session is not None:
            self.encoder_inputs = InputProbe(self._encoder, self._session.run)

    def _open_session(self, model: Model, chosen: Model | None = None) -> IsolatedSession:
        source = chosen or (model if self._is_changed else as_read(model))
        return IsolatedSession(source, optimize=self._optimize, prepack=self._prepack, held_runs=FEW_RUNS)

    def encode(self, inputs: Mapping[str, np.ndarray]) -> Arrays:
        """Empty the cache, run the encoder, and return its outputs by name; none without an encoder.

        A mask that is not given hides nothing, as a tokenizer makes it of one sequence; positions count from 0; types
        are 0.
        """
        self._inputs, self._given, self.cache = inputs, {}, {}
        self._mask = np.ones((0, 0), np.int64)
        if self._encoder is None or self._session is None:
            mask = self._decoder.first.roles.first("encoder mask") if self._decoder is not None else None
            if mask is not None and mask.name in inputs:  # the encoder is in the first step
                self._given["encoder mask"] = inputs[mask.name]
            return {}
        feed = self.encoder_feed(inputs)
        outputs = self._session.run(feed)
        roles = self._encoder.roles
        states = [value.name for value, role in roles.outputs.items() if role == "encoder state"]
        hidden = self._given["encoder state"] = outputs[states[0] if states else next(iter(outputs))]
        mask = roles.first("mask")
        self._given["encoder mask"] = np.ones(hidden.shape[:2], np.int64) if mask is None else feed[mask.name]
        if (tokens := roles.first("tokens")) is not None:
            self._given["encoder tokens"] = feed[tokens.name]
        return outputs

    def start(
        self, tokens: np.ndarray, mask: np.ndarray, inputs: Mapping[str, np.ndarray], last: int | None = None
    ) -> np.ndarray:
        """Run the encoder on its inputs and the decoder on its first tokens, and return their logits."""
        self.encode(inputs)
        return self.first(tokens, mask, last)

    def first(self, tokens: np.ndarray, mask: np.ndarray, last: int | None = None) -> np.ndarray:
        """Run the decoder on its first tokens, [batch, tokens]; return their logits, [batch, tokens, vocabulary].

        The mask is 0 for padding. `last` says for how many of the last tokens logits are needed; None for all.
        """
        assert self._decoder is not None
        model = self._decoder.first
        feed = {**self.first_feed(tokens, mask), **self._logits_choice(tokens, last)}
        self.outputs, self.cache = self._decoder.start(feed)
        # the states of later steps, by their names or those of their next; zeros fill what is declared
        given = {value.name.removeprefix("output."): value for value in model.graph.outputs}
        self._states = {}
        for entry in self._decoder.later.roles.states:
            for name in (entry.next.name, entry.past.name):
                if (value := given.get(name.removeprefix("input.").removeprefix("output."))) is not None:
                    array = self.outputs[value.name]
                    sizes = ((dim_at(value, axis), size) for axis, size in enumerate(array.shape))
                    lacking = [(max(0, dim - size) if isinstance(dim, int) else 0, 0) for dim, size in sizes]
                    self._states[entry.past.name] = np.pad(array, lacking) if lacking else array
        if self._head is None:
            logits = _logits_array(model, self.outputs)
        else:
            hidden = next(self.outputs[value.name] for value, role in model.roles.outputs.items() if role != "present")
            (logits,) = self._head.run({self._head.inputs[0]: hidden}).values()
        return logits[:, -(last or tokens.shape[1]) :]

    def _logits_choice(self, tokens: np.ndarray, last: int | None = None) -> Arrays:
        return {LAST: np.array([-(last or tokens.shape[1])])} if self._can_choose else {}

    def step(
        self, tokens: np.ndarray, mask: np.ndarray | None = None, *, beside: Mapping[str, np.ndarray] | None = None
    ) -> np.ndarray:
        """Run the decoder on the next tokens, [batch, tokens]; return their logits.

        What is `beside` takes the place of the inputs that the sequence started with, such as recurrent state.
        """
        assert self._decoder is not None
        self._inputs = self._inputs if beside is None else beside
        tokens = tokens.reshape(len(self._mask), -1)
        self._advance(tokens, mask)
        model = self._decoder.later
        choice = self._logits_choice(tokens) if self._decoder.first is model else {}
        self.outputs, self.cache = self._decoder.step({**self._decoder_feed(model, tokens), **choice}, self.cache)
        self._states = {entry.past.name: self.outputs[entry.next.name] for entry in model.roles.states}
        return _logits_array(model, self.outputs)

    def repeat_past(self, count: int) -> None:
        """Let as many tokens follow in the cache as if those in it were read again, without reading them."""
        assert self._decoder is not None
        for entry in self._decoder.later.roles.cache:
            if not self._decoder.later.roles.is_cross(entry) and entry.axis is not None:
                self.cache[entry.slot] = repeat_along(self.cache[entry.slot], entry.axis, count)
        self._mask = np.pad(self._mask, ((0, 0), (0, count)), constant_values=1)
        self._placed = None if self._placed is None else self._placed[..., -1:] + count

    def _advance(self, tokens: np.ndarray, mask: np.ndarray | None = None) -> None:
        counting = np.ones_like(tokens) if mask is None else mask
        self._mask = np.concatenate([self._mask, counting], 1) if self._mask.size else counting
        if self._placed is not None:  # what follows counts on from the last position
            self._placed = self._placed[..., -1:] + 1 + np.arange(tokens.shape[1])

    def encoder_feed(self, inputs: Mapping[str, np.ndarray]) -> Arrays:
        """Return what the encoder would be fed: what is given, and what a tokenizer or feature extractor adds."""
        if (probe := self.encoder_inputs) is None:
            return {}
        feed: Arrays = {}
        roles = probe.model.roles
        tokens = next((inputs[value.name] for value in roles.all("tokens") if value.name in inputs), None)
        like = next(iter(inputs.values()), np.ones((1, 1))) if tokens is None else tokens
        for value, role in roles.inputs.items():
            if (declared := declared_type(value)) is None:
                continue
            kind = declared.numpy_dtype
            if value.name in inputs:
                feed[value.name] = inputs[value.name].astype(kind)
            elif role == "positions":
                feed[value.name] = np.broadcast_to(np.arange(like.shape[1]), like.shape[:2]).astype(kind)
            elif role == "token types":
                feed[value.name] = np.zeros(like.shape[:2], kind)
            elif role in ("mask", "image mask"):
                known: dict[object, int] = {}  # dims of the inputs that are given
                for other in roles.inputs:
                    other_type, array = declared_type(other), inputs.get(other.name)
                    if other_type is not None and other_type.dims is not None and array is not None:
                        known.update(zip(other_type.dims, array.shape, strict=True))
                unknown = dict(enumerate(like.shape if declared.rank == 2 else ()))
                dims = enumerate(declared.dims or ())
                shape = [d if isinstance(d, int) else known.get(d, unknown.get(axis, 1)) for axis, d in dims]
                feed[value.name] = np.full(shape, probe.elements(value)[0]).astype(kind)
            else:
                problem = f"what to feed to its input '{value.name}' is not known"
                raise ModelError(problem, file=probe.model.label)
        return feed

    def first_feed(self, tokens: np.ndarray, mask: np.ndarray) -> Arrays:
        """Forget the tokens before, and return the decoder's feed for its first ones; it does not run."""
        assert self._decoder is not None
        model, self._mask = self._decoder.first, mask
        self._states = _no_state(model, len(tokens))
        given = [self._inputs[v.name] for v in model.roles.all("positions") if v.name in self._inputs]
        self._placed = given[0] if given else None
        return {**self._decoder_feed(model, tokens), **_empty_past(self._sliding or model, len(tokens))}

    def later_feed(self, tokens: np.ndarray) -> Arrays:
        """Return the feed of a step on the next tokens, its KV cache included; it does not run."""
        assert self._decoder is not None
        model, before = self._decoder.later, (self._mask, self._placed)
        self._advance(tokens)
        feed = self._decoder_feed(model, tokens)
        self._mask, self._placed = before
        past = {value.name: self.cache[entry.slot] for value, entry in model.roles.pasts.items() if self.cache}
        return {**feed, **(past or _empty_past(self._sliding or model, len(tokens)))}

    def reorder(self, rows: Sequence[int]) -> None:
        """Let each row be a copy of another."""
        assert self._decoder is not None
        chosen, roles = np.asarray(rows), self._decoder.later.roles

        def batch_axis(value: Value) -> int | None:
            axes = range(declared_rank(value) or 0)
            return next((axis for axis in axes if roles.axis(value, axis) == "batch"), None)

        batch = {entry.slot: batch_axis(value) or 0 for value, entry in roles.pasts.items()}
        self.cache = {slot: np.take(array, chosen, batch.get(slot, 0)) for slot, array in self.cache.items()}
        for state in roles.states:
            name, axis = state.past.name, batch_axis(state.past)
            if axis is not None and name in self._states:
                self._states[name] = np.take(self._states[name], chosen, axis)
        self._given = {role: array[chosen] for role, array in self._given.items()}
        self._mask = self._mask[chosen]
        self._placed = None if self._placed is None else self._placed[..., chosen, :]

    def _decoder_feed(self, model: Model, tokens: np.ndarray) -> Arrays:
        feed, count = {}, tokens.shape[1]
        states = self._states or _no_state(model, len(tokens))
        known = {
            "tokens": tokens,
            "embeddings": tokens,  # where a decoder takes these in their place
            "mask": self._mask,
            "positions": np.maximum(np.cumsum(self._mask, 1) - 1, 0)[:, -count:],
            "token types": np.zeros_like(tokens),
            **self._given,
        }
        for value, role in model.roles.inputs.items():
            declared = declared_type(value)
            if role in ("past", "condition") or declared is None:
                continue
            array = known.get(role, self._inputs.get(value.name, states.get(value.name)))
            if role == "positions" and self._placed is not None:
                array = self._placed
            if array is None and all(node.is_op("Identity") for node, _ in value.consumers):  # it comes out as it is
                array = _zero_input(model, value, lambda _: len(tokens))
            if array is None:
                raise ModelError(f"what to feed to its input '{value.name}' is not known", file=model.label)
            if role == "positions" and declared.rank == 1:
                array = np.arange(self._mask.shape[1] - count, self._mask.shape[1])
            if role == "positions" and declared.rank == 3 and array.ndim == 2:
                first = dim_at(value, 0)
                array = np.broadcast_to(array, (first if isinstance(first, int) else 1, *array.shape))
            if role == "mask" and declared.rank == 4:
                array = self._inputs[value.name] if value.name in self._inputs else self._slot_mask(model, value, count)
            elif role == "mask":
                array = np.where(array, *self._mask_elements)
            feed[value.name] = array.astype(declared.numpy_dtype)
        return feed

    def _slot_mask(self, model: Model, value: Value, count: int) -> np.ndarray:
        """Return a mask [batch, 1, tokens, slots], True for what a token sees: tokens up to itself that count."""
        total, declared = self._mask.shape[1], hinted_type(value)
        size = (declared.dims or (None,))[-1] if declared is not None else None
        if not isinstance(size, int):
            held = [(self.cache.get(entry.slot), entry.axis) for entry in model.roles.pasts.values()]
            size = next((array.shape[axis] for array, axis in held if array is not None and axis is not None), total)
        counts = np.zeros((len(self._mask), size), np.bool_)
        counts[:, :total] = self._mask
        seen = np.arange(size) <= np.arange(total - count, total)[:, None]
        return np.asarray(counts[:, None, None] & seen)

    @cached_property
    def _mask_elements(self) -> tuple[float, float]:
        decoder = self._decoder
        mask = None if decoder is None else decoder.first.roles.first("mask")
        if decoder is None or mask is None:
            return KEEPING
        return InputProbe(decoder.first, lambda feed: decoder.start(feed)[0]).elements(mask)


def assumed_inputs(step: Model | None) -> Iterator[str]:
    """Yield what the oracle takes for granted of masks and places of static slots, which a caller makes."""
    if step is None or not any(e.is_static for e in step.roles.pasts.values() if not step.roles.is_cross(e)):
        return
    masks, places = step.roles.all("mask"), [f"'{value.name}'" for value in step.roles.all("positions")]
    if len(places) > 1:
        yield f"{join_words(places)} of the export are the caller's: all are taken to count tokens from the first."
    if masks:
        yield f"'{masks[0].name}' of the export is the caller's: it is taken to hide nothing but what is to come."


def _no_state(model: Model, rows: int) -> Arrays:
    return {entry.past.name: _zero_input(model, entry.past, lambda _: rows) for entry in model.roles.states}


def _empty_past(model: Model, rows: int) -> Arrays:
    def empty(value: Value, grows: int | None) -> np.ndarray:
        if (slots := count_window_slots(value)) is not None:
            return _zero_input(model, value, lambda axis: (rows, 1, slots, 1)[axis])
        zeros = _zero_input(model, value, lambda axis: rows if model.roles.axis(value, axis) == "batch" else 1)
        return zeros if grows is None else zeros.take(np.arange(0), grows)

    return {value.name: empty(value, entry.axis) for value, entry in model.roles.pasts.items()}


def _zero_input(model: Model, value: Value, size: Callable[[int], int]) -> np.ndarray:
    if (declared := hinted_type(value)) is None or declared.dims is None:
        raise ModelError(f"the shape of its input '{value.name}' is not declared", file=model.label)
    forced = {} if all(isinstance(dim, int) for dim in declared.dims) else forced_sizes(model, {})
    axes = enumerate(declared.dims)
    dims = [dim if isinstance(dim, int) else max(int(forced.get(str(dim), 1)), size(axis)) for axis, dim in axes]
    return np.zeros(dims, declared.numpy_dtype)


def _logits_array(model: Model, outputs: Mapping[str, np.ndarray]) -> np.ndarray:
    if model.roles.logits is None:
        raise ModelError("nothing tells which of its outputs is the logits", file=model.label, hint="name it 'logits'")
    return np.asarray(outputs[model.roles.logits.name])


def with_logits_choice(model: Model) -> Model | None:
    """Return a model that gives the logits of as many of the last tokens as a new input, `LAST`, says.

    It computes no others where it is plain that the logits of a token follow from its own hidden state: where they come
    from a product with a matrix. None where the logits are not [batch, tokens, vocabulary], or are read in the model.
    """
    logits = model.roles.logits
    declared = None if logits is None else declared_type(logits)
    if logits is None or logits.producer is None or logits.consumers or declared is None or declared.rank != 3:
        return None
    if any(name.startswith(NAME) for name in names_in(model.scopes)):
        return None
    proto = deepcopy(model.proto)
    graph, head = proto.graph, _head_nodes(logits)
    for name, number in (("to", TO_THE_END), ("axis", TOKENS)):
        graph.initializer.append(numpy_helper.from_array(np.array([number], np.int64), f"{NAME}_{name}"))
    graph.input.append(helper.make_tensor_value_info(LAST, onnx.TensorProto.INT64, [1]))
    ends = [LAST, f"{NAME}_to", f"{NAME}_axis"]
    if head:
        place = head[-1].index
        product, hidden = graph.node[place], f"{NAME}_hidden"
        graph.node.insert(place, make_slice(product.input[0], *ends, out=hidden, name=NAME).to_proto())
        product.input[0] = hidden
    else:
        outputs = graph.node[logits.producer.index].output
        outputs[list(outputs).index(logits.name)] = f"{NAME}_all"
        graph.node.append(make_slice(f"{NAME}_all", *ends, out=logits.name, name=NAME).to_proto())
    sliced = {logits.name, *(name for node in head for name in node.proto.output)}
    for info in (*graph.value_info, *graph.output):
        if info.name in sliced and len(info.type.tensor_type.shape.dim) > TOKENS:
            info.type.tensor_type.shape.dim[TOKENS].Clear()
    return model.with_proto(proto)


def _head_nodes(logits: Value) -> list[Node]:
    """Return the nodes from the logits back to the product that makes them of the hidden state; none if unknown."""
    nodes = list[Node]()
    outputs = {value.name for value in logits.scope.outputs}
    value: Value | None = logits
    while value is not None and value.producer is not None and len(value.producer.outputs) == 1:
        node = value.producer
        if value is not logits and (len(value.consumers) != 1 or value.name in outputs):
            return []
        nodes.append(node)
        if node.is_op("MatMul"):
            matrix = unwrap_value(read, ("Transpose",)).constant if (read := node.input(1)) is not None else None
            return nodes if matrix is not None and len(matrix.dims) == 2 else []
        others = [read.constant for read in node.inputs[1:] if read is not None]
        is_same_everywhere = all(t is not None and len(t.dims) <= 3 and set(t.dims[:-1]) <= {1} for t in others)
        if not node.is_op(*ALONE) and not (node.is_op(*BESIDE) and is_same_everywhere):
            return []
        value = node.input(0)
    return []


def repeat_along(array: np.ndarray, axis: int, count: int) -> np.ndarray:
    """Return an array that is longer along an axis, by what it begins with, as often as needed.

    Each copy of floats has a factor of its own, so that one in the place of another changes results.
    """
    copies = np.moveaxis(np.take(array, np.arange(count) % array.shape[axis], axis), axis, -1)
    if array.dtype.kind == "f":
        copies = copies * (0.75 + np.arange(1, count + 1) * GOLDEN % 0.5).astype(array.dtype)
    return np.concatenate([array, np.moveaxis(copies, -1, axis)], axis)


class OneSequence:
    """The oracle for one sequence."""

    valid: int | None = None  # how many samples or frames of a sound are valid; None for all that it gets
    is_cut: bool = True  # whether a sound ends with what is valid; else the rest stays, and the encoder's mask says so
    pad: int = 0  # the token that pads a text for an encoder that takes a fixed number of them

    def __init__(self, originals: Originals) -> None:
        self.originals = originals
        self.oracle = Oracle(originals)
        self._is_started = False
        # the number of tokens that the encoder takes; None where it takes any
        self.fixed = None if originals.encoder is None else fixed_length(originals.encoder)

    @property
    def cache(self) -> Mapping[Slot, np.ndarray]:
        """The KV cache; empty before the first token."""
        return self.oracle.cache

    def nearest_source(self, length: int) -> int | None:
        """Return the length of a source at which the encoder runs that is nearest to this one, None for none."""
        encoder = self.originals.encoder
        return length if encoder is None or self.fixed is not None else nearest_length(encoder, length)

    def start(self, source: Sequence[int], user: Mapping[str, np.ndarray]) -> dict[str, np.ndarray]:
        """Run the encoder on token ids, or on the user's inputs, and return its outputs by name.

        Those for a sound of which a part is valid end with the last position that there is for this part alone.
        """
        self._is_started = False
        if self.valid is None:
            return self.oracle.encode(self._inputs(source, user))
        alone = self.alone(source, user)
        if self.is_cut and alone:
            return alone
        outputs = self.oracle.encode(self._inputs(source, user, is_cut=False))
        return {n: array[tuple(map(slice, alone[n].shape))] if n in alone else array for n, array in outputs.items()}

    def alone(self, source: Sequence[int], user: Mapping[str, np.ndarray]) -> dict[str, np.ndarray]:
        """Return the outputs of the encoder for the valid part of a sound; none if it does not run."""
        try:
            return self.oracle.encode(self._inputs(source, user, is_cut=True))
        except ModelError:
            return {}

    def fed_once(self, source: Sequence[int], user: Mapping[str, np.ndarray]) -> dict[str, np.ndarray]:
        """Return the encoder's feed for a source; it does not run."""
        return self.oracle.encoder_feed(self._inputs(source, user, is_cut=self.is_cut))

    def _inputs(
        self, source: Sequence[int], user: Mapping[str, np.ndarray], *, is_cut: bool = False
    ) -> dict[str, np.ndarray]:
        encoder = self.originals.encoder
        tokens = () if encoder is None else encoder.roles.all("tokens", "encoder tokens")
        probe, count = self.oracle.encoder_inputs, len(source)
        if encoder is not None and self.fixed is not None and 0 < count < self.fixed:  # padded, with a mask
            padded = np.array([[*source, *[self.pad] * (self.fixed - count)]])
            inputs = {**user, **{value.name: padded for value in tokens}}
            for mask in encoder.roles.all("mask"):
                if mask.name not in user and probe is not None:
                    inputs[mask.name] = np.where(np.arange(self.fixed) < count, *probe.elements(mask))[None]
            return inputs
        known = dict(user)
        for name, array in user.items() if count else ():
            for axis in range(1, array.ndim):
                if probe is not None and array.shape[axis] > count and (name, axis) in probe.following_inputs:
                    known[name] = np.take(known[name], range(count), axis)
        return {**{value.name: np.array([source]) for value in tokens}, **self._shorten_inputs(known, is_cut=is_cut)}

    def _shorten_inputs(self, user: Mapping[str, np.ndarray], *, is_cut: bool) -> Mapping[str, np.ndarray]:
        """Return the user's inputs with the mask of their sound, which ends with what is valid or has that hidden."""
        encoder = self.originals.encoder
        if self.valid is None or encoder is None:
            return user
        mask = encoder.roles.first("mask")
        sounds = [value for value in encoder.roles.all("audio") if value.name in user]
        probe = self.oracle.encoder_inputs
        if mask is None or not sounds or probe is None:
            raise ModelError("it takes no sound of which a part is valid", file=encoder.label)
        shorten_text, length = dict(user), 0
        for value in sounds:
            array = user[value.name]
            axis = next((at for at in range(1, array.ndim) if dim_at(value, at) == dim_at(mask, 1)), 1)
            if is_cut:
                array = shorten_text[value.name] = np.take(array, range(self.valid), axis)
            elif self.is_cut:  # it does not run on that part alone
                array = shorten_text[value.name] = array.copy()
                np.moveaxis(array, axis, 0)[self.valid :] = 0
            length = array.shape[axis]
        shorten_text[mask.name] = np.where(np.arange(length) < self.valid, *probe.elements(mask))[None]
        return shorten_text

    def repeat_past(self, count: int) -> None:
        """Let as many tokens follow in the cache as if those in it were read again."""
        self.oracle.repeat_past(count)

    def step(self, token: int) -> np.ndarray:
        """Run one token and return its logits."""
        ids = np.array([[token]])
        logits = self.oracle.step(ids) if self._is_started else self.oracle.first(ids, np.ones_like(ids))
        self._is_started = True
        last: np.ndarray = logits.reshape(-1, logits.shape[-1])[-1]
        return last
