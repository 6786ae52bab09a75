"""Parse the pass options that are more than a word or a number: sizes, shapes and bounds."""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping

from graphkit.errors import UsageError
from graphkit.shapes import Bounds

__all__ = ["Names", "Renames", "parse_bounds", "parse_shape", "parse_size", "read_option"]

Names = tuple[str, ...]
Renames = tuple[tuple[str, str], ...]  # (old name, new name)


def parse_size(text: str) -> int:
    """Return a size: `8`.

    Raises:
        UsageError: The text is something else.
    """
    if not (text.isascii() and text.isdigit() and len(text) < 19):
        raise UsageError(f"'{text}' is not a size - write a number of at least 0")
    return int(text)


def parse_shape(text: str) -> tuple[int, ...]:
    """Return a shape: `1x3x800x800`, `1,3,800,800` or `[1, 3, 800, 800]`; `[]` for a scalar.

    Raises:
        UsageError: The text is something else.
    """
    inner = text.strip()
    if inner.startswith("[") and inner.endswith("]"):
        inner = inner[1:-1].strip()
        if not inner:
            return ()
    return tuple(parse_size(part.strip()) for part in re.split("[x,]", inner))


def parse_bounds(text: str) -> Bounds:
    """Return bounds: `0:512`, `1:`, `:512`, or `8` for both.

    Raises:
        UsageError: The text is something else.
    """
    low, separator, high = text.partition(":")
    least = parse_size(low) if low or not separator else None
    most = parse_size(high) if high else None if separator else least
    if least is not None and most is not None and least > most:
        raise UsageError(f"'{text}' allows no size - write the smaller bound first")
    return least, most


def read_option(annotation: str, text: str) -> object:
    """Return an option of names, `name;...`, or of a type with values, `name=value;...`; None for other types.

    Raises:
        UsageError: The text cannot be parsed.
    """
    if annotation == "Names":
        return tuple(filter(None, (name.strip() for name in text.split(";"))))
    parse = VALUES.get(annotation)
    if parse is None:
        return None
    values: dict[str, tuple[object, ...]] = {}
    for item in filter(None, text.split(";")):
        name, separator, value = (part.strip() for part in item.rpartition("="))
        if not (separator and name and value):
            raise UsageError(f"'{item}' is not NAME=VALUE - write it as in batch_size=1;sequence_length=8")
        if name in values:
            raise UsageError(f"'{name}' is given twice - give it once")
        values[name] = parse(value)
    return tuple((name, *value) for name, value in values.items())


VALUES: Mapping[str, Callable[[str], tuple[object, ...]]] = {  # how the values of a type of option are read
    "Renames": lambda text: (text,),
    "SymbolSizes": lambda text: (parse_size(text),),
    "InputShapes": lambda text: (parse_shape(text),),
    "SymbolRanges": parse_bounds,
}
