"""Faults of bodies that keep a model from being loaded or run as it says, though its terms are those of the original.

onnxruntime loads many a model that ONNX does not allow, and then reads memory that nothing was written to, or takes a
value of the graph around for one of the same name in a body.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator

from onnx import TensorProto

from graphkit.graph.declared_types import declared_type
from graphkit.graph.view import Node, Scope
from graphkit.verify.equivalence.movement import count_elements
from graphkit.verify.equivalence.reading import Reading
from graphkit.verify.equivalence.terms import Term

__all__ = ["branch_faults"]


def branch_faults(original: Reading, rewritten: Reading) -> Iterator[str]:
    """Yield the faults of each If that the rewritten model reads."""
    for reading in (original, rewritten):
        yield from _shadowing_initializers(reading.model.graph)
        yield from _output_faults(reading)
    yield from _undeclared_counters(original, rewritten)
    conditions = {original.values[node.inputs[0]] for node in _if_nodes(original) if node.inputs and node.inputs[0]}
    for node in _if_nodes(rewritten):
        condition = node.inputs[0] if node.inputs else None
        term = None if condition is None else rewritten.values[condition]
        if len(node.inputs) != 1 or term is None or not _is_one_bool(term, term in conditions):
            yield f"the condition of {node.path} is not one bool"
        for name, body in node.bodies.items():
            yield from (f"{name} of {node.path} {fault}" for fault in _body_faults(node, body))
        if any(len(set(dtypes)) > 1 for dtypes in _branch_dtypes(rewritten, node)):
            yield f"the branches of {node.path} give other dtypes"


def _shadowing_initializers(scope: Scope) -> Iterator[str]:
    """Yield the initializers of bodies that have the name of a value around, which a node may read in their place."""
    for body in scope.walk():
        around = body.parent
        while around is not None:
            for name in body.values.keys() & around.values.keys():
                if body.values[name].kind == "initializer":
                    yield f"'{name}', an initializer of {body.path}, has the name of a value around it"
            around = around.parent


def _output_faults(reading: Reading) -> Iterator[str]:
    """Yield what bodies give twice, and inputs that they give as they are, where onnxruntime does not copy them.

    Nothing is written for what a Scan gives so, and a Loop counts up where its counter stands.
    """
    for node in reading.nodes:
        for name, body in node.bodies.items() if node.is_op("If", "Scan") else ():
            twice = [value.name for value, times in Counter(body.outputs).items() if times > 1]
            yield from (f"{name} of {node.path} gives '{value}' twice" for value in twice)
        for name, body in node.bodies.items() if node.is_op("Loop", "Scan") else ():
            shared = {*(body.inputs if node.is_op("Scan") else body.inputs[:1])}
            inputs = [value.name for value in body.outputs if value in shared]
            yield from (f"{name} of {node.path} gives its input '{value}' as it is" for value in inputs)


def _undeclared_counters(original: Reading, rewritten: Reading) -> Iterator[str]:
    """Yield the counters and conditions of Loops without declared dims, where all those of the original have them."""
    known = {index for _, index in _without_dims(original)}
    for body, index in _without_dims(rewritten):
        if index not in known:
            yield f"'{body.inputs[index].name}' of {body.path} has no declared dims, which onnxruntime asks for"


def _without_dims(reading: Reading) -> Iterator[tuple[Scope, int]]:
    loops = [node for node in reading.nodes if node.is_op("Loop")]
    for body in (body for node in loops for body in node.bodies.values()):
        for index, value in enumerate(body.inputs[:2]):
            declared = declared_type(value)
            if declared is None or declared.dims is None:
                yield body, index


def _if_nodes(reading: Reading) -> list[Node]:
    return [node for node in reading.nodes if node.is_op("If")]


def _is_one_bool(term: Term, is_known: bool) -> bool:
    """Whether a condition is one bool; of how many elements one is that the original has too does not matter."""
    is_one = is_known or (term.dims is not None and count_elements(term.dims) == 1)
    return is_one and term.dtype == TensorProto.BOOL


def _body_faults(node: Node, body: Scope) -> Iterator[str]:
    if body.inputs:
        yield "has inputs"
    if len(body.outputs) != len(node.proto.output):
        yield f"has {len(body.outputs)} outputs, not {len(node.proto.output)}"
    yield from (f"gives '{value.name}' of the graph around" for value in body.outputs if value.scope is not body)


def _branch_dtypes(reading: Reading, node: Node) -> Iterator[list[int]]:
    """Yield the known dtypes of each output in the branches that are read."""
    for values in zip(*(body.outputs for body in node.bodies.values()), strict=False):
        terms = [reading.values[value] for value in values if value in reading.values]
        yield [term.dtype for term in terms if term.dtype]
