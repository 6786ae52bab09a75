from __future__ import annotations

import itertools
import json
from collections.abc import Callable, Mapping
from pathlib import Path
from types import SimpleNamespace

import numpy as np
import onnx
import pytest
from onnx import TensorProto, helper, numpy_helper
from real_models import params
from small_models import CONV, KERNEL, model

from graphkit.errors import ModelError, UsageError
from graphkit.model import Model, load
from graphkit.options import RewriteProofOptions
from graphkit.progress import Limits
from graphkit.runtime.isolation import DiedError
from graphkit.runtime.session import RunError
from graphkit.shapes import AS_DECLARED, DimSpec
from graphkit.verify import proof_runs
from graphkit.verify.feeder import Run
from graphkit.verify.proof_runs import TwoModels, unsteady_runs
from graphkit.verify.rewrite_proof import LevelProof, OutputProof, RewriteProof, RunProof, SkippedRun, WeightProof
from graphkit.verify.rewrite_verifier import verify_rewrite

ModelFile = Callable[[str], Path]
COMPLETE = (
    "bert-fill-mask/model",
    "cache-styles/bshd",
    "cache-styles/stacked",
    "cache-styles/static-cache",
    "gpt2-tiny/decoder_model_merged",
    "llama-int4/model",
    "patchtst/model",
    "search/beamsearch-gpt2",
    "search/loop-greedy",
    "vit-qdq/model",
)
QUICK = {"bert-fill-mask/model", "cache-styles/bshd", "cache-styles/static-cache", "search/loop-greedy"}
LINEAR = "g (float[batch, 3] x) => (float[batch, 2] y, float[batch, 3] z) { y = MatMul (x, w) z = Neg (x) }"
WEIGHT = [[1.0, 2.0], [3.0, 4.0], [5.0, 6.0]]
MERGED = """
g (int64[batch, sequence] input_ids, float[batch, 2, past, 4] past_key_values_0_key, bool use_cache_branch)
  => (float[batch, s, 4] logits, float[batch, 2, p, 4] present_0_key) {
    logits, present_0_key = If (use_cache_branch) <
        then_branch = later () => (float[batch, s, 4] a, float[batch, 2, p, 4] ak) {
            a = Gather (table, input_ids)
            more = ReduceSum <keepdims = 1> (past_key_values_0_key, axes)
            ak = Add (past_key_values_0_key, more)
        },
        else_branch = first () => (float[batch, s, 4] b, float[batch, 2, p, 4] bk) {
            rows = Gather (table, input_ids)
            b = Mul (rows, factor)
            new = Unsqueeze (b, one)
            bk = Concat <axis = 1> (new, new)
        }
    >
}
"""
TABLE = np.arange(36).reshape(9, 4) / 7


def merged(**changes: object) -> Model:
    return model(MERGED, **{"table": TABLE, "axes": [2], "one": [1], "factor": 2.0, **changes})


def proof(one: Model, two: Model, spec: DimSpec = AS_DECLARED, **options: object) -> RewriteProof:
    return verify_rewrite(one, two, spec, RewriteProofOptions(**options))  # type: ignore[arg-type]


def dims(found: RewriteProof, name: str) -> list[int]:
    return [run.dims[name] for run in found.runs]


@pytest.mark.cases("search/loop-greedy")
@pytest.mark.usefixtures("runs_alone")
@pytest.mark.parametrize("name", params(COMPLETE, slow={*COMPLETE} - QUICK))
def test_real_models_give_what_they_give(name: str, model_file: ModelFile) -> None:
    path = model_file(name)
    found = verify_rewrite(path, path)
    assert (found.passed, found.failures, found.interface) == (True, (), ())
    assert found.coverage
    assert len({json.dumps(run.dims) for run in found.runs}) >= 5
    assert all(output.worst == 0 and output.elements for output in found.outputs)
    pasts = [size for run in found.runs for symbol, size in run.dims.items() if "past" in symbol]
    assert not pasts or 0 in pasts


def test_a_model_in_memory_is_run_as_it_is_not_as_its_file_was(tmp_path: Path) -> None:
    path = tmp_path / "model.onnx"
    onnx.save(model(LINEAR, w=np.ones((3, 2)).tolist()).proto, path)
    read = load(path, threshold=8)  # its weight stays in the file
    proto = onnx.ModelProto()
    proto.CopyFrom(read.proto)
    proto.graph.node[1].op_type = "Abs"
    assert verify_rewrite(path, read).passed
    assert not verify_rewrite(path, read.with_proto(proto)).passed


def test_a_changed_constant_is_found() -> None:
    changed = [[1.0, 2.0], [3.0, 4.0], [5.0, 6.5]]
    found = proof(model(LINEAR, w=WEIGHT), model(LINEAR, w=changed))
    assert not found.passed
    assert found.failures == (
        f"18 of 18 runs differ, the first at batch=1: y differs by {found.runs[0].absolute:.3g}",
        "weight 'w' (float32[3, 2]) differs from the original's 'w', first at element [2, 1]",
    )
    assert [(output.name, bool(output.failure)) for output in found.outputs] == [("y", True), ("z", False)]


def test_a_tolerance_covers_small_differences() -> None:
    changed = np.array(WEIGHT) * (1 + 1e-6)
    assert not proof(model(LINEAR, w=WEIGHT), model(LINEAR, w=changed)).passed
    found = proof(model(LINEAR, w=WEIGHT), model(LINEAR, w=changed), tolerance=1e-4)
    assert found.passed
    assert (found.outputs[0].worst > 0, found.outputs[0].failure) == (True, "")


def test_float16_is_rounded_where_onnxruntime_likes() -> None:
    text = LINEAR.replace("float", "float16")
    one, two = (
        model(text, w=(np.array(WEIGHT) / 10).astype(np.float16)),
        model(text.replace("w)", "v)"), v=(np.array(WEIGHT) / 9.995).astype(np.float16)),
    )
    found = proof(one, two)
    assert (found.passed, found.tolerance, found.outputs[0].worst > 0) == (True, 2**-10, True)
    assert found.notes[0].startswith("It has float16 tensors")
    assert not proof(one, two, tolerance=0.0).passed


def test_swapped_axes_are_found_by_sizes_that_differ() -> None:
    text = "g (float[b, h, w, 3] x) => (float[b, p, q, 3] y) {{ y = Transpose <perm = {}> (x) }}"
    found = proof(model(text.format("[0, 1, 2, 3]")), model(text.format("[0, 2, 1, 3]")))
    assert "y float32 [1, " in found.failures[0]


def test_a_length_that_was_baked_in_is_found() -> None:
    text = "g (float[b, past, 2] past_kv, float[b, s, 2] x) => (float[b, p, 2] present_kv) {{ {} }}"
    original = model(text.format("present_kv = Concat <axis = 1> (past_kv, x)"))
    baked = text.format("all = Concat <axis = 1> (past_kv, x) present_kv = Slice (all, start, end, axis)")
    found = proof(original, model(baked, start=[0], end=[16], axis=[1]))
    assert 0 in dims(found, "past")
    assert [run.failure != "" for run in found.runs] == [run.dims["past"] + run.dims["s"] > 16 for run in found.runs]
    assert 0 < sum(run.failure != "" for run in found.runs) < len(found.runs)


def test_a_batch_that_was_baked_in_is_found() -> None:
    text = "g (float[b, s, 6] x) => (float[b, q, 2] y) { y = Reshape (x, shape) }"
    found = proof(model(text, shape=[0, -1, 2]), model(text, shape=[1, -1, 2]))
    assert [run.failure != "" for run in found.runs] == [run.dims["b"] > 1 for run in found.runs]


@pytest.mark.usefixtures("runs_alone")
def test_both_branches_of_a_merged_decoder_are_run() -> None:
    found = proof(merged(), merged())
    assert found.passed
    flags = [run.flags["use_cache_branch"] for run in found.runs]
    assert flags == sorted(flags)
    assert 0 in dims(found, "past")[: flags.index(True)]
    assert 0 not in dims(found, "past")[flags.index(True) :]


@pytest.mark.parametrize(
    ("change", "flag"), [pytest.param({"factor": 3.0}, False, marks=pytest.mark.slow), ({"axes": [1]}, True)]
)
def test_a_change_of_one_branch_is_found_in_it(change: Mapping[str, object], flag: bool) -> None:
    found = proof(merged(), merged(**change))
    assert {run.flags["use_cache_branch"] for run in found.runs if run.failure} == {flag}


def test_a_rewritten_model_of_fixed_dims_is_run_at_these() -> None:
    frozen = CONV.replace("batch,", "2,").replace("height", "24")
    found = proof(model(CONV, kernel=KERNEL), model(frozen, kernel=KERNEL), DimSpec.of(dims={"batch": 2, "height": 24}))
    assert (found.passed, found.fixed) == (True, {"batch": 2, "height": 24})
    assert set(found.runs[0].dims) == {"channels", "width"}


def test_fixed_lengths_follow_through_expressions() -> None:
    inputs = "float[b, s] x, float[b, past_plus_s] m, float[past] p"
    text = f"g ({inputs}) => (float[b, n] y) {{ y = Concat <axis = 1> (x, m) }}"
    rewritten = model(text.replace("b, s]", "b, 1]").replace("past_plus_s", "9"))
    found = proof(model(text), rewritten, DimSpec.of(dims={"past": 8}, inputs={"x": (2, 1)}))
    assert (found.passed, found.fixed) == (True, {"b": 2, "s": 1, "past": 8})


@pytest.mark.usefixtures("runs_alone")
def test_a_model_of_fixed_dims_is_run_with_several_values() -> None:
    fixed = model(LINEAR.replace("batch,", "2,"), w=WEIGHT)
    found = proof(fixed, fixed)
    assert [(run.dims, run.seed) for run in found.runs[:3]] == [({}, 0), ({}, 1), ({}, 2)]
    assert {run.elements for run in found.runs[3:]} == {"edge values", "extreme values", "NaN and infinities"}
    assert "fixed dims" in found.to_text()


def test_a_model_without_inputs_is_run_once() -> None:
    constant = model("g () => (float[2] y) { y = Neg (x) }", x=[1.0, 2.0])
    assert len(proof(constant, constant).runs) == 1


@pytest.mark.usefixtures("runs_alone")
def test_dims_of_0_are_sizes() -> None:
    empty = model("g (float[0, n] x) => (float[0, n] y) { y = Neg (x) }")
    found = proof(empty, empty)
    assert found.passed
    assert found.notes == ("Output y has no elements at any size.",)


@pytest.mark.usefixtures("runs_alone")
def test_few_legal_sizes_are_told() -> None:
    found = proof(model(LINEAR, w=WEIGHT), model(LINEAR, w=WEIGHT), DimSpec.of(ranges={"batch": (1, 2)}))
    assert (found.passed, set(dims(found, "batch"))) == (True, {1, 2})
    assert found.notes == ("Only 2 sets of sizes were found at which it runs.",)


@pytest.mark.usefixtures("runs_alone")
def test_sizes_at_which_the_original_fails_are_skipped() -> None:
    text = "g (float[b, s] x) => (float[b, p, 4] y) { y = Reshape (x, shape) }"
    found = proof(model(text, shape=[0, -1, 4]), model(text, shape=[0, -1, 4]))
    assert found.passed
    assert {size % 4 for size in dims(found, "s")} == {0}
    assert found.skipped
    assert "The original itself fails at b=" in found.to_text()


@pytest.mark.usefixtures("runs_alone")
@pytest.mark.parametrize(("seconds", "runs"), [(0.5, 3), (2.0, 9)])
def test_no_more_runs_begin_where_the_time_to_look_for_sizes_is_over(
    seconds: float, runs: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    original = model(LINEAR, w=WEIGHT)
    monkeypatch.setattr(proof_runs, "time", SimpleNamespace(monotonic=itertools.count().__next__))
    limited = proof(original, original, limits=Limits(seconds=seconds))
    assert limited.passed
    assert len(limited.runs) == runs
    assert "further sizes and values, for which the limit of time leaves no time" in str(limited.caveats)
    assert not limited.notes


def test_an_original_that_never_runs_proves_nothing() -> None:
    text = "g (float[b, 3] x) => (float[b, 2] y) { y = Reshape (x, shape) }"
    found = proof(model(text, shape=[7, 11]), model(text, shape=[7, 11]))
    assert (found.passed, found.runs) == (False, ())
    assert found.failures == ("the original runs at no sizes that were tried, so nothing is proven",)


def test_a_rewritten_model_that_fails_is_no_proof() -> None:
    text = "g (float[b, 4] x) => (float[b, p] y) { y = Reshape (x, shape) }"
    found = proof(model(text, shape=[-1, 4]), model(text, shape=[3, 4]))
    assert "runs differ, the first at b=1: onnxruntime fails: " in found.failures[0]
    assert (found.runs[0].absolute, found.runs[0].relative) == (None, None)


def test_an_input_that_is_gone_is_told() -> None:
    text = "g (float[n] x, float[n] unused) => (float[n] y) { y = Neg (x) }"
    found = proof(model(text), model(text.replace(", float[n] unused", "")))
    assert (found.passed, found.interface) == (True, ("the rewritten model has no input unused",))


@pytest.mark.parametrize(
    ("outputs", "failure"),
    [
        ("float[n] y", "output z is missing"),
        ("float[n] y, float[n] z, float[n] t", "output t is none of the original's"),
        ("float[n] z, float[n] y", "the outputs come in another order: z, y"),
    ],
)
def test_outputs_are_the_same(outputs: str, failure: str) -> None:
    text = "g (float[n] x) => ({}) {{ y = Neg (x) z = Abs (x) t = Exp (x) }}"
    assert proof(model(text.format("float[n] y, float[n] z")), model(text.format(outputs))).failures == (failure,)


@pytest.mark.parametrize(
    ("node", "operator"),
    [
        (
            "y = If (training) <then_branch = a () => (z) { z = RandomNormalLike (x) },"
            " else_branch = b () => (z) { z = Identity (x) }>",
            "RandomNormalLike",
        ),
        ("y = Dropout (x, ratio, training)", "Dropout"),
    ],
)
def test_what_is_random_is_not_proven(node: str, operator: str) -> None:
    found = model(f"g (float[n, 2] x) => (float[n, m] y) {{ {node} }}", ratio=0.5, training=True)
    result = proof(found, found)
    (failure,) = result.failures
    assert failure.endswith(f"is random ({operator}), so nothing can be proven")
    assert result.failure_text() == "The proof did not run."


@pytest.mark.parametrize(
    ("node", "other"),
    [
        ("t = RandomNormalLike (x) u = RandomNormalLike (x) y = Sub (t, u)", "Mul (t, u)"),
        ("t = RandomUniform <shape = [2]> () u = Add (x, t) y = Identity (u)", "Add (u, t)"),
        ("t = Multinomial <sample_size = 2> (x) y = Cast <to = 1> (t)", "Identity (x)"),
    ],
)
def test_random_numbers_are_those_of_one_seed_for_each_node(node: str, other: str) -> None:
    """VITS draws the noise of its voices; a rewrite that draws the same is as good, and another one is found out."""
    text = f"g (float[n, 2] x) => (float[n, 2] y) {{ {node} }}"
    found = proof(model(text), model(text))
    assert found.passed
    assert "not cover" in found.proven()
    assert "random numbers other than those of the seeds that both models were given" in found.proven()
    before = text.rpartition("y = ")[0]
    assert not proof(model(text), model(f"{before}y = {other} }}")).passed


@pytest.mark.parametrize("loads", [False, True])
def test_a_result_that_takes_too_long_is_not_called_wrong(loads: bool, monkeypatch: pytest.MonkeyPatch) -> None:
    class Slow:
        label, inputs, outputs = "slow", ("x",), ("y", "z")

        def __init__(self, *_: object, **__: object) -> None:
            if not loads:
                self.run({})

        def run(self, _: Mapping[str, np.ndarray]) -> dict[str, np.ndarray]:
            raise RunError("it does not finish in 1 s") from DiedError("it does not finish in 1 s", timed_out=True)

    one = model(LINEAR, w=WEIGHT)
    two = model("g (float[batch, 3] x) => (float[batch, 2] y, float[batch, 3] z) {"
                "y = MatMul (x, w) q = Mul (x, two) z = Sub (x, q) }", w=WEIGHT, two=2.0)  # fmt: skip
    monkeypatch.setattr(TwoModels, "rewritten_session", Slow)
    found = proof(one, two)
    assert not found.passed
    assert found.failure_text() == "The proof did not run."
    assert "The proof did not run.\n! " in found.to_text()
    says = (
        "18 of 18 runs do not end in time, the first at batch=" if loads else "the rewritten model: it does not finish"
    )
    assert found.failures[0].startswith(says)


def test_the_dropouts_of_onnxruntime_are_random_in_training() -> None:
    text = "g (float[n, 2] x) => (float[n, 2] y) { y = com.microsoft.BiasDropout (x, bias, , ratio, training) }"
    found = model(text, bias=[0.0, 1.0], ratio=0.5, training=True)
    assert "is random (BiasDropout)" in " ".join(proof(found, found).failures)


@pytest.mark.parametrize("node", ["y = RandomNormalLike <seed = 1.0> (x)", "y = Dropout (x, ratio, training)"])
def test_what_is_seeded_or_only_trains_is_not_random(node: str) -> None:
    found = model(f"g (float[n, 2] x) => (float[n, m] y) {{ {node} }}", ratio=0.5, training=False)
    assert proof(found, found).passed


@pytest.mark.parametrize("name", ["scale", "factor"])
def test_both_models_run_with_other_elements_for_a_default(name: str) -> None:
    before = model("g (float[n] x, float scale) => (float[n] y) { y = Mul (x, scale) }", scale=2.0)
    text = f"g (float[n] x, float {name}) => (float[n] y) {{ a = Neg (x) b = Neg ({name}) y = Mul (a, b) }}"
    options = RewriteProofOptions(names=(("scale", name),) if name != "scale" else ())
    found = verify_rewrite(before, model(text, **{name: 2.0}), options=options)
    assert found.passed
    assert "defaults overridden" in found.to_text()


def test_sequences_strings_and_optionals_are_compared() -> None:
    one = helper.make_tensor_value_info("x", TensorProto.FLOAT, ["n"])
    words = helper.make_tensor_value_info("words", TensorProto.STRING, ["n"])
    kind = helper.make_tensor_type_proto(TensorProto.FLOAT, ["m"])
    nodes = [
        helper.make_node("SplitToSequence", ["x", "size"], ["parts"]),
        helper.make_node("Identity", ["words"], ["same"]),
        helper.make_node("Optional", [], ["none"], type=kind),
    ]
    outputs = [
        helper.make_value_info("parts", helper.make_sequence_type_proto(kind)),
        helper.make_tensor_value_info("same", TensorProto.STRING, ["n"]),
        helper.make_value_info("none", helper.make_optional_type_proto(kind)),
    ]

    def built(size: int) -> Model:
        sizes = [numpy_helper.from_array(np.array(size), "size")]
        graph = helper.make_graph(nodes, "g", [one, words], outputs, sizes)
        opsets = [helper.make_opsetid("", 18)]
        return Model.from_proto(helper.make_model(graph, opset_imports=opsets, ir_version=10))

    assert proof(built(2), built(2)).passed
    assert "members, expected" in proof(built(2), built(3)).failures[0]


def test_an_input_that_is_no_tensor_is_declined() -> None:
    kind = helper.make_sequence_type_proto(helper.make_tensor_type_proto(TensorProto.FLOAT, ["n"]))
    graph = helper.make_graph(
        [helper.make_node("SequenceLength", ["x"], ["y"])],
        "g",
        [helper.make_value_info("x", kind)],
        [helper.make_tensor_value_info("y", TensorProto.INT64, [])],
    )
    found = Model.from_proto(helper.make_model(graph, opset_imports=[helper.make_opsetid("", 18)], ir_version=10))
    with pytest.raises(ModelError, match=r"no input can be made for it: it is seq\(float32\) - only tensors"):
        proof(found, found)


def test_arrays_can_be_given() -> None:
    text = "g (int64[n] x) => (int64[n] y) {{ y = {} (x) }}"
    one, two = model(text.format("Identity")), model(text.format("Abs"))
    found = proof(one, two, values={"x": np.array([12])})
    assert (found.passed, found.fixed, {run.elements for run in found.runs}) == (True, {"n": 1}, {""})
    assert not proof(one, two, values={"x": np.array([-12])}).passed


def test_missing_weights_are_one_error(model_file: ModelFile) -> None:
    path = model_file("gemma-270m/model")
    with pytest.raises(ModelError, match=r"model\.weights: its data file is missing - put it there$"):
        verify_rewrite(path, path)


def test_models_of_other_inputs_are_not_compared() -> None:
    with pytest.raises(UsageError, match=r"'x' is \[batch, 3\] in g and \[batch\] in g"):
        proof(model(LINEAR, w=WEIGHT), model(LINEAR.replace("batch, 3] x", "batch] x"), w=WEIGHT))


class Moody:
    """A session that gives other numbers each time for a batch of 2."""

    def __init__(self) -> None:
        self.calls = 0

    def run(self, feed: Mapping[str, np.ndarray]) -> dict[str, object]:
        self.calls += 1
        return {"y": np.array([self.calls if len(feed["x"]) == 2 else 0])}


class Feeder:
    def again(self, run: Run) -> dict[str, np.ndarray]:

        return {"x": np.zeros(run.dims["b"])}


def test_runs_that_the_original_does_not_repeat_are_found() -> None:
    session, feeder = Moody(), Feeder()
    runs = [Run({"b": b}, {}, 0, session.run({"x": np.zeros(b)})) for b in (1, 2, 3)]
    assert unsteady_runs(session, feeder, runs) == [runs[1]]  # type: ignore[arg-type]


def test_the_proof_as_text() -> None:
    found = RewriteProof(
        "a.onnx",
        "b.onnx",
        0.0,
        {"batch": 2},
        (
            RunProof({"s": 7}, {"flag": True}, 0, 0.0, 0.0, ""),
            RunProof({"s": 1}, {"flag": False}, 1, 0.25, 0.5, "y differs by 0.25"),
        ),
        (SkippedRun({"s": 3}, {"flag": True}, "onnxruntime fails: no"),),
        (OutputProof("x", 0.0, 0.0, 0.0, 0, 9, ""), OutputProof("y", 0.25, 0.5, 0.125, 2, 9, "differs by 0.25")),
        WeightProof(3, 1234, 1),
        LevelProof(2, 1e-4, 3e-7, None),
        ("A note.",),
        ("1 of 2 runs differ, the first at s=1, flag=false: y differs by 0.25",),
    )
    assert [line.rstrip() for line in found.to_text().splitlines()] == [
        "Proof of b.onnx against a.onnx",
        "",
        "The proof failed.",
        "! 1 of 2 runs differ, the first at s=1, flag=false: y differs by 0.25",
        "",
        "In onnxruntime without graph optimizations, at batch=2; tolerance 0.",
        "",
        "Run  Dims             Max abs  Max rel  Result",
        "────────────────────────────────────────────────",
        "  1  s=7, flag=true         0        0  equal",
        "  2  s=1, flag=false     0.25      0.5  differs",
        "",
        "1 of 2 outputs are equal to the last bit.",
        "",
        "Output  Max abs  Max rel  Worst run  Result",
        "─────────────────────────────────────────────",
        "y          0.25      0.5          2  differs",
        "",
        "3 constant tensors are equal byte by byte, 1,234 bytes of weights.",
        "",
        "1 small constant is new; only the runs compare what is made of them.",
        "",
        "At onnxruntime's default level, in the same 2 runs; tolerance 0.0001 of the",
        "largest magnitude in each output. Largest difference: 3e-07.",
        "",
        "The original itself fails at s=3, flag=true: onnxruntime fails: no",
        "",
        "A note.",
        "",
        "Warning: 1 of 2 runs differ, the first at s=1, flag=false: y differs by 0.25",
        "",
    ]
    assert (found.passed, found.findings()) == (False, found.failures)


def test_many_symbols_are_told_together() -> None:
    sizes = {"b": 2, **{f"s{index}": 4 for index in range(9)}, "t": 1}
    assert str(RunProof(sizes, {}, 0, 0.0, 0.0, "")) == "b=2, s0 and 8 others=4, t=1"


@pytest.mark.usefixtures("runs_alone")
def test_json_has_plain_numbers() -> None:
    made = json.loads(proof(model(LINEAR, w=WEIGHT), model(LINEAR.replace("w)", "v)"), v=WEIGHT)).to_json())
    assert made["runs"][0] == {
        "dims": {"batch": 1},
        "flags": {},
        "seed": 0,
        "absolute": 0,
        "relative": 0,
        "failure": "",
        "elements": "",
    }
    text = "g (float[b, 4] x) => (float[b, p] y) { y = Reshape (x, shape) }"
    failed = proof(model(text, shape=[-1, 4]), model(text, shape=[-1, 2]))
    assert json.loads(failed.to_json(), parse_constant=pytest.fail)["outputs"][0]["absolute"] is None


def test_inputs_that_no_array_can_hold_are_named_and_nothing_is_proven() -> None:
    huge = model("g (float[0, 4611686018427387904, 8] x) => (float[0, 4611686018427387904, 8] y) { y = Neg (x) }")
    found = proof(huge, huge)
    assert found.failures == ("the original runs at no sizes that were tried, so nothing is proven",)
    assert found.skipped[0].reason == "no input can be made for it: [0, 4611686018427387904, 8] is too large"


GELU = """g (float[n, 64] x, float[m, 64] more) => (float[k, 64] y) {
    c = Concat <axis = 0> (more, x) d = Div (c, root) e = Erf (d) f = Add (e, one) g = Mul (c, f) y = Mul (g, half)
}"""


@pytest.mark.parametrize("error", [0.0, 1.0])
def test_what_the_default_level_rounds_at_dims_of_0_is_compared_as_it_is_written(
    error: float, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Normal forms say the rest; where it is off by more than it rounds, both models are run at both levels."""
    loaded = []
    session = TwoModels._session

    def watch(two: TwoModels, index: int, *, optimize: bool, beside: bool = False) -> object:
        loaded.append((index, optimize))
        opened = session(two, index, optimize=optimize, beside=beside)
        if (index, optimize) == (1, True):
            compute = opened.run
            far = np.float32(error)
            monkeypatch.setattr(opened, "run", lambda feed: {"y": compute(feed)["y"] + far * (not feed["more"].size)})
        return opened

    monkeypatch.setattr(TwoModels, "_session", watch)
    original = model(GELU, root=np.float32(1.4142135), one=np.float32(1), half=np.float32(0.5))
    proof = verify_rewrite(original, original.with_proto(original.proto))
    assert proof.passed
    assert proof.equivalence is not None
    assert proof.equivalence.is_exact
    assert loaded == [(1, True), (0, False), *([(0, False), (1, False), (1, True)] if error else [(1, False)])]
