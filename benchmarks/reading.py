"""Reading a model: `graphkit.load` against `onnx.load`, in time and in memory.

    python benchmarks/reading.py MODEL...
    python benchmarks/reading.py --generate FOLDER

Every reading happens in a fresh process. Time is taken inside it, around the call alone, so imports do not count;
the page cache is warm. Memory is watched from outside, in runs of its own, and is that of the whole process.
The two do not do the same work: `graphkit.load` leaves the weights in the file, which is what is measured here.
"""

from __future__ import annotations

import argparse
import sys
from functools import partial
from pathlib import Path

import numpy as np
import onnx
from measure import Memory, Spread, alternate, environment, peak_memory, printed, warm
from onnx import TensorProto, helper
from rich.console import Console
from rich.table import Table

READERS = ("onnx", "graphkit")
MEMORY_RUNS = 3
WIDTH = 512
LARGEST = 2000  # megabytes; protobuf ends at 2 GiB

CHILD = """
import sys, time
import {module}
read = {module}.load
started = time.perf_counter()
model = read(sys.argv[1])
print(time.perf_counter() - started)
"""


def command(module: str, model: Path) -> list[str]:
    """Return the command that reads a model with `module.load` and prints the seconds."""
    return [sys.executable, "-c", CHILD.format(module=module), str(model)]


def times(model: Path, rounds: int) -> dict[str, Spread]:
    """Return the seconds of each reader."""
    return alternate({name: partial(printed, command(name, model)) for name in READERS}, rounds)


def peaks(model: Path) -> dict[str, Memory]:
    """Return the greatest peaks of each reader; nothing where the system does not tell."""
    runs = [(name, peak_memory(command(name, model))) for _ in range(MEMORY_RUNS) for name in READERS]
    found: dict[str, Memory] = {}
    for name, memory in runs:
        if memory is None:
            continue
        seen = found.get(name, memory)
        found[name] = Memory(max(seen.anonymous, memory.anonymous), max(seen.resident, memory.resident))
    return found


def generate(folder: Path, size: int) -> Path:
    """Write a chain of MatMul and Relu with random weights, `size` megabytes inside one file."""
    layers = max(1, size * 10**6 // (4 * WIDTH * WIDTH))
    nodes = []
    for layer in range(layers):
        nodes.append(helper.make_node("MatMul", [f"x{layer}", f"w{layer}"], [f"y{layer}"], f"matmul{layer}"))
        nodes.append(helper.make_node("Relu", [f"y{layer}"], [f"x{layer + 1}"], f"relu{layer}"))
    first, last = (
        helper.make_tensor_value_info(name, TensorProto.FLOAT, ["batch", WIDTH]) for name in ("x0", f"x{layers}")
    )
    graph = helper.make_graph(nodes, "synthetic", [first], [last])
    model = helper.make_model(graph, opset_imports=[helper.make_opsetid("", 17)], ir_version=8)
    random = np.random.default_rng(0)
    for layer in range(layers):  # filled in place: helpers that take whole messages copy them
        weight = random.standard_normal((WIDTH, WIDTH), dtype=np.float32) / np.float32(WIDTH**0.5)
        raw = weight.astype("<f4").tobytes()
        model.graph.initializer.add(name=f"w{layer}", data_type=TensorProto.FLOAT, dims=weight.shape, raw_data=raw)
    folder.mkdir(parents=True, exist_ok=True)
    path = folder / f"synthetic-{size}MB.onnx"
    onnx.save(model, path)
    return path


def table(model: Path, rounds: int) -> Table:
    """Measure one model."""
    warm(model)
    seconds, memory = times(model, rounds), peaks(model)
    result = Table("", "graphkit.load", "onnx.load", "ratio", title=f"{model.name}, {megabytes(model.stat().st_size)}")
    ratio = seconds["onnx"].over(seconds["graphkit"])
    result.add_row("time", *(seconds[name].show(" s", 3) for name in ("graphkit", "onnx")), ratio.show("x", 1))
    if memory:
        ours, theirs = memory["graphkit"], memory["onnx"]
        result.add_row("peak anonymous memory", *compared(ours.anonymous, theirs.anonymous))
        result.add_row("peak resident memory", *compared(ours.resident, theirs.resident))
    return result


def compared(ours: int, theirs: int) -> tuple[str, str, str]:
    """Write two sizes, and how many times the first goes into the second."""
    return megabytes(ours), megabytes(theirs), f"{theirs / ours:.1f}x"


def megabytes(size: int) -> str:
    """Write a size."""
    return f"{size / 1e6:,.0f} MB"


def main() -> None:
    """Generate where asked, then measure every model."""
    parser = argparse.ArgumentParser(description="Measure graphkit.load against onnx.load.")
    parser.add_argument("models", nargs="*", type=Path, metavar="MODEL")
    parser.add_argument("--rounds", type=int, default=7, help="readings with each, in turns (default: 7)")
    parser.add_argument("--generate", type=Path, metavar="FOLDER", help="write a synthetic model there, measure it too")
    parser.add_argument("--size", type=int, default=300, help="its megabytes (default: 300)")
    options = parser.parse_args()
    missing = [str(path) for path in options.models if not path.is_file()]
    if missing or not (options.models or options.generate):
        parser.error(f"no such file: {', '.join(missing)}" if missing else "name a model, or --generate FOLDER")
    if options.rounds < 1 or not 1 <= options.size <= LARGEST:
        parser.error(f"--rounds is at least 1, and --size from 1 to {LARGEST}")
    models = [*options.models, *([generate(options.generate, options.size)] if options.generate else [])]
    console = Console(width=120, highlight=False)
    console.print(f"{environment()}\n{options.rounds} rounds; median (least to greatest)", soft_wrap=True)
    for model in models:
        console.print(table(model, options.rounds))


if __name__ == "__main__":
    main()
