"""Names: free ones, counts of things, and the module that a node was exported from."""

from __future__ import annotations

import ast
import itertools
from collections import Counter
from collections.abc import Collection, Iterable, Sequence
from pathlib import PurePath

from graphkit.graph.view import Node, Scope, all_scopes

__all__ = ["counted", "free_name", "module_path", "names_in", "runs_of", "short_paths"]

SCOPES_KEY = "pkg.torch.onnx.name_scopes"  # node metadata of torch's newer exporter


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


def short_paths(paths: Iterable[str]) -> dict[str, str]:
    """Return each path by as many of its last parts as tell it from the others.

    Example:
        >>> short_paths(["a/encoder/model.onnx", "a/decoder/model.onnx", "a/vision.onnx"]).values()
        dict_values(['encoder/model.onnx', 'decoder/model.onnx', 'vision.onnx'])
    """
    parts = {path: PurePath(path).parts for path in paths}
    tails = Counter(own[-count:] for own in parts.values() for count in range(1, len(own) + 1))
    return {path: _shortest(path, own, tails) for path, own in parts.items()}


def _shortest(path: str, parts: tuple[str, ...], tails: Counter[tuple[str, ...]]) -> str:
    alone = (parts[-count:] for count in range(1, len(parts)) if tails[parts[-count:]] == 1)
    return next((str(PurePath(*tail)) for tail in alone), path)


def module_path(node: Node) -> str:
    """Return the module of the source model that a node comes from: by its name, or by the exporter's metadata."""
    for entry in node.proto.metadata_props:
        if entry.key == SCOPES_KEY:
            try:
                scopes = ast.literal_eval(entry.value)
            except (ValueError, SyntaxError, MemoryError, RecursionError):
                break
            if isinstance(scopes, list) and len(scopes) > 1:
                return f"{scopes[-2]}.{scopes[-1]}"
    return str(node.proto.name)
