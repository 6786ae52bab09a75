"""The sizes for which models are lowered, and the number of each symbol of a model that follows from them."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field

from graphkit.deploy.deploy_sizes import DeploySizes, missing_sizes
from graphkit.deploy.export_pipeline import MASK_LENGTH
from graphkit.deploy.targets import Target, load_target
from graphkit.errors import UsageError
from graphkit.model import Model
from graphkit.shapes.constraints.dim_equalities import forced_sizes
from graphkit.shapes.constraints.failing_sizes import SizeCheck
from graphkit.shapes.constraints.symbol_sizes import symbol_roles

__all__ = ["LowerSizes", "Setting", "Sound", "setting_of"]

MAX_REACH = 4096  # how far a length is looked for at which a model runs


@dataclass(frozen=True)
class Sound:
    """How many positions of its encoder's output are valid: `(valid + offset) // stride`, and no more than there are.

    Attributes:
        length: Samples or frames of the padded sound.
        stride: How many of them make a position.
        offset: Added to the valid ones.
    """

    length: int
    stride: int
    offset: int

    def least(self, positions: int) -> int:
        """Return the fewest valid samples or frames that make so many valid positions."""
        return max(1, positions * self.stride - self.offset)


@dataclass(frozen=True, kw_only=True)
class LowerSizes(DeploySizes):
    """The sizes for which models are lowered, whose source is padded.

    Attributes:
        floor: The addend of masked scores.
        pad: The token that pads.
        target: The compiler to lower for.
        sound: The rule for the valid positions of a source that is a sound with a mask.
    """

    floor: float = -1e9
    pad: int = 0
    target: Target = field(default_factory=lambda: load_target("generic-npu"))
    sound: Sound | None = None


@dataclass(frozen=True)
class Setting:
    """The sizes for which a model is lowered.

    Attributes:
        dims: Numbers for symbols that stay what they are: batch, new tokens, source.
        batch: The symbols of these that count sequences.
        growing: The symbols of the length of the past, and of past and new tokens together.
        capacity: Slots of the cache; 0 where there is none.
        source: Positions of the source; 0 where there is none.
        is_padded: Whether some of these may be padding: tokens may, and sounds with a mask; parts of an image may not.
        floor: The addend of masked scores.
        pad: The token that pads.
        sound: The rule for the valid positions of a source that is a sound with a mask.
    """

    dims: Mapping[str, int]
    batch: frozenset[str]
    past: frozenset[str]
    total: frozenset[str]
    capacity: int
    source: int
    is_padded: bool
    floor: float
    pad: int
    sound: Sound | None = None

    def masked(self, valid: int, *, least: bool = False) -> int:
        """Return how many places of a mask of the source are 1 where so many positions are valid.

        Args:
            valid: Valid positions.
            least: Whether to return the fewest such places of a sound, not the most.
        """
        if self.sound is None:
            return valid
        if least:
            return self.sound.least(valid)
        return self.sound.length if valid >= self.source else self.sound.least(valid + 1) - 1

    def at(self, past: int) -> dict[str, int]:
        """Return all dims of one sequence where the cache holds so many tokens."""
        new = dict.fromkeys(self.past, past)
        return {**self.dims, **dict.fromkeys(self.batch, 1), **new, **dict.fromkeys(self.total, past + 1)}


def setting_of(model: Model, original: Model, sizes: LowerSizes, *, is_decoder: bool) -> Setting:
    """Return the size of each symbol of a model's inputs, by its role.

    Args:
        model: The model, folded.
        original: The model as it was exported.
        sizes: The sizes to fix.
        is_decoder: Whether it runs at each step, on a cache or on recurrent state.

    Raises:
        UsageError: One is not known, or the model cannot be run here to find out what its host makes.
    """
    roles = symbol_roles(model)
    by_role = {"batch": sizes.batch, "encoder": sizes.source, "sequence": 1 if is_decoder else sizes.source}
    if not is_decoder:
        by_role["total"] = sizes.source
    of_role = {name: by_role[role] for name, role in roles.items() if role in by_role}
    if sizes.sound is not None and MASK_LENGTH in of_role:
        of_role[MASK_LENGTH] = sizes.sound.length
    forced = {name: int(size) for name, size in forced_sizes(model, {}).items() if size >= 1}
    numbers = {name: size for name, size in forced.items() if roles.get(name) not in ("past", "total")}
    numbers |= of_role | dict(sizes.dims)
    has_cache = bool(original.roles.pasts)
    is_padded = has_cache or (not is_decoder and bool(model.roles.all("tokens", "encoder tokens", "embeddings")))
    for name, size in sizes.dims.items() if is_padded else ():
        if size != of_role.get(name, size):
            flag = "--batch" if roles[name] == "batch" else "--src-len"
            raise UsageError(f"{model.name}: '{name}' is {of_role[name]}, not {size} - give {flag} {size}")
    past, total = (
        frozenset(name for name, role in roles.items() if role == growing and name not in numbers)
        for growing in ("past", "total")
    )
    if has_cache and not past:
        raise UsageError(f"{model.name}: its cache has a fixed length already - lower an export whose cache grows")
    unknown = sorted(set(roles) - set(numbers) - past - total)
    if unknown:
        raise missing_sizes(model, unknown)
    if not is_decoder:
        _check_sizes(original, numbers, frozenset(name for name in of_role if roles[name] in ("encoder", "sequence")))
    capacity = sizes.slots if has_cache else 0
    batch = frozenset(name for name in of_role if roles[name] == "batch" and name not in sizes.dims)
    return Setting(
        dims=numbers,
        batch=batch,
        past=past,
        total=total,
        capacity=capacity,
        source=sizes.source,
        is_padded=is_padded,
        floor=sizes.floor,
        pad=sizes.pad,
        sound=sizes.sound,
    )


def _check_sizes(model: Model, numbers: Mapping[str, int], lengths: frozenset[str]) -> None:
    """Check that a model runs at these sizes.

    Raises:
        UsageError: It does not, with the nearest length at which it does.
    """
    check = SizeCheck(model)
    if not (fault := check.fault(numbers)):
        return
    hint = "give other sizes with --src-len or --dim"
    start = next((numbers[name] for name in sorted(lengths)), 0)
    if start and (nearest := check.nearest(numbers, lengths, start, MAX_REACH)):
        hint = f"the nearest length at which it runs is --src-len {nearest}"
    raise UsageError(f"{model.name} does not run at these sizes: {fault} - {hint}")
