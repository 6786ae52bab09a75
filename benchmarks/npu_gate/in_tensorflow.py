"""Turn an ONNX model into a SavedModel, and that into TFLite, and run it.

    python in_tensorflow.py --saved MODEL FOLDER INPUT...   # write the SavedModel; the axes of the inputs stay in order
    python in_tensorflow.py FOLDER DTYPE...    # in float32, int8, int16; FOLDER has `saved`, the SavedModel, and
                                               # `feeds.npz`: for each input, all runs
    python in_tensorflow.py --operators FILE   # print the operators, the highest rank and the dtypes of a TFLite file

This runs in the environment of the judge `vela`, which has no graphkit, and converts as that judge does. Each stage
leaves its files in the folder (float32.tflite, float32.npz, ...): a crash in a later stage costs no earlier one.
"""

from __future__ import annotations

import json
import sys
from collections import Counter
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np
import tensorflow as tf

sys.path.insert(0, str(Path(__file__).parents[2] / "graphkit" / "judges" / "adapters"))
import ask_vela

Feed = dict[str, np.ndarray]


def main(folder: Path, dtypes: Sequence[str]) -> None:
    with np.load(folder / "feeds.npz") as loaded:
        arrays = dict(loaded)
    feeds = [{name: array[run] for name, array in arrays.items()} for run in range(len(next(iter(arrays.values()))))]
    for dtype in dtypes:
        print(f"stage:while converting to {dtype}", flush=True)
        made = ask_vela.convert_model(folder / "saved", dtype, feeds)
        (folder / f"{dtype}.tflite").write_bytes(made)
        print(f"stage:while running {dtype}", flush=True)
        save_outputs(folder / f"{dtype}.npz", made, feeds)


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
    found = ask_vela.operators(content)
    return {
        "operators": Counter(each.name for each in found),
        "rank": max((rank for each in found for rank in each.ranks), default=0),
        "dtypes": sorted({dtype for each in found for dtype in each.dtypes}),
    }


if __name__ == "__main__":
    if sys.argv[1] == "--operators":
        print(json.dumps(operators(Path(sys.argv[2]).read_bytes())))
    elif sys.argv[1] == "--saved":
        ask_vela.save_model(sys.argv[2], sys.argv[3], sys.argv[4:])
    else:
        main(Path(sys.argv[1]), sys.argv[2:])
