"""Providers for tests: one that takes no node of any model, and WebGPU, where its wheel and a device are there.

A Vulkan driver without a GPU, which Debian's package chromium brings, is named by
`VK_ICD_FILENAMES=FILE.json ORT_WEBGPU_EP_ALLOW_SOFTWARE_ADAPTER=1`: see docs/tasks/providers.md.
"""

from __future__ import annotations

from collections.abc import Callable
from functools import cache
from importlib.util import find_spec
from typing import Any

import numpy as np
import onnx
import onnxruntime
import pytest

from graphkit.errors import ModelError
from graphkit.model import Model
from graphkit.runtime import session
from graphkit.runtime.providers import Provider
from graphkit.runtime.session import DeviceArray, IsolatedSession

__all__ = ["EMPTY", "copies", "memories_of_the_cpu", "needs_empty", "needs_webgpu"]

EMPTY = "AzureExecutionProvider"  # in the wheels for Linux and Windows; it runs models on servers, and no operators
ONE_NODE = '<ir_version: 8, opset_import: ["" : 17]> g (float[2] x) => (float[2] y) { y = Exp (x) }'


@cache
def _has_webgpu() -> bool:
    if find_spec("onnxruntime_ep_webgpu") is None:
        return False
    try:
        IsolatedSession(Model.from_proto(onnx.parser.parse_model(ONE_NODE)), provider=Provider("webgpu"))
    except ModelError:
        return False
    return True


needs_empty = pytest.mark.skipif(EMPTY not in onnxruntime.get_available_providers(), reason=f"has no {EMPTY}")
needs_webgpu = pytest.mark.skipif(not _has_webgpu(), reason="onnxruntime-ep-webgpu or its device is not there")


def memories_of_the_cpu(opened: onnxruntime.InferenceSession) -> dict[str, Any]:
    """Say of all inputs and outputs that a device has them in the memory of the CPU."""
    ports, memory = [*opened.get_inputs(), *opened.get_outputs()], opened.get_output_memory_infos()[0]
    return {port.name: memory for port in ports}


@pytest.fixture
def copies(monkeypatch: pytest.MonkeyPatch) -> dict[str, int]:
    """Let all inputs and outputs be in the memory of a device, and count the copies from it and to it."""
    counts = {"read": 0, "write": 0}

    def value(_: object, array: np.ndarray) -> onnxruntime.OrtValue:
        made = onnxruntime.OrtValue.ortvalue_from_shape_and_type(array.shape, array.dtype.type)
        made.update_inplace(array)
        return made

    def counted(name: str) -> Callable[..., Any]:
        plain = getattr(DeviceArray, name)

        def call(*arguments: Any) -> Any:
            counts[name] += 1
            return plain(*arguments)

        return call

    if not hasattr(onnxruntime.InferenceSession, "get_output_memory_infos"):
        pytest.skip("this onnxruntime does not say where inputs and outputs are")
    monkeypatch.setattr(session, "device_memories", memories_of_the_cpu)
    monkeypatch.setattr(session, "device_value", value)
    for name in counts:
        monkeypatch.setattr(DeviceArray, name, counted(name))
    return counts
