"""Names: numbered families (`past.{0-17}.{key|value}`), and the module that a node was exported from."""

from __future__ import annotations

import ast
import math
import re
from collections.abc import Iterable, Sequence

from graphkit.graph.view import Node

__all__ = ["family_label", "family_labels", "family_pattern", "module_path"]

SCOPES_KEY = "pkg.torch.onnx.name_scopes"  # node metadata of torch's newer exporter

KEY_VALUE = {"key", "value", "keys", "values", "k", "v"}


def family_pattern(name: str) -> str:
    """Return what the names of a family share: numbers as #, the words key and value as @."""
    parts = re.split(r"(\d+|[A-Za-z]+)", name)
    return "".join("#" if part.isdigit() else "@" if part.lower() in KEY_VALUE else part for part in parts)


def family_label(names: Sequence[str]) -> str | None:
    """Return one label for names of the same pattern, or None where they are not all the combinations of it."""
    columns = list(zip(*(re.split(r"(\d+|[A-Za-z]+)", name) for name in names), strict=True))
    distinct = [tuple(dict.fromkeys(column)) for column in columns]
    if math.prod(map(len, distinct)) != len(names):
        return None
    return "".join(_choice(words) for words in distinct)


def family_labels(names: Iterable[str]) -> str:
    """Return names as text, each family as one label, `first ... last` where a family has gaps."""
    families: dict[str, list[str]] = {}
    for name in names:
        families.setdefault(family_pattern(name), []).append(name)
    return ", ".join(family_label(members) or f"{members[0]} ... {members[-1]}" for members in families.values())


def _choice(words: tuple[str, ...]) -> str:
    if len(words) == 1:
        return words[0]
    if not all(word.isdigit() for word in words):
        return f"{{{'|'.join(words)}}}"
    numbers = sorted(int(word) for word in words)
    if numbers == list(range(numbers[0], numbers[-1] + 1)):
        return f"{{{numbers[0]}-{numbers[-1]}}}"
    shown = numbers if len(numbers) < 6 else [*numbers[:3], "...", numbers[-1]]
    return f"{{{','.join(map(str, shown))}}}"


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
