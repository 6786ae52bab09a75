from __future__ import annotations

import itertools
import math
import re
from collections.abc import Sequence
from random import Random

import pytest
from hypothesis import given
from hypothesis import strategies as st
from onnx import helper

from graphkit.graph.build import build_scopes
from graphkit.graph.names import SCOPES_KEY, family_label, family_labels, family_pattern, module_path
from graphkit.graph.view import Node

Segment = tuple[str, ...]

words = st.sampled_from(["past", "layer", "decoder", "h", "Block", "onnx::x"]).map(lambda word: (word,))
kinds = st.sampled_from([("key", "value"), ("k", "v"), ("keys", "values"), ("value", "key")])
runs = st.tuples(st.integers(0, 40), st.integers(1, 20)).map(lambda run: range(run[0], run[0] + run[1]))
few = st.lists(st.integers(0, 999), min_size=1, max_size=5, unique=True)
numbers = st.one_of(runs, few).map(lambda found: tuple(map(str, found)))
families = st.lists(st.one_of(words, kinds, numbers), min_size=1, max_size=4).filter(
    lambda segments: math.prod(map(len, segments)) <= 400
)


def product(segments: Sequence[Segment]) -> list[str]:
    return [".".join(parts) for parts in itertools.product(*segments)]


def expanded(label: str) -> list[str]:
    """Return the names that a label stands for."""
    parts = [choices(part) for part in re.split(r"(\{.*?\})", label)]
    return ["".join(chosen) for chosen in itertools.product(*parts)]


def choices(part: str) -> list[str]:
    if not part.startswith("{"):
        return [part]
    if run := re.fullmatch(r"\{(\d+)-(\d+)\}", part):
        return [str(number) for number in range(int(run[1]), int(run[2]) + 1)]
    return re.split(r"[|,]", part[1:-1])


@given(families, st.randoms(use_true_random=False))
def test_a_label_expands_to_the_names_of_its_family(segments: list[Segment], random: Random) -> None:
    names = product(segments)
    random.shuffle(names)
    label = family_label(names)
    assert label is not None
    assert sorted(expanded(label)) == sorted(names)


@given(families)
def test_names_of_a_family_share_a_pattern(segments: list[Segment]) -> None:
    assert len({family_pattern(name) for name in product(segments)}) == 1


@given(st.lists(numbers.filter(lambda found: len(found) > 1), min_size=2, max_size=3), st.data())
def test_a_family_with_a_gap_has_no_label(segments: list[Segment], data: st.DataObject) -> None:
    names = product(segments)
    names.remove(data.draw(st.sampled_from(names)))
    assert family_label(names) is None


@pytest.mark.parametrize(
    ("names", "label"),
    [
        (["logits"], "logits"),
        (["past.0.key", "past.0.value", "past.1.key", "past.1.value"], "past.{0-1}.{key|value}"),
        (["past.10", "past.9", "past.11"], "past.{9-11}"),
        (["x1", "x3"], "x{1,3}"),
        (["x1", "x3", "x5", "x7", "x9"], "x{1,3,5,7,9}"),
        (["x1", "x3", "x5", "x7", "x9", "x11"], "x{1,3,5,...,11}"),
        (["k_1", "v_1"], "{k|v}_1"),
    ],
)
def test_family_label(names: list[str], label: str) -> None:
    assert family_label(names) == label


@pytest.mark.parametrize(
    ("names", "labels"),
    [
        ([], ""),
        (["past.0.key", "logits", "past.0.value"], "past.0.{key|value}, logits"),
        (["x.0.key", "x.0.value", "x.1.key"], "x.0.key ... x.1.key"),
        (["present.0", "cross_k_0"], "present.0, cross_k_0"),
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
    ],
)
def test_family_pattern(name: str, pattern: str) -> None:
    assert family_pattern(name) == pattern


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
