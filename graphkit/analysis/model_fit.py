"""Fit: which outputs of some models feed which inputs of others, and what a pipeline of them lacks."""

from __future__ import annotations

import itertools
import re
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field
from os.path import commonprefix
from typing import ClassVar

from msgspec import Struct

from graphkit.analysis.architecture import DECODERS, ENCODERS, architecture
from graphkit.analysis.findings import Finding, Judged
from graphkit.analysis.model_interface import has_manifest
from graphkit.dtypes import dtype_name
from graphkit.graph.cache_entries import Slot
from graphkit.graph.declared_types import declared_type, shape_text
from graphkit.graph.names import family_labels, family_pattern, group_pairs, short_paths
from graphkit.graph.view import Value
from graphkit.model import Model, ModelLike, as_model
from graphkit.render.document_blocks import Block, Prose, table

Pair = tuple[str, Value, str, Value]  # a model and its output, a model and its input
PairsOf = Callable[[dict[str, Model], str, str], Iterator[Pair]]
ONCE = (*DECODERS, "recurrent decoder", "recurrent")  # roles that a pipeline has once
SHOWN = 4  # names of models in a sentence


class Link(Struct, frozen=True):
    """Outputs of one model that feed inputs of another, or of itself at the next step."""

    source: str  # the label of a model, as is the target
    outputs: str  # labels of tensors, as are the inputs
    target: str
    inputs: str
    count: int  # how many pairs
    problems: tuple[str, ...]  # pairs whose dtypes or dims do not fit, in words


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
    """Return which outputs of some models feed which inputs of others, among those that look like one pipeline.

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
    folders = group_pairs((model.path.parent if model.path else None, name) for name, model in names.items())
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
    groups = group_pairs(
        ((source, family_pattern(output.name), target, family_pattern(value.name)), (output, value))
        for source, output, target, value in pairs
    )
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
