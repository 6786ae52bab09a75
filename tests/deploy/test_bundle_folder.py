"""What a bundle of a real export is made of, and what its step does not do."""

from __future__ import annotations

import json
import math
from collections.abc import Callable
from pathlib import Path

import numpy as np
import onnx
import onnx.checker
import onnx.parser
import onnxruntime
import pytest
from bundles import AUTOMATIC, decoder, saved
from small_models import model as small_model

from graphkit.contract.contract_files import read_bundle
from graphkit.deploy.bundle_layout import build_bundle
from graphkit.deploy.bundle_methods import MethodModel
from graphkit.deploy.deploy_sizes import DeploySizes
from graphkit.deploy.export_pipeline import TokenSettings
from graphkit.deploy.make_bundle import BundleOptions, bundle_folder
from graphkit.errors import UsageError
from graphkit.model import Model
from graphkit.passes.state.update_cache_in_place import Update

BundleOf = Callable[[str], Path]
GENAI = '<ir_version: 10, opset_import: ["" : 21, "com.microsoft" : 1]>\n'


@pytest.mark.slow
def test_an_encoder_decoder_is_two_methods_over_one_state(bundle_of: BundleOf) -> None:
    folder = bundle_of("marian-tiny")
    contract = read_bundle(folder / "bundle.json")
    assert [method.name for method in contract.methods] == ["encode", "step", "init", "reorder"]
    named = {
        port.name
        for method in contract.methods[:2]
        for port in (*method.inputs, *method.outputs)
        if not port.writes and (port.source is None or port.source.kind not in ("state", "length", "kept"))
    }
    assert named == {"input_ids", "attention_mask", "decoder_input_ids", "logits"}
    cross, own = (
        {method.name: method.access[f"past_key_values.0.{which}.key"] for method in contract.methods}
        for which in ("encoder", "decoder")
    )
    assert cross == {"encode": "write", "step": "read", "init": "write", "reorder": "read and write"}
    assert own == {"encode": "write", "step": "read and write", "init": "write", "reorder": "read and write"}
    assert all(state.offset % 64 == 0 for state in contract.states)
    assert contract.arena == sum(-(-state.bytes // 64) * 64 for state in contract.states)
    assert contract.data == "bundle.data"
    assert {state.name: state.prefix for state in contract.states} == {
        state.name: ".decoder." in state.name for state in contract.states
    }
    assert (folder / "bundle.data").stat().st_size < 900_000  # every distinct tensor once: both methods have most


GROUPED = """
g (int64[batch, sequence] input_ids, int64[batch, total] attention_mask,
   float[batch, 2, past, 16] past_0_key, float[batch, 2, past, 16] past_0_value)
  => (float[batch, sequence, 9] logits, float[batch, 2, total, 16] present_0_key,
      float[batch, 2, total, 16] present_0_value) {
    row = Gather (table, input_ids)
    query = MatMul (row, wq)  key = MatMul (row, wk)  value = MatMul (row, wv)
    ones = ReduceSum <keepdims = 0> (attention_mask, axis)  last = Sub (ones, axis)  lengths = Cast <to = 6> (last)
    shape = Shape <start = 1, end = 2> (attention_mask)  size = Squeeze (shape)  count = Cast <to = 6> (size)
    mixed, present_0_key, present_0_value = com.microsoft.GroupQueryAttention <num_heads = 2, kv_num_heads = 2>
        (query, key, value, past_0_key, past_0_value, lengths, count)
    logits = MatMul (mixed, words)
}
"""


def save_grouped(text: str, folder: Path) -> None:
    """Write a decoder of one layer with random weights to `model.onnx`."""
    random = np.random.default_rng(0)
    sizes = {"table": (9, 32), "wq": (32, 32), "wk": (32, 32), "wv": (32, 32), "words": (32, 9)}
    weights = {name: random.standard_normal(shape).astype(np.float32) for name, shape in sizes.items()}
    onnx.save(small_model(text, GENAI, axis=[1], **weights).proto, folder / "model.onnx")


def test_an_attention_that_joins_its_cache_is_computed_in_plain_operators(tmp_path: Path) -> None:
    """Without repeated heads nothing else rounds; its mask, which only tells lengths, is gone."""
    save_grouped(GROUPED, tmp_path)
    report = bundle_folder(tmp_path / "model.onnx", tmp_path / "bundle", BundleOptions(batch=2, max_cache=24))
    assert report.proof is not None
    assert report.proof.findings() == ()
    assert report.proof.tolerance > 0
    contract = read_bundle(tmp_path / "bundle" / "bundle.json")
    assert {port.name for method in contract.methods[:2] for port in method.inputs if not port.source} == set()
    assert "attention_mask" not in {port.name for method in contract.methods for port in method.inputs}
    assert contract.positions == "the models count positions, from the slots in use"


def test_one_that_has_no_plain_spelling_here_is_declined_with_a_way_out(tmp_path: Path) -> None:
    start = GROUPED.index("com.microsoft.GroupQueryAttention")
    end = GROUPED.index("logits = MatMul")
    kernel = "com.microsoft.DecoderMaskedMultiHeadAttention"
    node = f"{kernel} <num_heads = 2> (query, key, value, , , past_0_key, past_0_value) "
    save_grouped(GROUPED[:start] + node + GROUPED[end:], tmp_path)
    with pytest.raises(UsageError, match=r"reads it before what is new joins it.* - export attention in plain op"):
        bundle_folder(tmp_path / "model.onnx", tmp_path / "bundle", BundleOptions(max_cache=24))


@pytest.mark.parametrize("name", ["bshd", "stacked", "two-stacked"])
def test_a_cache_that_is_moved_before_it_grows_is_declined_with_a_way_out(
    name: str, model_file: Callable[[str], Path], tmp_path: Path
) -> None:
    moved = "it is moved before what is new joins it.* - lower it, which takes such a cache, or export it with new keys"
    with pytest.raises(UsageError, match=moved):
        bundle_folder(model_file(f"cache-styles/{name}"), tmp_path / "out", BundleOptions(max_cache=32, dry_run=True))


@pytest.mark.cases("causal-scatter-nd")
@pytest.mark.parametrize(
    ("mask", "update"),
    [
        ("causal", "scatter-nd"),
        ("window", "tensor-scatter"),
        pytest.param("causal", "tensor-scatter", marks=pytest.mark.slow),
        pytest.param("window", "scatter-nd", marks=pytest.mark.slow),
    ],
)
def test_dims_may_have_automatic_names(mask: str, update: Update, tmp_path: Path) -> None:
    source = saved(decoder(mask, changes=AUTOMATIC), tmp_path / "export")
    report = bundle_folder(source, tmp_path / "out", BundleOptions(max_cache=8, update=update))
    assert report.proof is not None
    assert report.proof.findings() == ()
    contract = read_bundle(tmp_path / "out" / "bundle.json")
    past = contract.state("past_key_values.0.key")
    assert (past.batch, past.axis) == ((0, 2) if update == "tensor-scatter" else (1, 0))


@pytest.mark.cases("marian-tiny")
@pytest.mark.parametrize("name", ["marian-tiny", "causal", "window"])
def test_a_step_neither_joins_nor_repeats_state(name: str, bundle_of: BundleOf, tmp_path: Path) -> None:
    """Neither in the graph nor in what onnxruntime makes of it."""
    contract = read_bundle(bundle_of(name) / "bundle.json")
    step = contract.method("step")
    assert step is not None
    options = onnxruntime.SessionOptions()
    options.enable_profiling, options.profile_file_prefix = True, str(tmp_path / "step")
    options.intra_op_num_threads, options.log_severity_level = 1, 3
    path = bundle_of(name) / step.file
    session = onnxruntime.InferenceSession(path, options, providers=["CPUExecutionProvider"])
    sizes = {**contract.sizes, "batch": 2, "tokens": 1, "source": 3, "slots": 6}
    feed = {}
    for port in step.inputs:
        shape = [dim if isinstance(dim, int) else sizes.get(dim, 3) for dim in port.shape]
        feed[port.name] = np.full(
            shape, 5 if port.source is not None and port.source.kind == "length" else 1, port.dtype
        )
    session.run(None, feed)
    events = json.loads(Path(session.end_profiling()).read_text())
    ran = [event["args"] for event in events if event.get("cat") == "Node" and "output_type_shape" in event["args"]]
    caches = [state for state in contract.states if state.axis is not None and len(state.shape) > 2]
    least = min(math.prod(state.shape) // contract.sizes["batch"] for state in caches)
    copied = [
        args["op_name"]
        for args in ran
        if args["op_name"] in ("Concat", "Expand", "Tile", "Identity", "Slice")
        for output in args["output_type_shape"]
        for shape in output.values()
        if math.prod(shape) >= least // 2
    ]
    assert copied == []
    assert any(args["op_name"] == "ScatterND" for args in ran)
    scatters = [node for node in onnx.load(path, load_external_data=False).graph.node if node.op_type == "ScatterND"]
    assert len(scatters) == sum(state.axis is not None for state in contract.states)


ENCODER = """<ir_version: 9, opset_import: ["" : 17]>
agraph (int64[batch, src] input_ids, int64[batch, src] attention_mask) => (float[batch, src, 8] last_hidden_state)
<int64[1] two = {2}> {
    rows = Gather (table, input_ids) mask = Cast <to = 1> (attention_mask) wide = Unsqueeze (mask, two)
    last_hidden_state = Mul (rows, wide)
}"""
PRESENTS = '"present.0.decoder.key", float[batch, 1, src, 8] "present.0.encoder.key"'
FIRST = f"""<ir_version: 9, opset_import: ["" : 17]>
agraph (int64[batch, seq] decoder_input_ids, int64[batch, seq] decoder_attention_mask,
    float[batch, src, 8] encoder_hidden_states
) => (float[batch, seq, 11] logits, float[batch, 1, seq, 8] {PRESENTS})
<int64[1] one = {{1}}, int64[1] two = {{2}}, int64[2] around = {{1, 3}}> {{
    rows = Gather (table, decoder_input_ids) k = Unsqueeze (rows, one)
    "present.0.decoder.key" = Identity (k)
    "present.0.encoder.key" = Unsqueeze (encoder_hidden_states, one)
    mask = Cast <to = 1> (decoder_attention_mask) wide = Unsqueeze (mask, around)
    seen = Mul ("present.0.decoder.key", wide) s = ReduceSum (seen, two) c = ReduceSum ("present.0.encoder.key", two)
    both = Add (s, c) x = Add (k, both) flat = Squeeze (x, one) logits = MatMul (flat, head)
}}"""
LATER = FIRST.replace("int64[batch, seq] decoder_attention_mask", "int64[batch, total] decoder_attention_mask").replace(
    "float[batch, src, 8] encoder_hidden_states",
    'float[batch, 1, past, 8] "past_key_values.0.decoder.key", float[batch, 1, src, 8] "past_key_values.0.encoder.key"',
)
LATER = LATER.replace("[batch, 1, seq, 8]", "[batch, 1, total, 8]")
LATER = LATER.replace("Identity (k)", 'Concat <axis = 2> ("past_key_values.0.decoder.key", k)')
LATER = LATER.replace("Unsqueeze (encoder_hidden_states, one)", 'Identity ("past_key_values.0.encoder.key")')


@pytest.mark.cases("tensor-scatter")
@pytest.mark.parametrize("update", ["tensor-scatter", "scatter-nd"])
def test_a_mask_of_the_decoder_is_kept_from_the_first_step_on(update: Update, tmp_path: Path) -> None:
    """Beside that of the encoder, and proven with padding."""
    rng = np.random.default_rng(0)
    arrays = {"table": rng.normal(size=(11, 8)), "head": rng.normal(size=(8, 11))}
    for name, text in (("encoder_model", ENCODER), ("decoder_model", FIRST), ("decoder_with_past_model", LATER)):
        model = onnx.parser.parse_model(text)
        read = {name for node in model.graph.node for name in node.input}
        tensors = [onnx.numpy_helper.from_array(a.astype(np.float32), n) for n, a in arrays.items() if n in read]
        model.graph.initializer.extend(tensors)
        onnx.checker.check_model(model)
        saved(model, tmp_path / "source", name)
    options = BundleOptions(max_cache=5, max_source=3, batch=2, update=update)
    report = bundle_folder(tmp_path / "source", tmp_path / "bundle", options)
    assert report.findings() == ()
    assert report.proof is not None
    assert any(run.padded for run in report.proof.runs)
    contract = report.overview.contract
    updates = {state.name: state.update for state in contract.states}
    assert (updates["decoder_attention_mask"], updates["past_key_values.0.decoder.key"]) == ("slots", "slots")
    assert [contract.methods[at].access["decoder_attention_mask"] for at in (0, 1)] == ["write", "read and write"]
    kinds = {port.name: port.source.kind for port in contract.methods[0].inputs if port.source is not None}
    assert (kinds["attention_mask"], kinds["decoder_attention_mask"]) == ("user", "mask")


JOINED = """<ir_version: 10, opset_import: ["" : 24]>
agraph (float[1, 2, 8, 4] past, float[1, 2, 3, 4] new) => (float[1, 2, 8, 4] past_after)
<int64[1] from = {3}, int64[1] to = {8}, int64[1] axis = {2}> {
    rest = Slice (past, from, to, axis)
    past_after = Concat <axis = 2> (new, rest)
}"""
WRITTEN = JOINED.split("<int64")[0] + "{ past_after = TensorScatter <axis = 2> (past, new) }"


def test_state_in_slots_is_written_into_them() -> None:
    """A Concat is declined: it would be taken for state that is replaced as a whole."""

    def bundle(text: str, whole: frozenset[str] = frozenset()) -> str:
        model = Model.from_proto(onnx.parser.parse_model(text))
        state, sizes = ({"past": "past"}, {"past_after": "past"}), DeploySizes(batch=1, slots=8, source=1)
        method = MethodModel("step", "step", model, "step.onnx", *state, {"new": "user"}, whole)
        return build_bundle([method], sizes, TokenSettings({}), "", 24).states[0].update

    assert bundle(WRITTEN) == "slots"
    assert bundle(JOINED, frozenset({"past"})) == "swap"
    with pytest.raises(UsageError, match="step: no node is known to write what is new into the slots of 'past'"):
        bundle(JOINED)
