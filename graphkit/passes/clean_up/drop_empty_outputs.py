"""Drop outputs that are constants without elements."""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar

from graphkit.graph.families import family_labels
from graphkit.graph.merged import zero_length_outputs
from graphkit.graph.names import counted
from graphkit.model import Model
from graphkit.rewrite.base import Outcome, Pass, copy_proto, keep

__all__ = ["DropEmptyOutputs"]


@dataclass(frozen=True)
class DropEmptyOutputs(Pass):
    """Drop the outputs of the model that are constants without elements, directly or through Identity.

    Exporters give the cache branch of a merged decoder such outputs, because both branches of an If must
    have the same. They carry nothing, and fed back they would erase the encoder's KV cache.

    Before:

        agraph (float[N] x) => (float[N] y, float[0] empty) {
            y = Neg (x)
            empty = Constant <value = float[0] {}> ()
        }

    After:

        agraph (float[N] x) => (float[N] y) {
            y = Neg (x)
            empty = Constant <value = float[0] {}> ()
        }
    """

    drops_outputs: ClassVar[bool] = True

    def run(self, model: Model) -> Outcome:
        empty = sorted(zero_length_outputs(model.graph))
        if not empty:
            return Outcome(model)
        proto = copy_proto(model)
        names = [proto.graph.output[index].name for index in empty]
        keep(proto.graph.output, [index not in empty for index in range(len(proto.graph.output))])
        return Outcome(
            model.with_proto(proto), (f"{counted(len(names), 'output(s) dropped')}: {family_labels(names)}",)
        )
