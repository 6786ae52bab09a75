from __future__ import annotations

import json
import re
import tracemalloc
import zipfile
from collections.abc import Callable, Sequence
from pathlib import Path

import numpy as np
import onnx
import pytest
from onnx import helper, numpy_helper
from small_models import model

from graphkit.cli import app
from graphkit.errors import ModelError, UsageError
from graphkit.graph.view import Node, Value
from graphkit.model import Model
from graphkit.passes.control_flow.merged_decoders import Split, split_merged
from graphkit.progress import Limits
from graphkit.runtime.session import IsolatedSession, RunError
from graphkit.verify.layers.compared_model import Side, Steps
from graphkit.verify.layers.comparison import ModelComparison
from graphkit.workflows.compare_models import CompareOptions, compare_models

LAYER = """
layer (int64[batch, sequence] input_ids, int64[batch, sequence] attention_mask) => (float[batch, sequence, 11] logits) {
  tokens = Gather (table, input_ids)
  dims = Shape (input_ids)
  length = Gather (dims, one)
  places = Range (zero, length, one)
  positions = Gather (position_table, places)
  embedded = Add (tokens, positions)
  query = MatMul (embedded, w_query)
  key = MatMul (embedded, w_key)
  value = MatMul (embedded, w_value)
  query_split = Reshape (query, split)
  key_split = Reshape (key, split)
  value_split = Reshape (value, split)
  query_heads = Transpose <perm = [0, 2, 1, 3]> (query_split)
  key_heads = Transpose <perm = [0, 2, 3, 1]> (key_split)
  value_heads = Transpose <perm = [0, 2, 1, 3]> (value_split)
  scaled = Mul (query_heads, scale)
  scores = MatMul (scaled, key_heads)
  kept = Cast <to = 1> (attention_mask)
  dropped = Sub (unit, kept)
  floor = Mul (dropped, lowest)
  mask = Unsqueeze (floor, inner)
  masked = Add (scores, mask)
  weights = Softmax <axis = -1> (masked)
  mixed = MatMul (weights, value_heads)
  mixed_back = Transpose <perm = [0, 2, 1, 3]> (mixed)
  joined = Reshape (mixed_back, join)
  projected = MatMul (joined, w_out)
  hidden = Add (projected, embedded)
  raw = MatMul (hidden, w_head)
  logits = Add (raw, final_logits_bias)
}
"""
STEP = """
step (int64[batch, 1] input_ids, float[batch, 2, past, 4] past_0_key)
  => (float[batch, 1, 8] hidden, float[batch, 2, total, 4] present_0_key) {
  tokens = Gather (table, input_ids)
  dims = Shape (past_0_key)
  place = Gather (dims, two)
  positions = Gather (position_table, place)
  hidden = Add (tokens, positions)
  split_hidden = Reshape (hidden, split)
  key = Transpose <perm = [0, 2, 1, 3]> (split_hidden)
  present_0_key = Concat <axis = 2> (past_0_key, key)
}
"""
RNG = np.random.default_rng(7)
WEIGHTS: dict[str, np.ndarray] = {
    "table": RNG.standard_normal((11, 8)),
    "position_table": RNG.standard_normal((40, 8)),
    **{name: RNG.standard_normal((8, 8)) for name in ("w_query", "w_key", "w_value", "w_out")},
    "w_head": RNG.standard_normal((8, 11)),
    "final_logits_bias": RNG.standard_normal((1, 11)) * 8,
    "scale": np.array(0.35),
    "unit": np.array(1.0),
    "lowest": np.array(-1e9),
    "zero": np.array(0),
    "one": np.array(1),
    "two": np.array(2),
    "split": np.array([0, 0, 2, 4]),
    "join": np.array([0, 0, 8]),
    "inner": np.array([1, 2]),
}


def small(text: str = LAYER, **changed: np.ndarray) -> Model:
    used = {name: array for name, array in {**WEIGHTS, **changed}.items() if name in text}
    return model(text, **used)


def layer(before: str = "", after: str = "", **changed: np.ndarray) -> Model:
    assert before in LAYER
    return small(LAYER.replace(before, after) if before else LAYER, **changed)


def told(found: ModelComparison, tensor: str) -> str:
    """Return what is said of the one tensor at which the difference begins."""
    assert not found.passed
    assert [one.tensor for one in found.divergences] == [tensor]
    return " ".join(cause.text for cause in found.divergences[0].causes)


def test_equal_models_agree() -> None:
    found = compare_models(layer(), layer())
    assert found.passed
    assert found.matched == len(found.tensors) == 30
    assert found.unmatched_a == found.unmatched_b == ()
    assert found.inputs == {"input_ids": (4, 4), "attention_mask": (4, 4)}
    assert max(tensor.absolute or 0 for tensor in found.tensors) == 0


def heads(array: np.ndarray, *order: int) -> np.ndarray:
    return array.reshape(8, 2, 4)[:, list(order)].reshape(8, 8)


PADS = LAYER.replace("dropped = Sub (unit, kept)", "padded = Cast <to = 9> (kept)").replace(
    "floor = Mul (dropped, lowest)", "floor = Where (padded, infinite, zero_float)"
)  # whose ones hide
ENDS = {"infinite": np.array(-np.inf), "zero_float": np.array(0.0)}


def test_a_weight_behind_a_mask_whose_ones_pad_is_no_leak_of_padding() -> None:
    """A mask of nothing but ones hides everything there, and what is not a number is equal whatever the weights are."""
    a, b = small(PADS, **ENDS), small(PADS, **ENDS, w_out=WEIGHTS["w_out"][::-1].copy())
    assert "'w_out' of B is not 'w_out' of A" in told(compare_models(a, b), "projected")
    assert "padding" not in told(compare_models(a, b), "projected")


def test_a_mask_whose_ones_pad_and_that_is_dropped_is_a_leak_of_padding() -> None:
    a, b = small(PADS, **ENDS), small(PADS.replace("Add (scores, mask)", "Identity (scores)"), **ENDS)
    assert told(compare_models(a, b), "masked").startswith("padding leak: the two agree where 'attention_mask' masks")


def test_a_mask_whose_ones_pad_and_that_is_inverted_is_named() -> None:
    turned = PADS.replace("padded = Cast <to = 9> (kept)", "other = Sub (unit, kept) padded = Cast <to = 9> (other)")
    text = told(compare_models(small(PADS, **ENDS), small(turned, **ENDS)), "padded")
    assert text == "mask inverted: B is A with 'attention_mask' inverted."


FAULTS: dict[str, tuple[Callable[[], Model], str, str]] = {
    "bias removed": (
        lambda: layer(
            "raw = MatMul (hidden, w_head)\n  logits = Add (raw, final_logits_bias)", "logits = MatMul (hidden, w_head)"
        ),
        "logits",
        "constant offset: A adds its initializer 'final_logits_bias', and B does not.",
    ),
    "bias set to zero": (
        lambda: layer(final_logits_bias=np.zeros((1, 11))),
        "logits",
        "'final_logits_bias' of B is not 'final_logits_bias' of A: it is all zeros.",
    ),
    "padding mask dropped": (
        lambda: layer("masked = Add (scores, mask)", "masked = Identity (scores)"),
        "masked",
        "padding leak: the two agree where 'attention_mask' masks nothing; padding changes what one of them computes.",
    ),
    "positions twice": (
        lambda: layer(
            "embedded = Add (tokens, positions)", "once = Add (tokens, positions) embedded = Add (once, positions)"
        ),
        "embedded",
        "B adds positions (rows 0 to 3 of 'position_table') twice, A once.",
    ),
    "positions missing": (
        lambda: layer("embedded = Add (tokens, positions)", "embedded = Identity (tokens)"),
        "embedded",
        "A adds positions (rows 0 to 3 of 'position_table'), and B does not.",
    ),
    "table transposed": (
        lambda: layer(table=WEIGHTS["table"].ravel(order="F").reshape(11, 8)),
        "tokens",
        "'table' of B is not 'table' of A: transposed: B has the elements of A, stored column by column.",
    ),
    "weight transposed": (
        lambda: layer(w_key=WEIGHTS["w_key"].T),
        "key",
        "'w_key' of B is not 'w_key' of A: transposed: B is A with its axes in the order [1, 0].",
    ),
    "heads permuted": (
        lambda: layer(w_query=heads(WEIGHTS["w_query"], 1, 0)),
        "query",
        "'w_query' of B is not 'w_query' of A: permuted heads: along axis 1, the 2 blocks of 4 in B are those [1, 0] "
        "of A.",
    ),
    "scale twice": (
        lambda: layer(
            "scaled = Mul (query_heads, scale)", "once = Mul (query_heads, scale) scaled = Mul (once, scale)"
        ),
        "scaled",
        "scale: B is 0.35 times A: B applies the Mul by 'scale' of A twice.",
    ),
    "scale lost": (
        lambda: layer("scaled = Mul (query_heads, scale)", "scaled = Identity (query_heads)"),
        "scaled",
        "scale: B is 2.85714 times A: B lacks the Mul by 'scale' of A, or A applies it twice.",
    ),
    "residual missing": (
        lambda: layer("hidden = Add (projected, embedded)", "hidden = Identity (projected)"),
        "hidden",
        "A adds its tensor 'embedded' (a residual), and B does not.",
    ),
    "heads permuted in the tensor": (
        lambda: layer(
            "key_heads = Transpose <perm = [0, 2, 3, 1]> (key_split)",
            "turned = Transpose <perm = [0, 2, 3, 1]> (key_split) key_heads = Gather <axis = 1> (turned, swap)",
            swap=np.array([1, 0]),
        ),
        "key_heads",
        "permuted: along axis 1, the 2 slices of B are those [1, 0] of A.",
    ),
    "mask inverted": (
        lambda: layer("dropped = Sub (unit, kept)", "dropped = Identity (kept)"),
        "dropped",
        "mask inverted: B is A with 'attention_mask' inverted.",
    ),
    "mask shifted": (
        lambda: layer(
            "kept = Cast <to = 1> (attention_mask)",
            "tail = Slice (attention_mask, one_first, far, one_first)"
            " last = Slice (attention_mask, minus, far, one_first)"
            " moved = Concat <axis = 1> (tail, last) kept = Cast <to = 1> (moved)",
            one_first=np.array([1]),
            far=np.array([99]),
            minus=np.array([-1]),
        ),
        "kept",
        "mask shifted: B is A with 'attention_mask' shifted by one: it reads the place after.",
    ),
    "two faults at once": (
        lambda: layer("logits = Add (raw, final_logits_bias)", "once = Mul (raw, raw) logits = Sin (once)"),
        "logits",
        "no simple relation was found between the two.",
    ),
    "a weight and an operator at once": (
        lambda: layer("hidden = Add (projected, embedded)", "hidden = Sub (projected, query)", w_out=WEIGHTS["w_out"]),
        "hidden",
        "no simple relation was found between the two.",
    ),
}


@pytest.mark.cases(6)
@pytest.mark.parametrize("fault", FAULTS)
def test_a_fault_is_named(fault: str) -> None:
    make, tensor, text = FAULTS[fault]
    assert told(compare_models(layer(), make()), tensor) == text


@pytest.mark.parametrize(
    "fault",
    ["bias removed", *(pytest.param(name, marks=pytest.mark.slow) for name in ("positions twice", "scale twice"))],
)
def test_bisection_finds_the_same_with_fewer_tensors(fault: str) -> None:
    make, tensor, text = FAULTS[fault]
    found = compare_models(layer(), make(), options=CompareOptions(bisect=True))
    assert told(found, tensor) == text
    assert found.bisected
    assert len(found.tensors) <= 9


STEP_FAULTS: dict[str, tuple[tuple[str, str], str, str]] = {
    "position off by one": (
        ("place = Gather (dims, two)", "length = Gather (dims, two) place = Add (length, one)"),
        "place",
        "constant offset: B has 1 more than A in every element; positions, or a length, are off by one.",
    ),
    "rows off by one": (
        ("place = Gather (dims, two)", "length = Gather (dims, two) next_place = Add (length, one)"),
        "positions",
        "off by one: A looks up rows 6 of 'position_table', B rows 7.",
    ),
    "slots off by one": (
        ("(past_0_key, key)", "(key, past_0_key)"),
        "present_0_key",
        "rotated: along axis 2, B has at i what A has at i - 1, modulo 7.",
    ),
    "a slot lost": (
        (
            "present_0_key = Concat <axis = 2> (past_0_key, key)",
            "kept = Slice (past_0_key, first, last, two_axis)\n  present_0_key = Concat <axis = 2> (kept, key)",
        ),
        "present_0_key",
        "dims: along axis 2, B is A from 1 to 7, of 7; off by one.",
    ),
}


@pytest.mark.parametrize("fault", STEP_FAULTS)
def test_a_fault_of_the_cache_is_named(fault: str) -> None:
    (before, after), tensor, text = STEP_FAULTS[fault]
    changed = STEP.replace(before, after)
    if "next_place" in after:
        changed = changed.replace("(position_table, place)", "(position_table, next_place)")
    ends = {"first": np.array([1]), "last": np.array([99]), "two_axis": np.array([2])}
    assert before in STEP
    found = compare_models(small(STEP), small(changed, **ends))
    assert told(found, tensor) == text


@pytest.fixture(scope="module")
def marian(real_model: Callable[[str], Model]) -> Split:
    return split_merged(real_model("marian-tiny/decoder_model_merged"))


def edited(original: Model, edit: Callable[[onnx.GraphProto], None]) -> Model:
    """Return a model whose complete proto was edited."""
    proto = original.restore()
    edit(proto.graph)
    return Model.from_proto(proto)


def node(graph: onnx.GraphProto, output: str) -> onnx.NodeProto:
    return next(node for node in graph.node if output in node.output)


def bypass(output: str, kept: str) -> Callable[[onnx.GraphProto], None]:
    """Return an edit after which a node passes one of its inputs on."""

    def edit(graph: onnx.GraphProto) -> None:
        found = node(graph, output)
        assert kept in found.input
        found.CopyFrom(helper.make_node("Identity", [kept], [output], name=found.name))

    return edit


def reweighted(name: str, change: Callable[[np.ndarray], np.ndarray]) -> Callable[[onnx.GraphProto], None]:
    """Return an edit of an initializer."""

    def edit(graph: onnx.GraphProto) -> None:
        tensor = next(tensor for tensor in graph.initializer if tensor.name == name)
        changed = np.ascontiguousarray(change(numpy_helper.to_array(tensor)))
        tensor.CopyFrom(numpy_helper.from_array(changed, name))

    return edit


def later_position(graph: onnx.GraphProto) -> None:
    """Look positions up one too far."""
    table = "model.decoder.embed_positions.weight"
    found = next(node for node in graph.node if table in node.input)
    one = numpy_helper.from_array(np.array(1, np.int64), "one_more")
    graph.initializer.append(one)
    place = list(graph.node).index(found)
    graph.node.insert(place, helper.make_node("Add", [found.input[1], "one_more"], ["later"], name="later"))
    graph.node[place + 1].input[1] = "later"


DECODER = "/model/decoder"
FIRST = f"{DECODER}/layers.0"
CROSS = f"{DECODER}/layers.3/encoder_attn"
MARIAN: dict[str, tuple[str, Callable[[onnx.GraphProto], None], str, str]] = {
    "padding mask dropped": (
        "first",
        bypass(f"{CROSS}/Add_output_0", f"{CROSS}/MatMul_output_0"),
        f"{CROSS}/Add_output_0",
        "padding leak: the two agree where 'encoder_attention_mask' masks nothing; padding changes what one of them "
        "computes.",
    ),
    "cache off by one": (
        "with_past",
        later_position,
        f"{DECODER}/embed_positions/Gather_output_0",
        "off by one: A looks up rows 3 to 6 of 'model.decoder.embed_positions.weight', B rows 4 to 7.",
    ),
    "heads permuted": (
        "first",
        reweighted("onnx::MatMul_1468", lambda array: array.reshape(len(array), 4, -1)[:, ::-1].reshape(array.shape)),
        f"{FIRST}/self_attn/q_proj/MatMul_output_0",
        "permuted heads",
    ),
}


@pytest.mark.slow
@pytest.mark.parametrize("fault", MARIAN)
def test_a_fault_of_marian_is_named(marian: Split, fault: str) -> None:
    which, edit, tensor, text = MARIAN[fault]
    original: Model = getattr(marian, which)
    assert text in told(compare_models(original, edited(original, edit)), tensor)


def renamed(text: str) -> str:
    """Return the layer with other names of all that it computes."""
    names = [line.split("=")[0].strip() for line in text.splitlines() if " = " in line]
    for name in names:
        if name != "logits":
            text = re.sub(rf"\b{name}\b", f"other_{name}", text)
    return text


def test_tensors_of_other_names_match_by_structure() -> None:
    found = compare_models(layer(), small(renamed(LAYER)))
    assert found.passed
    assert {tensor.a: tensor.b for tensor in found.tensors}["masked"] == "other_masked"
    assert {tensor.how for tensor in found.tensors if tensor.a != "logits"} == {"structure"}
    assert found.unmatched_a == ()


TWINS = """
twins (float[n, 4] x) => (float[n, 4] y) {
  FIRST = MatMul (x, A)
  SECOND = MatMul (x, B)
  y = Sub (FIRST, SECOND)
}
"""


def twins(first: str, second: str, **weights: np.ndarray) -> Model:
    text = TWINS.replace("FIRST", first).replace("SECOND", second)
    for old, new in zip("AB", weights, strict=True):
        text = text.replace(f"(x, {old})", f"(x, {new})")
    return model(text, **weights)


def test_what_is_ambiguous_is_unmatched() -> None:
    one, two = RNG.standard_normal((2, 4, 4))
    found = compare_models(twins("left", "right", a=one, b=two), twins("p", "q", c=one + 1, d=two + 1))
    assert [tensor.a for tensor in found.tensors] == ["y"]
    assert found.unmatched_a == ("left", "right")
    assert found.unmatched_b == ("p", "q")
    assert "2 tensors of A match none: left, right." in found.to_text()


def test_equal_weights_tell_twins_apart() -> None:
    one, two = RNG.standard_normal((2, 4, 4))
    found = compare_models(twins("left", "right", a=one, b=two), twins("p", "q", c=one, d=two))
    assert [(tensor.a, tensor.b) for tensor in found.tensors] == [("left", "p"), ("right", "q"), ("y", "y")]
    assert found.passed


def test_names_are_mapped() -> None:
    one, two = RNG.standard_normal((2, 4, 4))
    pair = twins("left", "right", a=one, b=two), twins("p", "q", c=one + 1, d=two + 1)
    found = compare_models(*pair, options=CompareOptions(names=(("left", "p"),)))
    first = found.tensors[0]
    assert (first.a, first.b, first.how) == ("left", "p", "map")
    with pytest.raises(UsageError, match="computes no tensor 'lost' in its main graph - `graphkit shapes` lists them"):
        compare_models(*pair, options=CompareOptions(names=(("lost", "p"),)))


def test_the_page_draws_both_models_coloured_by_errors() -> None:
    a, b = (twins("left", "right", a=np.eye(4), b=weight) for weight in (np.eye(4), 2 * np.eye(4)))
    found = compare_models(a, b)
    for graph in found.graphs():
        ((name, kinds),) = json.loads(json.dumps(graph["marks"]))
        assert name == "Errors"
        assert {(meaning, tone): len(nodes) for meaning, tone, nodes in kinds} == {
            ("equal", "fine"): 1,
            ("first to differ", "fault"): 1,
            ("different", "doubt"): 1,
        }
    assert "models" not in found.to_dict()


def test_dumps_are_compared(tmp_path: Path) -> None:
    x = RNG.standard_normal((3, 4)).astype(np.float32)
    one, two = RNG.standard_normal((2, 4, 4)).astype(np.float32)
    np.savez(tmp_path / "dumps.npz", left=x @ one, right=x @ two * 2, other=x)
    np.savez(tmp_path / "inputs.npz", x=x)
    found = compare_models(twins("left", "right", a=one, b=two), tmp_path / "dumps.npz", inputs=tmp_path / "inputs.npz")
    assert told(found, "right") == "scale: B is 2 times A; no constant nearby has that factor."
    assert [tensor.agrees for tensor in found.tensors] == [True, False]
    assert (found.unmatched_a, found.unmatched_b) == (("y",), ("other",))


def test_dumps_are_compared_on_the_inputs_that_they_were_made_with(tmp_path: Path) -> None:
    x = RNG.standard_normal((3, 4)).astype(np.float32)
    one, two = RNG.standard_normal((2, 4, 4)).astype(np.float32)
    made, path = twins("left", "right", a=one, b=two), tmp_path / "dumps.npz"
    np.savez(path, left=x @ one, right=x @ two)
    with pytest.raises(UsageError, match="it has no 'x', an input that its tensors were made with - give the inputs"):
        compare_models(made, path)
    np.savez(path, left=x @ one, right=x @ two, x=x)
    found = compare_models(made, path)
    assert found.passed
    assert found.unmatched_b == ()


def test_a_row_fewer_is_no_length_that_is_off_by_one(tmp_path: Path) -> None:
    x = RNG.standard_normal((3, 4)).astype(np.float32)
    one, two = RNG.standard_normal((2, 4, 4)).astype(np.float32)
    np.savez(tmp_path / "dumps.npz", left=x[:2] @ one, right=x @ two, x=x)
    found = compare_models(twins("left", "right", a=one, b=two), tmp_path / "dumps.npz")
    assert told(found, "left") == "dims: along axis 0, B is A from 0 to 2, of 3; a row is missing."


@pytest.mark.parametrize(
    ("values", "says"),
    [([np.nan, 1], "NaN instead of numbers"), ([1, -np.inf], "minus infinity instead of numbers")],
)
def test_nan_in_b_alone_is_named(tmp_path: Path, values: list[float], says: str) -> None:
    x, same = np.ones((1, 4), np.float32), np.eye(4, dtype=np.float32)
    np.savez(tmp_path / "dumps.npz", left=np.array([[*values, 1, 1]], np.float32), right=x)
    found = compare_models(twins("left", "right", a=same, b=same), tmp_path / "dumps.npz", inputs={"x": x})
    assert told(found, "left") == f"B has {says}."


@pytest.mark.parametrize(
    ("content", "message"),
    [
        (b"no zip", "no .npz file can be read: File is not a zip file - write it with numpy.savez"),
        (None, "no .npz file can be read"),
    ],
)
def test_what_is_no_npz_is_an_error(tmp_path: Path, content: bytes | None, message: str) -> None:
    path = tmp_path / "dumps.npz"
    if content is not None:
        path.write_bytes(content)
    with pytest.raises(ModelError, match=message):
        compare_models(layer(), path)


def npy(header: str) -> bytes:
    text = header.encode().ljust(117) + b"\n"
    return b"\x93NUMPY\x01\x00" + len(text).to_bytes(2, "little") + text


@pytest.mark.parametrize(
    ("header", "message"),
    [
        ("{'descr': '<f4', 'fortran_order': False, 'shape': (4000000000, 4000000000)}", "are not to be held"),
        ("{'descr': '<f4', 'fortran_order': False, 'shape': (7, 4)}", "it ends after 0 of 112 bytes"),
        ("{'descr': '|O', 'fortran_order': False, 'shape': (7,)}", "holds no plain numbers"),
        ("__import__('os')", "it cannot be read"),
    ],
)
def test_what_an_array_claims_is_checked(tmp_path: Path, header: str, message: str) -> None:
    with zipfile.ZipFile(tmp_path / "inputs.npz", "w") as file:
        file.writestr("x.npy", npy(header))
    same = twins("left", "right", a=np.eye(4, dtype=np.float32), b=np.eye(4, dtype=np.float32))
    with pytest.raises(ModelError, match=message):
        compare_models(same, same, inputs=tmp_path / "inputs.npz")


def test_inputs_of_another_dtype_or_name_are_errors() -> None:
    with pytest.raises(UsageError, match="'nobody' is not an input of the models"):
        compare_models(layer(), layer(), inputs={"nobody": np.zeros(1)})
    with pytest.raises(UsageError, match="'input_ids' is float64, and the model takes int64 - convert it"):
        compare_models(layer(), layer(), inputs={"input_ids": np.zeros((1, 1))})


def test_ids_may_be_of_fewer_bits() -> None:
    given = {"input_ids": np.array([[1, 2]], np.int32), "attention_mask": np.ones((1, 2), np.int32)}
    assert compare_models(layer(), layer(), inputs=given).passed


def test_the_command_line_says_where_models_part(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)  # the text names the files, which may be wider than the terminal
    for name, made in (("a.onnx", layer()), ("b.onnx", FAULTS["bias removed"][0]())):
        onnx.save(made.proto, name)
    with pytest.raises(SystemExit) as stop:
        app([*("compare", "a.onnx", "b.onnx", "--format", "json")])
    assert stop.value.code == 1
    found = json.loads(capsys.readouterr().out)
    assert found["divergences"][0]["causes"][0]["initializer"] == "final_logits_bias"
    with pytest.raises(SystemExit) as stop:
        app([*("compare", "a.onnx", "a.onnx")])
    assert stop.value.code == 0
    text = capsys.readouterr().out
    assert "All agree within 0.0001" in text
    assert max(map(len, text.splitlines())) <= 80


@pytest.mark.parametrize(("place", "most"), [(3, 0.5), pytest.param(50, 1.1, marks=pytest.mark.slow), (126, 1.4)])
def test_bisection_runs_few_nodes_twice(place: int, most: float, monkeypatch: pytest.MonkeyPatch) -> None:
    """It runs forward to the part in which something differs, and goes on from there."""

    def chain(wrong: int) -> Model:
        nodes = [f"v{at + 1} = {'Sin' if at == wrong else 'Cos'} (v{at})" for at in range(128)]
        text = f'<ir_version: 8, opset_import: ["" : 17]> g (float[4] v0) => (float[4] v128) {{ {" ".join(nodes)} }}'
        return Model.from_proto(onnx.parser.parse_model(text))

    counts = {False: 0, True: 0}
    run = Steps._run

    def counting(steps: Steps, nodes: set[Node], wanted: Sequence[Value]) -> dict[Value, np.ndarray]:
        counts[bisecting] += len(nodes)
        return run(steps, nodes, wanted)

    monkeypatch.setattr(Steps, "_run", counting)
    for bisecting in counts:
        found = compare_models(chain(-1), chain(place), options=CompareOptions(bisect=bisecting))
        assert found.divergences[0].tensor == f"v{place + 1}"
    assert counts[True] <= most * counts[False]


def test_a_tensor_that_no_later_step_reads_is_let_go() -> None:
    chain = model("chain (float[4] v0) => (float[4] v3) { v1 = Cos (v0) v2 = Sin (v1) v3 = Cos (v2) }")
    side = Side(chain, {"v0": np.ones(4, np.float32)})
    tensors = chain.graph.values
    steps = Steps(side, side.feed, [tensors[f"v{number}"] for number in (1, 2, 3)])
    steps.values([tensors["v1"]])
    assert {value.name for value in steps.held} == {"v0", "v1"}
    steps.values([tensors["v3"], tensors["v2"]])
    assert {value.name for value in steps.held} == {"v0"}


def test_an_array_in_the_place_of_a_tensor_is_what_is_read() -> None:
    chain = model("chain (float[4] v0) => (float[4] v3) { v1 = Cos (v0) v2 = Neg (v1) v3 = Neg (v2) }")
    side, tensors = Side(chain, {"v0": np.ones(4, np.float32)}), chain.graph.values
    given = {tensors["v2"]: np.arange(4, dtype=np.float32)}
    (result,) = Steps(side, side.feed, [], given=given).values([tensors["v3"]])
    assert result.tolist() == [0, -1, -2, -3]


def deflated(path: Path, name: str, dims: tuple[int, ...]) -> Path:
    """Write an .npz file of zeros, which is a thousandth of what it holds."""
    header = f"{{'descr': '<f4', 'fortran_order': False, 'shape': {dims}}}"
    with zipfile.ZipFile(path, "w", zipfile.ZIP_DEFLATED) as file, file.open(f"{name}.npy", "w", force_zip64=True) as f:
        f.write(npy(header))
        for _ in range(int(np.prod(dims)) * 4 >> 20):
            f.write(bytes(1 << 20))
    return path


MANY = Limits(memory=16 << 30)  # which allows arrays of 1 GB


@pytest.mark.parametrize(
    ("dims", "message"),
    [((64, 1 << 17), "and the model takes [n, 4]"), ((1, 3, 1 << 20), "and the model takes 2 dims")],
)
def test_inputs_of_other_dims_are_not_read(tmp_path: Path, dims: tuple[int, ...], message: str) -> None:
    one = twins("left", "right", a=np.eye(4, dtype=np.float32), b=np.eye(4, dtype=np.float32))
    path = deflated(tmp_path / "inputs.npz", "x", dims)
    tracemalloc.start()
    with pytest.raises(UsageError, match=re.escape(message)):
        compare_models(one, one, inputs=path, options=CompareOptions(limits=MANY))
    assert tracemalloc.get_traced_memory()[1] < 8 << 20
    tracemalloc.stop()


def test_a_dump_of_other_dims_is_not_read(tmp_path: Path) -> None:
    one = twins("left", "right", a=np.eye(4, dtype=np.float32), b=np.eye(4, dtype=np.float32))
    path = deflated(tmp_path / "dumps.npz", "left", (64, 1 << 17))
    tracemalloc.start()
    inputs = {"x": np.ones((12, 4), np.float32)}
    found = compare_models(one, path, options=CompareOptions(limits=MANY), inputs=inputs)
    assert tracemalloc.get_traced_memory()[1] < 16 << 20
    tracemalloc.stop()
    assert told(found, "left") == "dims: B has [64, 131072], and A [12, 4]."


def test_a_model_that_loops_ends_in_two_timeouts(monkeypatch: pytest.MonkeyPatch) -> None:
    found = model(
        """never_ends (int64[n] x) => (int64[n] y) {
            y = Loop (trips, yes, x) <body = again (int64 number, bool go, int64[n] a) => (bool on, int64[n] b) {
                on = Identity (go)
                b = Neg (a)
            }>
        }""",
        trips=np.array(1 << 62),
        yes=np.array(True),
    )
    ends = list[RunError]()
    death = IsolatedSession._with_death
    monkeypatch.setattr(IsolatedSession, "_with_death", lambda *of: ends.append(death(*of)) or ends[-1])
    with pytest.raises(ModelError, match=r"it does not finish in 0\.5 s"):
        compare_models(found, found, options=CompareOptions(limits=Limits(seconds=0.5)))
    assert [end.timed_out for end in ends] == [True] * 2  # 12 sizes would be tried


def test_an_output_of_another_name_is_compared_where_no_other_is_like_it() -> None:
    most = "ArgMax <axis = 1, keepdims = 0> (x)"
    a = model(f"g (float[n, 4] x) => (float[n, 4] y, int64[n] most) {{ y = Relu (x) most = {most} }}")
    b = model(f"g (float[n, 4] x) => (int64[n] last, float[n, 4] z) {{ last = {most} z = Abs (x) }}")
    found = compare_models(a, b)
    assert [(each.a, each.b) for each in found.tensors if each.how == "output"] == [("y", "z")]
    assert [each.tensor for each in found.divergences] == ["y"]
    assert found.unmatched_outputs == ()


@pytest.mark.parametrize(
    ("other", "of_a", "of_b"),
    [
        ("float[n]", "ReduceSum <keepdims = 0> (x, k)", "ReduceSum <keepdims = 0> (z, k)"),
        ("int64[n, 4]", "Cast <to = 7> (x)", "Cast <to = 7> (z)"),
    ],
)
def test_outputs_of_other_names_are_told_apart_by_dims_and_by_dtype(other: str, of_a: str, of_b: str) -> None:
    a = model(f"g (float[n, 4] x) => (float[n, 4] y, {other} i) {{ y = Relu (x) i = {of_a} }}", k=[1])
    b = model(f"g (float[n, 4] x) => ({other} j, float[n, 4] z) {{ z = Abs (x) j = {of_b} }}", k=[1])
    found = compare_models(a, b)
    assert {(each.a, each.b) for each in found.tensors if each.how == "output"} == {("y", "z"), ("i", "j")}


def test_an_output_that_is_an_input_needs_no_comparison() -> None:
    a = model("g (float[n, 4] x) => (float[n, 4] x, float[n, 4] y) { y = Relu (x) }")
    assert compare_models(a, a).unmatched_outputs == ()


def test_what_agrees_beside_outputs_that_match_none_is_no_success() -> None:
    a = model("g (float[n, 4] x) => (float[n, 4] y, float[n, 4] z) { h = Exp (x) y = Relu (h) z = Neg (h) }")
    b = model("g (float[n, 4] x) => (float[n, 4] s, float[n, 4] t) { h = Exp (x) s = Abs (h) t = Sin (h) }")
    found = compare_models(a, b)
    assert found.findings() == ("No output of A could be matched, so none is compared.",)
    assert (
        "Warning: Outputs of A that are not compared: y, z - tell what they are in B, as in --map y=NAME."
        in found.to_text(200)
    )
    assert compare_models(a, b, options=CompareOptions(names=(("z", "t"),))).divergences[0].tensor == "z"


@pytest.mark.slow
def test_one_large_tensor_is_compared_though_sixteen_such_could_not_be_held() -> None:
    """Such as a table of words that is transposed for the logits: 151,936 rows of 1,024 are 0.6 GB."""
    graph = "g (float[n] x) => (float[n] y) {{ table = ConstantOfShape (size) best = ReduceMax (table) y = {} }}"
    a, b = (model(graph.format(last), size=np.array([75_000_000])) for last in ("Add (x, best)", "Add (best, x)"))
    limits = Limits(memory=1_600_000_000)
    assert limits.outputs() < 300_000_000
    found = compare_models(a, b, options=CompareOptions(limits=limits))
    assert not found.divergences
    assert "table" in {each.a for each in found.tensors}
