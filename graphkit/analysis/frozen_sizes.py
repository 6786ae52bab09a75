"""Sizes that an exporter froze at those of its example: a past, a batch, a prompt, a source; and writes that it lost.

The declared dims and the nodes tell. A dim that is called by a number is frozen where an output is as long: exporters
write sizes that they know so. A manifest beside the model only tells how to export it anew.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from typing import ClassVar

from graphkit.analysis.findings import Finding, Judged, kind_of
from graphkit.errors import UsageError
from graphkit.graph.cache_entries import CacheEntry
from graphkit.graph.declared_types import Dim, declared_dims, hinted_type, shape_text
from graphkit.graph.name_families import family_labels
from graphkit.graph.roles import MASKS, Role, Roles, dim_at
from graphkit.graph.traversal import walk_breadth_first
from graphkit.graph.view import Node, Value
from graphkit.model import Model, ModelLike, as_model
from graphkit.render.document_blocks import Block, Prose
from graphkit.suggest import count_things

MANIFEST = "export.json"  # which transformers 5 writes beside its models
SOURCES: tuple[Role, ...] = ("tokens", "embeddings", "encoder tokens", "audio")  # inputs with rows and a length
OF_ENCODER: tuple[Role, ...] = ("encoder state", "encoder mask", "encoder tokens")
HELD = ("past", "state", "positions", "condition", *MASKS)  # roles of inputs that are nothing new
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
        "from an example of two rows, or with explicit dynamic_shapes",
        "with a dynamic dim for the batch, and an example of two rows"),
    "pictures": ("frozen-size", "{picture}", f"every run takes exactly {{picture}}{EXAMPLE}",
        "with explicit dynamic_shapes", "with a dynamic dim for the pictures"),
    "tokens": ("frozen-size", "{token}", f"every run reads exactly {{token}}{EXAMPLE}",
        "with explicit dynamic_shapes; a model that is unrolled over its tokens has to read them one at a time",
        "with a dynamic dim for the tokens"),
    "source": ("frozen-size", "a source of {size}", f"every source has exactly {{size}} positions{EXAMPLE}",
        "with a cache that grows, or pad each source to this length", "with a dynamic dim for the source"),
    "mask": ("frozen-size", "a mask of {size}", f"the mask has exactly {{size}} places{EXAMPLE}",
        "with explicit dynamic_shapes", "with a dynamic dim for the mask"),
    "padding": ("no-mask", "rows of {prompt}",
        "no mask: the rows of a batch have to be of one length, for padding would count as tokens",
        "from an example with a padded row, so that it takes a mask", "with a mask as an input"),
}  # fmt: skip


@dataclass(frozen=True)
class FrozenSize:
    """A size that an exporter froze, or another limit that its example left.

    Attributes:
        about: A key of `FAULTS`.
        size: The size; 0 where there is none.
        where: The size in a few words.
        ports: Labels of the inputs that show it, and their dims.
        text: The fault, in a sentence.
        advice: How to export the model anew.
    """

    about: str
    size: int
    where: str
    ports: str
    text: str
    advice: str

    @property
    def kind(self) -> str:
        """The kind of finding."""
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


def frozen_sizes(model: ModelLike) -> FrozenSizes:
    """Find the sizes that an exporter froze, such as a past of exactly one token.

    The size of a picture is fixed on purpose, and so are those of a model of which every size is.
    """
    model = as_model(model)
    finders = _frozen_pasts, _lost_writes, _frozen_batch, _frozen_lengths, _missing_mask
    return FrozenSizes(tuple(_describe(model, *row) for find in finders for row in find(model)))


def check_frozen_sizes(models: Iterable[Model], batch: int) -> None:
    """Refuse decoders that cannot go on from step to step, whatever they are made into, and models of another batch.

    Raises:
        UsageError: A past or a source has one length, new keys and values are lost, or a batch has another size.
    """
    for name, row in [(model.name, row) for model in models for row in frozen_sizes(model).rows]:
        if kind_of(row.kind).is_fault or row.about == "source":
            raise UsageError(f"{name}: {row}")
        if row.about == "batch" and row.size != batch:
            raise UsageError(f"{name}: {row.text} ({row.ports}) - give --batch {row.size}, or {row.advice}")


def has_manifest(model: Model) -> bool:
    """Whether the manifest of transformers 5 lies beside a model."""
    return model.path is not None and (model.path.parent / MANIFEST).is_file()


Row = tuple[str, int, list[Value]]  # a key of `FAULTS`, the size, the inputs that show it


def _describe(model: Model, about: str, size: int, ports: list[Value]) -> FrozenSize:
    _, place, sentence, by_transformers, by_others = FAULTS[about]
    words = {thing: count_things(size or len(ports), f"{thing}(s)") for thing in ("token", "row", "picture", "cache")}
    words |= {"size": str(size), "prompt": next((value.name for value in model.roles.all("tokens")), "a prompt")}
    text = (by_transformers if has_manifest(model) else by_others).format(**words)
    label, dims = family_labels(value.name for value in ports), {declared_dims(value) for value in ports}
    shown = f"{label} {shape_text(next(iter(dims)))}" if len(dims) == 1 else label
    return FrozenSize(about, size, place.format(**words), shown, sentence.format(**words), f"export it anew {text}")


def _dims(value: Value | None) -> tuple[Dim, ...]:
    """Return the dims of a value, those called by a number as that number."""
    declared = hinted_type(value) if value is not None else None
    return (declared.dims if declared is not None else None) or ()


def _number_at(value: Value, axis: int) -> int:
    """Return a dim that is a number, or called by one; 0 for any other."""
    return dim if isinstance(dim := dim_at(value, axis), int) else 0


def _is_name(value: Value, axis: int) -> bool:
    """Whether a dim is called by a number."""
    return _number_at(value, axis) > 0 and isinstance((declared_dims(value) or ())[axis], str)


def _is_frozen(model: Model, value: Value, axis: int) -> bool:
    """Whether a number stands for a dim while others are open, or is its name, and that of a dim of an output too."""
    if not _is_name(value, axis):
        return any(not isinstance(dim, int) for each in model.roles.inputs for dim in _dims(each))
    outputs = [declared_dims(output) or () for output in model.graph.outputs]
    return any(dim_at(value, axis) in dims for dims in outputs) or all(
        isinstance(dim, int) for d in outputs for dim in d
    )


def _self_attention(roles: Roles) -> list[CacheEntry]:
    return [entry for entry in roles.cache if not roles.is_cross(entry)]


def _frozen_pasts(model: Model) -> Iterator[Row]:
    """Yield the lengths that pasts have to have, of caches that grow from one number to a larger one."""
    lengths: dict[int, list[Value]] = defaultdict(list)
    for entry in _self_attention(model.roles):
        before, after = _dims(entry.past), _dims(entry.present)
        grown = [at for at, pair in enumerate(zip(before, after, strict=False)) if pair[0] != pair[1]]
        if entry.past is not None and len(grown) == 1 and len(before) == len(after):
            old, new = before[grown[0]], after[grown[0]]
            if _is_name(entry.past, grown[0]):  # which no runtime checks
                continue
            if isinstance(old, int) and isinstance(new, int) and old < new:
                lengths[old].append(entry.past)
    yield from (("past", length, values) for length, values in lengths.items())


def _lost_writes(model: Model) -> Iterator[Row]:
    """Yield the caches of self-attention that nothing new is written into, of layers without any other."""
    roles = model.roles
    reads_encoder = bool(roles.all(*OF_ENCODER)) or any(entry.slot.attention == "encoder" for entry in roles.cache)
    new = [value for value, role in roles.inputs.items() if role not in HELD and _dims(value)]
    reached = set(walk_breadth_first(new, _computed_from)) if roles.pasts and new else set(roles.outputs)
    written = {entry.slot.index[:1] for entry in roles.cache if entry.present in reached}
    kept = [entry for entry in roles.cache if entry.present is not None and entry.slot.index[:1] not in written]
    kept = [entry for entry in kept if entry.slot.kind != "state" and entry.slot.attention != "encoder"]
    own = [entry.past for entry in kept if entry.slot.attention == "decoder" or not reads_encoder]
    if lost := [past for past in own if past is not None]:
        yield "write", 0, lost


def _computed_from(value: Value) -> Iterator[Value]:
    """Yield the values that nodes compute from a value, also nodes with a body that reads it."""
    for reader, _ in value.consumers:
        node: Node | None = reader
        while node is not None:
            yield from node.results
            node = node.scope.owner


def _frozen_batch(model: Model) -> Iterator[Row]:
    """Yield the number of rows, where it is fixed and other sizes are not; of pictures, one is left alone."""
    rows: dict[tuple[str, int], list[Value]] = defaultdict(list)
    for value in model.roles.all(*SOURCES, "image"):
        key = "pictures" if model.roles.of(value) == "image" else "batch", _number_at(value, 0)
        if key[1] and key != ("pictures", 1) and len(_dims(value)) > 1 and _is_frozen(model, value, 0):
            rows[key].append(value)
    yield from ((*key, values) for key, values in rows.items())


def _frozen_lengths(model: Model) -> Iterator[Row]:
    """Yield the lengths of prompts, sources and masks that are fixed where other sizes are not."""
    roles = model.roles
    for value in roles.all("tokens", "embeddings", "encoder tokens"):
        size = _number_at(value, 1)
        if size > 1 and (roles.cache or _is_name(value, 1)) and _is_frozen(model, value, 1):
            yield "tokens", size, [value]
    cross = {dim for entry in roles.cache if roles.is_cross(entry) for dim in _dims(entry.present)[1:]}
    slots = {dim for entry in _self_attention(roles) for value in (entry.past, entry.present) for dim in _dims(value)}
    lengths = [dim_at(value, 1) for value, role in roles.inputs.items() if role not in ("past", *MASKS)]
    lengths += [dim_at(past, entry.axis) for past, entry in roles.pasts.items()]
    for value in roles.all("mask", "encoder mask"):
        size = _number_at(value, -1)
        is_open = _is_name(value, -1) or any(isinstance(length, str) for length in lengths)
        if is_open and size not in (0, 1, *lengths) and (size in cross or size not in slots):
            yield "source" if size in cross else "mask", size, [value]


def _missing_mask(model: Model) -> Iterator[Row]:
    """Yield that a decoder of several rows takes no mask, so that padding counts as tokens."""
    roles, known = model.roles, (*SOURCES, *HELD, "token types")
    sources = roles.all("tokens", "embeddings")
    may_mask = any(role in MASKS or (role not in known and _dims(value)) for value, role in roles.inputs.items())
    is_decoder = _self_attention(roles) or (roles.states and roles.logits is not None)
    reads_encoder = roles.all(*OF_ENCODER) or any(roles.is_cross(entry) for entry in roles.cache)
    if sources and is_decoder and not reads_encoder and not may_mask and not isinstance(dim_at(sources[0], 0), int):
        yield "padding", 0, list(sources)
