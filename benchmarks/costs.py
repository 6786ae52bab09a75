"""Multiply-accumulates beside onnx-tool's and onnxsim's, and peak memory beside that of onnxruntime's own allocator.

    python benchmarks/costs.py macs MODEL[@batch_size=1,x=1x3x8x8]... --onnx-tool PYTHON --onnxsim PYTHON
    python benchmarks/costs.py formulas FOLDER/vit.onnx... --onnx-tool PYTHON --onnxsim PYTHON
    python benchmarks/costs.py memory MODEL[@batch_size=1]... --onnxruntime PYTHON

`formulas` adds the formula of the architecture: `architectures.py` has them by the name of the file, and makes some.
Peers need fixed sizes: all three count the model that `graphkit fold` freezes. PYTHON is that of an environment with
the peer; none is a dependency of graphkit. `memory` compiles `allocations.c`, which counts what onnxruntime allocates.
"""

from __future__ import annotations

import argparse
import json
import os
import subprocess
import tempfile
from pathlib import Path

from architectures import FORMULAS
from contenders import Case

import graphkit
from graphkit.passes.shapes.declare_shapes import with_shapes
from graphkit.shapes import DimSpec, infer

ONNX_TOOL = """
import json, sys, warnings, contextlib
warnings.simplefilter("ignore")
import numpy, onnx, onnx_tool
model = onnx_tool.Model(sys.argv[1])
with contextlib.redirect_stdout(sys.stderr):
    model.graph.shape_infer({name: numpy.ones(shape, onnx.helper.tensor_dtype_to_np_dtype(dtype))
                             for name, (shape, dtype) in json.loads(sys.argv[2]).items()})
    model.graph.profile()
macs = {}
for node in model.graph.nodemap.values():
    macs[node.op_type] = macs.get(node.op_type, 0) + int(node.macs[0])
print(json.dumps(macs))
"""
ONNXSIM = """
import json, sys, onnx
from onnxsim.model_info import ModelInfo
print(json.dumps(str(ModelInfo(onnx.load(sys.argv[1])).macs)))
"""
ONNXRUNTIME = """
import ctypes, gc, json, sys
import numpy, onnx, onnxruntime
counter = ctypes.CDLL(None)
counter.peak_of_allocations.restype = ctypes.c_long
options = onnxruntime.SessionOptions()
options.enable_cpu_mem_arena = options.enable_mem_pattern = False
options.intra_op_num_threads, options.log_severity_level = 1, 3
options.graph_optimization_level = onnxruntime.GraphOptimizationLevel.ORT_DISABLE_ALL
session = onnxruntime.InferenceSession(sys.argv[1], options, providers=["CPUExecutionProvider"])
feed = {name: numpy.ones(shape, onnx.helper.tensor_dtype_to_np_dtype(dtype))
        for name, (shape, dtype) in json.loads(sys.argv[2]).items()}
session.run(None, feed)
gc.collect()
counter.count_allocations()
results = session.run(None, feed)
print(json.dumps(counter.peak_of_allocations()))
"""
PRODUCTS = ("Conv", "ConvTranspose", "Einsum", "Gemm", "MatMul", "LSTM", "GRU", "RNN")


def main() -> None:
    """Read the command line, and print a row for each model."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("what", choices=("macs", "formulas", "memory"))
    parser.add_argument("cases", nargs="+", type=Case.parse)
    for peer in ("onnx-tool", "onnxsim", "onnxruntime"):
        parser.add_argument(f"--{peer}", metavar="PYTHON")
    asked = parser.parse_args()
    with tempfile.TemporaryDirectory() as folder:
        for case in asked.cases:
            if asked.what == "formulas":
                print(f"{case.model.stem}: formula {FORMULAS[case.model.stem]():,}; ", end="", flush=True)
            if asked.what != "memory":
                print(_macs(case, Path(folder), asked.onnx_tool, asked.onnxsim), flush=True)
            else:
                print(_memory(case, Path(folder), asked.onnxruntime), flush=True)


def _macs(case: Case, folder: Path, onnx_tool: str, onnxsim: str) -> str:
    """Return the MACs of a frozen model by each, and the operators of products that onnx-tool counts otherwise."""
    model = folder / f"{case.name}.onnx"
    spec = _spec(case) | DimSpec.of(dict(graphkit.costs(case.model, _spec(case)).sizes))
    frozen, _ = with_shapes(graphkit.fold(graphkit.load(case.model), spec).model)
    frozen.save(model, weights="inline", overwrite=True)
    found = graphkit.costs(model, by="op")
    counted = {row.name: row.macs.value for row in found.rows if row.macs.value}
    tool = _asked(onnx_tool, ONNX_TOOL, str(model), json.dumps(_feed(graphkit.load(model), DimSpec())))
    simplifier = _asked(onnxsim, ONNXSIM, str(model))
    text = f"{case.name} {case.mode}: graphkit {found.macs.value:,}; onnxsim {simplifier}; onnx-tool "
    if not isinstance(tool, dict):
        return f"{text}{tool}"
    others = {
        op: (counted.get(op, 0), count) for op, count in tool.items() if op in PRODUCTS and count != counted.get(op)
    }
    return f"{text}{sum(tool.get(op, 0) for op in PRODUCTS):,} of {sum(tool.values()):,}; differ {others}"


def _memory(case: Case, folder: Path, onnxruntime: str) -> str:
    library = folder / "allocations.so"
    if not library.exists():
        source = Path(__file__).with_name("allocations.c")
        subprocess.run(["cc", "-O2", "-shared", "-fPIC", "-o", library, source, "-ldl"], check=True)
    model = graphkit.load(case.model)
    found = graphkit.costs(model, _spec(case))
    feed = _feed(model, _spec(case) | DimSpec.of(dict(found.sizes)))
    measured = _asked(onnxruntime, ONNXRUNTIME, str(case.model), json.dumps(feed), LD_PRELOAD=str(library))
    if not isinstance(measured, int):
        return f"{case.name} {case.mode}: {measured}"
    peak = found.peak.bytes.value or 0
    text = f"{case.name} {case.mode}: graphkit {peak:,}, onnxruntime {measured:,}, ratio {peak / measured:.3f}"
    return f"{text}, {found.peak.node}"


def _spec(case: Case) -> DimSpec:
    return DimSpec.of(dict(case.dims), dict(case.inputs))


def _feed(model: graphkit.Model, spec: DimSpec) -> dict[str, tuple[list[int], int]]:
    shapes = infer(model, spec)
    inputs = [value for value in model.graph.inputs if value.tensor is None]
    return {value.name: ([int(dim) for dim in shapes.dims(value) or ()], shapes[value].dtype) for value in inputs}


def _asked(python: str, program: str, *arguments: str, **variables: str) -> object:
    """Return what a program prints as JSON, or the last line of its error."""
    environment = {**os.environ, "OMP_NUM_THREADS": "1", **variables}
    command = [python, "-c", program, *arguments]
    run = subprocess.run(command, capture_output=True, text=True, env=environment, timeout=600, check=False)
    return json.loads(run.stdout) if run.returncode == 0 else (run.stderr.strip() or "died").splitlines()[-1]


if __name__ == "__main__":
    main()
