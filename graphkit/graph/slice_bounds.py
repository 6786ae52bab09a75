"""Bounds of a Slice: which of them mean "to the end"."""

from __future__ import annotations

import re

__all__ = ["INT32_MAX", "INT64_MAX", "is_to_the_end", "without_huge_numbers"]

INT32_MAX = (1 << 31) - 1
INT64_MAX = (1 << 63) - 1


HUGE = re.compile(rf"(?<![\w.])(-?)(?:{INT64_MAX}|{INT64_MAX + 1}|{INT32_MAX}|{INT32_MAX + 1})(?![\w.])")


def without_huge_numbers(text: str) -> str:
    """Return a text for people in which the numbers that stand for no bound are words: `[unbounded]`."""
    return HUGE.sub(r"\1unbounded", text)


def is_to_the_end(bound: int | None) -> bool:
    """Whether an end lies behind every axis: exporters write INT32_MAX or INT64_MAX, and no dim is that large."""
    return bound is not None and bound >= INT32_MAX
