"""Results of other tools, proven: for how many outputs, and what runs say of the rest.

    python benchmarks/equivalence.py [MODEL...] --peers PYTHON

Each tool folds each model with its default options (`contenders.py`); `check_equivalence` compares normal forms, and
where it cannot tell, both are run in onnxruntime at several sizes. The models are those of `tests/models` by default;
what `--keep` already has is not made again. One line a model, then a table, and a reason for each result that is not
proven as a whole.

    python benchmarks/equivalence.py --cost [MODEL...]

The time and the memory of the proof of a fold: processor time of `check_equivalence` in a process of its own, and the
most that it allocates at once, beside both models. By default DETR, the Gemma of 5,701 nodes, and the generated
decoder of `scaling.py` with 12 and 120 layers, whose ratio says whether the check is linear in the nodes.
"""

from __future__ import annotations

import argparse
import json
import lzma
import subprocess
import sys
import tempfile
import time
from collections import defaultdict
from dataclasses import dataclass, field
from pathlib import Path

import onnx
from contenders import TOOLS, Case, Job, prepare, versions
from folding import Fold, agreement
from measure import Spread, environment
from rich.console import Console
from rich.table import Table
from scaling import decoder
from stubs import complete

import graphkit
from graphkit.equivalence import check_equivalence
from graphkit.errors import GraphkitError

MODELS = Path(__file__).parents[1] / "tests/models"
MAX_SIZE = 1 << 20  # bytes of a model of tests/models
COSTLY = [MODELS / "detr-resnet-50/model_quantized.onnx.xz", MODELS / "gemma-270m/model.onnx.xz"]
LAYERS = (12, 120)
CHECK = """
import gc, json, sys, time, tracemalloc
import graphkit
gc.set_threshold(500_000)  # as the command line does
from graphkit.equivalence import check_equivalence
model = graphkit.load(sys.argv[1])
folded = graphkit.fold(model).model
if sys.argv[2] == "memory":
    tracemalloc.start()
started = time.process_time()
found = check_equivalence(model, folded)
cost = tracemalloc.get_traced_memory()[1] / 2**20 if sys.argv[2] == "memory" else time.process_time() - started
print(json.dumps([cost, len(model.graph.nodes), found.terms, len(found.proven), len(found.outputs)]))
"""
COMPARED = ("graphkit", "onnxsim", "OnnxSlim", "onnxscript", "onnxoptimizer")


@dataclass
class Tally:
    """What came out for a tool.

    Attributes:
        outputs: The number of outputs, and of those proven, in order.
        exactness: How often each was proven, by exactness.
        whole: Results of which every output is proven.
        equal, different, unrun, fails: Other results: equal in all runs, not so, run at no size, and none.
        seconds: Of the check.
    """

    outputs: list[int] = field(default_factory=lambda: [0, 0])
    exactness: dict[str, int] = field(default_factory=lambda: defaultdict(int))
    whole: int = 0
    equal: int = 0
    different: int = 0
    unrun: int = 0
    fails: int = 0
    seconds: float = 0.0


def examine(job: Job, tool: str, options: argparse.Namespace, tally: Tally) -> str:
    """Prove the result of a tool, count it, and return what is to be told of it."""
    out = job.case.result(options.keep, tool)
    if not out.is_file():
        failure = Fold(TOOLS[tool](job, out), out, options.timeout).failure()
        if failure:
            tally.fails += 1
            return f"fails: {failure}"
    started = time.perf_counter()
    try:
        found = check_equivalence(job.model, out)
    except GraphkitError as error:
        tally.different += 1
        return f"its result is broken: {error}"
    tally.seconds += time.perf_counter() - started
    tally.outputs[0] += len(found.outputs)
    tally.outputs[1] += len(found.proven)
    for output in found.proven:
        tally.exactness[output.exactness] += 1
    if found.is_proven:
        tally.whole += 1
        return ""
    agreed, why = agreement(job, out, options.runs)
    tally.equal += agreed.startswith("equal")
    tally.unrun += agreed == "not run"
    tally.different += not agreed.startswith(("equal", "not run"))
    reason = next(output.reason for output in found.outputs if output.verdict != "proven")
    return "; ".join([f"{len(found.proven)} of {len(found.outputs)} proven", agreed, reason, *why[:1]])


def cost(path: Path, rounds: int) -> tuple[list[str], Spread]:
    """Return cells of the table of costs, and the seconds."""
    found = {}
    for measure, count in {"memory": 1, "time": rounds}.items():
        command = [sys.executable, "-c", CHECK, str(path), measure]
        runs = [subprocess.run(command, check=True, stdout=subprocess.PIPE).stdout for _ in range(count)]
        found[measure] = [json.loads(run) for run in runs]
    memory, nodes, terms, proven, outputs = found["memory"][0]
    seconds = Spread(tuple(run[0] for run in found["time"]))
    numbers = [f"{nodes:,}", f"{terms:,}", f"{proven} of {outputs}"]
    return [*numbers, seconds.show(" s", 2), f"{memory:.0f} MB"], seconds


def costs(models: list[str], rounds: int, console: Console) -> None:
    """Measure the proofs of folds; weights that are missing stay so, as equal ones are known by their place."""
    table, taken = Table("", "nodes", "terms", "outputs proven", "processor time", "memory"), list[Spread]()
    with tempfile.TemporaryDirectory(prefix="equivalence-") as folder:
        for source in map(Path, models):
            path = source
            if source.suffix == ".xz":
                path = Path(folder, f"{source.parent.name}-{source.stem}")
                path.write_bytes(lzma.decompress(source.read_bytes()))
            table.add_row(source.parent.name, *cost(path, rounds)[0])
        for count in LAYERS:
            path = Path(folder, f"{count}-layers.onnx")
            onnx.save(decoder(count), path)
            cells, seconds = cost(path, rounds)
            table.add_row(f"{count} layers", *cells)
            taken.append(seconds)
    console.print(table)
    growth = taken[1].over(taken[0]).show(" times", 1)
    console.print(f"{LAYERS[1] // LAYERS[0]} times the layers take {growth} the time")


def main() -> None:
    """Examine every tool's result for every model."""
    parser = argparse.ArgumentParser(description="Prove what other tools make of models.")
    parser.add_argument("--cost", action="store_true", help="measure the time and the memory of proofs")
    parser.add_argument("--rounds", type=int, default=3, help="proofs of each to measure (default: 3)")
    default = [path for path in sorted(MODELS.rglob("*.onnx.xz")) if path.stat().st_size < MAX_SIZE]
    parser.add_argument("models", nargs="*", metavar="MODEL", default=[])
    parser.add_argument("--peers", default=sys.executable, help="the interpreter that has the peers")
    parser.add_argument("--tools", default=",".join(COMPARED), help="which, commas between them")
    parser.add_argument("--keep", type=Path, help="a folder for the results")
    parser.add_argument("--timeout", type=int, default=300, help="seconds for one run of a tool (default: 300)")
    parser.add_argument("--runs", type=int, default=6, help="sizes to run at what is not proven (default: 6)")
    options = parser.parse_args()
    console = Console(width=200, highlight=False)
    if options.cost:
        console.print(environment())
        costs(options.models or [str(path) for path in COSTLY], options.rounds, console)
        return
    options.models = options.models or [str(path) for path in default]
    console.print(f"{environment()}\n{versions(options.peers)}\n{len(options.models)} models")
    tallies = {tool: Tally() for tool in options.tools.split(",")}
    with tempfile.TemporaryDirectory(prefix="equivalence-") as folder:
        options.keep = (options.keep or Path(folder)).resolve()
        for case in map(Case.parse, options.models):
            job = prepare(case, complete(case.model, Path(folder)), Path(folder), options.peers)
            console.print(f"{case.name}: {len(graphkit.load(job.model).graph.nodes):,} nodes", markup=False)
            for tool, tally in tallies.items():
                if told := examine(job, tool, options, tally):
                    console.print(f"  {tool}: {told[:600]}", soft_wrap=True, markup=False)
    columns = (
        "outputs proven",
        "bit for bit",
        "results proven",
        "equal in runs",
        "differ in runs",
        "not run",
        "none",
        "seconds",
    )
    table = Table("", *columns)
    for tool, tally in tallies.items():
        total, proven = tally.outputs
        numbers = (tally.exactness["bit for bit"], tally.whole, tally.equal, tally.different, tally.unrun, tally.fails)
        table.add_row(tool, f"{proven} of {total}", *map(str, numbers), f"{tally.seconds:.1f}")
    console.print(table)


if __name__ == "__main__":
    main()
