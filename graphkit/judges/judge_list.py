"""Where models can run, and who can be asked: the lists of execution providers and of judges."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from typing import ClassVar

from msgspec import Struct

from graphkit.judges import JUDGES, judges_folder
from graphkit.render.document_blocks import Block, Prose, table_of
from graphkit.render.result import Result
from graphkit.runtime.providers import KNOWN_PROVIDERS, how_to_install, is_here


class JudgeRow(Struct, frozen=True):
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


class ProviderRow(Struct, frozen=True):
    """A provider: where it is from ("built in", or a package and its version), or else what to do to have it."""

    name: str
    device: str
    here: str
    install: str


@dataclass(frozen=True)
class ProviderList(Result):
    """The providers that graphkit knows."""

    title: ClassVar[str] = "Providers"
    providers: tuple[ProviderRow, ...]

    def blocks(self) -> Iterator[Block]:
        here = [row for row in self.providers if row.here]
        others = [row for row in self.providers if not row.here]
        yield table_of("Provider:code=name | Runs on=device | From=here", here, "Installed")
        yield table_of("Provider:code=name | Runs on=device | To install:note=install", others, "Others")
        yield Prose(
            "verify, compare, lower, bundle and report take --provider NAME. What a device refuses runs on the CPU; "
            "`graphkit report MODEL --provider NAME` says which nodes that are. The state of a bundle stays on a "
            "device that has memory of its own, as onnxruntime says; for another it is copied at each step."
        )


def list_providers() -> ProviderList:
    """Return the providers that graphkit knows.

    Example:
        >>> graphkit.list_providers().providers[0].here
        'built in'
    """
    found = [(known, is_here(known)) for known in KNOWN_PROVIDERS]
    rows = (ProviderRow(known.name, known.device, here, "" if here else how_to_install(known)) for known, here in found)
    return ProviderList(tuple(rows))
