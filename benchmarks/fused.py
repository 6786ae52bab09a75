"""How fast folded models run beside their originals, with scales and biases as training leaves them.

    python benchmarks/fused.py MODEL...

Each model is completed where it is a stub, its scales that are all 1 and biases that are all 0 get noise, and it is
folded twice: as `graphkit fold` does, and with `--no-fusions`. All three are open in one process and run in turns, on
one thread, at onnxruntime's default optimizations; shown are milliseconds, and ratios taken within a round.
"""

from __future__ import annotations

import argparse
import tempfile
import time
import zlib
from argparse import Namespace
from collections.abc import Iterator
from functools import partial
from pathlib import Path

import numpy as np
import onnx
import onnx.numpy_helper
from latency import feeds, once, session
from measure import Spread, alternate, environment
from rich.console import Console
from rich.table import Table
from stubs import complete

import graphkit
from graphkit.save import save_models

LARGEST = 2 * 10**9  # bytes; beyond, the weights go to a file of their own


def tensors(graph: onnx.GraphProto) -> Iterator[onnx.TensorProto]:
    """Give the constants of a graph, those of bodies included."""
    yield from graph.initializer
    for node in graph.node:
        for attribute in node.attribute:
            if attribute.HasField("t"):
                yield attribute.t
            yield from tensors(attribute.g)


def trained(source: Path, target: Path, deviation: float) -> None:
    """Write a model with noise on the float vectors that are all 0 or all 1; equal ones get equal noise."""
    model = onnx.load(source)
    for tensor in tensors(model.graph):
        if tensor.data_type == onnx.TensorProto.FLOAT and len(tensor.dims) == 1 and tensor.dims[0] > 8:
            values = onnx.numpy_helper.to_array(tensor)
            if (values == values[0]).all() and values[0] in (0, 1):
                noise = np.random.default_rng(zlib.crc32(values.tobytes())).normal(0, deviation, values.shape)
                tensor.CopyFrom(onnx.numpy_helper.from_array((values + noise).astype(np.float32), tensor.name))
    large = sum(len(tensor.raw_data) for tensor in tensors(model.graph)) > LARGEST
    onnx.save(model, target, save_as_external_data=large, location=f"{target.name}_data")


def measure(path: Path, options: Namespace, folder: Path) -> Table:
    """Measure one model."""
    original = folder / "original.onnx"
    trained(complete(path, folder), original, options.jitter)
    files = {"original": original}
    for name, keep in (("folded", True), ("without fusions", False)):
        files[name] = folder / f"{name}.onnx"
        save_models(
            {
                files[name]: graphkit.fold(
                    graphkit.load(original), options=graphkit.FoldingOptions(keep_fusions=keep)
                ).model
            },
            weights="in-place",
        )
    opened = {name: session(file, 1) for name, file in files.items()}
    table = Table("", *opened, "folded over original", "folded over without fusions", title=str(path))
    job = Namespace(frozen=original)
    for name, feed in feeds(job, options):
        repeat = max(1, round(options.least / once(opened["original"], feed, 1, time.thread_time)))
        samplers = {one: partial(once, at, feed, repeat, time.thread_time) for one, at in opened.items()}
        seconds = alternate(samplers, options.rounds)
        cells = [Spread(tuple(1e3 * value for value in spread.values)).show("", 2) for spread in seconds.values()]
        ratios = [seconds["folded"].over(seconds[other]).show("x", 3) for other in ("original", "without fusions")]
        table.add_row(name, *cells, *ratios)
    return table


def main() -> None:
    """Measure every model."""
    parser = argparse.ArgumentParser(description="Measure folded models beside their originals.")
    parser.add_argument("models", nargs="+", type=Path, metavar="MODEL", help="a model, a stub, or either in .xz")
    parser.add_argument("--rounds", type=int, default=15, help="runs of each, in turns (default: 15)")
    parser.add_argument("--least", type=float, default=0.05, help="seconds of a run, repeated to last so long")
    parser.add_argument("--jitter", type=float, default=0.1, help="deviation of the noise (default: 0.1)")
    parser.add_argument("--past", type=int, nargs="+", default=[0, 128, 512], help="positions in the cache")
    parser.add_argument("--images", nargs="+", default=["480x640"], help="heights and widths")
    options = parser.parse_args()
    options.images = [tuple(map(int, image.split("x"))) for image in options.images]
    console = Console(width=260, highlight=False)
    console.print(f"{environment()}\n{options.rounds} rounds, 1 thread")
    for path in options.models:
        with tempfile.TemporaryDirectory(prefix="fused-") as folder:
            console.print(measure(path, options, Path(folder)))


if __name__ == "__main__":
    main()
