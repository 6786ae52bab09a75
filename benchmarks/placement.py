"""Compare what a target file says of each node with where the compiler places it.

    python benchmarks/placement.py webgpu MODEL...    # a target that `graphkit targets measure` knows; --target FILE

A node counts where the compiler names it: onnxruntime folds and fuses some before it asks. "Unknown" is a wrong answer.
The judge has to be installed: `graphkit judges install NAME`.
"""

from __future__ import annotations

import argparse
from collections import Counter
from pathlib import Path

from graphkit.analysis.target_lint import Lint
from graphkit.judges import ask_judge, find_judge
from graphkit.judges.measure import MEASURED
from graphkit.model import load
from graphkit.shapes import infer
from graphkit.targets import Target, load_target


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("name", choices=list(MEASURED))
    parser.add_argument("models", nargs="+", type=Path)
    parser.add_argument("--target", help="Another file of facts.")
    parser.add_argument("--as-it-is", action="store_true", help="Without onnxruntime's own optimizations.")
    asked = parser.parse_args()
    target, judge = load_target(asked.target or asked.name), find_judge(MEASURED[asked.name].judge)
    nodes = right = exact = whole = loaded = 0
    wrong: Counter[str] = Counter()
    answers = ask_judge(judge, asked.models, seconds=600, as_it_is=asked.as_it_is, device=MEASURED[asked.name].device)
    for path, answer in zip(asked.models, answers, strict=True):
        if answer.error:
            print(f"{path}: {answer.fault}")
            continue
        places = answer.places
        differing = [
            f"{op}: predicted {said}, placed on {places[name]}"
            for name, op, said in predictions(path, target)
            if name in places and places[name] != said
        ]
        counted = sum(name in places for name, *_ in predictions(path, target))
        loaded, nodes, right = loaded + 1, nodes + counted, right + counted - len(differing)
        exact, whole = exact + (not differing), whole + (not answer.fault)
        wrong.update(differing)
    print(f"{judge.compiler} {judge.version}: {loaded} models, {exact} exact, {whole} whole on the device")
    print(f"{right} of {nodes} nodes ({right / max(nodes, 1):.4%})")
    for text, count in wrong.most_common(20):
        print(f"{count:6} {text}")


def predictions(path: Path, target: Target) -> list[tuple[str, str, str]]:
    """Return the name, operator and predicted place of each node."""
    model = load(path)
    lint = Lint(target, infer(model))
    found = []
    for node in model.graph.nodes:
        refused, unknown = lint.obstacles(node)
        found.append((node.proto.name, node.operator, "cpu" if refused else "unknown" if unknown else "device"))
    return found


if __name__ == "__main__":
    main()
