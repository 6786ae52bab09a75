"""Walk a graph from value to value or node to node: along one path, or to all that can be reached.

No walk needs a limit of its own: each item is met once, so that a walk ends with the graph, also in a broken model
whose nodes form a circle.
"""

from __future__ import annotations

from collections.abc import Callable, Hashable, Iterable, Iterator
from typing import TypeVar

T = TypeVar("T", bound=Hashable)


def follow_chain(start: T | None, following: Callable[[T], T | None]) -> Iterator[T]:
    """Yield an item, the one that follows it, and so on, until none follows.

    `following` is called for an item only when the caller asks for the next one.
    """
    met: set[T] = set()
    while start is not None and start not in met:
        met.add(start)
        yield start
        start = following(start)


def chain_end(start: T, following: Callable[[T], T | None]) -> T:
    """Return the last item of a chain."""
    *_, end = follow_chain(start, following)
    return end


def walk_breadth_first(starts: Iterable[T], following: Callable[[T], Iterable[T | None]]) -> Iterator[T]:
    """Yield items and all that follow them, breadth first, each once; None is left out.

    `following` is called for an item only when the caller asks for the next one.
    """
    queue = list(dict.fromkeys(starts))
    met = set(queue)
    for item in queue:
        yield item
        unmet = dict.fromkeys(each for each in following(item) if each is not None and each not in met)
        met.update(unmet)
        queue += unmet


def walk_postorder(starts: Iterable[T], following: Callable[[T], Iterable[T | None]]) -> Iterator[T]:
    """Yield items and all that follow them, depth first, each once and after those that follow it; None is left out."""
    met: set[T] = set()
    pending = [(item, False) for item in reversed(list(starts))]
    while pending:
        item, is_followed = pending.pop()
        if is_followed:
            yield item
        elif item not in met:
            met.add(item)
            pending.append((item, True))
            pending += [(each, False) for each in reversed(list(following(item))) if each is not None]


def connected_groups(items: Iterable[T], neighbours: Callable[[T], Iterable[T | None]]) -> Iterator[list[T]]:
    """Yield groups of connected items, each in the order of all; neighbours that are none of the items do not count."""
    order = {item: place for place, item in enumerate(items)}
    met: set[T] = set()
    for start in order:
        if start not in met:
            near = walk_breadth_first(
                [start], lambda item: (x for x in neighbours(item) if x in order and x not in met)
            )
            group = list(near)
            met.update(group)
            yield sorted(group, key=order.__getitem__)
