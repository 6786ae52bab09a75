"""The coverage of a proof's runs, in a line, and its gaps."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from graphkit.graph.names import counted
from graphkit.graph.roles import MASKS
from graphkit.verify.draws import Padding
from graphkit.verify.running import Feeder, Found, Run

__all__ = ["caveats", "coverage"]

MAX_DIMS = 6
PADDINGS: Mapping[Padding, str] = {
    "full": "without padding", "right": "padded on the right", "left": "padded on the left", "holes": "with holes",
    "empty": "of zeros alone",
}  # fmt: skip


def coverage(feeder: Feeder, runs: Sequence[Run]) -> str:
    """Return the coverage of runs: sizes, masks, edges of values; "" without runs."""
    if not runs:
        return ""
    parts = [_sizes(runs), _masks(feeder, runs), _values(runs)]
    return "; ".join(filter(None, parts))


def _sizes(runs: Sequence[Run]) -> str:
    ends: dict[str, tuple[int, int]] = {}
    for run in runs:
        for name, size in run.dims.items():
            low, high = ends.get(name, (size, size))
            ends[name] = min(low, size), max(high, size)
    told = [f"{name} {low:,} to {high:,}" if low < high else f"{name} {low:,}" for name, (low, high) in ends.items()]
    more = [f"{counted(len(told) - MAX_DIMS, 'dim(s)')} more"] if len(told) > MAX_DIMS else []
    return ", ".join([*told[:MAX_DIMS], *more])


def _masks(feeder: Feeder, runs: Sequence[Run]) -> str:
    masks = feeder.maker.model.roles.all(*MASKS)
    if not masks:
        return ""
    if feeder.maker.counts_masks:
        return "masks without padding and padded on the right"
    rows = (feeder.rows(run) for run in runs)
    seen = {run.draw.row(row) for run, count in zip(runs, rows, strict=True) for row in range(count)}
    return f"masks {', '.join(text for padding, text in PADDINGS.items() if padding in seen)}"


def _values(runs: Sequence[Run]) -> str:
    return ", ".join(dict.fromkeys(run.elements for run in runs if run.elements))


def caveats(feeder: Feeder, found: Found, *, is_exact: bool) -> tuple[str, ...]:
    """Return the gaps of a proof, and why they exist."""
    told = [f"{what}, {why}" for what, why in found.uncovered.items()]
    if feeder.defaults.kept:
        told.append(f"other values of {', '.join(feeder.defaults.kept)} than the default")
    if steering := feeder.maker.counting:
        verb = "decides" if len(steering) == 1 else "decide"
        told.append(f"large numbers for {', '.join(steering)}, which {verb} sizes, counts or loops")
    if not is_exact and feeder.maker.has_kind("extremes"):
        told.append("extreme values, NaN and infinities, where rounding decides")
    return tuple(told)
