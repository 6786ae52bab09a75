"""Forms that targets take: what looks like them, and runs otherwise, is not proven."""

from __future__ import annotations

from collections.abc import Mapping
from itertools import pairwise

import numpy as np
import pytest
from small_models import model
from test_axioms import bits

from graphkit.equivalence import axioms, check_equivalence
from graphkit.equivalence.application import Application
from graphkit.equivalence.terms import Term
from graphkit.model import Model
from graphkit.runtime.session import Session

HEAD = "g (float[n, 6] x, float[6] v, float[n, 1] r) => (float[k, l] y)"
CONSTANTS: Mapping[str, np.ndarray] = {
    "i0": np.array([0]), "three": np.array([3]), "i6": np.array([6]), "i1": np.array([1]),
    "i2": np.array([2]), "by_turns": np.array([-1, 1, -1, 1, -1, 1], np.float32),
    "by_other_turns": np.array([1, -1, 1, -1, 1, -1], np.float32),
    "signs": np.array([-1, -1, -1, 1, 1, 1], np.float32), "turned": np.array([1, 1, 1, -1, -1, -1], np.float32),
}  # fmt: skip
HALVES = "a = Slice (x, i0, three, i1) b = Slice (x, three, i6, i1) "
ROTATED = HALVES + "n = Neg (b) c = Concat <axis = 1> (n, a) "
PLAIN = HALVES + "c = Concat <axis = 1> (b, a) "
PAIRS = "d = Unsqueeze (a, i2) e = Unsqueeze (b, i2) "
WOVEN = HALVES + PAIRS + "n = Neg (e) c = Concat <axis = 2> (n, d) f = Flatten (c) "
PLAIN_WOVEN = HALVES + PAIRS + "c = Concat <axis = 2> (e, d) f = Flatten (c) "
TWO = "s = Shape <end = 1> (x) n = Concat <axis = 0> (s, three) "
WRONG = {
    "signs of the other part": (ROTATED + "y = Mul (c, v)", PLAIN + "w = Mul (v, turned) y = Mul (c, w)"),
    "interleaved signs of the other part": (
        WOVEN + "y = Mul (f, v)", PLAIN_WOVEN + "w = Mul (v, by_other_turns) y = Mul (f, w)"
    ),
    "signs of halves for interleaved parts": (
        WOVEN + "y = Mul (f, v)", PLAIN_WOVEN + "w = Mul (v, signs) y = Mul (f, w)"
    ),
    "interleaved signs for halves": (ROTATED + "y = Mul (c, v)", PLAIN + "w = Mul (v, by_turns) y = Mul (c, w)"),
    "no signs": (ROTATED + "y = Mul (c, v)", PLAIN + "y = Mul (c, v)"),
    "parts that changed places": (ROTATED + "y = Mul (c, v)", "w = Mul (v, signs) y = Mul (x, w)"),
    "signs added": (ROTATED + "y = Add (c, v)", PLAIN + "w = Mul (v, signs) y = Add (c, w)"),
    "another one among copies": (
        "a = Abs (r) y = Concat <axis = 1> (r, r, a)", TWO + "y = Expand (r, n)"
    ),
    "copies of more than 1": (
        "y = Concat <axis = 1> (x, x)",
        "z = Unsqueeze (x, i1) q = Concat <axis = 1> (z, z) t = Transpose <perm = [0, 2, 1]> (q) y = Flatten (t)",
    ),
}  # fmt: skip


def built(body: str) -> Model:
    words = {word.strip("(),") for word in body.split()}
    return model(f"{HEAD} {{ {body} }}", **{name: array for name, array in CONSTANTS.items() if name in words})


def differ(models: tuple[Model, Model]) -> bool:
    rng = np.random.default_rng(0)
    feeds = {"x": (4, 6), "v": (6,), "r": (4, 1)}
    arrays = {name: rng.normal(size=shape).astype(np.float32) for name, shape in feeds.items()}
    found = [Session(each, threads=1).run(arrays)["y"] for each in models]
    return found[0].shape != found[1].shape or not np.array_equal(bits(found[0]), bits(found[1]))


@pytest.mark.parametrize("name", WRONG)
def test_what_runs_otherwise_is_not_proven(name: str) -> None:
    models = built(WRONG[name][0]), built(WRONG[name][1])
    assert not check_equivalence(*models).is_proven
    assert check_equivalence(models[0], models[0]).is_proven
    assert differ(models)


RIGHT = {
    "halves": (ROTATED + "y = Mul (c, v)", PLAIN + "w = Mul (v, signs) y = Mul (c, w)"),
    "interleaved parts": (WOVEN + "y = Mul (f, v)", PLAIN_WOVEN + "w = Mul (v, by_turns) y = Mul (f, w)"),
    "interleaved parts, table first": (WOVEN + "y = Mul (v, f)", PLAIN_WOVEN + "w = Mul (by_turns, v) y = Mul (w, f)"),
}


@pytest.mark.parametrize("name", RIGHT)
def test_signs_move_into_the_table_bit_for_bit(name: str) -> None:
    models = built(RIGHT[name][0]), built(RIGHT[name][1])
    found = check_equivalence(*models)
    assert [output.exactness for output in found.proven] == ["bit for bit"]
    assert not differ(models)


def test_a_table_of_one_number_takes_no_signs() -> None:
    models = built(WOVEN + "y = Mul (f, r)"), built(PLAIN_WOVEN + "w = Mul (r, by_turns) y = Mul (f, w)")
    assert not check_equivalence(*models).is_proven


def test_with_a_wrong_sign_what_is_wrong_is_proven(monkeypatch: pytest.MonkeyPatch) -> None:
    models = built(WRONG["signs of the other part"][0]), built(WRONG["signs of the other part"][1])
    right = axioms._without_signs

    def unsigned(app: Application, term: Term) -> tuple[Term, np.ndarray] | None:
        found = right(app, term)
        return None if found is None else (found[0], -found[1])

    monkeypatch.setattr(axioms, "_without_signs", unsigned)
    assert check_equivalence(*models).is_proven


def test_concats_of_themselves_have_few_terms() -> None:
    names = ["x", *(f"c{number}" for number in range(14)), "y"]
    body = " ".join(f"{after} = Concat <axis = 1> ({name}, {name})" for name, after in pairwise(names))
    doubled = built(body)
    found = check_equivalence(doubled, doubled)
    assert found.is_proven
    assert found.terms < 2_000  # of 2**15 parts
