"""Constants that are taken for one up to rounding: none overflows on the way, and small errors do not add up."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import onnx
import onnx.parser
import pytest
from onnx import SparseTensorProto, numpy_helper

from graphkit.model import Model, load
from graphkit.verify.equivalence import check_equivalence

HEAD = '<ir_version: 9, opset_import: ["" : 17]> agraph'
SCALED = "a = MatMul (x, w) y = Mul (a, c)"
SHIFTED = "a = Add (x, c) y = Sub (a, d)"
BIAS = "a = Add (x, b) p = MatMul (a, w) y = Mul (p, c)"
ROWS = "({0}[N, 2] x) => ({0}[N, 2] y)"


def model(body: str, head: str = ROWS.format("float"), **weights: np.ndarray) -> Model:
    proto = onnx.parser.parse_model(f"{HEAD} {head} {{ {body} }}")
    proto.graph.initializer.extend(numpy_helper.from_array(array, name) for name, array in weights.items())
    return Model.from_proto(proto)


def full(number: float, kind: type[np.floating], shape: tuple[int, ...] = (2, 2)) -> np.ndarray:
    return np.full(shape, number, kind)


LOST = {  # a weight, another one, a factor: both products overflow, or come to nothing, in the dtype
    "float16, too large": ("float16", np.float16, 300, 400, 256),
    "float16, too small": ("float16", np.float16, 6e-6, 3e-6, 1 / 256),
    "float, too large": ("float", np.float32, 1e32, 3e32, 1e7),
    "float, too small": ("float", np.float32, 1e-38, 5e-39, 2.0**-24),
}


@pytest.mark.parametrize("name", LOST)
def test_weights_that_a_dtype_does_not_hold_when_scaled_stay_apart(name: str) -> None:
    text, kind, first, second, factor = LOST[name]
    weights = {"c": np.array(factor, kind)}
    models = [model(SCALED, ROWS.format(text), w=full(number, kind), **weights) for number in (first, second)]
    assert not check_equivalence(*models).is_proven
    assert check_equivalence(models[0], models[0]).is_proven


def test_what_is_scaled_before_a_product_stays_apart_too() -> None:
    bodies = [model("a = Mul (x, c) y = MatMul (a, w)", w=full(w, np.float32), c=np.float32(1e7)) for w in (1e32, 3e32)]
    assert not check_equivalence(*bodies).is_proven


def test_a_large_table_that_is_added_and_taken_away_is_that_to_the_bit() -> None:
    table = np.array([[1000, 2000], [3000, 4000]], np.float32)
    near = table * np.float32(1 + 7e-6)
    assert not check_equivalence(model(SHIFTED, c=table, d=table), model(SHIFTED, c=near, d=table)).is_proven


@pytest.mark.parametrize(("kind", "text", "step", "count"), [
    (np.float16, "float16", 2.0, 7), (np.float32, "float", 1.125, 100),
])  # fmt: skip
def test_small_errors_do_not_add_up(kind: type[np.floating], text: str, step: float, count: int) -> None:
    error = 2 * float(np.finfo(kind).eps) * (1 if kind is np.float16 else 25)
    steps = {f"b{at}": np.array(step**at * (1 + at * error), kind) for at in range(1, count + 1)}
    shown = " ".join(f"o{at} = Mul (x, b{at})" for at in range(1, count + 1))
    outputs = ", ".join(f"{text}[N] o{at}" for at in range(1, count + 1))
    head = f"({text}[N] x) => ({outputs}, {text}[N] y)"
    chained = " ".join(f"v{at} = Mul (v{at - 1}, s)" for at in range(1, count + 1))
    one = f"{shown} y = Mul (x, b{count})"
    many = f"{shown} v0 = Identity (x) {chained} y = Identity (v{count})"
    models = [model(body, head, s=np.array(step, kind), **steps) for body in (many, one)]
    found = {output.name: output.verdict for output in check_equivalence(*models).outputs}
    assert found["y"] != "proven"
    assert found["o1"] == "proven"


def test_a_number_is_put_into_a_weight_once() -> None:
    rng = np.random.default_rng(0)
    w, factor = rng.standard_normal((2, 2), np.float32), np.float32(3.7)
    assert check_equivalence(model(SCALED, w=w, c=factor), model("y = MatMul (x, w)", w=w * factor)).is_proven


def sparse(folder: Path, values: list[float]) -> Model:
    folder.mkdir()
    content = np.array(values, np.float32)
    content.tofile(folder / "w.bin")
    tensor = SparseTensorProto(dims=[4])
    tensor.indices.CopyFrom(numpy_helper.from_array(np.array([1, 3]), "w_indices"))
    tensor.values.CopyFrom(onnx.TensorProto(name="w", data_type=onnx.TensorProto.FLOAT, dims=[2], data_location=1))
    for key, text in (("location", "w.bin"), ("offset", "0"), ("length", str(content.nbytes))):
        tensor.values.external_data.add(key=key, value=text)
    proto = onnx.parser.parse_model(f"{HEAD} (float[4] x) => (float[4] y) {{ y = Add (x, w) }}")
    proto.graph.sparse_initializer.append(tensor)
    onnx.save(proto, folder / "model.onnx")
    return load(folder / "model.onnx")


def test_sparse_tensors_are_known_by_their_elements(tmp_path: Path) -> None:
    first, same, other = (sparse(tmp_path / name, [1, number]) for name, number in (("a", 2), ("b", 2), ("c", 6)))
    assert not check_equivalence(first, other).is_proven
    assert check_equivalence(first, same).is_proven
