"""A model with the bodies of its functions in place of their calls.

`onnx.inliner` forgets what a call leaves to a default, takes over the names of dims, and leaves functions of another
operator set, which onnxruntime runs at that of the model. All that is put right before. A function one of whose outputs
is an input has no proof: onnxruntime does not load it.
"""

from __future__ import annotations

from collections.abc import Iterable
from graphlib import CycleError, TopologicalSorter

import onnx
import onnx.checker
import onnx.inliner
from onnx import FunctionProto, ModelProto, NodeProto, helper

from graphkit.errors import ModelError
from graphkit.graph.operator_traits import RANDOM
from graphkit.graph.soundness import check_scopes
from graphkit.model import Model
from graphkit.verify.equivalence.kernel_functions import check_kernels, domain_of, mark_kernel, with_bodies

__all__ = ["draws", "inlined"]

Key = tuple[str, str, str]  # domain, name, overload
MAX_NODES = 200_000  # of a model without functions


def inlined(model: Model) -> Model:
    """Return a sound model without functions.

    Raises:
        ModelError: The model is not sound, or what a call means is not certain.
    """
    check_scopes(model.scopes, model.file)  # also of a rewritten model, which takes over that its original is sound
    if not model.proto.functions:
        return model
    proto = ModelProto()
    proto.CopyFrom(model.proto)
    check_kernels(proto, model.file)
    functions = _functions(proto)
    if len(functions) < len(proto.functions):
        raise ModelError("two of its functions have one name", file=model.file)
    _check_size(proto, functions, model.file)
    for nodes in (proto.graph.node, *(function.node for function in proto.functions)):
        for node in with_bodies(nodes):
            if (called := functions.get(_key(node.domain, node.op_type, node.overload))) is not None:
                given = {attribute.name for attribute in node.attribute}
                node.attribute.extend(each for each in called.attribute_proto if each.name not in given)
    for function in proto.functions:
        _check_passed_on(function, functions, model.file)
        if back := next((name for name in function.output if name in function.input), ""):
            raise ModelError(f"its function '{function.name}' gives its input '{back}' back", file=model.file)
        _forget_dims(function)
        mark_kernel(function)
    _use_one_version(proto, model.file)
    try:
        whole = onnx.inliner.inline_local_functions(proto)
    except (onnx.checker.ValidationError, RuntimeError) as error:  # calls that do not fit the function
        raise ModelError(f"its functions cannot be inlined: {' '.join(str(error).split())}", file=model.file) from error
    left = (node.op_type for node in with_bodies(whole.graph.node))
    if odd := next((name for name in left if any(name == key[1] for key in _functions(whole))), ""):
        raise ModelError(f"its function '{odd}' cannot be inlined", file=model.file)
    del whole.functions[:]  # which nothing calls
    return model.with_proto(whole)


def _check_size(proto: ModelProto, functions: dict[Key, FunctionProto], file: str | None) -> None:
    """Check that a model stays small without its functions: a few that call each other twice make billions of nodes."""
    called = {key: _called(function.node) for key, function in functions.items()}
    inner = {key: functions.keys() & keys for key, keys in called.items()}
    sizes: dict[Key, int] = {}
    try:
        for key in TopologicalSorter(inner).static_order():
            sizes[key] = sum(sizes.get(each, 1) for each in called[key])
    except CycleError as error:
        raise ModelError(f"its function '{error.args[1][0][1]}' calls itself", file=file) from error
    if sum(sizes.get(each, 1) for each in _called(proto.graph.node)) > MAX_NODES:
        raise ModelError(f"without its functions it would have more than {MAX_NODES:,} nodes", file=file)


def _use_one_version(proto: ModelProto, file: str | None) -> None:
    """Let a model and all its functions have the operator sets at which onnxruntime runs them: those of the model.

    Raises:
        ModelError: Functions have another version of one that the model does not have.
    """
    imported = {domain_of(entry.domain): entry.version for entry in proto.opset_import}
    added: dict[str, int] = {}
    for entry in (entry for function in proto.functions for entry in function.opset_import):
        domain = domain_of(entry.domain)
        if domain not in imported and added.setdefault(domain, entry.version) != entry.version:
            raise ModelError(f"its functions have several versions of the operators of {domain}", file=file)
    versions = {**added, **imported}
    for opsets in (proto.opset_import, *(function.opset_import for function in proto.functions)):
        del opsets[:]
        opsets.extend(helper.make_opsetid(domain, version) for domain, version in versions.items())


def draws(node: NodeProto) -> bool:
    """Whether a node draws random numbers, as no other one does."""
    domain = domain_of(node.domain)
    return (f"{domain}.{node.op_type}" if domain else node.op_type) in RANDOM or node.op_type.startswith("Random")


def _check_passed_on(function: FunctionProto, functions: dict[Key, FunctionProto], file: str | None) -> None:
    """Check that no attribute that a function may lack is passed on to a function that has a default for it."""
    for node in with_bodies(function.node):
        called = functions.get(_key(node.domain, node.op_type, node.overload))
        defaults = {each.name for each in called.attribute_proto} if called is not None else set[str]()
        for attribute in node.attribute:
            if attribute.ref_attr_name in function.attribute and attribute.name in defaults:
                reason = f"may have no '{attribute.ref_attr_name}', for which '{node.op_type}' has a default"
                raise ModelError(f"its function '{function.name}' {reason}", file=file)


def _forget_dims(function: FunctionProto) -> None:
    """Drop the names of dims: in a graph they would be dims of the graph."""
    for info in function.value_info:
        for dim in info.type.tensor_type.shape.dim:
            dim.ClearField("dim_param")


def _functions(proto: ModelProto) -> dict[Key, FunctionProto]:
    return {_key(each.domain, each.name, each.overload): each for each in proto.functions}


def _key(domain: str, name: str, overload: str) -> Key:
    return domain_of(domain), name, overload


def _called(nodes: Iterable[NodeProto]) -> list[Key]:
    return [_key(node.domain, node.op_type, node.overload) for node in with_bodies(nodes)]
