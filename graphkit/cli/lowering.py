"""Commands on the way to a device: lower."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING

import click

from graphkit.cli.options import (
    SizeWords,
    count_option,
    format_option,
    limit_options,
    no_verify_option,
    output_option,
    overwrite_option,
    size_options,
)
from graphkit.cli.output import progress_on_terminal, proving, say, show

if TYPE_CHECKING:
    from graphkit.runtime.limits import Limits

__all__ = ["lower"]


@click.command()
@click.argument("path", metavar="FOLDER_OR_MODEL", type=click.Path(path_type=Path))
@output_option("OUT", "The folder to write to.", required=True)
@click.option("--target", default="generic-npu", show_default=True, help="The name of a target, or its TOML file.")
@count_option("--src-len", 64, "Positions of the padded source.")
@count_option("--max-cache-len", 64, "Slots of the KV cache.")
@count_option("--batch", 1, "Sequences at a time.")
@click.option(
    "--mask-floor",
    type=float,
    help="Added to scores that do not count. Default: -1e9, or -255 for a target that takes quantised models only.",
)
@click.option("--pad", type=click.IntRange(min=0), help="Token that pads. Default: what the export says, else 0.")
@click.option(
    "--judge",
    "judges",
    multiple=True,
    metavar="COMMAND",
    help="A compiler to run on each lowered model, such as 'mycc --check {model}'; any exit status but 0 is a failure. "
    "Repeatable.",
)
@click.option(
    "--judge-timeout",
    type=click.FloatRange(min=0, min_open=True),
    default=600.0,
    show_default=True,
    metavar="SECONDS",
    help="Time for a judge to take for one model.",
)
@size_options
@no_verify_option
@overwrite_option
@limit_options
@format_option
def lower(
    path: Path,
    output: Path,
    target: str,
    src_len: int,
    max_cache_len: int,
    batch: int,
    mask_floor: float | None,
    pad: int | None,
    judges: tuple[str, ...],
    judge_timeout: float,
    sizes: SizeWords,
    no_verify: bool,
    overwrite: bool,
    limits: Limits,
    format: str,
) -> None:
    """Lower a pipeline for an NPU: fixed shapes, a host contract, and the proof of both.

    FOLDER_OR_MODEL is the folder of an export (encoder, decoder, decoder with past; or a merged decoder), or one model.
    """
    with proving(limits, not no_verify), progress_on_terminal() as progress:
        from graphkit.workflows.lower import LowerOptions, lower_folder

        options = LowerOptions(
            target,
            src_len,
            max_cache_len,
            batch,
            mask_floor,
            sizes.read().dims,
            pad,
            not no_verify,
            overwrite,
            limits,
            judges,
            judge_timeout,
        )
        made = lower_folder(path, output, options, progress=progress)
    show(made, format)
    if made.findings():
        say(f"Not done: {made.findings()[0]}. The files in {output} are kept.", is_error=True)
        raise SystemExit(1)
