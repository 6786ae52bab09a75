"""Dims that have the text of an expression: no runtime checks that, so that a proof takes it for a name, or says so."""

from __future__ import annotations

import numpy as np
import pytest
from small_models import model

from graphkit.equivalence import check_equivalence
from graphkit.model import Model
from graphkit.runtime.session import Session
from graphkit.shapes import infer
from graphkit.verify import verify_rewrite

OTHER = "y = Shape (z)"
EVEN = "s = Shape (x) h = Div (s, two) y = Mul (h, two)"
UNSIZED = "i = NonZero (x) s = Shape (i) y = Gather (s, one)"
# The names of the dims of x and z, and two bodies: equal where each text is the expression that it looks like.
TEXTS = {
    "a number": ("4", "n", "y = Identity (four)", "y = Shape (x)"),
    "a number, written as a difference": ("n - n + 4", "n", "y = Identity (four)", "y = Shape (x)"),
    "a sum of what no other dim is called": ("a + b", "n", "s = Shape (x) y = Max (s, two)", "y = Shape (x)"),
    "a multiple": ("2*a", "n", EVEN, "y = Shape (x)"),
    "spaces around a name": (" n", "n", "y = Shape (x)", OTHER),
    "parentheses around a name": ("(n)", "n", "y = Shape (x)", OTHER),
    "the floor of a name": ("floor(n)", "n", "y = Shape (x)", OTHER),
    "factors in another order": ("a*b", "b*a", "y = Shape (x)", OTHER),
    "quotes": ("'a + b'", "a + b", "y = Shape (x)", OTHER),
    "the mark of what is unknown": ("?", "?z", "y = Shape (x)", OTHER),
    "what a node's unknown dim may be called": ("n", "?i.1", UNSIZED, OTHER),
}


def named(body: str, dims: dict[str, str]) -> Model:
    text = f"g (float[t] x, float[v] z, float[w] u) => (int64[1] y) {{ {body} }}"
    numbers = {"one": np.array([1]), "two": np.array([2]), "four": np.array([4])}
    made = model(text, **{name: each for name, each in numbers.items() if name in body})
    for value in made.proto.graph.input:
        for dim in value.type.tensor_type.shape.dim:
            dim.dim_param = dims.get(value.name, dim.dim_param)
    return Model.from_proto(made.proto)


def sizes(pair: tuple[Model, Model], **counts: int) -> list[int]:
    feed = {name: np.ones(count, np.float32) for name, count in counts.items()}
    return [int(Session(each, threads=1).run(feed)["y"][0]) for each in pair]


@pytest.mark.parametrize("name", TEXTS)
def test_a_text_is_a_name(name: str) -> None:
    first, second, *bodies = TEXTS[name]
    dims = {"x": first, "z": second}
    before, after = (named(body, dims) for body in bodies)
    right, made = sizes((before, after), x=1, z=3, u=2)
    assert right != made
    assert check_equivalence(before, before).is_proven
    assert not check_equivalence(before, after).proven


def test_a_sum_of_other_dims_is_a_condition_of_the_proof() -> None:
    joined = "s = Shape (x) t = Shape (z) y = Add (s, t)"
    whole = "y = Shape (u)"
    dims = {"x": "a", "z": "b", "u": "a + b"}
    pair = named(joined, dims), named(whole, dims)
    assert sizes(pair, x=2, z=3, u=5) == [5, 5]
    assert sizes(pair, x=2, z=3, u=4) == [5, 4]  # onnxruntime does not mind
    found = check_equivalence(*pair)
    assert found.is_proven
    assert found.conditions == ("a >= 1", "b >= 1", "u.0 = a + b, as declared")
    apart = tuple(named(body, {**dims, "z": "c"}) for body in (joined, whole))
    assert not check_equivalence(*apart).proven


@pytest.mark.parametrize("asked_first", ["original", "rewrite", "neither"])
def test_two_dims_of_one_name_are_not_equal_because_a_rewrite_needs_it(asked_first: str) -> None:
    """The nodes of a rewrite relate what those of the original do not, which runs at two sizes too."""
    inputs = "g (float[n] x, float[n] z) => (float[k] y, float[m] w)"
    before = model(f"{inputs} {{ y = Relu (x) w = Relu (z) }}")
    after = before.with_proto(model(f"{inputs} {{ r = Relu (x) s = Shape (z) y = Expand (r, s) w = Relu (z) }}").proto)
    if asked_first != "neither":
        infer({"original": before, "rewrite": after}[asked_first])
    assert not check_equivalence(before, after).proven
    assert not verify_rewrite(before, after).passed


def test_a_name_that_another_dim_without_one_gets() -> None:
    """The first dim of `past` has no name, and the shape engine calls it `past.0`, as the rewrite calls that of x."""
    inputs = "(float[n, 6] x, float[k, 6] past) => (int64[1] y)"
    before = model(f"g {inputs} {{ y = Shape <end = 1> (past) }}")
    before.proto.graph.input[1].type.tensor_type.shape.dim[0].Clear()
    after = model("g (float[n, 6] x) => (int64[1] y) { y = Shape <end = 1> (x) }")
    after.proto.graph.input[0].type.tensor_type.shape.dim[0].dim_param = "past.0"
    pair = Model.from_proto(before.proto), Model.from_proto(after.proto)
    assert not check_equivalence(*pair, narrower=True, unread=["past"]).proven


def test_dims_that_a_narrower_rewrite_takes_for_equal_are_a_condition() -> None:
    text = "g (float[N] x, float[M] y) => (float[K] z) { a = Abs (y) z = Add (x, a) }"
    wide, narrow = model(text), model(text.replace("[M]", "[N]"))
    found = check_equivalence(wide, narrow, narrower=True)
    assert "M = N" in found.conditions
    assert "M = N" not in check_equivalence(wide, wide, narrower=True).conditions


def test_names_that_are_one_expression_in_two_spellings_are_two() -> None:
    before = named("y = Shape (x)", {"x": "k+1", "z": "1 + k"})
    after = named("y = Shape (z)", {"x": "n", "z": "n"})
    found = check_equivalence(before, after, narrower=True)
    assert found.is_proven
    assert any("k+1" in condition and "1 + k" in condition for condition in found.conditions), found.conditions
