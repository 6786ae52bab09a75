"""What a proof says of equality by normal forms, beside its runs."""

from __future__ import annotations

from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from msgspec.structs import replace
from rewriting import model_of

from graphkit.equivalence import check_equivalence
from graphkit.equivalence.equivalence_summary import EquivalenceSummary, limited_equivalence
from graphkit.equivalence.result import ComparedConstants, Equivalence, OutputProof
from graphkit.model import Model
from graphkit.options import RewriteProofOptions
from graphkit.render.document_blocks import Prose
from graphkit.runtime.session import IsolatedSession
from graphkit.verify import verify_rewrite
from graphkit.verify.rewrite_proof import OutputProof as Output
from graphkit.verify.rewrite_proof import RewriteProof, RunProof

PLAIN = model_of("g (float[N, 4] x) => (float[N, 4] y) { y = Neg (x) }")
AT = np.array([111.25], np.float32)
LAYER = {"w": np.eye(4, 3, dtype=np.float32), "b": np.ones(3, np.float32)}
RARE = "w = Mul (v, v) c = Equal (x, w) z = Sub (x, w) n = Neg (x) y = Where (c, z, n)"  # no run draws the product


def paragraphs(proof: RewriteProof) -> list[str]:
    texts = (str(block.text) for block in proof.equivalence.blocks() if isinstance(block, Prose))
    return list(texts)


def test_what_normal_forms_show_is_proven_at_every_size() -> None:
    same = model_of(
        "g (float[N, 4] x) => (float[N, 4] y) { a = Reshape (x, flat) b = Neg (a) y = Reshape (b, back) }",
        flat=[-1],
        back=[-1, 4],
    )
    found = verify_rewrite(PLAIN, same)
    assert found.proven() == "Proven bit for bit at every size (1 of 1 output), and run once."
    assert [(run.dims, run.elements) for run in found.runs] == [({"N": 2}, "")]
    assert (found.outputs, found.level.runs) == ((), 0)
    assert "The rewritten model loads and runs at onnxruntime's default level." in found.to_text()
    assert paragraphs(found) == [
        "By normal forms, at every legal size and for every input, for N >= 1: 1 bit for bit, of 1. "
        "Shapes and integers are as onnxruntime has them, of 4 kinds of node at 8 sizes or more.",
    ]


@pytest.fixture
def all_is_proven(monkeypatch: pytest.MonkeyPatch) -> None:
    """Let normal forms say of any two models that they are equal bit for bit."""
    shown = Equivalence((OutputProof("y", "proven", "bit for bit"),))
    monkeypatch.setattr("graphkit.verify.rewrite_verifier.limited_equivalence", lambda *_, **__: shown)


@pytest.mark.usefixtures("all_is_proven")
@pytest.mark.parametrize(
    "nodes",
    [
        pytest.param("i = Gather (at, one) f = Cast <to = 1> (i) y = Add (x, f)", id="it does not run"),
        pytest.param("y = Neg <unknown = 1> (x)", id="it does not load"),
    ],
)
def test_what_does_not_load_or_run_is_compared_with_its_original(nodes: str) -> None:
    wrong = model_of(f"g (float[N, 4] x) => (float[N, 4] y) {{ {nodes} }}", at=np.array([0]), one=np.array([1]))
    found = verify_rewrite(PLAIN, wrong)
    assert not found.passed
    assert found.equivalence == EquivalenceSummary()


@pytest.mark.usefixtures("all_is_proven")
def test_the_original_of_what_is_proven_bit_for_bit_runs_at_dims_of_0_alone(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    sources, init = list[object](), IsolatedSession.__init__

    def opened(session: IsolatedSession, source: Path | Model, **options: Any) -> None:
        sources.append((source, options["optimize"]))
        init(session, source, **options)

    monkeypatch.setattr(IsolatedSession, "__init__", opened)
    same = model_of("g (float[N, 4] x) => (float[N, 4] y) { y = Neg (x) }")
    assert verify_rewrite(PLAIN, same).passed
    assert sources == [(same, True), (PLAIN, False)]
    fixed = model_of("g (float[3, 4] x) => (float[3, 4] y) { y = Neg (x) }")
    sources.clear()
    assert verify_rewrite(fixed, fixed).passed
    assert sources == [(fixed, True)]


def test_a_tolerance_costs_a_proof_bit_for_bit_nothing() -> None:
    found = verify_rewrite(PLAIN, PLAIN, options=RewriteProofOptions(tolerance=1e-5))
    assert found.proven() == "Proven bit for bit at every size (1 of 1 output), and run once."


def test_the_headline_measures_as_the_tolerance_of_rounding_does() -> None:
    """A number near 0 may differ by much of itself: no more than the last digit of those that it was added up of."""
    outputs = (Output("y", 1e-7, 0.5, 1e-8, 3, 9, ""), Output("z", 2e-7, 1e-6, 3e-7, 5, 9, ""))
    proof = RewriteProof(
        *("a.onnx", "b.onnx", 1e-5, {}),
        runs=(RunProof({"N": 2}, {}, 0, 2e-7, 0.5, ""),) * 7,
        outputs=outputs,
        of_magnitude=True,
        equivalence=EquivalenceSummary(dict.fromkeys("yz", "in exact arithmetic")),
    )
    assert proof.proven() == (
        "Proven in exact arithmetic at every size (2 of 2 outputs), and tested in 7 runs, with a largest difference of "
        "3e-07 of the largest magnitude in an output."
    )


def test_a_gap_of_the_runs_follows_what_normal_forms_prove() -> None:
    shown = EquivalenceSummary({"y": "in exact arithmetic"})
    assert shown.headline("", 7, largest="difference of 3e-07", caveats=["extreme values"]) == (
        "Proven in exact arithmetic at every size (1 of 1 output), and tested in 7 runs, with a largest difference of "
        "3e-07; the runs do not cover: extreme values."
    )


@pytest.mark.parametrize("exactness", ["bit for bit", "in exact arithmetic"])
def test_equalities_and_constants_of_exact_arithmetic_are_named(exactness: str) -> None:
    used, constants = {"cast": 9, "einsum": 1, "gemm": 2}, ComparedConstants(14, 4.2e-8)
    shown = EquivalenceSummary({"y": exactness}, axioms=used, constants=constants)
    texts = [str(block.text) for block in shown.blocks() if isinstance(block, Prose)]
    told = (
        "Equalities of exact arithmetic: einsum (once), gemm (twice). 14 computed constants agree with their exact "
        "values to 4e-08. Of rounding, overflow, NaN, infinities and signs of zeros, only the runs tell."
    )
    assert texts[1:] == ([told] if exactness == "in exact arithmetic" else [])


def test_the_equalities_of_a_fused_fold_are_named() -> None:
    original = model_of("g (float[N, 4] x) => (float[N, 3] y) { a = MatMul (x, w) y = Add (a, b) }", **LAYER)
    fused = model_of("g (float[N, 4] x) => (float[N, 3] y) { y = Gemm (x, w, b) }", **LAYER)
    found = verify_rewrite(original, fused, options=RewriteProofOptions(tolerance=1e-5))
    assert paragraphs(found) == [
        "By normal forms, at every legal size and for every input, for N >= 1: 1 in exact arithmetic, of 1. "
        "Shapes and integers are as onnxruntime has them, of 3 kinds of node at 8 sizes or more.",
        "Equalities of exact arithmetic: constants in weights (once), gemm (once), rows times a matrix (once). "
        "Of rounding, overflow, NaN, infinities and signs of zeros, only the runs tell.",
    ]


def test_a_gap_of_the_runs_weakens_a_test() -> None:
    shown = EquivalenceSummary({"y": "bit for bit"}, {"z": "no axiom"})
    assert shown.headline("2 outputs equal", 7, caveats=["extreme values"]) == (
        "Tested in 7 runs: 2 outputs equal; not covered: extreme values. "
        "Proven bit for bit at every size: 1 of 2 outputs."
    )


@pytest.mark.slow
def test_each_branch_of_a_merged_decoder_runs_once() -> None:
    found = verify_rewrite("example:merged-decoder", "example:merged-decoder")
    assert [run.flags["use_cache_branch"] for run in found.runs] == [False, True]
    assert found.proven().endswith(", and run twice.")
    assert all(output.elements for output in found.outputs)


def test_runs_alone_are_a_test() -> None:
    found = verify_rewrite(PLAIN, model_of(f"g (float[N, 4] x) => (float[N, 4] y) {{ {RARE} }}", v=AT))
    assert found.passed
    assert found.proven() == f"Tested in {len(found.runs)} runs: 1 output equal to the last bit."
    assert not found.equivalence.proven
    (paragraph,) = paragraphs(found)
    assert paragraph.startswith("Not proven at every size: 'y': ")


def test_outputs_are_told_apart() -> None:
    one = model_of("g (float[N, 4] x) => (float[N, 4] y, float[N, 4] z) { y = Neg (x) z = Abs (x) }")
    two = model_of(
        "g (float[N, 4] x) => (float[N, 4] y, float[N, 4] z)"
        " { w = Mul (v, v) c = Equal (x, w) d = Sub (x, w) n = Neg (x) y = Where (c, d, n) z = Abs (x) }",
        v=AT,
    )
    found = verify_rewrite(one, two)
    assert found.equivalence.proven == {"z": "bit for bit"}
    assert list(found.equivalence.unproven) == ["y"]
    assert found.proven().endswith("2 outputs equal to the last bit. Proven bit for bit at every size: 1 of 2 outputs.")


def test_a_difference_is_no_proof_of_any_kind() -> None:
    found = verify_rewrite(PLAIN, model_of("g (float[N, 4] x) => (float[N, 4] y) { y = Abs (x) }"))
    assert not found.passed
    assert found.equivalence == EquivalenceSummary()


def test_normal_forms_that_take_too_long_leave_the_runs() -> None:
    shown = EquivalenceSummary.of(limited_equivalence(partial(check_equivalence, PLAIN, PLAIN), PLAIN, 0.0))
    assert not shown.proven
    assert shown.unproven["y"].startswith("the proof by normal forms does not finish in 0 s")


def test_the_least_exact_output_says_how_exact_all_are() -> None:
    shown = EquivalenceSummary({"a": "bit for bit", "b": "in exact arithmetic", "c": "bit for bit"})
    assert shown.is_complete
    assert shown.exactness == "in exact arithmetic"
    assert [str(block.text) for block in shown.blocks() if isinstance(block, Prose)] == [
        "By normal forms, at every legal size and for every input: 2 bit for bit, 1 in exact arithmetic, of 3.",
        "Of rounding, overflow, NaN, infinities and signs of zeros, only the runs tell.",
    ]


def test_many_outputs_that_are_not_proven_are_counted() -> None:
    shown = EquivalenceSummary(unproven=dict.fromkeys("abcde", "no axiom"))
    texts = [str(block.text) for block in shown.blocks() if isinstance(block, Prose)]
    assert texts == [*(f"Not proven at every size: '{name}': no axiom." for name in "abc"), "Nor are 2 others."]


@pytest.mark.parametrize(
    ("apart", "is_taken"),
    [
        ({}, True),
        ({"limits": ("batch <= 8",)}, True),
        ({"exactness": "in exact arithmetic"}, False),
        ({"verdict": "unknown"}, False),
    ],
)
def test_dims_of_one_name_are_apart_where_as_much_is_proven(apart: dict[str, Any], is_taken: bool) -> None:
    exact = check_equivalence(PLAIN, PLAIN)
    fields = {name: value for name, value in apart.items() if name != "limits"}
    weaker = replace(
        exact,
        outputs=tuple(replace(output, **fields) for output in exact.outputs),
        limits=apart.get("limits", ()),
    )
    related = replace(exact, shared_dims=("one batch",))
    found = {"apart": weaker, "related": related}

    def check(*, dims: str, **_: object) -> Equivalence:
        return found[dims]

    chosen = limited_equivalence(check, PLAIN, None)
    assert chosen is (weaker if is_taken else related)
    found["related"] = replace(related, shared_dims=())
    chosen = limited_equivalence(check, PLAIN, None)
    assert chosen is (weaker if not apart else found["related"])
