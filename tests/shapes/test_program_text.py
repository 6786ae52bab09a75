"""What shape programs look like, what they refuse, and names that no language likes."""

from __future__ import annotations

import json

import numpy as np
import pytest
from generated import JSEvalException, in_javascript, in_python
from graphs import model

from graphkit.shapes import Program, program, symbol

MODEL = """
g (float[n, 1, h, w] image, float[m, past, 4] cache, float[o, rest, 4] mask, float[p, a, c] x, float[rest] others
) => (y, u, v, l) {
  t = Shape(image) hw = Gather(t, i23) f = Cast<to = 1>(hw) r = Div(f, three)
  ones = Constant<value_floats = [1.0, 1.0]>() scales = Concat<axis = 0>(ones, r) y = Resize(image, "", scales)
  d = Shape(cache) n0 = Gather(d, i0) p0 = Gather(d, i1) np = Mul(n0, p0) q = Div(np, p0)
  target = Concat<axis = 0>(q, minus) u = Reshape(cache, target) z = Slice(image, i0, end, i1)
  found = NonZero(mask) s = Shape(found) v = Expand(half, s) k = Reshape(x, flat) l = MatMul(k, x16)
}"""

PYTHON = """\
    x0 = read('image', '[n, 1, h, w]', 4)
    x1 = read('cache', '[m, past, 4]', 3)
    x2 = read('mask', '[o, past + 2*rest, 4]', 3)
    x3 = read('x', '[p, a, c]', 3)
    x4 = read('others', '[rest]', 1)
    s0 = inside(x0[0], 1, None, "n, which axis 0 of input 'image' gives,", '1 or more')
    s1 = inside(x0[2], 1, None, "h, which axis 2 of input 'image' gives,", '1 or more')
    s2 = inside(x0[3], 1, None, "w, which axis 3 of input 'image' gives,", '1 or more')
    s3 = inside(x1[0], 1, None, "m, which axis 0 of input 'cache' gives,", '1 or more')
    s4 = inside(x1[1], 0, None, "past, which axis 1 of input 'cache' gives,", '0 or more')
    s5 = inside(x2[0], 1, None, "o, which axis 0 of input 'mask' gives,", '1 or more')
    s6 = inside(x3[0], 1, None, "p, which axis 0 of input 'x' gives,", '1 or more')
    s7 = inside(x3[1], 1, None, "a, which axis 1 of input 'x' gives,", '1 or more')
    s8 = inside(x3[2], 1, None, "c, which axis 2 of input 'x' gives,", '1 or more')
    s9 = inside(x4[0], 1, None, "rest, which axis 0 of input 'others' gives,", '1 or more')
    t0 = 2 * s9
    t1 = s4 + t0
    t2 = s7 * s8
    t3 = single(single(s1) / 3)
    t4 = single(single(s2) / 3)
    t5 = s3 * s4
    t6 = None if s4 == 0 else t5 // s4
    c0 = ('[n, 1, h, w]', (s0, 1, s1, s2))
    c1 = ('[m, past, 4]', (s3, s4, 4))
    c2 = ('[o, past + 2*rest, 4]', (s5, t1, 4))
    c3 = ('[p, a, c]', (s6, s7, s8))
    c4 = ('[rest]', (s9,))
    checks = {
        'image': c0,
        'cache': c1,
        'mask': c2,
        'x': c3,
        'others': c4,
    }
    for name in inputs:
        if name not in checks:
            raise ValueError(f"there is no input '{name}' - names are case-sensitive")
        if checks[name] is not None:
            check(name, *checks[name])
    ensure(t2 == 16, 'a*c == 16', t2, 16)
    v0 = (3, None)
    return {
        'Resize#6:scales': (1.0, 1.0, t3, t4),
        'Resize#6:output.0': (s0, 1, None, None),
        'Reshape#13:shape': (t6, -1),
        'Reshape#13:output.0': (None, None),
        'Slice#14:starts': (0,),
        'Slice#14:ends': (9223372036854775807,),
        'Slice#14:axes': (1,),
        'Slice#14:output.0': (s0, 1, s1, s2),
        'Expand#17:shape': v0,
        'Expand#17:output.0': v0,
        'Reshape#18:shape': (0, -1),
        'Reshape#18:output.0': (s6, t2),
    }
"""
JAVASCRIPT = """\
  const x0 = read("image", "[n, 1, h, w]", 4);
  const x1 = read("cache", "[m, past, 4]", 3);
  const x2 = read("mask", "[o, past + 2*rest, 4]", 3);
  const x3 = read("x", "[p, a, c]", 3);
  const x4 = read("others", "[rest]", 1);
  const s0 = inside(x0[0], 1, null, "n, which axis 0 of input 'image' gives,", "1 or more");
  const s1 = inside(x0[2], 1, null, "h, which axis 2 of input 'image' gives,", "1 or more");
  const s2 = inside(x0[3], 1, null, "w, which axis 3 of input 'image' gives,", "1 or more");
  const s3 = inside(x1[0], 1, null, "m, which axis 0 of input 'cache' gives,", "1 or more");
  const s4 = inside(x1[1], 0, null, "past, which axis 1 of input 'cache' gives,", "0 or more");
  const s5 = inside(x2[0], 1, null, "o, which axis 0 of input 'mask' gives,", "1 or more");
  const s6 = inside(x3[0], 1, null, "p, which axis 0 of input 'x' gives,", "1 or more");
  const s7 = inside(x3[1], 1, null, "a, which axis 1 of input 'x' gives,", "1 or more");
  const s8 = inside(x3[2], 1, null, "c, which axis 2 of input 'x' gives,", "1 or more");
  const s9 = inside(x4[0], 1, null, "rest, which axis 0 of input 'others' gives,", "1 or more");
  const t0 = int(2 * s9);
  const t1 = int(s4 + t0);
  const t2 = int(s7 * s8);
  const t3 = Math.fround(Math.fround(s1) / 3);
  const t4 = Math.fround(Math.fround(s2) / 3);
  const t5 = int(s3 * s4);
  const t6 = s4 === 0 ? null : div(t5, s4);
  const c0 = ["[n, 1, h, w]", [s0, 1, s1, s2]];
  const c1 = ["[m, past, 4]", [s3, s4, 4]];
  const c2 = ["[o, past + 2*rest, 4]", [s5, t1, 4]];
  const c3 = ["[p, a, c]", [s6, s7, s8]];
  const c4 = ["[rest]", [s9]];
  const checks = new Map([
    ["image", c0],
    ["cache", c1],
    ["mask", c2],
    ["x", c3],
    ["others", c4],
  ]);
  for (const name of given.keys()) {
    if (!checks.has(name)) throw new RangeError(`there is no input '${name}' - names are case-sensitive`);
    if (checks.get(name) !== null) check(name, ...checks.get(name));
  }
  ensure(t2 === 16, "a*c == 16", t2, 16);
  const v0 = [3, null];
  return {
    "Resize#6:scales": [1.0, 1.0, t3, t4],
    "Resize#6:output.0": [s0, 1, null, null],
    "Reshape#13:shape": [t6, -1],
    "Reshape#13:output.0": [null, null],
    "Slice#14:starts": [0],
    "Slice#14:ends": [9007199254740991],
    "Slice#14:axes": [1],
    "Slice#14:output.0": [s0, 1, s1, s2],
    "Expand#17:shape": v0,
    "Expand#17:output.0": v0,
    "Reshape#18:shape": [0, -1],
    "Reshape#18:output.0": [s6, t2],
  };
}

if (typeof module === "object" && module && module.exports) module.exports = { shapes };
"""


def example() -> Program:
    made = model(
        MODEL,
        i0=[0],
        i1=[1],
        i23=[2, 3],
        minus=[-1],
        flat=[0, -1],
        end=[2**63 - 1],
        three=3.0,
        half=0.5,
        x16=np.zeros((16, 1), np.float32),
    )
    made.proto.graph.input[2].type.tensor_type.shape.dim[1].dim_param = "2*rest + past"
    return program(made)


def body(text: str, first: str) -> str:
    return text[text.index(first) :]


def test_python_text():
    assert body(example().python(), "    x0 = ") == PYTHON


def test_javascript_text():
    assert body(example().javascript(), "  const x0 = ") == JAVASCRIPT


SHAPES = {"image": (2, 1, 10, 7), "cache": (2, 5, 4), "mask": (2, 11, 4), "x": (2, 2, 8), "others": (3,)}
RESULT = {
    "Resize#6:scales": (1.0, 1.0, float(np.float32(10) / np.float32(3)), float(np.float32(7) / np.float32(3))),
    "Resize#6:output.0": (2, 1, None, None),
    "Reshape#13:shape": (2, -1),
    "Reshape#13:output.0": (None, None),
    "Slice#14:starts": (0,),
    "Slice#14:ends": (2**63 - 1,),
    "Slice#14:axes": (1,),
    "Slice#14:output.0": (2, 1, 10, 7),
    "Expand#17:shape": (3, None),
    "Expand#17:output.0": (3, None),
    "Reshape#18:shape": (0, -1),
    "Reshape#18:output.0": (2, 16),
}


def test_what_the_functions_return():
    made = example()
    assert in_python(made)(SHAPES) == RESULT
    assert in_javascript(made)(SHAPES) == RESULT | {"Slice#14:ends": (2**53 - 1,)}


def test_a_node_that_would_divide_by_zero_has_no_number():
    first = SHAPES | {"cache": (2, 0, 4), "mask": (2, 6, 4)}
    expected = RESULT | {"Reshape#13:shape": (None, -1)}
    assert in_python(example())(first) == expected
    assert in_javascript(example())(first) == expected | {"Slice#14:ends": (2**53 - 1,)}


def test_inputs_from_which_nothing_is_read_may_be_left_out():
    made = program(model("g (float[b, s] x, float[2, 3] y) => (z) { z = Reshape(x, flat) }", flat=[0, -1]))
    assert in_python(made)({"x": (2, 3)}) == in_javascript(made)({"x": (2, 3)})
    assert in_python(made)({"x": (2, 3)})["Reshape#0:output.0"] == (2, 3)


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"image": None}, "the shape of input 'image' is missing - give integers, for [n, 1, h, w]"),
        ({"Image": (2,)}, "there is no input 'Image' - names are case-sensitive"),
        ({"image": (2, 1, 10)}, "input 'image' has the shape [2, 1, 10] - it must be [n, 1, h, w]"),
        ({"image": (2, 3, 10, 7)}, "[2, 3, 10, 7] - it must be [n, 1, h, w], here [2, 1, 10, 7]"),
        ({"image": (2, 1, 0, 7)}, "h, which axis 2 of input 'image' gives, is 0 - it must be 1 or more"),
        ({"image": (2, 1, 1.5, 7)}, "give integers, for [n, 1, h, w]"),
        ({"cache": (2, 5, 3)}, "input 'cache' has the shape [2, 5, 3] - it must be [m, past, 4], here [2, 5, 4]"),
        ({"mask": (2, 12, 4)}, "[2, 12, 4] - it must be [o, past + 2*rest, 4], here [2, 11, 4]"),
        ({"others": (0,)}, "rest, which axis 0 of input 'others' gives, is 0 - it must be 1 or more"),
        ({"x": (2, 2, 9)}, "the model runs only where a*c == 16 - here these are 18 and 16"),
    ],
)
def test_shapes_that_do_not_fit_are_refused(changes, message):
    shapes = {name: shape for name, shape in {**SHAPES, **changes}.items() if shape is not None}
    with pytest.raises(ValueError) as python_error:  # noqa: PT011 - the whole text is compared
        in_python(example())(shapes)
    with pytest.raises(JSEvalException) as javascript_error:
        in_javascript(example())(shapes)
    assert str(python_error.value).endswith(message)
    assert f"{message}\n" in str(javascript_error.value)
    assert "RangeError: " in str(javascript_error.value)


@pytest.mark.parametrize(
    ("least", "most", "size", "words"),
    [(None, 8, 9, "0 to 8"), (3, 3, 4, "3"), (16, None, 15, "16 or more"), (2, 4, 1, "2 to 4")],
)
def test_ranges_are_checked(least, most, size, words):
    text = "g (float[past_len, 4] x) => (y) { y = Reshape(x, flat) }"
    made = program(model(text, flat=[-1]), ranges={"past_len": (0 if least is None else least, most)})
    for run in (in_python(made), in_javascript(made)):
        with pytest.raises((ValueError, JSEvalException), match=rf"gives, is {size} - it must be {words}\b"):
            run({"x": (size, 4)})


ODD = [
    "batch size",
    "2x",
    "class",
    "größe",
    "a'b\"c",
    "a\nb",
    "*/ //",
    "`${x}`",
    "\\",
    "</script>",
    "{0}",
    "%s",
    "a\u2028b",
]


def test_names_that_no_language_likes():
    """Symbols, inputs and nodes."""
    names = dict.fromkeys([*ODD, "__proto__", "constructor", "None", "undefined", "s0", "inputs", "min"])
    made = model("g (float[b] x) => (y) { y = Reshape(x, flat) }", flat=[-1])
    graph = made.proto.graph
    node, given = graph.node.pop(), graph.input.pop()
    graph.name = "\n*/</script>\u2028"
    for number, name in enumerate(names):
        graph.input.append(given)
        graph.input[-1].name, graph.input[-1].type.tensor_type.shape.dim[0].dim_param = name, name
        graph.node.append(node)
        graph.node[-1].name = name
        graph.node[-1].input[0], graph.node[-1].output[0] = name, f"y{number}"
    result = program(made)
    shapes = {name: (number + 1,) for number, name in enumerate(names)}
    found = in_python(result)(shapes)
    assert {name: found[f"{name}:output.0"] for name in names} == shapes
    assert in_javascript(result)(shapes) == found
    text = result.javascript()
    assert text.isascii()
    assert "</" not in text
    assert result.python().isascii()
    read = json.loads(result.to_json())
    assert [consumer["node"] for consumer in read["consumers"]] == list(names)
    assert {name: read["expressions"][str(symbol(name))] for name in names} == {name: name for name in names}
