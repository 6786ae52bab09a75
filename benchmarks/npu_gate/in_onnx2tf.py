"""Turn an ONNX model into a SavedModel with onnx2tf, and stop there.

    python in_onnx2tf.py MODEL FOLDER INPUT...   # the inputs by name: the order of their axes stays

The program of onnx2tf goes on to write float32 and float16 TFLite, and describes the model as JSON, weights included.
For a model of 75 MB that takes 14 minutes and several GB more, and none of it is needed here. This runs in the
environment of the compilers, which has no graphkit.
"""

from __future__ import annotations

import sys
from collections.abc import Sequence
from typing import Any

import onnx2tf
import tensorflow as tf


class Written(BaseException):
    """The SavedModel is complete; not an Exception, which onnx2tf would catch."""


def main(model: str, folder: str, inputs: Sequence[str]) -> None:
    tf.lite.TFLiteConverter.from_keras_model = stop
    try:
        onnx2tf.convert(
            input_onnx_file_path=model,
            output_folder_path=folder,
            keep_shape_absolutely_input_names=list(inputs),
            output_signaturedefs=True,  # without the description as JSON
            non_verbose=True,
        )
    except Written:
        return


def stop(*_: Any, **__: Any) -> None:
    """Take the place of the first step after the SavedModel."""
    raise Written


if __name__ == "__main__":
    main(sys.argv[1], sys.argv[2], sys.argv[3:])
