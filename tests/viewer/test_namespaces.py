"""Groups of Model Explorer: modules, bodies in their nodes, repeated layers in one group."""

from __future__ import annotations

import copy

import pytest
from builders import model_of

from graphkit.graph.names import module_of
from graphkit.graph.view import build_scopes
from graphkit.model import Model
from graphkit.viewer.graph_of_model import find_namespaces, module_parts


def placed(model: Model) -> dict[str, str]:
    """Return the namespace of each node by its path."""
    return {node.path: space for node, space in find_namespaces(model.graph).of_node.items()}


def chain(*names: str, op: str = "Tanh") -> Model:
    """Return nodes one after another, with these names; one that begins with `Exp ` is an Exp."""
    before, body = "x", ""
    for number, name in enumerate(names):
        kind, _, name = name.rpartition(" ")
        body += f"v{number} = {kind or op} ({before})\n"
        before = f"v{number}"
    model = model_of(f"(float[N] x) => (float[N] {before}) {{ {body} }}").proto
    for node, name in zip(model.graph.node, names, strict=True):
        node.name = name.rpartition(" ")[2]
    return Model.from_proto(model)


def with_paths(model: Model) -> Model:
    """Return a model whose names of nodes, which ONNX text keeps plain, have a slash for each `__`."""
    proto = copy.deepcopy(model.proto)
    for scope in build_scopes(proto)[0].walk():
        for node in scope.nodes:
            node.proto.name = node.proto.name.replace("__", "/")
    return Model.from_proto(proto)


@pytest.mark.parametrize(
    ("module", "path"),
    [
        ("model/layers.0/self_attn", ("model", "layers.0", "self_attn")),
        ("model.layers.0.self_attn", ("model", "layers.0", "self_attn")),
        ("model/layers/0/mlp", ("model", "layers.0", "mlp")),
        ("layer1/layer1.0", ("layer1", "layer1.0")),
        ("", ()),
        ("0/a", ("0", "a")),
    ],
)
def test_parts_of_a_module(module: str, path: tuple[str, ...]) -> None:
    assert module_parts(module) == path


def test_repeated_layers_are_in_one_group() -> None:
    layers = [f"/m/layers.{layer}/{part}" for layer in range(3) for part in ("a/Tanh", "Tanh")]
    spaces = find_namespaces(chain("/m/first/Tanh", *layers).graph)
    assert [*spaces.of_node.values()][1:3] == ["m/layers.{0-2}/layers.0/a", "m/layers.{0-2}/layers.0"]
    assert spaces.repeated == {"m/layers.{0-2}": "3 built alike: layers.{0-2}"}


def test_a_group_of_layers_alone_needs_no_other_one() -> None:
    layers = [f"/layers/layers.{layer}/{part}" for layer in range(3) for part in ("a/Tanh", "a/Tanh_1")]
    spaces = find_namespaces(chain(*layers).graph)
    assert set(spaces.of_node.values()) == {"layers/layers.0/a", "layers/layers.1/a", "layers/layers.2/a"}
    assert spaces.repeated == {"layers": "3 built alike: layers.{0-2}"}


def test_a_layer_that_is_built_otherwise_is_told() -> None:
    names = [f"/layers.{layer}/{part}" for layer in range(3) for part in ("a/Tanh", "Tanh")]
    spaces = find_namespaces(chain(*names, "Exp /layers.1/Exp").graph)
    assert spaces.repeated == {"layers.{0-2}": "2 built alike: layers.{0,2}; built otherwise: layers.1"}


@pytest.mark.parametrize(
    "names",
    [
        (
            "/block/layer.0/a/Tanh",
            "/block/layer.0/Tanh",
            "/block/layer.1/a/Tanh",
            "Exp /block/layer.1/Exp",
        ),  # not alike
        ("/m/ff.0/Tanh", "/m/ff.0/Tanh_1", "/m/ff.3/Tanh", "/m/ff.3/Tanh_1"),  # steps of a sequence
        ("/m/stage1/a/Tanh", "/m/stage1/Tanh", "/m/stage2/a/Tanh", "/m/stage2/Tanh"),  # no list
        ("/m/layers.7/a/Tanh", "/m/layers.7/Tanh"),  # alone
    ],
)
def test_other_modules_stay_as_they_are(names: tuple[str, ...]) -> None:
    model = chain(*names)
    spaces = find_namespaces(model.graph)
    assert list(spaces.of_node.values()) == [module_of(node) for node in model.graph.nodes]
    assert spaces.repeated == {}


def test_bodies_are_in_their_nodes() -> None:
    model = with_paths(
        model_of("""(bool c, float[N] x) => (float[N] y) {
        [__m__choose] y = If (c) <
            then_branch = t () => (float[N] a) { [__m__inner__Tanh] a = Tanh (x) },
            else_branch = e () => (float[N] b) { [__other__Exp] b = Exp (x) }
        >
    }""")
    )
    assert placed(model) == {
        "/m/choose": "m/choose",
        "/m/choose/then_branch//m/inner/Tanh": "m/choose/then_branch/inner",  # which is in m already
        "/m/choose/else_branch//other/Exp": "m/choose/else_branch/other",
    }


def test_a_copy_of_a_weight_is_where_its_readers_are() -> None:
    model = with_paths(
        model_of(
            """(float[N] x) => (float[N] z) {
            [copy] c = Identity (w) [scaled] s = Mul (c, w) [shared] d = Identity (w) [data] f = Tanh (x)
            [__m__a__Add] p = Add (f, s) [__m__a__Sub] q = Sub (p, d) [__m__b__Add] z = Add (q, d)
        }""",
            w=[1.0],
        )
    )
    assert {name: space for name, space in placed(model).items() if "/" not in name} == {
        "copy": "m/a",
        "scaled": "m/a",
        "shared": "m",
        "data": "",  # which reads more than constants
    }


@pytest.mark.parametrize("name", ["a;b", "a\\", "__proto__", "<script>", "{0-3}"])
def test_any_name_is_one_part_of_a_path(name: str) -> None:
    (space,) = placed(chain(f"/m/{name}/Tanh")).values()
    first, second = space.split("/")
    assert first == "m"
    assert len(second) == len(name)
    assert not set(";\\") & set(second)
