"""A pass of your own, run and proven: a division by a constant becomes a product.

python examples/own_pass.py model.onnx out.onnx
cd examples && graphkit rewrite model.onnx -o out.onnx --passes own_pass:DivToMul,fold-constants
"""

import sys
from dataclasses import dataclass
from typing import ClassVar

import numpy as np
from onnx import TensorProto

import graphkit


@dataclass(frozen=True)
class DivToMul(graphkit.Rewrite):
    """Spell each Div of float32 by one number as a Mul by its reciprocal, which changes the last digit."""

    largest_error: ClassVar[float] = 1e-6

    def edit(self, editor: graphkit.Editor) -> None:
        """Replace each Div by a constant that is not 0 and gives the result no dims of its own."""
        for node in editor.nodes("Div"):
            base, divisor, out = node.input(0), node.input(1), node.outputs[0]
            if base is None or divisor is None or out is None or editor.shapes[base].dtype != TensorProto.FLOAT:
                continue
            if not (number := editor.uniform(divisor)):
                editor.decline(node, "its divisor is not one number other than 0")
            elif (dims := editor.shapes[base].dims) is None or dims != editor.shapes[out].dims:
                editor.decline(node, "its divisor may have dims that its base lacks")
            else:
                factor = editor.constant(np.array(1 / number, np.float32), "reciprocal")
                editor.replace(node, graphkit.NewNode("Mul", [base, factor], [out.name], like=node))
                editor.note("Div(s) spelled as Mul")


def main(model: str, output: str) -> None:
    """Run the pass on a model, write the result, prove it, and print what was done."""
    report = graphkit.rewrite_file(model, output, [DivToMul()])
    print(report)
    if report.findings():
        sys.exit(1)


if __name__ == "__main__":
    main(*sys.argv[1:])
