"""What a model does to its process stays there: it dies, never ends, or takes all memory, and the run has failed."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Iterator
from pathlib import Path

import numpy as np
import onnx
import psutil
import pytest
from builders import model_of
from hostile_models import ADDS, DIVIDES, FATAL, GROWS, NEVER_ENDS, OF_EVERY_KIND

from graphkit.errors import GraphkitError, ModelError
from graphkit.model import load
from graphkit.progress import HAS_MEMORY_LIMIT, Limits
from graphkit.runtime import isolation as isolation_module
from graphkit.runtime import session as session_module
from graphkit.runtime.isolation import current_process, describe_ending, shared_isolation, start_ahead
from graphkit.runtime.onnxruntime_loader import open_model
from graphkit.runtime.session import IsolatedSession, RunError, Session, SmallModel, run_small_models
from graphkit.runtime.worker import Message
from graphkit.verify.comparator import compare_outputs

X, Z = FATAL
MEMORY = 300_000_000


def divided(session: IsolatedSession) -> list[int]:
    return list(session.run({"x": np.array([8]), "z": np.array([2])})["y"])


@pytest.mark.parametrize("optimize", [False, True])
def test_outputs_of_every_kind_are_those_of_a_session_here(optimize: bool) -> None:
    made = model_of(OF_EVERY_KIND)
    for size in (3, 0):
        feed = {
            "x": np.linspace(0, 1, size, dtype=np.float32),
            "i": np.arange(size),
            "s": np.array(["a", "ö\n", ""][:size], dtype=object),
        }
        isolated = IsolatedSession(made, optimize=optimize).run(feed)
        found = compare_outputs(Session(made, optimize=optimize).run(feed), isolated)
        assert [(one.output, one.exact) for one in found] == [(name, True) for name in "ylotb"]


def test_arrays_may_have_any_layout_and_outputs_stay_as_they_are(tmp_path: Path) -> None:
    made = model_of("t (float[a, b] x) => (float[b, a] y) { y = Transpose (x) }")
    path = tmp_path / "t.onnx"
    onnx.save(made.proto, path)
    session = IsolatedSession(path, threads=1, prepack=False)
    first = np.arange(12, dtype=np.float32).reshape(3, 4)
    outputs = [session.run({"x": array})["y"] for array in (first, first.T, first[::2, ::-1])]
    np.testing.assert_array_equal(outputs[0], first.T)
    np.testing.assert_array_equal(outputs[1], first)
    np.testing.assert_array_equal(outputs[2], first[::2, ::-1].T)
    assert (session.label, session.inputs, session.outputs) == (str(path), ["x"], ["y"])


def test_an_error_does_not_name_a_place_in_the_sources_of_onnxruntime() -> None:
    made = model_of("r (float[n] x, int64[2] s) => (float[a, b] y) { y = Reshape (x, s) }")
    with pytest.raises(RunError) as caught:
        Session(made).run({"x": np.ones(3, np.float32), "s": np.array([2, 2])})
    assert "reshape_helper.h" in caught.value.message
    assert "reshape_helper.h" not in str(caught.value)
    assert "Input shape:{3}, requested shape:{2,2}" in str(caught.value)
    assert "::" not in str(caught.value)  # of the signature of its function


def test_what_onnxruntime_says_is_the_same(tmp_path: Path) -> None:
    made = model_of(ADDS)
    messages = []
    for session in (Session(made), IsolatedSession(made)):
        with pytest.raises(RunError) as caught:
            session.run({"x": np.ones((2, 2), np.float32)})
        messages.append((str(caught.value), caught.value.message))
    assert messages[0] == messages[1]
    (tmp_path / "bad.onnx").write_bytes(
        model_of("g (float[n] x) => (float[n] y) { y = custom.No (x) }").proto.SerializeToString()
    )
    for kind in (Session, IsolatedSession):
        with pytest.raises(ModelError, match=r"bad\.onnx: onnxruntime does not load it: .*custom.* - see whether"):
            kind(tmp_path / "bad.onnx")


@pytest.mark.skipif(os.name != "posix", reason="signals are those of POSIX")
def test_a_death_is_a_failed_run_and_the_next_gets_a_new_process() -> None:
    with shared_isolation():
        session, other = IsolatedSession(model_of(DIVIDES)), IsolatedSession(model_of(ADDS))
        with pytest.raises(RunError) as caught:
            session.run({"x": X, "z": Z})
        assert caught.value.signal == "SIGFPE"
        assert str(caught.value) == (
            "divides: it ends the process with SIGFPE, an integer division that has no result - it ran at x [1], z [1]"
        )
        assert divided(session) == [4]
        assert list(other.run({"x": np.ones(1, np.float32)})["y"]) == [2]


@pytest.mark.skipif(os.name != "posix", reason="signals are those of POSIX")
def test_one_that_always_dies_is_not_tried_for_ever() -> None:
    with shared_isolation():
        session = IsolatedSession(model_of(DIVIDES))
        reasons = []
        for _ in range(6):
            with pytest.raises(RunError) as caught:
                session.run({"x": X, "z": Z})
            reasons.append(caught.value.problem[:7])
    assert reasons == ["it ends"] * 4 + ["not run"] * 2


def test_one_that_never_ends_is_ended_and_not_tried_for_ever() -> None:
    with shared_isolation(Limits(seconds=1.0)):
        session, other = IsolatedSession(model_of(NEVER_ENDS)), IsolatedSession(model_of(ADDS))
        reasons = []
        for _ in range(4):
            with pytest.raises(RunError) as caught:
                session.run({"x": np.array([1])})
            reasons.append(caught.value.problem)
        assert list(other.run({"x": np.ones(1, np.float32)})["y"]) == [2]
    assert reasons == ["it does not finish in 1 s"] * 2 + ["not run: 2 runs before took too long"] * 2


@pytest.mark.skipif(not HAS_MEMORY_LIMIT, reason="no limit of memory here")
@pytest.mark.usefixtures("one_spare")
def test_one_that_takes_gigabytes_fails_and_runs_on_at_other_sizes() -> None:
    with shared_isolation(Limits(memory=MEMORY)):
        session = IsolatedSession(model_of(GROWS))
        for size in (1 << 30, 1 << 40):
            with pytest.raises(
                RunError,
                match="it needs more memory than the 300,000,000 bytes beyond its weights that --memory allows: ",
            ):
                session.run({"x": np.array([size])})
        assert session.run({"x": np.array([1 << 20])})["y"].shape == (1 << 20,)


@pytest.mark.slow
@pytest.mark.usefixtures("one_spare")
def test_outputs_that_are_too_large_to_hold_are_not_taken() -> None:
    with shared_isolation(Limits(memory=4 * MEMORY)):
        session = IsolatedSession(model_of(GROWS))
        with pytest.raises(
            RunError, match=r"its outputs have 280,000,000 bytes, more than the 268,435,456 .* - raise it"
        ):
            session.run({"x": np.array([70_000_000])})
        alone = IsolatedSession(model_of(GROWS), held_runs=2)  # a cache, of which there is one or two
        assert alone.run({"x": np.array([70_000_000])})["y"].shape == (70_000_000,)
        assert session.run({"x": np.array([9])})["y"].shape == (9,)


@pytest.mark.slow
@pytest.mark.skipif(not HAS_MEMORY_LIMIT, reason="no limit of memory here")
@pytest.mark.usefixtures("one_spare")
def test_weights_count_beside_the_memory(tmp_path: Path) -> None:
    made = model_of(
        "w (float[n, 8192] x) => (float[n, m] y) { y = MatMul (x, w) }", w=np.ones((8192, 3000), np.float32)
    )
    path = tmp_path / "w.onnx"
    onnx.save(made.proto, path)
    with shared_isolation(Limits(memory=20_000_000)):  # of weights 98 MB
        assert IsolatedSession(path).run({"x": np.ones((1, 8192), np.float32)})["y"][0, 0] == 8192
        assert IsolatedSession(made).run({"x": np.ones((1, 8192), np.float32)})["y"][0, 0] == 8192


def test_a_file_that_has_gone_is_one_clear_error(tmp_path: Path) -> None:
    path = tmp_path / "m.onnx"
    onnx.save(model_of("m (float[n] x) => (float[n] y) { y = Neg (x) }").proto, path)
    loaded = load(path)
    path.unlink()
    with pytest.raises(ModelError, match=r"m\.onnx: cannot be opened: No such file or directory - check the path$"):
        IsolatedSession(path, known=loaded)


def children() -> set[int]:
    return {child.pid for child in psutil.Process().children()}


@pytest.fixture
def one_spare(monkeypatch: pytest.MonkeyPatch) -> None:
    """Keep one process that nobody uses, as outside of tests."""
    monkeypatch.setattr(isolation_module, "_SPARE", isolation_module._Spare())


@pytest.fixture
def no_spare(one_spare: None) -> Iterator[None]:  # noqa: ARG001 - it is of the place that there is
    """Start without a process that nobody uses."""
    isolation_module._SPARE.take().close()
    yield
    isolation_module._SPARE.take().close()


@pytest.mark.usefixtures("no_spare")
def test_sessions_share_a_process_which_is_kept_for_the_next() -> None:
    before = children()
    with shared_isolation():
        first, second = IsolatedSession(model_of(DIVIDES)), IsolatedSession(model_of(ADDS))
        assert divided(first) == [4]
        assert list(second.run({"x": np.ones(1, np.float32)})["y"]) == [2]
        mine = children() - before
        assert len(mine) == 1
    with shared_isolation():
        assert divided(IsolatedSession(model_of(DIVIDES))) == [4]
        assert children() - before == mine
    assert divided(first) == [4]  # one that outlives its isolation is loaded again


@pytest.mark.usefixtures("no_spare")
def test_a_process_is_started_ahead_once_and_not_beside_one_that_is_there() -> None:
    before = children()
    with shared_isolation():
        start_ahead()
        assert len(children() - before) == 1
    start_ahead()
    start_ahead()
    assert len(children() - before) == 1


@pytest.mark.usefixtures("no_spare")
def test_closed_sessions_give_back_their_memory_where_an_inner_isolation_ends() -> None:
    model = model_of("g (float[n] x) => (float[n] y) { y = Add (x, w) }", w=np.ones(1 << 22, np.float32))
    with shared_isolation():
        process = current_process()
        assert process is not None
        with shared_isolation():
            session = IsolatedSession(model)
            child = psutil.Process(process.worker._process.pid)
            before = child.memory_info().rss
            del session
        assert child.memory_info().rss < before - (1 << 23)


def test_a_session_that_is_loaded_beside_other_work_gives_the_same() -> None:
    with shared_isolation():
        beside, here = IsolatedSession(model_of(DIVIDES), beside=True), IsolatedSession(model_of(DIVIDES))
        assert divided(here) == [4]
        beside.wait()
        assert divided(beside) == [4]


def test_a_model_that_does_not_load_beside_other_work_says_why_where_it_is_waited_for() -> None:
    with shared_isolation():
        session = IsolatedSession(model_of("g (float[n] x) => (float[n] y) { y = Unheard (x) }"), beside=True)
        with pytest.raises(ModelError, match=r"onnxruntime does not load it: .*Unheard"):
            session.wait()


def test_small_models_run_in_order_beside_other_work_whatever_one_of_them_does() -> None:
    """More than fit in one request."""
    content = model_of(ADDS).proto.SerializeToString()
    feeds = [{"x": np.full(1, number, np.float32)} for number in range(300)]
    models: list[SmallModel] = [(content, [feed]) for feed in feeds]
    models[150] = model_of(DIVIDES).proto.SerializeToString(), [{"x": X, "z": Z}]
    with shared_isolation():
        first, second = run_small_models(models), run_small_models(models[:1])
        found = [*first]
        assert [outputs[-1].tolist() for (outputs,) in second] == [[0.0]]
    assert isinstance(found[150], str)
    assert "SIGFPE" in found[150]
    del found[150]
    assert [outputs[-1].tolist() for (outputs,) in found] == [[number * 2.0] for number in range(300) if number != 150]


@pytest.mark.usefixtures("one_spare")
def test_a_process_outlives_the_thread_that_first_asked_for_it() -> None:
    made: list[IsolatedSession] = []
    thread = threading.Thread(target=lambda: made.append(IsolatedSession(model_of(DIVIDES))))
    thread.start()
    thread.join()
    time.sleep(0.2)  # in which the signal would come
    assert divided(made[0]) == [4]


def test_a_session_is_loaded_again_where_a_model_beside_it_ended_the_process() -> None:
    dies: SmallModel = model_of(DIVIDES).proto.SerializeToString(), [{"x": X, "z": Z}]
    with shared_isolation():
        session = IsolatedSession(model_of(DIVIDES), beside=True)
        (found,) = run_small_models([dies])
        assert "SIGFPE" in found
        session.wait()
        assert divided(session) == [4]


def test_a_session_is_loaded_whatever_is_cancelled_beside_it() -> None:
    content = model_of(ADDS).proto.SerializeToString()
    with shared_isolation() as process:
        run_small_models([(content, [{"x": np.ones(1, np.float32)}])] * 200)
        session = IsolatedSession(model_of(DIVIDES), beside=True)
        process.cancel()
        session.wait()
        assert divided(session) == [4]


def test_what_was_begun_and_nobody_waits_for_does_not_outlive_its_isolation() -> None:
    content = model_of(NEVER_ENDS).proto.SerializeToString()
    with shared_isolation() as process:
        run_small_models([(content, [{"x": np.array([1])}])] * 200)
        process.cancel()
        threads = threading.enumerate()
    assert not [each for each in threads if each.is_alive() and isinstance(each, isolation_module._Later)]


@pytest.mark.usefixtures("one_spare")
def test_a_process_that_nobody_uses_ends(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(isolation_module, "IDLE", 0.1)
    before = children()
    with shared_isolation():
        IsolatedSession(model_of(ADDS))
        mine = children() - before
    while mine & children():
        time.sleep(0.02)


@pytest.mark.skipif(not hasattr(signal, "setitimer"), reason="no timers here")
def test_an_interrupted_run_leaves_no_answer_for_the_next() -> None:
    def interrupt(*_: object) -> None:
        raise KeyboardInterrupt

    with shared_isolation():
        session, other = IsolatedSession(model_of(NEVER_ENDS)), IsolatedSession(model_of(DIVIDES))
        before = signal.signal(signal.SIGALRM, interrupt)
        try:
            signal.setitimer(signal.ITIMER_REAL, 0.2)
            with pytest.raises(KeyboardInterrupt):
                session.run({"x": np.array([1])})
        finally:
            signal.signal(signal.SIGALRM, before)
        assert divided(other) == [4]


PARENT = """
import sys, numpy as np, psutil, threading
sys.path.insert(0, sys.argv[1])
from hostile_models import NEVER_ENDS
from builders import model_of
from graphkit.runtime.session import IsolatedSession
session = IsolatedSession(model_of(NEVER_ENDS))
print(psutil.Process().children()[0].pid, flush=True)
session.run({"x": np.array([1])})
"""


@pytest.mark.skipif(os.name != "posix", reason="signals are those of POSIX")
@pytest.mark.parametrize(
    "end", [signal.SIGKILL, *(pytest.param(end, marks=pytest.mark.slow) for end in (signal.SIGTERM, signal.SIGINT))]
)
def test_a_process_dies_with_its_parent_and_leaves_nothing(end: signal.Signals, tmp_path: Path) -> None:
    environment = {**os.environ, "TMPDIR": str(tmp_path), "PYTHONPATH": os.pathsep.join(sys.path)}
    command = [sys.executable, "-c", PARENT, str(Path(__file__).parent)]
    shared = Path("/dev/shm")
    before = set(shared.iterdir()) if shared.is_dir() else set()
    parent = subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.DEVNULL, env=environment)
    assert parent.stdout is not None
    child = psutil.Process(int(parent.stdout.readline()))
    time.sleep(0.1)
    parent.send_signal(end)
    parent.wait()
    parent.stdout.close()
    child.wait()
    assert [path.name for path in tmp_path.iterdir() if path.name != ".ses"] == []  # which is onnxruntime's
    assert not {path for path in shared.iterdir() if "graphkit" in path.name} - before if before else True


@pytest.mark.usefixtures("one_spare")
def test_a_process_that_does_not_start_says_why(monkeypatch: pytest.MonkeyPatch) -> None:
    isolation_module._SPARE.take().close()
    monkeypatch.setattr(isolation_module, "START", "import no_such_module")
    with pytest.raises(GraphkitError, match="does not start: ModuleNotFoundError: No module named 'no_such_module'"):
        IsolatedSession(model_of(ADDS))


@pytest.mark.parametrize(
    ("code", "text"),
    [
        (3, "it ends the process with code 3"),
        (-11, "it ends the process with SIGSEGV, memory that is not its own"),
        (-6, "it ends the process with SIGABRT"),
        (-9, "it ends the process with SIGKILL, perhaps the system ran out of memory"),
    ],
)
@pytest.mark.skipif(os.name != "posix", reason="signals are those of POSIX")
def test_an_ending_is_told_in_words(code: int, text: str) -> None:
    assert describe_ending(code) == text


def test_threads_of_a_small_model_do_not_wait_in_a_busy_loop(monkeypatch: pytest.MonkeyPatch) -> None:
    ask, loaded = isolation_module.Process.ask, []

    def told(process: isolation_module.Process, request: Message, seconds: float, **values: object) -> Message:
        loaded.extend([request["options"]["spin"]] if request["do"] == "load" else [])
        return ask(process, request, seconds, **values)

    monkeypatch.setattr(isolation_module.Process, "ask", told)
    made = model_of(ADDS)
    for size in (0, 1):  # from which on a model is large
        monkeypatch.setattr(session_module, "SMALL", size)
        IsolatedSession(made).close()
    assert loaded == [True, False]


@pytest.mark.parametrize("spin", [True, False])
def test_waiting_in_a_busy_loop_is_an_option_of_a_session(spin: bool) -> None:
    options = {"optimize": False, "threads": 0, "prepack": True, "spin": spin}
    session = open_model(model_of(ADDS).proto.SerializeToString(), folder=None, **options)
    entry = session.get_session_options().get_session_config_entry("session.intra_op.allow_spinning")
    assert entry == str(int(spin))


def test_alarms_ring_in_the_order_of_their_times_unless_they_are_cancelled() -> None:
    alarms, rung = isolation_module._Alarms(), list[str]()
    first, second, last = (threading.Event() for _ in range(3))
    alarms.set(3600, first.set)
    alarms.set(0.0, lambda: 1 // 0)  # which takes none of the others with it
    cancelled = alarms.set(0.05, lambda: rung.append("cancelled"))
    alarms.cancel(cancelled)
    alarms.set(0.1, lambda: (rung.append("b"), last.set()))
    alarms.set(0.0, lambda: (rung.append("a"), second.set()))
    assert second.wait(60)
    assert last.wait(60)
    assert (rung, first.is_set()) == (["a", "b"], False)
    alarms.clear()  # as in a forked process, which has no thread of it
    alarms.set(0.0, first.set)
    assert first.wait(60)
