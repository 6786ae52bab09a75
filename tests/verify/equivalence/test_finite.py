"""What is proven assuming finite scores runs the same where scores are finite and each row has one that counts."""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from onnx import numpy_helper
from small_models import model

from graphkit.errors import ModelError
from graphkit.model import Model
from graphkit.runtime.session import Session
from graphkit.verify.equivalence import check_equivalence, finite, mask_reach
from graphkit.verify.equivalence.looseness import FINITE, Looseness

HEAD = "(T[n, s] x, T[n, s] u, T[n, s] m, bool[s] c, bool[n, 1] r) => (T[k, l] y)"
LOWEST = {"float": -np.inf, "double": float(np.finfo(np.float64).min), "float16": -np.inf}
KINDS = {"float": np.float32, "double": np.float64, "float16": np.float16}
HOLES = np.array([[0.0, 1.5, -np.inf, 0.0, -2e4]])  # beside scores of five positions
COUNTS = np.array([[0.0, 0, 0, 3, 0]])
CONSTANTS: Mapping[str, object] = {"zero": 0.0, "high": -1.0, "two": 2.0, "floor": -3e4, "minus": -1.0, "one": 1.0}


@dataclass(frozen=True)
class Pair:
    """Two bodies that a Softmax reads masked scores in; `low` is the least number of the dtype."""

    axiom: str
    before: str
    after: str
    head: str = HEAD
    constants: Mapping[str, object] = field(default_factory=dict)


FIXED = HEAD.replace("[n, s]", "[n, 5]").replace("[s]", "[5]")
SQUARE = HEAD.replace("[n, s]", "[s, s]")
AROUND = "Transpose <perm = [2, 1, 0]>"
# A bias for as many positions as there are, of 16: how many these are is only known where a product needs them.
BIASED = "n = Shape <start = 1> (x) k = Neg (n) s = Slice (slopes, k, far, i0) b = Add (x, s) "
COUNTED = "i = CastLike (c, x) m1 = Sub (one, i) k = Sub (one, m1) "
RIGHT = {
    "raised": Pair("masks raised", "a = Add (x, m) y = Softmax (a)",
                   "f = Max (m, floor) a = Add (x, f) y = Softmax (a)"),
    "raised, operands swapped": Pair("masks raised", "a = Add (m, x) y = Softmax (a)",
                                     "f = Max (floor, m) a = Add (x, f) y = Softmax (a)"),
    "raised twice": Pair("masks raised", "w = Where (c, low, m) a = Add (x, w) y = Softmax (a)",
                         "w = Where (c, floor, m) f = Max (w, floor) a = Add (x, f) y = Softmax (a)"),
    "filled": Pair("masks filled in", "a = Where (c, low, x) y = Softmax (a)",
                   "w = Where (c, floor, zero) a = Add (x, w) y = Softmax (a)"),
    "filled where false": Pair("masks filled in", "a = Where (c, x, low) y = Softmax (a)",
                               "w = Where (c, zero, floor) a = Add (x, w) y = Softmax (a)"),
    "filled behind a reshape": Pair(
        "masks filled in", "a = Where (c, low, x) b = Unsqueeze (a, i0) p = Softmax (b) y = Squeeze (p, i0)",
        "b = Unsqueeze (x, i0) w = Where (c, floor, zero) a = Add (b, w) p = Softmax (a) y = Squeeze (p, i0)",
        constants={"i0": np.array([0])}),
    "added": Pair("masks added", "a = Add (x, holes) y = Softmax (a)", "a = Add (x, raised) y = Softmax (a)", FIXED,
                  {"holes": HOLES, "raised": np.maximum(HOLES, -3e4)}),
    "multiplied": Pair("masks multiplied", COUNTED + "w = Mul (k, least) a = Add (x, w) y = Softmax (a)",
                       COUNTED + "w = Mul (floor, k) a = Add (x, w) y = Softmax (a)", constants={"least": -6e4}),
    "filled, then divided": Pair("masks filled in", "a = Where (c, low, x) d = Div (a, two) y = Softmax (d)",
                                 "w = Where (c, floor, zero) a = Add (x, w) d = Div (a, two) y = Softmax (d)"),
    "raised, then multiplied": Pair("masks raised", "a = Add (x, m) d = Mul (two, a) y = Softmax (d)",
                                    "f = Max (m, floor) a = Add (x, f) d = Mul (two, a) y = Softmax (d)"),
    "filled beside a bias of some length": Pair(
        "masks filled in", BIASED + "a = Where (c, low, b) p = Softmax (a) t = Transpose (x) y = MatMul (p, t)",
        BIASED + "w = Where (c, floor, zero) a = Add (b, w) p = Softmax (a) t = Transpose (x) y = MatMul (p, t)",
        constants={"slopes": np.arange(16) / -8, "far": np.array([2**40]), "i1": np.array([1]), "i0": np.array([0])}),
    "guarded": Pair("no NaN", "p = Softmax (x) i = IsNaN (p) y = Where (i, zero, p)", "y = Softmax (x)"),
    "guarded where false": Pair("no NaN", "p = Softmax (x) i = IsNaN (p) j = Not (i) y = Where (j, p, zero)",
                                "y = Softmax (x)"),
}  # fmt: skip
WRONG = {
    "a mask of rows": Pair("", "a = Where (r, low, x) y = Softmax (a)",
                           "w = Where (r, high, zero) a = Add (x, w) y = Softmax (a)"),
    "a mask of rows, raised": Pair("", "w = Where (r, low, zero) a = Add (x, w) y = Softmax (a)",
                                   "w = Where (r, low, zero) f = Max (w, floor) a = Add (x, f) y = Softmax (a)"),
    "a mask of rows, filled": Pair("", "a = Where (r, low, x) y = Softmax (a)",
                                   "w = Where (r, floor, zero) a = Add (x, w) y = Softmax (a)"),
    "a fill that is no mask": Pair("", "a = Where (c, high, x) y = Softmax (a)",
                                   "w = Where (c, high, zero) a = Add (x, w) y = Softmax (a)"),
    "a mask that is turned": Pair("", "a = Where (c, low, x) y = Softmax (a)",
                                  "w = Where (c, zero, floor) a = Add (x, w) y = Softmax (a)"),
    "raised too high": Pair("", "a = Add (x, m) y = Softmax (a)", "f = Max (m, high) a = Add (x, f) y = Softmax (a)"),
    "scores raised": Pair("", "a = Add (x, m) y = Identity (a)", "f = Max (m, floor) a = Add (x, f) y = Identity (a)"),
    "a sum of scores": Pair("", "a = Where (c, floor, x) b = ReduceSum (a) y = Add (b, x)",
                            "w = Where (c, floor, zero) a = Add (x, w) b = ReduceSum (a) y = Add (b, x)"),
    "scores turned": Pair("", "a = Add (x, m) b = Neg (a) y = Softmax (b)",
                          "f = Max (m, floor) a = Add (x, f) b = Neg (a) y = Softmax (b)"),
    "whole numbers times infinity": Pair("", COUNTED + "w = Mul (k, floor) a = Add (x, w) y = Softmax (a)",
                                         COUNTED + "w = Mul (k, low) a = Add (x, w) y = Softmax (a)"),
    "fractions multiplied": Pair(
        "", "i = CastLike (c, x) k = Mul (i, little) w = Mul (k, least) a = Add (x, w) y = Softmax (a)",
        "i = CastLike (c, x) k = Mul (i, little) w = Mul (k, floor) a = Add (x, w) y = Softmax (a)",
        constants={"least": -6e4, "little": 1e-4}),
    "rows multiplied": Pair("", "i = CastLike (r, x) w = Mul (i, least) a = Add (x, w) y = Softmax (a)",
                            "i = CastLike (r, x) w = Mul (i, floor) a = Add (x, w) y = Softmax (a)",
                            constants={"least": -6e6, "floor": -3e4}),
    "multiplied by what counts": Pair("", COUNTED + "w = Mul (k, minus) a = Add (x, w) y = Softmax (a)",
                                      COUNTED + "w = Mul (k, floor) a = Add (x, w) y = Softmax (a)"),
    "divided until it counts": Pair("", "a = Where (c, low, x) d = Div (a, many) y = Softmax (d)",
                                    "w = Where (c, floor, zero) a = Add (x, w) d = Div (a, many) y = Softmax (d)",
                                    constants={"many": 1e4}),
    "multiplied, then divided until it counts": Pair(
        "", COUNTED + "w = Mul (k, least) a = Add (x, w) d = Div (a, many) y = Softmax (d)",
        COUNTED + "w = Mul (k, floor) a = Add (x, w) d = Div (a, many) y = Softmax (d)",
        constants={"least": -6e4, "many": 1e4}),
    "multiplied by less than 0": Pair("", "a = Add (x, m) b = Mul (a, minus) y = Softmax (b)",
                                      "f = Max (m, floor) a = Add (x, f) b = Mul (a, minus) y = Softmax (b)"),
    "a divisor that is masked": Pair("", "a = Add (x, m) b = Div (two, a) y = Softmax (b)",
                                     "f = Max (m, floor) a = Add (x, f) b = Div (two, a) y = Softmax (b)"),
    "raised above scores that are multiplied": Pair(
        "", "b = Add (m, lift) d = Mul (b, many) a = Add (x, d) y = Softmax (a)",
        "b = Add (m, lift) d = Mul (b, many) f = Max (d, high) a = Add (x, f) y = Softmax (a)",
        constants={"many": 20.0, "lift": -100.0, "high": -1500.0}),
    "over another axis": Pair("", "a = Where (c, low, x) y = Softmax <axis = 0> (a)",
                              "w = Where (c, floor, zero) a = Add (x, w) y = Softmax <axis = 0> (a)"),
    "more masked": Pair("", "a = Add (x, holes) y = Softmax (a)", "a = Add (x, raised) y = Softmax (a)", FIXED,
                        {"holes": HOLES + COUNTS, "raised": np.where(HOLES == 1.5, -3e4, HOLES + COUNTS)}),
    "an addend that counts": Pair("", "a = Add (x, holes) y = Softmax (a)", "a = Add (x, raised) y = Softmax (a)",
                                  FIXED, {"holes": HOLES, "raised": np.where(HOLES == 1.5, 0.5, HOLES)}),
    "columns are rows": Pair("", "a = Where (c, floor, x) t = Transpose (a) y = Softmax (t)",
                             "w = Where (c, floor, zero) a = Add (x, w) t = Transpose (a) y = Softmax (t)", SQUARE),
    "the first axis is the last": Pair(
        "", f"a = Where (c, floor, x) b = Unsqueeze (a, i1) t = {AROUND} (b) y = Softmax (t)",
        f"w = Where (c, floor, zero) a = Add (x, w) b = Unsqueeze (a, i1) t = {AROUND} (b) y = Softmax (t)",
        SQUARE.replace("[k, l] y", "[k, o, l] y"), {"i1": np.array([1])}),
    "a row is filled as a whole": Pair("", "a = Where (all, floor, x) y = Softmax (a)",
                                       "w = Where (all, floor, zero) a = Add (x, w) y = Softmax (a)", FIXED,
                                       {"all": np.ones((1, 5), bool)}),
    "a row is masked as a whole": Pair("", "a = Add (x, holes) y = Softmax (a)", "a = Add (x, raised) y = Softmax (a)",
                                       FIXED, {"holes": np.full((1, 5), -200.0), "raised": np.full((1, 5), -3e4)}),
    "a constant lifts what is masked": Pair(
        "", "a = Where (c, low, x) b = Max (a, less) d = Add (b, lift) y = Softmax (d)",
        "w = Where (c, low, zero) a = Add (x, w) b = Max (a, least) d = Add (b, lift) y = Softmax (d)", FIXED,
        {"less": -200.0, "least": -3e4, "lift": np.array([0.0, 300, 300, 0, 0])}),
    "scores guarded": Pair("", "i = IsNaN (u) y = Where (i, zero, u)", "y = Identity (u)"),
    "another guarded": Pair("", "p = Softmax (u) i = IsNaN (p) q = Softmax (x) y = Where (i, zero, q)",
                            "y = Softmax (u)"),
    "what is guarded is dropped": Pair("", "p = Softmax (x) i = IsNaN (p) y = Where (i, p, zero)", "y = Softmax (x)"),
}  # fmt: skip


def built(pair: Pair, dtype: str = "float") -> tuple[Model, Model]:
    constants = {**CONSTANTS, **pair.constants, "low": LOWEST[dtype]}
    arrays = {name: np.asarray(each) for name, each in constants.items()}
    arrays = {name: each.astype(KINDS[dtype]) if each.dtype.kind == "f" else each for name, each in arrays.items()}

    def made(body: str) -> Model:
        words = {word.strip("(),") for word in body.split()}
        found = model(f"g {pair.head.replace('T[', f'{dtype}[')} {{ {body} }}")
        tensors = [numpy_helper.from_array(array, name) for name, array in arrays.items() if name in words]
        found.proto.graph.initializer.extend(tensors)
        return Model.from_proto(found.proto)

    return made(pair.before), made(pair.after)


def fed(pair: Pair, dtype: str, rows: int, length: int, seed: int) -> dict[str, np.ndarray]:
    """Return finite scores, masks of which each row has one position that counts, and tensors with anything."""
    rng = np.random.default_rng(seed)
    length = 5 if pair.head == FIXED else length
    rows = length if "[s, s]" in pair.head else rows
    scores = [(rng.normal(size=(rows, length)) * 4).astype(KINDS[dtype]) for _ in range(2)]
    scores[0][rng.random(scores[0].shape) < 0.1] = -0.0
    mask = rng.choice(np.array([0, -0.0, 1.5, -3e4, -4e4, -np.inf]), (rows, length)).astype(KINDS[dtype])
    hidden = rng.random(length) < 0.5
    if length:
        mask[:, 0], hidden[0] = 0, False
    scores[1][rng.random(scores[1].shape) < 0.2] = np.nan  # of what need not be finite
    return {"x": scores[0], "u": scores[1], "m": mask, "c": hidden, "r": rng.random((rows, 1)) < 0.5}


def differ(models: tuple[Model, Model], feeds: Mapping[str, np.ndarray]) -> bool:
    found = [Session(each, threads=1).run(dict(feeds))["y"] for each in models]
    return found[0].shape != found[1].shape or found[0].tobytes() != found[1].tobytes()


def proven(models: tuple[Model, Model], looseness: Looseness = FINITE) -> list[str]:
    return [output.exactness for output in check_equivalence(*models, loosenesses=(looseness,)).proven]


@pytest.mark.parametrize("dtype", KINDS)
@pytest.mark.parametrize("name", RIGHT)
def test_an_axiom_proves_what_runs_the_same(name: str, dtype: str) -> None:
    pair, where_false = RIGHT[name], name == "filled where false"
    models = built(pair, dtype)
    found = check_equivalence(*models, loosenesses=(FINITE,), dims="named")
    assert [output.exactness for output in found.outputs] == ["assuming finite values"], str(found)
    assert pair.axiom in found.outputs[0].axioms
    assert not check_equivalence(*models).is_proven  # so that the assumption is what it takes
    try:
        Session(models[0], threads=1)
    except ModelError:
        pytest.skip("onnxruntime has no kernel for it")

    @settings(max_examples=12, derandomize=True, database=None)
    @given(st.integers(0, 4), st.integers(1, 6), st.integers(0, 1000))
    def runs(rows: int, length: int, seed: int) -> None:
        feeds = fed(pair, dtype, rows, length, seed)
        feeds["c"] = ~feeds["c"] if where_false else feeds["c"]
        assert not differ(models, feeds)

    runs()


def test_each_axiom_has_a_case() -> None:
    axioms = (*finite.FINITE_AXIOMS, *finite.ASSUMPTIONS)
    assert {axiom.name for axiom in axioms} == {pair.axiom for pair in RIGHT.values()}


@pytest.mark.parametrize("name", WRONG)
def test_what_runs_otherwise_is_not_proven(name: str) -> None:
    models = built(WRONG[name])
    assert not proven(models)
    same = (models[0], models[0])
    assert proven(same)  # so that no fault of the models is what keeps them from being proven
    assert any(differ(models, fed(WRONG[name], "float", 3, 5, seed)) for seed in range(30))


def anything(*_args: object) -> bool:
    return True


def _patched(name: str, content: object) -> Callable[[pytest.MonkeyPatch], Looseness]:
    def patch(monkeypatch: pytest.MonkeyPatch) -> Looseness:
        for module in (finite, mask_reach):
            if hasattr(module, name):
                monkeypatch.setattr(module, name, content)
        return FINITE

    return patch


FAULTS: Mapping[str, tuple[str, Callable[[pytest.MonkeyPatch], Looseness]]] = {
    "any number masks": ("a fill that is no mask", _patched("MASKED", -0.5)),
    "any number raises": ("raised too high", _patched("MASKED", -0.5)),
    "rows are masked, too": ("a mask of rows, raised", _patched("_varies", anything)),
    "every node takes masked scores": (
        "a sum of scores", lambda _: dataclasses.replace(FINITE, is_blind=anything)),
    "every node keeps masked scores": (
        "scores turned", lambda _: dataclasses.replace(FINITE, is_faithful=anything)),
    "every Softmax is over the last axis": (
        "over another axis", lambda _: dataclasses.replace(FINITE, is_blind=anything)),
    "masked scores are an output": ("scores raised", lambda _: dataclasses.replace(FINITE, is_output=True)),
    "any number is whole": ("fractions multiplied", _patched("_is_whole", anything)),
    "any number scales": ("divided until it counts", _patched("is_scaled", anything)),
    "all of a mask hides": ("more masked", _patched("MASKED", 2.0)),
}  # fmt: skip


@pytest.mark.parametrize("fault", FAULTS)
def test_without_a_condition_what_is_wrong_is_proven(fault: str, monkeypatch: pytest.MonkeyPatch) -> None:
    name, patch = FAULTS[fault]
    assert proven(built(WRONG[name]), patch(monkeypatch))


def test_a_row_in_which_nothing_counts_differs() -> None:
    models = built(RIGHT["raised"])
    feeds = fed(RIGHT["raised"], "float", 2, 3, 0)
    feeds["m"][:] = -np.inf
    assert differ(models, feeds)
