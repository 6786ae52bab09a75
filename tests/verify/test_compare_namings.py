"""Faults that look like others: slots and heads that are rotated, channels of a Conv, an epsilon."""

from __future__ import annotations

import numpy as np
import pytest
from builders import model_of

from graphkit.model import Model
from graphkit.verify.cause_search import array_relations, describe_difference
from graphkit.workflows.compare_models import compare_models

HEADS = np.random.default_rng(0).standard_normal((1, 4, 6, 8))


def equal(one: np.ndarray, two: np.ndarray) -> bool:
    return one.shape == two.shape and bool(np.allclose(one, two, 0, 1e-9))


@pytest.mark.parametrize(
    ("array", "text"),
    [
        (np.roll(HEADS, 1, 1), "rotated: along axis 1, B has at i what A has at i - 1, modulo 4."),
        (np.roll(HEADS, -1, 2), "rotated: along axis 2, B has at i what A has at i + 1, modulo 6."),
        (np.roll(HEADS, 2, 2), "rotated: along axis 2, B has at i what A has at i - 2, modulo 6."),
        (np.roll(HEADS, 3, 2), "rotated: along axis 2, B has at i what A has at i + 3, modulo 6."),
        (HEADS[:, [1, 0, 2, 3]], "permuted: along axis 1, the 4 slices of B are those [1, 0, 2, 3] of A."),
    ],
)
def test_slots_and_heads_in_another_order_are_told_apart(array: np.ndarray, text: str) -> None:
    relations = (each for each in array_relations(HEADS, array) if equal(each.expected, each.actual))
    assert f"{next(relations).text}." == text


@pytest.mark.parametrize(
    ("wrong", "text"),
    [
        (HEADS * 0, "it is all zeros"),
        (HEADS * 2.5, "scale: it is 2.5 times that"),
        (HEADS + 1e-6 * (HEADS > 2), "up to 1e-06 apart"),
        (HEADS.swapaxes(2, 3), "transposed: B is A with its axes in the order [0, 1, 3, 2]"),
        (HEADS[:, :3], "dims: along axis 1, B is A from 0 to 3, of 4; off by one"),
        (HEADS.reshape(4, -1), "dims: B has the elements of A, in order, as [4, 48] instead of [1, 4, 6, 8]"),
        (HEADS + np.sin(np.arange(8)), "up to 0.959 apart"),
    ],
)
def test_a_weight_that_is_another_is_described(wrong: np.ndarray, text: str) -> None:
    assert describe_difference(HEADS, wrong) == text


def texts(a: Model, b: Model) -> str:
    found = compare_models(a, b)
    return " ".join(cause.text for each in found.divergences for cause in each.causes)


def test_reversed_channels_of_a_conv_are_no_heads() -> None:
    weight = np.random.default_rng(1).standard_normal((4, 3, 3, 3), np.float32)
    text = "g (float[1, 3, 8, 8] image) => (float[1, 4, 6, 6] y) { c = Conv (image, weight) y = Tanh (c) }"
    assert texts(model_of(text, weight=weight), model_of(text, weight=weight[:, ::-1])) == (
        "'weight' of B is not 'weight' of A: permuted: along axis 1, the 3 slices of B are those [2, 1, 0] of A."
    )


def test_an_epsilon_is_named() -> None:
    text = """g (float[2, 8] x) => (float[2, 8] y) {{
        y = LayerNormalization <epsilon = {}> (x, scale)
    }}"""
    scale = np.linspace(1, 2, 8, dtype=np.float32)
    found = texts(
        model_of(text.format(1e-5), scale=scale),
        model_of(text.format(0.1), scale=scale),
    )
    assert found == (
        "'LayerNormalization#0' (LayerNormalization) of B has epsilon 0.1, and 'LayerNormalization#0' of A has 1e-05."
    )


def test_an_axis_is_named_where_one_model_has_the_default() -> None:
    text = "g (float[3, 3] x) => (float[3, 3] y) {{ y = Softmax{} (x) }}"
    found = texts(model_of(text.format("")), model_of(text.format(" <axis = 0>")))
    assert found == "'Softmax#0' (Softmax) of B has axis 0, and 'Softmax#0' of A has -1."


@pytest.mark.parametrize(
    ("before", "after", "text"),
    [
        ("r = Add", "r = Sub", "'sum' of B computes Sub, and 'sum' of A Add."),
        (
            "perm = [0, 1, 2]",
            "perm = [1, 2, 0]",
            "'turn' (Transpose) of B has perm [1, 2, 0], and 'turn' of A has [0, 1, 2].",
        ),
    ],
)
def test_the_node_that_computes_something_else_is_named_also_where_its_own_tensor_does_not_match(
    before: str, after: str, text: str
) -> None:
    graph = """(float[2, 3, 4] x, float[2, 2, 2] z) => (int64[3] y, float[2, 2, 2] s) {
        [turn] t_1 = Transpose <perm = [0, 1, 2]> (x)
        [sum] r = Add (z, z)
        [cut] c_1 = Slice (t_1, starts, ends)
        y = Shape (c_1)
        s = Neg (r)
    }"""
    ends = {"starts": np.zeros(2, np.int64), "ends": np.array([1, 2], np.int64)}
    found = compare_models(*(model_of(words, 18, **ends) for words in (graph, graph.replace(before, after))))
    assert text in [cause.text for one in found.divergences for cause in one.causes]
