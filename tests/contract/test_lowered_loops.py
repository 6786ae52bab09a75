"""The programs that run a lowered folder give PyTorch's tokens."""

from __future__ import annotations

import re
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from types import ModuleType

import pytest
from asking_programs import compile_cpp, compile_kotlin, run_for
from real_models import export_cases, unpacked_export
from small_contract import SMALL

from graphkit.contract import Method, Port, Source
from graphkit.contract.contract_files import read_contract
from graphkit.contract.contract_writers import LOOPS, LOWERED_LOOPS, write_lowered_loop
from graphkit.deploy.lower import LowerOptions, lower_folder
from graphkit.errors import UsageError

Run = Callable[..., tuple[object, str, str]]
NAMES = ("marian-multi", "qwen3-padded")
END = 2  # of the exports


@pytest.fixture(scope="module")
def lowered(tmp_path_factory: pytest.TempPathFactory) -> dict[str, tuple[Path, Path]]:
    """The folder of each export, and that which is lowered from it."""
    made = {}
    for name in NAMES:
        folder = tmp_path_factory.mktemp(name)
        export = unpacked_export(name, folder / "export")
        lower_folder(export, folder / "out", LowerOptions(src_len=12, max_cache_len=32, verify=False))
        made[name] = export, folder / "out"
    return made


@pytest.mark.slow
@pytest.mark.parametrize(
    ("name", "language"), [("marian-multi", "c"), ("marian-multi", "kotlin"), ("qwen3-padded", "python")]
)
def test_a_loop_gives_the_tokens_of_pytorch(
    name: str, language: str, lowered: dict[str, tuple[Path, Path]], tmp_path: Path
) -> None:
    export, out = lowered[name]
    contract = read_contract(out / "contract.json")
    text = write_lowered_loop(language, contract, "out")
    outputs = {method.file: [port.name for port in method.outputs] for method in contract.methods}
    program, module = list[str](), ModuleType("program")
    if language == "kotlin":
        (tmp_path / "Loop.kt").write_text(text)
        program = ["java", "-cp", compile_kotlin([Path("Loop.kt")], tmp_path), "host.LoopKt"]
    elif language == "c":
        program = [compile_cpp(text, tmp_path)]
    else:
        exec(text, vars(module))
    tried = 0
    for case in (case for case in export_cases(export) if not case["padded"]):
        for row, tokens in zip(case["inputs"]["input_ids"], case["tokens"].tolist(), strict=True):
            expected = tokens[: tokens.index(END) + 1] if END in tokens else tokens
            prompt, source = (case["prompt"], row.tolist()) if case.get("prompt") else (row.tolist(), [])
            if not program:
                found = module.Loop(out).generate(prompt, source, len(expected))
            else:
                words = [",".join(map(str, ids)) for ids in (prompt, source)]
                found = [*map(int, run_for([*program, out, str(len(expected)), *words], out, outputs).split())]
            assert found == expected
            tried += 1
    assert tried > 1


@pytest.mark.slow
def test_a_kotlin_compiler_takes_the_loops(lowered: dict[str, tuple[Path, Path]], tmp_path: Path) -> None:
    for name, (_, out) in lowered.items():
        text = write_lowered_loop("kotlin", read_contract(out / "contract.json"), name)
        (tmp_path / f"{name}.kt").write_text(text.replace("package host", f"package host.{name.partition('-')[0]}"))
    compile_kotlin([Path(f"{name}.kt") for name in lowered], tmp_path)


@pytest.mark.parametrize("language", LOWERED_LOOPS)
def test_code_is_ascii_with_brackets_in_pairs(language: str) -> None:
    text = write_lowered_loop(language, SMALL, 'a"""\\')
    assert text.isascii()
    assert text.startswith('"""' if language == "python" else ("/*", "//"))
    bare = re.sub(r'"(?:[^"\\\n]|\\.)*"|\'(?:[^\'\\\n]|\\.)*\'', "", re.sub(r"(?m)//.*$|^ *#.*$|/\*.*?\*/", "", text))
    assert all(bare.count(opening) == bare.count(closing) for opening, closing in ("()", "[]", "{}"))


@pytest.mark.parametrize("language", LOWERED_LOOPS)
def test_models_that_take_a_source_are_not_run_on_padding_alone(language: str) -> None:
    words = "the models take a source, and there is none"
    assert words not in write_lowered_loop(language, SMALL, "out")
    ids = Port("ids", "float32", (1, 4, 8), "rows", Source("embedding", "step.inputs_embeds", "source"))
    encoder = Method("encoder", "encoder.onnx", "once", (ids,), (Port("y", "float32", (1, 4, 8), "states"),))
    text = write_lowered_loop(language, replace(SMALL, methods=(encoder, *SMALL.methods)), "out")
    assert words in text
    if language == "python":
        exec(text, vars(module := ModuleType("program")))
        loop = object.__new__(module.Loop)
        loop.sizes = {"source": 4}
        with pytest.raises(SystemExit, match=words):
            loop.generate([7], [], 2)


def test_the_program_in_python_takes_no_negative_token(monkeypatch: pytest.MonkeyPatch) -> None:
    """It would be one from the end of the table."""
    exec(write_lowered_loop("python", SMALL, "out"), vars(module := ModuleType("program")))
    monkeypatch.setattr("sys.argv", ["loop.py", "out", "2", "3,-1"])
    with pytest.raises(SystemExit, match="-1 is no token: give numbers such as 12,7,2"):
        module.main()


def test_the_command_writes_a_loop_and_says_in_which_languages_there_is_one(tmp_path: Path, run: Run) -> None:
    (tmp_path / "contract.json").write_text(SMALL.to_json())
    assert run("contract", tmp_path, "--loop", "-o", tmp_path / "Loop.kt")[0] == 0
    said = run("contract", tmp_path, "--loop", "-o", tmp_path / "loop.py")[1]
    assert said.splitlines()[1] == f"Run it: python {tmp_path}/loop.py {tmp_path} 32 PROMPT [SOURCE]"
    (folder := tmp_path / "a b;c").mkdir()
    (folder / "contract.json").write_text(SMALL.to_json())
    said = run("contract", folder, "--loop", "-o", folder / "l.py")[1]
    assert said.splitlines()[1] == f"Run it: python '{folder}/l.py' '{folder}' 32 PROMPT [SOURCE]"
    code, _, error = run("contract", tmp_path, "-o", tmp_path / "loop.mjs")
    assert code != 0
    assert "its suffix is that of no language" in error
    assert "class Loop(folder: File) : AutoCloseable {" in (tmp_path / "Loop.kt").read_text()
    assert "int main(int count, char** words)" in run("contract", tmp_path, "--loop")[1]
    for language in {*LOOPS, "typescript"} - {*LOWERED_LOOPS}:
        words = f"there is no loop in {language} of a lowered folder - take one of c, kotlin, python"
        with pytest.raises(UsageError, match=words):
            write_lowered_loop(language, SMALL, "out")


@pytest.mark.slow
@pytest.mark.parametrize(
    ("model", "target", "last"),
    [
        ("example:sliding-window", "mt8371", "$ graphkit contract out --loop -o loop.cpp"),
        ("example:encoder", "mt8371", "$ graphkit contract out -o out/contract.h"),
        ("example:encoder", "webgpu", "In JavaScript, with graphkit-host: const host = await Host.open(ort, 'out')"),
    ],
)
def test_a_lowering_ends_with_what_fits_its_models_and_its_target(
    model: str, target: str, last: str, tmp_path: Path, run: Run, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    sizes = ("--src-len", "8") if "encoder" in model else ("--max-cache-len", "8")
    code, out, _ = run("lower", model, "-o", "out", "--target", target, *sizes, "--no-verify")
    assert (code, [line for line in out.splitlines() if line][-1]) == (0, last)
