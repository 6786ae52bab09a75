"""Splitting a merged decoder: `graphkit split-merged --no-verify` against `cp` and against a script with onnx alone.

    python benchmarks/splitting.py MODEL...

Whole processes, imports included; the page cache is warm. The model's files are copied into a scratch folder beside
the model, which holds the results as well, so all of it is on one disk; onnx reads no data file with several hard
links. Results are deleted, and the disk is left to settle, before each run: one run's writing does not fall into the
next. Memory and bytes written are taken in runs of their own.
"""

from __future__ import annotations

import argparse
import os
import resource
import shutil
import sys
import tempfile
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import partial
from pathlib import Path

from measure import Spread, alternate, environment, peak_memory, wall, warm
from rich.console import Console
from rich.table import Table

import graphkit

PLAIN = Path(__file__).with_name("plain.py")
INLINE_LIMIT = 2**31 - 1
BLOCK = 512  # of ru_oublock, in bytes
MEMORY_RUNS = 2


@dataclass(frozen=True)
class Cost:
    """What a run takes, in bytes.

    Attributes:
        anonymous: The peak of its anonymous memory; None where the system does not tell.
        written: What it handed to the disk.
        made: The size of the files that are there afterwards.
    """

    anonymous: int | None
    written: int
    made: int


class Scratch:
    """A folder with a copy of a model's files, where runs leave files that the next one must not find."""

    def __init__(self, model: Path, folder: Path) -> None:
        self.folder, self.model = folder, folder / model.name
        self.sources = [folder / path.relative_to(model.parent) for path in graphkit.load(model).files]
        for source in self.sources:
            source.parent.mkdir(parents=True, exist_ok=True)
            shutil.copyfile(model.parent / source.relative_to(folder), source)
        self.weights = max(self.sources, key=lambda path: path.stat().st_size)
        self.size = sum(path.stat().st_size for path in self.sources)
        self.results = folder / "results"
        self.clean()

    def made(self) -> list[Path]:
        """Return the files that are not the model's."""
        return [path for path in self.folder.rglob("*") if path.is_file() and path not in self.sources]

    def clean(self) -> None:
        """Delete what a run has made and wait for the disk."""
        for path in self.made():
            path.unlink()
        self.results.mkdir(exist_ok=True)
        os.sync()

    def split(self, weights: str) -> list[str]:
        """Return the command that splits the model; in place it writes beside the source."""
        target = self.folder if weights == "in-place" else self.results
        options = ["--no-verify", "--weights", weights, "--output", str(target)]
        return [sys.executable, "-m", "graphkit", "split-merged", str(self.model), *options]

    def commands(self) -> dict[str, list[str]]:
        """Return what to measure, by name."""
        inline = ["inline"] if self.size < INLINE_LIMIT else []
        return {
            "cp": ["cp", str(self.weights), str(self.results / "copy")],
            **{name: self.split(name) for name in ("in-place", "shared", *inline)},
            "onnx": [sys.executable, str(PLAIN), str(self.model), str(self.results)],
        }

    def time(self, command: Sequence[str]) -> float:
        """Return the seconds of a run."""
        self.clean()
        return wall(command)

    def cost(self, command: Sequence[str]) -> Cost:
        """Return what a run takes, the greatest peak of a few."""
        peaks = []
        for _ in range(MEMORY_RUNS):
            self.clean()
            before = resource.getrusage(resource.RUSAGE_CHILDREN).ru_oublock
            peaks.append(peak_memory(command))
            written = (resource.getrusage(resource.RUSAGE_CHILDREN).ru_oublock - before) * BLOCK
        anonymous = max((memory.anonymous for memory in peaks if memory is not None), default=None)
        return Cost(anonymous, written, sum(path.stat().st_size for path in self.made()))


def table(scratch: Scratch, rounds: int) -> Table:
    """Measure one model."""
    for path in scratch.sources:
        warm(path)
    commands = scratch.commands()
    samplers: dict[str, Callable[[], float]] = {
        name: partial(scratch.time, command) for name, command in commands.items()
    }
    seconds = alternate(samplers, rounds)
    columns = "whole process", "over cp", "less in-place, over cp", "peak anonymous memory", "written", "files"
    result = Table("", *columns, title=f"{scratch.model.name}, {scratch.size / 1e6:,.0f} MB")
    for name, command in commands.items():
        cost = scratch.cost(command)
        anonymous = "" if cost.anonymous is None else f"{cost.anonymous / 1e6:,.0f} MB"
        sizes = anonymous, f"{cost.written / 1e6:,.1f} MB", f"{cost.made / scratch.size:.3f}x"
        result.add_row(name, *ratios(name, seconds), *sizes)
    scratch.clean()
    return result


def ratios(name: str, seconds: dict[str, Spread]) -> tuple[str, str, str]:
    """Write the seconds, those over `cp`, and those of the copying alone over `cp`."""
    spread, copying = seconds[name], ""
    if name in ("shared", "inline"):
        copying = spread.minus(seconds["in-place"]).over(seconds["cp"]).show("x", 2)
    return spread.show(" s", 2), "" if name == "cp" else spread.over(seconds["cp"]).show("x", 2), copying


def main() -> None:
    """Measure every model."""
    parser = argparse.ArgumentParser(description="Measure graphkit split-merged against cp and a plain script.")
    parser.add_argument("models", nargs="+", type=Path, metavar="MODEL", help="merged decoders")
    parser.add_argument("--rounds", type=int, default=5, help="runs of each command, in turns (default: 5)")
    options = parser.parse_args()
    missing = [str(path) for path in options.models if not path.is_file()]
    if missing or options.rounds < 1:
        parser.error(f"no such file: {', '.join(missing)}" if missing else "--rounds is at least 1")
    console = Console(width=140, highlight=False)
    console.print(f"{environment()}\n{options.rounds} rounds; median (least to greatest)", soft_wrap=True)
    for model in options.models:
        with tempfile.TemporaryDirectory(dir=model.parent, prefix=".splitting-") as folder:
            console.print(table(Scratch(model, Path(folder)), options.rounds))


if __name__ == "__main__":
    main()
