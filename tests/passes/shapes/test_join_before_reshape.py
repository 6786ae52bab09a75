from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from rewriting import check, lines, model_of

from graphkit.model import Model
from graphkit.passes.registry import NPU_PASSES
from graphkit.passes.shapes.simplify_slice import JoinBeforeReshape
from graphkit.rewrite import run_to_fixpoint

PASS = JoinBeforeReshape()
KEYS = "(float[1, 2, 5, 4] x, float[1, 2, 5, 4] z) => (y)"
ROWS = {"rows": np.array([2, 1, 5, 4]), "heads": np.array([1, 6, 5, 4]), "i0": np.array([0]), "i4": np.array([4])}


def graph(nodes: str, head: str = KEYS, **constants: object) -> Model:
    return model_of(f"g {head} {{ {nodes} }}", 17, 8, **{**ROWS, **constants})


def test_copies_of_heads_are_joined_along_their_positions() -> None:
    model = graph("r = Reshape (x, rows) c = Concat <axis = 1> (r, r, r) y = Reshape (c, heads)")
    outcome = check(PASS, model)
    assert lines(outcome.model)[0] == "c_joined = Concat <axis: int = 2> (x, x, x)"
    assert outcome.changes == ("1 Concat of copies moved before a Reshape",)
    plain = run_to_fixpoint(model, [kind() for kind in NPU_PASSES]).model
    assert [node.op_type for node in plain.graph.nodes] == ["Concat", "Reshape"]


def test_heads_of_an_expand_of_five_axes_leave_one_reshape() -> None:
    """As exporters write the keys that several queries share."""
    model = graph(
        "u = Unsqueeze (x, two) e = Expand (u, to) y = Reshape (e, heads)",
        two=np.array([2]),
        to=np.array([1, 2, 3, 5, 4]),
    )
    outcome = check(lambda each: run_to_fixpoint(each, [kind() for kind in NPU_PASSES]), model)
    assert lines(outcome.model)[0].endswith("Concat <axis: int = 2> (x, x, x)")
    assert [node.op_type for node in outcome.model.graph.nodes] == ["Concat", "Reshape"]


def test_a_squeeze_is_a_reshape_too() -> None:
    head = "(float[1, 3, 4] x) => (y)"
    outcome = check(PASS, graph("r = Unsqueeze (x, i0) y = Concat <axis = -2> (r, r)", head))
    assert lines(outcome.model)[0] == "y_joined = Concat <axis: int = 0> (x, x)"


STAY = {
    "elements in turn": graph("r = Unsqueeze (x, i4) y = Concat <axis = -1> (r, r)"),
    "symbolic dims": graph("r = Unsqueeze (x, i0) y = Concat <axis = 0> (r, r)", "(float[N, 4] x) => (y)"),
    "no elements": graph("r = Unsqueeze (x, i0) y = Concat <axis = 0> (r, r)", "(float[0, 4] x) => (y)"),
    "fewer axes": graph("r = Reshape (x, flat) y = Concat <axis = 0> (r, r)", flat=np.array([2, 20])),
    "not reshaped": graph("r = Neg (x) y = Concat <axis = 1> (r, r)"),
    "no copies": graph("r = Reshape (x, rows) s = Reshape (z, rows) y = Concat <axis = 1> (r, s)"),
}


@pytest.mark.parametrize("model", STAY.values(), ids=STAY)
def test_what_would_be_in_another_order_or_have_more_axes_stays(model: Model) -> None:
    assert PASS.run(model).model is model


def test_what_others_read_too_is_reshaped_for_them() -> None:
    model = graph("r = Reshape (x, rows) c = Concat <axis = 1> (r, r) n = Neg (r) y = Add (c, n)")
    assert check(PASS, model).changes == ("1 Concat of copies moved before a Reshape",)


@settings(max_examples=60, deadline=None)
@given(data=st.data())
def test_the_order_of_elements_stays(data: st.DataObject) -> None:
    sizes = st.sampled_from([1, 2, 3, 4])
    dims = data.draw(st.lists(sizes, min_size=1, max_size=3))
    splits = data.draw(st.lists(st.integers(0, len(dims)), max_size=2))
    wide = list(dims)
    for at in sorted(splits, reverse=True):
        wide.insert(at, 1)
    axis, count = data.draw(st.integers(-len(wide), len(wide) - 1)), data.draw(st.integers(2, 3))
    model = model_of(
        f"g (float[{', '.join(map(str, dims))}] x) => (y) {{ r = Reshape (x, wide) "
        f"y = Concat <axis = {axis}> ({', '.join(['r'] * count)}) }}",
        17,
        8,
        wide=np.array(wide),
    )
    check(PASS, model)
