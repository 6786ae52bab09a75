"""Change models and see whether a stage of graphkit crashes, hangs or takes gigabytes: by hand, as long as you like.

    python tests/fuzz/fuzz_stages.py                                # 2,000 models for each stage
    python tests/fuzz/fuzz_stages.py --stage fold --count 20000     # from seed 0
    python tests/fuzz/fuzz_stages.py --stage fold --seed 1234 --count 1 --save broken.onnx

Each seed is one changed model. They run in a child process with bounds on processor time and memory, so that a hang or
a death is a finding that names its seed. Exits with 1 where anything was found.
"""

from __future__ import annotations

import argparse
import json
import os
import random
import resource
import select
import signal
import subprocess
import sys
import tempfile
import traceback
from collections import Counter
from collections.abc import Iterator
from pathlib import Path
from types import FrameType

import onnx
from mutators import mutate
from seeds import deployed, large, merged, quantised
from stages import STAGES, attempt

SECONDS = 5.0  # of processor time for one model
PATIENCE = 600.0  # seconds without a word after which a child is ended: it hangs in native code
MEMORY = 1 << 30  # bytes above what a child has at its start
BATCH = 1000  # models for each child


class TooSlow(BaseException):  # no handler of graphkit's may catch it
    """A model took more processor time than it may."""


def bases_of(stage: str) -> list[onnx.ModelProto]:
    """Return the models that a stage starts from."""
    if stage in ("lower", "bundle"):
        return deployed(real=True)
    return {"split": merged, "dequantize": quantised}.get(stage, large)()


def _raise(_number: int, _frame: FrameType | None) -> None:
    raise TooSlow(f"more than {SECONDS:g} s")


def _limit_memory() -> None:
    pages = int(Path("/proc/self/statm").read_text().split()[0])
    most = pages * resource.getpagesize() + MEMORY
    resource.setrlimit(resource.RLIMIT_AS, (most, most))


def work(stage: str, seeds: range) -> None:
    """Try seeds, and write a line of JSON before and after each."""
    bases = bases_of(stage)
    signal.signal(signal.SIGPROF, _raise)
    _limit_memory()
    with tempfile.TemporaryDirectory() as folder:
        for seed in seeds:
            print(json.dumps({"seed": seed}), flush=True)
            signal.setitimer(signal.ITIMER_PROF, SECONDS)
            try:
                attempt(stage, seed, bases, Path(folder))
            except (Exception, TooSlow) as error:
                signal.setitimer(signal.ITIMER_PROF, 0)
                print(json.dumps({"seed": seed, "finding": _described(error)}), flush=True)
            finally:
                signal.setitimer(signal.ITIMER_PROF, 0)


def _described(error: BaseException) -> str:
    frames = [frame for frame in traceback.extract_tb(error.__traceback__) if "graphkit/" in frame.filename]
    places = [f"{frame.filename.rpartition('graphkit/')[2]}:{frame.lineno}" for frame in frames[-3:]]
    return f"{type(error).__name__} at {' < '.join(places[::-1])}: {str(error)[:160]!r}"


def hunt(stage: str, first: int, count: int) -> Iterator[tuple[int, str]]:
    """Yield what is wrong, with its seed."""
    seed, end = first, first + count
    while seed < end:
        stop = min(seed + BATCH, end)
        command = [
            sys.executable,
            __file__,
            "--stage",
            stage,
            "--seed",
            str(seed),
            "--count",
            str(stop - seed),
            "--work",
        ]
        with subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.DEVNULL, text=True) as child:
            assert child.stdout is not None
            last, ending = seed - 1, ""
            while True:
                ready, _, _ = select.select([child.stdout], [], [], PATIENCE)
                if not ready:
                    child.kill()
                    ending = "it hangs in native code"
                    break
                line = child.stdout.readline()
                if not line:
                    break
                found = json.loads(line)
                last = found["seed"]
                if "finding" in found:
                    yield last, found["finding"]
            code = child.wait()
        if ending or code:
            yield last, ending or f"the process ended with {code}"
            stop = max(last, seed) + 1
        seed = stop


def main() -> int:
    """Run what the command line asks for."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--stage", choices=list(STAGES), action="append", help="default: all")
    parser.add_argument("--seed", type=int, default=0, help="of the first model")
    parser.add_argument("--count", type=int, default=2000, help="models for each stage")
    parser.add_argument("--save", type=Path, help="write the changed model of --seed and do nothing else")
    parser.add_argument("--work", action="store_true", help=argparse.SUPPRESS)
    args = parser.parse_args()
    stages = args.stage or list(STAGES)
    if args.save is not None:
        rng = random.Random(f"{stages[0]} {args.seed}")
        args.save.write_bytes(mutate(rng, rng.choice(bases_of(stages[0]))).SerializeToString())
        return 0
    if args.work:
        work(stages[0], range(args.seed, args.seed + args.count))
        sys.stdout.flush()
        os._exit(0)  # native libraries may take their time to leave
    total = 0
    for stage in stages:
        kinds: Counter[str] = Counter()
        for seed, text in hunt(stage, args.seed, args.count):
            kind = text.partition(":  ")[0]
            if not kinds[kind]:
                print(f"{stage} {seed}: {text}", flush=True)
            kinds[kind] += 1
        total += sum(kinds.values())
        print(f"{stage}: {args.count:,} models, {sum(kinds.values()):,} findings", flush=True)
    return 1 if total else 0


if __name__ == "__main__":
    sys.exit(main())
