"""Open a model in onnxruntime, quietly, on the CPU or another provider. Only this module sets a session's options."""

from __future__ import annotations

import ctypes
from collections.abc import Callable, Mapping
from types import MappingProxyType
from typing import TYPE_CHECKING, Any

if __package__:
    from graphkit.runtime.providers import CPU, Provider, ProviderError, add_provider, find_provider
else:  # of `placement`, which is run by its path
    from providers import CPU, Provider, ProviderError, add_provider, find_provider  # type: ignore[import-not-found, no-redef]

if TYPE_CHECKING:
    import numpy as np
    from onnxruntime import InferenceSession as InferenceSession
    from onnxruntime import OrtMemoryInfo
    from onnxruntime import OrtValue as OrtValue

# Types that onnxruntime neither takes from numpy nor gives to it: the dtype in numpy, and the number in ONNX.
ODD_TYPES = {
    "tensor(bfloat16)": ("bfloat16", 16), "tensor(float8e4m3fn)": ("float8_e4m3fn", 17),
    "tensor(float8e4m3fnuz)": ("float8_e4m3fnuz", 18), "tensor(float8e5m2)": ("float8_e5m2", 19),
    "tensor(float8e5m2fnuz)": ("float8_e5m2fnuz", 20), "tensor(uint4)": ("uint4", 21), "tensor(int4)": ("int4", 22),
}  # fmt: skip
FOUR_BITS = 21  # the first number of a dtype of which two elements share a byte
FOLDER = "session.model_external_initializers_file_folder_path"


def open_model(
    path_or_bytes: str | bytes,
    *,
    folder: str | None,
    optimize: bool,
    threads: int,
    prepack: bool,
    spin: bool = True,
    provider: Provider = CPU,
    dims: Mapping[str, int] = MappingProxyType({}),
    entries: Mapping[str, str] = MappingProxyType({}),
    saved: str = "",
) -> InferenceSession:
    """Return onnxruntime's session for a model: the path of a file, or bytes with the folder of their external data.

    The options are those of `Session`. With `spin`, threads that have nothing to do wait in a busy loop, from which
    they start sooner. `dims` are sizes of symbols, `entries` more of the session's configuration, and `saved` is where
    onnxruntime writes the model that it runs.

    Raises:
        ProviderError: The provider is not here, or does not start.
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
    for key, value in entries.items():
        options.add_session_config_entry(key, value)
    for name, size in dims.items():
        options.add_free_dimension_override_by_name(name, size)
    options.optimized_model_filepath = saved
    options.enable_mem_pattern = not provider.capture  # which WebGPU does not record
    providers = add_provider(options, provider)
    # without its fallback, which would try the same once more, and print to stdout
    session = onnxruntime.InferenceSession(path_or_bytes, options, providers=providers or None, enable_fallback=0)
    if find_provider(provider.name).runtime_name not in session.get_providers():  # onnxruntime took the CPU instead
        hint = "see whether its driver and libraries are there"
        raise ProviderError(f"provider '{provider.name}' does not start - {hint}")
    return session


def run_model(session: InferenceSession, feed: Mapping[str, np.ndarray]) -> list[Any]:
    """Return all outputs of a session, of any type. Raises whatever onnxruntime raises."""
    ports = {port.name: ODD_TYPES.get(port.type) for port in (*session.get_inputs(), *session.get_outputs())}
    if not any(ports.values()):
        outputs: list[Any] = session.run(None, dict(feed))
        return outputs
    from onnxruntime import OrtValue

    values = {}
    for name, array in feed.items():
        if (odd := ports.get(name)) is None:
            values[name] = OrtValue.ortvalue_from_numpy(array)
        else:
            values[name] = OrtValue.ortvalue_from_numpy_with_onnx_type(_pack_array(array, odd[1]), odd[1])
    results = session.run_with_ort_values(None, values)
    return [
        value.numpy() if (odd := ports[port.name]) is None else _unpack_array(value, *odd)
        for port, value in zip(session.get_outputs(), results, strict=True)
    ]


def run_in_place(
    session: InferenceSession, feed: Mapping[str, np.ndarray], outputs: Mapping[str, np.ndarray | None]
) -> dict[str, np.ndarray]:
    """Run a session on arrays in place; return the outputs without one. Raises whatever onnxruntime raises."""
    binding = session.io_binding()
    for name, array in feed.items():
        binding.bind_input(name, "cpu", 0, array.dtype.type, array.shape, array.ctypes.data)
    for name, room in outputs.items():
        if room is None:
            binding.bind_output(name)
        else:
            binding.bind_output(name, "cpu", 0, room.dtype.type, room.shape, room.ctypes.data)
    session.run_with_iobinding(binding)
    values = zip(outputs.items(), binding.get_outputs(), strict=True)
    return {name: value.numpy() for (name, room), value in values if room is None}


def run_unrecorded(session: InferenceSession, feed: Mapping[str, np.ndarray]) -> list[Any]:
    """Run a session whose device records runs, without a record. Raises whatever onnxruntime raises."""
    import onnxruntime

    options = onnxruntime.RunOptions()
    options.add_run_config_entry("gpu_graph_id", "-1")
    outputs: list[Any] = session.run(None, dict(feed), options)
    return outputs


def _pack_array(array: np.ndarray, number: int) -> np.ndarray:
    """Return the bytes of an array in one of its shape; of two elements in a byte the first has the lower bits."""
    import numpy as np

    whole = np.ascontiguousarray(array).view(f"u{array.dtype.itemsize}")
    if number < FOUR_BITS:
        return whole
    flat, packed = whole.reshape(-1) & 15, np.zeros(whole.shape, np.uint8)
    packed.reshape(-1)[: -(-flat.size // 2)] = flat[::2]
    packed.reshape(-1)[: flat.size // 2] |= flat[1::2] << 4
    return packed


def _unpack_array(value: OrtValue, name: str, number: int) -> np.ndarray:
    import ml_dtypes
    import numpy as np

    content = np.frombuffer(ctypes.string_at(value.data_ptr(), value.tensor_size_in_bytes()), np.uint8)
    shape, dtype = value.shape(), np.dtype(getattr(ml_dtypes, name))
    if number < FOUR_BITS:
        return np.asarray(content.view(dtype).reshape(shape))
    flat = np.stack([content & 15, content >> 4], axis=1).reshape(-1)[: int(np.prod(shape))]
    signed = np.where(flat > 7, flat - 16, flat) if name == "int4" else flat
    return np.asarray(signed.astype(np.int8).astype(dtype).reshape(shape))


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


def device_memories(session: InferenceSession) -> dict[str, OrtMemoryInfo | None]:
    """Return the memory of each input and output that a session has on a device, by name; None where it is not known.

    What is bound to such an input from the memory of the CPU is copied once, when it is bound.
    """
    ports = [*session.get_inputs(), *session.get_outputs()]
    if session.get_providers() == ["CPUExecutionProvider"]:
        return {}
    try:
        memories = [*session.get_input_memory_infos(), *session.get_output_memory_infos()]
    except Exception:  # of an onnxruntime, or a provider, that does not say: its errors have no common base
        memories = [None] * len(ports)
    pairs = zip(ports, memories, strict=True)
    return {port.name: memory for port, memory in pairs if memory is None or memory.name != "Cpu"}


def device_value(memory: OrtMemoryInfo, array: np.ndarray) -> OrtValue:
    """Return a copy of an array in the memory of a device, to which a session can be bound by its address.

    Raises ProviderError where that would be other memory, which a session copies when it is bound; or what
    onnxruntime raises.
    """
    from onnxruntime import OrtDevice, OrtValue

    value: OrtValue
    try:
        value = OrtValue.ortvalue_from_shape_and_type(array.shape, array.dtype.type, memory_info=memory)
    except Exception:  # of a provider that is built in, whose memory has a name of its own
        value = OrtValue.ortvalue_from_numpy(array, memory.name.lower(), memory.device_id)
    device = OrtDevice.make(value.device_name(), memory.device_id)
    kind = int(memory.device_vendor_id), int(memory.device_mem_type)
    if value.device_name() == "cpu" or kind != (int(device.device_vendor_id()), int(device.device_mem_type())):
        raise ProviderError(f"{memory.name} is no memory that an address alone stands for")
    value.update_inplace(array)
    return value


def runtime_version() -> tuple[int, int]:
    """Return major and minor version of onnxruntime."""
    import onnxruntime

    major, minor = onnxruntime.__version__.split(".")[:2]
    return int(major), int(minor)
