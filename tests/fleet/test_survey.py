"""A survey of models in this process: which are done, which are kept, and what a stopped run leaves."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from pathlib import Path

import onnx
import pyarrow.parquet as pq
import pytest
from builders import proto_of
from catalogue import catalogue

from graphkit.errors import UsageError
from graphkit.fleet import row_store
from graphkit.fleet.model_row import model_row
from graphkit.fleet.row_store import RowStore
from graphkit.fleet.survey import survey
from graphkit.fleet.survey_sources import models_of
from graphkit.fleet.survey_table import survey_table
from graphkit.fleet.survey_task import Row, SurveyTask, columns


class Here:
    """An executor that does tasks here, and stops after some."""

    def __init__(self, most: int = 10**6) -> None:
        self.most = most
        self.done: list[str] = []

    def rows(self, tasks: Iterable[SurveyTask]) -> Iterator[Row]:
        for task in tasks:
            if len(self.done) == self.most:
                raise KeyboardInterrupt
            self.done.append(task.path)
            yield model_row(task)


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    catalogue(tmp_path / "m", 20, 5, real=0)
    return tmp_path


def rows_of(table: Path) -> list[dict[str, object]]:
    return pq.read_table(table).drop_columns(["seconds"]).to_pylist()


def test_every_model_is_a_row_and_a_broken_one_has_its_error(folder: Path) -> None:
    models = models_of([str(folder / "m")], ())
    made = survey(models, folder / "t.parquet", Here(), targets=("ethos-u85",), folds=True)
    rows = rows_of(folder / "t.parquet")
    assert (made.models, made.kept, made.errors) == (20, 0, 5)
    assert [row["path"] for row in rows] == models == sorted(models)
    broken = [row for row in rows if row["error"]]
    assert {Path(str(row["path"])).parent.name for row in broken} == {"hostile"}
    assert all(str(row["error"]).startswith(str(row["path"])) for row in broken)
    first = rows[0]
    expected = {"role": "other", "nodes": 1, "faults": 0, "blockers_ethos-u85": 1, "shape_nodes_folded": 0, "opset": 18}
    assert {name: first[name] for name in expected} == expected
    assert list(folder.glob(".*")) == []


def test_models_that_have_not_changed_are_not_done_again(folder: Path) -> None:
    models, table = models_of([str(folder / "m")], ()), folder / "t.parquet"
    survey(models, table, Here())
    before = rows_of(table)
    changed = models[3]
    onnx.save(proto_of("(float[N, 4] x) => (float[N, 4] y) { z = Relu(x) y = Relu(z) }"), changed)
    again = Here()
    made = survey(models[1:], table, again)
    missing = str(folder / "m" / "hostile" / "4.onnx")  # which may be there at any time
    assert (again.done, made.kept) == ([changed, missing], 17)
    after = rows_of(table)
    assert [row["nodes"] for row in after if row["path"] == changed] == [2]
    assert [row for row in after if row["path"] != changed] == [row for row in before[1:] if row["path"] != changed]


def test_another_version_or_other_targets_do_all_again(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    models, table = models_of([str(folder / "m")], ()), folder / "t.parquet"
    survey(models, table, Here())
    assert survey(models, table, Here(), folds=True).kept == 0
    monkeypatch.setattr(row_store, "__version__", "99")
    assert survey(models, table, Here(), folds=True).kept == 0


def test_errors_are_done_again_where_asked(folder: Path) -> None:
    models, table = models_of([str(folder / "m")], ()), folder / "t.parquet"
    survey(models, table, Here())
    again = Here()
    assert survey(models, table, again, retries=True).kept == 15
    assert len(again.done) == 5


@pytest.mark.parametrize("most", [0, 1, 7, 19])
def test_a_stopped_survey_keeps_what_is_done(folder: Path, most: int, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(row_store, "PART_ROWS", 3)
    models = models_of([str(folder / "m")], ())
    survey(models, folder / "whole.parquet", Here())
    first, second = Here(most), Here()
    with pytest.raises(KeyboardInterrupt):
        survey(models, folder / "t.parquet", first)
    assert not (folder / "t.parquet").exists()
    assert survey(models, folder / "t.parquet", second).kept == most
    assert sorted(first.done + second.done) == models
    assert rows_of(folder / "t.parquet") == rows_of(folder / "whole.parquet")


def test_a_row_of_the_table_and_of_a_part_is_one_row(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A survey may be killed after the table is put in place, and before its parts are removed."""
    models, table = models_of([str(folder / "m")], ()), folder / "t.parquet"
    with monkeypatch.context() as patched:
        patched.setattr(row_store.shutil, "rmtree", lambda *_, **__: None)
        survey(models, table, Here())
    before = rows_of(table)
    assert len(list(folder.glob(".t.parquet.parts/*.parquet"))) > 0
    assert survey(models, table, Here()).kept == len(models)
    assert rows_of(table) == before


def test_a_file_that_is_no_table_is_never_replaced(folder: Path) -> None:
    table = folder / "t.parquet"
    table.write_bytes(b"PAR1 and more")
    with pytest.raises(UsageError, match=r"t\.parquet: cannot be read as a table"):
        survey([], table, Here())
    assert table.read_bytes() == b"PAR1 and more"


def test_two_surveys_into_one_table(folder: Path) -> None:
    with RowStore(folder / "t.parquet", columns(()), ""), pytest.raises(UsageError, match="another survey writes it"):
        survey([], folder / "t.parquet", Here())


def test_sources(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(folder)
    (folder / "list.txt").write_text("# two\nm/1/m0/model.onnx\n\nhttps://example.com/a.onnx\n")
    (folder / "m" / ".hidden").mkdir()
    (folder / "m" / ".hidden" / "x.onnx").write_bytes(b"")
    assert len(models_of(["m"], ())) == 20
    assert models_of(["m/[01]/**/*.onnx", "m/1"], ()) == [f"m/{n}/m{k}/model.onnx" for n in (0, 1) for k in (0, 1)]
    assert models_of(["list.txt"], ()) == ["https://example.com/a.onnx", "m/1/m0/model.onnx"]
    assert models_of(["-", "gone.onnx"], ["m/1/m0/model.onnx\n"]) == ["gone.onnx", "m/1/m0/model.onnx"]
    Path("empty").mkdir()
    with pytest.raises(UsageError, match=r"empty: has no \.onnx file in it"):
        models_of(["empty"], ())
    with pytest.raises(UsageError, match="nowhere: No such file or folder"):
        models_of(["nowhere"], ())


def test_the_worst_come_first(folder: Path) -> None:
    survey(models_of([str(folder / "m")], ()), folder / "t.parquet", Here())
    made = survey_table(folder / "t.parquet")
    at = {name: made.columns.index(name) for name in ("path", "error", "faults")}
    assert [row[at["error"]] is not None for row in made.rows] == [True] * 5 + [False] * 15
    faults = [row[at["faults"]] for row in made.rows[5:]]
    assert faults == sorted(faults, reverse=True)
    assert faults[0] > faults[-1]


@pytest.mark.parametrize(
    ("where", "chosen"),
    [
        (["error="], 15),
        (["error!="], 5),
        (["path~hostile"], 5),
        (["role=other", "faults>0"], 4),
        (["nodes<=1", "path~m"], 11),
        (["macs>0"], 3),
    ],
)
def test_conditions(folder: Path, where: list[str], chosen: int) -> None:
    survey(models_of([str(folder / "m")], ()), folder / "t.parquet", Here())
    made = survey_table(folder / "t.parquet", where=where, sort=["-nodes", "path"], most=2)
    assert (made.models, made.chosen, len(made.rows)) == (20, chosen, min(chosen, 2))


@pytest.mark.parametrize(
    ("where", "sort", "says"),
    [
        (["nods>1"], [], "--where nods>1: no column 'nods' - did you mean"),
        ([], ["-nods"], "--sort -nods: no column 'nods' - did you mean"),
        (["nodes"], [], "--where nodes: is no condition - write one such as"),
        (["nodes>many"], [], "--where nodes>many: 'nodes' is a number - compare it with one"),
    ],
)
def test_bad_conditions(folder: Path, where: list[str], sort: list[str], says: str) -> None:
    survey([], folder / "t.parquet", Here())
    with pytest.raises(UsageError) as error:
        survey_table(folder / "t.parquet", where=where, sort=sort)
    assert str(error.value).startswith(says)
