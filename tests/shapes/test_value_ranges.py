from __future__ import annotations

from collections.abc import Iterator
from itertools import product
from pathlib import Path

import numpy as np
import pytest
from chains import Chain, Skip, sizes_of
from graphs import model
from hypothesis import example, given
from hypothesis import strategies as st
from onnx import TensorProto, numpy_helper, parser
from properties import examples
from sessions import session_of

from graphkit.graph.dataflow import MAX_DEPTH
from graphkit.model import Model
from graphkit.ops.value_ranges import Affine, ValueRangeAnalysis
from graphkit.shapes import Shapes, Tensor, infer, is_known


def analysis(shapes: Shapes, *, typical: bool = False) -> ValueRangeAnalysis:
    return ValueRangeAnalysis(shapes.model, shapes.__getitem__, typical=typical)


def find(text: str, name: str = "y", **constants: object) -> Affine | None:
    found = model(text, **constants)
    return analysis(infer(found)).affine(found.graph.values[name])


def text_of(found: Affine | None) -> str:
    return "unknown" if found is None else f"{found.start} {[str(stride) for stride in found.strides]}"


def elements(found: Affine, dims: dict[str, int]) -> np.ndarray:
    sizes = [dim.evaluate(dims) for dim in found.dims]
    if 0 in sizes:
        return np.zeros(sizes, np.int64)
    total = np.full(sizes, found.start.evaluate(dims), np.int64)
    for axis, stride in enumerate(found.strides):
        steps = np.arange(sizes[axis]) * stride.evaluate(dims)
        total += steps.reshape([-1 if axis == other else 1 for other in range(len(sizes))])
    return total


# Random chains


def indices(c: Chain) -> str:
    return c.pick(lambda a: a.dtype == np.int64 and a.ndim > 0)


def numbers(c: Chain) -> str:
    dims = c.add("Shape", [c.data()])
    index = c.random.randrange(c.values[dims].size)
    number = c.add("Gather", [dims, c.constant(index)], axis=0)
    return number if c.random.random() < 0.7 else c.constant(c.random.randint(-1, 7))


def range_(c: Chain) -> None:
    c.add("Range", [c.constant(c.random.randint(-2, 2)), numbers(c), c.constant(c.random.choice([1, 1, 2, -1]))])


def constant(c: Chain) -> None:
    array = c.random.randint(-1, 2) + c.random.choice([1, 2]) * np.arange(c.random.randint(0, 4))
    c.constant(array if c.random.random() < 0.8 else [0, 1, 3])


def filled(c: Chain) -> None:
    value = numpy_helper.from_array(np.array([c.random.randint(0, 2)], np.int64))
    c.add("ConstantOfShape", [c.add("Shape", [indices(c)])], value=value)


def unsqueeze(c: Chain) -> None:
    source = indices(c)
    c.add("Unsqueeze", [source, c.constant([c.random.randint(0, c.values[source].ndim)])])


def squeeze(c: Chain) -> None:
    source = indices(c)
    if 1 not in c.values[source].shape:
        raise Skip
    c.add("Squeeze", [source, c.constant([c.values[source].shape.index(1)])])


def reshape(c: Chain) -> None:
    c.add("Reshape", [indices(c), c.constant(c.random.choice([[-1, 1], [1, -1], [-1, 1, 1], [-1], [0, 1, -1]]))])


def expand(c: Chain) -> None:
    c.add("Expand", [indices(c), c.add("Shape", [indices(c)])])


def transpose(c: Chain) -> None:
    source = indices(c)
    c.add("Transpose", [source], perm=c.random.sample(range(c.values[source].ndim), c.values[source].ndim))


def arithmetic(c: Chain) -> None:
    other = indices(c) if c.random.random() < 0.5 else numbers(c)
    result = c.add(c.random.choice(["Add", "Sub", "Mul"]), [indices(c), other])
    if np.abs(c.values[result]).max(initial=0) > 10**6:
        raise Skip  # further products would not fit int64


def slice_(c: Chain) -> None:
    source = indices(c)
    bounds = [c.constant([c.random.choice([0, 1, 2, -1, -2, -3, 5, 1 << 62, -(1 << 62)])]) for _ in range(2)]
    step = c.random.choice([1, 1, 2, -1])
    c.add("Slice", [source, *bounds, c.constant([c.axis(source)]), c.constant([step])])


def gather(c: Chain) -> None:
    source = indices(c)
    at = indices(c) if c.random.random() < 0.5 else c.constant(c.random.choice([0, 1, -1]))
    c.add("Gather", [source, at], axis=c.axis(source))


def cast(c: Chain) -> None:
    c.add("Cast", [c.add("Cast", [indices(c)], to=c.random.choice([6, 6, 2]))], to=TensorProto.INT64)


def summed(c: Chain) -> None:
    source = indices(c)
    c.add(
        "CumSum", [source, c.constant(c.axis(source))], exclusive=c.random.randint(0, 1), reverse=c.random.randint(0, 1)
    )


def limited(c: Chain) -> None:
    c.add(c.random.choice(["Min", "Max"]), [indices(c), c.constant(c.random.randint(-1, 4))])


def clip(c: Chain) -> None:
    c.add("Clip", [indices(c), c.constant(c.random.randint(-1, 1)), c.constant(c.random.randint(2, 4))])


def tile(c: Chain) -> None:
    source = indices(c)
    c.add("Tile", [source, c.constant([c.random.randint(0, 2) for _ in range(c.values[source].ndim)])])


def choose(c: Chain) -> None:
    condition = c.add("Equal", [indices(c), c.constant(c.random.randint(0, 1))])
    c.add("Where", [c.add("Not", [condition]) if c.random.random() < 0.5 else condition, indices(c), indices(c)])


def via_float(c: Chain) -> None:
    source = c.add("Cast", [indices(c)], to=TensorProto.FLOAT)
    c.add("Cast", [c.add("Add", [source, source])], to=TensorProto.INT64)


class Indices(Chain):
    integers = {"attention_mask": 1, "input_ids": 99991}
    steps = (range_, range_, constant, filled, unsqueeze, squeeze, reshape, expand, transpose, arithmetic, arithmetic)
    steps += (slice_, slice_, gather, gather, cast, summed, limited, clip, tile, choose, via_float)


OTHER_DIMS = [{"batch": 2, "seq": 5, "past": 3}, {"batch": 1, "seq": 1, "past": 0}]


UNTYPICAL = {"attention_mask": 0, "input_ids": 1}


def runs(chain: Chain, names: list[str]) -> Iterator[tuple[dict[str, int], bool, dict[str, np.ndarray]]]:
    """Yield dims, whether the inputs are typical, and what onnxruntime gives, where it runs."""
    proto = chain.model()
    session = session_of(proto)
    for dims, integers in product((chain.assignment, *OTHER_DIMS), (chain.integers, UNTYPICAL)):
        feeds = {}
        for value in proto.graph.input:
            sizes = [dims.get(dim.dim_param, dim.dim_value) for dim in value.type.tensor_type.shape.dim]
            feeds[value.name] = np.full(sizes, integers.get(value.name, 0), chain.values[value.name].dtype)
        try:
            yield dims, integers is chain.integers, dict(zip(names, session.run(names, feeds), strict=True))
        except Exception as error:
            is_first = dims is chain.assignment and integers is chain.integers
            if is_first or "onnxruntime" not in type(error).__module__:
                raise


def check(seed: int) -> tuple[int, int, int]:
    """Compare what is found with what onnxruntime gives; return how many tensors there are, are affine, have a range.

    Only affine functions hold of all inputs: ranges are those at typical ones.
    """
    chain = Indices(seed)
    model = Model.from_proto(chain.model())
    shapes = infer(model)
    made = {name: shapes.find(name) for node in chain.nodes for name in node.output}
    integers = {name: value for name, value in made.items() if shapes[value].dtype == TensorProto.INT64}
    plain, typical = analysis(shapes), analysis(shapes, typical=True)
    affine = {name: one for name, value in integers.items() if (one := plain.affine(value)) is not None}
    ranges = {name: one for name, value in integers.items() if (one := typical.range(value)) is not None}
    for names_and_sizes, is_typical, results in runs(chain, list(integers)) if integers else ():
        dims, at = sizes_of(model, names_and_sizes), f"seed {seed}, {names_and_sizes}"
        for name, one in affine.items():
            if all(is_known(expr) for expr in (one.start, *one.dims, *one.strides)):
                np.testing.assert_array_equal(elements(one, dims), results[name], f"{name}, {at}")
        for name, ends in ranges.items() if is_typical else ():
            if results[name].size:
                reached = results[name].min(), results[name].max()
                assert reached == (ends.low.evaluate(dims), ends.high.evaluate(dims)), f"{name}, {at}"
    return len(integers), len(affine), len(ranges)


@examples(12, 80)
@given(st.integers(0, 10**9))
@example(100759)  # a dim times 2**62
@example(1730)  # a sum of -2**62 as often as there are tokens
def test_what_is_found_is_what_onnxruntime_gives(seed):
    check(seed)


def test_most_tensors_of_random_chains_are_found():
    total, affine, ranges = map(sum, zip(*(check(seed) for seed in range(15)), strict=True))
    assert affine > 0.6 * total
    assert ranges > 0.6 * total


# One by one


RANGE = """agraph (float[N, past] x) => (int64[A] y) <int64 zero = {0}, int64 one = {1}, int64[1] last = {-1}> {
    s = Shape (x)  n = Gather (s, zero)  p = Gather (s, one)  first = Shape <end = 1> (x)
"""


@pytest.mark.parametrize(
    ("lines", "expected"),
    [
        ("y = Range (p, n, one)", "past ['1']"),
        ("r = Range (zero, n, one)  y = Add (r, p)", "past ['1']"),
        ("r = Range (zero, n, one)  y = Mul (p, r)", "0 ['past']"),
        ("r = Range (zero, n, one)  y = Sub (p, r)", "past ['-1']"),
        ("r = Range (zero, n, one)  y = Mul (r, r)", "unknown"),
        ("r = Range (zero, n, one)  u = Unsqueeze (r, last)  y = Add (u, r)", "0 ['1', '1']"),
        ("r = Range (zero, n, one)  u = Unsqueeze (r, last)  y = Expand (u, s)", "0 ['1', '0']"),
        ("r = Range (zero, p, one)  t = Range (zero, n, one)  y = Gather (t, r)", "0 ['1']"),
        ("r = Range (zero, n, one)  m = Sub (r, one)  y = Gather (r, m)", "unknown"),
        ("r = Range (zero, n, one)  y = Slice (r, last, first)", "N - 1 ['0']"),
        ("r = Range (zero, n, one)  d = Sub (n, p)  e = Unsqueeze (d, last)  y = Slice (r, e, s)", "unknown"),
        ("y = Not_known (p)", "unknown"),
        ("y = Identity (x)", "unknown"),
        ("r = Range (zero, n, one)  y = Slice <starts = [0], ends = [1]> (r)", "unknown"),
        ("y = ConstantOfShape (s)", "unknown"),
        ("y = ConstantOfShape <value = int64[1] {7}> (s)", "7 ['0', '0']"),
    ],
)
def test_each_operator(lines, expected):
    assert text_of(find(f"{RANGE} {lines} }}")) == expected


def test_a_slice_from_the_end_starts_at_0_where_it_would_start_before():
    text = """agraph (float[N] x) => (int64[A] y) <int64 zero = {0}, int64 one = {1}, int64[1] first = {-3}> {
        s = Shape (x)  n = Squeeze (s)  r = Range (zero, n, one)  y = Slice (r, first, s) }"""
    assert text_of(find(text)) == "max(0, N - 3) ['1']"


@pytest.mark.parametrize(
    ("array", "expected"),
    [
        (np.arange(1000), "0 ['1']"),
        (np.arange(1000)[::-1] * 3, "2997 ['-3']"),
        (np.arange(2000).reshape(2, 1000), "0 ['1000', '1']"),
        (np.arange(1000) ** 2, "unknown"),
        (np.arange(1000) * 2**40, "unknown"),
        (np.zeros((0, 3), np.int64), "0 ['0', '0']"),
    ],
)
def test_constants_of_any_size(array, expected):
    assert text_of(find("agraph () => (int64[A] y) { y = Identity (w) }", w=array)) == expected


def test_a_constant_whose_file_is_missing_is_unknown(tmp_path: Path):
    proto = model("agraph () => (int64[A] y) { y = Identity (w) }").proto
    tensor = proto.graph.initializer.add(name="w", dims=[1000], data_type=TensorProto.INT64)
    tensor.data_location = TensorProto.EXTERNAL
    tensor.external_data.add(key="location", value="gone.bin")
    found = Model.from_proto(proto, tmp_path / "model.onnx")
    assert analysis(infer(found)).affine(found.graph.values["y"]) is None


def test_long_chains_end():
    lines = "".join(f"a{i + 1} = Add (a{i}, one)  " for i in range(2 * MAX_DEPTH))
    text = f"{RANGE} a0 = Range (zero, n, one)  {lines} y = Identity (a0) }}"
    assert text_of(find(text, f"a{MAX_DEPTH - 10}")) == f"{MAX_DEPTH - 10} ['1']"
    assert find(text, f"a{2 * MAX_DEPTH}") is None


def test_components_are_the_slices_along_the_last_axis():
    text = f"""{RANGE} r = Range (zero, n, one)  i = Unsqueeze (r, last)  j = Mul (i, p)
        y = Concat <axis = -1> (i, j, pair)  z = Identity (pair) }}"""
    found = model(text, pair=np.array([[3, 5]]))
    ranges = analysis(infer(found))
    assert [text_of(one) for one in ranges.components(found.graph.values["z"]) or ()] == ["3 ['0']", "5 ['0']"]
    assert ranges.components(found.graph.values["x"]) is None


@pytest.mark.parametrize(
    ("lines", "expected"),
    [
        ("r = Range (zero, n, one)  y = Gather (r, last)", "N - 1 ['0']"),
        ("r = Range (zero, n, one)  y = Min (r, one, p)", "unknown"),
        ("r = Range (zero, n, one)  y = Cast <to = 3> (r)", "unknown"),
        ("r = Range (zero, n, one)  f = Cast <to = 1> (r)  y = Cast <to = 7> (f)", "unknown"),
        ("y = ConstantOfShape <value = float[1] {0.5}> (s)", "unknown"),
    ],
)
def test_what_is_declined_for_untypical_inputs(lines, expected):
    assert text_of(find(f"{RANGE} {lines} }}")) == expected


def test_an_attribute_of_a_call_is_not_read_as_0():
    text = """<ir_version: 9, opset_import: ["" : 18, "local" : 1]>
        agraph (float[3, N] x) => (int64[A] y) { y = local.pick <axis = 1> () }
        <domain: "local", opset_import: ["" : 18]> pick <axis> () => (z) {
            table = Constant <value = int64[2, 2] {0, 1, 10, 11}> ()
            first = Constant <value = int64[1] {0}> ()
            z = Gather <axis: int = @axis> (table, first)
        }"""
    found = Model.from_proto(parser.parse_model(text))
    (function,) = found.scopes[1:]
    unknown = {function.values["z"]: Tensor(TensorProto.INT64, (2, 1))}
    ranges = ValueRangeAnalysis(found, lambda value: unknown.get(value) or infer(found)[value])
    assert ranges.of(function.values["z"]) is None
