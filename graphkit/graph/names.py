"""Names: families as one label, free names, counts of things, and the module that a node was exported from.

A label says exactly which names of a family there are, which differ in numbers, or in key and value:
`past.{0-17}.{key|value}` stands for 36 names, `h.{0,2,5-7}` for five, and `layers.{i=0-3}/attn_{i}` for four, whose
numbers vary together.
"""

from __future__ import annotations

import ast
import itertools
import math
import re
from collections import Counter
from collections.abc import Collection, Hashable, Iterable, Iterator, Mapping, Sequence
from pathlib import Path, PurePath
from string import ascii_lowercase
from typing import TypeVar

from graphkit.graph.view import Node, Scope, all_scopes

__all__ = [
    "by_family",
    "count_of",
    "counted",
    "distinct_stems",
    "expanded",
    "families",
    "family_label",
    "family_labels",
    "family_pattern",
    "free_name",
    "in_short",
    "is_number",
    "listed",
    "module_of",
    "module_parts",
    "module_path",
    "name_of",
    "names_in",
    "paths_below",
    "runs_of",
    "short_paths",
]

SCOPES_KEY = "pkg.torch.onnx.name_scopes"  # node metadata of torch's newer exporter


def counted(count: int, text: str) -> str:
    """Return a text with its number: `1 node removed` or `3 nodes removed` for "node(s) removed"."""
    return f"{count:,} {text.replace('(s)', '' if count == 1 else 's')}"


def listed(texts: Sequence[str]) -> str:
    """Return one or more texts as a list in a sentence: `a, b and c`."""
    return " and ".join(filter(None, (", ".join(texts[:-1]), texts[-1])))


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
    tails = Counter(path_parts[-count:] for path_parts in parts.values() for count in range(1, len(path_parts) + 1))
    return {path: _shortest(path, path_parts, tails) for path, path_parts in parts.items()}


def distinct_stems(paths: Iterable[str]) -> dict[str, str]:
    """Return the name of each model file without its suffix, after as many of its folders as tell it from the others.

    Example:
        >>> distinct_stems(["a/encoder/model.onnx", "a/decoder/model.onnx", "a/vision.onnx"]).values()
        dict_values(['encoder-model', 'decoder-model', 'vision'])
    """
    stems, taken = dict[str, str](), set[str]()
    for path, short in short_paths(paths).items():
        stem = "-".join(part for part in PurePath(short.removesuffix(".onnx")).parts if part.strip("./"))
        names = itertools.chain([stem], (f"{stem}-{number}" for number in itertools.count(2)))
        stems[path] = next(name for name in names if name not in taken)
        taken.add(stems[path])
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
    return {path: "/".join(path_parts[shared:]) for path, path_parts in parts.items()}


def name_of(path: Path) -> str:
    """Return the name of a file or a folder: of a link its own, of "." and ".." that of the folder."""
    return path.name if path.name.strip(".") else path.resolve().name


def _shortest(path: str, parts: tuple[str, ...], tails: Counter[tuple[str, ...]]) -> str:
    alone = (parts[-count:] for count in range(1, len(parts)) if tails[parts[-count:]] == 1)
    return next((str(PurePath(*tail)) for tail in alone), path)


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


MAX_DIGITS = 10
KEY_VALUE = {"key", "value", "keys", "values", "k", "v"}
LETTERS = ascii_lowercase[8:]  # of numbers that vary together: i, j, ...
SHOWN = 6  # labels in a sentence
WIDE = 120  # characters of a label in a sentence
RUN = r"[0-9]{1,9}(?:-[0-9]{1,9})?"
CHOICE = re.compile(rf"\{{(?:([i-z])=)?({RUN}(?:,{RUN})*|[A-Za-z]+(?:\|[A-Za-z]+)+)\}}|\{{([i-z])\}}")

Words = tuple[str, ...]
K = TypeVar("K", bound=Hashable)


def family_pattern(name: str) -> str:
    """Return a name with its numbers, and the words key and value, replaced by control characters."""
    if re.search("[{}\0\1\2]", name):  # which would read as a family or a pattern
        return f"{name}\2"
    return "".join("\0" if is_number(part) else "\1" if part.lower() in KEY_VALUE else part for part in _parts(name))


def is_number(word: str) -> bool:
    """Whether a word is a number small enough to be an index."""
    return word.isascii() and word.isdigit() and len(word) < MAX_DIGITS


def _parts(name: str) -> list[str]:
    return re.split(r"([0-9]+|[A-Za-z]+)", name)


def families(names: Iterable[str]) -> dict[str, list[str]]:
    """Return labels that together stand for exactly these names, each once, with the names of each.

    Example:
        >>> list(families(["x.0.key", "x.0.value", "x.1.key", "y"]))
        ['x.{0-1}.key', 'x.0.value', 'y']
    """
    by_pattern: dict[str, list[str]] = {}
    for name in dict.fromkeys(names):
        by_pattern.setdefault(family_pattern(name), []).append(name)
    return {label: family for members in by_pattern.values() for label, family in _labelled(members)}


def by_family(rows: Iterable[tuple[str, K]]) -> list[tuple[str, K, int]]:
    """Return rows of names with one for each family of the same other cells, and how many names it stands for.

    Example:
        >>> by_family([("h.0", 4), ("y", 4), ("h.1", 4), ("h.2", 5)])
        [('h.{0-1}', 4, 2), ('y', 4, 1), ('h.2', 5, 1)]
    """
    groups: dict[tuple[str, K], list[str]] = {}
    place: dict[tuple[str, K], int] = {}
    for number, (name, cells) in enumerate(rows):
        groups.setdefault((family_pattern(name), cells), []).append(name)
        place.setdefault((name, cells), number)
    rows_at = [
        (place[family[0], cells], (label, cells, len(family)))
        for (_, cells), names in groups.items()
        for label, family in families(names).items()
    ]
    return [row for _, row in sorted(rows_at, key=lambda row: row[0])]


def family_label(names: Sequence[str]) -> str | None:
    """Return one label for names of the same pattern, or None if there is none; a name may come twice."""
    labelled = _labelled(list(dict.fromkeys(names)))
    return labelled[0][0] if len(labelled) == 1 else None


def family_labels(names: Iterable[str]) -> str:
    """Return names as text for a sentence: a label for each family, or the first few and the number of the others."""
    return in_short(families(names))


def in_short(labels: Mapping[str, Collection[str]]) -> str:
    """Return labels, with the names of each, for a sentence; of a label that is too long, its first name."""
    short = {label: len(family) for label, family in labels.items() if len(label) <= WIDE or len(family) == 1}
    if len(short) == len(labels) <= SHOWN:
        return ", ".join(labels)
    shown = [(label, short[label]) if label in short else (next(iter(family)), 1) for label, family in labels.items()]
    texts, count = zip(*shown[: SHOWN // 2], strict=True)
    return f"{', '.join(texts)} and {sum(map(len, labels.values())) - sum(count):,} more"


def _labelled(names: Sequence[str]) -> list[tuple[str, list[str]]]:
    """Return labels for names of one pattern, with the names of each."""
    if len(names) == 1:
        return [(names[0], [names[0]])]
    rows = [tuple(_parts(name)) for name in names]
    columns = list(zip(*rows, strict=True))
    ties = _ties(columns)
    varying = [column for column, words in enumerate(columns) if ties[column] == column and len(set(words)) > 1]
    products = min((_products(rows, varying, order) for order in (varying, varying[::-1])), key=len)
    place = {row: number for number, row in enumerate(zip(*(columns[c] for c in varying), strict=True))}
    labelled = []
    for sets in products:
        members = sorted(place[row] for row in itertools.product(*sets))
        words = dict(zip(varying, sets, strict=True))
        labelled.append((_label(rows[members[0]], words, ties), [names[member] for member in members]))
    return sorted(labelled, key=lambda label: names.index(label[1][0]))


def _ties(columns: Sequence[Words]) -> list[int]:
    """Return for each column the first one that has the same numbers in every name, mostly itself."""
    first: dict[Words, int] = {}
    ties = [
        first.setdefault(words, column) if is_number(words[0]) and len(set(words)) > 1 else column
        for column, words in enumerate(columns)
    ]
    return ties if len(first) <= len(LETTERS) else list(range(len(columns)))


def _products(rows: Sequence[Words], varying: Sequence[int], order: Sequence[int]) -> list[tuple[Words, ...]]:
    """Return the rows, of their varying columns, as products of sets of words, joined column by column."""
    products: list[tuple[Words, ...]] = [tuple((row[column],) for column in varying) for row in rows]
    for column in order:
        at = varying.index(column)
        joined: dict[tuple[Words, ...], list[str]] = {}
        for sets in products:
            joined.setdefault((*sets[:at], *sets[at + 1 :]), []).extend(sets[at])
        products = [(*rest[:at], tuple(sorted(words, key=_order)), *rest[at:]) for rest, words in joined.items()]
    return products


def _order(word: str) -> tuple[int, int, str]:
    return (int(word), len(word), "") if is_number(word) else (0, 0, word)


def _label(row: Words, sets: dict[int, Words], ties: Sequence[int]) -> str:
    tied = [column for column in dict.fromkeys(ties) if ties.count(column) > 1 and len(sets.get(column, ())) > 1]
    letters = {column: LETTERS[number] for number, column in enumerate(tied)}
    text = ""
    for column, word in enumerate(row):
        first = ties[column]
        if first != column and first in letters:
            text += f"{{{letters[first]}}}"
        else:
            words = sets.get(column, (word,))
            text += f"{{{letters[column]}={_choice(words)}}}" if column in letters else _braced(words)
    return text


def _braced(words: Words) -> str:
    return words[0] if len(words) == 1 else f"{{{_choice(words)}}}"


def _choice(words: Words) -> str:
    """Return `key|value`, or numbers as `0,2,5-7`."""
    if not is_number(words[0]):
        return "|".join(words)
    runs: list[list[str]] = []
    for word in words:
        if runs and word == _next(runs[-1][-1]):
            runs[-1].append(word)
        else:
            runs.append([word])
    return ",".join(run[0] if len(run) == 1 else f"{run[0]}-{run[-1]}" for run in runs)


def _next(word: str) -> str:
    """Return the number after this one, with as many leading zeros as let it have as many digits."""
    return f"{int(word) + 1:0{len(word)}d}"


def expanded(label: str) -> Iterator[str]:
    """Yield the names that a label stands for.

    Example:
        >>> list(expanded("past.{0-1}.{key|value}"))
        ['past.0.key', 'past.0.value', 'past.1.key', 'past.1.value']
    """
    if count_of(label) == 1:
        yield label
        return
    pieces, end = [], 0
    for choice in CHOICE.finditer(label):
        pieces.append((label[end : choice.start()], choice))
        end = choice.end()
    for chosen in itertools.product(*(_words(choice) for _, choice in pieces if not choice[3])):
        words, text = iter(chosen), ""
        named: dict[str, str] = {}
        for before, choice in pieces:
            word = named.get(choice[3], choice[0]) if choice[3] else next(words)
            if choice[1]:
                named[choice[1]] = word
            text += before + word
        yield text + label[end:]


def count_of(label: str) -> int:
    """Return how many names a label stands for."""
    return math.prod(_size(choice) for choice in CHOICE.finditer(label))


def _words(choice: re.Match[str]) -> list[str]:
    """Return the words of a choice."""
    if "|" in choice[2]:
        return choice[2].split("|")
    words = []
    for part in choice[2].split(","):
        low, _, high = part.partition("-")
        words += [f"{number:0{len(low)}d}" for number in range(int(low), int(high or low) + 1)]
    return words


def _size(choice: re.Match[str]) -> int:
    """Return the number of words of a choice."""
    if choice[3] or "|" in choice[2]:
        return 1 if choice[3] else len(choice[2].split("|"))
    bounds = (part.partition("-") for part in choice[2].split(","))
    return sum(max(0, int(high or low) + 1 - int(low)) for low, _, high in bounds)
