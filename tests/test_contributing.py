"""CONTRIBUTING.md and the pages for maintainers: the files that they name exist, and examples do what they say."""

from __future__ import annotations

import re
from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, ClassVar

import numpy as np
import pytest
from rewriting import check, lines, model_of, reasons

from graphkit import Editor, MatchFailure, Model, NewNode, Node, NodeRewrite
from graphkit.graph.operator_traits import RANDOM
from graphkit.graph.view import all_nodes
from graphkit.model import ModelLike, as_model
from graphkit.ops.registry import RULES
from graphkit.options import ProofOptions
from graphkit.render.result import Result, tabled
from graphkit.runtime.isolation import shared_isolation
from graphkit.runtime.session import IsolatedSession
from graphkit.shapes import InferenceContext, Tensor, infer
from graphkit.shapes.constraints.legal_sizes import legal_sizes
from graphkit.verify.comparator import FLOAT32_TOLERANCE
from graphkit.verify.feeder import Feeder, Run
from graphkit.verify.proof_engine import repeat_calls
from graphkit.verify.proof_runs import run_original

ROOT = Path(__file__).parents[1]
PAGES = (ROOT / "CONTRIBUTING.md", *sorted((ROOT / "docs" / "maintainers").glob("*.md")))
GUIDE = "\n".join(path.read_text(encoding="utf-8") for path in PAGES)
IMPORTS: dict[str, Any] = {
    one.__name__: one
    for one in (
        *(Editor, Iterator, MatchFailure, Model, NewNode, Node, NodeRewrite, Result),
        *(all_nodes, as_model, dataclass, field, tabled),
    )
}
IMPORTS |= {
    one.__name__: one
    for one in (Feeder, IsolatedSession, Run, shared_isolation, legal_sizes, repeat_calls, run_original)
}
IMPORTS |= {"np": np, "FLOAT32_TOLERANCE": FLOAT32_TOLERANCE}
IMPORTS |= {"RANDOM": RANDOM, "ClassVar": ClassVar, "ModelLike": ModelLike}
MADE = {"HOST.md", "contract.json", "bundle.json", "model.onnx", "out.onnx"}  # what commands write and read


def python_block(start: str) -> str:
    """Return the block of Python of the guide that has a line."""
    (block,) = (block for block in re.findall(r"^```python\n(.*?)^```$", GUIDE, re.M | re.S) if start in block)
    return block


def example(start: str, **given: object) -> dict[str, Any]:
    """Run the block of Python of the guide that has a line, with what it is given, and return what it defines."""
    names = IMPORTS | given
    exec(compile(python_block(start), "guide", "exec", dont_inherit=True), names)
    return names


def test_the_files_that_it_names_exist() -> None:
    named = set(re.findall(r"`([\w./-]+\.(?:py|pyi|toml|md|mjs|json))`", GUIDE)) - MADE
    assert len(named) > 60
    everywhere = {path.name for folder in ("graphkit", "tests") for path in (ROOT / folder).rglob("*.*")}
    roots = (ROOT / "graphkit", ROOT)
    missing = {name for name in named if not any((root / name).exists() for root in roots)}
    assert {name for name in missing if "/" in name or name not in everywhere} == set()


def test_the_folders_that_it_names_exist() -> None:
    named = set(re.findall(r"`((?:graphkit|tests|benchmarks|docs)(?:/\w+)*)`", GUIDE))
    assert len(named) > 15
    assert {name for name in named if not (ROOT / name).is_dir()} <= {"docs/_build"}  # which `make docs` makes


def test_the_example_of_a_pass() -> None:
    square = example("class SquareToMul")["SquareToMul"]()
    text = "g (float[N, 4] x) => (y) <float p = {%s}> { y = Pow (x, p) }"
    assert lines(check(square, model_of(text % 2)).model) == ["y = Mul (x, x)"]
    kept = check(square, model_of(text % 3))
    assert reasons(kept) == ["Pow#0: its exponent is not a constant 2"]


HEAD = "g (float[N, 4] x) => (float[N, 4] y) <int64 zero = {0}> "
PROVEN = {
    "rows stay apart": ("{ y = Softmax <axis = 1> (x) }", False),
    "a row reads those before it": ("{ y = CumSum (x, zero) }", True),
}


@pytest.mark.parametrize(("body", "is_mixed"), PROVEN.values(), ids=PROVEN)
def test_the_example_of_a_proof(body: str, is_mixed: bool) -> None:
    given = {"model": model_of(HEAD + body), "options": ProofOptions(), "RUNS": 7}
    failures = example("run_original(session", **given)["failures"]
    assert bool(failures) == is_mixed
    assert [failure for failure in failures if not (failure.startswith("y ") and " at N=" in failure)] == []


def rule(name: str) -> Any:
    """Return the rule of the guide; its table, which goes on in the file of rules, stays out."""
    block = python_block(f"def {name}").partition("\nRULES = ")[0]
    names = {"InferenceContext": InferenceContext, "Tensor": Tensor}
    exec(compile(block, "guide", "exec", dont_inherit=True), names)
    return names[name]


def test_the_example_of_a_shape_rule(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(RULES, "com.microsoft.CDist", rule("infer_distances"))
    text = "g (float[n, d] a, float[m, e] b) => (float[p, q] y) { y = com.microsoft.CDist (a, b) }"
    shapes = infer(model_of(text))
    assert str(shapes["y"]) == "[n, m]"
    assert [str(each) for each in shapes.equalities] == ["d == e"]


def test_the_example_of_an_analysis() -> None:
    found = example("class RandomNodes")["random_nodes"](
        model_of("g (float[N] x) => (y) { r = RandomNormalLike (x) y = Add (x, r) }")
    )
    assert found.nodes == ("RandomNormalLike#0",)
    assert "RandomNormalLike#0" in found.to_text()
