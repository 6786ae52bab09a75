"""Dims that depend on whether a tensor has elements, or a loop an iteration: known where they hold in either case."""

from __future__ import annotations

import re

import numpy as np
import pytest
from graphs import dims, model

from graphkit.runtime.session import Session
from graphkit.shapes import infer, is_known


def plain(text: str) -> str:
    """Return the dims of the first output, with `?` for those that are not known."""
    return re.sub(r"\?\d+\.\w+#\d+", "?", dims(text))


OPEN = "g ({}, int64[1] e) => (y) <int64[1] i0 = {{0}}, int64[1] i1 = {{1}}, int64[1] m1 = {{-1}}> {{ s = Shape (x) "
FIRST = "z = Slice (s, i0, i1) "
RESHAPES = {
    "any number fits beside a dim of 0": ("float[past_n, 4] x", "z, e", 0, "[past_n, ?]"),
    "beside a dim above 0 one number fits": ("float[n, 4] x", "z, e", 0, "[n, 4]"),
    "-1 refuses a dim of 0 beside it": ("float[past_n, 4] x", "z, m1", 0, "[past_n, 4]"),
    "-1 takes a dim of 0 beside it where zeros are allowed": (
        "float[past_n, k] x", "z, m1", 1, "[past_n, ?]"),
    "-1 beside a dim above 0 where zeros are allowed": ("float[n, past_k] x", "z, m1", 1, "[n, past_k]"),
}  # fmt: skip


@pytest.mark.parametrize("name", RESHAPES)
def test_the_remaining_dim_of_a_reshape(name: str) -> None:
    head, target, allow_zero, expected = RESHAPES[name]
    body = f"{FIRST} t = Concat <axis = 0> ({target}) y = Reshape <allowzero = {allow_zero}> (x, t) }}"
    assert plain(OPEN.format(head) + body) == expected


@pytest.mark.parametrize(("allow_zero", "expected"), [(0, "[?, 4]"), (1, "[past_n, 4]")])
def test_a_dim_of_0_copies_one_of_a_tensor_of_unknown_rank(allow_zero: int, expected: str) -> None:
    text = OPEN.format("float[past_n] x, float[n] z, int64[r] t").replace("m1 = {-1}", "i4 = {4}")
    text += f"u = Reshape (z, t) d = Concat <axis = 0> (s, i4) y = Reshape <allowzero = {allow_zero}> (u, d) }}"
    assert plain(text) == expected


LOOP = """g (float[n] x, bool c, float[past_n] p) => (y) <int64 three = {{3}}, bool true = {{1}}> {{
    s = Shape (p) t = Squeeze (s) i0 = Constant <value_ints = [0]> ()
    y = Loop ({}) <body = b (int64 i, bool go) => (bool on, {}) {{ on = Identity (go) o = {} }}> }}"""
LOOPS = {
    "a loop that begins": ("three, true", "float[k] o", "Neg (x)", "[3, n]"),
    "a loop of a condition": ("three, c", "float[k] o", "Neg (x)", "[?, ?]"),
    "a loop of an empty past": ("t, true", "float[k] o", "Neg (x)", "[past_n, ?]"),
    "a number that the body declares": ("t, true", "int64[1] o", "Unsqueeze (i, i0)", "[past_n, 1]"),
    "a number that the body does not declare": ("t, true", "int64[k] o", "Unsqueeze (i, i0)", "[past_n, ?]"),
    "another number than the body declares": ("t, true", "int64[2] o", "Unsqueeze (i, i0)", "[past_n, ?]"),
    "another rank than the body declares": ("t, true", "float o", "Neg (x)", "unknown"),
    "no rank": ("t, true", "float[] o", "Neg (x)", "unknown"),
    "a scalar": ("t, true", "int64 o", "Neg (i)", "[past_n]"),
}


@pytest.mark.parametrize("name", LOOPS)
def test_a_loop_without_iterations_gives_what_its_body_declares(name: str) -> None:
    inputs, declared, node, expected = LOOPS[name]
    text = LOOP.format(inputs, declared, node)
    assert plain(text).startswith(expected)
    found = infer(made := model(text))[made.graph.outputs[0]]
    for past, begins in ((0, True), (0, False), (2, True), (2, False)):
        feed = {"x": np.ones(3, np.float32), "c": np.array(begins), "p": np.ones(past, np.float32)}
        given = Session(made, threads=1).run(feed)["y"].shape
        assert len(found.dims or given) == len(given)
        for dim, size in zip(found.dims or (), given, strict=False):
            assert not is_known(dim) or dim.evaluate({"n": 3, "past_n": past}) == size
