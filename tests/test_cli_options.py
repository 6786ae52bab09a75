from __future__ import annotations

import inspect
from collections.abc import Sequence

import click
import pytest

from graphkit.analysis.report import ReportOptions
from graphkit.cli import app
from graphkit.cli.commands import every_command
from graphkit.cli.flags import REPORT_FORMATS, choice_type, read_sizes
from graphkit.errors import UsageError
from graphkit.shapes import AS_DECLARED, DimSpec
from graphkit.verify.rewrite_verifier import verify_rewrite
from graphkit.verify.split_verifier import verify_split

OWN = {
    ("compare", "provider"),
    ("compare", "tolerance"),
    ("diff", "fail_on"),
    ("contract", "language"),
    ("lower", "target"),
    ("nodes", "filter"),
    ("weights", "by"),
    ("report", "format"),
    ("report", "full"),
    *((name, "provider") for name in ("report", "fold", "split-merged", "merge-decoders", "extract", "rename")),
    *((name, "provider") for name in ("set-dims", "convert-opset", "rewrite")),
    ("split-merged", "tolerance"),
    ("split-merged", "weights"),
    ("survey", "target"),
    *((name, "timeout") for name in ("costs", "diff", "nodes", "program", "shapes", "weights")),  # run nothing
}  # what means something else there


def test_an_option_of_several_commands_is_the_same_in_each() -> None:
    found: dict[str, set[tuple[object, ...]]] = {}
    for command in every_command().values():
        for option in command.params:
            name = str(option.name)
            if (
                isinstance(option, click.Option)
                and name not in ("output", "report_file")
                and (command.name, name) not in OWN
            ):
                kind = (*option.opts, option.metavar, option.default, option.help)
                found.setdefault(name, set()).add(kind)
    assert {name for name, kinds in found.items() if len(kinds) > 1} == set()
    assert {"dim", "input", "range", "timeout", "memory", "weights", "overwrite", "no_verify"} <= found.keys()


def test_sizes_are_read_as_one_spec() -> None:
    spec = read_sizes(("a=b=1", "n=8"), ("x=1x3",), ("m=:5", "k=2:"))
    ranges = {"m": (None, 5), "k": (2, None)}
    assert spec == DimSpec.of({"a=b": 1, "n": 8}, {"x": (1, 3)}, ranges)
    assert read_sizes(()) == AS_DECLARED


@pytest.mark.parametrize(
    ("option", "texts"),
    [
        ("input", ("x=1x8", "x:1,8", "x:[1,8]", "x=[1, 8]", "x=1,8", "x:1x8")),
        ("input", ("onnx::x=1x8", "onnx::x:1,8", "onnx::x:[1, 8]")),
        ("input", ("a=b=1x8", "a=b:1,8")),
        ("input", ("x:0=1x8", "x:0:1,8")),
        ("input", ("x=[]", "x:[]")),
        ("dim", ("n=8", "n:8")),
        ("dim", ("a=b:c=8", "a=b:c:8")),
        ("range", ("n=1:8", "n:1:8")),
        ("range", ("n=:8", "n::8")),
        ("range", ("n:0=8:", "n:0=8:")),
    ],
)
def test_spellings_of_sizes(option: str, texts: Sequence[str]) -> None:
    read = {read_sizes(**{"dim": (), option: (text,)}) for text in texts}
    assert len(read) == 1
    ((name, *_),) = getattr(read.pop(), {"dim": "dims", "input": "inputs", "range": "ranges"}[option])
    assert name == texts[0].rpartition("=")[0]


def test_a_shape_is_that_of_its_spelling() -> None:
    assert read_sizes((), ("x:[1, 8]",), ()).shapes == {"x": (1, 8)}
    assert read_sizes((), ("x:[]",), ()).shapes == {"x": ()}


@pytest.mark.parametrize(
    ("value", "message"),
    [
        ("jason", "'jason' is not one of 'text', 'markdown', 'json', 'html', 'csv'. Did you mean 'json'?"),
        ("pdf", "'pdf' is not one of 'text', 'markdown', 'json', 'html', 'csv'."),
    ],
)
def test_a_choice_that_is_none_may_mean_another(value: str, message: str) -> None:
    with pytest.raises(click.BadParameter) as error:
        choice_type(REPORT_FORMATS).convert(value, None, None)
    assert error.value.message == message


@pytest.mark.parametrize("value", ["nan", "inf", "1e999"])
def test_a_tolerance_is_a_number(value: str, capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit):
        app.main(["verify", "example:encoder", "example:encoder", "--tolerance", value])
    assert f"Invalid value for '--tolerance': {value} is no finite number." in capsys.readouterr().err


def test_bounds_that_are_none_name_the_option() -> None:
    with pytest.raises(UsageError, match=r"^--range: '3:2' allows no size - write the smaller bound first$"):
        read_sizes((), (), ("n=3:2",))


def test_defaults_are_those_of_the_functions() -> None:
    steps = inspect.signature(verify_split).parameters["options"].default.steps
    runs = inspect.signature(verify_rewrite).parameters["options"].default.runs
    given = {
        (command.name, option.name): option.default for command in every_command().values() for option in command.params
    }
    assert (given["split-merged", "steps"], given["verify", "steps"], given["verify", "runs"]) == (steps, steps, runs)
    assert given["report", "context"] == ReportOptions().context
