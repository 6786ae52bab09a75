from __future__ import annotations

import itertools
from collections.abc import Callable
from functools import partial

import pytest
from builders import model_of

from graphkit.analysis.shape_origins import (
    MAX_LENGTH,
    Meaning,
    Origins,
    Source,
    group_drawing,
    meanings_text,
    origin_expression,
    origins,
)
from graphkit.errors import UsageError
from graphkit.model import Model
from graphkit.render.document_blocks import Drawing
from graphkit.runtime.external_tools import optimized

RealModel = Callable[[str], Model]

CHAIN = """
g (float[N,4] x) => (float[M] y) <int64 first = {0}, int64[1] front = {0}, int64[1] rest = {-1}> {
    shape = Shape(x)
    size = Gather(shape, first)
    row = Unsqueeze(size, front)
    target = Concat <axis = 0> (row, rest)
    [flat] y = Reshape(x, target)
}
"""


model = partial(model_of, domains=("custom",))


def expressed(nodes: str, full: bool = False) -> str:
    """Return the expression of the value `e` that some nodes compute."""
    graph = f"g (float[N] x, int64[1] i) => (int64[1] e) <int64[1] w = {{0}}, int64 n = {{0}}> {{ {nodes} }}"
    return origin_expression(model(graph).graph.values["e"], full)


def groups(found: Origins, op: str, name: str) -> list[str]:
    return [str(group) for group in found.groups if (group.op, group.input) == (op, name)]


@pytest.mark.parametrize(
    ("nodes", "text"),
    [
        ("e = Shape(x)", "Shape(...)"),
        ("s = Shape(x)  e = Gather(s, n)", "Gather(Shape(...))"),
        ("s = Shape(x)  g = Gather(s, n)  e = Unsqueeze(g, w)", "Unsqueeze(Gather(Shape(...)))"),
        ("e = Constant <value = int64[1] {1}> ()", "CONST"),
        ("e = Constant <value_ints = [1]> ()", "CONST"),
        ("e = Concat(w, i)", "Concat([CONST, i])"),
        ("e = Unsqueeze(i, w)", "Unsqueeze(i)"),
        ("s = Shape(x)  e = Slice(s, w, w)", "Slice"),
        ("m = Mul(i, i)  e = Unsqueeze(m, w)", "Unsqueeze(Mul)"),
        ("e = custom.Thing(i)", "custom.Thing"),
        ("e = custom.Shape(i)", "custom.Shape"),
        ("e = Concat(w, i, w)", "Concat([CONST, i, CONST])"),
        ("e = Concat(w, i, w, i)", "Concat([CONST, i, CONST, ...])"),
        ("e = Concat()", "Concat([])"),
        ("e = Concat(w, , i)", "Concat([CONST, , i])"),
        ("e = Gather(ghost, n)", "Gather(ghost)"),
    ],
)
def test_expression(nodes: str, text: str) -> None:
    assert expressed(nodes) == text


def test_an_initializer_is_a_constant() -> None:
    assert origin_expression(model(CHAIN).graph.values["rest"]) == "CONST"


def test_a_graph_input_is_named() -> None:
    assert origin_expression(model(CHAIN).graph.values["x"]) == "x"


def test_a_default_of_an_input_is_named() -> None:
    assert origin_expression(model("g (int64[1] s = {1}) => () {}").graph.values["s"]) == "s"


def test_an_input_that_is_left_out_is_nothing() -> None:
    assert origin_expression(None) == ""


def test_full_writes_lists_out() -> None:
    assert expressed("e = Concat(w, i, w, i)", full=True) == "Concat([CONST, i, CONST, i])"


def test_full_reaches_into_lists_in_lists() -> None:
    nodes = "a = Concat(i, i, i, i)  e = Concat(a, w)"
    assert expressed(nodes, full=True) == "Concat([Concat([i, i, i, i]), CONST])"


def unsqueezed(levels: int) -> str:
    names = ["i", *(f"u{level}" for level in range(levels - 1)), "e"]
    return "  ".join(f"{after} = Unsqueeze({before}, w)" for before, after in itertools.pairwise(names))


LEVELS = (MAX_LENGTH - len("i")) // len("Unsqueeze()")


def test_a_deep_expression_is_written_out_as_far_as_it_may_be_long() -> None:
    assert expressed(unsqueezed(LEVELS)) == "Unsqueeze(" * LEVELS + "i" + ")" * LEVELS


@pytest.mark.parametrize("more", [1, 2 * LEVELS])
def test_a_deeper_expression_names_the_operator_that_would_be_too_long(more: int) -> None:
    text = expressed(unsqueezed(LEVELS + more))
    assert text.strip("()").endswith("Unsqueeze")
    assert len(text) <= MAX_LENGTH


def test_a_long_expression_ends_in_its_operator() -> None:
    wide = f"a = Concat({', '.join(['i'] * 1500)})  e = Unsqueeze(a, w)"
    assert expressed(wide, full=True) == "Unsqueeze(Concat)"


def test_consumers_with_the_same_expression_are_one_group() -> None:
    found = origins(model("g (float[N] x) => (z) { s = Shape(x)  t = Shape(x)  y = Reshape(x, s)  z = Reshape(x, t) }"))
    assert [(str(group), group.nodes) for group in found.groups] == [("2x Shape(...)", ("Reshape#2", "Reshape#3"))]


def test_different_inputs_are_different_groups() -> None:
    found = origins(model("g (float[N] x, int64[1] i) => (y) <int64[1] w = {0}> { y = Slice(x, w, i, w, w) }"))
    assert [(group.input, group.expression) for group in found.groups] == [
        ("starts", "CONST"),
        ("ends", "i"),
        ("steps", "CONST"),
    ]


def test_axes_are_left_out() -> None:
    assert origins(model("g (float[N] x) => (y) <int64[1] w = {0}> { y = Unsqueeze(x, w) }")).groups == ()


def test_reshape_comes_first_and_the_largest_group_of_it() -> None:
    found = origins(
        model(
            """g (float[N] x, int64[1] i) => (y) <int64[1] w = {0}> {
                a = Tile(x, w)  b = Expand(x, w)  c = Reshape(x, i)  d = Reshape(x, w)  y = Reshape(x, w)
            }"""
        )
    )
    assert [(group.op, str(group)) for group in found.groups] == [
        ("Reshape", "2x CONST"),
        ("Reshape", "1x i"),
        ("Expand", "1x CONST"),
        ("Tile", "1x CONST"),
    ]


def test_a_group_rests_on_what_its_shapes_measure() -> None:
    (group,) = origins(model(CHAIN)).groups
    assert group.sources == (Source("x", "graph input", 1),)


def test_sources_are_counted_by_consumer_the_most_used_first() -> None:
    (group,) = origins(
        model(
            """g (float[N] x) => (c) <float[2] w = {0, 0}> {
                r = Relu(x)  s = Shape(x)  t = Shape(r)  u = Shape(r)
                a = Reshape(x, s)  b = Reshape(x, t)  c = Reshape(x, u)
            }"""
        )
    ).groups
    assert group.sources == (Source("r", "Relu", 2), Source("x", "graph input", 1))


def test_a_shape_that_is_an_input_rests_on_itself() -> None:
    found = origins(model("g (float[N] x, int64[1] i) => (y) { y = Reshape(x, i) }"))
    (group,) = found.groups
    assert group.sources == (Source("i", "graph input", 1),)


def test_a_constant_rests_on_nothing() -> None:
    (group,) = origins(model("g (float[N] x) => (y) <int64[1] w = {0}> { y = Reshape(x, w) }")).groups
    assert group.sources == ()


def test_the_input_of_a_body_is_told_from_that_of_the_graph() -> None:
    (group,) = origins(
        model(
            """g (int64 n, bool go, float[N] x) => (y) { y = Loop <
                body = b (int64 i, bool c, float[N] old) => (bool again, float[N] new) {
                    again = Identity(c)  s = Shape(old)  new = Reshape(old, s)
                }> (n, go, x)
            }"""
        )
    ).groups
    assert group.sources == (Source("old", "body input", 1),)


def test_a_model_that_reads_no_shape_says_so() -> None:
    text = origins(model("g (float[N] x) => (y) { y = Relu(x) }")).to_text()
    assert text == "Shape origins\n\nNo node reads a shape from a tensor.\n\n"


def test_a_chain_as_text() -> None:
    assert origins(model(CHAIN)).to_text() == (
        """\
Shape origins

Each expression that computes a shape input, listed once, and what it means in
the input dims. CONST is a constant; a part that is not expanded is named by its
operator.

Reshape: shape
#  Count  Expression
─────────────────────────────────────────────────────────
1     1x  Concat([Unsqueeze(Gather(Shape(...))), CONST])
            = [N, -1]
            depends on x (graph input)

"""
    )


def test_a_group_says_what_its_shapes_are_in_the_input_dims() -> None:
    (group,) = origins(model(CHAIN)).groups
    assert (str(group), group.meanings) == (
        "1x Concat([Unsqueeze(Gather(Shape(...))), CONST])",
        (Meaning("[N, -1]", 1),),
    )


MANY = """
g (float[N,M] x) => (float[A] a, float[B] b, float[C] c, float[D] d, float[E] e)
<int64[1] two = {2}, int64[1] three = {3}, int64[1] four = {4}> {
    s = Shape(x)  s2 = Mul(s, two)  s3 = Mul(s, three)  s4 = Mul(s, four)
    a = Reshape(x, s2)  b = Reshape(x, s3)  c = Reshape(x, s3)  d = Reshape(x, s4)  e = ConstantOfShape(s2)
}
"""


def test_meanings_of_a_group_are_counted_the_most_frequent_first() -> None:
    group = origins(model(MANY)).groups[0]
    assert group.meanings == (Meaning("[3*N, 3*M]", 2), Meaning("[2*N, 2*M]", 1), Meaning("[4*N, 4*M]", 1))


def test_meanings_in_a_line() -> None:
    found = tuple(Meaning(f"[{n}]", 9 - n) for n in range(5))
    assert meanings_text(found) == "= [0] (9x); [1] (8x); [2] (7x) and 2 more"
    assert meanings_text(found, full=True) == "= [0] (9x); [1] (8x); [2] (7x); [3] (6x); [4] (5x)"
    assert meanings_text(()) is None


def test_a_number_that_stands_for_no_bound_is_told_as_such() -> None:
    found = (Meaning("[1, 9223372036854775807]", 2), Meaning("[-9223372036854775807, 12147483647]", 1))
    assert meanings_text(found) == "= [1, unbounded] (2x); [-unbounded, 12147483647] (1x)"


def test_a_long_meaning_is_cut_at_a_space() -> None:
    found = (Meaning(f"[{', '.join(['batch_size'] * 20)}]", 1),)
    assert meanings_text(found) == f"= [{'batch_size, ' * 9}..."


def test_a_long_meaning_is_cut_but_not_in_full() -> None:
    found = (Meaning(f"[{'batch_size*' * 20}1]", 1),)
    assert meanings_text(found) == f"= [{'batch_size*' * 10}batch_..."
    assert meanings_text(found, full=True) == f"= {found[0].shape}"


@pytest.mark.parametrize(
    ("nodes", "shape", "why"),
    [
        ("z = NonZero(x)  t = Shape(z)  y = Reshape(x, t)", "[1, ?]", "it is how many elements of 'x' are not zero"),
        ("y = Reshape(x, i)", "[?]", "it is an element of the input 'i'"),
        ("f = Cast <to = 7> (x)  y = Reshape(x, f)", "?", "it is the input 'x'"),
        ("f = custom.Thing(x)  y = Reshape(x, f)", "?", "Thing#0: there is no rule for custom.Thing"),
    ],
)
def test_what_is_not_known_says_so(nodes: str, shape: str, why: str) -> None:
    (group,) = origins(model(f"g (float[N] x, int64[1] i) => (y) {{ {nodes} }}")).groups
    assert [(one.shape, one.unknown) for one in group.meanings] == [(shape, why)]


def test_a_scalar_and_a_fraction() -> None:
    found = origins(
        model(
            """g (float[1,1,N,P] x, float[M] w) => (y) <float[1] h = {0.03125}, int64 z = {0}, int64 o = {1}> {
                m = Shape(w)  n = Squeeze(m)  r = Range(z, n, o)
                s = Shape(x)  f = Cast <to = 1> (s)  k = Mul(f, h)  y = Resize(x, , k)
            }"""
        )
    )
    texts = {(group.op, group.input): group.meanings[0].shape for group in found.groups}
    assert texts["Range", "limit"] == "M"
    assert texts["Resize", "scales"] == "[0.03125, 0.03125, (N) / 32, (P) / 32]"


def test_detr_says_what_its_reshapes_mean(real_model: RealModel) -> None:
    found = origins(real_model("detr-resnet-50/model_quantized"))
    assert [one for group in found.groups for one in group.meanings if one.unknown] == []
    cells = "((height + 31) // 32)*((width + 31) // 32)"
    by_text = {str(group): group.meanings for group in found.groups if group.op == "Reshape"}
    assert by_text["54x Concat([Unsqueeze(Mul), CONST, CONST])"] == (Meaning("[8*batch_size, -1, 32]", 54),)
    size = "Unsqueeze(Gather(Shape(...)))"
    assert by_text[f"18x Concat([{size}, {size}, {size}])"] == (
        Meaning("[batch_size, 100, 256]", 12),
        Meaning(f"[batch_size, {cells}, 256]", 6),
    )


def test_the_heading_tells_of_onnxoptimizer() -> None:
    assert origins(model(CHAIN), optimized=True).heading() == "Shape origins after onnxoptimizer"


CONE = Drawing(
    "Concat([Unsqueeze(Gather(Shape(...))), CONST])",
    (
        ("0", "Reshape flat", "consumer"),
        ("1", "Concat", "op"),
        ("2", "Unsqueeze", "op"),
        ("3", "CONST", "const"),
        ("4", "Gather", "op"),
        ("5", "CONST", "const"),
        ("6", "Shape", "shape"),
        ("7", "CONST", "const"),
        ("8", "x", "data"),
    ),
    (("1", "0"), ("2", "1"), ("3", "1"), ("4", "2"), ("5", "2"), ("6", "4"), ("7", "4"), ("8", "6")),
)


def test_a_group_is_drawn_with_the_cone_of_its_first_consumer() -> None:
    assert origins(model(CHAIN)).drawings == (CONE,)


def test_one_group_can_be_drawn_by_its_number() -> None:
    assert group_drawing(model(CHAIN), 1) == CONE


def test_a_node_that_two_paths_share_is_drawn_once() -> None:
    drawing = group_drawing(
        model("g (float[N] x) => (y) { s = Shape(x)  t = Concat <axis = 0> (s, s)  y = Reshape(x, t) }"), 1
    )
    assert [label for _, label, _ in drawing.nodes] == ["Reshape Reshape#2", "Concat", "Shape", "x"]
    assert drawing.edges == (("1", "0"), ("2", "1"), ("3", "2"))


def test_a_chain_of_shared_nodes_is_drawn_once() -> None:
    chain = "  ".join(f"s{level + 1} = Add(s{level}, s{level})" for level in range(12))
    drawing = group_drawing(model(f"g (float[N] x) => (y) {{ s0 = Shape(x)  {chain}  y = Reshape(x, s12) }}"), 1)
    assert (len(drawing.nodes), len(drawing.edges)) == (15, 14)


def test_a_cone_ends_at_the_tensor_that_is_measured() -> None:
    drawing = group_drawing(model("g (float[N] x) => (y) { r = Relu(x)  s = Shape(r)  y = Reshape(x, s) }"), 1)
    assert [(label, role) for _, label, role in drawing.nodes[1:]] == [("Shape", "shape"), ("r", "data")]


def test_constants_are_not_drawn_among_the_largest_groups() -> None:
    assert origins(model("g (float[N] x) => (y) <int64[1] w = {0}> { y = Reshape(x, w) }")).drawings == ()


@pytest.mark.parametrize("number", [0, 2, -1])
def test_a_group_that_does_not_exist_is_an_error(number: int) -> None:
    message = rf"^no group {number} - this model has 1, numbered from 1, see `graphkit report`$"
    with pytest.raises(UsageError, match=message):
        group_drawing(model(CHAIN), number)


@pytest.mark.slow
def test_detr_after_onnxoptimizer(real_model: RealModel) -> None:
    detr = origins(optimized(real_model("detr-resnet-50/model_quantized")), optimized=True)
    size = "Unsqueeze(Gather(Shape(...)))"
    assert groups(detr, "Reshape", "shape") == [
        "54x Concat([Unsqueeze(Mul), CONST, CONST])",
        f"36x Concat([{size}, CONST, CONST, ...])",
        f"30x Concat([{size}, CONST, {size}, ...])",
        f"18x Concat([{size}, {size}, CONST, ...])",
        f"18x Concat([{size}, {size}, {size}])",
        f"12x Concat([Unsqueeze(Mul), {size}, {size}])",
        "5x CONST",
        "4x Concat([Slice, CONST])",
    ]
    assert list(dict.fromkeys((group.op, group.input) for group in detr.groups)) == [  # in the order of the report
        ("Reshape", "shape"),
        ("Expand", "shape"),
        ("ConstantOfShape", "shape"),
        ("Slice", "starts"),
        ("Slice", "ends"),
        ("Slice", "steps"),
        ("Tile", "repeats"),
        ("Resize", "scales"),
        ("Resize", "sizes"),
    ]
    tile = next(group for group in detr.groups if group.op == "Tile")
    assert tile.sources == (Source("pixel_values", "graph input", 1),)
    largest = sorted((group for group in detr.groups if group.expression != "CONST"), key=lambda g: -g.count)[:3]
    assert [drawing.title for drawing in detr.drawings] == [group.expression for group in largest]


def test_full_lists_have_as_many_consumers(real_model: RealModel) -> None:
    model = real_model("gemma-270m/model")
    short, full = origins(model), origins(model, full=True)
    assert sum(group.count for group in short.groups) == sum(group.count for group in full.groups)


def test_full_lists_have_no_dots(real_model: RealModel) -> None:
    found = origins(real_model("gemma-270m/model"), full=True)
    assert [group for group in found.groups if ", ..." in group.expression] == []
