"""Sizes that an exporter froze at those of its example: a past, a batch, a prompt, a source; and writes that it lost.

The declared dims and the nodes tell. A dim that is called by a number is frozen where an output is as long: exporters
write sizes that they know so. A manifest beside the model only tells how to export it anew.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from typing import ClassVar

from graphkit.analysis.findings import Finding, Judged, kind_of
from graphkit.errors import UsageError
from graphkit.graph.cache_entries import CacheEntry
from graphkit.graph.declared_types import Dim, declared_dims, hinted_type, shape_text
from graphkit.graph.name_families import family_labels
from graphkit.graph.names import count_things
from graphkit.graph.roles import MASKS, Role, Roles, dim_at
from graphkit.graph.traversal import walk_breadth_first
from graphkit.graph.view import Node, Value
from graphkit.model import Model, ModelLike, as_model
from graphkit.render.document_blocks import Block, Prose

__all__ = ["FrozenSize", "FrozenSizes", "check_frozen_sizes", "frozen_sizes", "has_manifest"]

MANIFEST = "export.json"  # which transformers 5 writes beside its models
SOURCES: tuple[Role, ...] = (
    "tokens",
    "embeddings",
    "encoder tokens",
    "audio",
)  # roles of inputs with rows and a length
READS_AN_ENCODER: tuple[Role, ...] = ("encoder state", "encoder mask", "encoder tokens")
HELD = ("past", "state", "positions", "condition", *MASKS)  # roles of inputs that are nothing new
ADVICE = {  # by transformers 5, and by any other exporter
    "past": (
        "with {tokens} of three tokens, with multi_token_decode=True, or with a static cache",
        "with a dynamic dim for the length of the past, and an example of two or more",
    ),
    "write": ("with a cache that grows, not a static one", "so that each step gives its new keys and values back"),
    "batch": ("from an example of two rows", "with a dynamic dim for the batch, and an example of two rows"),
    "size": ("with explicit dynamic_shapes", "with a dynamic dim for this size"),
    "tokens": (
        "with explicit dynamic_shapes; a model that is unrolled over its tokens has to read them one at a time",
        "with a dynamic dim for the tokens",
    ),
    "source": ("with a cache that grows, or pad each source to this length", "with a dynamic dim for the source"),
    "padding": ("from an example with a padded row, so that it takes a mask", "with a mask as an input"),
}


@dataclass(frozen=True)
class FrozenSize:
    """A size that an exporter froze, or another limit that its example left.

    Attributes:
        kind: The kind of finding.
        about: What has the size: `past`, `batch`, `pictures`, `tokens`, `source` or `mask`; or `write`, or `padding`.
        size: The size, None where it is not one.
        where: The size in a few words.
        ports: Labels of the inputs or outputs that show it.
        text: The fault, in a sentence.
        advice: How to export the model anew.
    """

    kind: str
    about: str
    size: int | None
    where: str
    ports: str
    text: str
    advice: str

    def __str__(self) -> str:
        return f"{self.text} ({self.ports}) - {self.advice}"


@dataclass(frozen=True)
class FrozenSizes(Judged):
    """The sizes that an exporter froze.

    Attributes:
        rows: One for each size, the worst first.
    """

    title: ClassVar[str] = "Frozen sizes"
    rows: tuple[FrozenSize, ...]

    def found(self) -> tuple[Finding, ...]:
        return tuple(Finding(row.kind, row.where, str(row), row.where) for row in self.rows)

    def blocks(self) -> Iterator[Block]:
        for finding in self.found():
            yield Prose(f"{finding.text[0].upper()}{finding.text[1:]}.", "warning" if finding.is_fault else "plain")


def frozen_sizes(model: ModelLike) -> FrozenSizes:
    """Find the sizes that an exporter froze, such as a past of exactly one token.

    Sizes of pictures are fixed on purpose, and so are those of a model of which every size is.
    """
    model = as_model(model)
    return FrozenSizes((
        *_frozen_pasts(model), *_lost_writes(model), *_frozen_batch(model), *_frozen_lengths(model), *_no_mask(model)
    ))  # fmt: skip


def check_frozen_sizes(models: Iterable[Model], step: Model | None, batch: int) -> None:
    """Refuse a decoder of later steps that cannot go on, whatever it is made into, and models of another batch.

    Raises:
        UsageError: The past has one length, new keys and values are lost, or a batch has another size.
    """
    faults = [] if step is None else [(step, row) for row in frozen_sizes(step).rows if kind_of(row.kind).is_fault]
    for decoder, row in faults:
        raise UsageError(f"{decoder.name}: {row}")
    for model in models:
        for row in frozen_sizes(model).rows:
            if row.about == "batch" and row.size != batch:
                raise UsageError(f"{model.name}: {row.text} ({row.ports}) - give --batch {row.size}, or {row.advice}")


def _row(
    model: Model, kind: str, about: str, size: int | None, where: str, ports: Sequence[Value], text: str
) -> FrozenSize:
    tokens = model.roles.first("tokens")
    key = "size" if about in ("pictures", "mask") or (about == "batch" and size != 1) else about
    advice = ADVICE[key][not has_manifest(model)].format(tokens=tokens.name if tokens is not None else "a prompt")
    label, dims = family_labels(value.name for value in ports), {declared_dims(value) for value in ports}
    ports_text = f"{label} {shape_text(next(iter(dims)))}" if len(dims) == 1 else label
    advice = f"export it anew {advice}"
    return FrozenSize(kind, about, size, where, ports=ports_text, text=text, advice=advice)


def has_manifest(model: Model) -> bool:
    """Whether the manifest of transformers 5 lies beside a model."""
    return model.path is not None and (model.path.parent / MANIFEST).is_file()


def _dims(value: Value | None) -> tuple[Dim, ...]:
    """Return the dims of a value, those called by a number as that number."""
    declared = hinted_type(value) if value is not None else None
    return (declared.dims if declared is not None else None) or ()


def _is_spelled(value: Value, axis: int) -> bool:
    """Whether a dim is called by a number."""
    return isinstance((declared_dims(value) or ())[axis], str) and isinstance(_dims(value)[axis], int)


def _self_attention(roles: Roles) -> list[CacheEntry]:
    return [entry for entry in roles.cache if not roles.is_cross(entry)]


def _frozen_pasts(model: Model) -> Iterator[FrozenSize]:
    """Yield the lengths that pasts have to have, of caches that grow from one number to a larger one."""
    lengths: dict[int, list[Value]] = defaultdict(list)
    for entry in _self_attention(model.roles):
        pairs = [*zip(_dims(entry.past), _dims(entry.present), strict=False)]
        grown = [(before, after) for before, after in pairs if before != after]
        if entry.past is not None and len(grown) == 1 and len(pairs) == len(_dims(entry.past)):
            ((before, after),) = grown
            if isinstance(before, int) and isinstance(after, int) and before < after:
                lengths[before].append(entry.past)
    for length, values in lengths.items():
        tokens = count_things(length, "token(s)")
        text = f"this decoder runs only after exactly {tokens}: its past was exported with a length of {length}"
        yield _row(model, "frozen-past", "past", length, tokens, values, text)


def _lost_writes(model: Model) -> Iterator[FrozenSize]:
    """Yield the caches of self-attention that nothing new is written into."""
    roles, layers = model.roles, defaultdict[object, list[CacheEntry]](list)
    reads_encoder = bool(roles.all(*READS_AN_ENCODER)) or any(e.slot.attention == "encoder" for e in roles.cache)
    for entry in roles.cache:
        layers[entry.slot.index[:1] or entry].append(entry)
    new = [value for value, role in roles.inputs.items() if role not in HELD and _dims(value)]
    reached = set(walk_breadth_first(new, _computed_from)) if roles.pasts and new else set(roles.outputs)
    lost = [
        entry.past
        for group in layers.values()
        if all(entry.past is not None and entry.present is not None and entry.present not in reached for entry in group)
        for entry in group
        if entry.past is not None
        and entry.slot.kind != "state"
        and entry.slot.attention != "encoder"
        and (entry.slot.attention == "decoder" or not reads_encoder)
    ]
    if lost:
        text = "the new keys and values of a step are lost: these caches come back without them, at every size"
        yield _row(model, "lost-write", "write", None, f"{len(lost):,} caches", lost, text)


def _computed_from(value: Value) -> Iterator[Value]:
    """Yield the values that nodes compute from a value, also nodes with a body that reads it."""
    for reader, _ in value.consumers:
        node: Node | None = reader
        while node is not None:
            yield from node.results
            node = node.scope.owner


def _is_open(roles: Roles) -> bool:
    """Whether any size of the inputs is not fixed."""
    return any(not isinstance(dim, int) for value in roles.inputs for dim in _dims(value))


def _shows(model: Model, size: int) -> bool:
    """Whether an output is declared with a number as a dim that inputs only call by it."""
    return any(size in (declared_dims(value) or ()) for value in model.graph.outputs)


def _frozen_batch(model: Model) -> Iterator[FrozenSize]:
    """Yield the number of rows, where it is fixed and other sizes are not; of pictures, one is left alone."""
    roles = model.roles
    rows: dict[int, list[Value]] = defaultdict(list)
    for value in roles.all(*SOURCES, "image"):
        dims = _dims(value)
        if len(dims) > 1 and isinstance(dims[0], int):
            is_frozen = _shows(model, dims[0]) or not any(map(_open_dims, model.graph.outputs))
            if not is_frozen if _is_spelled(value, 0) else (not _is_open(roles) or roles.of(value) == "image"):
                continue
            if dims[0] > 1 or roles.of(value) != "image":
                rows[dims[0]].append(value)
    for size, values in rows.items():
        is_image = roles.of(values[0]) == "image"
        things = count_things(size, "picture(s)" if is_image else "row(s)")
        text = f"every run takes exactly {things}: the batch was exported with a size of {size}"
        about, where = ("pictures", things) if is_image else ("batch", f"a batch of {size}")
        yield _row(model, "frozen-size", about, size, where, values, text)


def _open_dims(value: Value) -> list[Dim]:
    return [dim for dim in _dims(value) if not isinstance(dim, int)]


def _frozen_lengths(model: Model) -> Iterator[FrozenSize]:
    """Yield the lengths of prompts, sources and masks that are fixed where other sizes are not."""
    roles = model.roles
    for value in roles.all("tokens", "embeddings", "encoder tokens"):
        dims = _dims(value)
        size = dims[1] if len(dims) > 1 else 1
        if not isinstance(size, int) or size == 1:
            continue
        if _shows(model, size) if _is_spelled(value, 1) else (roles.cache and _is_open(roles)):
            text = f"every run reads exactly {size} tokens, as many as the exporter's example had"
            yield _row(model, "frozen-size", "tokens", size, f"{size} tokens", [value], text)
    cross = {dim for entry in roles.cache if roles.is_cross(entry) for dim in _dims(entry.present)[1:]}
    slots = {dim for entry in _self_attention(roles) for value in (entry.past, entry.present) for dim in _dims(value)}
    lengths = [dim_at(value, 1) for value, role in roles.inputs.items() if role not in ("past", *MASKS)]
    lengths += [dim_at(past, entry.axis) for past, entry in roles.pasts.items()]
    for value in roles.all("mask", "encoder mask"):
        size = dim_at(value, -1)
        if not isinstance(size, int) or size == 1 or size in lengths:
            continue
        if not (_is_spelled(value, -1) or any(isinstance(length, str) for length in lengths)):
            continue
        if size in cross:
            text = f"every source has exactly {size} positions, as many as that of the exporter's example"
            yield _row(model, "frozen-size", "source", size, f"a source of {size}", [value], text)
        elif size not in slots:
            text = f"the mask has exactly {size} places, as many as the exporter's example had"
            yield _row(model, "frozen-size", "mask", size, f"a mask of {size}", [value], text)


def _no_mask(model: Model) -> Iterator[FrozenSize]:
    """Yield that a decoder of several rows takes no mask, so that padding counts as tokens."""
    roles = model.roles
    sources = roles.all("tokens", "embeddings")
    known = (*SOURCES, *HELD, "token types")
    may_be_masks = [
        value for value, role in roles.inputs.items() if role in MASKS or (role not in known and _dims(value))
    ]
    is_decoder = _self_attention(roles) or (roles.states and roles.logits is not None)
    reads_encoder = roles.all(*READS_AN_ENCODER) or any(roles.is_cross(entry) for entry in roles.cache)
    if not sources or not is_decoder or reads_encoder or may_be_masks or isinstance(dim_at(sources[0], 0), int):
        return
    text = "no mask: the rows of a batch have to be of one length, for padding would count as tokens"
    yield _row(model, "no-mask", "padding", None, "rows of one length only", list(sources), text)
