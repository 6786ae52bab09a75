"""Starting up: what a user waits for, from the start of a process to its end.

    python benchmarks/startup.py [MODEL...]

`import graphkit` and `graphkit --version` beside a bare interpreter and `import onnx`; for each model,
`graphkit report MODEL` against a process that only calls `onnx.load`. Imports count here; the page cache is warm.
"""

from __future__ import annotations

import argparse
import sys
from functools import partial
from pathlib import Path

from measure import alternate, environment, wall, warm
from rich.console import Console
from rich.table import Table

BARE = "python -c pass"
COMMANDS = {
    BARE: ("-c", "pass"),
    'python -c "import graphkit"': ("-c", "import graphkit"),
    'python -c "import onnx"': ("-c", "import onnx"),
    "graphkit --version": ("-m", "graphkit", "--version"),
}
ONNX_LOAD = "import sys, onnx; onnx.load(sys.argv[1])"


def starts(rounds: int) -> Table:
    """Measure the commands that read no model."""
    seconds = alternate({name: partial(wall, (sys.executable, *rest)) for name, rest in COMMANDS.items()}, rounds)
    peer = seconds['python -c "import onnx"']
    result = Table("command", "whole process", "without the bare interpreter", "over import onnx", title="Starting up")
    for name, spread in seconds.items():
        extra = "" if name == BARE else spread.minus(seconds[BARE]).show(" s", 3)
        result.add_row(name, spread.show(" s", 3), extra, "" if spread is peer else spread.over(peer).show("x", 2))
    return result


def reports(models: list[Path], rounds: int) -> Table:
    """Measure `graphkit report` against a bare `onnx.load`."""
    result = Table("model", "graphkit report", "process with onnx.load", "ratio", title="Reports")
    for model in models:
        warm(model)
        ours = partial(wall, (sys.executable, "-m", "graphkit", "report", str(model)))
        theirs = partial(wall, (sys.executable, "-c", ONNX_LOAD, str(model)))
        seconds = alternate({"onnx": theirs, "graphkit": ours}, rounds)
        cells = (seconds[name].show(" s", 2) for name in ("graphkit", "onnx"))
        name = f"{model.name}, {model.stat().st_size / 1e6:,.0f} MB"
        result.add_row(name, *cells, seconds["graphkit"].over(seconds["onnx"]).show("x", 2))
    return result


def main() -> None:
    """Measure the starts, then the reports."""
    parser = argparse.ArgumentParser(description="Measure how long graphkit takes to start and to report.")
    parser.add_argument("models", nargs="*", type=Path, metavar="MODEL")
    parser.add_argument("--rounds", type=int, default=11, help="runs of each command, in turns (default: 11)")
    options = parser.parse_args()
    missing = [str(path) for path in options.models if not path.is_file()]
    if missing:
        parser.error(f"no such file: {', '.join(missing)}")
    if options.rounds < 1:
        parser.error("--rounds is at least 1")
    console = Console(width=140, highlight=False)
    console.print(f"{environment()}\n{options.rounds} rounds; median (least to greatest)", soft_wrap=True)
    console.print(starts(options.rounds))
    if options.models:
        console.print(reports(options.models, options.rounds))


if __name__ == "__main__":
    main()
