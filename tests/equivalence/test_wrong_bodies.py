"""Bodies that onnxruntime loads, and then reads what nothing was written to, or another value of the same name."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
import pytest
from small_models import model
from test_wrong_kinds import differs

from graphkit.equivalence import check_equivalence
from graphkit.model import Model
from graphkit.runtime.session import RunError, Session

HEAD = '<ir_version: 9, opset_import: ["" : 18]>\n'
SCAN = """g (float[N] x, float[T, N] q) => (float[N] y, float[T, N] z) {{
    y, z = Scan <num_scan_inputs = 1, body = b (float[N] s, float[N] e) => ({}) {{ {} }}> (x, q) }}"""
IF = """g (float[N] x, bool c) => (float[N] y, float[N] z) {{
    y, z = If (c) <then_branch = t () => ({}) {{ {} }},
                   else_branch = e () => (float[N] o, float[N] p) {{ o = Abs (x) p = Exp (x) }}> }}"""
SHADOW = """g (float[N] x, bool c) => (float[N] y) <float[1] k = {{3}}> {{
    y = If (c) <then_branch = t () => (float[N] p) <float[1] {0} = {{2}}> {{ p = Mul (x, {0}) }},
                else_branch = e () => (float[N] q) {{ q = Add (x, k) }}> }}"""
LOOP = """g (float[4] x, int64 m, bool c) => (float[4] l, {} y) {{
    l, y = Loop (m, c, x) <body = b ({}, bool ci, float[4] s) => (bool co, float[4] so, {} t) {{
        co = Identity (ci) so = Neg (s) t = Gather (x, i) }}> }}"""
LISTED = """g (float[N] x, int64 m, bool c) => (float[N] y, int64[k] z) {{
    y, z = Loop (m, c, x) <body = b (int64 i, bool ci, float[N] s) => (bool co, float[N] r, int64 {}) {{
        co = Identity (ci) r = Neg (s) {} }}> }}"""
COUNTED = """g (float[N] x, int64 m, bool c) => (int64 y, float[k, N] z) <int64 nil = {{0}}> {{
    y, z = Loop (m, c, nil) <body = b (int64 i, bool ci, int64 s) => (bool co, int64 {}, float[N] r) {{
        co = Identity (ci) r = Neg (x) {} }}> }}"""
SUM = "r = Add (s, e)"


@dataclass(frozen=True)
class Pair:
    """A right text and a wrong one, and what the checker says of the latter."""

    before: str
    after: str
    fault: str


PAIRS = {
    "a Scan gives a sum twice": Pair(
        SCAN.format("float[N] r, float[N] t", f"{SUM} t = Add (s, e)"), SCAN.format("float[N] r, float[N] r", SUM),
        "body of Scan#0 gives 'r' twice"),
    "a Scan gives its element": Pair(
        SCAN.format("float[N] r, float[N] t", f"{SUM} t = Identity (e)"), SCAN.format("float[N] r, float[N] e", SUM),
        "body of Scan#0 gives its input 'e' as it is"),
    "a Scan gives its state": Pair(
        SCAN.format("float[N] r, float[N] t", f"{SUM} t = Identity (s)"), SCAN.format("float[N] r, float[N] s", SUM),
        "body of Scan#0 gives its input 's' as it is"),
    "a branch gives one value twice": Pair(
        IF.format("float[N] r, float[N] t", "r = Neg (x) t = Neg (x)"),
        IF.format("float[N] r, float[N] r", "r = Neg (x)"),
        "then_branch of If#0 gives 'r' twice"),
    "a Loop lists its counter": Pair(
        LISTED.format("u", "u = Identity (i)"), LISTED.format("i", ""), "body of Loop#0 gives its input 'i' as it is"),
    "a Loop carries its counter": Pair(
        COUNTED.format("u", "u = Identity (i)"), COUNTED.format("i", ""),
        "body of Loop#0 gives its input 'i' as it is"),
    "a branch has the name of what the other reads": Pair(
        SHADOW.format("k2"), SHADOW.format("k"),
        "'k', an initializer of If#0/then_branch, has the name of a value around it"),
}  # fmt: skip
FEEDS = {
    "x": np.array([0.5, -2.0], np.float32),
    "c": np.array(True),
    "q": np.ones((2, 2), np.float32),
    "m": np.array(2),
}


@pytest.mark.parametrize("name", PAIRS)
def test_a_body_that_onnxruntime_reads_otherwise_is_not_proven(name: str) -> None:
    pair = PAIRS[name]
    before, after = (model(text, HEAD) for text in (pair.before, pair.after))
    assert check_equivalence(before, before.with_proto(before.proto)).is_proven
    found = check_equivalence(before, after)
    assert {output.reason.partition(";")[0] for output in found.outputs} == {pair.fault}
    assert check_equivalence(after, before).proven == ()
    feed = {value.name: FEEDS[value.name] for value in before.graph.inputs}
    if name != "a Scan gives a sum twice":  # of memory that may hold what is right
        assert differs(before, after, feed)


def test_a_counter_needs_declared_dims() -> None:
    text = LOOP.format("float[k]", "int64 i", "float")
    before, bare = model(text, HEAD), model(text, HEAD).proto
    bare.graph.node[0].attribute[0].g.input[0].type.tensor_type.ClearField("shape")
    after = Model.from_proto(bare)
    feed = {"x": np.ones(4, np.float32), "m": np.array(2), "c": np.array(True)}
    assert len(Session(before, threads=1).run(feed)["y"]) == 2
    with pytest.raises(RunError, match="unknown shape"):
        Session(after, threads=1).run(feed)
    (found, *_) = check_equivalence(before, after).outputs
    assert found.reason == "'i' of Loop#0/body has no declared dims, which onnxruntime asks for"
    assert check_equivalence(after, Model.from_proto(after.proto)).is_proven  # as far as it runs


def test_a_counter_has_the_rank_that_the_body_declares() -> None:
    """A Gather by a list of one gives a list, and one by a number a number: the wrong model declares none of both."""
    models = [model(LOOP.format("float[k, 1]", counter, "float[1]"), HEAD) for counter in ("int64[1] i", "int64 i")]
    del models[1].proto.graph.output[1].type.tensor_type.shape.dim[1]
    models[1].proto.graph.node[0].attribute[0].g.output[2].type.tensor_type.ClearField("shape")
    feed = {"x": np.ones(4, np.float32), "m": np.array(2), "c": np.array(True)}
    before, after = (Model.from_proto(each.proto) for each in models)
    assert [Session(each, threads=1).run(feed)["y"].ndim for each in (before, after)] == [2, 1]
    for pair in ((before, after), (after, before)):
        assert [output.name for output in check_equivalence(*pair).proven] in ([], ["l"])
