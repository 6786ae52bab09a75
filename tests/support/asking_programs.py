"""Programs that print the inputs of a model where they would run it, and read its outputs: see `declarations`."""

from __future__ import annotations

import json
import re
import shutil
import subprocess
from collections.abc import Mapping, Sequence
from functools import cache
from pathlib import Path

import numpy as np
import onnxruntime
import pytest

DECLARATIONS = Path(__file__).parents[1] / "contract" / "declarations"


@cache
def has_compiler(name: str) -> bool:
    """Whether a compiler is there; one of Kotlin since 1.5, as before `fun interface` and others are unknown to it."""
    if name != "kotlinc" or shutil.which(name) is None:
        return shutil.which(name) is not None
    said = subprocess.run([name, "-version"], capture_output=True, text=True, timeout=120, check=False)
    version = re.search(r"kotlinc-jvm (\d+)\.(\d+)", said.stdout + said.stderr)
    return version is not None and tuple(map(int, version.groups())) >= (1, 5)


def compiled(command: Sequence[str], folder: Path) -> None:
    """Run a compiler in a folder, which has to find nothing wrong; without it, the test is skipped."""
    if not has_compiler(command[0]):
        pytest.skip(f"{command[0]} is not there, or is too old")
    done = subprocess.run(command, cwd=folder, capture_output=True, text=True, timeout=600, check=False)
    assert done.returncode == 0, done.stdout + done.stderr


def compile_cpp(text: str, folder: Path) -> str:
    """Return the path of the program of a loop in C++."""
    (folder / "loop.cpp").write_text(text)
    flags = ["-std=c++17", "-Wall", "-Wextra", "-Werror", "-I", str(DECLARATIONS)]
    compiled(["c++", *flags, "loop.cpp", "-o", "loop"], folder)
    return str(folder / "loop")


def compile_rust(text: str, folder: Path) -> str:
    """Return the path of a program in Rust over the crate `ort`, with the modules in its folder."""
    (folder / "main.rs").write_text(text)
    crate = ["--edition", "2021", "-D", "warnings"]
    compiled(["rustc", *crate, "--crate-type", "rlib", str(DECLARATIONS / "ort.rs")], folder)
    compiled(["rustc", *crate, "main.rs", "--extern", "ort=libort.rlib", "-o", "main"], folder)
    return str(folder / "main")


def compile_kotlin(files: Sequence[Path], folder: Path) -> str:
    """Return the path of a jar of files over the classes of onnxruntime and Android that they name."""
    sources = [*map(str, files), *map(str, DECLARATIONS.glob("*.kt"))]
    compiled(["kotlinc", "-include-runtime", "-d", "loop.jar", *sources], folder)
    return str(folder / "loop.jar")


def run_for(command: Sequence[str], folder: Path, outputs: Mapping[str, Sequence[str]]) -> str:
    """Return what a program prints in the end, whose models of a folder run here; with their outputs in order."""
    sessions: dict[str, onnxruntime.InferenceSession] = {}
    program = subprocess.Popen([*map(str, command)], stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True)
    assert program.stdin is not None
    assert program.stdout is not None
    while (line := program.stdout.readline()).startswith("run "):
        _, file, count = line.split()
        feeds = {}
        for _ in range(int(count)):
            port, dtype, dims, content = program.stdout.readline().split("|")
            array = np.array(json.loads(content), np.uint8).tobytes()
            feeds[port] = np.frombuffer(array, dtype).reshape(json.loads(dims))
        session = sessions.setdefault(file, onnxruntime.InferenceSession(folder / file))
        program.stdin.write(f"{len(outputs[file])}\n")
        for port, array in zip(outputs[file], session.run(outputs[file], feeds), strict=True):
            dims, content = (",".join(map(str, numbers)) for numbers in (array.shape, array.tobytes()))
            program.stdin.write(f"{port}|{array.dtype}|{dims}|{content}\n")
        program.stdin.flush()
    program.stdin.close()
    said = line + program.stdout.read()
    assert program.wait(60) == 0
    return said
