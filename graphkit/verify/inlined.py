"""The functions of a rewritten model that onnxruntime has kernels of its own for: other runtimes inline them."""

from __future__ import annotations

from dataclasses import replace

from graphkit.graph.view import all_nodes
from graphkit.model import Model
from graphkit.passes.control_flow.inline_functions import InlineFunctions
from graphkit.verify.proof import RewriteProof
from graphkit.verify.two_models import TwoModels

__all__ = ["add_inlined", "with_inlined"]

KERNELS = ("", "ai.onnx", "com.microsoft")  # domains of the operators that onnxruntime runs without a function


def with_inlined(two: TwoModels) -> TwoModels | None:
    """Return the models with such functions of the rewritten one inlined, None where it calls none."""
    before, after = two.models
    called = {(node.domain, node.op_type) for node in all_nodes(after.scopes)}
    functions = [one for one in after.proto.functions if one.domain in KERNELS and (one.domain, one.name) in called]
    if not functions:
        return None
    inlined: Model = InlineFunctions().run(after).model
    return replace(two, sources=(two.sources[0], inlined), models=(before, inlined))


def add_inlined(proof: RewriteProof, result: RewriteProof) -> RewriteProof:
    """Add to a proof what that of the model with its functions inlined found."""
    if result.failures:
        what = "with its functions inlined, as other runtimes run it"
        return replace(proof, failures=tuple(f"{what}: {failure}" for failure in result.failures))
    worst = max((output.absolute or 0.0 for output in result.outputs), default=0.0)
    found = f"differ by at most {worst:.3g}" if worst else "are equal to the last bit"
    note = f"With its functions inlined, as other runtimes run it, outputs {found}."
    return replace(proof, notes=(*proof.notes, note))
