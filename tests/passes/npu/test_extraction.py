"""What leaves a model for its host: lookups, values of positions and masks, the cache; and what must stay."""

from __future__ import annotations

import numpy as np
import onnxruntime
import pytest
from onnx import numpy_helper, parser

from graphkit.errors import UsageError
from graphkit.graph.declared_types import declared_type
from graphkit.model import Model
from graphkit.passes.control_flow.inline_constant_if import InlineConstantIf, SpecializeInput
from graphkit.passes.npu.cache_interface import SplitCrossKv, StaticKvCache
from graphkit.passes.npu.host_inputs import (
    DequantizeAfterGather,
    ExtractEmbedding,
    ExtractHostValues,
    InsertAttentionMask,
)
from graphkit.rewrite.fixpoint import run_to_fixpoint

IDS = "int64[N, L] input_ids"
TABLE = "float[3, 2] table = {1, 2, 3, 4, 5, 6}"


def model_of(text: str) -> Model:
    return Model.from_proto(parser.parse_model(f'<ir_version: 8, opset_import: ["" : 17]>\n{text}'))


def run(model: Model, feed: dict[str, np.ndarray]) -> list[np.ndarray]:
    session = onnxruntime.InferenceSession(model.proto.SerializeToString(), providers=["CPUExecutionProvider"])
    return session.run(None, feed)


LOOKUPS = {
    "plain": f"g ({IDS}) => (float[N, L, 2] y) <{TABLE}> {{ e = Gather (table, input_ids) y = Neg (e) }}",
    "behind a Reshape": f"""g ({IDS}) => (float[a, b] y) <{TABLE}, int64[1] flat = {{-1}}> {{
        r = Reshape (input_ids, flat) e = Gather (table, r) y = Neg (e) }}""",
    "behind a Cast": f"""g ({IDS}) => (float[N, L, 2] y) <{TABLE}> {{
        c = Cast <to = 6> (input_ids) e = Gather (table, c) y = Neg (e) }}""",
    "a GatherND": f"""g ({IDS}) => (float[N, L, 2] y) <{TABLE}, int64[1] last = {{-1}}> {{
        u = Unsqueeze (input_ids, last) e = GatherND (table, u) y = Neg (e) }}""",
    "scaled": f"""g ({IDS}) => (float[N, L, 2] y) <{TABLE}, float root = {{1.5}}> {{
        e = Gather (table, input_ids) y = Mul (e, root) }}""",
    "of 8 bits": f"""g ({IDS}) => (float[N, L, 2] y)
        <int8[3, 2] table = {{1, 2, 3, 4, 5, 6}}, float s = {{0.5}}, int8 z = {{1}}> {{
        e = Gather (table, input_ids) y = DequantizeLinear (e, s, z) }}""",
    "dequantised first": f"""g ({IDS}) => (float[N, L, 2] y)
        <int8[3, 2] table = {{1, 2, 3, 4, 5, 6}}, float s = {{0.5}}, int8 z = {{1}}> {{
        t = DequantizeLinear (table, s, z) e = Gather (t, input_ids) y = Neg (e) }}""",
    "dequantised first, by column": f"""g ({IDS}) => (float[N, L, 2] y)
        <int8[3, 2] table = {{1, 2, 3, 4, 5, 6}}, float[2] s = {{0.5, 3}}> {{
        t = DequantizeLinear <axis = 1> (table, s) e = Gather (t, input_ids) y = Neg (e) }}""",
    "between quantisers": f"""g ({IDS}) => (float[N, L, 2] y) <{TABLE}, float s = {{0.5}}, int8 z = {{1}}> {{
        e = Gather (table, input_ids) q = QuantizeLinear (e, s, z) y = DequantizeLinear (q, s, z) }}""",
    "tied with the projection": f"""g ({IDS}) => (float[N, L, 3] y) <{TABLE}> {{
        e = Gather (table, input_ids) t = Transpose (table) y = MatMul (e, t) }}""",
}


@pytest.mark.parametrize("spelling", LOOKUPS)
def test_a_lookup_by_ids_is_an_input_that_gives_the_same(spelling: str) -> None:
    original = model_of(LOOKUPS[spelling])
    result = ExtractEmbedding().run(original).model
    assert [value.name for value in result.graph.inputs] == ["inputs_embeds"]
    assert not [node for node in result.graph.nodes if node.is_op("Gather", "GatherND")]
    ids = np.array([[2, 0, 1, 2]])
    (tensor,) = (tensor for tensor in original.proto.graph.initializer if tensor.name == "table")
    rows = numpy_helper.to_array(tensor)[ids if spelling != "behind a Reshape" else ids.ravel()]
    np.testing.assert_array_equal(run(result, {"inputs_embeds": rows})[0], run(original, {"input_ids": ids})[0])


STAYING = {
    "it gathers from what is computed, not from a table": f"""g (float[3, 2] x, {IDS}) => (float[N, L, 2] y) {{
        t = Neg (x) y = Gather (t, input_ids) }}""",
    "its table is not of rank 2": f"""g ({IDS}) => (float[N, L] y) <float[3] t = {{1, 2, 3}}> {{
        y = Gather (t, input_ids) }}""",
    "it gathers columns, not rows": f"g ({IDS}) => (y) <{TABLE}> {{ y = Gather <axis = 1> (table, input_ids) }}",
    "its indices are not the elements of an integer input": f"""g ({IDS}) => (y) <{TABLE}, int64 one = {{1}}> {{
        i = Sub (input_ids, one) y = Gather (table, i) }}""",
    "its indices are not the elements of an integer input ": f"""g ({IDS}) => (y) <{TABLE}> {{
        b = Cast <to = 9> (input_ids) i = Cast <to = 7> (b) y = Gather (table, i) }}""",
}


@pytest.mark.parametrize("reason", STAYING)
def test_what_is_no_lookup_by_ids_stays(reason: str) -> None:
    original = model_of(STAYING[reason])
    outcome = ExtractEmbedding().run(original)
    assert outcome.model is original
    assert [each.reason for each in outcome.declined] == [reason.strip()]


def test_a_table_with_a_scale_for_each_row_stays() -> None:
    original = model_of(f"""g ({IDS}) => (float[N, L, 2] y)
        <int8[3, 2] table = {{1, 2, 3, 4, 5, 6}}, float[3] s = {{0.5, 3, 1}}> {{
        t = DequantizeLinear <axis = 0> (table, s) y = Gather (t, input_ids) }}""")
    outcome = run_to_fixpoint(original, [DequantizeAfterGather()])
    assert outcome.model is original
    assert [each.reason for each in outcome.declined] == ["each row of its table has a scale of its own"]
    assert ExtractEmbedding().run(original).model is original


def test_a_table_that_both_branches_share_stays_until_they_are_split() -> None:
    original = model_of(f"""g ({IDS}, bool first) => (float[N, L, 2] y) <{TABLE}> {{
        y = If (first) <
            then_branch = one () => (float[N, L, 2] a) {{ a = Gather (table, input_ids) }},
            else_branch = other () => (float[N, L, 2] c) {{ b = Gather (table, input_ids) c = Neg (b) }}
        > }}""")
    outcome = ExtractEmbedding().run(original)
    assert outcome.model is original
    assert {each.reason for each in outcome.declined} == {
        "it is in a body of another node - split or inline that first"
    }
    assert len(outcome.declined) == 2
    branch = SpecializeInput("first", "true").run(original).model
    split = ExtractEmbedding().run(InlineConstantIf().run(branch).model).model
    assert [value.name for value in split.graph.inputs] == ["inputs_embeds"]


def test_two_tables_have_an_input_each() -> None:
    result = ExtractEmbedding().run(
        model_of(f"""g ({IDS}, int64[N, L] token_type_ids) => (float[N, L, 2] y)
        <{TABLE}, float[2, 2] types = {{1, 2, 3, 4}}> {{
            a = Gather (table, input_ids) b = Gather (types, token_type_ids) y = Add (a, b) }}""")
    )
    assert [value.name for value in result.model.graph.inputs] == ["inputs_embeds", "token_type_embeds"]


NEW = "float[1, 2, 1, 4] k"
PAST = "float[1, 2, past, 4] past_key_0, float[1, 2, 1, 4] k"


def positions(end: str) -> Model:
    """Return a model in which a float `f` is the length of the past."""
    return model_of(f"""g ({PAST}) => (float[1, 2, all, 4] present_key_0, float[1, 2, 1, 4] y) {{
        present_key_0 = Concat <axis = 2> (past_key_0, k)
        n = Shape <start = 2, end = 3> (past_key_0)
        f = Cast <to = 1> (n)
        y = {end}
    }}""")


def test_what_depends_on_the_length_of_the_past_becomes_an_input() -> None:
    outcome = ExtractHostValues().run(positions("Add (k, f)"))
    assert outcome.changes == ("'f' is an input, 'position_values'",)


def test_shapes_and_data_stay() -> None:
    original = positions("Mul (k, k)")
    assert ExtractHostValues().run(original).model is original


def test_how_many_rows_data_chooses_is_data() -> None:
    """OneFormer writes zeros to the places of a mask that data makes, as many as there are."""
    original = model_of("""g (float[4, 6] x) => (float[4, 6] y) <int64[2] last = {0, 1}, int64[1] first = {0}> {
        places = NonZero (x) at = Transpose (places) count = Shape <start = 0, end = 1> (at)
        zeros = ConstantOfShape (count) y = ScatterND (x, at, zeros) }""")
    assert ExtractHostValues().run(original).model is original


def test_integers_that_no_host_knows_are_data() -> None:
    text = """g (float[N, L] x, {given}) => (float[N, L] y) <int64[1] last = {{-1}}, int64[1] one = {{1}}> {{
        u = {unsqueezed} m = Sub (one, u) b = Cast <to = 1> (m) s = Add (x, b) y = Softmax (s) }}"""
    masked = text.format(given="int64[N, L] attention_mask", unsqueezed="Identity (attention_mask)")
    assert ExtractHostValues().run(model_of(masked)).changes == ("'b' is an input, 'attention_bias'",)
    counted = model_of(text.format(given="int64[N] frames_seen", unsqueezed="Unsqueeze (frames_seen, last)"))
    assert ExtractHostValues().run(counted).model is counted


def test_a_cache_is_not_fixed_where_a_constant_would_depend_on_its_length() -> None:
    outcome = StaticKvCache(8).run(positions("Add (k, f)"))
    assert [each.reason for each in outcome.declined] == [
        "it depends on the length of the past, which must not become a constant - run extract-host-values first"
    ]


UNFIXED = {
    "nothing new joins it": f"""g ({PAST}, float[1, 2, all, 4] w) => (float[1, 2, all, 4] present_key_0, n) {{
        present_key_0 = Identity (w) n = Shape (past_key_0) }}""",
    "'Relu#1' (Relu) reads it before what is new joins it": f"""g (float[1, past, 2, 4] past_key_0, {NEW})
        => (float[1, all, 2, 4] present_key_0) {{
        t = Transpose <perm = [0, 2, 1, 3]> (past_key_0) r = Relu (t) c = Concat <axis = 2> (r, k)
        present_key_0 = Transpose <perm = [0, 2, 1, 3]> (c) }}""",
    "'Concat#1' (Concat) reads it before what is new joins it": f"""g (float[1, past, 2, 4] past_key_0, {NEW})
        => (float[1, all, 2, 4] present_key_0) {{
        t = Transpose <perm = [0, 2, 1, 3]> (past_key_0) c = Concat <axis = 2> (k, t)
        present_key_0 = Transpose <perm = [0, 2, 1, 3]> (c) }}""",
    "its present is also made of 'r'": f"""g (float[1, past, 2, 4] past_key_0, {NEW})
        => (float[1, all, 2, 4] present_key_0) {{
        t = Transpose <perm = [0, 2, 1, 3]> (past_key_0) c = Concat <axis = 2> (t, k) r = Relu (c)
        present_key_0 = Transpose <perm = [0, 2, 1, 3]> (r) }}""",
    "what it becomes has another shape": f"""g (float[1, past, 2, 4] past_key_0, {NEW})
        => (float[1, all, 4, 2] present_key_0) {{
        t = Transpose <perm = [0, 2, 1, 3]> (past_key_0) c = Concat <axis = 2> (t, k)
        present_key_0 = Transpose <perm = [0, 2, 3, 1]> (c) }}""",
    "what it becomes has another dtype": f"""g (float16[1, 2, past, 4] past_key_0, {NEW})
        => (float[1, 2, all, 4] present_key_0) {{
        t = Cast <to = 1> (past_key_0) present_key_0 = Concat <axis = 2> (t, k) }}""",
    "it is not read by one Concat with what is new": f"""g ({PAST}) => (float[1, 2, all, 4] present_key_0, y) {{
        present_key_0 = Concat <axis = 2> (past_key_0, k) y = Neg (past_key_0) }}""",
    "it is not read by one Concat with what is new ": f"""g ({PAST}) => (float[1, 2, all, 4] present_key_0) {{
        present_key_0 = Concat <axis = 2> (k, past_key_0) }}""",
    "it does not join past and new along the axis that grows": f"""g ({PAST})
        => (float[1, 2, all, 4] present_key_0) {{
        present_key_0 = Concat <axis = 1> (past_key_0, k) }}""",
}


@pytest.mark.parametrize("reason", UNFIXED)
def test_a_cache_that_grows_otherwise_is_declined(reason: str) -> None:
    original = model_of(UNFIXED[reason])
    outcome = StaticKvCache(8).run(original)
    assert outcome.model is original
    assert [each.reason for each in outcome.declined] == [reason.strip()]


MOVED = {
    "slots before heads": f"""g (float[1, past, 2, 4] past_key_0, {NEW})
        => (float[1, all, 2, 4] present_key_0, float[1, 2, all, 4] y) {{
        t = Transpose <perm = [0, 2, 1, 3]> (past_key_0) c = Concat <axis = 2> (t, k)
        present_key_0 = Transpose <perm = [0, 2, 1, 3]> (c) y = Neg (c) }}""",
    "in another dtype": f"""g ({PAST}) => (float[1, 2, all, 4] present_key_0, float[1, 2, all, 4] y) {{
        h = Cast <to = 10> (past_key_0) n = Cast <to = 10> (k) c = Concat <axis = 2> (h, n)
        present_key_0 = Cast <to = 1> (c) y = Neg (present_key_0) }}""",
    "keys transposed": f"""g (float[1, 2, 4, past] past_key_0, {NEW})
        => (float[1, 2, 4, all] present_key_0, float[1, 2, 4, all] y) {{
        t = Transpose <perm = [0, 1, 3, 2]> (k) present_key_0 = Concat <axis = 3> (past_key_0, t)
        y = Neg (present_key_0) }}""",
    "of all layers": f"""g (float[2, 1, 2, past, 4] past_key_values, {NEW})
        => (float[2, 1, 2, all, 4] present_key_values, float[1, 2, all, 4] y)
        <int64 zero = {{0}}, int64 one = {{1}}, int64[1] front = {{0}}> {{
        a = Gather (past_key_values, zero) b = Gather (past_key_values, one)
        c = Concat <axis = 2> (a, k) n = Neg (k) d = Concat <axis = 2> (b, n)
        e = Unsqueeze (c, front) f = Unsqueeze (d, front)
        present_key_values = Concat <axis = 0> (e, f) y = Add (c, d) }}""",
}


@pytest.mark.parametrize("text", MOVED.values(), ids=MOVED)
def test_the_new_part_of_a_cache_is_the_end_of_what_it_becomes(text: str) -> None:
    original = model_of(text)
    outcome = StaticKvCache(3).run(original)
    assert outcome.changes == ("1 cache fixed at 3 slots",)
    rng = np.random.default_rng(0)
    feed = {
        value.name: rng.normal(size=[3 if dim == "past" else dim for dim in declared.dims]).astype(np.float32)
        for value in original.graph.inputs
        if (declared := declared_type(value)) is not None and declared.dims is not None
    }
    (entry,) = original.roles.cache
    present, y = run(original, feed)
    new, same = run(outcome.model, feed)
    np.testing.assert_array_equal(same, y)
    np.testing.assert_array_equal(new, np.take(present, [3], entry.axis))


UNMASKED = {
    "a mask that is there already": """g (float[1, 1, 4] q, float[1, 4, S] encoder_hidden_states,
        int64[1, S] encoder_attention_mask) => (y) {
        s = MatMul (q, encoder_hidden_states) m = Cast <to = 1> (encoder_attention_mask) a = Add (s, m)
        y = Softmax (a) }""",
    "scores that no product gives": """g (float[1, S, 4] encoder_hidden_states) => (y) {
        t = Transpose <perm = [0, 2, 1]> (encoder_hidden_states) y = Softmax (t) }""",
    "a Softmax over another axis": """g (float[1, S, 4] encoder_hidden_states, float[1, 4, 2] q) => (y) {
        s = MatMul (encoder_hidden_states, q) y = Softmax <axis = 1> (s) }""",
    "keys of which data says how many there are": """g (float[1, 4] q, float[4, 6] pixel_values) => (y) {
        places = NonZero (pixel_values) keys = Cast <to = 1> (places) two = Concat <axis = 0> (keys, keys)
        s = MatMul (q, two) y = Softmax <axis = -1> (s) }""",
    "an image, all of which is valid": """g (float[1, 4, S] pixel_values) => (y) {
        t = Transpose <perm = [0, 2, 1]> (pixel_values) s = MatMul (t, pixel_values) y = Softmax <axis = -1> (s) }""",
}


@pytest.mark.parametrize("case", UNMASKED)
def test_no_mask_is_inserted(case: str) -> None:
    original = model_of(UNMASKED[case])
    assert InsertAttentionMask().run(original).model is original


@pytest.mark.parametrize(("keys", "is_mask"), [(1, False), ("all", True)])
def test_a_mask_of_one_key_that_an_exporter_froze_hides_no_slots(keys: int | str, is_mask: bool) -> None:
    model = model_of(
        f"""g (float[1, 2, 1, 4] q, float[1, 2, past, 4] past_key_0, float[1, 2, 1, 4] k,
               int64[1, 1, 1, {keys}] attention_mask)
        => (y, float[1, 2, all, 4] present_key_0) <float floor = {{-9.0}}> {{
            present_key_0 = Concat <axis = 2> (past_key_0, k)
            keys = Transpose <perm = [0, 1, 3, 2]> (present_key_0) scores = MatMul (q, keys)
            numbers = Cast <to = 1> (attention_mask) bias = Mul (numbers, floor)
            masked = Add (scores, bias) y = Softmax (masked) }}"""
    )
    assert [match.over for match in InsertAttentionMask().run(model).matches] == ([] if is_mask else ["slots"])


def test_a_decoder_without_a_cross_attention_cache_is_refused() -> None:
    with pytest.raises(UsageError, match=r"gives no cross-attention cache: .* - export it with one, or bundle it"):
        SplitCrossKv().run(model_of(f"g ({IDS}) => (y) {{ y = Neg (input_ids) }}"))


def test_a_cross_attention_cache_that_depends_on_tokens_is_refused() -> None:
    text = """g (int64[N, S] input_ids, float[N, S, 4] encoder_hidden_states)
    => (float[N, S, 4] logits, float[N, S, 4] present_0_encoder_key) <int64[1] last = {-1}> {
        f = Cast <to = 1> (input_ids) u = Unsqueeze (f, last)
        present_0_encoder_key = Add (encoder_hidden_states, u)
        logits = Neg (present_0_encoder_key)
    }"""
    with pytest.raises(UsageError, match="depends on 'input_ids' - bundle it with `graphkit bundle`"):
        SplitCrossKv().run(model_of(text))


TAKEN = {
    "of an output that an input gives": (
        ExtractEmbedding(),
        f"""g ({IDS}) => (float[N, L, 2] e, float[N, L, 2] e_before, float[N, L, 2] inputs_embeds) <{TABLE}> {{
            e = Gather (table, input_ids) e_before = Neg (e) inputs_embeds = Abs (e) }}""",
    ),
    "of a mask, which two attentions add to the same scores": (
        InsertAttentionMask(),
        """g (float[1, 1, 4] q, float[1, S, 4] encoder_hidden_states) => (y, z, source_mask_3d, scores_masked) {
            keys = Transpose <perm = [0, 2, 1]> (encoder_hidden_states) scores = MatMul (q, keys)
            y = Softmax (scores) z = Softmax (scores) source_mask_3d = Neg (scores) scores_masked = Neg (scores) }""",
    ),
    "of what is new in a cache": (
        StaticKvCache(3),
        f"""g ({PAST}) => (float[1, 2, all, 4] present_key_0, float[1, 2, all, 4] present_key_0_new) {{
            present_key_0 = Concat <axis = 2> (past_key_0, k) present_key_0_new = Neg (present_key_0) }}""",
    ),
    "of the end of what it becomes": (
        StaticKvCache(3),
        f"""g (float[1, past, 2, 4] past_key_0, {NEW}) => (float[1, all, 2, 4] present_key_0, present_key_0_new_from)
        {{
            t = Transpose <perm = [0, 2, 1, 3]> (past_key_0) c = Concat <axis = 2> (t, k)
            present_key_0 = Transpose <perm = [0, 2, 1, 3]> (c) present_key_0_new_from = Neg (c) }}""",
    ),
}


@pytest.mark.parametrize("case", TAKEN)
def test_names_that_are_taken_are_left_alone(case: str) -> None:
    step, text = TAKEN[case]
    outcome = step.run(model_of(text))
    assert outcome.changes
    outcome.model.check_soundness()
    names = [name for node in outcome.model.proto.graph.node for name in node.output]
    assert len({*names}) == len(names)


def test_passes_return_their_matches() -> None:
    lookups = ExtractEmbedding().run(model_of(LOOKUPS["plain"])).matches
    assert [(match.table.name, match.ids.name, match.role, match.name) for match in lookups] == [
        ("table", "input_ids", "tokens", "inputs_embeds")
    ]
    cache = StaticKvCache(3).run(model_of(TAKEN["of what is new in a cache"][1]))
    assert [(match.axis, match.given) for match in cache.matches] == [(2, "present_key_0_new_2")]
    assert cache.matches[0].given in {value.name for value in cache.model.graph.outputs}
    masks = InsertAttentionMask().run(model_of(TAKEN["of a mask, which two attentions add to the same scores"][1]))
    assert {(match.over, match.name) for match in masks.matches} == {("source", "source_mask_3d_2")}
    assert StaticKvCache(3).run(model_of(LOOKUPS["plain"])).matches == ()
