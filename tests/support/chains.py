"""Random chains of operators on shapes and data, each step one that onnxruntime can run."""

from __future__ import annotations

import random
from collections.abc import Callable, Mapping, Sequence

import numpy as np
import onnx
import onnxruntime
from onnx import TensorProto, helper, numpy_helper

from graphkit.model import Model
from graphkit.shapes import DimSpec
from graphkit.shapes.graph_inputs import Inputs

onnxruntime.set_default_logger_severity(4)
DIMS = ("batch", "seq", "past")


def sizes_of(model: Model, dims: Mapping[str, int]) -> dict[str, int]:
    """Return the size of each symbol at sizes of declared names: a name may stand for dims that no node relates."""
    return Inputs(model, DimSpec.of(dims)).numbers


def run(nodes: list[onnx.NodeProto], feeds: dict[str, np.ndarray], outputs: list[str]) -> list[np.ndarray]:
    """Run nodes; feeds keep their values."""
    inputs = [
        helper.make_tensor_value_info(n, helper.np_dtype_to_tensor_dtype(a.dtype), a.shape) for n, a in feeds.items()
    ]
    graph = helper.make_graph(nodes, "step", inputs, [onnx.ValueInfoProto(name=name) for name in outputs])
    model = helper.make_model(graph, opset_imports=[helper.make_opsetid("", 18)], ir_version=9)
    options = onnxruntime.SessionOptions()
    options.graph_optimization_level = onnxruntime.GraphOptimizationLevel.ORT_DISABLE_ALL
    options.intra_op_num_threads = 1
    return onnxruntime.InferenceSession(model.SerializeToString(), options).run(None, feeds)


class Skip(Exception):
    """A step that does not apply."""


class Chain:
    """A model that grows node by node, with the values that it has at some dims."""

    steps: Sequence[Callable[[Chain], None]] = ()  # others than STEPS
    integers: Mapping[str, int] = {}  # inputs of batch by seq, and what all their elements are

    def __init__(self, seed: int) -> None:
        self.random = random.Random(seed)
        self.assignment = {"batch": self.random.randint(1, 3), "seq": self.random.randint(1, 6)}
        self.assignment["past"] = self.random.choice([0, 1, 2, 5])
        self.nodes: list[onnx.NodeProto] = []
        self.values: dict[str, np.ndarray] = {}
        self.inputs: list[onnx.ValueInfoProto] = []
        self.count = 0
        for name, dims in (("x", ("batch", "seq", 4)), ("p", ("batch", "past", 4)), ("image", ("batch", 2, 9, "seq"))):
            sizes = [self.assignment.get(dim, dim) for dim in dims]
            self.values[name] = np.arange(np.prod(sizes), dtype=np.float32).reshape(sizes)
            self.inputs.append(helper.make_tensor_value_info(name, TensorProto.FLOAT, dims))
        for name, element in self.integers.items():
            self.values[name] = np.full([self.assignment["batch"], self.assignment["seq"]], element)
            self.inputs.append(helper.make_tensor_value_info(name, TensorProto.INT64, ("batch", "seq")))
        for _ in range(self.random.randint(2, 14)):
            self.step()

    def step(self) -> None:
        before = len(self.nodes), dict(self.values)
        try:
            self.random.choice(self.steps or STEPS)(self)
        except (Skip, ValueError):  # or an array too big for numpy
            pass
        except Exception as error:
            if "onnxruntime" not in type(error).__module__:
                raise
        else:
            return
        del self.nodes[before[0] :]
        self.values = before[1]

    def constant(self, value: object, dtype: type = np.int64) -> str:
        name = f"c{self.count}"
        self.count += 1
        self.nodes.append(
            helper.make_node("Constant", [], [name], value=numpy_helper.from_array(np.array(value, dtype)))
        )
        self.values[name] = np.array(value, dtype)
        return name

    def add(self, op: str, inputs: list[str], outputs: int = 1, **attributes: object) -> str:
        names = [f"v{self.count + index}" for index in range(outputs)]
        self.count += outputs
        node = helper.make_node(op, inputs, names, **attributes)
        results = run([node], {name: self.values[name] for name in dict.fromkeys(inputs) if name}, names)
        if any(array.size > 4000 for array in results):
            raise Skip
        self.nodes.append(node)
        self.values.update(zip(names, results, strict=True))
        return names[0]

    def pick(self, test: Callable[[np.ndarray], bool]) -> str:
        names = [name for name, array in self.values.items() if test(array)]
        if not names:
            raise Skip
        return self.random.choice(names[-6:])

    def data(self, rank: int = 0) -> str:
        return self.pick(lambda a: a.dtype == np.float32 and (a.ndim == rank if rank else a.ndim > 0))

    def vector(self) -> str:
        return self.pick(lambda a: a.dtype == np.int64 and a.ndim == 1 and 0 < a.size < 8)

    def axis(self, name: str) -> int:
        return self.random.randrange(-self.values[name].ndim, self.values[name].ndim)

    def model(self) -> onnx.ModelProto:
        names = [name for node in self.nodes for name in node.output]
        graph = helper.make_graph(self.nodes, "chain", self.inputs, [onnx.ValueInfoProto(name=name) for name in names])
        return helper.make_model(graph, opset_imports=[helper.make_opsetid("", 18)], ir_version=9)


def shape(c: Chain) -> None:
    c.add("Shape", [c.data()])


def part_of_vector(c: Chain) -> None:
    source = c.vector()
    size = c.values[source].size
    indices = [c.random.randrange(-size, size) for _ in range(c.random.randint(1, 3))]
    c.add("Gather", [source, c.constant(indices if c.random.random() < 0.7 else indices[0])], axis=0)


def arithmetic(c: Chain) -> None:
    op = c.random.choice(["Add", "Sub", "Mul", "Div", "Max", "Min", "Mod"])
    left = c.pick(lambda a: a.dtype == np.int64 and a.size < 8)
    right = c.pick(lambda a: a.dtype == np.int64 and a.size < 8) if c.random.random() < 0.5 else None
    if right is None:
        right = c.constant(c.random.choice([1, 2, 3, 4, -1, 8]))
    if op in ("Div", "Mod") and not c.values[right].all():
        raise Skip
    c.add(op, [left, right])


def compare(c: Chain) -> None:
    op = c.random.choice(["Equal", "Less", "Greater", "LessOrEqual", "GreaterOrEqual"])
    left, right = c.vector(), c.constant(c.random.randint(-1, 6))
    chosen = c.add(op, [left, right])
    c.add("Where", [chosen, c.constant(c.random.randint(1, 4)), left])


def via_float(c: Chain) -> None:
    source = c.add("Cast", [c.vector()], to=TensorProto.FLOAT)
    op = c.random.choice(["Mul", "Div", "Add"])
    source = c.add(op, [source, c.constant(c.random.choice([0.5, 2, 3, 0.25, 1.5, 7]), np.float32)])
    if c.random.random() < 0.8:
        source = c.add(c.random.choice(["Floor", "Ceil"]), [source])
    c.add("Cast", [source], to=TensorProto.INT64)


def join(c: Chain) -> None:
    c.add(
        "Concat",
        [c.vector(), c.vector()] if c.random.random() < 0.5 else [c.vector(), c.constant([c.random.randint(1, 3)])],
        axis=0,
    )


def reduce(c: Chain) -> None:
    c.add(
        c.random.choice(["ReduceProd", "ReduceSum", "ReduceMax", "ReduceMin"]),
        [c.vector()],
        keepdims=c.random.randint(0, 1),
    )


def to_vector(c: Chain) -> None:
    c.add("Unsqueeze", [c.pick(lambda a: a.dtype == np.int64 and a.ndim == 0), c.constant([0])])


def reshape(c: Chain) -> None:
    source = c.data()
    sizes = c.random.choice([[-1], [0, -1], [-1, 2], [0, 0, -1], [1, -1, 4], [0, -1, 2, 2], [2, -1]])
    c.add("Reshape", [source, c.constant(sizes)])


def reshape_to_vector(c: Chain) -> None:
    c.add("Reshape", [c.data(), c.vector()])


def reshape_by_parts(c: Chain) -> None:
    source = c.data()
    dims = c.add("Shape", [source])
    picked = c.add("Gather", [dims, c.constant([c.random.randrange(c.values[dims].size)])], axis=0)
    c.add("Reshape", [source, c.add("Concat", [picked, c.constant([-1])], axis=0)])


def transpose(c: Chain) -> None:
    source = c.data()
    c.add("Transpose", [source], perm=c.random.sample(range(c.values[source].ndim), c.values[source].ndim))


def unsqueeze(c: Chain) -> None:
    source = c.data()
    new = c.add("Unsqueeze", [source, c.constant([c.random.randint(0, c.values[source].ndim)])])
    if c.random.random() < 0.3:
        c.add("Squeeze", [new, c.constant([int(c.values[new].shape.index(1))])])


def slice_data(c: Chain) -> None:
    source = c.data()
    bounds = [c.constant([c.random.choice([0, 1, 2, -1, -2, 5, 1 << 40, -(1 << 40)])]) for _ in range(2)]
    if c.random.random() < 0.4:
        bounds[c.random.randint(0, 1)] = c.pick(lambda a: a.dtype == np.int64 and a.shape == (1,))
    step = c.random.choice([1, 1, 1, 2, 3, -1, -2])
    c.add("Slice", [source, *bounds, c.constant([c.axis(source)]), c.constant([step])])


def slice_vector(c: Chain) -> None:
    bounds = [c.constant([c.random.choice([0, 1, 2, -1, -2, 1 << 62])]) for _ in range(2)]
    c.add("Slice", [c.vector(), *bounds, c.constant([0]), c.constant([c.random.choice([1, 1, 2, -1])])])


def expand(c: Chain) -> None:
    c.add("Expand", [c.data(), c.vector()])


def expand_ones(c: Chain) -> None:
    c.add("Expand", [c.constant(1.0, np.float32), c.vector()])


def filled(c: Chain) -> None:
    value = numpy_helper.from_array(np.array([c.random.randint(0, 2)], np.int64))
    c.add("ConstantOfShape", [c.vector()], value=value)


def range_(c: Chain) -> None:
    scalar = c.pick(lambda a: a.dtype == np.int64 and a.ndim == 0)
    start, step = c.constant(c.random.choice([0, 1, 2])), c.constant(c.random.choice([1, 2, 3, -1]))
    c.add("Range", [start, scalar, step] if c.random.random() < 0.8 else [scalar, start, step])


def tile(c: Chain) -> None:
    source = c.data()
    c.add("Tile", [source, c.constant([c.random.randint(0, 2) for _ in range(c.values[source].ndim)])])


def pad(c: Chain) -> None:
    source = c.data()
    c.add("Pad", [source, c.constant([c.random.choice([0, 0, 1, 2, -1]) for _ in range(2 * c.values[source].ndim)])])


def split(c: Chain) -> None:
    source = c.data()
    axis = c.axis(source)
    c.add("Split", [source], 2, axis=axis, num_outputs=2)


def concat_data(c: Chain) -> None:
    source = c.data()
    rank = c.values[source].ndim
    c.add("Concat", [source, c.data(rank)], axis=c.axis(source))


def add_data(c: Chain) -> None:
    c.add("Add", [c.data(), c.data()])


def matmul(c: Chain) -> None:
    source = c.data(3)
    if not c.values[source].size:
        raise Skip  # onnxruntime does not broadcast products without elements
    other = c.add("Transpose", [c.data(3)], perm=[0, 2, 1])
    c.add("MatMul", [source, other])


def reduce_data(c: Chain) -> None:
    source = c.data()
    if not c.values[source].size:
        raise Skip
    c.add("ReduceMean", [source, c.constant([c.axis(source)])])  # onnxruntime keeps dims of empty tensors anyway


def flatten(c: Chain) -> None:
    source = c.data()
    c.add("Flatten", [source], axis=c.random.randint(-c.values[source].ndim, c.values[source].ndim))


def pool(c: Chain) -> None:
    c.add(
        c.random.choice(["MaxPool", "AveragePool"]),
        [c.data(4)],
        kernel_shape=[c.random.randint(1, 3), c.random.randint(1, 2)],
        strides=[c.random.randint(1, 3), c.random.randint(1, 2)],
        ceil_mode=c.random.randint(0, 1),
    )


def convolve(c: Chain) -> None:
    source = c.data(4)
    if not c.values[source].size:
        raise Skip  # onnxruntime hangs on some
    weight = c.constant(np.zeros((3, c.values[source].shape[1], 2, c.random.randint(1, 2))), np.float32)
    c.add(
        "Conv", [source, weight], strides=[c.random.randint(1, 3)] * 2, pads=[c.random.randint(0, 1) for _ in range(4)]
    )


def resize(c: Chain) -> None:
    source = c.data(4)
    scales = [1, 1, c.random.choice([0.5, 2, 1.5, 1.3]), c.random.choice([1, 2, 0.25])]
    c.add("Resize", [source, "", c.constant(scales, np.float32)], mode="nearest")


STEPS = [
    shape, shape, shape, part_of_vector, part_of_vector, arithmetic, arithmetic, compare, via_float, join, reduce,
    to_vector, reshape, reshape_to_vector, reshape_by_parts, transpose, unsqueeze, slice_data, slice_data, slice_vector,
    expand, expand_ones, filled, range_, tile, pad, split, concat_data, concat_data, add_data, matmul, reduce_data,
    flatten, pool, convolve, resize,
]  # fmt: skip
