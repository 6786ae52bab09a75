"""The Python reference: a page for each group of functions in the help of `graphkit`, and for each public package."""

from __future__ import annotations

import inspect
import re
from collections.abc import Mapping
from importlib import import_module

import graphkit
from site_pages.markdown import contents, prose

__all__ = ["pages"]

PACKAGES = (
    "graphkit.shapes",
    "graphkit.shapes.constraints",
    "graphkit.rewrite",
    "graphkit.verify",
    "graphkit.equivalence",
    "graphkit.targets",
    "graphkit.contract",
    "graphkit.hosts",
)
LONGEST_VALUE = 120  # characters
CONSTANTS = {
    "graphkit.ModelLike": "A model, or its path: what functions take.",
    "graphkit.PASSES": "All passes, in the order of pipelines. The [gallery](../passes/index.md) shows each.",
    "graphkit.shapes.AS_DECLARED": "The `DimSpec` of a user who specifies no dims: all are as the model declares them.",
    "graphkit.shapes.Bounds": "The least and the largest size of a symbol; None for an open end.",
    "graphkit.rewrite.NodeInput": "An input of a new node: a value, the name of a new one, or None to leave it out.",
    "graphkit.rewrite.ROUNDING": "The tolerance of passes that change the order of sums, relative to the magnitude.",
    "graphkit.targets.ANYTHING": "The condition that holds of every node.",
    "graphkit.targets.NAMES": "The [targets](../targets/index.md) that ship with graphkit.",
    "graphkit.targets.Verdict": "The statement of a source about an operator or a dtype.",
    "graphkit.contract.By": "What chooses the rows of a table: see `Source`.",
}
GROUP = re.compile(r"^([A-Z][\w, ]+)\n((?:    .*\n)+)", re.M)


def pages() -> dict[str, str]:
    """Return a page for each group of names of `graphkit`, one for its other classes, and one for each package."""
    groups = _groups()
    grouped = {name for names in groups.values() for name in names}
    groups["Results, options and errors"] = [name for name in sorted(graphkit.__all__) if name not in grouped]
    homes = {name: _file(title) for title, names in groups.items() for name in names}
    made = {f"{_file(title)}.md": _page(title, "graphkit", names, homes) for title, names in groups.items()}
    for package in PACKAGES:
        module = import_module(package)
        about = prose((module.__doc__ or "").split("\n\n")[0])
        made[f"{package}.md"] = _page(package, package, sorted(module.__all__), homes, f"{about}\n\n")
    help_text = inspect.cleandoc(graphkit.__doc__ or "")
    index = f"# Python\n\n`help(graphkit)` prints this.\n\n```text\n{help_text}\n```\n\n"
    links = "".join(f"- [{title}]({_file(title)}.md)\n" for title in groups)
    links += "".join(f"- [`{package}`]({package}.md)\n" for package in PACKAGES)
    return made | {"index.md": index + links + contents(name.removesuffix(".md") for name in made)}


def _groups() -> dict[str, list[str]]:
    """Return the names that the help of `graphkit` has under each of its headings."""
    known = set(graphkit.__all__)
    found = {}
    for title, rows in GROUP.findall(graphkit.__doc__ or ""):
        words = re.findall(r"[A-Za-z_]\w+(?:\.\w+)?", " ".join(_named(row) for row in rows.splitlines()))
        names = dict.fromkeys(word.split(".")[0] for word in words)
        found[title] = [name for name in names if name in known]
    first: dict[str, str] = {}
    for title, names in found.items():
        for name in names:
            first.setdefault(name, title)
    return {title: [name for name in names if first[name] == title] for title, names in found.items()}


def _named(row: str) -> str:
    """Return what a row of the help names: at its start, and between backticks."""
    start = re.match(r"    (\w[\w., ]*?)  +\S", row)
    return " ".join([start[1] if start else "", *re.findall(r"`([\w.]+)", row)])


def _file(title: str) -> str:
    return re.sub(r"\W+", "-", title.lower())


def _page(title: str, package: str, names: list[str], homes: Mapping[str, str], about: str = "") -> str:
    """Return the page of some names; those with a page of their own among `homes` are links to it."""
    module = import_module(package)
    things = {name: getattr(module, name) for name in names}
    elsewhere = [name for name, thing in things.items() if package != "graphkit" and _is_in_graphkit(name, thing)]
    parts = [f"# {title}\n\n{about}"]
    if elsewhere:
        links = ", ".join(f"[`{name}`]({homes[name]}.md)" for name in elsewhere)
        parts.append(f"This package also has these names of `graphkit`: {links}.\n")
    for name in names:
        if name not in elsewhere:
            parts.append(f"## {name}\n\n" + _described(f"{package}.{name}", things[name]))
    return "\n".join(parts)


def _is_in_graphkit(name: str, thing: object) -> bool:
    return name in graphkit.__all__ and getattr(graphkit, name) is thing


def _described(path: str, thing: object) -> str:
    """Return what shows the docstring of a function or a class, or says what a constant is for."""
    if inspect.isclass(thing):
        return _directive(f".. autoclass:: {path}", "   :members:")
    if inspect.isroutine(thing):
        return _directive(f".. autofunction:: {path}")
    value = re.sub(r"[\w.]+\.(?=[A-Z])|typing\.|os\.", "", repr(thing))
    shown = [f"   :value: {value}"] if len(value) <= LONGEST_VALUE else []
    return _directive(f".. py:data:: {path}", *shown) + f"\n{CONSTANTS[path]}\n"


def _directive(*lines: str) -> str:
    return "```{eval-rst}\n" + "\n".join(lines) + "\n```\n"
