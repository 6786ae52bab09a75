"""The verdict of a report: eight lines at most, the worst first, and commands that run."""

from __future__ import annotations

import shlex
import sys
from collections.abc import Callable
from pathlib import Path

import numpy as np
import onnx.numpy_helper
import onnx.parser
import pytest
from real_models import unpacked_export

from graphkit.analysis.comparison import compare
from graphkit.analysis.findings import KIND_NAMES, Finding, kinds_named, worst_first
from graphkit.analysis.report import SECTION_NAMES, ReportOptions, report
from graphkit.analysis.verdict import Verdict, verdict_lines
from graphkit.cli import main
from graphkit.deploy.make_bundle import bundle_folder
from graphkit.errors import UsageError
from graphkit.examples import resolve
from graphkit.model import Model, load
from graphkit.render.document_blocks import ROWS, Lines, size_text
from graphkit.shapes import DimSpec
from graphkit.targets import load_target

RealModel = Callable[[str], Model]
ONLY = ReportOptions(only=("verdict",))
MERGED, CAUSAL = "example:merged-decoder", "example:causal-attention"


def verdict(model: Model, options: ReportOptions = ONLY) -> Verdict:
    made = report(model, options).sections["verdict"]
    assert isinstance(made, Verdict)
    return made


def test_a_merged_decoder_as_text(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    assert report(load(MERGED), ONLY).to_text() == (
        """\
example:merged-decoder

Merged decoder of an encoder-decoder, 1 layer: 129.1 kB, 5.0 k parameters.
MACs 8.7 k, peak of activations 24.7 kB, for batch_size 1 and 3 more.
! merged If crashes or slows runtimes: 'optimum::if' (control-flow)
! the encoder KV comes back empty: present.0.encoder.{key|value} (kv-cache)
! shapes not known before a run: 4 tensors behind If ... (unknown-shapes)
- shapes computed at run time: 196 of 720 nodes (shape-ops)
- fails above a size: decoder_sequence_length=33 (Gather) and 1 more (hazards)
$ graphkit split-merged example:merged-decoder -o merged-decoder.split

"""
    )


def test_a_model_with_nothing_wrong_as_markdown(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    assert report(load(CAUSAL), ONLY).to_markdown() == (
        """\
# example:causal-attention

- Decoder-only model, 2 layers: 61.6 kB, 9.2 k parameters.
- MACs 294.9 k, peak of activations 26.6 kB, for batch_size 1, sequence_length 32. No faults; 2 limits:
- shapes computed at run time: 64 of 213 nodes (shape-ops)
- fails above a size: sequence_length=33 (Gather) (hazards)

```sh
graphkit fold example:causal-attention -o causal-attention.folded.onnx
```
"""
    )


def test_commands_stand_apart_in_html(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    page = report(load(MERGED), ONLY).to_html()
    assert "<pre>graphkit split-merged example:merged-decoder -o merged-decoder.split</pre>" in page
    assert page.count('<li class="warning">') == 3


def test_a_report_begins_with_its_verdict() -> None:
    assert SECTION_NAMES[0] == "verdict"
    whole = report(load(CAUSAL)).to_text()
    assert whole.startswith("example:causal-attention\n\nDecoder-only model, 2 layers")
    assert "Verdict" not in whole


def lines_of(*found: Finding, commands: tuple[str, ...] = ()) -> list[str]:
    made = verdict_lines("A model.", found, commands)
    assert isinstance(made, Lines)
    return [text for text, _ in made.rows]


def test_what_has_no_line_is_named() -> None:
    found = [Finding(kind, "here", "it is wrong") for kind in KIND_NAMES]
    lines = lines_of(*reversed(found), commands=("graphkit one", "graphkit two"))
    assert lines[1] == "the graph is not valid: here (summary)"
    assert lines[5].startswith("also: merged-if, zero-length-kv, frozen-past, ")
    assert lines[6:] == ["graphkit one", "graphkit two"]
    assert len(lines) == ROWS


def test_findings_of_a_kind_share_a_line() -> None:
    found = [Finding("fit", f"tensor_{number}", "it is wrong") for number in range(60)]
    (_, line) = lines_of(*found)
    assert line.startswith("models do not fit together: tensor_0, tensor_1, ")
    assert line.endswith(" more (fit)")
    assert len(line) <= 2 * 80


def test_a_long_place_is_cut_between_words() -> None:
    (_, line) = lines_of(Finding("fit", " ".join(["word"] * 100), "it is wrong"))
    assert line.endswith("word ... (fit)")


def test_names_too_long_for_a_line_are_counted() -> None:
    long = [Finding("fit", f"{'folder-' * 10}{number}/model", "it is wrong") for number in range(3)]
    kinds = [kind for kind in KIND_NAMES if kind not in ("fit", "unloadable", "frozen-past", "lost-write")]
    (_, *lines) = lines_of(*long, *(Finding(kind, "here", "it is wrong") for kind in kinds))
    assert any(line == "models do not fit together: 3 cases (fit)" for line in lines)


def test_a_place_of_which_little_fits_is_counted() -> None:
    """An end such as "6 tensors ... and 2 more" would say nothing."""
    found = [Finding("fit", f"6 tensors behind Reshape 'block.{number}{'.inner' * 9}'", "wrong") for number in range(3)]
    kinds = [kind for kind in KIND_NAMES if kind not in ("fit", "unloadable", "frozen-past", "lost-write")]
    (_, *lines) = lines_of(*found, *(Finding(kind, "here", "it is wrong") for kind in kinds))
    assert any(line == "models do not fit together: 3 cases (fit)" for line in lines)


def test_a_command_is_never_cut() -> None:
    command = f"graphkit fold {'x' * 300}.onnx -o y.onnx"
    assert lines_of(Finding("fit", "here", "wrong"), commands=(command,))[-1] == command


def test_commands_leave_room_for_findings() -> None:
    found = [Finding(kind, "here", "wrong") for kind in KIND_NAMES]
    lines = lines_of(*found, commands=("x", "y", "z"))
    assert [line[:1] for line in lines] == ["A", "t", "w", "f", "a", "x", "y", "z"]


ANEW = "export it anew with a cache that grows"


@pytest.mark.parametrize(("kind", "commands"), [("no-mask", ["graphkit one"]), ("frozen-past", [])])
def test_how_to_export_it_anew_has_a_line(kind: str, commands: list[str]) -> None:
    """And what goes on with a model that is to be exported anew has none."""
    found = Finding(kind, "here", f"it is wrong (input_ids [1]) - {ANEW}")
    assert lines_of(found, commands=("graphkit one",))[2:] == [ANEW, *commands]


def test_how_to_export_it_anew_leaves_the_commands_where_something_else_is_worse() -> None:
    found = [Finding("merged-if", "here", "it is wrong"), Finding("frozen-past", "here", f"it is wrong - {ANEW}")]
    assert lines_of(*found, commands=("graphkit one",))[3:] == [ANEW, "graphkit one"]


def test_a_verdict_is_the_same_however_long_its_path_is(tmp_path: Path) -> None:
    folder = tmp_path / ("x" * 200) / ("y" * 200)
    folder.mkdir(parents=True)
    (folder / "m.onnx").write_bytes(resolve(MERGED).read_bytes())
    (tmp_path / "m.onnx").write_bytes(resolve(MERGED).read_bytes())
    texts = [verdict(load(path / "m.onnx")).to_text(80).replace(f"{path}/", "") for path in (folder, tmp_path)]
    assert texts[0] == texts[1]


def test_notes_are_no_faults() -> None:
    assert lines_of(Finding("size-limit", "N=9", "wrong"))[0] == "A model. No faults; 1 limit:"
    assert lines_of(Finding("empty-dim", "N=0", "wrong"))[0] == "A model."


def test_the_worst_is_first() -> None:
    found = worst_first(Finding(kind, "", "") for kind in ("float16", "merged-if", "missing-data", "blockers"))
    assert [one.kind for one in found] == ["missing-data", "merged-if", "blockers", "float16"]


def test_a_section_names_its_kinds() -> None:
    assert [kind.name for kind in kinds_named("kv-cache")] == ["zero-length-kv", "lost-past"]
    assert [kind.name for kind in kinds_named("merged-if")] == ["merged-if"]
    assert kinds_named("weather") == ()


@pytest.mark.parametrize(
    ("number", "text"), [(999, "999 B"), (117_900_000, "117.9 MB"), (2_900_000_000, "2.9 GB"), (1_000, "1.0 kB")]
)
def test_sizes(number: int, text: str) -> None:
    assert size_text(number, "B") == text


def test_packed_weights_count_as_what_they_unpack_to(real_model: RealModel) -> None:
    assert verdict(real_model("llama-int4/model")).parameters == 88_768


def run(command: str, monkeypatch: pytest.MonkeyPatch) -> object:
    program, *words = shlex.split(command)
    assert program == "graphkit"
    monkeypatch.setattr(sys, "argv", ["graphkit", *words])
    with pytest.raises(SystemExit) as stop:
        main()
    return stop.value.code


def unproven(command: str) -> str:
    """Return a command without the proof of what it writes."""
    return command if shlex.split(command)[1] == "shapes" else f"{command} --no-verify"


COMMANDED = {
    "bert-fill-mask/model": ["fold"],
    "cache-styles/bshd": ["fold"],  # its cache is moved before what is new joins it
    "cache-styles/anonymous": ["fold", "bundle"],
    "search/loop-greedy": ["bundle", "shapes"],
}


@pytest.mark.cases("loop-greedy", "bshd")
@pytest.mark.parametrize("name", COMMANDED)
def test_every_command_runs(
    model_file: Callable[[str], Path], name: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    folder = tmp_path / "it's $HOME"
    folder.mkdir()
    (folder / "a model.onnx").write_bytes(model_file(name).read_bytes())
    monkeypatch.chdir(tmp_path)
    commands = verdict(load(folder / "a model.onnx")).commands
    assert [command.split()[1] for command in commands] == COMMANDED[name]
    assert [run(unproven(command), monkeypatch) for command in commands] == [0] * len(commands)


def test_a_merged_decoder_can_be_split(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    (command,) = verdict(load(MERGED)).commands
    assert run(unproven(command), monkeypatch) == 0
    (again,) = verdict(load(MERGED)).commands  # the name is taken now
    assert again.endswith(" -o merged-decoder-2.split")


def test_a_model_can_be_lowered(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    made = verdict(load(CAUSAL), ReportOptions(only=("verdict",), target=load_target("generic-npu")))
    assert made.commands == (
        "graphkit lower example:causal-attention -o causal-attention.lowered --target generic-npu --src-len 32 "
        "--gelu-to-tanh",
    )
    assert run(unproven(made.commands[0]), monkeypatch) == 0


def test_missing_weights_have_a_place_and_a_command_for_then(real_model: RealModel) -> None:
    made = verdict(real_model("gemma-270m/model"))
    assert "! weights are missing: first put 'model.weights' beside it (summary)" in made.to_text()
    assert [command.split()[1] for command in made.commands] == ["fold", "bundle"]


def test_what_a_folder_can_become(real_model: RealModel) -> None:
    models = [real_model(f"marian-tiny/{name}") for name in ("encoder_model", "decoder_model_merged")]
    made = compare(models, ONLY)
    assert [command.split()[1] for command in made.commands] == ["bundle"]
    assert made.to_text().startswith(
        """\
Comparison

2 models: encoder, merged decoder; 615.0 kB of weights.
! merged If crashes or slows runtimes: decoder_model_merged (control-flow)
! the encoder KV comes back empty: decoder_model_merged (kv-cache)
! shapes not known before a run: decoder_model_merged (unknown-shapes)
- shapes computed at run time: encoder_model, decoder_model_merged (shape-ops)
"""
    )


def test_each_of_several_folders_has_its_command(tmp_path: Path) -> None:
    for folder in ("one", "two"):
        (tmp_path / folder).mkdir()
        for name in ("prefill", "decode"):
            (tmp_path / folder / f"{name}.onnx").write_bytes(Path(resolve(f"example:{name}")).read_bytes())
    made = compare(sorted(tmp_path.glob("*/*.onnx")), ONLY)
    assert [command.split()[1:3] for command in made.commands] == [
        ["bundle", str(tmp_path / folder)] for folder in ("one", "two")
    ]


def test_with_a_target_a_folder_is_lowered_and_not_bundled(tmp_path: Path) -> None:
    for name in ("encoder", "merged-decoder"):
        (tmp_path / f"{name}.onnx").write_bytes(Path(resolve(f"example:{name}")).read_bytes())
    made = compare(sorted(tmp_path.glob("*.onnx")), ReportOptions(only=("verdict",), target=load_target("mt8371")))
    assert [command.split()[1] for command in made.commands] == ["lower"]


@pytest.mark.parametrize("name", ["llama-static", "mamba2", "qwen2_vl-one"])
def test_an_export_of_several_models_is_bundled_as_a_whole(name: str, tmp_path: Path) -> None:
    """Whether a static cache counts its tokens, has state in its place, or parts of no usual role beside it."""
    folder = unpacked_export(name, tmp_path)
    made = compare(sorted(folder.glob("*.onnx")), ReportOptions(only=("verdict",)))
    assert [command.split()[1:3] for command in made.commands] == [["bundle", str(folder)]]
    assert made.rows[-1].role != "recurrent decoder"


def test_an_export_whose_sources_have_one_length_is_not_bundled(tmp_path: Path) -> None:
    folder = unpacked_export("marian-multi", tmp_path)
    paths, only = sorted(folder.glob("*.onnx")), ReportOptions(only=("verdict",))
    assert compare(paths, only).commands[0].startswith("graphkit bundle")
    proto = onnx.load(folder / "prefill.onnx", load_external_data=False)
    for info in (*proto.graph.input, *proto.graph.output):
        if info.name == "attention_mask" or "cross_attention" in info.name:
            info.type.tensor_type.shape.dim[1 if info.name == "attention_mask" else 2].dim_value = 7
    onnx.save(proto, folder / "prefill.onnx")
    with pytest.raises(UsageError, match="every source has exactly 7 positions"):
        bundle_folder(folder, tmp_path / "out")
    assert not [command for command in compare(paths, only).commands if " bundle " in command]


def test_a_model_of_the_model_builder_is_bundled_with_as_many_slots_as_it_has_positions(tmp_path: Path) -> None:
    path = unpacked_export("gpt_oss-builder", tmp_path) / "model.onnx"
    (command,) = verdict(load(path)).commands
    assert command.split()[1:3] == ["bundle", str(path)]
    assert command.endswith(" --max-cache 128")


def test_a_dim_of_one_input_is_told_only_where_its_size_is_not_that_of_its_symbol() -> None:
    text = """<ir_version: 8, opset_import: ["" : 17]>
    g (float[batch, 4] x, float[batch, 3] y) => (float[batch, 4] a, float[batch, 3] b) { a = Relu (x) b = Relu (y) }"""
    model = Model.from_proto(onnx.parser.parse_model(text))
    assert dict(verdict(model).sizes) == {"batch": 1}
    apart = ReportOptions(only=("verdict",), spec=DimSpec.of(dims={"y.0": 2}))
    assert dict(verdict(model, apart).sizes) == {"batch": 1, "y.0": 2}


def test_a_bundle_is_to_have_as_many_slots_as_the_model_has_positions(tmp_path: Path) -> None:
    """A past of 14 beside 3 new tokens is too long, as 17 new tokens alone are: 16 fit together, not 13."""
    text = """<ir_version: 8, opset_import: ["" : 17]>
    step (int64[batch, sequence] input_ids, float[batch, 1, past, 4] "past_key_values.0.key",
          float[batch, 1, past, 4] "past_key_values.0.value")
    => (float[batch, sequence, 9] logits, float[batch, 1, total, 4] "present.0.key",
        float[batch, 1, total, 4] "present.0.value")
    <int64[1] one = {1}, int64[1] two = {2}, int64[4] heads = {0, 0, 1, 4}, int64 step = {1}> {
        past_1 = Shape <start = 2, end = 3> ("past_key_values.0.key") new_1 = Shape <start = 1, end = 2> (input_ids)
        before = Squeeze (past_1) new = Squeeze (new_1) all = Add (before, new)
        places = Range (before, all, step)
        words = Gather (table, input_ids) where = Gather (positions, places) x = Add (words, where)
        split = Reshape (x, heads) kv = Transpose <perm = [0, 2, 1, 3]> (split)
        "present.0.key" = Concat <axis = 2> ("past_key_values.0.key", kv)
        "present.0.value" = Concat <axis = 2> ("past_key_values.0.value", kv)
        turned = Transpose <perm = [0, 1, 3, 2]> ("present.0.key")
        scores = MatMul (kv, turned) p = Softmax (scores) mixed = MatMul (p, "present.0.value")
        flat = Squeeze (mixed, one) logits = MatMul (flat, head)
    }"""
    proto = onnx.parser.parse_model(text)
    for name, shape in (("table", (9, 4)), ("positions", (16, 4)), ("head", (4, 9))):
        proto.graph.initializer.append(onnx.numpy_helper.from_array(np.ones(shape, np.float32), name))
    onnx.save(proto, tmp_path / "model.onnx")
    commands = verdict(load(tmp_path / "model.onnx")).commands
    assert [command.split()[-2:] for command in commands if " bundle " in command] == [["--max-cache", "16"]]


def test_a_verdict_says_why_costs_are_not_known() -> None:
    text = """<ir_version: 10, opset_import: ["" : 21, "own" : 1]>
        g (float[n, 16] x, float[16, 16] w) => (float[m, 16] y) { a = MatMul (x, w) y = own.Secret (a) }"""
    made = verdict(Model.from_proto(onnx.parser.parse_model(text)))
    assert (made.macs.value, made.macs.uncounted, dict(made.sizes)) == (256, 1, {"n": 1})
    assert "MACs >= 256, peak of activations >= 64 B, for n 1. Not counted: there is no rule for own.Secret" in (
        " ".join(made.to_text().split())
    )


def test_an_unknown_dim_has_no_number_in_a_verdict() -> None:
    """The number tells dims of one node apart, which a reader of one sentence does not see."""
    text = """g (float[n] x, int64[2] size) => (float[n, m] y) {
        places = NonZero (x) one = Cast <to = 1> (places) w = Transpose <perm = [1, 0]> (one) y = MatMul (w, one) }"""
    made = verdict(Model.from_proto(onnx.helper.make_model(onnx.parser.parse_graph(text))))
    assert "Not counted: NonZero#0: it is" in " ".join(made.to_text().split())


def test_all_sizes_of_a_verdict_that_fit_are_named() -> None:
    names = [f"a_dim_with_a_name_of_35_letters_no_{number}" for number in range(5)]
    text = f"""<ir_version: 10, opset_import: ["" : 21]>
        g (float[{", ".join(names)}] x) => (float[{", ".join(names)}] y) {{ y = Relu (x) }}"""
    _, (costs, _), *_ = next(iter(verdict(Model.from_proto(onnx.parser.parse_model(text))).blocks())).rows
    assert costs.endswith(f", for {names[0]} 1, {names[1]} 128 and 3 more. No faults.")
