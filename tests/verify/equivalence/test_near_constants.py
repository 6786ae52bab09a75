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


def decoys() -> dict[str, tuple[str, dict[str, np.ndarray], dict[str, np.ndarray]]]:
    """Return bodies with constants, and with one of them edited."""
    rng = np.random.default_rng(0)
    weight, bias = rng.normal(size=(2, 2)).astype(np.float32), np.array([1.5, -0.7], np.float32)
    long, of_long = rng.normal(size=4096).astype(np.float32), rng.normal(size=(4096, 2)).astype(np.float32)
    edited = long.copy()
    edited[0] += 0.03
    one, other = np.array([100, 100], np.float32), np.array([-99.9999, -99.9998], np.float32)
    left = one + other
    sums = "a = Add (x, c) b = Add (a, d) t = Tanh (b) u = Mul (t, s) y = Sub (u, e)"
    scale = np.full(2, 1e-4, np.float32)
    small = np.float32(2.0**-22)
    return {
        "a number in a long sum": ("e = Expand (x, n) a = Add (e, b) p = MatMul (a, w) y = Add (p, q)",
                                   {"b": long, "w": of_long, "q": bias, "n": np.array([1, 4096])},
                                   {"b": edited, "w": of_long, "q": bias, "n": np.array([1, 4096])}),
        "a number with the bytes of a sum": (sums, {"c": one, "d": other, "s": scale, "e": left},
                                             {"c": one, "d": other, "s": scale, "e": left * np.float32(1.1)}),
        "a bias beside a sum that is 0": ("r = Relu (x) a = Add (r, c) b = Add (a, d) y = Add (b, e)",
                                          {"c": np.array([1, 1], np.float32), "d": np.array([-1, 2], np.float32),
                                           "e": np.array([5, 6], np.float32)},
                                          {"c": np.array([1e-7, 3], np.float32), "d": np.zeros(2, np.float32),
                                           "e": np.array([5, -60], np.float32)}),
        "a scale of a product": ("p = MatMul (x, w) y = Mul (p, s)", {"w": weight, "s": small},
                                 {"w": weight, "s": small * 2}),
    }  # fmt: skip


@pytest.mark.parametrize("name", decoys())
def test_an_edited_constant_is_none_that_rounding_makes(name: str) -> None:
    body, first, second = decoys()[name]
    head = "(float[N, 1] x) => (float[K, L] y)" if "long" in name else "(float[N, 2] x) => (float[K, L] y)"
    before, after = model(body, head, **first), model(body, head, **second)
    assert not check_equivalence(before, after).proven
    assert check_equivalence(before, before).is_proven


def test_a_constant_that_a_sum_stands_for_is_exact_at_other_places() -> None:
    head = "(float[N, 2] x) => (float[K, L] y, float[M, O] z)"
    sums = "{} q = Tanh (x) u = Mul (q, s) v = Add (u, h) z = Add (v, t)"
    one = np.full(2, 100, np.float32)
    other = (np.array([1e-4, 2e-4]) - one).astype(np.float32)
    small = np.array([1e-4, 2e-4], np.float32)
    held = {"h": one + other, "s": np.full(2, 1e-4, np.float32)}
    before = model(sums.format("r = Relu (x) y = Add (r, h)"), head, **held, t=small)
    text = sums.format("r = Relu (x) a = Add (r, c) y = Add (a, d)")
    right, wrong = (model(text, head, **held, c=one, d=other, t=t) for t in (small, small * np.float32(1.2)))
    assert check_equivalence(before, right).is_proven
    assert [output.name for output in check_equivalence(before, wrong).proven] == ["y"]


BEHIND = (
    "b = Transpose (a)", "b = Relu (a)", "r = Relu (a) b = MatMul (r, w)", "b = Softsign (a)", "b = Mul (a, a)",
    "o = Neg (a) p = Relu (a) b = Add (o, p)", "o = Tanh (x) b = Mul (a, o)", "b = Gather (a, places)",
    "c0 = Greater (x, s) o = Neg (a) b = Where (c0, a, o)", "o = Neg (a) b = Max (a, o)",
    "b = Concat <axis = 0> (a, a)",
    "b = ReduceMean <axes = [1]> (a)", "b = Pad (a, around)",
)  # fmt: skip


@pytest.mark.parametrize("node", BEHIND)
def test_what_is_scaled_down_is_hidden_by_a_number_behind_other_operators(node: str) -> None:
    head = "(float[4, 4] x) => (float[K, L] y)"
    bodies = (f"a = Mul (x, s) {node} c = Add (b, one) y = Sub (c, one)", f"a = Mul (x, s) {node} y = Identity (b)")
    for least, is_proven in ((2.0**-22, False), (0.5, True)):
        numbers = {"s": np.float32(least), "one": np.float32(1), "w": np.eye(4, dtype=np.float32),
                   "places": np.array([2, 0]), "around": np.array([0, 0, 0, 1])}  # fmt: skip
        assert check_equivalence(*(model(body, head, **numbers) for body in bodies)).is_proven is is_proven


BESIDE = "(float[N, 2] x, float[N, 2] z) => (float[K, L] u, float[M, O] y)"
TWICE = "n = MatMul (z, small) e0 = Add (n, c) y = Add (e0, d)"


@pytest.mark.parametrize("is_last", [False, True])
@pytest.mark.parametrize("text", ["s = Add (x, plus_minus) u = MatMul (s, large)",
                                  "m = MatMul (x, large) b = Add (m, c) u = Add (b, d)"])  # fmt: skip
def test_the_doubt_of_a_constant_is_the_smallest_of_its_places(text: str, *, is_last: bool) -> None:
    bias = np.array([5, 3, 8], np.float32) / 512
    quarter, wide = np.full(3, 0.25, np.float32), np.full(3, 8192, np.float32)
    numbers = {"large": np.stack([wide + bias, wide]), "plus_minus": np.array([1, -1], np.float32),
               "small": np.array([[1, -2, 3], [3, 1, -1]], np.float32) / 256, "c": quarter,
               "d": bias - quarter}  # fmt: skip
    before = model(f"{TWICE} {text}" if is_last else f"{text} {TWICE}", BESIDE, **numbers)
    body = "s = Add (x, plus_minus) u = MatMul (s, large) n = MatMul (z, small) y = Add (n, e)"
    right, wrong = (model(body, BESIDE, **numbers, e=bias + np.float32(more)) for more in (0, 3e-3))
    assert check_equivalence(before, right).is_proven
    assert [output.name for output in check_equivalence(before, wrong).proven] == ["u"]


@pytest.mark.parametrize(("steps", "is_proven"), [(1, True), (4, False)])
def test_what_was_scaled_down_until_it_was_lost_does_not_come_back(steps: int, *, is_proven: bool) -> None:
    weight, up = np.array([[1, -2], [3, 1]], np.float32), np.float32(2.0**20)
    numbers = {"w": weight, "v": weight / up**steps, "up": up}
    raised = " ".join(f"b{at + 1} = Mul (b{at}, up)" for at in range(steps))
    bodies = (
        f"a = MatMul (x, v) b0 = MatMul (a, v) {raised} y = Identity (b{steps})",
        "a = MatMul (x, v) y = MatMul (a, w)",
    )
    assert check_equivalence(*(model(body, **numbers) for body in bodies)).is_proven is is_proven


def test_scores_of_float16_that_were_scaled_down_until_they_were_lost_do_not_come_back() -> None:
    head = "(float16[N, 4] x, float16[4, M] z) => (float16[K, L] y)"
    scaled = "a = Mul (x, down) b = Mul (z, down) p = MatMul (a, b) q = Mul (p, up) y = Mul (q, up)"
    for power, is_proven in ((3, True), (8, False)):
        numbers = {"up": np.float16(2.0**power), "down": np.float16(2.0**-power)}
        models = [model(body, head, **numbers) for body in (scaled, "y = MatMul (x, z)")]
        assert check_equivalence(*models).is_proven is is_proven


@pytest.mark.parametrize("text", ["y = Sqrt ({})", "y = Div (x, {})"])
def test_each_model_keeps_what_it_divides_by_or_takes_the_root_of_above_0(text: str) -> None:
    sums = (
        f"r = Relu (x) a = Add (r, one) b = Add (a, c) {text.format('b')}",
        f"r = Relu (x) b = Add (r, d) {text.format('b')}",
    )
    for left, number, is_proven in ((2.0**-23, -3e-7, False), (1.5, 1.5, True)):
        numbers = {"one": np.float32(1), "c": np.float32(left - 1), "d": np.float32(number)}
        assert check_equivalence(*(model(body, **numbers) for body in sums)).is_proven is is_proven


def test_what_tells_an_overflow_is_equal_where_nothing_overflows() -> None:
    tail = "i = IsInf (b) y = Where (i, up, x)"
    numbers = {"up": np.float32(2.0**20), "down": np.float32(2.0**-20)}
    bodies = f"a = Mul (x, up) b = Mul (a, down) {tail}", f"b = Identity (x) {tail}"
    found = check_equivalence(*(model(body, **numbers) for body in bodies))
    assert [output.exactness for output in found.outputs] == ["up to rounding"]
    assert "nothing overflows" in found.conditions
    assert check_equivalence(*(model(bodies[0], **numbers) for _ in range(2))).conditions == ("N >= 1",)


@pytest.mark.parametrize(("count", "share", "is_proven"), [(1, 0.001, True), (2, 0.006, False), (6, 0.01, False)])
def test_doubts_of_float16_do_not_add_up_to_percents(count: int, share: float, *, is_proven: bool) -> None:
    numbers = {f"c{at}": np.float16(2 + 0.37 * at) for at in range(count)}
    roots = " ".join(f"r{at} = Sqrt (c{at}) z{at + 1} = Mul (z{at}, r{at})" for at in range(count))
    whole = float(np.prod([float(number) ** 0.5 for number in numbers.values()]))
    head = ROWS.format("float16")
    before = model(f"z0 = Identity (x) {roots} y = Identity (z{count})", head, **numbers)
    after = model("y = Mul (x, e)", head, e=np.float16(whole * (1 + share)))
    assert check_equivalence(before, after).is_proven is is_proven


@pytest.mark.parametrize(("number", "is_proven"), [(0.0195, True), (0.021, False)])
def test_sums_of_float16_that_cancel_are_no_percents_off(number: float, *, is_proven: bool) -> None:
    head = ROWS.format("float16")
    before = model("a = Add (x, c) y = Add (a, d)", head, c=np.float16(4), d=np.float16(-3.98))
    after = model("y = Add (x, r)", head, r=np.float16(number))
    assert check_equivalence(before, after).is_proven is is_proven


@pytest.mark.parametrize(("norm", "layers", "is_proven"), [(0.5, 2, True), (0.25, 12, False), (0.1, 6, False)])
def test_layers_of_small_weights_are_hidden_by_a_number(norm: float, layers: int, *, is_proven: bool) -> None:
    weight = np.random.default_rng(0).normal(size=(6, 6))
    weight = (norm * weight / np.linalg.norm(weight, axis=0)).astype(np.float32)
    body = " ".join(f"m{at} = MatMul ({f'r{at - 1}' if at else 'x'}, w) r{at} = Relu (m{at})" for at in range(layers))
    bodies = (f"{body} c = Add (r{layers - 1}, one) y = Sub (c, one)", f"{body} y = Identity (r{layers - 1})")
    numbers = {"w": weight, "one": np.float32(1)}
    models = [model(text, "(float[n, 6] x) => (float[k, l] y)", **numbers) for text in bodies]
    assert check_equivalence(*models).is_proven is is_proven


@pytest.mark.parametrize("node", ["b = GlobalAveragePool (x)", "b = ReduceMean (x, axes)"])
def test_means_of_many_numbers_are_hidden_by_a_number(node: str) -> None:
    numbers = {"axes": np.array([2, 3]), "many": np.float32(120)}
    bodies = (f"{node} c = Add (b, many) y = Sub (c, many)", f"{node} y = Identity (b)")
    models = [model(text, "(float[n, 3, 112, 112] x) => (float[k, l, m, o] y)", **numbers) for text in bodies]
    assert not check_equivalence(*models).proven


def test_a_weight_without_channels_is_no_error() -> None:
    head = "(float[n, 2, 5, 5] x, float[n] v) => (float[n, 0, 3, 3] y, float[n] q)"
    text = "a = Conv (x, w) y = Mul (a, two) {}"
    numbers = {"w": np.zeros((0, 2, 3, 3), np.float32), "two": np.float32(2)}
    before = model(text.format("p = Mul (v, two) q = Mul (p, three)"), head, **numbers, three=np.float32(3))
    after = model(text.format("q = Mul (v, six)"), head, **numbers, six=np.float32(6))
    assert [output.exactness for output in check_equivalence(before, after).outputs][1] == "up to rounding"


SMALL = (
    "b = Mul (x, tiny)", "b = Min (x, tiny)", "o = Abs (x) b = Clip (o, zero, tiny)",
    "b = HardSigmoid <alpha = 1e-7, beta = 0.0> (x)", "o = Sub (x, far) b = Exp (o)",
    "o = Sub (x, far) b = Sigmoid (o)",
    "o = Sub (x, far) b = Softplus (o)", "b = Elu <alpha = 1e-7> (x)", "b = LeakyRelu <alpha = 1e-7> (x)",
    "o = Mul (x, huge) p = Mul (x, o) b = Div (x, p)", "o = Mul (x, huge) p = Reciprocal (o) b = Mul (x, p)",
    "o = Mul (x, tiny) b = LayerNormalization (o, row)", "b = Concat <axis = 0> (x, tiny_row)",
    "b = Softmax (x)", "b = MatMul (x, tiny_w)", "o = MatMul (x, tiny_column) b = Relu (o)", "b = Mul (x, mixed)",
    "b = Gather (mixed, places)",
    "b = LayerNormalization <epsilon = 1e8> (x, row)", "o = MatMul (x, tiniest) b = Relu (o)",
    "o = Transpose (x) b = MatMul (mixed, o)", "b = LayerNormalization (x, tiny_in_row)",
)  # fmt: skip


@pytest.mark.parametrize("node", SMALL)
def test_what_may_be_small_is_hidden_by_a_number(node: str) -> None:
    numbers = {"tiny": 1e-8, "zero": 0.0, "far": 20.0, "huge": 2.0**23, "hundred": 100.0, "row": np.ones(4),
               "tiniest": np.full((4, 4), 1e-23),
               "tiny_row": np.full((1, 4), 1e-8), "tiny_w": np.eye(4) * 1e-8, "tiny_in_row": [1, 1, 1e-8, 1],
               "places": [1, 2]}  # fmt: skip
    numbers["tiny_column"] = np.ones((4, 4)) * [1, 1, 1e-8, 1]
    numbers["mixed"] = np.where(np.arange(4)[:, None] == 1, 1e-8, 1.0) * np.where(np.eye(4), 0.5, 1)
    head = "(float[4, 4] x) => (float[K, L] y)"
    bodies = (f"{node} c = Add (b, hundred) y = Sub (c, hundred)", f"{node} y = Identity (b)")
    arrays = {name: np.asarray(each, np.int64 if name == "places" else np.float32) for name, each in numbers.items()}
    models = [model(body, head, **arrays) for body in bodies]
    assert not check_equivalence(*models).proven


def test_what_is_scaled_down_is_hidden_by_numbers_that_a_product_cancels() -> None:
    numbers = {
        "large": np.array([10, -10, 0, 0], np.float32),
        "w": np.array([[1, 2], [1, 2], [3, 1], [1, -1]], np.float32),
    }
    bodies = "a = Mul (x, s) b = Add (a, large) y = MatMul (b, w)", "a = Mul (x, s) y = MatMul (a, w)"
    head = "(float[N, 4] x) => (float[K, L] y)"
    for least, is_proven in ((2.0**-22, False), (0.5, True)):
        models = [model(body, head, **numbers, s=np.float32(least)) for body in bodies]
        assert check_equivalence(*models).is_proven is is_proven


@pytest.mark.parametrize(("bias", "is_proven"), [([1, 1, 2, -1], True), ([0, 3000, -3000, 0], False)])
def test_a_channel_that_a_normalisation_scales_to_nothing_goes_into_a_weight(
    bias: list[float], *, is_proven: bool
) -> None:
    weight = np.array([[1, 1], [2, 1], [2, 1], [-1, 3]], np.float32)
    scale, shift = np.array([1, 0, 1e-5, 0.5], np.float32), np.array(bias, np.float32)
    numbers = {"s": scale, "b": shift, "w": weight, "ones": np.ones(4, np.float32), "sw": scale[:, None] * weight,
               "bw": shift @ weight}  # fmt: skip
    bodies = ("n = LayerNormalization (x, s, b) y = MatMul (n, w)",
              "n = LayerNormalization (x, ones) p = MatMul (n, sw) y = Add (p, bw)")  # fmt: skip
    head = "(float[N, 4] x) => (float[K, L] y)"
    assert check_equivalence(*(model(body, head, **numbers) for body in bodies)).is_proven is is_proven


def test_a_divisor_that_is_next_to_nothing_may_be_0() -> None:
    rng = np.random.default_rng(0)
    weight, bias = rng.normal(size=(2, 2)).astype(np.float32), rng.normal(size=2).astype(np.float32)
    tail = "m = Abs (p) q = Add (m, e) y = Reciprocal (q)"
    bodies = f"a = Add (x, b) p = MatMul (a, w) {tail}", f"a = MatMul (x, w) p = Add (a, bw) {tail}"
    for least, is_proven in ((1e-30, False), (8e-13, False), (1e-12, True), (1e-6, True)):
        numbers = {"w": weight, "b": bias, "bw": bias @ weight, "e": np.float32(least)}
        assert check_equivalence(*(model(body, **numbers) for body in bodies)).is_proven is is_proven


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


@pytest.mark.parametrize("node", ["Exp", "Sigmoid", "Softplus", "Mish"])
def test_what_gives_next_to_nothing_far_from_zero_is_hidden_by_a_number(node: str) -> None:
    """exp(-18) is lost beside 1, though its input is an ordinary number."""
    head = "(float[n, 4] x) => (float[K, L] y)"
    bodies = (f"s = {node} (x) c = Sub (one, s) y = Sub (one, c)", f"y = {node} (x)")
    before, after = (model(body, head, one=np.float32(1)) for body in bodies)
    assert not check_equivalence(before, after).proven


@pytest.mark.parametrize(("epsilon", "is_proven"), [("1e-5", True), ("1e-2", False), ("1.0", False)])
def test_a_normalisation_enlarges_by_its_epsilon_at_most(epsilon: str, is_proven: bool) -> None:
    head = "(float[N, 8] x) => (float[K, L] y)"
    small = f"a = Mul (x, s) b = LayerNormalization <epsilon = {epsilon}> (a, ones)"
    numbers = {"s": np.float32(2.0**-7), "ones": np.ones(8, np.float32), "c": np.float32(128)}
    bodies = (f"{small} d = Add (b, c) y = Sub (d, c)", f"{small} y = Identity (b)")
    before, after = (model(body, head, **numbers) for body in bodies)
    assert check_equivalence(before, after).is_proven is is_proven
