"""The list of judges: which are installed, their versions and licences, and what they answer."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from typing import ClassVar

from graphkit.judges import JUDGES, judges_folder
from graphkit.render.document_blocks import Block, Prose, table_of
from graphkit.render.result import Result

__all__ = ["JudgeList", "JudgeRow", "list_judges"]


@dataclass(frozen=True)
class JudgeRow:
    """A judge; the version is "not installed" where it is not."""

    name: str
    about: str
    version: str
    package: str
    licence: str
    megabytes: int
    says: str


@dataclass(frozen=True)
class JudgeList(Result):
    """The judges that graphkit knows, and the folder of their environments."""

    title: ClassVar[str] = "Judges"
    folder: str
    judges: tuple[JudgeRow, ...]

    def blocks(self) -> Iterator[Block]:
        yield table_of(
            "Judge:code=name | Version | Package:code | MB:number=megabytes | Answers:note=says", self.judges
        )
        yield table_of("Judge:code=name | What it is:note=about | Licence:note", self.judges)
        yield Prose(f"`graphkit judges install NAME` installs one into {self.folder}; `lower --judge NAME` asks it.")


def list_judges() -> JudgeList:
    """Return the judges that graphkit knows."""
    rows = (
        JudgeRow(
            name=judge.name,
            about=judge.about,
            version=judge.version or "not installed",
            package=judge.compiler,
            licence=judge.licence,
            megabytes=judge.megabytes,
            says=judge.says,
        )
        for judge in JUDGES.values()
    )
    return JudgeList(str(judges_folder()), tuple(rows))
