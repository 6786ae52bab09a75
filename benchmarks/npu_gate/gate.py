"""Ask real compilers whether lowered models run on the NPU alone: `make npu-gate`.

Each lowered model becomes float32 TFLite, which must give what onnxruntime gives, and int8 TFLite, calibrated on real
runs, which Vela must place wholly on Ethos-U65 and Ethos-U85. Operators and ranks of the float32 TFLite are looked up
in the targets of MediaTek. The export that was frozen but not lowered goes the same way, and must fail: else the gate
is open. That is the placement. The quality is another question, with an answer of its own: int8, calibrated on 16
sources at least, must keep the outputs and the tokens within the bounds that --least-cosine and --least-tokens give.
What int16 costs, and what Vela makes of it, is reported and not judged. The judges that are installed
(`graphkit judges`) must take the lowered models whole.

The exit status is 0 where all models pass; 1 where one fails on placement, or the gate is open; 3 where placement
passes and one fails on quality.
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
from cases import FLOOR, Case, frozen, graphkit, lowered, unpacked
from tools import Ended, Tools, Vela

from graphkit.deploy.lower import LowerOptions
from graphkit.judges import JUDGES, ask_judge, find_judge
from graphkit.judges.adapters.ask_vela import ACCELERATORS
from graphkit.targets import Target, load_target

MODELS = Path(__file__).parents[2] / "tests" / "models"
VELA = "vela"  # the judge whose environment has the compilers
OF_INT16 = "ethos-u85-256"  # on U65, products of matrices are of int8 alone
TARGETS = ("mt8371", "mediatek-litert")
LEAST_SOURCES = 16  # with fewer, ranges of int8 miss what other sources need
LEAST_COSINE, LEAST_TOKENS = 0.99, 0.8  # of int8; opus-mt-en-fr at its real size, random weights: 0.9965 and 0.82
PLACEMENT, QUALITY = 1, 3  # exit statuses; 2 is an error of usage
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
    quality: tuple[str, ...] = ()


@dataclass(frozen=True)
class Bounds:
    """The quality that int8 must have: the least cosine of an output, and the least share of equal tokens."""

    cosine: float = LEAST_COSINE
    tokens: float = LEAST_TOKENS

    def failures(self, cosine: float, tokens: float | None) -> Iterator[str]:
        """Yield what is below them; a NaN is."""
        if not cosine >= self.cosine:
            yield f"int8 keeps a cosine of {cosine:.4f}, below {self.cosine:g}"
        if tokens is not None and not tokens >= self.tokens:
            yield f"int8 keeps {tokens:.2f} of the tokens, below {self.tokens:g}"


def main() -> None:
    words = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    words.add_argument("folder", nargs="?", type=Path, default=MODELS / "marian-tiny", help="the folder of an export")
    words.add_argument("--tools", type=Path, help="executables of the compilers, those of the judge vela by default")
    words.add_argument("--work", type=Path, help="keep what is made here, and do no conversion twice")
    words.add_argument("--src-len", type=int, default=16)
    words.add_argument("--max-cache-len", type=int, default=16)
    words.add_argument(
        "--sources",
        type=sources,
        default=LEAST_SOURCES,
        help=f"how many to calibrate on and to compare, {LEAST_SOURCES} at least",
    )
    words.add_argument("--least-cosine", type=share, default=LEAST_COSINE, help="of an output of int8, from 0 to 1")
    words.add_argument("--least-tokens", type=share, default=LEAST_TOKENS, help="that int8 keeps, from 0 to 1")
    words.add_argument("--dims", default=DIMS, help="what freezes the control")
    words.add_argument("--only", action="append", help="the name of a model; repeatable")
    given = words.parse_args()
    with tempfile.TemporaryDirectory() as temporary:
        work = given.work or Path(temporary)
        source = unpacked(given.folder, work / "source")
        options = LowerOptions(
            target="ethos-u85",
            src_len=given.src_len,
            max_cache_len=given.max_cache_len,
            mask_floor=FLOOR,
            overwrite=True,
        )
        cases, host, findings = lowered(source, work / "lowered", options, given.sources)
        named = given.dims.format(source=given.src_len, slots=given.max_cache_len)
        dims = {name: int(size) for name, size in (word.split("=") for word in named.split())}
        cases += frozen(source, work / "frozen", dims, host, given.sources)
        chosen = [case for case in cases if not given.only or case.name in given.only]
        bounds = Bounds(given.least_cosine, given.least_tokens)
        tools = Tools((given.tools or find_judge(VELA).python.parent).absolute())
        rows = [told(judge(case, tools, work, bounds)) for case in chosen]
        status = verdict(chosen, rows)
        findings = (*findings, *refused_by_judges([case for case in chosen if not case.is_control]))
    for finding in findings:  # the compilers are asked all the same: they may know better
        print(f"graphkit lower: {finding}")
    sys.exit(PLACEMENT if findings else status)


def refused_by_judges(cases: Sequence[Case]) -> Iterator[str]:
    """Yield what the judges that are installed do not take of lowered models."""
    for judge in JUDGES.values() if cases else ():
        if judge.version and judge.name != VELA:  # which has been asked in more words
            answers = ask_judge(judge, [case.path for case in cases], seconds=600)
            for case, answer in zip(cases, answers, strict=True):
                print(f"{case.name}: {judge.compiler} {judge.version}: {answer.fault or 'whole'}")
                if answer.fault:
                    yield f"{case.name}: {judge.compiler}: {answer.fault}"


def sources(text: str) -> int:
    """Return a number of sources to calibrate on."""
    if (count := int(text)) < LEAST_SOURCES:
        raise argparse.ArgumentTypeError(f"{count} sources are too few to calibrate on - give at least {LEAST_SOURCES}")
    return count


def share(text: str) -> float:
    """Return a bound of quality."""
    if not 0 <= (bound := float(text)) <= 1:
        raise argparse.ArgumentTypeError(f"{text} is no share - give a number from 0 to 1")
    return bound


def judge(case: Case, tools: Tools, work: Path, bounds: Bounds) -> Row:
    """Take a model through the gate, as far as it comes."""
    print(f"{case.name}: {len(case.feeds)} runs", flush=True)
    folder = work / "made" / hashlib.sha256(case.path.read_bytes()).hexdigest()[:16]
    folder.mkdir(parents=True, exist_ok=True)
    row = Row(case.name)
    shutil.copy(case.path, folder / "model.onnx")  # onnx2tf writes over what it reads
    ended = converted(case, tools, folder, ["float32", "int8"])
    row.failures = tuple(failures(row, case, tools, folder))
    row.quality = tuple(losses(case, folder, bounds))
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
    for cell in (row.float32, row.int8, row.int16, row.vela, *row.failures, *row.quality):
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


def losses(case: Case, folder: Path, bounds: Bounds) -> Iterator[str]:
    """Yield what int8 loses more of than the bounds allow; a control has no quality to lose."""
    if case.is_control or not (folder / "int8.npz").exists():
        return
    _, tokens, cosine = compared(case, folder / "int8.npz")
    yield from bounds.failures(cosine, tokens)


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
    columns = (
        "Model", "float32 against onnxruntime", "int8 cosine", "int16 cosine", "MediaTek", "Vela, int8", "Placement",
        "Quality",
    )  # fmt: skip
    print(f"\n| {' | '.join(columns)} |\n{'|---' * len(columns)}|")
    for case, row in zip(cases, rows, strict=True):
        placement, quality = passes(row.failures), "" if case.is_control else quality_of(row)
        cells = (row.name, row.float32, row.int8, row.int16, row.targets, row.vela, placement, quality)
        print(f"| {' | '.join(cells)} |")
    for row in rows:
        for failure in (*row.failures, *row.quality):
            print(f"{row.name}: {failure}")
    misplaced = [row for case, row in zip(cases, rows, strict=True) if bool(row.failures) != case.is_control]
    for row in misplaced:
        print(f"{row.name} {'must pass' if row.failures else 'must fail, or the gate is open'}")
    if misplaced:
        return PLACEMENT
    return QUALITY if any(row.quality for row in rows) else 0


def quality_of(row: Row) -> str:
    """Return a cell of the table: int8 that does not run has no quality."""
    return passes(row.quality) if row.int8 else "not measured"


def passes(failures: Sequence[str]) -> str:
    """Return a cell of the table."""
    return "fails" if failures else "passes"


if __name__ == "__main__":
    main()
