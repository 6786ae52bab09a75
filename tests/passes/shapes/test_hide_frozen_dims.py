"""Bodies that cannot run at some dims: the rest is folded, they stay, and onnxruntime loads the result."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import onnx
import onnx.checker
import onnxruntime
import pytest
from rewriting import model_of, reasons

from graphkit.errors import UsageError
from graphkit.graph.view import all_nodes
from graphkit.model import Model, load
from graphkit.passes.fold_pipeline import fold
from graphkit.passes.shapes.declare_shapes import FreezeDims
from graphkit.shapes import DimSpec, infer
from graphkit.workflows.fold_file import FoldOptions, fold_file

BRANCH = """
    batch = Shape <start = 0, end = 1> (q)
    length = Shape <start = 1, end = 2> (q)
    keys_length = Shape <start = 1, end = 2> (keys)
    key_dims = Concat <axis = 0> (batch, keys_length, four)
    flat = Reshape (keys, key_dims)
    turned = Transpose <perm = [0, 2, 1]> (flat)
    scores = MatMul (q, turned)
    wide = Unsqueeze (attention_mask, one)
    masked = Add (scores, wide)
    probabilities = Softmax <axis = 2> (masked)
    mixed = MatMul (probabilities, keys)
    to = Concat <axis = 0> (batch, length, four)
    logits = Reshape (mixed, to)
"""
MERGED = f"""g (float[B, T, 4] q, float[B, P, 4] past_key, float[B, M] attention_mask, bool[1] use_cache)
    => (float[B, T, 4] logits, float[B, K, 4] present_key) {{
    logits, present_key = If (use_cache) <
        then_branch = later () => (float[B, T, 4] logits, float[B, K, 4] keys) {{
            keys = Concat <axis = 1> (past_key, q) {BRANCH}
        }},
        else_branch = first () => (float[B, T, 4] logits, float[B, K, 4] keys) {{
            keys = Identity (q) {BRANCH}
        }}
    >
}}"""
STEP = (("B", 1), ("T", 1), ("P", 5), ("M", 6))
LEVELS = ("ORT_DISABLE_ALL", "ORT_ENABLE_BASIC", "ORT_ENABLE_EXTENDED", "ORT_ENABLE_ALL")


@pytest.fixture
def merged() -> Model:
    return model_of(MERGED, one=np.array([1]), four=np.array([4]))


def session(model: Model | Path, level: str = "ORT_ENABLE_ALL") -> onnxruntime.InferenceSession:
    options = onnxruntime.SessionOptions()
    options.log_severity_level = 4
    options.graph_optimization_level = getattr(onnxruntime.GraphOptimizationLevel, level)
    source = str(model) if isinstance(model, Path) else model.proto.SerializeToString()
    return onnxruntime.InferenceSession(source, options, providers=["CPUExecutionProvider"])


def feed(past: int, mask: int, tokens: int = 1) -> dict[str, np.ndarray]:
    rng = np.random.default_rng(0)
    return {
        "q": rng.standard_normal((1, tokens, 4)).astype(np.float32),
        "past_key": rng.standard_normal((1, past, 4)).astype(np.float32),
        "attention_mask": rng.standard_normal((1, mask)).astype(np.float32),
        "use_cache": np.array([True]),
    }


def bodies(model: Model) -> dict[str, list[str]]:
    (node,) = (node for node in model.graph.nodes if node.is_op("If"))
    return {name: [inner.op_type for inner in body.nodes] for name, body in node.bodies.items()}


def test_a_contradiction_in_a_branch_is_one_of_that_branch(merged: Model) -> None:
    shapes = infer(merged, dims=dict(STEP))
    assert not shapes.contradictions
    ((body, finding),) = shapes.impossible.items()
    assert (body.path.rpartition("/")[2], finding.message) == (
        "else_branch",
        "the inner dims of a product: 6 is not 1",
    )


def test_the_branch_that_runs_is_folded_and_the_other_one_stays(merged: Model) -> None:
    outcome = fold(merged, dims=dict(STEP))
    before, after = bodies(merged), bodies(outcome.model)
    assert after["then_branch"] == ["Concat", "Transpose", "MatMul", "Unsqueeze", "Add", "Softmax", "MatMul"]
    shield = ["Cast", "Mul", "Mul", "Reshape", "Reshape"]  # of the tokens and the mask, whose ranks differ
    assert after["else_branch"] == shield + before["else_branch"]
    (reason,) = reasons(outcome)
    assert "else_branch: is left unchanged, because it cannot run at these dims: the inner dims of a product" in reason


@pytest.mark.parametrize("level", LEVELS)
def test_the_result_loads_at_every_level_and_gives_the_same(merged: Model, level: str) -> None:
    result = fold(merged, dims=dict(STEP)).model
    onnx.checker.check_model(result.proto, full_check=True)
    given = feed(past=5, mask=6)
    expected = session(merged, "ORT_DISABLE_ALL").run(None, given)
    for one, two in zip(expected, session(result, level).run(None, given), strict=True):
        np.testing.assert_array_equal(one, two)


def test_what_the_impossible_branch_computes_is_the_same_where_the_runtime_accepts_it(merged: Model) -> None:
    """A mask of one broadcasts: at these dims the branch of the later step is the impossible one."""
    frozen = FreezeDims((("B", 1), ("T", 3), ("P", 5), ("M", 3))).run(merged).model
    assert [body.path.rpartition("/")[2] for body in infer(frozen).impossible] == ["then_branch"]
    given = {**feed(past=5, mask=3, tokens=3), "use_cache": np.array([False])}
    for one, two in zip(session(merged).run(None, given), session(frozen).run(None, given), strict=True):
        np.testing.assert_array_equal(one, two)
    with pytest.raises(Exception, match="Add"):
        session(frozen).run(None, {**given, "use_cache": np.array([True])})


@pytest.mark.cases(2)
@pytest.mark.parametrize(("past", "tokens"), [(0, 1), (1, 1), (5, 1), (33, 1), (5, 3), (0, 3)])
def test_a_decode_step_is_frozen_written_and_proven(merged: Model, past: int, tokens: int, tmp_path: Path) -> None:
    source, output = tmp_path / "m.onnx", tmp_path / "out.onnx"
    onnx.save(merged.proto, source)
    dims = (("B", 1), ("T", tokens), ("P", past), ("M", past + tokens))
    report = fold_file(load(source), output, FoldOptions(spec=DimSpec(dims)))
    assert report.proof is not None
    assert report.proof.passed
    assert report.counts[-1].after < report.counts[-1].before
    text = report.to_text()
    assert len(text.splitlines()) - len(report.proof.runs) < 80  # each run has a line, at edges of values too
    for level in LEVELS:
        session(output, level)
    flags = {run.flags["use_cache"] for run in report.proof.runs}
    assert flags == ({True} if past else {True, False})


def test_a_fold_again_leaves_it_as_it_is(merged: Model) -> None:
    once = fold(merged, dims=dict(STEP)).model
    twice = fold(once).model
    assert sum(1 for _ in all_nodes(once.scopes)) == sum(1 for _ in all_nodes(twice.scopes))
    session(twice)


def test_sizes_at_which_neither_branch_can_run_are_refused_with_the_reason_of_each(
    merged: Model, tmp_path: Path
) -> None:
    source = tmp_path / "m.onnx"
    onnx.save(merged.proto, source)
    dims = (("B", 1), ("T", 2), ("P", 5), ("M", 4))
    with pytest.raises(UsageError) as caught:
        fold_file(load(source), tmp_path / "out.onnx", FoldOptions(spec=DimSpec(dims), verify=False))
    then, otherwise = "dims that broadcast: 7 is not 4 in then_branch", "dims that broadcast: 2 is not 4 in else_branch"
    assert str(caught.value) == (
        f"{source}: it cannot run with B=1, T=2, P=5, M=4: 'If#0': neither branch can run: {then}; {otherwise} - "
        "give other sizes"
    )
    assert list(tmp_path.iterdir()) == [source]


LOOP = """g (float[N, 4] x, float[M, 4] z, int64 trips) => (float[N, 4] y, float[N, 4] w) {
    s = Shape (x)
    w = Reshape (x, s)
    y = Loop (trips, yes, x) <body = b (int64 i, bool c, float[N, 4] state) => (bool go, float[N, 4] next) {
        go = Identity (c)
        same = Identity (x)
        next = Add (same, z)
    }>
}"""


@pytest.mark.parametrize("level", LEVELS)
def test_a_loop_that_may_not_run_has_findings_of_its_own(level: str) -> None:
    model = model_of(LOOP, yes=np.array(True))
    shapes = infer(model, dims={"N": 2, "M": 3})
    assert not shapes.contradictions
    assert [body.path.rpartition("/")[2] for body in shapes.impossible] == ["body"]
    result = fold(model, dims={"N": 2, "M": 3}).model
    assert [node.op_type for node in result.graph.nodes] == ["Identity", "Loop"]
    x = np.ones((2, 4), np.float32)
    given = {"x": x, "z": np.ones((3, 4), np.float32), "trips": np.array(0)}
    y, w = session(result, level).run(None, given)
    np.testing.assert_array_equal(y, x)
    np.testing.assert_array_equal(w, x)


def test_a_loop_that_runs_at_least_once_speaks_for_the_model() -> None:
    model = model_of(LOOP.replace(", int64 trips", ""), yes=np.array(True), trips=np.array(2))
    assert infer(model, dims={"N": 2, "M": 3}).contradictions


def test_the_innermost_branch_is_the_one_that_cannot_run() -> None:
    model = model_of("""g (float[N, 4] x, float[M, 4] z, bool a, bool b) => (float[N, 4] y) {
        y = If (a) <
            then_branch = t () => (float[N, 4] t1) {
                t1 = If (b) <
                    then_branch = u () => (float[N, 4] u1) { u1 = Add (x, z) },
                    else_branch = v () => (float[N, 4] v1) { vs = Shape (x) v1 = Reshape (x, vs) }
                >
            },
            else_branch = w () => (float[N, 4] w1) { ws = Shape (x) w1 = Reshape (x, ws) }
        >
    }""")
    outcome = fold(model, dims={"N": 2, "M": 3})
    assert [node.op_type for node in all_nodes(outcome.model.scopes)].count("Shape") == 0
    (reason,) = reasons(outcome)
    assert "then_branch" in reason.partition(": stays")[0]
    found = session(outcome.model)
    given = {"x": np.ones((2, 4), np.float32), "z": np.ones((3, 4), np.float32), "a": np.array(True)}
    (y,) = found.run(None, {**given, "b": np.array(False)})
    np.testing.assert_array_equal(y, given["x"])
