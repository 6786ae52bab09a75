"""Changes of operators from one version of the operator set to the next, by the schemas of onnx.

A step is plain where the newer operator takes every node of the older one, with the same meaning: more dtypes, and
optional inputs and attributes at the end. All steps up to `NEWEST` were read; `adapters.ADAPTERS` has those that need
more than the schemas say.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from functools import lru_cache

import onnx.defs
from onnx.defs import OpSchema

__all__ = ["NEWEST", "Step", "steps"]

NEWEST = 24  # the newest version whose steps were read
ALWAYS = frozenset({"LayerNormalization", "SimplifiedLayerNormalization"})  # onnxruntime's own in every older version
OPTIONAL = OpSchema.FormalParameterOption.Optional
Formals = Sequence[OpSchema.FormalParameter]


@dataclass(frozen=True)
class Step:
    """A version of an operator set in which an operator changed.

    Attributes:
        since: The version.
        obstacle: Why a node cannot be taken over as it stands, "" where the step is plain.
    """

    since: int
    obstacle: str


@lru_cache(maxsize=4096)
def steps(op_type: str, old: int, new: int) -> tuple[Step, ...] | None:
    """Return the steps of an operator of the default domain between two versions, None if onnx does not know it."""
    before = _schema(op_type, old)
    if before is None:
        return () if op_type in ALWAYS else None
    found = []
    for version in range(old + 1, new + 1):
        after = _schema(op_type, version)
        if after is not None and after.since_version == version:
            found.append(Step(version, _obstacle(before, after)))
            before = after
    return tuple(found)


def _schema(op_type: str, version: int) -> OpSchema | None:
    try:
        return onnx.defs.get_schema(op_type, version, "")
    except onnx.defs.SchemaError:
        return None


def _obstacle(before: OpSchema, after: OpSchema) -> str:
    if after.deprecated:
        return "is no operator any more"
    for name, attribute in before.attributes.items():
        now = after.attributes.get(name)
        if now is None:
            return f"has no attribute '{name}' any more"
        if now.type != attribute.type or now.required > attribute.required:
            return f"has another attribute '{name}'"
        if attribute.default_value != now.default_value and not attribute.required:
            return f"has another default of its attribute '{name}'"
    added = [name for name in after.attributes if name not in before.attributes and after.attributes[name].required]
    if added:
        return f"needs an attribute '{added[0]}'"
    return _formal_obstacle(before.inputs, after.inputs, "input") or _formal_obstacle(
        before.outputs, after.outputs, "output"
    )


def _formal_obstacle(before: Formals, after: Formals, what: str) -> str:
    """Return which input or output is another one, "" for none."""
    if len(after) < len(before):
        return f"has fewer {what}s"
    for old, new in zip(before, after, strict=False):
        is_wider = new.option == old.option or new.option == OPTIONAL
        if old.name != new.name or not is_wider or not old.types <= new.types:
            return f"has another {what} '{new.name}'"
    added = [new.name for new in after[len(before) :] if new.option != OPTIONAL]
    return f"needs another {what} '{added[0]}'" if added else ""
