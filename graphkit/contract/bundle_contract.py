"""The vocabulary of `bundle.json`: methods over one state, and how the state lies in memory.

A host allocates the arena, feeds each method what its inputs say, and lets the outputs that write state go where that
lies. It keeps the lengths, and changes them after a method as the method says.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from functools import cached_property
from typing import Annotated, ClassVar, Literal

from msgspec import Meta

from graphkit.contract.host_contract import (
    FILE_NAME,
    LARGEST,
    NOT_RUN,
    TEXT,
    AnyContract,
    AnyMethod,
    AnyPort,
    AnySource,
    Count,
    FileRecord,
    Generation,
    Name,
    Positive,
    ProofRecord,
    Sizes,
    State,
    Token,
)
from graphkit.graph.names import group_pairs

ALIGNMENT = 64  # bytes: a cache line
LARGEST_ARENA = 1 << 44  # bytes
FeedKind = Literal["user", "tokens", "mask", "state", "length", "kept", "indices"]
Update = Literal["slots", "ring", "whole", "swap"]
Access = Literal["none", "read", "write", "read and write"]
When = Literal["init", "once", "step", "reorder"]
FED = ("tokens", "mask", "user")  # kinds of sources that a caller gives


@dataclass(frozen=True)
class Feed(AnySource):
    """The source of an input.

    Attributes:
        kind: `user`: whoever calls. `tokens`: the tokens for the decoder, [batch, tokens]. `mask`: 1 for each of these
            that counts, 0 for padding; ones unless the caller gives another. `state`: the state. `length`: how many
            slots are in use, of one element. `kept`: for how many of the last tokens the method gives logits, of one
            element; 0 for all of them. `indices`: the row of the state that each row becomes.
        of: The state or the length, by name.
    """

    kind: FeedKind


@dataclass(frozen=True)
class BundlePort(AnyPort):
    """An input or output of a method of a bundle, of which a name may stand for a dim."""

    source: Feed | None = None


@dataclass(frozen=True)
class LengthChange:
    """How a method changes a length, which grows by the size of an input; one that starts a sequence starts from 0."""

    length: Name  # its name
    input: Name  # the input
    axis: Count  # its axis


@dataclass(frozen=True)
class BundleMethod(AnyMethod):
    """A model of the bundle.

    Attributes:
        when: `init` sets all state to its initial value, `once` starts a sequence, `step` goes on, `reorder` chooses
            rows of all state. What starts a sequence reads the initial value of state that swaps and that it replaces.
        access: What it does with each state, by name.
        changes: How it changes lengths.
    """

    when: When
    inputs: tuple[BundlePort, ...]
    outputs: tuple[BundlePort, ...]
    access: Mapping[str, Access]
    changes: tuple[LengthChange, ...] = ()

    @cached_property
    def sources(self) -> Mapping[str, Sequence[BundlePort]]:
        """Its inputs by the kind of their source."""
        return group_pairs((port.kind, port) for port in self.inputs)

    @cached_property
    def fed(self) -> tuple[tuple[str, BundlePort], ...]:
        """Its inputs that a caller feeds, each with the kind of its source; a mask follows the input it belongs to."""
        ports = [(kind, port) for kind in FED for port in self.sources.get(kind, ())]
        return tuple(sorted(ports, key=lambda item: ("mask" in item[1].name, self.inputs.index(item[1]))))


@dataclass(frozen=True)
class StateTensor(State):
    """A tensor of the state, whose shape has all rows, all slots and the longest source.

    Attributes:
        batch: The axis of the rows; None where it has none.
        offset: Where it lies in the arena, in bytes.
        update: `slots`: what is new is written behind the slots in use. `ring`: into the slot of its position modulo
            the slots. `whole`: a method replaces all of it, with dims of its own, which no step changes. `swap`: as
            `whole`, by methods that read it too: it has two places, and the new one is written to the other.
        length: How many slots are in use, by name; "" for none.
        initial: What each element is at first; None where they differ: `init` writes them.
        prefix: Whether its slots come first, so that those in use lie together. A host gives every method but `init` as
            many of them, from the first one, as are in use after its run; of a ring, all of them once it is full.
    """

    batch: Count | None
    offset: Annotated[int, Meta(ge=0, le=LARGEST, multiple_of=ALIGNMENT)]
    update: Update
    length: str = ""
    initial: float | None = 0.0
    prefix: bool = False

    @property
    def stride(self) -> int:
        """Bytes from one place of it to the next thing in the arena."""
        return -(-self.bytes // ALIGNMENT) * ALIGNMENT

    @property
    def places(self) -> int:
        """How many places it has."""
        return 2 if self.update == "swap" else 1

    def in_use(self, length: int) -> int:
        """Return how many slots, from the first one, a host gives for so many tokens; all that are no prefix."""
        slots = self.shape[self.axis or 0]
        return min(length, slots) if self.prefix else slots

    @property
    def end(self) -> int:
        """Where its last place ends in the arena."""
        return self.offset + (self.places - 1) * self.stride + self.bytes


@dataclass(frozen=True)
class Length:
    """How much of the state is in use."""

    name: Name  # its name
    most: Positive  # the largest that it may be
    meaning: str = field(metadata=TEXT)  # what it counts


@dataclass(frozen=True)
class LegalSize:
    """The sizes at which the export runs: multiples of a number, with others beside each of them."""

    step: Positive  # the number; 1 where every size from the least to the most is legal
    least: Positive  # the least and the largest multiple; `most` is None without a bound
    most: Positive | None
    less: Count  # so much less, and so much more, than any of them is legal too
    more: Count
    shortest: Positive  # every size from the one to the other is legal too
    short: Count
    words: str = field(metadata=TEXT)  # the same in words

    def allows(self, size: int) -> bool:
        """Whether a size is legal."""
        below = (size + self.less) // self.step * self.step
        return self.shortest <= size <= self.short or any(
            self.least <= multiple and (self.most is None or multiple <= self.most)
            for multiple in range(below, below - 2 * self.step, -self.step)
            if multiple - self.less <= size <= multiple + self.more
        )

    def nearest(self, size: int) -> int:
        """Return a size if it is legal, else the multiple below it, or the least legal one."""
        smallest = min(self.least - self.less, self.shortest if self.short else self.least)
        multiple = size // self.step * self.step
        return next((each for each in (size, multiple) if self.allows(each)), smallest)


@dataclass(frozen=True)
class BundledWith:
    """The options of `graphkit bundle` that gave these methods; None, or the default, where one changes nothing.

    Attributes:
        batch, update, encode_apart, copy_host: As they were given.
        max_cache, max_source: As they were given, or the defaults for these models.
        dims: The sizes that were given by name.
    """

    batch: Count = 1
    max_cache: Count | None = None
    max_source: Count | None = None
    update: Literal["tensor-scatter", "scatter-nd"] = "scatter-nd"
    encode_apart: bool = False
    copy_host: bool = False
    dims: Sizes = field(default_factory=dict)


@dataclass(frozen=True)
class BundleContract(AnyContract):
    """The contract of a bundle with its host.

    Attributes:
        data: The file of the weights; "" where all are in the models.
        opset: Of the models.
        sizes: The largest that each size may be: `batch`, `source`, `tokens`, `slots`, and other names in the shapes of
            inputs.
        tokens: `pad` and `start`; None where the export does not say. `image`, where it does: the token in whose place
            the rows of a picture go.
        ends: The tokens of which any ends a sequence; empty where the export does not say.
        arena: Bytes of the state.
        lengths, states, methods: What there is.
        positions: Who counts positions, in one sentence.
        loop: What the host does, in order.
        version: Of the form that bundles have.
        generation: How the export chooses tokens.
        options: How the methods were made, so that `graphkit verify` makes the contract again and compares.
        proof: How the proof of the methods ended.
        files: The files beside it, by name, as they were then.
        legal: The legal sizes of names in `sizes`, where not every size up to the largest is legal.
    """

    FILE: ClassVar[str] = "bundle.json"
    COMMAND: ClassVar[str] = "bundle"
    data: Annotated[str, Meta(pattern=FILE_NAME.replace("+", "*"))]
    opset: Positive
    sizes: Annotated[Mapping[str, Positive], Meta(extra_json_schema={"required": ["batch"]})]
    tokens: Mapping[str, Token | None]
    ends: tuple[Token, ...]
    arena: Annotated[int, Meta(ge=0, le=LARGEST_ARENA)]
    lengths: tuple[Length, ...]
    states: tuple[StateTensor, ...]
    methods: Annotated[tuple[BundleMethod, ...], Meta(min_length=1)]
    positions: str = field(metadata=TEXT)
    loop: tuple[str, ...] = field(metadata=TEXT)
    version: Literal[4] = 4
    generation: Generation = field(default_factory=Generation)
    options: BundledWith = field(default_factory=BundledWith)
    proof: ProofRecord = NOT_RUN
    files: Mapping[str, FileRecord] = field(default_factory=dict)
    legal: Mapping[str, LegalSize] = field(default_factory=dict)

    @property
    def read_files(self) -> tuple[str, ...]:
        """The files that a host reads: models, and their weights."""
        return tuple(filter(None, dict.fromkeys([*(method.file for method in self.methods), self.data])))

    def method(self, when: str) -> BundleMethod | None:
        """Return the first method that is run then, None if there is none."""
        return next((method for method in self.methods if method.when == when), None)

    def state(self, name: str) -> StateTensor:
        """Return a state by name."""
        return next(state for state in self.states if state.name == name)
