"""Ranges of quantised data that lowering would change: those that count padding, and those of another model."""

from __future__ import annotations

from collections.abc import Iterator

from graphkit.errors import UsageError
from graphkit.graph.operators import QUANTIZED
from graphkit.graph.view import Node, all_nodes
from graphkit.model import Model
from graphkit.passes.quantization.dequantize import Dequantize

__all__ = ["check_ranges", "check_scales"]

WAY_OUT = "compute quantised products with floats: --dequantize"


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


def check_scales(first: Model, step: Model) -> None:
    """Check that two decoders round the same data alike: the lowered step runs the first token too.

    Raises:
        UsageError: They were calibrated one by one, with a scale that differs.
    """
    known = _scales(first)
    for name, scale in _scales(step).items():
        if known.get(name, scale) != scale:
            raise UsageError(
                f"{step.name}: '{name}', the scale of a QuantizeLinear, is {scale:g}, and {known[name]:g} in "
                f"{first.name}: the lowered step, which runs the first token too, would round it otherwise - {WAY_OUT}"
            )


def _scales(model: Model) -> dict[str, float]:
    """Return the constant scales of data by name."""
    nodes = (node for node in all_nodes(model.scopes) if node.op_type == "QuantizeLinear")
    scales = {value.name: value.constant for node in nodes if (value := node.input(1)) is not None}
    arrays = {name: model.array(tensor) for name, tensor in scales.items() if tensor is not None}
    return {name: float(array.item()) for name, array in arrays.items() if array.size == 1}


def _dynamic(model: Model) -> Iterator[Node]:
    return (node for node in all_nodes(model.scopes) if node.op_type in QUANTIZED["dynamic"])


def _hint(model: Model) -> str:
    outcome = Dequantize().run(model)
    if next(_dynamic(outcome.model), None) is None:
        return WAY_OUT
    reason = f", for dequantize leaves {outcome.declined[0]}" if outcome.declined else ""
    return f"lower the export as it was before it was quantised{reason}"
