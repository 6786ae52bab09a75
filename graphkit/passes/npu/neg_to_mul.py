"""Spell a Neg as a Mul by -1."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
from onnx.helper import tensor_dtype_to_np_dtype

from graphkit.dtypes import FLOATS
from graphkit.rewrite.editor import Editor
from graphkit.rewrite.edits import NewNode
from graphkit.rewrite.fixpoint import Rewrite

__all__ = ["NegToMul"]


@dataclass(frozen=True)
class NegToMul(Rewrite):
    """Spell each Neg of floats as a Mul by -1, for targets without Neg.

    The results are equal, signed zeros too. Legality: the dtype is a float; the least integer has no opposite, and
    what a Neg of it gives differs between runtimes, so a Neg of integers is left.

    Before:

        agraph (float[2, 3] x) => (float[2, 3] y) {
            y = Neg (x)
        }

    After:

        agraph (float[2, 3] x) => (float[2, 3] y) <float[1] minus_one = {-1.0}> {
            y = Mul (x, minus_one)
        }
    """

    def edit(self, editor: Editor) -> None:
        for node in editor.nodes("Neg"):
            data, out = node.input(0), node.outputs[0]
            if data is None or out is None:
                continue
            dtype, rank = editor.shapes[data].dtype, editor.shapes[data].rank
            if dtype not in FLOATS or rank is None:
                editor.decline(node, "it is not known to be a Neg of floats of a known rank")
                continue
            array = np.full([1] * min(rank, 1), -1, tensor_dtype_to_np_dtype(dtype))
            minus_one = editor.constant(array, "minus_one")
            editor.replace(node, NewNode("Mul", [data, minus_one], [out.name], like=node))
            editor.note("Neg(s) spelled as Muls")
