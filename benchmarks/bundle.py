"""How long a decode step takes in a bundle, beside the models that it was made of.

    python benchmarks/bundle.py [--tokens 16 128 500] [--processes 5] FOLDER...

A folder is an export that `graphkit bundle` takes. Its step runs at several numbers of tokens in the cache: in the
bundle; as the folded decoder with its inputs and outputs bound, each present rebound as the next past; as the export
bound the same way; and as the export with plain `session.run`. All are open in one process and run in turns, on one
thread, at onnxruntime's default optimizations, and prepack their weights. Caches hold random numbers: what they hold
does not change the time. A line for each number of tokens has milliseconds of processor time, and ratios taken within a
round: above 1 the bundle is faster. Where weights happen to lie makes a session some percent faster or slower for as
long as it is open, the one that is opened first mostly slower (one file opened four times: up to 4 %): each process
opens another contender first. Quote the figures of four processes or a multiple, the median of their medians and the
range of these.

A step reads all of its weights once, but for tables, of which it looks up a row. How long one thread takes to read as
many bytes, over and over as steps do, is measured in turns with the contenders: the floor of a step on this machine.
"""

from __future__ import annotations

import argparse
import json
import statistics
import subprocess
import sys
import tempfile
import time
from argparse import Namespace
from collections.abc import Callable, Iterator, Sequence
from functools import partial
from pathlib import Path

import numpy as np
from latency import session
from measure import Spread, alternate, environment
from onnx import helper

import graphkit
from graphkit.deploy.deploy_sizes import most_positions
from graphkit.deploy.export_pipeline import find_pipeline
from graphkit.graph.declared_types import declared_type
from graphkit.save import save_models

MEMORY = "memory"  # reading as many bytes as a step has weights


class InPlace:
    """The step of a bundle."""

    def __init__(self, folder: Path, source: int, *, prepack: bool) -> None:
        self.bundle, self.source = graphkit.Bundle(folder, threads=1, prepack=prepack, unchecked=True), source

    def fill(self, tokens: int) -> None:
        """Let so many tokens be in the cache."""
        state, random = self.bundle.state, np.random.default_rng(0)
        state.clear()
        state.rows = 1
        state.lengths[self.bundle.contract.lengths[0].name][0] = tokens
        for tensor in self.bundle.contract.states:
            if tensor.axis is None:
                limit = self.bundle.contract.sizes["source"]
                shape = [1 if axis == tensor.batch else size for axis, size in enumerate(tensor.shape)]
                state.written(tensor, [self.source if size == limit else size for size in shape])
            view = state[tensor.name]
            view[...] = random.standard_normal(view.shape) if view.dtype.kind == "f" else 1

    def step(self) -> None:
        """Run a step."""
        self.bundle.step(5)


class Growing:
    """A decoder whose presents become the next pasts."""

    def __init__(self, model: graphkit.Model, file: Path, options: Namespace, *, bind: bool = True) -> None:
        self.model, self.source, self.bind = model, options.source, bind
        self.session = session(file, 1, prepack=options.prepack)
        self.roles = model.roles

    def fill(self, tokens: int) -> None:
        """Let so many tokens be in the cache."""
        random = np.random.default_rng(0)
        self.tokens = tokens
        self.feed: dict[str, object] = {}
        sizes = {"batch": 1, "sequence": 1, "past": tokens, "encoder": self.source, "total": tokens + 1}
        for value in self.roles.inputs:
            declared = declared_type(value)
            assert declared is not None
            axes = [self.roles.axis(value, axis) for axis in range(len(declared.dims or ()))]
            shape = [d if isinstance(d, int) else sizes[a] for d, a in zip(declared.dims or (), axes, strict=True)]
            kind = helper.tensor_dtype_to_np_dtype(declared.dtype)
            array = random.standard_normal(shape) if kind.kind == "f" else np.ones(shape)
            self.feed[value.name] = self._value(array.astype(kind))
        self.changing = [value for value in self.roles.inputs if self.roles.of(value) in ("mask", "positions")]

    def _value(self, array: np.ndarray) -> object:
        import onnxruntime

        return onnxruntime.OrtValue.ortvalue_from_numpy(array) if self.bind else array

    def step(self) -> None:
        """Run a step, and let its presents be the next pasts."""
        for value in self.changing:
            role = self.roles.of(value)
            array = np.ones((1, self.tokens + 1), np.int64) if role == "mask" else np.full((1, 1), self.tokens)
            self.feed[value.name] = self._value(array)
        names = [found.name for found in self.session.get_outputs()]
        if self.bind:
            binding = self.session.io_binding()
            for name, value in self.feed.items():
                binding.bind_ortvalue_input(name, value)
            for name in names:
                binding.bind_output(name)
            self.session.run_with_iobinding(binding)
            outputs = dict(zip(names, binding.get_outputs(), strict=True))
            outputs[self.roles.logits.name].numpy()
        else:
            outputs = dict(zip(names, self.session.run(None, self.feed), strict=True))
        for past, entry in self.roles.pasts.items():
            if entry.present is not None and entry.present.name in outputs and not self.roles.is_cross(entry):
                self.feed[past.name] = outputs[entry.present.name]
        self.tokens += 1


def prepare(export: Path, options: Namespace, folder: Path) -> None:
    """Make the models of all contenders."""
    pipeline = find_pipeline(export)
    step = pipeline.step
    if step is None:
        raise SystemExit(f"{export}: no decoder")
    if pipeline.merged:
        graphkit.split_file(step, folder, verify=False)
        step = graphkit.load(folder / "decoder_with_past_model.onnx")
    slots = max(options.tokens) + 64
    slots = min(slots, most_positions(step) or slots)
    graphkit.bundle_folder(
        export, folder / "bundle", graphkit.BundleOptions(max_cache=slots, max_source=options.source, verify=False)
    )
    folded = graphkit.fold(step).model
    save_models({folder / "original.onnx": step, folder / "folded.onnx": folded}, weights="shared")


def weights(folder: Path) -> int:
    """Return the bytes of weights that a step reads: all but tables, of which it looks up a row."""
    bundle = graphkit.Bundle(folder / "bundle", unchecked=True)
    method = bundle.contract.method("step")
    assert method is not None
    step = graphkit.load(folder / "bundle" / method.file)
    constants = (value for value in step.graph.values.values() if value.tensor is not None)
    read = (value for value in constants if any(not (node.is_op("Gather") and at == 0) for node, at in value.consumers))
    return sum(len(step.payload(value.tensor)) for value in read if value.tensor is not None)


def measure(folder: Path, options: Namespace) -> dict[str, dict[int, Spread]]:
    """Return the seconds of a step of each contender, by name and number of tokens."""
    step, folded = (graphkit.load(folder / f"{name}.onnx") for name in ("original", "folded"))
    makers: dict[str, Callable[[], InPlace | Growing]] = {
        "bundle": partial(InPlace, folder / "bundle", options.source, prepack=options.prepack),
        "folded, bound": partial(Growing, folded, folder / "folded.onnx", options),
        "export, bound": partial(Growing, step, folder / "original.onnx", options),
        "export, run": partial(Growing, step, folder / "original.onnx", options, bind=False),
    }
    names = [name for name in makers if name not in options.without]
    turn = options.process % len(names)
    contenders = {}
    for name in (*names[turn:], *names[:turn]):
        contenders[name] = makers[name]()
        contenders[name].fill(options.tokens[0])
        contenders[name].step()  # a bundle opens its session when it first runs
    read = np.ones(max(weights(folder) // 4, 1), np.float32)
    found: dict[str, dict[int, Spread]] = {name: {} for name in (*names, MEMORY)}
    for tokens in options.tokens:
        for name in names:
            contenders[name].fill(tokens)
            contenders[name].step()
        samplers = {name: partial(timed, contenders[name], tokens, options.steps) for name in contenders}
        samplers[MEMORY] = partial(reading, read)
        for name, spread in alternate(samplers, options.rounds).items():
            found[name][tokens] = spread
    return found


def reading(array: np.ndarray) -> float:
    """Return the seconds of processor time that it takes one thread to read an array once."""
    start = time.thread_time()
    array.max()
    return time.thread_time() - start


def timed(contender: InPlace | Growing, tokens: int, steps: int) -> float:
    """Return the seconds of processor time of a step."""
    contender.fill(tokens)
    contender.step()
    start = time.thread_time()
    for _ in range(steps):
        contender.step()
    return (time.thread_time() - start) / steps


def in_process(folder: Path, number: int) -> dict[str, dict[int, Spread]]:
    """Measure in a process of its own."""
    command = [sys.executable, __file__, "--prepared", str(folder), "--process", str(number), *sys.argv[1:]]
    plain = json.loads(subprocess.run(command, check=True, stdout=subprocess.PIPE, text=True).stdout)
    return {name: {int(tokens): Spread(tuple(values)) for tokens, values in by.items()} for name, by in plain.items()}


def lines(found: Sequence[dict[str, dict[int, Spread]]], size: int, options: Namespace) -> Iterator[str]:
    """Yield a line for each number of tokens, and one that says how fast a step can be at most."""
    for tokens in options.tokens:
        times = [{name: by[tokens] for name, by in each.items()} for each in found]
        cells = [f"bundle {shown([each['bundle'] for each in times], 1e3, ' ms')}"]
        for name in times[0]:
            if name not in ("bundle", MEMORY):
                cells.append(f"over {name} {shown([each[name].over(each['bundle']) for each in times], 1, 'x')}")
        yield f"{tokens:,} tokens: " + "; ".join(cells)
    spreads = [spread for each in found for spread in each[MEMORY].values()]
    values = [1e3 * value for spread in spreads for value in spread.values]
    speed = size / min(values) / 1e6
    yield (
        f"A step reads {size / 1e6:,.0f} MB of weights. One thread reads as many bytes in "
        f"{statistics.median(values):.1f} ms, at best in {min(values):.1f} ms ({speed:.1f} GB/s): the floor of a step."
    )


def shown(spreads: Sequence[Spread], times: float, unit: str) -> str:
    """Write the median and the range: over the rounds of one process, or over the medians of several."""
    if len(spreads) > 1:
        spreads = [Spread(tuple(statistics.median(spread.values) for spread in spreads))]
    return Spread(tuple(times * value for value in spreads[0].values)).show(unit, 2)


def main(arguments: Sequence[str] | None = None) -> None:
    """Measure every export."""
    parser = argparse.ArgumentParser(description="Measure a decode step of a bundle.")
    parser.add_argument(
        "exports", nargs="+", type=Path, metavar="FOLDER", help="an export that `graphkit bundle` takes"
    )
    parser.add_argument("--tokens", type=int, nargs="+", default=[64, 512, 2048], help="default: 64 512 2048")
    parser.add_argument("--source", type=int, default=64, help="positions of the source (default: 64)")
    parser.add_argument("--rounds", type=int, default=9, help="runs of each, in turns (default: 9)")
    parser.add_argument("--steps", type=int, default=4, help="steps of a run (default: 4)")
    parser.add_argument(
        "--processes", type=int, default=1, help="processes that measure one after the other (default: 1)"
    )
    parser.add_argument("--no-prepack", dest="prepack", action="store_false", help="let no contender prepack weights")
    parser.add_argument("--without", nargs="*", default=[], help="contenders to leave out")
    parser.add_argument("--prepared", type=Path, help=argparse.SUPPRESS)
    parser.add_argument("--process", type=int, default=0, help=argparse.SUPPRESS)
    options = parser.parse_args(arguments)
    if options.prepared is not None:
        found = measure(options.prepared, options)
        print(json.dumps({name: {n: spread.values for n, spread in by.items()} for name, by in found.items()}))
        return
    print(f"{environment()}\n{options.processes} processes, {options.rounds} rounds of {options.steps} steps, 1 thread")
    for export in options.exports:
        with tempfile.TemporaryDirectory(prefix="bundle-") as name:
            folder = Path(name)
            prepare(export, options, folder)
            results = [in_process(folder, number) for number in range(options.processes)]
            print(f"\n{export}", *lines(results, weights(folder), options), sep="\n", flush=True)


if __name__ == "__main__":
    main()
