"""The parts that `contract.json` and `bundle.json` share: ports, methods, states, how tokens are chosen, the record.

Each of the two contracts narrows these to its own kinds of sources, and adds its own fields.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Literal, Protocol

from graphkit.deploy.contract.sealed_record import TEXT, FileRecord, ProofRecord

__all__ = ["AnyContract", "AnyMethod", "AnyPort", "AnySource", "EarlyStopping", "Generation", "State"]

EarlyStopping = bool | Literal["never"]


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
    meaning: str = field(metadata=TEXT)
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


@dataclass(frozen=True)
class Generation:
    """How the export's own `generate` chooses tokens, by the names of its configuration; hosts do the same by default.

    Attributes:
        prompt: The tokens behind the start token with which decoding begins, such as a language and a task.
        max_length: The most tokens, those of the prompt included; None where the export does not say.
        max_new_tokens: The most tokens behind the prompt, which counts before `max_length`; None for the same.
        min_length: No sequence ends before it has so many tokens, those of the prompt included.
        min_new_tokens: The same behind the prompt.
        forced_bos_token_id: The token that follows a prompt of one token; None for any.
        forced_eos_token_id: The tokens of which the last one is, where a sequence becomes as long as it may be; empty
            for any.
        bad_words_ids: Tokens that are not chosen unless they are forced.
        suppress_tokens: Tokens that are never chosen.
        begin_suppress_tokens: Tokens that are not chosen first; behind a token that is forced there, not second.
        num_beams: The beams of a search; hosts take the most likely token unless their caller gives beams.
        length_penalty, early_stopping: Of a search by beams.
        not_followed: The other settings of the export's configuration that change tokens, which no host follows.
    """

    prompt: tuple[int, ...] = ()
    max_length: int | None = None
    max_new_tokens: int | None = None
    min_length: int = 0
    min_new_tokens: int = 0
    forced_bos_token_id: int | None = None
    forced_eos_token_id: tuple[int, ...] = ()
    bad_words_ids: tuple[int, ...] = ()
    suppress_tokens: tuple[int, ...] = ()
    begin_suppress_tokens: tuple[int, ...] = ()
    num_beams: int = 1
    length_penalty: float = 1.0
    early_stopping: EarlyStopping = False
    not_followed: tuple[str, ...] = ()

    def caveat(self, *, has_beams: bool = False, without: Collection[str] = ()) -> str:
        """Return what a host does otherwise than the export's `generate`, in sentences; "" for nothing.

        Args:
            has_beams: Whether its caller says how to search.
            without: Settings that its caller gives a value.
        """
        names = ", ".join(name for name in self.not_followed if name not in without)
        said = [f"The export chooses tokens by {names} too, which no host follows."] if names else []
        if self.num_beams > 1 and not has_beams:
            said.append(f"The export searches with {self.num_beams} beams, and hosts with 1 where none are given.")
        return " ".join(said)


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
