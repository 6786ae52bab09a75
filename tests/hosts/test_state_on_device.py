"""State of a bundle in the memory of a device: for these tests that of the CPU, or of WebGPU where it is there."""

from __future__ import annotations

from collections.abc import Callable
from contextlib import suppress
from pathlib import Path

import numpy as np
import pytest
from devices import copies, memories_of_the_cpu, needs_webgpu

from graphkit.errors import UsageError
from graphkit.hosts.bundle_host import Bundle
from graphkit.runtime import session

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
