"""The graph of a model as the data of a page: nodes and values by number, with shapes and their sources."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field

from graphkit.analysis.costs.cost_table import Costs
from graphkit.analysis.costs.peak_memory import PeakMemory
from graphkit.analysis.page_memory import page_memory
from graphkit.analysis.page_sizes import PageSizes
from graphkit.dtypes import dtype_name
from graphkit.graph.attribute_text import attribute_text, values_text
from graphkit.graph.declared_types import shape_text
from graphkit.graph.names import module_of
from graphkit.graph.view import Node, Scope, Value, all_scopes, as_text
from graphkit.io.tensors import payload_size
from graphkit.shapes import Shapes
from graphkit.shapes.tensor import plain_dims

__all__ = ["page_graph"]

NONE = -1  # the number of an input that is left out


@dataclass
class _Texts:
    """Texts that occur often, each with a number."""

    numbers: dict[str, int] = field(default_factory=dict)

    def number(self, text: str) -> int:
        """Return the number of a text."""
        return self.numbers.setdefault(text, len(self.numbers))


def page_graph(
    shapes: Shapes,
    costs: Costs | None = None,
    at: PageSizes | None = None,
    runs: Sequence[Mapping[str, int]] = (),
) -> dict[str, object]:
    """Return the graph of a model as plain lists, which `render/page/graph.mjs` reads.

    Args:
        shapes: The inferred shapes of the model.
        costs: The costs that the page shows, if it does.
        at: The sizes of a page without costs, where others than the typical ones are of interest.
        runs: Further runs whose peak memory the page shows, each by the sizes that it keeps.

    Returns:
        `model`: the name of the model.
        `texts`: texts that occur often; operators, modules, types and attributes are numbers of these.
        `scopes`: path and number of the owning node of each graph.
        `nodes`: label, scope, operator, module, attributes (name and value in turns), inputs, outputs.
        `values`: name, scope, kind, type with shape, bytes of a weight, what its shape comes from, why it is unknown.
        `constants`: the elements of small constants, by the number of the value.
        `numbers`: the dims at the sizes of the page, by the number of a type with symbolic ones.
        `costs`: number of a node, MACs, operations and bytes moved, each a number of `formulas`.
        `formulas`: expressions in the sizes, and what they come to.
        `sizes`: see `PageSizes`.
        `memory`: see `page_memory`: at the sizes of the page, and of each further run.
    """
    at = at or PageSizes.of(shapes, costs)
    scopes = list(all_scopes(shapes.model.scopes))
    nodes = [node for scope in scopes for node in scope.nodes]
    values = [value for scope in scopes for value in scope.values.values()]
    texts = _Texts()
    scope_numbers = {scope: number for number, scope in enumerate(scopes)}
    node_numbers = {node: number for number, node in enumerate(nodes)}
    value_numbers = {value: number for number, value in enumerate(values)}
    dims, formulas = dict[int, list[int | None]](), dict[tuple[str, int], int]()
    return {
        "model": shapes.model.label if costs is None else costs.model,
        "scopes": [[scope.path, NONE if scope.owner is None else node_numbers[scope.owner]] for scope in scopes],
        "nodes": [_node(node, scope_numbers, value_numbers, texts) for node in nodes],
        "values": [_value(shapes, value, scope_numbers, value_numbers, texts, at, dims) for value in values],
        "constants": {
            value_numbers[value]: texts.number(text)
            for value in values
            if value.constant is not None and (text := values_text(value.constant))
        },
        "inputs": [[value_numbers[value] for value in scope.inputs] for scope in scopes],
        "outputs": [[value_numbers[value] for value in scope.outputs] for scope in scopes],
        "texts": list(texts.numbers),
        "numbers": dims,
        "costs": [
            [node_numbers[node], *(NONE if cell is None else formulas.setdefault(cell, len(formulas)) for cell in row)]
            for node, row in at.costs().items()
            if any(cell is not None and cell[1] for cell in row)
        ],
        "formulas": [[text, str(value)] for text, value in formulas],
        "sizes": at.document(),
        "memory": page_memory(PeakMemory(shapes), at.sizes, runs, node_numbers, value_numbers),
    }


def _node(node: Node, scopes: Mapping[Scope, int], values: Mapping[Value, int], texts: _Texts) -> list[object]:
    attributes = ((as_text(attribute.name), attribute_text(attribute)) for attribute in node.proto.attribute)
    return [
        node.label,
        scopes[node.scope],
        texts.number(node.operator),
        texts.number(module_of(node)),
        [texts.number(text) for pair in attributes for text in pair],
        _numbers(node.inputs, values),
        _numbers(node.outputs, values),
    ]


def _value(
    shapes: Shapes,
    value: Value,
    scopes: Mapping[Scope, int],
    values: Mapping[Value, int],
    texts: _Texts,
    sizes: PageSizes,
    numbers: dict[int, list[int | None]],
) -> list[object]:
    tensor = shapes[value]
    dtype = dtype_name(tensor.dtype) if tensor.dtype else "?"
    type_ = texts.number(f"{dtype} {shape_text(plain_dims(tensor.dims))}")
    if type_ not in numbers and (known := sizes.numbers(tensor.dims)) is not None:
        numbers[type_] = known
    row: list[object] = [
        value.name,
        scopes[value.scope],
        texts.number("constant" if value.is_constant else value.kind),
        type_,
        (payload_size(value.constant) if value.constant is not None else None) or 0,
        _numbers(shapes.shape_sources(value), values),
    ]
    reason = shapes.reason(value)
    return [*row, texts.number(reason)] if reason else row


def _numbers(values: Sequence[Value | None], numbers: Mapping[Value, int]) -> list[int]:
    return [NONE if value is None else numbers[value] for value in values]
