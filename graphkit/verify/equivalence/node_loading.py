"""Nodes that onnxruntime may not load: those of a kind that the original has not, each loaded as a model of its own.

Kernels are fewer than the dtypes and versions that ONNX knows, and each has its own conditions on attributes and ranks.
onnxruntime is asked, not a table of its kernels.
"""

from __future__ import annotations

from collections.abc import Hashable, Iterator, Sequence
from functools import lru_cache

from onnx import ModelProto, NodeProto, TensorProto, ValueInfoProto, helper

from graphkit.graph.operator_traits import value_inputs
from graphkit.graph.view import Node
from graphkit.model import Model
from graphkit.shapes.tensor import Dims
from graphkit.verify.equivalence.application import attributes_of, version_of
from graphkit.verify.equivalence.kernel_functions import OF_KERNEL
from graphkit.verify.equivalence.loading_faults import loads
from graphkit.verify.equivalence.reading import Reading
from graphkit.verify.equivalence.terms import Term

__all__ = ["unloaded_nodes"]

AXES_FROM_THE_BACK = 11  # the first version of Squeeze and Unsqueeze that may count axes from the back
GUESSES = (TensorProto.FLOAT, TensorProto.INT64, TensorProto.INT32, TensorProto.BOOL)  # of contrib operators
PLAIN = range(TensorProto.FLOAT, TensorProto.BFLOAT16)  # dtypes that nodes with bodies take in all versions
Sizes = tuple[int | None, ...]  # of axes; None for any size
# The dtype and sizes, which matter for shapes, axes and counts alone, None for any rank; or what has no known dtype.
Kind = tuple[int, Sizes | None] | Term


def unloaded_nodes(original: Reading, rewritten: Reading) -> Iterator[str]:
    """Yield the nodes of the rewritten model that onnxruntime may not load, of those that are of a new kind."""
    known: set[Hashable] = set()
    for reading in (original, rewritten):
        for node in reading.nodes:
            signature = _signature(reading, node)
            if signature in known:
                continue
            known.add(signature)
            if reading is rewritten and not _is_loaded(reading, node):
                yield f"{node.path} ({node.operator})"


def _signature(reading: Reading, node: Node) -> Hashable:
    """Return all that decides whether a node is loaded: of a constant, its dtype."""
    attributes: Hashable
    if node.constant is not None:
        attributes = tuple(node.attributes), node.constant.data_type
    elif node in reading.attributes:
        attributes = reading.attributes[node]
    else:
        attributes = attributes_of(node)
    outputs = tuple(bool(name) for name in node.proto.output)
    version, schema = version_of(node)
    if schema is not None and (
        getattr(schema, "has_function", True) or getattr(schema, "has_context_dependent_function", True)
    ):
        version = node.scope.opset(node.domain)  # onnxruntime may run its body, which is of one version
    kinds = [reading.values[value] for value in node.operands] if _is_misread(node) else _kinds(reading, node)
    return node.operator, version, node.proto.overload, attributes, tuple(kinds), outputs


def _is_misread(node: Node) -> bool:
    """Whether older shape inference takes an axis for another one, so that what reads the output may not load."""
    axes = (
        node.attr("axes", ()) if node.is_op("Squeeze", "Unsqueeze") and node.scope.opset() < AXES_FROM_THE_BACK else ()
    )
    return any(axis < 0 for axis in axes or ())


def _kinds(reading: Reading, node: Node) -> tuple[Kind | None, ...]:
    counts = value_inputs(node)
    terms = [None if value is None else reading.values[value] for value in node.inputs]
    return tuple(
        term if term is None or not term.dtype else (term.dtype, _sizes(term.dims, index in counts))
        for index, term in enumerate(terms)
    )


def _sizes(dims: Dims | None, is_count: bool) -> Sizes | None:
    return None if dims is None else tuple(dim.constant if is_count else None for dim in dims)


def _is_loaded(reading: Reading, node: Node) -> bool:
    """Whether onnxruntime loads a node; inputs of unknown dtype are those of contrib operators, or it does not."""
    kinds = _kinds(reading, node)
    if _is_misread(node):
        return False
    if node.bodies:  # which are read
        terms = [reading.values[value] for value in (*node.operands, *node.results)]
        return all(term.dtype in PLAIN for term in terms)
    unknown = [kind for kind in kinds if isinstance(kind, Term)]
    if any(not term.op.startswith("com.microsoft.") for term in unknown):
        return False
    guesses = GUESSES if unknown else (0,)
    filled = (
        [(guess, _sizes(kind.dims, False)) if isinstance(kind, Term) else kind for kind in kinds] for guess in guesses
    )
    return any(_loads(_alone(node, each)) for each in filled)


def _alone(node: Node, kinds: Sequence[tuple[int, Sizes | None] | None]) -> bytes:
    """Return a model of one node."""
    bare = NodeProto()
    bare.CopyFrom(node.proto)
    bare.ClearField("name")
    bare.ClearField("doc_string")
    if bare.overload == OF_KERNEL:  # a mark of the proof's own
        bare.ClearField("overload")
    for attribute in bare.attribute:
        if attribute.t.data_location == TensorProto.EXTERNAL:  # of which the dtype alone matters
            attribute.t.CopyFrom(TensorProto(data_type=attribute.t.data_type, dims=[0]))
    del bare.input[:], bare.output[:]
    bare.input.extend("" if kind is None else f"i{index}" for index, kind in enumerate(kinds))
    bare.output.extend(f"o{index}" if name else "" for index, name in enumerate(node.proto.output))
    inputs = [_input(f"i{index}", kind) for index, kind in enumerate(kinds) if kind is not None]
    outputs = [ValueInfoProto(name=name) for name in bare.output if name]
    opsets = [helper.make_opsetid(domain, version) for domain, version in node.scope.opsets.items()]
    graph = helper.make_graph([bare], "node", inputs, outputs)
    return helper.make_model(graph, opset_imports=opsets, ir_version=10).SerializeToString(deterministic=True)


def _input(name: str, kind: tuple[int, Sizes | None]) -> ValueInfoProto:
    return helper.make_tensor_value_info(name, *kind)


@lru_cache(maxsize=4096)
def _loads(content: bytes) -> bool:
    return loads(Model.from_proto(ModelProto.FromString(content)))
