"""State of a bundle in the memory of a device: for these tests that of the CPU, or of WebGPU where it is there."""

from __future__ import annotations

from collections.abc import Callable
from contextlib import suppress
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
from devices import copies, memories_of_the_cpu, needs_webgpu
from rewriting import model_of

from graphkit.errors import UsageError
from graphkit.hosts import bound_state
from graphkit.hosts.bundle_host import Bundle
from graphkit.runtime import session
from graphkit.runtime.session import BoundSession, DeviceArray, RunError, Session

BundleOf = Callable[[str], Path]
KEY = "past_key_values.0.key"
__all__ = ["copies"]
NAMES = ("causal", "window", "marian-tiny")


def logits_of(bundle: Bundle, source: list[list[int]]) -> list[np.ndarray]:
    """Run all that moves state: two sequences, steps, rows in another order, a rewind, and a state that is written."""
    once = bundle.contract.method("once")
    assert once is not None
    given = []
    for shift in (0, 1):
        ids = np.array(source) + shift
        inputs = {"input_ids": ids} if once.name == "encode" else {}
        begins = ids[:, :1] if inputs else ids
        given += [bundle.start(begins, inputs), bundle.step([3, 4])]
        bundle.reorder([1, 0, 1])
        given += [bundle.step([1, 2, 3])]
        with suppress(UsageError):  # a ring has lost what would be needed
            bundle.rewind(bundle.length - 1)
        given += [bundle.step([5, 6, 7])]
        bundle.state[next(name for name in bundle.state if "key" in name)][...] += 0.5
        given += [bundle.step([5, 6, 7])]
    return given


@pytest.mark.cases("causal", "window")
@pytest.mark.parametrize("name", NAMES)
def test_state_on_a_device_is_what_it_is_in_the_arena(
    name: str, bundle_of: BundleOf, request: pytest.FixtureRequest
) -> None:
    source = [[5, 6, 7], [2, 3, 4]]
    expected = logits_of(Bundle(bundle_of(name), threads=1), source)
    request.getfixturevalue("copies")
    bundle = Bundle(bundle_of(name), threads=1)
    for ours, theirs in zip(logits_of(bundle, source), expected, strict=True):
        np.testing.assert_array_equal(ours, theirs)
    assert {name for name, *_ in bundle.state.devices} == {*bundle.state}


def test_steps_copy_no_state(bundle_of: BundleOf, copies: dict[str, int]) -> None:
    bundle = Bundle(bundle_of("causal"), threads=1)
    bundle.prefill([[1, 2]])
    for token in (3, 4, 5):
        bundle.step([token])
    assert copies == {"read": 0, "write": 0}
    assert bundle.state[KEY].any()
    bundle.step([6])
    assert copies == {"read": 1, "write": 1}


@pytest.mark.usefixtures("copies")
def test_forks_on_a_device_do_not_meet(bundle_of: BundleOf) -> None:
    bundle = Bundle(bundle_of("causal"), threads=1)
    expected = bundle.prefill([[1, 2]]), bundle.step(3)
    one, two = bundle.fork(), bundle.fork()
    np.testing.assert_array_equal(one.prefill([[1, 2]]), expected[0])
    two.prefill([[5, 6]])
    np.testing.assert_array_equal(one.step(3), expected[1])


def test_one_state_is_read_and_written_on_a_device_and_in_the_arena_in_turn(
    bundle_of: BundleOf, request: pytest.FixtureRequest
) -> None:
    plain = Bundle(bundle_of("causal"), threads=1)
    expected = [plain.prefill([[1, 2]]), *(plain.step(token) for token in (3, 4, 5, 6))]
    plain.reset()
    np.testing.assert_array_equal(plain.prefill([[1, 2]]), expected[0])
    np.testing.assert_array_equal(plain.step(3), expected[1])
    request.getfixturevalue("copies")
    there = Bundle(bundle_of("causal"), threads=1)
    there.state = plain.state
    for token, bundle in ((4, there), (5, plain), (6, there)):
        np.testing.assert_array_equal(bundle.step(token), expected[token - 2])
    assert any(there.state.devices.values())


def test_a_state_has_no_room_for_more_than_it_is_made_for(bundle_of: BundleOf, copies: dict[str, int]) -> None:
    bundle = Bundle(bundle_of("marian-tiny"), threads=1)
    method = bundle.contract.methods[0]
    feeds = {port.name: np.ones(1, port.dtype) for port in method.inputs if port.kind}
    sizes = {dim: 10_000 for port in method.outputs for dim in port.shape if isinstance(dim, str)}
    bundle.state.rows = 1
    with pytest.raises(UsageError, match="and has room for"):
        bundle._methods.run(method, feeds, sizes)
    assert copies["read"] == 0


def test_state_that_cannot_be_on_a_device_stays_in_the_arena(
    bundle_of: BundleOf, copies: dict[str, int], monkeypatch: pytest.MonkeyPatch
) -> None:
    def refuse(*_: object) -> None:
        raise RuntimeError("no allocator")

    expected = logits_of(Bundle(bundle_of("window"), threads=1), [[5, 6, 7], [2, 3, 4]])
    before = {**copies}
    monkeypatch.setattr(session, "device_value", refuse)
    bundle = Bundle(bundle_of("window"), threads=1)
    for ours, theirs in zip(logits_of(bundle, [[5, 6, 7], [2, 3, 4]]), expected, strict=True):
        np.testing.assert_array_equal(ours, theirs)
    assert {*bundle.state.devices.values()} == {None}
    assert copies == before


def test_memory_that_a_device_shares_with_the_cpu_is_none(bundle_of: BundleOf, monkeypatch: pytest.MonkeyPatch) -> None:
    """By its address it would be that of the CPU, which a session copies when it is bound, and at no run after."""
    expected = logits_of(Bundle(bundle_of("causal"), threads=1), [[5, 6, 7], [2, 3, 4]])
    monkeypatch.setattr(session, "device_memories", memories_of_the_cpu)
    bundle = Bundle(bundle_of("causal"), threads=1)
    for ours, theirs in zip(logits_of(bundle, [[5, 6, 7], [2, 3, 4]]), expected, strict=True):
        np.testing.assert_array_equal(ours, theirs)
    assert {*bundle.state.devices.values()} == {None}


def test_a_state_that_could_not_be_read_is_still_on_its_device(
    bundle_of: BundleOf, copies: dict[str, int], monkeypatch: pytest.MonkeyPatch
) -> None:
    def fail(_: DeviceArray) -> np.ndarray:
        raise RuntimeError("the device is lost")

    bundle = Bundle(bundle_of("causal"), threads=1)
    bundle.prefill([[1, 2]])
    with monkeypatch.context() as patched:
        patched.setattr(DeviceArray, "read", fail)
        with pytest.raises(RuntimeError, match="lost"):
            bundle.state[KEY]
    assert bundle.state[KEY].any()
    assert copies["read"] == 1


@pytest.mark.parametrize("is_there", [False, True])
def test_a_run_goes_on_after_one_that_could_not_be_bound(
    is_there: bool, bundle_of: BundleOf, request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch
) -> None:
    def fail(*_: Any) -> None:
        raise UsageError("no room")

    bundle = Bundle(bundle_of("causal"), threads=1)
    bundle.prefill([[1, 2]])
    expected = [bundle.step(token) for token in (3, 4)]
    if is_there:
        request.getfixturevalue("copies")
    bundle = Bundle(bundle_of("causal"), threads=1)
    bundle.prefill([[1, 2]])
    np.testing.assert_array_equal(bundle.step(3), expected[0])
    with monkeypatch.context() as patched:
        patched.setattr(bound_state, "_resolved_dims", fail)
        with pytest.raises(UsageError, match="no room"):
            bundle.step([[4, 5]])
    np.testing.assert_array_equal(bundle.step(4), expected[1])


@pytest.mark.usefixtures("copies")
def test_an_array_of_another_dtype_is_not_copied_to_a_device() -> None:
    array = DeviceArray(SimpleNamespace(device_id=0), np.zeros(2, np.float32))
    with pytest.raises(RunError, match="an array is float64, and the model takes float32"):
        array.write(np.ones(2))
    assert not array.read().any()


@pytest.mark.usefixtures("copies")
def test_a_copy_that_fails_is_an_error_of_a_run() -> None:
    def fail(*_: Any) -> None:
        raise RuntimeError("the device is lost")

    array = DeviceArray(SimpleNamespace(device_id=0), np.zeros(2, np.float32))
    array.value = SimpleNamespace(numpy=fail, update_inplace=fail)  # type: ignore[assignment]
    for call in (array.read, lambda: array.write(np.zeros(2, np.float32))):
        with pytest.raises(RunError, match="a copy from the device or to it fails: the device is lost"):
            call()


def test_what_lies_in_two_memories_has_no_memory(monkeypatch: pytest.MonkeyPatch) -> None:
    two = [
        SimpleNamespace(name=name, device_id=0, device_vendor_id=0, device_mem_type=0) for name in ("Cuda", "Pinned")
    ]
    model = model_of("g (float[n] x) => (float[n] y, float[n] z) { y = Exp (x) z = Neg (x) }")
    monkeypatch.setattr(session, "device_memories", lambda _: dict(zip("xzy", [two[0], two[0], two[1]], strict=True)))
    bound = BoundSession(Session(model))
    assert bound.memory_of(["x", "z"]) is two[0]
    assert bound.memory_of(["x", "y"]) is None
    assert bound.memory_of([]) is None


@needs_webgpu
@pytest.mark.slow
@pytest.mark.parametrize("name", NAMES)
def test_state_on_webgpu_is_what_it_is_on_the_cpu(name: str, bundle_of: BundleOf) -> None:
    """The second sequence has the dims of the first: what an encoder gave is not that of the sequence before."""
    sides = [Bundle(bundle_of(name), provider=provider) for provider in ("cpu", "webgpu")]
    ours, theirs = (logits_of(bundle, [[5, 6, 7], [2, 3, 4]]) for bundle in sides)
    for one, other in zip(ours, theirs, strict=True):
        np.testing.assert_allclose(one, other, atol=1e-4 * np.abs(one).max())
    assert any(value is not None for value in sides[1].state.devices.values())
