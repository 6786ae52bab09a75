"""How fast the folded models run: the original, each peer's result and ours in onnxruntime, in turns.

    python benchmarks/folding.py --keep FOLDER CASE...
    python benchmarks/latency.py --results FOLDER CASE...

Default optimizations of onnxruntime, a fixed number of threads that do not spin between runs (they would take the
cores from the next session), all sessions open in one process. Images run at `--images`, decoders for one new token
after `--past` positions, batch 1. With one thread, the default, the time is that of the processor, which is what it
would be on a machine without other work; with more it is the clock's.
"""

from __future__ import annotations

import argparse
import statistics
import sys
import tempfile
import time
from collections.abc import Callable, Iterator
from functools import partial
from importlib.metadata import version
from pathlib import Path

import numpy as np
import onnxruntime
from contenders import TOOLS, VARIANTS, Case, Job, prepare
from measure import Spread, alternate, environment
from rich.console import Console
from rich.table import Table
from stubs import complete

import graphkit
from graphkit.shapes.constraints.legal_sizes import Sizes
from graphkit.verify.input_generator import InputGenerator

OURS, ORIGINAL = "graphkit", "original"


def session(path: Path, threads: int, *, prepack: bool = True) -> onnxruntime.InferenceSession:
    """Open a model as a server would; kernels may keep the weights in the layout that they like."""
    options = onnxruntime.SessionOptions()
    options.intra_op_num_threads = threads
    options.log_severity_level = 4
    options.add_session_config_entry("session.intra_op.allow_spinning", "0")
    options.add_session_config_entry("session.disable_prepacking", str(int(not prepack)))
    return onnxruntime.InferenceSession(str(path), options, providers=["CPUExecutionProvider"])


def sessions(job: Job, options: argparse.Namespace) -> dict[str, onnxruntime.InferenceSession]:
    """Open the original and every result that there is and that loads."""
    opened = {ORIGINAL: session(job.frozen, options.threads)}
    for tool in options.tools:
        path = job.case.result(options.results, tool)
        if not path.is_file():
            continue
        try:
            opened[tool] = session(path, options.threads)
        except Exception as error:  # onnxruntime's errors have no common base
            print(
                f"{tool} is left out, its result does not load: {' '.join(str(error).split())[:100]}", file=sys.stderr
            )
    return opened


def feeds(job: Job, options: argparse.Namespace) -> Iterator[tuple[str, dict[str, np.ndarray]]]:
    """Give what to run a model on, by name."""
    model = graphkit.load(job.frozen)
    declared = [dim for value in model.proto.graph.input for dim in value.type.tensor_type.shape.dim]
    symbols = {dim.dim_param for dim in declared if dim.dim_param}
    maker = InputGenerator(model)
    if any("past" in symbol for symbol in symbols):
        for past in options.past:
            feed = maker.make(Sizes(past=past))
            if "use_cache_branch" in feed:
                feed["use_cache_branch"] = np.array([past > 0])
            yield f"past {past}", feed
    elif "height" in symbols:
        for height, width in options.images:
            sizes = (("num_channels", 3), ("height", height), ("width", width))
            yield f"{height}x{width}", maker.make(Sizes(symbols=sizes))
    else:
        yield "as declared", maker.make(Sizes())


def once(
    opened: onnxruntime.InferenceSession, feed: dict[str, np.ndarray], repeat: int, clock: Callable[[], float]
) -> float:
    """Return the seconds of a run, the mean of a few."""
    started = clock()
    for _ in range(repeat):
        opened.run(None, feed)
    return (clock() - started) / repeat


def measure(job: Job, options: argparse.Namespace) -> Table:
    """Measure one case."""
    opened = sessions(job, options)
    clock = time.thread_time if options.threads == 1 else time.perf_counter
    table = Table("", *opened, "ours over the best peer", title=f"{job.case.name} {job.case.mode}, ms")
    for name, feed in feeds(job, options):
        repeat = max(1, round(options.least / once(opened[ORIGINAL], feed, 1, clock)))
        samplers = {tool: partial(once, at, feed, repeat, clock) for tool, at in opened.items()}
        seconds = alternate(samplers, options.rounds)
        cells = (Spread(tuple(1e3 * value for value in spread.values)).show("", 2) for spread in seconds.values())
        table.add_row(name, *cells, against_best(seconds))
    return table


def against_best(seconds: dict[str, Spread]) -> str:
    """Write our time over that of the peer with the least median."""
    peers = {tool: spread for tool, spread in seconds.items() if tool not in (OURS, ORIGINAL)}
    if OURS not in seconds or not peers:
        return ""
    best = min(peers, key=lambda tool: statistics.median(peers[tool].values))
    return f"{seconds[OURS].over(peers[best]).show('x', 3)} {best}"


def main() -> None:
    """Measure every case."""
    parser = argparse.ArgumentParser(description="Measure the latency of folded models.")
    parser.add_argument("cases", nargs="+", metavar="CASE", help="as for folding.py")
    parser.add_argument("--results", type=Path, required=True, help="what folding.py has kept")
    parser.add_argument("--rounds", type=int, default=15, help="runs of each, in turns (default: 15)")
    parser.add_argument("--least", type=float, default=0.05, help="seconds of a run, repeated to last so long")
    parser.add_argument("--threads", type=int, default=1, help="threads of each session (default: 1)")
    parser.add_argument("--past", type=int, nargs="+", default=[0, 128, 512], help="positions in the cache")
    parser.add_argument("--images", nargs="+", default=["800x800", "480x640"], help="heights and widths")
    parser.add_argument("--tools", default=",".join(TOOLS), help="which, commas between them")
    options = parser.parse_args()
    options.tools = [tool for tool in TOOLS if tool in options.tools.split(",") and tool not in VARIANTS]
    options.images = [tuple(map(int, image.split("x"))) for image in options.images]
    console = Console(width=260, highlight=False)
    console.print(
        f"{environment()}; onnxruntime {version('onnxruntime')}\n{options.rounds} rounds, {options.threads} threads"
    )
    with tempfile.TemporaryDirectory(prefix="latency-") as folder:
        for case in map(Case.parse, options.cases):
            job = prepare(case, complete(case.model, Path(folder)), Path(folder), sys.executable)
            console.print(measure(job, options))


if __name__ == "__main__":
    main()
