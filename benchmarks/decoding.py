"""Decoding with onnxruntime: a merged decoder against the pair that `graphkit split-merged` makes of it.

    python benchmarks/decoding.py MODEL...

Speed: greedy tokens a second, all sessions open in one process, decoding in turns; default optimizations, as many
threads for each. `in the sessions` counts what onnxruntime takes, `whole loop` what the loop of graphkit's proofs
makes of it, which looks at the model anew for each token.
Memory: a process that imports onnxruntime, opens the sessions and runs each once, by where the pair's weights lie.
"""

from __future__ import annotations

import argparse
import json
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Mapping, Sequence
from functools import partial
from importlib.metadata import version
from pathlib import Path

import numpy as np
from measure import Spread, alternate, environment
from rich.console import Console
from rich.table import Table
from splitting import INLINE_LIMIT, Scratch

import graphkit
from graphkit.model import Model
from graphkit.runtime.session import Session
from graphkit.save import Placement
from graphkit.shapes.constraints.legal_sizes import Sizes
from graphkit.verify.decoding import Decoder, decode
from graphkit.verify.input_generator import InputGenerator
from graphkit.workflows.split_decoder_file import FIRST_NAME, PAST_NAME, SplitOptions, split_file

PROMPT = Sizes(batch=1, sequence=1, encoder=32)
STEP = Sizes(batch=1, sequence=1, past=8, encoder=32)
ROLLUP = Path("/proc/self/smaps_rollup")

CHILD = """
import json, sys
import numpy, onnxruntime
options, sessions = onnxruntime.SessionOptions(), []
options.intra_op_num_threads = int(sys.argv[1])
for path, feed in zip(sys.argv[2::2], sys.argv[3::2]):
    sessions.append(onnxruntime.InferenceSession(path, options, providers=["CPUExecutionProvider"]))
    sessions[-1].run(None, dict(numpy.load(feed)))
lines = [line.split() for line in open("/proc/self/smaps_rollup") if line.endswith(" kB\\n")]
print(json.dumps({name.rstrip(":"): int(size) * 1024 for name, size, _ in lines}))
"""


class TimedSession(Session):
    """A session that adds up the seconds of its runs."""

    seconds = 0.0

    def run(self, feed: Mapping[str, np.ndarray]) -> dict[str, np.ndarray]:
        """Run, and count."""
        started = time.perf_counter()
        outputs = super().run(feed)
        self.seconds += time.perf_counter() - started
        return outputs


def opened(models: Sequence[Model], threads: int) -> Decoder:
    """Return a decoder of a merged model or of a pair, whose sessions count."""
    sessions = [TimedSession(model.path, optimize=True, threads=threads) for model in models if model.path]
    return Decoder(models[0], models[-1], sessions[0], sessions[-1])


def seconds_inside(decoder: Decoder) -> float:
    """Return what onnxruntime has taken so far."""
    sessions = {id(session): session for session in (decoder.first_session, decoder.later_session)}
    return sum(session.seconds for session in sessions.values() if isinstance(session, TimedSession))


def speed(decoder: Decoder, steps: int, whole: list[float]) -> float:
    """Decode; return the tokens a second in the sessions, and note those of the whole loop."""
    before, started = seconds_inside(decoder), time.perf_counter()
    decode(decoder, sizes=PROMPT, steps=steps)
    whole.append(steps / (time.perf_counter() - started))
    return steps / (seconds_inside(decoder) - before)


def speeds(model: Path, pair: Sequence[Path], options: argparse.Namespace) -> Table:
    """Measure the speed of one model and its pair."""
    models = {"merged": [graphkit.load(model)], "pair": [graphkit.load(path) for path in pair]}
    decoders = {name: opened(loaded, options.threads) for name, loaded in models.items()}
    whole: dict[str, list[float]] = {name: [] for name in models}
    samplers: dict[str, Callable[[], float]] = {
        name: partial(speed, decoder, options.steps, whole[name]) for name, decoder in decoders.items()
    }
    inside = alternate(samplers, options.rounds)
    loops = {name: Spread(tuple(values[1:])) for name, values in whole.items()}
    result = Table("tokens a second", "merged", "pair", "pair over merged", title=model.name)
    for title, spreads in (("in the sessions", inside), ("whole loop", loops)):
        cells = (spreads[name].show("", 1) for name in ("merged", "pair"))
        result.add_row(title, *cells, spreads["pair"].over(spreads["merged"]).show("x", 2))
    return result


def held(models: Sequence[Path], threads: int) -> dict[str, int]:
    """Return the memory of a process with sessions on these models, in bytes by the kernel's names."""
    arguments = [str(threads)]
    with tempfile.TemporaryDirectory() as folder:
        for path in models:
            feed = Path(folder, f"{path.stem}.npz")
            np.savez(feed, **InputGenerator(graphkit.load(path)).make(STEP))  # type: ignore[arg-type]
            arguments += [str(path), str(feed)]
        command = [sys.executable, "-c", CHILD, *arguments]
        found: dict[str, int] = json.loads(subprocess.run(command, check=True, stdout=subprocess.PIPE).stdout)
    return found


def memory(model: Path, pairs: Mapping[str, Sequence[Path]], threads: int) -> Table:
    """Measure the memory of the sessions."""
    columns = "proportional (Pss)", "anonymous", "of files"
    result = Table("sessions", *columns, title=model.name)
    rows = {"none": (), "merged": (model,), **{f"pair, {name}": pair for name, pair in pairs.items()}}
    for name, models in rows.items():
        sizes = held(models, threads)
        result.add_row(name, *(f"{sizes[field] / 1e6:,.0f} MB" for field in ("Pss", "Pss_Anon", "Pss_File")))
    return result


def split(scratch: Scratch) -> dict[str, tuple[Path, Path]]:
    """Make the pair for every placement of the weights that can be."""
    placements: list[Placement] = ["shared", "in-place"]
    if scratch.size < INLINE_LIMIT:
        placements.append("inline")
    pairs: dict[str, tuple[Path, Path]] = {}
    for weights in placements:
        folder = scratch.folder if weights == "in-place" else scratch.results / weights
        folder.mkdir(exist_ok=True)
        split_file(graphkit.load(scratch.model), folder, SplitOptions(weights=weights, verify=False))
        pairs[weights] = folder / FIRST_NAME, folder / PAST_NAME
    return pairs


def main() -> None:
    """Measure every model."""
    parser = argparse.ArgumentParser(description="Measure decoding with a merged decoder and with its pair.")
    parser.add_argument("models", nargs="+", type=Path, metavar="MODEL", help="merged decoders")
    parser.add_argument("--rounds", type=int, default=5, help="loops with each, in turns (default: 5)")
    parser.add_argument("--steps", type=int, default=64, help="tokens of a loop (default: 64)")
    parser.add_argument("--threads", type=int, default=2, help="threads of each session (default: 2)")
    options = parser.parse_args()
    missing = [str(path) for path in options.models if not path.is_file()]
    if missing or min(options.rounds, options.steps, options.threads) < 1:
        parser.error(f"no such file: {', '.join(missing)}" if missing else "all numbers are at least 1")
    console = Console(width=120, highlight=False)
    shape = f"{options.rounds} rounds of {options.steps} tokens, {options.threads} threads; median (least to greatest)"
    console.print(f"{environment()}; onnxruntime {version('onnxruntime')}\n{shape}", soft_wrap=True)
    for model in options.models:
        with tempfile.TemporaryDirectory(dir=model.parent, prefix=".decoding-") as folder:
            scratch = Scratch(model, Path(folder))
            pairs = split(scratch)
            console.print(speeds(scratch.model, pairs["shared"], options))
            if ROLLUP.is_file():
                console.print(memory(scratch.model, pairs, options.threads))


if __name__ == "__main__":
    main()
