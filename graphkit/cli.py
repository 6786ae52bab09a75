"""The command line: parse, call, render, exit code. The only module that prints.

Exit codes: 0 done, 1 findings with `--strict`, 2 bad input.
"""

from __future__ import annotations

import contextlib
import gc
import sys
from collections.abc import Callable, Iterator
from enum import Enum
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, NoReturn, TypeVar

import typer

from graphkit import __version__
from graphkit.errors import GraphkitError

if TYPE_CHECKING:
    from graphkit.analysis.report import HazardCheck
    from graphkit.model import Model
    from graphkit.render.result import Result
    from graphkit.save import Placement
    from graphkit.verify.proof import RewriteProof
    from graphkit.verify.split import SplitProof

__all__ = ["app", "main"]

T = TypeVar("T")

app = typer.Typer(
    add_completion=False,
    no_args_is_help=True,
    rich_markup_mode=None,
    pretty_exceptions_enable=False,
    help="Analyse and rewrite ONNX graphs without touching their weights.",
)


class Format(str, Enum):
    """How to write a report."""

    text = "text"
    markdown = "markdown"
    json = "json"
    html = "html"
    dot = "dot"
    mermaid = "mermaid"


class ReportFormat(str, Enum):
    """How to write a report that has no drawing of its own."""

    text = "text"
    markdown = "markdown"
    json = "json"
    html = "html"


SUFFIXES = {
    ".md": Format.markdown,
    ".json": Format.json,
    ".html": Format.html,
    ".htm": Format.html,
    ".dot": Format.dot,
    ".gv": Format.dot,
    ".mmd": Format.mermaid,
}


def _version(asked: bool) -> None:
    if asked:
        typer.echo(f"graphkit {__version__}")
        raise typer.Exit


@app.callback()
def _options(
    version: Annotated[
        bool, typer.Option("--version", callback=_version, is_eager=True, help="Show the version and exit.")
    ] = False,
) -> None:
    """Take the options that stand before a command."""


@app.command()
def report(
    models: Annotated[
        list[str], typer.Argument(metavar="MODEL...", help="Model files, folders of them, or example:NAME.")
    ],
    format: Annotated[
        Format | None, typer.Option("--format", "-f", help="Default: text, or what the suffix of --output says.")
    ] = None,
    output: Annotated[Path | None, typer.Option("--output", "-o", help="Write to a file.")] = None,
    only: Annotated[str, typer.Option(help="Sections to show, such as shape-ops,origins.")] = "",
    optimize: Annotated[bool, typer.Option("--optimize", help="Compare with the graph after onnxoptimizer.")] = False,
    full: Annotated[bool, typer.Option("--full", help="Write out the lists in shape origins.")] = False,
    hash: Annotated[bool, typer.Option("--hash", help="Read all weights to find tied tensors.")] = False,
    context: Annotated[int, typer.Option(min=1, help="Positions for the memory of a KV cache.")] = 2048,
    check_hazards: Annotated[
        bool, typer.Option("--check-hazards", help="Run the model at the dims of each hazard, and beside them.")
    ] = False,
    group: Annotated[int, typer.Option(min=1, help="Group of shape origins to draw, with dot or mermaid.")] = 1,
    strict: Annotated[bool, typer.Option("--strict", help="Exit with 1 if there are findings.")] = False,
) -> None:
    """Explain models: interface, KV cache, shape operators and origins, what if, hazards, control flow."""
    from graphkit.analysis.report import ReportOptions, compare
    from graphkit.analysis.report import report as analyse
    from graphkit.model import load

    sections = tuple(name.strip() for name in only.split(",") if name.strip())
    options = ReportOptions(sections, optimize, full, hash, context, _hazard_check() if check_hazards else None)
    chosen = format or (SUFFIXES.get(output.suffix.lower(), Format.text) if output else Format.text)
    with _progress() as progress:
        loaded = []
        for name in _expanded(models):
            progress(f"reading {name}")
            loaded.append(load(name))
        if chosen in (Format.dot, Format.mermaid):
            text = _drawing(loaded[0], chosen, group, optimize)
            result = None
        else:
            result = (
                analyse(loaded[0], options, progress=progress)
                if len(loaded) == 1
                else compare(loaded, options, progress=progress)
            )
            text = _rendered(result, chosen, output)
    if output is not None:
        from graphkit.io.write import write_text

        write_text(output, text, [path for model in loaded for path in model.files])
    elif result is not None:
        _show(result, chosen)
    else:
        sys.stdout.write(text)
    findings = result.findings() if result is not None else ()
    if strict and findings:
        for finding in findings:
            typer.echo(f"Finding: {finding}", err=True)
        raise typer.Exit(1)


def _hazard_check() -> HazardCheck:
    from graphkit.verify.hazards import check_hazards

    return check_hazards


def _expanded(names: list[str]) -> list[str]:
    """Return the names, a folder as the models in it."""
    from graphkit.errors import UsageError

    found: list[str] = []
    for name in names:
        if not name:
            raise UsageError("an empty name - name a model file or a folder")
        folder = Path(name)
        if folder.is_dir():
            inside = sorted(str(path) for path in folder.glob("*.onnx"))
            if not inside:
                raise UsageError(f"{name}: no .onnx file in this folder - name a model file")
            found += inside
        else:
            found.append(name)
    return found


@app.command()
def examples() -> None:
    """List the models that ship with graphkit."""
    from graphkit.examples import EXAMPLES

    for name, description in EXAMPLES.items():
        typer.echo(f"example:{name}  {description}")


DimOption = Annotated[list[str] | None, typer.Option("--dim", metavar="NAME=N", help="Size of a symbol; repeatable.")]
InputOption = Annotated[
    list[str] | None, typer.Option("--input", metavar="NAME=AxBxC", help="Shape of an input; repeatable.")
]
RangeOption = Annotated[
    list[str] | None, typer.Option("--range", metavar="NAME=LO:HI", help="Bounds of a symbol, either open; repeatable.")
]


@app.command()
def shapes(
    model: Annotated[str, typer.Argument(metavar="MODEL", help="A model file, or example:NAME.")],
    dim: DimOption = None,
    input: InputOption = None,
    range: RangeOption = None,
    why: Annotated[str | None, typer.Option(metavar="NAME", help="Tell where this tensor's shape comes from.")] = None,
    format: Annotated[ReportFormat, typer.Option("--format", "-f", help="Of the result.")] = ReportFormat.text,
) -> None:
    """Show the shape of every tensor as an expression in the input dims, or where one comes from."""
    from graphkit.analysis.tensor_shapes import tensor_shapes, why_shape
    from graphkit.model import load

    dims, inputs, ranges = _sizes(dim, input, range)
    loaded = load(model)
    result: Result = (
        tensor_shapes(loaded, dims=dims, inputs=inputs, ranges=ranges)
        if why is None
        else why_shape(loaded, why, dims=dims, inputs=inputs, ranges=ranges)
    )
    _show(result, Format(format.value))


class Language(str, Enum):
    """In what to write a shape program."""

    json = "json"
    python = "python"
    javascript = "javascript"


LANGUAGES = {".py": Language.python, ".js": Language.javascript, ".mjs": Language.javascript}


@app.command()
def program(
    model: Annotated[str, typer.Argument(metavar="MODEL", help="A model file, or example:NAME.")],
    dim: DimOption = None,
    input: InputOption = None,
    range: RangeOption = None,
    language: Annotated[
        Language | None, typer.Option("--language", "-l", help="Default: json, or what the suffix of --output says.")
    ] = None,
    output: Annotated[
        Path | None, typer.Option("--output", "-o", help="Write to a file; .mjs makes an ES module.")
    ] = None,
) -> None:
    """Write what each node reads as a shape, from the shapes of the inputs: as data, or as a function."""
    from graphkit.io.write import write_text
    from graphkit.model import load
    from graphkit.shapes import program as make_program

    dims, inputs, ranges = _sizes(dim, input, range)
    loaded = load(model)
    made = make_program(loaded, dims=dims, inputs=inputs, ranges=ranges)
    suffix = output.suffix.lower() if output is not None else ""
    chosen = language or LANGUAGES.get(suffix, Language.json)
    if chosen is Language.json:
        text = made.to_json()
    else:
        text = made.python() if chosen is Language.python else made.javascript(export=suffix == ".mjs")
    if output is None:
        sys.stdout.write(text)
    else:
        write_text(output, text, loaded.files)


def _sizes(
    dim: list[str] | None, input: list[str] | None, range: list[str] | None
) -> tuple[dict[str, int], dict[str, tuple[int, ...]], dict[str, tuple[int | None, int | None]]]:
    """Return what --dim, --input and --range say."""
    from graphkit.rewrite.options import parse_bounds, parse_shape, parse_size

    return (
        dict(_pairs(dim, "--dim", parse_size)),
        dict(_pairs(input, "--input", parse_shape)),
        dict(_pairs(range, "--range", parse_bounds)),
    )


def _pairs(texts: list[str] | None, option: str, read: Callable[[str], T]) -> Iterator[tuple[str, T]]:
    from graphkit.errors import UsageError

    names: set[str] = set()
    for text in texts or ():
        name, separator, value = text.rpartition("=")
        if not (name and separator and value):
            raise UsageError(f"{option} {text}: is not NAME=VALUE - write such as {option} batch_size=1")
        if name in names:
            raise UsageError(f"{option} {text}: '{name}' is given twice - give it once")
        names.add(name)
        try:
            yield name, read(value)
        except UsageError as error:
            raise UsageError(f"{option}: {error}") from error


Weights = Annotated[
    str,
    typer.Option(
        help="shared: one data file, each tensor once. in-place: none is copied, the source must stay. inline: in the "
        "models themselves."
    ),
]


@app.command("split-merged")
def split_merged(
    model: Annotated[str, typer.Argument(metavar="MODEL", help="A merged decoder, or example:NAME.")],
    output: Annotated[
        Path | None, typer.Option("--output", "-o", metavar="DIR", help="Folder; default: that of the model.")
    ] = None,
    weights: Weights = "shared",
    no_verify: Annotated[bool, typer.Option("--no-verify", help="Do not run the proof.")] = False,
    keep_names: Annotated[bool, typer.Option("--keep-names", help="Keep the _merged_0 of shared weights.")] = False,
    condition: Annotated[str | None, typer.Option(help="The boolean input, where there are several.")] = None,
    overwrite: Annotated[bool, typer.Option("--overwrite", help="Replace files that exist.")] = False,
    steps: Annotated[int, typer.Option(min=1, help="Greedy steps of the proof.")] = 8,
    tolerance: Annotated[float, typer.Option(min=0.0, help="Largest difference that counts as equal.")] = 0.0,
    format: Annotated[ReportFormat, typer.Option("--format", "-f", help="Of the report.")] = ReportFormat.text,
) -> None:
    """Split a merged If decoder into first step and later steps, and prove the pair."""
    from graphkit.model import load
    from graphkit.split import SplitOptions, split_file

    options = SplitOptions(_placement(weights), not no_verify, keep_names, condition, overwrite, steps, tolerance)
    with _progress() as progress:
        loaded = load(model)
        folder = output if output is not None else _folder(loaded)
        made = split_file(loaded, folder, options, progress=progress)
    _show(made, Format(format.value))
    if made.findings():
        typer.echo(f"The proof failed. The files in {folder} are kept, unverified.", err=True)
        raise typer.Exit(1)


@app.command()
def fold(
    model: Annotated[str, typer.Argument(metavar="MODEL", help="A model file, or example:NAME.")],
    output: Annotated[Path, typer.Option("--output", "-o", metavar="OUT", help="The file to write.")],
    dim: DimOption = None,
    input: InputOption = None,
    range: RangeOption = None,
    limit: Annotated[int, typer.Option(min=0, help="Bytes of the largest constant to make.")] = 1 << 20,
    weights: Weights = "shared",
    no_verify: Annotated[bool, typer.Option("--no-verify", help="Do not run the proof.")] = False,
    overwrite: Annotated[bool, typer.Option("--overwrite", help="Replace files that exist.")] = False,
    tolerance: Annotated[float, typer.Option(min=0.0, help="Largest difference that counts as equal.")] = 0.0,
    format: Annotated[ReportFormat, typer.Option("--format", "-f", help="Of the report.")] = ReportFormat.text,
) -> None:
    """Fold shape plumbing: what is static becomes constant, what is dynamic is computed once; --dim, --input freeze."""
    from graphkit.folding import FoldOptions, fold_file
    from graphkit.model import load

    dims, inputs, ranges = _sizes(dim, input, range)
    bounds = tuple((name, low, high) for name, (low, high) in ranges.items())
    options = FoldOptions(
        tuple(dims.items()),
        tuple(inputs.items()),
        bounds,
        limit,
        _placement(weights),
        not no_verify,
        overwrite,
        tolerance,
    )
    with _progress() as progress:
        progress(f"reading {model}")
        made = fold_file(load(model), output, options, progress=progress)
    _show(made, Format(format.value))
    if made.findings():
        typer.echo(f"The proof failed. {output} is kept, unverified.", err=True)
        raise typer.Exit(1)


@app.command()
def rewrite(
    model: Annotated[str, typer.Argument(metavar="MODEL", help="A model file, or example:NAME.")],
    output: Annotated[Path, typer.Option("--output", "-o", metavar="OUT", help="The file to write.")],
    passes: Annotated[str, typer.Option("--passes", "-p", help="Passes, such as name{option=value},name.")],
    weights: Weights = "shared",
    overwrite: Annotated[bool, typer.Option("--overwrite", help="Replace files that exist.")] = False,
) -> None:
    """Run a pipeline of passes; `graphkit explain` lists them."""
    from graphkit.model import load
    from graphkit.rewrite.base import run_passes
    from graphkit.rewrite.pipeline import parse_pipeline
    from graphkit.save import save_models

    pipeline = parse_pipeline(passes)
    outcome = run_passes(load(model), pipeline)
    for change in outcome.changes:
        typer.echo(change)
    for declined in outcome.declined:
        typer.echo(f"declined: {declined}")
    for path in save_models({output: outcome.model}, weights=_placement(weights), overwrite=overwrite):
        typer.echo(f"wrote {path}")


@app.command()
def explain(
    name: Annotated[str | None, typer.Argument(metavar="[PASS]", help="A pass; without one, all are listed.")] = None,
) -> None:
    """Explain a pass, or list them all."""
    from graphkit.rewrite import PASSES
    from graphkit.rewrite.pipeline import explain as explain_pass

    if name is not None:
        typer.echo(explain_pass(name))
        return
    for kind in PASSES:
        typer.echo(f"{kind.name():27} {(kind.__doc__ or '').splitlines()[0]}")


@app.command()
def verify(
    models: Annotated[
        list[str],
        typer.Argument(
            metavar="ORIGINAL REWRITTEN | MERGED FIRST WITH_PAST",
            help="A model and what was made of it; or a merged decoder and the pair made of it.",
        ),
    ],
    dim: DimOption = None,
    input: InputOption = None,
    range: RangeOption = None,
    runs: Annotated[int, typer.Option(min=1, help="Sizes of the dims to run two models at.")] = 6,
    steps: Annotated[int, typer.Option(min=1, help="Greedy steps of three models.")] = 8,
    tolerance: Annotated[
        float | None,
        typer.Option(min=0.0, help="Largest difference that counts as equal. Default: 0, 0.01 for two with float16."),
    ] = None,
    seed: Annotated[int, typer.Option(min=0, help="Of the generated inputs.")] = 0,
    format: Annotated[ReportFormat, typer.Option("--format", "-f", help="Of the report.")] = ReportFormat.text,
) -> None:
    """Prove a rewrite or a split: run original and result in onnxruntime, and compare. Exits with 1 if they differ."""
    from graphkit.errors import UsageError
    from graphkit.verify.rewrite import verify_rewrite
    from graphkit.verify.split import verify_split

    if len(models) not in (2, 3):
        raise UsageError("verify takes two models, original and rewritten; or three, merged, first step, later steps")
    if len(models) == 3 and (dim or input or range):
        raise UsageError("--dim, --input and --range are for two models - leave them out")
    proof: SplitProof | RewriteProof
    with _progress() as progress:
        if len(models) == 3:
            from graphkit.model import load

            loaded = [load(name) for name in models]
            progress("proving")
            proof = verify_split(*loaded, steps=steps, tolerance=tolerance or 0.0, seed=seed)
        else:
            dims, inputs, ranges = _sizes(dim, input, range)
            proof = verify_rewrite(
                models[0],
                models[1],
                dims=dims,
                inputs=inputs,
                ranges=ranges,
                tolerance=tolerance,
                seed=seed,
                runs=runs,
                progress=progress,
            )
    _show(proof, Format(format.value))
    if not proof.passed:
        raise typer.Exit(1)


def _placement(name: str) -> Placement:
    from graphkit.errors import UsageError

    if name not in ("shared", "in-place", "inline"):
        raise UsageError(f"no placement '{name}' of weights - there are: shared, in-place, inline")
    return name  # type: ignore[return-value]


def _folder(model: Model) -> Path:
    from graphkit.errors import UsageError
    from graphkit.examples import example_name

    if model.path is None or example_name(model.path):
        raise UsageError(f"{model.label}: ships with graphkit - name a folder for the result with -o")
    return model.path.parent


def _show(result: Result, chosen: Format) -> None:
    """Print a result; text in the width of the terminal, with colours only there."""
    if chosen is not Format.text:
        sys.stdout.write(_rendered(result, chosen, None))
        return
    from rich.console import Console

    console = Console(highlight=False)
    if console.is_terminal:
        console.print(result)
    else:
        sys.stdout.write(result.to_text(console.width))


def _rendered(result: Result, chosen: Format, output: Path | None) -> str:
    if chosen is Format.markdown:
        return result.to_markdown()
    if chosen is Format.json:
        return result.to_json()
    if chosen is Format.html:
        return result.to_html()
    return result.to_text() if output is not None else ""


def _drawing(model: object, chosen: Format, group: int, optimize: bool) -> str:
    from graphkit.analysis.optimize import optimized
    from graphkit.analysis.origins import group_drawing
    from graphkit.model import Model
    from graphkit.render.dot import dot
    from graphkit.render.markdown import mermaid

    assert isinstance(model, Model)
    drawing = group_drawing(optimized(model) if optimize else model, group)
    return dot(drawing) if chosen is Format.dot else mermaid(drawing)


@contextlib.contextmanager
def _progress() -> Iterator[Callable[[str], None]]:
    """Give a function that shows the current step on stderr, where that is a terminal."""
    if not sys.stderr.isatty():
        yield lambda _: None
        return
    from rich.console import Console
    from rich.markup import escape

    with Console(stderr=True).status("") as status:
        yield lambda step: status.update(escape(step))


def _fail(error: GraphkitError) -> NoReturn:
    from graphkit.render.blocks import printable

    sys.stderr.write(f"Error: {printable(str(error))}\n")
    raise SystemExit(2) from error


def main() -> None:
    """Run the command line."""
    gc.set_threshold(100_000)  # a graph is many small objects that live as long as the process
    for stream in (sys.stdout, sys.stderr):
        if hasattr(stream, "reconfigure"):
            stream.reconfigure(errors="backslashreplace")
    try:
        app()
    except GraphkitError as error:
        _fail(error)
