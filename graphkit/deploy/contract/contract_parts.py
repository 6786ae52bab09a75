"""The parts that `contract.json` and `bundle.json` share: sources of inputs, ports, methods, states, and their record.

Each of the two contracts narrows these to its own kinds of sources, and adds its own fields.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Protocol

from graphkit.deploy.contract.sealed_record import FileRecord, ProofRecord

__all__ = ["AnyContract", "AnyMethod", "AnyPort", "AnySource", "State"]


@dataclass(frozen=True)
class AnySource:
    """The source of an input: who makes it, and of which data.

    Attributes:
        kind: Who makes it, as each contract says.
        of: The state, table, length or output that it is made of, by name; "" for none.
    """

    kind: str
    of: str = ""


@dataclass(frozen=True)
class AnyPort:
    """An input or output of a method.

    Attributes:
        name: Its name in the model.
        dtype: Such as `float32`.
        shape: Its dims; a name stands for a size that is the same wherever that name stands in one call.
        meaning: What it holds, in one sentence.
        source: Who makes it; None for an output.
        writes: The state that an output is: the next slot of it, or all of it; "" for none.
    """

    name: str
    dtype: str
    shape: tuple[int | str, ...]
    meaning: str
    source: AnySource | None = None
    writes: str = ""

    @property
    def kind(self) -> str:
        """Who makes it; "" for an output."""
        return "" if self.source is None else self.source.kind

    @property
    def of(self) -> str:
        """The state, table, length or output that it is made of; "" for none."""
        return "" if self.source is None else self.source.of

    @property
    def state(self) -> str:
        """The state that it is, either way; "" for none."""
        return self.of if self.kind == "state" else self.writes


@dataclass(frozen=True)
class AnyMethod:
    """A model that the host runs.

    Attributes:
        name: What it is called.
        file: The ONNX file; two methods may share one.
        when: When it runs, as each contract says.
        inputs, outputs: Its ports.
    """

    name: str
    file: str
    when: str
    inputs: tuple[AnyPort, ...]
    outputs: tuple[AnyPort, ...]


@dataclass(frozen=True)
class State:
    """A tensor that the host keeps between runs.

    Attributes:
        name: Its name.
        dtype: Of its elements.
        shape: Its dims, where it is largest.
        axis: Along which its slots lie; None for one that does not grow.
        bytes: Its size.
    """

    name: str
    dtype: str
    shape: tuple[int, ...]
    axis: int | None
    bytes: int


class AnyContract(Protocol):
    """A contract, with the record of the files beside it and of their proof."""

    @property
    def methods(self) -> Sequence[AnyMethod]:
        """The models that the host runs."""

    @property
    def states(self) -> Sequence[State]:
        """The tensors that the host keeps between runs."""

    @property
    def proof(self) -> ProofRecord:
        """How the proof ended."""

    @property
    def files(self) -> Mapping[str, FileRecord]:
        """The files beside it, by name, as they were then."""
