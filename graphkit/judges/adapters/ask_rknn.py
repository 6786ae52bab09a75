"""Ask Rockchip's RKNN-Toolkit2 which layers of models an NPU takes: ask_rknn.py rknn.

It runs in the environment of the judge, without graphkit. See `graphkit.judges.Answer` for what it answers. A layer has
the name of the node that it is, or was fused from; one that the compiler put in between has the compiler's name.
"""

from __future__ import annotations

import ast
import ctypes
import importlib
import json
import os
import re
import signal
import sys
import tempfile
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any

PLATFORM = "rk3588"
COLOURS = re.compile(r"\x1b\[[0-9;]*m")
FUSION = re.compile(r"^D +\w+: remove node = (\[.*?\])(?:, add node = (\[.*\]))?$", re.MULTILINE)
LAYER = re.compile(r"^D RKNN: \[[\d:.]+\] (\d+) +(\S+) +\S+ +([A-Z]+) +\S+ +\S+ +\S+ +\S+ *(.*?) *$", re.MULTILINE)
ENDS = ("InputOperator", "OutputOperator")
SUFFIX = re.compile(r"(_Conv[A-Za-z]+|#\d+|-rs)$")  # of a layer that the compiler changed
FUSED = re.compile(r"_2[a-z]+$")  # what a rule makes of nodes is called after one; what it puts around is not
MOVES = re.compile(r"[_-](rs|tp)(#\d+)?$")  # a Reshape or Transpose that a rule puts around what it makes
FAULT = re.compile(r"^E (?:\w+: |RKNN: \[[\d:.]+\] )(.+)$", re.MULTILINE)
REMARK = re.compile(r"^[EW] (?:RKNN: \[[\d:.]+\] |build: )(.+)$", re.MULTILINE)
NO_FAULTS = ("Traceback", "rknn-toolkit2 version", "Unkown op target")  # beginnings of lines that say nothing
LONGEST = 300  # characters of a reason
DIES_WITH_PARENT = 1  # PR_SET_PDEATHSIG of Linux, the only system that the compiler runs on


def main() -> None:
    """Answer each line of the input."""
    sys.path.insert(0, str(Path(__file__).parent))
    lines = importlib.import_module("answer_lines")
    lines.answer_lines(lambda: start(lines))


def start(lines: Any) -> Any:
    """Load the compiler, and return what asks it about a model, in a process of its own: it crashes often."""
    onnx, api = importlib.import_module("onnx"), importlib.import_module("rknn.api")

    def ask(path: str, read_log: Any, question: Mapping[str, str]) -> dict[str, Any]:
        answer: dict[str, Any] = {}
        with tempfile.TemporaryDirectory() as folder:
            os.chdir(folder)  # it writes what it likes
            try:
                operators = {node.name: node.op_type for node in onnx.load(path, load_external_data=False).graph.node}
                is_int8 = question.get("dtype") == "int8"
                data = calibration(lines.read_feeds(path, question), Path(folder)) if is_int8 else None
                rknn = api.RKNN(verbose=True)

                def simulate() -> Callable[[Mapping[str, Any]], Any]:
                    if rknn.init_runtime():
                        raise RuntimeError("the simulator does not start")
                    return lambda feed: rknn.inference(inputs=list(feed.values()), data_format=["nchw"] * len(feed))

                try:
                    size = build(rknn, path, Path(folder, "compiled.rknn"), data)
                    said = read_log()
                    answer |= lines.try_model(path, question, simulate)
                finally:
                    rknn.release()
            except Exception as error:  # whatever a compiler raises
                found = FAULT.findall(COLOURS.sub("", read_log()))
                faults = [text for text in found if not text.startswith(NO_FAULTS)]
                answer["error"] = [repr(error), *str(error).strip().splitlines(), *faults][-1][:2000]
            else:
                answer |= placement(COLOURS.sub("", said), operators)
                answer["files"] = {"compiled.rknn": size}
            os.chdir("/")
        return answer

    return lambda path, read_log, question: ask_apart(lambda: ask(path, read_log, question), read_log)


def ask_apart(ask: Callable[[], dict[str, Any]], read_log: Callable[[], str]) -> dict[str, Any]:
    """Ask in a process that has all of this one; where it crashes, that is the answer."""
    source, target = os.pipe()
    process = os.fork()
    if not process:
        ctypes.CDLL(None).prctl(DIES_WITH_PARENT, signal.SIGKILL)
        with os.fdopen(target, "w") as stream:
            stream.write(json.dumps(ask()))
        os._exit(0)
    os.close(target)
    with os.fdopen(source) as stream:
        said = stream.read()
    code = os.waitstatus_to_exitcode(os.waitpid(process, 0)[1])
    if code == 0 and said:
        return dict(json.loads(said))
    how = signal.Signals(-code).name if code < 0 else f"exit status {code}"
    last = [line for line in COLOURS.sub("", read_log()).splitlines() if not line.startswith(("D ", "I "))][-1:]
    return {"error": ": ".join([f"the compiler crashes: {how}", *(line[:LONGEST] for line in last)])}


def build(rknn: Any, path: str, compiled: Path, data: Path | None = None) -> int:
    """Compile a model in float16, or in int8 with data that calibrates, and return the size of the result."""
    rknn.config(target_platform=PLATFORM)
    dataset = {} if data is None else {"dataset": str(data)}
    is_built = not rknn.load_onnx(model=path) and not rknn.build(do_quantization=data is not None, **dataset)
    if not is_built or rknn.export_rknn(str(compiled)):
        raise RuntimeError("it does not build")
    return compiled.stat().st_size


def calibration(feeds: Sequence[Mapping[str, Any]], folder: Path) -> Path:
    """Write what calibrates: a line for each run, with a file for each input."""
    numpy, lines = importlib.import_module("numpy"), []
    for run, feed in enumerate(feeds):
        paths = [str(folder / f"{run}-{index}.npy") for index in range(len(feed))]
        for file, array in zip(paths, feed.values(), strict=True):
            numpy.save(file, array)
        lines.append(f"{' '.join(paths)}\n")
    data = folder / "data.txt"
    data.write_text("".join(lines), encoding="utf-8")
    return data


def placement(log: str, operators: Mapping[str, str]) -> dict[str, Any]:
    """Return where nodes and layers are, from the log of a build; `operators` are the model's, by the node's name."""
    places: dict[tuple[str, str], dict[str, Any]] = {}
    partitions, last = 0, ""
    origins, ends = fused_nodes(log, operators)
    remarks, layers = REMARK.findall(log), LAYER.findall(log)
    for number, kind, target, full in layers:
        if kind in ENDS:
            continue
        name = full.partition(":")[2] or f"layer {number}"
        on = "cpu" if target == "CPU" else "device"
        partitions += on == "device" != last
        last = on
        for node in node_names(name, origins) or [name]:
            place = {"name": node, "op": operators.get(node, kind), "on": on, "why": ""}
            if places.setdefault((node, place["op"]), place)["on"] == "device":
                places[node, place["op"]] = place
            if on == "cpu":
                said = [text for text in remarks if name in text or text.startswith(f"{kind}:")]
                place["why"] = "; ".join(dict.fromkeys(said))[:LONGEST]
    kinds = " ".join(kind.lower() for _, kind, target, _ in layers if target != "CPU")
    for name in ends:  # what is no layer of its own is part of one, as a Gelu is of a ConvExGelu
        if name.rpartition("_2")[2] in kinds:
            for node in origins[name]:
                place = {"name": node, "op": operators.get(node, ""), "on": "device", "why": ""}
                places.setdefault((node, place["op"]), place)
    return {"nodes": list(places.values()), "partitions": partitions}


def fused_nodes(log: str, operators: Mapping[str, str]) -> tuple[dict[str, set[str]], set[str]]:
    """Return the nodes of the model that each name stands for, and what is fused of several and stays.

    A rule makes one of some others.
    """
    ends: set[str] = set()
    origins = {name: {name} for name in operators if name}
    for removed, added in FUSION.findall(log):
        taken, made = ast.literal_eval(removed), ast.literal_eval(added) if added else []
        whole = {node for name in taken for node in node_names(name, origins)}
        if len(made) > 1:
            fused = [name for name in made if FUSED.search(name)]
            made = fused or [name for name in made if len(taken) == 1 and not MOVES.search(name)]
        for name in made:
            origins.setdefault(name, set()).update(whole)
        ends = ends.difference(taken).union(filter(FUSED.search, made))
    return origins, ends


def node_names(name: str, origins: Mapping[str, set[str]]) -> list[str]:
    """Return the nodes of the model that a layer stands for, none where the log does not say."""
    while name not in origins and SUFFIX.search(name):
        name = SUFFIX.sub("", name)
    return sorted(origins.get(name, ()))


if __name__ == "__main__":
    main()
