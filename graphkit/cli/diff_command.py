"""The command that lists the differences between two files: diff."""

from __future__ import annotations

from dataclasses import dataclass

import click

from graphkit.cli.flags import Asked, output_format_option, takes_options
from graphkit.cli.model_streams import load_model
from graphkit.cli.output import print_line, progress_on_terminal, show_result
from graphkit.cli.shell_completion import complete_model
from graphkit.model_diff.changes import COSTS, SECTIONS
from graphkit.options import DiffOptions, Flag, option

__all__ = ["diff"]

ANY = "any"


@dataclass(frozen=True, kw_only=True)
class DiffFlags(DiffOptions):
    """The differences to list, and those that fail.

    Attributes:
        fail_on: The sections in which a difference fails.
    """

    fail_on: str = option(
        "",
        Flag(
            "--fail-on",
            "Exit with code 1 if there are differences in these sections, or more findings, blockers or costs in B. "
            f"Sections: {', '.join((*SECTIONS, COSTS))}; {ANY} stands for all but {COSTS}.",
            metavar="SECTION,...",
        ),
    )

    def failing(self) -> frozenset[str]:
        """Return the sections in which a difference fails.

        Raises:
            UsageError: There is no section of a name.
        """
        from graphkit.errors import UsageError
        from graphkit.suggest import did_you_mean

        names = [name.strip() for name in self.fail_on.split(",") if name.strip()]
        for name in names:
            if name not in (ANY, *SECTIONS, COSTS):
                raise UsageError(f"--fail-on {name}: no such section - {did_you_mean(name, (ANY, *SECTIONS, COSTS))}")
        if "blockers" in names and self.target is None:
            raise UsageError("--fail-on blockers: blockers are those for a target - name one with --target")
        return frozenset((*SECTIONS, *names) if ANY in names else names)


@click.command(short_help="List the differences between the files of two models.")
@click.argument("a", metavar="A", shell_complete=complete_model)
@click.argument("b", metavar="B", shell_complete=complete_model)
@takes_options(DiffFlags)
@output_format_option
def diff(a: str, b: str, options: Asked[DiffFlags], format: str) -> None:
    """List the differences between the files of two models: interface, operator sets, nodes, weights, shapes, findings.

    Nodes match by name and by what they compute, so that other names of values and another order of nodes are no
    difference. Nothing runs: graphkit compare tells by how much the results differ, and where that begins.
    """
    asked = options.read()
    failing = asked.failing()
    with progress_on_terminal() as progress:
        from graphkit.model_diff.diff_models import diff as differences

        progress("comparing")
        model_diff = differences(load_model(a), load_model(b), asked)
    show_result(model_diff, format)
    reasons = model_diff.failing(failing)
    for name in reasons:
        print_line(f"Differs: {name}", is_error=True)
    if reasons:
        raise SystemExit(1)
