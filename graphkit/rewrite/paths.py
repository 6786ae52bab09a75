"""Follow nodes up and down a graph, operator by operator, as a pattern prescribes."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence

from graphkit.graph.view import Node, Value
from graphkit.shapes.tensor import Dims

__all__ = [
    "DimsOf", "Step", "biases", "climb", "computed_from", "follow", "follow_all", "is_static", "onwards", "output_of",
    "readers",
]  # fmt: skip

DimsOf = Callable[[Value], Dims | None]  # the dims of a value, None where its rank is not known
Step = tuple[int | str | None, ...]  # which input, None for whichever it is; then the operators that may give it


def output_of(node: Node) -> Value:
    """Return the first output of a node, which another node of a pattern reads."""
    out = node.outputs[0]
    assert out is not None
    return out


def climb(node: Node, *path: Step) -> list[Node] | None:
    """Follow inputs to their producers: (index, operators...) for each step, None for whichever input it is."""
    found: list[Node] = []
    for index, *operators in path:
        candidates = node.inputs if index is None else [node.input(int(index))]
        makers = [value.producer for value in candidates if value is not None]
        here = [maker for maker in makers if maker is not None and maker.is_op(*map(str, operators))]
        if not here:
            return None
        node = here[0]
        found.append(node)
    return found


def computed_from(node: Node, is_end: Callable[[Node, Value], bool], most: int) -> list[Node] | None:
    """Return a node and all that it is computed from, up to some inputs and constants.

    Returns:
        None where there are more nodes than `most`, one with a body, or one that reads anything else of another scope,
        or that no node gives.
    """
    found: dict[Node, None] = {}
    pending = [node]
    while pending:
        node = pending.pop()
        if node in found:
            continue
        found[node] = None
        if node.bodies or len(found) > most:
            return None
        for value in node.inputs:
            if value is None or value.is_constant or is_end(node, value):
                continue
            if value.producer is None or value.scope is not node.scope:
                return None
            pending.append(value.producer)
    return list(found)


def readers(node: Node) -> list[Node]:
    """Return the nodes that read a node's first output."""
    out = node.outputs[0] if node.outputs else None
    return [consumer for consumer, _ in out.consumers] if out is not None else []


def follow(node: Node, operator: str) -> Node | None:
    """Return the only reader of a node, Shapes apart, where it is of this operator."""
    found = [reader for reader in readers(node) if not reader.is_op("Shape")]
    return found[0] if len(found) == 1 and found[0].is_op(operator) else None


def follow_all(node: Node, *operators: str) -> list[Node] | None:
    """Follow only readers of these operators, one after the other."""
    found = [node]
    for operator in operators:
        after = follow(found[-1], operator)
        if after is None:
            return None
        found.append(after)
    return found[1:]


def onwards(nodes: Sequence[Node], *operators: str) -> list[Node]:
    """Return the readers of nodes that are of these operators, and their readers likewise."""
    found: dict[Node, None] = {}
    pending = list(nodes)
    while pending:
        after = [reader for reader in readers(pending.pop()) if reader.is_op(*operators) and reader not in found]
        found.update(dict.fromkeys(after))
        pending += after
    return list(found)


def biases(path: Sequence[Node] | None) -> Iterator[Node]:
    """Give the last node of a path where it adds a constant vector."""
    if path and any(value is not None and _is_vector(value) for value in path[-1].inputs):
        yield path[-1]


def _is_vector(value: Value) -> bool:
    tensor = value.constant
    return tensor is not None and len(tensor.dims) == 1


def is_static(nodes: Sequence[Node], dims_of: DimsOf) -> bool:
    """Whether all Shapes among nodes are of tensors whose dims are numbers."""
    taken = [dims_of(value) for node in nodes if node.is_op("Shape") and (value := node.input(0)) is not None]
    return all(dims is not None and all(dim.constant is not None for dim in dims) for dims in taken)
