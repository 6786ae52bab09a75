"""The parts that `contract.json` and `bundle.json` share: ports, methods, states, how tokens are chosen, the record.

Each contract narrows these to its own kinds of sources, and adds its own fields. The annotations are all that is said
of the form of a contract: reading, its checks and its JSON Schema follow from them.
"""

from __future__ import annotations

import dataclasses
import hashlib
import json
import re
from collections.abc import Collection, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Annotated, ClassVar, Literal

from msgspec import Meta

TEXT = {"text": True}  # metadata of a field that tells people something, and hosts nothing
LARGEST = 1 << 53  # integers that every language has
Token = Annotated[int, Meta(ge=-LARGEST, le=LARGEST)]
Count = Annotated[int, Meta(ge=0, le=LARGEST)]
Positive = Annotated[int, Meta(ge=1, le=LARGEST)]
Name = Annotated[str, Meta(min_length=1)]
FILE_NAME = r"^(?!\.{1,2}$)[^/\\\u0000]+$"  # of one beside the contract, and no other place
FileName = Annotated[str, Meta(pattern=FILE_NAME)]
Dims = Annotated[tuple[Count, ...], Meta(max_length=32)]  # as many as numpy has everywhere
Sizes = Mapping[str, Count]
Equality = Annotated[str, Meta(pattern=r"^(bit for bit|in exact arithmetic)$(?!\n)")]
EarlyStopping = bool | Literal["never"]
SEAL = re.compile(r'(.*),"checksum":"([0-9a-f]{64})"\}', re.DOTALL)
SPACE = re.compile(r'("(?:[^"\\]|\\.)*")|\s+', re.DOTALL)  # strings, which keep theirs, and white space outside of them


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

    name: Name
    dtype: str
    shape: Annotated[tuple[Count | Name, ...], Meta(max_length=32)]
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

    name: Name
    file: FileName
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

    name: Name
    dtype: str
    shape: Dims
    axis: Count | None
    bytes: Count


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

    prompt: tuple[Count, ...] = ()
    max_length: Count | None = None
    max_new_tokens: Count | None = None
    min_length: Count = 0
    min_new_tokens: Count = 0
    forced_bos_token_id: Count | None = None
    forced_eos_token_id: tuple[Count, ...] = ()
    bad_words_ids: tuple[Count, ...] = ()
    suppress_tokens: tuple[Count, ...] = ()
    begin_suppress_tokens: tuple[Count, ...] = ()
    num_beams: Count = 1
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


@dataclass(frozen=True)
class ProofRecord:
    """How the proof of a folder ended."""

    outcome: Literal["passed", "failed", "not run"]
    # the first reason why it failed, or why it was not run; "" where it passed
    reason: str = field(default="", metadata=TEXT)
    # the largest difference of outputs that counted as equal; None where none did, or nothing was run
    tolerance: Annotated[float, Meta(ge=0)] | None = None
    tokens_rate: Annotated[float, Meta(ge=0, le=1)] = 1.0  # the share of greedy tokens that had to be equal
    graphkit: str = field(default="", metadata=TEXT)  # the version of graphkit that ran it; "" where it was not run
    # options that the user gave to change results; it compares with the export with these changes
    changes: tuple[Annotated[str, Meta(pattern=r"^--(dequantize|gelu-to-tanh)$(?!\n)")], ...] = ()
    # how exactly each output is equal that is so at every legal size and for every input, by method; just "not
    # compared" where there was no time to find out
    proven: Mapping[str, Mapping[str, Equality]] = field(default_factory=dict)

    @property
    def passed(self) -> bool:
        """Whether it was run, and holds."""
        return self.outcome == "passed"

    def sentence(self) -> str:
        """Return its fault, as the end of a sentence about the folder; "" where it passed."""
        if self.passed:
            return ""
        return f"its proof failed: {self.reason}" if self.outcome == "failed" else f"it is not proven: {self.reason}"


NOT_RUN = ProofRecord("not run", "the proof was not run")


@dataclass(frozen=True)
class FileRecord:
    """A file as it was when the record was made."""

    bytes: Count
    sha256: Annotated[str, Meta(pattern="^[0-9a-f]{64}$", max_length=64)]

    @classmethod
    def of(cls, path: Path) -> FileRecord:
        """Return the record of a file as it is; OSError where it cannot be read."""
        digest, size = hashlib.sha256(), 0
        with path.open("rb") as file:
            while block := file.read(1 << 20):
                digest.update(block)
                size += len(block)
        return cls(size, digest.hexdigest())


class AnyContract:
    """A contract, with the record of the files beside it and of their proof."""

    FILE: ClassVar[str]
    methods: tuple[AnyMethod, ...]
    states: tuple[State, ...]
    proof: ProofRecord
    files: Mapping[str, FileRecord]

    @property
    def read_files(self) -> tuple[str, ...]:
        """The files that a host reads."""
        raise NotImplementedError

    def to_json(self) -> str:
        """Return it as JSON, with a checksum at its end.

        It is that of all that stands before it, white space between its parts left out, so that a change by hand is
        noticed, and another indentation is none.
        """
        plain = dataclasses.asdict(self)  # type: ignore[call-overload]
        digest = hashlib.sha256(_without_spaces(json.dumps(plain, indent=2))[:-1].encode()).hexdigest()
        return json.dumps({**plain, "checksum": digest}, indent=2) + "\n"


def is_unsealed(text: str) -> bool:
    """Whether JSON no longer has its checksum."""
    match = SEAL.fullmatch(_without_spaces(text))
    return match is None or hashlib.sha256(match[1].encode()).hexdigest() != match[2]


def _without_spaces(text: str) -> str:
    return SPACE.sub(r"\1", text)
