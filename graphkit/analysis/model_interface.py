"""Interface: the inputs and outputs of a model, with one row for each numbered family."""

from __future__ import annotations

import itertools
import re
from collections import defaultdict
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field, replace
from os.path import commonprefix
from pathlib import Path
from typing import ClassVar

from graphkit.analysis.architecture import architecture
from graphkit.analysis.findings import Finding, Judged
from graphkit.analysis.frozen_sizes import FrozenSizes, frozen_sizes, has_manifest
from graphkit.dtypes import dtype_name
from graphkit.graph.cache_entries import CacheEntry, Slot
from graphkit.graph.declared_types import Dim, declared_dims, declared_type, shape_text, type_dims
from graphkit.graph.mask_polarity import POLARITIES
from graphkit.graph.name_families import family_label, family_labels, family_pattern
from graphkit.graph.names import runs_of, short_paths
from graphkit.graph.view import Scope, Value
from graphkit.model import Model, ModelLike, as_model
from graphkit.render.document_blocks import Block, Prose, Table, table
from graphkit.suggest import count_things

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


@dataclass(frozen=True)
class Port:
    """An input or output, or a family of them.

    Attributes:
        indices: Positions among the inputs or outputs.
        names: The names, in that order.
        label: The name, or the pattern of the family: `past_key_values.{0-17}.{key|value}`.
        dtype: Such as `float32`, or `seq(float32)`.
        shape: The dims: numbers, symbols, None for an unknown one, `*` where the family's members differ; None for an
            unknown rank.
        description: From the model's doc string, or the usual meaning of the name.
        optional: Whether it is an input with a default value.
        shapes: The dims of each, in the order of the names.
    """

    indices: tuple[int, ...]
    names: tuple[str, ...]
    label: str
    dtype: str
    shape: tuple[Dim, ...] | None
    description: str
    optional: bool = False
    shapes: tuple[tuple[Dim, ...] | None, ...] = field(default=(), metadata={"in_json": False})

    @property
    def remark(self) -> str:
        """The description, and whether there is a default."""
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
        """How many inputs there are."""
        return sum(len(port.indices) for port in self.inputs)

    @property
    def output_count(self) -> int:
        """How many outputs there are."""
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
    """Describe the inputs and outputs of a model.

    Returns:
        The inputs and outputs, a numbered family of them in one row.

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


Pair = tuple[str, Value, str, Value]  # a model and its output, a model and its input
PairsOf = Callable[[dict[str, Model], str, str], Iterator[Pair]]

DECODERS = ("first-step decoder", "decoder with past", "merged decoder", "decoder-only")
ENCODERS = ("encoder", "vision")
ONCE = (*DECODERS, "recurrent decoder", "recurrent")  # roles that a pipeline has once
SHOWN = 4  # names of models in a sentence


@dataclass(frozen=True)
class Link:
    """Outputs of one model that feed inputs of another, or of itself at the next step.

    Attributes:
        source, target: Labels of the models.
        outputs, inputs: Labels of the tensors.
        count: How many pairs.
        problems: Pairs whose dtypes or dims do not fit, in words.
    """

    source: str
    outputs: str
    target: str
    inputs: str
    count: int
    problems: tuple[str, ...]


@dataclass(frozen=True)
class Fit(Judged):
    """How some models fit together.

    Attributes:
        roles: (label, role) of each.
        missing: Inputs that another model should feed, and none does.
        leftover: Cache outputs that no model reads.
        apart: Models that look like part of no pipeline, of which nothing is asked.
        absent: Models that a folder has not got, and who needs them, in a sentence.
    """

    title: ClassVar[str] = "How they fit together"
    roles: tuple[tuple[str, str], ...]
    links: tuple[Link, ...]
    missing: tuple[str, ...]
    leftover: tuple[str, ...]
    apart: tuple[str, ...] = ()
    absent: tuple[str, ...] = field(default=(), metadata={"in_json": False})

    def found(self) -> tuple[Finding, ...]:
        problems = (problem for link in self.links for problem in link.problems)
        texts = (*self.absent, *problems, *(f"nothing gives {name}" for name in self.missing))
        return tuple(Finding("fit", text, text, text) for text in texts)

    def blocks(self) -> Iterator[Block]:
        if not self.links:
            yield Prose("No output of one model is recognised as an input of another.")
        else:
            rows = [
                (f"{link.source}: {link.outputs}", f"-> {link.target}: {link.inputs}", link.count, not link.problems)
                for link in self.links
            ]
            yield table("Output:code | Feeds:note | Tensors:number | Fits", rows)
        if self.apart:
            more = f" and {len(self.apart) - SHOWN:,} more" if len(self.apart) > SHOWN else ""
            yield Prose(
                "Asked only among models of one folder that look like one pipeline, with one decoder of each role; "
                f"not of {', '.join(self.apart[:SHOWN])}{more}."
            )
        for name in self.leftover:
            yield Prose(f"Left over: no model takes {name}.")
        for finding in self.findings():
            yield Prose(finding, "warning")


def fit(models: Sequence[ModelLike]) -> Fit:
    """Find out which outputs of some models feed which inputs of others, among those that look like one pipeline.

    Args:
        models: Any of an encoder, decoders of the first and of later steps, and a merged decoder.

    Returns:
        The links, the inputs that nothing feeds, the cache outputs that nothing takes, and the models of no pipeline.

    Example:
        >>> found = graphkit.fit([graphkit.load("example:merged-decoder")])
        >>> found.links[0].inputs
        'past_key_values.0.decoder.{key|value}'
    """
    labels = {(each.label if each.path else each.name): each for each in map(as_model, models)}
    short = short_paths(labels)
    names = {short[label]: model for label, model in labels.items()}
    roles = {name: architecture(model).role for name, model in names.items()}
    groups = [_Group({name: names[name] for name in group}, roles) for group in _pipeline_groups(names, roles)]
    pairs = [pair for group in groups for pair in group.pairs()]
    fed = {(target, value.name) for _, _, target, value in pairs}
    taken = {(source, value.name) for source, value, _, _ in pairs}
    return Fit(
        tuple(roles.items()),
        tuple(_join_links(pairs)),
        tuple(name for group in groups for name in _missing_models(group.names, group.roles, fed)),
        tuple(name for group in groups for name in _leftover_ports(group.names, group.roles, taken)),
        tuple(name for name in names if not any(name in group.names for group in groups)),
        tuple(part for group in groups for part in _absent_parts(group.names, group.roles)),
    )


def _pipeline_groups(names: dict[str, Model], roles: dict[str, str]) -> list[list[str]]:
    """Return the models that look like one pipeline, for each: one of each role side by side, or those of a folder."""
    folders: dict[Path | None, list[str]] = defaultdict(list)
    for name, model in names.items():
        folders[model.path.parent if model.path else None].append(name)
    parents = {folder.parent if folder else None for folder in folders}
    if len(set(roles.values())) == len(roles) and (len(folders) == 1 or len(parents) == 1):
        return [list(names)]
    pipelines = []
    for group in folders.values():  # no two of which are decoders of the same role, variants apart
        variants = _variant_suffixes({name: roles[name] for name in group})
        decoders = [(roles[name], variants[name]) for name in group if roles[name] in ONCE]
        if len(group) > 1 and len(set(decoders)) == len(decoders):
            pipelines.append(group)
    return pipelines


class _Group:
    """Models that belong together."""

    def __init__(self, names: dict[str, Model], roles: dict[str, str]) -> None:
        self.names = names
        self.roles = {name: roles[name] for name in names}
        self.variants = _variant_suffixes(self.roles)

    def pairs(self) -> Iterator[Pair]:
        """Yield each output that feeds an input."""
        for target in self.names:
            if self.roles[target] in DECODERS:
                yield from self._best_pairs(target, ENCODERS, _encoder_pairs)
                yield from self._best_pairs(target, ("first-step decoder",), _cache_pairs)
                yield from _cache_pairs(self.names, target, target)
            starting = [name for name in self.names if first_states(self.names[name], self.names[target])]
            for source in _of_a_variant(starting, self.variants, target):
                first = first_states(self.names[source], self.names[target])
                yield from ((source, state, target, past) for past, state in first.items())
            yield from ((target, entry.next, target, entry.past) for entry in self.names[target].roles.states)

    def _best_pairs(self, target: str, of_roles: Sequence[str], pairs_of: PairsOf) -> Iterator[Pair]:
        """Yield the pairs of the sources of some roles; where several could feed a target, of those that fit best."""
        sources = [name for name in self.names if self.roles[name] in of_roles and name != target]
        every = {name: [*pairs_of(self.names, name, target)] for name in _of_a_variant(sources, self.variants, target)}
        pairs = {name: found for name, found in every.items() if found}
        if len(pairs) > 1:
            most = max(map(len, pairs.values()))
            whole = (name for name, found in pairs.items() if len(found) == most)
            fitting = [name for name in whole if not any(_link_problem(*pair) for pair in pairs[name])]
            alike = {name: len(commonprefix([name, target])) for name in fitting}  # noqa: RUF071 - of letters
            pairs = {name: pairs[name] for name in fitting if alike[name] == max(alike.values())}
        yield from itertools.chain.from_iterable(pairs.values())


def _variant_suffixes(roles: dict[str, str]) -> dict[str, str]:
    """Return the suffix that distinguishes each file from another of its role, such as `_quantized`; "" for most."""
    stems = {name: name.removesuffix(".onnx") for name in roles}
    marks = {
        stems[longer].removeprefix(stems[shorter])
        for shorter, longer in itertools.permutations(roles, 2)
        if roles[shorter] == roles[longer] and re.match(rf"{re.escape(stems[shorter])}[_.-]", stems[longer])
    }
    by_length = sorted(marks, key=len, reverse=True)
    return {name: next((mark for mark in by_length if stem.endswith(mark)), "") for name, stem in stems.items()}


def _of_a_variant(sources: Sequence[str], variants: dict[str, str], target: str) -> list[str]:
    """Return the sources of the variant of a target, else those of none, else all."""
    for variant in (variants[target], ""):
        if matching := [source for source in sources if variants[source] == variant]:
            return matching
    return list(sources)


def _encoder_pairs(names: dict[str, Model], source: str, target: str) -> Iterator[Pair]:
    model = names[source]
    state = next((value for value in model.graph.outputs if model.roles.of(value) == "encoder state"), None)
    if state is not None:
        yield from ((source, state, target, value) for value in names[target].roles.all("encoder state"))


def _cache_pairs(names: dict[str, Model], source: str, target: str) -> Iterator[Pair]:
    pasts = {entry.slot: past for past, entry in names[target].roles.pasts.items()}
    for slot, present in _present_outputs(names[source]).items():
        if slot in pasts:
            yield source, present, target, pasts[slot]


def first_states(first: Model, step: Model) -> dict[Value, Value]:
    """Return the outputs of a model that starts a sequence which are the recurrent state of a step, by its input.

    They have the names of the outputs of the step, or of its inputs; it is none where one is missing, or where the
    model has recurrent state of its own.
    """
    if first.roles.states or not first.roles.all("tokens", "embeddings", "audio"):
        return {}
    first_of = given_states(first, step)
    return first_of if len(first_of) == len(step.roles.states) else {}


def given_states(first: Model, step: Model) -> dict[Value, Value]:
    """Return the outputs of the first step that are recurrent state of later ones, by its input there."""
    outputs = {_plain_name(value): value for value in first.graph.outputs}
    return {
        entry.past: outputs[name]
        for entry in step.roles.states
        for name in (_plain_name(entry.past), _plain_name(entry.next))
        if name in outputs
    }


def _plain_name(value: Value) -> str:
    """Return a name without what an exporter puts before it where an input and an output have the same."""
    return re.sub(r"^(input|output)\.", "", value.name)


def _present_outputs(model: Model) -> dict[Slot, Value]:
    """Return the outputs that give a cache; not those that a cache branch gives empty."""
    roles = model.roles
    return {e.slot: e.present for e in roles.cache if e.present is not None and e.present not in roles.empty}


def _join_links(pairs: Sequence[Pair]) -> Iterator[Link]:
    groups: dict[tuple[str, str, str, str], list[tuple[Value, Value]]] = defaultdict(list)
    for source, output, target, value in pairs:
        groups[source, family_pattern(output.name), target, family_pattern(value.name)].append((output, value))
    for (source, _, target, _), members in groups.items():
        problems = (_link_problem(source, output, target, value) for output, value in members)
        yield Link(
            source,
            family_labels(output.name for output, _ in members),
            target,
            family_labels(value.name for _, value in members),
            len(members),
            tuple(problem for problem in problems if problem),
        )


def _link_problem(source: str, output: Value, target: str, value: Value) -> str:
    """Return why an output cannot feed an input, "" if it can; symbols fit anything."""
    output_type, input_type = declared_type(output), declared_type(value)
    if output_type is None or input_type is None:
        return ""
    where = f"{source}: {output.name} -> {target}: {value.name}"
    if output_type.dtype != input_type.dtype:
        return f"{where}: {dtype_name(output_type.dtype)} into {dtype_name(input_type.dtype)}"
    if output_type.dims is None or input_type.dims is None:
        return ""
    numbers = zip(output_type.dims, input_type.dims, strict=False)
    clash = any(isinstance(a, int) and isinstance(b, int) and a != b for a, b in numbers)
    if clash or len(output_type.dims) != len(input_type.dims):
        return f"{where}: {shape_text(output_type.dims)} into {shape_text(input_type.dims)}"
    return ""


def _missing_models(names: dict[str, Model], roles: dict[str, str], fed: set[tuple[str, str]]) -> Iterator[str]:
    for name, model in names.items():
        has_encoder = any(role in ENCODERS for role in roles.values())
        needed = [past.name for past in model.roles.pasts] if roles[name] == "decoder with past" else []
        needed += [value.name for value in model.roles.all("encoder state") if has_encoder]
        yield from _group_ports(name, [port for port in needed if (name, port) not in fed])


def _absent_parts(names: dict[str, Model], roles: dict[str, str]) -> Iterator[str]:
    """Yield which of an encoder, an embedding table and an encoder of pictures an export has not got, and who needs it.

    Only all models of a folder with a manifest are meant to be whole.
    """
    models, paths = list(names.values()), {model.path for model in names.values()}
    folder = next((path.parent for path in paths if path is not None), None)
    if folder is None or not all(map(has_manifest, models)) or paths != set(folder.glob("*.onnx")):
        return
    config = folder / "config.json"
    has_encoder = any(role in ENCODERS for role in roles.values())
    has_pictures = any("pixel" in value.name for model in models for value in model.roles.inputs)
    has_table = any(list(model.roles.inputs.values()) == ["tokens"] and not model.roles.logits for model in models)
    needs_pictures = not has_pictures and config.is_file() and b'"vision_config"' in config.read_bytes()
    for name, model in names.items():
        embeds = "".join(value.name for value in model.roles.all("embeddings") if roles[name] in DECODERS)
        if states := [value.name for value in model.roles.all("encoder state") if not has_encoder]:
            yield f"no encoder: nothing gives {name}: {states[0]} - export it beside the decoder"
        if embeds and not model.roles.all("tokens") and not has_table:
            yield f"no embedding table: nothing gives {name}: {embeds} - export it beside the decoder"
        if embeds and needs_pictures:
            yield f"no encoder of pictures: nothing gives their rows in {name}: {embeds} - export it beside the decoder"


def _leftover_ports(names: dict[str, Model], roles: dict[str, str], taken: set[tuple[str, str]]) -> Iterator[str]:
    if not any(role == "decoder with past" for role in roles.values()):
        return
    for name, model in names.items():
        if roles[name] in ("first-step decoder", "decoder with past"):
            presents = [value.name for value in _present_outputs(model).values()]
            yield from _group_ports(name, [port for port in presents if (name, port) not in taken])


def _group_ports(model: str, ports: list[str]) -> Iterator[str]:
    if ports:
        yield f"{model}: {family_labels(ports)}"
