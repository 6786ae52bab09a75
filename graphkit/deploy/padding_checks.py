"""Checks that there is one text and that steps give logits, of ranges of quantised data, and of two decoders alike."""

from __future__ import annotations

from collections.abc import Iterator

from onnx import TensorProto

from graphkit.dtypes import FLOATS
from graphkit.errors import UsageError
from graphkit.graph.operator_traits import QUANTIZED
from graphkit.graph.view import Node, all_nodes
from graphkit.model import Model
from graphkit.passes.npu.dequantize import Dequantize
from graphkit.verify.comparator import elementwise_difference
from graphkit.verify.tolerances import LOWERING_TOLERANCE

__all__ = ["check_ranges", "check_scales", "check_texts", "check_vectors", "is_step"]


def is_step(model: Model) -> bool:
    """Whether a model runs token by token on recurrent state, which the host can keep."""
    return bool(model.roles.states and model.roles.all("tokens"))


def check_texts(model: Model) -> None:
    """Check that there is one text, and that steps on recurrent state give logits.

    Raises:
        UsageError: It is not so, with the node and what to do.
    """
    roles = model.roles
    if is_step(model):
        if roles.logits is None:
            raise UsageError(
                f"{model.name}: it runs on recurrent state, '{roles.states[0].past.name}', and no output is known to "
                "be its logits - name it 'logits', or make a bundle of it: graphkit bundle"
            )
        return
    source, text = roles.first("encoder tokens"), roles.first("tokens")
    if source is not None and text is not None and not roles.pasts:
        raise UsageError(
            f"{model.name}: encoder and decoder are one graph without a cache, which takes the texts '{source.name}' "
            f"and '{text.name}' - export encoder and decoder as models of their own, with a cache"
        )


WAY_OUT = "compute quantised products with floats: --dequantize"


def check_ranges(model: Model) -> None:
    """Check that no range is taken from all positions of a run.

    Raises:
        UsageError: One is, with the node and the way out.
    """
    node = next(_dynamic_nodes(model), None)
    if node is None:
        return
    raise UsageError(
        f"{model.name}: '{node.label}' ({node.op_type}) takes its range from all positions of a run: padding and "
        f"the number of tokens in a run change results - {_quantised_hint(model)}"
    )


def check_scales(first: Model, step: Model) -> None:
    """Check that two decoders round the same data alike: the lowered step runs the first token too.

    Raises:
        UsageError: They were calibrated one by one, with a scale that differs.
    """
    known = _constant_scales(first)
    for name, scale in _constant_scales(step).items():
        if known.get(name, scale) != scale:
            raise UsageError(
                f"{step.name}: '{name}', the scale of a QuantizeLinear, is {scale:g}, and {known[name]:g} in "
                f"{first.name}: the lowered step, which runs the first token too, would round it otherwise - {WAY_OUT}"
            )


def _constant_scales(model: Model) -> dict[str, float]:
    """Return the constant scales of data by name."""
    nodes = (node for node in all_nodes(model.scopes) if node.op_type == "QuantizeLinear")
    scales = {value.name: value.constant for node in nodes if (value := node.input(1)) is not None}
    arrays = {name: model.array(tensor) for name, tensor in scales.items() if tensor is not None}
    return {name: float(array.item()) for name, array in arrays.items() if array.size == 1}


def check_vectors(first: Model, step: Model) -> None:
    """Check that two decoders add and multiply the same vectors: the lowered step runs the first token too.

    Where all operators are quantised, the scale of a bias follows from the range that its data had in a calibration, so
    that two decoders which were calibrated one by one hold the bias with other roundings. What is less off than logits
    may be is left to the proof.

    Raises:
        UsageError: A vector that both have for the same node differs by more than the tolerance of the proof.
    """
    off = dict(_differing_vectors(first, step))
    if not off:
        return
    name, distance = max(off.items(), key=lambda item: item[1])
    more = f" (and {len(off) - 1} more)" if len(off) > 1 else ""
    raise UsageError(
        f"{step.name}: '{name}' is up to {distance:.1e} off what it is in {first.name}{more}: the lowered "
        "step, which runs the first token too, would compute with other numbers - lower the export as it was before it "
        "was quantised"
    )


def _differing_vectors(first: Model, step: Model) -> Iterator[tuple[str, float]]:
    """Yield the vectors that differ by more than the tolerance, each with the largest distance of an element."""
    known = _constant_vectors(first)
    for (name, output), tensor in _constant_vectors(step).items():
        other = known.get((name, output))
        if other is None or other.dims != tensor.dims or other.data_type != tensor.data_type:
            continue
        distance = float(elementwise_difference(first.array(other), step.array(tensor)).max(initial=0.0))
        if distance > LOWERING_TOLERANCE:
            yield name, distance


def _constant_vectors(model: Model) -> dict[tuple[str, str], TensorProto]:
    """Return the constant vectors of floats, by their name and the output of a node that reads them."""
    return {
        (value.name, out.name): value.tensor
        for node in all_nodes(model.scopes)
        for value in node.inputs
        for out in node.outputs[:1]
        if value is not None and value.tensor is not None and out is not None
        if len(value.tensor.dims) == 1 and value.tensor.data_type in FLOATS
    }


def _dynamic_nodes(model: Model) -> Iterator[Node]:
    return (node for node in all_nodes(model.scopes) if node.op_type in QUANTIZED["dynamic"])


def _quantised_hint(model: Model) -> str:
    outcome = Dequantize().run(model)
    if next(_dynamic_nodes(outcome.model), None) is None:
        return WAY_OUT
    reason = f", for dequantize leaves {outcome.declined[0]}" if outcome.declined else ""
    return f"lower the export as it was before it was quantised{reason}"
