"""The vocabulary of `contract.json`, after the parts that it shares with `bundle.json`.

Each contract narrows the shared parts to its own kinds of sources, and adds its own fields. The annotations are all
that is said of the form of a contract: reading, its checks and its JSON Schema follow from them.
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
FIXED = "nothing: its value is fixed"  # what an input of the original became that nobody gives
SIZES = ("batch", "source", "capacity", "positions", "layers", "heads", "head_dim", "vocabulary")
Size = Annotated[int, Meta(le=LARGEST, extra_json_schema={"minimum": 0})]  # none but an offset is below 0
SIZES_SCHEMA = {
    "required": list(SIZES),
    "properties": {"offset": {"type": "integer"}, "stride": {"type": "integer", "minimum": 1}},
}
Kind = Literal["embedding", "rows", "slots_mask", "source_mask", "state", "output", "user"]
When = Literal["once", "step"]
By = Literal["source", "token", "type", "position", "valid_length", "largest_id", "first_token"]


@dataclass(frozen=True)
class AnySource:
    """The source of an input: who makes it, and of which data."""

    kind: str  # who makes it, as each contract says
    of: str = ""  # the state, table, length or output that it is made of, by name; "" for none


@dataclass(frozen=True)
class AnyPort:
    """An input or output of a method."""

    name: Name  # its name in the model
    dtype: str  # such as `float32`
    # its dims; a name stands for a size that is the same wherever that name stands in one call
    shape: Annotated[tuple[Count | Name, ...], Meta(max_length=32)]
    meaning: str = field(metadata=TEXT)  # what it holds, in one sentence
    source: AnySource | None = None  # who makes it; None for an output
    writes: str = ""  # the state that an output is: the next slot of it, or all of it; "" for none

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
    """A model that the host runs."""

    name: Name  # what it is called
    file: FileName  # the ONNX file; two methods may share one
    when: str  # when it runs, as each contract says
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

        `has_beams` says whether its caller says how to search; for the settings in `without` the caller gives a value.
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
    reason: str = field(default="", metadata=TEXT)  # the first reason why it failed or was not run; "" where it passed
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
    COMMAND: ClassVar[str]  # which writes it
    version: int
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
        digest = hashlib.sha256(SPACE.sub(r"\1", json.dumps(plain, indent=2))[:-1].encode()).hexdigest()
        return json.dumps({**plain, "checksum": digest}, indent=2) + "\n"


def is_unsealed(text: str) -> bool:
    """Whether JSON no longer has its checksum."""
    match = SEAL.fullmatch(SPACE.sub(r"\1", text))
    return match is None or hashlib.sha256(match[1].encode()).hexdigest() != match[2]


@dataclass(frozen=True)
class Source(AnySource):
    """The source of an input.

    Where several sequences run at a time, an input that follows from tokens or from the valid length holds the part of
    each, one behind the other. What follows from the position is the same for all.

    Attributes:
        kind: `embedding`: rows of a table at token ids. `rows`: one row of a table. `slots_mask`: 0 at the slots in use
            and at the last one, the floor elsewhere. `source_mask`: 0 at the valid positions of the source, the floor
            elsewhere. `state`: what the host keeps. `output`: what another method gave. `user`: whoever calls;
            by the `source`, a sound, behind which come zeros.
        of: The table, the state, or METHOD/OUTPUT.
        by: What chooses rows: the ids of the `source`, the `token`, the token `type` (0 unless the caller has pairs of
            texts), the `position` or the `valid_length`; or a place of the source: that of the first of its largest ids
            (`largest_id`), or of the first of its tokens that is `tokens.pooled` (`first_token`; 0 without one).
        window: In a slots mask, how many tokens count, the new one included; 0 for all.
    """

    kind: Kind
    by: By | Literal[""] = ""
    window: Count = 0


@dataclass(frozen=True)
class Port(AnyPort):
    """An input or output of a lowered model, whose dims are numbers."""

    shape: Dims
    source: Source | None = None

    @property
    def is_sound(self) -> bool:
        """Whether a user gives a sound, behind which come zeros."""
        return (self.kind, self.by) == ("user", "source")

    @property
    def by(self) -> str:
        """What chooses its rows; "" for nothing."""
        return "" if self.source is None else self.source.by


@dataclass(frozen=True)
class Method(AnyMethod):
    """A lowered model: `encoder`, `cross_kv`, `step`; run `once` for a source, or at each `step`.

    Attributes:
        became: What each input of the original became.
    """

    when: When
    inputs: tuple[Port, ...]
    outputs: tuple[Port, ...]
    became: Mapping[str, str] = field(default_factory=dict)

    @property
    def takes_text(self) -> bool:
        """Whether it runs once on the tokens of a source."""
        return self.when == "once" and any((port.kind, port.by) == ("embedding", "source") for port in self.inputs)


def sound_axis(port: Port, length: int) -> int:
    """Return the axis of samples or frames: the first after the sequences that is as long as the padded sound."""
    return 1 + port.shape[1:].index(length)


@dataclass(frozen=True)
class Table:
    """Rows in a raw little-endian file."""

    name: Name  # its name
    file: FileName  # the file
    offset: Count  # of the first row, in bytes
    dtype: str  # of its elements
    rows: Count  # how many
    shape: Dims  # of a row
    meaning: str = field(metadata=TEXT)  # what it holds


@dataclass(frozen=True)
class LoweredWith:
    """The options of `graphkit lower` that gave these models; None, or the default, where one changes nothing.

    Attributes:
        target, batch, kv_layout, mask_floor, pad, gelu_to_tanh, dequantize, opset: As they were given.
        src_len, max_cache_len: As they were given, or the defaults for these models.
        dims: The sizes that were given by name.
        passes: The names of passes that ran because a judge left nodes on the CPU.
    """

    target: str = "generic-npu"
    batch: Count = 1
    src_len: Count | None = None
    max_cache_len: Count | None = None
    kv_layout: Literal["per-layer", "stacked"] = "per-layer"
    mask_floor: float | None = None
    pad: Count | None = None
    gelu_to_tanh: bool = False
    dequantize: bool = False
    opset: Positive | None = None
    dims: Sizes = field(default_factory=dict)
    passes: tuple[Name, ...] = ()


@dataclass(frozen=True)
class Contract(AnyContract):
    """The contract that a host program follows.

    Attributes:
        target: The target that it was lowered for.
        sizes: `batch`; `source`, the positions of the padded source; `capacity`, the slots of the cache; `positions`,
            the tokens that the decoder takes: one more than slots, unless the model has fewer; `layers`, `heads` and
            `head_dim` of the cache of the self-attention; `vocabulary`, the logits. 0 where there is none, or where
            layers differ. For a sound that may be shorter: `sound`, its samples or frames with the zeros behind it, and
            `stride` and `offset`: of `n` samples or frames, `(n + offset) // stride` positions of the source are valid.
        tokens: `pad` and `start`; None where the model does not say. Also `pooled`, where a row of a table is chosen by
            the first place of that token.
        ends: The tokens of which any ends a sequence; empty where the model does not say.
        floor: What is added to scores that do not count.
        methods, tables, states: What there is.
        loop: What the host does, in order.
        positions: Who adds positions, in one sentence.
        version: Of the form that contracts have.
        generation: How the export chooses tokens.
        options: How the models were made, so that `graphkit verify` makes the contract again and compares.
        proof: How the proof of models and host ended.
        files: The files beside it, by name, as they were then.
    """

    FILE: ClassVar[str] = "contract.json"
    COMMAND: ClassVar[str] = "lower"
    target: str
    sizes: Annotated[Mapping[str, Size], Meta(extra_json_schema=SIZES_SCHEMA)]
    tokens: Annotated[Mapping[str, Token | None], Meta(extra_json_schema={"required": ["pad", "start"]})]
    ends: tuple[Token, ...]
    floor: float
    methods: Annotated[tuple[Method, ...], Meta(min_length=1)]
    tables: tuple[Table, ...]
    states: tuple[State, ...]
    loop: tuple[str, ...] = field(metadata=TEXT)
    positions: str = field(metadata=TEXT)
    version: Literal[3] = 3
    generation: Generation = field(default_factory=Generation)
    options: LoweredWith = field(default_factory=LoweredWith)
    proof: ProofRecord = NOT_RUN
    files: Mapping[str, FileRecord] = field(default_factory=dict)

    @property
    def read_files(self) -> tuple[str, ...]:
        """The files that a host reads: models and tables."""
        return tuple(dict.fromkeys([*(method.file for method in self.methods), *(table.file for table in self.tables)]))

    @property
    def takes_text(self) -> bool:
        """Whether the source is text, rather than an image or a sound."""
        return any(method.takes_text for method in self.methods)

    @property
    def sequences(self) -> int:
        """How many sequences of tokens run at a time; a batch of images or sounds alone is the caller's."""
        has_tokens = any(method.takes_text or method.when == "step" for method in self.methods)
        return max(1, self.sizes["batch"]) if has_tokens else 1
