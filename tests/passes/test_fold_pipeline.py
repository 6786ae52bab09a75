from __future__ import annotations

import cProfile
import re
from collections.abc import Callable, Iterable, Mapping
from functools import cache
from pathlib import Path

import numpy as np
import onnx
import onnxruntime
import pytest
from onnx import helper
from real_models import params
from rewriting import SIZES, check, lines, model_of, reasons
from sessions import session_of

from graphkit.analysis.shape_ops import shape_ops
from graphkit.equivalence import check_equivalence
from graphkit.errors import UsageError
from graphkit.graph.view import all_nodes
from graphkit.model import Model, load
from graphkit.options import FoldingOptions
from graphkit.passes.fold_pipeline import fold
from graphkit.rewrite.base import Outcome
from graphkit.save import save_models
from graphkit.shapes import declarations, infer

onnxruntime.set_default_logger_severity(4)
Unpack = Callable[[str], Path]
Assignment = Mapping[str, int]

# Model -> the most Shape and Size nodes, and nodes that compute shapes, that may stay. Pairs are in what they became.
LEFT = {
    "bert-fill-mask/model": (2, 6),
    "cache-styles/bshd": (2, 4),
    "cache-styles/stacked": (2, 4),
    "cache-styles/static-cache": (0, 0),
    "cache-styles/two-stacked": (2, 4),
    "detr-resnet-50/model_quantized": (1, 7),
    "gemma-270m/model": (4, 7),
    "gpt2-tiny/decoder_model_merged": (4, 10),
    "llama-int4/model": (1, 0),
    "merged-decoder/decoder_model": (2, 6),
    "merged-decoder/decoder_with_past_model": (3, 7),
    "nllb-tiny/decoder_with_past_model_quantized": (1, 0),
    "patchtst/model": (1, 1),
    "search/beamsearch-gpt2": (0, 0),
    "search/loop-greedy": (0, 0),
    "vit-qdq/model": (1, 2),
    "whisper-tiny/decoder_model_merged": (3, 8),
}
# Models whose weights are there -> at how many of the sizes below the original runs, both branches counted.
COMPLETE = {
    "bert-fill-mask/model": 5,
    "cache-styles/bshd": 5,
    "cache-styles/stacked": 5,
    "cache-styles/static-cache": 5,
    "cache-styles/two-stacked": 5,
    "gpt2-tiny/decoder_model_merged": 10,
    "llama-int4/model": 3,
    "merged-decoder/decoder_model": 5,
    "merged-decoder/decoder_with_past_model": 5,
    "nllb-tiny/decoder_with_past_model_quantized": 5,
    "patchtst/model": 5,
    "search/loop-greedy": 5,
    "vit-qdq/model": 5,
    "whisper-tiny/decoder_model_merged": 10,
}

REPEATING = ("cache-styles/two-stacked", "detr-resnet-50/model_quantized", "gemma-270m/model")  # or large


@pytest.fixture(scope="session")
def folded(model_file: Unpack) -> Callable[[str], tuple[Model, Outcome]]:
    """Fold a model of tests/models once a session."""

    @cache
    def run(name: str) -> tuple[Model, Outcome]:
        model = load(model_file(name))
        return model, fold(model)

    return run


Folded = Callable[[str], tuple[Model, Outcome]]


@pytest.mark.cases("loop-greedy", "patchtst", "bshd", "static-cache")
@pytest.mark.parametrize("name", params(LEFT, slow=REPEATING))
def test_little_plumbing_stays(name: str, folded: Folded) -> None:
    result = folded(name)[1].model
    shapes = sum(node.is_op("Shape", "Size") for node in all_nodes(result.scopes))
    most_shapes, most_nodes = LEFT[name]
    assert shapes <= most_shapes
    assert shape_ops(result).on_shapes <= most_nodes


@pytest.mark.cases("loop-greedy", "patchtst", "bshd", "static-cache")
@pytest.mark.parametrize("name", params(LEFT, slow=REPEATING))
def test_folding_again_changes_nothing(name: str, folded: Folded) -> None:
    once = folded(name)[1].model
    again = fold(once)
    assert again.changes == ()
    assert again.model.proto == once.proto


@pytest.mark.parametrize("name", params(LEFT, slow=REPEATING))
def test_nothing_else_is_touched(name: str, folded: Folded, model_file: Unpack) -> None:
    model, outcome = folded(name)
    before, after = model.proto, outcome.model.proto
    assert before == load(model_file(name)).proto
    for part in ("ir_version", "producer_name", "producer_version", "domain", "model_version", "doc_string"):
        assert getattr(after, part) == getattr(before, part)
    assert (list(after.opset_import), list(after.metadata_props)) == (
        list(before.opset_import),
        list(before.metadata_props),
    )
    assert list(after.graph.input) == list(declarations(model).model.proto.graph.input)
    assert list(after.graph.output) == list(before.graph.output)
    weights = {tensor.name: tensor for tensor in before.graph.initializer}
    assert all(tensor == weights[tensor.name] for tensor in after.graph.initializer if tensor.name in weights)
    assert outcome.model.references == model.references


# Numbers

BASE = {"batch": 2, "tokens": 3, "past": 4, "encoder": 5}
SETS: tuple[dict[str, int], ...] = (
    BASE,
    {"batch": 1, "tokens": 1, "past": 0, "encoder": 1},
    {"batch": 3, "tokens": 1, "past": 7, "encoder": 2},
    {"batch": 1, "tokens": 6, "past": 0, "encoder": 4},
    {"batch": 2, "tokens": 2, "past": 1, "encoder": 3},
)


FIXED = {"num_channels": 3, "height": 32, "width": 32}


def size_of(name: str, model: Model, sizes: Assignment) -> int:
    """Return the size of a symbol by what its name speaks of."""
    if name in FIXED:
        return FIXED[name]
    if name == "sequence_length" and model.graph.inputs[0].name == "past_values":
        return 32  # a time series
    if re.search("mask|total", name):
        return sizes["past"] + sizes["tokens"]
    for part in ("past", "encoder", "batch"):
        if part in name:
            return sizes[part]
    return sizes["batch"] if name == "b" else sizes["tokens"]


def feeds(model: Model, sizes: Assignment, seed: int, flag: bool) -> dict[str, np.ndarray]:
    """Return inputs of these sizes: small ids, masks of ones, a flag."""
    rng, shapes, made = np.random.default_rng(seed), infer(model), {}
    for value in model.graph.inputs:
        found = shapes[value]
        dims = found.dims or ()
        size = [dim.evaluate({name: size_of(name, model, sizes) for name in dim.symbols}) for dim in dims]
        dtype = helper.tensor_dtype_to_np_dtype(found.dtype)
        if found.dtype == onnx.TensorProto.BOOL:
            made[value.name] = np.full(size, flag)
        elif "mask" in value.name:
            made[value.name] = np.ones(size, dtype)
        elif np.issubdtype(dtype, np.integer):
            made[value.name] = rng.integers(0, 1 if re.search("position|type", value.name) else 9, size).astype(dtype)
        else:
            made[value.name] = rng.standard_normal(size).astype(dtype)
    return made


def compared(
    model: Model, result: Model, path: Path, folder: Path, sets: Iterable[Assignment], branches: Iterable[bool] = ()
) -> int:
    """Run both at these sizes, and return at how many the original ran; every element of every output is equal."""
    target = folder / "folded.onnx"
    save_models({target: result}, weights="inline", overwrite=True)
    before, after = session_of(path), session_of(target)
    names, wanted = [out.name for out in before.get_outputs()], {value.name for value in after.get_inputs()}
    is_merged = any(value.name == "use_cache_branch" for value in model.graph.inputs)
    flags = tuple(branches) or ((False, True) if is_merged else (True,))
    runs = 0
    for seed, sizes in enumerate(sets):
        for flag in flags:
            given = feeds(model, {**sizes, "past": sizes["past"] if flag else 0}, seed, flag)
            try:
                expected = before.run(names, given)
            except Exception as error:
                if "onnxruntime" not in type(error).__module__:
                    raise
                continue
            runs += 1
            actual = after.run(names, {name: array for name, array in given.items() if name in wanted})
            for name, one, two in zip(names, expected, actual, strict=True):
                np.testing.assert_array_equal(one, two, err_msg=f"{name} at {sizes}", strict=True)
    return runs


@pytest.mark.cases("loop-greedy", "patchtst", "bshd")
@pytest.mark.parametrize("name", params(COMPLETE, slow=REPEATING))
def test_every_output_is_the_same_to_the_bit(name: str, folded: Folded, model_file: Unpack, tmp_path: Path) -> None:
    model, outcome = folded(name)
    assert compared(model, outcome.model, model_file(name), tmp_path, SETS) == COMPLETE[name]


# Frozen dims

FROZEN = {
    "bert-fill-mask/model": "batch_size",
    "gpt2-tiny/decoder_model_merged": "batch_size",
    "nllb-tiny/decoder_with_past_model_quantized": "batch_size",
    "whisper-tiny/decoder_model_merged": "batch_size",
    "cache-styles/stacked": "batch",
}


@pytest.mark.cases("cache-styles/stacked")
@pytest.mark.parametrize("name", params(FROZEN, slow=["gpt2-tiny/decoder_model_merged"]))
def test_with_a_batch_of_one(name: str, folded: Folded, model_file: Unpack, tmp_path: Path) -> None:
    model, outcome = folded(name)
    frozen = fold(model, dims={FROZEN[name]: 1})
    sets = [{**sizes, "batch": 1} for sizes in SETS]
    assert compared(model, frozen.model, model_file(name), tmp_path, sets) == COMPLETE[name]
    assert frozen.changes[0] == f"freeze-dims: {FROZEN[name]} is 1"
    assert shape_ops(frozen.model).on_shapes <= shape_ops(outcome.model).on_shapes
    dims = [dim for info in frozen.model.proto.graph.input for dim in info.type.tensor_type.shape.dim]
    assert not any("batch" in dim.dim_param for dim in dims)


def test_with_all_dims_fixed_nothing_computes_shapes(folded: Folded, model_file: Unpack, tmp_path: Path) -> None:
    name = "whisper-tiny/decoder_model_merged"
    model, _ = folded(name)
    numbers = {"batch_size": 2, "decoder_sequence_length": 3, "past_decoder_sequence_length": 4}
    frozen = fold(model, dims={**numbers, "encoder_sequence_length": 5}).model
    assert shape_ops(frozen).on_shapes == 0
    assert compared(model, frozen, model_file(name), tmp_path, [BASE], [True]) == 1  # the first step has no past


@pytest.mark.slow
def test_by_the_shape_of_an_input(folded: Folded) -> None:
    model, outcome = folded("detr-resnet-50/model_quantized")
    frozen = fold(model, inputs={"pixel_values": (1, 3, 64, 96)})
    assert [change for change in frozen.changes if change.startswith("freeze-dims")] == [
        "freeze-dims: batch_size is 1",
        "freeze-dims: num_channels is 3",
        "freeze-dims: height is 64",
        "freeze-dims: width is 96",
    ]
    assert shape_ops(frozen.model).on_shapes == 0
    assert len(list(all_nodes(frozen.model.scopes))) < len(list(all_nodes(outcome.model.scopes)))


def test_an_empty_past_can_be_frozen(folded: Folded, model_file: Unpack, tmp_path: Path) -> None:
    name = "cache-styles/bshd"
    model, _ = folded(name)
    frozen = fold(model, dims={"past_len": 0}).model
    sets = [{**sizes, "past": 0} for sizes in SETS]
    assert compared(model, frozen, model_file(name), tmp_path, sets) == 5


# Rules of the whole


def test_what_a_model_is_made_of_goes_together() -> None:
    text = """g (float[N, L, 8] x, float[8] b) => (float[N, L, 8] y)
    <int64 zero = {0}, int64 one = {1}, int64[1] axis = {0}, int64[1] heads = {2}, int64[1] rest = {-1},
    int64[1] w = {8}> {
        s = Shape (x) n = Gather (s, zero) l = Gather (s, one) nu = Unsqueeze (n, axis) lu = Unsqueeze (l, axis)
        to = Concat <axis = 0> (nu, lu, heads, rest)
        r = Reshape (x, to) t = Transpose <perm = [0, 2, 1, 3]> (r) u = Sigmoid (t)
        v = Transpose <perm = [0, 2, 1, 3]> (u)
        back = Concat <axis = 0> (nu, lu, w)
        o = Reshape (v, back) e = Expand (b, back) d = Dropout (o) y = Add (d, e)
    }"""
    outcome = check(fold, model_of(text))
    assert lines(outcome.model) == [
        "r = Reshape (x, r_shape)",
        "t = Transpose <perm: ints = [0, 2, 1, 3]> (r)",
        "u = Sigmoid (t)",
        "v = Transpose <perm: ints = [0, 2, 1, 3]> (u)",
        "o = Reshape (v, o_shape)",
        "y = Add (o, b)",
    ]


def test_an_unsorted_model_is_folded_too() -> None:
    text = """g (float[N, 4] x) => (float[N, 4] y) {
        y = Neg (r) r = Reshape (a, s) s = Shape (a) a = Abs (b) b = Exp (x) unused = Sin (x) }"""
    model = model_of(text)
    outcome = fold(model)
    assert lines(outcome.model) == ["b = Exp (x)", "a = Abs (b)", "y = Neg (a)"]
    assert check_equivalence(model, outcome.model).proven


def test_a_model_without_outputs_stays_as_it_is() -> None:
    model = model_of("g (float[N] x) => () { a = Neg (x) s = Shape (a) }")
    outcome = fold(model)
    assert lines(outcome.model) == ["a = Neg (x)", "s = Shape (a)"]
    assert outcome.changes == ()
    reason = "nothing is rewritten, because the graph has no outputs, and all of it would be dead code"
    assert reasons(outcome) == [f"g: {reason}"]


PATTERN = """g (float[3, 4] x) => (float[4, 3] y, float[2, 4] z) <float[3, 2] w = {{1, 2, 3, 4, 5, 6}}> {{
    {} g = Gemm (a, w) z = Transpose <perm = [1, 0]> (g) }}"""


@pytest.mark.parametrize(
    "nodes",
    [
        "a = Transpose <perm = [1, 0]> (x) y = Identity (a)",
        "a = Transpose <perm = [1, 0]> (x) y = Cast <to = 1> (a)",
        "a = Transpose <perm = [1, 0]> (x) y = Transpose <perm = [1, 0]> (x)",
        "y = Transpose <perm = [1, 0]> (x) a = Transpose <perm = [1, 0]> (x)",
    ],
)
def test_onnxruntime_loads_an_output_whose_twin_feeds_a_gemm(nodes: str) -> None:
    """Its fusion of Transpose and Gemm removes the Transpose of an output that a Gemm reads too."""
    model = model_of(PATTERN.format(nodes))
    outcome = check(fold, model)
    onnxruntime.InferenceSession(outcome.model.proto.SerializeToString())


def test_dims_that_contradict_the_model_are_told_and_nothing_is_rewritten() -> None:
    text = "g (float[N, L] x) => (y) <int64[2] to = {0, 5}> { a = Reshape (x, to) s = Shape (a) y = Expand (a, s) }"
    outcome = fold(model_of(text), dims={"L": 4})
    assert len(lines(outcome.model)) == 3
    assert "the shapes of the model contradict each other" in reasons(outcome)[0]


ERRORS = {
    "no such symbol": ({"dims": {"Q": 1}}, "no input has a dim 'Q' - there are L, N"),
    "no such input": ({"inputs": {"q": (1,)}}, "there is no input 'q' - there are x"),
    "no such symbol of a range": ({"ranges": {"Q": (1, 2)}}, "no input has a dim 'Q' - there are L, N"),
    "contradiction": (
        {"dims": {"N": 1}, "inputs": {"x": (2, 3)}},
        "a dim of input 'x' is N, which is 1 as given elsewhere - it cannot be 2 too",
    ),
    "out of range": (
        {"dims": {"N": 1}, "ranges": {"N": (2, None)}},
        "'N' is 1, out of its range - give it another range",
    ),
}


@pytest.mark.parametrize(("options", "message"), ERRORS.values(), ids=ERRORS)
def test_what_does_not_fit_is_an_error(options: dict[str, object], message: str) -> None:
    with pytest.raises(UsageError) as error:
        fold(model_of("g (float[N, L] x) => (y) { y = Neg (x) }"), **options)
    assert str(error.value) == message


def test_ranges_decide_what_may_be_inferred() -> None:
    """Beside a dim that may be 0 nothing can be inferred."""
    text = """g (float[N, L] x) => (y) {
        n = Shape <end = 1> (x) l = Shape <start = 1> (x) m = Mul (n, l)
        to = Concat <axis = 0> (l, n) a = Reshape <allowzero = 1> (x, to)
        b = Expand (a, to) t = Transpose <perm = [1, 0]> (b) y = Neg (t) }"""
    sizes = [{"N": 2, "L": 3}, {"N": 1, "L": 1}]
    check(lambda model: fold(model, ranges={"L": (0, None)}), model_of(text), [*sizes, {"N": 2, "L": 0}])
    check(fold, model_of(text), sizes)


def test_the_limit_of_constants() -> None:
    text = (
        "g (float[N, 64] x) => (y) <int64[1] s = {64}> { c = ConstantOfShape <value = "
        "float[1] {2}> (s) k = Neg (c) y = Mul (x, k) }"
    )
    assert lines(fold(model_of(text)).model) == ["y = Mul (x, k_value)"]
    assert len(lines(fold(model_of(text), options=FoldingOptions(limit=64)).model)) > 1


def layers(count: int) -> Model:
    """Return a model with the plumbing of exported attention, so many times."""
    x, nodes = "x", []
    for number in range(count):
        v = f"v{number}_"
        nodes.append(f"""{v}s = Shape ({x}) {v}n = Gather ({v}s, zero) {v}l = Gather ({v}s, one)
            {v}nu = Unsqueeze ({v}n, axis) {v}lu = Unsqueeze ({v}l, axis)
            {v}to = Concat <axis = 0> ({v}nu, {v}lu, heads, rest) {v}r = Reshape ({x}, {v}to)
            {v}t = Transpose <perm = [0, 2, 1, 3]> ({v}r) {v}u = Sigmoid ({v}t)
            {v}q = Transpose <perm = [0, 2, 1, 3]> ({v}u) {v}back = Concat <axis = 0> ({v}nu, {v}lu, w)
            {v}y = Reshape ({v}q, {v}back)""")
        x = f"{v}y"
    return model_of(f"""g (float[N, L, 8] x) => ({x}) <int64 zero = {{0}}, int64 one = {{1}}, int64[1] axis = {{0}},
        int64[1] heads = {{2}}, int64[1] rest = {{-1}}, int64[1] w = {{8}}> {{ {" ".join(nodes)} }}""")


def test_work_is_linear_in_nodes() -> None:
    """Calls are counted, not seconds: the count is the same on every machine."""

    def calls(count: int) -> int:
        model = layers(count)
        profile = cProfile.Profile()
        assert len(profile.runcall(fold, model).model.graph.nodes) == count + 4
        return sum(entry.callcount for entry in profile.getstats())

    calls(1)
    assert calls(40) < 11 * calls(4)


@pytest.mark.parametrize("size", SIZES)
def test_random_dims_of_layers(size: dict[str, int]) -> None:
    check(fold, layers(2), [size])


def test_a_branch_that_is_known_takes_the_place_of_its_if() -> None:
    branches = (
        "then_branch = one () => (float[n] a) { a = Neg (x) }, else_branch = two () => (float[n] b) { b = Abs (x) }"
    )
    folded = fold(model_of(f"g (float[n] x) => (float[n] y) <bool go = {{1}}> {{ y = If (go) <{branches}> }}")).model
    assert [node.op_type for node in folded.nodes] == ["Neg"]
