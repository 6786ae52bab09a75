"""The outcome of a pass, or of a pipeline of them: changes, and reasons for those that it declined."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from dataclasses import asdict, dataclass
from typing import ClassVar, Generic, TypeVar

from graphkit.graph.name_families import in_short, pair_families
from graphkit.graph.names import count_things
from graphkit.model import Model
from graphkit.render.document_blocks import Block, Heading, Prose, table
from graphkit.render.result import Result

__all__ = [
    "Declined",
    "DeclinedText",
    "Matched",
    "Outcome",
    "PassChange",
    "change_blocks",
    "declined_blocks",
    "group_reasons",
]

SHOWN_DECLINED = 20
MatchT = TypeVar("MatchT")


class PassChange(str):
    """A change, in a sentence that names the pass that made it: `fold-shapes: 4 shape tensors made constant`.

    Args:
        text: The sentence without the name.
        step: The name of the pass, "" where there is only one.
    """

    __slots__ = ("step", "text")
    step: str
    text: str

    def __new__(cls, text: str, step: str = "") -> PassChange:
        """Return the sentence."""
        made = super().__new__(cls, f"{step}: {text}" if step else text)
        made.step, made.text = step, text
        return made


@dataclass(frozen=True)
class Declined:
    """Something that a pass left unchanged, and why."""

    where: str
    reason: str

    def __str__(self) -> str:
        return f"{self.where}: {self.reason}"


class DeclinedText(str):
    """Something that a pass left unchanged, in a sentence: `/h.0/Reshape: its rank is unknown`.

    Args:
        where: The part.
        reason: Why it stayed.
    """

    __slots__ = ("reason", "where")
    where: str
    reason: str

    def __new__(cls, where: str, reason: str = "") -> DeclinedText:
        """Return the sentence."""
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
        declined = [asdict(declined) for declined in self.declined]
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
    """The outcome of a pass, with its matches in the model that it was given: a workflow goes on with these.

    Attributes:
        matches: The places that the pass changed, in the order of the graph; none where it declined.
    """

    matches: tuple[MatchT, ...] = ()


def group_reasons(declined: Iterable[Declined | DeclinedText]) -> tuple[str, ...]:
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


def declined_blocks(declined: Iterable[Declined | DeclinedText]) -> Iterator[Block]:
    """Yield the reasons for which passes left nodes unchanged, each once."""
    reasons = group_reasons(declined)
    yield from (Prose(text) for text in reasons[:SHOWN_DECLINED])
    if len(reasons) > SHOWN_DECLINED:
        yield Prose(f"... and {len(reasons) - SHOWN_DECLINED:,} more in the JSON report.")
