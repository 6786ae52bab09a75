"""What a model does when it runs is a finding of the command line, and not its end."""

from __future__ import annotations

import math
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import onnx
import onnx.parser
import pytest
from real_models import params

from graphkit.cli import flags
from graphkit.cli.flags import read_limits
from graphkit.errors import UsageError
from graphkit.progress import Limits

Run = Callable[..., tuple[object, str, str]]
HEAD = '<ir_version: 10, opset_import: ["" : 18]>\n'
# the least integer by -1, which no processor can do
FATAL = """g (float[n] x) => (int64[one] y) {
    s = Shape (x)
    ones = Div (s, s)
    minus = Neg (ones)
    least = Constant <value_ints = [-9223372036854775808]> ()
    y = Div (least, minus)
}"""
ENDLESS = """g (int64[n] x) => (int64[n] y) {
    trips = Constant <value_int = 4611686018427387904> ()
    yes = Constant <value = bool {1}> ()
    y = Loop (trips, yes, x) <body = again (int64 number, bool go, int64[n] a) => (bool on, int64[n] b) {
        on = Identity (go)
        b = Neg (a)
    }>
}"""
GROWS = """g (float[n] x) => (float[m] y) {
    s = Shape (x)
    k = Constant <value_ints = [1000000000]> ()
    z = Mul (s, k)
    y = ConstantOfShape (z)
}"""
SAYS = {
    "fatal": (FATAL, "it ends the process with SIGFPE, an integer division that has no result"),
    "endless": (ENDLESS, "it does not finish in 0.5 s"),
    "grows": (GROWS, "it needs more memory than the 500,000,000 bytes beyond its weights that --memory allows"),
}


@pytest.fixture
def graphkit(run: Run, monkeypatch: pytest.MonkeyPatch) -> Run:
    """Run the command line in this process, on a terminal that is wide."""
    monkeypatch.setenv("COLUMNS", "400")
    return run


@pytest.mark.skipif(sys.platform != "linux", reason="signals and limits are those of Linux")
@pytest.mark.parametrize("command", params(("verify", "fold"), slow=("verify",)))
def test_a_model_that_ends_its_process_on_all_inputs_is_one_line_with_the_node(
    command: str, graphkit: Run, tmp_path: Path
) -> None:
    text, says = SAYS["fatal"]
    path = tmp_path / "m.onnx"
    onnx.save(onnx.parser.parse_model(HEAD + text), path)
    line = f"Error: {path}, node 'Div#4': onnxruntime cannot run it: {says} - correct the node\n"
    more = {"verify": (path,), "fold": ("-o", tmp_path / "out.onnx")}
    assert graphkit(command, path, *more[command]) == (2, "", line)
    assert sorted(tmp_path.iterdir()) == [path]


@pytest.mark.skipif(sys.platform != "linux", reason="signals and limits are those of Linux")
@pytest.mark.parametrize("name", params([name for name in SAYS if name != "fatal"], ("endless",)))
def test_the_proof_of_a_model_that_cannot_run_did_not_run(name: str, graphkit: Run, tmp_path: Path) -> None:
    text, says = SAYS[name]
    path = tmp_path / "m.onnx"
    onnx.save(onnx.parser.parse_model(HEAD + text), path)
    code, out, err = graphkit("verify", path, path, "--timeout", "0.5", "--memory", "0.5 GB")
    assert (code, err) == (1, "")
    assert f"The original itself fails at n=1: {says}" in " ".join(out.split())
    assert "the original runs at no sizes that were tried, so nothing is proven" in " ".join(out.split())
    assert "The proof did not run." in out


@pytest.mark.slow
def test_inputs_that_take_too_long_to_make_are_not_made(graphkit: Run, tmp_path: Path) -> None:
    path = tmp_path / "m.onnx"
    text = "g (float[batch, 1024] x) => (float[batch, 1024] y) { y = Neg (x) }"
    onnx.save(onnx.parser.parse_model(HEAD + text), path)
    out = tmp_path / "out.onnx"
    fold = ("fold", path, "-o", out, "--dim", "batch=10000", "--overwrite", "--full")
    code, told, err = graphkit(*fold, "--timeout", "1")  # 41 MB, where 34 MB are allowed
    assert code == 1
    assert err.startswith("The proof did not run.")
    assert "no input can be made for it: [10000, 1024] is too large" in told
    assert "Covered" not in told
    assert graphkit(*fold, "--timeout", "2")[0] == 0


@pytest.mark.parametrize(
    ("command", "work"),
    [
        (["fold"], "folding"),
        pytest.param(["rewrite", "-p", "fold-shapes"], "rewriting", marks=pytest.mark.slow),
    ],
)
def test_folding_and_rewriting_end_where_time_is_over(
    command: list[str], work: str, graphkit: Run, tmp_path: Path
) -> None:
    path = tmp_path / "m.onnx"
    text = "g (float[batch, n] x) => (int64[2] y) { y = Shape (x) }"
    onnx.save(onnx.parser.parse_model(HEAD + text), path)
    code, out, err = graphkit(*command, path, "-o", tmp_path / "out.onnx", "--timeout", "1e-9")
    assert (code, out) == (2, "")
    assert err == f"Error: {path}: {work} does not finish in 1e-09 s - raise --timeout to allow more\n"
    assert sorted(tmp_path.iterdir()) == [path]


def test_limits_are_read() -> None:
    assert read_limits(None, None) == Limits()
    assert read_limits(2.5, "2GB") == Limits(2.5, 2_000_000_000)
    assert read_limits(None, "1.5 m") == Limits(None, 1_500_000)
    assert read_limits(None, "12345678") == Limits(None, 12_345_678)


@pytest.mark.parametrize("memory", ["", "GB", "-1GB", "2XB", "0", "1e9", "0.1", "9" * 20])
def test_what_is_no_size_is_refused(memory: str) -> None:
    with pytest.raises(UsageError, match="is not a size - write one such as --memory 2GB"):
        read_limits(None, memory)


@pytest.mark.parametrize("seconds", [0.0, -1.0, float("nan")])
def test_what_is_no_time_is_refused(seconds: float) -> None:
    with pytest.raises(UsageError, match="is not a time - write a positive number of seconds, such as --timeout 60"):
        read_limits(seconds, None)


def test_a_system_without_a_limit_of_memory_says_so(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(flags, "HAS_MEMORY_LIMIT", False)
    with pytest.raises(
        UsageError, match="--memory: this system cannot limit the memory of a process - leave the option out"
    ):
        read_limits(None, "2GB")


@pytest.mark.skipif(sys.platform != "linux", reason="limits of memory are those of Linux")
def test_memory_that_runs_out_is_one_line(tmp_path: Path) -> None:
    model = onnx.parser.parse_model(
        '<ir_version: 8, opset_import: ["": 17]> g (float[N] x) => (float[N] y) { y = Relu(x) }'
    )
    model.doc_string = "m" * (96 << 20)
    onnx.save(model, tmp_path / "m.onnx")
    code = (
        "import graphkit.cli.commands, graphkit.io.read, graphkit.progress as limits\n"
        "limits.limit_memory(limits.allocated_bytes() + (48 << 20))\n"
        "graphkit.cli.main()"
    )
    command = [sys.executable, "-c", code, "fold", str(tmp_path / "m.onnx"), "-o", str(tmp_path / "out.onnx")]
    done = subprocess.run(command, capture_output=True, text=True, timeout=300, check=False)
    told = "Error: memory ran out - give this process more of it; no file is left half written\n"
    assert (done.returncode, done.stdout, done.stderr) == (2, "", told)
    assert [path.name for path in tmp_path.iterdir()] == ["m.onnx"]


@pytest.mark.skipif(sys.platform != "linux", reason="limits of memory are those of Linux")
def test_more_memory_than_a_system_counts_is_no_limit(graphkit: Run) -> None:
    code, _, err = graphkit("verify", "example:encoder", "example:encoder", "--memory", "99999999999TB")
    assert (code, err) == (0, "")


def test_inputs_of_a_run_without_end_take_a_gigabyte_at_most() -> None:
    assert Limits(math.inf).inputs() == Limits().inputs() == 1 << 30
