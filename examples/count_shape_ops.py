"""Count the shape operators of a model before and after a fold that freezes nothing.

python examples/count_shape_ops.py model.onnx
"""

import sys

import graphkit


def main(model: str) -> None:
    """Print each operator with its counts, and how many nodes do nothing but compute shapes."""
    folded = graphkit.fold(model).model
    for change in graphkit.shape_ops(model, folded).changes:
        print(f"{change.op:<16}{change.before:>5}{change.after:>5}")
    before, after = graphkit.shape_ops(model), graphkit.shape_ops(folded)
    print(f"{before.on_shapes} of {before.nodes} nodes computed shapes, {after.on_shapes} of {after.nodes} do now")


if __name__ == "__main__":
    main(sys.argv[1])
