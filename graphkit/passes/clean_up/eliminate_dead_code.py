"""Remove nodes, inputs and outputs that nothing needs."""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar

from graphkit.graph.merged_decoder import zero_length_outputs
from graphkit.graph.names import counted, family_labels
from graphkit.model import Model
from graphkit.rewrite.base import Outcome, Pass, copy_proto, drop_inputs, keep
from graphkit.rewrite.dead_code import live_names, remove_dead_code, without_outputs

__all__ = ["DropEmptyOutputs", "DropUnusedInputs", "EliminateDeadCode"]


@dataclass(frozen=True)
class EliminateDeadCode(Pass):
    """Remove nodes whose outputs nothing reads, and the initializers, types and functions that are then unused.

    A node stays if one of its outputs is an output of its graph or feeds a node that stays, bodies included;
    a node without outputs stays. Inputs and outputs of the model stay as they are; a model without outputs stays whole.

    Before:

        agraph (float[N] x) => (float[N] y) <float[1] w = {2.0}> {
            unused = Add (x, w)
            y = Neg (x)
        }

    After:

        agraph (float[N] x) => (float[N] y) {
            y = Neg (x)
        }
    """

    def run(self, model: Model) -> Outcome:
        return remove_dead_code(model)


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
