"""Exports quantised in the ways that people quantise them, by onnxruntime's own tools where it has them."""

from __future__ import annotations

import logging
import shutil
import warnings
from collections.abc import Callable, Iterator, Mapping
from pathlib import Path

import numpy as np
import onnx
from onnx import helper, numpy_helper
from onnxruntime.quantization import CalibrationDataReader, QuantFormat, QuantType, quantize_dynamic, quantize_static
from onnxruntime.transformers.float16 import convert_float_to_float16
from sessions import session_of

__all__ = ["KINDS", "MERGED", "quantised"]

MERGED = "decoder_model_merged.onnx"
BLOCK = 16
BATCH, TOKENS, PAST, SOURCE, SIDE = 1, 5, 3, 5, 32
DYNAMIC = {"DefaultTensorType": onnx.TensorProto.FLOAT, "EnableSubgraph": True}
Sizes = Mapping[str, int]
Maker = Callable[[Path, Path, Sizes], None]


def quantised(kind: str, folder: Path, output: Path, **sizes: int) -> Path:
    """Write the models of an export in a kind of quantisation, with its configuration, and return where.

    A merged decoder has no static quantisation: onnxruntime calibrates no bodies.
    """
    output.mkdir(parents=True)
    for path in sorted(folder.glob("*.onnx")):
        if kind != "qdq" or path.name != MERGED:
            KINDS[kind](path, output / path.name, sizes)
    for path in folder.glob("*.json"):
        shutil.copy(path, output)
    return output


def _dynamic(weight: QuantType, *, per_channel: bool = False) -> Maker:
    def make(source: Path, output: Path, _: Sizes) -> None:
        quantize_dynamic(source, output, per_channel=per_channel, weight_type=weight, extra_options=DYNAMIC)

    return make


class _Reader(CalibrationDataReader):  # type: ignore[misc]
    """Four random runs; masks have a position of padding."""

    def __init__(self, path: Path, sizes: Sizes) -> None:
        self.feeds = _feeds(path, sizes)

    def get_next(self) -> dict[str, np.ndarray] | None:
        return next(self.feeds, None)


def _static(source: Path, output: Path, sizes: Sizes) -> None:
    quantize_static(
        source,
        output,
        _Reader(source, sizes),
        quant_format=QuantFormat.QDQ,
        weight_type=QuantType.QInt8,
        op_types_to_quantize=["MatMul", "Gemm", "Conv", "Gather"],
    )


def _feeds(path: Path, sizes: Sizes) -> Iterator[dict[str, np.ndarray]]:
    rng = np.random.default_rng(0)
    inputs = session_of(path).get_inputs()
    has_past = any("past" in each.name for each in inputs)
    for _ in range(4):
        feed = {}
        for each in inputs:
            shape = [_size(dim, sizes, has_past=has_past) for dim in each.shape]
            if "float" in each.type:
                feed[each.name] = rng.standard_normal(shape).astype(np.float32)
            elif "bool" in each.type:
                feed[each.name] = np.zeros(shape, bool)
            elif "mask" in each.name:
                feed[each.name] = np.ones(shape, np.int64)
            elif "type" in each.name:
                feed[each.name] = np.zeros(shape, np.int64)
            else:
                feed[each.name] = (
                    np.full(shape, PAST)
                    if "position" in each.name
                    else rng.integers(3, sizes.get("vocabulary", 30), shape)
                )
        yield feed


def _size(dim: int | str, sizes: Sizes, *, has_past: bool) -> int:
    if isinstance(dim, int) or dim in sizes:
        return dim if isinstance(dim, int) else sizes[dim]
    if "batch" in dim:
        return BATCH
    if "past" in dim:
        return PAST + (1 if "+" in dim else 0)
    if "encoder" in dim:
        return SOURCE
    return {"height": SIDE, "width": SIDE, "num_channels": 3}.get(dim, 1 if has_past else TOKENS)


def _in_blocks(source: Path, output: Path, _: Sizes) -> None:
    """Put each weight of a MatMul into blocks of 4 bits, as MatMulNBits takes them."""
    model = onnx.load(source)
    weights = {tensor.name: tensor for tensor in model.graph.initializer}
    _block_graph(model.graph, weights)
    if all(entry.domain != "com.microsoft" for entry in model.opset_import):
        model.opset_import.append(helper.make_opsetid("com.microsoft", 1))
    onnx.save(model, output)


def _block_graph(graph: onnx.GraphProto, weights: Mapping[str, onnx.TensorProto]) -> None:
    for node in graph.node:
        for attribute in node.attribute:
            if attribute.type == onnx.AttributeProto.GRAPH:
                _block_graph(attribute.g, weights | {tensor.name: tensor for tensor in attribute.g.initializer})
        weight = weights.get(node.input[1]) if node.op_type == "MatMul" else None
        if weight is None or len(weight.dims) != 2 or weight.data_type != onnx.TensorProto.FLOAT:
            continue
        codes, scales = _blocks_of(numpy_helper.to_array(weight))
        names = [f"{node.output[0]}_codes", f"{node.output[0]}_scales"]
        graph.initializer.extend(map(numpy_helper.from_array, (codes, scales), names))
        rows, columns = weight.dims
        made = helper.make_node(
            "MatMulNBits", [node.input[0], *names], node.output, node.name, domain="com.microsoft",
            K=rows, N=columns, bits=4, block_size=BLOCK,
        )  # fmt: skip
        node.CopyFrom(made)


def _blocks_of(weight: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """Return codes, `[columns, blocks, BLOCK / 2]`, and scales, `[columns * blocks]`; the zero point is 8."""
    rows, columns = weight.shape
    padded = np.zeros((-(-rows // BLOCK) * BLOCK, columns), np.float32)
    padded[:rows] = weight
    blocks = padded.T.reshape(columns, -1, BLOCK)
    scales = np.maximum(np.abs(blocks).max(-1, keepdims=True) / 7, np.float32(1e-8))
    codes = (np.clip(np.round(blocks / scales), -8, 7) + 8).astype(np.uint8)
    return codes[..., ::2] | codes[..., 1::2] << 4, scales.astype(np.float32).reshape(-1)


def _half(source: Path, output: Path, _: Sizes) -> None:
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # numbers that float16 cannot hold
        onnx.save(convert_float_to_float16(onnx.load(source)), output)


logging.getLogger().addFilter(lambda record: "quant" not in record.getMessage().lower())
KINDS: Mapping[str, Maker] = {
    "dynamic uint8": _dynamic(QuantType.QUInt8),
    "dynamic int8": _dynamic(QuantType.QInt8),
    "dynamic by channel": _dynamic(QuantType.QInt8, per_channel=True),
    "qdq": _static,
    "int4": _in_blocks,
    "float16": _half,
}
