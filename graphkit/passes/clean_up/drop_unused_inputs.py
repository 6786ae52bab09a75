"""Drop inputs that nothing reads."""

from __future__ import annotations

from dataclasses import dataclass

from graphkit.graph.families import family_labels
from graphkit.graph.names import counted
from graphkit.model import Model
from graphkit.rewrite.base import Outcome, Pass, copy_proto, drop_inputs
from graphkit.rewrite.dead_code import live_names, remove_dead_code, without_outputs

__all__ = ["DropUnusedInputs"]


@dataclass(frozen=True)
class DropUnusedInputs(Pass):
    """Drop the inputs of the model that no output depends on, with their default values, and the nodes that read them.

    This changes the interface: callers must stop feeding these inputs. A model without outputs keeps its inputs, as it
    keeps its nodes.

    Before:

        agraph (float[N] x, float[N] unused) => (float[N] y) {
            y = Neg (x)
        }

    After:

        agraph (float[N] x) => (float[N] y) {
            y = Neg (x)
        }
    """

    def run(self, model: Model) -> Outcome:
        if (declined := without_outputs(model)) is not None:
            return Outcome(model, declined=(declined,))
        live = live_names(model.proto.graph)
        names = [value.name for value in model.graph.inputs if value.name not in live]
        if not names:
            return Outcome(model)
        if any(model.graph.values[name].consumers for name in names):  # which no output depends on either
            model = remove_dead_code(model).model
        proto = copy_proto(model)
        drop_inputs(proto.graph, names)
        return Outcome(model.with_proto(proto), (f"{counted(len(names), 'input(s) dropped')}: {family_labels(names)}",))
