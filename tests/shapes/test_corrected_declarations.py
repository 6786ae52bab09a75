"""Interfaces that contradict the nodes: what is said of them, what is declared instead, and proofs at real sizes."""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Callable, Mapping
from pathlib import Path

import numpy as np
import onnx
import onnx.parser
import pytest
from onnx import numpy_helper

from graphkit.analysis.model_interface import interface
from graphkit.graph.declared_types import declared_type, shape_text
from graphkit.model import Model, load
from graphkit.passes.fold_pipeline import fold
from graphkit.shapes import DimSpec, declarations
from graphkit.verify.rewrite_verifier import verify_rewrite
from graphkit.workflows.fold_file import FoldOptions, fold_file
from graphkit.workflows.specialize import Specializer
from graphkit.workflows.split_decoder_file import SplitOptions, split_file

ModelFile = Callable[[str], Path]
STEP = """
    scores = MatMul (inputs_embeds, turned)
    wide = Unsqueeze (attention_mask, one)
    masked = Add (scores, wide)
    probabilities = Softmax <axis = 2> (masked)
    logits = MatMul (probabilities, keys)
"""
LATER = f"""
    keys = Concat <axis = 1> (past_key, inputs_embeds)
    batch = Shape <start = 0, end = 1> (keys)
    length = Shape <start = 1, end = 2> (keys)
    to = Concat <axis = 0> (batch, length, four)
    flat = Reshape (keys, to)
    turned = Transpose <perm = [0, 2, 1]> (flat)
    {STEP}
"""
FIRST = f"""
    keys = Identity (inputs_embeds)
    turned = Transpose <perm = [0, 2, 1]> (keys)
    {STEP}
"""
OUTPUTS = "float[batch, sequence, 4] logits, float[batch, {present}, 4] {name}"
TRUTH = {"tokens": "sequence", "past": "past", "mask": "past + sequence", "present": "past + sequence"}


def declared_as(text: str, **dims: str) -> Model:
    """Return a decoder whose inputs and outputs declare these dims."""
    names = {key: f'"{dim}"' if not dim.isdigit() else dim for key, dim in {**TRUTH, **dims}.items()}
    proto = onnx.parser.parse_model(f'<ir_version: 8, opset_import: ["" : 17]>\n{text.format(**names)}')
    constants = {"one": np.array([1]), "four": np.array([4])}
    proto.graph.initializer.extend(numpy_helper.from_array(value, name) for name, value in constants.items())
    return Model.from_proto(proto)


INPUTS = (
    "float[batch, {tokens}, 4] inputs_embeds, float[batch, {past}, 4] past_key, float[batch, {mask}] attention_mask"
)
PLAIN = f"g ({INPUTS}) => ({OUTPUTS.replace('{name}', 'present_key')}) {{{{ {LATER} present_key = Identity (keys) }}}}"
MERGED = f"""g ({INPUTS}, bool[1] use_cache) => ({OUTPUTS.replace("{name}", "present_key")}) {{{{
    logits, present_key = If (use_cache) <
        then_branch = later () => (float[batch, s, 4] logits, float[batch, k, 4] keys) {{{{ {LATER} }}}},
        else_branch = first () => (float[batch, s, 4] logits, float[batch, k, 4] keys) {{{{ {FIRST} }}}}
    >
}}}}"""
SUM = "past + sequence"
LIES: tuple[tuple[dict[str, str], tuple[str, str]], ...] = (  # what is declared, and what past and mask are
    ({}, ("past", SUM)),
    ({"mask": "total"}, ("past", "total")),
    ({"past": SUM}, ("past", SUM)),
    ({"past": "sequence"}, ("past_sequence", "past_sequence + sequence")),
    ({"mask": "sequence"}, ("past", SUM)),
    ({"mask": "past"}, ("past", SUM)),
    ({"mask": "past + 2*sequence"}, ("past", SUM)),
    ({"past": SUM, "mask": "sequence"}, ("past", SUM)),
    ({"past": SUM, "present": "past"}, ("past", SUM)),
    ({"past": SUM, "present": "7"}, ("past", SUM)),
    ({"tokens": "1"}, ("past", "past + 1")),
)


def lies(without: str = "") -> list[object]:
    """Return what is declared as parameters of a test: half of it, of which the quick suite takes none, and two."""
    chosen = [dims for dims, _ in LIES if without not in dims]
    return [pytest.param(dims, marks=pytest.mark.slow) if at % 7 else dims for at, dims in enumerate(chosen)][::2]


def inputs_of(model: Model) -> dict[str, str]:
    found = {value.name: declared_type(value) for value in model.graph.inputs}
    return {name: shape_text(kind.dims) for name, kind in found.items() if kind is not None}


@pytest.mark.parametrize(("dims", "expected"), LIES)
def test_declared_dims_become_what_the_nodes_need(dims: Mapping[str, str], expected: tuple[str, str]) -> None:
    model = declared_as(PLAIN, **dims)
    found = declarations(model)
    past, mask = expected
    assert inputs_of(found.model)["past_key"] == f"[batch, {past}, 4]"
    assert inputs_of(found.model)["attention_mask"] == f"[batch, {mask}]"
    is_true = inputs_of(model) == inputs_of(found.model)
    assert (found.model is model) == is_true
    assert len(found.notes) == (not is_true)
    assert declarations(found.model).model is found.model


def test_one_sentence_says_what_is_wrong() -> None:
    assert declarations(declared_as(PLAIN, past=SUM, mask="sequence")).notes == (
        "Declared dims contradict what the nodes compute: past_key is [batch, past, 4], "
        "not [batch, past + sequence, 4]; attention_mask is [batch, past + sequence], not [batch, sequence].",
    )
    merged = declarations(declared_as(MERGED, past=SUM))
    assert merged.notes == (
        "Declared dims contradict what the nodes compute: past_key is [batch, past, 4], "
        "not [batch, past + sequence, 4]; attention_mask is [batch, attention_mask.1] (sequence in else_branch, "
        "past + sequence in then_branch), not [batch, past + sequence].",
    )
    assert interface(declared_as(MERGED, past=SUM)).findings() == merged.notes
    assert merged.notes[0] in " ".join(interface(declared_as(MERGED, past=SUM)).to_text(width=1000).split())


def test_a_model_that_no_node_contradicts_stays_as_it_is() -> None:
    text = PLAIN.replace("wide = Unsqueeze (attention_mask, one)", "").replace("Add (scores, wide)", "Neg (scores)")
    for dims in ({}, {"mask": "total"}, {"past": "cached"}):
        model = declared_as(text, **dims)
        assert declarations(model).model is model
        assert not declarations(model).notes


@pytest.mark.cases("dims7")
@pytest.mark.parametrize("dims", lies())
def test_a_plain_decoder_is_folded_frozen_and_proven(dims: dict[str, str], tmp_path: Path) -> None:
    source, output = tmp_path / "m.onnx", tmp_path / "out.onnx"
    onnx.save(declared_as(PLAIN, **dims).proto, source)
    past = "past_sequence" if dims.get("past") == "sequence" else "past"
    for frozen in ((), ((past, 5),), ((past, 0), ("batch", 1))):
        report = fold_file(load(source), output, FoldOptions(spec=DimSpec(frozen), overwrite=True))
        assert report.proof is not None
        assert report.proof.passed
        assert not report.proof.skipped
        assert report.counts[-1].after < report.counts[-1].before
        assert report.notes == declarations(load(source)).notes
        assert set(report.notes) <= set(report.proof.notes)
        assert verify_rewrite(source, output, DimSpec.of(dims=dict(frozen))).passed


@pytest.mark.cases("dims0")
@pytest.mark.parametrize("dims", lies(without="tokens"))
def test_a_merged_decoder_is_split_into_truthful_models_and_proven(dims: dict[str, str], tmp_path: Path) -> None:
    source = tmp_path / "m.onnx"
    onnx.save(declared_as(MERGED, **dims).proto, source)
    assert fold_file(load(source), tmp_path / "out.onnx").proof.passed  # type: ignore[union-attr]
    made = fold(load(source), dims={"sequence": 1})
    assert inputs_of(made.model)["inputs_embeds"] == "[batch, 1, 4]"


def test_a_feed_that_contradicts_the_declaration_is_specialised_all_the_same() -> None:
    model = declared_as(PLAIN, past=SUM, mask="sequence")
    rng = np.random.default_rng(0)
    specializer = Specializer(model)
    for past, tokens in ((5, 1), (0, 3), (2, 2)):
        feed = {
            "inputs_embeds": rng.standard_normal((1, tokens, 4)).astype(np.float32),
            "past_key": rng.standard_normal((1, past, 4)).astype(np.float32),
            "attention_mask": rng.standard_normal((1, past + tokens)).astype(np.float32),
        }
        assert specializer.run(feed)["present_key"].shape == (1, past + tokens, 4)
    assert not specializer.fallbacks
    broadcast = {**feed, "attention_mask": np.zeros((1, 1), np.float32)}
    with pytest.warns(RuntimeWarning, match="a dim of input 'attention_mask' is past \\+ sequence, which is 4"):
        assert specializer.run(broadcast)["logits"].shape == (1, 2, 4)


# Real exports


def changed(path: Path, folder: Path, dims: Mapping[tuple[str, int], str]) -> Path:
    """Write a model whose inputs declare other dims."""
    proto = onnx.load(path)
    for (pattern, axis), text in dims.items():
        found = [info for info in proto.graph.input if re.fullmatch(pattern, info.name)]
        assert found
        for info in found:
            info.type.tensor_type.shape.dim[axis].dim_param = text
    onnx.save(proto, folder / "lying.onnx")
    return folder / "lying.onnx"


PAST = r"past_key_values\.\d+\.(decoder\.)?(key|value)"
REAL = (
    ("whisper-tiny/decoder_model_merged", {(PAST, 2): "past_decoder_sequence_length + decoder_sequence_length"}),
    ("example:merged-decoder", {("encoder_attention_mask", 1): "decoder_sequence_length"}),
    # onnxruntime takes equal symbols for equal sizes and lets tensors share memory: this one fails as it is declared
    ("example:merged-decoder", {("encoder_hidden_states", 1): "decoder_sequence_length"}),
)


@pytest.mark.slow
@pytest.mark.parametrize(("name", "dims"), REAL)
def test_real_merged_decoders_that_lie_are_split_and_proven(
    name: str, dims: Mapping[tuple[str, int], str], model_file: ModelFile, tmp_path: Path
) -> None:
    path = load(name).path if name.startswith("example:") else model_file(name)
    assert path is not None
    made = split_file(load(changed(path, tmp_path, dims)), tmp_path / "split", SplitOptions(steps=3))
    assert made.proof is not None
    assert made.proof.passed
    assert not any(branch.skipped for branch in made.proof.branches)
    assert len(made.notes) == 1
    truth = split_file(load(path), tmp_path / "truth", SplitOptions(verify=False))
    for one, two in ((made.first, truth.first), (made.with_past, truth.with_past)):
        assert [(port.label, port.shape) for port in one.inputs] == [(port.label, port.shape) for port in two.inputs]
        assert Counter(port.shape for port in one.outputs) == Counter(port.shape for port in two.outputs)
