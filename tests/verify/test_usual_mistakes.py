"""A port of which the logits alone are known: the usual mistakes, what to dump next, and arrays in another layout."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import numpy as np
import onnx
import onnxruntime
import pytest
from builders import model_of
from onnx import helper, numpy_helper

from graphkit.errors import UsageError
from graphkit.examples import resolve
from graphkit.options import CompareOptions
from graphkit.verify.layers.comparison import ModelComparison
from graphkit.workflows.compare_models import compare_models

IDS = np.array([[5, 9, 2, 7, 3, 8], [4, 6, 1, 3, 3, 3]])
MASK = np.array([[1, 1, 1, 1, 1, 1], [1, 1, 1, 1, 0, 0]])
FEED = {"input_ids": IDS, "attention_mask": MASK}
Edit = Callable[[onnx.GraphProto], None]


def port_outputs(edit: Edit | None = None, **fed: np.ndarray) -> dict[str, np.ndarray]:
    """Return what onnxruntime computes with an edited encoder, or with other inputs."""
    proto = onnx.load(resolve("example:encoder"))
    if edit is not None:
        edit(proto.graph)
    session = onnxruntime.InferenceSession(proto.SerializeToString())
    return {"last_hidden_state": session.run(["last_hidden_state"], {**FEED, **fed})[0]}


def compare_port(folder: Path, arrays: dict[str, np.ndarray]) -> ModelComparison:
    np.savez(folder / "port.npz", **arrays)
    return compare_models("example:encoder", folder / "port.npz", inputs=FEED)


def cause(comparison: ModelComparison) -> str:
    (divergence,) = comparison.divergences
    return " ".join(each.text for each in divergence.causes)


def add_positions_twice(graph: onnx.GraphProto) -> None:
    adds = [node for node in graph.node if node.op_type == "Add"]
    node = next(node for node in adds if any("embed_positions" in read for read in node.input))
    at = next(at for at, read in enumerate(node.input) if "embed_positions" in read)
    place = [*graph.node].index(node)
    graph.node.insert(place, helper.make_node("Add", [node.input[at]] * 2, ["twice"]))
    node.input[at] = "twice"


def zero_biases(part: str) -> Edit:
    def edit(graph: onnx.GraphProto) -> None:
        for tensor in graph.initializer:
            if tensor.name.endswith(part):
                tensor.CopyFrom(numpy_helper.from_array(0 * numpy_helper.to_array(tensor), tensor.name))

    return edit


@pytest.mark.cases(1)
@pytest.mark.parametrize(
    ("edit", "fed", "text"),
    [
        (None, {"attention_mask": 1 - MASK}, "mask inverted: A with 'attention_mask' inverted gives what B has."),
        (
            None,
            {"attention_mask": MASK**0},
            "padding counts: A with nothing masked by 'attention_mask' gives what B has.",
        ),
        (None, {"input_ids": np.roll(IDS, 1, 1)}, "tokens shifted: A with 'input_ids' one place later gives"),
        (add_positions_twice, {}, "positions twice: A that adds '/embed_positions/Gather_output_0' twice"),
        (zero_biases("v_proj.bias"), {}, "bias lost: A without 'layers.0.self_attn.{k|v}_proj.bias' gives what B"),
    ],
)
def test_a_usual_mistake_is_told_from_the_outputs_alone(
    tmp_path: Path, edit: Edit | None, fed: dict[str, np.ndarray], text: str
) -> None:
    comparison = compare_port(tmp_path, port_outputs(edit, **fed))
    assert text in cause(comparison)
    assert comparison.next_dumps == ()


def test_what_is_no_usual_mistake_is_none_and_says_what_to_dump_next(tmp_path: Path) -> None:
    def round_weights(graph: onnx.GraphProto) -> None:
        tensor = next(each for each in graph.initializer if each.name.endswith("table") or len(each.dims) == 2)
        array = numpy_helper.to_array(tensor)
        tensor.CopyFrom(numpy_helper.from_array(np.float32(np.round(array, 1)), tensor.name))

    comparison = compare_port(tmp_path, port_outputs(round_weights))
    assert cause(comparison) == "no simple relation was found between the two."
    assert len(comparison.next_dumps) == 5
    assert "In PyTorch they leave modules of these names" in " ".join(comparison.to_text().split())
    whole = port_outputs(round_weights)
    first = comparison.next_dumps[0]
    whole[first.name] = np.zeros(first.dims, np.float32)  # a dump by this name is compared
    names = [tensor.a for tensor in compare_port(tmp_path, whole).tensors]
    assert names == [first.tensor, "last_hidden_state"]


LAST = """g (int64[batch, sequence] input_ids) => (float[batch, one, 11] logits)
<int64[1] start = {-1}, int64[1] end = {99}, int64[1] axis = {1}>
{ e = Gather (emb, input_ids) l = Slice (e, start, end, axis) logits = MatMul (l, head) }"""
POOLED = """g (int64[batch, sequence] input_ids) => (float[batch, one] logits)
{ e = Gather (emb, input_ids) l = ReduceMean <keepdims = 0> (e, axis) logits = MatMul (l, head) }"""
EACH = """g (int64[batch, sequence] input_ids) => (float[batch, sequence, 11] logits)
{ e = Gather (emb, input_ids) logits = MatMul (e, head) }"""


def run_text(text: str, ids: np.ndarray, **constants: np.ndarray) -> np.ndarray:
    session = onnxruntime.InferenceSession(model_of(text, **constants).proto.SerializeToString())
    return session.run(None, {"input_ids": ids})[0]


@pytest.mark.parametrize("length", [2, 5])
@pytest.mark.parametrize("kind", ["last token alone", "pooled", "wrong at the last place alone"])
def test_tokens_are_not_shifted_where_no_place_tells_so(tmp_path: Path, kind: str, length: int) -> None:
    rng = np.random.default_rng(0)
    text = {"last token alone": LAST, "pooled": POOLED}.get(kind, EACH)
    emb, head, other = (np.float32(rng.standard_normal(dims)) for dims in ((11, 6), (6, 11), (6, 11)))
    columns = 1 if text is POOLED else 11
    weights = {"emb": emb, "head": head[:, :columns]}
    ids = np.array([[5, 5, 8, 10, 0], [1, 9, 10, 2, 3]])[:, -length:] if text is not EACH else np.full((1, length), 3)
    more = {"axis": np.array([1])} if text is POOLED else {}
    wrong = run_text(text, ids, emb=emb, head=other[:, :columns], **more)
    if text is EACH:
        wrong[:, :-1] = run_text(text, ids, **weights)[:, :-1]
    np.savez(tmp_path / "port.npz", input_ids=ids, logits=wrong)
    assert cause(compare_models(model_of(text, **weights, **more), tmp_path / "port.npz")) == (
        "no simple relation was found between the two."
    )


def test_tokens_that_come_early_are_named_where_all_places_but_the_last_tell_so(tmp_path: Path) -> None:
    rng = np.random.default_rng(0)
    weights = {name: np.float32(rng.standard_normal(dims)) for name, dims in {"emb": (11, 6), "head": (6, 11)}.items()}
    text = EACH.replace("e = Gather (emb, input_ids)", "t = Gather (emb, input_ids) e = CumSum (t, axis)")
    ids, weights["axis"] = np.array([[5, 7, 8, 10, 0, 4]]), np.array(1)
    np.savez(tmp_path / "port.npz", input_ids=ids[:, :5], logits=run_text(text, ids[:, 1:], **weights))
    assert cause(compare_models(model_of(text, **weights), tmp_path / "port.npz")) == (
        "tokens shifted: A with 'input_ids' one place earlier gives what B has at all places but the last."
    )


@pytest.mark.parametrize("dims", [(2, 11), (2, 1, 11)])
def test_logits_of_the_last_token_alone_are_compared_with_the_last_row(tmp_path: Path, dims: tuple[int, ...]) -> None:
    rng = np.random.default_rng(0)
    sizes = {"emb": (11, 6), "head": (6, 11), "bias": (11,)}
    weights = {name: np.float32(rng.standard_normal(each)) for name, each in sizes.items()}
    text = EACH.replace("logits =", "l =").replace(" }", " logits = Add (l, bias) }")
    ids = np.array([[5, 7, 8, 10, 0], [1, 4, 2, 2, 9]])
    for bias, expected in ((1, None), (0, "constant offset: A adds its initializer 'bias', and B does not.")):
        logits = run_text(text, ids, **{**weights, "bias": weights["bias"] * bias})[:, -1].reshape(dims)
        np.savez(tmp_path / "port.npz", input_ids=ids, logits=logits)
        comparison = compare_models(model_of(text, **weights), tmp_path / "port.npz")
        assert comparison.notes == (
            "B has one row of logits, which is compared with that of the last token, padding or not.",
        )
        assert comparison.tensors[-1].agrees == (expected is None)
        assert expected is None or expected in cause(comparison)


def test_arrays_of_other_names_are_refused_with_an_example_of_how_to_name_them(tmp_path: Path) -> None:
    arrays = {"output_1": np.zeros((1, 3)), **{f"output_{at}": rows for at, rows in enumerate(port_outputs().values())}}
    np.savez(tmp_path / "port.npz", **arrays)
    with pytest.raises(UsageError) as error:
        compare_models("example:encoder", tmp_path / "port.npz", inputs=FEED)
    assert "such as --map last_hidden_state=output_0" in str(error.value)
    assert compare_models(
        "example:encoder",
        tmp_path / "port.npz",
        options=CompareOptions(names={"last_hidden_state": "output_0"}),
        inputs=FEED,
    ).passed


CHAIN = """g (float[b, 8] x) => (float[b, 8] logits) {
a = MatMul (x, w) b = Add (a, first) c = MatMul (b, w2) d = Mul (c, scale) e = Mul (d, gain) logits = Add (e, second)
}"""
DOUBLED = (
    "several causes fit these numbers equally well: either B adds the tensor 'e' of A once more than A, or has it 2 "
    "times as large; or scale lost: A without 'gain' gives what B has; or scale lost: A without 'scale' gives what B "
    "has."
)


@pytest.mark.parametrize(
    ("changed", "text"),
    [
        ({"gain": 1.0}, DOUBLED),
        ({"w2": 2.0}, DOUBLED),
        (
            {"second": 0.0},
            "several causes fit these numbers equally well: either constant offset: A adds its initializer 'second', "
            "and B does not; or constant offset: A adds its initializer 'first', and B does not.",
        ),
    ],
)
def test_of_causes_that_fit_equally_well_none_is_stated_as_the_one(
    tmp_path: Path, changed: dict[str, float], text: str
) -> None:
    rng = np.random.default_rng(0)
    weights = {name: np.float32(rng.standard_normal((8, 8))) for name in ("w", "w2")}
    weights |= {"first": np.full(8, 0.3, np.float32), "second": np.full(8, 0.3, np.float32)}
    weights |= {"scale": np.array(0.5, np.float32), "gain": np.array(0.5, np.float32)}
    wrong = dict(weights)
    for name, number in changed.items():
        wrong[name] = np.full_like(weights[name], number) if name != "w2" else weights[name] * np.float32(number)
    x = np.float32(rng.standard_normal((3, 8)))
    session = onnxruntime.InferenceSession(model_of(CHAIN, **wrong).proto.SerializeToString())
    np.savez(tmp_path / "port.npz", x=x, logits=session.run(None, {"x": x})[0])
    comparison = compare_models(model_of(CHAIN, **weights), tmp_path / "port.npz")
    assert cause(comparison) == text
    assert comparison.next_dumps  # these tell


CONV = "g (float[1, 3, h, w] image) => (float[1, 4, h2, w2] y) { c = Conv (image, weight) y = Tanh (c) }"


@pytest.mark.parametrize("size", [8, 5], ids=["other dims", "dims that fit both layouts"])
def test_dumps_with_channels_last_are_compared_after_undoing_that(tmp_path: Path, size: int) -> None:
    rng = np.random.default_rng(0)
    weight = rng.standard_normal((3 if size == 5 else 4, 3, 3, 3), np.float32)
    text = CONV.replace("4, h2", f"{len(weight)}, h2")
    image = rng.standard_normal((1, 3, size, size + (size == 8)), np.float32)
    model = model_of(text, weight=weight)
    right = onnxruntime.InferenceSession(model.proto.SerializeToString()).run(None, {"image": image})[0]
    channels_last = {"image": np.moveaxis(image, 1, -1), "y": np.moveaxis(right, 1, -1)}
    np.savez(tmp_path / "port.npz", **channels_last)
    comparison = compare_models(model, tmp_path / "port.npz")
    assert comparison.passed
    assert "These arrays have their channels last (NHWC), and are compared as NCHW: image, y." in comparison.notes
    np.savez(tmp_path / "wrong.npz", **{**channels_last, "y": channels_last["y"] * 2})
    assert "B is 2 times A" in cause(compare_models(model, tmp_path / "wrong.npz"))
