"""Options of lowering."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

from graphkit.contract.default_sizes import LOWERED
from graphkit.workflows.deploy_sizes import DeployOptions, SizeRequest
from graphkit.workflows.judge import SECONDS

__all__ = ["DEFAULTS", "KvLayout", "LowerOptions"]

KvLayout = Literal["per-layer", "stacked"]
MOST_POSITIONS = 1 << 16


@dataclass(frozen=True, kw_only=True)
class LowerOptions(DeployOptions):
    """How to lower; hosts run text and decoders one sequence at a time unless `batch` says otherwise.

    Attributes:
        target: The name of a target, or the path of its file.
        src_len: Positions of a padded source.
        max_cache_len: Slots of the cache; None for 64, or as many as the model has positions where these are fewer.
        mask_floor: What is added to scores that do not count; None for what the target takes, and for one that takes
            quantised models at least twice the largest score.
        pad: The token that pads; None for what the export says, else 0.
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
    mask_floor: float | None = None
    pad: int | None = None
    judges: tuple[str, ...] = ()
    judge_seconds: float = SECONDS
    kv_layout: KvLayout = "per-layer"
    gelu_to_tanh: bool = False
    dequantize: bool = False

    @property
    def sizes(self) -> SizeRequest:
        """The sizes that are asked for."""
        return SizeRequest(
            batch=self.batch,
            slots=self.max_cache_len,
            source=self.src_len,
            dims=self.dims,
            slots_flag="--max-cache-len",
            source_flag="--src-len",
            default_slots=LOWERED,
            default_source=LOWERED,
            most=MOST_POSITIONS,
        )


DEFAULTS = LowerOptions()
