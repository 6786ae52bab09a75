"""How the files of one encoder-decoder fit together: what feeds what, checked for dtypes and dims."""

from __future__ import annotations

import itertools
import re
from collections import defaultdict
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import ClassVar

from graphkit.analysis.architecture import architecture
from graphkit.analysis.findings import Finding, Judged
from graphkit.dtypes import dtype_name
from graphkit.graph.families import family_labels, family_pattern
from graphkit.graph.kv import Slot
from graphkit.graph.types import declared_type, shape_text
from graphkit.graph.view import Value
from graphkit.model import Model, ModelLike, as_model
from graphkit.render.blocks import Block, Prose, table

__all__ = ["DECODERS", "Fit", "Link", "fit"]

Pair = tuple[str, Value, str, Value]  # a model and its output, a model and its input

DECODERS = ("first-step decoder", "decoder with past", "merged decoder", "decoder-only")


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
    """

    title: ClassVar[str] = "How they fit together"
    roles: tuple[tuple[str, str], ...]
    links: tuple[Link, ...]
    missing: tuple[str, ...]
    leftover: tuple[str, ...]

    def found(self) -> tuple[Finding, ...]:
        problems = (problem for link in self.links for problem in link.problems)
        texts = (*problems, *(f"nothing gives {name}" for name in self.missing))
        return tuple(Finding("fit", text, text, text) for text in texts)

    def blocks(self) -> Iterator[Block]:
        if not self.links:
            yield Prose("No output of one model is recognised as an input of another.")
        else:
            yield table(
                "Output:code | Feeds:note | Tensors:number | Fits",
                [
                    (f"{one.source}: {one.outputs}", f"-> {one.target}: {one.inputs}", one.count, _fits(one))
                    for one in self.links
                ],
            )
        for name in self.leftover:
            yield Prose(f"Left over: no model takes {name}.")
        for finding in self.findings():
            yield Prose(finding, "warning")


def _fits(link: Link) -> str:
    return "no" if link.problems else "yes"


def fit(models: Sequence[ModelLike]) -> Fit:
    """Find out which outputs of some models feed which inputs of others.

    Args:
        models: Any of an encoder, decoders of the first and of later steps, and a merged decoder.

    Returns:
        What feeds what, which inputs nothing feeds, and which cache outputs nothing takes.

    Example:
        >>> found = graphkit.fit([graphkit.load("example:merged-decoder")])
        >>> found.links[0].inputs
        'past_key_values.0.decoder.{key|value}'
    """
    names = _short_names([as_model(model) for model in models])
    roles = {name: architecture(model).role for name, model in names.items()}
    variants = _variants(roles)
    pairs: list[Pair] = []
    for target in names:
        if roles[target] in DECODERS:
            pairs += _encoder_pairs(names, roles, variants, target)
            pairs += _cache_pairs(names, roles, variants, target)
    fed = {(target, value.name) for _, _, target, value in pairs}
    taken = {(source, value.name) for source, value, _, _ in pairs}
    return Fit(
        tuple(roles.items()),
        tuple(_links(pairs)),
        tuple(_missing(names, roles, fed)),
        tuple(_leftover(names, roles, taken)),
    )


def _short_names(models: Sequence[Model]) -> dict[str, Model]:
    """Return the models by file name, or by label where two have the same."""
    names = [model.name for model in models]
    return {model.name if names.count(model.name) == 1 else model.label: model for model in models}


def _variants(roles: dict[str, str]) -> dict[str, str]:
    """Return what distinguishes each file from another one of its role, such as `_quantized`; "" for most."""
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
    for wanted in (variants[target], ""):
        if found := [source for source in sources if variants[source] == wanted]:
            return found
    return list(sources)


def _encoder_pairs(
    names: dict[str, Model], roles: dict[str, str], variants: dict[str, str], target: str
) -> Iterator[Pair]:
    wanted = names[target].roles.all("encoder state")
    encoders = [name for name in names if roles[name] in ("encoder", "vision")]
    for source in _of_a_variant(encoders, variants, target):
        model = names[source]
        given = [value for value in model.graph.outputs if model.roles.of(value) == "encoder state"]
        yield from ((source, output, target, value) for value in wanted for output in given[:1])


def _cache_pairs(
    names: dict[str, Model], roles: dict[str, str], variants: dict[str, str], target: str
) -> Iterator[Pair]:
    pasts = {entry.slot: past for past, entry in names[target].roles.pasts.items()}
    first_steps = [name for name in names if roles[name] == "first-step decoder" and name != target]
    for source in (*_of_a_variant(first_steps, variants, target), target):
        for slot, present in _presents(names[source]).items():
            if slot in pasts:
                yield source, present, target, pasts[slot]


def _presents(model: Model) -> dict[Slot, Value]:
    """Return the outputs that give a cache; not those that a cache branch gives empty."""
    roles = model.roles
    return {e.slot: e.present for e in roles.cache if e.present is not None and e.present not in roles.empty}


def _links(pairs: Sequence[Pair]) -> Iterator[Link]:
    groups: dict[tuple[str, str, str, str], list[tuple[Value, Value]]] = defaultdict(list)
    for source, output, target, value in pairs:
        groups[source, family_pattern(output.name), target, family_pattern(value.name)].append((output, value))
    for (source, _, target, _), members in groups.items():
        problems = (_problem(source, output, target, value) for output, value in members)
        yield Link(
            source,
            family_labels(output.name for output, _ in members),
            target,
            family_labels(value.name for _, value in members),
            len(members),
            tuple(problem for problem in problems if problem),
        )


def _problem(source: str, output: Value, target: str, value: Value) -> str:
    """Return what keeps an output from feeding an input, "" if nothing does; symbols fit anything."""
    given, taken = declared_type(output), declared_type(value)
    if given is None or taken is None:
        return ""
    where = f"{source}: {output.name} -> {target}: {value.name}"
    if given.dtype != taken.dtype:
        return f"{where}: {dtype_name(given.dtype)} into {dtype_name(taken.dtype)}"
    if given.dims is None or taken.dims is None:
        return ""
    numbers = zip(given.dims, taken.dims, strict=False)
    clash = any(isinstance(a, int) and isinstance(b, int) and a != b for a, b in numbers)
    if clash or len(given.dims) != len(taken.dims):
        return f"{where}: {shape_text(given.dims)} into {shape_text(taken.dims)}"
    return ""


def _missing(names: dict[str, Model], roles: dict[str, str], fed: set[tuple[str, str]]) -> Iterator[str]:
    for name, model in names.items():
        has_encoder = any(role in ("encoder", "vision") for role in roles.values())
        wanted = [past.name for past in model.roles.pasts] if roles[name] == "decoder with past" else []
        wanted += [value.name for value in model.roles.all("encoder state") if has_encoder]
        yield from _grouped(name, [port for port in wanted if (name, port) not in fed])


def _leftover(names: dict[str, Model], roles: dict[str, str], taken: set[tuple[str, str]]) -> Iterator[str]:
    if not any(role == "decoder with past" for role in roles.values()):
        return
    for name, model in names.items():
        if roles[name] in ("first-step decoder", "decoder with past"):
            presents = [value.name for value in _presents(model).values()]
            yield from _grouped(name, [port for port in presents if (name, port) not in taken])


def _grouped(model: str, ports: list[str]) -> Iterator[str]:
    if ports:
        yield f"{model}: {family_labels(ports)}"
