"""The contents of shape tensors as expressions in the input dims, such as `[batch_size, 8, sequence_length, 32]`."""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Iterable
from dataclasses import dataclass

from graphkit.graph.value_inputs import without_huge_numbers
from graphkit.graph.view import Value
from graphkit.shapes import Expr, Ratio, Shapes

__all__ = ["Meaning", "meaning", "meanings", "meanings_text"]

SHOWN = 3  # meanings of a group in a text
WIDTH = 120  # characters of a meaning in a text
UNKNOWN = re.compile(r"\?[0-9]+")


@dataclass(frozen=True)
class Meaning:
    """The elements that some shape tensors of a group share.

    Attributes:
        shape: The elements as expressions in the input dims, such as `[batch_size, -1, 8]`; `?` for an unknown one, and
            a single `?` if even their number is unknown.
        count: Number of consumers that read it.
        unknown: Why an element is unknown, "" if all are known.
    """

    shape: str
    count: int
    unknown: str = ""


def meanings(values: Iterable[Value], shapes: Shapes) -> tuple[Meaning, ...]:
    """Return the meanings of some shape tensors, the most frequent first, ties in order of first use."""
    found = Counter(meaning(value, shapes) for value in values)
    return tuple(Meaning(shape, count, why) for (shape, why), count in found.most_common())


def meaning(value: Value, shapes: Shapes) -> tuple[str, str]:
    """Return the elements of a shape tensor as text, and why some are unknown."""
    tensor = shapes[value]
    elements = tensor.elements
    if elements is None:
        return "?", _plain(tensor.reason or shapes.reason(value) or "its elements are not followed")
    texts = [_element(element, shapes) for element in elements]
    text = ", ".join(text for text, _ in texts)
    reasons = dict.fromkeys(reason for _, reason in texts if reason)
    return (text if tensor.rank == 0 else f"[{text}]"), "; ".join(reasons)


def _element(element: Expr | Ratio | float, shapes: Shapes) -> tuple[str, str]:
    expr = element.dividend if isinstance(element, Ratio) else element
    reason = shapes.reason(expr) if isinstance(expr, Expr) else ""
    return ("?", _without_names(reason)) if reason else (str(element), "")


def _without_names(reason: str) -> str:
    """Return reasons without the internal names of the unknowns that they explain."""
    parts = [part.partition(": ")[2] if part.startswith("?") else part for part in reason.split("; ")]
    return _plain("; ".join(dict.fromkeys(parts)))


def _plain(reason: str) -> str:
    return UNKNOWN.sub("?", reason)


def meanings_text(found: tuple[Meaning, ...], full: bool = False) -> str | None:
    """Return meanings in one line, shortened unless `full`: `= [batch_size, 8] (36x); [2, 8] (18x)`."""
    if not found:
        return None
    shown = found if full else found[:SHOWN]
    texts = [_text(one, full, len(found) > 1) for one in shown]
    more = f" and {len(found) - len(shown)} more" if len(shown) < len(found) else ""
    return f"= {'; '.join(texts)}{more}"


def _text(one: Meaning, full: bool, is_counted: bool) -> str:
    told = without_huge_numbers(one.shape)
    shape = told if full else _cut(told)
    reason = one.unknown if full else _cut(one.unknown)
    notes = ([f"{one.count}x"] if is_counted else []) + ([f"not known: {reason}"] if one.unknown else [])
    return shape + (f" ({'; '.join(notes)})" if notes else "")


def _cut(text: str) -> str:
    """Return a text without its end if it is too long, cut at a space so that no name is, if there is one."""
    if len(text) <= WIDTH:
        return text
    head, space, _ = text[: WIDTH - 3].rpartition(" ")
    return f"{head} ..." if space else f"{text[: WIDTH - 3]}..."
