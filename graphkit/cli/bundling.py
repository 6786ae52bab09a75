"""Commands for state that methods share: bundle."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING

import click

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
    from graphkit.passes.state.slots import Update
    from graphkit.runtime.limits import Limits

__all__ = ["bundle"]

UPDATES = ("tensor-scatter", "scatter-nd")


@click.command(short_help="Make methods over one state, updated in place.")
@click.argument("path", metavar="FOLDER_OR_MODEL", type=click.Path(path_type=Path))
@output_option("OUT", "The folder to write to.", required=True)
@count_option(
    "--max-cache",
    None,
    "Slots of the KV cache: the most tokens that the decoder sees. Default: 2048, at most the positions of the model.",
)
@count_option("--max-source", 256, "The longest source, as the encoder's input counts it.")
@count_option("--batch", 1, "The most rows: sequences at a time, or beams.")
@click.option(
    "--update",
    type=choice(UPDATES),
    default="tensor-scatter",
    show_default=True,
    help="The operator that writes into the state. tensor-scatter needs a runtime of opset 24, scatter-nd of opset 16.",
)
@click.option("--dry-run", is_flag=True, help="Say what would be made. Nothing is written or run.")
@click.option("--copy-host", is_flag=True, help="Put bundle.mjs, the host in JavaScript, into OUT.")
@dim_option
@no_verify_option
@overwrite_option
@limit_options
@format_option
def bundle(
    path: Path,
    output: Path,
    max_cache: int | None,
    max_source: int,
    batch: int,
    update: Update,
    dry_run: bool,
    copy_host: bool,
    dim: tuple[str, ...],
    no_verify: bool,
    overwrite: bool,
    limits: Limits,
    format: str,
) -> None:
    """Make methods over one state, updated in place, of an export; and prove them.

    FOLDER_OR_MODEL is the folder of an export (encoder, decoder, decoder with past; or a merged decoder), or one model.
    graphkit report OUT shows what came out; graphkit.Bundle(OUT) and bundle.mjs run it.
    """
    with proving(limits, not no_verify), progress_on_terminal() as progress:
        from graphkit.workflows.bundle import JAVASCRIPT_HOST, BundleOptions, bundle_folder

        options = BundleOptions(
            max_cache=max_cache,
            max_source=max_source,
            batch=batch,
            update=update,
            dims=read_sizes(dim),
            verify=not no_verify,
            dry_run=dry_run,
            overwrite=overwrite,
            limits=limits,
            copy_host=copy_host,
        )
        made = bundle_folder(path, output, options, progress=progress)
    show(made, format)
    if made.findings():
        say(f"Not done: {made.findings()[0]}. The files in {output} are kept.", is_error=True)
        raise SystemExit(1)
    if format == "text" and not dry_run:
        copied = output / JAVASCRIPT_HOST.name
        is_copied = copied.is_file()
        hint = "" if is_copied else "; --copy-host puts it into the bundle"
        say(f"In Python: bundle = graphkit.Bundle({str(output)!r})")
        say(f"In JavaScript: import {{ Bundle }} from {str(copied if is_copied else JAVASCRIPT_HOST)!r}{hint}")
