"""Nodes of each operator that has a shape rule, on numbers at the ends of each dtype, and on numbers made of sizes.

The schemas of onnx say which inputs and attributes an operator has, so that a rule that is added later is tested, too.
"""

from __future__ import annotations

import itertools
import random
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import cache

import numpy as np
import onnx
from onnx import GraphProto, NodeProto, TensorProto, helper, numpy_helper

from graphkit.dtypes import FLOATS, INTEGERS, integer_range
from graphkit.model import Model
from graphkit.ops.registry import RULES
from graphkit.shapes import Expr, minimum, symbol

__all__ = ["EXPRS", "OPERATORS", "SIZES", "Case", "cases", "of_sizes"]

DTYPES = [*sorted(INTEGERS), *FLOATS]
NAMES = {
    "tensor(bool)": TensorProto.BOOL,
    **{f"tensor({'u' * is_unsigned}int{bits})": TensorProto.DataType.Value(f"{'U' * is_unsigned}INT{bits}")
       for bits in (8, 16, 32, 64) for is_unsigned in (0, 1)},
    "tensor(float16)": TensorProto.FLOAT16, "tensor(float)": TensorProto.FLOAT, "tensor(double)": TensorProto.DOUBLE,
}  # fmt: skip
NEAR = (11, 16, 24, 31, 32, 53)  # powers of 2 at which a dtype begins to round, or wraps around
OPSETS = (11, 12, 13, 17, 18, 21)
ATTRIBUTES: Mapping[str, Sequence[object]] = {
    "allowzero": (0, 1), "axes": ([0], [-1]), "axis": (0, -1), "batch_dims": (0,), "blocksize": (1,), "direction":
    ("LEFT", "RIGHT"), "end": (1, -1), "ends": ([1], [2**63 - 1], [-(2**63)]), "equation": ("i,i->i", "i->", "i,i->"),
    "exclusive": (0, 1), "fmod": (0, 1), "keepdims": (1, 0), "k": (1, 0), "largest": (1, 0), "max": (1.0, -3e38),
    "min": (-1.0, 3e38), "mode": ("constant", "edge"), "noop_with_empty_axes": (0, 1), "num_outputs": (2,),
    "pads": ([1, 0],), "perm": ([0], [1, 0]), "reduction": ("none", "add", "mul", "max", "min"), "reverse": (0, 1),
    "saturate": (1,), "select_last_index": (0, 1), "shape": ([-1],), "sorted": (1, 0), "split": ([1, 2],),
    "start": (0, -1), "starts": ([0], [-2]), "to": DTYPES, "upper": (1, 0), "value": (),
}  # fmt: skip
# Shapes, axes, counts and bounds that inputs are.
PARAMETERS = ([0], [1], [-1], [2], [3], [-2], [2**31 - 1], [2**53 + 1], [2**63 - 1], [-(2**63)], [1, 1], [0, 1], [])
OPERATORS = sorted(
    name for name in RULES if "." not in name and onnx.defs.has(name) and name not in ("If", "Loop", "Scan")
)
N, M = symbol("n"), symbol("m")
EXPRS = (N, M, N + M, 4 * N, N - 1, minimum(N, 7), N * M)
SIZES = [
    {"n": n, "m": m}
    for n, m in (
        (1, 1), (1, 2), (2, 1), (3, 5), (7, 7), (8, 3), (41, 59), (59, 41), (300, 301), (301, 2), (1000, 3), (4097, 2),
        (46341, 46341), (65537, 3), (2**24 - 1, 1), (2**24 + 1, 1), (3, 2**24 + 1), (2**31 - 1, 2), (2**31 - 1, 2**22),
    )
]  # fmt: skip


@cache
def numbers(dtype: int) -> np.ndarray:
    """Return numbers at the ends of a dtype, and where others begin to round or to wrap around."""
    near = {sign * (2**power + step) for power in NEAR for step in (-1, 0, 1) for sign in (1, -1)}
    if dtype in FLOATS:
        info = np.finfo(FLOATS[dtype])
        ends = [0.0, -0.0, 0.5, 1.0, -1.0, 1.5, 2.5, -2.5, 3.0, 0.1, info.max, -info.max, info.tiny]
        with np.errstate(over="ignore"):
            return np.array([*ends, np.inf, -np.inf, np.nan, *map(float, sorted(near))]).astype(FLOATS[dtype])
    low, high = integer_range(dtype)
    ends = [0, 1, -1, 2, 3, 7, 255, 256, 2**62, low, low + 1, high, high - 1]
    return np.array(sorted({each for each in (*ends, *near) if low <= each <= high}), numpy_kind(dtype))


def numpy_kind(dtype: int) -> np.dtype:
    return np.dtype(helper.tensor_dtype_to_np_dtype(dtype))


@dataclass(frozen=True, eq=False)
class Case:
    """A node on constants, of which one may be a graph input.

    Attributes:
        read: The input that is made of the graph input `s`, "" for none.
    """

    opset: int
    node: NodeProto
    constants: Mapping[str, np.ndarray]
    read: str = ""

    def __str__(self) -> str:
        attributes = {each.name: helper.get_attribute_value(each) for each in self.node.attribute}
        return f"{self.node.op_type}-{self.opset} {attributes} {dict(self.constants)} of sizes: {self.read or 'none'}"

    def model(self) -> Model:
        """Return it as a model."""
        outputs = [helper.make_empty_tensor_value_info(name) for name in self.node.output]
        graph = GraphProto(name="g", node=[self.node], output=outputs)
        for name, array in self.constants.items():
            if name != self.read:
                graph.initializer.append(numpy_helper.from_array(array, name))
        if self.read:
            array = self.constants[self.read]
            graph.input.append(helper.make_tensor_value_info("s", TensorProto.INT64, [len(EXPRS)]))
            kind = helper.np_dtype_to_tensor_dtype(array.dtype)
            shape = numpy_helper.from_array(np.array([-1, *[1] * (array.ndim - 1)]), "shape")
            graph.initializer.append(shape)
            nodes = (
                helper.make_node("Cast", ["s"], ["c"], to=kind),
                helper.make_node("Reshape", ["c", "shape"], [self.read]),
            )
            graph.ClearField("node")
            graph.node.extend([*nodes, self.node])
        opsets = [helper.make_opsetid("", self.opset)]
        return Model.from_proto(helper.make_model(graph, opset_imports=opsets, ir_version=10))


def cases(op_type: str, seed: int, most: int) -> Iterator[Case]:
    """Yield nodes of an operator on constants: some of each dtype and version."""
    rng = random.Random(f"{op_type} {seed}")
    versions = {
        onnx.defs.get_schema(op_type, opset).since_version: opset for opset in OPSETS if onnx.defs.has(op_type, opset)
    }
    for opset in versions.values():
        schema = onnx.defs.get_schema(op_type, opset)
        for dtype in DTYPES if not schema.deprecated else ():
            yield from itertools.islice(_of_dtype(schema, opset, dtype, rng), most)


def of_sizes(op_type: str, seed: int, most: int) -> Iterator[Case]:
    """Yield nodes of an operator of which one input is made of sizes."""
    for case in cases(op_type, seed, most):
        for name, array in case.constants.items():
            if array.ndim and not (array.ndim > 1 and array.shape[0] < array.size):
                yield Case(case.opset, case.node, case.constants, name)


def values_of_sizes() -> dict[str, np.ndarray]:
    """Return the elements of the graph input, for inference."""
    array = np.empty(len(EXPRS), object)
    array[:] = EXPRS
    return {"s": array}


def evaluated(exprs: Sequence[Expr], sizes: Mapping[str, int]) -> np.ndarray:
    return np.array([expr.evaluate(sizes) for expr in exprs], np.int64)


def _of_dtype(schema: onnx.defs.OpSchema, opset: int, dtype: int, rng: random.Random) -> Iterator[Case]:
    """Yield nodes in any order."""
    allowed = {
        each.type_param_str: {NAMES[text] for text in each.allowed_type_strs if text in NAMES}
        for each in schema.type_constraints
    }
    params = list(schema.inputs)
    if not params or dtype not in _types(params[0], allowed):
        return
    is_variadic = schema.max_input > 8
    counts = (1, 2, 3) if is_variadic else range(max(schema.min_input, 1), schema.max_input + 1)
    combined = [*itertools.product(counts, _attributes(schema, rng), range(5))]
    for count, attributes, layout in rng.sample(combined, len(combined)):
        inputs = [params[min(index, len(params) - 1)] for index in range(count)]
        arrays = [_array(each, at, params[0].type_str, dtype, allowed, layout, rng) for at, each in enumerate(inputs)]
        if any(array is None for array in arrays):
            continue
        names = [f"i{index}" for index in range(count)]
        results = attributes.get("num_outputs", max(1, min(schema.max_output, 2)))
        node = helper.make_node(schema.name, names, [f"o{index}" for index in range(int(str(results)))], **attributes)
        yield Case(opset, node, {name: array for name, array in zip(names, arrays, strict=True) if array is not None})


def _types(param: onnx.defs.OpSchema.FormalParameter, allowed: Mapping[str, set[int]]) -> set[int]:
    return allowed.get(param.type_str, {NAMES[param.type_str]} if param.type_str in NAMES else set())


def _attributes(schema: onnx.defs.OpSchema, rng: random.Random) -> Iterator[dict[str, object]]:
    """Yield some choices of attributes, none where a required one is not in the table."""
    required = {name for name, each in schema.attributes.items() if each.required}
    if not required <= ATTRIBUTES.keys():
        return
    names = [name for name in schema.attributes if name in ATTRIBUTES]
    choices = [[*ATTRIBUTES[name], *([] if name in required else [None])] for name in names]
    combined = list(itertools.islice(itertools.product(*choices), 4096))
    for chosen in combined if len(combined) <= 24 else rng.sample(combined, 24):
        yield {name: value for name, value in zip(names, chosen, strict=True) if value is not None}


def _array(
    param: onnx.defs.OpSchema.FormalParameter, at: int, first: str, dtype: int,
    allowed: Mapping[str, set[int]], layout: int, rng: random.Random,
) -> np.ndarray | None:  # fmt: skip
    """Return the elements of an input: along an axis of its own, a list, one number, two axes, or few of them."""
    kinds = _types(param, allowed)
    if not kinds:
        return None
    is_first_kind = param.type_str == first
    kind = dtype if is_first_kind else TensorProto.INT64 if TensorProto.INT64 in kinds else rng.choice(sorted(kinds))
    values = numbers(kind)
    if at and kind in INTEGERS and kind != TensorProto.BOOL and rng.random() < (0.2 if is_first_kind else 0.8):
        low, high = integer_range(kind)
        listed = np.array([each for each in rng.choice(PARAMETERS) if low <= each <= high], values.dtype)
        return listed.reshape(()) if listed.size == 1 and rng.random() < 0.3 else listed
    if layout == 0:
        return values.reshape(1, -1) if at else values.reshape(-1, 1)
    drawn = np.array([rng.choice(values) for _ in range((0, 5, 1, 6, rng.choice((0, 1, 3)))[layout])], values.dtype)
    return drawn.reshape(()) if layout == 2 else drawn.reshape(2, 3) if layout == 3 and at < 2 else drawn
