"""Make values that depend on positions, lengths and masks alone inputs: the host computes or looks them up."""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar

from graphkit.graph.names import free_name, names_in
from graphkit.graph.view import Node
from graphkit.graph.walk import chain
from graphkit.model import Model
from graphkit.passes.npu.scores import readers
from graphkit.rewrite.base import Declined, Matched, Pass
from graphkit.rewrite.host_values import HostValue, host_values
from graphkit.rewrite.new_interface import NewInput, drop_dead_inputs, with_inputs
from graphkit.shapes import Shapes, infer

__all__ = ["ExtractHostValues", "HostInput", "freezable_symbols"]

ELEMENTWISE_TO_SOFTMAX = ("Add", "Mul", "Div", "Sub", "Reshape", "Transpose", "Cast", "Concat")


@dataclass(frozen=True, slots=True)
class HostInput:
    """A value that becomes an input.

    Attributes:
        source: The value, its sources, and where it meets data.
        declared: The input that takes its place.
        is_mask: Whether it is added to the scores of an attention.
    """

    source: HostValue
    declared: NewInput
    is_mask: bool

    @property
    def name(self) -> str:
        """The name of the input."""
        return self.declared.name


@dataclass(frozen=True)
class ExtractHostValues(Pass):
    """Make values that depend on positions, lengths and masks alone, and meet data, inputs of the model.

    Position embeddings, rotary tables, biases of relative positions and additive masks are functions of how many tokens
    came before, or of which are valid. A length that is frozen later would make them constants, which are right at
    one step only.

    Legality: the value depends on no floating-point input, and varies with the elements of an integer input or with the
    length of the cache. Shapes stay: they are constants once the dims are numbers.

    Before:

        agraph (float[N, L] x, int64[N, L] mask) => (float[N, L] y) <float[1] floor = {-100}, int64[1] one = {1}> {
            m = Sub (one, mask)
            f = Cast <to = 1> (m)
            bias = Mul (f, floor)
            s = Add (x, bias)
            y = Softmax (s)
        }

    After:

        agraph (float[N, L] x, float[N, L] attention_bias) => (float[N, L] y) {
            s = Add (x, attention_bias)
            y = Softmax (s)
        }
    """

    changes_interface: ClassVar[bool] = True

    def run(self, model: Model) -> Matched[HostInput]:
        shapes = infer(model)
        declined: list[Declined] = []
        found = _host_inputs(model, shapes, declined)
        replaced = {host_input.source.value: host_input.declared for host_input in found}
        if not replaced:
            return Matched(model, declined=tuple(declined))
        changes = tuple(f"'{value.name}' is an input, '{declared.name}'" for value, declared in replaced.items())
        return Matched(drop_dead_inputs(with_inputs(model, replaced)), changes, tuple(declined), found)


def _host_inputs(model: Model, shapes: Shapes, declined: list[Declined]) -> tuple[HostInput, ...]:
    """Return the values that would become inputs, in node order; others are declined with their reasons."""
    names = names_in(model.scopes)
    found = []
    for source in host_values(model, shapes, freezable_symbols(model, shapes)):
        value = source.value
        dims, dtype = shapes[value].dims, shapes[value].dtype
        if dims is None or not dtype:
            declined.append(Declined(value.name, f"its type is not known: {shapes.reason(value)}"))
            continue
        is_mask = any(_reaches_softmax(node, index) for node, index in source.uses)
        name = free_name("attention_bias" if is_mask else "position_values", names)
        names.add(name)
        found.append(HostInput(source, NewInput(name, dtype, dims, f"'{value.name}' of the original"), is_mask))
    return tuple(found)


def freezable_symbols(model: Model, shapes: Shapes) -> frozenset[str]:
    """Return the dims of the inputs that may become numbers: all but the length of a growing cache, and of its masks.

    A cache that does not grow (of cross-attention) is as long as the source.
    """
    growing: set[str] = set()
    others: set[str] = set()
    for value in model.roles.inputs:
        for axis, dim in enumerate(shapes[value].dims or ()):
            counts = model.roles.axis(value, axis)
            grows = counts == "past" or (counts == "total" and bool(model.roles.pasts))
            (growing if grows else others).update(dim.symbols)
    return frozenset(others - growing)


def _reaches_softmax(node: Node, index: int) -> bool:
    return any(reader.is_op("Softmax") for reader, _ in chain((node, index), _next_reader))


def _next_reader(use: tuple[Node, int]) -> tuple[Node, int] | None:
    """Return the only reader of an elementwise node's output, which may be on the way to a Softmax."""
    node, index = use
    out = node.outputs[0] if node.outputs else None
    found = readers(out) if out is not None else ()
    if not node.is_op(*ELEMENTWISE_TO_SOFTMAX) or len(found) != 1 or (node.is_op("Sub", "Div") and index > 0):
        return None
    return found[0]
