"""Functions that onnxruntime runs by a kernel of their name: they are the kernel's up to rounding, or have no proof.

The output of such a function is marked: in the inlined model an Identity of an overload of its own gives it. It is
equal to what it reads up to rounding alone, as a kernel adds up in another order than the function's nodes do.
"""

from __future__ import annotations

import hashlib
from collections.abc import Iterable, Iterator

import onnx.defs
from onnx import FunctionProto, ModelProto, NodeProto

from graphkit.errors import ModelError
from graphkit.graph.view import body_graphs
from graphkit.model import Model
from graphkit.shapes import Shapes
from graphkit.shapes.tensor import Dims

__all__ = ["OF_KERNEL", "check_kernels", "domain_of", "kernel_fault", "mark_kernel", "with_bodies"]

DOMAIN = "com.microsoft"
OF_KERNEL = "of a kernel"  # the overload of the Identity that marks an output
OF_KERNELS = ("ai.onnx", "com.microsoft", "com.ms.", "org.pytorch.aten")  # how domains of onnxruntime begin
# Functions that compute what onnxruntime's kernel of their name does, which tests show: the Attention of fusions.
AS_KERNELS = frozenset({"8a82f8d4eaacd3c8a45c2599cfff826eb433b4cf14238dc92cc0fbd64d47261b"})


def check_kernels(proto: ModelProto, file: str | None) -> None:
    """Check that a kernel of a function's name computes what the function does, at each call.

    Raises:
        ModelError: It may compute something else.
    """
    functions = {function.name: function for function in proto.functions if domain_of(function.domain) == DOMAIN}
    if odd := next((each.name for each in proto.functions if _may_be_another(each)), ""):
        reason = f"onnxruntime may run an operator of its own for the function '{odd}', which has its name"
        raise ModelError(reason, file=file)
    for node in _calls(proto):
        if node.op_type in functions and not _is_as_kernel(node, functions[node.op_type]):
            reason = f"onnxruntime's operator '{node.op_type}' may compute something else than its function"
            raise ModelError(reason, file=file)


def mark_kernel(function: FunctionProto) -> None:
    """Mark the output of a function that a kernel runs."""
    if domain_of(function.domain) != DOMAIN:
        return
    for node in function.node:
        node.output[:] = [f"{name}/unmarked" if name in function.output else name for name in node.output]
    for name in function.output:
        mark = NodeProto(op_type="Identity", input=[f"{name}/unmarked"], output=[name], overload=OF_KERNEL)
        function.node.append(mark)


def kernel_fault(model: Model, shapes: Shapes) -> str:
    """Return which call of a function gives its kernel other axes than that takes, "" for none.

    Args:
        model: The model, with its functions.
        shapes: Those of the model without them.
    """
    names = {function.name for function in model.proto.functions if domain_of(function.domain) == DOMAIN}
    calls = [node for node in _calls(model.proto) if node.op_type in names] if names else []
    outer = [node for node in model.proto.graph.node if node.domain == DOMAIN and node.op_type in names]
    if len(outer) < len(calls):
        return "a body or a function calls one that a kernel of onnxruntime runs, and its axes are not known"
    for node in outer:
        values = [shapes.model.graph.values.get(name) for name in node.input]
        dims = [None if value is None else shapes[value].dims for value in values]
        if not _are_taken(dims):
            return f"onnxruntime's operator '{node.op_type}' takes three axes, a matrix and a bias of its columns"
    return ""


def _are_taken(dims: list[Dims | None]) -> bool:
    data, weight, bias = (*dims, None, None, None)[:3]
    if data is None or weight is None or bias is None:
        return False
    return len(data) == 3 and len(weight) == 2 and bias == weight[1:]


def _may_be_another(function: FunctionProto) -> bool:
    """Whether a function has the name of an operator of onnxruntime, and is not known to compute the same."""
    domain = domain_of(function.domain)
    if domain != DOMAIN:
        return not domain or domain.startswith(OF_KERNELS) or onnx.defs.has(function.name, domain)
    return _fingerprint(function) not in AS_KERNELS


def _is_as_kernel(node: NodeProto, function: FunctionProto) -> bool:
    """Whether a call gives the kernel what the function reads, and nothing else."""
    given = {attribute.name: attribute for attribute in node.attribute}
    is_whole = given.keys() == {*function.attribute} and not any(each.ref_attr_name for each in given.values())
    is_whole &= len(node.input) == len(function.input) and len(node.output) == len(function.output) and all(node.input)
    return is_whole and ("scale" not in given or given["scale"].f != 0)  # of which the kernel makes another one


def _fingerprint(function: FunctionProto) -> str:
    """Return a hash of what a function computes, without its documentation and versions."""
    bare = FunctionProto()
    bare.CopyFrom(function)
    for name in ("doc_string", "opset_import", "metadata_props"):
        bare.ClearField(name)
    return hashlib.sha256(bare.SerializeToString(deterministic=True)).hexdigest()


def domain_of(name: str) -> str:
    """Return the name of a domain, "" for the default one."""
    return "" if name == "ai.onnx" else name


def _calls(proto: ModelProto) -> Iterator[NodeProto]:
    """Yield the nodes of the domain in a model, its bodies and its functions."""
    for nodes in (proto.graph.node, *(function.node for function in proto.functions)):
        yield from (node for node in with_bodies(nodes) if node.domain == DOMAIN)


def with_bodies(nodes: Iterable[NodeProto]) -> Iterator[NodeProto]:
    """Yield nodes, and those in their bodies."""
    for node in nodes:
        yield node
        for _, body in body_graphs(node):
            yield from with_bodies(body.node)
