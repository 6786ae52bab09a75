"""How the time of a fold grows with the number of layers: ten times the layers, at most about ten times the time.

    python benchmarks/scaling.py

A decoder is generated in the style of the exporters: every layer computes its shapes anew with Shape, Gather,
Unsqueeze and Concat, and repeats its key heads. Processor time of whole processes in turns; `growth` is that of the
large one over that of the small one, `less start` the same after taking off that of a decoder without layers.
"""

from __future__ import annotations

import argparse
import sys
import tempfile
from pathlib import Path

import numpy as np
import onnx
import onnx.parser
from contenders import TOOLS, VARIANTS, Case, Job, versions
from folding import Fold, counts
from measure import Spread, alternate, environment
from onnx import numpy_helper
from rich.console import Console
from rich.table import Table

HEADS, GROUPS, HEAD, VOCABULARY = 4, 2, 8, 64
WIDTH = HEADS * HEAD

KV = ("key", "value")

HEADER = """
<ir_version: 8, opset_import: ["": 18]>
decoder ({inputs}) => ({outputs})
{{
  x0 = Gather <axis = 0> (embedding, input_ids)
  attended = Cast <to = 1> (attention_mask)
  barred = Sub (number_one, attended)
  bias2 = Mul (barred, large)
  bias = Unsqueeze (bias2, axes_12)
"""
# q, k and v each measure x again, as exporters do
SPLIT = """
  {n}_{v}_p = MatMul (x{l}, {n}_{v}_weight)
  {n}_{v}_s0 = Shape (x{l})
  {n}_{v}_b = Gather <axis = 0> ({n}_{v}_s0, zero)
  {n}_{v}_s1 = Shape (x{l})
  {n}_{v}_s = Gather <axis = 0> ({n}_{v}_s1, one)
  {n}_{v}_bu = Unsqueeze ({n}_{v}_b, axes_0)
  {n}_{v}_su = Unsqueeze ({n}_{v}_s, axes_0)
  {n}_{v}_hu = Unsqueeze ({heads}, axes_0)
  {n}_{v}_du = Unsqueeze (head, axes_0)
  {n}_{v}_shape = Concat <axis = 0> ({n}_{v}_bu, {n}_{v}_su, {n}_{v}_hu, {n}_{v}_du)
  {n}_{v}_r = Reshape ({n}_{v}_p, {n}_{v}_shape)
  {n}_{v} = Transpose <perm = [0, 2, 1, 3]> ({n}_{v}_r)
"""
REPEAT = """
  present_{l}_{v} = Concat <axis = 2> (past_{l}_{v}, {n}_{w})
  {n}_{w}_t0 = Shape (present_{l}_{v})
  {n}_{w}_tb = Gather <axis = 0> ({n}_{w}_t0, zero)
  {n}_{w}_t1 = Shape (present_{l}_{v})
  {n}_{w}_tt = Gather <axis = 0> ({n}_{w}_t1, two)
  {n}_{w}_five = Unsqueeze (present_{l}_{v}, axes_2)
  {n}_{w}_tbu = Unsqueeze ({n}_{w}_tb, axes_0)
  {n}_{w}_ttu = Unsqueeze ({n}_{w}_tt, axes_0)
  {n}_{w}_wide = Concat <axis = 0> ({n}_{w}_tbu, groups_1, repeats_1, {n}_{w}_ttu, head_1)
  {n}_{w}_rank = Shape ({n}_{w}_wide)
  {n}_{w}_ones = ConstantOfShape <value = int64[1] {{1}}> ({n}_{w}_rank)
  {n}_{w}_minus = Mul ({n}_{w}_ones, minus_one)
  {n}_{w}_same = Equal ({n}_{w}_wide, {n}_{w}_minus)
  {n}_{w}_to = Where ({n}_{w}_same, {n}_{w}_ones, {n}_{w}_wide)
  {n}_{w}_e = Expand ({n}_{w}_five, {n}_{w}_to)
  {n}_{w}_fu = Unsqueeze (heads, axes_0)
  {n}_{w}_flat = Concat <axis = 0> ({n}_{w}_tbu, {n}_{w}_fu, {n}_{w}_ttu, head_1)
  {n}_{w}_all = Reshape ({n}_{w}_e, {n}_{w}_flat)
"""
ATTEND = """
  {n}_kt = Transpose <perm = [0, 1, 3, 2]> ({n}_k_all)
  {n}_scores = MatMul ({n}_q, {n}_kt)
  {n}_ls = Shape ({n}_k_all)
  {n}_length = Gather <axis = 0> ({n}_ls, two)
  {n}_lengthu = Unsqueeze ({n}_length, axes_0)
  {n}_cut = Slice (bias, starts_0, {n}_lengthu, axes_3)
  {n}_masked = Add ({n}_scores, {n}_cut)
  {n}_weights = Softmax <axis = -1> ({n}_masked)
  {n}_out = MatMul ({n}_weights, {n}_v_all)
  {n}_back = Transpose <perm = [0, 2, 1, 3]> ({n}_out)
  {n}_os0 = Shape (x{l})
  {n}_ob = Gather <axis = 0> ({n}_os0, zero)
  {n}_os1 = Shape (x{l})
  {n}_os = Gather <axis = 0> ({n}_os1, one)
  {n}_obu = Unsqueeze ({n}_ob, axes_0)
  {n}_osu = Unsqueeze ({n}_os, axes_0)
  {n}_oshape = Concat <axis = 0> ({n}_obu, {n}_osu, width_1)
  {n}_joined = Reshape ({n}_back, {n}_oshape)
  {n}_projected = MatMul ({n}_joined, {n}_o_weight)
  x{m} = Add (x{l}, {n}_projected)
"""


def decoder(layers: int) -> onnx.ModelProto:
    """Return a decoder of so many layers with random weights."""
    cache = [(layer, name) for layer in range(layers) for name in KV]
    inputs = ["int64[batch, sequence] input_ids", "int64[batch, total] attention_mask"]
    inputs += [f"float[batch, {GROUPS}, past, {HEAD}] past_{layer}_{name}" for layer, name in cache]
    outputs = [f"float[batch, sequence, {VOCABULARY}] logits"]
    outputs += [f"float[batch, {GROUPS}, total, {HEAD}] present_{layer}_{name}" for layer, name in cache]
    text = [HEADER.format(inputs=", ".join(inputs), outputs=", ".join(outputs))]
    for layer in range(layers):
        names = {"n": f"layer{layer}", "l": layer, "m": layer + 1}
        text += [SPLIT.format(v=v, heads="heads" if v == "q" else "groups", **names) for v in "qkv"]
        text += [REPEAT.format(v=name, w=name[0], **names) for name in KV]
        text.append(ATTEND.format(**names))
    model = onnx.parser.parse_model("".join([*text, f"  logits = MatMul (x{layers}, unembedding)\n}}"]))
    model.graph.initializer.extend(numpy_helper.from_array(array, name) for name, array in weights(layers).items())
    return model


def weights(layers: int) -> dict[str, np.ndarray]:
    """Return the weights and constants of the decoder."""
    random = np.random.default_rng(0)
    found: dict[str, np.ndarray] = {
        "embedding": random.standard_normal((VOCABULARY, WIDTH), dtype=np.float32),
        "unembedding": random.standard_normal((WIDTH, VOCABULARY), dtype=np.float32),
        "number_one": np.float32(1).reshape(()),
        "large": np.float32(-1e4).reshape(()),
    }
    for layer in range(layers):
        for name, width in {"q": WIDTH, "k": GROUPS * HEAD, "v": GROUPS * HEAD, "o": WIDTH}.items():
            found[f"layer{layer}_{name}_weight"] = random.standard_normal((WIDTH, width), dtype=np.float32) / WIDTH
    scalars = {"zero": 0, "one": 1, "two": 2, "minus_one": -1, "heads": HEADS, "groups": GROUPS, "head": HEAD}
    lists = {"axes_0": [0], "axes_2": [2], "axes_3": [3], "axes_12": [1, 2], "starts_0": [0], "groups_1": [GROUPS]}
    lists |= {"repeats_1": [HEADS // GROUPS], "head_1": [HEAD], "width_1": [WIDTH]}
    return found | {name: np.array(value, np.int64) for name, value in (scalars | lists).items()}


def jobs(layers: int, folder: Path, peers: str) -> dict[str, Job]:
    """Write a decoder without layers, one of `layers` and one of ten times that."""
    found = {}
    for name, count in {"none": 0, "small": layers, "large": 10 * layers}.items():
        path = folder / f"{name}.onnx"
        onnx.save(decoder(count), path)
        found[name] = Job(Case(path), path, path, {}, peers)
    return found


def main() -> None:
    """Measure every tool."""
    parser = argparse.ArgumentParser(description="Measure how the time of a fold grows with the layers.")
    parser.add_argument("--layers", type=int, default=12, help="of the small decoder (default: 12)")
    parser.add_argument("--rounds", type=int, default=3, help="runs of each, in turns (default: 3)")
    parser.add_argument("--peers", default=sys.executable, help="the interpreter that has the peers")
    parser.add_argument("--tools", default=",".join(TOOLS), help="which, commas between them")
    parser.add_argument("--timeout", type=int, default=600, help="seconds for one run (default: 600)")
    options = parser.parse_args()
    console = Console(width=180, highlight=False)
    console.print(f"{environment()}\n{versions(options.peers)}\n{options.rounds} rounds; median (least to greatest)")
    table = Table(
        "",
        "nodes left",
        "no layers",
        f"{options.layers} layers",
        f"{10 * options.layers} layers",
        "growth",
        "less start",
    )
    with tempfile.TemporaryDirectory(prefix="scaling-") as folder:
        made = jobs(options.layers, Path(folder), options.peers)
        table.add_row("original", counts(made["large"].model)[0])
        for tool in TOOLS:
            if tool in options.tools.split(",") and tool not in VARIANTS:
                table.add_row(tool, *row(tool, made, options))
    console.print(table)


def row(tool: str, made: dict[str, Job], options: argparse.Namespace) -> list[str]:
    """Measure one tool."""
    outs = {name: job.model.with_name(f"{name}-folded.onnx") for name, job in made.items()}
    folds = {name: Fold(TOOLS[tool](job, outs[name]), outs[name], options.timeout) for name, job in made.items()}
    failures = [failure for fold in folds.values() if (failure := fold.failure())]
    if failures:
        return [failures[0]]
    alternate({name: fold.time for name, fold in folds.items()}, options.rounds, warm_up=False)
    seconds = {name: Spread(tuple(fold.processor)) for name, fold in folds.items()}
    growth = seconds["large"].over(seconds["small"])
    bare = seconds["large"].minus(seconds["none"]).over(seconds["small"].minus(seconds["none"]))
    cells = [seconds[name].show(" s", 2) for name in made]
    return [counts(outs["large"])[0], *cells, growth.show("x", 1), bare.show("x", 1)]


if __name__ == "__main__":
    main()
