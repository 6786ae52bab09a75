"""Random chains of operators on tensors of many axes: the passes give the same, and no rank above 4 is left."""

from __future__ import annotations

import math
import random
from collections.abc import Callable, Sequence

import numpy as np
import onnx
import pytest
from onnx import helper, numpy_helper
from rewriting import assert_same

from graphkit.model import Model
from graphkit.passes.registry import NPU_PASSES
from graphkit.rewrite.fixpoint import run_to_fixpoint
from graphkit.shapes import infer


class Chain:
    """A model that reshapes a vector to many axes, works there, and reshapes it back."""

    def __init__(self, seed: int) -> None:
        self.random = random.Random(seed)
        self.dims = [self.random.choice([1, 1, 2, 2, 3, 4]) for _ in range(self.random.randint(4, 6))]
        self.size, self.last = math.prod(self.dims), "x"
        self.nodes: list[onnx.NodeProto] = []
        self.tensors: list[onnx.TensorProto] = []
        self.add("Reshape", self.dims, [self.dims])

    def add(self, op_type: str, dims: Sequence[int], others: Sequence[object] = (), **attributes: object) -> None:
        """Add a node that reads what the last one gives, and constants."""
        names = []
        for other in others:
            names.append(f"c{len(self.tensors)}")
            self.tensors.append(numpy_helper.from_array(np.asarray(other), names[-1]))
        out = f"v{len(self.nodes)}"
        self.nodes.append(helper.make_node(op_type, [self.last, *names], [out], **attributes))
        self.last, self.dims = out, list(dims)

    def axis(self) -> int:
        return self.random.randrange(len(self.dims))

    def changed(self, axis: int, size: int) -> list[int]:
        return [*self.dims[:axis], size, *self.dims[axis + 1 :]]

    def model(self) -> Model:
        self.add("Reshape", [-1], [np.array([-1])])
        info = helper.make_tensor_value_info
        inputs, outputs = [info("x", 1, [self.size])], [info(self.last, 1, [None])]
        graph = helper.make_graph(self.nodes, "chain", inputs, outputs, self.tensors)
        return Model.from_proto(helper.make_model(graph, opset_imports=[helper.make_opsetid("", 17)], ir_version=8))


def transpose(chain: Chain) -> None:
    perm = chain.random.sample(range(len(chain.dims)), len(chain.dims))
    chain.add("Transpose", [chain.dims[axis] for axis in perm], perm=perm)


def combine(chain: Chain) -> None:
    dims = [dim if chain.random.random() < 0.7 else 1 for dim in chain.dims][chain.random.randrange(len(chain.dims)) :]
    array = np.arange(math.prod(dims), dtype=np.float32).reshape(dims) - 3
    chain.add(chain.random.choice(["Add", "Mul", "Max"]), chain.dims, [array])


def reduce(chain: Chain) -> None:
    axis = chain.axis()
    dims = chain.changed(axis, 1)
    if len(dims) > 3 and chain.random.random() < 0.5:
        chain.add("ReduceSum", [*dims[:axis], *dims[axis + 1 :]], [np.array([axis])], keepdims=0)
    else:
        chain.add("ReduceMax", dims, axes=[axis - len(dims)])


def slices(chain: Chain) -> None:
    axis = chain.axis()
    start = chain.random.randrange(chain.dims[axis])
    chain.add("Slice", chain.changed(axis, chain.dims[axis] - start), [[start], [99], [axis - len(chain.dims)]])


def pad(chain: Chain) -> None:
    axis, pads = chain.axis(), np.zeros(2 * len(chain.dims), np.int64)
    pads[axis] = pads[axis + len(chain.dims)] = 1
    chain.add("Pad", chain.changed(axis, chain.dims[axis] + 2), [pads])


def expand(chain: Chain) -> None:
    to = [chain.random.choice([1, 3]) if dim == 1 else dim for dim in chain.dims]
    chain.add("Expand", to, [to])


def tile(chain: Chain) -> None:
    axis = chain.axis()
    repeats = [2 if other == axis else 1 for other in range(len(chain.dims))]
    chain.add("Tile", chain.changed(axis, 2 * chain.dims[axis]), [repeats])


def gather(chain: Chain) -> None:
    axis = chain.axis()
    size = chain.dims[axis]
    if len(chain.dims) > 3 and chain.random.random() < 0.5:
        chosen = chain.random.randrange(-size, size)
        chain.add("Gather", [*chain.dims[:axis], *chain.dims[axis + 1 :]], [np.array(chosen)], axis=axis)
    else:
        indices = [chain.random.randrange(size) for _ in range(3)]
        chain.add("Gather", chain.changed(axis, 3), [indices], axis=axis)


def unsqueeze(chain: Chain) -> None:
    axis = chain.axis()
    chain.add("Unsqueeze", [*chain.dims[:axis], 1, *chain.dims[axis:]], [[axis]])


def multiply(chain: Chain) -> None:
    inner = chain.dims[-1]
    chain.add("MatMul", [*chain.dims[:-1], 2], [np.arange(inner * 2, dtype=np.float32).reshape(inner, 2)])


STEPS: tuple[Callable[[Chain], None], ...] = (
    transpose, transpose, combine, reduce, slices, pad, expand, tile, gather, unsqueeze, multiply,
)  # fmt: skip


@pytest.mark.cases(14)
@pytest.mark.parametrize("seed", range(40))
def test_a_random_chain_has_four_axes_and_the_same_elements(seed: int) -> None:
    chain = Chain(seed)
    while len(chain.nodes) < 6 and math.prod(chain.dims) < 5_000 and len(chain.dims) < 7:
        chain.random.choice(STEPS)(chain)
    model = chain.model()
    outcome = run_to_fixpoint(model, [kind() for kind in NPU_PASSES])
    shapes = infer(outcome.model)
    ranks = [shapes[value].rank or 0 for node in outcome.model.graph.nodes for value in node.outputs if value]
    assert max(ranks) <= 4
    feed = np.random.default_rng(seed).integers(-4, 5, chain.size).astype(np.float32)
    assert_same(model, outcome.model, [{"x": feed}])
    assert not {"Gather", "Expand", "Tile"} & {node.op_type for node in outcome.model.graph.nodes}
