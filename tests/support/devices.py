"""Providers for tests: one that takes no node of any model, and WebGPU, where its wheel and a device are there.

A Vulkan driver without a GPU, which Debian's package chromium brings, is named by
`VK_ICD_FILENAMES=FILE.json ORT_WEBGPU_EP_ALLOW_SOFTWARE_ADAPTER=1`: see docs/tasks/providers.md.
"""

from __future__ import annotations

from functools import cache
from importlib.util import find_spec

import onnx
import onnxruntime
import pytest

from graphkit.errors import ModelError
from graphkit.model import Model
from graphkit.runtime.providers import Provider
from graphkit.runtime.session import IsolatedSession

__all__ = ["EMPTY", "needs_empty", "needs_webgpu"]

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
