"""Right rewrites that a proof must not refuse, though they change what is declared or how results come about."""

from __future__ import annotations

from collections.abc import Mapping

import numpy as np
import pytest
from small_models import CONV, KERNEL, model

from graphkit.options import RewriteProofOptions
from graphkit.shapes import DimSpec
from graphkit.verify.rewrite_verifier import verify_rewrite

PLAIN = "g (float[batch, seq] x) => (float[batch, seq] y) { y = Neg (x) }"
INTEGER = "g (int64[n] x) => (int64[n] y) {{ {} }}"
MASKED = """g (float[b, s, t] scores, int64[b, t] attention_mask) => (float[b, s, t] y) {{
    hidden = Equal (attention_mask, zero) far = Unsqueeze (hidden, one) m = Where (far, floor, scores) {} }}"""
SOFTMAX = "y = Softmax (m)"
RIGHT: Mapping[str, tuple[str, str]] = {
    "negated twice": (INTEGER.format("y = Identity (x)"), INTEGER.format("t = Neg (x) y = Neg (t)")),
    "two's complement": (
        "g (int8[n] x) => (int8[n] y) { y = Identity (x) }",
        "g (int8[n] x) => (int8[n] y) { t = Cast <to = 2> (x) y = Cast <to = 3> (t) }",
    ),
    "a condition that chooses the same": (
        INTEGER.format("y = Identity (x)"), INTEGER.format("c = Less (x, zero) y = Where (c, x, x)"),
    ),
    "a sign in steps": (
        INTEGER.format("y = Sign (x)"), INTEGER.format("t = Max (x, minus) y = Min (t, plus)"),
    ),
    "a division by an input": (
        "g (int64[n] x, int64[n] d) => (int64[n] y) { y = Div (x, d) }",
        "g (int64[n] x, int64[n] d) => (int64[n] y) { t = Div (x, d) y = Identity (t) }",
    ),
    "NaN for rows that attend to nothing": (
        MASKED.format(SOFTMAX), MASKED.format("t = Identity (m) y = Softmax (t)"),
    ),
    "an output declared better": (PLAIN.replace("float[batch, seq] y", "float[?, k] y"), PLAIN),
    "a lie of an output corrected": (PLAIN.replace("float[batch, seq] y", "float[batch, 5] y"), PLAIN),
    "a lie of an output kept": ((LIE := PLAIN.replace("float[batch, seq] y", "float[batch, 5] y")), LIE),
    "an output without dims": (PLAIN, PLAIN.replace("float[batch, seq] y", "float[] y")),
    "channels that the weights need": (CONV, CONV.replace("channels", "3")),
    "dims by other labels": (PLAIN, PLAIN.replace("batch", "rows")),
    "an unused input that is gone": (PLAIN.replace("] x", "] x, float[k] unused"), PLAIN),
    "an unused default that is gone": (PLAIN.replace("] x", "] x, int64 zero"), PLAIN),
    "a default that stays": (
        "g (float[n] x, float scale) => (float[n] y) { y = Add (x, scale) }",
        "g (float[n] x, float scale) => (float[n] y) { y = Add (scale, x) }",
    ),
}  # fmt: skip
CONSTANTS: Mapping[str, object] = {
    "zero": np.int64(0), "one": [1], "minus": np.int64(-1), "plus": np.int64(1), "floor": -np.inf,
    "scale": 2.0,
}  # fmt: skip


@pytest.mark.cases(5)
@pytest.mark.parametrize("name", RIGHT)
def test_a_right_rewrite_passes(name: str) -> None:
    constants = {"kernel": KERNEL} if "kernel" in RIGHT[name][0] else CONSTANTS
    found = verify_rewrite(*(model(text, **constants) for text in RIGHT[name]))
    assert found.failures == ()


@pytest.mark.parametrize(
    ("after", "spec"),
    [
        (PLAIN.replace("batch", "2"), DimSpec.of({"batch": 2})),
        (PLAIN.replace("batch", "2").replace("seq", "7"), DimSpec.of(inputs={"x": (2, 7)})),
        (PLAIN.replace("batch", "seq"), DimSpec.of(inputs={"x": (3, 3)})),
    ],
)
def test_sizes_that_are_asked_for_are_no_narrowing(after: str, spec: DimSpec) -> None:
    assert verify_rewrite(model(PLAIN), model(after), spec).passed
    assert not verify_rewrite(model(PLAIN), model(after)).passed


def test_other_labels_are_told() -> None:
    found = verify_rewrite(model(PLAIN), model(PLAIN.replace("batch", "rows").replace("seq", "columns")))
    assert found.interface == ("dims have other labels: batch is called rows; seq is called columns",)
    assert "Interface: dims have other labels: batch is called rows; seq is called columns." in " ".join(
        found.to_text().split()
    )


def test_labels_may_be_swapped_where_that_is_asked_for() -> None:
    swapped = model(PLAIN.replace("batch", "k").replace("seq", "batch").replace("k,", "seq,"))
    assert verify_rewrite(
        model(PLAIN),
        swapped,
        options=RewriteProofOptions(
            symbols=(
                ("batch", "seq"),
                ("seq", "batch"),
            )
        ),
    ).passed


@pytest.mark.usefixtures("runs_alone")
def test_what_is_covered_is_told_in_one_line() -> None:
    found = verify_rewrite(*(model(RIGHT["NaN for rows that attend to nothing"][0], **CONSTANTS) for _ in range(2)))
    assert found.coverage == (
        "b 1 to 4,100, s 1 to 516, t 1 to 516; masks without padding, padded on the right, padded on the left, "
        "with holes, that hide all; edge values, extreme values, NaN and infinities, numbers in masks above 1, "
        "numbers in masks below 0; b, s and t of 0"
    )
    assert (found.passed, found.caveats) == (True, ())


@pytest.mark.usefixtures("runs_alone")
def test_edges_at_which_the_original_fails_are_named_in_the_headline() -> None:
    text = "g (int64[n] x) => (float[n] y) { i = Div (x, ten) y = Gather (table, i) }"
    one = model(text, ten=np.int64(10), table=[1.0, 2.0])
    found = verify_rewrite(one, one)
    assert found.passed
    caveats = "edge values, at which the original fails; extreme values, at which the original fails"
    assert found.proven() == (f"Tested in 15 runs: 1 output equal to the last bit; not covered: {caveats}.")


@pytest.mark.usefixtures("runs_alone")
@pytest.mark.parametrize(("body", "largest"), [("y = Abs (x)", 65_540), ("i = NonZero (x) y = Cast <to = 1> (i)", 99)])
def test_batches_stay_small_where_nothing_tells_how_much_a_run_computes(body: str, largest: int) -> None:
    one = model(f"g (float[batch, 2] x) => (float[p, q] y) {{ {body} }}")
    found = max(run.dims["batch"] for run in verify_rewrite(one, one).runs)
    assert found <= largest
    assert (found > 100) is (largest > 100)


def test_an_input_that_decides_a_size_gets_no_edges_and_that_is_told() -> None:
    text = "g (int64[n] x, int64 k) => (int64[m] y) { y = Range (zero, k, one) }"
    one = model(text, zero=np.int64(0), one=np.int64(1))
    found = verify_rewrite(one, one)
    assert (found.passed, found.caveats) == (True, ("large numbers for k, which decides sizes, counts or loops",))


def test_with_a_tolerance_only_what_is_finite_is_claimed() -> None:
    subtracted = PLAIN.replace("Neg (x)", "Sub (minus, x)")
    found = verify_rewrite(
        model(PLAIN), model(subtracted, minus=np.float32(0)), options=RewriteProofOptions(tolerance=1e-5)
    )
    assert found.passed
    assert not found.equivalence.is_exact
    assert found.caveats == ("extreme values, NaN and infinities, where rounding decides",)
