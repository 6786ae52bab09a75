"""Roles of inputs and outputs: those of the real exports as text, and each kind of evidence in a small model."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import numpy as np
import onnx
import onnx.numpy_helper
import onnx.parser
import pytest
from real_models import MODEL_NAMES

from graphkit.analysis.architecture import architecture
from graphkit.graph.declared_types import declared_type
from graphkit.graph.names import family_labels
from graphkit.graph.roles import Roles
from graphkit.graph.view import Value
from graphkit.model import Model
from graphkit.shapes.constraints.legal_sizes import Sizes, symbol_roles
from graphkit.verify.input_generator import InputGenerator

RealModel = Callable[[str], Model]
EXPECTED = Path(__file__).with_name("roles.txt")


def axes(roles: Roles, value: Value) -> str:
    """Return what the axes of an input count, numbers as they are."""
    declared = declared_type(value)
    dims = (declared.dims if declared is not None else None) or ()
    return ", ".join(str(dim) if isinstance(dim, int) else roles.axis(value, at) for at, dim in enumerate(dims))


def line(roles: Roles, value: Value) -> str:
    """Return what an input is for: `past of self-attention, key, along 2 [batch, 8, past, 64]`."""
    role: str = roles.of(value)
    if (entry := roles.pasts.get(value)) is not None:
        attention = "cross" if roles.is_cross(entry) else "self"
        role += f" of {attention}-attention, {entry.slot.kind}, along {entry.axis}"
        role += "" if entry.present is not None else ", given by no output"
    role += " over past and new" if roles.spans_past(value) else ""
    return f"{role} [{axes(roles, value)}]"


def text(roles: Roles) -> str:
    """Return a line for each family of inputs and outputs of one role."""
    families: dict[str, list[str]] = {}
    for value in roles.inputs:
        families.setdefault(line(roles, value), []).append(value.name)
    for value, role in roles.outputs.items():
        given = "" if role != "present" or value not in roles.empty else ", empty once the past is read"
        families.setdefault(f"gives {role}{given}", []).append(value.name)
    return "".join(f"{family_labels(names)}: {what}\n" for what, names in families.items())


def expected() -> dict[str, str]:
    blocks = EXPECTED.read_text(encoding="utf-8").split("== ")[1:]
    return {name: found.strip() + "\n" for name, _, found in (block.partition("\n") for block in blocks)}


@pytest.mark.cases(12)
@pytest.mark.parametrize("name", MODEL_NAMES)
def test_the_roles_of_real_models(name: str, real_model: RealModel) -> None:
    assert text(real_model(name).roles) == expected()[name]


def model(graph: str, **tables: tuple[int, ...]) -> Model:
    """Return a model of a graph as text, with initializers of zeros."""
    proto = onnx.parser.parse_model(f'<ir_version: 8, opset_import: ["" : 17, "custom" : 1]> {graph}')
    zeros = {name: np.zeros(dims, np.float32) for name, dims in tables.items()}
    proto.graph.initializer.extend(onnx.numpy_helper.from_array(array, name) for name, array in zeros.items())
    return Model.from_proto(proto)


def roles_of(graph: str) -> dict[str, str]:
    """Return the role of each input of a graph."""
    return {value.name: role for value, role in model(graph).roles.inputs.items()}


MASKED = """
    kept = Cast <to = 1> (mask)
    one = Constant <value = float {1}> ()
    gone = Sub (one, kept)
    low = Constant <value = float {-10000}> ()
    added = Mul (gone, low)
    masked = Add (scores, added)
    y = Softmax (masked)
"""


def test_what_masks_scores_is_a_mask_whatever_its_name() -> None:
    graph = f"g (int64[b, s] mask, float[b, h, s, s] scores) => (float[b, h, s, s] y) {{ {MASKED} }}"
    assert roles_of(graph.replace("mask,", "arg0,").replace("(mask)", "(arg0)"))["arg0"] == "mask"


def test_what_is_counted_before_it_masks_is_no_mask() -> None:
    """Positions are compared with each other, a mask never is."""
    graph = """g (int64[b, s] arg0, int64[b, s] arg1, float[b, s] scores) => (float[b, s] y) {
        early = LessOrEqual (arg0, arg1)  low = Constant <value = float {-10000}> ()
        masked = Where (early, scores, low)  y = Softmax (masked) }"""
    assert roles_of(graph) == {"arg0": "other", "arg1": "other", "scores": "other"}


@pytest.mark.parametrize(("dtype", "name"), [("float", "attention_mask"), ("int64", "arg0")])
def test_what_is_compared_with_a_number_before_it_masks_is_a_mask(dtype: str, name: str) -> None:
    graph = f"""g ({dtype}[b, s] {name}, float[b, s] scores) => (float[b, s] y) <{dtype} half = {{0}}> {{
        kept = Greater ({name}, half)  low = Constant <value = float {{-10000}}> ()
        masked = Where (kept, scores, low)  y = Softmax (masked) }}"""
    assert roles_of(graph)[name] == "mask"


LOOKUP = "y = Gather (table, {}) }}"


@pytest.mark.parametrize(
    ("name", "dims", "role"),
    [
        ("arg0", "b, s", "tokens"),
        ("input_ids", "b, s", "tokens"),
        ("masked_mask", "b, s", "tokens"),  # what rows are looked up by is no mask
        ("inputIds", "b, s", "tokens"),
        ("encoder_input_ids", "b, s", "tokens"),  # an encoder's own
        ("position_ids", "b, s", "positions"),
        ("token_type_ids", "b, s", "token types"),
        ("arg0", "b", "other"),  # a label, perhaps
    ],
)
def test_what_rows_are_looked_up_by(name: str, dims: str, role: str) -> None:
    graph = f"g (int64[{dims}] {name}) => (float[{dims}, 4] y) <float[9, 4] table> {{ {LOOKUP.format(name)}"
    assert roles_of(graph.replace("}}", "}"))[name] == role


def test_two_unnamed_lookups_are_not_told_apart() -> None:
    graph = """g (int64[b, s] arg0, int64[b, s] arg1) => (float[b, s, 4] y) <float[9, 4] words, float[9, 4] places> {
        a = Gather (words, arg0)  c = Gather (places, arg1)  y = Add (a, c) }"""
    assert roles_of(graph) == {"arg0": "other", "arg1": "other"}


def test_edges_of_a_graph_are_no_tokens() -> None:
    graph = """g (float[n, 6] x, int64[2, e] edges) => (float[2, e, 4] y) <float[6, 4] w> {
        h = MatMul (x, w)  y = Gather (h, edges) }"""
    assert roles_of(graph)["edges"] == "other"


def test_what_angles_are_taken_of_is_positions() -> None:
    graph = """g (int64[b, s] arg0) => (float[b, s, 4] y) <float[1, 4] frequencies, int64[1] axes = {2}> {
        a = Cast <to = 1> (arg0)  c = Unsqueeze (a, axes)  d = MatMul (c, frequencies)  y = Cos (d) }"""
    assert roles_of(graph) == {"arg0": "positions"}


@pytest.mark.parametrize("t", ["int64[b] t", "int64 t"])
def test_the_time_of_a_diffusion_is_no_position(t: str) -> None:
    graph = f"""g (float[b, 4, h, w] x, {t}) => (float[c, 4] y)
        <float[1, 4] frequencies, int64[1] axes = {{1}}> {{
        a = Cast <to = 1> (t)  c = Unsqueeze (a, axes)  d = MatMul (c, frequencies)  y = Cos (d) }}"""
    assert roles_of(graph)["t"] == "other"


@pytest.mark.parametrize(
    ("graph", "expected"),
    [
        ("g (float[b, 1, h, w] mask) => (y) <float[8, 1, 3, 3] k> { y = Conv (mask, k) }", {"mask": "other"}),
        ("g (float[b, 1, s, t] mask, float[b, h, s, t] x) => (y) { a = Add (x, mask)  y = Softmax (a) }", None),
    ],
    ids=["of an image to fill in", "added to scores"],
)
def test_a_mask_of_floats(graph: str, expected: dict[str, str] | None) -> None:
    assert roles_of(graph) == (expected or {"mask": "mask", "x": "other"})


def test_the_axes_of_an_added_mask_are_those_of_scores() -> None:
    found = model("g (float[b, 1, n, all] mask, float[b, h, n, all] x) => (y) { a = Add (x, mask)  y = Softmax (a) }")
    assert text(found.roles).splitlines()[0] == "mask: mask [batch, 1, sequence, total]"


SEQ2SEQ = """g (int64[b, src] input_ids, int64[b, src] attention_mask,
    int64[b, t] decoder_input_ids, int64[b, t] decoder_attention_mask) => (float[b, t, 9] logits) {
    logits = custom.Model (input_ids, attention_mask, decoder_input_ids, decoder_attention_mask) }"""


def test_beside_inputs_of_a_decoder_the_others_are_of_the_encoder() -> None:
    assert roles_of(SEQ2SEQ) == {
        "input_ids": "encoder tokens",
        "attention_mask": "encoder mask",
        "decoder_input_ids": "tokens",
        "decoder_attention_mask": "mask",
    }


CROSS = """g (int64[b, s] input_ids, int64[b, frames] {mask}, float[b, frames, 8] {state},
    float[b, 2, past, 4] past_decoder_key_0, float[b, 2, frames, 4] past_encoder_key_0)
    => (float[b, s, 9] logits, float[b, 2, total, 4] present_decoder_key_0) {{
    logits, present_decoder_key_0 = custom.Decoder (
        input_ids, {mask}, {state}, past_decoder_key_0, past_encoder_key_0) }}"""


@pytest.mark.parametrize(
    ("mask", "state"), [("attention_mask", "memory"), ("encoder_attention_mask", "encoder_outputs")]
)
def test_what_is_as_long_as_the_cache_of_cross_attention_is_of_the_encoder(mask: str, state: str) -> None:
    found = roles_of(CROSS.format(mask=mask, state=state))
    assert (found[mask], found[state]) == ("encoder mask", "encoder state")


def test_where_all_dims_of_that_cache_are_names_the_one_they_share_is_the_source() -> None:
    """An exporter gives dims that no node needs names of their own."""
    given = "past_encoder_key_0, float[r1, h1, frames, w1] past_encoder_value_0"
    text = CROSS.replace("float[b, 2, frames, 4] past_encoder_key_0", f"float[r0, h0, frames, w0] {given}")
    found = roles_of(text.format(mask="attention_mask", state="memory"))
    assert (found["attention_mask"], found["memory"]) == ("encoder mask", "encoder state")


def test_a_cache_that_is_given_back_as_it_is_is_of_cross_attention() -> None:
    found = model("""g (float[b, 2, p, 4] past_key_0, float[b, 2, q, 4] past_key_1, float[b, 2, s, 4] k)
        => (float[b, 2, t, 4] present_key_0, float[b, 2, q, 4] present_key_1) {
        present_key_0 = Concat <axis = 2> (past_key_0, k)  present_key_1 = Identity (past_key_1) }""").roles
    assert [found.is_cross(entry) for entry in found.cache] == [False, True]


def test_symbolic_heads_are_no_batch() -> None:
    found = model("""g (float[n, heads, p, 4] past_key_0, float[n, heads, s, 4] k) =>
        (float[n, heads, t, 4] present_key_0) { present_key_0 = Concat <axis = 2> (past_key_0, k) }""")
    assert symbol_roles(found) == {"n": "batch", "heads": "other", "p": "past", "s": "space"}


def test_logits_are_as_wide_as_the_vocabulary() -> None:
    found = model(
        """g (int64[b, s] input_ids) => (float[b, s, 9] out, float[b, s, 4] kept)
        { kept = Gather (table, input_ids)  out = MatMul (kept, head) }""",
        table=(9, 4),
        head=(4, 9),
    ).roles
    assert found.logits is not None
    assert found.logits.name == "out"


def test_positions_before_tokens_are_not_the_vocabulary() -> None:
    found = model(
        """g (int64[b, s] position_ids, int64[b, s] input_ids) => (float[b, s, 4] y)
        { a = Gather (places, position_ids)  c = Gather (words, input_ids)  y = Add (a, c) }""",
        places=(512, 4),
        words=(99, 4),
    )
    assert architecture(found).vocabulary == 99


def test_the_mask_of_an_encoder_is_as_long_as_its_tokens(real_model: RealModel) -> None:
    feed = InputGenerator(real_model("opus-mt-en-fr/encoder_model")).make(Sizes(batch=2, sequence=3, encoder=5))
    assert {name: array.shape for name, array in feed.items()} == {"input_ids": (2, 5), "attention_mask": (2, 5)}


def test_where_a_custom_operator_hides_the_use_the_name_says() -> None:
    assert roles_of("g (int64[b, s] tokens) => (y) { y = custom.Embed (tokens) }") == {"tokens": "tokens"}


def test_roles_are_found_once(real_model: RealModel) -> None:
    found = real_model("gemma-270m/model")
    assert found.roles is found.roles


def test_a_circle_ends() -> None:
    found = model("g (float[n] x) => (float[n] hidden) { hidden = Identity (kept)  kept = Add (hidden, x) }")
    assert text(found.roles) == "x: other [batch]\nhidden: gives other\n"
