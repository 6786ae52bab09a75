"""The errors that `graphkit compare` measured as an overlay."""

from __future__ import annotations

from pathlib import Path

import pytest
from builders import model_of

import graphkit
from graphkit.errors import UsageError
from graphkit.verify.layers.comparison import ComparedTensor, Divergence, ModelComparison
from graphkit.viewer.make_view import view

A = "(float[N, 4] x) => (float[N, 4] y) { [one] t = Tanh (x) [two] u = Exp (t) [three] y = Neg (u) }"
B = A.replace("t = Tanh", "s = Tanh").replace("(t)", "(s)")


def tensor(a: str, b: str, relative: float | None, agrees: bool, problem: str = "") -> ComparedTensor:
    return ComparedTensor(
        a=a,
        b=b,
        how="name",
        node="",
        operator="",
        module="",
        dims=(),
        absolute=relative,
        relative=relative,
        cosine=None,
        problem=problem,
        agrees=agrees,
    )


def comparison(*tensors: ComparedTensor) -> ModelComparison:
    return ModelComparison(
        a="a.onnx",
        b="b.onnx",
        tolerance=1e-4,
        inputs={},
        bisected=False,
        steps=1,
        tensors=tensors,
        divergences=(Divergence("u", "u", "two", "Exp", ()),),
        matched=3,
        unmatched_a=(),
        unmatched_b=(),
    )


COMPARED = comparison(
    tensor("t", "s", 1e-8, True), tensor("u", "u", 0.25, False), tensor("y", "y", None, False, "dims differ")
)
EXPECTED = {"one": (1e-8, "#c8e6c9"), "two": (0.25, "#b71c1c"), "three": ("dims differ", "#bdbdbd")}


def told(errors: ModelComparison | str | Path) -> list[dict[str, object]]:
    models = view(model_of(A), model_of(B), errors=errors).models
    return [
        {
            node: (result.value, result.bgColor)
            for node, result in model.overlays[-1].by_graph[model.label].results.items()
        }
        for model in models
    ]


def test_errors_are_shown_in_both_models(tmp_path: Path) -> None:
    assert told(COMPARED) == [EXPECTED, EXPECTED]
    (tmp_path / "compare.json").write_text(COMPARED.to_json())
    assert told(tmp_path / "compare.json") == [EXPECTED, EXPECTED]


@pytest.mark.parametrize("worse", ["p", "q"])
def test_a_node_has_its_worst_error(worse: str) -> None:
    model = model_of("(float[4] x) => (float[2] p, float[2] q) { [two] p, q = Split <num_outputs = 2> (x) }")
    errors = comparison(*(tensor(name, name, 0.5 if name == worse else 1e-9, name != worse) for name in ("p", "q")))
    (data,) = view(model, errors=errors).models[0].overlays[-1].by_graph.values()
    assert [result.value for result in data.results.values()] == [0.5]


def test_a_real_comparison_of_a_model_with_itself_has_no_error() -> None:
    model = graphkit.load("example:causal-attention")
    compared = graphkit.compare_models(model, model)
    (data,) = view(model, errors=compared).models[0].overlays[-1].by_graph.values()
    assert {result.value for result in data.results.values()} == {0.0}
    assert len(data.results) == len({each.node for each in compared.tensors if each.node})


@pytest.mark.parametrize(
    ("text", "problem"),
    [
        ("{", "is not JSON"),
        ("[]", r"is not a comparison of two models \(model-comparison/1\)"),
        ('{"schema": "costs/1"}', "is not a comparison of two models"),
        ('{"schema": "model-comparison/1"}', "is not a comparison as graphkit writes it"),
        (
            '{"schema": "model-comparison/1", "divergences": [], "tensors": [1]}',
            "is not a comparison as graphkit writes it",
        ),
    ],
)
def test_another_file_is_an_error(tmp_path: Path, text: str, problem: str) -> None:
    (tmp_path / "other.json").write_text(text)
    with pytest.raises(UsageError, match=rf"other.json: {problem}.*write one with `graphkit compare"):
        view(model_of(A), errors=tmp_path / "other.json")


def test_a_missing_file_is_an_error(tmp_path: Path) -> None:
    with pytest.raises(UsageError, match=r"none\.json: cannot be read: No such file"):
        view(model_of(A), errors=tmp_path / "none.json")


def test_a_comparison_of_other_models_is_an_error() -> None:
    with pytest.raises(UsageError, match=r"a\.onnx and b\.onnx: compares no tensor that a node of .* gives"):
        view(model_of(A), errors=comparison(tensor("nowhere", "nowhere", 0.0, True)))
