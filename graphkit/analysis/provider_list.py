"""The execution providers that models can run on: which are here, and how to install the others."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from typing import ClassVar

from graphkit.render.document_blocks import Block, Prose, table
from graphkit.render.result import Result
from graphkit.runtime.providers import KNOWN_PROVIDERS, how_to_install, is_here

__all__ = ["ProviderList", "ProviderRow", "list_providers"]


@dataclass(frozen=True)
class ProviderRow:
    """A provider: see `KnownProvider`.

    Attributes:
        here: "built in", or the plug-in's package and version; "" where it is not installed.
        install: What to do to have it, "" where it is installed.
    """

    name: str
    runtime_name: str
    device: str
    here: str
    install: str
    needs: str
    is_coarse: bool

    @property
    def how(self) -> str:
        """How to install it, with what it needs."""
        return f"{self.install}{f'; it needs {self.needs}' if self.needs and self.needs not in self.install else ''}"


@dataclass(frozen=True)
class ProviderList(Result):
    """The providers that graphkit knows."""

    title: ClassVar[str] = "Providers"
    providers: tuple[ProviderRow, ...]

    def blocks(self) -> Iterator[Block]:
        here = [(row.name, row.device, row.here) for row in self.providers if row.here]
        others = [(row.name, row.device, row.how) for row in self.providers if not row.here]
        yield table("Provider:code | Runs on | From", here, "Installed")
        yield table("Provider:code | Runs on | To install:note", others, "Others")
        yield Prose(
            "verify, compare, lower, bundle and report take --provider NAME. What a device refuses runs on the CPU; "
            "`graphkit report MODEL --provider NAME` says which nodes that are."
        )


def list_providers() -> ProviderList:
    """Return the providers that graphkit knows.

    Example:
        >>> graphkit.list_providers().providers[0].here
        'built in'
    """
    rows = []
    for known in KNOWN_PROVIDERS:
        here = is_here(known)
        rows.append(
            ProviderRow(
                name=known.name,
                runtime_name=known.runtime_name,
                device=known.device,
                here=here,
                install="" if here else how_to_install(known),
                needs=known.needs,
                is_coarse=known.is_coarse,
            )
        )
    return ProviderList(tuple(rows))
