from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from pathlib import Path

import pytest
from onnx import TensorProto, helper

from graphkit.analysis.model_fit import Fit, Link, fit
from graphkit.graph.declared_types import Dim
from graphkit.model import Model

RealModel = Callable[[str], Model]
Ports = Mapping[str, Sequence[Dim]]

PAST, PRESENT = "past_key_values.{0-5}", "present.{0-5}"
FIRST, LATER = "decoder_model.onnx", "decoder_with_past_model.onnx"


def opus(real_model: RealModel, *names: str) -> Fit:
    return fit([real_model(f"opus-mt-en-fr/{name}") for name in names])


@pytest.fixture(scope="module")
def whole(real_model: RealModel) -> Fit:
    return opus(real_model, "encoder_model", "decoder_model", "decoder_with_past_model")


def test_the_roles_of_a_whole_pipeline(whole: Fit) -> None:
    assert whole.roles == (
        ("encoder_model.onnx", "encoder"),
        (FIRST, "first-step decoder"),
        (LATER, "decoder with past"),
    )


def test_the_links_of_a_whole_pipeline(whole: Fit) -> None:
    decoder, encoder = ".decoder.{key|value}", ".encoder.{key|value}"
    assert whole.links == (
        Link("encoder_model.onnx", "last_hidden_state", FIRST, "encoder_hidden_states", 1, ()),
        Link(FIRST, PRESENT + decoder, LATER, PAST + decoder, 12, ()),
        Link(FIRST, PRESENT + encoder, LATER, PAST + encoder, 12, ()),
        Link(LATER, PRESENT + decoder, LATER, PAST + decoder, 12, ()),
    )


def test_a_whole_pipeline_fits(whole: Fit) -> None:
    assert (whole.missing, whole.leftover, whole.findings()) == ((), (), ())


def test_a_whole_pipeline_as_text(whole: Fit) -> None:
    assert whole.to_text() == (
        """\
How they fit together

Output                                                           Tensors  Fits
───────────────────────────────────────────────────────────────────────────────
encoder_model.onnx: last_hidden_state                                  1  yes
  -> decoder_model.onnx: encoder_hidden_states
decoder_model.onnx: present.{0-5}.decoder.{key|value}                 12  yes
  -> decoder_with_past_model.onnx: past_key_values.{0-5}.decoder.{key|value}
decoder_model.onnx: present.{0-5}.encoder.{key|value}                 12  yes
  -> decoder_with_past_model.onnx: past_key_values.{0-5}.encoder.{key|value}
decoder_with_past_model.onnx: present.{0-5}.decoder.{key|value}       12  yes
  -> decoder_with_past_model.onnx: past_key_values.{0-5}.decoder.{key|value}

"""
    )


def test_without_the_first_step_the_encoder_kv_is_missing(real_model: RealModel) -> None:
    found = opus(real_model, "encoder_model", "decoder_with_past_model")
    assert found.findings() == (f"nothing gives {LATER}: {PAST}.encoder.{{key|value}}",)


def test_a_merged_decoder_feeds_itself(real_model: RealModel) -> None:
    found = opus(real_model, "encoder_model", "decoder_model_merged")
    merged = "decoder_model_merged.onnx"
    assert [(link.source, link.target, link.count) for link in found.links] == [
        ("encoder_model.onnx", merged, 1),
        (merged, merged, 12),
    ]


def test_the_outputs_that_a_merged_decoder_gives_empty_feed_nothing(real_model: RealModel) -> None:
    found = opus(real_model, "decoder_model_merged")
    assert [link.outputs for link in found.links] == [f"{PRESENT}.decoder.{{key|value}}"]


def test_a_hidden_state_of_another_width_does_not_fit(real_model: RealModel) -> None:
    found = fit([real_model("opus-mt-en-fr/encoder_model"), real_model("nllb-600m/decoder_model_merged")])
    assert found.findings() == (
        "encoder_model.onnx: last_hidden_state -> decoder_model_merged.onnx: encoder_hidden_states: "
        "[batch_size, encoder_sequence_length, 512] into [batch_size, encoder_sequence_length, 1024]",
    )


def test_models_that_have_nothing_to_do_with_each_other(real_model: RealModel) -> None:
    found = fit([real_model("vit-qdq/model"), real_model("patchtst/model")])
    assert found.to_text() == (
        "How they fit together\n\nNo output of one model is recognised as an input of another.\n\n"
    )


def opaque(name: str, inputs: Ports, outputs: Ports, dtype: int = TensorProto.FLOAT) -> Model:
    """Return a model of one opaque node with these inputs and outputs."""
    node = helper.make_node("Opaque", list(inputs), list(outputs), domain="custom")
    given, made = (
        [helper.make_tensor_value_info(port, dtype, dims) for port, dims in ports.items()]
        for ports in (inputs, outputs)
    )
    return Model.from_proto(helper.make_model(helper.make_graph([node], name, given, made)))


LONG: Sequence[Dim] = ("b", 2, "t", 4)
SHORT: Sequence[Dim] = ("b", 2, "p", 4)
ENCODED: Ports = {"encoder_hidden_states": ["b", "e", 8]}


def first_step(presents: Ports, dtype: int = TensorProto.FLOAT) -> Model:
    return opaque("first", ENCODED, presents, dtype)


def later_steps(pasts: Ports) -> Model:
    return opaque("later", {**ENCODED, **pasts}, {"present_key_0": LONG})


def test_a_present_that_no_model_takes_is_left_over() -> None:
    found = fit([first_step({"present_key_0": LONG, "present_key_1": LONG}), later_steps({"past_key_0": SHORT})])
    assert found.leftover == ("first: present_key_1",)
    assert "Left over: no model takes first: present_key_1." in found.to_text()


def test_another_dtype_does_not_fit() -> None:
    found = fit([first_step({"present_key_0": LONG}, TensorProto.FLOAT16), later_steps({"past_key_0": SHORT})])
    assert found.findings() == ("first: present_key_0 -> later: past_key_0: float16 into float32",)


@pytest.mark.parametrize("dims", [["b", 3, "t", 4], ["b", 2, "t"], ["b", 2, "t", 4, 1]])
def test_other_dims_do_not_fit(dims: Sequence[Dim]) -> None:
    (finding,) = fit([first_step({"present_key_0": dims}), later_steps({"past_key_0": SHORT})]).findings()
    assert finding.startswith("first: present_key_0 -> later: past_key_0: [b, ")


@pytest.mark.parametrize("dims", [["x", 2, 7, 4], ["b", "h", "t", 4], ["b", None, "t", None]])
def test_symbols_fit_anything(dims: Sequence[Dim]) -> None:
    assert fit([first_step({"present_key_0": dims}), later_steps({"past_key_0": SHORT})]).findings() == ()


def test_models_of_the_same_name_are_told_apart(real_model: RealModel) -> None:
    models = [real_model(f"{folder}/decoder_model") for folder in ("opus-mt-en-fr", "nllb-600m")]
    assert [name for name, _ in fit(models).roles] == [
        "opus-mt-en-fr/decoder_model.onnx",
        "nllb-600m/decoder_model.onnx",
    ]


def variants(*names: str) -> Fit:
    """Return how opaque models fit, the first steps and the later ones of some variants."""
    made = []
    for name in names:
        ports = (ENCODED, {"present_key_0": LONG})
        later = ({**ENCODED, "past_key_0": SHORT}, {"present_key_0": LONG})
        made.append(opaque(name, *(later if "past" in name else ports)))
    return fit(made)


@pytest.mark.parametrize(
    ("names", "pairs"),
    [
        (
            ("decoder", "decoder_quantized", "with_past", "with_past_quantized"),
            {("decoder", "with_past"), ("decoder_quantized", "with_past_quantized")},
        ),
        (
            ("decoder", "decoder_quantized", "with_past", "with_past_fp16"),
            {("decoder", "with_past"), ("decoder", "with_past_fp16")},
        ),
        (("decoder", "decoder_int8", "with_past_int8"), {("decoder_int8", "with_past_int8")}),
        (("decoder", "with_past_quantized"), {("decoder", "with_past_quantized")}),
    ],
)
def test_files_of_a_variant_pair_with_each_other(names: tuple[str, ...], pairs: set[tuple[str, str]]) -> None:
    links = variants(*names).links
    assert {(link.source, link.target) for link in links if link.source != link.target} == pairs


def encoder(width: int = 8) -> Model:
    proto = opaque("encoder", {"input_ids": ["b", "s"]}, {"last_hidden_state": ["b", "s", width]}).proto
    proto.graph.input[0].type.tensor_type.elem_type = TensorProto.INT64
    return Model.from_proto(proto)


def in_folder(model: Model, path: str) -> Model:
    return Model.from_proto(model.proto, Path(path))


def links(*models: Model) -> set[tuple[str, str]]:
    return {(link.source, link.target) for link in fit(models).links if link.source != link.target}


def test_models_of_other_folders_have_nothing_to_do_with_each_other() -> None:
    models = [
        in_folder(model, f"{folder}/{name}.onnx")
        for folder in ("a", "b", "c")
        for name, model in (("encoder", encoder()), ("first", first_step({"present_key_0": LONG})))
    ]
    alone = in_folder(later_steps({"past_key_0": SHORT}), "d/later.onnx")
    found = fit([*models, alone])
    assert {(link.source, link.target) for link in found.links} == {
        (f"{folder}/encoder.onnx", f"{folder}/first.onnx") for folder in "abc"
    }
    assert found.findings() == ()


def test_files_of_the_same_name_in_folders_of_their_own_are_a_pipeline() -> None:
    models = [
        in_folder(encoder(), "x/encoder/model.onnx"),
        in_folder(first_step({"present_key_0": LONG}), "x/first/model.onnx"),
        in_folder(later_steps({"past_key_0": SHORT}), "x/later/model.onnx"),
    ]
    assert links(*models) == {
        ("encoder/model.onnx", "first/model.onnx"),
        ("encoder/model.onnx", "later/model.onnx"),
        ("first/model.onnx", "later/model.onnx"),
    }


def test_of_several_encoders_in_a_folder_the_one_that_fits_feeds_a_decoder() -> None:
    models = [
        in_folder(encoder(16), "m/a.onnx"),
        in_folder(encoder(), "m/b.onnx"),
        in_folder(first_step({"present_key_0": LONG}), "m/c.onnx"),
    ]
    assert links(*models) == {("b.onnx", "c.onnx")}


def test_of_several_encoders_that_fit_the_one_of_the_same_name_feeds_a_decoder() -> None:
    models = [in_folder(encoder(), f"m/{name}_encoder.onnx") for name in ("bart", "t5")]
    models.append(in_folder(first_step({"present_key_0": LONG}), "m/t5_decoder.onnx"))
    assert links(*models) == {("t5_encoder.onnx", "t5_decoder.onnx")}


def test_no_encoder_of_several_fits() -> None:
    models = [in_folder(encoder(width), f"m/{width}.onnx") for width in (16, 32)]
    models.append(in_folder(first_step({"present_key_0": LONG}), "m/first.onnx"))
    assert fit(models).findings() == ("nothing gives first.onnx: encoder_hidden_states",)


STATES: Ports = {"conv_states": [2, "b", 8, 4], "ssm_states": [2, "b", 8, 3]}
NEXT: Ports = {f"{name}_out": dims for name, dims in STATES.items()}


def test_recurrent_state_is_linked_from_the_first_step_and_from_the_step_before() -> None:
    first = opaque("first", {"input_ids": ["b", "s"]}, {"logits": ["b", "s", 9], **NEXT}, TensorProto.FLOAT)
    step = opaque("step", {"input_ids": ["b", 1], **STATES}, {"logits": ["b", 1, 9], **NEXT})
    for model in (first, step):
        model.proto.graph.input[0].type.tensor_type.elem_type = TensorProto.INT64
    models = [Model.from_proto(model.proto) for model in (first, step)]
    found = fit(models)
    assert found.findings() == ()
    assert [(link.source, link.outputs, link.target, link.inputs) for link in found.links] == [
        (source, f"{name}_out", "step", name) for source in ("first", "step") for name in STATES
    ]


def test_recurrent_state_that_does_not_fit_is_told() -> None:
    first = opaque("first", {"input_ids": ["b", "s"]}, {"logits": ["b", "s", 9], "state_out": ["b", 7]})
    step = opaque("step", {"input_ids": ["b", 1], "state": ["b", 8]}, {"logits": ["b", 1, 9], "state_out": ["b", 8]})
    for model in (first, step):
        model.proto.graph.input[0].type.tensor_type.elem_type = TensorProto.INT64
    models = [Model.from_proto(model.proto) for model in (first, step)]
    assert fit(models).findings() == ("first: state_out -> step: state: [b, 7] into [b, 8]",)


def test_two_decoders_of_a_role_are_no_pipeline() -> None:
    """Unrelated models that lie in one folder are not asked whether they fit together."""
    models = [in_folder(encoder(16), "m/encoder.onnx")]
    models += [in_folder(first_step({"present_key_0": LONG}), f"m/{name}.onnx") for name in ("bart", "t5")]
    found = fit(models)
    assert (found.links, found.findings(), found.apart) == ((), (), ("encoder.onnx", "bart.onnx", "t5.onnx"))
    assert "one decoder of each role; not of encoder.onnx, bart.onnx, t5.onnx." in found.to_text(200)


def test_variants_of_a_decoder_are_one_pipeline() -> None:
    models = [in_folder(encoder(16), "m/encoder.onnx")]
    models += [in_folder(first_step({"present_key_0": LONG}), f"m/first{mark}.onnx") for mark in ("", "_int8")]
    found = fit(models)
    assert (len(found.findings()), found.apart) == (2, ())


def test_models_of_each_role_that_do_not_lie_side_by_side_are_no_pipeline() -> None:
    models = [
        in_folder(encoder(16), "x/encoder/model.onnx"),
        in_folder(first_step({"present_key_0": LONG}), "y/first/model.onnx"),
    ]
    assert fit(models).apart == ("encoder/model.onnx", "first/model.onnx")
    assert fit(models).findings() == ()
