"""The command that explains models: report."""

from __future__ import annotations

import os
import shlex
import sys
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, cast

import click

from graphkit.analysis.findings import KIND_NAMES
from graphkit.cli.flags import (
    DRAWINGS,
    FINDINGS,
    FULL,
    Asked,
    Format,
    choice_type,
    complete,
    format_of,
    output_option,
    takes_options,
)
from graphkit.cli.output import print_line, progress_on_terminal, put_text, render_result, show_result, start_prover
from graphkit.errors import ModelError, UsageError
from graphkit.options import BLOCKED_BY, LIMITS, as_declared, option, sizes_option
from graphkit.progress import DEFAULT_LIMITS, Limits, Progress

if TYPE_CHECKING:
    from graphkit.analysis.comparison import Comparison
    from graphkit.analysis.report import Failure, Report, ReportOptions
    from graphkit.analysis.report_gate import Gate
    from graphkit.model import Model
    from graphkit.render.result import Result
    from graphkit.shapes import DimSpec


BY_SUFFIX = "Default: text, or the format that the suffix of --output names."


@dataclass(frozen=True, kw_only=True)
class ReportFlags:
    """The sections of a report, and the findings that it fails on."""

    recursive: bool = option(False, "Look for models in the folders of a folder too.", short="-r")
    only: str = option("", "Sections to show, such as shape-ops,origins.", metavar="NAMES")
    optimize: bool = option(False, "Compare the graph before and after onnxoptimizer.", is_rare=True)
    full: bool = option(False, "Show all sections whole, not a line for each.")
    hash: bool = option(False, "Read all weights to find tied tensors.", is_rare=True)
    context: int = option(
        2048, "Number of positions at which to state the memory of a KV cache, at most the model's.", is_rare=True
    )
    check_hazards: bool = option(
        False, "Run the model at the dims of each hazard and at safe dims next to them.", is_rare=True
    )
    group: int = option(1, "Group of shape origins to draw with dot or mermaid.", is_rare=True)
    target: str | None = option(None, BLOCKED_BY)
    provider: str = option(
        "",
        "Show where onnxruntime places the nodes of the model on an execution provider; see graphkit providers.",
        metavar="NAME[:KEY=VALUE...]",
        is_rare=True,
    )
    spec: DimSpec = sizes_option()
    strict: bool = option(False, "Exit with code 1 if there are faults. Notes, such as limits of sizes, do not count.")
    fail_on: str = option(
        "",
        "Exit with code 1 at findings of these kinds: notes are included, a section stands for all of its kinds. "
        "partitions:N: more than N parts, or none, on the device of --provider. "
        f"Kinds: {', '.join(KIND_NAMES)}.",
        metavar="KIND,...",
    )
    baseline: Path | None = option(
        None,
        "Exit with code 1 if worse than in this report: a new finding, one that concerns more, more nodes "
        "that compute shapes, a larger KV cache, or over 1 % more nodes or bytes. A lock file serves too.",
        metavar="REPORT.json",
    )
    lock: Path | None = option(
        None, "Write the verdict on each model to a file, for a later --baseline.", metavar="FILE", is_rare=True
    )
    limits: Limits = option(DEFAULT_LIMITS, *LIMITS)

    @property
    def sections(self) -> tuple[str, ...]:
        """The names of the sections to show, empty for all."""
        return tuple(name.strip() for name in self.only.split(",") if name.strip())

    @property
    def is_for_models(self) -> bool:
        """Whether there are options that say nothing about a bundle."""
        return replace(self, full=False, strict=False, limits=DEFAULT_LIMITS) != ReportFlags()


@click.command(short_help="Explain models: a verdict, and the facts behind it.")
@click.argument("models", metavar="MODEL...", nargs=-1, required=True, shell_complete=complete("model"))
@click.option("--format", "-f", type=choice_type(Format), help=f"Report format. {BY_SUFFIX}")
@output_option("FILE", "Write the report to a file.")
@takes_options(ReportFlags)
def report(models: Sequence[str], options: Asked[ReportFlags], format: str | None, output: Path | None) -> None:
    """Explain models: a verdict, then interface, KV cache, shape operators, hazards, control flow, blockers and more.

    MODEL is a model file, a folder of them, a bundle, or example:NAME. Of several models, those that are broken are an
    error each, and the others are reported on.
    """
    from graphkit.analysis.report import report as analyse

    asked = options.read()
    gate = _read_gate(asked)
    report_options = _report_options(asked, gate)
    chosen = format_of(format, output)
    if len(models) == 1 and not asked.recursive and os.path.isdir(models[0]):
        folder = Path(models[0])
        if (folder / "bundle.json").is_file():
            _report_bundle(folder, chosen, output, has_options=asked.is_for_models, is_full=asked.full)
            return
    with start_prover(asked.limits, asked.check_hazards or bool(asked.provider)), progress_on_terminal() as progress:
        names = _expand_folders(models, recursive=asked.recursive)
        is_alone = len(names) == 1
        loaded, broken = _load_models(names, progress, keep_going=not is_alone)
        if chosen in DRAWINGS and loaded:
            from graphkit.analysis.shape_origins import group_drawing
            from graphkit.render.html import as_dot
            from graphkit.render.markdown import as_mermaid
            from graphkit.runtime.external_tools import optimized

            drawing = group_drawing(optimized(loaded[0]) if asked.optimize else loaded[0], asked.group)
            put_text((as_dot if chosen is Format.dot else as_mermaid)(drawing), output, loaded[0].files)
            return
        result: Report | Comparison
        if is_alone:
            is_brief = chosen is Format.text and output is None and not (asked.full or asked.only or asked.optimize)
            result = analyse(loaded[0], replace(report_options, brief=is_brief), progress=progress)
        else:
            from graphkit.analysis.comparison import compare

            result = compare(loaded, report_options, progress=progress, keep_going=True)
            result = replace(result, failures=(*broken, *result.failures))
    if result.reports or chosen in FINDINGS:
        words = (asked.baseline, asked.target, *names)
        files = (Path(word) for word in words if word is not None and Path(word).is_file())
        read = [*files, *(path for model in loaded for path in model.files)]
        shown = result if asked.full or asked.only else _brief_result(result, asked)
        is_full = output is None and shown is result
        _show_report(result, shown, chosen, output, read, is_full=is_full, has_lines=not is_alone)
        if asked.lock is not None and result.failures:  # a model that is missing in it could change unseen
            print_line(f"Error: {asked.lock}: is not written, as not every model has a report", is_error=True)
        elif asked.lock is not None:
            from graphkit.analysis.report_gate import verdict_lock

            put_text(verdict_lock(result).to_json(), asked.lock, read)
    _exit_on_failures(result, gate, asked, models)
    if asked.baseline is not None and (output is not None or chosen is Format.text):
        print_line(f"Nothing is worse than in {asked.baseline}.")


def _read_gate(asked: ReportFlags) -> Gate | None:
    if not (asked.strict or asked.fail_on or asked.baseline or asked.lock):
        return None
    from graphkit.analysis.report_gate import Gate, read_baseline, read_kinds, read_partitions

    baseline = None if asked.baseline is None else read_baseline(asked.baseline)
    kinds, partitions = read_partitions(asked.fail_on)
    if partitions is not None and not asked.provider:
        raise UsageError("--fail-on partitions: these are parts on a device - name one with --provider")
    return Gate(asked.strict, read_kinds(kinds), baseline, asked.lock is not None, partitions)


def _brief_result(result: Report | Comparison, asked: ReportFlags) -> Report | Comparison:
    """Return what a terminal shows: of one model a line for each section, of several the verdict on each.

    Sections that options are about are shown.
    """
    from graphkit.analysis.report import VERDICT, Report, in_brief

    about = {
        "summary": asked.hash,
        "kv-cache": asked.context != ReportFlags.context,
        "shape-ops": asked.optimize,
        "origins": asked.optimize,
        "hazards": asked.check_hazards,
        "blockers": asked.target is not None,
        "placement": bool(asked.provider),
    }
    kept = [name for name, is_asked in about.items() if is_asked]
    if isinstance(result, Report):
        return in_brief(result, kept)
    kept.append(VERDICT.name)
    shown = ({name: each for name, each in report.sections.items() if name in kept} for report in result.reports)
    briefs = (replace(report, sections=sections) for report, sections in zip(result.reports, shown, strict=True))
    return replace(result, reports=tuple(briefs))


def _report_options(asked: ReportFlags, gate: Gate | None) -> ReportOptions:
    from graphkit.analysis.report import ReportOptions

    if asked.check_hazards:
        from graphkit.verify.runs_at_hazards import check_hazards
    target = None
    if asked.target is not None:
        from graphkit.targets import load_target

        target = load_target(asked.target)
    elif gate is not None and "blockers" in gate.kinds:
        raise UsageError("--fail-on blockers: blockers are those for a target - name one with --target")
    return ReportOptions(
        only=asked.sections,
        optimize=asked.optimize,
        full=asked.full,
        hash_weights=asked.hash,
        context=asked.context,
        check=partial(check_hazards, limits=asked.limits) if asked.check_hazards else None,
        target=target,
        provider=asked.provider,
        spec=asked.spec if asked.target or asked.provider or asked.spec != as_declared() else None,
        also=() if gate is None else gate.sections,
    )


def _exit_on_failures(result: Report | Comparison, gate: Gate | None, asked: ReportFlags, words: Sequence[str]) -> None:
    """Name the models without a report and the failures of the gate; exit with 2 or 1 where there are any.

    Where the baseline is of other models, name the command that accepts these.
    """
    for failure in result.failures:
        print_line(f"Error: {failure.problem}", is_error=True)
    reasons = [] if gate is None else [*gate.failures(result)]
    for reason in reasons:
        print_line(reason, is_error=True)
    if gate is not None and any(map(gate.is_of_others, reasons)):
        file = str(asked.baseline)
        option = ("-o", file) if file.endswith(".json") else ("--lock", file)
        options: list[tuple[str, ...]] = [("-r",)] if asked.recursive else []
        options += [(name, text) for name, text in (("--only", asked.only), ("--target", asked.target)) if text]
        words = [*words, *(word for pair in (*options, option) for word in pair)]
        print_line(f"Accept it with: {shlex.join(('graphkit', 'report', *words))}", is_error=True)
    if result.failures or reasons:
        raise SystemExit(2 if result.failures else 1)


def _report_bundle(folder: Path, chosen: Format, output: Path | None, *, has_options: bool, is_full: bool) -> None:
    from graphkit.analysis.bundle_overview import bundle_overview

    if has_options:
        raise UsageError(f"{folder} is a bundle: options other than --format, --full and --output are for models")
    if chosen in (*DRAWINGS, *FINDINGS):
        output_kind = "drawing" if chosen in DRAWINGS else "findings"
        raise UsageError(f"{folder} is a bundle, which has no {output_kind} - take another --format")
    overview = bundle_overview(folder)
    _show_report(overview, overview, chosen, output, folder.iterdir(), is_full=is_full, has_lines=True)


def _show_report(
    result: Result,
    shown: Result,
    chosen: Format,
    output: Path | None,
    read: Iterable[Path],
    *,
    is_full: bool,
    has_lines: bool,
) -> None:
    """Write a report to a file, or print it; of what is in a file, and of text, print what is shown.

    On a terminal also say how to read the pages of the findings; a pipe gets the report alone.
    """
    from graphkit.analysis.findings import Judged
    from graphkit.analysis.report import Overview, Report

    if output is not None or chosen is not Format.text:
        if chosen in FINDINGS:
            from graphkit.analysis.finding_formats import as_junit, as_sarif

            made = cast("Report | Comparison", result)
            text = as_sarif(made) if chosen is Format.sarif else as_junit(made)
        else:
            text = render_result(result, chosen)
        put_text(text, output, read, is_told=False)
        if output is None:
            return
    click.get_current_context().meta[FULL] = is_full
    commands: Iterable[str] = ()
    if isinstance(shown, Report) and isinstance(last := shown.sections.get("sections"), Overview) and not last.rows:
        commands = last.commands  # what fills the screen does not push them off it
        shown = replace(shown, sections={name: each for name, each in shown.sections.items() if each is not last})
    show_result(shown, Format.text, *(shlex.split(line)[1:] for line in commands), has_lines=has_lines)
    if output is not None:
        print_line(f"Wrote {output}.")
    elif sys.stdout.isatty() and isinstance(result, Judged) and (kinds := result.kinds()):
        names = ", ".join(kind.name for kind in kinds)
        print_line("")
        print_line(f"`graphkit explain KIND` tells what to do about each finding: {names}.")


def _expand_folders(names: Sequence[str], *, recursive: bool) -> list[str]:
    """Return the names, with each folder replaced by the models in it; hidden folders are left out."""
    from graphkit.io.urls import is_folder, is_url

    expanded: list[str] = []
    for name in names:
        if not name:
            raise UsageError("a model name is empty - name a model file or a folder")
        if is_url(name) and is_folder(name):
            from graphkit.io.remote.open_url import models_in

            expanded += models_in(name, recursive=recursive)
            continue
        if not os.path.isdir(name):  # where Path.is_dir raises for a name that is too long
            expanded.append(name)
            continue
        paths = Path(name).glob("**/*.onnx" if recursive else "*.onnx")
        inside = [path for path in paths if not any(part[:1] == "." for part in path.relative_to(name).parts)]
        if not inside:
            deeper = "" if recursive else ", or look into its folders with --recursive"
            raise UsageError(f"{name}: has no .onnx file in it - name a model file{deeper}")
        expanded += sorted(map(str, inside))
    return expanded


def _load_models(names: Iterable[str], progress: Progress, *, keep_going: bool) -> tuple[list[Model], list[Failure]]:
    from graphkit.analysis.report import Failure
    from graphkit.cli.output import load_model

    loaded: list[Model] = []
    broken: list[Failure] = []
    for name in names:
        progress(f"reading {name}")
        try:
            loaded.append(load_model(name))
        except ModelError as error:
            if not keep_going:
                raise
            broken.append(Failure(name, str(error)))
    return loaded, broken
