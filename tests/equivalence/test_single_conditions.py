"""Pairs that one condition of the checker alone keeps from being proven: without it, a wrong model would be."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field

import numpy as np
import pytest
from onnx import numpy_helper
from small_models import model

from graphkit.equivalence import check_equivalence
from graphkit.errors import ModelError
from graphkit.model import Model
from graphkit.runtime.session import Session

RNG = np.random.default_rng(0)


@dataclass(frozen=True)
class Pair:
    """An original and a wrong model as bodies of one head, inputs that show it, and constants of both or of each.

    Attributes:
        second: The constants of the wrong model, those of the original where there are none.
        opset: Of both.
    """

    head: str
    before: str
    after: str
    feed: Mapping[str, np.ndarray]
    constants: Mapping[str, object] = field(default_factory=dict)
    second: Mapping[str, object] = field(default_factory=dict)
    opset: int = 18


def normal(*sizes: int) -> np.ndarray:
    return RNG.normal(size=sizes).astype(np.float32)


def dead(head: str, node: str, feed: Mapping[str, np.ndarray], **constants: object) -> Pair:
    """Return a pair whose second model has a node more, which fails at some size."""
    return Pair(head, "y = Identity (x)", f"{node} y = Identity (x)", feed, constants)


COPY = "=> (float[k, l] y)"
LIST = "(float[n] x) => (float[k] y)"
QUANTIZED = "p = QuantizeLinear (x, s, z) r = Reshape (x, turned) q = QuantizeLinear (r, s, z)"  # in both models
NORMS = "p = LayerNormalization <axis = 1> (x, s) q = LayerNormalization (x, s)"
ROWS = "p = LayerNormalization (x, s) r = Reshape (x, turned) q = LayerNormalization (r, s)"
LEARNS = "p, a, b = BatchNormalization <training_mode = 1> (x, g, g, m, v) q = BatchNormalization (x, g, g, m, v)"
WITHOUT = {"w": normal(1, 2, 3), "r": normal(1, 2, 2), "b": normal(1, 4)}
EQUALITY = """t = Shape (x) u = Shape (z) m = Max (t, u)
    p = If (c) <then_branch = a () => (float[1, 1] p1) {{
            d = Concat <axis = 0> (one, m) e = ConstantOfShape (d) f = Unsqueeze (x, one) p1 = MatMul (e, f) }},
        else_branch = b () => (float[1, 1] p2) {{ g = Concat <axis = 0> (one, one) p2 = ConstantOfShape (g) }}>
    y = Identity ({})"""
BRANCHES = """y = If (c) <then_branch = a () => (float[m] p) {{ p = Neg (x) }},
    else_branch = b () => (float[o] q) {{ q = {} (x) }}>"""
W, G = normal(6, 6), normal(6)
PAIRS = {
    "a scale for each channel": Pair(
        "(float[3, 3, 2] x) => (uint8[k, l, m] y)", f"{QUANTIZED} y = Identity (p)",
        f"{QUANTIZED} y = Reshape (q, back)", {"x": normal(3, 3, 2)},
        {"s": np.array([0.1, 0.2, 0.4]), "z": np.zeros(3, np.uint8), "back": np.array([3, 3, 2]),
         "turned": np.array([2, 3, 3])}),
    "an initial state that is not 0": Pair(
        "(float[2, 1, 3] x) => (float[k, l, m, o] y)", "y, h = RNN <hidden_size = 2> (x, w, r, b, , i)",
        "y, h = RNN <hidden_size = 2> (x, w, r, b)", {"x": normal(2, 1, 3)}, {**WITHOUT, "i": np.ones((1, 1, 2))}),
    "an equality of a branch": Pair(
        "(float[n] x, float[o] z, bool c) => (int64[1] y)", EQUALITY.format("m"), EQUALITY.format("t"),
        {"x": normal(2), "z": normal(3), "c": np.array(False)}, {"one": np.array([1])}),
    "another else branch": Pair(
        "(float[n] x, bool c) => (float[k] y)", BRANCHES.format("Abs"), BRANCHES.format("Relu"),
        {"x": normal(5), "c": np.array(False)}),
    "texts cut elsewhere": Pair(
        LIST.replace("float[k] y", "string[k] y"), "y = Identity (s)", "y = Identity (s)", {"x": normal(1)},
        {"s": np.array(["a", "bc"], object)}, {"s": np.array(["ab", "c"], object)}),
    "a third period that differs": Pair(
        "(float[n, 6] x) => (float[k, l] y)", "y = Add (x, c)", "y = Add (x, c)", {"x": normal(1, 6)},
        {"c": np.array([1.0, 2, 1, 2, 3, 4])}, {"c": np.array([1.0, 2, 1, 2, 1, 2])}),
    "a LogSoftmax for a Softmax": Pair(
        f"(float[n, m] x) {COPY}", "y = Softmax (x)", "y = LogSoftmax (x)", {"x": normal(2, 3)}),
    "axes that do not follow each other": Pair(
        "(float[3, 2, 4] x, float[3, 1, 4] v) => (float[k, l, m] y)", "y = Mul (x, v)",
        "a = Reshape (x, rows) b = Reshape (v, column) p = Mul (a, b) y = Reshape (p, back)",
        {"x": normal(3, 2, 4), "v": normal(3, 1, 4)},
        {"rows": np.array([12, 2]), "column": np.array([12, 1]), "back": np.array([3, 2, 4])}),
    "a number by a tensor": Pair(LIST, "y = Div (two, x)", "y = Mul (x, half)", {"x": normal(4)},
                                 {"two": 2.0, "half": 0.5}),
    "a scale along what was another axis": Pair(
        "(float[6, 4] x) => (float[k, l] y)", "p = Mul (x, c) r = Reshape (p, turned) y = MatMul (r, w)",
        "r = Reshape (x, turned) y = MatMul (r, gw)", {"x": normal(6, 4)},
        {"c": G[:, None], "turned": np.array([4, 6]), "w": W, "gw": G[:, None] * W}),
    "a norm over two axes": Pair(
        "(float[n, 3, 4] x) => (float[k, l, m] y)", f"{NORMS} y = Identity (p)", f"{NORMS} y = Identity (q)",
        {"x": normal(2, 3, 4)}, {"s": np.ones((3, 4))}),
    "a norm that learns": Pair(
        f"(float[n, 6] x) {COPY}", f"{LEARNS} y = Identity (p)", f"{LEARNS} y = Identity (q)", {"x": normal(4, 6)},
        {"g": G, "m": G * 0, "v": np.ones(6)}),
    "a Concat of other rows": dead(
        f"(float[n, 3] x, float[m, 3] u) {COPY}", "z = Concat <axis = 1> (x, u)",
        {"x": normal(2, 3), "u": normal(3, 3)}),
    "a Squeeze of more than 1": dead(f"(float[n, 3] x) {COPY}", "z = Squeeze (x, i)", {"x": normal(2, 3)},
                                     i=np.array([0])),
    "a Conv of other channels": dead(
        "(float[1, c, 5] x) => (float[k, l, m] y)", "z = Conv (x, w)", {"x": normal(1, 2, 5)}, w=normal(4, 3, 1)),
    "a Conv with a bias for others": dead(
        "(float[1, 3, 5] x, float[m] u) => (float[k, l, o] y)", "z = Conv (x, w, u)",
        {"x": normal(1, 3, 5), "u": normal(3)},
        w=normal(4, 3, 1)),
    "a Range in steps of 0": dead(
        "(float[5] x, float[n] u) => (float[k] y)",
        "s = Shape (u) t = Squeeze (s) d = Sub (t, five) z = Range (o, five, d)", {"x": normal(5), "u": normal(5)},
        five=np.array(5), o=np.array(0)),
    "a Conv that reaches further": Pair(
        "(float[1, 3, n] x) => (float[k, l, m] y)", "y = Conv (x, w)",
        "z = Conv <dilations = [2]> (x, w) y = Conv (x, w)",
        {"x": normal(1, 3, 3)}, {"w": normal(4, 3, 3)}),
    "a ScatterND of other rows": dead(
        "(float[4] x, float[m] u) => (float[k] y)", "z = ScatterND (x, i, u)", {"x": normal(4), "u": normal(3)},
        i=np.array([[0], [1]])),
    "axes that are apart, transposed as one": Pair(
        "(float[2, 3, 4] x) => (float[k, l, m] y)", "y = Transpose <perm = [1, 0, 2]> (x)",
        "r = Reshape (x, apart) t = Transpose (r) y = Reshape (t, back)", {"x": normal(2, 3, 4)},
        {"apart": np.array([8, 3]), "back": np.array([3, 2, 4])}),
    "a scale for each row of a norm": Pair(
        "(float[4, 4, 6] x) => (float[k, l, m] y)", f"{ROWS} y = Identity (p)", f"{ROWS} y = Reshape (q, back)",
        {"x": normal(4, 4, 6)}, {"s": np.arange(24.0).reshape(4, 1, 6), "turned": np.array([2, 4, 2, 6]),
                                 "back": np.array([4, 4, 6])}),
    "a declared dim that is none": Pair(
        "(float[n] x) => (float[7] y)", "y = Neg (x)", "y = Neg (x)", {"x": normal(7)}),
}  # fmt: skip
SHOWN = {"a declared dim that is none"}  # by no run


def built(pair: Pair, *, is_second: bool) -> Model:
    body = pair.after if is_second else pair.before
    made = model(f"g {pair.head} {{ {body} }}", f'<ir_version: 10, opset_import: ["" : {pair.opset}]>\n')
    words = set(body.replace("(", " ").replace(")", " ").replace(",", " ").split())
    for name, each in (pair.second or pair.constants).items() if is_second else pair.constants.items():
        array = np.asarray(each)
        if name in words:
            kind = np.float32 if array.dtype == np.float64 else array.dtype
            made.proto.graph.initializer.append(numpy_helper.from_array(array.astype(kind), name))
    return Model.from_proto(made.proto)


def run(made: Model, feed: Mapping[str, np.ndarray]) -> np.ndarray | None:
    """Return the output, None where the model is not loaded or fails."""
    try:
        return Session(made, threads=1).run(feed)["y"]
    except ModelError:
        return None


@pytest.mark.parametrize("name", PAIRS)
def test_a_wrong_model_is_not_proven(name: str) -> None:
    pair = PAIRS[name]
    before, after = (built(pair, is_second=is_second) for is_second in (False, True))
    if name in SHOWN:
        before.proto.graph.output[0].type.tensor_type.shape.dim[0].dim_param = "k"
        before = Model.from_proto(before.proto)
    else:
        right, made = (run(each, pair.feed) for each in (before, after))
        assert right is not None
        assert made is None or made.shape != right.shape or made.tobytes() != right.tobytes()
    assert check_equivalence(before, before).is_proven
    assert not check_equivalence(before, after).proven


def test_a_zero_that_is_added_to_minus_zero_is_not_nothing() -> None:
    texts = ("y = Identity (e)", "y = Add (e, o)")
    start = f"g {LIST} {{{{ s = Shape (x) e = Expand (minus, s) {{}} }}}}"
    made = [model(start.format(text), minus=-0.0, o=0.0) for text in texts]
    assert [output.exactness for output in check_equivalence(*made).outputs] == ["in exact arithmetic"]


def test_a_flag_that_is_neither_0_nor_1_has_no_proof() -> None:
    made = model("g (float[n, 3] x) => (float[k, l] y) { y = ReduceMax <axes = [1], keepdims = 2> (x) }",
                 '<ir_version: 10, opset_import: ["" : 13]>\n')  # fmt: skip
    assert not check_equivalence(made, made).proven


def test_an_output_may_not_be_declared_under_a_new_name() -> None:
    before, after = (model(f"g (float[n] x) => (float[{dim}] y) {{ y = Neg (x) }}") for dim in ("k", "q"))
    assert "it is declared [q], [k] in the original" in check_equivalence(before, after).outputs[0].reason


def test_an_input_of_another_rank_is_not_narrower() -> None:
    before, after = (model(f"g (float[{dims}] x) => (int64[1] y) {{ y = Size (x) }}") for dims in ("n, m", "n"))
    assert not check_equivalence(before, after, narrower=True).proven


def test_a_default_of_an_input_that_is_gone_is_named() -> None:
    before, after = (model("g (float[2] x, float[2] d) => (float[k] y) { y = Add (x, d) }") for _ in range(2))
    before.proto.graph.initializer.append(numpy_helper.from_array(np.ones(2, np.float32), "d"))
    for pair in ((before, after), (after, before)):
        found = check_equivalence(*(Model.from_proto(each.proto) for each in pair))
        assert "the default of input d is gone, or new" in found.outputs[0].reason
