"""Commands on the way to a device: lower, contract, bundle, genai, transformers-js."""

from __future__ import annotations

import contextlib
import shlex
import shutil
import tempfile
from collections.abc import Callable, Iterator, Sequence
from functools import wraps
from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple, cast

import click

from graphkit.cli.flags import REPORT_FILE, Asked, choice_type, format_option, output_option, takes_options
from graphkit.cli.output import print_line, progress_on_terminal, put_text, show_result, start_prover
from graphkit.errors import OutputError, UsageError
from graphkit.io.urls import current_options, file_name, is_folder, is_url, local_path, scheme_of, shown_url
from graphkit.options import BundleOptions, GenaiOptions, LowerOptions, TransformersJsOptions

if TYPE_CHECKING:
    from graphkit.model import Model
    from graphkit.progress import Progress
    from graphkit.render.result import Result

PAGES = ("webgpu", "webnn")  # targets of which browsers are the hosts
RUNS = {  # programs that decode
    "c": "Run it: c++ -std=c++17 {file} -lonnxruntime -o loop && ./loop {folder} 32 PROMPT [SOURCE]",
    "python": "Run it: python {file} {folder} 32 PROMPT [SOURCE]",
    "rust": "Beside the main.rs of docs/tasks/own-program.md: cargo run --release -- {folder} 32 PROMPT [SOURCE]",
    "kotlin": "In an app: host.Loop(File(PATH)).generate(PROMPT, SOURCE, 32), where PATH is that of a copy of {folder}",
}
LANGUAGES = ("c", "rust", "typescript", "kotlin", "python")
MOST = 4  # models of an export: an encoder, the decoders of the first and of later steps, a merged one
OF_HUB = "onnx"  # the folder of a repository of the hub that has its models; the configuration is in the one above


class Written(NamedTuple):
    """The report of a folder that was written, the commands to run next, and the lines below them."""

    report: Result
    commands: Sequence[Sequence[str]] = ()
    below: Sequence[str] = ()


def writes_folder(kind: type[Any]) -> Callable[[Callable[..., Written]], Callable[..., None]]:
    """Let a command, which gets the path of an export, write a folder, and show its report, or what is wrong."""

    def decorate(command: Callable[..., Written]) -> Callable[..., None]:
        @click.argument("export", metavar="FOLDER_OR_MODEL")
        @output_option("OUT", "The folder to write to.", required=True)
        @takes_options(kind)
        @format_option
        @wraps(command)
        def run_command(*, export: str, output: Path, options: Asked[Any], format: str) -> None:
            with start_prover(options.limits, options.verify), progress_on_terminal() as progress:
                progress("fetching")
                with fetched_export(export) as path:
                    report, commands, below = command(path, output, options.read(), progress)
            if faults := report.findings():
                show_result(report, format)
                print_line(f"Not done: {faults[0].removesuffix('.')}. The files in {output} are kept.", is_error=True)
                raise SystemExit(1)
            lines = below if format == "text" or click.get_current_context().meta[REPORT_FILE] else ()
            show_result(report, format, *commands, below=len(lines))
            for line in lines:
                print_line(line)

        return cast(Callable[..., None], run_command)

    return decorate


@click.command(short_help="Lower models for an NPU, with a host contract and a proof.")
@writes_folder(LowerOptions)
def lower(path: Path, output: Path, options: LowerOptions, progress: Progress) -> Written:
    """Lower a pipeline for an NPU: fixed shapes, a host contract, and a proof.

    FOLDER_OR_MODEL is the folder of an export (encoder, decoder, decoder with past; or a merged decoder), or one model.
    It may be a URL, with --download.
    """
    from graphkit.deploy.lower import lower_folder

    report = lower_folder(path, output, options, progress=progress)
    if options.target in PAGES:
        line = f"In JavaScript, with graphkit-host: const host = await Host.open(ort, {str(output)!r})"
        return Written(report, below=[line])
    return Written(report, [_constants_command(output)])


@click.command(short_help="Write what a host program has to know as code, and its loop.")
@click.argument("out", metavar="OUT")
@click.option(
    "--language",
    "-l",
    type=choice_type(LANGUAGES),
    help="The language to write. Default: c, or the one that the suffix of --output names.",
)
@click.option("--loop", is_flag=True, help="Write the program that decodes, too: in C++, Kotlin, Python or Rust.")
@output_option("FILE", "Write to a file, such as contract.h, contract.rs, contract.ts, Loop.kt or loop.py.")
def contract(out: str, language: str | None, loop: bool, output: Path | None) -> None:
    """Write what a host program has to know as code: inputs, outputs, what goes from run to run, and the KV cache.

    OUT is a model, a folder of models, such as a split decoder, a bundle, or the folder that graphkit lower wrote. C
    serves C++ too. The program of --loop, in C++, Kotlin, Python or Rust, runs them, one sequence at a time; that of a
    lowered folder is in C++, Kotlin or Python.
    """
    from graphkit.contract.contract_files import read_bundle, read_contract
    from graphkit.contract.contract_writers import SUFFIXES, WRITERS, bundle_constants, write_lowered_loop, write_plain
    from graphkit.deploy.model_constants import model_constants
    from graphkit.examples import resolve

    if is_url(out):
        raise UsageError(f"{shown_url(out)}: a contract is read from this machine - fetch it, and name the file")
    path = Path(resolve(out))
    file = next((path / name for name in ("contract.json", "bundle.json") if (path / name).is_file()), path)
    chosen = language or (SUFFIXES.get(output.suffix.lower(), "") if output is not None else "c")
    if not chosen:
        known = ", ".join(SUFFIXES)
        hint = (
            f"name the language with -l, or end it in {known}; JavaScript has graphkit-host, which needs no constants"
        )
        raise UsageError(f"{output}: its suffix is that of no language - {hint}")
    if file.suffix != ".json":
        text = write_plain(chosen, model_constants(file), has_loop=loop)
    elif file.name == "bundle.json":
        text = write_plain(chosen, bundle_constants(read_bundle(file)), has_loop=loop)
    elif loop:
        text = write_lowered_loop(chosen, read_contract(file), path.name)
    elif chosen not in WRITERS:
        problem = f"constants of a lowered folder are not written in {chosen}"
        raise UsageError(f"{file}: {problem} - --loop writes its program")
    else:
        text = WRITERS[chosen](read_contract(file))
    put_text(text, output, path.iterdir() if path.is_dir() else [path])
    if loop and output is not None:
        folder = path if path.is_dir() else path.parent
        folder = folder.resolve() if chosen == "rust" else folder  # cargo runs in its crate
        names = {"file": shlex.quote(str(output)), "folder": shlex.quote(str(folder))}
        print_line(RUNS[chosen].format(**names))


def _constants_command(folder: Path) -> Sequence[str]:
    from graphkit.contract.contract_files import read_bundle, read_contract
    from graphkit.contract.contract_writers import bundle_constants

    if (folder / "bundle.json").is_file():
        loop, has_loop = "loop.py", not bundle_constants(read_bundle(folder / "bundle.json")).fault
    else:
        lowered = read_contract(folder / "contract.json")
        is_for_one_text = lowered.sizes["batch"] == 1 and not lowered.sizes.get("sound")
        loop, has_loop = "loop.cpp", is_for_one_text and any(method.when == "step" for method in lowered.methods)
    return "contract", str(folder), *(["--loop", "-o", loop] if has_loop else ["-o", str(folder / "contract.h")])


@click.command(short_help="Package an export as methods that share one state.")
@writes_folder(BundleOptions)
def bundle(path: Path, output: Path, options: BundleOptions, progress: Progress) -> Written:
    """Package an export as methods that share one state, such as encode and step over one KV cache; and prove them.

    FOLDER_OR_MODEL is the folder of an export (encoder, decoder, decoder with past; or a merged decoder), or one model.
    It may be a URL, with --download.
    graphkit report OUT describes the bundle; graphkit.Bundle(OUT) and the npm package graphkit-host run it.
    """
    from graphkit.deploy.make_bundle import JAVASCRIPT_HOST, bundle_folder

    report = bundle_folder(path, output, options, progress=progress)
    if options.dry_run:
        return Written(report)
    copied = output / JAVASCRIPT_HOST.name
    below = [f"Wrote {output}.", f"In Python: bundle = graphkit.Bundle({str(output)!r})"]
    below += [f"In JavaScript: import {{ Bundle }} from {str(copied)!r}"] if copied.is_file() else []
    return Written(report, [_constants_command(output)], below)


@click.command(short_help="Write an export as a folder for onnxruntime-genai.")
@writes_folder(GenaiOptions)
def genai(path: Path, output: Path, options: GenaiOptions, progress: Progress) -> Written:
    """Write an export as a folder that onnxruntime_genai.Model loads: models, genai_config.json and tokenizer.

    FOLDER_OR_MODEL is the folder of an export, or a decoder with its cache. It may be a URL, with --download.
    Decoders of text and Whisper are run; of all others the reason is named.
    """
    from graphkit.deploy.genai import genai_folder

    report = genai_folder(path, output, options, progress=progress)
    return Written(report, below=[f"In Python: model = onnxruntime_genai.Model({str(output)!r})"])


@click.command("transformers-js", short_help="Write an export as a folder for transformers.js.")
@writes_folder(TransformersJsOptions)
def transformers_js(path: Path, output: Path, options: TransformersJsOptions, progress: Progress) -> Written:
    """Write an export as a folder that from_pretrained of transformers.js loads, and prove its models.

    FOLDER_OR_MODEL is the folder of an export (encoder, decoder, decoder with past; or a merged decoder), or one model.
    Two decoders become one, and inputs and outputs get the names that transformers.js knows. OUT must not exist.
    """
    from graphkit.deploy.transformers_js import transformers_js_folder

    report = transformers_js_folder(path, output, options, progress=progress)
    line = f"In JavaScript: from_pretrained({str(output)!r}), after env.localModelPath = '.'"
    return Written(report, below=[line])


@contextlib.contextmanager
def fetched_export(name: str) -> Iterator[Path]:
    """Give the path of an export; one on a server is fetched, and kept as long as the block runs."""
    if not is_url(name) or (scheme_of(name) == "file" and "::" not in name):
        yield local_path(name) if is_url(name) else Path(name)
        return
    from graphkit.io.byte_source import FETCHED, kept_in_temporary, name_as_staged
    from graphkit.model import load

    if not current_options().download:
        problem = "lowering, bundling and their proofs read all weights of an export"
        hint = "let it be fetched with --download, as long as the command runs"
        raise UsageError(f"{shown_url(name)}: {problem} - {hint}")
    urls = _models_of_export(name) if is_folder(name) else [name]
    above = shown_url(urls[0]).rpartition("/")[0]
    with kept_in_temporary(FETCHED):
        temporary = tempfile.TemporaryDirectory(prefix="graphkit-")
    with temporary:
        folder = Path(temporary.name) / file_name(above)
        with name_as_staged(folder, above):
            files = [_fetch_model(load(url), folder) for url in urls]
            yield folder if is_folder(name) else files[0]


def _models_of_export(url: str) -> list[str]:
    from graphkit.deploy.export_pipeline import used_models
    from graphkit.io.remote.open_url import models_in

    urls = {Path(file_name(url)): url for url in models_in(url)}
    used = [urls[path] for path in used_models(list(urls))]
    if len(used) > MOST:
        problem = f"{len(used)} models are in it, and an export has up to {MOST}"
        raise UsageError(f"{shown_url(url)}: {problem} - name one of them")
    return used


def _fetch_model(model: Model, folder: Path) -> Path:
    """Put a model, its data and the configuration beside it into a folder, and return its path there."""
    from graphkit.deploy.bundle_description import BUNDLE_TOML
    from graphkit.io.byte_source import source_of
    from graphkit.io.read import CONFIGURATIONS

    assert model.path is not None
    parts = [model.path, *(data.path for data in model.source.data_files if data.size is not None)]
    for path in parts:
        _put_file(path, folder / path.relative_to(model.path.parent))
    for names in ([*CONFIGURATIONS, BUNDLE_TOML], [f"../{name}" for name in CONFIGURATIONS]):
        missing = [name for name in names if not (folder / Path(name).name).exists()]
        places = [source_of(model.path).beside(name) for name in missing]
        configurations = [path for path, size in places if size is not None]
        for path in configurations:
            _put_file(path, folder / path.name)
        if configurations or folder.name != OF_HUB:
            break
    return folder / model.path.name


def _put_file(path: Path, target: Path) -> None:
    """Put what a path stands for at another one, where nothing is yet."""
    from graphkit.io.byte_source import shown_path, source_of

    if target.exists():
        return
    source = source_of(path)
    here = source.local([(0, source.size)])
    try:
        target.parent.mkdir(parents=True, exist_ok=True)
        try:
            target.hardlink_to(here)
        except OSError:  # a file system without links
            shutil.copyfile(here, target)
    except OSError as error:
        problem = f"{shown_path(target)}: cannot be kept: {error.strerror}"
        raise OutputError(f"{problem} - name a folder in TMPDIR") from error
