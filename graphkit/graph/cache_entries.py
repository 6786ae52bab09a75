"""Find the KV cache: which inputs and outputs belong to it, and which output becomes which input.

Names tell (`past_key_values.3.decoder.key` and `present.3.decoder.key`, `cache_k_l0` and `new_cache_k_l0`, ...), or
else shapes: two numbered families of equal size whose members agree in every dim but one. Any other input is not cache.
"""

from __future__ import annotations

import itertools
import re
from collections import Counter
from collections.abc import Callable, Hashable, Iterable
from functools import cached_property, lru_cache
from typing import NamedTuple

from msgspec import Struct
from onnx import TensorProto

from graphkit.graph.dataflow import MOVES, find_readers, moved_from, moves_elements, values_computed_from
from graphkit.graph.declared_types import Dim, TensorType, hinted_type
from graphkit.graph.names import group_pairs, is_number
from graphkit.graph.operator_traits import CUTTING, GROUPED, RECURRENT, joined_parts
from graphkit.graph.view import Node, Scope, Value, unwrap_value, walk_breadth_first

PAST = {"past", "prev", "previous", "old"}
PRESENT = {"present", "new", "next", "updated", "cur", "current"}
CACHE = {"cache", "caches", "kv", "kvcache", "pkv"}
KEY, VALUE = {"key", "keys", "k"}, {"value", "values", "v", "val"}
CROSS, SELF = {"encoder", "cross", "enc", "crossattention"}, {"decoder", "self", "dec", "selfattention"}
STATE = {"conv", "linear", "ssm", "state", "states", "recurrent"}
FILLER = {"in", "out", "input", "output", "inputs", "outputs", "layer", "layers", "l", "h", "block", "blocks", "model"}
FILLER |= {"attn", "attention", "tensor", "mem", "memory"}
NOT_CACHE = {"mask", "hidden", "ids", "length", "len", "position", "positions", "logits", "index"}
CACHE_RANKS = range(3, 7)
INTEGERS = (TensorProto.INT32, TensorProto.INT64)
SLIDING = "sliding_window_cache"  # the attribute of an attention whose cache keeps the tokens of a window alone


class Slot(Struct, frozen=True):
    """The place of a tensor in the cache."""

    index: tuple[int, ...]  # the numbers in its name, the layer first; empty for a stack of all layers
    attention: str  # "decoder" (self-attention), "encoder" (cross-attention), or "" if the name does not say
    # "key", "value", "both" (in one tensor, or not told apart) or "state" (no attention cache); behind words of
    # its name where a layer has several, such as the "indexer key" beside the "key"
    kind: str


class CacheEntry(Struct, frozen=True, dict=True):
    """A cache tensor: the input that takes it and the output that gives the next one. Either may be missing."""

    slot: Slot
    past: Value | None
    present: Value | None

    @cached_property
    def axis(self) -> int | None:
        """The axis along which it grows, None if that cannot be told."""
        past, present = (None if value is None else hinted_type(value) for value in (self.past, self.present))
        declared = present if self.past is None else past
        return None if declared is None else growing_axis(declared, present if self.past else None, self.rows)

    @cached_property
    def is_static(self) -> bool:
        """Whether it has slots from the start, of which a step writes some: it comes out as long as it came in."""
        if self.past is None or self.present is None or unwrap_value(self.present, ("Identity",)) is self.past:
            return False
        maker, before = unwrap_value(self.present, ("Identity", "Transpose")).producer, hinted_type(self.past)
        if maker is not None and joined_parts(maker):  # which grows, whatever is declared
            return False
        return before is not None and before.dims is not None and before == hinted_type(self.present)

    @property
    def rows(self) -> frozenset[Dim]:
        """What the number of rows is called in the graph: the first dim of its tokens and positions."""
        value = self.past or self.present
        return frozenset() if value is None else _batch_dims(value.scope)


@lru_cache(maxsize=1 << 14)
def split_name(name: str) -> tuple[str, ...]:
    """Return the words and numbers in a name, in lower case: `pastKeyValues.10_k` -> past key values 10 k."""
    return tuple(token.lower() for token in re.findall(r"[A-Z]?[a-z]+|[A-Z]+(?![a-z])|\d+", name))


@lru_cache(maxsize=1 << 14)
def parse_cache_name(name: str) -> tuple[Slot, frozenset[str], bool] | None:
    """Return the slot that a name stands for, its other words, and whether the name is clearly that of a cache."""
    words = [*split_name(name)]
    if NOT_CACHE.intersection(words):
        return None
    for first, second in (("key", "values"), ("key", "value")):
        for at in range(len(words) - 1):
            if words[at : at + 2] == [first, second]:
                words[at : at + 2] = ["cache"]
                break
    index = tuple(int(word) for word in words if is_number(word))
    plain = {word for word in words if not word.isdigit()}
    is_key, is_value = bool(plain & KEY), bool(plain & VALUE)
    rest = plain - PAST - PRESENT - CACHE - KEY - VALUE - CROSS - SELF - FILLER - STATE
    step = bool(plain & (PAST | PRESENT | CACHE))
    named = (step and (is_key or is_value or bool(plain & CACHE) or not rest)) or ((is_key or is_value) and bool(index))
    attention = "encoder" if plain & CROSS else "decoder" if plain & SELF else ""
    kind = "key" if is_key and not is_value else "value" if is_value and not is_key else "both"
    if kind == "both" and plain & STATE:
        kind = "state"
    return Slot(index, attention, kind), frozenset(rest), named


def cache_entries(scope: Scope) -> tuple[CacheEntry, ...]:
    """Return the cache of a graph: its past inputs in order, then the present outputs that feed none of them."""
    inputs = [value for value in scope.inputs if value.kind == "input" and value.tensor is None]
    words = {value: {*split_name(value.name)} for value in inputs if _may_cache(value)}
    past = [value for value, said in words.items() if not said & PRESENT or said & (PAST | CACHE)]  # not called new
    named = [(value, key) for value in past if (key := _slot_key(value))]
    may_present = filter(_may_cache, scope.outputs)
    outputs = group_pairs((key, value) for value in may_present if (key := _slot_key(value)) is not None)
    entries: list[tuple[tuple[Slot, frozenset[str]], Value | None, Value | None]] = []
    taken: set[Value] = set()
    for value, key in named:
        match = next((out for out in outputs.get(key, ()) if out not in taken), None)
        if match is None and key[0].kind == "state" and not PAST.intersection(split_name(value.name)):
            continue
        taken.update([match] if match is not None else [])
        entries.append((key, value, match))
    left = ((key, value) for key, values in outputs.items() for value in values if value not in taken)
    entries += [(key, None, value) for key, value in left if key[0].kind != "state"]
    only_values = all(slot.kind == "value" and not slot.index for (slot, _), _, _ in entries)
    if only_values or not any(present for _, _, present in entries):  # `past_values` alone are a time series
        # two numbered families, of inputs and of outputs, whose members differ in one dim: the one that grows
        families = itertools.product(_name_families(inputs), _name_families(list(scope.outputs)))
        paired = ([*zip(*both, strict=True)] for both in families if len(both[0]) == len(both[1]))
        found = (pairs for pairs in paired if all(_grows_by_one_dim(*pair) for pair in pairs))
        pairs = next(found, None) or _joined_pairs(scope, inputs)
        return tuple(CacheEntry(Slot((number,), "", "both"), *pair) for number, pair in enumerate(pairs))
    sides = ([key[0] for key, *ports in entries if ports[side]] for side in (0, 1))  # pasts, then presents
    several = {slot for slots in sides for slot, count in Counter(slots).items() if count > 1}
    more = {key: [*sorted(key[1]), key[0].kind] if key[0] in several else [key[0].kind] for key, _, _ in entries}
    return tuple(
        CacheEntry(Slot(key[0].index, key[0].attention, " ".join(more[key])), past, present)
        for key, past, present in entries
    )


def _slot_key(value: Value) -> tuple[Slot, frozenset[str]] | None:
    parsed = parse_cache_name(value.name)
    return (parsed[0], parsed[1]) if parsed is not None and parsed[2] else None


def _may_cache(value: Value) -> bool:
    """Whether a value's declared type allows a cache: of rank 3 to 6, floating-point or 8-bit."""
    declared = hinted_type(value)
    if declared is None or not (declared.is_float or declared.dtype in (2, 3)):
        return False
    return declared.rank is None or declared.rank in CACHE_RANKS


def _joined_pairs(scope: Scope, inputs: list[Value]) -> list[tuple[Value, Value]]:
    """Pair keys and values by any name with outputs in which new ones are joined to them, and which nodes read."""
    pairs = [
        (past, joined)
        for past in filter(_may_cache, inputs)
        for node, index in past.consumers
        if index == 0 and len(joined_parts(node)) == len(node.operands) == 2
        if (joined := node.outputs[0]) in scope.outputs and joined.consumers
    ]
    return pairs if len(pairs) == len(dict(pairs)) > 1 else []


def _name_families(values: list[Value]) -> list[list[Value]]:
    """Return the families of float tensors of rank 4 or 5 whose names differ in their numbers only."""
    typed = ((value, declared) for value in values if (declared := hinted_type(value)) is not None)
    families = group_pairs(
        ((re.sub(r"\d+", "#", value.name), declared.dtype, declared.rank), value)
        for value, declared in typed
        if declared.is_float and declared.rank in (4, 5)
    )
    return [family for family in families.values() if len(family) > 1 and re.search(r"\d", family[0].name)]


def _grows_by_one_dim(past: Value, present: Value) -> bool:
    before, after = hinted_type(past), hinted_type(present)
    if before is None or after is None or before.dtype != after.dtype or before.rank != after.rank:
        return False
    pairs = zip(before.dims or (), after.dims or (), strict=True)
    differing = [dim for dim, dim_after in pairs if dim != dim_after]
    return len(differing) == 1 and isinstance(differing[0], str)


def count_window_slots(past: Value) -> int | None:
    """Return how many slots a cache needs of which an attention keeps the tokens of its window alone, None if all."""
    readers = (node for node, _ in past.consumers if node.operator == GROUPED and node.attr(SLIDING, 0))
    return next((node.attr("local_window_size", int) for node in readers), None)


def growing_axis(past: TensorType, present: TensorType | None, rows: frozenset[Dim] = frozenset()) -> int | None:
    """Return the axis along which a cache grows, or None if that cannot be told.

    It is the only axis in which past and present differ, a symbolic one before numbers because declarations may be
    wrong; or else the only symbolic axis besides the batch, which other inputs name, too: `rows`.
    """
    dims = past.dims
    if dims is None:
        return None
    differing: list[int] = []
    if present is not None and present.dims is not None and present.rank == past.rank:
        pairs = enumerate(zip(dims, present.dims, strict=True))
        differing = [axis for axis, (before, after) in pairs if str(before) != str(after)]
    open_ones = [axis for axis in differing if not isinstance(dims[axis], int)]
    if len(open_ones) == 1:
        return open_ones[0]
    called = enumerate(dim.lower() if isinstance(dim, str) else "" for dim in dims)
    batch = {axis for axis, name in called if "batch" in name or name in ("b", "n", "bs") or dims[axis] in rows}
    symbolic = [axis for axis, dim in enumerate(dims) if not isinstance(dim, int) and axis not in batch]
    if len(symbolic) > 1 and not batch:
        symbolic = symbolic[1:]  # an unnamed batch stands first
    if len(symbolic) == 1 and (symbolic[0] > 0 or len(dims) < 4):
        return symbolic[0]
    return differing[0] if len(differing) == 1 else None


@lru_cache(maxsize=8)
def _batch_dims(scope: Scope) -> frozenset[Dim]:
    """Return the first dims of tokens, positions and embeddings, whatever an exporter calls them.

    These inputs are [rows, tokens] or [rows, tokens, width], by their dtype and their name.
    """
    found: set[Dim] = set()
    for value in scope.inputs:
        declared, words = hinted_type(value), set(split_name(value.name))
        if value.tensor is not None or declared is None or declared.rank != (3 if declared.is_float else 2):
            continue
        is_tokens = declared.dtype in INTEGERS or words & {"embeds", "embeddings"}
        if is_tokens and not words & {"mask", "masks"}:
            found.update((declared.dims or ())[:1])
    return frozenset(dim for dim in found if isinstance(dim, str))


# Find recurrent state: inputs of a fixed size that an output of the same shape and dtype replaces at each step.
#
# The nodes tell: an LSTM or GRU gives the next value of its initial state, and a window over the last inputs is cut
# from what is old and new. Or names do: `conv_states` and `conv_states_out`, `h` and `hn`, `state` and `stateN`. At
# last, the flow of data does: an input that is called a state, and the only output of its shape that is computed from
# it. What is ambiguous is not linked. Of names that say of nothing that it is state, such as `xx` and `xx_out`,
# several have to go together in a step that gives something else too.

DIRECTIONS = PAST | PRESENT | {"in", "out", "input", "output", "inputs", "outputs", "init", "initial", "final"}
DIRECTIONS |= {"r"}  # of WeNet
OUT = {"out", "output", "new", "next", "present", "final", "updated"}  # which say of an output what it is of an input
NEXT = {"present", "new", "next", "updated"}  # which say of an output that it is the next value of something
STATES = CACHE | {"state", "states", "hidden", "cell", "conv", "ssm", "rnn", "lstm", "gru", "recurrent", "carry"}
CELLS = {"state", "states", "hidden", "cell", "rnn", "lstm", "gru", "recurrent", "h", "c", "hx", "cx"}
HIDDEN_STATES = {"hidden", "states"}  # of a transformer, together: activations
STATES |= {"cached", "mem", "memory", "buffer", "h", "c", "hx", "cx"}
ATTENTION = KEY | VALUE | {"kv", "kvcache", "pkv"}  # a cache of keys or values may have slots that it never fills
GROWING = {"seq", "sequence", "len", "length", "time", "past", "total", "frames"}  # words in names of dims that vary

Links = dict[Value, Value]  # from inputs to the outputs that replace them
Test = tuple[Callable[[Value], Hashable], Callable[[Value], Iterable[Hashable]]]  # keys of an input and of an output


class StateEntry(NamedTuple):
    """A recurrent state: the input that it is, and the output that replaces it."""

    past: Value
    next: Value


def recurrent_states(
    scope: Scope, inputs: Iterable[Value], outputs: Iterable[Value], cache: Iterable[CacheEntry]
) -> tuple[StateEntry, ...]:
    """Return the recurrent states of a graph, in the order of its inputs, of which those of no other role may be state.

    Of possible entries of a KV cache, one that is replaced as a whole is recurrent state instead.
    """
    next_of = {entry.past: entry.present for entry in cache if _is_state(entry) and entry.past and entry.present}
    unpaired = [value for value in inputs if value not in next_of and _is_fixed(value)]
    free = [value for value in outputs if value not in set(next_of.values())]
    for test in TESTS:
        pairs = _find_fitting_pairs(unpaired, free, test)
        times = Counter(value for pair in pairs for value in pair)
        next_of |= {past: present for past, present in pairs if times[past] == times[present] == 1}
        unpaired, free = ([value for value in values if not times[value]] for values in (unpaired, free))
    next_of |= _by_flow(scope, unpaired, free)
    next_of |= _pair_state_names(scope, unpaired, free, next_of)
    order = {value: place for place, value in enumerate(scope.inputs)}
    entries = (StateEntry(past, present) for past, present in next_of.items() if present is not None)
    return tuple(sorted(entries, key=lambda entry: order[entry.past]))


def can_replace(past: Value, present: Value) -> bool:
    """Whether an output has the dtype and the shape of an input; a dim that no input declares may be any size."""
    before, after = hinted_type(past), hinted_type(present)
    if before is None or after is None or before.dtype != after.dtype:
        return False
    if before.dims is None or after.dims is None or len(before.dims) != len(after.dims):
        return False
    changed = [now for dim, now in zip(before.dims, after.dims, strict=True) if dim != now]
    return not any(isinstance(now, int) or (now or "") in past.scope.input_dim_names for now in changed)


def _is_fixed(value: Value) -> bool:
    """Whether a value has the same size at each step: all of its dims are numbers, but for that of the batch."""
    declared = hinted_type(value)
    if declared is None or declared.dims is None:
        return False
    varying = [dim for dim in declared.dims if not isinstance(dim, int)]
    return not varying or (len(varying) == 1 and not GROWING.intersection(split_name(varying[0] or "")))


def _is_state(entry: CacheEntry) -> bool:
    """Whether an entry that looks like a cache is replaced as a whole: by name, or as a window of fixed size is."""
    past, present = entry.past, entry.present
    if past is None or present is None or not can_replace(past, present):
        return False
    if entry.slot.kind == "state" and hinted_type(past) == hinted_type(present):
        return True  # whatever its dims are called, they do not grow
    if not _is_fixed(past):
        return False
    is_plain = hinted_type(past) == hinted_type(present) and not ATTENTION.intersection(split_name(past.name))
    return entry.slot.kind == "state" or is_plain or past in _window_inputs(present, is_cut_last=True)


def _by_flow(scope: Scope, inputs: Iterable[Value], outputs: Iterable[Value]) -> Links:
    """Return states of plain arithmetic, such as an LSTM cell written out, whose outputs have names that say little.

    Nothing but the output may fit the state and be computed from it. That is computed from another input too, and fits
    none of these, unless its name is that of the state with a number, as PyTorch's exporter tells the two apart.
    """
    named: dict[Value, set[str]] = {}  # of rank 2 or more, by words of nothing but a state and its number
    for past in inputs:
        declared, words = hinted_type(past), set(filter(str.isalpha, split_name(past.name))) - DIRECTIONS
        is_state = words and words <= CELLS and not words >= HIDDEN_STATES
        if is_state and declared is not None and len(declared.dims or ()) > 1:
            named[past] = words
    inputs = scope.inputs if named else ()
    reached = {value: {*walk_breadth_first([value], values_computed_from)} for value in inputs}
    next_of = {}
    for past, words in named.items():
        fitting = [value for value in scope.outputs if value in reached[past] and can_replace(past, value)]
        if len(fitting) != 1 or fitting[0] not in outputs or fitting[0] is past:
            continue
        others = [value for value in scope.inputs if value is not past and fitting[0] in reached[value]]
        said = set(filter(str.isalpha, split_name(fitting[0].name)))
        is_other = bool(said & STATES - words) or any(can_replace(value, fitting[0]) for value in others)
        if others and (said == words or not is_other):
            next_of[past] = fitting[0]
    return next_of


def _pair_state_names(scope: Scope, inputs: Iterable[Value], outputs: Iterable[Value], known: Links) -> Links:
    """Return states whose outputs have their names and say that they come out, as `xx` and `xx_out`.

    An image and what a filter makes of it may be called so too. So there are two such states at least, or others that
    are known; each output has the dtype and dims of its input and is computed from it; and the graph has an input and
    an output that are neither.
    """
    fitting = _find_fitting_pairs(inputs, outputs, (_plain_words, _names_saying(OUT)))
    pairs = [pair for pair in fitting if pair[0] not in known]
    times = Counter(value for pair in pairs for value in pair)
    single = ((past, present) for past, present in pairs if times[past] == times[present] == 1)
    found = {past: present for past, present in single if hinted_type(past) == hinted_type(present)}
    pairs = [pair for pair in found.items() if pair[1] in walk_breadth_first(pair[:1], values_computed_from)]
    found = dict(pairs)
    others = [value for value in scope.inputs if value.tensor is None and value not in {*found, *known}]
    is_step = bool(others) and not {*scope.outputs} <= {*found.values(), *known.values()}
    return found if is_step and len(found) + len(known) > 1 else {}


def _find_fitting_pairs(inputs: Iterable[Value], outputs: Iterable[Value], test: Test) -> list[tuple[Value, Value]]:
    """Return the inputs and outputs that a test finds to be one state, some perhaps more than once."""
    of_input, of_output = test
    keyed = [(value, key) for value in outputs for key in of_output(value)]
    keyed_inputs = [(value, key) for value in inputs if (key := of_input(value)) is not None]
    return [
        (past, present)
        for past, input_key in keyed_inputs
        for present, output_key in keyed
        if input_key == output_key and can_replace(past, present) and unwrap_value(present, ("Identity",)) is not past
    ]


def _plain_words(value: Value) -> Hashable:
    """Return the words of a name that do not say whether it comes in or goes out, None for none."""
    return tuple(word for word in split_name(value.name) if word not in DIRECTIONS) or None


def _state_name(value: Value) -> Hashable:
    return plain if isinstance(plain := _plain_words(value), tuple) and STATES.intersection(plain) else None


def _plain_names(value: Value) -> list[Hashable]:
    return [plain] if (plain := _plain_words(value)) is not None else []


def _names_saying(words: set[str]) -> Callable[[Value], list[Hashable]]:
    return lambda value: _plain_names(value) if words.intersection(split_name(value.name)) else []


def _initial_name(value: Value) -> Hashable:
    """Return `h` for `h0` and `h_0`."""
    plain = _state_name(value)
    return plain[:-1] or None if isinstance(plain, tuple) and plain[-1] == "0" else plain


def _last_names(value: Value) -> list[Hashable]:
    """Return `h` for `hn` and `h_n`, and `state` for `stateN`."""
    *first, last = split_name(value.name) or [""]
    if last == "n" and first:
        return [tuple(first)]
    return [(*first, last[0])] if last in ("hn", "cn") else []


def _of_recurrence(value: Value) -> Hashable:
    """Return the outputs of recurrent nodes that give the next value of an input, as the initial state of the nodes."""
    outputs = set[tuple[Node, int]]()
    for node, index in find_readers(value, _keeps_size):
        if node.is_op(*RECURRENT) and index in (5, 6):
            outputs.add((node, index - 4))
        elif not _keeps_size(node, index):
            return None
    return frozenset(outputs) or None


def _keeps_size(node: Node, index: int) -> bool:
    """Whether a node moves elements, and repeats none: what is expanded to a batch is no state of its rows."""
    return moves_elements(node, index) and not node.is_op("Expand", "Tile")


def _from_recurrence(value: Value) -> list[Hashable]:
    """Return the outputs of recurrent nodes, their last states, that an output consists of."""
    outputs = set[tuple[Node, int]]()
    for source in walk_breadth_first([value], lambda each: moved_from(each, MOVES)):
        node = source.producer
        if node is not None and node.is_op(*RECURRENT) and source.output_index in (1, 2):
            outputs.add((node, source.output_index))
        elif node is None or not node.is_op(*MOVES):
            return []
    return [frozenset(outputs)] if outputs else []


def _window_inputs(value: Value, *, is_cut_last: bool = False) -> set[Value]:
    """Return the inputs that an output is joined and cut from, each in front of the tensor joined to it.

    Where it must be cut last, it is not cut before it is joined: a slice before may select one of many layers.
    """

    def before(met: tuple[Value, bool, bool]) -> list[tuple[Value, bool, bool]]:
        moved, is_cut, is_joined = met
        node = moved.producer
        if node is None or not node.is_op(*MOVES):
            return []
        makers = [part.producer if part is not None else None for part in joined_parts(node)]
        is_join = any(maker is None or not maker.is_op("Unsqueeze") for maker in makers)  # no stack of layers
        cut, joined = is_cut or node.is_op(*CUTTING), is_joined or (is_join and (is_cut or not is_cut_last))
        sources = node.inputs[:1] if is_join else moved_from(moved, MOVES)
        return [(source, cut, joined) for source in sources if source is not None]

    met = walk_breadth_first([(value, False, False)], before)
    return {moved for moved, is_cut, is_joined in met if moved.kind == "input" and is_cut and is_joined}


TESTS: tuple[Test, ...] = (
    (_of_recurrence, _from_recurrence),
    (_state_name, _plain_names),
    (_plain_words, _names_saying(NEXT)),
    (_initial_name, _last_names),
    (lambda past: past, _window_inputs),
)
