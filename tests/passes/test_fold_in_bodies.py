"""What the engine knows of a few operators, in the main graph, in a branch and in a loop, dynamic and frozen."""

from __future__ import annotations

import numpy as np
import pytest
from rewriting import check, feeds_of, lines, model_of

from graphkit.passes.fold_pipeline import fold

CONSTANTS = (
    "int64[1] zero = {0}, int64[1] one = {1}, int64[1] four = {4}, int64[1] end = {9223372036854775807}, "
    "int64[1] last = {-1}, int64[0] none = {}, int64[1] eight = {8}, int64 first = {0}, "
    "int64 three = {3}, bool true = {1}"
)
# What computes b [N, 4] of a [N, 4], and which operators are left of it.
NODES: dict[str, tuple[str, set[str]]] = {
    "an empty part": ("p = Slice (a, four, end, last) n = Neg (p) b = Concat <axis = 1> (n, a)", set()),
    "a split into one": ("b = Split <axis = 1, num_outputs = 1> (a)", set()),
    "a pad by zeros": ("s = Shape (a) d = Sub (s, s) p = Concat <axis = 0> (d, d) b = Pad (a, p)", set()),
    "an operator without a rule": (
        "p = com.microsoft.SampleOp (a) s = Shape (p) n = Neg (p) b = Reshape (n, s)",
        {"SampleOp", "Neg", "Reshape", "Shape"},
    ),
    "an operator with a rule": (
        'p = com.microsoft.CDist <metric = "euclidean"> (a, a) s = Shape (p) n = Gather (s, zero) '
        "b = Slice (a, zero, n, zero)",
        set(),
    ),
    "a dim that is added": (
        "p = com.microsoft.ExpandDims (a, axis) s = Shape (p) n = Gather (s, one) b = Slice (a, zero, n, zero)",
        set(),
    ),
    "a squeeze of an empty list": (
        "u = Unsqueeze (a, last) p = Squeeze (u, none) n = Neg (p) s = Shape (a) b = Reshape (n, s)",
        {"Unsqueeze", "Squeeze", "Reshape", "Shape"},
    ),
    "a sequence": (
        "q = SequenceConstruct (a, a) p = SequenceAt (q, first) s = Shape (p) n = Gather (s, zero) "
        "b = Slice (a, zero, n, zero)",
        set(),
    ),
    "a step that is a dim": (
        "s = Shape (a) n = Gather (s, zero) p = Slice (a, zero, end, zero, n) t = Shape (p) d = Gather (t, zero) "
        "m = Sub (d, one) k = Add (m, n) b = Slice (a, zero, k, zero)",
        set(),
    ),
    "the least": (
        "s = Shape (a) n = Gather (s, zero) m = Add (n, one) k = Min (m, n) b = Slice (a, zero, k, zero)",
        set(),
    ),
    "an aspect ratio": (
        'p = Resize <keep_aspect_ratio_policy = "not_larger", axes = [1]> (a, , , eight) s = Shape <start = 1> (p) '
        "t = Sub (s, four) b = Slice (a, zero, t, one)",
        set(),
    ),
}
PLACES = {
    "the main graph": "NODES y = Abs (b)",
    "a branch": """y = If (c) < then_branch = t () => (float[N, 4] h) { NODES h = Abs (b) },
        else_branch = e () => (float[N, 4] k) { k = Neg (a) } >""",
    "a loop": """y = Loop (three, true, a) < body = l (int64 i, bool go, float[N, 4] v) => (bool on, float[N, 4] h)
        { on = Identity (go) NODES h = Abs (b) } >""",
}


@pytest.mark.cases(22)
@pytest.mark.parametrize("dims", [{}, {"N": 2}], ids=["dynamic", "frozen"])
@pytest.mark.parametrize("place", PLACES)
@pytest.mark.parametrize("name", NODES)
def test_folding_keeps_the_results(name: str, place: str, dims: dict[str, int]) -> None:
    nodes, left = NODES[name]
    text = PLACES[place].replace("NODES", nodes)
    model = model_of(
        f"g (float[N, 4] a, bool c) => (float[N, 4] y) <{CONSTANTS}> {{ {text} }}", 18, axis=np.array(0, np.int32)
    )
    feeds = [
        {**feeds_of(model, {"N": size}, size), "c": np.array(flag)}
        for size in ([dims["N"]] if dims else (1, 2, 5))
        for flag in (True, False)
    ]
    outcome = check(lambda m: fold(m, dims=dims), model, feeds=feeds)
    written = " ".join(lines(outcome.model))
    assert {op for op in ("SampleOp", "Squeeze") if op in written} == left & {"SampleOp", "Squeeze"}
    gone = {"Slice", "Concat", "Split", "Pad", "Shape", "CDist", "ExpandDims", "SequenceAt", "Resize"} - left
    assert not [op for op in gone if f"{op} (" in written or f"{op} <" in written]
