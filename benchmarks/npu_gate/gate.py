"""Ask real compilers whether lowered models run on the NPU alone: `make npu-gate`.

Each lowered model becomes float32 TFLite, which must give what onnxruntime gives, and int8 TFLite, calibrated on real
runs, which Vela must place wholly on Ethos-U65 and Ethos-U85. Operators and ranks of the float32 TFLite are looked up
in the targets of MediaTek. The export that was frozen but not lowered goes the same way, and must fail: else the gate
is open. What int8 and int16 cost in accuracy, and what Vela makes of int16, is reported and not judged.
"""

from __future__ import annotations

import argparse
import hashlib
import shutil
import sys
import tempfile
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
from cases import Case, frozen, graphkit, lowered, unpacked
from tools import Ended, Tools, Vela

from graphkit.targets import Target, load_target

MODELS = Path(__file__).parents[2] / "tests" / "models"
ACCELERATORS = ("ethos-u65-256", "ethos-u85-256")
OF_INT16 = "ethos-u85-256"  # on U65, products of matrices are of int8 alone
TARGETS = ("mt8371", "mediatek-litert")
TOLERANCE = 1e-4  # of float32 outputs, times their largest magnitude where that is above 1
SPELLED_OUT = ("-p", "layer-norm-to-primitives", "--weights", "inline", "--overwrite")
DIMS = "batch_size=1 decoder_sequence_length=1 encoder_sequence_length={source} past_decoder_sequence_length={slots}"


@dataclass
class Row:
    """What a model came to: a line of the table."""

    name: str
    float32: str = ""
    int8: str = ""
    int16: str = ""
    targets: str = ""
    vela: str = ""
    failures: tuple[str, ...] = ()


def main() -> None:
    words = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    words.add_argument("folder", nargs="?", type=Path, default=MODELS / "marian-tiny", help="the folder of an export")
    words.add_argument("--tools", type=Path, required=True, help="executables of the environment of the compilers")
    words.add_argument("--work", type=Path, help="keep what is made here, and do no conversion twice")
    words.add_argument("--src-len", type=int, default=16)
    words.add_argument("--max-cache-len", type=int, default=16)
    words.add_argument("--sources", type=int, default=4, help="how many to calibrate on and to compare")
    words.add_argument("--dims", default=DIMS, help="what freezes the control")
    words.add_argument("--only", action="append", help="the name of a model; repeatable")
    given = words.parse_args()
    with tempfile.TemporaryDirectory() as temporary:
        work = given.work or Path(temporary)
        source = unpacked(given.folder, work / "source")
        cases, host, findings = lowered(source, work / "lowered", given.src_len, given.max_cache_len, given.sources)
        named = given.dims.format(source=given.src_len, slots=given.max_cache_len)
        dims = {name: int(size) for name, size in (word.split("=") for word in named.split())}
        cases += frozen(source, work / "frozen", dims, host, given.sources)
        chosen = [case for case in cases if not given.only or case.name in given.only]
        rows = [told(judge(case, Tools(given.tools.absolute()), work)) for case in chosen]
    status = verdict(chosen, rows)
    for finding in findings:  # the compilers are asked all the same: they may know better
        print(f"graphkit lower: {finding}")
    sys.exit(1 if findings else status)


def judge(case: Case, tools: Tools, work: Path) -> Row:
    """Take a model through the gate, as far as it comes."""
    print(f"{case.name}: {len(case.feeds)} runs", flush=True)
    folder = work / "made" / hashlib.sha256(case.path.read_bytes()).hexdigest()[:16]
    folder.mkdir(parents=True, exist_ok=True)
    row = Row(case.name)
    shutil.copy(case.path, folder / "model.onnx")  # onnx2tf writes over what it reads
    ended = converted(case, tools, folder, ["float32", "int8"])
    row.failures = tuple(failures(row, case, tools, folder))
    if ended.failure:
        row.failures = (*row.failures, ended.failure)
    elif not case.is_control:
        row.int16 = in_int16(case, tools, folder)
    return row


def converted(case: Case, tools: Tools, folder: Path, dtypes: Sequence[str]) -> Ended:
    """Make TFLite in some dtypes of `model.onnx` in a folder, and run it on the feeds of a case."""
    if not (folder / "saved" / "saved_model.pb").exists():
        ended = tools.saved_model(folder / "model.onnx", list(case.feeds[0]), folder / "saved")
        if ended.failure:
            return ended
    np.savez(folder / "feeds.npz", **{name: np.stack([f[name] for f in case.feeds]) for name in case.feeds[0]})
    for stale in [*folder.glob("*.tflite"), *(folder / f"{dtype}.npz" for dtype in dtypes)]:
        stale.unlink(missing_ok=True)
    ended = tools.tflite(folder, dtypes)
    (folder / "tflite.log").write_text(ended.printed)
    return ended


def told(row: Row) -> Row:
    """Print what a model came to, for those who wait."""
    for cell in (row.float32, row.int8, row.int16, row.vela, *row.failures):
        if cell:
            print(f"    {cell}", flush=True)
    return row


def failures(row: Row, case: Case, tools: Tools, folder: Path) -> Iterator[str]:
    """Fill a row, and yield why the model does not pass."""
    if (folder / "float32.npz").exists():
        worst, share, _ = compared(case, folder / "float32.npz")
        row.float32 = f"{worst:.1e}" + (f", tokens {share:.2f}" if share is not None else "")
        if not worst <= TOLERANCE or share not in (None, 1.0):
            yield f"float32 TFLite differs from onnxruntime: {row.float32}"
    if (folder / "float32.tflite").exists():
        found = tools.operators(folder / "float32.tflite")
        refused = {name: list(refusals(load_target(name), found)) for name in TARGETS}
        row.targets = "; ".join(f"{name}: {', '.join(why) or 'taken'}" for name, why in refused.items())
        yield from (f"{name} refuses {one}" for name, why in refused.items() for one in why)
    if (folder / "int8.npz").exists():
        row.int8 = accuracy(case, folder / "int8.npz")
    if (folder / "int8.tflite").exists():
        made = {accelerator: compiled(tools, folder, "int8", accelerator) for accelerator in ACCELERATORS}
        row.vela = "; ".join(f"{accelerator}: {vela.told()}" for accelerator, vela in made.items())
        yield from (f"{accelerator}: {vela.failure}" for accelerator, vela in made.items() if vela.failure)


def in_int16(case: Case, tools: Tools, folder: Path) -> str:
    """Return what int16 comes to: its accuracy, and what Vela leaves to the CPU.

    Of LayerNormalization, onnx2tf makes a SQUARED_DIFFERENCE, which TFLite does not run in int16: it is spelled out.
    """
    own = folder / "int16"
    own.mkdir(exist_ok=True)
    graphkit("rewrite", str(case.path), "-o", str(own / "model.onnx"), *SPELLED_OUT)
    ended = converted(case, tools, own, ["int16"])
    if not (own / "int16.tflite").exists():
        return ended.failure
    said = ended.failure or accuracy(case, own / "int16.npz")
    return f"{said}; {OF_INT16}: {compiled(tools, own, 'int16', OF_INT16).told()}"


def accuracy(case: Case, path: Path) -> str:
    """Return the least cosine of an output, and the share of equal tokens."""
    _, share, cosine = compared(case, path)
    return f"{cosine:.4f}" + (f", tokens {share:.2f}" if share is not None else "")


def compiled(tools: Tools, folder: Path, dtype: str, accelerator: str) -> Vela:
    """Return what Vela makes of a TFLite file for an accelerator."""
    output = folder / f"{accelerator}-{dtype}"
    output.mkdir(exist_ok=True)
    for stale in output.glob("*.tflite"):
        stale.unlink()
    return tools.vela(folder / f"{dtype}.tflite", accelerator, output)


def compared(case: Case, path: Path) -> tuple[float, float | None, float]:
    """Return the largest difference, relative above 1; the share of equal tokens; the least cosine of an output."""
    names = list(case.outputs[0])
    with np.load(path) as loaded:
        made = [loaded[f"output_{index}"] for index in range(len(names))]
    wanted = [np.stack([outputs[name] for outputs in case.outputs]) for name in names]
    worst = max(difference(one, other) for one, other in zip(made, wanted, strict=True))
    cosine = min(alike(one, other) for one, other in zip(made, wanted, strict=True))
    if case.scores is None:
        return worst, None, cosine
    equal = made[case.scores].argmax(-1) == wanted[case.scores].argmax(-1)
    return worst, float(equal.mean()), cosine


def difference(made: np.ndarray, wanted: np.ndarray) -> float:
    if made.shape != wanted.shape:
        return float("inf")
    largest = float(np.max(np.abs(made.astype(np.float64) - wanted)))
    return largest / max(1.0, float(np.max(np.abs(wanted))))


def alike(made: np.ndarray, wanted: np.ndarray) -> float:
    one, other = made.astype(np.float64).ravel(), wanted.astype(np.float64).ravel()
    length = float(np.linalg.norm(one) * np.linalg.norm(other))
    return float(one @ other) / length if length else 1.0


def refusals(target: Target, told: dict[str, Any]) -> Iterator[str]:
    """Yield what of a TFLite file a target refuses, by its operators and by rank."""
    for name, count in sorted(told["operators"].items()):
        fact = target.tflite[name] if target.tflite is not None else None
        if fact is not None and fact.verdict == "refused":
            yield f"{name} {count}"
    if target.max_rank is not None and told["rank"] > target.max_rank.value:
        yield f"rank {told['rank']}"


def verdict(cases: Sequence[Case], rows: Sequence[Row]) -> int:
    """Print the table, and return the exit status."""
    columns = ("Model", "float32 against onnxruntime", "int8 cosine", "int16 cosine", "MediaTek", "Vela, int8", "Gate")
    print(f"\n| {' | '.join(columns)} |\n{'|---' * len(columns)}|")
    wrong = []
    for case, row in zip(cases, rows, strict=True):
        failed = bool(row.failures)
        cells = (row.name, row.float32, row.int8, row.int16, row.targets, row.vela, "fails" if failed else "passes")
        print(f"| {' | '.join(cells)} |")
        if failed != case.is_control:
            wrong.append(row)
    for row in rows:
        for failure in row.failures:
            print(f"{row.name}: {failure}")
    for row in wrong:
        print(f"{row.name} {'must pass' if row.failures else 'must fail, or the gate is open'}")
    return 1 if wrong else 0


if __name__ == "__main__":
    main()
