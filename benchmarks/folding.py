"""Folding shapes: `graphkit fold` against the tools that do the like.

    python benchmarks/folding.py [CASE...]

A case is `MODEL`, `MODEL@batch_size=1`, `MODEL@pixel_values=1x3x800x800`, commas between several settings; a model may
be a stub or compressed, as those of `tests/models` are, which it takes by default. Whole processes in turns, by
the clock and by the processor's time, which other work on the machine moves less, over those of onnxsim; what is left
in each result, bodies included; whether it still gives what the original gives. The peers live in an environment of
their own (`--peers PYTHON`).
"""

from __future__ import annotations

import argparse
import resource
import subprocess
import sys
import tempfile
import time
from collections import Counter
from dataclasses import dataclass, field
from pathlib import Path

from contenders import TOOLS, Case, Job, prepare, versions
from measure import Spread, alternate, environment, peak_memory
from rich.console import Console
from rich.table import Table
from stubs import complete

import graphkit
from graphkit.analysis.shape_ops import shape_ops
from graphkit.errors import ModelError
from graphkit.graph.view import all_nodes
from graphkit.options import RewriteProofOptions
from graphkit.shapes import DimSpec
from graphkit.verify import verify_rewrite

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
class Fold:
    """A tool on a case.

    Attributes:
        command: Its process.
        out: The model that it writes.
        timeout: Seconds.
        processor: What each timed run took of the processor, in seconds: user and system.
    """

    command: list[str]
    out: Path
    timeout: int
    processor: list[float] = field(default_factory=list)

    def clean(self) -> None:
        """Delete what an earlier run has left: onnxsim appends to its data file."""
        self.out.parent.mkdir(parents=True, exist_ok=True)
        for old in self.out.parent.glob(f"{self.out.name}*"):
            old.unlink()

    def time(self) -> float:
        """Return the seconds of a run."""
        self.clean()
        before, started = resource.getrusage(resource.RUSAGE_CHILDREN), time.perf_counter()
        self._run(check=True)
        seconds, after = time.perf_counter() - started, resource.getrusage(resource.RUSAGE_CHILDREN)
        self.processor.append(after.ru_utime - before.ru_utime + after.ru_stime - before.ru_stime)
        return seconds

    def failure(self) -> str:
        """Run for the first time; return "" or what goes wrong."""
        self.clean()
        try:
            done = self._run()
        except subprocess.TimeoutExpired:
            return f"not done in {self.timeout} s"
        if done.returncode:
            lines = (done.stderr.strip() or done.stdout.strip()).splitlines()
            return f"exit {done.returncode}: {lines[-1][:300] if lines else ''}"
        return "" if self.out.is_file() else "exit 0, but no result"

    def _run(self, *, check: bool = False) -> subprocess.CompletedProcess[str]:
        """Run it where its result goes: some tools drop files where they run."""
        return subprocess.run(
            self.command,
            cwd=self.out.parent,
            timeout=self.timeout,
            check=check,
            capture_output=True,
            text=True,
            errors="replace",
        )

    def memory(self) -> str:
        """Return the peak anonymous memory of a run."""
        self.clean()
        found = peak_memory(self.command, quiet=True, folder=self.out.parent)
        return f"{found.anonymous / 1e6:,.0f} MB" if found else ""


def counts(path: Path) -> tuple[str, ...]:
    """Count the nodes of a model that shapes are made with."""
    model = graphkit.load(path)
    found = shape_ops(model)
    total = Counter(node.op_type for node in all_nodes(model.scopes) if not node.domain)
    plumbing = sum(op.on_shapes for op in found.ops if op.op in PLUMBING)
    return tuple(str(n) for n in (found.nodes, found.on_shapes, plumbing, *(total[op] for op in COUNTED)))


def folds(job: Job, options: argparse.Namespace) -> dict[str, Fold]:
    """Return the tools to run; onnxsim with bodies only where there are some."""
    has_bodies = any(node.bodies for node in all_nodes(graphkit.load(job.model).scopes))
    names = [tool for tool in options.tools if has_bodies or tool != "onnxsim-bodies"]
    outs = {tool: job.case.result(options.keep, tool) for tool in names}
    return {tool: Fold(TOOLS[tool](job, outs[tool]), outs[tool], options.timeout) for tool in names}


def measure(job: Job, options: argparse.Namespace, console: Console) -> None:
    """Measure one case and print its table."""
    made = folds(job, options)
    failures = {tool: fold.failure() for tool, fold in made.items()}
    samplers = {tool: fold.time for tool, fold in made.items() if not failures[tool]}
    seconds = alternate(samplers, options.rounds, warm_up=False) if options.rounds else {}
    processor = {tool: Spread(tuple(made[tool].processor)) for tool in seconds}
    columns = (
        "nodes",
        "on shapes",
        "of these U+C+G",
        *COUNTED,
        "time",
        "over",
        "processor",
        "over",
        "memory",
        "outputs",
    )
    table = Table("", *columns, title=f"{job.case.name} {job.case.mode}")
    table.add_row("original", *counts(job.model))
    notes = [f"{tool}: {failure}" for tool, failure in failures.items() if failure]
    for tool, fold in made.items():
        if failures[tool]:
            table.add_row(tool, "fails")
            continue
        anonymous = fold.memory() if options.memory else ""
        agreed, why = agreement(job, fold.out, options.runs) if options.runs else ("", ())
        notes += [f"{tool}: {failure}" for failure in why]
        spreads = *times(tool, seconds), *times(tool, processor)
        table.add_row(tool, *counts(fold.out), *spreads, anonymous, agreed)
    console.print(table)
    for note in notes:
        console.print(f"  {note[:400]}", soft_wrap=True, markup=False)


def agreement(job: Job, result: Path, runs: int) -> tuple[str, tuple[str, ...]]:
    """Return whether a result gives what the original gives, and what it gives instead.

    Equal is to the last bit, without graph optimizations. A tool that fuses operators moves the last digits, and in a
    quantised model one such digit can move a whole step, so the greatest difference is told.
    """
    try:
        proof = verify_rewrite(
            job.model, result, DimSpec.of(dims=job.case.dims, inputs=job.case.inputs), RewriteProofOptions(runs=runs)
        )
    except ModelError as error:
        return "does not load", (error.problem,)
    if proof.passed:
        return f"equal at {len(proof.runs)}", ()
    distances = [run.absolute for run in proof.runs]
    if not proof.runs:
        return "not run", proof.failures
    if None in distances:
        return f"WRONG at {sum(bool(run.failure) for run in proof.runs)} of {len(proof.runs)}", proof.failures
    return f"off by {max(one for one in distances if one is not None):.1e}", proof.failures


def times(tool: str, seconds: dict[str, Spread]) -> tuple[str, str]:
    """Write the seconds of a tool, and those over the reference."""
    if tool not in seconds:
        return "", ""
    over = seconds[tool].over(seconds[REFERENCE]).show("x", 2) if REFERENCE in seconds else ""
    return seconds[tool].show(" s", 2), over


def main() -> None:
    """Measure every case."""
    parser = argparse.ArgumentParser(description="Measure graphkit fold against its peers.")
    parser.add_argument("cases", nargs="*", metavar="CASE", default=DEFAULT, help="MODEL[@NAME=N[,INPUT=AxB...]]")
    parser.add_argument("--rounds", type=int, default=5, help="runs of each tool, in turns (default: 5)")
    parser.add_argument("--peers", default=sys.executable, help="the interpreter that has the peers")
    parser.add_argument("--tools", default=",".join(TOOLS), help="which, commas between them")
    parser.add_argument("--keep", type=Path, help="a folder for the results")
    parser.add_argument("--timeout", type=int, default=900, help="seconds for one run (default: 900)")
    parser.add_argument("--memory", action="store_true", help="measure the memory too, in runs of its own")
    parser.add_argument("--runs", type=int, default=6, help="sizes to compare outputs at, 0 for none (default: 6)")
    options = parser.parse_args()
    options.tools = [tool for tool in TOOLS if tool in options.tools.split(",")]
    console = Console(width=300, highlight=False)
    console.print(f"{environment()}\n{versions(options.peers)}\n{options.rounds} rounds; median (least to greatest)")
    with tempfile.TemporaryDirectory(prefix="folding-") as folder:
        options.keep = (options.keep or Path(folder)).resolve()
        for case in map(Case.parse, options.cases):
            job = prepare(case, complete(case.model, Path(folder)), Path(folder), options.peers)
            measure(job, options, console)


if __name__ == "__main__":
    main()
