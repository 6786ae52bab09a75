"""Open a model in onnxruntime, quietly and on the CPU. Only this module imports onnxruntime and sets its options."""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    import numpy as np
    from onnxruntime import InferenceSession as InferenceSession
    from onnxruntime import OrtValue as OrtValue

__all__ = ["open_model", "runtime_version", "value_of"]

FOLDER = "session.model_external_initializers_file_folder_path"


def open_model(
    path_or_bytes: str | bytes, *, folder: str | None, optimize: bool, threads: int, prepack: bool, spin: bool = True
) -> InferenceSession:
    """Return onnxruntime's session for a model: the path of a file, or bytes with the folder of their external data.

    The options are those of `Session`. With `spin`, threads that have nothing to do wait in a busy loop, from which
    they start sooner.

    Raises:
        Exception: Whatever onnxruntime raises; its errors have no common base.
    """
    import onnxruntime

    options = onnxruntime.SessionOptions()
    options.log_severity_level = 4
    options.intra_op_num_threads = threads
    level = onnxruntime.GraphOptimizationLevel
    options.graph_optimization_level = level.ORT_ENABLE_ALL if optimize else level.ORT_DISABLE_ALL
    if not prepack:
        options.add_session_config_entry("session.disable_prepacking", "1")
    options.add_session_config_entry("session.intra_op.allow_spinning", str(int(spin)))
    if folder is not None:
        options.add_session_config_entry(FOLDER, folder)
    # without its fallback, which would try the same once more, and print to stdout
    return onnxruntime.InferenceSession(path_or_bytes, options, providers=["CPUExecutionProvider"], enable_fallback=0)


def value_of() -> Callable[[np.ndarray], OrtValue]:
    """Return a function that makes an `OrtValue` of an array and shares its memory.

    `OrtValue.ortvalue_from_numpy` looks up the device each time, which takes several times as long as the rest of it;
    here that is done once, as long as onnxruntime has the parts that it is made of.
    """
    import numpy as np
    import onnxruntime

    value = onnxruntime.OrtValue
    plain: Callable[[np.ndarray], OrtValue] = value.ortvalue_from_numpy
    try:
        make: Callable[..., object] = onnxruntime.capi.onnxruntime_pybind11_state.OrtValue.ortvalue_from_numpy
        device = onnxruntime.OrtDevice.make("cpu", 0)._get_c_device()
        probe = np.zeros(1, np.int64)
        if value(make(probe, device), probe).data_ptr() != probe.ctypes.data:
            return plain
    except (AttributeError, TypeError):  # another version of onnxruntime
        return plain

    def quick(array: np.ndarray) -> OrtValue:
        ort_value: OrtValue = value(make(array, device), array)
        return ort_value

    return quick


def runtime_version() -> tuple[int, int]:
    """Return major and minor version of onnxruntime."""
    import onnxruntime

    major, minor = onnxruntime.__version__.split(".")[:2]
    return int(major), int(minor)
