"""One spelling of what models compute: functions in place of their calls, and operators of the newest version."""

from __future__ import annotations

import hashlib
import struct
from collections.abc import Container, Hashable, Iterator, Mapping, Sequence
from copy import deepcopy
from graphlib import CycleError, TopologicalSorter
from typing import cast

import numpy as np
import onnx
import onnx.checker
import onnx.defs
import onnx.inliner
from onnx import AttributeProto, FunctionProto, ModelProto, NodeProto, TensorProto, helper

from graphkit.dtypes import HALVES
from graphkit.equivalence.terms import Constants, Key, Term
from graphkit.errors import ModelError
from graphkit.graph.dataflow import check_scopes
from graphkit.graph.operator_traits import (
    BECAME_INPUTS,
    BODIES_OF_HALVES,
    KERNELS_OF_HALVES,
    MEANINGS,
    NEWEST_MEANING,
    RANDOM,
)
from graphkit.graph.view import FunctionKey, Node, domain_of, functions_of, key_of, nodes_of, with_bodies
from graphkit.model import Model
from graphkit.ops.rule_context import UnknownError
from graphkit.shapes import Shapes

# A model with the bodies of its functions in place of their calls.
#
# `onnx.inliner` forgets what a call leaves to a default, takes over the names of dims, and leaves functions of
# another operator set, which onnxruntime runs at that of the model. All that is put right before. A function one of
# whose outputs is an input has no proof: onnxruntime does not load it.
#
# Functions that onnxruntime runs by a kernel of their name are the kernel's in exact arithmetic, or have no proof.
# The output of such a function is marked: in the inlined model an Identity of an overload of its own gives it, as a
# kernel adds up in another order than the function's nodes do.

MAX_NODES = 200_000  # of a model without functions
DOMAIN = "com.microsoft"
OF_KERNEL = "of a kernel"  # the overload of the Identity that marks an output
OF_KERNELS = ("ai.onnx", "com.microsoft", "com.ms.", "org.pytorch.aten")  # how domains of onnxruntime begin
# Functions that compute what onnxruntime's kernel of their name does, which tests show: the Attention of fusions.
AS_KERNELS = frozenset({"8a82f8d4eaacd3c8a45c2599cfff826eb433b4cf14238dc92cc0fbd64d47261b"})


def inline_model(model: Model) -> Model:
    """Return a sound model without functions; ModelError where it is not sound, or a call may mean something else."""
    check_scopes(model.scopes, model.file)  # also of a rewritten model, which takes over that its original is sound
    if not model.proto.functions:
        return model
    proto = deepcopy(model.proto)
    try:
        return model.with_proto(_inline_functions(proto))
    except UnknownError as error:
        raise ModelError(str(error), file=model.file) from error


def _inline_functions(proto: ModelProto) -> ModelProto:
    domains = [*(each.domain for each in proto.opset_import), *(each.domain for each in proto.functions)]
    if any(type(domain) is not str for domain in domains):
        raise UnknownError("the domain of a function or of a version is not UTF-8")
    _check_kernels(proto)
    functions = functions_of(proto)
    if len(functions) < len(proto.functions):
        raise UnknownError("two of its functions have one name")
    _check_size(proto, functions)
    for node in nodes_of(proto):
        if (called := functions.get(key_of(node))) is not None:
            given = {attribute.name for attribute in node.attribute}
            node.attribute.extend(each for each in called.attribute_proto if each.name not in given)
    for function in proto.functions:
        # no attribute that a function may lack may be passed on to one that has a default for it
        for node in with_bodies(function.node):
            called = functions.get(key_of(node))
            defaults = {each.name for each in called.attribute_proto} if called is not None else set[str]()
            for attribute in node.attribute:
                if attribute.ref_attr_name in function.attribute and attribute.name in defaults:
                    reason = f"may have no '{attribute.ref_attr_name}', for which '{node.op_type}' has a default"
                    raise UnknownError(f"its function '{function.name}' {reason}")
        if back := next((name for name in function.output if name in function.input), ""):
            raise UnknownError(f"its function '{function.name}' gives its input '{back}' back")
        for info in function.value_info:
            for dim in info.type.tensor_type.shape.dim:
                dim.ClearField("dim_param")  # in a graph they would be dims of the graph
        if domain_of(function.domain) == DOMAIN:
            for node in function.node:
                node.output[:] = [f"{name}/unmarked" if name in function.output else name for name in node.output]
            for name in function.output:
                mark = NodeProto(op_type="Identity", input=[f"{name}/unmarked"], output=[name], overload=OF_KERNEL)
                function.node.append(mark)
    _use_one_version(proto)
    try:
        whole = onnx.inliner.inline_local_functions(proto)
    except (onnx.checker.ValidationError, RuntimeError) as error:  # calls that do not fit the function
        raise UnknownError(f"its functions cannot be inlined: {' '.join(str(error).split())}") from error
    left = (node.op_type for node in with_bodies(whole.graph.node))
    if odd := next((name for name in left if any(name == key[1] for key in functions_of(whole))), ""):
        raise UnknownError(f"its function '{odd}' cannot be inlined")
    del whole.functions[:]  # which nothing calls
    return whole


def _check_size(proto: ModelProto, functions: Mapping[FunctionKey, FunctionProto]) -> None:
    """Check that a model stays small without its functions: a few that call each other twice make billions of nodes."""
    called = {key: [*map(key_of, with_bodies(function.node))] for key, function in functions.items()}
    sizes: dict[FunctionKey, int] = {}
    try:
        for key in TopologicalSorter({key: functions.keys() & keys for key, keys in called.items()}).static_order():
            sizes[key] = sum(sizes.get(each, 1) for each in called[key])
    except CycleError as error:
        raise UnknownError(f"its function '{error.args[1][0][1]}' calls itself") from error
    if sum(sizes.get(key_of(node), 1) for node in with_bodies(proto.graph.node)) > MAX_NODES:
        raise UnknownError(f"without its functions it would have more than {MAX_NODES:,} nodes")


def _use_one_version(proto: ModelProto) -> None:
    """Let a model and all its functions have the operator sets at which onnxruntime runs them: those of the model."""
    imported = {domain_of(entry.domain): entry.version for entry in proto.opset_import}
    added: dict[str, int] = {}
    for entry in (entry for function in proto.functions for entry in function.opset_import):
        domain = domain_of(entry.domain)
        if domain not in imported and added.setdefault(domain, entry.version) != entry.version:
            raise UnknownError(f"its functions have several versions of the operators of {domain}")
    versions = {**added, **imported}
    for opsets in (proto.opset_import, *(function.opset_import for function in proto.functions)):
        del opsets[:]
        opsets.extend(helper.make_opsetid(domain, version) for domain, version in versions.items())


def draws_random_numbers(node: NodeProto) -> bool:
    """Whether a node draws random numbers, as no other one does."""
    domain = domain_of(node.domain)
    return (f"{domain}.{node.op_type}" if domain else node.op_type) in RANDOM or node.op_type.startswith("Random")


def _check_kernels(proto: ModelProto) -> None:
    """Check that a kernel of a function's name computes what the function does, at each call."""
    functions = {function.name: function for function in proto.functions if domain_of(function.domain) == DOMAIN}
    if odd := next((each.name for each in proto.functions if _may_be_another(each)), ""):
        raise UnknownError(f"onnxruntime may run an operator of its own for the function '{odd}', which has its name")
    for node in _domain_calls(proto, functions):
        function, given = functions[node.op_type], {attribute.name: attribute for attribute in node.attribute}
        is_whole = given.keys() == {*function.attribute} and not any(each.ref_attr_name for each in given.values())
        is_whole &= len(node.input) == len(function.input) and len(node.output) == len(function.output)
        # Of a scale of 0 the kernel makes another one.
        if not is_whole or not all(node.input) or ("scale" in given and given["scale"].f == 0):
            raise UnknownError(f"onnxruntime's operator '{node.op_type}' may compute something else than its function")


def kernel_fault(model: Model, shapes: Shapes) -> str:
    """Return which call of a function gives its kernel other axes than that takes, "" for none.

    The shapes are those of the model without its functions.
    """
    names = {function.name for function in model.proto.functions if domain_of(function.domain) == DOMAIN}
    calls = [*_domain_calls(model.proto, names)]
    if len(calls) > sum(node.domain == DOMAIN and node.op_type in names for node in model.proto.graph.node):
        return "a body or a function calls one that a kernel of onnxruntime runs, and its axes are not known"
    for node in calls:
        values = [shapes.model.graph.values.get(name) for name in node.input]
        data, weight, bias = [*(None if value is None else shapes[value].dims for value in values), *[None] * 3][:3]
        if data is None or weight is None or bias is None or (len(data), len(weight), bias) != (3, 2, weight[1:]):
            return f"onnxruntime's operator '{node.op_type}' takes three axes, a matrix and a bias of its columns"
    return ""


def _may_be_another(function: FunctionProto) -> bool:
    """Whether a function has the name of an operator of onnxruntime, and is not known to compute the same."""
    domain = domain_of(function.domain)
    if domain != DOMAIN:
        return not domain or domain.startswith(OF_KERNELS) or onnx.defs.has(function.name, domain)
    bare = deepcopy(function)
    for name in ("doc_string", "opset_import", "metadata_props"):  # what it computes is the same without
        bare.ClearField(name)
    return hashlib.sha256(bare.SerializeToString(deterministic=True)).hexdigest() not in AS_KERNELS


def _domain_calls(proto: ModelProto, names: Container[str]) -> Iterator[NodeProto]:
    return (node for node in nodes_of(proto) if node.domain == DOMAIN and node.op_type in names)


# One spelling of an operator, whichever version of the operator set a model has.

ONE_OUTPUT = {"BatchNormalization"}  # which learns where it has more
LISTS = {"k"}  # numbers that became lists of one


def spell_alike(
    node: Node, attributes: Key, args: Sequence[Term | None], constants: Constants
) -> tuple[Key, list[Term | None]]:
    """Return the attributes and arguments of a node as a newer version has them; more arguments may follow its own."""
    entries = cast("tuple[tuple[str, int, Hashable], ...]", attributes)
    version, listed = cast(int, entries[0][2]), list(args)
    op = node.operator
    if node.scope.opset() > NEWEST_MEANING:
        return attributes, listed
    since, names = BECAME_INPUTS.get(op, (0, ()))
    moved = {name: index for index, name in enumerate(names, 1)}
    kept: list[tuple[str, int, Hashable]] = []
    for name, kind, content in entries[1:]:
        if version >= since or name not in moved:
            kept.append((name, kind, content))
            continue
        constant = _attribute_constant(name, kind, content, listed[0] if listed else None, constants)
        if constant is None:
            return attributes, list(args)
        listed += [None] * (moved[name] + 1 - len(listed))
        listed[moved[name]] = constant
    found = max(version, since)  # of BatchNormalization with more outputs, which learns
    if node.operator not in ONE_OUTPUT or not any(node.outputs[1:]):
        found = max((each for each in MEANINGS.get(node.operator, ()) if each <= found), default=found)
    if listed and listed[0] is not None and listed[0].dtype in (0, *HALVES):
        found = max(found, min(version, KERNELS_OF_HALVES.get(op, 0)))
        found = node.scope.opset() if op in BODIES_OF_HALVES else found
    if op == "Split" and version < 18 and len(listed) < 2:
        kept.append(("num_outputs", int(AttributeProto.INT), len(node.outputs)))
    if op == "Pad" or (op == "Resize" and version >= 11):  # before, a Resize has its scales where later its region is
        _leave_out(node, listed, constants)
    return (("", 0, found), *sorted(kept, key=lambda each: each[0])), listed


def _attribute_constant(name: str, kind: int, content: object, data: Term | None, constants: Constants) -> Term | None:
    """Return an attribute as a constant, None where its dtype is not known."""
    if kind == AttributeProto.FLOAT:
        if data is None or data.dtype != TensorProto.FLOAT:
            return None
        assert isinstance(content, bytes)
        return constants.of_array(np.array(struct.unpack("<f", content)[0], np.float32), TensorProto.FLOAT)
    return constants.of_array(np.array([content] if name in LISTS else content, np.int64), TensorProto.INT64)


def _leave_out(node: Node, args: list[Term | None], constants: Constants) -> None:
    """Leave out operands without effect: a Pad's value of 0, and those that a Resize has empty, or does not read."""
    for index, term in enumerate(args):
        array = constants.array(term) if index and term is not None and term.is_constant else None
        if array is None:
            continue
        is_default = node.op_type == "Pad" and index == 2 and array.size == 1 and not array.any()
        is_default &= not np.signbit(array).any()
        if is_default or (node.op_type == "Resize" and not array.size):
            args[index] = None
    is_cropped = node.attr("coordinate_transformation_mode", "") == "tf_crop_and_resize"
    if node.op_type == "Resize" and len(args) > 1 and not is_cropped:
        args[1] = None
