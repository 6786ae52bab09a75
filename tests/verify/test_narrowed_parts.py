"""A part that takes fewer sizes than the whole does: it is no part of it, unless that was asked for."""

from __future__ import annotations

import numpy as np
import pytest
from small_models import model

from graphkit.model import Model
from graphkit.passes.interface.extract_subgraph import ExtractSubgraph
from graphkit.shapes import AS_DECLARED, DimSpec
from graphkit.verify.rewrite_verifier import verify_extract

WHOLE = """
g (float[N] x, float[M] y) => (float[1, K] z) {
    s = Shape (y)
    c = Expand (one, s)
    d = Add (c, c)
    q = ReduceSum (x)
    h = Add (d, q)
    n = NonZero (h)
    i = Neg (n)
    z = Cast <to = 1> (i)
}"""


def whole() -> Model:
    return model(WHOLE, one=[1.0])


def part(cuts: tuple[str, ...], end: str, dims: dict[str, list[str | int]]) -> Model:
    """Return a part of which some inputs and outputs declare other dims."""
    made = ExtractSubgraph((end,), cuts).run(whole()).model
    proto = made.restore()
    for info in (*proto.graph.input, *proto.graph.output):
        for dim, now in zip(info.type.tensor_type.shape.dim, dims.get(info.name, []), strict=False):
            dim.Clear()
            setattr(dim, "dim_param" if isinstance(now, str) else "dim_value", now)
    return Model.from_proto(proto)


RIGHT = [((), "h", {}), ((), "h", {"x": ["A"], "y": ["B"], "h": ["B"]}), (("d",), "h", {}), (("n",), "i", {})]
WRONG = {
    "x is declared as one number": ((), "h", {"x": [2]}, "N is 2"),
    "x and y are declared as equal": ((), "h", {"y": ["N"]}, "M is N"),
    "the cut is declared as one number": (("d",), "h", {"d": [3]}, "M is 3"),
    "the cut is declared as long as an input": (("d",), "h", {"d": ["N"]}, "N is M"),
}


@pytest.mark.parametrize(("cuts", "end", "dims"), RIGHT)
def test_a_part_that_takes_all_sizes_is_proven(
    cuts: tuple[str, ...], end: str, dims: dict[str, list[str | int]]
) -> None:
    proof = verify_extract(whole(), part(cuts, end, dims))
    assert proof.passed
    assert proof.equivalence.is_exact


@pytest.mark.parametrize(("cuts", "end", "dims", "told"), WRONG.values(), ids=WRONG)
def test_a_part_that_takes_fewer_sizes_fails(
    cuts: tuple[str, ...], end: str, dims: dict[str, list[str | int]], told: str
) -> None:
    proof = verify_extract(whole(), part(cuts, end, dims))
    assert not proof.passed
    assert "takes fewer sizes" in proof.failures[0]
    assert told in proof.failures[0]


def test_a_part_may_take_the_sizes_that_are_asked_for() -> None:
    made = part((), "h", {"x": [2]})
    assert verify_extract(whole(), made, DimSpec.of({"N": 2})).passed
    assert not verify_extract(whole(), made, AS_DECLARED).passed


@pytest.mark.parametrize(("size", "is_proven"), [("found", True), (2, False)])
def test_a_dim_that_depends_on_data_is_not_known_to_be_a_number(size: str | int, *, is_proven: bool) -> None:
    text = "g (float[2] x) => (int64[1, R] y) { a = Abs (x) b = Add (a, one) n = NonZero (b) y = Neg (n) }"
    original = model(text, one=[1.0])
    proto = ExtractSubgraph(("y",), ("n",)).run(original).model.restore()
    for info in (*proto.graph.input, *proto.graph.output):
        info.type.tensor_type.shape.dim[1].Clear()
        setattr(info.type.tensor_type.shape.dim[1], "dim_value" if size == 2 else "dim_param", size)
    proof = verify_extract(original, Model.from_proto(proto))
    assert proof.passed
    assert bool(proof.equivalence.proven) is is_proven


def test_a_part_may_not_say_which_rank_a_cut_has_that_may_have_two() -> None:
    """Normal forms know of one rank; nothing is proven by them, and runs at other sizes find the other one."""
    text = """g (float[N, 4] x) => (y) {
        s = Shape <end = 1> (x) m = Greater (s, eight) b = Squeeze (m)
        c = If (b) <then_branch = t () => (p) { p = Unsqueeze (x, first) }, else_branch = e () => (q) { q = Neg (x) }>
        y = Neg (c) }"""
    before = model(text, eight=np.array([8]), first=np.array([0]))
    proof = verify_extract(before, model("g (float[K, 4] c) => (float[K, 4] y) { y = Neg (c) }"))
    assert "Invalid rank for input: c" in proof.failures[0]
