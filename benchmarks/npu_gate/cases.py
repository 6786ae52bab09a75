"""What goes through the gate: lowered models with feeds of real runs, and the frozen export that must not pass."""

from __future__ import annotations

import lzma
import subprocess
import sys
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from pathlib import Path

import numpy as np
import onnx
import onnx.numpy_helper

from graphkit.contract import Method
from graphkit.deploy.export_pipeline import find_pipeline
from graphkit.deploy.lower import LowerOptions, lower_folder
from graphkit.hosts import Host
from graphkit.model import Model, load
from graphkit.runtime.session import Session

Arrays = Mapping[str, np.ndarray]
SEED = 0
FLOOR = -255.0  # what int8 takes: at -1e9 the scale of the scores would be lost


@dataclass
class Case:
    """A model, and what it is fed and gives in onnxruntime, run by run.

    Attributes:
        name: What the table calls it.
        path: The ONNX file; all its dims are numbers.
        scores: Index of the output whose argmax is a token, None where none is.
        is_control: Whether it must fail.
    """

    name: str
    path: Path
    scores: int | None = None
    is_control: bool = False
    feeds: list[Arrays] = field(default_factory=list)
    outputs: list[Arrays] = field(default_factory=list)


def unpacked(source: Path, folder: Path) -> Path:
    """Return a folder of models that are no longer compressed."""
    packed = list(source.glob("*.onnx.xz"))
    if not packed:
        return source
    folder.mkdir(parents=True, exist_ok=True)
    for path in packed:
        (folder / path.stem).write_bytes(lzma.decompress(path.read_bytes()))
    return folder


def lowered(
    source: Path, folder: Path, options: LowerOptions, sources: int
) -> tuple[list[Case], Host, tuple[str, ...]]:
    """Lower a pipeline, record what the reference host feeds its models for some sources; and what lowering finds."""
    report = lower_folder(source, folder, options)
    recorder = Host(folder)
    cases = {}
    for method in recorder.contract.methods:
        scores = [index for index, port in enumerate(method.outputs) if method.when == "step" and not port.writes]
        cases[method.name] = Case(method.name, folder / method.file, scores[0] if scores else None)
    run = recorder.run

    def record(method: Method, feed: Arrays) -> Arrays:
        given = run(method, feed)
        cases[method.name].feeds.append({name: array.copy() for name, array in feed.items()})
        cases[method.name].outputs.append({name: array.copy() for name, array in given.items()})
        return given

    recorder.run = record
    rng, ports = np.random.default_rng(SEED), [port for method in recorder.contract.methods for port in method.inputs]
    for ids in random_sources(recorder, sources):
        given = {port.name: rng.standard_normal(port.shape).astype(port.dtype) for port in ports if port.kind == "user"}
        recorder.start(ids if recorder.contract.takes_text else (), given)
        for token in range(capacity + 1 if (capacity := recorder.contract.sizes["capacity"]) else 0):
            recorder.step(ids[token % len(ids)] if ids else token)
    recorder.run = run
    return list(cases.values()), recorder, report.findings()


def random_sources(host: Host, count: int) -> Iterator[list[int]]:
    """Yield sources of lengths from 1 token to the fixed length."""
    rng = np.random.default_rng(SEED)
    length, rows = host.contract.sizes["source"], min(table.rows for table in host.contract.tables if table.rows > 32)
    for size in np.linspace(1, length, count).astype(int) if length else [host.contract.sizes["capacity"]] * count:
        yield [int(token) for token in rng.integers(0, rows, size)]


def frozen(source: Path, folder: Path, dims: Mapping[str, int], host: Host, sources: int) -> list[Case]:
    """Freeze the encoder and the step of the export as they are, and feed them at a full cache.

    Each comes once more with finite masks, which the converters take, to see what the compiler makes of the graph.
    """
    folder.mkdir(parents=True, exist_ok=True)
    pipeline = find_pipeline(source)
    step = pipeline.step
    if step is not None and pipeline.merged:
        graphkit("split-merged", str(step.path), "-o", str(folder), "--no-verify", "--overwrite")
        step = load(folder / "decoder_with_past_model.onnx")
    cases = []
    for name, model in (("frozen encoder", pipeline.encoder), ("frozen step", step)):
        if model is None:
            continue
        path = folder / f"{name.replace(' ', '_')}.onnx"
        words = [f"--dim={dim}={size}" for dim, size in dims.items() if dim in symbols(model)]
        graphkit("fold", str(model.path), "-o", str(path), *words, "--weights", "inline", "--no-verify", "--overwrite")
        cases.append(Case(name, path, is_control=True))
        finite = path.with_name(f"{path.stem}_finite.onnx")
        onnx.save(with_finite_masks(onnx.load(path)), finite)
        cases.append(Case(f"{name}, finite masks", finite, is_control=True))
    for case in cases:
        model = load(case.path)
        session = Session(case.path, optimize=True)
        for ids in random_sources(host, sources):
            host.start(ids)
            for token in range(host.contract.sizes["capacity"]):
                host.step(token)
            case.feeds.append(frozen_feed(model, ids, host))
            case.outputs.append(session.run(case.feeds[-1]))
    return cases


def with_finite_masks(model: onnx.ModelProto) -> onnx.ModelProto:
    """Raise constants to the floor: what fails then is the graph, and no longer the scale of its masks."""
    constants = [node.attribute[0].t for node in model.graph.node if node.op_type == "Constant"]
    for tensor in [*model.graph.initializer, *constants]:
        if tensor.data_type == onnx.TensorProto.FLOAT:
            array = onnx.numpy_helper.to_array(tensor)
            if array.size and array.min() < FLOOR:
                tensor.CopyFrom(onnx.numpy_helper.from_array(np.maximum(array, np.float32(FLOOR)), tensor.name))
    return model


def symbols(model: Model) -> set[str]:
    return {dim.dim_param for value in model.proto.graph.input for dim in value.type.tensor_type.shape.dim}


def frozen_feed(model: Model, ids: list[int], host: Host) -> Arrays:
    """Return ids and ones for what takes integers, the state of the host for what has its name."""
    feed = {}
    for value in model.proto.graph.input:
        shape = [dim.dim_value for dim in value.type.tensor_type.shape.dim]
        dtype = onnx.helper.tensor_dtype_to_np_dtype(value.type.tensor_type.elem_type)
        if value.name in host.state:
            feed[value.name] = host.state[value.name].copy()
        elif "mask" in value.name:
            feed[value.name] = (np.arange(shape[-1]) < len(ids)).astype(dtype)[None]
        else:
            feed[value.name] = np.resize(np.array(ids, dtype), shape)
    return feed


def graphkit(*words: str) -> None:
    """Run a command of graphkit."""
    subprocess.run([sys.executable, "-m", "graphkit", *words], check=True, stdout=subprocess.DEVNULL)
