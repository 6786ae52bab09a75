"""How models on servers are read."""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Iterator
from contextvars import ContextVar
from dataclasses import dataclass

__all__ = ["RemoteOptions", "current_options", "remote_options"]


def _say_nothing(_: str) -> None:
    pass


@dataclass(frozen=True, kw_only=True)
class RemoteOptions:
    """How models on servers are read.

    Attributes:
        download: Whether to fetch the whole file first, as a server needs that serves no parts of files.
        cache: Whether graphs are kept on this machine, for the next time that they are read.
        timeout: Seconds in which a graph has to be read; of weights, in which the next bytes have to come.
        notice: Called with a sentence before many bytes of weights are fetched.
    """

    download: bool = False
    cache: bool = True
    timeout: float = 60.0
    notice: Callable[[str], None] = _say_nothing


_CURRENT: ContextVar[RemoteOptions | None] = ContextVar("remote_options", default=None)


def current_options() -> RemoteOptions:
    """Return the options of the block that runs, the default ones outside of any."""
    return _CURRENT.get() or RemoteOptions()


@contextlib.contextmanager
def remote_options(options: RemoteOptions) -> Iterator[None]:
    """Let models on servers be read in one way inside the block."""
    token = _CURRENT.set(options)
    try:
        yield
    finally:
        _CURRENT.reset(token)
