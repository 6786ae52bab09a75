from __future__ import annotations

import pytest

from graphkit.errors import UsageError
from graphkit.passes import PASSES
from graphkit.passes.clean_up.redundant_nodes import DropEmptyOutputs, EliminateDeadCode
from graphkit.passes.control_flow.inline_constant_if import SpecializeInput
from graphkit.passes.registry import parse_pipeline, pass_help


def test_passes_with_and_without_options() -> None:
    text = "specialize-input{input=use_cache, value=true}, drop-empty-outputs{},eliminate-dead-code"
    assert parse_pipeline(text) == (SpecializeInput("use_cache", True), DropEmptyOutputs(), EliminateDeadCode())


def test_an_integer_option() -> None:
    assert parse_pipeline("specialize-input{input=mode,value=-3}") == (SpecializeInput("mode", -3),)


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("", "the pipeline is empty - choose from inline-functions"),
        ("no-such-pass", "no pass 'no-such-pass' - `graphkit explain passes` lists them"),
        ("eliminate-dead-code{x=1}", "eliminate-dead-code: has no option 'x' - there are none"),
        ("specialize-input{input=a}", r"specialize-input: option 'value' is missing"),
        ("specialize-input{input=a,value=maybe}", "option 'value' is 'maybe' - it takes bool or int"),
        ("eliminate-dead-code;", "cannot read the pipeline at 'eliminate-dead-code;'"),
        ("specialize-input{input=a", "cannot read the pipeline at 'specialize-input"),
    ],
)
def test_what_does_not_parse_is_told(text: str, message: str) -> None:
    with pytest.raises(UsageError, match=message):
        parse_pipeline(text)


def test_passes_are_in_folders_by_purpose() -> None:
    for kind in PASSES:
        room, _ = kind.__module__.removeprefix("graphkit.passes.").split(".")
        assert room in (
            "attention",
            "clean_up",
            "control_flow",
            "fusion",
            "interface",
            "npu",
            "opset",
            "shapes",
            "state",
        )


def test_explain_gives_the_docstring() -> None:
    text = pass_help("eliminate-dead-code")
    assert text.startswith("eliminate-dead-code\n\nRemove nodes whose outputs nothing reads")
    assert "Before:" in text
    assert "After:" in text
