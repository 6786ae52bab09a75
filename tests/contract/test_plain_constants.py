"""Contracts of models, pairs and bundles as code: the records, the compilers' word for them, and the loops."""

from __future__ import annotations

import re
import shutil
import subprocess
import sys
from collections.abc import Callable, Iterator, Mapping
from dataclasses import replace
from pathlib import Path
from types import ModuleType

import numpy as np
import onnx
import pytest
from asking_programs import DECLARATIONS, compile_cpp, compile_kotlin, compile_rust, compiled, run_for
from bundles import decoder
from doc_blocks import blocks
from real_models import export_cases, unpacked_export

import graphkit
from graphkit.contract import contract_writers
from graphkit.contract.contract_files import read_bundle
from graphkit.contract.contract_writers import TEXTS, Constants, bundle_constants, write_plain
from graphkit.deploy.model_constants import model_constants
from graphkit.errors import UsageError

Run = Callable[..., tuple[object, str, str]]
END = 2  # of the exports
COMPILED = [("rust", "pair"), ("c", "bundle"), ("kotlin", "pair"), ("kotlin", "bundle")]


def module_of(constants: Constants, *, has_loop: bool = False) -> ModuleType:
    """Return the Python module that is written."""
    module = ModuleType("written")
    sys.modules["written"] = module
    exec(compile(write_plain("python", constants, has_loop=has_loop), "written.py", "exec"), vars(module))
    return module


@pytest.fixture(scope="module")
def shared_pair(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A split decoder, and the encoder that belongs to it, which nobody changes."""
    folder = tmp_path_factory.mktemp("shared") / "pair"
    graphkit.split_file("example:merged-decoder", folder, graphkit.SplitOptions(verify=False))
    shutil.copy(graphkit.load("example:encoder").path or "", folder / "encoder_model.onnx")
    return folder


@pytest.fixture
def pair(shared_pair: Path, tmp_path: Path) -> Path:
    """A copy of the pair, beside which tests may write."""
    return Path(shutil.copytree(shared_pair, tmp_path / "pair"))


def test_a_pair_says_what_goes_round_and_what_stays(every: Mapping[str, Constants]) -> None:
    made = module_of(every["pair"])
    assert [(model.file, model.runs) for model in made.MODELS] == [
        ("encoder_model.onnx", "encoder"),
        ("decoder_model.onnx", "first"),
        ("decoder_with_past_model.onnx", "step"),
    ]
    assert made.VOCABULARY == 64
    step = made.MODELS[2]
    inputs = made.INPUTS[step.inputs : step.inputs + step.input_count]
    outputs = {model.name: made.OUTPUTS[model.outputs : model.outputs + model.output_count] for model in made.MODELS}
    for port in (port for port in inputs if port.name.startswith("past")):
        after = port.name.replace("past_key_values", "present")
        kept = ".encoder." in port.name
        assert made.STATES[port.state].rule == ("kept" if kept else "grows")
        assert [out.name for out in outputs["first"] if out.state == port.state] == [after]
        assert [out.name for out in outputs["step"] if out.state == port.state] == ([] if kept else [after])
    hidden = next(port for port in made.INPUTS if port.name == "encoder_hidden_states")
    assert [out.name for out in outputs["encoder"] if out.state == hidden.state] == ["last_hidden_state"]
    assert {port.name: (port.source, port.dims) for port in inputs[:2]} == {
        "encoder_attention_mask": ("source_mask", (made.DIM_BATCH, made.DIM_SOURCE)),
        "input_ids": ("tokens", (made.DIM_BATCH, made.DIM_TOKENS)),
    }


def test_a_dim_of_an_output_counts_what_that_of_an_input_of_its_name_does() -> None:
    made = module_of(model_constants(Path(graphkit.load("example:decode").path or "")))
    past = next(port for port in made.INPUTS if port.name == "input.cache.layers.0.keys")
    present = next(port for port in made.OUTPUTS if port.name == "output.cache.layers.0.keys")
    assert list(past.dims) == [made.DIM_BATCH, 2, made.DIM_PAST, 8]
    assert list(present.dims) == [made.DIM_BATCH, 2, made.DIM_TOTAL, 8]
    assert made.OUTPUTS[0].dims[0] == made.DIM_BATCH


def test_gemma_has_its_layers_heads_and_bytes_in_full_and_in_windows(every: Mapping[str, Constants]) -> None:
    made = module_of(every["gemma"])
    assert (made.KV_LAYERS, made.KV_HEADS, made.KV_HEAD_DIM, made.KV_BYTES_PER_TOKEN) == (18, 1, 256, 36_864)
    assert (made.KV_CONTEXT, made.KV_CONTEXT_BYTES, made.KV_CONTEXT_BYTES_IN_WINDOWS) == (2048, 75_497_472, 28_311_552)
    assert [tuple(window) for window in made.WINDOWS] == [(512, 15, 30_720)]
    assert sum(state.window == 512 for state in made.STATES) == 30
    assert len(made.STATES) == 36
    mask = next(port for port in made.INPUTS if port.name == "attention_mask")
    assert (mask.source, mask.dims) == ("mask", (made.DIM_BATCH, made.DIM_TOTAL))


def test_a_model_without_a_decoder_has_its_ports_and_no_loop(model_file: Callable[[str], Path]) -> None:
    constants = model_constants(model_file("vit-qdq/model"))
    made = module_of(constants)
    assert [(port.source, port.state) for port in made.INPUTS] == [("caller", -1)]
    assert not hasattr(made, "STATES")
    with pytest.raises(UsageError, match=r"model\.onnx: it has no decoder of later steps, so that there is no loop"):
        write_plain("python", constants, has_loop=True)


def test_a_bundle_says_where_its_state_lies(bundle_of: Callable[[str], Path]) -> None:
    contract = read_bundle(bundle_of("window") / "bundle.json")
    made = module_of(bundle_constants(contract))
    assert contract.arena == made.ARENA_BYTES
    assert [(s.name, s.offset, s.rule) for s in made.STATES] == [(s.name, s.offset, s.update) for s in contract.states]
    assert [model.name for model in made.MODELS] == [method.name for method in contract.methods]
    assert {s.window for s in made.STATES if s.rule == "ring"} == {3}


# Compilers


@pytest.fixture(scope="module")
def every(
    shared_pair: Path, bundle_of: Callable[[str], Path], model_file: Callable[[str], Path]
) -> Mapping[str, Constants]:
    name = 'a"; x $y {z} */ \\ é\n'
    port = onnx.helper.make_tensor_value_info(name, onnx.TensorProto.FLOAT, ["N"])
    node = onnx.helper.make_node("Relu", [name], [f"{name}2"])
    graph = onnx.helper.make_graph([node], "g", [port], [onnx.helper.make_tensor_value_info(f"{name}2", 1, ["N"])])
    onnx.save(onnx.helper.make_model(graph), shared_pair.parent / "hostile.onnx")
    return {
        "pair": model_constants(shared_pair),
        "bundle": bundle_constants(read_bundle(bundle_of("causal") / "bundle.json")),
        "gemma": model_constants(model_file("gemma-270m/model")),
        "hostile": model_constants(shared_pair.parent / "hostile.onnx"),
    }


def test_a_c_compiler_takes_headers(every: Mapping[str, Constants], tmp_path: Path) -> None:
    for name, constants in every.items():
        (tmp_path / f"{name}.c").write_text(write_plain("c", constants))
    files = [f"{name}.c" for name in every]
    compiled(["cc", "-std=c99", "-Wall", "-Wextra", "-Werror", "-Wno-unused", "-fsyntax-only", *files], tmp_path)


def test_a_rust_compiler_takes_modules(every: Mapping[str, Constants], tmp_path: Path) -> None:
    for name, constants in every.items():
        (tmp_path / f"m_{name}.rs").write_text(write_plain("rust", constants))
    (tmp_path / "lib.rs").write_text("".join(f"pub mod m_{name};\n" for name in every))
    compiled(["rustc", "--crate-type", "lib", "--emit", "metadata", "-D", "warnings", "lib.rs"], tmp_path)


def test_a_typescript_compiler_takes_modules(every: Mapping[str, Constants], tmp_path: Path) -> None:
    for name, constants in every.items():
        (tmp_path / f"{name}.ts").write_text(write_plain("typescript", constants))
    compiled(["tsc", "--strict", "--noEmit", "--target", "es2020", *(f"{name}.ts" for name in every)], tmp_path)


@pytest.mark.slow
def test_a_cpp_compiler_takes_the_loop(every: Mapping[str, Constants], tmp_path: Path) -> None:
    (tmp_path / "loop.cpp").write_text(write_plain("c", every["pair"], has_loop=True))
    compiled(["c++", "-std=c++17", "-Wall", "-Werror", "-fsyntax-only", "-I", str(DECLARATIONS), "loop.cpp"], tmp_path)


def test_a_kotlin_compiler_takes_constants_and_loops(every: Mapping[str, Constants], tmp_path: Path) -> None:
    for name, constants in every.items():
        text = write_plain("kotlin", constants, has_loop=name in ("pair", "bundle"))
        (tmp_path / f"{name}.kt").write_text(text.replace("package host", f"package host.{name}"))
    compile_kotlin([Path(f"{name}.kt") for name in every], tmp_path)


def rust_program() -> str:
    """Return the program of the docs around the loop in Rust."""
    page = (Path(__file__).parents[2] / "docs" / "tasks" / "own-program.md").read_text()
    return next(block.text for block in blocks(page) if block.language == "rust")


@pytest.mark.slow
@pytest.mark.parametrize(("language", "name"), COMPILED, ids="-".join)
def test_the_loops_of_compilers_give_the_tokens_of_that_in_python(
    language: str,
    name: str,
    every: Mapping[str, Constants],
    pair: Path,
    bundle_of: Callable[[str], Path],
    tmp_path: Path,
) -> None:
    folder = pair if name == "pair" else bundle_of("causal")
    text = write_plain(language, every[name], has_loop=True)
    (tmp_path / ("Loop.kt" if language == "kotlin" else "decoder.rs")).write_text(text)
    if language == "kotlin":
        program = ["java", "-cp", compile_kotlin([Path("Loop.kt")], tmp_path), "host.LoopKt"]
    else:
        program = [compile_cpp(text, tmp_path) if language == "c" else compile_rust(rust_program(), tmp_path)]
    python = module_of(every[name], has_loop=True)
    expected = python.Loop(folder).generate([3, 4], [5, 6, 7], 5)
    outputs = {m.file: [port.name for port in python.OUTPUTS[m.outputs :][: m.output_count]] for m in python.MODELS}
    said = run_for([*program, folder, "5", "3,4", "5,6,7"], folder, outputs)
    assert said.split() == list(map(str, expected))


@pytest.mark.cases("typescript", "python")
@pytest.mark.parametrize("language", TEXTS)
def test_code_is_ascii_with_brackets_in_pairs_and_no_name_outside_of_a_literal_or_comment(
    language: str, every: Mapping[str, Constants]
) -> None:
    for name, constants in every.items():
        has_loop = language in contract_writers.LOOPS and name in ("pair", "bundle")
        text = write_plain(language, constants, has_loop=has_loop)
        assert text.isascii()
        assert all(line.isprintable() for line in text.split("\n"))
        bare = re.sub(
            r'"(?:[^"\\\n]|\\.)*"|\'(?:[^\'\\\n]|\\.)*\'', "", re.sub(r"(?m)//.*$|^ *#.*$|/\*.*?\*/", "", text)
        )
        for opening, closing in ("()", "[]", "{}"):
            assert bare.count(opening) == bare.count(closing), (language, name)


def test_python_takes_any_name_and_any_rule(every: Mapping[str, Constants]) -> None:
    hostile = replace(every["pair"], title='a"""\\x\\N".onnx', rules=('b"""', "\\x", '"', "\\"))
    made = module_of(hostile, has_loop=True)
    assert 'a"""\\x\\N".onnx' in (made.__doc__ or "")
    assert 'b""", \\x, ", ' in made.Loop.__doc__


# The loop in Python


def rows_of(case: dict[str, object]) -> Iterator[tuple[list[int], list[int]]]:
    """Yield the tokens of each row without its padding, and those that PyTorch gives."""
    inputs = case["inputs"]
    ids = inputs["input_ids"]
    masks = inputs.get("attention_mask", np.ones_like(ids))
    for row, mask, expected in zip(ids, masks, case["tokens"], strict=True):
        tokens = expected.tolist()
        yield row[mask == 1].tolist(), tokens[: tokens.index(END) + 1] if END in tokens else tokens


@pytest.mark.cases("lfm2-models", "mamba2-bundle")
@pytest.mark.parametrize(
    ("name", "kind"),
    [
        *((name, "models") for name in ("lfm2", "marian-multi", "qwen3-padded")),
        *((name, "bundle") for name in ("gemma3_text", "mamba2")),
    ],
)
def test_the_loop_gives_the_tokens_of_pytorch(name: str, kind: str, tmp_path: Path) -> None:
    folder = export = unpacked_export(name, tmp_path / "export")
    if kind == "bundle":
        folder = tmp_path / "bundle"
        graphkit.bundle_folder(export, folder, graphkit.BundleOptions(verify=False))
    constants = bundle_constants(read_bundle(folder / "bundle.json")) if kind == "bundle" else model_constants(folder)
    made = module_of(constants, has_loop=True)
    loop = made.Loop(folder)
    for case in export_cases(export):
        for row, expected in rows_of(case) if not case["padded"] or "prompt" in case else ():
            prompt, source = ([case["prompt"]], row) if name == "marian-multi" else (row, [])
            assert loop.generate(prompt, source, case["tokens"].shape[1])[: len(expected)] == expected


@pytest.mark.cases("causal")
@pytest.mark.parametrize("name", ["causal", "window"])
def test_the_program_prints_the_tokens_of_the_bundle(
    name: str, bundle_of: Callable[[str], Path], tmp_path: Path, run: Run
) -> None:
    folder = bundle_of(name)
    assert run("contract", folder, "--loop", "-o", tmp_path / "loop.py")[0] == 0
    bundle = graphkit.Bundle(folder, unchecked=True)
    words, expected = ["4", "5,6,7"], bundle.generate([[5, 6, 7]], max_new_tokens=4)
    command = [sys.executable, str(tmp_path / "loop.py"), str(folder), *words]
    printed = subprocess.run(command, capture_output=True, text=True, timeout=600, check=True).stdout
    assert [int(line) for line in printed.split()] == expected[0]


def test_a_merged_decoder_and_its_pair_give_the_same_tokens(pair: Path, tmp_path: Path) -> None:
    merged = tmp_path / "merged"
    merged.mkdir()
    shutil.copy(graphkit.load("example:merged-decoder").path or "", merged / "decoder_model_merged.onnx")
    shutil.copy(pair / "encoder_model.onnx", merged)
    tokens = [
        module_of(model_constants(folder), has_loop=True).Loop(folder).generate([3], [5, 6, 7], 5)
        for folder in (merged, pair)
    ]
    assert tokens[0] == tokens[1]


def test_a_loop_says_which_rules_it_does_not_follow_and_what_it_cannot_run(tmp_path: Path, pair: Path) -> None:
    (pair / "generation_config.json").write_text('{"eos_token_id": 5, "forced_bos_token_id": 9, "num_beams": 4}')
    text = write_plain("kotlin", model_constants(pair), has_loop=True)
    assert "It does not follow these rules of the export: forced_bos_token_id, num_beams." in text
    assert "longArrayOf(5)" in text
    with pytest.raises(UsageError, match="there is no loop in typescript - take one of c, kotlin, python, rust"):
        write_plain("typescript", model_constants(pair), has_loop=True)
    for name, words in (
        ("paligemma-one", "are both for the same step - make a bundle of it"),
        ("llama-static", "its caches have all slots from the start - make a bundle of it"),
        ("llama-builder", r"nothing says how large .*kv_cache_dim\) is in all dims - give them with graphkit set-dims"),
        ("marian", "decode.onnx: this decoder runs only after exactly 1 token"),
    ):
        export = unpacked_export(name, tmp_path / name)
        with pytest.raises(UsageError, match=words):
            write_plain("python", model_constants(export), has_loop=True)


def test_a_loop_asks_for_the_source_that_its_models_take(pair: Path) -> None:
    constants = model_constants(pair)
    with pytest.raises(SystemExit, match="the models take a source, and there is none"):
        module_of(constants, has_loop=True).Loop(pair).generate([3], [], 5)
    for language in ("c", "kotlin", "rust"):
        assert "the models take a source, and there is none" in write_plain(language, constants, has_loop=True)


@pytest.mark.parametrize("dims", ["batch, 1, seq, total", "batch, seq, total", "seq, total"])
@pytest.mark.parametrize("kind", ["bool", "float"])
def test_what_each_new_token_sees_is_for_the_caller_to_say(dims: str, kind: str, tmp_path: Path) -> None:
    is_deep = dims == "batch, seq, total"
    mask = "wide" if is_deep else "attention_mask"
    changes = {
        "int64[batch, total] attention_mask": f"{kind}[{dims}] attention_mask",
        "counts = Cast <to = 9> (attention_mask)\n": "",
        "padding = Not (counts)\n": "",
        "wide = Unsqueeze (padding, mask_axes)\n": "wide = Unsqueeze (attention_mask, one)\n" if is_deep else "",
        "none = Or (hidden, wide)\n": "",
        "Where (none, lowest, scores)": f"Where ({mask}, scores, lowest)"
        if kind == "bool"
        else f"Add (scores, {mask})",
    }
    onnx.save(decoder("causal", changes=changes), tmp_path / "model.onnx")
    made = module_of(model_constants(tmp_path / "model.onnx"), has_loop=True)
    with pytest.raises(SystemExit, match=r"'attention_mask' \(.*total\) is yours to make: add it to `feed`"):
        made.Loop(tmp_path).generate([5, 7, 2], [], 2)


def test_there_is_no_loop_over_a_cache_that_the_model_cuts(tmp_path: Path) -> None:
    changes = {
        '"present.0.key" = Concat <axis = 2> ("past_key_values.0.key", k)': """
        all_keys = Concat <axis = 2> ("past_key_values.0.key", k)
        start = Constant <value = int64[1] {-4}> ()
        end = Constant <value = int64[1] {9223372036854775807}> ()
        "present.0.key" = Slice (all_keys, start, end, two)""",
        'Transpose <perm = [0, 1, 3, 2]> ("present.0.key")': "Transpose <perm = [0, 1, 3, 2]> (all_keys)",
        'all, 4] "present.0.key"': 'kept, 4] "present.0.key"',
    }
    onnx.save(decoder("causal", changes=changes), tmp_path / "model.onnx")
    with pytest.raises(UsageError, match=r"its cache 'past_key_values\.0\.key' keeps the last tokens alone - write"):
        write_plain("python", model_constants(tmp_path / "model.onnx"), has_loop=True)


def test_decoding_starts_with_no_token_that_nothing_says_and_no_steps_give_no_token(tmp_path: Path) -> None:
    onnx.save(decoder("causal"), tmp_path / "model.onnx")
    constants = model_constants(tmp_path / "model.onnx")
    (tmp_path / "loop.py").write_text(write_plain("python", constants, has_loop=True))

    def output(*words: str) -> tuple[int, str, str]:
        command = [sys.executable, str(tmp_path / "loop.py"), str(tmp_path), *words]
        done = subprocess.run(command, capture_output=True, text=True, timeout=600, check=False)
        return done.returncode, done.stdout.strip(), done.stderr.strip()

    said = "nothing says with which token decoding starts: PROMPT has to have one"
    assert output("5", "") == (1, "", said)
    assert output("0", "5,7")[:2] == (0, "")
    assert all(said in write_plain(language, constants, has_loop=True) for language in ("c", "kotlin"))


def test_the_command_takes_models_folders_and_bundles_and_never_writes_over_them(
    pair: Path, bundle_of: Callable[[str], Path], run: Run
) -> None:
    assert run("contract", pair / "decoder_model.onnx")[1].startswith("/* Constants of decoder_model.onnx, ")
    assert "pub static STATES: [State; 5]" in run("contract", pair, "-l", "rust")[1]
    assert "HOST_ARENA_BYTES" in run("contract", bundle_of("causal") / "bundle.json")[1]
    assert run("contract", "example:merged-decoder", "-l", "kotlin")[0] == 0
    for name, words in (
        ("decoder.rs", f"Beside the main.rs of docs/tasks/own-program.md: cargo run --release -- {pair.resolve()} 32 "),
        ("Loop.kt", "In an app: host.Loop(File(PATH)).generate(PROMPT, SOURCE, 32), where PATH is that of a copy of "),
    ):
        assert run("contract", pair, "--loop", "-o", pair.parent / name)[1].splitlines()[1].startswith(words)
    code, _, err = run("contract", pair, "-o", pair / "decoder_model.onnx")
    assert code == 2
    assert "decoder_model.onnx" in err


def test_a_decoder_of_the_first_step_alone_has_its_ports_and_no_loop(pair: Path) -> None:
    constants = model_constants(pair / "decoder_model.onnx")
    assert [port.source for port in module_of(constants).INPUTS] == ["source_mask", "tokens", "caller"]
    with pytest.raises(
        UsageError, match=r"decoder_model\.onnx: it has no decoder of later steps, so that there is no loop"
    ):
        write_plain("kotlin", constants, has_loop=True)
