"""The values of a graph in its order, those that are constant, and those that a user's globs match."""

from __future__ import annotations

import fnmatch
import itertools
import re
from collections.abc import Callable, Iterator, Sequence

from graphkit.errors import UsageError
from graphkit.graph.families import count_of, expanded
from graphkit.graph.operators import RANDOM
from graphkit.graph.view import Scope, Value, all_scopes
from graphkit.suggest import did_you_mean

__all__ = ["fixed_values", "in_order", "matching"]

MAX_NAMES = 10_000  # that a family in a glob may stand for


def in_order(scopes: tuple[Scope, ...]) -> Iterator[Value]:
    """Yield the values of each scope: inputs, initializers, then the outputs of its nodes."""
    for scope in all_scopes(scopes):
        outputs = (value for node in scope.nodes for value in node.outputs if value is not None)
        yield from dict.fromkeys(itertools.chain(scope.inputs, scope.initializers, outputs))


def fixed_values(scopes: tuple[Scope, ...]) -> set[Value]:
    """Return the initializers and constants, and all values that follow from them alone."""
    fixed: set[Value] = set()
    for scope in all_scopes(scopes):
        fixed.update(value for value in (*scope.initializers, *scope.values.values()) if value.is_constant)
        for node in scope.nodes:
            reads = [value for value in node.inputs if value is not None]
            if reads and not node.bodies and node.op_type not in RANDOM and all(value in fixed for value in reads):
                fixed.update(value for value in node.outputs if value is not None)
    return fixed


def matching(globs: Sequence[str], shown: Sequence[Value], every: Sequence[Value]) -> list[Value]:
    """Return the values that one of some globs matches: by name, as SCOPE::NAME or by the path of their node.

    A family such as `past.{0-5}.key` stands for its names; in these, * and ? are wildcards.

    Raises:
        UsageError: A glob matches none of those that are shown; `every` has the others, which are constant.
    """
    found: set[Value] = set()
    for glob in globs:
        pattern = _pattern(glob)
        matched = [value for value in shown if any(map(pattern, _names(value)))]
        if not matched:
            if any(pattern(name) for value in every for name in _names(value)):
                raise UsageError(f"'{glob}' matches constants only - add --constants to show them")
            plain = max(re.split(r"[*?\[\]]|\{[^}]*\}", glob), key=len) or glob
            hint = did_you_mean(plain, (value.name for value in shown), "`graphkit shapes` lists the names")
            raise UsageError(f"no tensor matches '{glob}' - {hint}")
        found.update(matched)
    return [value for value in shown if value in found]


def _names(value: Value) -> Iterator[str]:
    yield value.name
    if value.scope.path:
        yield f"{value.scope.path}::{value.name}"
    if value.producer is not None:
        yield value.producer.path


def _pattern(glob: str) -> Callable[[str], bool]:
    """Return whether a name matches a glob or is the same.

    Raises:
        UsageError: Its families stand for too many names.
    """
    if count_of(glob) > MAX_NAMES:
        raise UsageError(f"'{glob}' stands for {count_of(glob):,} names - write * for so many, {MAX_NAMES:,} at most")
    names = {glob, *expanded(glob)}
    regex = re.compile("|".join(fnmatch.translate(name) for name in names))
    return lambda name: name in names or regex.match(name) is not None
