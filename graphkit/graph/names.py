"""Names: numbered families (`past.{0-17}.{key|value}`), and the module that a node was exported from."""

from __future__ import annotations

import ast
import itertools
import math
import re
from collections.abc import Collection, Iterable, Sequence

from graphkit.graph.view import Node, Scope, all_scopes

__all__ = [
    "counted",
    "family_label",
    "family_labels",
    "family_pattern",
    "free_name",
    "is_number",
    "module_path",
    "names_in",
    "runs_of",
]

SCOPES_KEY = "pkg.torch.onnx.name_scopes"  # node metadata of torch's newer exporter

MAX_DIGITS = 10
KEY_VALUE = {"key", "value", "keys", "values", "k", "v"}


def counted(count: int, text: str) -> str:
    """Return a text with its number: `1 node removed` or `3 nodes removed` for "node(s) removed"."""
    return f"{count:,} {text.replace('(s)', '' if count == 1 else 's')}"


def names_in(scopes: tuple[Scope, ...]) -> set[str]:
    """Return the names of all values and nodes at every depth, which a new one must not have."""
    return {
        name for scope in all_scopes(scopes) for name in (*scope.values, *(node.proto.name for node in scope.nodes))
    }


def free_name(base: str, taken: Collection[str]) -> str:
    """Return a name that is not taken: this one, or this one with a number."""
    numbered = (f"{base}_{number}" for number in itertools.count(2))
    return next(name for name in itertools.chain([base], numbered) if name not in taken)


def runs_of(numbers: Sequence[int]) -> list[range]:
    """Return numbers as ranges that go up by one.

    Example:
        >>> runs_of((2, 3, 4, 7))
        [range(2, 5), range(7, 8)]
    """
    breaks = [0, *(i for i in range(1, len(numbers)) if numbers[i] != numbers[i - 1] + 1), len(numbers)]
    return [range(numbers[low], numbers[low] + high - low) for low, high in itertools.pairwise(breaks) if high > low]


def family_pattern(name: str) -> str:
    """Return a name with its numbers, and the words key and value, replaced by control characters."""
    return "".join("\0" if is_number(part) else "\1" if part.lower() in KEY_VALUE else part for part in _parts(name))


def is_number(word: str) -> bool:
    """Whether a word is a number small enough to be an index."""
    return word.isascii() and word.isdigit() and len(word) < MAX_DIGITS


def _parts(name: str) -> list[str]:
    return re.split(r"([0-9]+|[A-Za-z]+)", name)


def family_label(names: Sequence[str]) -> str | None:
    """Return one label for names of the same pattern, or None if some combination is missing."""
    columns = list(zip(*(_parts(name) for name in names), strict=True))
    distinct = [tuple(dict.fromkeys(column)) for column in columns]
    if math.prod(map(len, distinct)) != len(names):
        return None
    return "".join(_choice(words) for words in distinct)


def family_labels(names: Iterable[str]) -> str:
    """Return names as text, with one label for each family, `first ... last` if it has gaps."""
    families: dict[str, list[str]] = {}
    for name in names:
        families.setdefault(family_pattern(name), []).append(name)
    return ", ".join(family_label(members) or f"{members[0]} ... {members[-1]}" for members in families.values())


def _choice(words: tuple[str, ...]) -> str:
    if len(words) == 1:
        return words[0]
    if not all(is_number(word) for word in words):
        return f"{{{'|'.join(words)}}}"
    ordered = sorted(words, key=int)
    if len(runs_of([int(word) for word in ordered])) == 1:
        return f"{{{ordered[0]}-{ordered[-1]}}}"
    shown = ordered if len(ordered) < 6 else [*ordered[:3], "...", ordered[-1]]
    return f"{{{','.join(shown)}}}"


def module_path(node: Node) -> str:
    """Return where in the source model a node comes from: its name, or what the exporter noted beside it."""
    for entry in node.proto.metadata_props:
        if entry.key == SCOPES_KEY:
            try:
                scopes = ast.literal_eval(entry.value)
            except (ValueError, SyntaxError, MemoryError, RecursionError):
                break
            if isinstance(scopes, list) and len(scopes) > 1:
                return f"{scopes[-2]}.{scopes[-1]}"
    return str(node.proto.name)
