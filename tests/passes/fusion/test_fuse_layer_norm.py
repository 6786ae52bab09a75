from __future__ import annotations

from collections.abc import Mapping

import numpy as np
import pytest
from fusing import check_close, operators
from rewriting import lines, model_of, reasons

from graphkit.model import Model
from graphkit.options import FoldingOptions
from graphkit.passes.fold_pipeline import fold
from graphkit.passes.fusion.fuse_layer_norm import FuseLayerNorm

PASS = FuseLayerNorm()
NODES = {
    "mean": "ReduceMean <axes = [-1]> (x)",
    "centred": "Sub (x, mean)",
    "square": "Pow (centred, two)",
    "variance": "ReduceMean <axes = [-1]> (square)",
    "positive": "Add (variance, small)",
    "deviation": "Sqrt (positive)",
    "normal": "Div (centred, deviation)",
    "scaled": "Mul (normal, s)",
    "y": "Add (scaled, b)",
}
AXES = {"mean": "ReduceMean (x, axes)", "variance": "ReduceMean (square, axes)"}


def norm(
    nodes: Mapping[str, str] = {}, opset: int = 17, dims: str = "N, 3, 4", dtype: str = "float", outputs: str = "y"
) -> Model:
    """Return a layer normalization, some of its nodes others; the empty text leaves one out."""
    body = " ".join(f"{name} = {text}" for name, text in {**NODES, **nodes}.items() if text)
    np_dtype = {"float": np.float32, "float16": np.float16, "double": np.float64}[dtype]
    numbers = {"two": 2, "one": 1, "small": 0.5, "many": [0.5, 0.25, 0.5, 0.5], "s": [1, 2, 3, 4], "b": [4, 3, 2, 1]}
    arrays = {name: np.array(number, np_dtype) for name, number in numbers.items()}
    text = f"g ({dtype}[{dims}] x, {dtype}[4] t) => ({outputs}) {{ {body} }}"
    return model_of(text, opset, **arrays, axes=np.array([-1]))


TURNED = {"positive": "Add (small, variance)", "scaled": "Mul (s, normal)", "y": "Add (b, scaled)"}
RECIPROCAL = {"deviation": "Sqrt (positive) r = Reciprocal (deviation)", "normal": "Mul (centred, r)"}
INVERSE = {"deviation": "Sqrt (positive) r = Div (one, deviation)", "normal": "Mul (r, centred)"}
FUSED = {
    "as exported": (norm(), "<axis: int = -1, epsilon: float = 0.5> (x, s, b)"),
    "a square by Mul": (norm({"square": "Mul (centred, centred)"}), "(x, s, b)"),
    "a Reciprocal": (norm(RECIPROCAL), "(x, s, b)"),
    "one divided": (norm(INVERSE), "(x, s, b)"),
    "constants first": (norm(TURNED), "(x, s, b)"),
    "axes as an input": (norm(AXES, 18), "(x, s, b)"),
    "a scale at run time": (norm({"scaled": "Mul (normal, t)"}), "(x, t, b)"),
    "no bias": (norm({"scaled": "", "y": "Mul (normal, s)"}), "(x, s)"),
    "no scale": (norm({"scaled": "", "y": "Add (normal, b)"}), "(x, y_scale, b)"),
    "neither": (norm({"scaled": "", "normal": "", "y": "Div (centred, deviation)"}), "(x, y_scale)"),
}


@pytest.mark.parametrize(("model", "expected"), FUSED.values(), ids=FUSED)
def test_it_is_put_together(model: Model, expected: str) -> None:
    outcome = check_close(PASS, model)
    (line,) = lines(outcome.model)
    assert line.startswith("y = LayerNormalization")
    assert line.endswith(expected)
    assert outcome.changes == ("1 LayerNormalization put together",)


def test_the_last_axes_may_be_several() -> None:
    axes = {"mean": "ReduceMean <axes = [1, 2]> (x)", "variance": "ReduceMean <axes = [2, -2]> (square)"}
    outcome = check_close(PASS, norm(axes))
    assert lines(outcome.model)[0].endswith("<axis: int = -2, epsilon: float = 0.5> (x, normal_scale)")
    assert operators(outcome.model) == ["LayerNormalization", "Mul", "Add"]  # the scale is of one axis


def test_float16_is_put_together() -> None:
    outcome = check_close(PASS, norm(dtype="float16"), tolerance=1e-3)
    assert operators(outcome.model) == ["LayerNormalization"]


@pytest.mark.parametrize(
    ("narrow", "left"), [(10, ["LayerNormalization"]), (11, ["Cast", "LayerNormalization", "Cast", "Mul", "Add"])]
)
def test_casts_from_float16_and_back_go(narrow: int, left: list[str]) -> None:
    nodes = {
        "wide": "Cast <to = 1> (x)",
        **NODES,
        "mean": "ReduceMean <axes = [-1]> (wide)",
        "centred": "Sub (wide, mean)",
        "scaled": f"Cast <to = {narrow}> (normal) product = Mul (scaled, s)",
        "y": "Add (product, s)",
    }
    body = " ".join(f"{name} = {text}" for name, text in nodes.items())
    arrays = {"two": np.float32(2), "small": np.float32(0.5), "s": np.arange(4, dtype=["f2", "f8"][narrow - 10])}
    outcome = check_close(PASS, model_of(f"g (float16[N, 4] x) => (y) {{ {body} }}", **arrays), tolerance=1e-3)
    assert operators(outcome.model) == left


MIDDLE = {"mean": "ReduceMean <axes = [1]> (x)", "variance": "ReduceMean <axes = [1]> (square)"}
LOST = {"mean": "ReduceMean <axes = [-1], keepdims = 0> (x)", "centred": "Sub (x, mean)"}
APART = "its means are not over the same last axes, which they keep"
DECLINED = {
    "an old opset": (norm(opset=16), "its opset is older than 17, which has LayerNormalization"),
    "an axis in the middle": (norm(MIDDLE), APART),
    "different axes": (norm({"variance": MIDDLE["variance"]}), APART),
    "axes that go": (norm(LOST, dims="4, 4"), APART),
    "epsilons": (norm({"positive": "Add (variance, many)"}), "its epsilon is not one constant number"),
    "an epsilon at run time": (norm({"positive": "Add (variance, t)"}), "its epsilon is not one constant number"),
    "double": (norm(dtype="double"), "LayerNormalization computes its mean in float32"),
    "another reader": (norm({"z": "Neg (variance)"}, outputs="y, z"), "'variance' is read elsewhere too"),
    "an output": (norm(outputs="y, centred"), "'centred' is read elsewhere too"),
    "another dividend": (
        norm({"normal": "Div (x, deviation)"}),
        "what is centred is not all that is divided by its deviation",
    ),
    "no scale of known size": (
        norm({"scaled": "", "y": "Neg (normal)"}, dims="N, M"),
        "it has no scale, and would need one of unknown or great size",
    ),
}


@pytest.mark.parametrize(("model", "reason"), DECLINED.values(), ids=DECLINED)
def test_it_is_declined(model: Model, reason: str) -> None:
    outcome = PASS.run(model)
    assert outcome.model is model
    assert reasons(outcome) == [f"Sqrt#5: {reason}"]


@pytest.mark.parametrize("nodes", [{"square": "Pow (centred, one)"}, {"centred": "Sub (x, t)"}, {"mean": "Abs (x)"}])
def test_what_looks_otherwise_is_none(nodes: dict[str, str]) -> None:
    outcome = PASS.run(model := norm(nodes))
    assert (outcome.model, outcome.declined) == (model, ())


def test_no_elements_are_normalized_too() -> None:
    check_close(PASS, norm(), {"N": 0})


def test_only_a_fold_that_fuses_takes_it_before_its_scale_goes_into_a_product() -> None:
    model = norm({"y": "Add (scaled, b) z = MatMul (y, w)"}, outputs="z")
    model.proto.graph.initializer.add(name="w", data_type=1, dims=[4, 2], float_data=range(8))
    model = Model.from_proto(model.proto)
    assert len(operators(fold(model).model)) == 10
    assert operators(fold(model, options=FoldingOptions(fuse=True)).model) == ["LayerNormalization", "MatMul"]
