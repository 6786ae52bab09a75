"""Interface: the inputs and outputs of a model, with one row for each numbered family, and which sizes are frozen."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, field, replace
from typing import ClassVar

from msgspec import Struct

from graphkit.analysis.findings import Finding, Judged, kind_of
from graphkit.errors import UsageError, count_things
from graphkit.graph.cache_entries import CacheEntry
from graphkit.graph.dataflow import values_computed_from
from graphkit.graph.declared_types import Dim, declared_dims, hinted_dims, shape_text, type_dims
from graphkit.graph.mask_polarity import POLARITIES
from graphkit.graph.names import family_label, family_labels, family_pattern, runs_of
from graphkit.graph.operator_traits import ANGLES, GROUPED
from graphkit.graph.roles import MASKS, Role, Roles, dim_at
from graphkit.graph.view import Scope, Value, find_nodes, walk_breadth_first
from graphkit.model import Model, ModelLike, as_model
from graphkit.render.document_blocks import Block, Prose, Table, table
from graphkit.shapes import Expr, infer
from graphkit.shapes.infer import infer_claimed
from graphkit.symbolic.expr import Call

# Meanings of the usual names; a doc string in the model goes before.
MEANINGS = {
    "input_ids": "token ids",
    "decoder_input_ids": "token ids of the decoder",
    "attention_mask": "1 for a token, 0 for padding",
    "encoder_attention_mask": "1 for a token of the encoder, 0 for padding",
    "decoder_attention_mask": "1 for a token of the decoder, 0 for padding",
    "position_ids": "position of each token",
    "token_type_ids": "segment of each token",
    "inputs_embeds": "embeddings in place of token ids",
    "encoder_hidden_states": "what the encoder gives as last_hidden_state",
    "encoder_outputs": "what the encoder gives as last_hidden_state",
    "last_hidden_state": "hidden state of each position",
    "pixel_values": "image",
    "pixel_mask": "1 for a pixel, 0 for padding",
    "input_features": "audio features",
    "input_values": "audio samples",
    "use_cache_branch": "whether to read the past: false on the first step",
    "use_cache": "whether to read the past: false on the first step",
    "logits": "scores before softmax",
    "pred_boxes": "boxes, relative to the image",
}


MANIFEST = "export.json"  # which transformers 5 writes beside its models
SOURCES: tuple[Role, ...] = ("tokens", "embeddings", "encoder tokens", "audio")  # inputs with rows and a length
OF_ENCODER: tuple[Role, ...] = ("encoder state", "encoder mask", "encoder tokens")
HELD = ("past", "state", "positions", "condition", *MASKS)  # roles of inputs that are nothing new
MOST_TOKENS = 1 << 13  # at which it is tried whether the loop of an example still fits
EXAMPLE = ", as many as the exporter's example had"
FAULTS = {  # the kind of finding, its place, its sentence; how to export anew by transformers 5, and by anything else
    "past": ("frozen-past", "{token}",
        "this decoder runs only after exactly {token}: its past was exported with that length",
        "with {prompt} of three tokens, with multi_token_decode=True, or with a static cache",
        "with a dynamic dim for the length of the past, and an example of two or more"),
    "write": ("lost-write", "{cache}",
        "the new keys and values of a step are lost: caches come back without them, at every size",
        "with a cache that grows, not a static one", "so that each step gives its new keys and values back"),
    "batch": ("frozen-size", "a batch of {size}", f"every run takes exactly {{row}}{EXAMPLE}",
        "{example}with explicit dynamic_shapes",
        "with a dynamic dim for the batch, and an example of two rows"),
    "pictures": ("frozen-size", "{picture}", f"every run takes exactly {{picture}}{EXAMPLE}",
        "with explicit dynamic_shapes", "with a dynamic dim for the pictures"),
    "tokens": ("frozen-size", "{token}", f"every run reads exactly {{token}}{EXAMPLE}",
        "with explicit dynamic_shapes; a model that is unrolled over its tokens has to read them one at a time",
        "with a dynamic dim for the tokens"),
    "loop": ("frozen-size", "at most {token}", "a loop is unrolled as in the example: past {token} numbers are wrong",
        "from an example with as many chunks as your prompts have", "with the loop as an operator"),
    "source": ("frozen-size", "a source of {size}", f"every source has exactly {{size}} positions{EXAMPLE}",
        "with a cache that grows, or pad each source to this length", "with a dynamic dim for the source"),
    "mask": ("frozen-size", "a mask of {size}", f"the mask has exactly {{size}} places{EXAMPLE}",
        "with explicit dynamic_shapes", "with a dynamic dim for the mask"),
    "padding": ("no-mask", "rows of {prompt}",
        "no mask: the rows of a batch have to be of one length, for padding would count as tokens",
        "from an example with a padded row, so that it takes a mask", "with a mask as an input"),
    "places": ("lost-positions", "rows of {prompt}",
        "of the positions of a prompt onnxruntime's GroupQueryAttention reads the first alone: rows that begin with "
        "padding are placed wrongly", "without ort_fusions", "with rotary embeddings in plain operators"),
}  # fmt: skip
Row = tuple[str, int, list[Value]]  # a key of `FAULTS`, the size, the inputs that show it


class FrozenSize(Struct, frozen=True):
    """A size that an exporter froze, or another limit that its example left."""

    about: str  # a key of `FAULTS`
    size: int  # the size; 0 where there is none
    where: str  # the size in a few words
    ports: str  # labels of the inputs that show it, and their dims
    text: str  # the fault, in a sentence
    advice: str  # how to export the model anew

    @property
    def kind(self) -> str:
        return FAULTS[self.about][0]

    def __str__(self) -> str:
        return f"{self.text} ({self.ports}) - {self.advice}"


@dataclass(frozen=True)
class FrozenSizes(Judged):
    """The sizes that an exporter froze: a row for each, the worst first."""

    title: ClassVar[str] = "Frozen sizes"
    rows: tuple[FrozenSize, ...]

    def found(self) -> tuple[Finding, ...]:
        return tuple(Finding(row.kind, row.where, str(row), row.where) for row in self.rows)

    def blocks(self) -> Iterator[Block]:
        for finding in self.found():
            yield Prose(f"{finding.text[0].upper()}{finding.text[1:]}.", "warning" if finding.is_fault else "plain")


@dataclass(frozen=True)
class Port:
    """An input or output, or a family of them."""

    indices: tuple[int, ...]  # positions among the inputs or outputs
    names: tuple[str, ...]  # the names, in that order
    label: str  # the name, or the pattern of the family: `past_key_values.{0-17}.{key|value}`
    dtype: str  # such as `float32`, or `seq(float32)`
    # the dims: numbers, symbols, None for an unknown one, `*` where the family's members differ; None for an
    # unknown rank
    shape: tuple[Dim, ...] | None
    description: str  # from the model's doc string, or the usual meaning of the name
    optional: bool = False  # whether it is an input with a default value
    # the dims of each, in the order of the names
    shapes: tuple[tuple[Dim, ...] | None, ...] = field(default=(), metadata={"in_json": False})

    @property
    def remark(self) -> str:
        return "; ".join(filter(None, (self.description, "has a default" if self.optional else "")))

    @property
    def index(self) -> str:
        """The positions as text: `3-38`, or `2-3,...,46-47`."""
        texts = [f"{run[0]}-{run[-1]}" if len(run) > 1 else f"{run[0]}" for run in runs_of(self.indices)]
        return ",".join(texts if len(texts) < 4 else [texts[0], "...", texts[-1]])


@dataclass(frozen=True)
class Interface(Judged):
    """Inputs and outputs of a model's main graph; initializers that are listed as inputs are `optional`.

    Attributes:
        inputs, outputs: The declarations of the model.
        contradictions: Where the nodes need other dims than are declared, in one sentence.
        frozen: Sizes that the exporter froze.
    """

    title: ClassVar[str] = "Interface"
    inputs: tuple[Port, ...]
    outputs: tuple[Port, ...]
    contradictions: tuple[str, ...] = ()
    frozen: FrozenSizes = field(default=FrozenSizes(()), metadata={"in_json": False})

    def found(self) -> tuple[Finding, ...]:
        return (*self.frozen.found(), *(Finding("declared-dims", text, text, text) for text in self.contradictions))

    @property
    def input_count(self) -> int:
        return sum(len(port.indices) for port in self.inputs)

    @property
    def output_count(self) -> int:
        return sum(len(port.indices) for port in self.outputs)

    def in_short(self) -> str:
        return f"{count_things(self.input_count, 'input(s)')}, {count_things(self.output_count, 'output(s)')}"

    def blocks(self) -> Iterator[Block]:
        sides = ("Inputs", self.input_count, self.inputs), ("Outputs", self.output_count, self.outputs)
        for name, count, ports in sides:
            if not count:
                yield Prose(f"{name}: none.")
                continue
            rows = [(port.index, port.label, port.dtype, shape_text(port.shape), port.remark) for port in ports]
            yield table("# | Name:code | Dtype | Shape:note | Description:note", rows, f"{name}: {count}")
        yield from self.frozen.blocks()
        yield from (Prose(text, "warning") for text in self.contradictions)

    def csv_tables(self) -> Iterator[Table]:
        """Yield a table with a row for each input and output, those of families too, and what the exporter froze."""
        rows = [
            (side, index, name, port.dtype, shape_text(shape), port.remark)
            for side, ports in (("input", self.inputs), ("output", self.outputs))
            for port in ports
            for index, name, shape in zip(port.indices, port.names, port.shapes or (port.shape,), strict=True)
        ]
        yield table("Side | #:number | Name:code | Dtype | Shape | Description", rows)
        yield from (block for block in self.frozen.blocks() if isinstance(block, Table))


def interface(model: ModelLike) -> Interface:
    """Return the inputs and outputs of a model, a numbered family of them in one row.

    Example:
        >>> [port.label for port in graphkit.interface(graphkit.load("example:causal-attention")).inputs]
        ['input_ids']
    """
    model = as_model(model)
    cache = model.roles.cache
    contradictions: tuple[str, ...] = ()
    if model.roles.pasts:
        from graphkit.shapes import declarations  # which takes as long to import as all else here

        contradictions = declarations(model).notes
    meanings = {entry.past.name: _cache_meaning(entry, "past") for entry in cache if entry.past}
    meanings |= {entry.present.name: _cache_meaning(entry, "present") for entry in cache if entry.present}
    polarities = {value.name: polarity for value, polarity in model.roles.polarities.items() if polarity is not None}
    unusual = {name for name, polarity in polarities.items() if polarity != "keeps" or name not in MEANINGS}
    meanings |= {name: POLARITIES[polarities[name]] for name in unusual}
    meanings |= {entry.past.name: "recurrent state, from the step before" for entry in model.roles.states}
    meanings |= {entry.next.name: "recurrent state, for the next step" for entry in model.roles.states}
    shapes = infer_claimed(model)
    for value in model.graph.outputs:
        declared, given = declared_dims(value), shapes[value].dims
        if declared is None or given is None:
            continue
        pairs = zip(declared, (dim.constant for dim in given), strict=False)
        if len(declared) != len(given) or any(isinstance(a, int) and b is not None and a != b for a, b in pairs):
            dims = f"declared as {shape_text(declared)}, and the nodes give {shape_text(given)}"
            contradictions += (f"output '{value.name}' is {dims}",)
    return Interface(
        _make_ports(model.graph, model.graph.inputs, meanings),
        _make_ports(model.graph, model.graph.outputs, meanings),
        contradictions,
        frozen_sizes(model),
    )


def _cache_meaning(entry: CacheEntry, side: str) -> str:
    where = {"decoder": "self-attention ", "encoder": "cross-attention ", "": ""}[entry.slot.attention]
    what = "state" if entry.slot.kind == "state" else f"{where}KV cache"
    return f"{what}, from the step before" if side == "past" else f"{what}, for the next step"


def _make_ports(scope: Scope, values: Sequence[Value], meanings: dict[str, str]) -> tuple[Port, ...]:
    families: dict[tuple[object, ...], list[tuple[Port, tuple[Dim, ...] | None]]] = {}
    for index, value in enumerate(values):
        info, name = scope.infos.get(value.name), value.name
        dtype, shape = type_dims(info.type) if info is not None else ("?", None)
        doc = str(info.doc_string).strip() if info is not None else ""
        description = doc or meanings.get(name) or MEANINGS.get(name, "")
        optional = value.kind == "input" and value.tensor is not None
        port = Port((index,), (name,), name, dtype, shape, description, optional=optional)
        dims = declared_dims(value)
        fixed = shape if dims is None else tuple(dim if isinstance(dim, int) else "*" for dim in dims)
        pattern = family_pattern(name)
        key = (pattern, dtype, fixed, description, optional)
        families.setdefault(key if "\0" in pattern else (name,), []).append((port, dims))
    ports = [port for members in families.values() for port in _join_ports(members)]
    return tuple(sorted(ports, key=lambda port: port.indices[0]))


def _join_ports(members: list[tuple[Port, tuple[Dim, ...] | None]]) -> list[Port]:
    """Return one port for a family, in whose shape `*` is where they differ, or its members where they make none."""
    ports = [port for port, _ in members]
    label = family_label([port.label for port in ports])
    if len(ports) == 1 or label is None:
        return ports
    indices, names = tuple(port.indices[0] for port in ports), tuple(port.names[0] for port in ports)
    shapes = [dims for _, dims in members if dims is not None]
    columns = zip(*shapes, strict=True)
    shape = tuple(column[0] if len(set(column)) == 1 else "*" for column in columns) if shapes else None
    each = tuple(port.shape for port in ports)
    return [replace(ports[0], indices=indices, names=names, label=label, shape=shape, shapes=each)]


# Sizes that an exporter froze at those of its example: a past, a batch, a prompt, a source; and writes that it lost.
#
# The declared dims and the nodes tell. A dim that is called by a number is frozen where an output is as long: exporters
# write sizes that they know so. A manifest beside the model only tells how to export it anew.


def frozen_sizes(model: ModelLike) -> FrozenSizes:
    """Find the sizes that an exporter froze, such as a past of exactly one token.

    The size of a picture is fixed on purpose, and so are those of a model of which every size is.
    """
    model = as_model(model)
    sizes = _frozen_pasts, _lost_writes, _frozen_batch, _frozen_lengths, _unrolled_loops
    finders = *sizes, _missing_mask, _lost_positions
    rows = []
    for about, size, ports in (row for find in finders for row in find(model)):
        _, place, sentence, by_transformers, by_others = FAULTS[about]
        things = ("token", "row", "picture", "cache")
        words = {thing: count_things(size or len(ports), f"{thing}(s)") for thing in things}
        words |= {"size": str(size), "prompt": next((value.name for value in model.roles.all("tokens")), "a prompt")}
        words |= {"example": "from an example of two rows, or " if size == 1 else ""}  # of more it was one already
        text = (by_transformers if has_manifest(model) else by_others).format(**words)
        label, dims = family_labels(value.name for value in ports), {declared_dims(value) for value in ports}
        shown = f"{label} {shape_text(next(iter(dims)))}" if len(dims) == 1 else label
        fault = sentence.format(**words)
        rows.append(FrozenSize(about, size, place.format(**words), shown, fault, f"export it anew {text}"))
    return FrozenSizes(tuple(rows))


def check_frozen_sizes(models: Iterable[Model], batch: int | None = None) -> tuple[str, ...]:
    """Return what an exporter froze, a sentence each; refuse decoders that cannot go on, and models of another batch.

    A UsageError says that a past or a source has one length, new keys and values are lost, or a batch has another size.
    """
    rows = [(model.name, row) for model in models for row in frozen_sizes(model).rows]
    for name, row in rows:
        if kind_of(row.kind).is_fault or row.about == "source":
            raise UsageError(f"{name}: {row}")
        if row.about == "batch" and batch not in (None, row.size):
            raise UsageError(f"{name}: {row.text} ({row.ports}) - give --batch {row.size}, or {row.advice}")
    return tuple(dict.fromkeys(f"{row.text[0].upper()}{row.text[1:]} - {row.advice}" for _, row in rows))


def has_manifest(model: Model) -> bool:
    """Whether the manifest of transformers 5 lies beside a model."""
    return model.path is not None and (model.path.parent / MANIFEST).is_file()


def _hinted_dims(value: Value | None) -> tuple[Dim, ...]:
    return hinted_dims(value) or ()


def _number_at(value: Value, axis: int) -> int:
    """Return a dim that is a number, or called by one; 0 for any other."""
    return dim if isinstance(dim := dim_at(value, axis), int) else 0


def _is_name(value: Value, axis: int) -> bool:
    """Whether a dim is called by a number."""
    return _number_at(value, axis) > 0 and isinstance((declared_dims(value) or ())[axis], str)


def _is_frozen(model: Model, value: Value, axis: int) -> bool:
    """Whether a number stands for a dim while others are open, or is its name, and that of a dim of an output too."""
    if not _is_name(value, axis):
        return any(not isinstance(dim, int) for each in model.roles.inputs for dim in _hinted_dims(each))
    outputs = [declared_dims(output) or () for output in model.graph.outputs]
    return any(dim_at(value, axis) in d for d in outputs) or all(isinstance(dim, int) for d in outputs for dim in d)


def _self_attention(roles: Roles) -> list[CacheEntry]:
    return [entry for entry in roles.cache if not roles.is_cross(entry)]


def _frozen_pasts(model: Model) -> Iterator[Row]:
    """Yield the lengths that pasts have to have, of caches that grow from one number to a larger one."""
    lengths: dict[int, list[Value]] = defaultdict(list)
    for entry in _self_attention(model.roles):
        before, after = _hinted_dims(entry.past), _hinted_dims(entry.present)
        grown = [at for at, pair in enumerate(zip(before, after, strict=False)) if pair[0] != pair[1]]
        is_known = len(grown) == 1 and len(before) == len(after)
        if entry.past is not None and entry.present is not None and is_known:
            old, new = before[grown[0]], after[grown[0]]
            if _is_name(entry.past, grown[0]) and _is_name(entry.present, grown[0]):  # which no runtime checks
                continue
            if isinstance(old, int) and isinstance(new, int) and old < new:
                lengths[old].append(entry.past)
    yield from (("past", length, values) for length, values in lengths.items())


def _lost_writes(model: Model) -> Iterator[Row]:
    """Yield the caches of self-attention that nothing new is written into, of layers without any other."""
    roles = model.roles
    reads_encoder = bool(roles.all(*OF_ENCODER)) or any(entry.slot.attention == "encoder" for entry in roles.cache)
    new = [value for value, role in roles.inputs.items() if role not in HELD and _hinted_dims(value)]
    reached = set(walk_breadth_first(new, values_computed_from)) if roles.pasts and new else set(roles.outputs)
    written = {entry.slot.index[:1] for entry in roles.cache if entry.present in reached}
    kept = [entry for entry in roles.cache if entry.present is not None and entry.slot.index[:1] not in written]
    kept = [entry for entry in kept if entry.slot.kind != "state" and entry.slot.attention != "encoder"]
    own = [entry.past for entry in kept if entry.slot.attention == "decoder" or not reads_encoder]
    if lost := [past for past in own if past is not None]:
        yield "write", 0, lost


def _frozen_batch(model: Model) -> Iterator[Row]:
    """Yield the number of rows, where it is fixed and other sizes are not; of pictures, one is left alone."""
    rows: dict[tuple[str, int], list[Value]] = defaultdict(list)
    for value in model.roles.all(*SOURCES, "image"):
        key = "pictures" if model.roles.of(value) == "image" else "batch", _number_at(value, 0)
        if key[1] and key != ("pictures", 1) and len(_hinted_dims(value)) > 1 and _is_frozen(model, value, 0):
            rows[key].append(value)
    yield from ((*key, values) for key, values in rows.items())


def _frozen_lengths(model: Model) -> Iterator[Row]:
    """Yield the lengths of prompts, sources and masks that are fixed where other sizes are not."""
    roles = model.roles
    for value in roles.all("tokens", "embeddings", "encoder tokens"):
        size = _number_at(value, 1)
        if size > 1 and (roles.cache or _is_name(value, 1)) and _is_frozen(model, value, 1):
            yield "tokens", size, [value]
    cross = {dim for entry in roles.cache if roles.is_cross(entry) for dim in _hinted_dims(entry.present)[1:]}
    slots = {
        dim for entry in _self_attention(roles) for value in (entry.past, entry.present) for dim in _hinted_dims(value)
    }
    lengths = [dim_at(value, 1) for value, role in roles.inputs.items() if role not in ("past", *MASKS)]
    lengths += [dim_at(past, entry.axis) for past, entry in roles.pasts.items()]
    for value in roles.all("mask", "encoder mask"):
        size = _number_at(value, -1)
        is_open = _is_name(value, -1) or any(isinstance(length, str) for length in lengths)
        if is_open and size not in (0, 1, *lengths) and (size in cross or size not in slots):
            yield "source" if size in cross else "mask", size, [value]


def _unrolled_loops(model: Model) -> Iterator[Row]:
    """Yield up to how many tokens the numbers of chunks inside are what they were in the example."""
    tokens = model.roles.all("tokens", "embeddings")[:1]
    name = str(dim_at(tokens[0], 1)) if tokens else ""
    shapes = infer(model)
    values = [model.graph.values.get(declared) for declared in model.graph.infos if name]
    made = (value for value in values if value is not None and value.kind == "node")
    pairs = {pair for each in made for pair in zip(declared_dims(each) or (), shapes[each].dims or (), strict=False)}
    counts = [(n, dim) for n, dim in pairs if isinstance(n, int) and n and dim.symbols == {name} and _is_divided(dim)]
    same = (
        [t for t in range(1, MOST_TOKENS) if all(dim.evaluate({name: t}) == n for n, dim in counts)] if counts else []
    )
    if same:
        yield "loop", same[-1], [*tokens]


def _is_divided(dim: Expr) -> bool:
    atoms = (atom for monomial, _ in dim.terms for atom in monomial)
    return any(isinstance(atom, Call) and (atom.op == "//" or any(map(_is_divided, atom.args))) for atom in atoms)


def _missing_mask(model: Model) -> Iterator[Row]:
    """Yield that a decoder of several rows takes no mask, so that padding counts as tokens."""
    roles, known = model.roles, (*SOURCES, *HELD, "token types")
    sources = roles.all("tokens", "embeddings")
    may_mask = any(role in MASKS or (role not in known and _hinted_dims(value)) for value, role in roles.inputs.items())
    is_decoder = _self_attention(roles) or (roles.states and roles.logits is not None)
    reads_encoder = roles.all(*OF_ENCODER) or any(roles.is_cross(entry) for entry in roles.cache)
    if sources and is_decoder and not reads_encoder and not may_mask and not isinstance(dim_at(sources[0], 0), int):
        yield "padding", 0, list(sources)


def _lost_positions(model: Model) -> Iterator[Row]:
    """Yield that attentions which rotate queries and keys are given positions that they do not read of a prompt."""
    sources = model.roles.all("tokens", "embeddings")
    rotary = (node for node in find_nodes(model.scopes, GROUPED) if node.attr("do_rotary", 0))
    places = [value for node in rotary if (value := node.input(*ANGLES[GROUPED])) is not None and not value.is_constant]
    takes_rows = bool(sources) and not isinstance(dim_at(sources[0], 0), int) and _number_at(sources[0], 1) != 1
    if places and takes_rows and model.roles.all(*MASKS):
        yield "places", 0, list(sources)
