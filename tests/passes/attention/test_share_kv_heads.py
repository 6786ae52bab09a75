from __future__ import annotations

import lzma

import numpy as np
import onnx
import pytest
from fusing import operators
from real_models import MODELS
from rewriting import check, feeds_of, lines, model_of, reasons

from graphkit.model import Model
from graphkit.options import FoldingOptions, RewriteProofOptions
from graphkit.passes.attention.share_kv_heads import ShareKvHeads
from graphkit.passes.fold_pipeline import fold
from graphkit.passes.registry import parse_pipeline
from graphkit.verify import verify_rewrite

# Ways to repeat each of two heads three times: k [B, 2, T, 4] becomes r [B, 6, T, 4].
REPEATS = {
    "Unsqueeze, Expand, Reshape": "one = Unsqueeze (k, two) many = Expand (one, grown) r = Reshape (many, six)",
    "Reshape, Expand, Reshape": "one = Reshape (k, apart) many = Expand (one, grown) r = Reshape (many, six)",
    "Unsqueeze, Tile, Reshape": "one = Unsqueeze (k, two) many = Tile (one, grown) r = Reshape (many, six)",
    "Concat of copies": "one = Unsqueeze (k, two) many = Concat <axis = 2> (one, one, one) r = Reshape (many, six)",
    "Gather": "r = Gather <axis = 1> (k, each)",
}
CONSTANTS = {
    "two": np.array([2]),
    "grown": np.array([1, 1, 3, 1, 1]),
    "apart": np.array([0, 2, 1, -1, 4]),
    "six": np.array([0, 6, -1, 4]),
    "each": np.array([0, 0, 0, 1, 1, 1]),
    "turns": np.array([0, 1, 0, 1, 0, 1]),
    "tiles": np.array([1, 3, 1, 1]),
    "in_front": np.array([1]),
    "rows_of": np.array([1, 3, 1, 1, 1]),
    "half": np.array(0.5, np.float32),
    "by_row": np.array([[0.5], [2.0], [1.0], [4.0]], np.float32),
    "by_head": np.arange(6, dtype=np.float32).reshape(6, 1, 1),
}
SIZES = ({"B": 1, "S": 1, "T": 5}, {"B": 2, "S": 3, "T": 1}, {"B": 2, "S": 0, "T": 4}, {"B": 1, "S": 4, "T": 4})
VALUES, KEYS = "(float[B, 6, S, T] q, float[B, 2, T, 4] k)", "(float[B, 6, S, 4] q, float[B, 2, T, 4] k)"


def grouped(nodes: str, inputs: str = VALUES, outputs: str = "y") -> Model:
    used = {name: value for name, value in CONSTANTS.items() if f" {name})" in nodes or f"({name}," in nodes}
    return model_of(f"agraph {inputs} => ({outputs}) {{ {nodes} }}", **used)


@pytest.mark.parametrize("name", REPEATS)
def test_values_are_read_without_copies(name: str) -> None:
    outcome = check(ShareKvHeads(), grouped(f"{REPEATS[name]} y = MatMul (q, r)"), SIZES)
    assert lines(outcome.model) == [
        "q_rows = Reshape (q, q_rows_shape)",
        "y_rows = MatMul (q_rows, k)",
        "y = Reshape (y_rows, y_shape)",
    ]
    assert outcome.changes == ("1 repeat of heads removed",)


@pytest.mark.parametrize("name", REPEATS)
@pytest.mark.parametrize(
    ("between", "kept"),
    [
        ("t = Transpose <perm = [0, 1, 3, 2]> (r)", ["Transpose"]),
        ("u = Transpose <perm = [0, 1, 3, 2]> (r) t = Mul (u, half)", ["Transpose", "Mul"]),
        ("u = Transpose <perm = [0, 1, 3, 2]> (r) t = Mul (by_row, u)", ["Transpose", "Mul"]),
        ("v = Neg (r) u = Div (v, half) t = Transpose <perm = [0, 1, 3, 2]> (u)", ["Neg", "Div", "Transpose"]),
    ],
)
def test_what_treats_heads_alike_may_stand_between(name: str, between: str, kept: list[str]) -> None:
    outcome = check(ShareKvHeads(), grouped(f"{REPEATS[name]} {between} y = MatMul (q, t)", KEYS), SIZES)
    assert operators(outcome.model) == [*kept, "Reshape", "MatMul", "Reshape"]


def test_a_repeat_of_transposed_keys() -> None:
    text = """
        t = Transpose <perm = [0, 1, 3, 2]> (k)
        one = Unsqueeze (t, two)
        many = Expand (one, grown)
        r = Reshape (many, flat)
        y = MatMul (q, r)
    """
    model = model_of(f"agraph {KEYS} => (y) {{ {text} }}", **CONSTANTS, flat=np.array([0, 6, 4, -1]))
    assert operators(check(ShareKvHeads(), model, SIZES).model) == ["Transpose", "Reshape", "MatMul", "Reshape"]


@pytest.mark.parametrize("copies", ["Expand (k, tiles)", "Tile (k, tiles)", "Concat <axis = 1> (k, k, k)"])
def test_the_only_head_needs_no_axis_of_copies(copies: str) -> None:
    model = grouped(f"r = {copies} y = MatMul (q, r)", "(float[B, 3, S, T] q, float[B, 1, T, 4] k)")
    outcome = check(ShareKvHeads(), model, SIZES)
    assert operators(outcome.model) == ["Reshape", "MatMul", "Reshape"]


def test_heads_that_come_with_their_axis_of_copies_lose_it() -> None:
    nodes = "r5 = Expand (k, grown) r = Reshape (r5, six) y = MatMul (q, r)"
    outcome = check(ShareKvHeads(), grouped(nodes, "(float[B, 6, S, T] q, float[B, 2, 1, T, 4] k)"), SIZES)
    assert operators(outcome.model) == ["Reshape", "Reshape", "MatMul", "Reshape"]


@pytest.mark.parametrize(("part", "length"), [("", 4), ("<start = 1>", 3), ("<start = -3, end = -1>", 2)])
def test_the_dims_of_the_copies_are_calculated(part: str, length: int) -> None:
    nodes = f"{REPEATS['Gather']} y = MatMul (q, r) s = Shape {part} (r)"
    outcome = check(ShareKvHeads(), grouped(nodes, outputs=f"y, int64[{length}] s"), SIZES)
    assert sorted(operators(outcome.model)) == ["MatMul", "Mul", "Reshape", "Reshape", "Shape"]


def test_several_readers_share_the_heads() -> None:
    nodes = f"{REPEATS['Gather']} t = Transpose <perm = [0, 1, 3, 2]> (r) y = MatMul (q, r) z = MatMul (y, t)"
    outcome = check(ShareKvHeads(), grouped(nodes, outputs="y, z"), SIZES)
    assert sorted(operators(outcome.model)) == ["MatMul", "MatMul", *["Reshape"] * 4, "Transpose"]


def test_readers_in_bodies_share_them_too() -> None:
    nodes = f"""{REPEATS["Gather"]} y = If (c) <
        then_branch = g1 () => (float[B, 6, S, 4] a) {{ a = MatMul (q, r) }},
        else_branch = g2 () => (float[B, 6, S, 4] b) {{ n = Neg (r) b = MatMul (q, n) }}
    >"""
    model = grouped(nodes, "(float[B, 6, S, T] q, float[B, 2, T, 4] k, bool c)")
    feeds = [feeds_of(model, SIZES[0]) | {"c": np.array(flag)} for flag in (True, False)]
    assert operators(check(ShareKvHeads(), model, feeds=feeds).model) == ["If"]


DECLINED = {
    "another reader": (
        f"{REPEATS['Gather']} y = MatMul (q, r) z = Softmax (r)",
        "Gather#0: Softmax#2 needs its copies",
    ),
    "an output": (
        f"{REPEATS['Gather']} y = MatMul (q, r) z = Identity (r)",
        "Gather#0: 'z' is an output",
    ),
    "heads in turn, by Tile": (
        "r = Tile (k, tiles) y = MatMul (q, r) z = Identity (y)",
        "Tile#0: its heads come in turn, and those of a group have to be neighbours",
    ),
    "heads in turn, by Expand": (
        "one = Unsqueeze (k, in_front) many = Expand (one, rows_of) r = Reshape (many, six) y = MatMul (q, r) "
        "z = Identity (y)",
        "Reshape#2: its heads come in turn, and those of a group have to be neighbours",
    ),
    "a scale of each head": (
        f"{REPEATS['Gather']} u = Mul (r, by_head) y = MatMul (q, u) x = MatMul (q, r) z = Identity (y)",
        "Gather#0: Mul#1 needs its copies",
    ),
}  # fmt: skip


@pytest.mark.parametrize("name", DECLINED)
def test_copies_that_are_needed_stay(name: str) -> None:
    nodes, reason = DECLINED[name]
    model = grouped(nodes, outputs="y, z")
    outcome = check(ShareKvHeads(), model, SIZES)
    assert outcome.model is model
    assert reasons(outcome) == [reason]


def test_another_batch_of_queries_keeps_the_copies() -> None:
    model = grouped(f"{REPEATS['Gather']} y = MatMul (q, r)", "(float[1, 6, S, T] q, float[B, 2, T, 4] k)")
    outcome = check(ShareKvHeads(), model, SIZES)
    assert reasons(outcome) == ["Gather#0: the left operand of MatMul#1 is not known to be of the same batch and heads"]


@pytest.mark.parametrize("name", ["T", "B"])
def test_what_may_be_empty_gets_shapes_that_are_calculated(name: str) -> None:
    model = grouped(f"{REPEATS['Gather']} y = MatMul (q, r)")
    sizes = [*SIZES, {"B": 1, "S": 2, "T": 3} | {name: 0}, {"B": 0, "S": 0, "T": 0} | {name: 0}]
    outcome = check(ShareKvHeads(ranges=((name, 0, None),)), model, sizes if name == "B" else sizes[:-1])
    assert operators(outcome.model) == ["Shape", "Mul", "Concat", "Concat", "Reshape", "MatMul", "Reshape"]


def test_no_shape_is_calculated_where_a_runtime_has_no_part_of_a_shape() -> None:
    text = (
        "agraph (float[B, 6, S, T] q, float[B, 2, T, 4] k) => (y) { r = Gather <axis = 1> (k, each) y = MatMul (q, r) }"
    )
    model = model_of(text, opset=14, each=CONSTANTS["each"])
    assert reasons(ShareKvHeads(ranges=(("T", 0, None),)).run(model)) == [
        "Gather#0: MatMul#1 may be empty, where a shape that makes rows takes opset 15"
    ]


def test_indices_in_another_order_are_no_repeat() -> None:
    model = grouped("r = Gather <axis = 1> (k, turns) y = MatMul (q, r)")
    assert ShareKvHeads().run(model).model is model


@pytest.mark.slow
@pytest.mark.parametrize("is_folded", [pytest.param(False, marks=pytest.mark.slow), True])
def test_a_real_export_is_proven(is_folded: bool) -> None:
    proto = onnx.load_from_string(lzma.decompress((MODELS / "qwen2-tiny/model.onnx.xz").read_bytes()))
    model = Model.from_proto(proto)
    outcome = ShareKvHeads().run(fold(model).model if is_folded else model)
    assert outcome.changes == ("4 repeats of heads removed",)
    assert not outcome.declined
    proof = verify_rewrite(model, outcome.model, options=RewriteProofOptions(tolerance=1e-5, of_magnitude=True, runs=3))
    assert proof.passed, proof.failures


def test_fold_runs_it_with_fuse_only() -> None:
    model = grouped(f"{REPEATS['Unsqueeze, Expand, Reshape']} y = MatMul (q, r)")
    assert "share-kv-heads: 1 repeat of heads removed" in fold(model, options=FoldingOptions(fuse=True)).changes
    assert "Expand" in operators(fold(model).model)
    assert parse_pipeline("share-kv-heads") == (ShareKvHeads(),)
