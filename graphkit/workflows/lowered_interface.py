"""The ports of a lowered model in its contract: the source of each input, and the use of each output."""

from __future__ import annotations

import math
from dataclasses import dataclass, field
from typing import Literal

import numpy as np

from graphkit.contract import Method, Port, Source, State
from graphkit.contract.contract import When
from graphkit.dtypes import dtype_name
from graphkit.errors import UsageError
from graphkit.graph.view import Value
from graphkit.model import Model
from graphkit.shapes import Shapes, infer

__all__ = ["Interface"]

FIXED = "nothing: its value is fixed"
MASKS = {
    "slots": "0 at the slots in use and, last, at the new token, and the floor elsewhere; added to scores",
    "source": "0 at the valid positions of the source, and the floor at its padding; added to scores",
}


@dataclass
class Interface:
    """The facts that lowering collects about inputs and outputs.

    Attributes:
        original: The model, as it was exported.
        sources: Who makes each input that is new, and its meaning.
        writes: The past that each output of new keys and values is for.
        axes: The axis of the slots of each past.
        became: The inputs that took the place of one of the original.
        sounds: The inputs that hold a sound of which a part may be valid.
    """

    original: Model
    sources: dict[str, tuple[Source, str]] = field(default_factory=dict)
    writes: dict[str, str] = field(default_factory=dict)
    axes: dict[str, int] = field(default_factory=dict)
    became: dict[str, list[str]] = field(default_factory=dict)
    sounds: set[str] = field(default_factory=set)

    def becomes(self, original: str, name: str) -> None:
        """Note that an input takes the place of one of the original, or of a part of it."""
        self.became.setdefault(original, []).append(name)

    def make(self, name: str, source: Source, meaning: str) -> None:
        """Note who makes an input that is new."""
        self.sources[name] = source, meaning

    def make_mask(self, name: str, over: Literal["slots", "source"], window: int = 0) -> None:
        """Note that the host makes an input that masks slots or a source."""
        self.make(name, Source("slots_mask" if over == "slots" else "source_mask", window=window), MASKS[over])

    def method(self, name: str, model: Model, when: When) -> Method:
        """Return the place of a lowered model in the contract.

        Raises:
            UsageError: A dim of an input or output has no number.
        """
        shapes = infer(model)
        inputs = tuple(self._input(value, shapes) for value in model.graph.inputs)
        outputs = tuple(self._output(value, shapes) for value in model.graph.outputs)
        kept = {port.name for port in inputs}
        became = {
            value.name: value.name if value.name in kept else ", ".join(self.became.get(value.name, [FIXED]))
            for value in self.original.graph.inputs
            if value.tensor is None
        }
        return Method(name, f"{name}.onnx", when, inputs, outputs, became)

    def states(self, method: Method) -> tuple[State, ...]:
        """Return the states that the host keeps for a method."""
        kept = [port for port in method.inputs if port.source is not None and port.source.kind == "state"]
        return tuple(State(port.name, port.dtype, port.shape, self.axes.get(port.name), _bytes(port)) for port in kept)

    def _input(self, value: Value, shapes: Shapes) -> Port:
        shape, dtype = _fixed(value, shapes, self.original.name)
        if value.name in self.sources:
            source, meaning = self.sources[value.name]
        elif (meaning := self._of_cache(value.name)) != "":
            source = Source("state", value.name)
        elif value.name in self.sounds:
            source, meaning = Source("user", by="source"), f"'{value.name}' of the original, then zeros"
        else:
            source, meaning = Source("user"), f"'{value.name}' of the original"
        return Port(value.name, dtype, shape, meaning, source)

    def _output(self, value: Value, shapes: Shapes) -> Port:
        shape, dtype = _fixed(value, shapes, self.original.name)
        state = self.writes.get(value.name, "")
        how = "goes into the next slot of" if state in self.axes else "becomes"
        meaning = f"{how} '{state}'" if state else f"'{value.name}' of the original"
        return Port(value.name, dtype, shape, meaning, writes=state)

    def _of_cache(self, name: str) -> str:
        """Return the kind of cache that a past is, "" for another input."""
        roles = self.original.roles
        if any(state.past.name == name for state in roles.states) and name in self.writes.values():
            return "recurrent state, which each step replaces"
        entry = next((entry for value, entry in roles.pasts.items() if value.name == name), None)
        if entry is None:
            return ""
        attention = "cross-attention" if roles.is_cross(entry) else "self-attention"
        layer = ".".join(map(str, entry.slot.index))
        return f"the {entry.slot.kind} cache of the {attention}" + (f" of layer {layer}" if layer else "")


def _bytes(port: Port) -> int:
    return math.prod(port.shape) * np.dtype(port.dtype).itemsize


def _fixed(value: Value, shapes: Shapes, file: str) -> tuple[tuple[int, ...], str]:
    dims = shapes[value].dims
    sizes = [dim.constant for dim in dims or ()]
    if dims is None or None in sizes:
        raise UsageError(f"{file}: '{value.name}' has no fixed shape: {shapes[value]} - give its dims with --dim")
    return tuple(size for size in sizes if size is not None), dtype_name(shapes[value].dtype)
