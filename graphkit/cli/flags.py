"""Flags of the command line: those of the option table, and those of reports; and how their values are parsed."""

from __future__ import annotations

import math
import os
import re
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence
from dataclasses import Field, fields, replace
from enum import Enum
from functools import wraps
from pathlib import Path
from typing import TYPE_CHECKING, Any, Generic, TypeVar

import click
from msgspec import Struct

from graphkit.errors import OutputError, UsageError, did_you_mean
from graphkit.options import LIMITS, MAP, SIZES, Flag, as_declared, flags_of
from graphkit.progress import HAS_MEMORY_LIMIT, Limits

if TYPE_CHECKING:
    from click.shell_completion import CompletionItem

    from graphkit.shapes import DimSpec

T = TypeVar("T")
SIZE = re.compile(r"([0-9]{1,15}(?:\.[0-9]{1,6})?) ?([kmgt]?b?)", re.IGNORECASE)
UNITS = {f"{prefix}{unit}": 1000**power for power, prefix in enumerate(("", "k", "m", "g", "t")) for unit in ("", "b")}
COMPLETIONS = {  # by flag, the kinds of names that complete its words
    "--dim": "dim", "--range": "dim", "--input": "input", "--target": "target", "--provider": "provider",
    "--only": "sections", "--fail-on": "kinds", "--why": "tensor", "--filter": "tensor", "--map": "value",
}  # fmt: skip
AS_IN = {  # examples of NAME=VALUE
    "--dim": "batch_size=1", "--input": "input_ids=1x8", "--range": "sequence_length=1:512", "--map": "logits=output",
}  # fmt: skip


class Format(str, Enum):
    """Formats of a report."""

    text = "text"
    markdown = "markdown"
    json = "json"
    html = "html"
    csv = "csv"
    dot = "dot"
    mermaid = "mermaid"
    sarif = "sarif"
    junit = "junit"


SUFFIXES = {  # of files, and the format that they say
    "": Format.text, ".txt": Format.text, ".md": Format.markdown, ".json": Format.json, ".html": Format.html,
    ".htm": Format.html, ".csv": Format.csv, ".dot": Format.dot, ".gv": Format.dot, ".mmd": Format.mermaid,
    ".sarif": Format.sarif, ".xml": Format.junit,
}  # fmt: skip
REPORT_FILE = "graphkit.report"  # key of the context under which the file for the report is kept
FULL = "graphkit.full"  # and whether all of it is printed
DRAWINGS = (Format.dot, Format.mermaid)
FINDINGS = (Format.sarif, Format.junit)
REPORT_FORMATS = tuple(kind for kind in Format if kind not in (*DRAWINGS, *FINDINGS))  # those of every result
Command = TypeVar("Command", bound=Callable[..., object])


class _Choice(click.Choice[str]):
    """A choice that says which name may be meant."""

    def get_invalid_choice_message(self, value: object, ctx: click.Context | None) -> str:
        hint = did_you_mean(str(value), self.choices, " ").strip()
        return f"{super().get_invalid_choice_message(value, ctx)} {hint[:1].upper()}{hint[1:]}".rstrip()


def choice_type(names: Iterable[str]) -> click.Choice[str]:
    """Return the type of an option that takes one of these names."""
    return _Choice([str(getattr(name, "value", name)) for name in names])


def output_option(metavar: str, text: str, *, required: bool = False) -> Callable[[Command], Command]:
    """Return the option --output."""
    path = click.Path(path_type=Path)
    return click.option("--output", "-o", type=path, metavar=metavar, required=required, help=text)


def complete(kind: str) -> Callable[[click.Context, click.Parameter, str], list[CompletionItem]]:
    """Return what completes a word by the names of a kind, which are imported when a shell asks for them."""

    def find_items(context: click.Context, _: click.Parameter, incomplete: str) -> list[CompletionItem]:
        from graphkit.cli.shell_completion import complete_word

        return complete_word(kind, context, incomplete)

    return find_items


model_argument = click.argument("model", metavar="MODEL", shell_complete=complete("model"))


def takes_options(
    kind: type[T], *, without: Collection[Flag] = ()
) -> Callable[[Callable[..., Any]], Callable[..., Any]]:
    """Add the flags that the fields of a dataclass name, but for some; the command takes `options`, an `Asked`."""
    every: tuple[Field[Any], ...] = fields(kind)  # type: ignore[arg-type] # a dataclass, which no type says
    ordered = sorted(every, key=lambda field: field.name not in kind.__annotations__)  # before those of its base class
    flags = [
        (spelling, replace(flag, kind=flag.kind or str(field.type)), None if flag.kind else field.default)
        for field in ordered
        for spelling, flag in flags_of(field.name, field).items()
        if flag not in without
    ]

    def decorate(command: Callable[..., Any]) -> Callable[..., Any]:
        @wraps(command)
        def run_command(**words: object) -> Any:
            values = {_flag_key(spelling): words.pop(_flag_key(spelling)) for spelling, _, _ in flags}
            return command(options=Asked(kind, values), **words)

        for spelling, flag, default in reversed(flags):
            click_option(spelling, flag, default)(run_command)
        return run_command

    return decorate


def _flag_key(spelling: str) -> str:
    return spelling.lstrip("-").replace("-", "_")


def click_option(spelling: str, flag: Flag, default: Any = None, **more: Any) -> Callable[[Command], Command]:
    """Return the option of the command line for a flag, whose kind is known."""
    completer = complete(COMPLETIONS[spelling]) if spelling in COMPLETIONS else None
    more |= {"metavar": flag.metavar or None, "shell_complete": completer}
    key = _flag_key(spelling)
    if flag.kind == "bool":
        more |= {"is_flag": True}
    elif flag.kind == "bool | None":
        spelling, more = f"{spelling}/--no-{spelling.removeprefix('--')}", {**more, "default": None}
    elif flag.kind.startswith("tuple"):
        more |= {"multiple": True}
    else:
        more |= {"type": _click_type(flag), "default": default, "show_default": default not in (None, "")}
    names = (*filter(None, (spelling, flag.short)), key)
    return click.option(*names, cls=_Option, help=flag.help, is_rare=flag.is_rare, **more)


class _Option(click.Option):
    """An option that knows whether --help leaves it to --help-all."""

    def __init__(self, *args: Any, is_rare: bool = False, **more: Any) -> None:
        super().__init__(*args, **more)
        self.is_rare = is_rare


class _FiniteRange(click.FloatRange):
    """A range without infinity, and without NaN, which is in any."""

    def convert(self, value: Any, param: click.Parameter | None, ctx: click.Context | None) -> float:
        number = float(super().convert(value, param, ctx))
        return number if math.isfinite(number) else self.fail(f"{value} is no finite number.", param, ctx)


def _click_type(flag: Flag) -> Any:
    kind = flag.kind.removesuffix(" | None")
    if flag.choices:
        return choice_type(flag.choices)
    if kind == "Path":
        return click.Path(path_type=Path)
    if kind == "int":
        return click.IntRange(min=1 if flag.least is None else int(flag.least))
    if kind == "float" and flag.least is not None:
        return _FiniteRange(flag.least, flag.most, min_open=flag.is_positive)
    return float if kind == "float" else str


class Asked(Struct, Generic[T], frozen=True):
    """The words of a command line for a dataclass of options; reading some of them needs imports, which are put off."""

    kind: type[T]  # the dataclass
    words: Mapping[str, Any]  # the value of each flag by its name, as click read it

    @property
    def limits(self) -> Limits:
        """The limits of time and memory."""
        return read_limits(self.words["timeout"], self.words["memory"])

    @property
    def verify(self) -> bool:
        """Whether a proof is to run."""
        return not self.words["no_verify"]

    def read(self, **more: object) -> T:
        """Return the options; further fields have the given values. Raises UsageError where a word cannot be parsed."""
        values: dict[str, object] = {}
        for field in fields(self.kind):  # type: ignore[arg-type] # a dataclass, which no type says
            flags = flags_of(field.name, field)
            keys = [_flag_key(spelling) for spelling in flags]
            if any(key in self.words for key in keys):
                words = [self.words.get(key, ()) for key in keys]
                values[field.name] = _option_value(field.default, tuple(flags.values()), words)
        return self.kind(**(values | more))


def _option_value(default: object, flags: tuple[Flag, ...], words: Sequence[Any]) -> object:
    if flags == LIMITS:
        return read_limits(*words)
    if flags == SIZES:
        return read_sizes(*words)
    if flags == SIZES[:1]:
        return read_sizes(*words).dims
    if flags == SIZES[1:2]:
        return read_sizes((), *words).inputs
    if flags == (MAP,):
        return tuple(read_pairs(words[0], MAP.name, str))
    return not words[0] if default is True else words[0]


def format_of(format: str | None, file: Path | None) -> Format:
    """Return the format that is asked for, else that which the suffix of a file says, else text."""
    if format is not None or file is None:
        return Format(format or Format.text)
    if (suffix := file.suffix.lower()) not in SUFFIXES:
        params = click.get_current_context().params
        given = [value for name, value in params.items() if name not in ("output", "report_file")]
        words = [word for value in given for word in (value if isinstance(value, tuple) else (value,))]
        paths = [Path(word) for word in words if isinstance(word, str | Path)]
        if file.exists() and any(path.exists() and file.samefile(path) for path in paths):
            raise OutputError(f"{file}: is an input, which is never overwritten - name another output")
        known = ", ".join(name for name in SUFFIXES if name)
        raise UsageError(f"{file}: '{suffix}' says no format - take one of {known}, or name it with --format")
    return SUFFIXES[suffix]


def report_option(*names: str) -> Callable[[Callable[..., T]], Callable[..., T]]:
    """Return the option --format, and one of these names for the file that `show` writes the report to."""

    def decorate(command: Callable[..., T]) -> Callable[..., T]:
        said = "Report format. Default: text, or the format that the suffix of its file names."
        path = click.Path(path_type=Path)

        @click.option(*names, "report_file", type=path, metavar="FILE", help="Write the report to a file.")
        @click.option("--format", "-f", type=choice_type(REPORT_FORMATS), help=said)
        @click.option("--full", is_flag=True, help="Print all of the report, not one screen of it.")
        @wraps(command)
        def run_command(*, format: str | None, report_file: Path | None, full: bool, **others: object) -> T:
            click.get_current_context().meta.update({REPORT_FILE: report_file, FULL: full})
            chosen = format_of(format, report_file)
            if report_file is not None:
                _check_report(report_file, replaces="--report" not in names)
            if chosen not in REPORT_FORMATS:
                is_for = f"a {chosen.value} {'drawing' if chosen in DRAWINGS else 'file'} is for `graphkit report`"
                raise UsageError(f"{report_file}: {is_for} - take another suffix")
            return command(format=chosen.value, **others)

        return run_command

    return decorate


def _check_report(file: Path, *, replaces: bool) -> None:
    """Raise OutputError, before any work, for a report that cannot be written to a file."""
    params = click.get_current_context().params
    target, output = Path(os.path.realpath(file)), params.get("output")
    output_path = Path(os.path.realpath(output)) if isinstance(output, Path) else None
    if target == output_path:
        raise OutputError(f"{file}: is what the command makes - name another file for the report")
    if target.is_dir():
        raise OutputError(f"{file}: is a folder - name a file in it for the report")
    if not replaces and not params.get("overwrite") and target.is_file():
        raise OutputError(f"{file}: exists - name another file for the report, or replace it with --overwrite")
    folder = target.parent
    if not folder.is_dir() and folder != output_path:  # which the command makes
        raise OutputError(f"{folder}: is not a folder - create it, or name another file for the report")
    if folder.is_dir() and not os.access(folder, os.W_OK):
        raise OutputError(f"{file}: cannot be written: its folder takes no files - name another file for the report")


format_option = report_option("--report")  # where --output names the output of the command
output_format_option = report_option("--output", "-o")


def read_sizes(dim: Sequence[str], input: Sequence[str] = (), range: Sequence[str] = ()) -> DimSpec:
    """Parse the texts of --dim, --input and --range. Raises UsageError for what is none, or named twice."""
    if not (dim or input or range):
        return as_declared()
    from graphkit.rewrite.base import parse_bounds, parse_shape, parse_size
    from graphkit.shapes import DimSpec

    return DimSpec(
        tuple(read_pairs(dim, "--dim", parse_size)),
        tuple(read_pairs(input, "--input", parse_shape)),
        tuple((name, *bounds) for name, bounds in read_pairs(range, "--range", parse_bounds)),
    )


def read_limits(timeout: float | None, memory: str | None) -> Limits:
    """Parse --timeout and --memory. Raises UsageError for no time or size, or where this system cannot limit memory."""
    if timeout is not None and not timeout > 0:
        hint = "write a positive number of seconds, such as --timeout 60"
        raise UsageError(f"--timeout {timeout:g}: is not a time - {hint}")
    if memory is None:
        return Limits(timeout)
    match = SIZE.fullmatch(memory.strip())
    size = int(float(match[1]) * UNITS[match[2].lower()]) if match is not None else 0
    if size < 1:
        raise UsageError(f"--memory {memory}: is not a size - write one such as --memory 2GB")
    if not HAS_MEMORY_LIMIT:
        raise UsageError("--memory: this system cannot limit the memory of a process - leave the option out")
    return Limits(timeout, size)


def read_pairs(texts: Sequence[str], option: str, read: Callable[[str], T]) -> Iterator[tuple[str, T]]:
    """Yield the names and values of an option NAME=VALUE. Raises UsageError for one that is none, or is there twice."""
    names: set[str] = set()
    for text in texts:
        at = text.rfind("=")  # the last one divides, so that names may have one
        if option in ("--dim", "--input"):  # sizes may be written with : too, as onnxsim and Polygraphy do
            at = max(at, text.rfind(":"))
        elif option == "--range" and at < 0:  # which has a : of its own
            at = text.rfind(":", 0, max(text.rfind(":"), 0))
        name, value = (text[:at], text[at + 1 :]) if at > 0 else ("", "")
        if not (name and value):
            raise UsageError(f"{option} {text}: is not NAME=VALUE - write it as in {option} {AS_IN[option]}")
        if name in names:
            raise UsageError(f"{option} {text}: '{name}' is given twice - give it once")
        names.add(name)
        try:
            yield name, read(value)
        except UsageError as error:
            raise UsageError(f"{option}: {error}") from error
