"""Forms that targets take: what looks like them, and runs otherwise, is not proven."""

from __future__ import annotations

from collections.abc import Mapping
from itertools import pairwise

import numpy as np
import pytest
from small_models import model
from test_axioms import bits

from graphkit.model import Model
from graphkit.runtime.session import Session
from graphkit.verify.equivalence import check_equivalence, target_forms

HEAD = "g (float[n, 6] x, float[6] v, float[n, 1] r) => (float[k, l] y)"
CONSTANTS: Mapping[str, np.ndarray] = {
    "i0": np.array([0]), "three": np.array([3]), "i6": np.array([6]), "i1": np.array([1]),
    "signs": np.array([-1, -1, -1, 1, 1, 1], np.float32), "turned": np.array([1, 1, 1, -1, -1, -1], np.float32),
}  # fmt: skip
HALVES = "a = Slice (x, i0, three, i1) b = Slice (x, three, i6, i1) "
ROTATED = HALVES + "n = Neg (b) c = Concat <axis = 1> (n, a) "
PLAIN = HALVES + "c = Concat <axis = 1> (b, a) "
TWO = "s = Shape <end = 1> (x) n = Concat <axis = 0> (s, three) "
WRONG = {
    "signs of the other part": (ROTATED + "y = Mul (c, v)", PLAIN + "w = Mul (v, turned) y = Mul (c, w)"),
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


def test_with_a_wrong_sign_what_is_wrong_is_proven(monkeypatch: pytest.MonkeyPatch) -> None:
    models = built(WRONG["signs of the other part"][0]), built(WRONG["signs of the other part"][1])
    right = target_forms._unsigned

    def unsigned(*args: object) -> object:
        found = right(*args)  # type: ignore[arg-type]
        return None if found is None else (found[0], [-number for number in found[1]])

    monkeypatch.setattr(target_forms, "_unsigned", unsigned)
    assert check_equivalence(*models).is_proven


def test_concats_of_themselves_have_few_terms() -> None:
    names = ["x", *(f"c{number}" for number in range(14)), "y"]
    body = " ".join(f"{after} = Concat <axis = 1> ({name}, {name})" for name, after in pairwise(names))
    doubled = built(body)
    found = check_equivalence(doubled, doubled)
    assert found.is_proven
    assert found.terms < 2_000  # of 2**15 parts
