"""The command that prints JSON Schemas: schema."""

from __future__ import annotations

from pathlib import Path

import click

from graphkit.cli.options import output_option
from graphkit.cli.output import put

__all__ = ["schema"]


@click.command(short_help="Print the JSON Schema of an output, or list the schemas.")
@click.argument("name", metavar="[NAME]", required=False)
@output_option("FILE", "Write to a file.")
def schema(name: str | None, output: Path | None) -> None:
    """Print the JSON Schema of a command's JSON, or list the schemas.

    The JSON itself names its schema, such as "report/1". contract and bundle are for contract.json and bundle.json.
    """
    from graphkit.workflows.schemas import SCHEMAS, schema_text

    put("".join(f"{one}\n" for one in SCHEMAS) if name is None else schema_text(name), output)
