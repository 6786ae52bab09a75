"""What stands in a shape program: elements, unknowns, keys, symbols, and how the functions can be called."""

from __future__ import annotations

import json
import math
from contextlib import suppress

import numpy as np
import pytest
from generated import MAX_SAFE, engine, in_javascript, in_python, program_of
from graphs import model
from hypothesis import given
from hypothesis import strategies as st
from properties import examples

from graphkit.errors import UsageError
from graphkit.model import Model
from graphkit.shapes import Expr, Ratio, const, maximum, program, symbol
from graphkit.shapes.program_contents import find_sources
from graphkit.symbolic.expr import TooComplexError

n, b, s, past = (symbol(name) for name in ("n", "b", "s", "past"))
RESHAPE = "g (float[b, s] x) => (y) { y = Reshape(x, flat) }"


@examples(50, 200)
@given(st.integers(0, 1 << 26), st.integers(1, 1 << 12))
def test_fractions_are_rounded_as_float32_is(size, divisor):
    made = program_of([[Ratio(n, divisor), n, Ratio(2 * n + 1, 1)]], [symbol("n", 0)], "float32")
    expected = (
        float(np.float32(size) / np.float32(divisor)),
        float(np.float32(size)),
        float(np.float32(2 * size + 1)),
    )
    assert in_python(made)({"x": [size]}) == in_javascript(made)({"x": [size]}) == {"n0:in": expected}


def test_fractions_of_doubles_are_not_rounded_further():
    made = program_of([[Ratio(n, 3), n]], [n], "float64")
    assert in_python(made)({"x": [10]}) == in_javascript(made)({"x": [10]}) == {"n0:in": (10 / 3, 10.0)}


def test_symbols_in_float16_are_not_known():
    made = program_of([[Ratio(n, 3), n, const(3), 0.5]], [n], "float16")
    assert in_python(made)({"x": [10]}) == in_javascript(made)({"x": [10]}) == {"n0:in": (None, None, 3.0, 0.5)}


def test_numbers_that_json_has_not():
    made = program_of([[math.inf, -math.inf, math.nan, -0.0, 1e-5]], [n], "float32")
    assert str(in_python(made)({"x": [1]})["n0:in"]) == "(inf, -inf, nan, -0.0, 1e-05)"
    engine().eval(made.javascript())
    check = "(l => l[0] === Infinity && l[1] === -Infinity && l[2] !== l[2] && Object.is(l[3], -0) && l[4] === 1e-5)"
    assert engine().eval(f'{check}(shapes({{x: [1]}})["n0:in"])')
    read = json.loads(made.to_json(), parse_constant=pytest.fail)
    elements = read["consumers"][0]["reads"][0]["elements"]
    assert elements == ["inf", "-inf", "nan", 0.0, 1e-05]
    assert [read["expressions"][text] for text in elements[:3]] == [["float", text] for text in elements[:3]]


def test_integers_and_floats_that_are_equal_are_not_one_list():
    made = program(model(RESHAPE.replace("}", "z = Upsample(x, scales) }"), 9, flat=[1, 2], scales=[1.0, 2.0]))
    found = in_python(made)({"x": (1, 2)})
    assert str(found["Reshape#0:shape"]) == "(1, 2)"
    assert str(found["Upsample#1:scales"]) == "(1.0, 2.0)"


def test_ends_beyond_what_javascript_counts():
    least, most = -(2**63), 2**63 - 1
    made = program_of([[const(least), const(most), const(MAX_SAFE)]], [n])
    assert in_python(made)({"x": [1]})["n0:in"] == (least, most, MAX_SAFE)
    assert in_javascript(made)({"x": [1]})["n0:in"] == (-MAX_SAFE, MAX_SAFE, MAX_SAFE)
    read = json.loads(made.to_json())
    assert read["consumers"][0]["reads"][0]["elements"] == [str(least), str(most), MAX_SAFE]
    assert read["expressions"][str(most)] == ["int", str(most)]


def test_deep_expressions_are_no_trouble():
    deep: Expr = n
    with suppress(TooComplexError):
        for number in range(120):
            deep = maximum(deep // 7 + b * number, s - number)
    assert len(str(deep)) > 600
    made = program_of([[deep]], [n, b, s])
    for sizes in ([1, 2, 3], [1000, 1, 900]):
        expected = deep.evaluate(dict(zip("nbs", sizes, strict=True)))
        assert in_python(made)({"x": sizes}) == in_javascript(made)({"x": sizes}) == {"n0:in": (expected,)}


def test_common_subexpressions_are_computed_once():
    text = program_of([[(n * b + 1) // 7, n * b + 1], [2 * n * b, (n * b + 1) // 7 + 3]], [n, b]).python()
    assert text.count(" * s") == 1
    assert text.count("// 7") == 1


def test_equal_lists_are_one_list():
    made = program_of([[n, b], [n, b], [b, n]], [n, b])
    found = in_python(made)({"x": (2, 3)})
    assert found["n0:in"] is found["n1:in"]
    engine().eval(made.javascript())
    assert engine().eval('(r => r["n0:in"] === r["n1:in"] && r["n0:in"] !== r["n2:in"])(shapes({x: [2, 3]}))')


def test_what_is_not_known_says_why():
    text = """g (float[b, s] x, int64[2] target) => (y) {
      y = Reshape(x, target) i = NonZero(x) t = Shape(i) z = Expand(one, t) k = TopK(x, big)
      c = custom.Size(x) w = Tile(x, c)
    }"""
    made = program(model(text, one=[1.0], big=list(range(600))))
    reads = {read.key: read for consumer in made.consumers for read in consumer.reads}
    assert reads["Reshape#0:shape"].elements == (None, None)
    assert "it is an element of the input 'target'" in reads["Reshape#0:shape"].unknown
    assert "how many elements of 'x' are not zero" in reads["Expand#3:shape"].unknown
    assert reads["TopK#4:k"].elements is None
    assert reads["TopK#4:k"].unknown == "it has more than 512 elements"
    assert reads["Tile#6:repeats"].elements is None
    assert "custom.Size" in reads["Tile#6:repeats"].unknown
    found = in_python(made)({"x": (2, 3), "target": (2,)})
    assert found == in_javascript(made)({"x": (2, 3), "target": (2,)})
    assert found["Expand#3:shape"] == (2, None)
    assert not {"TopK#4:k", "Tile#6:repeats"} & found.keys()


def test_keys_are_unlike_each_other():
    proto = model(RESHAPE, flat=[-1]).proto
    for number, name in enumerate(["r", "r", "r(2)", "Reshape#0", ""]):
        proto.graph.node.append(proto.graph.node[0])
        proto.graph.node[-1].name, proto.graph.node[-1].output[0] = name, f"y{number}"
    made = program(Model.from_proto(proto))
    keys = [read.key for consumer in made.consumers for read in consumer.reads]
    expected = ("Reshape#0", "r", "r(2)", "r(2)(2)", "Reshape#0(2)", "Reshape#5")
    assert keys == [f"{node}:shape" for node in expected]
    assert len(in_python(made)({"x": (2, 3)})) == 12


def test_bodies_and_functions_have_their_paths():
    text = """g (float[b, s] x, bool f) => (y, z) {
      z = local.flat(x)
      y = If (f) < then_branch = t () => (float[k] p) { u = Shape(x) v = Mul(u, two) p = Expand(x, v) },
                   else_branch = e () => (float[k] q) { q = Reshape(x, minus) } >
    }
    <domain: "local", opset_import: ["" : 18]>
    flat (v) => (r) { t = Shape(v) o = Constant<value_ints = [-1]>() w = Concat<axis = 0>(t, o) r = Reshape(v, w) }"""
    made = program(model(text, two=[2, 2], minus=[-1]))
    shapes = {"x": (2, 3), "f": ()}
    assert in_python(made)(shapes) == {
        "If#1/then_branch/Expand#2:shape": (4, 6),
        "If#1/then_branch/Expand#2:output.0": (4, 6),
        "If#1/else_branch/Reshape#0:shape": (-1,),
        "If#1/else_branch/Reshape#0:output.0": (6,),
        "function flat/Reshape#3:shape": (2, 3, -1),
        "function flat/Reshape#3:output.0": (2, 3, 1),
    }
    assert in_javascript(made)(shapes) == in_python(made)(shapes)


def test_conditions_of_a_branch_are_not_asked_for():
    text = """g (float[b, s] x, float[a, c] m, bool f) => (y) {
      y = If (f) < then_branch = t () => (float[k] p) { p = MatMul(x, m) }, else_branch = e () => (float[k] q)
      { q = Reshape(x, minus) } > }"""
    made = program(model(text, minus=[-1]))
    assert not made.conditions
    assert program(model("g (float[b, s] x, float[a, c] m) => (y) { y = MatMul(x, m) }")).conditions


def test_a_program_for_some_dims():
    made = program(model(RESHAPE, flat=[-1]), dims={"b": 2}, inputs={"x": (2, 3)})
    assert in_python(made)({"x": (2, 3)})["Reshape#0:output.0"] == (6,)
    with pytest.raises(ValueError, match=r"has the shape \[2, 4\] - it must be \[2, 3\]"):
        in_python(made)({"x": (2, 4)})
    with pytest.raises(UsageError, match="no input has a dim 'nothing'"):
        program(model(RESHAPE, flat=[-1]), dims={"nothing": 2})


def test_a_program_for_some_values():
    text = "g (float[b, s] x, int64[2] target) => (y) { y = Reshape(x, target) }"
    made = program(model(text), values={"target": [3, -1]})
    assert in_python(made)({"x": (2, 3)})["Reshape#0:shape"] == (3, -1)


def test_inputs_without_rank_are_not_looked_at():
    built = model("g (float[b, s] x, float[k] any) => (y) { y = Reshape(x, flat) }", flat=[-1])
    built.proto.graph.input[1].type.tensor_type.ClearField("shape")
    made = program(built)
    assert made.inputs[1].dims is None
    for shape in ((), (1, 2, 3)):
        assert in_python(made)({"x": (2, 3), "any": shape}) == in_javascript(made)({"x": (2, 3), "any": shape})


def test_inputs_with_a_default_are_not_asked_for():
    built = model("g (float[b, s] x, int64[1] flat) => (y) { y = Reshape(x, flat) }", flat=[-1])
    assert [entry.name for entry in program(built).inputs] == ["x"]


def test_sources():
    total = symbol("total")
    inputs = [("m", (b, total - past)), ("k", (past + 2 * s, 3 - 2 * past)), ("v", (s * n, total))]
    sources, unread = find_sources(inputs)
    assert [(source.symbol, source.input, source.axis, source.factor, str(source.rest)) for source in sources] == [
        ("b", "m", 0, 1, "0"),
        ("total", "v", 1, 1, "0"),
        ("past", "m", 1, -1, "total"),
        ("s", "k", 0, 2, "past"),
    ]
    assert [(entry.symbol, entry.reason) for entry in unread] == [
        ("n", "it stands only in 'n*s' of input 'v', which cannot be solved for it")
    ]


@pytest.mark.parametrize("dim", [b // 2, b * b, maximum(b, s), b * s])
def test_what_is_not_linear_is_not_solved(dim):
    sources, unread = find_sources([("x", (dim, s))])
    assert [source.symbol for source in sources] == ["s"]
    assert [entry.symbol for entry in unread] == ["b"]


def test_a_name_that_looks_like_a_product_is_a_name():
    text = "g (float[k, s] x) => (y, z) { y = Reshape(x, flat) t = Shape(x) z = Expand(x, t) }"
    built = model(text, flat=[-1])
    built.proto.graph.input[0].type.tensor_type.shape.dim[0].dim_param = "p*q"
    made = program(built)
    assert [source.symbol for source in made.sources] == ["p*q", "s"]
    for run in (in_python(made), in_javascript(made)):
        assert run({"x": (6, 3)})["Expand#2:shape"] == (6, 3)
    assert made.consumers[1].reads[0].elements[0] == symbol("p*q")
    assert json.loads(made.to_json())["expressions"]["'p*q'"] == "p*q"


def test_a_question_mark_is_no_name():
    text = "g (float[p, s] x, float[q, 3] z) => (y, w) { y = Reshape(x, flat) w = Reshape(z, flat) }"
    built = model(text, flat=[0, -1])
    for entry in built.proto.graph.input:
        entry.type.tensor_type.shape.dim[0].dim_param = "?"
    made = program(built)
    assert [source.symbol for source in made.sources] == ["x.0", "s", "z.0"]
    assert [entry.dims for entry in made.inputs] == [(symbol("x.0"), s), (symbol("z.0"), const(3))]
    assert not made.unread
    for run in (in_python(made), in_javascript(made)):
        assert run({"x": (2, 3), "z": (4, 3)})["Reshape#1:output.0"] == (4, 3)


def test_numpy_sizes_are_sizes():
    made = program(model(RESHAPE, flat=[-1]))
    assert in_python(made)({"x": np.array([2, 3])})["Reshape#0:output.0"] == (6,)


def test_javascript_takes_a_map_and_typed_arrays_and_is_a_module():
    made = program(model(RESHAPE, flat=[-1]))
    call = 'JSON.stringify(shapes(new Map([["x", new Int32Array([2, 3])]]))["Reshape#0:output.0"])'
    engine().eval(made.javascript())
    assert engine().eval(call) == "[6]"
    common = f"const module = {{exports: {{}}}}; {made.javascript()} return typeof module.exports.shapes;"
    assert engine().eval(f"(() => {{ {common} }})()") == "function"
    assert made.javascript(export=True) == made.javascript() + "export { shapes };\n"


def test_a_symbol_that_looks_like_an_expression_has_a_text_of_its_own():
    odd, plain = symbol("a-b + 1"), symbol("a-b")
    read = json.loads(program_of([[odd, plain + 1]], [odd, plain]).to_json())
    first, second = read["consumers"][0]["reads"][0]["elements"]
    assert first != second
    assert (read["expressions"][first], read["expressions"][second]) == ("a-b + 1", ["+", "a-b", 1])


def test_a_model_that_reads_no_shape():
    made = program(model("g (float[b] x) => (y) { y = Relu(x) }"))
    assert made.consumers == ()
    assert in_python(made)({"x": (2,)}) == in_javascript(made)({"x": (2,)}) == {}
