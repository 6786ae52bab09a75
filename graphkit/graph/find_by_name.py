"""Find values and nodes by the names and globs that a user gives."""

from __future__ import annotations

import fnmatch
import itertools
import re
from collections.abc import Callable, Iterable, Iterator, Sequence

from graphkit.errors import UsageError
from graphkit.graph.name_families import count_of, expand_label
from graphkit.graph.names import count_things
from graphkit.graph.operator_traits import RANDOM
from graphkit.graph.view import Node, Scope, Value, all_scopes
from graphkit.suggest import did_you_mean

__all__ = ["find_matching_values", "find_value", "find_value_or_node", "fixed_values", "glob_test", "in_order"]


def find_value(scopes: tuple[Scope, ...], name: str, label: str) -> Value:
    """Return a value of the main graph.

    Raises:
        UsageError: There is none of that name.
    """
    value = scopes[0].values.get(name)
    if value is None:
        raise _missing_name_error(scopes, name, label, "value", list(scopes[0].values))
    return value


def find_value_or_node(scopes: tuple[Scope, ...], name: str, label: str) -> Value | Node:
    """Return the value of the main graph that has a name, else the node.

    Raises:
        UsageError: There is neither, or several nodes have that name.
    """
    main = scopes[0]
    if name in main.values:
        return main.values[name]
    nodes = [node for node in main.nodes if name and node.proto.name == name]
    if len(nodes) > 1:
        raise UsageError(
            f"{label}: {count_things(len(nodes), 'node(s)')} have the name '{name}' - name a value instead"
        )
    if not nodes:
        names = [*main.values, *(node.proto.name for node in main.nodes)]
        raise _missing_name_error(scopes, name, label, "value or node", names)
    return nodes[0]


def _missing_name_error(
    scopes: tuple[Scope, ...], name: str, label: str, kind: str, names: Iterable[str]
) -> UsageError:
    inside = next(
        (scope for scope in all_scopes(scopes) if scope is not scopes[0] and _defines_name(scope, name)), None
    )
    if inside is None:
        hint = did_you_mean(name, names, "`graphkit shapes` lists the values")
        return UsageError(f"{label}: there is no {kind} '{name}' - {hint}")
    if inside in scopes or not scopes[0].contains(inside):
        hint = "put functions into the graph first: graphkit rewrite -p inline-functions"
        return UsageError(f"{label}: '{name}' is in the {inside.path.split('/')[0]}, not in the main graph - {hint}")
    owner = inside.owner
    op_type = owner.op_type if owner is not None else "node"
    hint = "name an output of that node"
    if op_type == "If":
        hint += ", or take one branch first: graphkit rewrite -p inline-constant-if, specialize-input, or split-merged"
    return UsageError(
        f"{label}: '{name}' is in the body '{inside.path}' of a node {op_type}, which may not run - {hint}"
    )


def _defines_name(scope: Scope, name: str) -> bool:
    return name in scope.values or any(node.proto.name == name for node in scope.nodes if name)


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
    """Return the values that one of some globs matches: by name, as SCOPE::NAME or by the path of their node.

    A family such as `past.{0-5}.key` stands for its names; in these, * and ? are wildcards.

    Raises:
        UsageError: A glob matches none of those that are shown; `every` has the others, which are constant.
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
    """Return whether a name matches a glob or is the same.

    Raises:
        UsageError: Its families stand for too many names.
    """
    if count_of(glob) > MAX_NAMES:
        raise UsageError(f"'{glob}' stands for {count_of(glob):,} names - write * for so many, {MAX_NAMES:,} at most")
    names = {glob, *expand_label(glob)}
    regex = re.compile("|".join(fnmatch.translate(name) for name in names))
    return lambda name: name in names or regex.match(name) is not None
