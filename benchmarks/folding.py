"""Folding shapes: `graphkit fold` against the tools that do the like.

    python benchmarks/folding.py [CASE...]

A case is `MODEL`, `MODEL@batch_size=1`, `MODEL@pixel_values=1x3x800x800`, commas between several settings; a model may
be a stub or compressed, as those of `tests/models` are, which it takes by default. Whole processes in turns; what is
left in each result, bodies included; whether it still gives what the original gives. The peers live in an environment
of their own (`--peers PYTHON`).
"""

from __future__ import annotations

import argparse
import subprocess
import sys
import tempfile
import time
from collections import Counter
from dataclasses import dataclass
from functools import partial
from pathlib import Path

from agreement import compare, truth
from contenders import TOOLS, Case, Job, prepare, versions
from measure import Spread, alternate, environment, peak_memory
from rich.console import Console
from rich.table import Table
from stubs import complete

import graphkit
from graphkit.analysis.shape_ops import shape_ops
from graphkit.graph.view import all_nodes

MODELS = Path(__file__).parents[1] / "tests/models"
DETR = MODELS / "detr-resnet-50/model_quantized.onnx.xz"
DEFAULT = (
    f"{DETR}",
    f"{DETR}@batch_size=1",
    f"{DETR}@pixel_values=1x3x800x800",
    f"{MODELS}/marian-tiny/decoder_model_merged.onnx.xz",
)
COUNTED = ("Shape", "Unsqueeze", "Concat", "Gather", "Reshape", "Transpose", "Expand", "ConstantOfShape")
PLUMBING = ("Unsqueeze", "Concat", "Gather")
REFERENCE = "onnxsim"


@dataclass(frozen=True)
class Attempt:
    """A first run of a tool: what it left behind, or why it failed."""

    out: Path
    failure: str


def run(command: list[str], timeout: int) -> tuple[float, str]:
    """Run a process; return the seconds and "" or what went wrong."""
    started = time.perf_counter()
    try:
        done = subprocess.run(command, capture_output=True, text=True, timeout=timeout, errors="replace")
    except subprocess.TimeoutExpired:
        return float(timeout), f"not done in {timeout} s"
    lines = (done.stderr.strip() or done.stdout.strip()).splitlines()
    failure = f"exit {done.returncode}: {lines[-1][:300] if lines else ''}" if done.returncode else ""
    return time.perf_counter() - started, failure


def attempt(command: list[str], out: Path, timeout: int) -> Attempt:
    """Run a tool for the first time."""
    for old in out.parent.glob(f"{out.name}*"):
        old.unlink()
    _, failure = run(command, timeout)
    return Attempt(out, failure or ("" if out.is_file() else "exit 0, but no result"))


def counts(path: Path) -> tuple[str, ...]:
    """Count the nodes of a model that shapes are made with."""
    model = graphkit.load(path)
    found = shape_ops(model)
    total = Counter(node.op_type for node in all_nodes(model.scopes) if not node.domain)
    plumbing = sum(op.on_shapes for op in found.ops if op.op in PLUMBING)
    return tuple(str(n) for n in (found.nodes, found.on_shapes, plumbing, *(total[op] for op in COUNTED)))


def measure(job: Job, options: argparse.Namespace, console: Console) -> None:
    """Measure one case and print its table."""
    name = f"{job.case.name} {job.case.mode}"
    commands, attempts = {}, {}
    for tool in options.tools:
        if tool == "onnxsim, bodies" and not any(node.bodies for node in all_nodes(graphkit.load(job.model).scopes)):
            continue
        out = job.case.result(options.keep, tool)
        out.parent.mkdir(parents=True, exist_ok=True)
        commands[tool] = TOOLS[tool](job, out)
        attempts[tool] = attempt(commands[tool], out, options.timeout)
    alive = {tool: command for tool, command in commands.items() if not attempts[tool].failure}
    samplers = {tool: partial(lambda c: run(c, options.timeout)[0], command) for tool, command in alive.items()}
    seconds = alternate(samplers, options.rounds, warm_up=False) if options.rounds else {}
    columns = ("nodes", "on shapes", "of these U+C+G", *COUNTED, "time", f"over {REFERENCE}", "memory", "outputs")
    table = Table("", *columns, title=name)
    table.add_row("original", *counts(job.model))
    expected = truth(job) if options.agree else None
    notes = []
    for tool, tried in attempts.items():
        if tried.failure:
            table.add_row(tool, "fails")
            notes.append(f"{tool}: {tried.failure}")
            continue
        row = [*counts(tried.out), *times(tool, seconds), memory(commands[tool]) if options.memory else ""]
        agreed = compare(tried.out, expected) if expected else None
        table.add_row(tool, *row, str(agreed or ""))
        notes += [f"{tool}: {failure}" for failure in agreed.failures] if agreed else []
    console.print(table)
    for note in notes:
        console.print(f"  {note[:400]}", soft_wrap=True, markup=False)


def times(tool: str, seconds: dict[str, Spread]) -> tuple[str, str]:
    """Write the seconds of a tool, and those over the reference."""
    if tool not in seconds:
        return "", ""
    over = seconds[tool].over(seconds[REFERENCE]).show("x", 2) if REFERENCE in seconds else ""
    return seconds[tool].show(" s", 2), over


def memory(command: list[str]) -> str:
    """Return the peak anonymous memory of a run."""
    found = peak_memory(command, quiet=True)
    return f"{found.anonymous / 1e6:,.0f} MB" if found else ""


def main() -> None:
    """Measure every case."""
    parser = argparse.ArgumentParser(description="Measure graphkit fold against its peers.")
    parser.add_argument("cases", nargs="*", metavar="CASE", default=DEFAULT, help="MODEL[@NAME=N[,INPUT=AxB...]]")
    parser.add_argument("--rounds", type=int, default=5, help="runs of each tool, in turns (default: 5)")
    parser.add_argument("--peers", default=sys.executable, help="the interpreter that has the peers")
    parser.add_argument("--tools", default=",".join(TOOLS).replace(", ", " "), help="which, commas between them")
    parser.add_argument("--keep", type=Path, help="a folder for the results")
    parser.add_argument("--timeout", type=int, default=900, help="seconds for one run (default: 900)")
    parser.add_argument("--memory", action="store_true", help="measure the memory too, in runs of its own")
    parser.add_argument("--no-agree", dest="agree", action="store_false", help="do not compare outputs")
    options = parser.parse_args()
    options.tools = [tool for tool in TOOLS if tool.replace(", ", " ") in options.tools.split(",")]
    console = Console(width=230, highlight=False)
    console.print(f"{environment()}\n{versions(options.peers)}\n{options.rounds} rounds; median (least to greatest)")
    with tempfile.TemporaryDirectory(prefix="folding-") as folder:
        options.keep = options.keep or Path(folder)
        for case in map(Case.parse, options.cases):
            job = prepare(case, complete(case.model, Path(folder)), Path(folder), options.peers)
            measure(job, options, console)


if __name__ == "__main__":
    main()
