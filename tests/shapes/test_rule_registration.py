"""Shape rules that are registered from outside the package."""

from __future__ import annotations

import doctest
import inspect
import re
from collections.abc import Callable, Iterator
from pathlib import Path

import numpy as np
import onnx
import pytest
from graphs import dims, model
from onnx import TensorProto

from graphkit.errors import ModelError, UsageError
from graphkit.model import load
from graphkit.ops.registry import RULES, matmul_and_attention
from graphkit.ops.tensor import array_of
from graphkit.rewrite.editor import Editor
from graphkit.shapes import InferenceContext, Shapes, Tensor, UnknownError, declarations, infer, register_rule

ROOT = Path(__file__).parents[2]
TEXT = "g (float[n, 3] x, float[m, k] z) => (y) { y = custom.CDist (x, z) }"
NAMED = "g (float[n, 3] x, float[m, k] z) => (y) { [pairs] y = custom.CDist (x, z) }"


@pytest.fixture(autouse=True)
def rules_of_before() -> Iterator[None]:
    before = dict(RULES)
    yield
    RULES.clear()
    RULES.update(before)


def distances(ctx: InferenceContext) -> Tensor:
    (rows, left), (columns, right) = ctx.dims(0), ctx.dims(1)
    ctx.same(left, right, "the coordinates of both inputs")
    return Tensor(ctx.tensor(0).dtype, (rows, columns))


def output(shapes: Shapes) -> str:
    return str(shapes[shapes.model.graph.outputs[0]])


def test_a_rule_says_what_an_operator_of_its_domain_does() -> None:
    register_rule("CDist", domain="custom")(distances)
    found = infer(model(TEXT))
    assert output(found) == "[n, m]"
    assert [str(equality) for equality in found.equalities] == ["3 == k"]
    assert dims(TEXT.replace("custom", "local")) == "unknown"


def test_the_decorator_returns_the_function() -> None:
    assert register_rule("CDist", domain="custom")(distances) is distances


def test_a_rule_is_called_for_each_of_nodes_that_are_alike() -> None:
    called = []

    @register_rule("CDist", domain="custom")
    def told_apart(ctx: InferenceContext) -> Tensor:
        called.append(ctx.node.label)
        return distances(ctx)

    infer(model(NAMED.replace("}", "[again] w = custom.CDist (x, z) }")))
    assert called[:2] == ["pairs", "again"]


def test_a_rule_that_does_not_know_says_why() -> None:
    @register_rule("CDist", domain="custom")
    def unknown(_: InferenceContext) -> Tensor:
        raise UnknownError("it depends on the weather")

    found = infer(model(TEXT))
    assert output(found) == "unknown"
    assert "it depends on the weather" in found[found.model.graph.outputs[0]].reason


@pytest.mark.parametrize(
    "operator", [("CDist", "custom"), ("Relu", ""), ("Relu", "ai.onnx"), ("Gelu", "com.microsoft")]
)
def test_an_operator_has_one_rule(operator: tuple[str, str]) -> None:
    register_rule("CDist", domain="custom")(distances)
    with pytest.raises(UsageError, match="has a shape rule already - pass `replace=True`"):
        register_rule(*operator)(distances)
    register_rule(*operator, replace=True)(distances)


def test_what_is_no_operator_or_no_rule() -> None:
    with pytest.raises(UsageError, match=r"is not an operator - write `@register_rule\(\"CDist\""):
        register_rule(distances)  # type: ignore[arg-type]
    with pytest.raises(UsageError, match=r"the shape rule for custom\.CDist is not a function"):
        register_rule("CDist", domain="custom")(3)  # type: ignore[type-var]


def test_what_was_inferred_before_is_inferred_anew() -> None:
    found = model(TEXT)
    assert output(infer(found)) == "unknown"
    assert output(Editor(found).shapes) == "unknown"
    before = declarations(found)
    register_rule("CDist", domain="custom")(distances)
    assert output(infer(found)) == "[n, m]"
    assert output(Editor(found).shapes) == "[n, m]"
    assert declarations(found) is not before


def raises(_: InferenceContext) -> Tensor:
    raise KeyError("columns")


NONSENSE: dict[str, tuple[Callable[[InferenceContext], object], str]] = {
    "an exception": (raises, "raised KeyError: 'columns'"),
    "no dims of ours": (lambda _: Tensor(1, ["n"]), "raised ValueError: n is not an integer"),  # type: ignore[list-item]
    "nothing": (lambda _: None, "returned output 0 as NoneType, not as a Tensor"),
    "dims alone": (lambda ctx: ctx.dims(0), "returned output 0 as Expr, not as a Tensor"),
    "too few outputs": (lambda _: [], "returned 0 of 1 outputs"),
    "a dtype of numpy": (
        lambda _: Tensor(np.float32, (1,)),  # type: ignore[arg-type]
        "returned output 0 with the dtype <class 'numpy.float32'>, which is not a TensorProto.DataType",
    ),
    "a dim below 0": (lambda _: Tensor(1, (2, -3)), "returned output 0 with dims below 0: [2, -3]"),
    "elements of other dims": (
        lambda _: Tensor(TensorProto.INT64, (3,), array_of([1, 2])),
        "returned output 0 with elements that are not an array of objects with its dims",
    ),
    "elements that are no array": (
        lambda _: Tensor(TensorProto.INT64, (2,), [1, 2]),  # type: ignore[arg-type]
        "returned output 0 with elements that are not an array of objects with its dims",
    ),
}


@pytest.mark.parametrize(("rule", "problem"), NONSENSE.values(), ids=NONSENSE)
def test_a_rule_that_is_wrong_is_one_error_that_names_the_node(
    rule: Callable[[InferenceContext], Tensor], problem: str
) -> None:
    register_rule("CDist", domain="custom")(rule)
    with pytest.raises(ModelError) as caught:
        infer(model(NAMED))
    assert str(caught.value) == (
        f"node 'pairs': the shape rule for custom.CDist {problem} - correct the rule: a rule takes an InferenceContext "
        "and returns a Tensor, or a list with one for each output of its node"
    )


def test_the_error_names_the_file_too(tmp_path: Path) -> None:
    onnx.save(model(NAMED).proto, tmp_path / "m.onnx")
    register_rule("CDist", domain="custom")(raises)
    with pytest.raises(ModelError, match=rf"^{re.escape(str(tmp_path / 'm.onnx'))}, node 'pairs': the shape rule"):
        infer(load(tmp_path / "m.onnx"))


def test_the_example_of_the_docstring() -> None:
    (example,) = (test for test in doctest.DocTestFinder().find(register_rule, "register_rule") if test.examples)
    assert doctest.DocTestRunner().run(example).failed == 0
    assert RULES["com.mine.CDist"].__name__ == "pairwise_distances"


def test_the_example_of_the_guide_for_contributors() -> None:
    guide = (ROOT / "docs" / "maintainers" / "adding-a-shape-rule.md").read_text(encoding="utf-8")
    (code,) = re.findall(r"^def infer_distances.*?(?=^RULES)", guide, re.DOTALL | re.MULTILINE)
    assert code.strip() == inspect.getsource(matmul_and_attention.infer_distances).strip()
    register_rule("CDist", domain="custom")(matmul_and_attention.infer_distances)
    assert dims(TEXT) == "[n, m]"
