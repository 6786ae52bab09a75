"""Give dims of the inputs their sizes: only declarations change."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from fractions import Fraction

from graphkit.constraints.dim_equalities import forced_sizes
from graphkit.constraints.triggers import check_sizes, impossible
from graphkit.model import Model
from graphkit.passes.shapes.declare_shapes import InferOutputShapes
from graphkit.passes.shapes.freeze_dims import FreezeDims
from graphkit.rewrite.base import Outcome, Pass, Premise
from graphkit.shapes import DimSpec, declarations
from graphkit.shapes.dim_spec import InputShapes, SymbolSizes
from graphkit.shapes.inputs import Inputs

__all__ = ["SetDims"]


@dataclass(frozen=True)
class SetDims(Pass):
    """Declare sizes for dims of the inputs, by symbol or by the shape of an input, where the graph can run with them.

    It is `freeze-dims` with two things added: a symbol whose size the graph forces gets it too, and outputs declare
    what follows. Nodes stay: `graphkit fold --dim` goes on to fold what no longer varies. Input dims that contradict
    the nodes are put right first.

    Legality: the symbols and inputs exist, the sizes do not contradict each other, and no node needs others.

    Before:

        agraph (float[N, 4] x, float[M, 4] z) => (float[N, 8] y) {
            y = Concat <axis = 1> (x, z)
        }

    After `set-dims{dims=N=2}`:

        agraph (float[2, 4] x, float[2, 4] z) => (float[2, 8] y) {
            y = Concat <axis = 1> (x, z)
        }

    Attributes:
        dims: Sizes of symbols: `batch_size=1;sequence_length=8`.
        inputs: Shapes of inputs: `pixel_values=1x3x800x800`.
    """

    dims: SymbolSizes = ()
    inputs: InputShapes = ()

    def run(self, model: Model) -> Outcome:
        model.check_soundness()
        base = declarations(model).model
        spec = self.premise().spec
        numbers = Inputs(base, spec).numbers
        forced = _whole(base, numbers, forced_sizes(base, numbers))
        sizes = {**numbers, **forced}
        check_sizes(base, DimSpec.of(sizes, spec.shapes, spec.bounds), sizes)
        frozen = FreezeDims(tuple(sizes.items()), self.inputs, ranges=spec.ranges).run(base)
        if frozen.model is base:
            return Outcome(model)
        result = InferOutputShapes().run(frozen.model)
        notes = [f"{name} is {size}, for the graph forces it" for name, size in forced.items()]
        known = {f"{name} is {size}" for name, size in forced.items()}
        told = [change for change in frozen.changes if change not in known]
        return Outcome(result.model, (*told, *notes, *result.changes))

    def premise(self) -> Premise:
        empty = tuple((name, 0, None) for name, size in self.dims if not size)  # a size that is asked for is in range
        return Premise(DimSpec(self.dims, self.inputs, empty))


def _whole(model: Model, numbers: Mapping[str, int], forced: Mapping[str, Fraction]) -> dict[str, int]:
    """Return forced sizes as integers, and check that they can be sizes."""
    for name, size in forced.items():
        if size < 0 or size.denominator != 1:
            raise impossible(model, numbers, f"'{name}' would have to be {size}")
    return {name: int(size) for name, size in forced.items()}
