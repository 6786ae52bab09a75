"""Compare what the engine says with what onnxruntime does: run a model with every tensor of its main graph exposed.

The branch of an If is run in its node's place, so that its tensors are exposed too.
"""

from __future__ import annotations

import math
import re
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from pathlib import Path

import numpy as np
import onnx
import onnxruntime

from graphkit.graph.view import Scope, Value
from graphkit.model import Model
from graphkit.shapes import Expr, Ratio, Shapes, Tensor, is_known

onnxruntime.set_default_logger_severity(4)


@dataclass
class Truth:
    """Tensors compared, those whose dims were known, elements compared, and what was wrong."""

    tensors: int = 0
    known: int = 0
    elements: int = 0
    wrong: list[str] = field(default_factory=list)
    runs: int = 0
    failures: list[str] = field(default_factory=list)


def exposed(proto: onnx.ModelProto, branch: str = "") -> tuple[onnx.ModelProto, dict[str, str]]:
    """Return a model that outputs every tensor, and the scope path of those that a branch gives."""
    model = onnx.ModelProto()
    model.CopyFrom(proto)
    paths: dict[str, str] = {}
    if branch:
        _inline(model.graph, branch, paths)
    del model.graph.output[:]
    names = [name for node in model.graph.node for name in node.output if name]
    model.graph.output.extend(onnx.ValueInfoProto(name=name) for name in dict.fromkeys(names))
    del model.graph.value_info[:]
    return model, paths


def _inline(graph: onnx.GraphProto, branch: str, paths: dict[str, str]) -> None:
    nodes = list(graph.node)
    del graph.node[:]
    gone: set[str] = set()
    for index, node in enumerate(nodes):
        body = next((a.g for a in node.attribute if a.name == branch), None) if node.op_type == "If" else None
        if body is None:
            if not gone.intersection(node.input):
                graph.node.append(node)
            else:
                gone.update(node.output)
            continue
        taken = {name for other in graph.node for name in other.output} | {t.name for t in graph.initializer}
        path = f"{node.name or f'If#{index}'}/{branch}"
        if taken & ({t.name for t in body.initializer} | {name for n in body.node for name in n.output}):
            gone.update(node.output)
            continue
        graph.initializer.extend(body.initializer)
        graph.node.extend(body.node)
        paths.update({name: path for n in body.node for name in n.output})
        gone.update(node.output)


class Runner:
    """A session with every tensor exposed."""

    def __init__(self, path: Path, branch: str = "") -> None:
        proto = onnx.load(path, load_external_data=False)
        model, self.paths = exposed(proto, branch)
        options = onnxruntime.SessionOptions()
        options.graph_optimization_level = onnxruntime.GraphOptimizationLevel.ORT_DISABLE_ALL
        options.intra_op_num_threads = 1
        options.add_session_config_entry("session.model_external_initializers_file_folder_path", str(path.parent))
        self.session = onnxruntime.InferenceSession(
            model.SerializeToString(), options, providers=["CPUExecutionProvider"]
        )

    def run(self, feeds: Mapping[str, np.ndarray]) -> dict[tuple[str, str], np.ndarray]:
        names = [output.name for output in self.session.get_outputs()]
        wanted = {value.name for value in self.session.get_inputs()}
        results = self.session.run(names, {name: array for name, array in feeds.items() if name in wanted})
        return {(self.paths.get(name, ""), name): array for name, array in zip(names, results, strict=True)}


def inputs_of(model: Model) -> list[Value]:
    return [value for value in model.graph.inputs if value.tensor is None]


def feeds_for(shapes: Shapes, assignment: Mapping[str, int], seed: int, flags: bool = False) -> dict[str, np.ndarray]:
    """Return inputs of the shapes that an assignment gives: small ids, masks of ones."""
    rng = np.random.default_rng(seed)
    feeds = {}
    for value in inputs_of(shapes.model):
        found = shapes[value]
        size = tuple(dim.evaluate(assignment) for dim in found.dims or ())
        dtype = onnx.helper.tensor_dtype_to_np_dtype(found.dtype)
        if found.dtype == onnx.TensorProto.BOOL:
            feeds[value.name] = np.full(size, flags if not size or size == (1,) else True)
        elif re.search("mask", value.name):
            feeds[value.name] = np.ones(size, dtype)
        elif np.issubdtype(dtype, np.integer):
            high = 1 if re.search("position|type", value.name) else 9
            feeds[value.name] = rng.integers(0, high, size).astype(dtype)
        else:
            feeds[value.name] = rng.standard_normal(size).astype(dtype)
    return feeds


def compare(
    shapes: Shapes, actual: Mapping[tuple[str, str], np.ndarray], assignment: Mapping[str, int], truth: Truth
) -> None:
    """Check every tensor that a run gave."""
    scopes: dict[str, Scope] = {scope.path: scope for scope in shapes.model.graph.walk()}
    for (path, name), array in actual.items():
        value = scopes[path].values.get(name) if path in scopes else None
        if value is None or not isinstance(array, np.ndarray):
            continue
        truth.tensors += 1
        found = shapes[value]
        truth.known += found.is_known
        for problem in problems(found, array, assignment, truth):
            truth.wrong.append(
                f"{path}:{name} {value.producer and value.producer.operator}: {problem} at {dict(assignment)}"
            )


def problems(found: Tensor, array: np.ndarray, assignment: Mapping[str, int], truth: Truth) -> Iterator[str]:
    if found.dims is None:
        return
    if len(found.dims) != array.ndim:
        yield f"rank {len(found.dims)}, is {array.ndim}"
        return
    for dim, size in zip(found.dims, array.shape, strict=True):
        if is_known(dim) and dim.evaluate(assignment) != size:
            yield f"{found} is {array.shape}"
            return
    if found.dtype and array.dtype != object and onnx.helper.tensor_dtype_to_np_dtype(found.dtype) != array.dtype:
        yield f"dtype {found.dtype}, is {array.dtype}"
    if found.elements is None:
        return
    for element, actual in zip(found.elements, array.ravel().tolist(), strict=True):
        expected = _evaluated(element, assignment)
        if expected is None:
            continue
        truth.elements += 1
        is_same = (
            expected == actual
            or (expected != expected and actual != actual)
            or math.isclose(expected, actual, rel_tol=1e-6)
        )
        if not is_same:
            yield f"element {element} is {actual}, not {expected}"
            return


def _evaluated(element: Expr | Ratio | float, assignment: Mapping[str, int]) -> float | None:
    if isinstance(element, Ratio):
        return element.dividend.evaluate(assignment) / element.divisor if is_known(element.dividend) else None
    if isinstance(element, Expr):
        return element.evaluate(assignment) if is_known(element) else None
    return element
