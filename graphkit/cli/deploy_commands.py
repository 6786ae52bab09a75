"""Commands on the way to a device: lower, contract, bundle."""

from __future__ import annotations

import sys
from pathlib import Path
from typing import TYPE_CHECKING

import click

from graphkit.cli.flags import Asked, choice_type, format_option, output_option, takes_options
from graphkit.cli.output import print_line, progress_on_terminal, show_result, start_prover
from graphkit.options import BundleOptions, LowerOptions

if TYPE_CHECKING:
    from graphkit.render.result import Result

__all__ = ["bundle", "contract", "lower"]

LANGUAGES = ("c", "rust", "typescript")


export_argument = click.argument("export", metavar="FOLDER_OR_MODEL")
folder_output = output_option("OUT", "The folder to write to.", required=True)


def _finish_command(result: Result, format: str, output: Path) -> None:
    show_result(result, format)
    if result.findings():
        print_line(f"Not done: {result.findings()[0]}. The files in {output} are kept.", is_error=True)
        raise SystemExit(1)


@click.command(short_help="Lower models for an NPU, with a host contract and a proof.")
@export_argument
@folder_output
@takes_options(LowerOptions)
@format_option
def lower(export: str, output: Path, options: Asked[LowerOptions], format: str) -> None:
    """Lower a pipeline for an NPU: fixed shapes, a host contract, and the proof of both.

    FOLDER_OR_MODEL is the folder of an export (encoder, decoder, decoder with past; or a merged decoder), or one model.
    It may be a URL, with --download.
    """
    with start_prover(options.limits, options.verify), progress_on_terminal() as progress:
        from graphkit.cli.fetched_export import fetched_export
        from graphkit.deploy.lower import lower_folder

        progress("fetching")
        with fetched_export(export) as path:
            lowering = lower_folder(path, output, options.read(), progress=progress)
    _finish_command(lowering, format, output)


@click.command(short_help="Write the constants of a contract for a host program.")
@click.argument("out", metavar="OUT")
@click.option(
    "--language",
    "-l",
    type=choice_type(LANGUAGES),
    help="The language to write. Default: c, or the one that the suffix of --output names.",
)
@output_option("FILE", "Write to a file, such as contract.h, contract.rs or contract.ts.")
def contract(out: str, language: str | None, output: Path | None) -> None:
    """Write the constants of a contract for a host program: sizes, tables, states, and inputs and outputs of models.

    OUT is the folder that graphkit lower wrote, or its contract.json. The C header serves C++ too.
    """
    from graphkit.deploy.contract import read_contract
    from graphkit.deploy.contract.contract_writers import SUFFIXES, WRITERS
    from graphkit.errors import UsageError
    from graphkit.io.remote.urls import is_url, shown_url
    from graphkit.io.transaction import write_text

    if is_url(out):
        raise UsageError(f"{shown_url(out)}: a contract is read from this machine - fetch it, and name the file")
    path = Path(out)
    file = path / "contract.json" if path.is_dir() else path
    suffix = output.suffix.lower() if output is not None else ""
    text = WRITERS[language or SUFFIXES.get(suffix, "c")](read_contract(file))
    if output is None:
        sys.stdout.write(text)
    else:
        write_text(output, text, [file])


@click.command(short_help="Package an export as methods that share one state.")
@export_argument
@folder_output
@takes_options(BundleOptions)
@format_option
def bundle(export: str, output: Path, options: Asked[BundleOptions], format: str) -> None:
    """Package an export as methods that share one state, such as encode and step over one KV cache; and prove them.

    FOLDER_OR_MODEL is the folder of an export (encoder, decoder, decoder with past; or a merged decoder), or one model.
    It may be a URL, with --download.
    graphkit report OUT describes the bundle; graphkit.Bundle(OUT) and bundle.mjs run it.
    """
    with start_prover(options.limits, options.verify), progress_on_terminal() as progress:
        from graphkit.cli.fetched_export import fetched_export
        from graphkit.deploy.make_bundle import JAVASCRIPT_HOST, bundle_folder

        chosen = options.read()
        progress("fetching")
        with fetched_export(export) as path:
            report = bundle_folder(path, output, chosen, progress=progress)
    _finish_command(report, format, output)
    if format == "text" and not chosen.dry_run:
        copied = output / JAVASCRIPT_HOST.name
        is_copied = copied.is_file()
        hint = "" if is_copied else "; --copy-host puts it into the bundle"
        print_line(f"In Python: bundle = graphkit.Bundle({str(output)!r})")
        print_line(f"In JavaScript: import {{ Bundle }} from {str(copied if is_copied else JAVASCRIPT_HOST)!r}{hint}")
