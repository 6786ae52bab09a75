from __future__ import annotations

import numpy as np
from chains import Chain, sizes_of
from hypothesis import given
from hypothesis import strategies as st
from properties import examples
from sessions import session_of
from truth import Truth, compare

from graphkit.model import Model
from graphkit.shapes import Shapes, infer, is_known

OTHER_DIMS = [{"batch": 2, "seq": 5, "past": 3}, {"batch": 1, "seq": 1, "past": 0}, {"batch": 4, "seq": 8, "past": 1}]


def check(seed: int) -> Truth:
    """Compare a chain at the dims that it was made with, and at others where it runs."""
    chain, truth = Chain(seed), Truth()
    if not chain.nodes:
        return truth
    proto = chain.model()
    model = Model.from_proto(proto)
    shapes = infer(model)
    session = session_of(proto)
    names = [output.name for output in session.get_outputs()]
    for index, names_and_sizes in enumerate([chain.assignment, *OTHER_DIMS]):
        dims = sizes_of(model, names_and_sizes)
        if not is_legal(shapes, dims):
            continue
        feeds = {}
        for value in model.graph.inputs:
            size = [dim.evaluate(dims) for dim in shapes[value].dims or ()]
            feeds[value.name] = np.arange(np.prod(size), dtype=np.float32).reshape(size)
        try:
            results = session.run(names, feeds)
        except Exception as error:
            if not index or "onnxruntime" not in type(error).__module__:
                raise
            continue
        # onnxruntime neither reduces nor broadcasts what has no elements as numpy does
        arrays = {**feeds, **dict(zip(names, results, strict=True))}
        if any(not arrays[node.input[0]].size for node in proto.graph.node if node.op_type in ("ReduceMean", "MatMul")):
            continue
        actual = {("", name): array for name, array in zip(names, results, strict=True)}
        fixed = infer(model, inputs={name: array.shape for name, array in feeds.items()})
        if any("windows" in finding.message for finding in fixed.findings):
            continue
        compare(shapes, actual, dims, truth)
        compare(fixed, actual, {}, truth)
        truth.wrong += [f"seed {seed} at {dims}: {finding}" for finding in [*shapes.findings, *fixed.findings]]
    return truth


def is_legal(shapes: Shapes, dims: dict[str, int]) -> bool:
    """Whether windows fit at these dims; onnxruntime pools a window that does not."""
    symbols = {symbol for value in shapes for dim in shapes[value].dims or () for symbol in dim.walk_symbols()}
    if not all(s.lower <= dims[s.name] <= s.upper for s in symbols if s.name in dims):
        return False
    return all(r.left.evaluate(dims) >= int(r.right) for r in shapes.inequalities if is_known(r.left))


@examples(15, 120)
@given(st.integers(0, 10**9))
def test_random_chains_have_the_shapes_and_values_of_onnxruntime(seed):
    truth = check(seed)
    assert not truth.wrong, f"seed {seed}: {truth.wrong[:3]}"


def test_most_tensors_of_random_chains_are_known():
    found = [check(seed) for seed in range(25)]
    assert sum(truth.known for truth in found) > 0.9 * sum(truth.tensors for truth in found)
