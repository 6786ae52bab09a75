"""A padding leak: the models agree once nothing is padded, so padding counts in one of them."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping

import numpy as np

from graphkit.graph.roles import MASKS
from graphkit.model import Model
from graphkit.verify.layers.causes.case import Case, Cause

__all__ = ["padded_masks", "padding"]

Agrees = Callable[[Mapping[str, np.ndarray]], bool]


def padded_masks(model: Model, feed: Mapping[str, np.ndarray]) -> dict[str, np.ndarray]:
    """Return the mask inputs of a model that mask something, by name."""
    names = [value.name for value in model.roles.all(*MASKS)]
    return {name: feed[name] for name in names if name in feed and feed[name].size and not feed[name].all()}


def padding(case: Case, masks: Mapping[str, np.ndarray], agrees: Agrees) -> Iterator[Cause]:
    """Yield the mask without which the two agree.

    Args:
        case: The tensors.
        masks: The mask inputs that mask something.
        agrees: Whether the two agree with other inputs.
    """
    for name, mask in masks.items():
        if agrees({name: np.ones_like(mask)}):
            yield Cause("padding", _text(case, name, mask))
            return
    if len(masks) > 1 and agrees({name: np.ones_like(mask) for name, mask in masks.items()}):
        names = " and ".join(f"'{name}'" for name in masks)
        yield Cause("padding", f"padding leak: the two agree where {names} mask nothing.")


def _text(case: Case, name: str, mask: np.ndarray) -> str:
    if _only_where(case, mask):
        return f"padding: only positions that '{name}' masks differ; what counts agrees."
    return f"padding leak: the two agree where '{name}' masks nothing; padding changes what one of them computes."


def _only_where(case: Case, mask: np.ndarray) -> bool:
    """Whether only padded positions differ: dims [batch, length, ...] beside a mask [batch, length]."""
    if mask.ndim != 2 or case.x.shape != case.y.shape or case.x.shape[:2] != mask.shape:
        return False
    kept = mask.astype(bool)
    return case.equal(case.x[kept], case.y[kept])
