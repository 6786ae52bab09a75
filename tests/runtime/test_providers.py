from __future__ import annotations

import contextlib
from types import SimpleNamespace

import onnxruntime
import pytest
from onnxruntime.capi.onnxruntime_pybind11_state import InvalidArgument
from rewriting import model_of

from graphkit.errors import ModelError
from graphkit.runtime import providers, session
from graphkit.runtime.onnxruntime_loader import device_memories, open_model
from graphkit.runtime.providers import (
    KNOWN_PROVIDERS,
    Provider,
    ProviderError,
    add_provider,
    check_provider,
    find_provider,
    how_to_install,
    parse_provider,
    short_name,
)
from graphkit.runtime.session import IsolatedSession, Session


def test_a_provider_is_written_with_its_options() -> None:
    provider = parse_provider("qnn:htp_arch=73:backend_path=C:\\libs\\QnnHtp.dll")
    assert provider == Provider("qnn", {"htp_arch": "73", "backend_path": "C:\\libs\\QnnHtp.dll"})
    assert parse_provider(str(provider)) == provider


def test_onnxruntimes_own_name_stands_for_a_provider_too() -> None:
    assert parse_provider("CUDAExecutionProvider") == Provider("cuda")
    assert short_name("WebGpuExecutionProvider") == "webgpu"
    assert short_name("OtherExecutionProvider") == "OtherExecutionProvider"


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("gpu", "there is no provider 'gpu' - take one of cpu, cuda, .*, webgpu"),
        ("cuda:0", "provider 'cuda:0': '0' is no KEY=VALUE - write cuda:KEY=VALUE"),
    ],
)
def test_a_wrong_provider_is_refused_with_what_to_write(text: str, message: str) -> None:
    with pytest.raises(ProviderError, match=message):
        parse_provider(text)


def test_a_provider_that_is_not_installed_is_refused_with_what_to_install() -> None:
    if "CUDAExecutionProvider" in onnxruntime.get_available_providers():
        pytest.skip("it is installed")
    with pytest.raises(ProviderError, match=r"'cuda' is not installed - .*pip install onnxruntime-gpu"):
        check_provider(Provider("cuda"))


def test_each_known_provider_is_one_of_onnxruntimes_and_says_how_to_install_it() -> None:
    assert {known.runtime_name for known in KNOWN_PROVIDERS} <= set(onnxruntime.get_all_providers())
    assert all("install" in how_to_install(known) for known in KNOWN_PROVIDERS)
    assert len({known.name for known in KNOWN_PROVIDERS}) == len(KNOWN_PROVIDERS)


def test_the_cpu_is_in_every_onnxruntime() -> None:
    check_provider(Provider())
    assert add_provider(onnxruntime.SessionOptions(), Provider()) == [find_provider("cpu").runtime_name]


F32, BF16 = ({"load_config": f'{{"CPU": {{"INFERENCE_PRECISION_HINT": "{name}"}}}}'} for name in ("f32", "bf16"))


@pytest.mark.parametrize(
    ("written", "given"),
    [
        (Provider("openvino"), F32),
        (Provider("openvino", {"device": "cpu", "cache_dir": "c"}), {**F32, "cache_dir": "c"}),
        (Provider("openvino", BF16), BF16),
        (
            Provider("openvino", {"device": "npu"}),
            {},
        ),  # which asks for an entry of its own where there is one of another
        (Provider("qnn", {"device": "npu"}), {"backend_path": "/libQnnHtp.so"}),
    ],
)
def test_openvino_computes_in_float32_on_a_processor_that_has_bfloat16_too(
    written: Provider, given: dict[str, str], monkeypatch: pytest.MonkeyPatch
) -> None:
    found = [SimpleNamespace(ep_name=find_provider(written.name).runtime_name) for _ in range(2)]
    for device, kind in zip(found, ("CPU", "NPU"), strict=True):
        device.device = SimpleNamespace(type=SimpleNamespace(name=kind))
    plug_in = SimpleNamespace(get_qnn_htp_path=lambda: "/libQnnHtp.so")
    monkeypatch.setattr(providers, "check_provider", lambda _: None)
    monkeypatch.setattr(providers, "_register_plug_in", lambda _: plug_in)
    monkeypatch.setattr(onnxruntime, "get_ep_devices", lambda: found)
    seen = list[object]()
    options = SimpleNamespace(add_provider_for_devices=lambda devices, settings: seen.append((devices, settings)))
    assert add_provider(options, written) == []
    assert seen == [([found[written.options.get("device") == "npu"]], given)]


def test_a_device_of_fixed_dims_says_that_a_bundle_has_to_be_lowered() -> None:
    said = "[ONNXRuntimeError] : 11 : EP_FAIL : Dynamic shape is not supported yet, for input: val_81"  # of qnn
    hint = "the device takes fixed dims: `graphkit lower EXPORT -o OUT --target NAME`, then `Host`"
    assert str(session.load_error(said, "b/prefill.onnx")).endswith(f" - {hint}")


@pytest.mark.parametrize("kind", [Session, IsolatedSession])
def test_only_a_session_of_fixed_places_records_its_runs(
    kind: type[Session | IsolatedSession], monkeypatch: pytest.MonkeyPatch
) -> None:
    """What is recorded reads its inputs where they were at first."""
    options = dict[str, object]()

    def opened(*_: object, **given: object) -> None:
        options.update(given)
        raise RuntimeError

    monkeypatch.setattr(session, "open_model", opened)
    monkeypatch.setattr(IsolatedSession, "_load_request", lambda self: opened(provider=self._provider))
    provider = Provider("cuda", {"enable_cuda_graph": "1", "device_id": "0"})
    with contextlib.suppress(ModelError, RuntimeError):
        kind(model_of("g (float[n] x) => (float[n] y) { y = Neg (x) }"), provider=provider)
    assert options["provider"] == Provider("cuda", {"device_id": "0"})


@pytest.mark.parametrize(("option", "is_planned"), [("1", False), ("0", True)])
def test_memory_is_not_planned_for_runs_that_a_device_records(
    option: str, is_planned: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    """WebGPU does not record them so."""
    seen = list[bool]()

    def opened(_: object, options: onnxruntime.SessionOptions, **__: object) -> None:
        seen.append(options.enable_mem_pattern)
        raise RuntimeError

    monkeypatch.setattr(onnxruntime, "InferenceSession", opened)
    with pytest.raises(RuntimeError):
        open_model(
            b"", folder=None, optimize=False, threads=1, prepack=True,
            provider=Provider("cpu", {"enableGraphCapture": option}),
        )  # fmt: skip
    assert seen == [is_planned]


@pytest.mark.parametrize("error", [AttributeError, RuntimeError, InvalidArgument])
def test_where_a_session_does_not_say_what_is_on_a_device_all_may_be(error: type[Exception]) -> None:
    def refuse() -> None:
        raise error("not here")

    port = SimpleNamespace(name="x")
    opened = SimpleNamespace(
        get_inputs=lambda: [port],
        get_outputs=list,
        get_providers=lambda: ["OtherExecutionProvider"],
        get_input_memory_infos=refuse,
    )
    assert device_memories(opened) == {"x": None}  # type: ignore[arg-type]
