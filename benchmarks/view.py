"""Time and memory of what Model Explorer is given of a model: by `graphkit view`, and by its own adapter for ONNX.

    python benchmarks/view.py MODEL... --peer PYTHON [--runs N]

PYTHON is that of an environment with `model-explorer-onnx`, which is no dependency of graphkit. Each run is a process
of its own, in turns: it starts, reads the model, and makes the JSON; graphkit's has all overlays too. Times are those
of a clock and of the processor.
"""

from __future__ import annotations

import argparse
import json
import statistics
import subprocess
import sys
import time
from collections.abc import Sequence

END = """
used = resource.getrusage(resource.RUSAGE_SELF)
print(json.dumps([used.ru_utime + used.ru_stime, used.ru_maxrss / 1024, sum(len(graph["nodes"]) for graph in graphs)]))
"""
OURS = f"""
import json, resource, sys
from graphkit.viewer.make_view import view
made = view(sys.argv[1])
graphs = json.loads(made.to_json())["graphs"]
for overlay in made.models[0].overlays:
    overlay.to_json()
{END}"""
PEER = f"""
import json, resource, sys
from model_explorer.utils import convert_adapter_response
from model_explorer_onnx.main import ONNXAdapter
graphs = convert_adapter_response(ONNXAdapter().convert(sys.argv[1], {{"const_element_count_limit": 16}}))["graphs"]
json.dumps(graphs)
{END}"""


def run(python: str, script: str, model: str) -> tuple[float, ...]:
    """Return seconds, those of the processor, megabytes, and how many nodes there are."""
    start = time.perf_counter()
    done = subprocess.run([python, "-c", script, model], check=True, capture_output=True, text=True)
    seconds = time.perf_counter() - start
    return seconds, *json.loads(done.stdout.splitlines()[-1])


def row(model: str, name: str, runs: Sequence[tuple[float, ...]]) -> str:
    seconds, processor, megabytes, nodes = (statistics.median(column) for column in zip(*runs, strict=True))
    return f"{model:40} {name:20} {seconds:8.2f} s {processor:8.2f} s {megabytes:8,.0f} MB {nodes:8,.0f} nodes"


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("models", nargs="+", metavar="MODEL")
    parser.add_argument("--peer", metavar="PYTHON", required=True)
    parser.add_argument("--runs", type=int, default=3)
    asked = parser.parse_args()
    contenders = {"graphkit": (sys.executable, OURS), "model-explorer-onnx": (asked.peer, PEER)}
    for model in asked.models:
        turns = [{name: run(*how, model) for name, how in contenders.items()} for _ in range(asked.runs)]
        for name in contenders:
            print(row(model, name, [turn[name] for turn in turns]))


if __name__ == "__main__":
    main()
