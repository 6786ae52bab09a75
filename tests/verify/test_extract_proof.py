"""The proof of a subgraph: it gets what the whole model computes, and has to give what that gives."""

from __future__ import annotations

import numpy as np
import pytest
from small_models import model

from graphkit.errors import UsageError
from graphkit.model import Model
from graphkit.options import RewriteProofOptions
from graphkit.passes.interface.extract_subgraph import ExtractSubgraph
from graphkit.verify.rewrite_verifier import verify_extract

TEXT = """
g (float[N, L] x, float[N, L] z) => (float[N, L] y) {
    a = Exp (x)
    b = Add (a, z)
    c = Mul (b, w)
    y = Neg (c)
}"""


def whole(factor: float = 2.0) -> Model:
    return model(TEXT, w=np.full(400, factor, np.float32)[:1])


def part(original: Model) -> Model:
    return ExtractSubgraph(("c",), ("a",)).run(original).model


@pytest.mark.usefixtures("runs_alone")
def test_it_gets_what_the_original_computes_and_what_that_is_fed() -> None:
    proof = verify_extract(whole(), part(whole()))
    assert proof.passed
    assert [(output.name, output.worst) for output in proof.outputs] == [("c", 0)]
    assert len({str(run) for run in proof.runs}) == len(proof.runs) > 7
    assert proof.level.runs > 7


def test_a_subgraph_that_computes_something_else_fails() -> None:
    other = part(whole())
    other.proto.graph.node[0].op_type = "Sub"
    proof = verify_extract(whole(), Model.from_proto(other.proto), options=RewriteProofOptions(runs=2))
    assert proof.failures[0].startswith(f"{len(proof.runs)} of {len(proof.runs)} runs differ")


def test_a_subgraph_of_other_weights_fails() -> None:
    proof = verify_extract(whole(), part(whole(2.5)), options=RewriteProofOptions(runs=2))
    assert proof.failures[0].startswith(f"{len(proof.runs)} of {len(proof.runs)} runs differ")
    assert "weight 'w' (float32[1]) differs from the original's 'w', first at element [0]" in proof.failures


def test_an_input_of_another_dtype_fails() -> None:
    other = part(whole())
    other.proto.graph.input[0].type.tensor_type.shape.dim.add(dim_value=1)
    proof = verify_extract(whole(), Model.from_proto(other.proto), options=RewriteProofOptions(runs=2))
    assert not proof.passed


def test_a_value_that_the_original_lacks_is_an_error() -> None:
    other = part(whole())
    other.proto.graph.input[0].name = other.proto.graph.node[0].input[0] = "q"
    with pytest.raises(UsageError, match="there is no value 'q'"):
        verify_extract(whole(), Model.from_proto(other.proto))


def test_random_numbers_before_the_cut_do_not_matter() -> None:
    random = model(
        "g (float[N] x) => (float[N] y) { a = RandomNormalLike (x)  b = Add (a, x)  c = Mul (b, w)  y = Neg (c) }",
        w=np.float32([2]),
    )
    assert verify_extract(
        random, ExtractSubgraph(("y",), ("b",)).run(random).model, options=RewriteProofOptions(runs=2)
    ).passed
    proof = verify_extract(random, ExtractSubgraph(("c",)).run(random).model, options=RewriteProofOptions(runs=2))
    assert "is random" in proof.failures[0]


def test_what_no_array_can_hold_is_a_failure_of_the_proof() -> None:
    halves = model(
        "g (float[N] x) => (float[N] y) { a = Cast <to = 16> (x)  y = Cast <to = 1> (a) }",
    )
    proof = verify_extract(
        halves, ExtractSubgraph(("y",), ("a",)).run(halves).model, options=RewriteProofOptions(runs=2)
    )
    assert proof.failures == (
        "onnxruntime hands out no bfloat16, so nothing can be proven of a subgraph that begins at 'a'",
    )


def test_nan_and_infinity_at_the_cut_are_handed_over() -> None:
    masked = model("g (float[N] x) => (float[N] y) { a = Log (x)  b = Mul (a, w)  y = Exp (b) }", w=np.float32([-1]))
    assert verify_extract(
        masked, ExtractSubgraph(("y",), ("a",)).run(masked).model, options=RewriteProofOptions(runs=2)
    ).passed


DECODER = """
g (int64[b, s] input_ids, int64[b, t] attention_mask, float[b, 2, past, 4] past_key_values_0_key)
  => (float[b, s] logits, float[b, 2, p, 4] present_0_key) {
    row = Gather (table, input_ids)
    split = Reshape (row, heads)
    key = Transpose <perm = [0, 2, 1, 3]> (split)
    present_0_key = Concat <axis = 2> (past_key_values_0_key, key)
    length = Shape <start = 2, end = 3> (past_key_values_0_key)
    first = Gather <axis = 1> (attention_mask, length)
    shown = Cast <to = 1> (first)
    sums = ReduceSum <keepdims = 0> (row, last)
    logits = Mul (sums, shown)
}"""


def test_a_part_that_gives_no_cache_runs_at_the_legal_sizes_of_the_whole() -> None:
    decoder = model(DECODER, table=np.ones((9, 8)), heads=[0, 0, 2, 4], last=[-1])
    proof = verify_extract(decoder, ExtractSubgraph(("logits",), ("sums",)).run(decoder).model)
    assert proof.passed
    assert not proof.skipped  # a mask that is as long as past and new tokens
