"""The vocabulary of `contract.json`: methods, their ports, tables, and the state that stays between steps."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Annotated, ClassVar, Literal

from msgspec import Meta

from graphkit.contract.contract_parts import (
    LARGEST,
    NOT_RUN,
    TEXT,
    AnyContract,
    AnyMethod,
    AnyPort,
    AnySource,
    Count,
    Dims,
    FileName,
    FileRecord,
    Generation,
    Name,
    Positive,
    ProofRecord,
    Sizes,
    State,
    Token,
)

VERSION: Literal[3] = 3
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
    """Rows in a raw little-endian file.

    Attributes:
        name: Its name.
        file: The file.
        offset: Of the first row, in bytes.
        dtype: Of its elements.
        rows: How many.
        shape: Of a row.
        meaning: What it holds.
    """

    name: Name
    file: FileName
    offset: Count
    dtype: str
    rows: Count
    shape: Dims
    meaning: str = field(metadata=TEXT)


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
    version: Literal[3] = VERSION
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
