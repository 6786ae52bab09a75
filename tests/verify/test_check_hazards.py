"""Hazards are foretold from the graph, and seen in onnxruntime: each kind, real exports, and what is no hazard."""

from __future__ import annotations

from collections.abc import Callable, Mapping

import numpy as np
import onnx
import onnx.parser
import pytest
from builders import model_with_constants as model
from hazard_cases import CASES
from msgspec.structs import replace
from real_models import params

from graphkit.analysis.hazards import Check, Hazard, Hazards, hazards
from graphkit.model import Model
from graphkit.runtime.onnxruntime_loader import runtime_version
from graphkit.runtime.session import IsolatedSession, RunError, Session
from graphkit.shapes import infer
from graphkit.verify import check_hazards

RealModel = Callable[[str], Model]


@pytest.mark.cases(18)
@pytest.mark.parametrize("name", CASES)
def test_a_hazard_is_foretold(name: str) -> None:
    case = CASES[name]
    found = hazards(model(case.io, case.body, case.opset))
    assert tuple((one.kind, str(one)) for one in found.hazards) == case.told


@pytest.mark.cases(18)
@pytest.mark.skipif(
    runtime_version() < (1, 31), reason="messages, and what divides by 0, are those of onnxruntime 1.31"
)
@pytest.mark.parametrize("name", CASES)
def test_onnxruntime_does_what_is_foretold(name: str) -> None:
    case = CASES[name]
    made = model(case.io, case.body, case.opset)
    checks = [(one, one.check) for one in check_hazards(made, hazards(made)).hazards]
    assert [(check.confirmed, one.says in check.message) for one, check in checks if check] == [(True, True)] * len(
        checks
    )


@pytest.mark.parametrize(("fatal", "confirmed"), [("SIGFPE", True), ("SIGSEGV", False)])
def test_a_division_that_ends_the_process_is_confirmed(
    fatal: str, confirmed: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Some versions of onnxruntime do not look before they divide."""
    run = IsolatedSession.run

    def die(session: IsolatedSession, feed: Mapping[str, np.ndarray]) -> dict[str, np.ndarray]:
        try:
            return run(session, feed)
        except RunError:
            died = RunError(f"it ends the process with {fatal}")
            died.signal = fatal
            raise died from None

    monkeypatch.setattr(IsolatedSession, "run", die)
    case = CASES["an integer divided by 0"]
    made = model(case.io, case.body, case.opset)
    (one,) = check_hazards(made, hazards(made)).hazards
    assert one.check is not None
    assert (one.check.confirmed, one.check.message.endswith(f"ends the process with {fatal}")) == (confirmed, True)


HARMLESS = {
    "an empty past joined": (
        "(float[b, past_n, 4] p, float[b, n, 4] x) => (float[A, B, C] y)",
        "y = Concat <axis = 1> (p, x)",
        {"b": 2, "past_n": 0, "n": 3},
    ),
    "an empty input of another width joined": (
        "(float[past_n, k] p, float[n, m] x) => (float[A, B] y)",
        "e = Slice(p, i0, i0, i0)  y = Concat <axis = 0> (e, x)",
        {"past_n": 2, "k": 4, "n": 3, "m": 8},
    ),
    "0 that copies 0": (
        "(float[b, past_n, 8] x) => (float[A, B, C, D] y)",
        "s = Shape(x)  b = Gather(s, i0)  n = Gather(s, i1)  t = Concat <axis = 0> (b, n, i2, i4)  y = Reshape(x, t)",
        {"b": 2, "past_n": 0},
    ),
    "-1 for an empty dim": (
        "(float[b, past_n, 8] x) => (float[A, B] y)",
        "s = Shape(x)  b = Gather(s, i0)  t = Concat <axis = 0> (b, m1)  y = Reshape(x, t)",
        {"b": 2, "past_n": 0},
    ),
    "0 with allowzero": (
        "(float[4, past_n] x) => (float[A, B] y)",
        "s = Shape(x)  n = Gather(s, i1)  t = Concat <axis = 0> (n, i4)  y = Reshape <allowzero = 1> (x, t)",
        {"past_n": 0},
    ),
    "ConstantOfShape of 0": (
        "(float[past_n] x) => (float[A] y)",
        "s = Shape(x)  y = ConstantOfShape(s)",
        {"past_n": 0},
    ),
    "an empty Range": (
        "(float[past_n] x) => (int64[A] y)",
        "s = Shape(x)  n = Squeeze(s, i0)  y = Range(z, n, o)",
        {"past_n": 0},
    ),
    "Expand by 0": (
        "(float[past_n, 4] w, float[1, 4] x) => (float[A, B] y)",
        "s = Shape(w)  y = Expand(x, s)",
        {"past_n": 0},
    ),
    "Tile by 0": ("(float[past_n] w, float[3] x) => (float[A] y)", "s = Shape(w)  y = Tile(x, s)", {"past_n": 0}),
    "a Slice of nothing": (
        "(float[n] x, float[past_n] p) => (float[A] y)",
        "e = Shape(p)  y = Slice(x, i0, e)",
        {"n": 3, "past_n": 0},
    ),
    "a Slice that always counts from the end": (
        "(float[m] x, float[n] w) => (float[A] y)",
        "s = Shape(w)  n = Neg(s)  e = Constant <value_ints = [9223372036854775807]> ()  y = Slice(x, n, e)",
        {"m": 2, "n": 5},
    ),
    "a product over nothing": (
        "(float[b, past_n] x, float[past_n, 4] w) => (float[A, B] y)",
        "y = MatMul(x, w)",
        {"b": 2, "past_n": 0},
    ),
    "a Softmax of nothing": ("(float[past_n] x) => (float[A] y)", "y = Softmax(x)", {"past_n": 0}),
    "the greatest of nothing": ("(float[past_n] x) => (float[A] y)", "y = ReduceMax(x)", {"past_n": 0}),
    "k of what there is": (
        "(float[n] x) => (float[A] y, int64[B] j)",
        "s = Shape(x)  k = Min(s, i4)  y, j = TopK(x, k)",
        {"n": 1},
    ),
    "indices of nothing": (
        "(float[past_n, 4] x) => (float[A, B] y)",
        "s = Shape(x)  n = Gather(s, z)  r = Range(z, n, o)  y = Gather(x, r)",
        {"past_n": 0},
    ),
    "positions within a table that grows": (
        "(float[n, 4] x) => (float[A, B] y)",
        "s = Shape(x)  n = Gather(s, z)  r = Range(z, n, o)  y = Gather(x, r)",
        {"n": 9},
    ),
    "positions that are kept inside": (
        "(float[n] x, float[8, 4] t) => (float[A, B] y)",
        "s = Shape(x)  n = Gather(s, z)  r = Range(z, n, o)  m = Constant <value_int = 7> ()  c = Min(r, m)"
        "  y = Gather(t, c)",
        {"n": 20},
    ),
    "a dim of 1": ("(float[b, 1] x, float[n] w) => (float[A, B] y)", "y = Add(x, w)", {"b": 2, "n": 3}),
    "a resize of nothing to nothing": (
        "(float[1, 1, past_n, 4] x) => (float[A, B, C, D] y)",
        "s = Shape(x)  y = Resize(x, , , s)",
        {"past_n": 0},
    ),
}


def run(made: Model, dims: Mapping[str, int]) -> None:
    shapes = infer(made)
    feed = {
        value.name: np.ones(
            [dim.evaluate(dims) for dim in shapes[value].dims or ()],
            onnx.helper.tensor_dtype_to_np_dtype(shapes[value].dtype),
        )
        for value in made.graph.inputs
    }
    Session(made).run(feed)


@pytest.mark.parametrize("name", HARMLESS)
def test_what_runs_is_no_hazard(name: str) -> None:
    io, body, dims = HARMLESS[name]
    made = model(io, body)
    assert hazards(made) == Hazards(())
    run(made, dims)


COMPLETE = {
    "bert-fill-mask/model": 1,
    "cache-styles/anonymous": 1,
    "gpt2-tiny/decoder_model_merged": 2,
    "llama-int4/model": 3,
    "nllb-tiny/decoder_model_quantized": 1,
    "patchtst/model": 2,
    "vit-qdq/model": 2,
    "whisper-tiny/decoder_model_merged": 2,
}


@pytest.mark.cases("bert-fill-mask", "llama-int4")
@pytest.mark.parametrize("name", params(COMPLETE))
def test_hazards_of_real_exports_are_confirmed(name: str, real_model: RealModel) -> None:
    made = real_model(name)
    found = check_hazards(made, hazards(made)).hazards
    assert [one.check.confirmed for one in found if one.check] == [True] * COMPLETE[name]
    if runtime_version() >= (1, 31):  # whose messages they are
        assert all(one.says in one.check.message for one in found if one.check)


def test_missing_weights_are_told(real_model: RealModel) -> None:
    made = real_model("detr-resnet-50/model_quantized")
    (one,) = check_hazards(made, hazards(made)).hazards
    assert one.check == Check(None, "the data file 'model_quantized.weights' is missing")


MASK = CASES["a mask of fixed length"]


def checked(made: Model, **changes: object) -> Check | None:
    """Return the check of a hazard of which something else is said."""
    (one, *_) = hazards(made).hazards
    return check_hazards(made, Hazards((replace(one, **changes),))).hazards[0].check  # type: ignore[arg-type]


def test_what_would_be_too_large_is_not_run() -> None:
    check = checked(model(MASK.io, MASK.body), dims=(("b", 1), ("n", 1 << 14)))
    assert check == Check(None, "too large to run: 'x' would have 268,435,456 elements")


def test_a_hazard_that_does_not_come_true_is_not_confirmed() -> None:
    assert checked(model(MASK.io, MASK.body), dims=(("b", 1), ("n", 9))) == Check(False, "it runs")


def test_a_failure_elsewhere_is_not_confirmed() -> None:
    check = checked(model(MASK.io, MASK.body), nodes=("Shape#2",))
    assert check == Check(
        False, "fails in Add '': Attempting to broadcast an axis by a dimension other than 1. 16 by 17"
    )


def test_dims_that_should_be_fine_must_be() -> None:
    check = checked(model(MASK.io, MASK.body), fine=(("b", 3), ("n", 18)))
    assert check == Check(
        None, "fails at b=3, n=18 too: Attempting to broadcast an axis by a dimension other than 1. 16 by 18"
    )


def test_a_shape_inside_a_branch_cannot_be_seen() -> None:
    made = model(
        "(bool c, float[n] x) => (float[A] y)",
        """y = If (c) <
            then_branch = t () => (float[B] k) {
                f = Constant <value_floats = [0.0, 1.0, 2.0, 3.0]> ()  s = Shape(x)  w = Shape(f)  n = Sub(w, s)
                k = Slice(f, n, w)
            },
            else_branch = e () => (float[D] l) { l = Identity(x) }
        >""",
    )
    (one,) = check_hazards(made, hazards(made)).hazards
    assert (one.kind, one.check) == ("wrong shape", Check(None, "its output cannot be seen from outside"))


def test_an_input_that_cannot_be_made_is_told() -> None:
    made = model("(float[] t, float[n] x, float[m] w) => (float[A] y, float[] u)", "y = Add(x, w)  u = Identity(t)")
    (one,) = check_hazards(made, hazards(made)).hazards
    assert one.check == Check(None, "'t': no input can be made for it: its shape or type is not declared")


def test_strings_are_made() -> None:
    made = model("(string[b] t, float[n] x, float[m] w) => (float[A] y, string[B] u)", "y = Add(x, w)  u = Identity(t)")
    (one,) = check_hazards(made, hazards(made)).hazards
    assert one.check.confirmed


def test_a_model_that_onnxruntime_does_not_load_is_told() -> None:
    made = model("(float[n] x, float[m] w) => (float[A] y, float[B] u)", "y = Add(x, w)  u = custom.Thing(x)")
    (one,) = check_hazards(made, hazards(made)).hazards
    assert one.check is not None
    assert one.check.confirmed is None
    assert one.check.message.startswith("onnxruntime does not load it: ")


def test_a_branch_is_run_by_its_input() -> None:
    made = model(
        "(bool[1] c, float[n] x, float[m] w) => (float[A] y)",
        """k = Squeeze(c)  d = Not(k)  y = If (d) <
            then_branch = t () => (float[B] p) { p = Add(x, w) },
            else_branch = e () => (float[D] q) { q = Identity(x) }
        >""",
    )
    (one,) = check_hazards(made, hazards(made)).hazards
    assert one.nodes == ("If#2/then_branch/Add#0",)
    assert one.check is not None
    assert one.check.confirmed


def test_a_node_of_a_function_is_known_by_its_name() -> None:
    made = Model.from_proto(
        onnx.parser.parse_model(
            """<ir_version: 10, opset_import: ["" : 18, "local" : 1]>
            g (float[n] x, float[m] w) => (float[A] y) { y = local.f(x, w) }
            <domain: "local", opset_import: ["" : 18]> f (a, b) => (c) { d = Relu(a)  [sum] c = Add(d, b) }"""
        )
    )
    (one,) = check_hazards(made, hazards(made)).hazards
    assert one.nodes == ("function f/sum",)
    assert one.check == Check(True, "Attempting to broadcast an axis by a dimension other than 1. 2 by 3")


def test_what_has_no_dims_is_not_run() -> None:
    found = Hazards((Hazard("never", "Add", "", ("Add#0",), "dims", "", None, (), (), ()),))
    assert check_hazards(model(MASK.io, MASK.body), found) == found
