from __future__ import annotations

import itertools
import math
from collections.abc import Sequence
from pathlib import Path
from random import Random

import pytest
from hypothesis import given
from hypothesis import strategies as st
from onnx import helper

from graphkit.graph.names import (
    SCOPES_KEY,
    by_family,
    count_of,
    expand_label,
    family_label,
    family_labels,
    family_pattern,
    label_families,
    module_of,
    module_path,
    name_of,
    pair_families,
    pairs_by_family,
)
from graphkit.graph.view import Node, build_scopes


def node(**metadata: str) -> Node:
    proto = helper.make_node("MatMul", ["a", "b"], ["c"], name="MatMul_7")
    for key, value in metadata.items():
        proto.metadata_props.add(key=key, value=value)
    return build_scopes(helper.make_model(helper.make_graph([proto], "g", [], [])))[0].nodes[0]


def test_a_module_is_what_the_name_says() -> None:
    assert module_path(node()) == "MatMul_7"


def test_a_module_is_what_the_exporter_noted() -> None:
    scopes = "['', 'model', 'model.layers.0.q_proj', 'linear']"
    assert module_path(node(**{SCOPES_KEY: scopes})) == "model.layers.0.q_proj.linear"


@pytest.mark.parametrize("scopes", ["", "not a list", "['one']", "{'a': 1}", "[" * 500, "[__import__('os')]", "\0"])
def test_a_note_that_is_no_list_of_scopes_is_ignored(scopes: str) -> None:
    assert module_path(node(**{SCOPES_KEY: scopes})) == "MatMul_7"


def test_other_notes_are_ignored() -> None:
    assert module_path(node(namespace="a/b")) == "MatMul_7"


Segment = tuple[str, ...]

words = st.sampled_from(["past", "layer", "decoder", "h", "Block", "onnx::x"]).map(lambda word: (word,))
kinds = st.sampled_from([("key", "value"), ("k", "v"), ("keys", "values"), ("value", "key")])
runs = st.tuples(st.integers(0, 40), st.integers(1, 20)).map(lambda run: range(run[0], run[0] + run[1]))
few = st.lists(st.integers(0, 999), min_size=1, max_size=5, unique=True)
numbers = st.one_of(runs, few).map(lambda found: tuple(map(str, found)))
complete = st.lists(st.one_of(words, kinds, numbers), min_size=1, max_size=4).filter(
    lambda segments: math.prod(map(len, segments)) <= 400
)
digits = st.one_of(st.integers(0, 12).map(str), st.integers(0, 12).map("{:02d}".format), st.just("0099"))
some_words = st.one_of(digits, st.sampled_from(["a", "key", "value", "K", "-", ".", ",", "|", "/", "=", "i", "", "é"]))
some_names = st.lists(st.lists(some_words, min_size=1, max_size=5).map("".join), max_size=40)


def product(segments: Sequence[Segment]) -> list[str]:
    return [".".join(parts) for parts in itertools.product(*segments)]


@given(complete, st.randoms(use_true_random=False))
def test_a_complete_family_has_one_label_that_expands_to_its_names(segments: list[Segment], random: Random) -> None:
    names = product(segments)
    random.shuffle(names)
    label = family_label(names)
    assert label is not None
    assert sorted(expand_label(label)) == sorted(names)


@given(st.lists(st.tuples(st.sampled_from(["h.0", "h.1", "h.2", "x", "y.0.1"]), st.integers(0, 1)), unique=True))
def test_rows_by_family_stand_for_the_rows(rows: list[tuple[str, int]]) -> None:
    found = by_family(rows)
    assert sorted((name, cells) for label, cells, _ in found for name in expand_label(label)) == sorted(rows)
    assert sum(count for *_, count in found) == len(rows)


@given(some_names)
def test_labels_stand_for_exactly_the_names(names: list[str]) -> None:
    found = label_families(names)
    assert sorted(name for own in found.values() for name in own) == sorted(set(names))
    for label, own in found.items():
        assert sorted(expand_label(label)) == sorted(own)
        assert count_of(label) == len(own)


@given(st.lists(st.text(alphabet="a0{}i=-,\0\1\2|", max_size=6), max_size=12))
def test_a_name_that_reads_as_a_family_stands_alone(names: list[str]) -> None:
    for label, own in label_families(names).items():
        assert label == own[0] or not set("{}\0\1\2") & set("".join(own))


@given(complete)
def test_names_of_a_family_share_a_pattern(segments: list[Segment]) -> None:
    assert len({family_pattern(name) for name in product(segments)}) == 1


@pytest.mark.parametrize(
    ("names", "label"),
    [
        (["logits"], "logits"),
        (["x.0", "x.0"], "x.0"),  # a name that is defined twice
        (["past.0.key", "past.0.value", "past.1.key", "past.1.value"], "past.{0-1}.{key|value}"),
        (["past.10", "past.9", "past.11"], "past.{9-11}"),
        (["x1", "x3"], "x{1,3}"),
        (["x0", "x2", "x5", "x6", "x7"], "x{0,2,5-7}"),
        (["k_1", "v_1"], "{k|v}_1"),
        (["h.08", "h.09", "h.10"], "h.{08-10}"),
        (["h.9", "h.09", "h.10"], "h.{9,09-10}"),
        (["layers.0/attn_0/x", "layers.1/attn_1/x"], "layers.{i=0-1}/attn_{i}/x"),
        (["a.0.0.b.0", "a.3.1.b.3", "a.3.0.b.3", "a.0.1.b.0"], "a.{i=0,3}.{0-1}.b.{i}"),
        (["a.0.1.0.1", "a.2.3.2.3"], None),
        (["x.0.0", "x.0.1", "x.1.0"], None),
    ],
)
def test_family_label(names: list[str], label: str | None) -> None:
    assert family_label(names) == label


@pytest.mark.parametrize(
    ("names", "labels"),
    [
        ([], ""),
        (["past.0.key", "logits", "past.0.value"], "past.0.{key|value}, logits"),
        (["x.0.key", "x.0.value", "x.1.key"], "x.{0-1}.key, x.0.value"),
        (["present.0", "cross_k_0"], "present.0, cross_k_0"),
        ([*"abcdefg", "x1", "x2"], "a, b, c and 6 more"),
        (["a1", "a2", *"bcdefgh"], "a{1-2}, b, c and 5 more"),
        ([f"x{number}" for number in range(0, 200, 2)], "x0 and 99 more"),
    ],
)
def test_family_labels(names: list[str], labels: str) -> None:
    assert family_labels(names) == labels


@pytest.mark.parametrize(
    ("name", "pattern"),
    [
        ("past_key_values.12.key", "past_\1_\1.\0.\1"),
        ("cache_k_l0", "cache_\1_l\0"),
        ("monkey.1", "monkey.\0"),
        ("logits", "logits"),
        ("", ""),
        ("a{0-1}", "a{0-1}\2"),
    ],
)
def test_family_pattern(name: str, pattern: str) -> None:
    assert family_pattern(name) == pattern


@pytest.mark.parametrize("label", ["x{0-999999999}", "x{5-2}", "{i}", "{", "a{k}", "{0-}"])
def test_what_is_no_family_of_names_is_counted_at_once(label: str) -> None:
    assert count_of(label) in (0, 1, 1_000_000_000)


def test_the_name_of_a_link_is_its_own(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "blob").mkdir()
    (tmp_path / "export").symlink_to(tmp_path / "blob")
    monkeypatch.chdir(tmp_path / "blob")
    assert name_of(tmp_path / "export") == "export"
    assert (name_of(Path()), name_of(Path(".."))) == ("blob", tmp_path.name)


def test_the_module_of_a_node_is_told_by_metadata_first() -> None:
    scopes = "['', 'model', 'model.layers.0', 'model.layers.0.fc', 'linear_1']"
    assert module_of(node(**{SCOPES_KEY: scopes})) == "model.layers.0.fc"
    assert module_of(node(**{SCOPES_KEY: "nonsense"})) == ""  # MatMul_7 names no module
    graph = helper.make_graph([helper.make_node("Neg", ["x"], ["y"], name="/model/layers.0/fc/Neg")], "g", [], [])
    assert module_of(build_scopes(helper.make_model(graph))[0].nodes[0]) == "model/layers.0/fc"


def test_pairs_whose_numbers_vary_together_are_a_row() -> None:
    rows = [(("h.0", "reads x0"), 1), (("h.1", "reads x1"), 1), (("h.2", "reads y5"), 1), (("h.3", ""), 1)]
    assert pairs_by_family(rows) == [
        (("h.{i=0-1}", "reads x{i}"), 1, 2),
        (("h.2", "reads y5"), 1, 1),
        (("h.3", ""), 1, 1),
    ]


@given(some_names, some_names)
def test_families_of_pairs_stand_for_exactly_the_pairs(first: list[str], second: list[str]) -> None:
    pairs = list(zip(first, second, strict=False))
    found = pair_families(pairs)
    assert sorted(pair for members in found.values() for pair in members) == sorted(set(pairs))


def test_a_pair_with_the_separator_in_a_name_is_one() -> None:
    assert list(pair_families([("a\x1fb", "c")])) == [("a b", "c")]
