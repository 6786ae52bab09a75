"""What moves the elements of a constant gives the constant that numpy makes of it, bit by bit."""

from __future__ import annotations

import numpy as np
from hypothesis import given, settings
from hypothesis import strategies as st
from onnx import TensorProto

from graphkit.shapes import const
from graphkit.verify.equivalence.constant_terms import Constants
from graphkit.verify.equivalence.movement import Movement
from graphkit.verify.equivalence.terms import Term, Terms

NUMBERS = (0.0, -0.0, 1.0, np.nan, np.inf, -np.inf, 1e-45, 3e38)


def tools() -> tuple[Constants, Movement]:
    terms = Terms()
    constants = Constants(terms)
    return constants, Movement(terms, constants)


def drawn(seed: int, sizes: list[int]) -> np.ndarray:
    return np.random.default_rng(seed).choice(np.array(NUMBERS, np.float32), sizes)


def is_constant_of(constants: Constants, term: Term, array: np.ndarray) -> bool:
    return term is constants.of_array(np.ascontiguousarray(array), TensorProto.FLOAT)


@settings(max_examples=60, derandomize=True, database=None)
@given(st.integers(0, 99), st.lists(st.tuples(st.integers(1, 4), st.booleans()), max_size=3), st.integers(1, 3))
def test_an_expand(seed: int, axes: list[tuple[int, bool]], leading: int) -> None:
    constants, move = tools()
    array = drawn(seed, [1 if is_repeated else size for size, is_repeated in axes])
    sizes = (leading, *(size for size, _ in axes))
    made = move.expand(constants.of_array(array, TensorProto.FLOAT), tuple(map(const, sizes)))
    assert is_constant_of(constants, made, np.broadcast_to(array, sizes))
    assert constants.unrepeated(made) is without_repeats(constants, array, len(sizes))


def without_repeats(constants: Constants, array: np.ndarray, rank: int) -> Term:
    """Return an array as a constant of a rank, without repeats."""
    padded = array.reshape((1,) * (rank - array.ndim) + array.shape)
    return constants.unrepeated(constants.of_array(padded, TensorProto.FLOAT))


@settings(max_examples=60, derandomize=True, database=None)
@given(st.integers(0, 99), st.lists(st.integers(1, 4), min_size=1, max_size=3), st.data())
def test_a_slice(seed: int, sizes: list[int], data: st.DataObject) -> None:
    constants, move = tools()
    array = drawn(seed, sizes)
    axis = data.draw(st.integers(0, len(sizes) - 1))
    start = data.draw(st.integers(0, sizes[axis]))
    length = data.draw(st.integers(0, sizes[axis] - start))
    made = move.slice(constants.of_array(array, TensorProto.FLOAT), axis, const(start), const(length))
    assert is_constant_of(constants, made, array.take(range(start, start + length), axis))
