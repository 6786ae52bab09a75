"""Roles of inputs and outputs: those of the real exports as text, and each kind of evidence in a small model."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import onnx
import onnx.parser
import pytest
from real_models import MODEL_NAMES

from graphkit.graph.names import family_labels
from graphkit.graph.roles import Roles
from graphkit.graph.types import declared_type
from graphkit.graph.view import Value
from graphkit.model import Model

RealModel = Callable[[str], Model]
EXPECTED = Path(__file__).with_name("roles.txt")


def axes(roles: Roles, value: Value) -> str:
    """Return what the axes of an input count, numbers as they are."""
    declared = declared_type(value)
    dims = (declared.dims if declared is not None else None) or ()
    return ", ".join(str(dim) if isinstance(dim, int) else roles.axis(value, at) for at, dim in enumerate(dims))


def line(roles: Roles, value: Value) -> str:
    """Return what an input is for: `past of self-attention, key, along 2 [batch, 8, past, 64]`."""
    role: str = roles.of(value)
    if (entry := roles.pasts.get(value)) is not None:
        attention = "cross" if roles.is_cross(entry) else "self"
        role += f" of {attention}-attention, {entry.slot.kind}, along {entry.axis}"
        role += "" if entry.present is not None else ", given by no output"
    role += " over past and new" if roles.spans_past(value) else ""
    return f"{role} [{axes(roles, value)}]"


def text(roles: Roles) -> str:
    """Return a line for each family of inputs and outputs of one role."""
    families: dict[str, list[str]] = {}
    for value in roles.inputs:
        families.setdefault(line(roles, value), []).append(value.name)
    for value, role in roles.outputs.items():
        given = "" if role != "present" or value not in roles.empty else ", empty once the past is read"
        families.setdefault(f"gives {role}{given}", []).append(value.name)
    return "".join(f"{family_labels(names)}: {what}\n" for what, names in families.items())


def expected() -> dict[str, str]:
    blocks = EXPECTED.read_text(encoding="utf-8").split("== ")[1:]
    return {name: found.strip() + "\n" for name, _, found in (block.partition("\n") for block in blocks)}


@pytest.mark.parametrize("name", MODEL_NAMES)
def test_the_roles_of_real_models(name: str, real_model: RealModel) -> None:
    assert text(real_model(name).roles) == expected()[name]
