"""Print the shape of one tensor as expressions in the dims of the inputs, and where it comes from.

python examples/explain_shape.py model.onnx TENSOR
"""

import sys

import graphkit


def main(model: str, tensor: str) -> None:
    """Print each dim with the symbols in it, then the steps that lead to the shape."""
    shapes = graphkit.shapes.infer(model)
    for axis, dim in enumerate(shapes[tensor].dims or ()):
        print(f"axis {axis}: {dim}, of {', '.join(sorted(dim.symbols)) or 'nothing'}")
    for step in graphkit.why_shape(model, tensor).steps:
        print(step)


if __name__ == "__main__":
    main(*sys.argv[1:])
