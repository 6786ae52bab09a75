"""What lower and bundle say of exports that they cannot take as they are, and the slots that they choose themselves."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

import numpy as np
import onnx
import pytest
from onnx import numpy_helper, parser
from real_models import unpacked
from small_pipelines import FILLED, decoder, saved

from graphkit.analysis.blockers import blockers
from graphkit.cli.deploy_commands import bundle, lower
from graphkit.contract import read_contract
from graphkit.contract.contract_files import read_bundle
from graphkit.deploy.bundle_methods import check_masks
from graphkit.deploy.deploy_sizes import Setting, most_positions, resolve_sizes
from graphkit.deploy.host_tables import HostPart, _evaluate_size
from graphkit.deploy.lower import LowerOptions, lower_folder
from graphkit.deploy.make_bundle import BundleOptions, bundle_folder
from graphkit.errors import ModelError, UsageError
from graphkit.model import Model, load
from graphkit.options import BUNDLED, LOWERED, SOURCE

LOWER = LowerOptions(src_len=6, verify=False)
BUNDLE = BundleOptions(verify=False)
INPUTS = "int64[batch, length] input_ids"
SOFTMAX = "p = Softmax <axis = -1> (scores)"


def text(body: str) -> onnx.ModelProto:
    return parser.parse_model(f'<ir_version: 9, opset_import: ["" : 17]> g {body}')


@pytest.mark.parametrize("key", ["eos_token_id", "decoder_start_token_id"])
@pytest.mark.parametrize("command", [lower_folder, bundle_folder])
def test_a_configuration_of_another_model_is_named(command: Callable[..., object], key: str, tmp_path: Path) -> None:
    folder = saved(decoder(FILLED), tmp_path / "export")
    (folder / "config.json").write_text(f'{{"{key}": 50257}}')
    with pytest.raises(UsageError, match=r"export: config\.json .* says token 50257, and its vocabulary has \d+ - put"):
        command(folder, tmp_path / "out")
    assert not (tmp_path / "out").exists()


@pytest.mark.parametrize("shape", ["", "[batch]"])
def test_a_first_output_of_rank_0_or_1_is_lowered(shape: str, tmp_path: Path) -> None:
    keep = "Squeeze (sums)" if shape else "ReduceSum <keepdims = 0> (x)"
    body = f"""(float[batch, 8] x) => (float{shape} y) <int64[1] last = {{1}}> {{
        sums = ReduceSum (x, last)
        y = {"Squeeze (sums, last)" if shape else keep}
    }}"""
    lower_folder(saved(text(body), tmp_path / "model"), tmp_path / "out", LOWER)
    (method,) = read_contract(tmp_path / "out" / "contract.json").methods
    assert (method.file, method.outputs[0].shape) == ("model.onnx", (1,) if shape else ())


def test_more_texts_than_pictures_are_declined(tmp_path: Path) -> None:
    body = """(int64[2, 4] input_ids, float[1, 3, 8, 8] pixel_values) => (float[2, 1, 3] y)
    <float[5, 3] table = {1, 2, 3, 4, 5, 6, 7, 8, 9, 1, 2, 3, 4, 5, 6}, int64[2] sides = {2, 3}, int64[1] one = {1}> {
        words = Gather (table, input_ids)
        texts = ReduceMean (words, one)
        pictures = ReduceMean <keepdims = 0> (pixel_values, sides)
        y = Add (texts, pictures)
    }"""
    counts = "'input_ids' holds 2 rows, and 'pixel_values' 1"
    with pytest.raises(UsageError, match=f"{counts} - export it with as many texts as pictures"):
        lower_folder(saved(text(body), tmp_path / "model"), tmp_path / "out", LOWER)


def test_states_that_a_decoder_cannot_read_are_named(tmp_path: Path) -> None:
    folder = unpacked("t5-tiny", tmp_path / "model")
    flat = text(
        "(float[batch, 8] x) => (float[batch] y) { y = ReduceSum <keepdims = 0> (x, one) } ".replace(
            "{ y", "<int64[1] one = {1}> { y"
        )
    )
    onnx.save(flat, folder / "encoder_model.onnx")
    with pytest.raises(UsageError, match=r"the encoder's first output is \[1\], and a decoder reads states"):
        lower_folder(folder, tmp_path / "out", LOWER)


def test_a_vision_model_is_called_what_it_is(tmp_path: Path) -> None:
    body = """(float[batch, 3, 8, 8] pixel_values) => (float[batch, 4, 7, 7] y) <float[4, 3, 2, 2] w> {
        y = Conv (pixel_values, w)
    }"""
    model = text(body)
    model.graph.ClearField("value_info")
    model.graph.initializer.append(numpy_helper.from_array(np.ones((4, 3, 2, 2), np.float32), "w"))
    lower_folder(saved(model, tmp_path / "model"), tmp_path / "out", LOWER)
    assert [path.name for path in (tmp_path / "out").glob("*.onnx")] == ["vision.onnx"]


@pytest.mark.cases("7-7")
@pytest.mark.parametrize(("asked", "expected"), [(None, 16), (7, 7), (16, 16)])
def test_slots_are_as_many_as_the_model_has_positions(asked: int | None, expected: int, tmp_path: Path) -> None:
    folder = saved(decoder(FILLED), tmp_path / "model")  # its table of positions has 16 rows
    lower_folder(folder, tmp_path / "lowered", replace(LOWER, max_cache_len=asked))
    assert read_contract(tmp_path / "lowered" / "contract.json").sizes["capacity"] == expected
    bundle_folder(folder, tmp_path / "bundle", replace(BUNDLE, max_cache=asked, verify=asked is None))
    assert read_bundle(tmp_path / "bundle" / "bundle.json").sizes["slots"] == expected


def test_more_slots_than_positions_are_refused_before_anything_is_written(tmp_path: Path) -> None:
    folder = saved(decoder(FILLED), tmp_path / "model")
    message = "model.onnx: the model has 16 positions, so its cache has at most 16 slots - give --max-cache"
    with pytest.raises(UsageError, match=f"^{message}-len 16$"):
        lower_folder(folder, tmp_path / "out", replace(LOWER, max_cache_len=17))
    with pytest.raises(UsageError, match=f"^{message} 16$"):
        bundle_folder(folder, tmp_path / "out", replace(BUNDLE, max_cache=17))
    assert not (tmp_path / "out").exists()


SHIFTED = """(int64[batch, seq] input_ids, int64[batch, total] attention_mask, float[batch, 2, past, 4] KEY)
=> (float[batch, seq, 8] y) <int64 one = {{1}}, int64 axis = {{1}}, int64 two = {{2}}, int64 zero = {{0}}> {{
    {body}
    y = Gather (table, places)
}}"""


@pytest.mark.parametrize(
    ("body", "positions"),
    [
        ("count = CumSum (attention_mask, axis) lessened = Sub (count, one) places = Add (lessened, two)", 14),
        ("count = CumSum (attention_mask, axis) places = Mul (count, attention_mask)", 15),
        ("places = Identity (input_ids)", None),
        (
            "count = CumSum (attention_mask, axis) f = Cast <to = 1> (count) l = Log (f) places = Cast <to = 7> (l)",
            None,
        ),
    ],
)
def test_positions_are_rows_without_those_that_an_exporter_shifts(body: str, positions: int | None) -> None:
    model = text(SHIFTED.format(body=body).replace("KEY", '"past_key_values.0.key"'))
    model.graph.initializer.append(numpy_helper.from_array(np.ones((16, 8), np.float32), "table"))
    found = Model.from_proto(model)
    assert most_positions(found) == positions
    assert resolve_sizes(BundleOptions(), [found], encoder=None, step=found).slots == (positions or BUNDLED)


def test_help_says_how_many_slots_there_are_by_default() -> None:
    options = {option.name: option for command in (bundle, lower) for option in command.params}
    for name, slots in (("max_cache", BUNDLED), ("max_cache_len", LOWERED)):
        assert f"Default: {slots}, at most the positions of the model." in options[name].help
    assert (options["max_source"].default, options["src_len"].default) == (SOURCE, LOWERED)
    assert (BundleOptions().max_source, LowerOptions().src_len) == (SOURCE, LOWERED)


@pytest.mark.parametrize("make", [lower_folder, bundle_folder])
def test_a_folder_without_its_encoder_says_so(make: object, tmp_path: Path) -> None:
    folder = unpacked("t5-tiny", tmp_path / "model")
    (folder / "encoder_model.onnx").unlink()
    assert callable(make)
    with pytest.raises(UsageError, match="it has a decoder that reads an encoder, and no encoder - export it too"):
        make(folder, tmp_path / "out")


def test_all_missing_dims_are_asked_for_in_a_line_to_copy(tmp_path: Path) -> None:
    model = text("(float[batch, tall, wide, deep] x) => (float[batch, tall, wide, deep] y) { y = Relu (x) }")
    with pytest.raises(UsageError) as caught:
        lower_folder(saved(model, tmp_path / "model"), tmp_path / "out", LOWER)
    assert str(caught.value) == (
        "model.onnx: 'deep', 'tall', 'wide' have no numbers - give them with --dim deep=NUMBER --dim tall=NUMBER "
        "--dim wide=NUMBER"
    )


@pytest.mark.parametrize(("call", "why"), [
    ("NonZero (x)", "it is how many elements of 'x' are not zero"),
    ("custom.Count (x)", "there is no rule for custom.Count"),
])  # fmt: skip
def test_an_output_without_a_fixed_shape_is_named_with_its_file(call: str, why: str, tmp_path: Path) -> None:
    model = text(f"(float[4] x) => (int64[1, n] y) {{ y = {call} }}")
    with pytest.raises(UsageError, match=rf"^model.onnx: 'y' has no fixed shape: .*{why}.* with graphkit extract$"):
        lower_folder(saved(model, tmp_path / "model"), tmp_path / "out", LOWER)


def test_what_would_take_gigabytes_to_find_out_is_declined() -> None:
    part = Model.from_proto(text("(int64[wide, 4] ids) => (int64[wide, 4] y) { y = Identity (ids) }"))
    setting = Setting({"wide": 1 << 31}, frozenset(), frozenset(), frozenset(), 0, 4, False, -1e9, 0)
    with pytest.raises(
        UsageError, match=r"'ids' is .* is fed here to find out what the host makes - give smaller sizes"
    ):
        HostPart(part, {"ids": "tokens"}, setting).feed("valid_length", 1)


def test_state_of_a_dtype_that_hosts_have_no_arrays_of_is_declined(tmp_path: Path) -> None:
    body = """(float[batch, 8] x, float8e5m2[batch, 8] state_in)
    => (float[batch, 8] y, float8e5m2[batch, 8] state_out) {
        past = Cast <to = 1> (state_in)
        y = Add (x, past)
        state_out = Cast <to = 19> (y)
    }"""
    model = parser.parse_model(f'<ir_version: 10, opset_import: ["" : 19]> g {body}')
    with pytest.raises(UsageError, match=r"is float8e5m2, of which hosts have no arrays - export it with state in flo"):
        bundle_folder(saved(model, tmp_path / "model"), tmp_path / "out", BUNDLE)


def test_a_pass_that_has_run_is_not_proposed(tmp_path: Path) -> None:
    body = """(float[batch, 8] x) => (float[batch, 8] y) <float lowest = {-1}, float zero = {0}> {
        positive = Greater (x, zero)
        logarithm = Log (x)
        y = Where (positive, logarithm, lowest)
    }"""
    report = lower_folder(saved(text(body), tmp_path / "model"), tmp_path / "out", LOWER)
    found = {obstacle.op: obstacle.pass_name for obstacle in report.files[0].blockers.blockers}
    alone = blockers(load(tmp_path / "out" / report.files[0].name), LOWER.target)
    assert "masked-fill-to-add" in {obstacle.pass_name for obstacle in alone.blockers}
    assert found == {"Greater": None, "Log": None, "Where": None}


NAMES = {"slots": ("max_cache_len", "max_cache"), "source": ("src_len", "max_source")}
SAME_MISTAKES = {
    "a dim that no input has": ("dims", (("tokens", 3),), "no input has a dim 'tokens' - there are "),
    "sequences as a dim": ("dims", (("batch", 2),), "model.onnx: 'batch' is 1, not 2 - give --batch 2"),
    "slots as a dim": ("dims", (("past", 2),), "model.onnx: 'past' grows with the cache - give SLOTS"),
    "a dim of 0": ("dims", (("batch", 0),), "--dim batch=0: give at least 1"),
    "no sequence": ("batch", 0, "--batch 0: give at least 1"),
    "more than is counted": ("dims", (("batch", 1 << 31),), "--dim batch=2,147,483,648: give at most 2,147,483,647"),
    "no slot": ("slots", 0, "SLOTS 0: give at least 1"),
    "no source": ("source", 0, "SOURCE 0: give at least 1"),
}


@pytest.mark.parametrize("mistake", SAME_MISTAKES)
def test_both_commands_say_the_same_of_a_mistake(mistake: str, tmp_path: Path) -> None:
    option, size, message = SAME_MISTAKES[mistake]
    folder = saved(decoder(FILLED), tmp_path / "model")
    of_lower, of_bundle = NAMES.get(option, (option, option))
    with pytest.raises(UsageError, match=message.replace("SLOTS", "--max-cache-len").replace("SOURCE", "--src-len")):
        lower_folder(folder, tmp_path / "out", replace(LOWER, **{of_lower: size}))
    with pytest.raises(UsageError, match=message.replace("SLOTS", "--max-cache").replace("SOURCE", "--max-source")):
        bundle_folder(folder, tmp_path / "out", replace(BUNDLE, **{of_bundle: size}))


@pytest.mark.parametrize("deploy", [lower_folder, bundle_folder])
def test_models_are_not_written_into_the_folder_of_the_export(deploy: Callable[..., object], tmp_path: Path) -> None:
    folder = saved(decoder(FILLED), tmp_path / "model")
    with pytest.raises(UsageError, match="is the folder of the export, whose models it would be mixed with"):
        deploy(folder, folder)


def test_an_input_of_a_size_that_nothing_decides_is_declined() -> None:
    assert _evaluate_size("past + 2", {"past": 3}) == 5
    with pytest.raises(ModelError, match=r"a dim '\?1./Reshape', whose size is not known"):
        _evaluate_size("?1./Reshape", {"past": 3})


def test_masks_for_pairs_of_tokens_before_masks_for_tokens_are_declined() -> None:
    """The step would keep a mask of the prompt that nobody writes, and so see nothing of it."""
    head = "(int64[batch, new] input_ids, {} attention_mask) => (bool[{}] y) {{ y = Not (attention_mask) }}"
    first = text(head.format("bool[batch, 1, new, new]", "batch, 1, new, new"))
    step = text(head.format("bool[batch, total]", "batch, total"))
    one, two = (Model.from_proto(each) for each in (first, step))
    with pytest.raises(UsageError, match="it takes a mask for each token, and the first step one for each pair"):
        check_masks(one, two)
