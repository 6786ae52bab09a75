"""Where made models begin to differ from an export: the first node of another tensor, a cache in another order."""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence

import numpy as np
import onnx

from graphkit.errors import ModelError
from graphkit.graph.declared_types import declared_type
from graphkit.graph.traversal import walk_breadth_first
from graphkit.graph.view import Value, all_scopes
from graphkit.model import Model
from graphkit.runtime.session import IsolatedSession, RunError
from graphkit.verify.array_relations import array_relations
from graphkit.verify.comparator import compare_output

__all__ = ["Differ", "Export", "describe_order", "first_node", "run_part"]

ROUNDING = 1e-6  # relative to the largest element
Arrays = Mapping[str, np.ndarray]
Differ = Callable[[np.ndarray, np.ndarray], bool]  # whether an array is not another, that being the second
Export = tuple[Model, Arrays, str]  # a model, its inputs, and what stands before its names in what was made of it


def first_node(
    originals: Iterable[Export],
    model: Model,
    feed: Arrays,
    differ: Differ,
    *,
    is_padded: bool,
) -> str:
    """Return the path of the first node of a model that gives something else under a name of an original.

    Args:
        originals: What it was made of, with their inputs.
        model: The model.
        feed: Its inputs.
        differ: Whether an array is not another, that being the second.
        is_padded: Whether tensors of the model may be longer, with padding behind.

    Returns:
        The path, "" where no tensor of one name differs.
    """
    arrays = _computed_floats(model, feed, model.graph.values, model.graph.values)
    original_arrays: dict[str, list[np.ndarray]] = {}
    for original, its_feed, prefix in originals:
        names = {name.removeprefix(prefix) for name in arrays if name.startswith(prefix)}
        for scope in all_scopes(original.scopes):  # the branches of a merged decoder have values of one name
            for name, array in _computed_floats(original, its_feed, names, scope.values).items():
                original_arrays.setdefault(prefix + name, []).append(array)

    def is_wrong(name: str) -> bool:
        pairs = [_cut_padding(arrays[name], right, is_padded=is_padded) for right in original_arrays[name]]
        return all(
            array.shape == right.shape and not _is_rounding(array, right) and differ(array, right)
            for array, right in pairs
        )

    for node in model.graph.nodes:
        output_names = [value.name for value in node.outputs if value is not None]
        if any(name in arrays and name in original_arrays and is_wrong(name) for name in output_names):
            return node.path
    return ""


def _is_rounding(array: np.ndarray, right: np.ndarray) -> bool:
    """Whether arrays differ in their last digits alone, however large they are: in a model, numbers are of any size."""
    return compare_output(right, array, any_width=True).scaled <= ROUNDING


def _cut_padding(array: np.ndarray, right: np.ndarray, *, is_padded: bool) -> tuple[np.ndarray, np.ndarray]:
    """Return an array without its padding, and the one that it is to be."""
    if is_padded and array.ndim == right.ndim:
        array = array[tuple(slice(size) for size in right.shape)]
    return array, right


def _computed_floats(
    model: Model, feed: Arrays, names: Collection[str], values: Mapping[str, Value]
) -> dict[str, np.ndarray]:
    """Return the computed floating-point tensors of these names; nothing where they do not run."""
    computed = [values[name] for name in values if name in names]
    computed = [value for value in computed if value.producer is not None and not value.producer.bodies]

    def feeds(inputs: Sequence[Value]) -> Iterator[Arrays]:
        if all(value.name in feed for value in inputs):
            yield {value.name: feed[value.name] for value in inputs}

    arrays: Arrays = next(run_part(model, computed, feeds), {}) if computed else {}
    return {name: array for name, array in arrays.items() if array.dtype.kind == "f"}


def run_part(
    model: Model, values: Collection[Value], feeds: Callable[[Sequence[Value]], Iterable[Arrays]]
) -> Iterator[dict[str, np.ndarray]]:
    """Run the part of a model that gives some values of one scope; end where it cannot run.

    Args:
        model: The model.
        values: The values.
        feeds: Makes the feeds of all runs, from the inputs that the part has.

    Yields:
        The values by name, for each feed.
    """
    part = _part_of(model, values)
    if part is None:
        return
    try:
        with IsolatedSession(part[0], prepack=False) as session:
            yield from map(session.run, feeds(part[1]))
    except (RunError, ModelError):
        return


def _part_of(model: Model, values: Collection[Value]) -> tuple[Model, list[Value]] | None:
    """Return a model that gives some values of one scope, and its inputs; None where a node with bodies is in it.

    Dims of inputs are free: a lookup takes any number of ids.
    """
    read = list(walk_breadth_first(values, lambda value: value.producer.inputs if value.producer is not None else ()))
    nodes = dict.fromkeys(value.producer for value in read if value.producer is not None)
    if any(node.bodies for node in nodes):
        return None
    whole = model.proto
    proto = onnx.ModelProto(ir_version=whole.ir_version, opset_import=whole.opset_import, functions=whole.functions)
    proto.graph.name = whole.graph.name
    ordered = sorted(nodes, key=lambda node: (node.scope.depth, node.index))
    proto.graph.node.extend(node.proto for node in ordered)
    inputs = [value for value in read if value.producer is None and value.tensor is None and value.sparse is None]
    for value in read:
        if value.producer is None and value.tensor is not None:
            proto.graph.initializer.append(value.tensor)
        elif value.producer is None and value.sparse is not None:
            proto.graph.sparse_initializer.append(value.sparse)
    for value in inputs:
        declared = declared_type(value)
        if declared is None:
            return None
        shape = None if declared.dims is None else [f"{value.name}_{axis}" for axis in range(len(declared.dims))]
        proto.graph.input.append(onnx.helper.make_tensor_value_info(value.name, declared.dtype, shape))
    proto.graph.output.extend(onnx.ValueInfoProto(name=value.name) for value in values)
    return model.with_proto(proto), inputs


def describe_order(name: str, state: np.ndarray, known: np.ndarray, differ: Differ) -> str:
    """Return in what other order a state holds the cache of the original, in a sentence; "" for none.

    Args:
        name: Of the state.
        state: What is kept, unused slots included, which hold zeros.
        known: What the original keeps.
        differ: Whether an array is not what it should be, that being the second.
    """
    right = np.zeros_like(state)
    right[tuple(map(slice, known.shape))] = known
    for relation in array_relations(right, state, ("the original", f"'{name}'")):
        if relation.expected.shape == relation.actual.shape and not differ(relation.actual, relation.expected):
            return f"{relation.text}."
    return ""
