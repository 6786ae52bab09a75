"""Values that a host can compute: those that depend on positions, lengths and masks alone, and on no data.

The position embeddings, rotary tables, relative-position biases and masks of a decoder are functions of how many tokens
came before; those of an encoder, of how many of its tokens are valid. Where such a value meets data (activations, a
cache), it can be an input of the model instead. What must not happen is that it becomes a constant because a length was
given a number.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping

from msgspec import Struct
from onnx import TensorProto

from graphkit.graph.declared_types import declared_type
from graphkit.graph.operator_traits import MEASURING, RANDOM, value_inputs
from graphkit.graph.roles import MASKS, Role, Roles
from graphkit.graph.view import Node, Value
from graphkit.model import Model
from graphkit.ops.tensor import is_known
from graphkit.shapes import Expr, Shapes

QUANTISED = (TensorProto.INT8, TensorProto.UINT8, TensorProto.INT4, TensorProto.UINT4)
OF_HOST: tuple[Role, ...] = ("tokens", "encoder tokens", "positions", "token types", *MASKS)  # inputs that a host makes


class Dependence(Struct, frozen=True):
    """The inputs that a value is computed from."""

    data: bool = False  # whether it depends on activations, a cache or other floating-point inputs
    # the integer and boolean inputs whose elements it depends on: masks, positions, token ids
    inputs: frozenset[str] = frozenset()
    symbols: frozenset[str] = frozenset()  # the dims that it depends on

    def __or__(self, other: Dependence) -> Dependence:
        return Dependence(self.data or other.data, self.inputs | other.inputs, self.symbols | other.symbols)


class HostValue(Struct, frozen=True):
    """A value that depends on no data, where it meets data."""

    value: Value
    dependence: Dependence
    uses: tuple[tuple[Node, int], ...]  # the nodes that depend on data, and which input of theirs it is


CONSTANT, DATA = Dependence(), Dependence(data=True)


def find_dependences(
    model: Model, shapes: Shapes, *, kept: Collection[str] | None = None
) -> Mapping[Value, Dependence]:
    """Return which inputs each value of the main graph is computed from.

    What a node with bodies gives, what is random and what no rule knows counts as data. For a host so do integers that
    only the caller knows: a state, a speaker, a length that is fed, and tokens and masks that are kept. Nobody asks for
    a host where `kept` is None.
    """
    known: dict[Value, Dependence] = {}
    for value in model.graph.inputs:
        role = model.roles.of(value)
        is_unknown = kept is not None and (role not in OF_HOST or value.name in kept)
        known[value] = DATA if is_unknown else _of_input(value, model.roles)
    for node in model.graph.nodes:
        dependence = CONSTANT
        if node.bodies or node.operator in RANDOM:
            dependence = DATA
        elif node.operator in MEASURING:
            dims, elements = shapes.dims(node.input(0)), shapes[node.outputs[0]].data
            if elements is not None:
                dims = tuple(element for element in elements.ravel() if isinstance(element, Expr))
            symbols = frozenset().union(*(dim.symbols for dim in dims or ()))
            dependence = DATA if dims is None else Dependence(symbols=symbols)
            if not all(map(is_known, dims or ())):  # as how many elements are not 0
                dependence |= known.get(node.operand(0), CONSTANT)
        else:
            for value in node.operands:
                dependence |= known.get(value, CONSTANT)
        known.update((value, dependence) for value in node.results)
    return known


def host_values(
    model: Model, shapes: Shapes, frozen: frozenset[str], kept: Collection[str] = ()
) -> tuple[HostValue, ...]:
    """Return the values without data that meet data, and that a number for each frozen dim does not make constant.

    A frozen dim may become a number without changing what the model computes at run time: the batch, the number of new
    tokens, the length of a padded source. What bodies read counts as data, and so do inputs that are kept.
    """
    known = find_dependences(model, shapes, kept=kept)
    uses: dict[Value, list[tuple[Node, int]]] = {}
    for node in model.graph.nodes:
        if not any(known[value].data for value in node.results) or node.operator in MEASURING:
            continue
        read = value_inputs(node)
        for index, value in enumerate(node.inputs):
            fact = known.get(value, CONSTANT) if value is not None else DATA
            if value is not None and index not in read and not fact.data and (fact.inputs or fact.symbols - frozen):
                uses.setdefault(value, []).append((node, index))
    return tuple(HostValue(value, known[value], tuple(places)) for value, places in uses.items())


def _of_input(value: Value, roles: Roles) -> Dependence:
    """Return the kind of an input: data where it holds floats or 8-bit numbers, as quantised rows and pixels do.

    A mask [batch, length] of floats is none, where it is known which of its elements hide.
    """
    if value.tensor is not None or value.sparse is not None:
        return DATA  # an input with a default: anything may be fed
    declared, is_mask = declared_type(value), roles.of(value) in MASKS
    if declared is not None and declared.is_float:
        is_mask = is_mask and declared.rank == 2 and roles.polarities[value] is not None
    if declared is None or ((declared.is_float or declared.dtype in QUANTISED) and not is_mask):
        return DATA
    return Dependence(inputs=frozenset((value.name,)))
