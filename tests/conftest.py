from __future__ import annotations

import contextlib
import gc
import hashlib
import lzma
import os
import re
import signal
import sys
import zlib
from collections.abc import Callable, Generator, Iterator
from functools import cache, partial
from pathlib import Path

import pytest
import small_pipelines
from bundles import audio_encoder, decoder, made, saved
from golden_files import Golden, check_golden, normalised
from hypothesis import settings
from old_onnxruntime import NEEDED, REASONS
from onnxruntime.capi.onnxruntime_pybind11_state import Fail
from properties import leave_cases_to_the_slow_suite, run_all_examples
from real_models import MODELS, PIPELINES, unpacked
from sessions import ONNXRUNTIME

from graphkit.cli import main
from graphkit.deploy.lower import LowerOptions, lower_folder
from graphkit.equivalence import bundles, check, equivalence_summary
from graphkit.equivalence.result import Equivalence
from graphkit.equivalence.stages import prove_stages
from graphkit.errors import ModelError
from graphkit.model import Model, load
from graphkit.runtime import external_tools, isolation

TOO_NEW = re.compile(r"Opset \d+ is under development|Unsupported model IR version")  # what onnxruntime says

OLD = f"onnxruntime {'.'.join(map(str, ONNXRUNTIME))}"

settings.register_profile("random", deadline=None)  # a busy machine is no failure
settings.register_profile("repeatable", deadline=None, derandomize=True)  # nor is another draw
settings.load_profile("repeatable")
gc.set_threshold(500_000)  # a session keeps many models, which the collector would walk through again and again
if signal.getsignal(signal.SIGINT) is signal.SIG_IGN:  # as shells start what runs in the background: tests send it
    signal.signal(signal.SIGINT, signal.default_int_handler)


SPARES = 4
PARTS = 10  # of the slow suite, of which CI runs one


def pytest_addoption(parser: pytest.Parser) -> None:
    parser.addoption("--write-golden", action="store_true", help="Write the files of tests/golden anew.")
    parser.addoption("--part", type=int, metavar="N", help="Run a tenth of the test modules: N modulo 10 says which.")


def pytest_configure(config: pytest.Config) -> None:
    if config.getoption("hypothesis_seed") is not None:
        settings.load_profile("random")
    if config.option.markexpr == "slow":
        run_all_examples()


def pytest_ignore_collect(collection_path: Path, config: pytest.Config) -> bool | None:
    """Leave out the modules of other parts: what the tests of a module share is made once, and not in each part."""
    if config.option.part is None or not collection_path.name.startswith("test_"):
        return None
    name = collection_path.relative_to(config.rootpath).as_posix()
    return True if zlib.crc32(name.encode()) % PARTS != config.option.part % PARTS else None


@pytest.hookimpl(tryfirst=True)
def pytest_collection_modifyitems(config: pytest.Config, items: list[pytest.Item]) -> None:
    """Let the slow suite have what the quick one leaves out: more cases, more examples; skip what is too new."""
    leave_cases_to_the_slow_suite(items)
    for item in items if ONNXRUNTIME < NEEDED else ():
        for beginning, reason in REASONS.items():
            if item.nodeid.startswith(beginning):
                item.add_marker(pytest.mark.skip(reason=f"{OLD}: {reason}"))
    for item in items if config.option.markexpr == "slow" else ():
        if item.get_closest_marker("examples") is not None:
            item.add_marker("slow")


@pytest.hookimpl(wrapper=True)
def pytest_runtest_call() -> Generator[None]:
    """Skip a test whose model is newer than an old onnxruntime, such as the last one for Python 3.10."""
    try:
        return (yield)
    except (Fail, ModelError) as error:
        if ONNXRUNTIME < NEEDED and TOO_NEW.search(str(error)):
            pytest.skip(f"{OLD}: it does not load a model of so new an opset or IR version")
        raise


def pytest_collection_finish() -> None:
    gc.freeze()  # modules and tests, which live as long as the session


def pytest_sessionfinish() -> None:
    gc.freeze()  # pytest collects five times at its end, and the interpreter once more


@pytest.fixture
def runs_alone(monkeypatch: pytest.MonkeyPatch) -> None:
    """Let nothing be proven by normal forms, so that a proof has all its runs."""
    monkeypatch.setattr("graphkit.verify.rewrite_verifier.limited_equivalence", lambda *_, **__: Equivalence(()))


@pytest.fixture(scope="session")
def model_file(tmp_path_factory: pytest.TempPathFactory) -> Callable[[str], Path]:
    """Unpack a model of tests/models, such as `gemma-270m/model`, once a session."""
    folder = tmp_path_factory.mktemp("models")

    def unpack(name: str) -> Path:
        path = folder / f"{name}.onnx"
        if not path.exists():
            path.parent.mkdir(parents=True, exist_ok=True)
            path.write_bytes(lzma.decompress((MODELS / f"{name}.onnx.xz").read_bytes()))
        return path

    return unpack


@pytest.fixture(scope="session")
def real_model(model_file: Callable[[str], Path]) -> Callable[[str], Model]:
    """Load a model of tests/models, once a session: what tests change they copy."""
    return cache(lambda name: load(model_file(name)))


@pytest.fixture(scope="session")
def bundle_of(tmp_path_factory: pytest.TempPathFactory, model_file: Callable[[str], Path]) -> Callable[[str], Path]:
    """Make a bundle of a decoder of `bundles.py` or of a pipeline, once for all processes; a test changes a copy."""
    folder = shared_folder(tmp_path_factory, "bundles")

    @cache
    def make(name: str) -> Path:
        if (folder / name).exists():
            return folder / name
        source = folder / f"{name}-source-{os.getpid()}"
        if name in PIPELINES:
            unpacked(name, source)
        elif name == "whisper-tiny":
            saved(audio_encoder(), source, "encoder_model")
            (source / "decoder_model_merged.onnx").write_bytes(model_file(f"{name}/decoder_model_merged").read_bytes())
        else:
            saved(decoder(name), source)
        made(source, folder / f"{name}-{os.getpid()}")
        with contextlib.suppress(OSError):  # another process was quicker
            (folder / f"{name}-{os.getpid()}").rename(folder / name)
        return folder / name

    return make


@pytest.fixture(scope="session")
def lowered_decoder(tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, Path]:
    """Return a small export and its lowered folder, which is proven: a test changes a copy."""
    folder = tmp_path_factory.mktemp("lowered")
    decoder = small_pipelines.decoder(small_pipelines.FILLED)
    export, out = small_pipelines.saved(decoder, folder / "export"), folder / "out"
    lower_folder(export, out, LowerOptions(max_cache_len=5))
    return export, out


def shared_folder(tmp_path_factory: pytest.TempPathFactory, name: str) -> Path:
    """Return a folder of this session for all processes that run tests."""
    folder = tmp_path_factory.getbasetemp()
    folder = (folder.parent if "PYTEST_XDIST_WORKER" in os.environ else folder) / name
    folder.mkdir(exist_ok=True)
    return folder


@pytest.fixture
def golden(request: pytest.FixtureRequest, tmp_path: Path, model_file: Callable[[str], Path]) -> Golden:
    """Compare a JSON text with the golden file of a name."""
    folders = (tmp_path, model_file("merged-decoder/decoder_model").parent.parent)
    writes = bool(request.config.getoption("--write-golden"))
    return lambda name, text: check_golden(name, normalised(text, *folders), writes=writes)


@pytest.fixture(scope="session", autouse=True)
def _optimized_once(tmp_path_factory: pytest.TempPathFactory) -> Iterator[None]:
    """Let onnxoptimizer, which takes 8 seconds for a DETR, do each model once, for all processes that run tests."""
    folder = shared_folder(tmp_path_factory, "onnxoptimizer")
    run = external_tools.optimize_bytes

    def kept(model: bytes) -> bytes:
        path = folder / hashlib.sha256(model).hexdigest()
        if not path.exists():
            new = path.with_suffix(f".{os.getpid()}")
            new.write_bytes(run(model))
            new.rename(path)
        return path.read_bytes()

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(external_tools, "optimize_bytes", kept)
        yield


@pytest.fixture(scope="session", autouse=True)
def _spares() -> Iterator[None]:
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(isolation, "_SPARE", isolation._Spare(SPARES))
        patch.setattr(isolation, "IDLE", 3600.0)
        yield


@pytest.fixture(scope="session", autouse=True)
def _patient() -> Iterator[None]:
    """Let proofs take ten times as long as users wait for them: the machine may be slow, or busy."""
    with pytest.MonkeyPatch.context() as patch:
        for module in (bundles, check, equivalence_summary):
            patch.setattr(module, "SECONDS", 10 * module.SECONDS)
        patch.setitem(prove_stages.__kwdefaults__, "seconds", 600.0)
        yield


@pytest.fixture
def run(capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch) -> Callable[..., tuple[object, str, str]]:
    """Run the command line in this process, as if 80 columns wide; give its exit code, output and errors."""
    monkeypatch.setenv("COLUMNS", "80")

    def call(*arguments: object) -> tuple[object, str, str]:
        monkeypatch.setattr(sys, "argv", ["graphkit", *map(str, arguments)])
        with pytest.raises(SystemExit) as stop:
            main()
        return (stop.value.code, *capsys.readouterr())

    return call


@pytest.fixture
def run_report(
    run: Callable[..., tuple[object, str, str]], monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> Callable[..., tuple[object, str, str]]:
    """Run `graphkit report` in the temporary folder of the test; see `run`."""
    monkeypatch.chdir(tmp_path)
    return partial(run, "report")
