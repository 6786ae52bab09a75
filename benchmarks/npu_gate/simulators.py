"""Measure how far numbers are off where vendors' simulators run lowered models, in float16 and in 8 bits.

    python benchmarks/npu_gate/simulators.py FOLDER... [--judge qnn] [--floor=-1e9] [--only step]

Each folder of an export is lowered for the target of each judge, with the floor of masks that graphkit chooses and with
others, and run by the reference host. The judges get what the host fed: the model as it is, which they compute in
float16, and in 8 bits. For `qnn` onnxruntime quantises to QDQ, by the same runs; the row `cpu` is that model in
onnxruntime. `rknn` quantises itself. All are compared with the float32 model in onnxruntime: the least cosine of a run,
and the largest difference relative to the largest number of the output. The share is of equal tokens or places.
"""

from __future__ import annotations

import argparse
import tempfile
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

import numpy as np
from cases import Case, lowered, unpacked
from onnxruntime.quantization import CalibrationDataReader, quantize
from onnxruntime.quantization.execution_providers.qnn import get_qnn_qdq_config

from graphkit.deploy.lower import LowerOptions
from graphkit.judges import Answer, Deviation, Trial, ask_judge, find_judge
from graphkit.judges.adapters.answer_lines import compare_outputs
from graphkit.runtime.session import Session

TARGETS = {"qnn": "qnn-htp", "rknn": "rk3588"}
COLUMNS = "Model | Mask floor | Computed | Placement | Least cosine | Its output | Largest error"
MOST_RUNS = 24  # that are compared; all calibrate
SOURCES = 8


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("folders", nargs="+", type=Path)
    parser.add_argument("--judge", action="append", choices=list(TARGETS), help="all by default")
    parser.add_argument("--floor", action="append", type=float, default=[], help="another floor of masks")
    parser.add_argument("--only", action="append", help="the name of a model, such as step; repeatable")
    parser.add_argument("--src-len", type=int, default=16)
    parser.add_argument("--max-cache-len", type=int, default=16)
    given = parser.parse_args()
    print(f"| {COLUMNS} |\n{'|---' * len(COLUMNS.split('|'))}|")
    for folder in given.folders:
        for judge in given.judge or TARGETS:
            for floor in [None, *given.floor]:
                with tempfile.TemporaryDirectory() as work:
                    source = unpacked(folder, Path(work, "source"))
                    options = LowerOptions(
                        target=TARGETS[judge],
                        src_len=given.src_len,
                        max_cache_len=given.max_cache_len,
                        opset=17,
                        mask_floor=floor,
                        verify=False,
                    )
                    cases, host, _ = lowered(source, Path(work, "lowered"), options, SOURCES)
                    for case in cases:
                        if not given.only or case.name in given.only:
                            for row in measured(case, judge, Path(work)):
                                start = f"{folder.name} {case.name} | {host.contract.floor:g}"
                                print(f"| {start} | {' | '.join(row)} |", flush=True)


def measured(case: Case, judge: str, work: Path) -> Iterator[Sequence[str]]:
    """Yield how a model is computed, where, and how far its outputs are off."""
    feeds = case.feeds[:: -(-len(case.feeds) // MOST_RUNS)]
    path = work / f"{case.name}.npz"
    np.savez(path, **{name: np.stack([feed[name] for feed in feeds]) for name in feeds[0]})
    yield (f"{judge}, float16", *told(asked(judge, case.path, Trial(feeds=str(path)))))
    if judge == "rknn":
        yield (f"{judge}, int8", *told(asked(judge, case.path, Trial(feeds=str(path), dtype="int8"))))
        return
    quantised = work / f"{case.name}.qdq.onnx"
    quantize(case.path, quantised, get_qnn_qdq_config(case.path, Runs(case.feeds)))
    session = Session(quantised, optimize=True)
    on_cpu = compare_outputs(str(case.path), feeds, lambda feed: list(session.run(feed).values()))
    yield ("cpu, QDQ int8", *told(Answer(numbers=tuple(Deviation(**each) for each in on_cpu)), "onnxruntime"))
    trial = Trial(feeds=str(path), reference=str(case.path))
    yield (f"{judge}, QDQ int8", *told(asked(judge, quantised, trial)))


class Runs(CalibrationDataReader):
    """The runs that calibrate, as onnxruntime asks for them."""

    def __init__(self, feeds: Sequence[Any]) -> None:
        self.left = iter(feeds)

    def get_next(self) -> Any:
        """Return the next run, None behind the last one."""
        return next(self.left, None)


def asked(judge: str, path: Path, trial: Trial) -> Answer:
    """Return the answer of a judge about one model."""
    return next(ask_judge(find_judge(judge), [path], seconds=600, trials=[trial]))


def told(answer: Answer, placed: str = "") -> Sequence[str]:
    """Return the placement, the least cosine with its output, and the largest error."""
    place = placed or answer.fault or "whole"
    known = [each for each in answer.numbers if each.cosine is not None and each.error is not None]
    if not known or len(known) < len(answer.numbers):
        return place, "not finite" if answer.numbers else "", "", answer.no_numbers
    worst = min(known, key=lambda each: each.cosine)
    return place, f"{worst.cosine:.4f}", worst.output, f"{max(each.error for each in known):.1e}"


if __name__ == "__main__":
    main()
