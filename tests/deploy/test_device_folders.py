"""Bundles and lowered folders on a device: tested there beside the originals on the CPU, and never recorded."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any

import numpy as np
import onnxruntime
import pytest
from bundles import decoder, saved
from devices import EMPTY, copies, needs_empty, needs_webgpu

from graphkit.contract.contract_files import read_bundle
from graphkit.deploy.lower import lower_folder
from graphkit.deploy.make_bundle import bundle_folder
from graphkit.deploy.verify_folder import verify_folder
from graphkit.errors import UsageError
from graphkit.hosts import Host
from graphkit.hosts.bundle_host import Bundle
from graphkit.options import BundleOptions, FolderOptions, LowerOptions
from graphkit.runtime import session
from graphkit.runtime.session import DeviceArray

SMALL = BundleOptions(max_cache=8, verify=False)
__all__ = ["copies"]
NOTHING = f"no node runs on {EMPTY}, so nothing was tested there"


@pytest.fixture(scope="module")
def export(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return saved(decoder(), tmp_path_factory.mktemp("export"))


@pytest.fixture(scope="module")
def bundle(export: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("bundle") / "out"
    bundle_folder(export, folder, SMALL)
    return folder


@pytest.fixture(scope="module")
def lowered(export: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("lowered") / "out"
    lower_folder(export, folder, LowerOptions(max_cache_len=8, verify=False))
    return folder


@pytest.mark.slow
@needs_empty
def test_a_folder_of_which_no_node_is_on_the_device_is_not_tested(export: Path, bundle: Path, lowered: Path) -> None:
    for folder in (bundle, lowered):
        proof = verify_folder(export, folder, FolderOptions(provider=EMPTY))
        assert proof.findings() == (NOTHING,)
        assert proof.provider == EMPTY
        assert not proof.proven_outputs()


@needs_empty
def test_what_was_tested_on_a_device_is_not_recorded_as_the_proof(export: Path, bundle: Path) -> None:
    with pytest.raises(UsageError, match="--record is for a proof on the CPU"):
        verify_folder(export, bundle, FolderOptions(provider=EMPTY, record=True))


@needs_empty
def test_a_bundle_that_fails_on_the_device_is_written_as_failed(export: Path, tmp_path: Path) -> None:
    options = BundleOptions(max_cache=8, provider=EMPTY)
    report = bundle_folder(export, tmp_path / "out", options)
    assert report.proof is not None
    assert report.proof.findings() == (f"on {EMPTY}: {NOTHING}",)
    assert read_bundle(tmp_path / "out" / "bundle.json").proof.outcome == "failed"
    with pytest.raises(UsageError, match="a provider is for the proof"):
        bundle_folder(export, tmp_path / "other", BundleOptions(provider=EMPTY, verify=False))


def test_hosts_refuse_a_provider_that_nobody_knows(bundle: Path, lowered: Path) -> None:
    for host, folder in ((Bundle, bundle), (Host, lowered)):
        with pytest.raises(UsageError, match="there is no provider 'gpu'"):
            host(folder, provider="gpu")


def test_a_bundle_refuses_to_record_runs(bundle: Path) -> None:
    with pytest.raises(UsageError, match=r"enableGraphCapture is for fixed shapes, and a bundle takes prompts"):
        Bundle(bundle, provider="cpu:enableGraphCapture=1", unchecked=True)


@pytest.mark.usefixtures("copies")
def test_a_host_that_records_runs_moves_no_input_or_output(lowered: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    arrays: list[DeviceArray] = []
    plain = Host(lowered, unchecked=True).generate(None, [3, 1, 4], 4)
    make = DeviceArray.__init__

    def made(self: DeviceArray, *arguments: Any) -> None:
        make(self, *arguments)
        arrays.append(self)

    monkeypatch.setattr(DeviceArray, "__init__", made)
    host = Host(lowered, provider="cpu:enableGraphCapture=1", unchecked=True)
    host.start()
    host.step(3)
    places = [array.value.data_ptr() for array in arrays]
    assert host.generate(None, [3, 1, 4], 4) == plain
    assert [array.value.data_ptr() for array in arrays] == places
    step = host.contract.methods[-1]
    assert len(places) == len({*places}) == len(step.inputs) + len(step.outputs)


@pytest.mark.usefixtures("copies")
@pytest.mark.parametrize("is_of_inputs", [False, True])
def test_a_record_that_does_not_repeat_the_model_is_refused(
    is_of_inputs: bool, lowered: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def other(opened: onnxruntime.InferenceSession, feed: Mapping[str, np.ndarray]) -> list[np.ndarray]:
        more = sum(np.abs(array).sum() for array in feed.values()) if is_of_inputs else 1
        return [array + more for array in opened.run(None, feed)]

    monkeypatch.setattr(session, "run_unrecorded", other)
    host = Host(lowered, provider="cpu:enableGraphCapture=1", unchecked=True)
    with pytest.raises(UsageError, match=r"step\.onnx: what 'cpu' repeats is wrong in 'logits'"):
        host.step(1)


@pytest.mark.usefixtures("copies")
def test_nothing_is_recorded_where_there_is_no_memory(lowered: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def refuse(*_: object) -> None:
        raise RuntimeError("out of memory")

    monkeypatch.setattr(session, "device_value", refuse)
    with pytest.raises(
        UsageError, match=r"step\.onnx: there is no memory of 'cpu' .*: out of memory - leave out enable"
    ):
        Host(lowered, provider="cpu:enableGraphCapture=1", unchecked=True).step(1)


def test_nothing_is_recorded_where_nothing_is_on_a_device(lowered: Path) -> None:
    host = Host(lowered, provider="cpu:enableGraphCapture=1", unchecked=True)
    with pytest.raises(UsageError, match=r"nothing of it is on 'cpu' - leave out enableGraphCapture"):
        host.step(1)


@needs_webgpu
@pytest.mark.slow
def test_webgpu_repeats_a_lowered_encoder_and_refuses_a_step_whose_outputs_are_copies(
    lowered: Path, tmp_path: Path
) -> None:
    lower_folder("example:encoder", tmp_path / "out", LowerOptions(target="webgpu", src_len=8, verify=False))
    outputs = []
    for provider in ("cpu", "webgpu:enableGraphCapture=1"):
        host = Host(tmp_path / "out", provider=provider, unchecked=True)
        outputs.append(np.stack([*host.start([5, 6, 7]).values(), *host.start([9, 3]).values()]))
    np.testing.assert_allclose(outputs[0], outputs[1], atol=1e-4)
    with pytest.raises(UsageError, match=r"its record lacks nodes that copy - leave out enableGraphCapture"):
        Host(lowered, provider="webgpu:enableGraphCapture=1", unchecked=True).step(1)


@needs_webgpu
def test_folders_give_on_webgpu_what_the_originals_give_on_the_cpu(export: Path, bundle: Path, lowered: Path) -> None:
    for folder in (bundle, lowered):
        proof = verify_folder(export, folder, FolderOptions(provider="webgpu"))
        assert proof.findings() == ()
        assert "what the originals give on webgpu, within 0.0001" in proof.proven()
        assert "Proven" not in proof.proven()
        assert any("on webgpu" in note for note in proof.notes)


@needs_webgpu
def test_hosts_choose_the_tokens_of_the_cpu_on_webgpu(bundle: Path, lowered: Path) -> None:
    prompt = [3, 1, 4]
    tokens = [
        Bundle(bundle, provider=name, unchecked=True).generate(prompt, max_new_tokens=4) for name in ("cpu", "webgpu")
    ]
    assert tokens[0] == tokens[1]
    chosen = [Host(lowered, provider=name, unchecked=True).generate(None, prompt, 4) for name in ("cpu", "webgpu")]
    assert chosen[0] == chosen[1]
