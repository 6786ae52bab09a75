"""The list of judges: which are installed, their versions and licences, and what they answer."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from typing import ClassVar

from graphkit.judges import JUDGES, judges_folder
from graphkit.render.document_blocks import Block, Prose, table
from graphkit.render.result import Result

__all__ = ["JudgeList"]


@dataclass(frozen=True)
class JudgeList(Result):
    """The judges that graphkit knows; what is shown depends on the folder of their environments."""

    title: ClassVar[str] = "Judges"

    def blocks(self) -> Iterator[Block]:
        judges = JUDGES.values()
        yield table(
            "Judge:code | Version | Package:code | MB:number | Answers:note",
            [(each.name, each.version or "not installed", each.compiler, each.megabytes, each.says) for each in judges],
        )
        yield table(
            "Judge:code | What it is:note | Licence:note", [(each.name, each.about, each.licence) for each in judges]
        )
        yield Prose(
            f"`graphkit judges install NAME` installs one into {judges_folder()}; `lower --judge NAME` asks it."
        )
