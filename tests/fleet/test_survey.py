"""A survey of models in this process: which are done, which are kept, and what a stopped run leaves."""

from __future__ import annotations

import os
import sys
from collections.abc import Generator, Sequence
from dataclasses import replace
from pathlib import Path

import numpy as np
import onnx
import pyarrow.parquet as pq
import pytest
from builders import proto_of
from catalogue import catalogue
from here import Here, surveyed

from graphkit.errors import OutputError, UsageError
from graphkit.fleet import survey
from graphkit.fleet.survey import RowParts, RowStore, read_table, survey_models
from graphkit.fleet.survey_table import survey_table
from graphkit.fleet.survey_task import UNKNOWN, SurveyTask, models_of, table_columns


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    catalogue(tmp_path / "m", 20, 5, real=0)
    return tmp_path


def rows_of(table: Path) -> list[dict[str, object]]:
    return pq.read_table(table).drop_columns(["seconds"]).to_pylist()


def test_every_model_is_a_row_and_a_broken_one_has_its_error(folder: Path) -> None:
    models = list(models_of([str(folder / "m")], ()))
    made = surveyed(folder, "t.parquet", targets=("ethos-u85",), folds=True)
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


@pytest.mark.skipif(sys.platform != "linux", reason="where every name is UTF-8")
def test_a_name_that_is_not_utf_8_is_a_row(tmp_path: Path) -> None:
    """A table has no such text; the row is found again, too."""
    model = proto_of("(float[N, 4] x) => (float[N, 4] y) { y = Relu(x) }")
    (tmp_path / os.fsdecode(b"\xff.onnx")).write_bytes(model.SerializeToString())
    models = models_of([str(tmp_path)], ())
    for again in (0, 1):
        made = survey_models(models, str(tmp_path / "t.parquet"), Here())
        assert (made.models, made.kept, made.errors) == (1, again, 1)
    (row,) = rows_of(tmp_path / "t.parquet")
    assert row["path"] == f"{tmp_path}/\\xff.onnx"
    assert "has a name that is not UTF-8" in str(row["error"])


def test_a_number_of_more_than_64_bits_is_none(tmp_path: Path) -> None:
    model = proto_of("(float[2147483648, 2147483648] x) => (float[2147483648, 2147483648] y) { y = Relu(x) }")
    onnx.save(model, tmp_path / "large.onnx")
    onnx.save(proto_of("(float[N, 4] x) => (float[N, 4] y) { y = Relu(x) }"), tmp_path / "small.onnx")
    made = survey_models(models_of([str(tmp_path)], ()), str(tmp_path / "t.parquet"), Here())
    assert (made.models, made.errors) == (2, 0)
    large, small = rows_of(tmp_path / "t.parquet")
    assert (large["nodes"], large["peak_bytes"]) == (1, None)
    assert small["peak_bytes"]


def test_models_that_have_not_changed_are_not_done_again(folder: Path) -> None:
    models, table = list(models_of([str(folder / "m")], ())), folder / "t.parquet"
    surveyed(folder, "t.parquet")
    before = rows_of(table)
    changed = models[3]
    onnx.save(proto_of("(float[N, 4] x) => (float[N, 4] y) { z = Relu(x) y = Relu(z) }"), changed)
    Path(models[0]).unlink()
    again = Here()
    made = surveyed(folder, "t.parquet", again)
    missing = str(folder / "m" / "hostile" / "4.onnx")  # which may be there at any time
    assert (again.done, made.kept) == ([changed, missing], 17)
    after = rows_of(table)
    assert [row["nodes"] for row in after if row["path"] == changed] == [2]
    assert [row for row in after if row["path"] != changed] == [row for row in before[1:] if row["path"] != changed]


def with_data(path: Path, rows: int) -> None:
    """Write a model whose weights lie in a file beside it, which alone says how many rows they have."""
    model = proto_of("(float[N, 4] x) => (float[N, K] y) { y = MatMul(x, w) }")
    model.graph.initializer.append(onnx.numpy_helper.from_array(np.zeros((4, 4), np.float32), "w"))
    path.with_name("w.data").unlink(missing_ok=True)
    onnx.save(model, path, save_as_external_data=True, location="w.data", size_threshold=0)
    path.with_name("w.data").write_bytes(bytes(4 * 4 * rows))


@pytest.mark.parametrize("first", [2, 4])  # too short, which is an error, or whole
def test_a_file_of_weights_that_changes_is_another_model(tmp_path: Path, first: int) -> None:
    (tmp_path / "m").mkdir()
    with_data(tmp_path / "m" / "a.onnx", first)
    surveyed(tmp_path, "t.parquet")
    model = tmp_path / "m" / "a.onnx"
    before, state = rows_of(tmp_path / "t.parquet"), model.stat()
    assert (before[0]["error"] is not None) == (first == 2)
    assert surveyed(tmp_path, "t.parquet").kept == (first == 4)
    with_data(model, 5)
    os.utime(model, ns=(state.st_atime_ns, state.st_mtime_ns))
    assert surveyed(tmp_path, "t.parquet").kept == 0
    (after,) = rows_of(tmp_path / "t.parquet")
    assert after["error"] is None
    assert after["revision"] == before[0]["revision"]
    assert str(after["data_files"]).startswith('{"w.data": "80-')
    assert surveyed(tmp_path, "t.parquet").kept == 1
    (tmp_path / "m" / "w.data").unlink()
    assert surveyed(tmp_path, "t.parquet").kept == 0


def test_a_row_of_a_later_run_is_the_newer_one(tmp_path: Path) -> None:
    """A file of weights changes between a run that is stopped and the next one."""
    (tmp_path / "m").mkdir()
    for name in "ab":
        (tmp_path / "m" / name).mkdir()
        with_data(tmp_path / "m" / name / "a.onnx", 4)
    with pytest.raises(KeyboardInterrupt):
        surveyed(tmp_path, "t.parquet", Here(1))
    model = tmp_path / "m" / "a" / "a.onnx"
    state = model.stat()
    with_data(model, 6)
    os.utime(model, ns=(state.st_atime_ns, state.st_mtime_ns))
    assert surveyed(tmp_path, "t.parquet").kept == 0
    assert ['"96-' in str(row["data_files"]) for row in rows_of(tmp_path / "t.parquet")] == [True, False]


def test_another_version_or_other_targets_do_all_again(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    surveyed(folder, "t.parquet")
    assert surveyed(folder, "t.parquet", folds=True).kept == 0
    monkeypatch.setattr(survey, "__version__", "99")
    assert surveyed(folder, "t.parquet", folds=True).kept == 0


def test_errors_are_done_again_where_asked(folder: Path) -> None:
    surveyed(folder, "t.parquet")
    again = Here()
    assert surveyed(folder, "t.parquet", again, retries=True).kept == 15
    assert len(again.done) == 5


@pytest.mark.cases(1)
@pytest.mark.parametrize("most", [0, 1, 7, 19])
def test_a_stopped_survey_keeps_what_is_done(folder: Path, most: int, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(survey, "PART_ROWS", 3)
    surveyed(folder, "whole.parquet")
    first, second = Here(most), Here()
    with pytest.raises(KeyboardInterrupt):
        surveyed(folder, "t.parquet", first)
    assert not (folder / "t.parquet").exists()
    made = surveyed(folder, "t.parquet", second)
    again = set(first.done) & set(second.done)  # of which a tensor is broken, perhaps in another file
    assert made.kept == most - len(again)
    assert sorted({*first.done, *second.done}) == list(models_of([str(folder / "m")], ()))
    assert again <= {row["path"] for row in rows_of(folder / "t.parquet") if row["data_files"] == UNKNOWN}
    assert rows_of(folder / "t.parquet") == rows_of(folder / "whole.parquet")


def test_a_row_of_the_table_and_of_a_part_is_one_row(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A survey may be killed after the table is put in place, and before its parts are removed."""
    with monkeypatch.context() as patched:
        patched.setattr(survey.storage, "remove_folder", lambda _: None)
        surveyed(folder, "t.parquet")
    before = rows_of(folder / "t.parquet")
    assert len(list(folder.glob(".t.parquet.parts/*.parquet"))) > 0
    assert surveyed(folder, "t.parquet").kept == 20
    assert rows_of(folder / "t.parquet") == before


def test_rows_that_cannot_be_found_are_an_error(folder: Path) -> None:
    """Workers may write to folders of their own."""

    class Elsewhere(Here):
        def run(self, tasks: Sequence[SurveyTask], parts: RowParts) -> Generator[tuple[int, int], None, None]:
            (folder / "other").mkdir()
            yield from super().run(tasks, replace(parts, folder=str(folder / "other")))

    with pytest.raises(OutputError, match=r"t\.parquet: 20 rows that workers wrote cannot be found"):
        surveyed(folder, "t.parquet", Elsewhere())


def test_a_table_on_a_server(folder: Path) -> None:
    """Parts and table are in storage of fsspec, here in memory."""
    memory = pytest.importorskip("fsspec").filesystem("memory")
    models, table = models_of([str(folder / "m")], ()), "memory://bucket/t.parquet"
    try:
        with pytest.raises(KeyboardInterrupt):
            survey_models(models, table, Here(7))
        assert [name for name in memory.find("/bucket") if not name.startswith("/bucket/.t.parquet.parts/0")] == []
        assert survey_models(models, table, Here()).kept == 7
        assert memory.find("/bucket") == ["/bucket/t.parquet"]
        assert survey_table(table).models == 20
        surveyed(folder, "t.parquet")
        assert read_table(table).drop_columns(["seconds"]).to_pylist() == rows_of(folder / "t.parquet")
    finally:
        memory.store.clear()


def test_a_file_that_is_no_table_is_never_replaced(folder: Path) -> None:
    table = folder / "t.parquet"
    table.write_bytes(b"PAR1 and more")
    with pytest.raises(UsageError, match=r"t\.parquet: cannot be read as a table"):
        survey_models({}, str(table), Here())
    assert table.read_bytes() == b"PAR1 and more"


def test_two_surveys_into_one_table(folder: Path) -> None:
    table = str(folder / "t.parquet")
    with RowStore(table, table_columns(()), ""), pytest.raises(UsageError, match="another survey writes it"):
        survey_models({}, table, Here())


def test_sources(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(folder)
    (folder / "list.txt").write_text("# two\nm/1/m0/model.onnx\n\nhttps://example.com/a.onnx\n")
    (folder / "m" / ".hidden").mkdir()
    (folder / "m" / ".hidden" / "x.onnx").write_bytes(b"")
    assert len(models_of(["m"], ())) == 20
    found = models_of(["m/[01]/**/*.onnx", "m/1"], ())
    assert list(found) == [f"m/{n}/m{k}/model.onnx" for n in (0, 1) for k in (0, 1)]
    size = Path("m/1/m0/model.onnx").stat().st_size
    assert found["m/1/m0/model.onnx"].startswith(f"{size}-")
    assert list(models_of(["list.txt"], ())) == ["https://example.com/a.onnx", "m/1/m0/model.onnx"]
    assert models_of(["-", "gone.onnx"], ["https://example.com/a.onnx\n"]) == {
        "gone.onnx": "",
        "https://example.com/a.onnx": "",
    }
    (folder / "m[0].onnx").write_bytes(b"")
    lines = ["m/[01]/m0/*.onnx", "m[0].onnx", "gone[1].onnx", "m/hostile"]  # of which two are the names of files
    assert [path for path in models_of(["-"], lines) if "hostile" not in path] == [
        "gone[1].onnx",
        "m/0/m0/model.onnx",
        "m/1/m0/model.onnx",
        "m[0].onnx",
    ]
    Path("empty").mkdir()
    with pytest.raises(UsageError, match=r"empty: has no \.onnx file in it"):
        models_of(["empty"], ())
    with pytest.raises(UsageError, match="nowhere: No such file or folder"):
        models_of(["nowhere"], ())


def test_the_worst_come_first(folder: Path) -> None:
    surveyed(folder, "t.parquet")
    made = survey_table(str(folder / "t.parquet"))
    at = {name: made.columns.index(name) for name in ("path", "error", "faults")}
    assert [row[at["error"]] is not None for row in made.rows] == [True] * 5 + [False] * 15
    faults = [row[at["faults"]] for row in made.rows[5:]]
    assert faults == sorted(faults, reverse=True)
    assert faults[0] > faults[-1]


@pytest.mark.cases(3)
@pytest.mark.parametrize(
    ("where", "chosen"),
    [
        (["error="], 15),
        (["error!="], 5),
        (["error"], 5),
        (["path~hostile"], 5),
        (["role=other", "faults>0"], 4),
        (["nodes<=1", "path~m"], 11),
        (["macs>0"], 3),
    ],
)
def test_conditions(folder: Path, where: list[str], chosen: int) -> None:
    surveyed(folder, "t.parquet")
    made = survey_table(str(folder / "t.parquet"), where=where, sort=["-nodes", "path"], most=2)
    assert (made.models, made.chosen, len(made.rows)) == (20, chosen, min(chosen, 2))


@pytest.mark.parametrize(
    ("where", "sort", "says"),
    [
        (["nods>1"], [], "--where nods>1: no column 'nods' - did you mean"),
        ([], ["-nods"], "--sort -nods: no column 'nods' - did you mean"),
        (["nodes"], [], "--where nodes: is no condition - write one such as"),
        (["merged-iff"], [], "--where merged-iff: is no condition - did you mean 'merged-if'?"),
        (["nodes>many"], [], "--where nodes>many: 'nodes' is a number - compare it with one"),
    ],
)
def test_bad_conditions(folder: Path, where: list[str], sort: list[str], says: str) -> None:
    survey_models({}, str(folder / "t.parquet"), Here())
    with pytest.raises(UsageError) as error:
        survey_table(str(folder / "t.parquet"), where=where, sort=sort)
    assert str(error.value).startswith(says)
