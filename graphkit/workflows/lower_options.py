"""Options of lowering, and their ranges."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import Literal

from graphkit.contract.default_sizes import LOWERED
from graphkit.errors import UsageError
from graphkit.runtime.limits import DEFAULT_LIMITS, Limits
from graphkit.workflows.judge import SECONDS, judge_words

__all__ = ["DEFAULTS", "KvLayout", "LowerOptions", "check_options"]

KvLayout = Literal["per-layer", "stacked"]
MAX_POSITIONS = 1 << 16


@dataclass(frozen=True)
class LowerOptions:
    """How to lower.

    Attributes:
        target: The name of a target, or the path of its file.
        src_len: Positions of a padded source.
        max_cache_len: Slots of the cache; None for 64, or as many as the model has positions where these are fewer.
        batch: Images or sounds at a time; hosts run text and decoders one sequence at a time.
        mask_floor: What is added to scores that do not count; None for what the target takes, and for one that takes
            quantised models at least twice the largest score.
        dims: Numbers for other symbols, such as `(("height", 224),)`.
        pad: The token that pads; None for what the export says, else 0.
        verify: Whether to run the proof.
        overwrite: Replace files that exist.
        limits: What a model may take of time and memory.
        judges: Commands that are run on each lowered model, with `{model}` for its path; exit status 0 passes.
        judge_seconds: How long a judge may take for a model.
        gelu_to_tanh: Whether to compute Gelus by tanh first, which changes results.
        dequantize: Whether to compute products of quantised numbers with floats first, which changes results.
        kv_layout: `per-layer`: a state for the keys and one for the values of each layer, as the export has them;
            `stacked`: one for the keys and one for the values of all, `[layers, batch, slots, heads * head_dim]`.
    """

    target: str = "generic-npu"
    src_len: int = LOWERED
    max_cache_len: int | None = None
    batch: int = 1
    mask_floor: float | None = None
    dims: tuple[tuple[str, int], ...] = ()
    pad: int | None = None
    verify: bool = True
    overwrite: bool = False
    limits: Limits = DEFAULT_LIMITS
    judges: tuple[str, ...] = ()
    judge_seconds: float = SECONDS
    kv_layout: KvLayout = "per-layer"
    gelu_to_tanh: bool = False
    dequantize: bool = False


DEFAULTS = LowerOptions()


def check_options(path: Path, output: Path, options: LowerOptions) -> None:
    """Check options before anything is read or written.

    Raises:
        UsageError: A judge is no command, a size is out of range, or the output is the folder of the export.
    """
    for command in options.judges:
        judge_words(command)
    if options.batch < 1:
        raise UsageError(f"a batch of {options.batch} - give at least 1")
    for what, size in (("source positions", options.src_len), ("slots", options.max_cache_len or 1)):
        if not 0 < size <= MAX_POSITIONS:
            raise UsageError(f"{size:,} {what}: what the host feeds is computed for each - give 1 to {MAX_POSITIONS:,}")
    if path.is_dir() and output.resolve() == path.resolve():
        raise UsageError(
            f"{output} is the folder of the export, whose models it would be mixed with - name another one"
        )
