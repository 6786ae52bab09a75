"""Replace symbolic dims of the inputs by numbers."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field

import onnx

from graphkit.graph.types import declared_type
from graphkit.graph.view import Scope
from graphkit.model import Model
from graphkit.passes.shapes.hide_frozen_dims import hide_frozen_dims
from graphkit.rewrite.base import Outcome, Pass, Premise, copy_proto
from graphkit.rewrite.renaming import graphs_with_scopes
from graphkit.shapes import Shapes, infer, parse
from graphkit.shapes.dim_spec import DimSpec, InputShapes, SymbolRanges, SymbolSizes
from graphkit.shapes.inputs import Inputs

__all__ = ["FreezeDims"]


@dataclass(frozen=True)
class FreezeDims(Pass):
    """Freeze dims of the inputs to numbers, by symbol or by the shape of an input.

    A symbol is frozen everywhere, including expressions such as `past_sequence_length + 1`; the shape of an input is
    solved for its symbols. Declared types of outputs and inner values follow from the operators. Freezing a dim also
    freezes all that is computed from it, such as position ids and causal masks.

    Legality: the symbols and inputs exist, and the numbers do not contradict each other.

    Before:

        agraph (float[N, L] x, float[N] z) => (float[N, L] y) {
            y = Neg (x)
        }

    After `freeze-dims{dims=N=3}`:

        agraph (float[3, L] x, float[3] z) => (float[3, L] y) {
            y = Neg (x)
        }

    Attributes:
        dims: Sizes of symbols: `batch_size=1;sequence_length=8`.
        inputs: Shapes of inputs: `pixel_values=1x3x800x800`.
        ranges: Bounds of symbols, (name, least, largest), None for an open end.
    """

    dims: SymbolSizes = ()
    inputs: InputShapes = ()
    ranges: SymbolRanges = field(default=(), kw_only=True)

    def premise(self) -> Premise:
        return Premise(DimSpec(self.dims, self.inputs, self.ranges))

    def run(self, model: Model) -> Outcome:
        spec = self.premise().spec
        given = spec.shapes
        numbers = Inputs(model, spec).numbers
        declared = {value.name: declared_type(value) for value in model.graph.inputs}
        unranked = [name for name in given if (known := declared[name]) is None or known.dims is None]
        if not numbers and not unranked:
            return Outcome(model)
        shapes = infer(model, spec)
        proto = copy_proto(model)
        for info in proto.graph.input:
            if (found := shapes[info.name].dims) is not None:
                _declare(info, [dim.constant if dim.constant is not None else str(dim) for dim in found], numbers, True)
        for graph, scope in graphs_with_scopes(proto.graph, model.graph):
            is_possible = not any(body.contains(scope) for body in shapes.impossible)
            for info in (*(graph.input if scope.parent is not None else ()), *graph.output, *graph.value_info):
                _follow(info, scope, shapes if is_possible else None, numbers)
        changes = [f"{name} is {number}" for name, number in numbers.items()]
        changes += [f"{name} is {'x'.join(map(str, given[name])) or 'a scalar'}" for name in unranked]
        return Outcome(_shielded(model.with_proto(proto), model, shapes), tuple(changes))


def _shielded(frozen: Model, original: Model, shapes: Shapes) -> Model:
    """Return a frozen model that loads though some of its bodies cannot run."""
    if shapes.contradictions or not shapes.impossible:
        return frozen
    pairs = zip(frozen.graph.walk(), original.graph.walk(), strict=True)
    bodies = [now for now, before in pairs if before in shapes.impossible]
    return hide_frozen_dims(frozen, bodies, infer(frozen))


def _follow(info: onnx.ValueInfoProto, scope: Scope, shapes: Shapes | None, numbers: Mapping[str, int]) -> None:
    """Declare the dims with frozen symbols anew; dims that the engine does not know are left open."""
    tensor = info.type.tensor_type
    if not any(_is_frozen(dim, numbers) for dim in tensor.shape.dim):
        return
    value = scope.values.get(info.name)
    found = shapes[value].dims if value is not None and shapes is not None else None
    if found is None or len(found) != len(tensor.shape.dim):
        found = (None,) * len(tensor.shape.dim)  # type: ignore[assignment]
    texts = [None if dim is None else dim.constant if dim.constant is not None else str(dim) for dim in found or ()]
    _declare(info, [None if isinstance(text, str) and "?" in text else text for text in texts], numbers, False)


def _is_frozen(dim: onnx.TensorShapeProto.Dimension, numbers: Mapping[str, int]) -> bool:
    return bool(dim.dim_param) and any(name in numbers for name in parse(dim.dim_param).symbols)


def _declare(
    info: onnx.ValueInfoProto, dims: Iterable[int | str | None], numbers: Mapping[str, int], is_input: bool
) -> None:
    """Set the dims that are not numbers yet and are frozen now."""
    tensor = info.type.tensor_type
    if is_input and info.type.HasField("tensor_type") and not tensor.HasField("shape"):
        tensor.shape.SetInParent()
        for _ in dims:
            tensor.shape.dim.add()
    for declared, dim in zip(tensor.shape.dim, dims, strict=False):
        is_open = is_input and not declared.HasField("dim_value") and isinstance(dim, int)
        if not is_open and not _is_frozen(declared, numbers):
            continue
        declared.ClearField("dim_param")
        if isinstance(dim, int):
            declared.dim_value = dim
        elif dim is not None:
            declared.dim_param = dim
