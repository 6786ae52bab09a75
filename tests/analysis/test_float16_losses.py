from __future__ import annotations

from collections.abc import Callable

import numpy as np
import onnx.parser
import pytest
from onnx import numpy_helper

from graphkit.analysis.float16_losses import Float16Losses, Lost, float16_losses
from graphkit.analysis.report import ReportOptions, report
from graphkit.model import Model

RealModel = Callable[[str], Model]

LOWEST = float(np.finfo(np.float32).min)


def losses(graph: str, **constants: object) -> Float16Losses:
    proto = onnx.parser.parse_model(f'<ir_version: 8, opset_import: ["" : 17]> {graph}')
    proto.graph.initializer.extend(
        numpy_helper.from_array(np.asarray(value), name) for name, value in constants.items()
    )
    return float16_losses(Model.from_proto(proto))


def added(number: object) -> tuple[tuple[float, str], ...]:
    """Return the numbers that are lost of one constant, and what becomes of them."""
    return tuple((one.number, one.becomes) for one in losses("g (float[N] x) => (y) { y = Add (x, c) }", c=number).lost)


@pytest.mark.parametrize(
    ("constant", "expected"),
    [
        (np.float32(LOWEST), [(LOWEST, "-inf")]),
        (np.float64(1e300), [(1e300, "inf")]),
        (np.float32(65519), []),
        (np.float32(65520), [(65520.0, "inf")]),
        (np.float32(2.0**-25), [(2.0**-25, "0")]),
        (np.float32(2.0**-24), []),
        (np.float32(0), []),
        (np.float32(-np.inf), []),
        (np.array([np.nan, np.inf, 1e5], np.float32), [(1e5, "inf")]),
        (np.array([1e-9, 0, 1], np.float32), []),
        (np.array([1e-9, 0, -(2.0**-30)], np.float32), [(float(np.float32(1e-9)), "0")]),
        (np.zeros(0, np.float32), []),
        (np.float16(6e4), []),
        (np.int64(1 << 40), []),
    ],
)
def test_what_float16_has(constant: np.ndarray, expected: list[tuple[float, str]]) -> None:
    assert added(constant) == tuple(expected)


def test_constants_of_every_form_and_depth_are_found() -> None:
    found = losses(
        """g (bool p, int64[1] n, float[N] x) => (y, z) <float floor = {-1e9}> {
            a = Constant <value = float {-1e9}> ()
            b = Constant <value_float = -1e9> ()
            c = ConstantOfShape <value = float[1] {-1e9}> (n)
            d = Where (p, a, b)
            e = Where (p, c, d)
            y = If (p) <
                then_branch = t () => (float[M] t1) { t0 = Constant <value = float {-1e9}> () t1 = Mul (x, t0) },
                else_branch = e () => (float[M] e1) { e1 = Mul (x, floor) }
            >
            z = Where (p, e, d)
        }"""
    )
    assert found == Float16Losses(
        (Lost(-1e9, "-inf", ("floor", "a", "b", "t0", "ConstantOfShape#2"), ("Mul", "Where", "ConstantOfShape")),)
    )


def test_a_constant_that_nothing_reads_is_no_loss() -> None:
    assert losses("g (float[N] x) => (y) { y = Neg (x) }", c=np.float32(1e9)).lost == ()


def test_the_losses_as_text() -> None:
    found = losses(
        "g (bool[N] m, float[N] x) => (y) { a = Where (m, x, low) b = Where (m, a, lowest) y = Add (b, e) }",
        low=np.float32(LOWEST),
        lowest=np.float32(LOWEST),
        e=np.float32(1e-12),
    )
    assert found.to_text() == (
        """\
Float16

Number        In float16  Constants
────────────────────────────────────
-3.40282e+38        -inf          2
  low and 1 more, read by Where
1e-12                  0          1
  e, read by Add

A product of infinity and 0, and a Softmax of nothing but -inf, is NaN.

An epsilon that becomes 0 no longer keeps a division from dividing by 0.

Replace these numbers by ones that float16 has, from 6e-8 to 65504, before a
conversion.

"""
    )


def test_no_losses_as_text() -> None:
    assert losses("g (float[N] x) => (y) { y = Neg (x) }").to_text() == (
        "Float16\n\nFloat16 can hold all constants of the graph; weights in files are not read.\n\n"
    )


def test_the_section_is_shown_on_request(real_model: RealModel) -> None:
    model = real_model("bert-fill-mask/model")
    assert "float16" not in report(model).sections
    made = report(model, ReportOptions(only=("float16",)))
    found = [(one.number, one.becomes, one.readers) for one in made.sections["float16"].lost]
    assert found == [(float(np.float32(1e-12)), "0", ("Add",)), (LOWEST, "-inf", ("Where",))]
