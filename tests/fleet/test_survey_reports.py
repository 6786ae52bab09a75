"""Pages about the models of a survey: what leads to them, and when they are written."""

from __future__ import annotations

import re
from pathlib import Path
from urllib.parse import unquote

import onnx
import pytest
from builders import proto_of
from here import Here, surveyed

from graphkit.errors import OutputError
from graphkit.fleet.survey import read_table, survey_models
from graphkit.fleet.survey_table import SurveyTable, survey_table
from graphkit.fleet.survey_task import RowOptions, SurveyTask, failed_row

NAMES = ("a/model", "b c/model", "b c/é#<b>")


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    """A folder with models, and one that is broken."""
    for name in NAMES:
        (tmp_path / "m" / name).parent.mkdir(parents=True, exist_ok=True)
        onnx.save(proto_of("(float[N, 4] x) => (float[N, 4] y) { y = Relu(x) }"), tmp_path / "m" / f"{name}.onnx")
    (tmp_path / "m" / "broken.onnx").write_bytes(b"\x08")
    return tmp_path


def links_of(made: SurveyTable) -> list[str]:
    return re.findall(r'<a href="([^"#]+)">', made.to_html())


def test_the_page_of_a_table_leads_to_the_report_of_each_model(folder: Path) -> None:
    surveyed(folder, "t.parquet", reports=str(folder / "t.reports"))
    (folder / "pages of").mkdir()
    made = survey_table(str(folder / "t.parquet"), sort=["path"], folder=str(folder / "pages of"))
    links = links_of(made)
    assert all(link.startswith("../t.reports/") for link in links)
    reports = [(folder / "pages of" / unquote(link)).read_text() for link in links]
    for name, text in zip(NAMES, reports, strict=True):
        assert f"m/{name}.onnx".replace("<b>", "&lt;b&gt;") in text
    assert made.columns[-1] == "report"
    assert [row[-1] for row in made.rows] == [*links, None]
    assert "report" not in made.to_csv().splitlines()[0]


def test_the_facts_are_those_without_reports(folder: Path) -> None:
    surveyed(folder, "plain.parquet")
    surveyed(folder, "t.parquet", reports=str(folder / "t.reports"))
    plain, rows = (read_table(str(folder / name)).drop_columns(["seconds"]) for name in ("plain.parquet", "t.parquet"))
    assert rows["report"].null_count == 1
    assert rows.drop_columns(["report"]).equals(plain.drop_columns(["report"]))
    assert links_of(survey_table(str(folder / "plain.parquet"))) == []


def test_a_page_that_is_gone_is_written_again(folder: Path) -> None:
    """At a URL too."""
    table, pages = (folder / "t.parquet").as_uri(), folder / "t.reports"
    surveyed(folder, table, reports=pages.as_uri())
    first, second, third = sorted(pages.iterdir())
    assert sorted(links_of(survey_table(table))) == [first.as_uri(), second.as_uri(), third.as_uri()]
    second.unlink()
    again = Here()
    surveyed(folder, table, again, reports=pages.as_uri())
    assert len(again.done) == 1
    assert second.is_file()
    surveyed(folder, table, again, reports=pages.as_uri())
    assert len(again.done) == 1


def test_rows_without_pages_are_done_again_where_pages_are_asked_for(folder: Path) -> None:
    surveyed(folder, "t.parquet")
    made = surveyed(folder, "t.parquet", reports=str(folder / "t.reports"))
    assert (made.kept, len(list((folder / "t.reports").iterdir()))) == (0, 3)


def test_what_may_be_a_credential_is_in_no_row_and_no_page(folder: Path) -> None:
    """Nor in an error, nor in the name of a page; two queries are two models."""
    url = (folder / "m" / "a" / "model.onnx").as_uri().replace("file://", "file://localhost")
    bad = "http://bob:hunter2@127.0.0.1:1/m.onnx?sig=q7first"
    models = {f"{url}?sig=q7first": "", f"{url}?sig=q7second": "", bad: ""}
    survey_models(models, str(folder / "t.parquet"), Here(), RowOptions(reports=str(folder / "t.reports"), timeout=60))
    rows = read_table(str(folder / "t.parquet"))
    paths = rows["path"].to_pylist()
    assert [re.sub("#[0-9a-f]{12}$", "#", path) for path in paths] == [
        f"{url}?...#",
        f"{url}?...#",
        "http://127.0.0.1:1/m.onnx?...#",
    ]
    assert len(set(paths)) == 3
    assert rows["error"].to_pylist()[:2] == [None, None]
    pages = list((folder / "t.reports").iterdir())
    told = [repr(rows.to_pylist()), *(page.name for page in pages), *(page.read_text() for page in pages)]
    words = ("bob:", "hunter2", "q7first", "q7second")
    assert [word for word in words for text in told if word in text] == []
    assert failed_row(SurveyTask(bad), "", 0)["path"] == paths[2]


def test_a_folder_that_takes_no_pages_is_an_error_at_once(folder: Path) -> None:
    (folder / "t.reports").write_text("no folder")
    executor = Here()
    with pytest.raises(OutputError, match=r"t\.reports: cannot be read: Not a directory - check the path"):
        surveyed(folder, "t.parquet", executor, reports=str(folder / "t.reports"))
    assert executor.done == []
