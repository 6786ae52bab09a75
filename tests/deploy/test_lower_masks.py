"""Masks of lowered models: which of their elements hide, what they count, and hosts beside PyTorch's own numbers."""

from __future__ import annotations

import lzma
from collections.abc import Callable, Mapping
from dataclasses import replace
from pathlib import Path

import numpy as np
import onnx
import pytest
from onnx import parser
from quick_proofs import lower_by_runs
from real_models import unpacked
from small_pipelines import decoder, encoder, saved

import graphkit.deploy.lower_model as lowering
import graphkit.graph.roles as roles
from graphkit.contract import read_contract
from graphkit.deploy import lowering_checks
from graphkit.deploy.lower import LowerOptions, LowerReport, lower_folder
from graphkit.deploy.make_bundle import bundle_folder
from graphkit.equivalence.originals import Originals
from graphkit.errors import UsageError
from graphkit.graph.mask_polarity import find_polarity
from graphkit.hosts import Host
from graphkit.model import load
from graphkit.options import BundleOptions
from graphkit.verify.lowering_verifier import NOTHING, verify_lowering

MASKS = Path(__file__).parent / "masks"
PLAIN = str(Path(__file__).parents[1] / "targets" / "plain-npu.toml")
TEXT = LowerOptions(target=PLAIN, src_len=16)
SOUND = LowerOptions(target=PLAIN, dims=(("input_features_1", 41),))
CLOSE = 2e-5
Arrays = Mapping[str, np.ndarray]


def export(name: str, folder: Path) -> Path:
    path = folder / f"{name}.onnx"
    folder.mkdir(exist_ok=True)
    path.write_bytes(lzma.decompress((MASKS / f"{name}.onnx.xz").read_bytes()))
    return path


def lowered(name: str, folder: Path, options: LowerOptions = TEXT) -> LowerReport:
    return lower_by_runs(export(name, folder), folder / "out", options)


def passed(report: LowerReport) -> bool:
    return report.proof is not None and report.proof.passed


def rows_of(name: str, size: str) -> list[tuple[dict[str, np.ndarray], np.ndarray]]:
    """Return the inputs of each row of a run in PyTorch, and its output."""
    with np.load(MASKS / f"{name}.npz") as file:
        arrays = {key: file[key] for key in file.files if key.startswith(size)}
    inputs = {key.split("/")[-1]: array for key, array in arrays.items() if "/in/" in key}
    (output,) = (array for key, array in arrays.items() if "/out/" in key)
    return [({name: array[[row]] for name, array in inputs.items()}, output[row]) for row in range(len(output))]


def at_most(array: np.ndarray, axis: int, length: int) -> np.ndarray:
    """Return an array that zeros make longer."""
    return np.pad(array, [(0, length - size if at == axis else 0) for at, size in enumerate(array.shape)])


def test_a_mask_whose_ones_pad_gives_what_pytorch_gives(tmp_path: Path) -> None:
    assert passed(lowered("padding-true", tmp_path))
    host = Host(tmp_path / "out", unchecked=True)
    for inputs, expected in (*rows_of("padding-true", "size1"), *rows_of("padding-true", "size2")):
        valid = int(np.logical_not(inputs["src_key_padding_mask"]).sum())
        (found,) = host.start(inputs["input_ids"][0, :valid].tolist()).values()
        np.testing.assert_allclose(found[0], expected, atol=CLOSE, rtol=0)


def test_what_belongs_to_the_tokens_is_as_long_as_they_are(tmp_path: Path) -> None:
    """`bbox` has a dim of another name, which nodes broadcast with that of the tokens."""
    assert passed(lowered("layoutlm", tmp_path))
    host = Host(tmp_path / "out", unchecked=True)
    for inputs, expected in (*rows_of("layoutlm", "size1"), *rows_of("layoutlm", "size2")):
        valid = int(inputs["attention_mask"].sum())
        boxes = at_most(inputs["bbox"], 1, 16)
        (found,) = host.start(inputs["input_ids"][0, :valid].tolist(), {"bbox": boxes}).values()
        np.testing.assert_allclose(found[0, :valid], expected[:valid], atol=CLOSE, rtol=0)


@pytest.mark.slow
def test_a_mask_of_patches_counts_patches(tmp_path: Path) -> None:
    """The caller gives it: how many tokens the decoder has says nothing of it."""
    assert passed(lowered("pix2struct", tmp_path))
    (method,) = read_contract(tmp_path / "out" / "contract.json").methods
    assert method.became["attention_mask"] == "attention_mask"
    host = Host(tmp_path / "out", unchecked=True)
    for inputs, expected in (*rows_of("pix2struct", "size1"), *rows_of("pix2struct", "size2")):
        ids = inputs.pop("decoder_input_ids")[0].tolist()
        (found,) = host.start(ids, inputs).values()
        np.testing.assert_allclose(found[0, : len(ids)], expected, atol=CLOSE, rtol=0)


@pytest.mark.slow
def test_a_mask_of_patches_that_counts_tokens_fails_the_proof(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    """The oracle gives the original the mask as its caller does, whatever the rewrite took it for."""
    monkeypatch.setattr(lowering, "kept_inputs", lambda *_, **__: frozenset())
    report = lowered("pix2struct", tmp_path)
    assert not passed(report)
    assert report.proof is not None
    assert [run.length for run in report.proof.runs if run.failure][:2] == [1, 2]


def test_a_wrong_polarity_fails_the_proof(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    """The oracle looks for the elements that hide by running the original, not in its nodes."""
    opposite = {"keeps": "pads", "pads": "keeps"}
    monkeypatch.setattr(roles, "find_polarity", lambda mask: opposite[str(find_polarity(mask))])
    monkeypatch.setattr("graphkit.deploy.lower.check_padding", lambda *_: None)
    assert not passed(lowered("padding-true", tmp_path))


@pytest.mark.slow
def test_each_mask_of_a_sound_counts_what_its_strides_leave(tmp_path: Path) -> None:
    """The adaptor of 8 frames reads across the end of the sound; zeros make Parakeet NaN in onnxruntime."""
    reports = {name: lowered(name, tmp_path / name, SOUND) for name in ("seamless", "parakeet")}
    for name, stride in (("parakeet", 4), ("seamless", 8)):
        assert passed(reports[name]), reports[name].findings()
        host = Host(tmp_path / name / "out", unchecked=True)
        for inputs, expected in rows_of(name, "size2"):
            valid, features = int(inputs["attention_mask"].sum()), inputs["input_features"]
            (found,) = host.start([valid], {"input_features": features}).values()
            count = -(-valid // stride)
            np.testing.assert_allclose(found[0, :count], expected[:count], atol=CLOSE, rtol=0)
        assert all(len(host.start([n], {"input_features": features})) == 1 for n in (1, 24, 30, 41))
    told = [report.proof.proven() for report in reports.values() if report.proof is not None]
    assert [("It takes sounds of 41 places" in words) for words in told] == [True, False]
    (inputs, expected), host = rows_of("parakeet", "size1")[0], Host(tmp_path / "parakeet" / "out", unchecked=True)
    (found,) = host.start({"input_features": inputs["input_features"]}).values()
    np.testing.assert_allclose(found[0, : len(expected)], expected, atol=CLOSE, rtol=0)
    for valid in ((), (24,)):
        with pytest.raises(UsageError, match="zeros behind a shorter sound would change its results"):
            Host(tmp_path / "seamless" / "out", unchecked=True).start(
                valid, {"input_features": np.ones((1, 24, 8), np.float32)}
            )


def test_a_convolution_over_padding_is_declined_by_its_name(tmp_path: Path) -> None:
    with pytest.raises(UsageError) as caught:
        lowered("convbert", tmp_path)
    assert "key_conv_attn_layer/depthwise/Conv' (Conv) mixes positions: what padding holds" in str(caught.value)


@pytest.mark.parametrize(("second", "differs"), [(-np.inf, False), (np.inf, True), (np.nan, True), (7.0, True)])
def test_what_is_infinite_twice_is_no_leak(second: float, differs: bool) -> None:
    first, other = (np.array([1.0, number], np.float32) for number in (-np.inf, second))
    assert lowering_checks._differs_beyond(first, other, [None]) is differs
    assert not lowering_checks._differs_beyond(first, other, [1])


BEHIND = """
    row = Unsqueeze (bias, one)
    masked = Add (scores, row)
    p = Softmax <axis = -1> (masked)
"""
SPELLINGS: dict[str, tuple[str, str, Callable[[np.ndarray], np.ndarray]]] = {
    "True pads": ("bool", "bias = Where (mask, lowest, nothing)", np.logical_not),
    "True counts": ("bool", "bias = Where (mask, nothing, lowest)", lambda keep: keep),
    "its opposite": ("bool", "hidden = Not (mask) bias = Where (hidden, lowest, nothing)", lambda keep: keep),
    "1 pads": (
        "int64",
        "ones = CastLike (one, mask) hidden = Equal (mask, ones) bias = Where (hidden, lowest, nothing)",
        np.logical_not,
    ),
    "0 pads": (
        "int32",
        "zeros = CastLike (zero, mask) hidden = Equal (mask, zeros) bias = Where (hidden, lowest, nothing)",
        lambda keep: keep,
    ),
    "times a large number": ("int64", "f = Cast <to = 1> (mask) bias = Mul (f, lowest)", np.logical_not),
    "floats of which 1 counts": (
        "float",
        "ones = CastLike (one, mask) rest = Sub (mask, ones) bias = Mul (rest, much)",
        lambda keep: keep,
    ),
    "added": ("float", "bias = Identity (mask)", lambda keep: np.where(keep, 0.0, -1e9)),
}


@pytest.mark.cases(3)
@pytest.mark.parametrize(("dtype", "nodes", "made"), SPELLINGS.values(), ids=SPELLINGS)
def test_a_text_is_padded_by_any_spelling_of_its_mask(
    dtype: str, nodes: str, made: Callable[[np.ndarray], np.ndarray], tmp_path: Path
) -> None:
    inputs = f"int64[batch, length] input_ids, {dtype}[batch, length] mask"
    model = encoder(inputs, "x = Gather (token_table, input_ids)", nodes + BEHIND)
    folder = saved(model, tmp_path / "model")
    report = lower_by_runs(folder, tmp_path / "out", replace(TEXT, src_len=6))
    assert passed(report), report.findings()
    contract = read_contract(tmp_path / "out" / "contract.json")
    assert [port.kind for port in contract.methods[0].inputs] == ["embedding", "source_mask"]
    ids = np.array([[3, 5, 7, 0, 0, 0]])
    keep = ids > 0
    session = onnx_session(folder / "model.onnx")
    (expected,) = session.run(None, {"input_ids": ids, "mask": made(keep).astype(numpy_of(dtype))})
    (found,) = Host(tmp_path / "out", unchecked=True).start([3, 5, 7]).values()
    np.testing.assert_allclose(found[:, :3], expected[:, :3], atol=CLOSE, rtol=0)


def onnx_session(path: Path):  # type: ignore[no-untyped-def]
    import onnxruntime

    return onnxruntime.InferenceSession(path)


def numpy_of(dtype: str) -> np.dtype:
    return np.dtype({"float": "float32"}.get(dtype, dtype))


def test_a_mask_over_what_no_input_measures_is_the_callers(tmp_path: Path) -> None:
    """The memory of a decoder is given, with a mask whose ones pad: neither counts the tokens."""
    text = """
    <ir_version: 10, opset_import: ["" : 18]>
    g (int64[batch, length] input_ids, float[batch, places, 8] memory, bool[batch, places] memory_mask)
    => (float[batch, length, 8] y) <float lowest = {-3.4e38}, int64[1] one = {1}> {
        x = Gather (token_table, input_ids)
        keys = Transpose <perm = [0, 2, 1]> (memory)
        scores = MatMul (x, keys)
        row = Unsqueeze (memory_mask, one)
        masked = Where (row, lowest, scores)
        p = Softmax <axis = -1> (masked)
        y = MatMul (p, memory)
    }
    """
    model = parser.parse_model(text)
    table = np.random.default_rng(0).normal(0, 1, (11, 8)).astype(np.float32)
    model.graph.initializer.append(onnx.numpy_helper.from_array(table, "token_table"))
    report = lower_by_runs(saved(model, tmp_path / "model"), tmp_path / "out", replace(TEXT, dims=(("places", 5),)))
    assert passed(report), report.findings()
    (method,) = read_contract(tmp_path / "out" / "contract.json").methods
    mask = next(port for port in method.inputs if port.name == "memory_mask")
    assert (mask.kind, mask.shape) == ("user", (1, 5))
    assert mask.meaning == "'memory_mask' of the original: 1 for padding, 0 for what counts"


GUARDED = """
<ir_version: 10, opset_import: ["" : 18]>
g (int64[batch, length] input_ids, %INPUTS%) => (float[batch, length, 8] y)
<float nothing = {0}, int64[1] one = {1}> {
    x = Gather (token_table, input_ids)
    states = Identity (%STATES%)
    keys = Transpose <perm = [0, 2, 1]> (states)
    scores = MatMul (x, keys)
    row = Unsqueeze (mask, one)
    masked = Add (scores, row)
    p = Softmax <axis = -1> (masked)
    %GUARD%
    y = MatMul (q, states)
}
"""
GUARD = "nan = IsNaN (p) q = Where (nan, nothing, p)"


def guarded(folder: Path, guard: str, inputs: str, states: str) -> Path:
    text = GUARDED.replace("%GUARD%", guard).replace("%INPUTS%", inputs).replace("%STATES%", states)
    model = parser.parse_model(text)
    table = np.random.default_rng(2).normal(0, 1, (11, 8)).astype(np.float32)
    model.graph.initializer.append(onnx.numpy_helper.from_array(table, "token_table"))
    return saved(model, folder)


@pytest.mark.parametrize("guard", [GUARD, "q = Identity (p)"])
def test_a_float_mask_of_the_caller_keeps_its_guard(guard: str, tmp_path: Path) -> None:
    """A row that hides all with -inf gives 0 where the export says so, and NaN where it does."""
    inputs = "float[batch, places, 8] memory, float[batch, places] mask"
    source, rng = guarded(tmp_path / "model", guard, inputs, "memory"), np.random.default_rng(1)
    assert passed(lower_by_runs(source, tmp_path / "out", replace(TEXT, dims=(("places", 5),))))
    host, session = Host(tmp_path / "out", unchecked=True), onnx_session(source / "model.onnx")
    memory = rng.normal(0, 1, (1, 5, 8)).astype(np.float32)
    for hidden in (0, 2, 5):
        mask = np.where(np.arange(5) < 5 - hidden, 0, -np.inf).astype(np.float32)[None]
        user = {"memory": memory, "mask": mask}
        (expected,) = session.run(None, {"input_ids": np.array([[3, 4, 5]]), **user})
        (found,) = host.start([3, 4, 5], user).values()
        np.testing.assert_allclose(found[:, :3], expected, atol=CLOSE, rtol=0)


def test_a_float_mask_of_the_host_needs_no_guard(tmp_path: Path) -> None:
    source = guarded(tmp_path / "model", GUARD, "float[batch, length] mask", "x")
    assert passed(lower_by_runs(source, tmp_path / "out", TEXT))
    assert "IsNaN" not in {node.op_type for node in onnx.load(tmp_path / "out" / "encoder.onnx").graph.node}
    session, mask = onnx_session(source / "model.onnx"), np.float32([[0, 0, 0, -np.inf, -np.inf]])
    (expected,) = session.run(None, {"input_ids": np.array([[3, 4, 5, 0, 0]]), "mask": mask})
    (found,) = Host(tmp_path / "out", unchecked=True).start([3, 4, 5]).values()
    np.testing.assert_allclose(found[:, :3], expected[:, :3], atol=CLOSE, rtol=0)


ATTENTION = """
<ir_version: 10, opset_import: ["" : 18]>
g (int64[batch, %LENGTH%] input_ids %MASK%) => (float[batch, %LENGTH%, 8] y)
<float nothing = {0}, float lowest = {-3.4e38}, int64[1] one = {1}, int64[3] whole = {-1, 5, 8}> {
    words = Gather (token_table, input_ids)
    x = Reshape (words, whole)
    keys = Transpose <perm = [0, 2, 1]> (x)
    scores = MatMul (x, keys)
    %HIDE%
    p = Softmax <axis = -1> (masked)
    y = MatMul (p, x)
}
"""
PAD_MASK = ", bool[batch, %LENGTH%] pad_mask"
HIDE = "row = Unsqueeze (pad_mask, one) bias = Where (row, lowest, nothing) masked = Add (scores, bias)"


def attention(folder: Path, length: str, mask: str, hide: str) -> Path:
    model = parser.parse_model(ATTENTION.replace("%MASK%", mask).replace("%LENGTH%", length).replace("%HIDE%", hide))
    table = np.random.default_rng(3).normal(0, 1, (11, 8)).astype(np.float32)
    model.graph.initializer.append(onnx.numpy_helper.from_array(table, "token_table"))
    return saved(model, folder)


def test_a_text_of_fixed_length_is_padded_with_a_token_that_is_known(tmp_path: Path) -> None:
    source = attention(tmp_path / "model", "5", "", "masked = Identity (scores)")
    with pytest.raises(UsageError, match=r"nothing says which token does - give it with --pad$"):
        lower_folder(source, tmp_path / "out", replace(TEXT, src_len=5))
    report = lower_by_runs(source, tmp_path / "out", replace(TEXT, src_len=5, pad=1))
    assert passed(report), report.findings()
    assert report.proof is not None
    assert [run.length for run in report.proof.runs] == [1, 2, 4, 5]
    assert "Shorter texts are padded with token 1, which no mask hides." in report.proof.proven()
    (expected,) = onnx_session(source / "model.onnx").run(None, {"input_ids": np.array([[3, 4, 1, 1, 1]])})
    (found,) = Host(tmp_path / "out", unchecked=True).start([3, 4]).values()
    np.testing.assert_allclose(found, expected, atol=CLOSE, rtol=0)


@pytest.mark.parametrize("length", ["5", "length"])  # which only one length fits
def test_shorter_texts_of_one_length_are_compared_with_their_mask(length: str, tmp_path: Path) -> None:
    source = attention(tmp_path / "model", length, PAD_MASK, HIDE)
    report = lower_by_runs(source, tmp_path / "out", replace(TEXT, src_len=5))
    assert passed(report), report.findings()
    assert report.proof is not None
    assert [run.length for run in report.proof.runs][:4] == [1, 2, 4, 5]
    feed = {"input_ids": np.array([[3, 4, 0, 0, 0]]), "pad_mask": np.array([[False] * 2 + [True] * 3])}
    (expected,) = onnx_session(source / "model.onnx").run(None, feed)
    (found,) = Host(tmp_path / "out", unchecked=True).start([3, 4]).values()
    np.testing.assert_allclose(found[:, :2], expected[:, :2], atol=CLOSE, rtol=0)


IMAGE = """
<ir_version: 10, opset_import: ["" : 18]>
g (float[batch, 3, 8, 8] pixel_values, int64[batch, 8, 8] pixel_mask) => (float[batch, 3, 8, 8] y)
<int64[1] one = {1}> {
    floats = Cast <to = 1> (pixel_mask)
    wide = Unsqueeze (floats, one)
    y = Mul (pixel_values, wide)
}
"""


def test_a_mask_that_is_fixed_is_told_in_the_first_lines(tmp_path: Path) -> None:
    report = lower_by_runs(saved(parser.parse_model(IMAGE), tmp_path / "model"), tmp_path / "out", TEXT)
    assert passed(report)
    assert report.proof is not None
    assert "Its mask 'pixel_mask' is fixed: it hides nothing." in report.proof.proven()
    host = Host(tmp_path / "out", unchecked=True)
    pixels = np.ones((1, 3, 8, 8), np.float32)
    with pytest.raises(UsageError, match="no input 'pixel_mask': it became nothing: its value is fixed"):
        host.start({"pixel_values": pixels, "pixel_mask": np.ones((1, 8, 8), np.int64)})
    with pytest.raises(UsageError, match=r"no input 'pixels': they take 'pixel_values' - leave it out"):
        host.start({"pixels": pixels})
    with pytest.raises(UsageError, match=r"input 'pixel_values' is \[1, 3, 4, 4\], and the model takes"):
        host.start({"pixel_values": pixels[..., :4, :4]})


def test_runs_that_compare_nothing_are_no_proof(tmp_path: Path) -> None:
    """A model without a cache is no step of a decoder: taken for one, it would give nothing to compare with."""
    lowered("pix2struct", tmp_path, replace(TEXT, verify=False))
    model = load(tmp_path / "pix2struct.onnx")
    proof = verify_lowering(Originals(None, model, model), tmp_path / "out")
    assert not proof.passed
    assert {run.failure for run in proof.runs} == {NOTHING}


def whole(cache: str = "", joined: str = "") -> onnx.ModelProto:
    """Return an encoder and a decoder in one graph."""
    outputs = ", float[batch, total, 8] 'present.0.decoder.key'".replace("'", '"') if cache else ""
    text = f"""
    <ir_version: 10, opset_import: ["" : 18]>
    g (int64[batch, length] input_ids, int64[batch, length] attention_mask, int64[batch, seq] decoder_input_ids{cache})
    => (float[batch, seq, 11] logits{outputs}) <float lowest = {{-3.4e38}}, int64[1] one = {{1}}, int64 zero = {{0}}> {{
        words = Gather (token_table, input_ids)
        x = Gather (token_table, decoder_input_ids)
        valid = Cast <to = 9> (attention_mask)
        row = Unsqueeze (valid, one)
        keys = Transpose <perm = [0, 2, 1]> (words)
        scores = MatMul (x, keys)
        masked = Where (row, scores, lowest)
        p = Softmax <axis = -1> (masked)
        y = MatMul (p, words)
        causal = Trilu <upper = 0> (scores, zero)
        {joined}
        logits = MatMul (y, head)
    }}
    """
    model = parser.parse_model(text)
    rng = np.random.default_rng(0)
    for name, shape in (("token_table", (11, 8)), ("head", (8, 11))):
        tensor = onnx.numpy_helper.from_array(rng.normal(0, 1, shape).astype(np.float32), name)
        model.graph.initializer.append(tensor)
    return model


def test_an_encoder_beside_a_decoder_in_one_graph_is_declined_as_that(tmp_path: Path) -> None:
    with pytest.raises(UsageError) as caught:
        lower_folder(saved(whole(), tmp_path / "model"), tmp_path / "out", TEXT)
    assert str(caught.value) == (
        "model.onnx: encoder and decoder are one graph without a cache, which takes the texts 'input_ids' and "
        "'decoder_input_ids' - export encoder and decoder as models of their own, with a cache"
    )


def test_an_encoder_inside_of_a_step_is_not_missing(tmp_path: Path) -> None:
    past = ', float[batch, past, 8] "past_key_values.0.decoder.key"'
    joined = '"present.0.decoder.key" = Concat <axis = 1> ("past_key_values.0.decoder.key", x)'
    with pytest.raises(UsageError) as caught:
        lower_folder(saved(whole(past, joined), tmp_path / "model"), tmp_path / "out", TEXT)
    assert str(caught.value).endswith(
        "model.onnx has the encoder in it, which reads 'input_ids', and would run it at each step - export encoder and "
        "decoder as two models"
    )


@pytest.mark.slow
def test_a_pipeline_whose_masks_pad_with_ones_is_lowered(tmp_path: Path) -> None:
    """The decoder gets the mask of the encoder as it is."""
    folder = unpacked("marian-tiny", tmp_path / "export")
    for path in folder.glob("*.onnx"):
        model = onnx.load(path)
        mask = next(value.name for value in model.graph.input if value.name.endswith("attention_mask"))
        model.graph.initializer.append(onnx.helper.make_tensor("one_of_mask", onnx.TensorProto.INT64, [], [1]))
        rename(model.graph, mask, "kept_mask")
        model.graph.node.insert(0, onnx.helper.make_node("Sub", ["one_of_mask", mask], ["kept_mask"]))
        onnx.save(model, path)
    report = lower_by_runs(folder, tmp_path / "out", LowerOptions(target=PLAIN, src_len=6, max_cache_len=4))
    assert passed(report), report.findings()


def rename(graph: onnx.GraphProto, before: str, after: str) -> None:
    """Let all nodes read another value, those of bodies too."""
    for node in graph.node:
        node.input[:] = [after if name == before else name for name in node.input]
        for attribute in node.attribute:
            if attribute.HasField("g"):
                rename(attribute.g, before, after)


def test_a_bundle_of_a_mask_whose_ones_pad_is_declined(tmp_path: Path) -> None:
    padded = """
        padding = Cast <to = 9> (attention_mask)
        axes = Concat <axis = 0> (one, two)
        wide = Unsqueeze (padding, axes)
        either = Or (wide, future)
        sums = Where (either, lowest, scores)
        p = Softmax <axis = -1> (sums)
    """
    with pytest.raises(UsageError, match="its mask 'attention_mask' is 1 for padding, 0 for what counts"):
        bundle_folder(saved(decoder(padded), tmp_path / "model"), tmp_path / "out", BundleOptions())
    report = lower_by_runs(tmp_path / "model", tmp_path / "lowered", replace(TEXT, max_cache_len=5))
    assert passed(report), report.findings()
