"""Dims that are elements of inputs: equal where the same nodes make them, not by arithmetic that may wrap around."""

from __future__ import annotations

import numpy as np
import pytest
from small_models import model

from graphkit.equivalence import check_equivalence
from graphkit.equivalence.reader import free_elements
from graphkit.model import Model
from graphkit.passes.interface.extract_subgraph import ExtractSubgraph
from graphkit.runtime.session import Session
from graphkit.shapes import infer, lower
from graphkit.verify.rewrite_verifier import verify_extract

HEAD = "g (int64[1] n, float[L] x) => (float[a, b] y, float[c, d] z)"
MADE = {  # of two counts, which the shape engine takes for the same
    "filled": "s = Concat <axis = 0> ({0}, none) y = ConstantOfShape (s) t = Concat <axis = 0> ({1}, none) "
              "z = ConstantOfShape (t)",
    "cut": "r = Unsqueeze (x, none) y = Slice (r, none, {0}, one) z = Slice (r, none, {1}, one)",
    "widened": "r = Reshape (x, wide) e = Slice (r, none, none, one) s = Concat <axis = 0> ({0}, one) "
               "y = Expand (e, s) t = Concat <axis = 0> ({1}, one) z = Expand (e, t)",
}  # fmt: skip
COUNTS = {  # of a number, with one at which it is another count
    "an int64 product": ("a = Mul (n, four) m = Div (a, four)", 2**62 + 3),
    "an int32": ("a = Cast <to = 6> (n) m = Cast <to = 7> (a)", 2**32 + 3),
}
NUMBERS = {"none": [0], "one": [1], "four": [4], "wide": [1, -1]}


def built(body: str) -> Model:
    words = body.replace("(", " ").replace(")", " ").replace(",", " ").split()
    constants = {name: np.array(each, np.int64) for name, each in NUMBERS.items() if name in words}
    return model(f"{HEAD} {{ {body} }}", **constants)


@pytest.mark.cases(2)
@pytest.mark.parametrize("count", COUNTS)
@pytest.mark.parametrize("made", MADE)
def test_counts_that_wrap_around_are_not_those_that_do_not(made: str, count: str) -> None:
    arithmetic, _ = COUNTS[count]
    before = built(f"{arithmetic} {MADE[made].format('n', 'm')}")
    for counts in (("n", "n"), ("m", "m"), ("m", "n")):
        wrong = built(f"{arithmetic} {MADE[made].format(*counts)}")
        proven = {output.name for output in check_equivalence(before, wrong).proven}
        assert proven.isdisjoint({name for name, one, other in zip("yz", counts, "nm", strict=True) if one != other})
    assert check_equivalence(before, before).is_proven


@pytest.mark.parametrize(
    ("made", "count", "y", "z"),
    [
        ("cut", "an int64 product", (1, 9), (1, 3)),
        ("cut", "an int32", (1, 9), (1, 3)),
        ("widened", "an int32", (2**32 + 3, 0), (3, 0)),
    ],
)
def test_a_run_tells_such_counts_apart(made: str, count: str, y: tuple[int, ...], z: tuple[int, ...]) -> None:
    arithmetic, number = COUNTS[count]
    feeds = {"n": np.array([number]), "x": np.ones(9, np.float32)}
    found = Session(built(f"{arithmetic} {MADE[made].format('n', 'm')}"), threads=1).run(feeds)
    assert (found["y"].shape, found["z"].shape) == (y, z)


def test_elements_that_are_dims_are_small() -> None:
    made = model(
        "g (float[L] x, int64[2] n) => (int64[k] y) { i = NonZero (x) s = Shape (i) y = Concat <axis = 0> (s, n) }"
    )
    assert {name.split(".")[1] for name in free_elements(infer(made))} == {"n"}


SHAPED = """
g (float[B, S, 6] x) => (float[B, S, 6] y) {
    s = Shape (x)
    h = Concat <axis = 0> (front, rear)
    t = Slice (s, none, two)
    u = Concat <axis = 0> (t, h)
    r = Reshape (x, u)
    q = Transpose <perm = [0, 2, 1, 3]> (r)
    e = Softmax (q)
    p = Transpose <perm = [0, 2, 1, 3]> (e)
    y = Reshape (p, s)
}"""


def shaped() -> Model:
    numbers = {"front": [2], "rear": [3], "none": [0], "two": [2]}
    return model(SHAPED, **{name: np.array(each, np.int64) for name, each in numbers.items()})


@pytest.mark.parametrize("cut", ["s", "t", "u"])
def test_a_part_that_begins_in_shape_arithmetic_is_proven(cut: str) -> None:
    whole = shaped()
    part = ExtractSubgraph(("y",), (cut,)).run(whole).model
    proof = verify_extract(whole, part)
    assert proof.passed
    assert proof.equivalence.is_exact, proof.equivalence.unproven


def test_a_part_with_another_order_of_dims_is_not() -> None:
    whole = shaped()
    part = ExtractSubgraph(("y",), ("t",)).run(whole).model
    other = Model.from_proto(part.proto)
    concat = next(node for node in other.proto.graph.node if node.output[0] == "h")
    concat.input[:] = ["rear", "front"]
    proof = verify_extract(whole, other)
    assert not proof.passed
    assert not proof.equivalence.proven


RESIZED = """
g (float[1, 3, h, w] x, float scale) => (float[a, 3, b] y, int64[n, 2] z) {{
    s = Shape (x)
    f = Cast <to = 1> (s)
    m = Mul (f, scale)
    i = Cast <to = 7> (m)
    t = Slice (i, two, four)
    c = Shape <start = 0, end = 2> (x)
    u = Concat <axis = 0> (c, t)
    r = Resize (x, none, none, u)
    p = Shape (r)
    {}
}}"""
FLAT = {
    "by its dims": """b = Slice (p, two, three) w2 = Slice (p, three, four) d = Mul (b, w2)
        e = Concat <axis = 0> (one, three, d) y = Reshape (r, e) q = Cast <to = 6> (d) g = Cast <to = 7> (q)
        k = Concat <axis = 0> (g, two) z = Expand (one, k)""",
    "as it is": """y = Reshape (r, flat) v = Shape <start = 2> (y) k = Concat <axis = 0> (v, two)
        z = Expand (one, k)""",
    "by an axis": """y = Reshape (r, flat) v = Slice (p, two, three) k = Concat <axis = 0> (v, two)
        z = Expand (one, k)""",
}


def resized(kind: str, height: str = "h") -> Model:
    words = RESIZED.format(FLAT[kind]).replace("3, h,", f"3, {height},")
    numbers = {"two": [2], "three": [3], "four": [4], "one": [1], "flat": [1, 3, -1]}
    used = {
        name: np.array(each, np.int64) for name, each in numbers.items() if f"{name}," in words or f"{name})" in words
    }
    return model(words, none=np.zeros(0, np.float32), **used)


def test_what_a_picture_is_resized_to_is_a_size() -> None:
    """It was any number before it became a dim: then what is computed from it is followed as for other dims."""
    made = infer(resized("by its dims"))
    dims = {value.name: made[value].dims for value in made.model.graph.values.values()}
    assert dims["y"] == (1, 3, dims["r"][2] * dims["r"][3])
    assert dims["z"] == (dims["y"][2], 2)
    assert [str(dim) for dim in dims["y"]] == ["1", "3", "?0.Concat#6*?1.Concat#6"]


def test_equal_shapes_of_a_resized_picture_are_proven_and_others_are_not() -> None:
    before = resized("by its dims")
    assert check_equivalence(before, resized("as it is")).is_proven
    assert {each.name for each in check_equivalence(before, resized("by an axis")).proven} == {"y"}


@pytest.mark.parametrize(("height", "least"), [("h", 1), ("past_h", 0)])
def test_a_picture_is_resized_to_nothing_where_it_is_nothing(height: str, least: int) -> None:
    made = infer(resized("as it is", height))
    dims = {value.name: made[value].dims for value in made.model.graph.values.values()}
    assert (lower(dims["x"][2]), lower(dims["r"][2])) == (least, least)


def test_what_is_large_for_each_of_a_count_is_compared_at_some() -> None:
    """Of 1 MB for each element that is not 0, one size would be small enough, and eight are asked for."""
    text = """g (float[L] x) => (float[n] y) {{ i = NonZero (x) s = Shape <start = 1> (i) {} y = Expand (half, {}) }}"""
    filled = "t = Concat <axis = 0> (s, wide, wide) f = ConstantOfShape (t) d = Shape <end = 1> (f)"
    before = model(text.format(filled, "d"), wide=np.array([512]), half=np.float32(0.5))
    assert check_equivalence(before, model(text.format("", "s"), half=np.float32(0.5))).is_proven
