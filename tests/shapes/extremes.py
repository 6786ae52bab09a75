"""Nodes of every operator that has a shape rule, on numbers at the ends of each dtype: what the engine says of them.

The schemas of onnx say which inputs and attributes an operator has, so that a rule that is added later is tested, too.
"""

from __future__ import annotations

import itertools
import random
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field

import numpy as np
import onnx
from onnx import NodeProto, TensorProto, helper, numpy_helper

from graphkit.dtypes import FLOATS, INTEGERS, integer_range

__all__ = ["ATTRIBUTES", "DTYPES", "Case", "cases", "numbers"]

DTYPES = [*sorted(INTEGERS), *FLOATS]
NAMES = {f"tensor({name})": dtype for name, dtype in (
    ("bool", TensorProto.BOOL), ("int8", TensorProto.INT8), ("int16", TensorProto.INT16),
    ("int32", TensorProto.INT32), ("int64", TensorProto.INT64), ("uint8", TensorProto.UINT8),
    ("uint16", TensorProto.UINT16), ("uint32", TensorProto.UINT32), ("uint64", TensorProto.UINT64),
    ("float16", TensorProto.FLOAT16), ("float", TensorProto.FLOAT), ("double", TensorProto.DOUBLE),
)}  # fmt: skip
EDGES = [0, 1, 2, 3, 7, 255, 256, *(2**k + d for k in (11, 24, 31, 32, 53) for d in (-1, 0, 1)), 2**62]
ATTRIBUTES: dict[str, Sequence[object]] = {
    "axis": (0, -1), "keepdims": (1, 0), "noop_with_empty_axes": (0, 1), "axes": ([0], [-1]), "fmod": (0, 1),
    "exclusive": (0, 1), "reverse": (0, 1), "direction": ("LEFT", "RIGHT"), "largest": (1, 0), "sorted": (1, 0),
    "select_last_index": (0, 1), "to": DTYPES, "saturate": (1,), "upper": (1, 0), "equation": ("i,i->i", "i->", "ij->ji", "i,i->"),
    "detect_negative": (1, 0), "detect_positive": (1, 0), "perm": ([0], [1, 0]), "batch_dims": (0,),
    "reduction": ("none", "add", "mul", "max", "min"), "allowzero": (0, 1), "num_outputs": (2,), "split": ([1, 2],),
    "start": (0, -1), "end": (1, -1), "mode": ("constant", "edge", "wrap"), "pads": ([1, 0],), "k": (1, 0),
    "starts": ([0], [-2]), "ends": ([1], [2**63 - 1], [-(2**63)]), "shape": ([-1],), "blocksize": (1,),
    "min": (-1.0, 3e38), "max": (1.0, -3e38), "round_mode": ("DOWN", "UP"),
}  # fmt: skip
# Inputs that are read as shapes, axes, counts or bounds.
PARAMETERS = [[0], [1], [-1], [2], [3], [-2], [2**31 - 1], [2**63 - 1], [-(2**63)], [-(2**31)], [1, 1], [0, 1], []]


def numbers(dtype: int) -> np.ndarray:
    """Return numbers at the ends of a dtype, and where others begin to round or to wrap around."""
    if dtype in FLOATS:
        kind = FLOATS[dtype]
        most, tiny = np.finfo(kind).max, np.finfo(kind).tiny
        found = [0.0, -0.0, 0.5, 1.0, -1.0, 1.5, 2.5, -2.5, 3.0, 0.1, 1e-3, most, -most, tiny, np.inf, -np.inf, np.nan]
        found += [sign * float(2**k + d) for k in (11, 24, 31, 53) for d in (-1, 0, 1) for sign in (1, -1)]
        with np.errstate(over="ignore"):
            return np.array(found).astype(kind)
    low, high = integer_range(dtype)
    signed = {sign * number + off for number in EDGES for sign in (1, -1) for off in (0,)}
    found = sorted({number for number in {*signed, low, low + 1, high, high - 1} if low <= number <= high})
    return np.array(found, helper.tensor_dtype_to_np_dtype(dtype))


@dataclass(frozen=True, eq=False)
class Case:
    """A node on constants, or on numbers of a graph input.

    Attributes:
        opset: That of its model.
        node: Inputs are `a`, `b`, ..., outputs `y`, `z`, ...
        constants: The inputs, by name.
    """

    opset: int
    node: NodeProto
    constants: dict[str, np.ndarray]
    kind: str = field(default="")

    def __str__(self) -> str:
        shown = {
            name: array.tolist() if array.size < 4 else f"{array.dtype}{array.shape}"
            for name, array in self.constants.items()
        }
        attributes = {each.name: helper.get_attribute_value(each) for each in self.node.attribute}
        return f"{self.node.op_type}-{self.opset} {attributes} {shown}"


OPSETS = (11, 12, 13, 17, 18, 21)


def cases(op_type: str, seed: int, most: int = 40) -> Iterator[Case]:
    """Yield nodes of an operator: each dtype of each version, with some attributes and shapes."""
    rng = random.Random(f"{op_type} {seed}")
    seen = set()
    for opset in OPSETS:
        try:
            schema = onnx.defs.get_schema(op_type, opset)
        except onnx.defs.SchemaError:
            continue
        if schema.deprecated or schema.since_version in seen and opset != OPSETS[-1]:
            continue
        seen.add(schema.since_version)
        for dtype in DTYPES:
            made = list(_of_dtype(schema, opset, dtype, rng))
            yield from made if len(made) <= most else rng.sample(made, most)


def _of_dtype(schema: onnx.defs.OpSchema, opset: int, dtype: int, rng: random.Random) -> Iterator[Case]:
    allowed = {
        each.type_param_str: {NAMES[t] for t in each.allowed_type_strs if t in NAMES}
        for each in schema.type_constraints
    }
    params = list(schema.inputs)
    if not params:
        return
    first = params[0]
    types = allowed.get(first.type_str, {NAMES[first.type_str]} if first.type_str in NAMES else set())
    if dtype not in types:
        return
    for count in _counts(schema):
        inputs = [params[min(index, len(params) - 1)] for index in range(count)]
        for attributes in _attributes(schema, rng):
            for shapes in range(5):
                arrays = [
                    _array(param, index, first, dtype, allowed, shapes, rng) for index, param in enumerate(inputs)
                ]
                if any(array is None for array in arrays):
                    continue
                names = [f"i{index}" for index in range(count)]
                outputs = [f"o{index}" for index in range(max(1, min(schema.max_output, 2)))]
                if op_outputs := attributes.get("num_outputs"):
                    outputs = [f"o{index}" for index in range(op_outputs)]  # type: ignore[call-overload]
                node = helper.make_node(schema.name, names, outputs, **attributes)
                yield Case(opset, node, dict(zip(names, arrays, strict=True)), str(shapes))  # type: ignore[arg-type]


def _counts(schema: onnx.defs.OpSchema) -> list[int]:
    if schema.max_input > 8:  # any number
        return [1, 2, 3]
    return list(range(max(schema.min_input, 1), schema.max_input + 1))


def _attributes(schema: onnx.defs.OpSchema, rng: random.Random) -> Iterator[dict[str, object]]:
    names = [name for name in schema.attributes if name in ATTRIBUTES]
    missing = [name for name, each in schema.attributes.items() if each.required and name not in ATTRIBUTES]
    if missing:
        return
    required = {name for name in names if schema.attributes[name].required}
    choices = [[*ATTRIBUTES[name], *([] if name in required else [None])] for name in names]
    combined = list(itertools.islice(itertools.product(*choices), 4096))
    for chosen in combined if len(combined) <= 24 else rng.sample(combined, 24):
        yield {name: value for name, value in zip(names, chosen, strict=True) if value is not None}


def _array(
    param: onnx.defs.OpSchema.FormalParameter, index: int, first: onnx.defs.OpSchema.FormalParameter, dtype: int,
    allowed: dict[str, set[int]], shapes: int, rng: random.Random,
) -> np.ndarray | None:  # fmt: skip
    """Return the elements of an input: along an axis of its own, in a list, one number, or a few in two axes."""
    kinds = allowed.get(param.type_str, {NAMES[param.type_str]} if param.type_str in NAMES else set())
    if not kinds:
        return None
    kind = (
        dtype
        if param.type_str == first.type_str or index == 0
        else TensorProto.INT64
        if TensorProto.INT64 in kinds
        else rng.choice(sorted(kinds))
    )
    values = numbers(kind)
    is_parameter = index > 0 and param.type_str != first.type_str and kind in (TensorProto.INT64, TensorProto.INT32)
    if (
        is_parameter
        and rng.random() < 0.8
        or (index > 0 and rng.random() < 0.15 and kind in INTEGERS and kind != TensorProto.BOOL)
    ):
        chosen = [
            number for number in rng.choice(PARAMETERS) if integer_range(kind)[0] <= number <= integer_range(kind)[1]
        ]
        array = np.array(chosen, values.dtype)
        return array.reshape(()) if array.size == 1 and rng.random() < 0.3 else array
    if shapes == 0:
        return values.reshape(-1, 1) if index == 0 else values.reshape(1, -1)
    if shapes == 1:
        return rng_take(values, 5, rng)
    if shapes == 2:
        return rng_take(values, 1, rng).reshape(())
    if shapes == 3:
        return rng_take(values, 6, rng).reshape(2, 3) if index < 2 else rng_take(values, 1, rng)
    return rng_take(values, rng.choice((0, 1, 3)), rng)


def rng_take(values: np.ndarray, count: int, rng: random.Random) -> np.ndarray:
    return np.array([values[rng.randrange(len(values))] for _ in range(count)], values.dtype)


def constant(name: str, array: np.ndarray) -> TensorProto:
    return numpy_helper.from_array(array, name)
