"""Turn a SavedModel of onnx2tf into TFLite, and run it.

    python in_tensorflow.py FOLDER DTYPE...    # in float32, int8, int16; FOLDER has `saved`, the SavedModel, and
                                               # `feeds.npz`: for each input, all runs
    python in_tensorflow.py --operators FILE   # print the operators, the highest rank and the dtypes of a TFLite file

This runs in the environment of the compilers, which has no graphkit. Each stage leaves its files in the folder
(float32.tflite, float32.npz, ...), so that a crash in a later stage costs no earlier one. In int16, weights are int8.
"""

from __future__ import annotations

import json
import sys
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import tensorflow as tf
from tensorflow.lite.python import schema_py_generated as schema

Feed = dict[str, np.ndarray]
BUILTINS = {number: name for name, number in vars(schema.BuiltinOperator).items() if not name.startswith("_")}
DTYPES = {number: name.lower() for name, number in vars(schema.TensorType).items() if not name.startswith("_")}


QUANTISED = {
    "int8": (tf.int8, tf.lite.OpsSet.TFLITE_BUILTINS_INT8),
    "int16": (tf.int16, tf.lite.OpsSet.EXPERIMENTAL_TFLITE_BUILTINS_ACTIVATIONS_INT16_WEIGHTS_INT8),
}


def main(folder: Path, dtypes: Sequence[str]) -> None:
    with np.load(folder / "feeds.npz") as loaded:
        arrays = dict(loaded)
    feeds = [{name: array[run] for name, array in arrays.items()} for run in range(len(next(iter(arrays.values()))))]
    for dtype in dtypes:
        print(f"stage:while converting to {dtype}", flush=True)
        made = converted(folder / "saved", dtype, feeds)
        (folder / f"{dtype}.tflite").write_bytes(made)
        print(f"stage:while running {dtype}", flush=True)
        save_outputs(folder / f"{dtype}.npz", made, feeds)


def converted(saved: Path, dtype: str, feeds: list[Feed]) -> bytes:
    """Return TFLite; where it is quantised, calibrated on all feeds."""

    def calibration() -> Iterator[Feed]:
        yield from feeds

    converter = tf.lite.TFLiteConverter.from_saved_model(str(saved))
    if dtype in QUANTISED:
        kind, operators = QUANTISED[dtype]
        converter.optimizations = [tf.lite.Optimize.DEFAULT]
        converter.representative_dataset = calibration
        converter.target_spec.supported_ops = [operators]
        converter.inference_input_type = converter.inference_output_type = kind
    return bytes(converter.convert())


def save_outputs(path: Path, model: bytes, feeds: list[Feed]) -> None:
    """Run a model on all feeds; its outputs are output_0, output_1, ... in the order of the ONNX model."""
    runner = tf.lite.Interpreter(model_content=model).get_signature_runner()
    inputs, outputs = runner.get_input_details(), runner.get_output_details()
    runs = [runner(**{name: to_quantised(feed[name], detail) for name, detail in inputs.items()}) for feed in feeds]
    np.savez(
        path, **{name: np.stack([to_float(run[name], detail) for run in runs]) for name, detail in outputs.items()}
    )


def to_quantised(array: np.ndarray, detail: dict[str, Any]) -> np.ndarray:
    scale, zero = detail["quantization"]
    if not scale:
        return array.astype(detail["dtype"])
    limits = np.iinfo(detail["dtype"])
    return np.clip(np.round(array / scale) + zero, limits.min, limits.max).astype(detail["dtype"])


def to_float(array: np.ndarray, detail: dict[str, Any]) -> np.ndarray:
    scale, zero = detail["quantization"]
    return (array.astype(np.float32) - zero) * scale if scale else array


def operators(content: bytes) -> dict[str, Any]:
    """Return how many of each operator there are, the highest rank, and the dtypes of what is computed."""
    model = schema.ModelT.InitFromPackedBuf(content, 0)
    counts: dict[str, int] = {}
    rank, dtypes = 0, set()
    for graph in model.subgraphs:
        for node in graph.operators:
            name = operator_name(model.operatorCodes[node.opcodeIndex])
            counts[name] = counts.get(name, 0) + 1
            for index in node.outputs:
                tensor = graph.tensors[index]
                rank = max(rank, len(tensor.shape) if tensor.shape is not None else 0)
                dtypes.add(DTYPES[tensor.type])
    return {"operators": counts, "rank": rank, "dtypes": sorted(dtypes)}


def operator_name(code: Any) -> str:
    number = max(code.deprecatedBuiltinCode, code.builtinCode)
    if BUILTINS[number] == "CUSTOM":
        return code.customCode.decode() if isinstance(code.customCode, bytes) else str(code.customCode)
    return BUILTINS[number]


if __name__ == "__main__":
    if sys.argv[1] == "--operators":
        print(json.dumps(operators(Path(sys.argv[2]).read_bytes())))
    else:
        main(Path(sys.argv[1]), sys.argv[2:])
