"""Judges: a compiler in an environment of its own, which may be absent, crash, or answer nonsense."""

from __future__ import annotations

import json
import math
import os
import sys
import time
from collections.abc import Callable
from pathlib import Path

import msgspec.structs
import onnx.parser
import pytest

import graphkit.judges
from graphkit.deploy.lower_report import Judgement, Judgements, judge_models
from graphkit.errors import OutputError, UsageError
from graphkit.examples import resolve
from graphkit.judges import (
    JUDGES,
    PIP_INSTALL,
    Answer,
    Deviation,
    Judge,
    Trial,
    ask_judge,
    find_judge,
    install_judge,
    judges_folder,
)

Run = Callable[..., tuple[object, str, str]]
TAKEN = '{"number": NUMBER, "nodes": [{"name": "a", "op": "Add", "on": "device"}], "partitions": 1, "seconds": 0.5}'
ANSWERS = """
import json, os, sys
for line in sys.stdin:
    question = json.loads(line)
    name = os.path.basename(question["path"])
    if "crash" in name:
        print("at node 7", file=sys.stderr, flush=True)
        os.abort()
    if "mute" in name:
        sys.stdout = None
        os.close(1)
    while "slow" in name or "mute" in name:
        pass
    with open(question["path"]) as file:
        print(file.read().replace("NUMBER", str(question["number"])), flush=True)
"""


@pytest.fixture
def judge(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Judge:
    """A judge that answers with the content of each file, or crashes, or never ends, as its name says."""
    (tmp_path / "adapters").mkdir()
    (tmp_path / "adapters" / "fake.py").write_text(ANSWERS)
    monkeypatch.setattr(graphkit.judges, "ADAPTERS", tmp_path / "adapters")
    return Judge(
        name="fake",
        about="A compiler.",
        packages=("fake==1",),
        licence="MIT",
        megabytes=1,
        says="all",
        adapter="fake.py",
    )


def asked(judge: Judge, folder: Path, *files: tuple[str, str], seconds: float = 30.0) -> list[Answer]:
    for name, text in files:
        (folder / name).write_text(text)
    models = [folder / name for name, _ in files]
    return list(ask_judge(judge, models, seconds=seconds, python=Path(sys.executable)))


def test_an_answer_says_where_nodes_run_and_why(judge: Judge, tmp_path: Path) -> None:
    nodes = [{"name": "a", "op": "Add", "on": "device"}, {"name": "g", "op": "Gather", "on": "cpu", "why": "too wide"}]
    text = json.dumps({"number": 0, "nodes": nodes, "partitions": 1, "files": {"a.bin": 7}})
    (found,) = asked(judge, tmp_path, ("m.onnx", text), seconds=math.inf)
    assert found.fault == "1 of 2 nodes on the CPU: Gather 1"
    assert [(node.name, node.why) for node in found.on("cpu")] == [("g", "too wide")]
    judgement = Judgement.of("m.onnx", "fake", found)
    assert judgement.output == ("Gather 'g': too wide",)
    assert (judgement.device_nodes, judgement.cpu_nodes, judgement.partitions, judgement.bytes) == (1, 1, 1, 7)
    assert Judgements((judgement,)).findings() == ("m.onnx: `fake`: 1 of 2 nodes on the CPU: Gather 1",)


def test_numbers_of_a_simulator_are_told_apart_from_placement(judge: Judge, tmp_path: Path) -> None:
    judge_script = graphkit.judges.ADAPTERS / "fake.py"
    judge_script.write_text(
        ANSWERS.replace("file.read()", "file.read().replace('FEEDS', question.get('feeds', 'none'))")
    )
    numbers = [{"output": "y", "cosine": 0.5, "error": 0.25}, {"output": "z", "cosine": 1.0, "error": 2.0}]
    said = json.dumps({"number": 0, "nodes": [{"name": "FEEDS", "op": "Add", "on": "device"}], "numbers": numbers})
    unknown = TAKEN.replace('"seconds": 0.5', '"no_numbers": "the simulator does not start"')
    (tmp_path / "m.onnx").write_text(said)
    (tmp_path / "n.onnx").write_text(unknown)
    models = [tmp_path / "m.onnx", tmp_path / "n.onnx"]
    found, none = ask_judge(judge, models, seconds=30, trials=[Trial(feeds="a.npz")], python=Path(sys.executable))
    assert (found.fault, found.nodes[0].name) == ("", "a.npz")
    judgement = Judgement.of("m.onnx", "fake", found)
    assert judgement.counts[-2:] == ("0.500000", "2.0e+00")
    assert Judgement.of("n.onnx", "fake", none).output == ("no numbers: the simulator does not start",)
    assert not Judgements((judgement,)).findings()
    assert [*Judgements((judgement,)).other_numbers()] == [
        "m.onnx: `fake` computes other numbers than the CPU: a cosine of 0.500, an error of 200% of the largest number."
    ]
    lost = Judgement.of(
        "m.onnx", "fake", msgspec.structs.replace(found, numbers=(found.numbers[0], Deviation("z", None, None)))
    )
    assert (lost.counts[-2:], lost.output) == ((None, None), ("no numbers: 'z' is not finite",))


def test_a_compiler_that_crashes_has_answered_and_the_others_are_asked(judge: Judge, tmp_path: Path) -> None:
    files = [("a.onnx", TAKEN), ("crash.onnx", ""), ("b.onnx", TAKEN), ("crash2.onnx", "")]
    first, crash, second, last = asked(judge, tmp_path, *files)
    assert (first.fault, second.fault) == ("", "")
    assert crash.error == last.error
    assert "SIGABRT" in crash.error
    assert crash.error.endswith("at node 7")
    assert crash.fault.startswith("it does not compile: the compiler crashes")


@pytest.mark.slow
def test_a_compiler_that_does_not_end_is_ended(judge: Judge, tmp_path: Path) -> None:
    start = time.monotonic()
    slow, after = asked(judge, tmp_path, ("slow.onnx", ""), ("b.onnx", TAKEN), seconds=2.0)
    assert slow.error == "the compiler does not end in 2 s"
    assert after.fault == ""
    assert time.monotonic() - start < 300


def test_a_compiler_that_says_no_more_is_ended(judge: Judge, tmp_path: Path) -> None:
    mute, after = asked(judge, tmp_path, ("mute.onnx", ""), ("b.onnx", TAKEN), seconds=2.0)
    assert (mute.error, mute.is_answered) == ("the compiler does not end in 2 s", False)
    assert after.fault == ""


@pytest.mark.cases(3)
@pytest.mark.parametrize(
    "text",
    [
        "no JSON",
        "[1, 2]",
        '{"nodes": 3}',
        '{"nodes": [{"name": "a", "op": "Add", "on": "moon"}]}',
        "[" * 5000,
        '"\\ud800"',
        TAKEN.replace("NUMBER", "7"),
        f"{TAKEN}\\n{TAKEN}".replace("NUMBER", "7"),
    ],
)
def test_an_answer_that_is_not_understood_is_an_error(judge: Judge, tmp_path: Path, text: str) -> None:
    found, after = asked(judge, tmp_path, ("m.onnx", text), ("n.onnx", TAKEN))
    assert found.error.startswith("what it answers is not understood: ")
    assert not found.is_answered
    assert after.fault == ""


@pytest.mark.skipif(sys.platform != "linux", reason="other systems have no such names")
def test_each_model_gets_its_own_answer_whatever_its_name(judge: Judge, tmp_path: Path) -> None:
    names = ["a\nb.onnx", os.fsdecode(b"\xff.onnx"), 'c\u2028".onnx']
    found = asked(judge, tmp_path, *((name, TAKEN.replace('"a"', f'"{index}"')) for index, name in enumerate(names)))
    assert [answer.nodes[0].name for answer in found] == ["0", "1", "2"]


def test_text_of_a_compiler_is_no_markup(judge: Judge, tmp_path: Path) -> None:
    node = {"name": "\x1b[31m", "op": "[bold]Gather", "on": "cpu", "why": "<b>no</b>"}
    (found,) = asked(judge, tmp_path, ("m.onnx", json.dumps({"number": 0, "nodes": [node]})))
    shown = Judgements((Judgement.of("m.onnx", "fake", found),))
    assert "\x1b" not in shown.to_text()
    assert "<b>no</b>" not in shown.to_html()


def test_a_judge_that_is_not_installed_says_how_to_install_it(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, run: Run
) -> None:
    monkeypatch.setenv("GRAPHKIT_JUDGES", str(tmp_path))
    assert judges_folder() == tmp_path
    with pytest.raises(UsageError, match="the judge 'qnn' is not installed - run: graphkit judges install qnn"):
        find_judge("qnn")
    code, _, err = run("lower", resolve("example:encoder"), "-o", tmp_path / "out", "--judge", "webgpu")
    assert (code, err) == (2, "Error: the judge 'webgpu' is not installed - run: graphkit judges install webgpu\n")
    assert not (tmp_path / "out").exists()
    with pytest.raises(UsageError, match="no judge 'qnx' - did you mean 'qnn'"):
        install_judge("qnx")


def test_the_list_names_versions_and_licences(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, run: Run) -> None:
    monkeypatch.setenv("GRAPHKIT_JUDGES", str(tmp_path))
    python = JUDGES["webgpu"].python
    python.parent.mkdir(parents=True)
    python.touch()
    (tmp_path / "webgpu" / "lib" / "python3" / "site-packages" / "onnxruntime_ep_webgpu-0.4.0.dist-info").mkdir(
        parents=True
    )
    code, out, _ = run("judges", "--full")
    assert code == 0
    assert "qnn       not installed" in out
    assert "webgpu    0.4.0" in out
    assert all(judge.licence.split()[0] in out for judge in JUDGES.values())


def test_nothing_is_installed_unless_that_is_accepted(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, run: Run
) -> None:
    monkeypatch.setenv("GRAPHKIT_JUDGES", str(tmp_path / "judges"))
    code, out, err = run("judges", "install", "qnn")  # there is nobody to answer
    assert (code, err) == (2, "Error: nothing is installed - answer y, or give --yes\n")
    assert "no redistribution" in out
    assert "545 MB" in out
    assert not (tmp_path / "judges").exists()
    with pytest.raises(OutputError, match="does not start"):
        install_judge("qnn", str(tmp_path / "no-python"))


def test_what_has_the_place_of_a_judge_stays_where_it_cannot_be_installed(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("GRAPHKIT_JUDGES", str(tmp_path))
    kept = tmp_path / "webgpu" / "kept"
    kept.parent.mkdir()
    kept.touch()
    with pytest.raises(OutputError, match="is there, and is no environment of Python"):
        install_judge("webgpu")
    (tmp_path / "webgpu" / "pyvenv.cfg").touch()  # an environment
    no_python = tmp_path / "no-python"
    no_python.write_text("#!/bin/sh\nexit 3\n")
    no_python.chmod(0o755)
    with pytest.raises(OutputError):
        install_judge("webgpu", str(no_python))
    assert kept.exists()
    assert {path.name for path in tmp_path.iterdir()} == {"webgpu", "no-python"}


def fake_python(folder: Path, package: str) -> Path:
    """Return a Python whose environments have a package, and write down in `said` what pip is told."""
    path = folder / "python"
    site = f"$3/lib/python3/site-packages/{package}.dist-info"
    inner = f"printf '#!/bin/sh\\necho \"$@\" >> {folder}/said\\n' > $3/bin/python && chmod +x $3/bin/python"
    program = 'echo "#!$3/bin/python" > $3/bin/program'
    path.write_text(f"#!/bin/sh\nmkdir -p $3/bin {site} && touch $3/pyvenv.cfg && {program} && {inner}\n")
    path.chmod(0o755)
    return path


@pytest.mark.skipif(os.name == "nt", reason="the Python here is a script")
def test_a_judge_is_put_in_the_place_of_an_earlier_one(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("GRAPHKIT_JUDGES", str(tmp_path / "judges"))
    python = fake_python(tmp_path, "onnxruntime_ep_webgpu-9")
    assert install_judge("webgpu", str(python)).version == "9"
    (tmp_path / "judges" / "webgpu" / "old").touch()
    install_judge("webgpu", str(python))
    assert not (tmp_path / "judges" / "webgpu" / "old").exists()
    its = tmp_path / "judges" / "webgpu" / "bin"
    assert (its / "program").read_text() == f"#!{its}/python\n"
    assert [path.name for path in (tmp_path / "judges").iterdir()] == ["webgpu"]


@pytest.mark.skipif(os.name == "nt", reason="the Python here is a script")
def test_a_compiler_that_asks_for_too_old_packages_is_installed_without_them(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("GRAPHKIT_JUDGES", str(tmp_path / "judges"))
    install_judge("rknn", str(fake_python(tmp_path, "rknn_toolkit2-9")))
    said = [line.split() for line in (tmp_path / "said").read_text().splitlines()]
    others, compiler = (words[len(PIP_INSTALL) :] for words in said)
    assert others == list(JUDGES["rknn"].packages[1:])
    assert compiler == ["--no-deps", JUDGES["rknn"].packages[0]]


def test_no_judge_has_two_builds_of_tensorflow() -> None:
    """Its packages ask for one of their own, which would be written over the other, in 1 GB more."""
    assert {each.partition("==")[0] for each in JUDGES["vela"].alone} == {"onnx2tf", "tf_keras"}
    assert all(set(judge.alone) <= set(judge.packages) for judge in JUDGES.values())


def ask_installed(name: str) -> Judge:
    judge = JUDGES[name]
    if not judge.version:
        pytest.skip(f"graphkit judges install {name}")
    return judge


@pytest.fixture
def models(tmp_path: Path) -> list[Path]:
    """A model that every compiler takes, and one that is none."""
    text = '<ir_version: 8, opset_import: ["" : 17]> g (float[2, 4] x) => (float[2, 4] y) { y = Sigmoid (x) }'
    onnx.save(onnx.parser.parse_model(text), tmp_path / "fine.onnx")
    (tmp_path / "broken.onnx").write_bytes(b"\xff" * 50)
    return [tmp_path / "fine.onnx", tmp_path / "broken.onnx"]


@pytest.mark.parametrize("name", sorted(JUDGES))
def test_an_installed_judge_takes_a_sigmoid_and_no_broken_file(name: str, models: list[Path]) -> None:
    ask_installed(name)
    fine, broken = judge_models(name, models, seconds=300)
    if "finds no device" in fine.why:  # as OpenVINO on a processor that is none of Intel's
        pytest.skip(fine.why)
    assert (fine.why, fine.cpu_nodes) == ("", 0)
    assert broken.why.startswith("it does not compile: ")
