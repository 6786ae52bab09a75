"""What a session is bound to: the memory of the CPU or of a device, and outputs that onnxruntime allocates."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
from devices import copies
from rewriting import model_of

from graphkit.runtime.session import BoundSession, DeviceArray, Session

__all__ = ["copies"]


class Recorder:
    """A binding that takes note of which inputs are bound to which memory."""

    def __init__(self, binding: Any) -> None:
        self.binding, self.inputs = binding, list[tuple[str, str]]()

    def __getattr__(self, name: str) -> Any:
        return getattr(self.binding, name)

    def bind_input(self, name: str, device: str, *others: Any) -> None:
        self.inputs.append((name, device))
        self.binding.bind_input(name, device, *others)


@pytest.fixture
def bound() -> BoundSession:
    return BoundSession(Session(model_of("g (float[n] x) => (float[n] y) { y = Neg (x) }")))


def run(bound: BoundSession) -> np.ndarray:
    bound.run()
    return bound.free_outputs()["y"]


@pytest.mark.usefixtures("copies")
def test_an_input_that_a_device_has_is_copied_to_it_at_each_run(bound: BoundSession) -> None:
    """Bound once, it would be copied once."""
    bound._binding = recorder = Recorder(bound._binding)  # type: ignore[assignment]
    array = np.float32([1, 2])
    bound.bind_input("x", array)
    bound.free_output("y")
    assert run(bound).tolist() == [-1, -2]
    array[0] = 5
    assert run(bound).tolist() == [-5, -2]
    assert recorder.inputs == [("x", "cpu")] * 2


@pytest.mark.usefixtures("copies")
@pytest.mark.parametrize("before", ["bind_input", "bind_value"])
def test_what_is_bound_to_a_device_replaces_an_array(bound: BoundSession, before: str) -> None:
    array, there = np.float32([1, 2]), DeviceArray(type("Memory", (), {"device_id": 0}), np.float32([7, 8, 9]))
    bound.free_output("y")
    if before == "bind_input":
        bound.bind_input("x", array)
    else:
        bound.bind_value(array, ["x"], [])
    run(bound)
    bound.bind_device(there, (2,), ["x"], [])
    assert run(bound).tolist() == [-7, -8]
    bound.bind_input("x", array)
    assert run(bound).tolist() == [-1, -2]


@pytest.mark.parametrize("how", ["bind_output", "bind_value", "bind_device"])
def test_an_output_that_gets_a_place_is_free_no_more(
    bound: BoundSession, how: str, request: pytest.FixtureRequest
) -> None:
    bound.bind_input("x", np.float32([1, 2]))
    bound.free_output("y")
    assert run(bound).tolist() == [-1, -2]
    place = np.zeros(2, np.float32)
    if how == "bind_output":
        bound.bind_output("y", place)
    elif how == "bind_value":
        bound.bind_value(place, [], ["y"])
    else:
        request.getfixturevalue("copies")
        there = DeviceArray(type("Memory", (), {"device_id": 0}), place)
        bound.bind_device(there, (2,), [], ["y"])
    bound.run()
    assert bound.free_outputs() == {}
    assert (there.read() if how == "bind_device" else place).tolist() == [-1, -2]
