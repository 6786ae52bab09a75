"""Roles: the purpose of each input and output of a model, and the meaning of each axis of its inputs.

`Model.roles` finds them once for each model. The nodes count first, the name last; if none of these tells, the role is
"other". An input that looks up rows may be tokens, positions or token types: only its name tells which.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator, Mapping, Sequence
from functools import cached_property
from typing import Literal, NamedTuple

from msgspec import Struct
from onnx import TensorProto

from graphkit.graph.cache_entries import CROSS, CacheEntry, StateEntry, cache_entries, recurrent_states, split_name
from graphkit.graph.dataflow import BEFORE_LOOKUPS, Use, find_lookups, find_uses, table_entries
from graphkit.graph.declared_types import Dim, TensorType, declared_dims, hinted_dims, hinted_type
from graphkit.graph.mask_polarity import Polarity, find_polarity
from graphkit.graph.operator_traits import PRESERVING
from graphkit.graph.view import Node, Scope, Value, branch_fault, chain_end, find_nodes, follow_operators, unwrap_value

# Recognise merged decoders: an If on a boolean input with one branch that reads the past.
#
# Names of nodes and exporters play no part.

KEEPS_A_FLAG = PRESERVING | {"Cast", "Not"}


class Condition(NamedTuple):
    """The graph input that decides an If, negated or not."""

    input: Value
    negated: bool

    @property
    def shape(self) -> tuple[int, ...]:
        """The shape of the input, with 1 for each dim that is not a number."""
        return tuple(dim if isinstance(dim, int) else 1 for dim in hinted_dims(self.input) or ())


class MergedDecoder(NamedTuple):
    """An If that holds both steps of a decoder."""

    node: Node
    condition: Condition  # the boolean graph input behind its condition
    cache_branch: str  # the branch that reads the past, run on later steps
    first_branch: str  # the other one, run on the first step
    zero_length: tuple[Value, ...]  # outputs of the If that the cache branch gives as constants without elements

    @property
    def cache_when(self) -> bool:
        """The value of the condition's input that runs the cache branch."""
        return (self.cache_branch == "then_branch") != self.condition.negated


def trace_condition(node: Node) -> Condition | None:
    """Return the graph input that decides an If, or None if anything else does."""
    negated = False
    for value in follow_operators(node.input(0), KEEPS_A_FLAG):
        if value.kind == "input":
            return Condition(value, negated) if not value.scope.path else None
        negated ^= value.producer is not None and value.producer.op_type == "Not"
    return None


def count_captured_values(body: Scope) -> dict[Value, int]:
    """Return the values of outer scopes that a body reads, with the number of reads, in order of first use."""
    reads: dict[Value, int] = {}
    for scope in body.walk():
        used = [value for node in scope.nodes for value in node.operands]
        for value in [*used, *scope.outputs]:
            if not body.contains(value.scope):
                reads[value] = reads.get(value, 0) + 1
    return reads


def zero_length_outputs(body: Scope) -> Iterator[int]:
    """Yield the indices of a body's outputs that are constants without elements."""
    for index, value in enumerate(body.outputs):
        constant = unwrap_value(value, ("Identity",)).constant
        if constant is not None and 0 in constant.dims:
            yield index


def merged_decoders(main: Scope, cache: Sequence[CacheEntry]) -> Iterator[MergedDecoder]:
    """Yield the merged decoders among the Ifs of a graph with this cache, at any depth."""
    past = {entry.past for entry in cache if entry.past is not None}
    for node in find_nodes((main,), "If"):
        condition = trace_condition(node)
        if condition is None or not {"then_branch", "else_branch"} <= set(node.bodies) or branch_fault(node):
            continue
        declared = hinted_type(condition.input)
        branches = {name: node.bodies[name] for name in ("then_branch", "else_branch")}
        readers = [name for name, body in branches.items() if past.intersection(count_captured_values(body))]
        if declared is None or declared.dtype != TensorProto.BOOL or len(readers) != 1:
            continue
        reader, first = readers[0], "else_branch" if readers[0] == "then_branch" else "then_branch"
        empty = [at for at in zero_length_outputs(node.bodies[reader]) if at < len(node.outputs)]
        zero = tuple(value for at in empty if (value := node.outputs[at]) is not None)
        yield MergedDecoder(node, condition, reader, first, zero)


Role = Literal[
    "tokens", "embeddings", "mask", "positions", "token types",
    "encoder tokens", "encoder mask", "encoder state",
    "image", "image mask", "audio",
    "past", "present", "state", "next state", "condition", "logits", "other",
]  # fmt: skip
Axis = Literal["batch", "sequence", "past", "encoder", "total", "channels", "space", "other"]

PLANES: tuple[Axis, ...] = ("other", "batch", "sequence")
MASKS: tuple[Role, ...] = ("mask", "encoder mask", "image mask")


class Roles(Struct, frozen=True, eq=False, dict=True):
    """The roles of a model's inputs and outputs."""

    # The role of each input without a default. "tokens", "mask" and so on are the model's own: those of an
    # encoder in an encoder, those of the decoder in a decoder, whose "encoder mask" is that of cross-attention.
    inputs: Mapping[Value, Role]
    outputs: Mapping[Value, Role]  # the role of each output; an "encoder state" is an input of a decoder
    cache: tuple[CacheEntry, ...]  # the KV cache: which past goes with which present, of which layer
    merged: tuple[MergedDecoder, ...]  # the Ifs that hold both steps of a decoder
    states: tuple[StateEntry, ...] = ()  # the recurrent state: which input each output replaces

    def of(self, value: Value) -> Role:
        """Return the role of an input or output, "other" for any other value."""
        return self.inputs.get(value) or self.outputs.get(value) or "other"

    def all(self, *roles: Role) -> tuple[Value, ...]:
        """Return the inputs of some roles, in their order."""
        return tuple(value for value, role in self.inputs.items() if role in roles)

    def first(self, role: Role) -> Value | None:
        """Return the first input of a role, None if there is none."""
        return next(iter(self.all(role)), None)

    @property
    def encoder_state(self) -> Value | None:
        """The output that a decoder reads as the encoder's state: the first one where none is known to be it."""
        named = (value for value, role in self.outputs.items() if role == "encoder state")
        return next(named, next(iter(self.outputs), None))

    @cached_property
    def pasts(self) -> Mapping[Value, CacheEntry]:
        """The inputs that are a cache, and the entry of each."""
        return {entry.past: entry for entry in self.cache if entry.past is not None}

    @cached_property
    def polarities(self) -> Mapping[Value, Polarity | None]:
        """The masks, and which of their elements hide; None where the nodes do not tell."""
        return {value: find_polarity(value) for value in self.all(*MASKS)}

    @property
    def decoder(self) -> MergedDecoder | None:
        """The first If that holds both steps of a decoder."""
        return self.merged[0] if self.merged else None

    @cached_property
    def empty(self) -> tuple[Value, ...]:
        """The outputs of a merged decoder that have no elements once it reads the past."""
        return tuple(value for decoder in self.merged for value in decoder.zero_length)

    @cached_property
    def vocabulary(self) -> int | None:
        """The entries of the vocabulary: the rows of the table that tokens look up, or the width of the logits."""
        lookups = (lookup for value in self.all("tokens") for lookup in find_lookups(value))
        rows = next((size for lookup in lookups if (size := table_entries(*lookup)) is not None), None)
        for value, role in self.outputs.items() if self.first("tokens") is not None else ():
            dims = declared_dims(value) if role == "logits" else None
            width = dims[-1] if dims and len(dims) == 3 else None
            if isinstance(width, int) and width > 2 and (rows is None or abs(rows - width) <= max(rows, width) // 8):
                return width
        return rows

    @property
    def logits(self) -> Value | None:
        """The first output that is logits."""
        return next((value for value, role in self.outputs.items() if role == "logits"), None)

    def is_cross(self, entry: CacheEntry) -> bool:
        """Whether a cache tensor belongs to cross-attention: by its name, or because later steps do not change it."""
        if entry.slot.attention or entry.present is None:
            return entry.slot.attention == "encoder" or entry.present in self.empty
        return entry.present in self.empty or unwrap_value(entry.present, ("Identity",)) is entry.past

    def spans_past(self, value: Value) -> bool:
        """Whether an input is a mask over past and new tokens, whatever length an exporter declares it to have."""
        grows = any(entry.axis is not None and not self.is_cross(entry) for entry in self.pasts.values())
        return grows and self.inputs.get(value) == "mask" and declared_rank(value) == 2

    @cached_property
    def has_slots(self) -> bool:
        """Whether the cache of self-attention has slots from the start, of which a step writes some."""
        own = [entry for entry in self.pasts.values() if not self.is_cross(entry)]
        return bool(own) and all(entry.is_static for entry in own)

    def axis(self, value: Value, at: int) -> Axis:
        """Return the meaning of an axis of an input."""
        dims, dim, entry = hinted_dims(value) or (), dim_at(value, at), self.pasts.get(value)
        role, last = self.inputs.get(value, "other"), len(dims) - 1
        if entry is not None and at == entry.axis:
            return "encoder" if self.is_cross(entry) else "past"
        if entry is not None or role == "state":
            open_ones = [axis for axis, each in enumerate(dims) if not isinstance(each, int)]
            named_ones = [axis for axis in open_ones if "batch" in str(dims[axis])]
            others = [axis for axis in open_ones if entry is None or axis != entry.axis]
            return "batch" if at in (named_ones or others[:1]) else "other"
        if last == 1 and at == 0 and PIXELS.search(value.name):  # patches of all pictures
            return "other"
        if role == "positions" and last == 2:  # in planes, as those of pictures are
            return PLANES[at]
        is_named = any("batch" in str(each) for each in dims)
        may_be_sequence = last == 0 or role == "mask"
        if "batch" in str(dim) or (at == 0 and not is_named and not (may_be_sequence and self._is_sequence(dim))):
            return "batch"
        if role == "mask" and at == 0 and any(dim in (hinted_dims(past) or ()) for past in self.pasts):
            return "other"  # slots, which bundles have first
        if role in ("encoder mask", "mask"):
            if at != last:  # the axis before the last one counts the new tokens, as in the scores
                return "sequence" if at == last - 1 else "other"
            if role == "encoder mask" or "encoder" in str(dim):
                return "encoder"
            return "sequence" if not self.pasts and self._is_sequence(dim) else "total"
        if role == "image mask":
            return "space"
        if at == 1 and (role.startswith("encoder") or "encoder" in str(dim)):
            return "encoder"
        if role in ("tokens", "positions", "token types", "embeddings"):
            return "sequence" if at == (1 if role == "embeddings" else last) else "other"
        declared = hinted_type(value)
        if role in ("image", "other") and last == 3 and declared is not None and may_be_pixels(declared):
            return "channels" if at == 1 else "space"
        return "other"

    def _is_sequence(self, dim: Dim) -> bool:
        return dim is not None and any(dim_at(value, 1) == dim for value in self.all("tokens", "embeddings"))


def may_be_pixels(declared: TensorType) -> bool:
    """Whether a tensor has a dtype that images have."""
    return declared.is_float or declared.dtype == TensorProto.UINT8


def dim_at(value: Value | None, axis: int | None) -> Dim:
    """Return a declared dim of a value, None if it is not declared."""
    dims = hinted_dims(value)
    return dims[axis] if dims is not None and axis is not None and -len(dims) <= axis < len(dims) else None


def declared_rank(value: Value) -> int | None:
    """Return the declared rank of a value."""
    dims = hinted_dims(value)
    return None if dims is None else len(dims)


INTEGERS = {TensorProto.INT32, TensorProto.INT64}
PIXELS = re.compile(r"pixel_values", re.IGNORECASE)
IMAGE = re.compile(r"pixel_values|image|img", re.IGNORECASE)
AUDIO = ("input_features", "input_values", "audio")
MASK_WORDS = {"mask", "masks"}
STATE_WORDS = {"hidden", "output", "outputs", "state", "states", "embeds"}
OF_ENCODER: Mapping[Role, Role] = {"tokens": "encoder tokens", "embeddings": "encoder state", "mask": "encoder mask"}
OF_MODEL: Mapping[Role, Role] = {"encoder tokens": "tokens", "encoder mask": "mask"}


def find_roles(main: Scope) -> Roles:
    """Return the roles of the inputs and outputs of a model's main graph."""
    cache = cache_entries(main)
    merged = tuple(merged_decoders(main, cache))
    known: dict[Value, Role] = {decoder.condition.input: "condition" for decoder in merged}
    known |= {entry.past: "past" for entry in cache if entry.past is not None}
    inputs = {value: known.get(value) or _input_role(value) for value in main.inputs if value.tensor is None}
    inputs = _find_encoder_inputs(_with_tokens(_tell_sides_apart(inputs, has_cache=bool(cache))), cache)
    presents = {entry.present for entry in cache}
    outputs: dict[Value, Role] = {v: "present" if v in presents else _output_role(v) for v in main.outputs}
    outputs = _with_logits(inputs, outputs)
    states = () if merged else _find_states(main, inputs, outputs, cache)
    inputs |= dict.fromkeys((entry.past for entry in states), "state")
    outputs |= dict.fromkeys((entry.next for entry in states), "next state")
    taken = {value for entry in states for value in (entry.past, entry.next)}
    cache = tuple(entry for entry in cache if entry.past not in taken and entry.present not in taken)
    return Roles(inputs, outputs, cache, merged, states)


Found = Mapping[Value, Role]


def _find_states(main: Scope, inputs: Found, outputs: Found, cache: Iterable[CacheEntry]) -> tuple[StateEntry, ...]:
    """Return the recurrent state of a model: inputs and outputs that are no tokens, masks, caches or logits.

    A model that takes nothing new besides, such as a part of the layers of a larger one, has none.
    """
    taken = {value for entry in cache if entry.past and entry.present for value in (entry.past, entry.present)}
    kinds = ("other", "past", "present", "encoder state", "image")
    taken |= {value for value in inputs if IMAGE.search(value.name)}
    inputs = {v: "other" if role == "positions" and _counts_on(v) else role for v, role in inputs.items()}
    left, free = ([v for v, role in found.items() if role in kinds and v not in taken] for found in (inputs, outputs))
    states = recurrent_states(main, left, free, cache)
    past = {entry.past for entry in states}
    is_fed = any(role not in (*MASKS, "positions", "past") and value not in past for value, role in inputs.items())
    return states if is_fed else ()


def _counts_on(value: Value) -> bool:
    """Whether a model gives an input and a constant as an output, as it does where it counts positions."""
    sums = [node for node, _ in value.consumers if node.is_op("Add") and any(v.is_constant for v in node.operands)]
    return any(node.outputs[0] in value.scope.outputs for node in sums)


def _input_role(value: Value) -> Role:
    """Return the role of one input, by its uses, its dtype and rank, and its name."""
    declared = hinted_type(value)
    if declared is None:
        return "other"
    if declared.is_float or declared.dtype in (TensorProto.UINT8, TensorProto.INT8):
        return _float_role(value, declared)
    uses_of_value, words = find_uses(value), set(split_name(value.name))
    if declared.dtype == TensorProto.BOOL:
        is_mask = words & MASK_WORDS or ("mask" in uses_of_value and declared_rank(value) in (2, 3, 4))
        return _mask_role(words) if is_mask else "other"
    if declared.dtype not in INTEGERS:
        return "other"
    if words & MASK_WORDS and not ("lookup" in uses_of_value and "mask" not in uses_of_value):
        return _mask_role(words)
    # numbers that angles are taken of, but for the time of a diffusion, which has no positions
    is_turned = uses_of_value == {"angle"} and "ids" not in words and declared_rank(value) not in (0, 1)
    if words & {"position", "positions", "pos"} or is_turned:
        return "positions"
    if declared_rank(value) == 0:
        return "other"
    if {"token", "type"} <= words or words & {"segment", "segments"}:
        return "token types"
    if re.search(r"(^|_)(ids|tokens)$", value.name, re.IGNORECASE) or {"input", "ids"} <= words:
        return "encoder tokens" if words & CROSS else "tokens"
    return _mask_role(words) if uses_of_value == {"mask"} and declared_rank(value) == 2 else "other"


def _mask_role(words: set[str]) -> Role:
    if words & {"pixel", "pixels", "image", "images"}:
        return "image mask"
    return "encoder mask" if words & CROSS else "mask"


def _float_role(value: Value, declared: TensorType) -> Role:
    words = set(split_name(value.name))
    if words & MASK_WORDS:
        uses_of_value = find_uses(value) if value.consumers else frozenset[Use]({"mask"})
        return _mask_role(words) if uses_of_value & {"mask", "hidden"} else "other"
    if declared_rank(value) == 3 and declared.is_float:
        if words & CROSS and words & STATE_WORDS:
            return "encoder state"
        if words & {"input", "inputs"} and words & {"embeds", "embeddings"}:
            return "embeddings"
    if value.name.startswith(AUDIO) and declared.is_float:
        return "audio"
    if declared.dims is None or len(declared.dims) != 4:
        return "other"
    channels = {declared.dims[1], declared.dims[3]}
    is_image = IMAGE.search(value.name) or (channels & {1, 3} and may_be_pixels(declared))
    return "image" if is_image else "other"


def _tell_sides_apart(inputs: dict[Value, Role], *, has_cache: bool) -> dict[Value, Role]:
    """Return roles that tell the model's own tokens and masks from those of an encoder.

    If some names say "decoder", inputs without such a word are the encoder's. A model without a cache whose inputs are
    all an encoder's is an encoder.
    """
    token_inputs = [value for value, role in inputs.items() if role in ("tokens", "embeddings")]
    is_named = [bool({"decoder", "dec"} & set(split_name(value.name))) for value in token_inputs]
    is_beside = "encoder state" in inputs.values() and "encoder mask" not in inputs.values()
    if any(is_named) and (is_beside or not all(is_named)):
        given = {dim for output in token_inputs[0].scope.outputs for dim in hinted_dims(output) or ()}
        plain = [
            v
            for v, role in inputs.items()
            if role in OF_ENCODER and not {"decoder", "dec"} & set(split_name(v.name))
            if not (is_beside and role == "mask" and dim_at(v, -1) in given)  # as long as the decoder's own cache
        ]
        return inputs | {value: OF_ENCODER[inputs[value]] for value in plain}
    is_encoder = not token_inputs and not has_cache and "encoder state" not in inputs.values()
    if is_encoder and "encoder tokens" in inputs.values():
        return {value: OF_MODEL.get(role, role) for value, role in inputs.items()}
    return inputs


def _with_tokens(inputs: dict[Value, Role]) -> dict[Value, Role]:
    """Return roles in which the only input [batch, sequence] that looks up rows of a table is tokens.

    Where no other input is, and the table is not computed, as those are that edges of a graph look up.
    """
    if any(role in ("tokens", "embeddings") for role in inputs.values()):
        return inputs
    looking_up = []
    for value, role in inputs.items():
        if role == "other" and declared_rank(value) == 2 and "lookup" in find_uses(value):
            tables = [unwrap_value(table, BEFORE_LOOKUPS) for _, table in find_lookups(value)]
            if all(table.producer is None or table.is_constant for table in tables):
                looking_up.append(value)
    return inputs | {looking_up[0]: "tokens"} if len(looking_up) == 1 else inputs


def _find_encoder_inputs(inputs: dict[Value, Role], cache: Iterable[CacheEntry]) -> dict[Value, Role]:
    """Return roles in which inputs as long as the cache of cross-attention are the encoder's."""
    token_dims = {dim_at(value, 1) for value, role in inputs.items() if role == "tokens"}
    of_cross = [(entry, entry.past or entry.present) for entry in cache if entry.slot.attention == "encoder"]
    cross = {dim_at(value, entry.axis) for entry, value in of_cross if entry.axis is not None}
    if of_cross and not cross:  # where nodes tell no axis apart, they have one name for the source in common
        behind = [{*(hinted_dims(value) or ())[1:]} for _, value in of_cross if value is not None]
        cross = behind[0].intersection(*behind)
    cross |= {dim_at(value, 1) for value, role in inputs.items() if role == "encoder state"}
    lengths = {dim for dim in cross - token_dims if isinstance(dim, str)}
    long = {value: role for value, role in inputs.items() if dim_at(value, 1) in lengths}
    masks = [value for value, role in long.items() if role == "mask" and declared_rank(value) == 2]
    others = [value for value, role in long.items() if role == "other" and declared_rank(value) == 3]
    states = [value for value in others if (declared := hinted_type(value)) is not None and declared.is_float]
    return inputs | dict.fromkeys(masks, OF_ENCODER["mask"]) | dict.fromkeys(states, OF_ENCODER["embeddings"])


def _output_role(value: Value) -> Role:
    declared, words = hinted_type(value), set(split_name(value.name))
    if declared is None or not declared.is_float:
        return "other"
    if "logits" in words:
        return "logits"
    is_state = "hidden" in words and words & {"state", "states"} and declared_rank(value) in (3, None)
    return "encoder state" if is_state else "other"


def _with_logits(inputs: Mapping[Value, Role], outputs: dict[Value, Role]) -> dict[Value, Role]:
    """Return roles in which the only product as wide as the vocabulary is logits, if no other output is."""
    if "logits" in outputs.values():
        return outputs
    tables = [candidates for value, role in inputs.items() if role == "tokens" for candidates in find_lookups(value)]
    sizes = {table_entries(*candidates) for candidates in tables}
    candidates = [v for v, role in outputs.items() if role == "other" and dim_at(v, -1) in sizes - {None}]
    candidates = [value for value in candidates if declared_rank(value) in (2, 3) and _is_projected(value)]
    return outputs | {candidates[0]: "logits"} if len(candidates) == 1 else outputs


def _is_projected(value: Value) -> bool:
    """Whether a value is a product, perhaps biased, scaled or cast."""
    producer = chain_end(value, _before_scaling).producer
    return producer is not None and ("MatMul" in producer.op_type or producer.is_op("Gemm"))


def _before_scaling(value: Value) -> Value | None:
    producer = value.producer
    if producer is None or not producer.is_op("Add", "Mul", "Div", "Tanh", "Cast", "Identity"):
        return None
    return next((source for source in producer.operands if not source.is_constant), None)
