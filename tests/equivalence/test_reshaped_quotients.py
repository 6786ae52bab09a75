"""Reshapes to quotients of dims: a quotient that is 0 copies a dim, and then the elements are too many."""

from __future__ import annotations

from contextlib import suppress
from itertools import product

import numpy as np
import pytest
from small_models import model

from graphkit import fold
from graphkit.equivalence import check_equivalence
from graphkit.errors import ModelError
from graphkit.model import Model
from graphkit.runtime.session import RunError, Session
from graphkit.shapes import infer

DIMS = "t = Shape <end = 1> (x) b = Shape <end = 1> (z) "
QUOTIENT = DIMS + "q = Div (t, b) s = Concat <axis = 0> (b, q, six) y = Reshape (x, s)"
INFERRED = "b = Shape <end = 1> (z) s = Concat <axis = 0> (b, minus, six) y = Reshape (x, s)"
NUMBERS = {"six": np.array([6]), "minus": np.array([-1]), "two": np.array([2]), "three": np.array([3])}


def made(body: str, x: str = "N, 6", z: str = "B") -> Model:
    words = body.replace("(", " ").replace(")", " ").replace(",", " ").split()
    numbers = {name: number for name, number in NUMBERS.items() if name in words}
    head = f"g (float[{x}] x, float[{z}] z) => (float[k, l, m] y, float[{z}] w)"
    return model(f"{head} {{ {body} w = Neg (z) }}", **numbers)


def given(read: Model, rows: int, parts: int) -> np.ndarray | None:
    feed = {"x": np.arange(rows * 6, dtype=np.float32).reshape(rows, 6), "z": np.ones(parts, np.float32)}
    try:
        return Session(read, threads=1).run(feed)["y"]
    except (ModelError, RunError):
        return None


def test_a_quotient_is_inferred_wherever_the_original_runs() -> None:
    before, after = made(QUOTIENT), made(INFERRED)
    assert [output.exactness for output in check_equivalence(before, after).outputs] == ["bit for bit"] * 2
    runs = {(rows, parts): given(before, rows, parts) for rows, parts in product(range(1, 9), repeat=2)}
    assert {sizes for sizes, array in runs.items() if array is not None} == {
        (rows, parts) for rows, parts in runs if rows % parts == 0
    }
    for sizes, array in runs.items():
        if array is not None:
            np.testing.assert_array_equal(given(after, *sizes), array)


def test_a_quotient_by_a_number_is_inferred() -> None:
    before = made(DIMS + "q = Div (t, two) s = Concat <axis = 0> (q, two, six) y = Reshape (x, s)")
    after = made("b = Shape <end = 1> (z) s = Concat <axis = 0> (minus, two, six) y = Reshape (x, s)")
    assert check_equivalence(before, after).is_proven


UNKNOWN = {
    "no rows": ("past_N, 6", "B", QUOTIENT, INFERRED),
    "no parts": ("N, 6", "past_B", QUOTIENT, INFERRED),
    "another quotient": ("N, 6", "B", QUOTIENT.replace("(t, b)", "(t, two)"), INFERRED),
    "another target": ("N, 6", "B", QUOTIENT, INFERRED.replace("six", "three")),
    "inferred beside what may be 0": (
        "N, past_M", "B", DIMS + "m = Shape <start = 1> (x) s = Concat <axis = 0> (two, t, m) y = Expand (x, s)",
        DIMS + "m = Shape <start = 1> (x) s = Concat <axis = 0> (two, t, m) e = Expand (x, s) "
        "r = Concat <axis = 0> (two, minus, m) y = Reshape (e, r)"),
}  # fmt: skip


@pytest.mark.parametrize("name", UNKNOWN)
def test_what_other_sizes_decide_is_not_proven(name: str) -> None:
    x, z, before, after = UNKNOWN[name]
    assert "y" not in [output.name for output in check_equivalence(made(before, x, z), made(after, x, z)).proven]


def test_a_reshape_that_copies_a_dim_where_its_target_is_0_has_other_dims_there() -> None:
    """It runs for two columns alone, where its target of [2, 0, 2] copies a dim; an allowzero of 1 copies none."""
    target = "m = Shape <start = 1> (x) n = Sub (m, two) s = Concat <axis = 0> (two, n, two) "
    end = "r = Reshape (x, s) y = Neg (r)"
    before = made(target + end, "4, M")
    after = made(f"{target}d = Reshape <allowzero = 1> (x, s) {end}", "4, M")
    assert check_equivalence(before, before).is_proven
    assert not check_equivalence(before, after).proven


def test_a_reshape_that_infers_a_dim_beside_0_may_fail() -> None:
    """It has the dims of another Reshape of the original, which says them all."""
    repeated = DIMS + "m = Shape <start = 1> (x) s = Concat <axis = 0> (b, t, m) e = Expand (x, s) "
    before = made(repeated + "y = Reshape (e, s)", "N, past_M")
    after = made(repeated + "r = Concat <axis = 0> (b, minus, m) y = Reshape (e, r)", "N, past_M")
    assert check_equivalence(before, before).is_proven
    assert not check_equivalence(before, after).proven


KEYS = """g (float[n, s, 64] x, float[b, 4] z) => (float[k, l, m] y, float[k, l, m, o] w) {
    b = Shape <end = 1> (z)  heads = Concat <axis = 0> (b, minus, eight, eight)  split = Reshape (x, heads)
    t = Transpose <perm = [0, 2, 1, 3]> (split)  count = Shape <start = 2, end = 3> (t)
    flat = Concat <axis = 0> (minus, count, eight)  y = Reshape (t, flat)
    turned = Transpose <perm = [0, 2, 1]> (y)  four = Concat <axis = 0> (b, eight, eight, count)
    w = Reshape (turned, four) }"""


def test_what_is_inferred_of_elements_is_no_dim_of_0() -> None:
    """Keys that are cut by the batch of another input, as diffusers does: none of them would fit into no place."""
    read = model(KEYS, minus=[-1], eight=[8])
    shapes = infer(read)
    assert (str(shapes["y"]), str(shapes["w"])) == ("[8*b, max((n*s) // b, 1), 8]", "[b, 8, 8, max((n*s) // b, 1)]")
    assert check_equivalence(read, fold(read).model).is_proven
    for n, s, b in product(range(1, 5), repeat=3):
        feed = {"x": np.ones((n, s, 64), np.float32), "z": np.ones((b, 4), np.float32)}
        with suppress(RunError):
            assert Session(read, threads=1).run(feed)["y"].shape == (8 * b, n * s // b, 8)


def flattened(body: str, **lists: list[int]) -> Model:
    return model(
        f"g (float[n, 4, 1, h] x) => (float[k, l, m] y) {{ {body} }}", **{k: np.array(v) for k, v in lists.items()}
    )


def test_elements_that_are_a_multiple_once_are_so_again() -> None:
    heads = "r = Reshape (x, apart) t = Transpose <perm = [0, 2, 1, 3]> (r) y = Reshape (t, rows)"
    before = flattened(heads, apart=[-1, 4, 1, 8], rows=[-1, 1, 32])
    assert check_equivalence(before, flattened("y = Reshape (x, rows)", rows=[-1, 1, 32])).is_proven


def test_elements_that_are_no_multiple_of_more_are_not_proven() -> None:
    """At h of 8 the original runs, and 4 rows of 8 are none of 64."""
    before = flattened("y = Reshape (x, rows)", rows=[-1, 1, 32])
    after = flattened("z = Reshape (x, more) y = Reshape (x, rows)", rows=[-1, 1, 32], more=[-1, 1, 64])
    feed = {"x": np.ones((1, 4, 1, 8), np.float32)}
    Session(before, threads=1).run(feed)
    with pytest.raises(RunError):
        Session(after, threads=1).run(feed)
    assert "may fail" in str(check_equivalence(before, after))


def test_a_quotient_of_rows_that_are_cut_stays_as_plain_as_it_is() -> None:
    """Wan's tables of angles: where the model runs, there are as many rows as are asked for, and so it is a number."""
    read = model(
        """g (float[n, 3] x) => (float[k, l, m] y) {
            count = Shape <end = 1> (x)  rows = Slice (table, zero, count, zero)
            target = Concat <axis = 0> (count, one, minus)  y = Reshape (rows, target) }""",
        table=np.ones((64, 4), np.float32), zero=[0], one=[1], minus=[-1],
    )  # fmt: skip
    assert str(infer(read)["y"]) == "[n, 1, (4*min(64, n)) // n]"
