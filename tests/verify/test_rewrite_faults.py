"""Faults put into a rewritten model on purpose: each fails the proof, with a finding that names it."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from pathlib import Path

import numpy as np
import onnx
import pytest
from onnx import numpy_helper
from small_models import model

from graphkit.errors import ModelError
from graphkit.model import Model, load
from graphkit.options import RewriteProofOptions
from graphkit.runtime.onnxruntime_loader import runtime_version
from graphkit.runtime.session import RunError, Session
from graphkit.verify.comparator import level_tolerance
from graphkit.verify.feeder import Run
from graphkit.verify.proof_runs import LevelRuns, prove_level
from graphkit.verify.rewrite_verifier import verify_rewrite

ModelFile = Callable[[str], Path]
# A decoder of one head: scores of keys that a cache holds, with a bias by distance or a sliding window.
BIASED = """g (int64[b, s] input_ids, float[b, 1, past, 4] past_key_values_0_key)
  => (float[b, 1, s, t] logits, float[b, 1, p, 4] present_0_key) {
    rows = Gather (words, input_ids)
    new = Unsqueeze (rows, one)
    present_0_key = Concat <axis = 2> (past_key_values_0_key, new)
    dims = Shape (present_0_key)
    length = Gather (dims, two)
    last = Sub (length, step)
    positions = Range (zero, length, step)
    distance = Sub (last, positions)
    turned = Transpose <perm = [0, 1, 3, 2]> (present_0_key)
    scores = MatMul (new, turned)
    %s
}"""
BUCKETS = "near = Min (distance, top) bias = Gather (table, near) logits = Add (scores, bias)"
WINDOW = "is_far = Greater (distance, window) logits = Where (is_far, hidden, scores)"
CONSTANTS: Mapping[str, object] = {
    "words": np.arange(36).reshape(9, 4) / 7,
    "one": [1],
    "two": np.int64(2),
    "step": np.int64(1),
    "zero": np.int64(0),
}
TABLE = np.linspace(-1, 1, 32)


def biased(table: np.ndarray, name: str) -> Model:
    return model(BIASED % BUCKETS.replace("table", name), **CONSTANTS, top=np.int64(31), **{name: table})


def windowed(window: int, name: str) -> Model:
    text = BIASED % WINDOW.replace("window", name)
    return model(text, **CONSTANTS, hidden=-9.0, **{name: np.int64(window)})


@pytest.mark.cases("31")
@pytest.mark.parametrize("entry", [16, 31])
def test_a_table_of_biases_that_is_wrong_from_one_on(entry: int) -> None:
    wrong = np.where(np.arange(32) >= entry, TABLE + 0.5, TABLE)
    assert verify_rewrite(biased(TABLE, "table"), biased(TABLE, "other")).passed
    found = verify_rewrite(biased(TABLE, "table"), biased(wrong, "other"))
    assert "logits differs by 0.5" in found.failures[0]
    assert [run.failure != "" for run in found.runs] == [run.dims["past"] + run.dims["s"] > entry for run in found.runs]


@pytest.mark.slow
def test_a_window_that_is_off_by_one() -> None:
    assert verify_rewrite(windowed(48, "window"), windowed(48, "other")).passed
    found = verify_rewrite(windowed(48, "window"), windowed(49, "other"))
    assert "runs differ, the first at b=1, s=1, past=51: logits differs by " in found.failures[0]
    assert not any(run.failure for run in found.runs if run.dims["past"] + run.dims["s"] < 50)


@pytest.mark.slow
@pytest.mark.parametrize("row", [pytest.param(0, marks=pytest.mark.slow), 61])
def test_a_row_of_a_table_that_no_run_reached(row: int, model_file: ModelFile, tmp_path: Path) -> None:
    path, changed = model_file("gpt2-tiny/decoder_model_merged"), tmp_path / "changed.onnx"
    proto = onnx.load(path)
    tensor = next(t for t in proto.graph.initializer if "wte" in t.name)
    array = numpy_helper.to_array(tensor).copy()
    array[row, 3] += 1e-7
    tensor.CopyFrom(numpy_helper.from_array(array, tensor.name))
    onnx.save(proto, changed)
    failure = verify_rewrite(path, changed).failures[-1]
    assert failure.startswith(f"weight '{tensor.name}' (float32")
    assert failure.endswith(f"first at element [{row}, 3]")


def test_numbers_of_shape_arithmetic_may_change_and_new_constants_may_come() -> None:
    text = "g (float[b, s, 6] x) => (float[b, q, 2] y) { y = Reshape (x, shape) }"
    assert verify_rewrite(model(text, shape=[0, -1, 2]), model(text, shape=[-1, 0, 2], more=[1.0])).failures != ()
    found = verify_rewrite(model(text, shape=[0, -1, 2]), model(text, shape=[0, -1, 2], more=[1.0]))
    assert found.passed
    same = "g (float[2, 3] x) => (float[6] y) { y = Reshape (x, shape) }"
    assert verify_rewrite(model(same, shape=[-1]), model(same, shape=[6])).passed


def test_weights_that_differ_are_a_note_where_a_tolerance_is_asked_for() -> None:
    text = "g (float[b, 2] x) => (float[b, 2] y) { y = Mul (x, w) }"
    one, two = model(text, w=[1.0, 2.0]), model(text, w=[1.0, 2.000001])
    assert not verify_rewrite(one, two).passed
    found = verify_rewrite(one, two, options=RewriteProofOptions(tolerance=1e-4))
    note = "weight 'w' (float32[2]) differs from the original's 'w', first at element [1]"
    assert (found.passed, found.notes) == (True, (note,))


# The default level


@pytest.mark.skipif(runtime_version() >= (1, 32), reason="onnxruntime 1.32 has no such fault")
def test_a_result_that_loads_without_optimizations_only() -> None:
    """onnxruntime's GemmTransposeFusion removes an output that a Gemm reads too."""
    text = """g (float[3, n] x) => (float[n, 3] y, float[2, n] z) {{
        a = Transpose <perm = [1, 0]> (x) {} g = Gemm ({}, w) z = Transpose <perm = [1, 0]> (g) }}"""
    fine = model(text.format("y = Identity (a)", "a"), w=np.ones((3, 2)))
    broken = model(text.replace("a = Tr", "y = Tr").format("", "y"), w=np.ones((3, 2)))
    assert verify_rewrite(fine, fine).passed
    (failure,) = verify_rewrite(fine, broken).failures
    assert failure.startswith("at onnxruntime's default level: onnxruntime does not load it: ")
    found = verify_rewrite(broken, broken)
    assert found.passed
    assert found.notes[0].startswith("At the default level nothing is compared, for the original does not load there: ")


def test_a_result_that_does_not_load_at_all() -> None:
    text = "g (float[n] x) => (float[n] y) { y = %s (x) }"
    (failure,) = verify_rewrite(model(text % "Neg"), model(text % "Nag")).failures
    assert failure.startswith("the rewritten model: onnxruntime does not load it: ")


def test_a_model_without_outputs_proves_nothing() -> None:
    empty = model("g (float[n] x) => () { a = Neg (x) }")
    assert verify_rewrite(empty, empty).failures == ("the original has no outputs, so nothing can be proven",)


class Fused:
    """A session whose numbers are off by so much in an output of magnitude 10."""

    outputs = ("y",)

    def __init__(self, by: object) -> None:
        self.by = by

    def run(self, feed: Mapping[str, np.ndarray]) -> dict[str, np.ndarray]:
        if isinstance(self.by, str):
            raise RunError(self.by)
        return {"y": (feed["x"] + self.by).astype(feed["x"].dtype)}


def level(result: object, original: object, values: np.ndarray | None = None) -> tuple[float | None, str, str]:
    x = np.array([1, 10], np.float32) if values is None else values
    runs = [Run({"n": 2}, {}, 0, {"y": x})]

    def runs_of(by: object) -> LevelRuns:
        def open_session() -> Session:
            if by is None:
                raise ModelError("no")
            return Fused(by)  # type: ignore[return-value]

        return LevelRuns(open_session, lambda _: {"x": x})

    found = prove_level(1e-4, runs, ["y"], runs_of(result), runs_of(original))
    return found.scaled, found.failure, found.note


SILENT = "Output y is not compared at the default level: the original's own differs there."


@pytest.mark.parametrize(
    ("result", "original", "failure", "note"),
    [
        (0.0005, "never run", "", ""),  # within the tolerance the original is not asked
        (0.05, 0.03, "", ""),  # no farther off than twice the original
        (0.05, 0.02, "y at n=2: differs by 0.005 of its largest magnitude", ""),
        (np.nan, 0.0, "y at n=2: differs", ""),
        (np.nan, np.nan, "", SILENT),
        ("it fails", 0.0, "y at n=2: it fails", ""),
        ("it fails", "so does this", "", ""),
        (None, 0.0, "no", ""),
        (None, None, "", "At the default level nothing is compared, for the original does not load there: no"),
    ],
)
def test_what_counts_as_equal_at_the_default_level(result: object, original: object, failure: str, note: str) -> None:
    assert level(result, original)[1:] == (failure, note)


@pytest.mark.parametrize("dtype", [np.int64, np.bool_])
def test_whole_numbers_must_be_equal_at_the_default_level(dtype: type) -> None:
    values = np.array([1, 0]).astype(dtype)
    assert level(0, 0, values)[1] == ""
    assert level(1, 0, values)[1] == "y at n=2: differs"
    assert level(1, 1, values)[1:] == ("", SILENT)


def test_the_tolerance_follows_from_the_types_of_a_model(model_file: ModelFile) -> None:
    assert level_tolerance(load(model_file("gpt2-tiny/decoder_model_merged"))) == 1e-4
    assert level_tolerance(load(model_file("llama-int4/model"))) == 2e-2
    assert level_tolerance(load(model_file("vit-qdq/model"))) == 2e-2
    assert level_tolerance(model("g (float16[n] x) => (float16[n] y) { y = Neg (x) }")) == 1e-2
    assert level_tolerance(model("g (float[n] x) => (float[n] y) { y = com.microsoft.QMoE (x, x, x) }")) == 2e-2
