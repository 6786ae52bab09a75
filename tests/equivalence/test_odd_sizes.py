"""Wrong models that are right but at small, empty or odd sizes; a right model like each is proven."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field

import numpy as np
import pytest
from small_models import model

from graphkit.equivalence import check_equivalence
from graphkit.errors import ModelError
from graphkit.model import Model
from graphkit.runtime.session import Session


@dataclass(frozen=True)
class Case:
    """An original and what is wrong and right instead of it, as bodies of one head.

    Attributes:
        feed: Inputs that tell the wrong one apart.
        like: An original of which `right` is right, if it is not the same.
    """

    head: str
    before: str
    wrong: str
    right: str
    feed: Mapping[str, np.ndarray]
    constants: Mapping[str, object] = field(default_factory=dict)
    like: str = ""


def ones(*sizes: int) -> np.ndarray:
    return np.ones(sizes, np.float32)


def unread(head: str, wrong: str, right: str, feed: Mapping[str, np.ndarray], **constants: object) -> Case:
    """Return a case of nodes that nothing reads, where an original without them runs, and what is wrong fails."""
    plain = "y = Neg (x)"
    return Case(head, plain, f"{wrong} {plain}", f"{right} {plain}", feed, constants)


IMAGE = "(float[1, 1, h] x) => (int64[1] y)"
LENGTH = "y = Shape <start = 2> (p)"
THIRD = "s = Shape <start = 2> (x) d = Div (s, i3)"
BRANCHES = """y = If (c) <then_branch = a () => (int64[1] t) {{ {} }},
    else_branch = b () => (int64[1] u) {{ u = Shape <start = 2> (x) }}>"""
POOLED = "p = MaxPool <kernel_shape = [3]> (x) s = Shape <start = 2> (x)"
SAME = 'auto_pad = "SAME_UPPER"'
TABLE = "=> (float[k, l] y)"
TARGET = "s = Shape (x) z = Slice (s, i0, i1) m = Slice (s, i1, i2) t = Concat <axis = 0> (z, {})"
LIST = "=> (float[k] y)"
LESS = "s = Shape (x) e = Sub (s, i4)"
LOOP = "o = Loop ({}) <body = b (int64 i, bool a) => (bool e, float[k] q) {{ e = Identity (a) q = Neg (x) }}>"
CASES = {
    "a pool of fewer than its window": Case(
        IMAGE, f"p = MaxPool <kernel_shape = [3], strides = [3]> (x) {LENGTH}", f"{THIRD} y = Identity (d)",
        f"{THIRD} y = Max (d, i1)", {"x": ones(1, 1, 2)}),
    "a pool in a branch": Case(
        IMAGE.replace("x)", "x, bool c)"),
        BRANCHES.format("p = AveragePool <kernel_shape = [3], strides = [3]> (x) t = Shape <start = 2> (p)"),
        BRANCHES.format(f"{THIRD} t = Identity (d)"), BRANCHES.format(f"{THIRD} t = Max (d, i1)"),
        {"x": ones(1, 1, 2), "c": np.array(True)}),
    "a pool of two inputs": Case(
        "(float[1, 1, h] x, float[1, 1, w] z) => (int64[1] y)",
        f"j = Concat <axis = 2> (x, z) p = LpPool <kernel_shape = [4], strides = [4]> (j) {LENGTH}",
        "j = Concat <axis = 2> (x, z) s = Shape <start = 2> (j) y = Div (s, i4)",
        "j = Concat <axis = 2> (x, z) s = Shape <start = 2> (j) d = Div (s, i4) y = Max (d, i1)",
        {"x": ones(1, 1, 1), "z": ones(1, 1, 1)}),
    "a pool without windows": Case(
        "(float[1, 1, h] x) => (bool[1] y)", f"{POOLED} y = Less (s, i3)", "y = Identity (false)",
        "y = Identity (false)", {"x": ones(1, 1, 2)}, like=f"{POOLED} y = Less (s, i2)"),
    "a pool that is dilated and padded": Case(
        IMAGE, f"p = MaxPool <{SAME}, dilations = [2], kernel_shape = [4]> (x) {LENGTH}", "y = Shape <start = 2> (x)",
        "y = Shape <start = 2> (x)", {"x": ones(1, 1, 5)},
        like=f"p = MaxPool <{SAME}, kernel_shape = [4]> (x) {LENGTH}"),
    "gaps that are not padded": Case(
        IMAGE, f"p = ConvTranspose <{SAME}, strides = [4]> (x, w) {LENGTH}",
        "s = Shape <start = 2> (x) y = Mul (s, i4)", "s = Shape <start = 2> (x) y = Mul (s, i4)", {"x": ones(1, 1, 5)},
        {"w": ones(1, 1, 2)}, like=f"p = ConvTranspose <{SAME}, strides = [4], dilations = [3]> (x, w) {LENGTH}"),
    "any number beside a dim of 0": Case(
        f"(float[past_n, 4] x, int64[1] e) {TABLE}", f"{TARGET.format('e')} y = Reshape (x, t)", "y = Identity (x)",
        "y = Identity (x)", {"x": ones(0, 4), "e": np.array([7])}, like=f"{TARGET.format('i4')} y = Reshape (x, t)"),
    "a dim of 0 beside -1": Case(
        f"(float[past_n, past_m] x) {TABLE}", f"{TARGET.format('minus')} y = Reshape <allowzero = 1> (x, t)",
        "y = Identity (x)", "y = Identity (x)", {"x": ones(0, 0)},
        like=f"{TARGET.format('m')} y = Reshape <allowzero = 1> (x, t)"),
    "a loop that a condition ends at once": Case(
        "(float[n] x, bool c) => (int64[1] y)", f"{LOOP.format('three, c')} y = Shape <start = 1> (o)",
        f"{LOOP.format('three, c')} y = Shape (x)", f"{LOOP.format('three, true')} y = Shape (x)",
        {"x": ones(3), "c": np.array(False)}, like=f"{LOOP.format('three, true')} y = Shape <start = 1> (o)"),
    "a loop over an empty past": Case(
        "(float[n] x, float[past_l] p) => (int64[1] y)",
        f"s = Shape (p) t = Squeeze (s) {LOOP.format('t, true')} y = Shape <start = 1> (o)",
        f"s = Shape (p) t = Squeeze (s) {LOOP.format('t, true')} y = Shape (x)",
        f"s = Shape (p) t = Squeeze (s) {LOOP.format('t, true')} y = Shape (p)",
        {"x": ones(3), "p": ones(0)},
        like=f"s = Shape (p) t = Squeeze (s) {LOOP.format('t, true')} y = Shape <end = 1> (o)"),
    "a negative dim that nothing reads": unread(
        f"(float[n] x) {LIST}", f"{LESS} d = ConstantOfShape (e)", f"{LESS} z = Max (e, i0) d = ConstantOfShape (z)",
        {"x": ones(3)}),
    "a negative dim of an input that nothing reads": unread(
        f"(float[n] x, int64[1] e) {LIST}", "d = ConstantOfShape (e)", "s = Shape (x) d = ConstantOfShape (s)",
        {"x": ones(3), "e": np.array([-5])}),
    "a dim of an input that is too large": unread(
        f"(float[n] x, int64[1] e) {LIST}", "d = ConstantOfShape (e)", "s = Shape (x) d = ConstantOfShape (s)",
        {"x": ones(3), "e": np.array([2**60])}),
    "a Range that is too long": unread(
        f"(float[n] x, int64 e) {LIST}", "d = Range (nought, e, one)",
        "s = Shape (x) l = Squeeze (s) d = Range (nought, l, one)", {"x": ones(3), "e": np.array(2**60)}),
    "a Range that begins too early": unread(
        f"(float[n] x, int64 e) {LIST}", "d = Range (e, nought, one)",
        "s = Shape (x) l = Squeeze (s) d = Range (l, nought, one)", {"x": ones(3), "e": np.array(-(2**60))}),
    "padding of a Conv that is dilated": unread(
        "(float[n, 1, h] x) => (float[a, b, l] y)", f"d = Conv <{SAME}, dilations = [2]> (x, w)",
        f"d = Conv <{SAME}, strides = [2]> (x, w)", {"x": ones(1, 1, 5)}, w=ones(1, 1, 2)),
}  # fmt: skip
COMMON = {
    **{f"i{n}": np.array([n]) for n in range(5)}, "minus": np.array([-1]),
    "nought": np.int64(0), "one": np.int64(1), "three": np.int64(3),
    "true": np.array(True), "false": np.array([False]),
}  # fmt: skip


def built(case: Case, body: str) -> Model:
    words = set(f"{body} {case.head}".replace("(", " ").replace(")", " ").replace(",", " ").split())
    used = {name: each for name, each in {**COMMON, **case.constants}.items() if name in words}
    return model(f"g {case.head} {{ {body} }}", **used)


def run(made: Model, feed: Mapping[str, np.ndarray]) -> np.ndarray | None:
    """Return the output, None where the model is not loaded or fails."""
    try:
        return Session(made, threads=1).run(feed)["y"]
    except ModelError:
        return None


@pytest.mark.parametrize("name", CASES)
def test_a_model_that_is_wrong_at_odd_sizes_is_not_proven(name: str) -> None:
    case = CASES[name]
    original, wrong = (built(case, body) for body in (case.before, case.wrong))
    expected, odd = (run(each, case.feed) for each in (original, wrong))
    assert expected is not None
    assert odd is None or odd.shape != expected.shape or odd.tobytes() != expected.tobytes()
    assert not check_equivalence(original, wrong).proven


@pytest.mark.parametrize("name", CASES)
def test_one_like_it_that_is_right_is_proven(name: str) -> None:
    case = CASES[name]
    original, right = (built(case, body) for body in (case.like or case.before, case.right))
    expected, found = (run(each, case.feed) for each in (original, right))
    assert expected is not None
    assert found is not None
    assert found.shape == expected.shape
    assert found.tobytes() == expected.tobytes()
    assert check_equivalence(original, right).is_proven
