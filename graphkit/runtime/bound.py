"""A session whose inputs and outputs are bound to arrays, so that a run copies nothing and writes in place."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from graphkit.runtime.loading import value_of
from graphkit.runtime.session import RunError, Session

__all__ = ["BoundSession"]


class BoundSession:
    """A session's inputs and outputs, bound to arrays of the caller.

    An output may be bound to the array of an input: operators that write in place then do.

    Args:
        session: The session, which others may share.
    """

    def __init__(self, session: Session) -> None:
        self._session = session
        self._value_of = value_of()
        self._binding = session.onnx.io_binding()
        self._bound: dict[str, tuple[int, tuple[int, ...]]] = {}
        self._kept: dict[str, np.ndarray] = {}
        self._free: set[str] = set()
        self._outputs: list[str] = []  # in the order in which they were first bound, which onnxruntime keeps

    def bind_input(self, name: str, array: np.ndarray) -> None:
        """Let an input be an array, which is read at each run."""
        if self._is_new(name, array):
            self._binding.bind_input(name, "cpu", 0, _element(array), array.shape, array.ctypes.data)

    def bind_output(self, name: str, array: np.ndarray) -> None:
        """Let an output be written into an array, whose shape is that of the output."""
        if self._is_new(name, array):
            self._note(name)
            self._free.discard(name)
            self._binding.bind_output(name, "cpu", 0, _element(array), array.shape, array.ctypes.data)

    def bind_value(self, array: np.ndarray, inputs: Sequence[str], outputs: Sequence[str]) -> None:
        """Let inputs and outputs be one array, which is bound anew in any case: quicker than each by itself."""
        value = self._value_of(array)
        for name in inputs:
            self._binding.bind_ortvalue_input(name, value)
        for name in outputs:
            self._note(name)
            self._binding.bind_ortvalue_output(name, value)

    def free_output(self, name: str) -> None:
        """Let onnxruntime allocate an output."""
        self._bound.pop(name, None)
        self._kept.pop(name, None)
        self._note(name)
        self._free.add(name)
        self._binding.bind_output(name)

    def run(self) -> None:
        """Run the model.

        Raises:
            RunError: It fails.
        """
        try:
            self._session.onnx.run_with_iobinding(self._binding)
        except Exception as error:  # onnxruntime's errors have no common base
            raise RunError.of(str(error), self._session.label) from error

    def free_outputs(self) -> dict[str, np.ndarray]:
        """Return copies of the outputs that onnxruntime has allocated, by name; it takes their memory back."""
        if not self._free:
            return {}
        given = dict(zip(self._outputs, self._binding.get_outputs(), strict=True))
        return {name: given[name].numpy().copy() for name in self._free}

    def _note(self, name: str) -> None:
        if name not in self._outputs:
            self._outputs.append(name)

    def _is_new(self, name: str, array: np.ndarray) -> bool:
        """Whether the array bound under a name has another place or shape."""
        if self._kept.get(name) is array:
            return False
        place = array.ctypes.data, array.shape
        if self._bound.get(name) == place:
            return False
        self._bound[name], self._kept[name] = place, array
        return True


def _element(array: np.ndarray) -> type:
    kind: type = array.dtype.type
    return kind
