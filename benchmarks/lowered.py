"""How long a decode step takes in onnxruntime before and after lowering: what fixed shapes cost a processor.

    python benchmarks/lowered.py FOLDER...

A folder is an export that `graphkit lower` takes, with a decoder. Its later step runs with a past that fills the cache
of the lowered one up to the last slot, as it was exported and folded. All are open in one process and run in turns, on
one thread, at onnxruntime's default optimizations. Shown are milliseconds, and ratios taken within a round. A merged
decoder is split first. The lowered step always reads its whole cache, the others what `--past` says.
"""

from __future__ import annotations

import argparse
import tempfile
import time
from argparse import Namespace
from functools import partial
from pathlib import Path

import numpy as np
from latency import once, session
from measure import Spread, alternate, environment
from rich.console import Console
from rich.table import Table

import graphkit
from graphkit.deploy.export_pipeline import find_pipeline
from graphkit.save import save_models
from graphkit.shapes.constraints.legal_sizes import Sizes
from graphkit.verify.input_generator import InputGenerator


def measure(export: Path, options: Namespace, folder: Path) -> Table:
    """Measure one export."""
    pipeline = find_pipeline(export)
    if pipeline.step is None:
        raise SystemExit(f"{export}: no decoder")
    step = pipeline.step
    if pipeline.merged:
        graphkit.split_file(step, folder, verify=False)
        step = graphkit.load(folder / "decoder_with_past_model.onnx")
    lowering = graphkit.LowerOptions(
        options.target, options.source, options.cache, verify=False, dims=(("batch_size", 1),)
    )
    graphkit.lower_folder(export, folder / "lowered", lowering)
    models = {folder / "original.onnx": step, folder / "folded.onnx": graphkit.fold(step).model}
    save_models(models, weights="inline")
    lowered = folder / "lowered" / "step.onnx"
    files = {"original": folder / "original.onnx", "folded": folder / "folded.onnx", "lowered": lowered}
    opened = {name: session(file, 1) for name, file in files.items()}
    table = Table("Past", *opened, "lowered over original", "lowered over folded", title=str(export))
    for past in options.past or [options.cache - 1]:
        fixed = InputGenerator(graphkit.load(lowered)).make(Sizes())
        grown = InputGenerator(step).make(Sizes(past=past, encoder=options.source))
        feeds = {name: fixed if name == "lowered" else grown for name in opened}
        repeat = max(1, round(options.least / timed(opened["original"], grown, 1)))
        samplers = {name: partial(timed, at, feeds[name], repeat) for name, at in opened.items()}
        seconds = alternate(samplers, options.rounds)
        cells = [Spread(tuple(1e3 * value for value in spread.values)).show("", 2) for spread in seconds.values()]
        ratios = [seconds["lowered"].over(seconds[other]).show("x", 2) for other in ("original", "folded")]
        table.add_row(str(past), *cells, *ratios)
    return table


def timed(opened: object, feed: dict[str, np.ndarray], repeat: int) -> float:
    """Return the seconds of processor time of a run."""
    return once(opened, feed, repeat, time.thread_time)


def main() -> None:
    """Measure every export."""
    parser = argparse.ArgumentParser(description="Measure a decode step before and after lowering.")
    parser.add_argument("exports", nargs="+", type=Path, metavar="FOLDER", help="an export that `graphkit lower` takes")
    parser.add_argument("--target", default="generic-npu", help="default: generic-npu")
    parser.add_argument("--source", type=int, default=64, help="positions of the source (default: 64)")
    parser.add_argument("--cache", type=int, default=64, help="slots of the cache (default: 64)")
    parser.add_argument("--past", type=int, nargs="+", help="positions in the cache (default: one less)")
    parser.add_argument("--rounds", type=int, default=15, help="runs of each, in turns (default: 15)")
    parser.add_argument("--least", type=float, default=0.05, help="seconds of a run, repeated to last so long")
    options = parser.parse_args()
    console = Console(width=260, highlight=False)
    console.print(f"{environment()}\n{options.rounds} rounds, 1 thread")
    for export in options.exports:
        with tempfile.TemporaryDirectory(prefix="lowered-") as folder:
            console.print(measure(export, options, Path(folder)))


if __name__ == "__main__":
    main()
