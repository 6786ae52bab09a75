"""Judges: compilers that say where they would place the nodes of a model, each in an environment of its own.

for answer in ask_judge("webgpu", [Path("model.onnx")]):
    print(answer.on("cpu"))
"""

from __future__ import annotations

import json
import os
import queue
import subprocess
import sys
import tempfile
import threading
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Literal

import msgspec

from graphkit.errors import OutputError, UsageError, count_things, did_you_mean
from graphkit.io.toml import convert_toml, read_toml
from graphkit.io.transaction import made_folder
from graphkit.runtime.isolation import describe_ending

__all__ = [
    "JUDGES", "Answer", "Deviation", "Judge", "PlacedNode", "Trial", "ask_judge", "find_judge", "install_judge",
    "judge_environment", "judges_folder", "named_judge",
]  # fmt: skip

ADAPTERS = Path(__file__).parent / "adapters"
FOLDER = "GRAPHKIT_JUDGES"  # the variable that names the folder of all environments
LONGEST = 1 << 26  # characters of an answer
SWIFTSHADER = Path("/usr/lib/chromium")  # where Debian keeps a software adapter for WebGPU
LAST = 300  # characters of what a judge said last
OWN_ENDINGS = (0, 1, 2)  # exit codes of a script that ends by itself
PIP_INSTALL = ("-m", "pip", "install", "--no-compile", "--disable-pip-version-check")
AT_ONCE = 100  # models of a process: Qualcomm's compiler takes longer and longer


class Judge(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """A compiler that can be asked."""

    name: str  # what commands call it
    about: str  # whose compiler it is, and for what
    packages: tuple[str, ...]  # what pip installs for it; the first one is the compiler
    licence: str  # of that package
    megabytes: int  # of the environment, about
    says: str  # what it answers
    adapter: str = "ask_provider.py"  # the script that asks it, which gets the name
    alone: tuple[str, ...] = ()  # those of the packages that pip installs without what they ask for

    @property
    def folder(self) -> Path:
        return judges_folder() / self.name

    @property
    def python(self) -> Path:
        return self.folder / ("Scripts/python.exe" if os.name == "nt" else "bin/python")

    @property
    def version(self) -> str:
        """The version of the compiler that is installed, "" where none is."""
        found = sorted(self.folder.glob(f"[Ll]ib/**/site-packages/{self.compiler.replace('-', '_')}-*.dist-info"))
        return found[0].name.removesuffix(".dist-info").rpartition("-")[2] if found and self.python.exists() else ""

    @property
    def compiler(self) -> str:
        return self.packages[0].partition("==")[0]


_FILE = Path(__file__).with_name("judges.toml")
JUDGES: Mapping[str, Judge] = convert_toml(
    _FILE, {name: {"name": name, **table} for name, table in read_toml(_FILE).items()}, dict[str, Judge]
)


class PlacedNode(msgspec.Struct, frozen=True):
    """A node of a compiled model."""

    name: str  # as the model has it, or as the compiler named what it made
    op: str  # its operator
    on: Literal["device", "cpu"]  # where it runs
    why: str = ""  # the compiler's own words, "" for none


class Trial(msgspec.Struct, frozen=True, omit_defaults=True):
    """What a judge with a simulator runs a model on, to say how far its numbers are from onnxruntime's CPU."""

    feeds: str = ""  # a file of numpy with the runs of each input, "" for random numbers
    reference: str = ""  # another model that gives what is wanted, such as the one that was quantised
    dtype: str = ""  # in which the judge computes, "" for its own; `rknn` quantises to `int8`, by the feeds


class Deviation(msgspec.Struct, frozen=True):
    """How far an output is from onnxruntime's CPU, over all runs; None where a number is not finite."""

    output: str  # its name
    cosine: float | None  # the least one of a run
    error: float | None  # the largest difference, relative to the largest number of the output


class Answer(msgspec.Struct, frozen=True):
    """The answer of a judge about one model."""

    number: int = -1  # of the model, among those that a process is asked about
    error: str = ""  # why it does not compile, "" where it does
    # whether the error is about the model, as a crash is; not where a compiler does not start or end
    is_answered: bool = True
    nodes: tuple[PlacedNode, ...] = ()  # where they run
    partitions: int | None = None  # of the device; None where each node counts as one
    copies: int | None = None  # of tensors between the two; None where the judge does not say
    files: dict[str, int] = {}  # what the compiler wrote, with its bytes
    seconds: float = 0.0  # how long it took
    # how far its outputs are off, where a trial was asked for and the judge has a simulator
    numbers: tuple[Deviation, ...] = ()
    no_numbers: str = ""  # why the simulator gives none, "" where it does

    def on(self, place: Literal["device", "cpu"]) -> list[PlacedNode]:
        return [node for node in self.nodes if node.on == place]

    @property
    def places(self) -> dict[str, str]:
        """Where each node is; one of which several things were made is on the CPU where one of these is."""
        return {node.name: node.on for node in sorted(self.nodes, key=lambda node: node.on, reverse=True)}

    @property
    def fault(self) -> str:
        """Why it does not run on the device as a whole, "" where it does."""
        if self.error:
            return f"it does not compile: {' '.join(self.error.split())[:LAST]}"
        left = Counter(node.op for node in self.on("cpu"))
        if not left:
            return "" if self.nodes else "it names no node"
        ops = ", ".join(f"{op} {count}" for op, count in left.most_common())
        return f"{left.total()} of {count_things(len(self.nodes), 'node(s)')} on the CPU: {ops}"


def judges_folder() -> Path:
    """Return the folder of the environments: GRAPHKIT_JUDGES, or one in the user's cache."""
    if named := os.environ.get(FOLDER):
        return Path(named)
    cache = os.environ.get("XDG_CACHE_HOME") or os.environ.get("LOCALAPPDATA")
    return (Path(cache) if cache else Path.home() / ".cache") / "graphkit" / "judges"


def find_judge(name: str) -> Judge:
    """Return a judge that is installed; UsageError where it is not, or where there is none of that name."""
    judge = named_judge(name)
    if not judge.version:
        raise UsageError(f"the judge '{name}' is not installed - run: graphkit judges install {name}")
    return judge


def named_judge(name: str) -> Judge:
    """Return a judge, installed or not; UsageError where there is none of that name."""
    if name not in JUDGES:
        hint = did_you_mean(name, list(JUDGES), f"there are {', '.join(JUDGES)}")
        raise UsageError(f"no judge '{name:.40}' - {hint}")
    return JUDGES[name]


def install_judge(name: str, python: str = sys.executable) -> Judge:
    """Make the environment of a judge with pip; one that is there stays until the new one is whole.

    Raises:
        UsageError: There is no such judge.
        OutputError: It cannot be installed, or something else has its place; all is as it was before.
    """
    judge = named_judge(name)
    folder = judge.folder
    if os.path.lexists(folder) and not (folder / "pyvenv.cfg").exists():
        raise OutputError(f"{folder}: is there, and is no environment of Python - move it, or set {FOLDER}")
    try:
        with made_folder(folder.parent), tempfile.TemporaryDirectory(prefix=".graphkit-", dir=folder.parent) as work:
            new = Path(work, "new")
            pip = [str(new / judge.python.relative_to(folder)), *PIP_INSTALL]
            _run_step(folder, [python, "-m", "venv", str(new)])
            _run_step(folder, [*pip, *(each for each in judge.packages if each not in judge.alone)])
            if judge.alone:
                _run_step(folder, [*pip, "--no-deps", *judge.alone])
            for path in Path(pip[0]).parent.iterdir():  # programs, whose first line says where their Python is
                if not path.is_symlink() and (old := os.fsencode(new)) in (content := path.read_bytes()):
                    path.write_bytes(content.replace(old, os.fsencode(folder)))
            if folder.exists():
                folder.rename(Path(work, "old"))
            new.rename(folder)
    except OSError as error:
        raise OutputError(f"{folder}: cannot be made: {error.strerror} - set {FOLDER}") from error
    return find_judge(name)


def _run_step(folder: Path, words: Sequence[str]) -> None:
    try:
        ran = subprocess.run(words, stdin=subprocess.DEVNULL, stdout=sys.stderr, check=False).returncode
    except OSError as error:
        raise OutputError(f"{words[0]}: does not start: {error.strerror} - name a Python with --python") from error
    if ran:
        raise OutputError(f"{folder}: '{' '.join(words[1:3])}' ends with exit status {ran} - see what it says")


def ask_judge(
    judge: Judge,
    models: Sequence[Path],
    *,
    seconds: float,
    as_it_is: bool = False,
    device: str = "",
    trials: Sequence[Trial] = (),
    python: Path | None = None,
) -> Iterator[Answer]:
    """Yield the answer of a judge about each model, from as few processes as possible.

    A compiler that crashes, or does not end in time, has answered about that model; a new process goes on.

    Args:
        judge: The judge.
        models: The files.
        seconds: The time limit for each.
        as_it_is: Whether the runtime leaves the nodes as they are, rather than fuse and fold some first.
        device: The one that is asked about, of a judge that has several.
        trials: What to run each model on, where numbers are asked for.
        python: The interpreter, which is that of the judge's environment by default.
    """
    left = [{"path": str(path.absolute())} for path in models]
    for question, trial in zip(left, trials, strict=False):
        question.update({"feeds": "", **msgspec.to_builtins(trial)})
    words = [str(python or judge.python), "-I", str(ADAPTERS / judge.adapter), judge.name]
    words += [*(["--as-it-is"] if as_it_is else []), *(["--only", device] if device else [])]
    while left:
        for answer in _ask_process(words, left[:AT_ONCE], seconds):
            yield answer
            del left[0]


def _ask_process(words: Sequence[str], questions: Sequence[dict[str, str]], seconds: float) -> Iterator[Answer]:
    """Yield the answers of one process, the last of which may be that it has ended."""
    lines: queue.SimpleQueue[str] = queue.SimpleQueue()
    with tempfile.TemporaryFile("w+") as paths, tempfile.TemporaryFile() as said:
        for number, question in enumerate(questions):
            paths.write(f"{json.dumps({'number': number, **question})}\n")
        paths.seek(0)
        env = judge_environment()
        process = subprocess.Popen(
            words, stdin=paths, stdout=subprocess.PIPE, stderr=said, env=env, encoding="utf-8", errors="replace"
        )

        def read() -> None:
            assert process.stdout is not None
            while line := process.stdout.readline(LONGEST):
                lines.put(line)
            lines.put("")

        threading.Thread(target=read, daemon=True).start()
        try:
            for number in range(len(questions)):
                try:
                    line = lines.get(timeout=min(seconds, threading.TIMEOUT_MAX))
                    code = None if line else process.wait(seconds)
                except (queue.Empty, subprocess.TimeoutExpired):
                    yield Answer(error=f"the compiler does not end in {seconds:g} s", is_answered=False)
                    return
                if code is not None:
                    said.seek(0)
                    last = said.read().decode("utf-8", "replace").strip().splitlines()[-1:]
                    crashes = code not in OWN_ENDINGS
                    how = f"the compiler {'crashes' if crashes else 'stops'}: {describe_ending(code)}"
                    yield Answer(error=": ".join([how, *(text[:LAST] for text in last)]), is_answered=crashes)
                    return
                try:
                    answer = msgspec.json.decode(line, type=Answer)
                    why = "" if answer.number == number else f"number {answer.number}, where {number} is asked"
                except msgspec.MsgspecError as error:
                    why = f"{error!s:.200}"
                if why:
                    answer = Answer(error=f"what it answers is not understood: {why}", is_answered=False)
                yield answer
                if not answer.is_answered:  # the next line may be about any model
                    return
        finally:
            process.kill()
            process.wait()


def judge_environment() -> dict[str, str]:
    """Return the environment of a compiler, with a software adapter for WebGPU where there is one."""
    environment = {name: value for name, value in os.environ.items() if not name.startswith("PYTHON")}
    driver = SWIFTSHADER / "vk_swiftshader_icd.json"
    if driver.exists() and "VK_ICD_FILENAMES" not in environment:
        folders = [environment.get("LD_LIBRARY_PATH", ""), str(SWIFTSHADER)]
        environment |= {"VK_ICD_FILENAMES": str(driver), "LD_LIBRARY_PATH": os.pathsep.join(filter(None, folders))}
        environment |= {"ORT_WEBGPU_EP_ALLOW_SOFTWARE_ADAPTER": "1"}
    return environment
