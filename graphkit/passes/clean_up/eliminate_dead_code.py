"""Remove the nodes, initializers, declared types and functions that no output needs."""

from __future__ import annotations

from dataclasses import dataclass

from graphkit.model import Model
from graphkit.rewrite.base import Outcome, Pass
from graphkit.rewrite.dead_code import remove_dead_code

__all__ = ["EliminateDeadCode"]


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
