"""Names: free ones, those of files and modules, and families of names, each as one label that says exactly which.

The names of a family differ in numbers, or in key and value: `past.{0-17}.{key|value}` stands for 36 names,
`h.{0,2,5-7}` for five, and `layers.{i=0-3}/attn_{i}` for four, whose numbers vary together, as `{i=key|value}` and
`{i}` do.
"""

from __future__ import annotations

import ast
import fnmatch
import itertools
import math
import re
from collections import Counter
from collections.abc import Callable, Collection, Hashable, Iterable, Iterator, Mapping, Sequence
from pathlib import Path, PurePath
from string import ascii_lowercase
from typing import TypeVar

from graphkit.errors import UsageError, count_things, did_you_mean
from graphkit.graph.operator_traits import RANDOM
from graphkit.graph.view import Node, Scope, Value, all_scopes

Key = TypeVar("Key")
Member = TypeVar("Member")
SCOPES_KEY = "pkg.torch.onnx.name_scopes"  # node metadata of torch's newer exporter


def join_words(texts: Sequence[str]) -> str:
    """Return one or more texts as a list in a sentence: `a, b and c`."""
    return " and ".join(filter(None, (", ".join(texts[:-1]), texts[-1])))


def group_pairs(pairs: Iterable[tuple[Key, Member]]) -> dict[Key, list[Member]]:
    """Return what stands behind each key, keys and all else in the order in which they come."""
    groups: dict[Key, list[Member]] = {}
    for key, member in pairs:
        groups.setdefault(key, []).append(member)
    return groups


def names_in(scopes: tuple[Scope, ...]) -> set[str]:
    """Return the names of all values and nodes at every depth, which a new one must not have."""
    names = ((*scope.values, *(node.proto.name for node in scope.nodes)) for scope in all_scopes(scopes))
    return set(itertools.chain.from_iterable(names))


def free_name(base: str, taken: Collection[str], joint: str = "_") -> str:
    """Return a name that is not taken: this one, or this one with a number."""
    numbered = (f"{base}{joint}{number}" for number in itertools.count(2))
    return next(name for name in itertools.chain([base], numbered) if name not in taken)


def runs_of(numbers: Sequence[int]) -> list[range]:
    """Return numbers as ranges that go up by one: of 2, 3, 4 and 7, `range(2, 5)` and `range(7, 8)`."""
    breaks = [0, *(i for i in range(1, len(numbers)) if numbers[i] != numbers[i - 1] + 1), len(numbers)]
    return [range(numbers[low], numbers[low] + high - low) for low, high in itertools.pairwise(breaks) if high > low]


def short_paths(paths: Iterable[str]) -> dict[str, str]:
    """Return each path by as many of its last parts as tell it from the others: `encoder/model.onnx`, `vision.onnx`."""
    parts = {path: PurePath(path).parts for path in paths}
    tails = Counter(path_parts[-count:] for path_parts in parts.values() for count in range(1, len(path_parts) + 1))
    shortest: dict[str, str] = {}
    for path, own in parts.items():
        alone = (own[-count:] for count in range(1, len(own)) if tails[own[-count:]] == 1)
        shortest[path] = next((str(PurePath(*tail)) for tail in alone), path)
    return shortest


def distinct_stems(paths: Iterable[str]) -> dict[str, str]:
    """Return a short path of each model file as one word without its suffix: `encoder-model`, `vision`."""
    stems: dict[str, str] = {}
    for path, short in short_paths(paths).items():
        stem = "-".join(part for part in PurePath(short.removesuffix(".onnx")).parts if part.strip("./"))
        stems[path] = free_name(stem, stems.values(), "-")
    return stems


def paths_below(paths: Iterable[str]) -> dict[str, str]:
    """Return each path as it is below the deepest folder that has all of them, with / on every system."""
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


MAX_DIGITS = 10
KEY_VALUE = {"key", "value", "keys", "values", "k", "v"}
LETTERS = ascii_lowercase[8:]  # of words that vary together: i, j, ...
SHOWN = 6  # labels in a sentence
WIDE = 120  # characters of a label in a sentence
RUN = r"[0-9]{1,9}(?:-[0-9]{1,9})?"
CHOICE = re.compile(rf"\{{(?:([i-z])=)?({RUN}(?:,{RUN})*|[A-Za-z]+(?:\|[A-Za-z]+)+)\}}|\{{([i-z])\}}")

SEPARATOR = "\x1f"  # of the two names of a pair, which no name is shown with

Pair = tuple[str, str]
Words = tuple[str, ...]
K = TypeVar("K", bound=Hashable)


def family_pattern(name: str) -> str:
    """Return a name with its numbers, and the words key and value, replaced by control characters."""
    if re.search("[{}\0\1\2]", name):  # which would read as a family or a pattern
        return f"{name}\2"
    return "".join("\0" if is_number(x) else "\1" if x.lower() in KEY_VALUE else x for x in _split_parts(name))


def is_number(word: str) -> bool:
    """Whether a word is a number small enough to be an index."""
    return word.isascii() and word.isdigit() and len(word) < MAX_DIGITS


def _split_parts(name: str) -> list[str]:
    return re.split(r"([0-9]+|[A-Za-z]+)", name)


def label_families(names: Iterable[str]) -> dict[str, list[str]]:
    """Return labels that together stand for exactly these names, each once, with the names of each."""
    by_pattern = group_pairs((family_pattern(name), name) for name in dict.fromkeys(names))
    return {label: family for members in by_pattern.values() for label, family in _label_pattern(members)}


def by_family(rows: Iterable[tuple[str, K]]) -> list[tuple[str, K, int]]:
    """Return rows of names with one for each family of the same other cells, and how many names it stands for."""
    groups: dict[tuple[str, K], list[str]] = {}
    place: dict[tuple[str, K], int] = {}
    for number, (name, cells) in enumerate(rows):
        groups.setdefault((family_pattern(name), cells), []).append(name)
        place.setdefault((name, cells), number)
    families = [(cells, item) for (_, cells), listed in groups.items() for item in label_families(listed).items()]
    rows_at = [(place[family[0], cells], (label, cells, len(family))) for cells, (label, family) in families]
    return [row for _, row in sorted(rows_at, key=lambda row: row[0])]


def pair_families(pairs: Iterable[Pair]) -> dict[Pair, list[Pair]]:
    """Return families of pairs of names, whose numbers may vary together, such as `h.{i=0-1}` and `x{i}`."""
    families = label_families(map(_join_pair, pairs))
    return {_split_pair(label): [*map(_split_pair, names)] for label, names in families.items()}


def pairs_by_family(rows: Iterable[tuple[Pair, K]]) -> list[tuple[Pair, K, int]]:
    """Return rows of pairs of names with one for each family, as `by_family` does for single names."""
    families = by_family((_join_pair(pair), cells) for pair, cells in rows)
    return [(_split_pair(label), cells, count) for label, cells, count in families]


def _join_pair(pair: Pair) -> str:
    return SEPARATOR.join(name.replace(SEPARATOR, " ") for name in pair)


def _split_pair(joined: str) -> Pair:
    first, _, second = joined.partition(SEPARATOR)
    return first, second


def family_label(names: Sequence[str]) -> str | None:
    """Return one label for names of the same pattern, or None if there is none; a name may come twice."""
    labelled = _label_pattern(list(dict.fromkeys(names)))
    return labelled[0][0] if len(labelled) == 1 else None


def family_labels(names: Iterable[str]) -> str:
    """Return names as text for a sentence: a label for each family, or the first few and the number of the others."""
    return in_short(label_families(names))


def in_short(labels: Mapping[str, Collection[str]]) -> str:
    """Return labels, with the names of each, for a sentence; of a label that is too long, its first name."""
    short = {label: len(family) for label, family in labels.items() if len(label) <= WIDE or len(family) == 1}
    if len(short) == len(labels) <= SHOWN:
        return ", ".join(labels)
    shown = [(label, short[label]) if label in short else (next(iter(family)), 1) for label, family in labels.items()]
    texts, count = zip(*shown[: SHOWN // 2], strict=True)
    return f"{', '.join(texts)} and {sum(map(len, labels.values())) - sum(count):,} more"


def _label_pattern(names: Sequence[str]) -> list[tuple[str, list[str]]]:
    if len(names) == 1:
        return [(names[0], [names[0]])]
    rows = [tuple(_split_parts(name)) for name in names]
    columns = list(zip(*rows, strict=True))
    first: dict[Words, int] = {}  # of the columns that have the same words in every name
    ties = [first.setdefault(words, at) if len(set(words)) > 1 else at for at, words in enumerate(columns)]
    if len(first) > len(LETTERS):
        ties = list(range(len(columns)))
    varying = [column for column, words in enumerate(columns) if ties[column] == column and len(set(words)) > 1]
    products = min((_split_into_products(rows, varying, order) for order in (varying, varying[::-1])), key=len)
    place = {row: number for number, row in enumerate(zip(*(columns[c] for c in varying), strict=True))}
    labelled = []
    for sets in products:
        members = sorted(place[row] for row in itertools.product(*sets))
        words = dict(zip(varying, sets, strict=True))
        labelled.append((_label_of_row(rows[members[0]], words, ties), [names[member] for member in members]))
    return sorted(labelled, key=lambda label: names.index(label[1][0]))


def _split_into_products(
    rows: Sequence[Words], varying: Sequence[int], order: Sequence[int]
) -> list[tuple[Words, ...]]:
    """Return the rows, of their varying columns, as products of sets of words, joined column by column."""
    products: list[tuple[Words, ...]] = [tuple((row[column],) for column in varying) for row in rows]
    for column in order:
        at = varying.index(column)
        joined: dict[tuple[Words, ...], list[str]] = {}
        for sets in products:
            joined.setdefault((*sets[:at], *sets[at + 1 :]), []).extend(sets[at])
        products = [(*rest[:at], tuple(sorted(words, key=_sort_key)), *rest[at:]) for rest, words in joined.items()]
    return products


def _sort_key(word: str) -> tuple[int, int, str]:
    return (int(word), len(word), "") if is_number(word) else (0, 0, word)


def _label_of_row(row: Words, sets: dict[int, Words], ties: Sequence[int]) -> str:
    tied = [column for column in dict.fromkeys(ties) if ties.count(column) > 1 and len(sets.get(column, ())) > 1]
    letters = {column: LETTERS[number] for number, column in enumerate(tied)}
    text = ""
    for column, word in enumerate(row):
        first = ties[column]
        if first != column and first in letters:
            text += f"{{{letters[first]}}}"
        else:
            words, letter = sets.get(column, (word,)), f"{letters[column]}=" if column in letters else ""
            text += f"{{{letter}{_choice_text(words)}}}" if letter or len(words) > 1 else words[0]
    return text


def _choice_text(words: Words) -> str:
    """Return `key|value`, or numbers as `0,2,5-7`."""
    if not is_number(words[0]):
        return "|".join(words)
    runs: list[list[str]] = []
    for word in words:
        before = runs[-1][-1] if runs else ""
        if before and word == f"{int(before) + 1:0{len(before)}d}":  # with as many leading zeros
            runs[-1].append(word)
        else:
            runs.append([word])
    return ",".join(run[0] if len(run) == 1 else f"{run[0]}-{run[-1]}" for run in runs)


def expand_label(label: str) -> Iterator[str]:
    """Yield the names that a label stands for."""
    if count_of(label) == 1:
        yield label
        return
    pieces, end = [], 0
    for choice in CHOICE.finditer(label):
        pieces.append((label[end : choice.start()], choice))
        end = choice.end()
    for chosen in itertools.product(*(_words_of_choice(choice) for _, choice in pieces if not choice[3])):
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
    return math.prod(_choice_size(choice) for choice in CHOICE.finditer(label))


def _words_of_choice(choice: re.Match[str]) -> list[str]:
    if "|" in choice[2]:
        return choice[2].split("|")
    words = []
    for part in choice[2].split(","):
        low, _, high = part.partition("-")
        words += [f"{number:0{len(low)}d}" for number in range(int(low), int(high or low) + 1)]
    return words


def _choice_size(choice: re.Match[str]) -> int:
    if choice[3] or "|" in choice[2]:
        return 1 if choice[3] else len(choice[2].split("|"))
    bounds = (part.partition("-") for part in choice[2].split(","))
    return sum(max(0, int(high or low) + 1 - int(low)) for low, _, high in bounds)


def find_value(scopes: tuple[Scope, ...], name: str, label: str) -> Value:
    """Return a value of the main graph; UsageError where there is none of that name."""
    value = scopes[0].values.get(name)
    if value is None:
        raise _missing_name_error(scopes, name, label, "value", list(scopes[0].values))
    return value


def find_value_or_node(scopes: tuple[Scope, ...], name: str, label: str) -> Value | Node:
    """Return the value of the main graph that has a name, else the node; a UsageError says that there is not one."""
    main = scopes[0]
    if name in main.values:
        return main.values[name]
    nodes = [node for node in main.nodes if name and node.proto.name == name]
    if len(nodes) > 1:
        count = count_things(len(nodes), "node(s)")
        raise UsageError(f"{label}: {count} have the name '{name}' - name a value instead")
    if not nodes:
        names = [*main.values, *(node.proto.name for node in main.nodes)]
        raise _missing_name_error(scopes, name, label, "value or node", names)
    return nodes[0]


def _missing_name_error(
    scopes: tuple[Scope, ...], name: str, label: str, kind: str, names: Iterable[str]
) -> UsageError:
    inner = (scope for scope in all_scopes(scopes) if scope is not scopes[0])
    inside = next((s for s in inner if name in s.values or any(n.proto.name == name for n in s.nodes if name)), None)
    if inside is None:
        hint = did_you_mean(name, names, "`graphkit shapes` lists the values")
        return UsageError(f"{label}: there is no {kind} '{name}' - {hint}")
    if inside in scopes or not scopes[0].contains(inside):
        hint = "put functions into the graph first: graphkit rewrite -p inline-functions"
        return UsageError(f"{label}: '{name}' is in the {inside.path.split('/')[0]}, not in the main graph - {hint}")
    op_type = inside.owner.op_type if inside.owner is not None else "node"
    hint = "name an output of that node"
    if op_type == "If":
        hint += ", or take one branch first: graphkit rewrite -p inline-constant-if, specialize-input, or split-merged"
    where = f"the body '{inside.path}' of a node {op_type}"
    return UsageError(f"{label}: '{name}' is in {where}, which may not run - {hint}")


MAX_NAMES = 10_000  # that a family in a glob may stand for


def in_order(scopes: tuple[Scope, ...]) -> Iterator[Value]:
    """Yield the values of each scope: inputs, initializers, then the outputs of its nodes."""
    for scope in all_scopes(scopes):
        outputs = (value for node in scope.nodes for value in node.results)
        yield from dict.fromkeys(itertools.chain(scope.inputs, scope.initializers, outputs))


def fixed_values(scopes: tuple[Scope, ...]) -> set[Value]:
    """Return the initializers and constants, and all values that follow from them alone."""
    fixed: set[Value] = set()
    for scope in all_scopes(scopes):
        fixed.update(value for value in (*scope.initializers, *scope.values.values()) if value.is_constant)
        for node in scope.nodes:
            reads = node.operands
            if reads and not node.bodies and node.op_type not in RANDOM and all(value in fixed for value in reads):
                fixed.update(node.results)
    return fixed


def find_matching_values(globs: Sequence[str], shown: Sequence[Value], every: Sequence[Value]) -> list[Value]:
    """Return the values shown that a glob matches: by name, as SCOPE::NAME or by the path of their node.

    A family such as `past.{0-5}.key` stands for its names; in these, * and ? are wildcards. A UsageError says that a
    glob matches none of those that are shown; `every` has the others, which are constant.
    """
    matches: set[Value] = set()
    for glob in globs:
        pattern = glob_test(glob)
        matched = [value for value in shown if any(map(pattern, _names_of_value(value)))]
        if not matched:
            if any(pattern(name) for value in every for name in _names_of_value(value)):
                raise UsageError(f"'{glob}' matches constants only - add --constants to show them")
            plain = max(re.split(r"[*?\[\]]|\{[^}]*\}", glob), key=len) or glob
            hint = did_you_mean(plain, (value.name for value in shown), "`graphkit shapes` lists the names")
            raise UsageError(f"no tensor matches '{glob}' - {hint}")
        matches.update(matched)
    return [value for value in shown if value in matches]


def _names_of_value(value: Value) -> Iterator[str]:
    yield value.name
    if value.scope.path:
        yield f"{value.scope.path}::{value.name}"
    if value.producer is not None:
        yield value.producer.path


def glob_test(glob: str) -> Callable[[str], bool]:
    """Return whether a name matches a glob or is the same; a UsageError says that it stands for too many names."""
    if count_of(glob) > MAX_NAMES:
        raise UsageError(f"'{glob}' stands for {count_of(glob):,} names - write * for so many, {MAX_NAMES:,} at most")
    names = {glob, *expand_label(glob)}
    regex = re.compile("|".join(fnmatch.translate(name) for name in names))
    return lambda name: name in names or regex.match(name) is not None
