"""Passes of users: imported by name, with options, and one clear error for what their code does."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest
from onnx import parser

from graphkit.errors import GraphkitError, PassError, UsageError
from graphkit.model import Model
from graphkit.passes.clean_up.redundant_nodes import EliminateDeadCode
from graphkit.passes.registry import parse_pipeline, pass_help
from graphkit.rewrite.base import Outcome, Pass, run_passes

MODULE = """
from dataclasses import dataclass, field
from typing import Optional

from graphkit.rewrite.base import Outcome, Pass


@dataclass(frozen=True)
class Typed(Pass):
    \"\"\"Types that are types: this module does not import annotations.\"\"\"

    number: int
    share: Optional[float] = None
    names: tuple[str, ...] = field(default_factory=tuple)
    made: int = field(default=0, init=False)

    def run(self, model):
        return Outcome(model)


@dataclass(frozen=True)
class Picky(Pass):
    number: int = 0

    def __post_init__(self):
        if self.number > 8:
            raise ValueError("8 at the most")

    def run(self, model):
        return {} if self.number == 1 else {}["nothing"]


class Other:
    pass
"""


@pytest.fixture(autouse=True)
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Path]:
    monkeypatch.syspath_prepend(tmp_path)
    (tmp_path / "of_users.py").write_text(MODULE)
    (tmp_path / "of_users_broken.py").write_text("import graphkit_is_not_this\n")
    (tmp_path / "of_users_exits.py").write_text("raise SystemExit(3)\n")
    return tmp_path


def model() -> Model:
    return Model.from_proto(
        parser.parse_model('<ir_version: 8, opset_import: ["" : 17]> g (float x) => (float y) { y = Neg (x) }')
    )


def test_a_pass_of_a_module_is_mixed_with_those_of_graphkit() -> None:
    first, second, third = parse_pipeline("of_users:Typed{number=3, share=0.5},eliminate-dead-code,of_users:Picky")
    assert (first.name(), vars(first)) == ("typed", {"number": 3, "share": 0.5, "names": ()})
    assert (second, third.name()) == (EliminateDeadCode(), "picky")


def test_a_pass_of_a_module_is_explained() -> None:
    assert (
        pass_help("of_users:Typed")
        == "of_users:Typed\n\nTypes that are types: this module does not import annotations.\n"
    )


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("of_users:Typed", "of_users:Typed: option 'number' is missing - write of_users:Typed{number=...}"),
        ("of_users:Typed{number=a}", "of_users:Typed: option 'number' is 'a' - it takes int"),
        ("of_users:Typed{made=1}", "of_users:Typed: has no option 'made' - there are number, share, names"),
        (
            "of_users:Picky{number=9}",
            "pass 'of_users:Picky': cannot be made: its code failed with ValueError: 8 at the most "
            "(of_users.py, line 27) - mend the pass",
        ),
        ("of_users:Other", "pass 'of_users:Other': 'Other' is no Pass - its passes are: Typed, Picky"),
        ("of_users:Nope", "pass 'of_users:Nope': 'of_users' has no 'Nope' - its passes are: Typed, Picky"),
        ("json:loads", "pass 'json:loads': 'loads' is no Pass - derive a class from graphkit.Pass or graphkit.Rewrite"),
        (
            "of_nobody:Pass",
            "pass 'of_nobody:Pass': there is no module 'of_nobody' - is it in a folder of PYTHONPATH or in the current "
            "one?",
        ),
        (
            "of_users.py:Typed",
            "pass 'of_users.py:Typed': there is no module 'of_users.py' - is it in a folder of PYTHONPATH or in the "
            "current one? Write of_users, without .py.",
        ),
        (
            "of_users_broken:Pass",
            "pass 'of_users_broken:Pass': the import of 'of_users_broken' failed with ModuleNotFoundError: No module "
            "named 'graphkit_is_not_this' (of_users_broken.py, line 1) - mend the pass",
        ),
        (
            "of_users_exits:Pass",
            "pass 'of_users_exits:Pass': the import of 'of_users_exits' failed with SystemExit: 3 (of_users_exits.py, "
            "line 1) - mend the pass",
        ),
    ],
)
def test_what_is_wrong_with_a_pass_is_one_error(text: str, message: str) -> None:
    with pytest.raises(GraphkitError) as caught:
        parse_pipeline(text)
    assert str(caught.value) == message


@pytest.mark.parametrize(
    ("text", "message"),
    [
        (
            "of_users:Picky",
            "pass 'picky': failed with KeyError: 'nothing' (of_users.py, line 30) - mend the pass",
        ),
        ("of_users:Picky{number=1}", "pass 'picky': it returned dict, not an Outcome - return one from `run`"),
    ],
)
def test_what_a_pass_does_is_one_error(text: str, message: str) -> None:
    with pytest.raises(PassError) as caught:
        run_passes(model(), parse_pipeline(text))
    assert str(caught.value) == message


class Refusing(Pass):
    def run(self, model: Model) -> Outcome:
        raise UsageError(f"not {model.name}")


class Silent(Pass):
    def run(self, model: Model) -> Outcome:
        return Outcome(model.with_proto(model.proto))


def test_what_a_pass_says_to_its_user_is_left_as_it_is() -> None:
    with pytest.raises(UsageError, match=r"^not g$"):
        run_passes(model(), [Refusing()])


def test_a_pass_that_keeps_silent_about_a_change_is_told() -> None:
    assert run_passes(model(), [Silent()]).changes == ("silent: the model is another",)


def test_a_defect_of_graphkit_itself_keeps_its_traceback(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(EliminateDeadCode, "run", lambda self, model: self.defect(model))
    with pytest.raises(AttributeError, match="defect"):
        run_passes(model(), [EliminateDeadCode()])
