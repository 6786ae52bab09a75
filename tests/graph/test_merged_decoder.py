from __future__ import annotations

from collections.abc import Callable

import onnx
import onnx.parser
import pytest

from graphkit.graph.roles import MergedDecoder, count_captured_values, find_roles, trace_condition, zero_length_outputs
from graphkit.graph.view import Scope, Value, build_scopes
from graphkit.model import Model

INPUTS = "bool use, float use_float, float[B,2,P,4] past_key_0, float[B,E,8] enc"
OUTPUTS = "float[B,2,T,4] present_key_0, float[B,E,8] present_cross_0"
CACHE = "past_and_new () => (float[B,2,T,4] k, float[0,E,8] none) { k = Identity(past_key_0)  none = Identity(empty) }"
FIRST = "new_only () => (float[B,2,T,4] k, float[B,E,8] all) { k = Reshape(enc, split)  all = Identity(enc) }"
WEIGHTS = "<float[0,1,8] empty = {}, int64[4] split = {0, -1, 2, 4}>"


def main(graph: str) -> Scope:
    return build_scopes(onnx.parser.parse_model(f'<ir_version: 8, opset_import: ["" : 17]> {graph}'))[0]


def decoder(before: str = "", condition: str = "use", then: str = CACHE, other: str = FIRST) -> Scope:
    """Return a decoder of one layer, merged where its parts allow that."""
    return main(
        f"""g ({INPUTS}) => ({OUTPUTS}) {WEIGHTS} {{
            {before}
            present_key_0, present_cross_0 = If ({condition}) <then_branch = {then}, else_branch = {other}>
        }}"""
    )


def found(scope: Scope) -> MergedDecoder:
    (merged,) = find_roles(scope).merged
    return merged


def names(values: tuple[Value, ...]) -> list[str]:
    return [value.name for value in values]


def test_an_if_with_the_past_in_one_branch_is_a_merged_decoder() -> None:
    merged = found(decoder())
    assert (merged.node.op_type, merged.cache_branch, merged.first_branch) == ("If", "then_branch", "else_branch")


def test_the_cache_branch_is_the_one_that_reads_the_past() -> None:
    merged = found(decoder(then=FIRST, other=CACHE))
    assert (merged.cache_branch, merged.first_branch) == ("else_branch", "then_branch")


def test_outputs_that_the_cache_branch_gives_empty_are_told() -> None:
    assert names(found(decoder()).zero_length) == ["present_cross_0"]


def test_outputs_that_the_cache_branch_gives_in_full_are_not_zero_length() -> None:
    merged = found(decoder(then=CACHE.replace("Identity(empty)", "Identity(enc)")))
    assert merged.zero_length == ()


@pytest.mark.parametrize(
    ("before", "condition", "negated"),
    [
        ("", "use", False),
        ("a = Not(use)", "a", True),
        ("a = Not(use)  b = Not(a)", "b", False),
        ("a = Cast <to = 7> (use)  b = Cast <to = 9> (a)", "b", False),
        ("a = Identity(use)  b = Squeeze(a)", "b", False),
        ("a = Expand(use, split)  b = Transpose(a)  c = Tile(b, split)", "c", False),
        ("a = Unsqueeze(use, split)  b = Reshape(a, split)  c = Flatten(b)  d = Not(c)", "d", True),
    ],
)
def test_a_condition_is_traced_to_its_input(before: str, condition: str, negated: bool) -> None:
    traced = found(decoder(before, condition)).condition
    assert (traced.input.name, traced.negated) == ("use", negated)


def test_a_condition_that_is_not_boolean_does_not_merge() -> None:
    assert find_roles(decoder("a = Cast <to = 9> (use_float)", "a")).merged == ()


@pytest.mark.parametrize("before", ["a = Less(use_float, use_float)", "a = And(use, use)", "a = IsNaN(use_float)"])
def test_a_condition_computed_from_data_does_not_merge(before: str) -> None:
    assert find_roles(decoder(before, "a")).merged == ()


def test_a_constant_condition_does_not_merge() -> None:
    assert find_roles(decoder("a = Constant <value = bool {1}> ()", "a")).merged == ()


def test_two_branches_that_read_the_past_do_not_merge() -> None:
    assert find_roles(decoder(other=CACHE)).merged == ()


def test_two_branches_that_do_not_read_the_past_do_not_merge() -> None:
    assert find_roles(decoder(then=FIRST)).merged == ()


def test_an_if_without_an_else_does_not_merge() -> None:
    scope = main(
        f"""g ({INPUTS}) => ({OUTPUTS}) {WEIGHTS} {{
            present_key_0, present_cross_0 = If (use) <then_branch = {CACHE}>
        }}"""
    )
    assert find_roles(scope).merged == ()


def test_a_model_without_a_cache_has_no_merged_decoder() -> None:
    scope = main(
        """g (bool c, float[N] x) => (float[N] y) {
            y = If (c) <then_branch = t () => (float[N] a) { a = Neg(x) },
                        else_branch = e () => (float[N] b) { b = Constant <value = float[1] {1}> () }>
        }"""
    )
    assert find_roles(scope).merged == ()


def test_an_output_of_the_branch_that_the_if_does_not_have_is_ignored() -> None:
    scope = main(
        f"""g ({INPUTS}) => (float[B,2,T,4] present_key_0) {WEIGHTS} {{
            present_key_0 = If (use) <then_branch = {CACHE}, else_branch = {FIRST}>
        }}"""
    )
    assert found(scope).zero_length == ()


NESTED = f"""
g (bool outer, {INPUTS}) => ({OUTPUTS}) {WEIGHTS} {{
    present_key_0, present_cross_0 = If (outer) <
        then_branch = t () => (float[B,2,T,4] a, float[B,E,8] b) {{
            a, b = If (use) <then_branch = {CACHE}, else_branch = {FIRST}>
        }},
        else_branch = {FIRST}
    >
}}
"""


def test_a_merged_decoder_is_found_in_a_body() -> None:
    paths = [merged.node.path for merged in find_roles(main(NESTED)).merged]
    assert paths == ["If#0", "If#0/then_branch/If#0"]


def test_a_nested_if_counts_as_reading_what_its_branches_read() -> None:
    body = main(NESTED).nodes[0].bodies["then_branch"]
    assert [value.name for value in count_captured_values(body)] == ["use", "past_key_0", "empty", "enc", "split"]


def test_captures_count_each_read() -> None:
    scope = main(
        """g (bool c, float[N] x) => (float[N] y) { y = If (c) <
            then_branch = t () => (float[N] x) { local = Relu(x)  other = Add(local, x) },
            else_branch = e () => (float[N] z) { z = Neg(x) }
        > }"""
    )
    assert list(count_captured_values(scope.nodes[0].bodies["then_branch"]).values()) == [3]


def test_a_body_that_reads_nothing_outside_captures_nothing() -> None:
    body = decoder(then="t () => (float[1] a) <float[1] a = {1}> {}").nodes[0].bodies["then_branch"]
    assert count_captured_values(body) == {}


def test_the_input_of_a_body_is_not_a_condition() -> None:
    scope = main(
        """g (int64 n, bool go, float[N] x) => (float[N] y) { y = Loop <
            body = b (int64 i, bool c, float[N] old) => (bool again, float[N] new) {
                again = Identity(c)
                new = If (c) <then_branch = t () => (float[N] p) { p = Neg(old) },
                              else_branch = e () => (float[N] q) { q = Relu(old) }>
            }> (n, go, x)
        }"""
    )
    assert trace_condition(scope.nodes[0].bodies["body"].nodes[1]) is None


def test_an_if_without_a_condition_has_none() -> None:
    assert trace_condition(main('g () => () { y = If ("") }').nodes[0]) is None


@pytest.mark.parametrize(
    "body",
    [
        "b () => (float[0] z) <float[0] z = {}> {}",
        "b () => (float[0] z) { z = Constant <value = float[2,0] {}> () }",
        "b () => (float[0] z) <float[0] a = {}> { z = Identity(a) }",
        "b () => (float[0] z) { a = Constant <value = float[0] {}> ()  c = Identity(a)  z = Identity(c) }",
    ],
)
def test_an_empty_constant_is_a_zero_length_output(body: str) -> None:
    scope = main(f"g (bool c) => (y) {{ y = If (c) <then_branch = {body}, else_branch = {body}> }}")
    assert list(zero_length_outputs(scope.nodes[0].bodies["then_branch"])) == [0]


@pytest.mark.parametrize(
    "body",
    [
        "b () => (float[1] z) <float[1] z = {1}> {}",
        "b () => (float[0] z) { z = Relu(x) }",
        "b () => (float[0] z) { z = Identity(x) }",
    ],
)
def test_another_output_is_not_zero_length(body: str) -> None:
    scope = main(f"g (bool c, float[N] x) => (y) {{ y = If (c) <then_branch = {body}, else_branch = {body}> }}")
    assert list(zero_length_outputs(scope.nodes[0].bodies["then_branch"])) == []


@pytest.mark.cases(2)
@pytest.mark.parametrize(
    ("model", "branch", "zero_length"),
    [
        ("nllb-600m/decoder_model_merged", "then_branch", 24),
        ("opus-mt-en-fr/decoder_model_merged", "then_branch", 12),
        ("marian-tiny/decoder_model_merged", "then_branch", 12),
        ("nllb-tiny/decoder_model_merged_quantized", "then_branch", 24),
        ("whisper-tiny/decoder_model_merged", "then_branch", 4),
        ("gpt2-tiny/decoder_model_merged", "then_branch", 0),
    ],
)
def test_a_merged_decoder_of_an_exporter_is_recognised(
    model: str, branch: str, zero_length: int, real_model: Callable[[str], Model]
) -> None:
    merged = found(real_model(model).graph)
    assert (merged.cache_branch, len(merged.zero_length)) == (branch, zero_length)


def test_the_zero_length_outputs_of_an_exporter_are_the_encoder_kv(real_model: Callable[[str], Model]) -> None:
    merged = found(real_model("whisper-tiny/decoder_model_merged").graph)
    assert names(merged.zero_length) == [
        "present.0.encoder.key",
        "present.0.encoder.value",
        "present.1.encoder.key",
        "present.1.encoder.value",
    ]


@pytest.mark.parametrize(
    "model",
    ["nllb-600m/decoder_model", "nllb-600m/decoder_with_past_model", "gemma-270m/model", "search/beamsearch-gpt2"],
)
def test_another_model_is_not_a_merged_decoder(model: str, real_model: Callable[[str], Model]) -> None:
    assert real_model(model).roles.merged == ()
