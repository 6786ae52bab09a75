"""The groups that nodes are in: modules of the source model, bodies in their nodes, repeated layers in one group."""

from __future__ import annotations

import re
from collections import Counter, defaultdict
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from itertools import takewhile

from graphkit.graph.name_families import family_labels, family_pattern, is_number
from graphkit.graph.names import module_of
from graphkit.graph.view import Node, Scope

__all__ = ["Namespaces", "find_namespaces", "namespace_text"]

Path = tuple[str, ...]
NUMBERED = re.compile(r".+[._]\d{1,9}")  # of a list of modules: `layers.0`, `layer_._0`
UNSAFE = str.maketrans({";": ",", "\\": "_"})  # which Model Explorer splits namespaces at, or reads as an escape


@dataclass(frozen=True)
class Namespaces:
    """Where the nodes of a graph are.

    Attributes:
        of_node: The namespace of each node.
        of_scope: That of each body, "" for the graph itself.
        repeated: What a group of repeated layers holds, by its namespace.
    """

    of_node: Mapping[Node, str]
    of_scope: Mapping[Scope, str]
    repeated: Mapping[str, str] = field(default_factory=dict)


def find_namespaces(graph: Scope) -> Namespaces:
    """Return the namespaces of the nodes of a graph, of all bodies too.

    A node with bodies has a group of its own, with each body in it. Modules of one list, `layers.0` to `layers.17`, of
    which most are built alike, are in one group, `layers.{0-17}`. A node that reads constants alone, and whose name
    tells no module, such as a copy of a weight, is where its readers are.
    """
    scopes: dict[Scope, Path] = {graph: ()}
    modules: dict[Scope, Path] = {graph: ()}  # those around a body, which need not come again in it
    paths: dict[Node, Path] = {}
    for scope in graph.walk():
        for node in scope.nodes:
            module = module_parts(module_of(node))
            around = modules[scope]
            inner = module[len(around) :] if module[: len(around)] == around else module
            paths[node] = (*scopes[scope], *inner)
            if node.bodies:
                paths[node] = (*paths[node], node.label.rpartition("/")[2] or node.op_type)
            for name, body in node.bodies.items():
                scopes[body] = (*paths[node], name)
                modules[body] = module
    _move_to_readers(graph, paths)
    families = _module_families(paths)
    return Namespaces(
        {node: namespace_text(families.placed(path)) for node, path in paths.items()},
        {scope: namespace_text(families.placed(path)) for scope, path in scopes.items()},
        {
            namespace_text(families.placed(path)[: -1 if path in families.labels else None]): text
            for path, text in families.texts
        },
    )


def _move_to_readers(graph: Scope, paths: dict[Node, Path]) -> None:
    """Put the nodes that read constants alone, and that no module has, into the innermost group around all readers."""
    fixed: dict[Node, None] = {}
    for scope in graph.walk():
        for node in scope.nodes:
            read = [value for value in node.inputs if value is not None and not value.is_constant]
            if not node.bodies and node.inputs and all(value.producer in fixed for value in read):
                fixed[node] = None
    for node in reversed(fixed):
        readers = [paths[reader] for value in node.outputs if value is not None for reader, _ in value.consumers]
        if readers and not module_of(node):
            same = takewhile(lambda column: len(set(column)) == 1, zip(*readers, strict=False))
            paths[node] = tuple(column[0] for column in same)


def module_parts(module: str) -> Path:
    """Return the parts of a module's path, a number with the name of its list: `("model", "layers.0", "mlp")`."""
    path: list[str] = []
    for part in filter(None, module.split("/" if "/" in module else ".")):
        if is_number(part) and path:
            path[-1] += f".{part}"
        else:
            path.append(part)
    return tuple(path)


def namespace_text(path: Sequence[str]) -> str:
    """Return a path as Model Explorer reads it."""
    return "/".join(part.replace("/", ":") for part in path).translate(UNSAFE)


@dataclass
class _Families:
    """Lists of modules that have a group.

    Attributes:
        labels: The group of each module in one.
        texts: What a group holds, with the first module in it, or with the group where it holds no more than a list.
    """

    labels: dict[Path, str] = field(default_factory=dict)
    texts: list[tuple[Path, str]] = field(default_factory=list)

    def placed(self, path: Path) -> Path:
        """Return a path with the groups of the lists on it."""
        placed: list[str] = []
        for depth, part in enumerate(path, 1):
            label = self.labels.get(path[:depth])
            placed += [part] if label is None else [label, part]
        return tuple(placed)


def _module_families(paths: Mapping[Node, Path]) -> _Families:
    """Return the lists of modules of which most are built alike."""
    built: defaultdict[Path, Counter[tuple[Path, str]]] = defaultdict(Counter)
    inside: defaultdict[Path, dict[str, None]] = defaultdict(dict)  # the groups in each group
    direct: set[Path] = set()  # groups that hold nodes of their own
    for node, path in paths.items():
        if node.is_op("Constant"):
            continue
        direct.add(path)
        for depth, part in enumerate(path):
            inside[path[:depth]][part] = None
            if NUMBERED.fullmatch(part):
                built[path[: depth + 1]][path[depth + 1 :], node.operator] += 1
    families = _Families()
    for parent, names in inside.items():
        lists: defaultdict[str, list[str]] = defaultdict(list)
        for name in names:
            if NUMBERED.fullmatch(name):
                lists[family_pattern(name)].append(name)
        for members in lists.values():
            alike = _alike_modules({name: built[parent + (name,)] for name in members})  # noqa: RUF005 - Python 3.10
            if alike is None:
                continue
            is_all = len(members) == len(names) and parent not in direct and parent
            label = family_labels(members)
            if not is_all:
                families.labels.update(((*parent, name), label) for name in members)
            families.texts.append((parent if is_all else (*parent, members[0]), alike))
    return families


def _alike_modules(members: Mapping[str, Counter[tuple[Path, str]]]) -> str | None:
    """Return which modules are built alike, None if most are not, or have no modules in them: steps of a sequence."""
    groups: defaultdict[frozenset[tuple[tuple[Path, str], int]], list[str]] = defaultdict(list)
    for name, counts in members.items():
        groups[frozenset(counts.items())].append(name)
    most = max(groups.values(), key=len)
    has_modules = any(inner for inner, _ in members[most[0]])
    if len(members) < 2 or 2 * len(most) <= len(members) or not has_modules:
        return None
    others = [family_labels(names) for names in groups.values() if names is not most]
    text = f"{len(most)} built alike: {family_labels(most)}"
    return f"{text}; built otherwise: {'; '.join(others)}" if others else text
