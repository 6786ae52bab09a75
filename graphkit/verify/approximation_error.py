"""How far lowered models are from an export whose results they change because the user asked for it."""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

from graphkit.runtime.limits import DEFAULT_LIMITS, Limits
from graphkit.verify.lowering_verifier import verify_lowering
from graphkit.verify.originals import Originals

__all__ = ["Deviation", "deviation"]


@dataclass(frozen=True)
class Deviation:
    """The largest differences over all runs of a proof.

    Attributes:
        once: Of what runs once for a source, None without it.
        logits: Of logits, None without a decoder.
        others: Greedy tokens that are others than those of the export.
        tokens: Greedy tokens that were compared.
    """

    once: float | None
    logits: float | None
    others: int
    tokens: int

    def words(self) -> str:
        """Return it as a clause."""
        found = [
            f"{what} by up to {size:.1e}"
            for what, size in (("what runs once differs", self.once), ("logits differ", self.logits))
            if size is not None
        ]
        if self.tokens:
            found.append(f"{self.others} of {self.tokens} greedy tokens are others")
        return ", and ".join([", ".join(found[:-1]), found[-1]] if len(found) > 1 else found)


def deviation(
    originals: Originals,
    folder: Path,
    *,
    limits: Limits = DEFAULT_LIMITS,
    progress: Callable[[str], None] = lambda _: None,
) -> Deviation:
    """Return how far host and lowered models are from the originals; see `verify_lowering`."""
    runs = verify_lowering(originals, folder, tolerance=math.inf, limits=limits, progress=progress).runs
    return Deviation(
        max((run.encoder for run in runs if run.encoder is not None), default=None),
        max((run.logits for run in runs if run.logits is not None), default=None),
        sum(run.others for run in runs),
        sum(run.greedy for run in runs),
    )
