"""Random subgraphs of a real export load in onnxruntime, and give what the whole model gives."""

from __future__ import annotations

import onnx.checker
from hypothesis import given
from hypothesis import strategies as st
from properties import examples

from graphkit.errors import UsageError
from graphkit.graph.view import Value
from graphkit.model import load
from graphkit.options import RewriteProofOptions
from graphkit.passes.interface.extract_subgraph import ExtractSubgraph
from graphkit.verify.rewrite_verifier import verify_extract

EXAMPLE = load("example:causal-attention")
COMPUTED = [value for node in EXAMPLE.graph.nodes for value in node.outputs if value and not value.is_constant]


def needed(end: Value) -> list[str]:
    """Return what a value is computed from, and the names of these nodes."""
    names: dict[str, None] = {}
    pending = [end]
    while pending:
        node = pending.pop().producer
        if node is not None and node.proto.name not in names and not node.is_op("Constant"):
            names[node.proto.name] = None
            pending += [value for value in node.inputs if value is not None and not value.is_constant]
            names.update((value.name, None) for value in node.inputs if value is not None and not value.is_constant)
    return list(names)


@st.composite
def ends_and_cuts(draw: st.DrawFn) -> tuple[str, set[str]]:
    end = draw(st.sampled_from(COMPUTED))
    return end.name, draw(st.sets(st.sampled_from(needed(end)), min_size=1, max_size=3))


@examples(4, 8)
@given(ends_and_cuts())
def test_a_random_subgraph_is_proven_or_refused(chosen: tuple[str, set[str]]) -> None:
    end, cuts = chosen
    try:
        part = ExtractSubgraph((end,), tuple(cuts)).run(EXAMPLE).model
    except UsageError:  # one cut hides another
        return
    onnx.checker.check_model(part.restore())
    assert verify_extract(EXAMPLE, part, options=RewriteProofOptions(runs=1)).passed
