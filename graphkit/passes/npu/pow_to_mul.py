"""Spell a square or a cube as products."""

from __future__ import annotations

from dataclasses import dataclass

from graphkit.dtypes import FLOATS
from graphkit.rewrite.editor import Editor
from graphkit.rewrite.edits import NewNode
from graphkit.rewrite.fixpoint import Rewrite

__all__ = ["PowToMul"]

EXPONENTS = (1, 2, 3)


@dataclass(frozen=True)
class PowToMul(Rewrite):
    """Spell a Pow by 2 or 3 as products, and drop a Pow by 1, for targets without Pow.

    onnxruntime computes such a Pow in this way too. Legality: the exponent is a constant whose elements are all the
    same and whose dims add none to the base's; the base is a float.

    Before:

        agraph (float[2, 3] x) => (float[2, 3] y) <float two = {2.0}> {
            y = Pow (x, two)
        }

    After:

        agraph (float[2, 3] x) => (float[2, 3] y) {
            y = Mul (x, x)
        }
    """

    def edit(self, editor: Editor) -> None:
        for node in editor.nodes("Pow"):
            base, power, out = node.input(0), node.input(1), node.outputs[0]
            if base is None or power is None or out is None:
                continue
            exponent = editor.uniform(power)
            if exponent not in EXPONENTS:
                editor.decline(node, "its exponent is not a constant 1, 2 or 3")
            elif editor.shapes[base].dtype not in FLOATS:
                editor.decline(node, "its base is not a float")
            elif editor.shapes[base].dims is None or editor.shapes[base].dims != editor.shapes[out].dims:
                editor.decline(node, "its exponent has dims that its base lacks")
            elif exponent == 1:
                editor.bypass(node, base)
                editor.note("Pow(s) by 1 removed")
            else:
                square = out.name if exponent == 2 else editor.unique_name(f"{out.name}_square")
                made = [NewNode("Mul", [base, base], [square], like=node if exponent == 2 else None)]
                if exponent == 3:
                    made.append(NewNode("Mul", [square, base], [out.name], like=node))
                editor.replace(node, *made)
                editor.note("Pow(s) spelled as Muls")
