"""Files that belong together, under every fault: each step fails, each step is the last one of a killed process."""

from __future__ import annotations

import errno
import os
import pathlib
import signal
import subprocess
import sys
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest
from real_models import params

from graphkit.errors import OutputError
from graphkit.io import transaction as module
from graphkit.io.transaction import made_folder, recover_unfinished, write_all_or_none

NAMES = ("m.data", "first.onnx", "second.onnx")
Files = dict[str, str]
OLD = {name: f"old {name}" for name in NAMES}
NEW = {name: f"new {name}" for name in NAMES}
# what is there before, and what is written
CASES = {
    "none before": ({}, NEW),
    "all before": (OLD, NEW),
    "no data before": ({name: OLD[name] for name in NAMES[1:]}, NEW),
    "no data after": (OLD, {name: NEW[name] for name in NAMES[1:]}),
}
STEPS = ("replace", "link", "unlink", "mkdir", "open")  # of `os`, which `Path` calls


def state(folder: Path) -> Files:
    return {path.name: path.read_text() for path in folder.iterdir() if path.is_file()}


def hidden(folder: Path) -> list[Path]:
    return [path for path in folder.iterdir() if module.MARK in path.name]


def write(folder: Path, files: Files, overwrite: bool = True) -> None:
    targets = [folder / name for name in NAMES]
    with write_all_or_none(targets, key=targets[1], overwrite=overwrite, hint="check") as place:
        for name, text in files.items():
            place(folder / name).write_text(text)


def put(folder: Path, files: Files) -> None:
    for path in folder.iterdir():
        path.unlink()
    for name, text in files.items():
        (folder / name).write_text(text)


def at_step(monkeypatch: pytest.MonkeyPatch, number: int, act: Callable[[], None]) -> list[int]:
    """Let something happen before a step is taken, counted from 1; return the steps so far."""
    steps = [0]
    for name in STEPS:
        real = getattr(os, name)

        def counted(*arguments: object, real: Callable[..., object] = real, **more: object) -> object:
            steps[0] += 1
            if steps[0] == number:
                act()
            return real(*arguments, **more)

        monkeypatch.setattr(os, name, counted)
        accessor = getattr(pathlib, "_NormalAccessor", None)  # of Python 3.10, which keeps them from the start
        if getattr(accessor, name, None) is real:
            monkeypatch.setattr(accessor, name, staticmethod(counted))
    return steps


def fail() -> None:
    raise OSError(errno.EIO, "Input/output error")


def consistent(found: Files, before: Files, after: Files) -> bool:
    """Whether each model that is there stands beside the data that it was written with."""
    models = [name for name in NAMES[1:] if name in found]
    of_before = all(found[name] == before.get(name) for name in models)
    of_after = all(found[name] == after.get(name) for name in models)
    data = NAMES[0]
    return (of_before and (data not in before or not models or found.get(data) == before[data])) or (
        of_after and (data not in after or found.get(data) == after[data])
    )


@pytest.mark.parametrize("case", CASES)
def test_where_a_step_fails_all_is_as_before_or_as_after(
    case: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    before, after = CASES[case]
    failed = 0
    for number in range(1, 200):
        put(tmp_path, before)
        with monkeypatch.context() as patch:
            steps = at_step(patch, number, fail)
            try:
                write(tmp_path, after)
                error = None
            except OutputError as caught:
                error = caught
        left = before if error is not None else {**before, **after}
        assert state(tmp_path) == left, (number, error)
        if error is not None:
            failed += 1
            assert not hidden(tmp_path)
            assert any(
                f"{tmp_path / name}: cannot be written: Input/output error - check" == str(error) for name in NAMES
            )
        recover_unfinished(tmp_path / NAMES[1])  # where the step that failed was one of clearing away
        if steps[0] < number:
            break
    assert failed >= 8


@pytest.mark.skipif(not hasattr(os, "fork"), reason="no forks here")
@pytest.mark.parametrize("case", params(CASES, slow=CASES.keys() - {"none before"}))
def test_where_it_is_killed_no_model_has_wrong_data_and_the_next_run_repairs(
    case: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    before, after = CASES[case]
    killed = 0
    for number in range(1, 200):
        put(tmp_path, before)
        child = os.fork()
        if not child:
            at_step(monkeypatch, number, lambda: os.kill(os.getpid(), signal.SIGKILL))
            write(tmp_path, after)
            os._exit(0)
        _, status = os.waitpid(child, 0)
        assert consistent(state(tmp_path), before, after), number
        recover_unfinished(tmp_path / NAMES[1])
        assert state(tmp_path) in (before, {**before, **after}), number
        assert not hidden(tmp_path)
        if not status:
            break
        killed += 1
        write(tmp_path, after)
        assert state(tmp_path) == {**before, **after}
    assert killed > 8


@pytest.mark.slow
@pytest.mark.skipif(not hasattr(os, "fork"), reason="no forks here")
def test_a_repair_that_is_killed_is_repaired(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def leave(act_at: int, work: Callable[[], None]) -> int:
        child = os.fork()
        if not child:
            at_step(monkeypatch, act_at, lambda: os.kill(os.getpid(), signal.SIGKILL))
            work()
            os._exit(0)
        return os.waitpid(child, 0)[1]

    put(tmp_path, OLD)
    for number in range(1, 60):
        put_back = leave(14, lambda: write(tmp_path, NEW))
        assert put_back
        ended = not leave(number, lambda: recover_unfinished(tmp_path / NAMES[1]))
        assert consistent(state(tmp_path), OLD, NEW)
        recover_unfinished(tmp_path / NAMES[1])
        assert (state(tmp_path), hidden(tmp_path)) == (OLD, [])
        if ended:
            return
    pytest.fail("it never ended")


def test_nothing_of_a_process_that_lives_is_touched(tmp_path: Path) -> None:
    targets = [tmp_path / name for name in NAMES]
    with write_all_or_none(targets, key=targets[1], overwrite=True, hint="check") as place:
        for name in NAMES:
            place(tmp_path / name).write_text(NEW[name])
        (working,) = hidden(tmp_path)
        with write_all_or_none(targets, key=targets[1], overwrite=True, hint="check") as other:
            for name in NAMES:
                other(tmp_path / name).write_text("other")
        assert hidden(tmp_path) == [working]
        assert set(state(tmp_path).values()) == {"other"}
    assert (state(tmp_path), hidden(tmp_path)) == (NEW, [])


def test_without_overwrite_what_comes_meanwhile_stays(tmp_path: Path) -> None:
    for late in NAMES:
        put(tmp_path, {})
        targets = [tmp_path / name for name in NAMES]
        entered = write_all_or_none(targets, key=targets[1], overwrite=False, hint="check")
        place = entered.__enter__()
        for name in NAMES:
            place(tmp_path / name).write_text(NEW[name])
        (tmp_path / late).write_text("precious")
        with pytest.raises(OutputError, match=f"{late}: exists - name another output with -o"):
            entered.__exit__(None, None, None)
        assert (state(tmp_path), hidden(tmp_path)) == ({late: "precious"}, [])


RACE = """
import sys
from pathlib import Path
from graphkit.errors import OutputError
from graphkit.io.transaction import write_all_or_none
folder, me = Path(sys.argv[1]), sys.argv[2]
targets = [folder / name for name in ("m.data", "first.onnx", "second.onnx")]
print("ready", flush=True)
sys.stdin.readline()
for number in range(30):
    try:
        with write_all_or_none(targets[number % 2:], key=targets[1], overwrite=False, hint="") as place:
            for target in targets[number % 2:]:
                place(target).write_text(me)
    except OutputError:
        print("lost", flush=True)
    else:
        print("won", flush=True)
    sys.stdin.readline()
"""


def test_of_two_at_the_same_time_one_succeeds(tmp_path: Path) -> None:
    command = [sys.executable, "-c", RACE, str(tmp_path)]
    environment = {**os.environ, "PYTHONPATH": os.pathsep.join(sys.path)}
    racers = [
        subprocess.Popen([*command, name], stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True, env=environment)
        for name in "ab"
    ]
    for racer in racers:
        assert racer.stdout is not None
        assert racer.stdout.readline() == "ready\n"
    for number in range(30):
        for racer in racers:
            assert racer.stdin is not None
            racer.stdin.write("go\n")
            racer.stdin.flush()
        said = [racer.stdout.readline() for racer in racers if racer.stdout is not None]
        assert sorted(said) == ["lost\n", "won\n"]
        winner = "ab"[said.index("won\n")]
        assert state(tmp_path) == dict.fromkeys(NAMES[number % 2 :], winner)
        put(tmp_path, {})
    for racer in racers:
        racer.communicate("\n")


def test_a_file_system_without_hard_links_serves_too(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def refuse(*_: object) -> None:
        raise OSError(errno.EPERM, "Operation not permitted")

    monkeypatch.setattr(os, "link", refuse)
    put(tmp_path, OLD)
    write(tmp_path, NEW)
    assert (state(tmp_path), hidden(tmp_path)) == (NEW, [])
    with pytest.raises(OutputError, match=r"m\.data: exists"):
        write(tmp_path, OLD, overwrite=False)
    assert (state(tmp_path), hidden(tmp_path)) == (NEW, [])


def test_an_old_file_that_cannot_be_put_back_is_kept_and_named(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    put(tmp_path, OLD)
    real, links = os.link, [0]

    def refuse_from_the_second(*arguments: object, **more: object) -> None:
        links[0] += 1
        if links[0] > 1:
            raise FileExistsError(errno.EEXIST, "File exists")
        real(*arguments, **more)  # type: ignore[arg-type]

    with monkeypatch.context() as patch:
        patch.setattr(os, "link", refuse_from_the_second)
        with pytest.raises(OutputError) as caught:
            write(tmp_path, NEW)
    (work,) = hidden(tmp_path)
    assert str(caught.value) == (
        f"{tmp_path / 'm.data'}: the file from before cannot be put back: something else stands there"
        f" - it is in {work / 'old'}; move it, then remove that folder"
    )
    write(tmp_path, NEW)  # which puts it back first
    assert (state(tmp_path), hidden(tmp_path)) == (NEW, [])


@pytest.mark.parametrize("journal", ["", "[]", '{"../victim": 1}', '{"a/b": 1}', "{", '"x"'])
def test_a_journal_of_somebody_else_moves_nothing(journal: str, tmp_path: Path) -> None:
    folder = tmp_path / "folder"
    work = folder / f".first.onnx{module.MARK}0"
    (work / "new").mkdir(parents=True)
    (work / "old").mkdir()
    (tmp_path / "victim").write_text("precious")
    (work / "journal").write_text(journal)
    with pytest.raises(OutputError, match="is no journal of graphkit's - look through"):
        recover_unfinished(folder / "first.onnx")
    assert (tmp_path / "victim").read_text() == "precious"
    assert work.is_dir()


def test_a_journal_that_names_another_file_does_not_touch_it(tmp_path: Path) -> None:
    work = tmp_path / f".first.onnx{module.MARK}0"
    (work / "new").mkdir(parents=True)
    (tmp_path / "first.onnx").write_text("precious")
    (work / "journal").write_text('{"first.onnx": 1}')
    recover_unfinished(tmp_path / "first.onnx")
    assert (state(tmp_path), hidden(tmp_path)) == ({"first.onnx": "precious"}, [])


@pytest.fixture
def stops() -> Iterator[list[int]]:
    came: list[int] = []
    before = signal.signal(signal.SIGTERM, lambda number, _: came.append(number))
    yield came
    signal.signal(signal.SIGTERM, before)


@pytest.mark.skipif(os.name != "posix", reason="signals are those of POSIX")
def test_a_signal_waits_for_the_renaming(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, stops: list[int]) -> None:
    put(tmp_path, OLD)
    seen = []
    real = os.link

    def link(*arguments: object, **more: object) -> None:
        os.kill(os.getpid(), signal.SIGTERM)
        seen.append(len(stops))
        real(*arguments, **more)  # type: ignore[arg-type]

    monkeypatch.setattr(os, "link", link)
    write(tmp_path, NEW)
    assert (seen, stops) == ([0, 0, 0], [signal.SIGTERM] * 3)
    assert (state(tmp_path), hidden(tmp_path)) == (NEW, [])


def test_folders_that_were_made_for_nothing_go(tmp_path: Path) -> None:
    with pytest.raises(KeyboardInterrupt), made_folder(tmp_path / "a" / "b"):
        raise KeyboardInterrupt
    assert not list(tmp_path.iterdir())
    (tmp_path / "a").mkdir()
    (tmp_path / "a" / "other").touch()
    with pytest.raises(KeyError), made_folder(tmp_path / "a" / "b"):
        raise KeyError
    assert [path.name for path in (tmp_path / "a").iterdir()] == ["other"]
    with pytest.raises(OutputError, match="cannot be made: Not a directory - name another folder with -o"):
        made_folder(tmp_path / "a" / "other" / "c").__enter__()
    with made_folder(tmp_path / "a" / "b"):
        pass
    assert (tmp_path / "a" / "b").is_dir()
