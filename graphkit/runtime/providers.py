"""Execution providers of onnxruntime: the devices that a model can run on, and how each gets into a session.

A provider is built into the onnxruntime that is installed, or a wheel brings it as a plug-in, which is registered once
in each process. This module imports nothing else of graphkit: `placement` runs where graphkit is not installed.
"""

from __future__ import annotations

import functools
from collections.abc import Mapping
from importlib import import_module, util
from typing import TYPE_CHECKING, Any, NamedTuple

from msgspec import Struct, field

if TYPE_CHECKING:
    from onnxruntime import SessionOptions


class ProviderError(ValueError):
    """A provider that nobody knows, that is not installed, or that has no device here."""


class KnownProvider(NamedTuple):
    """A provider: where it comes from."""

    name: str  # for the command line
    runtime_name: str  # what onnxruntime calls it
    device: str  # what it runs on
    package: str  # the wheel that has it; "" where it comes with other software
    module: str = ""  # of the wheel, where it is a plug-in; "" where it is built into that package's onnxruntime
    needs: str = ""  # what must be there besides
    # whether it may compute float32 with ten or eleven bits of precision, as float16 and TF32 have
    is_coarse: bool = False
    # options that it needs: the kind of device, "" for any; name; value, or the wheel's function for it
    defaults: tuple[tuple[str, str, str], ...] = ()


GPU, NO_GPU = "onnxruntime-gpu", "ORT_WEBGPU_EP_ALLOW_SOFTWARE_ADAPTER=1 where it has no GPU"
KNOWN_PROVIDERS = (
    KnownProvider("cpu", "CPUExecutionProvider", "any processor", "onnxruntime"),
    KnownProvider("cuda", "CUDAExecutionProvider", "NVIDIA GPUs", GPU, needs="CUDA and cuDNN", is_coarse=True),
    KnownProvider("tensorrt", "TensorrtExecutionProvider", "NVIDIA GPUs", GPU, needs="TensorRT", is_coarse=True),
    KnownProvider("migraphx", "MIGraphXExecutionProvider", "AMD GPUs", "onnxruntime-migraphx", needs="ROCm"),
    KnownProvider("dml", "DmlExecutionProvider", "GPUs and NPUs", "onnxruntime-directml", needs="Windows"),
    KnownProvider("coreml", "CoreMLExecutionProvider", "Apple's GPUs and NPUs", "onnxruntime",
        needs="macOS", is_coarse=True),
    KnownProvider("cann", "CANNExecutionProvider", "Huawei's NPUs", "onnxruntime-cann", needs="CANN", is_coarse=True),
    KnownProvider("vitisai", "VitisAIExecutionProvider", "AMD's NPUs", "",
        needs="AMD's Ryzen AI software", is_coarse=True),
    KnownProvider("openvino", "OpenVINOExecutionProvider", "Intel's CPUs, GPUs and NPUs",
        "onnxruntime-ep-openvino", "onnxruntime_ep_openvino", is_coarse=True,
        defaults=(("CPU", "load_config", '{"CPU": {"INFERENCE_PRECISION_HINT": "f32"}}'),)),  # not bfloat16
    KnownProvider("qnn", "QNNExecutionProvider", "Qualcomm's NPUs and GPUs", "onnxruntime-qnn", "onnxruntime_qnn",
        needs="Qualcomm's terms of use, that you accept", is_coarse=True,
        defaults=(("", "backend_path", "get_qnn_htp_path"),)),
    KnownProvider("webgpu", "WebGpuExecutionProvider", "GPUs", "onnxruntime-ep-webgpu", "onnxruntime_ep_webgpu",
        needs=f"a driver for Vulkan, Metal or DirectX; {NO_GPU}"),
)  # fmt: skip


# Options that let a device record a run, and repeat it without the work of its launches.
CAPTURING = ("enable_cuda_graph", "trt_cuda_graph_enable", "enableGraphCapture")


class Provider(Struct, frozen=True):
    """A provider that a model is to run on.

    Attributes:
        name: As `KNOWN_PROVIDERS` has it.
        options: Of the provider, as onnxruntime takes them; and `device`, cpu, gpu or npu, for a plug-in with several.
    """

    name: str = "cpu"
    options: Mapping[str, str] = field(default_factory=dict)

    def __str__(self) -> str:
        return ":".join([self.name, *(f"{key}={value}" for key, value in self.options.items())])

    @property
    def is_cpu(self) -> bool:
        """Whether it is onnxruntime's own for the processor, which every session has."""
        return self.name == "cpu"

    @property
    def capture(self) -> str:
        """The option by which a device records a run and repeats it; "" where it is not set."""
        return next((name for name in CAPTURING if self.options.get(name, "").lower() in ("1", "true")), "")

    def without_capture(self) -> Provider:
        """Return the provider as it runs what it does not record."""
        return Provider(self.name, {key: value for key, value in self.options.items() if key not in CAPTURING})


CPU = Provider()


def parse_provider(text: str) -> Provider:
    """Return the provider that `NAME[:KEY=VALUE…]` stands for; a value may contain colons.

    Raises ProviderError where nobody knows it, or an option has no value.
    """
    name, *parts = text.split(":")
    known = find_provider(name)
    pairs: list[str] = []
    for part in parts:
        if "=" in part:
            pairs.append(part)
        elif pairs:
            pairs[-1] += f":{part}"
        else:
            raise ProviderError(f"provider '{text}': '{part}' is no KEY=VALUE - write {known.name}:KEY=VALUE")
    return Provider(known.name, dict(pair.split("=", 1) for pair in pairs))


def find_provider(name: str) -> KnownProvider:
    """Return a provider by its name, or onnxruntime's, which all have. Raises ProviderError where there is none."""
    for known in KNOWN_PROVIDERS:
        if name.lower() in (known.name, known.runtime_name.lower()):
            return known
    if name in _built_in_names():
        return KnownProvider(name, name, "unknown", "", is_coarse=True)
    names = ", ".join(known.name for known in KNOWN_PROVIDERS)
    raise ProviderError(f"there is no provider '{name}' - take one of {names}")


def short_name(runtime_name: str) -> str:
    """Return our name for a provider that onnxruntime names."""
    return {known.runtime_name: known.name for known in KNOWN_PROVIDERS}.get(runtime_name, runtime_name)


def how_to_install(known: KnownProvider) -> str:
    """Return what to do to have a provider."""
    if not known.package:
        return f"install {known.needs}, with its onnxruntime"
    other = "" if known.module or known.package == "onnxruntime" else "pip uninstall onnxruntime; "
    needs = f"; it needs {known.needs}" if known.needs else ""
    return f"{other}pip install {known.package}{needs}"


def is_here(known: KnownProvider) -> str:
    """Return "built in" or the plug-in's package and version, where a provider is installed; "" where it is not."""
    if known.runtime_name in _built_in_names():
        return "built in"
    if not known.module or util.find_spec(known.module) is None:
        return ""
    from importlib.metadata import version  # which takes a while

    return f"{known.package} {version(known.package)}"


def check_provider(provider: Provider) -> None:
    """Check that a provider is installed, with or without its device. Raises ProviderError where it is not."""
    if provider.is_cpu:
        return
    known = find_provider(provider.name)
    if not is_here(known):
        raise ProviderError(f"provider '{known.name}' is not installed - {how_to_install(known)}")


def add_provider(options: SessionOptions, provider: Provider) -> list[Any]:
    """Let a session run on a provider, and on the CPU where that one refuses a node.

    Returns:
        The providers to give to the session; none where its options have them.

    Raises:
        ProviderError: It is not installed, or has no device here.
    """
    import onnxruntime

    check_provider(provider)
    known = find_provider(provider.name)
    if provider.is_cpu:
        return [known.runtime_name]
    if known.runtime_name in _built_in_names():
        return [(known.runtime_name, dict(provider.options)), "CPUExecutionProvider"]
    if not hasattr(onnxruntime, "register_execution_provider_library"):
        version = onnxruntime.__version__
        raise ProviderError(f"onnxruntime {version} takes no plug-ins - pip install --upgrade onnxruntime")
    plug_in = _register_plug_in(known)
    kind = provider.options.get("device", "").upper()
    devices = [device for device in onnxruntime.get_ep_devices() if device.ep_name == known.runtime_name]
    chosen = [device for device in devices if kind in ("", device.device.type.name)]
    if not chosen:
        there = ", ".join(sorted({device.device.type.name.lower() for device in devices})) or "no device"
        hint = f"it needs {known.needs}" if known.needs else "see whether the driver of the device is installed"
        raise ProviderError(f"provider '{known.name}' finds {there} here{f', no {kind.lower()}' * bool(kind)} - {hint}")
    defaults = [default for default in known.defaults if default[0] in ("", chosen[0].device.type.name)]
    settings = {key: str(getattr(plug_in, text)()) if text.isidentifier() else text for _, key, text in defaults}
    settings |= {key: value for key, value in provider.options.items() if key != "device"}
    options.add_provider_for_devices(chosen[:1], settings)
    return []


@functools.cache  # as long as no plug-in is registered, which then is among them
def _built_in_names() -> frozenset[str]:
    import onnxruntime

    return frozenset(onnxruntime.get_available_providers())


@functools.cache  # a process that registers one twice crashes
def _register_plug_in(known: KnownProvider) -> Any:
    import onnxruntime

    plug_in = import_module(known.module)
    onnxruntime.register_execution_provider_library(known.runtime_name, plug_in.get_library_path())
    return plug_in
