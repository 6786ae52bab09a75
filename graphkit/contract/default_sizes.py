"""How long caches and sources are where the user says nothing; a model of fewer positions has fewer slots."""

from __future__ import annotations

__all__ = ["BUNDLED", "LOWERED", "SOURCE"]

BUNDLED = 2048  # slots of a bundle, whose step reads those in use alone
SOURCE = 256  # positions of its source, which cost nothing either
LOWERED = 64  # slots, and positions of the source, of a lowering, whose step computes all of them each time
