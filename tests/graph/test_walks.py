"""Walks of a graph: one path, or all that can be reached."""

from __future__ import annotations

from itertools import islice

from graphkit.graph.view import chain_end, follow_chain, walk_breadth_first, walk_postorder

FOLLOWING = {"a": ["b", "c"], "b": ["d", None], "c": ["d", "d"], "d": ["a"]}


def test_a_chain_ends_where_nothing_follows() -> None:
    assert list(follow_chain(3, lambda number: number - 1 or None)) == [3, 2, 1]
    assert chain_end(3, lambda number: number - 1 or None) == 1
    assert list(follow_chain(None, lambda number: number)) == []


def test_a_chain_that_is_a_circle_ends() -> None:
    assert list(follow_chain(0, lambda number: (number + 1) % 3)) == [0, 1, 2]


def test_what_is_reached_on_two_ways_comes_once_and_the_nearest_first() -> None:
    assert list(walk_breadth_first(["a", "a"], lambda item: FOLLOWING[item])) == ["a", "b", "c", "d"]


def test_in_postorder_each_comes_once_and_after_those_that_follow_it() -> None:
    assert list(walk_postorder(["a", "b"], lambda item: FOLLOWING[item])) == ["d", "b", "c", "a"]
    assert list(walk_postorder([0], lambda number: [number + 1] if number < 100_000 else ()))[::-1] == list(
        range(100_001)
    )


def test_a_walk_asks_for_what_follows_only_when_the_caller_goes_on() -> None:
    asked: list[int] = []

    def following(number: int) -> list[int]:
        asked.append(number)
        return [number + 1]

    assert list(islice(walk_breadth_first([0], following), 3)) == [0, 1, 2]
    assert asked == [0, 1]


def test_a_long_path_is_followed_to_its_end() -> None:
    assert chain_end(0, lambda number: number + 1 if number < 100_000 else None) == 100_000
