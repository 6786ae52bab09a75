from __future__ import annotations

import onnxruntime
import pytest

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
