from __future__ import annotations

import numpy as np
import pytest
from rewriting import check, lines, model_of

from graphkit.equivalence import check_equivalence
from graphkit.model import Model
from graphkit.passes.clean_up.eliminate_identity import DropZeroStates
from graphkit.passes.fold_pipeline import fold

PASS = DropZeroStates()
RNG = np.random.default_rng(0)
ZEROS = np.zeros((1, 2, 3), np.float32)
LSTM = "y = LSTM <hidden_size = 3> (x, w, r, , , {h}, {c})"
MADE = """
    batch = Shape <start = 1, end = 2> (x) dims = Concat <axis = 0> (two, batch, three)
    made = ConstantOfShape <value = float {v}> (dims) h = Slice (made, zero, one, zero) c = Slice (made, one, two, zero)
"""


def graph(nodes: str, head: str = "(float[L, N, 4] x) => (float[L, 1, N, 3] y)", **tensors: np.ndarray) -> Model:
    return model_of(
        f"g {head} {{ {nodes} }}",
        w=RNG.normal(size=(1, 12, 4)).astype(np.float32),
        r=RNG.normal(size=(1, 12, 3)).astype(np.float32),
        one=np.array([1]), two=np.array([2]), three=np.array([3]), zero=np.array([0]),
        **tensors,
    )  # fmt: skip


def made(number: str) -> str:
    return MADE.format(v=f"{{{number}}}").replace("value = float", "value = float[1]") + LSTM.format(h="h", c="c")


def test_states_that_are_made_as_long_as_the_batch_are_left_out() -> None:
    outcome = check(PASS, graph(made("0")))
    assert lines(outcome.model)[-1] == "y = LSTM <hidden_size: int = 3> (x, w, r)"
    assert outcome.changes == ("2 initial states of zeros left out",)
    assert lines(fold(graph(made("0"))).model) == ["y = LSTM <hidden_size: int = 3> (x, w, r)"]


@pytest.mark.parametrize(("h", "c"), [("given", "zeros"), ("zeros", "given")])
def test_a_node_without_one_of_two_states_fails_where_the_original_does(h: str, c: str) -> None:
    head = "(float[L, N, 4] x, float[1, M, 3] given) => (float[L, 1, N, 3] y)"
    batch = "batch = Shape <start = 1, end = 2> (x) dims = Concat <axis = 0> (one, batch, three)"
    original = graph(f"{batch} zeros = ConstantOfShape (dims) {LSTM.format(h=h, c=c)}", head)
    assert check_equivalence(original, PASS.run(original).model).is_proven


def test_one_of_two_is_left_out() -> None:
    head = "(float[L, 2, 4] x, float[1, 2, 3] given) => (float[L, 1, 2, 3] y)"
    outcome = check(PASS, graph(LSTM.format(h="given", c="zeros"), head, zeros=ZEROS))
    assert lines(outcome.model) == ['y = LSTM <hidden_size: int = 3> (x, w, r, "", "", given)']
    outcome = check(PASS, graph(LSTM.format(h="zeros", c="given"), head, zeros=ZEROS))
    assert lines(outcome.model) == ['y = LSTM <hidden_size: int = 3> (x, w, r, "", "", "", given)']


SMALL = "(float[L, 2, 4] x) => (float[L, 1, 2, 3] y)"
KEPT = {
    "ones": graph(made("1")),
    "negative zeros that are made": graph(made("-0")),
    "negative zeros": graph(LSTM.format(h="state", c="state"), SMALL, state=-ZEROS),
    "one that is not zero": graph(
        LSTM.format(h="state", c="state"), SMALL, state=ZEROS + np.eye(2, 3, dtype=np.float32)
    ),
    "a default that may be fed": graph(
        "y = LSTM <hidden_size = 3> (x, w, r, , , state)",
        "(float[L, 2, 4] x, float[1, 2, 3] state = {0, 0, 0, 0, 0, 0}) => (float[L, 1, 2, 3] y)",
    ),
    "what is computed": graph(f"h = Mul (s, s) {LSTM.format(h='h', c='h')}", SMALL, s=ZEROS),
}


@pytest.mark.parametrize("model", KEPT.values(), ids=KEPT)
def test_they_stay(model: Model) -> None:
    assert PASS.run(model).model is model
