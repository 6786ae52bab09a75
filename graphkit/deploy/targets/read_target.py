"""Reads target files: built-in ones by name, a user's own by path; and the table of TFLite operators."""

from __future__ import annotations

import os
from collections.abc import Callable, Mapping
from dataclasses import replace
from functools import cache
from pathlib import Path
from typing import Any, cast

from graphkit.deploy.targets.target import ANYTHING, Condition, Fact, Facts, Limit, Source, Spelling, Target, Verdict
from graphkit.dtypes import dtype_name
from graphkit.errors import UsageError
from graphkit.io.toml import Section, read_toml
from graphkit.suggest import did_you_mean

__all__ = ["NAMES", "load_target", "tflite_spellings"]

NAMES = ("mt8371", "mediatek-litert", "ethos-u65", "ethos-u85", "rk3588", "qnn-htp", "generic-npu")

FOLDER = Path(__file__).parent
LIMITS = ("max_rank", "static_shapes", "max_opset", "quantized")
VERDICTS = ("allowed", "refused", "unknown")
CONDITION = (
    "constant",
    "dtypes",
    "max_rank",
    "attributes",
    "values",
    "producers",
    "readers",
    "output_dtypes",
    "planes_of",
)
Sources = Mapping[str, Source]


def load_target(name: str | os.PathLike[str]) -> Target:
    """Return a target.

    Args:
        name: One of `NAMES`, or the path of a TOML file.

    Returns:
        The target.

    Raises:
        UsageError: There is no target of that name.
        TargetError: The file cannot be read, or says what no target can; it names the file and the key.

    Example:
        >>> graphkit.load_target("ethos-u85").needs_static_shapes
        True
    """
    if name in NAMES:
        return _built_in(str(name))
    if isinstance(name, str) and not (name.endswith(".toml") or set(name) & set("/\\")):
        hint = did_you_mean(name, NAMES, f"there are {', '.join(NAMES)}, or name a .toml file")
        raise UsageError(f"no target '{name}' - {hint}")
    return _read_target(read_toml(Path(name)))


@cache
def _built_in(name: str) -> Target:
    return _read_target(read_toml(FOLDER / f"{name}.toml"))


@cache
def tflite_spellings() -> Mapping[str, tuple[Spelling, ...]]:
    """Return the TFLite operators that each ONNX operator becomes; the first whose condition holds counts."""
    root = read_toml(FOLDER / "tflite_operators.toml")
    root.only("sources", "operators")
    sources = _read_sources(root)
    spellings: dict[str, list[Spelling]] = {}
    for row in root.sections("operators"):
        row.only("names", "becomes", "source", "where")
        spelling = Spelling(row.texts("becomes"), _read_source(row, sources), _read_condition(row.section("where")))
        for name in _read_operators(row):
            spellings.setdefault(name, []).append(spelling)
    return {name: tuple(becoming) for name, becoming in spellings.items()}


def _read_target(root: Section) -> Target:
    return _join_targets(root) if "together" in root else _with_facts(root)


def _join_targets(root: Section) -> Target:
    """Return the target that refuses an operator if any of some others refuses it.

    Raises:
        TargetError: One of these is none, or is made of others itself.
    """
    root.only("name", "description", "together")
    names = root.texts("together")
    if odd := [name for name in names if name not in NAMES or name == root.text("name")]:
        raise root.wrong("together", f"'{odd[0]:.40}' is no other target", f"write some of {', '.join(NAMES)}")
    others = tuple(map(_built_in, names))
    if joint := [member.name for member in others if member.others]:
        raise root.wrong("together", f"'{joint[0]}' is made of others itself", "name these")
    ranks, opsets, static = (
        [_limit_of_target(member, limit) for member in others if (limit := getattr(member, name)) is not None]
        for name in ("max_rank", "max_opset", "static_shapes")
    )
    return Target(
        name=root.text("name"),
        description=root.text("description"),
        sources=tuple(_name_source(member, source) for member in others for source in member.sources),
        max_rank=min(ranks, key=_limit_value, default=None),
        max_opset=min(opsets, key=_limit_value, default=None),
        static_shapes=max(static, key=_limit_value, default=None),
        others=others,
    )


def _limit_value(limit: Limit) -> int:
    return limit.value


def _limit_of_target(target: Target, limit: Limit) -> Limit:
    return replace(limit, source=_name_source(target, limit.source))


def _name_source(target: Target, source: Source) -> Source:
    return replace(source, key=f"{target.name}: {source.key}")


def _with_facts(root: Section) -> Target:
    root.only("name", "description", "sources", *LIMITS, "operators", "dtypes", "tflite", "together")
    name, description = root.text("name"), root.text("description")
    sources = _read_sources(root)
    return Target(
        name=name,
        description=description,
        sources=tuple(sources.values()),
        max_rank=_read_limit(root, "max_rank", sources),
        static_shapes=_read_limit(root, "static_shapes", sources),
        max_opset=_read_limit(root, "max_opset", sources),
        quantized=_read_limit(root, "quantized", sources),
        operators=_read_facts(root.section("operators"), sources, "operators"),
        dtypes=_read_facts(root.section("dtypes"), sources, "dtypes"),
        tflite=_read_facts(root.section("tflite"), sources, "tflite") if "tflite" in root else None,
    )


def _read_sources(root: Section) -> dict[str, Source]:
    table = root.section("sources")
    if not table.values:
        raise root.wrong("sources", "it is missing", "write [sources.NAME] with title, url and date")
    sources_by_key = {}
    for key in table.values:
        row = table.section(key)
        row.only("title", "url", "date")
        sources_by_key[key] = Source(key, row.text("title"), row.text("url", ""), row.date("date"))
    return sources_by_key


def _read_source(row: Section, sources: Sources) -> Source:
    return sources[row.choice("source", sources)]


def _read_limit(root: Section, name: str, sources: Sources) -> Limit | None:
    if name not in root:
        return None
    row = root.section(name)
    row.only("value", "source", "note")
    value = row.flag("value") if name in ("static_shapes", "quantized") else row.number("value")
    return Limit(value, _read_source(row, sources), row.text("note", ""))


def _read_facts(table: Section, sources: Sources, kind: str) -> Facts:
    table.only("facts", "otherwise", "source", "note")
    met: set[str] = set()
    facts = []
    for row in table.sections("facts"):
        fact = _read_fact(row, sources, kind)
        for name in fact.names:
            if name in met:
                raise row.wrong("names", f"'{name:.40}' has a fact already", "say one thing of each name")
            met.add(name)
        facts.append(fact)
    if "otherwise" not in table:
        return Facts(tuple(facts))
    otherwise = cast(Verdict, table.choice("otherwise", VERDICTS))
    return Facts(tuple(facts), otherwise, _read_source(table, sources), table.text("note", ""))


def _read_fact(row: Section, sources: Sources, kind: str) -> Fact:
    row.only("is", "names", "source", "note", *(["where", "else"] if kind == "operators" else []))
    verdict = cast(Verdict, row.choice("is", VERDICTS))
    condition = _read_condition(row.section("where"))
    if condition != ANYTHING and verdict != "allowed":
        raise row.wrong("where", "only what is allowed has a condition", 'take it out, or write is = "allowed"')
    otherwise = cast(Verdict, row.choice("else", VERDICTS)) if "else" in row else "refused"
    return Fact(verdict, READERS[kind](row), _read_source(row, sources), row.text("note", ""), condition, otherwise)


def _read_condition(row: Section) -> Condition:
    row.only(*CONDITION)
    return Condition(
        constant=row.texts("constant", ()),
        dtypes=_read_dtypes(row, "dtypes") if "dtypes" in row else (),
        max_rank=row.number("max_rank") if "max_rank" in row else None,
        attributes=row.mapping("attributes", _is_plain, "a text or a number"),
        values=row.mapping("values", lambda value: _is_plain(value) and not isinstance(value, str), "a number"),
        producers=row.mapping("producers", lambda value: isinstance(value, str), "the name of an operator"),
        readers=row.text("readers", ""),
        output_dtypes=_read_dtypes(row, "output_dtypes") if "output_dtypes" in row else (),
        planes_of=row.number("planes_of") if "planes_of" in row else None,
    )


def _is_plain(value: object) -> bool:
    return isinstance(value, (str, int, float)) and not isinstance(value, bool)


def _read_operators(row: Section) -> tuple[str, ...]:
    """Return the operators that a row names; those without a domain must be of ONNX."""
    names = row.texts("names")
    for name in names:
        if "." not in name and name not in _onnx_operators():
            raise row.wrong("names", f"'{name:.40}' is no operator of ONNX", "check its spelling, or write DOMAIN.NAME")
    return names


def _read_dtypes(row: Section, key: str = "names") -> tuple[str, ...]:
    names = row.texts(key)
    for name in names:
        if name not in _onnx_dtypes():
            raise row.wrong(key, f"'{name:.40}' is no dtype of ONNX", "write such as float32 or int64")
    return names


READERS: Mapping[str, Callable[[Section], tuple[str, ...]]] = {
    "operators": _read_operators,
    "dtypes": _read_dtypes,
    "tflite": lambda row: row.texts("names"),
}


@cache
def _onnx_operators() -> frozenset[str]:
    from onnx.defs import get_all_schemas

    return frozenset(schema.name for schema in get_all_schemas() if schema.domain == "")


@cache
def _onnx_dtypes() -> frozenset[str]:
    from onnx import TensorProto

    dtypes: Any = TensorProto.DataType.values()
    return frozenset(dtype_name(dtype) for dtype in dtypes)
