"""What moves the elements of a constant gives the constant that numpy makes of it, bit by bit."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import onnx.parser
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from onnx import TensorProto
from small_models import model

from graphkit.equivalence import check_equivalence, flat
from graphkit.equivalence.movement import Movement, align_dims
from graphkit.equivalence.terms import Constants, Term, Terms
from graphkit.model import Model, load
from graphkit.shapes import const

NUMBERS = (0.0, -0.0, 1.0, np.nan, np.inf, -np.inf, 1e-45, 3e38)


def tools() -> tuple[Constants, Movement]:
    terms = Terms()
    constants = Constants(terms)
    return constants, Movement(terms, constants)


def drawn(seed: int, sizes: list[int]) -> np.ndarray:
    return np.random.default_rng(seed).choice(np.array(NUMBERS, np.float32), sizes)


def is_constant_of(constants: Constants, term: Term, array: np.ndarray) -> bool:
    return term is constants.of_array(np.ascontiguousarray(array), TensorProto.FLOAT)


@settings(max_examples=60, derandomize=True, database=None)
@given(st.integers(0, 99), st.lists(st.tuples(st.integers(1, 4), st.booleans()), max_size=3), st.integers(1, 3))
def test_an_expand(seed: int, axes: list[tuple[int, bool]], leading: int) -> None:
    constants, move = tools()
    array = drawn(seed, [1 if is_repeated else size for size, is_repeated in axes])
    sizes = (leading, *(size for size, _ in axes))
    made = move.expand(constants.of_array(array, TensorProto.FLOAT), tuple(map(const, sizes)))
    assert is_constant_of(constants, made, np.broadcast_to(array, sizes))
    assert constants.without_repeats(made) is without_repeats(constants, array, len(sizes))


def without_repeats(constants: Constants, array: np.ndarray, rank: int) -> Term:
    """Return an array as a constant of a rank, without repeats."""
    padded = array.reshape((1,) * (rank - array.ndim) + array.shape)
    return constants.without_repeats(constants.of_array(padded, TensorProto.FLOAT))


@settings(max_examples=60, derandomize=True, database=None)
@given(st.integers(0, 99), st.lists(st.integers(1, 4), min_size=1, max_size=3), st.data())
def test_a_slice(seed: int, sizes: list[int], data: st.DataObject) -> None:
    constants, move = tools()
    array = drawn(seed, sizes)
    axis = data.draw(st.integers(0, len(sizes) - 1))
    start = data.draw(st.integers(0, sizes[axis]))
    length = data.draw(st.integers(0, sizes[axis] - start))
    made = move.slice(constants.of_array(array, TensorProto.FLOAT), axis, const(start), const(length))
    assert is_constant_of(constants, made, array.take(range(start, start + length), axis))


TWO = """<ir_version: 9, opset_import: ["" : 17]> agraph (float[N, 200] x) => (float[N, 100] y) {
    a = MatMul (x, w) b = MatMul (x, v) y = Add (a, b) }"""
ONE = """<ir_version: 9, opset_import: ["" : 17]> agraph (float[N, 200] x) => (float[N, 100] y) {
    a = MatMul (x, w) b = MatMul (x, w) y = Add (a, b) }"""
W = drawn(0, [200, 100])  # 80 kB, more than is hashed in any case


def stored(text: str, path: Path, *, inside: bool, **weights: np.ndarray) -> Model:
    proto = onnx.parser.parse_model(text)
    proto.graph.initializer.extend(onnx.numpy_helper.from_array(array, name) for name, array in weights.items())
    onnx.save(proto, path, save_as_external_data=not inside, location=f"{path.stem}.data", size_threshold=0)
    return load(path)


@pytest.mark.parametrize("inside", [True, False])
def test_equal_bytes_at_several_places_of_the_original_are_one_constant(inside: bool, tmp_path: Path) -> None:
    before = stored(TWO, tmp_path / "two.onnx", inside=False, w=W, v=W)
    after = stored(ONE, tmp_path / "one.onnx", inside=inside, w=W)
    assert check_equivalence(before, after).is_proven
    assert check_equivalence(after, before).is_proven
    other = W.copy()
    other[199, 99] = 7
    for name, wrong in (("w", {"w": other, "v": W}), ("v", {"w": W, "v": other})):
        before = stored(TWO, tmp_path / f"wrong-{name}.onnx", inside=False, **wrong)
        assert not check_equivalence(before, after).is_proven
        assert not check_equivalence(after, before).is_proven


def test_dims_beside_a_dim_of_0_have_no_known_factors() -> None:
    assert align_dims((const(0), const(4)), (const(8),)) is None
    assert align_dims((const(2), const(4)), (const(8),)) == ([const(2), const(4)], [[0], [1]], [[0, 1]])


def test_a_dim_of_0_is_aligned_with_itself() -> None:
    assert align_dims((const(0), const(4)), (const(0), const(2), const(2))) == (
        [const(0), const(2), const(2)], [[0], [1, 2]], [[0], [1], [2]],
    )  # fmt: skip


LARGE = ("ConstantOfShape (sizes)", "Expand (one, sizes)", "Tile (row, sizes)", "Range (zero, count, step)",
         "Pad (row, around)")  # fmt: skip


@pytest.mark.parametrize(("size", "is_run"), [(30, True), (30_000, False)])
@pytest.mark.parametrize("node", LARGE)
def test_what_would_be_large_is_not_computed(
    node: str, size: int, is_run: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    ran = list[str]()
    monkeypatch.setattr(flat, "_run_node", lambda app, _: ran.append(app.node.op_type))
    numbers = {
        "sizes": np.array([size, size]), "one": np.float32(1), "row": np.ones((1, 1), np.float32),
        "zero": np.array(0), "count": np.array(size**2), "step": np.array(1), "around": np.array([0, 0, size, size]),
    }  # fmt: skip
    read = {name: value for name, value in numbers.items() if name in node}
    made = model(f"g (float[n] x) => (float[n] y) {{ a = {node} s = Size (a) y = Identity (x) }}", **read)
    assert check_equivalence(made, made.with_proto(made.proto)).is_proven
    assert (made.graph.nodes[0].op_type in ran) is is_run


@pytest.mark.parametrize("is_first", [False, True])
def test_a_large_tensor_is_one_with_what_nodes_compute(is_first: bool, tmp_path: Path) -> None:
    """It is known by its place, until nodes of constants give as many bytes."""
    large = np.random.default_rng(0).normal(size=(200, 200)).astype(np.float32)
    head = "g (float[n, 200, 200] x) => (float[n, 200, 200] y)"
    computed, read = "a = Sub (w, MINUEND) p = Mul (x, a)", "q = Mul (x, w)"
    nodes = f"{computed} {read}" if is_first else f"{read} {computed}"
    weights = {"w": large, "zero": np.zeros((1, 200, 1)), "one": np.ones((1, 200, 1))}
    whole = model(f"{head} {{ y = Identity (x) }}", **weights).proto
    onnx.save(whole, tmp_path / "a.onnx", save_as_external_data=True, location="w.bin", size_threshold=1024)
    texts = {
        "original": f"{nodes} y = Add (p, q)".replace("MINUEND", "zero"),
        "wrong": f"{nodes} y = Add (p, q)".replace("MINUEND", "one"),
        "twice": "q = Mul (x, w) y = Add (q, q)",
    }
    made = {}
    for name, text in texts.items():
        proto = onnx.load(tmp_path / "a.onnx", load_external_data=False)
        proto.graph.ClearField("node")
        proto.graph.node.extend(model(f"{head} {{ {text} }}").proto.graph.node)
        (tmp_path / f"{name}.onnx").write_bytes(proto.SerializeToString())
        made[name] = load(tmp_path / f"{name}.onnx")
    assert check_equivalence(made["original"], made["twice"]).is_proven
    assert check_equivalence(made["twice"], made["original"]).is_proven
    for first, second in (("original", "wrong"), ("wrong", "twice"), ("twice", "wrong")):
        assert not check_equivalence(made[first], made[second]).proven
