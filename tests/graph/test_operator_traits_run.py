"""Each operator does what the table says of it, and one that does the same is in the table: they are run."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import suppress
from functools import cache

import numpy as np
import onnx
import onnx.defs
import onnxruntime
import pytest
from onnx import helper
from onnx.defs import OpSchema
from onnx.reference import ReferenceEvaluator
from onnxruntime.capi.onnxruntime_pybind11_state import Fail
from onnxruntime.capi.onnxruntime_pybind11_state import NotImplemented as NoKernelError
from sessions import ALL, session_of

from graphkit.graph.operator_traits import BROADCASTING, MOVING, PRESERVING, RESHAPING, UNARY, UNIDIRECTIONAL

OPSET = onnx.defs.onnx_opset_version()
SCHEMAS = {schema.name: schema for schema in onnx.defs.get_all_schemas() if not schema.domain and not schema.deprecated}
OLDEST: dict[str, int] = {}
for schema in onnx.defs.get_all_schemas_with_history():
    if not schema.domain:
        OLDEST[schema.name] = min(schema.since_version, OLDEST.get(schema.name, OPSET))


def model_of(node: onnx.NodeProto, arrays: Sequence[np.ndarray], opset: int) -> onnx.ModelProto:
    inputs = [
        helper.make_tensor_value_info(name, helper.np_dtype_to_tensor_dtype(array.dtype), array.shape)
        for name, array in zip(node.input, arrays, strict=True)
    ]
    outputs = [helper.make_value_info(name, onnx.TypeProto()) for name in node.output]
    graph = helper.make_graph([node], "g", inputs, outputs)
    opsets = [helper.make_opsetid("", opset), helper.make_opsetid("com.microsoft", 1)]
    return helper.make_model(graph, opset_imports=opsets, ir_version=10)


def loaded(node: onnx.NodeProto, arrays: Sequence[np.ndarray], opset: int) -> onnxruntime.InferenceSession:
    return session_of(model_of(node, arrays, opset), ALL)


@cache
def latest_opset() -> int:
    """Return the latest opset of those that onnx has that onnxruntime loads."""
    for opset in range(OPSET, 20, -1):
        with suppress(Fail):
            loaded(helper.make_node("Abs", ["x"], ["y"]), [np.zeros(1, "f4")], opset)
            return opset
    raise AssertionError("onnxruntime loads no opset")


def run(op: str, arrays: Sequence[np.ndarray], attributes: dict[str, object] | None = None) -> np.ndarray:
    """Return the first output of an operator as onnxruntime gives it, or onnx where onnxruntime does not have it."""
    domain, _, name = op.rpartition(".")
    names = [f"x{index}" for index in range(len(arrays))]
    node = helper.make_node(name, names, ["y"], domain=domain, **(attributes or {}))
    feeds = dict(zip(names, arrays, strict=True))
    is_new = not domain and OLDEST[name] > latest_opset()
    try:
        session = None if is_new else loaded(node, arrays, latest_opset())
    except NoKernelError:  # there is no kernel for it
        session = None
    if session is None:
        return np.asarray(ReferenceEvaluator(model_of(node, arrays, OPSET)).run(None, feeds)[0])
    return np.asarray(session.run(None, feeds)[0])


DTYPES = {
    "tensor(float)": "f4",
    "tensor(int64)": "i8",
    "tensor(int32)": "i4",
    "tensor(uint8)": "u1",
    "tensor(bool)": "?",
}
REQUIRED = {
    "Cast": {"to": 6},
    "BitCast": {"to": 6},
    "BitShift": {"direction": "LEFT"},
    "RegexFullMatch": {"pattern": "a.*"},
}


def dtypes_of(schema: OpSchema, count: int) -> list[str] | None:
    """Return a dtype for each of the first inputs, None where there is none that numpy has."""
    if schema.name in ("BitShift", "Mod"):  # onnxruntime shifts unsigned integers, and has no remainder of floats
        return ["u1", "u1"]
    constraints = {one.type_param_str: one.allowed_type_strs for one in schema.type_constraints}
    found = []
    for index in range(count):
        written = schema.inputs[min(index, len(schema.inputs) - 1)].type_str
        allowed = constraints.get(written, [written])
        found.append(
            next(
                (dtype for text, dtype in DTYPES.items() if text in allowed), "O" if "tensor(string)" in allowed else ""
            )
        )
    return found if all(found) else None


def drawn(dtype: str, shape: tuple[int, ...], seed: int = 0) -> np.ndarray:
    rng = np.random.default_rng(seed)
    if dtype == "O":
        return rng.choice(np.array(["a", "ab", "b", ""], object), shape)
    if dtype == "f4":
        return rng.uniform(-2, 2, shape).astype("f4")
    return rng.integers(0, 2 if dtype == "?" else 7, shape).astype(dtype)


def equal(left: np.ndarray, right: np.ndarray) -> bool:
    if left.dtype.kind != "f":
        return left.shape == right.shape and bool(np.all(left == right))
    return left.shape == right.shape and np.allclose(left, right, rtol=1e-5, atol=1e-6, equal_nan=True)


@cache
def works_elementwise(op: str) -> bool:
    """Whether an operator of one input gives the same in any order, and another element where one is another."""
    schema = SCHEMAS[op]
    dtypes = dtypes_of(schema, 1)
    if dtypes is None:
        return False
    x = drawn(dtypes[0], (2, 1, 3, 5))
    order = np.random.default_rng(1).permutation(x.size)
    other = x.copy()
    other[0, 0, 0, 0] = {"O": "zzz", "?": not x[0, 0, 0, 0], "f4": 9.5}.get(dtypes[0], 100)
    try:
        with np.errstate(all="ignore"):
            y, mixed, changed = (
                run(op, [array], REQUIRED.get(op)) for array in (x, x.ravel()[order].reshape(x.shape), other)
            )
    except Exception:  # the reference evaluator raises anything for what it cannot run
        return False
    return (
        y.shape == x.shape
        and equal(y.ravel()[order].reshape(x.shape), mixed)
        and equal(y.ravel()[1:], changed.ravel()[1:])
    )


@cache
def works_broadcasting(op: str, shapes: tuple[tuple[int, ...], ...]) -> bool:
    """Whether an operator gives for shapes what it gives for what they broadcast to, each element by itself."""
    dtypes = dtypes_of(SCHEMAS[op], len(shapes))
    if dtypes is None:
        return False
    arrays = [
        np.maximum(drawn(dtype, shape, seed), 1) if dtype[0] in "iu" else drawn(dtype, shape, seed)
        for seed, (dtype, shape) in enumerate(zip(dtypes, shapes, strict=True))
    ]
    whole = [np.ascontiguousarray(array) for array in np.broadcast_arrays(*arrays)]
    order = np.random.default_rng(1).permutation(whole[0].size)
    mixed = [array.ravel()[order].reshape(array.shape) for array in whole]
    try:
        with np.errstate(all="ignore"):
            y, full, other = (run(op, inputs, REQUIRED.get(op)) for inputs in (arrays, whole, mixed))
    except Exception:  # the reference evaluator raises anything for what it cannot run
        return False
    return y.shape == whole[0].shape and equal(y, full) and equal(full.ravel()[order].reshape(full.shape), other)


BOTH = ((3, 1, 5), (2, 1, 3, 1))
SECOND = ((2, 3, 5), (3, 1))


def of_onnx(count: int) -> Iterator[str]:
    for name, schema in SCHEMAS.items():
        if schema.min_input <= count <= schema.max_input:
            yield name


# What gives its input back, as it is called here: a Dropout draws random numbers elsewhere.
UNCHANGED = {"Dropout", "Optional", "OptionalGetElement", "Split"}


@pytest.mark.cases(38)
@pytest.mark.parametrize("op", sorted(set(of_onnx(1)) - UNCHANGED))
def test_unary_operators(op: str) -> None:
    assert works_elementwise(op) == (op in UNARY | BROADCASTING.keys())


@pytest.mark.parametrize("op", sorted(set(of_onnx(2)) - {"CastLike"}))  # which reads the second input's type alone
def test_broadcasting_operators(op: str) -> None:
    if op not in UNIDIRECTIONAL:  # onnxruntime broadcasts both inputs, which the specification does not promise
        assert works_broadcasting(op, BOTH) == (op in BROADCASTING)
    assert works_broadcasting(op, SECOND) == (op in BROADCASTING.keys() | UNIDIRECTIONAL.keys())


def test_where_broadcasts() -> None:
    assert works_broadcasting("Where", ((3, 1, 5), (2, 1, 3, 1), (1,)))


CONTRIB = {
    "Gelu": [],
    "QuickGelu": [],
    "ScaledSiLU": [np.float32(2)],
    "QLinearSigmoid": [np.float32(0.1), np.uint8(3), np.float32(0.01), np.uint8(0)],
    "QLinearLeakyRelu": [np.float32(0.1), np.uint8(3), np.float32(0.1), np.uint8(9)],
}


def test_unary_operators_of_onnxruntime() -> None:
    assert {name.rpartition(".")[2] for name in UNARY if "." in name} == CONTRIB.keys()
    for name, others in CONTRIB.items():
        x = drawn("u1" if name.startswith("QLinear") else "f4", (2, 1, 3, 5))
        order = np.random.default_rng(1).permutation(x.size)
        y, mixed = (run(f"com.microsoft.{name}", [array, *map(np.asarray, others)]) for array in (x, x.ravel()[order]))
        assert y.shape == x.shape
        assert equal(y.ravel()[order], mixed), name


MOVED: dict[str, tuple[list[np.ndarray], dict[str, object]]] = {
    "Compress": ([np.array([True, False, True])], {"axis": 2}),
    "Concat": ([], {"axis": 1}),
    "DepthToSpace": ([], {"blocksize": 2}),
    "Expand": ([np.array([2, 1, 4, 3, 2])], {}),
    "Flatten": ([], {}),
    "Gather": ([np.array([[2, 0], [0, 0]])], {"axis": 2}),
    "GatherElements": ([np.ones((1, 4, 1, 1), np.int64)], {"axis": 2}),
    "GatherND": ([np.array([[0, 1], [0, 3]])], {}),
    "Identity": ([], {}),
    "Reshape": ([np.array([3, -1])], {}),
    "ReverseSequence": ([np.array([1, 0, 1, 1])], {"time_axis": 0, "batch_axis": 1}),
    "Slice": ([np.array([2]), np.array([0]), np.array([2]), np.array([-1])], {}),
    "SpaceToDepth": ([], {"blocksize": 2}),
    "Split": ([], {"axis": 1, "num_outputs": 1}),
    "Squeeze": ([np.array([0])], {}),
    "Tile": ([np.array([1, 2, 1, 3])], {}),
    "Transpose": ([], {"perm": [0, 3, 1, 2]}),
    "Unsqueeze": ([np.array([1])], {}),
}


@pytest.mark.parametrize("op", sorted(MOVING))
def test_operators_that_move_elements(op: str) -> None:
    x = np.arange(24, dtype="f4").reshape(1, 4, 3, 2)
    if op == "SpaceToDepth":
        x = x.reshape(1, 1, 4, 6)
    others, attributes = MOVED[op]
    y = run(op, [x, *others], attributes)
    assert set(y.ravel()) <= set(x.ravel())
    assert (op not in PRESERVING) or set(y.ravel()) == set(x.ravel())
    assert (op not in RESHAPING) or y.ravel().tolist() == x.ravel().tolist()


def test_what_reshapes_and_what_preserves_is_not_too_much() -> None:
    x = np.arange(24, dtype="f4").reshape(1, 4, 3, 2)
    for op in PRESERVING - RESHAPING - {"Identity", "ReverseSequence", "SpaceToDepth"}:
        assert run(op, [x, *MOVED[op][0]], MOVED[op][1]).ravel().tolist() != x.ravel().tolist()
    for op in MOVING - PRESERVING - {"Concat", "Split"}:
        assert len(set(run(op, [x, *MOVED[op][0]], MOVED[op][1]).ravel())) < x.size
