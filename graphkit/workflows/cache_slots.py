"""The number of slots of a cache: the user's, else the default, never more than the model's positions."""

from __future__ import annotations

from graphkit.analysis.positions import table_positions
from graphkit.errors import UsageError
from graphkit.model import Model
from graphkit.passes.fold import fold

__all__ = ["cache_slots", "most_positions"]


def cache_slots(model: Model | None, asked: int | None, usual: int, option: str) -> int:
    """Return how many slots the cache of a decoder gets.

    Args:
        model: The decoder of later steps; None where there is none, or where it is not known.
        asked: What the user asks for, None for nothing.
        usual: How many there are where the user asks for nothing and the model has as many positions.
        option: The option that asks.

    Raises:
        UsageError: The user asks for more than the model has positions.
    """
    most = most_positions(model) if model is not None else None
    if most is not None and asked is not None and asked > most:
        assert model is not None
        raise UsageError(
            f"{model.name}: the model has {most} positions, so its cache has at most {most} slots - "
            f"give {option} {most}"
        )
    return asked or min(usual, most or usual)


def most_positions(model: Model) -> int | None:
    """Return how many positions the tables of a decoder have, None where it has none or it is not known."""
    return table_positions(fold(model).model)
