"""The ruling of a target on a node: on its operator, or on those that it becomes in TFLite, where conditions hold."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from functools import lru_cache

from onnx import defs

from graphkit.dtypes import dtype_name
from graphkit.graph.attributes import T, attribute_value
from graphkit.graph.view import Node, Value
from graphkit.shapes import Shapes
from graphkit.targets import Condition, Fact, Target, Verdict, tflite_spellings
from graphkit.targets.target import ANYTHING, joint_verdict

__all__ = ["Ruling", "ruling"]

MAX_OPSET = 1 << 31  # what onnx counts them with


@dataclass(frozen=True)
class Ruling:
    """Whether a target takes an operator, and who says so."""

    verdict: Verdict
    reason: str


def ruling(node: Node, target: Target, shapes: Shapes) -> Ruling:
    """Return the ruling of a target on a node's operator."""
    if target.others:
        return _joint([(other.name, ruling(node, other, shapes)) for other in target.others])
    if target.tflite is not None and node.operator not in target.operators:
        return _by_tflite(node, target, shapes)
    fact = target.operators[node.operator]
    if fact is None:
        return Ruling("unknown", "no source says")
    return _by_fact(node, fact, shapes)


def _joint(rulings: Sequence[tuple[str, Ruling]]) -> Ruling:
    """Return the joint ruling of several targets, and which of them it comes from."""
    verdict = joint_verdict([said.verdict for _, said in rulings])
    names = ", ".join(name for name, said in rulings if said.verdict == verdict)
    return Ruling(verdict, f"not known for {names}" if verdict == "unknown" else names)


def _by_fact(node: Node, fact: Fact, shapes: Shapes) -> Ruling:
    note = f"{fact.note} ({fact.source.key})" if fact.note else fact.source.key
    if fact.condition == ANYTHING:
        return Ruling(fact.verdict, note)
    held = _holds(node, fact.condition, shapes)
    if held:
        return Ruling("allowed", note)
    if held is None:
        return Ruling("unknown", f"taken with {fact.condition} only, which is not known here ({fact.source.key})")
    if fact.otherwise == "unknown":
        return Ruling("unknown", f"surely taken with {fact.condition} only: {note}")
    return Ruling(fact.otherwise, f"taken with {fact.condition} only ({fact.source.key})")


def _by_tflite(node: Node, target: Target, shapes: Shapes) -> Ruling:
    assert target.tflite is not None
    spellings = tflite_spellings().get(node.operator, ())
    chosen = next((one for one in spellings if _holds(node, one.condition, shapes)), None)
    if chosen is None:
        return Ruling("unknown", "no source says what it becomes in TFLite")
    facts = [(name, target.tflite[name]) for name in chosen.becomes]
    refused = [(name, fact) for name, fact in facts if fact is not None and fact.verdict == "refused"]
    if refused:
        return Ruling("refused", f"becomes {_listed(refused)}: {refused[0][1].note} ({refused[0][1].source.key})")
    open_ = [name for name, fact in facts if fact is None or fact.verdict == "unknown"]
    if open_:
        return Ruling("unknown", f"becomes {', '.join(open_)}, of which no source says anything")
    return Ruling("allowed", f"becomes {', '.join(chosen.becomes) or 'nothing'}")


def _listed(facts: Sequence[tuple[str, Fact]]) -> str:
    return ", ".join(name for name, _ in facts)


def _holds(node: Node, condition: Condition, shapes: Shapes) -> bool | None:
    """Return whether a condition holds of a node, None where that is not known."""
    parts = [
        *(_is_constant(_named_input(node, name), shapes) for name in condition.constant),
        *(_has_attribute(node, name, value) for name, value in condition.attributes.items()),
        *(_is_filled_with(_named_input(node, name), value, shapes) for name, value in condition.values.items()),
        *(_comes_from(_named_input(node, name), op) for name, op in condition.producers.items()),
        *([_is_read_by(node, condition.readers)] if condition.readers else []),
        *([_has_dtype(node, condition.dtypes, shapes)] if condition.dtypes else []),
        *([_has_rank(node, condition.max_rank, shapes)] if condition.max_rank is not None else []),
    ]
    if False in parts:
        return False
    return None if None in parts else True


def _is_constant(value: Value | None, shapes: Shapes) -> bool:
    return value is None or value in shapes.model.shape_tensors.static


def _is_filled_with(value: Value | None, number: float, shapes: Shapes) -> bool:
    elements = None if value is None else shapes[value].elements
    return bool(elements) and all(element == number for element in elements or ())


def _comes_from(value: Value | None, op: str) -> bool:
    return value is not None and value.producer is not None and value.producer.operator == op


def _is_read_by(node: Node, op: str) -> bool:
    readers = [reader for value in node.outputs if value is not None for reader, _ in value.consumers]
    given = any(value in node.scope.outputs for value in node.outputs)
    return bool(readers) and not given and all(reader.operator == op for reader in readers)


def _has_dtype(node: Node, dtypes: Sequence[str], shapes: Shapes) -> bool | None:
    value = node.input(0)
    dtype = 0 if value is None else shapes[value].dtype
    return dtype_name(dtype) in dtypes if dtype else None


def _has_rank(node: Node, limit: int, shapes: Shapes) -> bool | None:
    ranks = [shapes[value].rank for value in (*node.inputs, *node.outputs) if value is not None]
    if any(rank is not None and rank > limit for rank in ranks):
        return False
    return None if None in ranks else True


def _named_input(node: Node, name: str) -> Value | None:
    """Return the input that the specification gives a name, the last one of several."""
    schema = _schema(node.op_type, node.scope.opset(node.domain), node.domain)
    names = [] if schema is None else [formal.name for formal in schema.inputs]
    return node.input(names.index(name)) if name in names else None


def _has_attribute(node: Node, name: str, value: str | float) -> bool:
    if isinstance(value, str):
        return _attribute(node, name, str) == value
    return (_attribute(node, name, int) if isinstance(value, int) else _attribute(node, name, float)) == value


def _attribute(node: Node, name: str, kind: type[T]) -> T | None:
    """Return the value of an attribute, its default where it is not given; None where it is of another kind."""
    if name in node.attributes:
        return node.attr(name, kind)
    schema = _schema(node.op_type, node.scope.opset(node.domain), node.domain)
    formal = None if schema is None else schema.attributes.get(name)
    return None if formal is None else attribute_value(formal.default_value, kind)


@lru_cache(maxsize=256)
def _schema(op: str, opset: int, domain: str) -> defs.OpSchema | None:
    known = 0 < opset < MAX_OPSET and defs.has(op, opset, domain)
    return defs.get_schema(op, opset, domain) if known else None
