"""The compilers, each in a process of its own: a crash, an error and a time-out are answers."""

from __future__ import annotations

import json
import os
import re
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from graphkit.judges.adapters.ask_vela import run_program

IN_TENSORFLOW = Path(__file__).with_name("in_tensorflow.py")
STAGE = "stage:"  # how `in_tensorflow.py` says what it does next
CPU_OPERATORS = re.compile(r"^CPU operators = ([\d,]+)", re.MULTILINE)


@dataclass(frozen=True)
class Ended:
    """How a process ended: why it failed, "" where it did not, and what it printed."""

    failure: str
    printed: str


@dataclass(frozen=True)
class Vela:
    """What Vela made of a model.

    Attributes:
        failure: Why it does not pass, "" where the NPU runs all of it.
        cpu: Operators left to the CPU, None where Vela did not say.
        operators: Those of its output, with their counts.
    """

    failure: str
    cpu: int | None
    operators: dict[str, int]

    def told(self) -> str:
        """Return it in words."""
        return self.failure or f"0 on the CPU, {self.operators['ethos-u']} ethos-u"


class Tools:
    """The executables of the environment of the compilers.

    Args:
        programs: Its folder of executables.
    """

    def __init__(self, programs: Path) -> None:
        self.programs = programs
        self.environment = {name: value for name, value in os.environ.items() if name != "PYTHONPATH"}
        self.environment["TF_CPP_MIN_LOG_LEVEL"] = "3"  # else it complains of GPUs that are not there
        self.environment["PATH"] = os.pathsep.join([str(programs), os.environ.get("PATH", "")])

    def saved_model(self, model: Path, inputs: Sequence[str], folder: Path) -> Ended:
        """Write a SavedModel; the order of axes of every input stays."""
        return self._run(["python", str(IN_TENSORFLOW), "--saved", str(model), str(folder), *inputs])

    def tflite(self, folder: Path, dtypes: Sequence[str]) -> Ended:
        """Write and run TFLite in these dtypes, of `float32`, `int8` and `int16`; see `in_tensorflow.py`."""
        return self._run(["python", str(IN_TENSORFLOW), str(folder), *dtypes])

    def operators(self, model: Path) -> dict[str, Any]:
        """Return the operators, the highest rank and the dtypes of a TFLite file."""
        ended = self._run(["python", str(IN_TENSORFLOW), "--operators", str(model)])
        found: dict[str, Any] = json.loads(ended.printed.splitlines()[-1])
        return found

    def vela(self, model: Path, accelerator: str, folder: Path) -> Vela:
        """Compile for an accelerator, such as `ethos-u65-256`."""
        words = ["--accelerator-config", accelerator, "--show-cpu-operations", str(model), "--output-dir", str(folder)]
        ended = self._run(["vela", *words])
        (folder / "vela.log").write_text(ended.printed)
        made = folder / f"{model.stem}_vela.tflite"
        operators = self.operators(made)["operators"] if not ended.failure and made.exists() else {}
        return judged(ended, operators)

    def _run(self, words: list[str]) -> Ended:
        failure, printed = run_program([str(self.programs / words[0]), *words[1:]], self.environment)
        stage = next((line for line in reversed(printed.splitlines()) if line.startswith(STAGE)), "")
        return Ended(failure and failure + stage.replace(STAGE, " "), printed)


def judged(ended: Ended, operators: dict[str, int]) -> Vela:
    """Return whether all runs on the NPU; Vela ends well with operators on the CPU too."""
    told = CPU_OPERATORS.search(ended.printed)
    cpu = int(told[1].replace(",", "")) if told is not None else None
    if ended.failure:
        return Vela(ended.failure, cpu, operators)
    others = {name: count for name, count in operators.items() if name != "ethos-u"}
    if cpu is None:
        return Vela("Vela does not say `CPU operators =`", cpu, operators)
    if cpu or others or not operators:
        left = ", ".join(f"{name} {count}" for name, count in sorted(others.items()))
        return Vela(f"{cpu} CPU operators: {left}", cpu, operators)
    return Vela("", cpu, operators)
