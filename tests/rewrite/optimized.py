"""What onnxruntime makes of a model: its operators after its own optimizations, fused ones among them."""

from __future__ import annotations

import zlib
from collections import Counter
from collections.abc import Iterator, Mapping
from pathlib import Path

import numpy as np
import onnx
import onnx.helper
import onnx.numpy_helper
import onnxruntime

from graphkit import fold, load
from graphkit.io.tensors import payload_size
from graphkit.save import save_models

LEVELS = onnxruntime.GraphOptimizationLevel
EXTENDED, ALL = LEVELS.ORT_ENABLE_EXTENDED, LEVELS.ORT_ENABLE_ALL
MATERIALIZED = 1 << 20  # bytes of a missing weight that gets elements; larger ones are holes in a sparse file
FUSED = {"Gelu", "LayerNormalization", "RMSNormalization", "SimplifiedLayerNormalization"}  # of the default domain
BETTER = {  # what takes in more than an operator does
    "LayerNormalization": ("com.microsoft.SkipLayerNormalization", "com.microsoft.EmbedLayerNormalization"),
    "SimplifiedLayerNormalization": ("com.microsoft.SkipSimplifiedLayerNormalization",),
    "com.microsoft.Gelu": ("com.microsoft.BiasGelu",),
}


def graphs(graph: onnx.GraphProto) -> Iterator[onnx.GraphProto]:
    """Yield a graph and the bodies in it."""
    yield graph
    for node in graph.node:
        for attribute in node.attribute:
            for body in (*([attribute.g] if attribute.HasField("g") else []), *attribute.graphs):
                yield from graphs(body)


def tensors(model: onnx.ModelProto) -> Iterator[onnx.TensorProto]:
    """Yield the constants of a model."""
    for graph in graphs(model.graph):
        yield from graph.initializer
        yield from (attribute.t for node in graph.node for attribute in node.attribute if attribute.HasField("t"))


def complete(model: onnx.ModelProto, path: Path, *, jitter: float = 0.0) -> int:
    """Write a model with weights in the place of the missing ones, so that onnxruntime loads it.

    Vectors are their recorded mean; with `jitter`, those that are all 0 or all 1 get noise, as training would give
    them. Larger weights are drawn, those above a megabyte are zeros that take no place on the disk.

    Returns:
        How many vectors got noise.
    """
    places: dict[str, int] = {}
    end = noisy = 0
    for tensor in tensors(model):
        if tensor.data_location == onnx.TensorProto.EXTERNAL:
            note = {entry.key: entry.value for entry in tensor.external_data}
            size = payload_size(tensor) or 0
            if size <= MATERIALIZED:
                _fill(tensor, note)
            else:
                offset = places.setdefault(note["checksum"], end)
                end = max(end, offset + -(-size // 4096) * 4096)
                _place(tensor, f"{path.name}_data", offset, size)
        if jitter:
            noisy += _jitter(tensor, jitter)
    if end:
        with path.with_name(f"{path.name}_data").open("wb") as data:
            data.truncate(end)
    path.write_bytes(model.SerializeToString())
    return noisy


def _place(tensor: onnx.TensorProto, location: str, offset: int, length: int) -> None:
    del tensor.external_data[:]
    for key, value in (("location", location), ("offset", offset), ("length", length)):
        tensor.external_data.add(key=key, value=str(value))


def _fill(tensor: onnx.TensorProto, note: Mapping[str, str]) -> None:
    dtype = onnx.helper.tensor_dtype_to_np_dtype(tensor.data_type)
    draw = np.random.default_rng(zlib.crc32(note["checksum"].encode()))
    array = draw.normal(float(note["mean"]), float(note["std"]), tuple(tensor.dims))
    if np.issubdtype(dtype, np.integer):
        array = np.clip(np.rint(array), np.iinfo(dtype).min, np.iinfo(dtype).max)
    tensor.CopyFrom(onnx.numpy_helper.from_array(array.astype(dtype), tensor.name))


def _jitter(tensor: onnx.TensorProto, deviation: float) -> bool:
    is_vector = tensor.data_type == onnx.TensorProto.FLOAT and len(tensor.dims) == 1 and tensor.dims[0] > 3
    if not is_vector or tensor.data_location == onnx.TensorProto.EXTERNAL:
        return False
    array = onnx.numpy_helper.to_array(tensor)
    if (array != array[0]).any() or array[0] not in (0, 1):
        return False
    noise = np.random.default_rng(zlib.crc32(array.tobytes())).normal(0, deviation, array.shape)
    tensor.CopyFrom(onnx.numpy_helper.from_array((array + noise).astype(np.float32), tensor.name))
    return True


def operators(path: Path, level: LEVELS = EXTENDED) -> Counter[str]:
    """Return how many nodes of each operator a model has after onnxruntime's optimizations, those in bodies too."""
    result = path.with_name(f"{path.stem}.optimized.onnx")
    weights = result.with_name(f"{result.name}_data")
    weights.symlink_to("/dev/null")  # the graph is all that is wanted
    options = onnxruntime.SessionOptions()
    options.graph_optimization_level = level
    options.optimized_model_filepath = str(result)
    options.intra_op_num_threads = 1
    options.log_severity_level = 4
    options.add_session_config_entry("session.disable_prepacking", "1")
    options.add_session_config_entry("session.optimized_model_external_initializers_file_name", weights.name)
    options.add_session_config_entry("session.optimized_model_external_initializers_min_size_in_bytes", "1024")
    onnxruntime.InferenceSession(str(path), options, providers=["CPUExecutionProvider"])
    optimized = onnx.load(result, load_external_data=False)
    result.unlink()
    weights.unlink(missing_ok=True)  # onnxruntime removes it where no weight is that large
    return Counter(
        f"{node.domain}.{node.op_type}" if node.domain else node.op_type
        for graph in graphs(optimized.graph)
        for node in graph.node
    )


def fused(counts: Mapping[str, int]) -> dict[str, int]:
    """Return the operators that fusions make."""
    return {name: count for name, count in counts.items() if "." in name or name in FUSED}


def folded(path: Path) -> Path:
    """Fold a file beside itself."""
    result = path.with_name(f"{path.stem}.folded.onnx")
    save_models({result: fold(load(path)).model}, weights="in-place", overwrite=True)
    return result


def lost(before: Mapping[str, int], after: Mapping[str, int]) -> dict[str, tuple[int, int]]:
    """Return the fused operators that there are fewer of, and how many before and after.

    One that became part of a larger one is not lost.
    """
    pairs = {name: (count, after.get(name, 0)) for name, count in fused(before).items()}
    gained = {
        name: sum(max(0, after.get(other, 0) - before.get(other, 0)) for other in BETTER.get(name, ()))
        for name in pairs
    }
    return {name: (was, now) for name, (was, now) in pairs.items() if now + gained[name] < was}
