"""Ranges that a model takes from its data when it runs: they count padding, and a lowered model pads."""

from __future__ import annotations

from collections.abc import Iterator

from graphkit.errors import UsageError
from graphkit.graph.operators import QUANTIZED
from graphkit.graph.view import Node, all_nodes
from graphkit.model import Model
from graphkit.passes.quantization.dequantize import Dequantize

__all__ = ["check_ranges"]


def check_ranges(model: Model) -> None:
    """Check that no range is taken from all positions of a run.

    Raises:
        UsageError: One is, with the node and the way out.
    """
    node = next(_dynamic(model), None)
    if node is None:
        return
    raise UsageError(
        f"{model.name}: '{node.label}' ({node.op_type}) takes its range from all positions of a run: padding and "
        f"the number of tokens in a run change results - {_hint(model)}"
    )


def _dynamic(model: Model) -> Iterator[Node]:
    return (node for node in all_nodes(model.scopes) if node.op_type in QUANTIZED["dynamic"])


def _hint(model: Model) -> str:
    outcome = Dequantize().run(model)
    if next(_dynamic(outcome.model), None) is None:
        return "compute quantised products with floats: --dequantize"
    reason = f", for dequantize leaves {outcome.declined[0]}" if outcome.declined else ""
    return f"lower the export as it was before it was quantised{reason}"
