"""The list of judges: which are installed, their versions and licences, and what they answer."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from typing import ClassVar

from graphkit.judges import JUDGES, judges_folder
from graphkit.render.document_blocks import Block, Prose, table_of
from graphkit.render.result import Result


@dataclass(frozen=True)
class JudgeRow:
    """A judge: the version that is installed, "" for none, its package, and what it is and answers."""

    name: str
    version: str
    package: str
    megabytes: int
    answers: str
    about: str
    licence: str

    @property
    def installed(self) -> str:
        return self.version or "not installed"


@dataclass(frozen=True)
class JudgeList(Result):
    """The judges that graphkit knows, with what is installed of them."""

    title: ClassVar[str] = "Judges"
    judges: tuple[JudgeRow, ...]

    def blocks(self) -> Iterator[Block]:
        columns = "Judge:code=name | Version=installed | Package:code | MB:number=megabytes | Answers:note"
        yield table_of(columns, self.judges)
        yield table_of("Judge:code=name | What it is:note=about | Licence:note", self.judges)
        install = f"`graphkit judges install NAME` installs one into {judges_folder()}"
        yield Prose(f"{install}; `lower --judge NAME` asks it.")


def list_judges() -> JudgeList:
    """Return the judges that graphkit knows."""
    rows = (
        JudgeRow(j.name, j.version, j.compiler, j.megabytes, answers=j.says, about=j.about, licence=j.licence)
        for j in JUDGES.values()
    )
    return JudgeList(tuple(rows))
