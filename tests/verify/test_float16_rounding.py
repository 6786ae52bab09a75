"""Float16 that amplifies its own roundings: right rewrites pass, and wrong ones are caught all the same."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from functools import cache
from pathlib import Path

import numpy as np
import onnx
import pytest
from onnx import numpy_helper
from quantised import MERGED, quantised
from real_models import unpacked
from rewriting import model_of

import graphkit
from graphkit.errors import ModelError
from graphkit.progress import DEFAULT_LIMITS
from graphkit.runtime.isolation import shared_isolation
from graphkit.runtime.session import IsolatedSession
from graphkit.verify import verify_rewrite
from graphkit.verify.rewrite_proof import RewriteProof
from graphkit.verify.rounding import RoundingJudge, in_float32

TOLERANCE = 1e-2  # of the largest magnitude
T5, QWEN2 = "t5-tiny/decoder_model", "qwen2-tiny/model"
COMPARED = "compared in float32"


@pytest.fixture(scope="module")
def folded(tmp_path_factory: pytest.TempPathFactory) -> Callable[[str], tuple[Path, Path]]:
    """Return a function that gives an export in float16 and what `fold --fuse` makes of it, unproven."""

    @cache
    def make(name: str) -> tuple[Path, Path]:
        family, model = name.split("/")
        source = unpacked(family, tmp_path_factory.mktemp(family))
        if (source / MERGED).is_file():
            graphkit.split_file(source / MERGED, source, graphkit.SplitOptions(verify=False, weights="inline"))
            (source / MERGED).unlink()
        before = quantised("float16", source, source / "float16") / f"{model}.onnx"
        after = source / "float16" / f"{model}-fused.onnx"
        graphkit.fold_file(before, after, graphkit.FoldOptions(fuse=True, verify=False))
        return before, after

    return make


def proven(before: Path, after: Path, seed: int = 0) -> RewriteProof:
    return graphkit.verify_rewrite(
        before, after, options=graphkit.RewriteProofOptions(tolerance=TOLERANCE, of_magnitude=True, seed=seed)
    )


@pytest.mark.slow
@pytest.mark.parametrize(("name", "seed"), [(QWEN2, 0), (T5, 1), ("t5-tiny/decoder_with_past_model", 3)])
def test_a_fold_is_proven_at_edges_and_rows_of_zeros(
    name: str, seed: int, folded: Callable[[str], tuple[Path, Path]]
) -> None:
    found = proven(*folded(name), seed=seed)
    assert found.failures == ()
    assert "edge values, rows of masks that hide all" in found.coverage
    assert "that hide all" in found.coverage
    assert [caveat for caveat in found.caveats if caveat.endswith(COMPARED)]
    assert [note for note in found.notes if note.startswith("Where outputs are compared in float32, float16 puts")]


@pytest.mark.slow
def test_it_is_not_without_the_comparison_in_float32(
    folded: Callable[[str], tuple[Path, Path]], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(RoundingJudge, "explains", lambda *_, **__: False)
    found = proven(*folded(QWEN2))
    assert "differ" in found.failures[0]


@dataclass(frozen=True)
class Fault:
    """Nodes that stand between a value and what reads it: `x` is the value, `y` what is read."""

    name: str
    where: Callable[[onnx.GraphProto], str]
    body: str
    constants: Mapping[str, object]


def softmax_of(index: int) -> Callable[[onnx.GraphProto], str]:
    """Return what gives the scores of one of the attentions."""
    return lambda graph: [node.input[0] for node in graph.node if node.op_type == "Softmax"][index]


def product_of(index: int) -> Callable[[onnx.GraphProto], str]:
    """Return what gives one of the products with a weight."""

    def find(graph: onnx.GraphProto) -> str:
        weights = {tensor.name for tensor in graph.initializer}
        found: list[str] = [
            node.output[0] for node in graph.node if node.op_type == "MatMul" and node.input[1] in weights
        ]
        return found[index]

    return find


def named(name: str) -> Callable[[onnx.GraphProto], str]:
    return lambda _: name


HALF = np.float16
FAULTS = {
    T5: [
        Fault("rows of zeros attend to all", softmax_of(1), "y = Max (x, c)", {"c": HALF(-6e4)}),
        Fault("large scores are cut", softmax_of(1), "y = Min (x, c)", {"c": HALF(30)}),
        Fault("a floor that overflows", softmax_of(1), "y = Add (x, c)", {"c": HALF(-np.inf)}),
        Fault("the mask shifts", named("encoder_attention_mask"), "p = Slice (x, s, e, a) q = Slice (x, z, s, a) "
              "y = Concat <axis = 1> (p, q)", {"s": [1], "e": [99999], "a": [1], "z": [0]}),
        Fault("edges of states are cut", named("encoder_hidden_states"), "y = Clip (x, d, c)",
              {"c": HALF(6), "d": HALF(-6)}),
        Fault("a product is 5 % off", product_of(2), "y = Mul (x, c)", {"c": HALF(1.05)}),
    ],
    QWEN2: [
        Fault("positions end at 1,000", named("position_ids"), "y = Min (x, c)", {"c": np.int64(1000)}),
        Fault("positions past 2,048 are coarse", named("position_ids"),
              "g = Greater (x, c) h = Div (x, t) d = Mul (h, t) y = Where (g, d, x)",
              {"c": np.int64(2048), "t": np.int64(64)}),
        Fault("positions past 2,048 are some off", named("position_ids"),
              "g = Greater (x, c) n = Add (x, t) y = Where (g, n, x)", {"c": np.int64(2048), "t": np.int64(3)}),
        Fault("scores are scaled", softmax_of(1), "y = Mul (x, c)", {"c": HALF(0.5)}),
        Fault("a value is cut", product_of(0), "y = Min (x, c)", {"c": HALF(0.5)}),
    ],
}  # fmt: skip


def injected(path: Path, fault: Fault, output: Path) -> Path:
    """Write a model with a fault in it."""
    proto = onnx.load(path)
    graph, name = proto.graph, fault.where(proto.graph)
    names = {"x": name, "y": "fault/y", **{key: f"fault/{key}" for key in fault.constants}}
    body = onnx.parser.parse_graph(f"f (float16[n] x) => (float16[n] y) {{ {fault.body} }}")
    nodes = list(body.node)
    for node in nodes:
        node.input[:] = [names.get(one, f"fault/{one}") for one in node.input]
        node.output[:] = [names.get(one, f"fault/{one}") for one in node.output]
    for node in graph.node:
        node.input[:] = ["fault/y" if one == name else one for one in node.input]
    at = next((index + 1 for index, node in enumerate(graph.node) if name in node.output), 0)
    for place, node in enumerate(nodes):
        graph.node.insert(at + place, node)
    graph.initializer.extend(numpy_helper.from_array(np.asarray(v), names[k]) for k, v in fault.constants.items())
    onnx.save(proto, output)
    return output


@pytest.mark.parametrize(
    ("name", "fault"),
    [
        pytest.param(name, one, id=f"{name}: {one.name}", marks=pytest.mark.slow if number or name != QWEN2 else ())
        for name, all_of in FAULTS.items()
        for number, one in enumerate(all_of)
    ],
)
def test_a_wrong_rewrite_is_caught(
    name: str, fault: Fault, folded: Callable[[str], tuple[Path, Path]], tmp_path: Path
) -> None:
    before, after = folded(name)
    found = proven(before, injected(after, fault, tmp_path / "wrong.onnx"))
    assert found.failures != ()
    assert "onnxruntime does not load it" not in found.failures[0]


WAVE = "g (float16[1, 64] x) => (float16[1, 64] y) {{ t = Mul (x, k) {} }}"
ROUNDED = "u = Unsqueeze (t, axis) v = Squeeze (u, axis) y = Sin (v)"  # these run in float16, so that t is rounded


@pytest.mark.parametrize(
    ("body", "passes"), [("y = Sin (t)", True), ("v = Add (t, c) y = Sin (v)", False), ("y = Cos (t)", False)]
)
def test_a_difference_that_float16_hides_is_seen_in_float32(body: str, *, passes: bool) -> None:
    """Float16 knows numbers of about 1,000 to half a radian, and the sines of the original are rounded so."""
    constants = {"k": HALF(1000), "c": HALF(0.05), "axis": np.array([0])}
    before, after = (model_of(WAVE.format(nodes), **constants) for nodes in (ROUNDED, body))
    found = graphkit.verify_rewrite(
        before, after, options=graphkit.RewriteProofOptions(tolerance=TOLERANCE, of_magnitude=True)
    )
    assert (found.passed, any(COMPARED in caveat for caveat in found.caveats)) == (passes, passes)


def test_a_rewrite_that_rounds_more_than_the_original_is_caught() -> None:
    constants = {"k": HALF(1000), "axis": np.array([0])}
    before, after = (model_of(WAVE.format(nodes), **constants) for nodes in ("y = Sin (t)", ROUNDED))
    found = graphkit.verify_rewrite(
        before, after, options=graphkit.RewriteProofOptions(tolerance=TOLERANCE, of_magnitude=True)
    )
    assert "differ" in found.failures[0]


BRANCHES = """g (float16[n, 2] x, bool c) => (float16[n, 2] y) {
    h = MatMul (x, w)
    s = Cast <to = 10> (t)
    y = If (c) <
        then_branch = a () => (float16[n, 2] p) { p = Add (h, one) },
        else_branch = b () => (float16[n, 2] q) { q = Mul (h, s) }>
}"""


def test_a_model_in_float32_rounds_nothing() -> None:
    weight = np.array([[1, 2], [3, 4]], np.float16)
    model, names = in_float32(model_of(BRANCHES, w=weight, one=HALF(1), t=np.float32(0.1)))
    assert names == {"x_float16": "x"}
    x = np.array([[1, 2]], np.float16)
    with shared_isolation(DEFAULT_LIMITS), IsolatedSession(model) as session:
        found = [session.run({"x_float16": x, "c": np.array(flag)})["y"] for flag in (True, False)]
    assert [one.dtype for one in found] == [np.float32, np.float32]
    np.testing.assert_allclose(found, [[[8, 11]], [[0.7, 1.0]]], rtol=1e-6)  # in float16 0.1 is 0.09998


def test_weights_move_by_half_a_unit_at_most() -> None:
    text = "g (float16[64] x) => (float16[64] y) { y = Mul (x, w) }"
    found = []
    for seed in (None, 0, 1):
        made = in_float32(model_of(text, w=np.full(64, 2, HALF)), seed)
        with shared_isolation(DEFAULT_LIMITS), IsolatedSession(made[0]) as session:
            found.append(session.run({"x_float16": np.ones(64, HALF)})["y"])
    exact, first, second = found
    np.testing.assert_array_equal(exact, 2)
    for moved in (first, second):
        assert 2**-10 * 0.8 < np.abs(moved - 2).max() <= 2**-10
    assert not np.array_equal(first, second)


def test_bfloat16_is_not_converted() -> None:
    with pytest.raises(ModelError, match="is not converted"):
        in_float32(model_of("g (bfloat16[n] x) => (bfloat16[n] y) { y = Neg (x) }"))


def test_what_onnxruntime_rounds_elsewhere_is_not_proven_bit_for_bit() -> None:
    """It keeps float16 in float32 from the Exp to the Sin where no Reshape, which it has in float16, stands between."""
    texts = (
        "s = Shape (x) f = Reshape (e, flat) g = Reshape (f, s) h = Sin (g)",
        "h = Sin (e)",
    )
    one, two = (
        model_of(
            f"g (float16[b, n, 64] x) => (float16[b, n, 64] y) <int64[1] flat = {{-1}}> "
            f"{{ e = Exp (x) {text} k = Add (h, e) y = Softmax (k) }}"
        )
        for text in texts
    )
    moved, same = verify_rewrite(one, two), verify_rewrite(one, one)
    assert moved.passed
    assert moved.proven().startswith(
        "Proven in exact arithmetic at every size (1 of 1 output), and tested in 20 runs, "
    )
    assert same.proven() == (
        "Proven bit for bit at every size with 16-bit floats rounded after each node (1 of 1 output), and run once."
    )
