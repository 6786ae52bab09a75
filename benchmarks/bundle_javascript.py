"""How long a decode step of a bundle takes in Node, beside the folded decoder whose cache grows.

    npm install --prefix MODULES --ignore-scripts onnxruntime-node
    python benchmarks/bundle_javascript.py MODULES FOLDER...

A folder is an export of a decoder with a past, beside an encoder or alone. Its step runs in the bundle, with the state
in place; and as the folded decoder, each present the next past. Both are open in one process of Node and make each step
in turns, on one thread, at onnxruntime's default optimizations. Where memory happens to lie makes a session faster or
slower by some percent for as long as it is open, so that there are several processes. Shown are milliseconds of
processor time, all threads counted, the median of a round's steps, and ratios taken within a round: above 1 the bundle
is faster.
"""

from __future__ import annotations

import argparse
import json
import subprocess
import tempfile
from argparse import Namespace
from collections.abc import Sequence
from pathlib import Path

from measure import Spread, environment
from rich.console import Console
from rich.table import Table

import graphkit
from graphkit.deploy.export_pipeline import find_pipeline
from graphkit.deploy.make_bundle import JAVASCRIPT_HOST
from graphkit.dtypes import dtype_name
from graphkit.graph.declared_types import declared_type
from graphkit.model import Model
from graphkit.save import save_models

HERE = Path(__file__).parent


def inputs_of(model: Model, source: int) -> list[dict[str, object]]:
    """Return the inputs of a decoder, each with the present that it becomes."""
    found, sizes = [], {"batch": 1, "sequence": 1, "encoder": source, "total": "total"}
    for value in model.roles.inputs:
        declared, entry = declared_type(value), model.roles.pasts.get(value)
        assert declared is not None
        axes = enumerate(declared.dims or ())
        shape = [
            dim if isinstance(dim, int) else sizes.get(model.roles.axis(value, axis), "past") for axis, dim in axes
        ]
        grows = entry is not None and entry.present is not None and not model.roles.is_cross(entry)
        present = entry.present.name if entry is not None and entry.present is not None and grows else None
        found.append({"name": value.name, "dtype": dtype_name(declared.dtype), "shape": shape, "present": present})
    return found


def measure(export: Path, options: Namespace, folder: Path) -> Table:
    """Measure one export."""
    pipeline = find_pipeline(export)
    step = pipeline.step
    if step is None:
        raise SystemExit(f"{export}: no decoder with a past")
    slots = options.slots or max(options.tokens) + options.steps + 4
    made = graphkit.BundleOptions(max_cache=slots, max_source=options.source, verify=False)
    graphkit.bundle_folder(export, folder / "bundle", made)
    folded = graphkit.fold(step).model
    save_models({folder / "folded.onnx": folded}, weights="shared")
    plan = {
        "modules": str(options.modules.resolve()),
        "host": str(JAVASCRIPT_HOST),
        "bundle": str(folder / "bundle"),
        "folded": str(folder / "folded.onnx"),
        "inputs": inputs_of(folded, options.source),
        "source": {"input_ids": [[5] * options.source]} if pipeline.encoder is not None else {},
        "tokens": options.tokens,
        "rounds": options.rounds,
        "steps": options.steps,
    }
    names, found = ["bundle", "growing"], []
    for _ in range(options.processes):
        command = ["node", str(HERE / "bundle_javascript.mjs"), json.dumps({**plan, "order": names})]
        found.append(json.loads(subprocess.run(command, check=True, capture_output=True, text=True).stdout))
        names.reverse()
    table = Table("Tokens", "bundle", "folded, growing", "over growing", title=f"{export}, {slots} slots")
    for count in options.tokens:
        bundle, growing = (
            Spread(tuple(time for times in found for time in times[str(count)][name])) for name in ("bundle", "growing")
        )
        table.add_row(str(count), bundle.show("", 2), growing.show("", 2), growing.over(bundle).show("x", 2))
    return table


def main(arguments: Sequence[str] | None = None) -> None:
    """Measure every export."""
    parser = argparse.ArgumentParser(description="Measure a decode step of a bundle in Node.")
    parser.add_argument("modules", type=Path, help="the folder where npm has put onnxruntime-node")
    parser.add_argument("exports", nargs="+", type=Path, metavar="FOLDER", help="an encoder and a decoder with a past")
    parser.add_argument("--tokens", type=int, nargs="+", default=[16, 128, 500], help="default: 16 128 500")
    parser.add_argument("--slots", type=int, help="slots of the cache (default: as many as are needed)")
    parser.add_argument("--source", type=int, default=64, help="positions of the source (default: 64)")
    parser.add_argument("--processes", type=int, default=4, help="processes of Node, one by one (default: 4)")
    parser.add_argument("--rounds", type=int, default=4, help="rounds of each process (default: 4)")
    parser.add_argument("--steps", type=int, default=8, help="steps of a round (default: 8)")
    options = parser.parse_args(arguments)
    console = Console(width=200, highlight=False)
    runs = f"{options.processes} processes, {options.rounds} rounds of {options.steps} steps in each"
    console.print(f"{environment()}\n{runs}, 1 thread")
    for export in options.exports:
        with tempfile.TemporaryDirectory(prefix="bundle-") as folder:
            console.print(measure(export, options, Path(folder)))


if __name__ == "__main__":
    main()
