"""Pipelines as text: `specialize-input{input=use_cache_branch,value=true},eliminate-dead-code`."""

from __future__ import annotations

import dataclasses
import inspect
import re

from graphkit.errors import UsageError
from graphkit.passes import PASSES
from graphkit.rewrite.base import Pass
from graphkit.rewrite.options import read_option
from graphkit.suggest import did_you_mean

__all__ = ["explain", "parse_pipeline"]

STEP = re.compile(r"\s*(?P<name>[a-z0-9-]+)\s*(?:\{(?P<options>[^{}]*)\})?\s*(?:,|$)")
NUMBER = re.compile(r"[+-]?\d{1,40}(\.\d{0,40})?(e[+-]?\d{1,3})?", re.A | re.I)


def parse_pipeline(text: str) -> tuple[Pass, ...]:
    """Return the passes that a text names, with their options.

    Args:
        text: Names in kebab-case, comma-separated, options in braces: `name{option=value,...}`.

    Raises:
        UsageError: A pass or an option does not exist, a required option is missing, or a value is wrong.
    """
    steps: list[Pass] = []
    position = 0
    while position < len(text):
        match = STEP.match(text, position)
        if match is None:
            raise UsageError(f"cannot read the pipeline at '{text[position:]}' - write name{{option=value}},name,...")
        steps.append(_build(find_pass(match["name"]), match["options"] or ""))
        position = match.end()
    if not steps:
        raise UsageError(f"the pipeline is empty - choose from {', '.join(kind.name() for kind in PASSES)}")
    return tuple(steps)


def find_pass(name: str) -> type[Pass]:
    """Return the pass of that name.

    Raises:
        UsageError: There is none.
    """
    for kind in PASSES:
        if kind.name() == name:
            return kind
    hint = did_you_mean(name, (kind.name() for kind in PASSES), "`graphkit explain` lists them")
    raise UsageError(f"no pass '{name}' - {hint}")


def explain(name: str) -> str:
    """Return what a pass does, when it applies, and an example: its docstring, with its options."""
    kind = find_pass(name)
    return f"{name}\n\n{inspect.getdoc(kind)}\n"


def _build(kind: type[Pass], options: str) -> Pass:
    fields = {field.name: field for field in dataclasses.fields(kind)}
    values: dict[str, object] = {}
    for item in filter(None, (part.strip() for part in options.split(","))):
        key, separator, value = (part.strip() for part in item.partition("="))
        name = key.replace("-", "_")
        if not separator or name not in fields:
            raise UsageError(f"{kind.name()}: has no option '{key}' - {did_you_mean(name, fields)}")
        values[name] = _convert(kind, name, str(fields[name].type), value)
    missing = [n for n, f in fields.items() if n not in values and f.default is dataclasses.MISSING]
    if missing:
        raise UsageError(f"{kind.name()}: option '{missing[0]}' is missing - write {kind.name()}{{{missing[0]}=...}}")
    return kind(**values)


def _convert(kind: type[Pass], name: str, annotation: str, text: str) -> object:
    try:
        if (read := read_option(annotation, text)) is not None:
            return read
    except UsageError as error:
        raise UsageError(f"{kind.name()}: option '{name}': {error}") from error
    kinds = [part.strip() for part in annotation.split("|")]
    if "bool" in kinds and text.lower() in ("true", "false"):
        return text.lower() == "true"
    if "int" in kinds and re.fullmatch(r"[+-]?\d+", text):
        return int(text)
    if "float" in kinds and NUMBER.fullmatch(text):
        return float(text)
    if "str" in kinds:
        return text
    raise UsageError(f"{kind.name()}: option '{name}' is '{text}' - it takes {' or '.join(kinds)}")
