from __future__ import annotations

import click
import pytest

from graphkit.cli import COMMANDS
from graphkit.cli.options import SizeWords
from graphkit.errors import UsageError
from graphkit.shapes import AS_DECLARED, DimSpec

OWN = {
    ("bundle", "batch"),
    ("compare", "tolerance"),
    ("contract", "language"),
    ("lower", "target"),
    ("report", "format"),
    ("split-merged", "tolerance"),
}  # what means something else there


def test_an_option_of_several_commands_is_the_same_in_each() -> None:
    found: dict[str, set[tuple[object, ...]]] = {}
    for command in COMMANDS:
        for option in command.params:
            name = str(option.name)
            if isinstance(option, click.Option) and name != "output" and (command.name, name) not in OWN:
                kind = (*option.opts, option.metavar, option.default, option.help)
                found.setdefault(name, set()).add(kind)
    assert {name for name, kinds in found.items() if len(kinds) > 1} == set()
    assert {"dim", "input", "range", "timeout", "memory", "weights", "overwrite", "no_verify"} <= found.keys()


def test_sizes_are_read_as_one_spec() -> None:
    words = SizeWords(("a=b=1", "n=8"), ("x=1x3",), ("m=:5", "k=2:"))
    ranges = {"m": (None, 5), "k": (2, None)}
    assert words.read() == DimSpec.of({"a=b": 1, "n": 8}, {"x": (1, 3)}, ranges)
    assert SizeWords((), (), ()).read() == AS_DECLARED


def test_bounds_that_are_none_name_the_option() -> None:
    with pytest.raises(UsageError, match=r"^--range: '3:2' allows no size - write the smaller bound first$"):
        SizeWords((), (), ("n=3:2",)).read()
