"""Take the encoder out of a decoder's first step that has it inside, as a model of its own."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

import networkx as nx

from graphkit.equivalence.result import GRADES
from graphkit.equivalence.stages import Stage, prove_stages
from graphkit.errors import UsageError
from graphkit.graph.operator_traits import MEASURING
from graphkit.graph.roles import Role
from graphkit.graph.view import Value, walk_breadth_first
from graphkit.model import Model
from graphkit.passes.npu.cache_interface import FLOAT_TYPES
from graphkit.rewrite import Editor, NewNode
from graphkit.rewrite.new_interface import NewInput, drop_dead_inputs, with_inputs, with_outputs
from graphkit.shapes import infer

STATES, READS = "last_hidden_state", "encoder_hidden_states"


def take_encoder_apart(first: Model, sources: Sequence[Role]) -> tuple[Model, Model]:
    """Return the encoder in a first step, and what is left of that, which reads the encoder's states.

    The states are the last value [batch, length, width] through which all goes that the decoder and its caches get of
    the source, but for its shape and its mask. One model behind the other is proven to be the first step bit for bit,
    or refused. `sources` are the roles of what an encoder reads.
    """
    source, states = first.roles.all(*sources)[0], _find_states(first, sources)
    hint = f"export the encoder beside it as encoder.onnx, or bundle {first.name} as it is"
    if states is None:
        raise UsageError(
            f"{first.name}: it has the encoder in it, and no one value [batch, length, width] is all that its decoder "
            f"reads of it - {hint}"
        )
    tensor, dims = infer(first)[states], infer(first)[source].dims or ()
    assert tensor.dims is not None
    encoder = with_outputs(first, [(states.name, NewInput(STATES, tensor.dtype, tensor.dims))])
    rest = with_inputs(first, {states: NewInput(READS, tensor.dtype, tensor.dims)})
    editor = Editor(rest)
    for node, _ in rest.graph.values[source.name].consumers if dims[:2] == tensor.dims[:2] else ():
        if node.is_op("Shape") and node.scope is rest.graph:  # which the states tell as well
            start, end = node.attr("start", 0), node.attr("end", len(dims))
            if start is not None and end is not None and 0 <= start <= end <= 2:
                kept = {"start": start, "end": end}
                editor.replace(node, NewNode("Shape", [READS], [node.result().name], kept, like=node))
    rest = drop_dead_inputs(editor.result())
    (proof,) = prove_stages([Stage("rest", "encoder apart", first, rest, stands_for={READS: states.name})])
    if not proof.is_proven or set(proof.proven.values()) != {GRADES[0]}:
        why = proof.unproven or "it is equal in exact arithmetic alone"
        raise UsageError(f"{first.name}: its encoder is not proven to be one by itself: {why} - {hint}")
    return encoder, rest


def _find_states(first: Model, sources: Sequence[Role]) -> Value | None:
    """Return the last value through which all goes that the decoder and the outputs get of the source."""
    roles, shapes = first.roles, infer(first)
    given, tokens = roles.all(*sources), roles.all("tokens", "embeddings")

    def made_of(value: Value) -> Iterator[Value | None]:
        return (out for node, _ in value.consumers if not node.is_op(*MEASURING) for out in node.outputs)

    decoded, encoded = set(walk_breadth_first(tokens, made_of)), set(walk_breadth_first(given, made_of))
    flow: nx.DiGraph[Value | str] = nx.DiGraph()
    begin, end = "begin", "end"
    flow.add_edges_from((begin, value) for value in given)
    for value in encoded - decoded:
        if value in first.graph.outputs:
            flow.add_edge(value, end)
        for out in filter(None, made_of(value)):
            flow.add_edge(value, end if out in decoded else out)
    if end not in flow:
        return None
    before = nx.immediate_dominators(flow, begin)
    gate = before[end]
    while isinstance(gate, Value):
        if shapes[gate].dtype in FLOAT_TYPES and len(shapes[gate].dims or ()) == 3:
            return gate
        gate = before[gate]
    return None
