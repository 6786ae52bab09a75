"""Proofs of many faults of a bundle in one process, where the originals of all run once."""

from __future__ import annotations

import contextlib
import pickle
from collections.abc import Callable, Iterator, Sequence
from functools import partial

import pytest

from graphkit.equivalence.originals import Originals
from graphkit.hosts.bundle_host import Bundle
from graphkit.runtime.isolation import shared_isolation
from graphkit.runtime.session import IsolatedSession
from graphkit.verify import bundle_verifier
from graphkit.verify.bundle_prompts import Prompt, Recording

__all__ = ["originals_run_once"]


@contextlib.contextmanager
def originals_run_once() -> Iterator[None]:
    """Let proofs of the same originals share what these give for the same prompts.

    All runs in one process, and on one thread: others would wait in busy loops.
    """
    record, made = bundle_verifier.record_originals, dict[tuple[Originals, bytes], Recording]()

    def recorded(
        originals: Originals, prompts: Sequence[Prompt], *, progress: Callable[[str], None], **asked: object
    ) -> Recording:
        key = originals, pickle.dumps((list(prompts), asked))
        if key not in made:
            made[key] = record(originals, prompts, progress=progress, **asked)  # type: ignore[arg-type]
        return made[key]

    with shared_isolation(), pytest.MonkeyPatch.context() as patch:
        patch.setattr(bundle_verifier, "record_originals", recorded)
        patch.setattr(bundle_verifier, "Bundle", partial(Bundle, threads=1))
        patch.setattr("graphkit.verify.oracle.IsolatedSession", partial(IsolatedSession, threads=1))
        yield
