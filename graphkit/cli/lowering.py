"""Commands on the way to a device: lower, contract."""

from __future__ import annotations

import sys
from pathlib import Path
from typing import TYPE_CHECKING

import click

from graphkit.cli.completing import complete_target
from graphkit.cli.options import (
    choice,
    count_option,
    dim_option,
    format_option,
    limit_options,
    no_verify_option,
    output_option,
    overwrite_option,
    read_sizes,
)
from graphkit.cli.output import progress_on_terminal, proving, say, show

if TYPE_CHECKING:
    from graphkit.runtime.limits import Limits
    from graphkit.workflows.lower_options import KvLayout

__all__ = ["contract", "lower"]

KV_LAYOUTS = ("per-layer", "stacked")
LANGUAGES = ("c", "rust", "typescript")


@click.command(short_help="Lower models for an NPU, with a host contract and a proof.")
@click.argument("path", metavar="FOLDER_OR_MODEL", type=click.Path(path_type=Path))
@output_option("OUT", "The folder to write to.", required=True)
@click.option(
    "--target",
    default="generic-npu",
    show_default=True,
    shell_complete=complete_target,
    help="The name of a target, or its TOML file.",
)
@count_option("--src-len", 64, "Positions of the padded source.")
@count_option("--max-cache-len", None, "Slots of the KV cache. Default: 64, at most the positions of the model.")
@count_option("--batch", 1, "Sequences, images or sounds at a time.")
@click.option(
    "--kv-layout",
    type=choice(KV_LAYOUTS),
    default="per-layer",
    show_default=True,
    help="stacked: one cache for the keys of all layers, one for values: [layers, batch, slots, heads * head_dim].",
)
@click.option(
    "--gelu-to-tanh",
    is_flag=True,
    help="Compute Gelus by tanh, for targets without Erf. This changes results; the report says by how much.",
)
@click.option(
    "--dequantize",
    is_flag=True,
    help="Compute quantised products with floats, as a model that was quantised dynamically needs. This changes "
    "results; the report says by how much.",
)
@click.option(
    "--mask-floor",
    type=float,
    help="Added to scores that do not count. Default: -1e9; for a target that takes quantised models only, -255, or "
    "twice the largest score where that is lower.",
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
@dim_option
@no_verify_option
@overwrite_option
@limit_options
@format_option
def lower(
    path: Path,
    output: Path,
    target: str,
    src_len: int,
    max_cache_len: int | None,
    batch: int,
    kv_layout: KvLayout,
    gelu_to_tanh: bool,
    dequantize: bool,
    mask_floor: float | None,
    pad: int | None,
    judges: tuple[str, ...],
    judge_timeout: float,
    dim: tuple[str, ...],
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
            target=target,
            src_len=src_len,
            max_cache_len=max_cache_len,
            batch=batch,
            mask_floor=mask_floor,
            dims=read_sizes(dim),
            pad=pad,
            verify=not no_verify,
            overwrite=overwrite,
            limits=limits,
            judges=judges,
            judge_seconds=judge_timeout,
            kv_layout=kv_layout,
            gelu_to_tanh=gelu_to_tanh,
            dequantize=dequantize,
        )
        made = lower_folder(path, output, options, progress=progress)
    show(made, format)
    if made.findings():
        say(f"Not done: {made.findings()[0]}. The files in {output} are kept.", is_error=True)
        raise SystemExit(1)


@click.command(short_help="Write the constants of a contract for a host program.")
@click.argument("path", metavar="OUT", type=click.Path(path_type=Path))
@click.option(
    "--language", "-l", type=choice(LANGUAGES), help="Default: c, or the language that the suffix of --output names."
)
@output_option("FILE", "Write to a file, such as contract.h, contract.rs or contract.ts.")
def contract(path: Path, language: str | None, output: Path | None) -> None:
    """Write the constants of a contract for a host program: sizes, tables, states, and inputs and outputs of models.

    OUT is what graphkit lower wrote, or its contract.json. The C header serves C++ too.
    """
    from graphkit.contract import read_contract
    from graphkit.contract.constants import SUFFIXES, WRITERS
    from graphkit.io.write import write_text

    file = path / "contract.json" if path.is_dir() else path
    suffix = output.suffix.lower() if output is not None else ""
    text = WRITERS[language or SUFFIXES.get(suffix, "c")](read_contract(file))
    if output is None:
        sys.stdout.write(text)
    else:
        write_text(output, text, [file])
