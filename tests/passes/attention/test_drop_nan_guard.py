"""Guards against NaN go where no row of a Softmax can be -inf throughout, and stay elsewhere: results are equal."""

from __future__ import annotations

import numpy as np
import pytest
from rewriting import assert_same, lines, model_of, reasons

from graphkit.model import Model
from graphkit.passes.attention.masks import DropNanGuard, MaskedFillToAdd
from graphkit.rewrite.base import run_passes

GUARD = "p = Softmax <axis = -1> (s) n = IsNaN (p) g = Where (n, zero, p) y = Neg (g)"


def graph(nodes: str, guard: str = GUARD, inputs: str = "bool[N, L] m", **constants: object) -> Model:
    given: dict[str, object] = {"zero": np.float32(0), "low": np.float32(-1e9), **constants}
    used = {name: value for name, value in given.items() if name in f"{nodes} {guard}"}
    return model_of(f"g (float[N, L] x, {inputs}) => (float[N, L] y) {{ {nodes} {guard} }}", **used)


def feeds() -> list[dict[str, np.ndarray]]:
    """Return scores, with a row in which nothing counts, and one in which all do."""
    rng = np.random.default_rng(0)
    mask = np.array([[0, 0, 0, 0], [1, 1, 1, 1], [1, 0, 0, 1]], bool)
    return [{"x": (rng.normal(size=mask.shape) * 20).astype(np.float32), "m": mask}]


MASK = "b = Where (m, zero, low) s = Add (x, b)"
GONE = {
    "a finite floor": graph(MASK),
    "the least number": graph(MASK, low=np.float32(np.finfo(np.float32).min)),
    "a Not": graph(MASK, "p = Softmax <axis = -1> (s) n = IsNaN (p) k = Not (n) g = Where (k, p, zero) y = Neg (g)"),
    "no mask": graph("s = Identity (x)"),
    "a mask of integers": graph("i = Cast <to = 7> (m) f = Cast <to = 1> (i) b = Mul (f, low) s = Add (x, b)"),
    "a mask that is raised": graph("a = Where (m, zero, inf) b = Max (a, low) s = Add (x, b)", inf=np.float32(-np.inf)),
    "a cast": graph(
        MASK, "p = Softmax <axis = -1> (s) c = Cast <to = 1> (p) n = IsNaN (c) g = Where (n, zero, c) y = Neg (g)"
    ),
    "products": graph(
        "t = Transpose (x) q = MatMul (x, t) d = MatMul (q, x) e = Add (d, x) b = Where (m, zero, low) s = Add (e, b)"
    ),
}


@pytest.mark.parametrize("model", GONE.values(), ids=GONE)
def test_the_guard_is_gone(model: Model) -> None:
    outcome = DropNanGuard().run(model)
    assert outcome.changes == ("1 guard against NaN removed",)
    assert not any("IsNaN" in line for line in lines(outcome.model))
    assert_same(model, outcome.model, feeds())


STAYS = {
    "-inf": (graph(MASK, low=np.float32(-np.inf)), "the scores of its Softmax may be -inf"),
    "two that overflow together": (
        graph("a = Where (m, zero, low) b = Add (a, a) s = Add (x, b)", low=np.float32(-3e38)),
        "the scores of its Softmax may be -inf",
    ),
    "a logarithm": (graph("f = Cast <to = 1> (m) b = Log (f) s = Add (x, b)"), "the scores of its Softmax may be -inf"),
    "a quotient": (graph("f = Cast <to = 1> (m) b = Div (x, f) s = Neg (b)"), "the scores of its Softmax may be -inf"),
    "no Softmax": (
        graph("s = Identity (x)", "n = IsNaN (s) g = Where (n, zero, s) y = Neg (g)"),
        "what it guards is not a Softmax",
    ),
}


@pytest.mark.parametrize(("model", "reason"), STAYS.values(), ids=STAYS)
def test_the_guard_stays(model: Model, reason: str) -> None:
    outcome = DropNanGuard().run(model)
    assert outcome.changes == ()
    assert [text.partition(": ")[2].partition(";")[0] for text in reasons(outcome)] == [reason]


def test_it_goes_after_masks_have_a_floor() -> None:
    """A row in which nothing counts, which the guard made zeros, is the only one that changes."""
    model = graph(MASK, low=np.float32(-np.inf))
    outcome = run_passes(model, [MaskedFillToAdd(), DropNanGuard()])
    assert lines(outcome.model) == [
        "b_floor = Where (m, mask_zero, mask_floor)",
        "s = Add (x, b_floor)",
        "p = Softmax <axis: int = -1> (s)",
        "y = Neg (p)",
    ]
