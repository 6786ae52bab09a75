"""Real exports: every number of the generated functions against what onnxruntime has there."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, field
from pathlib import Path

import numpy as np
import onnx
import onnxruntime
import pytest
from generated import MAX_SAFE, in_javascript, in_python
from real_models import params
from test_real_models import BASE, FIRST
from truth import exposed, feeds_for

from graphkit.graph.view import Scope, all_scopes
from graphkit.model import Model, load
from graphkit.shapes import Program, infer, program
from graphkit.shapes.program_contents import Consumer

Key = tuple[str, str]  # path of a scope, name of a tensor


class Actual:
    """A session that gives the tensors which a program tells of, those of one branch of an If too.

    External weights are zeros: a file in a folder of the test's own that takes no space on disk.
    """

    def __init__(self, path: Path, made: Program, branch: str, folder: Path) -> None:
        self.model, self.made = load(path), made
        proto, self.paths = exposed(onnx.load(path, load_external_data=False), branch)
        reachable = {name for node in proto.graph.node for name in node.output}
        _prune(proto.graph, {name for consumer in made.consumers for name in _tensors(consumer)} & reachable)
        _fill(proto.graph, folder / "zeros")
        options = onnxruntime.SessionOptions()
        options.graph_optimization_level = onnxruntime.GraphOptimizationLevel.ORT_DISABLE_ALL
        options.add_session_config_entry("session.model_external_initializers_file_folder_path", str(folder))
        options.add_session_config_entry("session.disable_prepacking", "1")  # weights stay in their file
        options.intra_op_num_threads = 1
        self.session = onnxruntime.InferenceSession(proto.SerializeToString(), options, ["CPUExecutionProvider"])

    def run(self, feeds: Mapping[str, np.ndarray]) -> dict[Key, np.ndarray]:
        names = [output.name for output in self.session.get_outputs()]
        wanted = {value.name for value in self.session.get_inputs()}
        results = self.session.run(names, {name: array for name, array in feeds.items() if name in wanted})
        found = {(self.paths.get(name, ""), name): array for name, array in zip(names, results, strict=True)}
        return {**found, **{("", name): array for name, array in feeds.items()}}


def _tensors(consumer: Consumer) -> Iterator[str]:
    yield from (read.tensor for read in consumer.reads)
    yield from (output.tensor for output in consumer.outputs)


def _prune(graph: onnx.GraphProto, wanted: set[str]) -> None:
    """Keep what some tensors need, and make them the outputs."""
    live, kept = set(wanted), []
    for node in reversed(graph.node):
        if live & set(node.output):
            kept.append(node)
            live.update(node.input)
    constants = [tensor for tensor in graph.initializer if tensor.name in live]
    for place, entries in ((graph.node, kept[::-1]), (graph.initializer, constants)):
        copies = [type(entry).FromString(entry.SerializeToString()) for entry in entries]
        del place[:]
        place.extend(copies)
    del graph.output[:]
    graph.output.extend(onnx.ValueInfoProto(name=name) for name in sorted(wanted))


def _fill(graph: onnx.GraphProto, zeros: Path) -> None:
    """Let all external weights lie at the start of one new file."""
    size = 0
    for tensor in graph.initializer:
        if tensor.data_location == onnx.TensorProto.EXTERNAL:
            length = next(entry.value for entry in tensor.external_data if entry.key == "length")
            size = max(size, int(length))
            del tensor.external_data[:]  # onnxruntime refuses keys that it does not know
            for key, value in (("location", zeros.name), ("offset", "0"), ("length", length)):
                tensor.external_data.add(key=key, value=value)
    with zeros.open("xb") as file:  # never over a file that is there
        file.truncate(size)


@dataclass
class Tally:
    """Runs, lists compared, those in which a number is not known, and what was wrong."""

    runs: int = 0
    lists: int = 0
    unknown: int = 0
    wrong: list[str] = field(default_factory=list)

    def add(self, key: str, found: tuple[float | None, ...] | None, actual: list[float]) -> None:
        self.lists += 1
        self.unknown += found is None or None in found
        if found is not None and not _is_same(found, actual):
            self.wrong.append(f"{key} is {found}, and not {actual}")


def _is_same(found: tuple[float | None, ...], actual: list[float]) -> bool:
    return len(found) == len(actual) and all(n is None or n == m for n, m in zip(found, actual, strict=True))


def compare(actual: Actual, feeds: Mapping[str, np.ndarray], tally: Tally) -> None:
    shapes = {name: array.shape for name, array in feeds.items()}
    found = in_python(actual.made)(shapes)
    assert in_javascript(actual.made)(shapes) == {key: tuple(map(clamped, numbers)) for key, numbers in found.items()}
    try:
        arrays = actual.run(feeds)
    except Exception as error:  # a mask or a position that does not go with the dims
        if "onnxruntime" not in type(error).__module__:
            raise
        return
    tally.runs += 1
    scopes = {scope.path: scope for scope in all_scopes(actual.model.scopes)}
    for consumer in actual.made.consumers:
        scope = scopes[consumer.scope]
        for read in consumer.reads:
            if (array := _array(actual.model, scope, read.tensor, arrays)) is not None:
                tally.add(read.key, found.get(read.key), array.ravel().tolist())
        for output in consumer.outputs:
            if (array := _array(actual.model, scope, output.tensor, arrays)) is not None:
                tally.add(output.key, found.get(output.key), list(array.shape))


def clamped(number: float | None) -> float | None:
    return number if number is None else max(-MAX_SAFE, min(MAX_SAFE, number))


def _array(model: Model, scope: Scope, name: str, arrays: Mapping[Key, np.ndarray]) -> np.ndarray | None:
    value = scope.find(name)
    assert value is not None
    if value.kind == "initializer" and value.tensor is not None:
        return model.array(value.tensor)
    return arrays.get((value.scope.path, name))


MODELS = {
    "bert-fill-mask/model": {},
    "cache-styles/anonymous": {},
    "detr-resnet-50/model_quantized": {"height": 64, "width": 96},
    "gpt2-tiny/decoder_model_merged": {},
    "llama-int4/model": {},
    "marian-tiny/decoder_model_merged": {},
    "patchtst/model": {"sequence_length": 32},
    "whisper-tiny/decoder_model_merged": {},
}
LEAST_LISTS = 2  # of the models that have the fewest
CHANGES = (
    {},
    {**FIRST, "total_sequence_length": 3},
    {"batch_size": 1, "past_sequence_length": 1, "total_sequence_length": 4, "height": 33, "width": 130},
)


@pytest.mark.cases("llama-int4", "anonymous", "patchtst")
@pytest.mark.parametrize("name", params(MODELS, ["detr-resnet-50/model_quantized", "gpt2-tiny/decoder_model_merged"]))
def test_no_number_differs_from_onnxruntime(name: str, model_file: Callable[[str], Path], tmp_path: Path):
    path = model_file(name)
    shapes, made, tally = infer(load(path)), program(load(path)), Tally()
    has_branches = any(node.is_op("If") for node in shapes.model.graph.nodes)
    for branch in ("then_branch", "else_branch") if has_branches else ("",):
        folder = tmp_path / (branch or "main")
        folder.mkdir()
        actual = Actual(path, made, branch, folder)
        for seed, changes in enumerate(CHANGES):
            sizes = {**BASE, **MODELS[name], **changes}
            sizes["attention_mask.1"] = sizes["past_sequence_length"] + sizes["sequence_length"]
            feeds = feeds_for(shapes, sizes, seed, flags=branch == "then_branch")
            compare(actual, feeds, tally)
    assert not tally.wrong, tally.wrong[:3]
    assert not tally.unknown
    assert tally.runs >= len(CHANGES)
    assert tally.lists >= tally.runs * LEAST_LISTS
