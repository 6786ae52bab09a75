from __future__ import annotations

import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import msgspec
import onnx
import pytest
from builders import proto_of
from google.protobuf.message import EncodeError

from graphkit.fleet import local_pool
from graphkit.fleet.local_pool import LocalPool
from graphkit.fleet.survey_task import Row, SurveyTask, failed_row
from graphkit.progress import Limits

LIMITS = Limits(seconds=5.0, memory=1 << 30)
TASK = msgspec.to_builtins(SurveyTask("m.onnx"))  # as a process is told


@pytest.fixture
def poisoned(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    monkeypatch.setattr(local_pool, "PROCESS", "poisoned_worker")
    return


@pytest.mark.usefixtures("poisoned")
def test_a_crash_costs_one_row() -> None:
    done = LocalPool(1, LIMITS).rows(SurveyTask(path) for path in ("a", "crash", "b"))
    rows = {row["path"]: str(row["error"]) for row in done}  # those done at the same time come in any order
    assert rows["crash"].startswith("crash: it ends the process with SIGSEGV")
    assert rows["a"].startswith("pid ")
    assert rows["b"].startswith("pid ")
    assert rows["a"] != rows["b"]


@pytest.mark.slow
@pytest.mark.usefixtures("poisoned")
def test_a_poisoned_model_costs_its_own_row_alone() -> None:
    paths = ["a", "crash", "b", "hang", "c", "exit", "d", "large", "e"]
    rows = {row["path"]: str(row["error"]) for row in LocalPool(1, LIMITS).rows(SurveyTask(path) for path in paths)}
    assert sorted(rows) == sorted(paths)
    assert rows["crash"].startswith("crash: it ends the process with SIGSEGV")
    assert rows["hang"] == "hang: it does not finish in 5 s"
    assert rows["exit"] == "exit: it ends the process with code 1 (RecursionError: too deep)"
    assert rows["large"] == "large: it needs more than the 1,073,741,824 bytes that --memory allows"
    processes = [rows[path] for path in "abcde"]
    assert all(row.startswith("pid ") for row in processes)
    assert len(set(processes)) == 5  # a new one after each


@pytest.mark.slow
@pytest.mark.usefixtures("poisoned")
def test_a_process_does_a_bounded_number_of_tasks(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(local_pool, "MOST_TASKS", 3)
    pids = [row["error"] for row in LocalPool(1, LIMITS).rows(SurveyTask(str(number)) for number in range(7))]
    assert [pids.count(pid) for pid in dict.fromkeys(pids)] == [3, 3, 1]


@pytest.mark.usefixtures("poisoned")
def test_a_process_in_which_tasks_left_much_behind_is_replaced() -> None:
    """And no other one: to start a process takes longer than many models."""
    paths = [
        *map(str, range(130)),
        f"leaves {local_pool.MOST_LEFT}",
        "a",
        f"leaves {local_pool.MOST_LEFT + 1}",
        "b",
    ]
    pids = [row["error"] for row in LocalPool(1, LIMITS).rows(SurveyTask(path) for path in paths)]
    assert [pids.count(pid) for pid in dict.fromkeys(pids)] == [133, 1]


def test_a_process_tells_what_tasks_leave_behind(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(local_pool, "MOST_LEFT", -1)  # less than any
    process = local_pool.TaskProcess(LIMITS, 1 << 30)
    assert "No such file" in str(process.row(SurveyTask(str(tmp_path / "m.onnx")))["error"])
    assert process._worker is None


def test_a_survey_starts_processes_before_it_loads_onnx() -> None:
    """What the survey itself imports, no process has begun to work yet: those import it at the same time."""
    modules = "graphkit.cli.read_commands, graphkit.fleet.survey, graphkit.fleet.local_pool, graphkit.fleet.survey"
    code = f"import sys, {modules}\nprint(*{{'numpy', 'onnx'}} & set(sys.modules))"
    assert subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True).stdout == "\n"


def test_what_others_left_behind_is_not_the_memory_of_a_model(monkeypatch: pytest.MonkeyPatch) -> None:
    limits: list[int] = []
    monkeypatch.setattr(local_pool, "limit_memory", limits.append)
    monkeypatch.setattr(local_pool, "allocated_bytes", lambda: 700)
    request = {"task": TASK, "memory": 1000, "folder": ""}
    answer = local_pool._reply_to_task(lambda task: failed_row(task, "it is broken", 0.0), 200, request)
    assert limits == [700 + local_pool.ROOM + 1000]
    assert answer["left"] == 500


@pytest.mark.parametrize("of", [MemoryError, EncodeError])
def test_memory_that_runs_out_says_so_in_two_ways(of: type[Exception], monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(local_pool, "limit_memory", print)

    def row_of(_: SurveyTask) -> Row:
        raise of

    assert local_pool._reply_to_task(row_of, 0, {"task": TASK, "memory": 1, "folder": ""}) == {}


@pytest.mark.cases("27262976")
@pytest.mark.parametrize("more", [26 << 20, 64 << 20])  # more than is parsed, more than is read
def test_a_model_that_needs_more_memory_than_it_may(more: int, tmp_path: Path) -> None:
    model = proto_of("(float[N, 4] x) => (float[N, 4] y) { y = Relu(x) }")
    model.doc_string = "m" * more
    onnx.save(model, tmp_path / "m.onnx")
    (row,) = LocalPool(1, Limits(memory=1 << 20)).rows([SurveyTask(str(tmp_path / "m.onnx"))])
    assert str(row["error"]).endswith("m.onnx: it needs more than the 1,048,576 bytes that --memory allows")


def test_a_folder_that_is_not_there(tmp_path: Path) -> None:
    """A worker of another machine may not see the folder that paths begin at."""
    (row,) = LocalPool(1, folder=str(tmp_path / "gone")).rows([SurveyTask("m/a.onnx")])
    assert row["error"] == "m/a.onnx: cannot be opened: No such file or directory - check the path"
