"""Wrong rewrites, a table of them: a proof catches each, and names what differs."""

from __future__ import annotations

import weakref

import numpy as np
import pytest
from small_models import model
from wrong_rewrites import PAIRS, PLAIN, Pair

from graphkit.options import RewriteProofOptions
from graphkit.runtime.session import IsolatedSession
from graphkit.verify.proof_runs import TwoModels
from graphkit.verify.rewrite_verifier import verify_rewrite

ALONE = {  # what only one kind of run, or one number, catches, though its words are those of others
    "float: an exponent that is cut",
    "float: halves away from zero",
    "float: infinities, bool",
    "float: nearly zero, bool",
    "float: negative infinity, bool",
    "float: ties from the right",
    "float: ties of TopK",
    "float: zero is positive, bool",
    "from the end: GatherND",
    "int64: at a limit, bool",
    "int64: round trip via float64",
    "int64: round trip via int8",
    "int64: sign of a remainder",
    "mask: padding before the last token",
    "mask: positions that ignore it",
    "mask: the mask of the first row",
    "positions: counted, not read",
    "sizes: a batch past 16",
    "sizes: a batch that is the larger of two",
    "sizes: a length past 5000",
    "sizes: even batches above 300",
    "sizes: even lengths beyond a list",
    "sizes: odd lengths beyond a list",
    "the last row: counted lengths",
    "the last row: tokens",
    "tokens: a token in the last place",
    "tokens: a token that occurs twice",
    "tokens: no vocabulary",
    "tokens: token 39",
}
FIRST = {(pair.name.partition(":")[0], pair.caught): pair.name for pair in reversed(PAIRS)}  # of each kind


KINDS = [pair for pair in PAIRS if pair.name in {*ALONE, *FIRST.values()}]


@pytest.mark.cases(15)
@pytest.mark.parametrize("pair", KINDS, ids=[pair.name for pair in KINDS])
def test_a_wrong_rewrite_is_caught(pair: Pair) -> None:
    before, after = (model(text, **pair.constants) for text in (pair.before, pair.after))
    found = verify_rewrite(before, after)
    assert not found.passed
    assert pair.caught in "\n".join((*found.failures, *(str(run) for run in found.runs if run.failure)))


FED = "callers that feed {}, which is no input any more"
BY_DIMS = "callers that go by the dims of y: [{}], [{}] in the original"
NAMED = {
    "an input that nothing read": (
        "g (float[n] x, float[n] z) => (float[n] y) { y = Neg (x) }",
        "g (float[n] x) => (float[n] y) { y = Neg (x) }", FED.format("z")),
    "an input of which the dims were read": (
        "g (float[n] x, float[n, k] z) => (float[n] y) { s = Shape <end = 1> (z) y = Reshape (x, s) }",
        "g (float[n] x) => (float[n] y) { y = Identity (x) }", FED.format("z")),
    "an input that was multiplied by 0": (
        "g (float[n] x, int64[n] z) => (float[n] y) { m = Sub (z, z) f = Cast <to = 1> (m) y = Add (x, f) }",
        "g (float[n] x) => (float[n] y) { f = Sub (x, x) y = Identity (x) }", FED.format("z")),
    "a flag": (
        "g (float[n] x, bool training) => (float[n] y) { y = Neg (x) }",
        "g (float[n] x) => (float[n] y) { y = Neg (x) }", FED.format("training")),
    "two inputs": (
        "g (float[n] x, float[n] z, bool c) => (float[n] y) { y = Neg (x) }",
        "g (float[n] x) => (float[n] y) { y = Neg (x) }", FED.format("z, c")),
    "a label of a length": (PLAIN, PLAIN.replace("seq] y", "k] y"), BY_DIMS.format("batch, k", "batch, seq")),
    "a label of a batch": (
        PLAIN, PLAIN.replace("[batch, seq] y", "[n, seq] y"), BY_DIMS.format("n, seq", "batch, seq")),
    "a label that stands for no input": (
        PLAIN.replace("seq] y", "q] y"), PLAIN.replace("seq] y", "k] y"), BY_DIMS.format("batch, k", "batch, q")),
    "a number": (
        "g (float[b, 4] x) => (float[b, 4] y) { y = Neg (x) }",
        "g (float[b, 4] x) => (float[b, k] y) { y = Neg (x) }", BY_DIMS.format("b, k", "b, 4")),
    "a sum": (
        "g (float[b, s] x) => (float[b, t] y) { y = Concat <axis = 1> (x, x) }",
        "g (float[b, s] x) => (float[b, u] y) { y = Concat <axis = 1> (x, x) }", BY_DIMS.format("b, u", "b, t")),
    "none of a dim": (
        "g (float[b, s, 4] x) => (float[b, s, 4] y) { y = Neg (x) }",
        "g (float[b, s, 4] x) => (float[b, s, 4] y) { n = Neg (x) y = Reshape (n, keep) }",
        "b of 0, where the rewritten model fails or dims differ"),
    "a dim of 1 beside 0, where nothing has elements": (  # onnxruntime takes a -1 beside a 0 for 1
        "g (float[b, s, 4] x) => (float[b, s, 4] y) { l = Shape <start = 1> (x) k = Slice (keep, one, two) "
        "t = Concat <axis = 0> (k, l) r = Reshape <allowzero = 1> (x, t) y = Neg (r) }",
        "g (float[b, s, 4] x) => (float[b, s, 4] y) { y = Neg (x) }",
        "b and s of 0, where the rewritten model fails or dims differ"),
}  # fmt: skip


@pytest.mark.cases(4, "beside")
@pytest.mark.parametrize(("before", "after", "gap"), NAMED.values(), ids=NAMED)
def test_what_callers_may_miss_is_in_the_headline(before: str, after: str, gap: str) -> None:
    numbers = {"keep": np.array([0, -1, 4]), "one": np.array([1]), "two": np.array([2])}
    found = verify_rewrite(*(model(text, **numbers) for text in (before, after)))
    assert found.passed
    assert f"not cover: {gap}." in found.proven() or f"not covered: {gap}." in found.proven()


@pytest.mark.cases("proven")
@pytest.mark.parametrize(
    ("after", "loads"),
    [
        ("n = Neg (x) y = Reshape (n, keep)", [(1, True), (0, False)]),
        ("n = Cos (x) y = Reshape (n, keep)", [(1, True), (0, False), (1, False), (0, False)]),
    ],
    ids=["proven", "wrong"],
)
def test_one_model_is_in_memory_at_a_time_and_one_that_refuses_0_needs_the_original_for_that_alone(
    after: str, loads: list[tuple[int, bool]], monkeypatch: pytest.MonkeyPatch
) -> None:
    opened: list[tuple[int, bool]] = []
    ends: list[weakref.finalize[..., IsolatedSession]] = []
    open_session = TwoModels._session

    def recorded(self: TwoModels, index: int, *, optimize: bool, beside: bool = False) -> IsolatedSession:
        assert not any(end.alive for end in ends)
        session = open_session(self, index, optimize=optimize, beside=beside)
        opened.append((index, optimize))
        ends.append(session.close)
        return session

    monkeypatch.setattr(TwoModels, "_session", recorded)
    before = "g (float[b, s, 4] x) => (float[b, s, 4] y) { m = Identity (x) n = Neg (m) y = Reshape (n, keep) }"
    both = (before, f"g (float[b, s, 4] x) => (float[b, s, 4] y) {{ {after} }}")
    found = verify_rewrite(*(model(text, keep=np.array([0, -1, 4])) for text in both))
    assert opened == loads
    assert (found.passed, found.caveats) == ("Neg" in after, ())


def test_dims_that_say_more_are_no_gap() -> None:
    before = "g (float[b, s] x) => (float[n, m] y) { y = Neg (x) }"
    after = "g (float[b, s] x) => (float[b, s] y) { y = Neg (x) }"
    found = verify_rewrite(model(before), model(after))
    assert (found.passed, found.caveats) == (True, ())


def test_an_input_that_is_always_one_array_may_be_gone() -> None:
    before = "g (float[n] x, bool training) => (float[n] y) { y = Neg (x) }"
    after = "g (float[n] x) => (float[n] y) { y = Neg (x) }"
    asked = RewriteProofOptions(values={"training": np.array(False)})
    found = verify_rewrite(model(before), model(after), options=asked)
    assert (found.passed, found.caveats) == (True, ())
