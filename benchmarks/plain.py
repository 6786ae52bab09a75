"""The obvious split of a merged decoder, with onnx alone: what `splitting.py` measures graphkit beside.

    python benchmarks/plain.py MODEL FOLDER

Reads the whole model, makes each branch of its If a graph of its own, and saves two models. It takes what it needs
for granted: one If, whose outputs are the model's and whose then branch reads the cache.
Outputs that a branch leaves empty stay.
"""

from __future__ import annotations

import sys
from collections.abc import Iterator
from pathlib import Path

import onnx

NAMES = {"else_branch": "decoder_model.onnx", "then_branch": "decoder_with_past_model.onnx"}
LARGEST = 2 * 10**9  # bytes; beyond, the weights go to a file of their own


def cut(model: onnx.ModelProto, branch: str) -> onnx.ModelProto:
    """Return one branch of the If as a model, with the inputs and weights that it uses."""
    outer = model.graph
    chosen = next(node for node in outer.node if node.op_type == "If")
    body = next(attribute.g for attribute in chosen.attribute if attribute.name == branch)
    pairs = zip((value.name for value in body.output), chosen.output, strict=True)
    renamed = [onnx.helper.make_node("Identity", [mine], [name]) for mine, name in pairs if mine != name]
    needed = {value.name for value in outer.output}
    nodes = []
    for node in reversed([*(node for node in outer.node if node is not chosen), *body.node, *renamed]):
        if needed.intersection(node.output):
            nodes.append(node)
            needed.update(reads(node))
    result = onnx.ModelProto(ir_version=model.ir_version, opset_import=model.opset_import, functions=model.functions)
    result.graph.name = body.name
    result.graph.node.extend(reversed(nodes))
    result.graph.input.extend(value for value in outer.input if value.name in needed)
    result.graph.output.extend(outer.output)
    for weights in (outer.initializer, body.initializer):
        result.graph.initializer.extend(tensor for tensor in weights if tensor.name in needed)
    return result


def reads(node: onnx.NodeProto) -> Iterator[str]:
    """Give the names that a node reads, those in its bodies included."""
    yield from node.input
    for attribute in node.attribute:
        for inside in attribute.g.node:
            yield from reads(inside)
        yield from (value.name for value in attribute.g.output)


def save(model: onnx.ModelProto, path: Path) -> None:
    """Write a model, its weights beside it where one file cannot hold them."""
    large = sum(len(tensor.raw_data) for tensor in model.graph.initializer) > LARGEST
    onnx.save(model, path, save_as_external_data=large, location=f"{path.name}_data")


def main() -> None:
    """Split."""
    model = onnx.load(sys.argv[1])
    for branch, name in NAMES.items():
        save(cut(model, branch), Path(sys.argv[2]) / name)


if __name__ == "__main__":
    main()
