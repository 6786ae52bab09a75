"""Outputs of types that numpy has not, of sequences and optional values, and without a number: equal to themselves."""

from __future__ import annotations

import ml_dtypes
import numpy as np
import pytest
from builders import model_of
from onnx import TensorProto

from graphkit.model import Model
from graphkit.passes.fold_pipeline import fold
from graphkit.runtime.session import IsolatedSession, Session
from graphkit.verify import verify_rewrite
from graphkit.verify.comparator import compare_output

EIGHT_BITS = ("float8e4m3fn", "float8e4m3fnuz", "float8e5m2", "float8e5m2fnuz")
FOUR_BITS = ("int4", "uint4")
CAST = "(float[n, 5] x) => ({0}[n, 5] y) {{ y = Cast <to = {1}> (x) }}"
BACK = "({0}[n, 5] x) => (float[n, 5] y) {{ y = Cast <to = 1> (x) }}"
MOVED = "({0}[n, 5] x) => ({0}[5, n] y) {{ y = Transpose (x) }}"
NARROW = {
    f"{kind}: {name}": text.format(kind, TensorProto.DataType.Value(kind.upper()))
    for kind in ("bfloat16", *EIGHT_BITS, *FOUR_BITS)
    for name, text in {"made": CAST, "read": BACK, "moved": MOVED}.items()
}
OTHERS = {
    "strings": "(string[n] x) => (string[m] y) { y = Concat <axis = 0> (x, x) }",
    "a sequence": "(float[n] x) => (seq(float[n]) y) { z = Neg (x) y = SequenceConstruct (x, z) }",
    "an optional value": "(float[n] x) => (optional(float[n]) y) { z = Neg (x) y = Optional (z) }",
    "no optional value": (
        "(float[n] x) => (float[n] z, optional(float[n]) y) { z = Neg (x) y = Optional <type = float[n]> () }"
    ),
    "NaN": "(float[n] x) => (float[n] y, float[n] z) { s = Sub (x, x) y = Div (s, s) z = Neg (x) }",
    "minus infinity": "(float[n] x) => (float[n] y) { s = Sub (x, x) y = Log (s) }",
    "no elements": "(float[n] x) => (int64[1, k] y) { w = Greater (x, x) y = NonZero (w) }",
}
NEVER_FINITE = "the run does not cover: finite elements of output y, of which no run has any"


def copy(model: Model) -> Model:
    return Model.from_proto(model.proto)


@pytest.mark.cases(10)
@pytest.mark.parametrize("text", [*NARROW.values(), *OTHERS.values()], ids=[*NARROW, *OTHERS])
def test_a_model_is_equal_to_itself_and_to_its_fold(text: str) -> None:
    model = model_of(text, opset=21 if "4[" in text or "8e" in text or "bfloat" in text else 18)
    for other in (copy(model), copy(fold(model).model)):
        found = verify_rewrite(model, other)
        assert found.passed
        assert found.proven().startswith("Proven bit for bit at every size")
    assert (NEVER_FINITE in found.proven()) == (
        text in [OTHERS[name] for name in ("NaN", "minus infinity", "no elements")]
    )


@pytest.mark.parametrize("kind", ["bfloat16", *EIGHT_BITS, *FOUR_BITS])
def test_elements_pass_as_they_are(kind: str) -> None:
    """With an odd count of elements, of which two share a byte where they have 4 bits."""
    model = model_of(
        f"({kind}[a, b] x) => ({kind}[b, a] y, float[a, b] z) {{ y = Transpose (x) z = Cast <to = 1> (x) }}", opset=21
    )
    names = {"float8e4m3fn": "float8_e4m3fn", "float8e4m3fnuz": "float8_e4m3fnuz"}
    names |= {"float8e5m2": "float8_e5m2", "float8e5m2fnuz": "float8_e5m2fnuz"}
    numbers = (np.arange(9) - (0 if kind == "uint4" else 4)).astype(np.float32).reshape(3, 3)
    x = numbers.astype(getattr(ml_dtypes, names.get(kind, kind)))
    for session in (Session(model), IsolatedSession(model)):
        found = session.run({"x": x})
        assert found["y"].dtype == x.dtype
        np.testing.assert_array_equal(found["y"].astype(np.float32), numbers.T)
        np.testing.assert_array_equal(found["z"], numbers)


WRONG = {
    "bfloat16": ("bfloat16", 16, "t = Add (x, half)"),
    "float8": ("float8e4m3fn", 17, "t = Neg (x)"),
    "int4": ("int4", 22, "t = Neg (x)"),
}


@pytest.mark.parametrize(("kind", "to", "wrong"), WRONG.values(), ids=WRONG)
def test_a_wrong_element_of_such_a_type_is_found(kind: str, to: int, wrong: str) -> None:
    text = f"(float[n] x) => ({kind}[n] y) {{{{ {{}} y = Cast <to = {to}> (t) }}}}"
    models = [model_of(text.format(nodes), opset=21, half=np.float32(0.5)) for nodes in ("t = Identity (x)", wrong)]
    assert "runs differ, the first at n=" in (fault := verify_rewrite(*models).failures[0])
    assert "y differs by" in fault


def test_bfloat16_without_kernels_runs_in_float32() -> None:
    weight = np.linspace(-1, 1, 32).reshape(8, 4).astype(ml_dtypes.bfloat16)
    text = """(bfloat16[b, s, 8] x) => (bfloat16[b, s, 4] y) {
        shape = Shape (x) r = Reshape (x, shape) m = MatMul (r, w) y = Mul (m, two)
    }"""
    constants = {"w": weight, "two": np.array(2, ml_dtypes.bfloat16)}
    original = model_of(text, opset=21, **constants)
    gap = "the roundings of bfloat16, for which onnxruntime has no kernels, so that both ran in float32"
    found = verify_rewrite(original, fold(original).model)
    assert found.proven() == (
        "Proven bit for bit at every size with 16-bit floats rounded after each node (1 of 1 output), and run once; "
        f"the run does not cover: {gap}."
    )
    wrong = model_of(text.replace("Mul (m, two)", "Add (m, two)"), opset=21, **constants)
    assert "y differs by" in verify_rewrite(original, wrong).failures[0]


def test_nan_in_one_of_two_widths_is_named() -> None:
    expected, actual = np.zeros(3, np.float32), np.array([0, np.nan, 0], np.float16)
    assert compare_output(expected, actual).problem == "float16 [3], expected float32 [3], with NaN instead of numbers"
