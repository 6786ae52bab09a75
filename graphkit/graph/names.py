"""Names: free ones, those of files, counts of things, and the module that a node was exported from."""

from __future__ import annotations

import ast
import itertools
import re
from collections import Counter
from collections.abc import Collection, Iterable, Sequence
from pathlib import Path, PurePath

from graphkit.graph.view import Node, Scope, all_scopes

SCOPES_KEY = "pkg.torch.onnx.name_scopes"  # node metadata of torch's newer exporter


def join_words(texts: Sequence[str]) -> str:
    """Return one or more texts as a list in a sentence: `a, b and c`."""
    return " and ".join(filter(None, (", ".join(texts[:-1]), texts[-1])))


def names_in(scopes: tuple[Scope, ...]) -> set[str]:
    """Return the names of all values and nodes at every depth, which a new one must not have."""
    names = ((*scope.values, *(node.proto.name for node in scope.nodes)) for scope in all_scopes(scopes))
    return set(itertools.chain.from_iterable(names))


def free_name(base: str, taken: Collection[str], joint: str = "_") -> str:
    """Return a name that is not taken: this one, or this one with a number."""
    numbered = (f"{base}{joint}{number}" for number in itertools.count(2))
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
    tails = Counter(path_parts[-count:] for path_parts in parts.values() for count in range(1, len(path_parts) + 1))
    shortest: dict[str, str] = {}
    for path, own in parts.items():
        alone = (own[-count:] for count in range(1, len(own)) if tails[own[-count:]] == 1)
        shortest[path] = next((str(PurePath(*tail)) for tail in alone), path)
    return shortest


def distinct_stems(paths: Iterable[str]) -> dict[str, str]:
    """Return the name of each model file without its suffix, after as many of its folders as tell it from the others.

    Example:
        >>> distinct_stems(["a/encoder/model.onnx", "a/decoder/model.onnx", "a/vision.onnx"]).values()
        dict_values(['encoder-model', 'decoder-model', 'vision'])
    """
    stems: dict[str, str] = {}
    for path, short in short_paths(paths).items():
        stem = "-".join(part for part in PurePath(short.removesuffix(".onnx")).parts if part.strip("./"))
        stems[path] = free_name(stem, stems.values(), "-")
    return stems


def paths_below(paths: Iterable[str]) -> dict[str, str]:
    """Return each path as it is below the deepest folder that has all of them, with / on every system.

    Example:
        >>> paths_below(["a/encoder/model.onnx", "a/decoder/model.onnx"]).values()
        dict_values(['encoder/model.onnx', 'decoder/model.onnx'])
    """
    parts = {path: PurePath(path).parts for path in paths}
    levels = zip(*(path_parts[:-1] for path_parts in parts.values()), strict=False)
    shared = sum(1 for _ in itertools.takewhile(lambda names: len(set(names)) == 1, levels))
    return {path: PurePath(*path_parts[shared:]).as_posix() for path, path_parts in parts.items()}


def name_of(path: Path) -> str:
    """Return the name of a file or a folder: of a link its own, of "." and ".." that of the folder."""
    return path.name if path.name.strip(".") else path.resolve().name


def module_path(node: Node) -> str:
    """Return the module of the source model that a node comes from: by its name, or by the exporter's metadata."""
    scopes = _module_scopes(node)
    return f"{scopes[-2]}.{scopes[-1]}" if scopes else str(node.proto.name)


def module_of(node: Node) -> str:
    """Return the path of the module that a node was exported from, "" where neither name nor metadata tells one.

    It is as the exporter writes it: `model/layers.0/self_attn` from a name, `model.layers.0.self_attn` from metadata.
    """
    scopes = _module_scopes(node)
    return scopes[-2] if scopes else str(node.proto.name).rpartition("/")[0].strip("/")


def module_parts(path: str) -> tuple[str, ...]:
    """Return the parts of the path of a module, between which exporters write / or a dot."""
    return tuple(re.split("[./]", path.strip("/")))


def _module_scopes(node: Node) -> list[str]:
    """Return the modules around a node, outermost first, and its own name, as metadata has them; else none."""
    for entry in node.proto.metadata_props:
        if entry.key == SCOPES_KEY:
            try:
                scopes = ast.literal_eval(entry.value)
            except (ValueError, SyntaxError, MemoryError, RecursionError):
                break
            if isinstance(scopes, list) and len(scopes) > 1:
                return [str(scope) for scope in scopes]
    return []
