"""Target: facts about a compiler, each with its source; a fact that no source states is unknown."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from datetime import date
from functools import cached_property
from typing import Literal

__all__ = [
    "ANYTHING",
    "Condition",
    "Fact",
    "Facts",
    "Limit",
    "Source",
    "Spelling",
    "Target",
    "Verdict",
    "joint_verdict",
]

Verdict = Literal["allowed", "refused", "unknown"]


@dataclass(frozen=True)
class Source:
    """A document, a file of a repository, or the output of a tool.

    Attributes:
        key: What facts call it.
        title: What it is, with its version.
        url: Where it is, "" where it is not on the web.
        date: When it was written, or read where it does not say.
    """

    key: str
    title: str
    url: str
    date: date

    def __str__(self) -> str:
        return f"{self.title}, {self.date}"


@dataclass(frozen=True)
class Limit:
    """A number, or a yes or no, such as the highest rank."""

    value: int
    source: Source
    note: str = ""


@dataclass(frozen=True)
class Condition:
    """A condition on a node; inputs go by their names in the ONNX specification.

    Attributes:
        constant: Inputs that must be constant.
        dtypes: The dtypes that the first input may have; empty for any.
        max_rank: The highest rank of its tensors.
        attributes: Values of attributes.
        values: Numbers that all elements of inputs must be.
        producers: Operators that inputs must come from.
        readers: The operator of all that read its output, "" for any.
        output_dtypes: The dtypes that its output may have where it is one of the model; empty for any.
        planes_of: A number that the elements of the last two of four axes are a multiple of, unless the last one stays.
    """

    constant: tuple[str, ...] = ()
    dtypes: tuple[str, ...] = ()
    max_rank: int | None = None
    attributes: Mapping[str, str | int | float] = field(default_factory=dict)
    values: Mapping[str, int | float] = field(default_factory=dict)
    producers: Mapping[str, str] = field(default_factory=dict)
    readers: str = ""
    output_dtypes: tuple[str, ...] = ()
    planes_of: int | None = None

    def __str__(self) -> str:
        return ", ".join(self._parts())

    def _parts(self) -> Iterator[str]:
        yield from (f"constant {name}" for name in self.constant)
        if self.dtypes:
            yield f"dtype {' or '.join(self.dtypes)}"
        if self.max_rank is not None:
            yield f"rank at most {self.max_rank}"
        yield from (f"{name} = {value}" for name, value in self.attributes.items())
        yield from (f"{name} = {value}" for name, value in self.values.items())
        yield from (f"{name} from {op}" for name, op in self.producers.items())
        if self.readers:
            yield f"read by {self.readers} alone"
        if self.output_dtypes:
            yield f"an output of the model in {' or '.join(self.output_dtypes)}"
        if self.planes_of is not None:
            yield f"multiples of {self.planes_of} elements in the last two of four axes"


ANYTHING = Condition()


def joint_verdict(verdicts: Sequence[Verdict]) -> Verdict:
    """Return the joint verdict of several targets.

    What any refuses is refused. What more of them say nothing of than take is unknown.
    """
    if "refused" in verdicts:
        return "refused"
    return "allowed" if verdicts.count("allowed") >= max(1, verdicts.count("unknown")) else "unknown"


@dataclass(frozen=True)
class Fact:
    """A statement of a source about some operators or dtypes.

    Attributes:
        verdict: Whether they are allowed.
        names: Of operators as `Node.operator` names them, or of dtypes.
        source: Who says so.
        note: What else it says, "" for nothing.
        condition: Under which an operator is allowed.
        otherwise: What it is where the condition does not hold.
    """

    verdict: Verdict
    names: tuple[str, ...]
    source: Source
    note: str = ""
    condition: Condition = ANYTHING
    otherwise: Verdict = "refused"


@dataclass(frozen=True)
class Facts:
    """Facts about operators of ONNX or of TFLite, or about dtypes.

    Attributes:
        facts: In the order of the file; no name is in two.
        otherwise: What is true of a name that no fact has.
        source: Who says that, None where nobody does.
        note: What else it says.
    """

    facts: tuple[Fact, ...] = ()
    otherwise: Verdict = "unknown"
    source: Source | None = None
    note: str = ""

    @cached_property
    def _by_name(self) -> Mapping[str, Fact]:
        return {name: fact for fact in self.facts for name in fact.names}

    def __getitem__(self, name: str) -> Fact | None:
        """Return the fact about a name, None where no source states any."""
        fact = self._by_name.get(name)
        if fact is None and self.source is not None:
            return Fact(self.otherwise, (name,), self.source, self.note or "not in its list")
        return fact

    def __contains__(self, name: str) -> bool:
        return name in self._by_name

    def names(self, verdict: Verdict) -> tuple[str, ...]:
        """Return the names with this verdict."""
        return tuple(name for fact in self.facts if fact.verdict == verdict for name in fact.names)


@dataclass(frozen=True)
class Spelling:
    """The operators of TFLite that an operator of ONNX becomes, where a condition holds of the node."""

    becomes: tuple[str, ...]
    source: Source
    condition: Condition = ANYTHING


@dataclass(frozen=True)
class Target:
    """The facts that sources state about a compiler.

    Attributes:
        name: Such as `ethos-u65`.
        description: In one sentence.
        sources: In the order of the file.
        max_rank: The highest rank of a tensor.
        static_shapes: Whether every dim must be a number.
        max_opset: The newest opset of the default domain.
        quantized: Whether it takes quantised models only.
        operators: Of ONNX; they come before what is said of TFLite.
        dtypes: Of data that is not constant.
        tflite: Operators of TFLite, None for a compiler that does not take TFLite.
        others: The targets of which it refuses what any refuses; empty for one that has facts of its own.

    A limit is None where no source says it.
    """

    name: str
    description: str
    sources: tuple[Source, ...]
    max_rank: Limit | None = None
    static_shapes: Limit | None = None
    max_opset: Limit | None = None
    quantized: Limit | None = None
    operators: Facts = Facts()
    dtypes: Facts = Facts()
    tflite: Facts | None = None
    others: tuple[Target, ...] = ()

    def dtype(self, name: str) -> Fact | None:
        """Return the fact about a dtype of data, None where no source states any."""
        if not self.others:
            return self.dtypes[name]
        facts = [(member, member.dtype(name)) for member in self.others]
        verdict = joint_verdict(["unknown" if fact is None else fact.verdict for _, fact in facts])
        said = [(member.name, fact) for member, fact in facts if fact is not None and fact.verdict == verdict]
        if not said:
            return None
        return Fact(verdict, (name,), replace(said[0][1].source, key=", ".join(member for member, _ in said)))

    @property
    def needs_static_shapes(self) -> bool:
        """Whether a source says that every dim must be a number."""
        return self.static_shapes is not None and bool(self.static_shapes.value)

    @property
    def is_quantized(self) -> bool:
        """Whether a source says that it takes quantised models only."""
        return self.quantized is not None and bool(self.quantized.value)

    @property
    def takes_8_bits(self) -> bool:
        """Whether a source says that it, or one of the targets that it stands for, takes data of 8 bits."""
        if self.others:
            return any(member.takes_8_bits for member in self.others)
        return self.is_quantized or not {"int8", "uint8"}.isdisjoint(self.dtypes.names("allowed"))
