"""All that `fold --fuse` runs: edits of one round, made by different passes, fit together."""

from __future__ import annotations

from collections.abc import Mapping

import numpy as np
import pytest
from fusing import operators, random_model
from rewriting import model_of
from sessions import run

from graphkit.model import Model
from graphkit.options import FoldingOptions
from graphkit.passes.fold_pipeline import fold

SEEDS = (*range(12), 335)  # the last one was invalid once
NODES = 14
TOLERANCE = 1e-4  # of the largest magnitude, behind a chain of a dozen nodes
# What a node gives, for tensors `{a}` and `{b}` and weights; all tensors are [N, 4, 4]
NODES_OF = (
    ("MatMul ({a}, {w})", 4),
    ("Add ({a}, {v})", 3),
    ("Mul ({a}, {v})", 3),
    ("Add ({a}, {b})", 2),
    ("MatMul ({a}, {b})", 1),
    ("Sub ({v}, {a})", 1),
    ("Neg ({a})", 1),
    ("Tanh ({a})", 1),
    ("Mul ({a}, one)", 1),
    ("Identity ({a})", 1),
    ("Transpose <perm = [0, 2, 1]> ({a})", 2),
    ("Reshape ({a}, same)", 1),
)


def random_graph(seed: int) -> Model:
    """Return a model of random nodes: most read a late tensor, so that chains and siblings arise."""
    rng = np.random.default_rng(seed)
    texts, odds = zip(*NODES_OF, strict=True)
    weights = {f"w{index}": rng.uniform(-1, 1, (4, 4)).astype(np.float32) for index in range(NODES)}
    vectors = {f"v{index}": rng.uniform(0.5, 2, 4).astype(np.float32) for index in range(NODES)}
    tensors, body = ["x", "z", "c"], []
    for index in range(NODES):
        text = str(rng.choice(texts, p=np.array(odds) / sum(odds)))
        a, b = (tensors[-1 - int(rng.integers(min(3, len(tensors))))] for _ in range(2))
        body.append(f"t{index} = " + text.format(a=a, b=b, w=f"w{index}", v=f"v{index}"))
        tensors.append(f"t{index}")
    outputs = [*rng.choice(tensors[3:-1], 2, replace=False), tensors[-1]]
    inputs = "float[N, 4, 4] x, float[N, 4, 4] z"
    text = f"g ({inputs}) => ({', '.join(outputs)}) {{ {' '.join(body)} }}"
    constant = rng.uniform(-1, 1, (1, 4, 4)).astype(np.float32)
    one, same = np.ones((1, 1, 1), np.float32), np.array([0, 4, 4])
    return model_of(text, c=constant, one=one, same=same, **weights, **vectors)


@pytest.mark.parametrize("seed", SEEDS)
def test_a_fused_graph_is_valid_and_gives_the_same(seed: int) -> None:
    model = random_graph(seed)
    fused = fold(model, options=FoldingOptions(fuse=True)).model
    assert len(fused.proto.graph.node) <= len(model.proto.graph.node)
    rng = np.random.default_rng(seed)
    assert_close(model, fused, {name: rng.uniform(-1, 1, (3, 4, 4)).astype(np.float32) for name in "xz"})


def assert_close(model: Model, fused: Model, feeds: Mapping[str, np.ndarray]) -> None:
    for one, two in zip(run(model, feeds), run(Model.from_proto(fused.restore()), feeds), strict=True):
        assert one.shape == two.shape
        assert np.abs(one - two).max() <= TOLERANCE * np.abs(one).max()


def test_a_product_that_a_fused_one_reads_is_no_sibling_with_its_sum_alone() -> None:
    """The bias of `y` goes behind the product of q, which then reads what is before the bias."""
    model = random_model(
        """g (float[N, 3, 4] x) => (uu, vv) {
            u = MatMul (x, a) uu = Add (u, e)
            b = MatMul (x, w) z = Add (b, f) y = Mul (z, s) v = MatMul (y, q) vv = Add (v, g)
        }""",
        a=(4, 4), e=(4,), w=(4, 4), f=(4,), s=(4,), q=(4, 4), g=(4,),
    )  # fmt: skip
    fused = fold(model, options=FoldingOptions(fuse=True)).model
    assert operators(fused) == ["MatMul", "Add", "Split", "MatMul", "Add"]
    assert_close(model, fused, {"x": np.random.default_rng(0).uniform(-1, 1, (2, 3, 4)).astype(np.float32)})


def test_what_depends_on_constants_alone_is_folded_as_it_is() -> None:
    """A large factor before a Sin: where it is rounded otherwise, all digits of the Sin change."""
    model = model_of(
        """g (float[N, 2, 8] x) => (y) {
            c = Constant <value = float[2, 2] {0.1, 0.2, 0.3, 0.7}> ()
            m = MatMul (c, w) p = Mul (m, large) s = Sin (p) y = Add (x, s)
        }""",
        w=np.random.default_rng(0).uniform(-1, 1, (2, 8)).astype(np.float32),
        large=np.float32(1e6 / 3),
    )
    fused = fold(model, options=FoldingOptions(fuse=True)).model
    assert operators(fused) == ["Add"]
    feeds = {"x": np.zeros((1, 2, 8), np.float32)}
    np.testing.assert_array_equal(run(fused, feeds)[0], run(model, feeds)[0])
