"""The base class of passes, how options are read, their outcome, how a pipeline runs, and the failure of a matcher.

A pass with options is a frozen dataclass whose fields these are. It never changes the model that it is given: it
returns another one, with what it changed, and what it declined to change and why.
"""

from __future__ import annotations

import copy
import re
from abc import ABC, abstractmethod
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, MutableSequence, Sequence
from dataclasses import dataclass
from typing import Any, ClassVar, Generic, TypeVar

import onnx
from msgspec import Struct, field

from graphkit.errors import GraphkitError, PassError, UsageError, count_things
from graphkit.graph.names import in_short, pair_families
from graphkit.graph.view import Node
from graphkit.model import Model, ModelLike, as_model
from graphkit.render.document_blocks import Block, Heading, Prose, table
from graphkit.render.result import Result
from graphkit.shapes import Bounds
from graphkit.shapes.graph_inputs import AS_DECLARED, DimSpec

SHOWN_DECLINED = 20
MatchT = TypeVar("MatchT")
ROUNDING = 1e-5  # of float32, where sums are added up in another order; measured: at most 1e-6
Names = tuple[str, ...]
Renames = tuple[tuple[str, str], ...]  # (old name, new name)


class PassChange(str):
    """A change, in a sentence after the name of its pass: `fold-shapes: 4 shape tensors made constant`."""

    __slots__ = ("step", "text")
    step: str
    text: str

    def __new__(cls, text: str, step: str = "") -> PassChange:
        made = super().__new__(cls, f"{step}: {text}" if step else text)
        made.step, made.text = step, text
        return made


class Declined(str):
    """Something that a pass left unchanged, and why, in a sentence: `/h.0/Reshape: its rank is unknown`."""

    __slots__ = ("reason", "where")
    where: str
    reason: str

    def __new__(cls, where: str, reason: str = "") -> Declined:
        made = super().__new__(cls, f"{where}: {reason}" if reason else where)
        made.where, made.reason = where, reason
        return made


@dataclass(frozen=True)
class Outcome(Result):
    """The outcome of a pass, or of a pipeline.

        outcome = graphkit.fold("model.onnx")
        print(outcome)  # notebooks show it by itself
        outcome.model.save("folded.onnx")

    Attributes:
        changes: One sentence for each change; those of a pipeline are each a `PassChange`.
        declined: What stayed unchanged, and why.
    """

    title: ClassVar[str] = "Outcome"
    model: Model
    changes: tuple[str, ...] = ()
    declined: tuple[Declined, ...] = ()

    def __repr__(self) -> str:
        what = f"{count_things(len(self.changes), 'change(s)')}, {len(self.declined):,} declined"
        return f"Outcome({self.model!r}, {what})"

    def heading(self) -> str:
        """Return the title, with the model that came of it."""
        return f"{self.title} for {self.model.name}"

    def to_dict(self) -> dict[str, object]:
        """Return the changes, the declined ones, and the model by its name."""
        declined = [{"where": each.where, "reason": each.reason} for each in self.declined]
        return {"model": self.model.label, "changes": list(self.changes), "declined": declined}

    def blocks(self) -> Iterator[Block]:
        """Yield the blocks to show, in order."""
        if self.changes:
            yield from change_blocks(self.changes)
        else:
            yield Prose("Nothing was changed.")
        if self.declined:
            yield Heading("What stays")
            yield from declined_blocks(self.declined)


@dataclass(frozen=True, repr=False)
class Matched(Outcome, Generic[MatchT]):
    """The outcome of a pass, with its matches in the model that it was given: a workflow goes on with these."""

    matches: tuple[MatchT, ...] = ()  # the places that it changed, in the order of the graph


def group_reasons(declined: Iterable[Declined]) -> tuple[str, ...]:
    """Return each reason once, with the places it holds for; reasons that differ in numbers alone are one."""
    places: dict[str, dict[str, list[str]]] = {}
    for (where, reason), pairs in pair_families((each.where, each.reason) for each in declined).items():
        places.setdefault(reason, {}).setdefault(where, []).extend(place for place, _ in pairs)
    return tuple(f"{in_short(group)}: {reason}" for reason, group in places.items())


def change_blocks(changes: Sequence[str]) -> Iterator[Block]:
    """Yield the changes of passes, a row each."""
    steps = [(change.step, change.text) if isinstance(change, PassChange) else ("", change) for change in changes]
    yield Heading("What was done")
    if any(name for name, _ in steps):
        yield table("Pass | Change", steps)
    else:
        yield table("Change", [(text,) for _, text in steps])


def declined_blocks(declined: Iterable[Declined]) -> Iterator[Block]:
    """Yield the reasons for which passes left nodes unchanged, each once."""
    reasons = group_reasons(declined)
    yield from (Prose(text) for text in reasons[:SHOWN_DECLINED])
    if len(reasons) > SHOWN_DECLINED:
        yield Prose(f"... and {len(reasons) - SHOWN_DECLINED:,} more in the JSON report.")


class Premise(Struct, frozen=True):
    """An assumption of a pass about the inputs: its result equals the original wherever this holds.

    Attributes:
        spec: Dims of the inputs.
        values: Inputs that are always one value.
        is_unpadded: Whether masks hide nothing.
    """

    spec: DimSpec = AS_DECLARED
    values: Mapping[str, bool | int] = field(default_factory=dict)
    is_unpadded: bool = False

    def __or__(self, other: Premise) -> Premise:
        """Return both as one; the other one takes precedence."""
        values = {**self.values, **other.values}
        return Premise(self.spec | other.spec, values, self.is_unpadded or other.is_unpadded)


ALWAYS = Premise()


@dataclass(frozen=True)
class Pass(ABC):
    """Base of all passes.

    Attributes:
        largest_error: How far the results of a node can be off after it, absolutely, for values near 1; 0 where they
            are equal to the last bit, infinite where no bound is known.
        drops_outputs: Whether it removes outputs on purpose; those that stay give the same.
        drops_rounding: Whether quantised data is no longer rounded after it, which the proof then does in its place.
        changes_interface: Whether it gives the model other inputs, or outputs of another meaning, on purpose.
    """

    largest_error: ClassVar[float] = 0.0
    drops_outputs: ClassVar[bool] = False
    drops_rounding: ClassVar[bool] = False
    changes_interface: ClassVar[bool] = False

    @classmethod
    def name(cls) -> str:
        """Return the name in kebab-case: `EliminateDeadCode` is `eliminate-dead-code`."""
        return re.sub(r"(?<!^)(?=[A-Z])", "-", cls.__name__).lower()

    @abstractmethod
    def run(self, model: Model) -> Outcome:
        """Rewrite a model.

        Raises:
            UsageError: An option does not fit the model.
            ModelError: The model's graph is not sound: see `Model.check_soundness`.
        """

    def premise(self) -> Premise:
        """Return its assumption about the inputs."""
        return ALWAYS

    def error_for(self, model: Model) -> float:  # noqa: ARG002 - the same for all models, unless a pass says otherwise
        """Return how far results for a model can be off: see `largest_error`."""
        return self.largest_error


def run_passes(model: ModelLike, passes: Iterable[Pass]) -> Outcome:
    """Return the outcome of passes that run one after the other: the last model, what changed and what was declined.

    Raises:
        UsageError: An option does not fit the model.
        ModelError: The model's graph is not sound: see `Model.check_soundness`.
        PassError: A pass that is none of graphkit's own raises an exception.

    Example:
        >>> passes = graphkit.parse_pipeline("freeze-dims{dims=batch_size=1},fold-constants")
        >>> graphkit.run_passes("example:causal-attention", passes).changes[0]
        'freeze-dims: batch_size is 1'
    """
    model = as_model(model)
    changes: list[str] = []
    declined: list[Declined] = []
    for step in passes:
        is_own = type(step).__module__.partition(".")[0] == "graphkit"
        try:
            outcome = step.run(model)
        except GraphkitError:
            raise
        except Exception as error:  # a pass that is not graphkit's own is anybody's code
            if is_own:
                raise
            raise PassError.of(step.name(), "failed", error) from error
        if not isinstance(outcome, Outcome):
            problem = f"it returned {type(outcome).__name__}, not an Outcome"
            raise PassError(step.name(), problem, "return one from `run`")
        sentences = outcome.changes or (("the model is another",) if outcome.model is not model else ())
        changes += [PassChange(change, step.name()) for change in sentences]
        model = outcome.model
        declined += outcome.declined
    return Outcome(model, tuple(changes), tuple(declined))


def keep_members(members: MutableSequence[Any], stays: Sequence[bool]) -> None:
    """Keep the members of a repeated field that are wanted, in place."""
    if not all(stays):
        replace_members(members, [member for member, keep_it in zip(members, stays, strict=True) if keep_it])


def replace_members(members: MutableSequence[Any], made: Sequence[Any]) -> None:
    """Put others, which may be former ones, in the place of the members of a repeated field."""
    del members[:]
    members.extend(made)


def drop_inputs(graph: onnx.GraphProto, names: Collection[str]) -> None:
    """Remove inputs with their defaults, in place."""
    keep_members(graph.input, [info.name not in names for info in graph.input])
    keep_members(graph.initializer, [tensor.name not in names for tensor in graph.initializer])
    keep_members(graph.sparse_initializer, [sparse.values.name not in names for sparse in graph.sparse_initializer])


def copy_proto(model: Model) -> onnx.ModelProto:
    """Return a copy of a model's weightless proto, to change, once the model is found to be sound."""
    model.check_soundness()
    return copy.deepcopy(model.proto)


class MatchFailure(Exception):
    """A rewrite does not apply to a node. Matchers raise it, and the editor records it among the declined nodes.

    Attributes:
        reason: Why the node stays, for the user; "" where nobody would expect it to change.
        node: The node that stays, None for the one that is being rewritten.
    """

    def __init__(self, reason: str = "", node: Node | None = None) -> None:
        super().__init__(reason)
        self.reason, self.node = reason, node


def parse_size(text: str) -> int:
    """Return a size, such as `8`, or raise a UsageError."""
    if not (text.isascii() and text.isdigit() and len(text) < 19):
        raise UsageError(f"'{text}' is not a size - write a number of at least 0")
    return int(text)


def parse_shape(text: str) -> tuple[int, ...]:
    """Return a shape, `1x3x800x800`, `1,3,800,800` or `[1, 3, 800, 800]`, `[]` for a scalar; else a UsageError."""
    inner = text.strip()
    if inner.startswith("[") and inner.endswith("]"):
        inner = inner[1:-1].strip()
        if not inner:
            return ()
    return tuple(parse_size(part.strip()) for part in re.split("[x,]", inner))


def parse_bounds(text: str) -> Bounds:
    """Return bounds, `0:512`, `1:`, `:512`, or `8` for both, or raise a UsageError."""
    low, separator, high = text.partition(":")
    least = parse_size(low) if low or not separator else None
    most = parse_size(high) if high else None if separator else least
    if least is not None and most is not None and least > most:
        raise UsageError(f"'{text}' allows no size - write the smaller bound first")
    return least, most


def read_option(annotation: str, text: str) -> object:
    """Return an option of names, `name;...`, or of a type with values, `name=value;...`; None for other types."""
    if annotation == "Names":
        return tuple(filter(None, (name.strip() for name in text.split(";"))))
    parse = VALUES.get(annotation)
    if parse is None:
        return None
    values: dict[str, tuple[object, ...]] = {}
    for item in filter(None, text.split(";")):
        name, separator, value = (part.strip() for part in item.rpartition("="))
        if not (separator and name and value):
            raise UsageError(f"'{item}' is not NAME=VALUE - write it as in batch_size=1;sequence_length=8")
        if name in values:
            raise UsageError(f"'{name}' is given twice - give it once")
        values[name] = parse(value)
    return tuple((name, *value) for name, value in values.items())


VALUES: Mapping[str, Callable[[str], tuple[object, ...]]] = {  # how the values of a type of option are read
    "Renames": lambda text: (text,),
    "SymbolSizes": lambda text: (parse_size(text),),
    "InputShapes": lambda text: (parse_shape(text),),
    "SymbolRanges": parse_bounds,
}
