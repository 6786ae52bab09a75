"""Unpack a test model and fill its missing weights: what the scripts beside this file share, no script.

The models of `tests/models` are compressed, and where they are stubs, the large tensors refer to a file that is not
there, with the mean and deviation of what stood in it. Any numbers do for the time that a fold takes; these are drawn
from that distribution, so that the outputs are of the size they would be. A weight that several tensors share stays
shared.
"""

from __future__ import annotations

import lzma
import zlib
from collections.abc import Iterator
from pathlib import Path

import numpy as np
import onnx
from onnx import TensorProto, external_data_helper, helper

__all__ = ["complete"]


def complete(source: Path, folder: Path) -> Path:
    """Return a model in one file: the source, or a copy in `folder` where it is compressed or a stub."""
    model = (
        onnx.load_from_string(_bytes(source)) if source.suffix == ".xz" else onnx.load(source, load_external_data=False)
    )
    missing = [
        tensor for tensor in external_tensors(model.graph) if not (source.parent / _note(tensor)["location"]).exists()
    ]
    if source.suffix != ".xz" and not missing:
        return source
    for tensor in missing:
        _fill(tensor)
    target = folder / f"{source.parent.name}-{source.name.split('.')[0]}.onnx"
    target.write_bytes(model.SerializeToString())
    return target


def external_tensors(graph: onnx.GraphProto) -> Iterator[TensorProto]:
    """Give the tensors whose bytes are elsewhere, those of bodies included."""
    yield from (tensor for tensor in graph.initializer if external_data_helper.uses_external_data(tensor))
    for node in graph.node:
        for attribute in node.attribute:
            if external_data_helper.uses_external_data(attribute.t):
                yield attribute.t
            yield from external_tensors(attribute.g)


def _bytes(path: Path) -> bytes:
    return lzma.decompress(path.read_bytes())


def _note(tensor: TensorProto) -> dict[str, str]:
    return {entry.key: entry.value for entry in tensor.external_data}


def _fill(tensor: TensorProto) -> None:
    note = _note(tensor)
    mean, deviation = float(note["mean"]), float(note["std"])
    dtype = helper.tensor_dtype_to_np_dtype(tensor.data_type)
    random = np.random.default_rng(zlib.crc32(note["checksum"].encode()))
    values = random.standard_normal(tuple(tensor.dims), dtype=np.float32) * np.float32(deviation) + np.float32(mean)
    if mean > 3 * deviation:  # a scale or a variance, which has to be positive
        values = np.abs(values)
    if np.issubdtype(dtype, np.integer):
        values = np.clip(np.rint(values), np.iinfo(dtype).min, np.iinfo(dtype).max)
    del tensor.external_data[:]
    tensor.ClearField("data_location")
    tensor.raw_data = values.astype(dtype).tobytes()
