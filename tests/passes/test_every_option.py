"""Every pass with each of its options, on models that ship with graphkit: onnxruntime loads what it makes."""

from __future__ import annotations

import contextlib
import dataclasses
from collections.abc import Iterator
from functools import cache
from pathlib import Path
from typing import Literal, get_args, get_origin, get_type_hints

import pytest

from graphkit.errors import GraphkitError, UsageError
from graphkit.examples import EXAMPLES
from graphkit.model import Model, load
from graphkit.passes import PASSES
from graphkit.rewrite.base import Pass
from graphkit.runtime.session import Session

NUMBERS = {int: (0, 1, 64), float: (0.0, 1.0)}
NAMED = {"specialize-input", "extract-subgraph", "static-kv-cache", "update-cache-in-place"}  # which need arguments


def variants(kind: type[Pass]) -> Iterator[Pass]:
    """Yield a pass with its defaults, and with each option that has a few values set to each of them."""
    yield (plain := kind())
    hints = get_type_hints(kind)
    for field in dataclasses.fields(kind):  # type: ignore[arg-type]
        hint = hints[field.name]
        values = get_args(hint) if get_origin(hint) is Literal else NUMBERS.get(hint, ())
        for value in (not getattr(plain, field.name),) if hint is bool else values:
            with contextlib.suppress(UsageError):  # a number that is none for this option
                yield dataclasses.replace(plain, **{field.name: value})  # type: ignore[type-var]


def test_the_passes_that_need_arguments_are_known() -> None:
    assert {kind.name() for kind in PASSES} >= NAMED


@cache
def example(name: str) -> Model:
    return load(f"example:{name}")


@pytest.mark.slow
@pytest.mark.parametrize("kind", [kind for kind in PASSES if kind.name() not in NAMED], ids=lambda kind: kind.name())
def test_onnxruntime_loads_what_a_pass_makes(kind: type[Pass], tmp_path: Path) -> None:
    """Of each choice of options the first example that it changes, which tells what all do; of the defaults, two."""
    for at, variant in enumerate(variants(kind)):
        changed = 0
        for name in EXAMPLES:
            try:
                made = variant.run(example(name)).model
            except GraphkitError:  # such as a version of the operator set that does not exist
                continue
            if made is not example(name):
                made.save(tmp_path / "made.onnx", overwrite=True)
                Session(tmp_path / "made.onnx", threads=1)
                changed += 1
            if changed == (1 if at else 2):
                break
