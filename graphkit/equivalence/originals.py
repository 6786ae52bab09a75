"""The models of an export that a proof compares with."""

from __future__ import annotations

from dataclasses import dataclass

from graphkit.model import Model

__all__ = ["Originals"]


@dataclass(frozen=True, eq=False)
class Originals:
    """The models that were lowered or bundled.

    Attributes:
        encoder: Or None.
        first: The decoder of the first step; for a decoder-only model the same as `step`; None without a decoder.
        step: The decoder of later steps, or None.
        is_changed: Whether they are no longer what their files say.
    """

    encoder: Model | None = None
    first: Model | None = None
    step: Model | None = None
    is_changed: bool = False

    @property
    def models(self) -> tuple[Model, ...]:
        """Those that there are."""
        return tuple(dict.fromkeys(model for model in (self.encoder, self.first, self.step) if model is not None))
