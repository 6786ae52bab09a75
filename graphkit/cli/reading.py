"""Commands that explain models and targets: report, targets, examples."""

from __future__ import annotations

import os
from collections.abc import Callable, Iterable, Sequence
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING

import click

from graphkit.analysis.findings import KIND_NAMES
from graphkit.cli.completing import complete_kinds, complete_model, complete_sections, complete_target
from graphkit.cli.options import (
    Format,
    SizeWords,
    choice,
    count_option,
    format_of,
    limit_options,
    output_format_option,
    output_option,
    size_options,
)
from graphkit.cli.output import progress_on_terminal, proving, put, put_list, rendered, say, show

if TYPE_CHECKING:
    from graphkit.analysis.gate import Gate
    from graphkit.analysis.report import Comparison, Failure, Report
    from graphkit.analysis.sections import HazardCheck
    from graphkit.model import Model
    from graphkit.render.result import Result
    from graphkit.runtime.limits import Limits
    from graphkit.shapes import DimSpec
    from graphkit.targets import Target

__all__ = ["examples", "report", "targets"]


@click.command(short_help="Explain models: a verdict, and what it rests on.")
@click.argument("models", metavar="MODEL...", nargs=-1, required=True, shell_complete=complete_model)
@click.option(
    "--format",
    "-f",
    type=choice(Format),
    help="Report format. Default: text, or the format that the suffix of --output names.",
)
@output_option("FILE", "Write the report to a file.")
@click.option("--recursive", "-r", is_flag=True, help="Look for models in the folders of a folder too.")
@click.option(
    "--only",
    metavar="NAMES",
    default="",
    shell_complete=complete_sections,
    help="Comma-separated sections to show, such as shape-ops,origins.",
)
@click.option("--optimize", is_flag=True, help="Compare the graph before and after onnxoptimizer.")
@click.option("--full", is_flag=True, help="Show the lists in shape origins in full.")
@click.option("--hash", is_flag=True, help="Read all weights to find tied tensors.")
@count_option(
    "--context", 2048, "Number of positions at which to state the memory of a KV cache, at most those of the model."
)
@click.option(
    "--check-hazards", is_flag=True, help="Run the model at the dims of each hazard and at safe dims next to them."
)
@limit_options
@count_option("--group", 1, "Group of shape origins to draw with dot or mermaid.")
@click.option(
    "--target",
    metavar="NAME|FILE",
    shell_complete=complete_target,
    help="Show what keeps the model from a target; see graphkit targets.",
)
@size_options
@click.option(
    "--strict", is_flag=True, help="Exit with code 1 if there are findings. Notes, such as limits of sizes, are none."
)
@click.option(
    "--fail-on",
    metavar="KIND,...",
    shell_complete=complete_kinds,
    default="",
    help="Exit with code 1 if there are findings of these kinds, notes included. A section stands for all of its "
    f"kinds. Kinds: {', '.join(KIND_NAMES)}.",
)
@click.option(
    "--baseline",
    type=click.Path(path_type=Path),
    metavar="REPORT.json",
    help="Exit with code 1 if anything is worse than in this report: a new finding, one that concerns more, more nodes "
    "that compute shapes, a larger KV cache, or over 1 % more nodes or bytes.",
)
def report(
    models: Sequence[str],
    format: str | None,
    output: Path | None,
    recursive: bool,
    only: str,
    optimize: bool,
    full: bool,
    hash: bool,
    context: int,
    check_hazards: bool,
    limits: Limits,
    group: int,
    target: str | None,
    sizes: SizeWords,
    strict: bool,
    fail_on: str,
    baseline: Path | None,
) -> None:
    """Explain models: a verdict, then interface, KV cache, shape operators, hazards, control flow, blockers and more.

    MODEL is a model file, a folder of them, a bundle, or example:NAME. --dim, --input and --range say at which dims to
    look for blockers. Of several models, those that are broken are an error each, and the others are reported on.
    """
    from graphkit.analysis.report import Comparison, compare
    from graphkit.analysis.report import report as analyse
    from graphkit.analysis.sections import ReportOptions

    sections = tuple(name.strip() for name in only.split(",") if name.strip())
    check = _hazard_check(limits) if check_hazards else None
    gate = _gate(strict, fail_on, baseline)
    lint, spec = _lint_options(target, sizes, gate)
    options = ReportOptions(
        only=sections,
        optimize=optimize,
        full=full,
        hash_weights=hash,
        context=context,
        check=check,
        target=lint,
        spec=spec,
        also=gate.sections,
    )
    chosen = format_of(format, output)
    if len(models) == 1 and not recursive and os.path.isdir(models[0]) and (Path(models[0]) / "bundle.json").is_file():
        more = bool(sections or optimize or full or hash or check_hazards or target or fail_on or baseline)
        _report_bundle(Path(models[0]), chosen, output, has_options=more)
        return
    with proving(limits, check_hazards), progress_on_terminal() as progress:
        names = _expanded(models, recursive=recursive)
        is_alone = len(names) == 1
        loaded, broken = _loaded(names, progress, keep_going=not is_alone)
        if chosen in (Format.dot, Format.mermaid) and loaded:
            put(_drawing(loaded[0], chosen, group, optimize), output, loaded[0].files)
            return
        result: Report | Comparison
        if is_alone:
            result = analyse(loaded[0], options, progress=progress)
        else:
            result = compare(loaded, options, progress=progress, keep_going=True)
            result = replace(result, failures=(*broken, *result.failures))
    if not isinstance(result, Comparison) or result.reports:
        named = (Path(word) for word in (baseline, target, *names) if word is not None and Path(word).is_file())
        _show(result, chosen, output, [*named, *(path for model in loaded for path in model.files)])
    _exit(result, gate)


def _exit(result: Report | Comparison, gate: Gate) -> None:
    """Name the models without a report and the failures of the gate; exit with 2 or 1 where there are any."""
    from graphkit.analysis.report import Comparison

    failures = result.failures if isinstance(result, Comparison) else ()
    for failure in failures:
        say(f"Error: {failure.problem}", is_error=True)
    reasons = list(gate.failures(result))
    for reason in reasons:
        say(reason, is_error=True)
    if failures or reasons:
        raise SystemExit(2 if failures else 1)


def _gate(strict: bool, fail_on: str, baseline: Path | None) -> Gate:
    from graphkit.analysis.gate import Gate, read_kinds

    if baseline is None:
        return Gate(strict, read_kinds(fail_on))
    from graphkit.analysis.baseline import read_baseline

    return Gate(strict, read_kinds(fail_on), read_baseline(baseline))


def _report_bundle(folder: Path, chosen: Format, output: Path | None, *, has_options: bool) -> None:
    from graphkit.analysis.bundle import bundle_overview
    from graphkit.errors import UsageError

    if has_options:
        raise UsageError(f"{folder} is a bundle: options other than --format and --output are for models")
    if chosen in (Format.dot, Format.mermaid):
        raise UsageError(f"{folder} is a bundle, which has no drawing - take another --format")
    _show(bundle_overview(folder), chosen, output, folder.iterdir())


def _show(result: Result, chosen: Format, output: Path | None, read: Iterable[Path]) -> None:
    if output is None:
        show(result, chosen)
    else:
        put(rendered(result, chosen), output, read)


def _lint_options(name: str | None, sizes: SizeWords, gate: Gate) -> tuple[Target | None, DimSpec | None]:
    """Return the target to lint for, and the dims to do that at."""
    from graphkit.errors import UsageError

    if name is None:
        if "blockers" in gate.kinds:
            raise UsageError("--fail-on blockers: blockers are those for a target - name one with --target")
        if any(sizes):
            raise UsageError("--dim, --input and --range are for blockers - name a target with --target")
        return None, None
    from graphkit.targets import load_target

    return load_target(name), sizes.read()


def _hazard_check(limits: Limits) -> HazardCheck:
    from graphkit.verify.hazards import check_hazards

    return partial(check_hazards, limits=limits)


def _expanded(names: Sequence[str], *, recursive: bool) -> list[str]:
    """Return the names, with each folder replaced by the models in it; hidden folders are left out."""
    from graphkit.errors import UsageError

    found: list[str] = []
    for name in names:
        if not name:
            raise UsageError("a model name is empty - name a model file or a folder")
        if not os.path.isdir(name):  # where Path.is_dir raises for a name that is too long
            found.append(name)
            continue
        paths = Path(name).glob("**/*.onnx" if recursive else "*.onnx")
        inside = [path for path in paths if not any(part[:1] == "." for part in path.relative_to(name).parts)]
        if not inside:
            deeper = "" if recursive else ", or look into its folders with --recursive"
            raise UsageError(f"{name}: has no .onnx file in it - name a model file{deeper}")
        found += sorted(map(str, inside))
    return found


def _loaded(
    names: Iterable[str], progress: Callable[[str], None], *, keep_going: bool
) -> tuple[list[Model], list[Failure]]:
    """Return the models that can be read, and the faults of the others."""
    from graphkit.analysis.report import Failure
    from graphkit.cli.piping import load
    from graphkit.errors import ModelError

    loaded: list[Model] = []
    broken: list[Failure] = []
    for name in names:
        progress(f"reading {name}")
        try:
            loaded.append(load(name))
        except ModelError as error:
            if not keep_going:
                raise
            broken.append(Failure(name, str(error)))
    return loaded, broken


def _drawing(model: Model, chosen: Format, group: int, optimize: bool) -> str:
    from graphkit.analysis.onnxoptimizer_run import optimized
    from graphkit.analysis.origins import group_drawing
    from graphkit.render.dot import dot
    from graphkit.render.markdown import mermaid

    drawing = group_drawing(optimized(model) if optimize else model, group)
    return dot(drawing) if chosen is Format.dot else mermaid(drawing)


@click.command(short_help="List the NPU compilers to lint for, or what is known of one.")
@click.argument("target", metavar="[NAME|FILE]", required=False, shell_complete=complete_target)
@output_format_option
def targets(target: str | None, format: str) -> None:
    """List the NPU compilers that models can be linted for, or the facts about one, with sources.

    NAME is one that the list has, FILE a TOML file of your own.
    """
    from graphkit.analysis.target_facts import target_facts
    from graphkit.analysis.target_facts import targets as every_target
    from graphkit.targets import load_target

    show(every_target() if target is None else target_facts(load_target(target)), Format(format))


@click.command()
@output_option("FILE", "Write the list to a file.")
def examples(output: Path | None) -> None:
    """List the models that ship with graphkit."""
    from graphkit.examples import EXAMPLES

    put_list([(f"example:{name}", description) for name, description in EXAMPLES.items()], output)
