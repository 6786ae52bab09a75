"""Functions that a rewrite calls and onnxruntime has kernels of its own for: other runtimes inline them."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable
from dataclasses import replace

from graphkit.graph.view import all_nodes
from graphkit.model import Model
from graphkit.passes.control_flow.inline_functions import InlineFunctions
from graphkit.rewrite.functions import key_of
from graphkit.verify.rewrite_proof import RewriteProof
from graphkit.verify.two_models import TwoModels

__all__ = ["prove_inlined"]

KERNELS = ("", "ai.onnx", "com.microsoft")  # domains of the operators that onnxruntime runs without a function


def prove_inlined(
    proof: RewriteProof, two: TwoModels, run: Callable[[TwoModels], RewriteProof], progress: Callable[[str], None]
) -> RewriteProof:
    """Add to a proof the runs of the rewritten model with such functions inlined.

    Functions that the original calls as often are its own: what onnxruntime has for them is what its users get.
    """
    before, after = two.models
    called, was = _calls(after), _calls(before)
    if not proof.passed or all(count <= was[key] for key, count in called.items()):
        return proof
    progress("proving: the rewritten model with its functions inlined")
    inlined = InlineFunctions().run(after)
    if _calls(inlined.model):
        reasons = "; ".join(map(str, inlined.declined))
        return replace(proof, failures=(f"its functions cannot be inlined, as other runtimes do: {reasons}",))
    result = run(replace(two, sources=(two.sources[0], inlined.model), models=(before, inlined.model)))
    if result.failures:
        what = "with its functions inlined, as other runtimes run it"
        return replace(proof, failures=tuple(f"{what}: {failure}" for failure in result.failures))
    worst = max((output.absolute or 0.0 for output in result.outputs), default=0.0)
    found = f"differ by at most {worst:.3g}" if worst else "are equal to the last bit"
    note = f"With its functions inlined, as other runtimes run it, outputs {found}."
    return replace(proof, notes=(*proof.notes, note))


def _calls(model: Model) -> Counter[tuple[str, str, str]]:
    """Return how often a model calls each of its functions that onnxruntime may have a kernel for."""
    functions = {(one.domain, one.name, one.overload) for one in model.proto.functions if one.domain in KERNELS}
    return Counter(key for node in all_nodes(model.scopes) if (key := key_of(node.proto)) in functions)
