"""A bundle in Python: its state, what it refuses, and that nothing moves or leaks."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import numpy as np
import onnx.parser
import psutil
import pytest
from bundles import SLOTS, VOCABULARY, made, saved
from devices import copies

from graphkit.contract.bundle_contract import BundleMethod, BundlePort, Feed
from graphkit.errors import ModelError, UsageError
from graphkit.hosts.bound_state import BundleState
from graphkit.hosts.bundle_host import Bundle
from graphkit.hosts.method_feeds import of_source
from graphkit.hosts.token_search import BeamOptions
from graphkit.runtime.session import RunError

__all__ = ["copies"]
BundleOf = Callable[[str], Path]
KEY = "past_key_values.0.key"


@pytest.fixture
def opened(bundle_of: BundleOf) -> Callable[[str], Bundle]:
    return lambda name: Bundle(bundle_of(name), threads=1)


Opened = Callable[[str], Bundle]


@pytest.mark.cases("window")
@pytest.mark.parametrize("name", ["causal", "window"])
def test_logits_stay_as_they_are_when_the_next_step_runs(name: str, opened: Opened) -> None:
    bundle = opened(name)
    given = [bundle.prefill([[1, 2], [3, 4]])]
    kept = [given[0].copy()]
    for token in (5, 6, 7):
        given.append(bundle.step([token, token]))
        kept.append(given[-1].copy())
    np.testing.assert_array_equal(given[0], kept[0])
    np.testing.assert_array_equal(np.stack(given[1:]), np.stack(kept[1:]))


@pytest.mark.parametrize("name", ["causal", "window"])
def test_a_view_of_logits_keeps_them(name: str, opened: Opened) -> None:
    bundle = opened(name)
    bundle.prefill([[1, 2], [3, 4]])
    views, kept = [], []
    for token in (5, 6, 7, 8):
        views.append(bundle.step([token, token])[:, -1].T)
        kept.append(views[-1].copy())
    np.testing.assert_array_equal(np.stack(views), np.stack(kept))


def test_logits_that_are_dropped_make_room_for_later_ones(opened: Opened) -> None:
    bundle = opened("causal")
    logits = bundle.prefill([[1, 2], [3, 4]])
    places = set()
    for token in range(SLOTS - 2):
        logits = bundle.step([token, token])
        places.add(logits.ctypes.data)
    assert len(places) == 2


# The same code runs any bundle


@pytest.mark.cases("window", "causal", "whisper")
@pytest.mark.parametrize("name", ["causal", "window", "marian-tiny", "whisper-tiny"])
def test_the_same_code_runs_any_bundle(name: str, opened: Opened) -> None:
    bundle = opened(name)
    once = bundle.contract.method("once")
    assert once is not None
    rng, inputs = np.random.default_rng(0), {}
    for port in once.inputs:
        if port.source is not None and port.source.kind == "user" and "mask" not in port.name:
            shape = [2 if dim == "batch" else 5 if isinstance(dim, str) else dim for dim in port.shape]
            inputs[port.name] = rng.integers(1, 9, shape) if "int" in port.dtype else rng.normal(size=shape)
    logits = bundle.start([[1], [2]], **inputs)
    tokens = []
    for _ in range(SLOTS - 1):
        tokens.append(logits[:, -1].argmax(-1))
        logits = bundle.step(tokens[-1])
        assert logits.shape[:2] == (2, 1)
        assert np.isfinite(logits).all()
    assert bundle.length == SLOTS
    given = bundle.generate(prompt=[[1], [2]], max_new_tokens=SLOTS - 1, eos=-1, **inputs)
    np.testing.assert_array_equal(given, np.stack(tokens, 1))


def test_a_source_and_its_mask_are_told_apart_by_their_names(opened: Opened) -> None:
    """Whatever their order; a start token stands for each row."""
    bundle = opened("marian-tiny")
    ids, mask = np.array([[5, 6, 7, 8], [9, 10, 1, 1]]), np.array([[1, 1, 1, 1], [1, 1, 0, 0]])
    expected = bundle.generate(prompt=[[3], [3]], max_new_tokens=3, input_ids=ids, attention_mask=mask)
    assert bundle.generate(ids, mask=mask, prompt=[[3], [3]], max_new_tokens=3) == expected
    given = bundle.encode(3, input_ids=ids, attention_mask=mask)
    np.testing.assert_array_equal(given, bundle.encode([[3], [3]], input_ids=ids, attention_mask=mask))
    once = bundle.contract.method("once")
    assert once is not None
    object.__setattr__(once, "inputs", tuple(sorted(once.inputs, key=lambda port: "mask" not in port.name)))
    assert bundle.generate(ids, mask=mask, prompt=[[3], [3]], max_new_tokens=3) == expected


def test_ids_are_the_prompts_where_the_caller_gives_nothing_else_but_a_mask() -> None:
    tokens = BundlePort("input_ids", "int64", ("batch", "tokens"), "", Feed("tokens"))
    mask = BundlePort("attention_mask", "int64", ("batch", "total"), "", Feed("user"))
    method = BundleMethod("prefill", "prefill.onnx", "once", (tokens, mask), (), {})
    assert of_source(method, [[5, 6]], None) == {}
    assert list(of_source(method, [[5, 6]], [[1, 1]])) == ["attention_mask"]


def test_tokens_come_one_by_one_or_many_at_a_time(opened: Opened) -> None:
    bundle, other = opened("causal"), opened("causal")
    together = bundle.prefill([[1, 2, 3, 4, 5]], all_logits=True)
    single = [other.prefill(1), *(other.step(token) for token in (2, 3, 4, 5))]
    np.testing.assert_allclose(together, np.concatenate(single, 1), rtol=0, atol=1e-5)
    assert bundle.length == other.length == 5


def test_a_prompt_gives_the_logits_of_its_last_token(opened: Opened) -> None:
    bundle, other = opened("causal"), opened("causal")
    last, whole = bundle.prefill([[1, 2, 3]]), other.prefill([[1, 2, 3]], all_logits=True)
    assert (last.shape, whole.shape) == ((1, 1, 11), (1, 3, 11))
    np.testing.assert_allclose(last, whole[:, -1:], rtol=0, atol=1e-5)
    assert bundle.step([[4, 5]]).shape == (1, 2, 11)


def test_padding_on_the_left_changes_nothing(opened: Opened) -> None:
    bundle, alone = opened("causal"), opened("causal")
    padded = [bundle.prefill([[9, 9, 1, 2], [3, 4, 5, 6]], mask=[[0, 0, 1, 1], [1, 1, 1, 1]])[0, -1]]
    plain = [alone.prefill([[1, 2]])[0, -1]]
    for token in (7, 8, 9):
        padded.append(bundle.step([token, 1])[0, -1])
        plain.append(alone.step(token)[0, -1])
    np.testing.assert_allclose(padded, plain, rtol=0, atol=1e-5)


# Refused before anything runs

REFUSED: dict[str, tuple[Callable[[Bundle], object], str]] = {
    "a step of another number of rows": (
        lambda bundle: bundle.step([1, 2, 3]),
        "3 rows, and the sequence has 2 - give as many",
    ),
    "past the last slot": (
        lambda bundle: bundle.step(np.ones((2, SLOTS - 2), np.int64)),
        "6 tokens do not fit: 3 of 8 slots are in use - reset, or make a bundle of more slots",
    ),
    "a prompt past the last slot": (
        lambda bundle: bundle.prefill(np.ones((2, SLOTS + 1), np.int64)),
        r"'input_ids' has 9 for tokens: the bundle takes 1 to 8",
    ),
    "too many rows": (
        lambda bundle: bundle.prefill(np.ones((4, 1), np.int64)),
        r"'input_ids' has 4 for batch: the bundle takes 1 to 3",
    ),
    "no tokens": (
        lambda bundle: bundle.prefill(np.ones((2, 0), np.int64)),
        r"'input_ids' has 0 for tokens: the bundle takes 1 to 8",
    ),
    "numbers with a fraction": (
        lambda bundle: bundle.step([0.5, 1.5]),
        r"'input_ids' is no int64\['batch', 'tokens'\]: it is float64",
    ),
    "text": (lambda bundle: bundle.step("abc"), "'input_ids' is no int64"),  # type: ignore[arg-type]
    "rows of several lengths": (lambda bundle: bundle.step([[1], [1, 2]]), "'tokens' is no array: "),
    "another rank": (lambda bundle: bundle.step([[[1]]]), r"'input_ids' of step is \[1, 1, 1\], and must be"),
    "a mask of another shape": (
        lambda bundle: bundle.step([1, 2], mask=[[1, 1], [1, 1]]),
        r"'attention_mask' of step is \[2, 2\], and must be \[2, 1\]",
    ),
    "an unknown input": (
        lambda bundle: bundle.prefill([[1], [2]], input_features=[1]),
        "'prefill' has no input 'input_features': it takes no other input than tokens",
    ),
    "another method": (lambda bundle: bundle.encode([1, 2]), "the bundle has no 'encode' - call prefill"),
    "no such method": (lambda bundle: bundle.run("think"), "the bundle has no method 'think': it has prefill, step"),
    "no start token": (lambda bundle: bundle.start(), "the export does not say what the decoder starts with"),
    "a row that is not there": (
        lambda bundle: bundle.reorder([0, 2]),
        r"rows \[0, 2\], and the state has rows 0 to 1",
    ),
    "a row before the first": (lambda bundle: bundle.reorder([-1]), "the state has rows 0 to 1"),
    "too many copies": (
        lambda bundle: bundle.reorder([0, 1, 0, 1]),
        "4 rows, and the bundle takes 1 to 3 - make one of a larger --batch",
    ),
    "half a row": (lambda bundle: bundle.reorder([0.5]), "rows are numbers of rows, and these are float64"),  # type: ignore[list-item]
    "no rows": (lambda bundle: bundle.reorder([]), "0 rows, and the bundle takes 1 to 3"),
    "too many beams": (
        lambda bundle: bundle.generate([[1], [2]], max_new_tokens=2, beams=2),
        "4 rows and beams, and the bundle takes 3 - make one of a larger --batch",
    ),
    "no tokens to give": (
        lambda bundle: bundle.generate([1], max_new_tokens=0),
        "0 tokens and 1 beams: give at least 1 of each",
    ),
    "more than there is to forget": (lambda bundle: bundle.rewind(4), "4 tokens cannot stay of 3"),
}


@pytest.mark.cases(8)
@pytest.mark.parametrize("case", REFUSED)
def test_what_cannot_run_is_refused_and_the_sequence_goes_on(case: str, opened: Opened) -> None:
    call, message = REFUSED[case]
    bundle, other = opened("causal"), opened("causal")
    for each in (bundle, other):
        each.prefill([[1, 2, 3], [4, 5, 6]])
    before = {name: bundle.state[name].tobytes() for name in bundle.state}
    with pytest.raises(UsageError, match=message):
        call(bundle)
    assert {name: bundle.state[name].tobytes() for name in bundle.state} == before
    assert bundle.length == 3
    np.testing.assert_array_equal(bundle.step([7, 8]), other.step([7, 8]))


def test_nothing_steps_before_a_start(opened: Opened) -> None:
    bundle = opened("causal")
    with pytest.raises(UsageError, match="no sequence is started - call encode or prefill first"):
        bundle.step(1)
    with pytest.raises(UsageError, match="no sequence is started, so that there are no rows - start one first"):
        bundle.reorder([0])


def test_a_mask_that_nothing_reads_is_refused(opened: Opened) -> None:
    """The decoder has no mask of its own: padding would count as tokens."""
    bundle = opened("marian-tiny")
    with pytest.raises(UsageError, match="'encode' takes no mask"):
        bundle.encode([[1, 2]], mask=[[0, 1]], input_ids=[[3, 4]])
    with pytest.raises(UsageError, match="'encode' needs 'input_ids', int64"):
        bundle.encode([[1, 2]])


def test_an_error_of_onnxruntime_leaves_no_started_sequence(opened: Opened) -> None:
    bundle = opened("causal")
    with pytest.raises(RunError, match="onnxruntime fails"):
        bundle.prefill([[VOCABULARY]])
    with pytest.raises(UsageError, match="no sequence is started"):
        bundle.step(1)
    bundle.prefill([[1]])
    with pytest.raises(RunError, match="onnxruntime fails"):
        bundle.step(VOCABULARY)
    other = opened("causal")
    other.prefill([[1]])
    np.testing.assert_array_equal(bundle.step(2), other.step(2))


def test_a_model_that_is_missing_is_one_error(bundle_of: BundleOf, tmp_path: Path) -> None:
    (tmp_path / "bundle.json").write_bytes((bundle_of("causal") / "bundle.json").read_bytes())
    with pytest.raises(ModelError, match=r"decode\.onnx"):
        Bundle(tmp_path)


# State


def test_state_lies_in_one_arena_and_stays_there(opened: Opened) -> None:
    """Step after step, for 500 steps in all, in memory that does not grow."""
    bundle = opened("causal")
    process, memory = psutil.Process(), 0
    bundle.prefill([[1, 2]])
    addresses = {name: bundle.state[name].ctypes.data for name in bundle.state}
    start, end = bundle.state.address, bundle.state.address + bundle.contract.arena
    offsets = {state.name: state.offset for state in bundle.contract.states}
    assert {name: address - start for name, address in addresses.items()} == offsets
    assert all(start <= address < end for address in addresses.values())
    views = {name: bundle.state[name] for name in bundle.state}
    for step in range(500):
        if bundle.length == SLOTS:
            bundle.rewind(1)
        bundle.step(step % VOCABULARY)
        if step == 250:
            memory = process.memory_info().rss
    assert process.memory_info().rss - memory < 1 << 20
    assert {name: bundle.state[name].ctypes.data for name in bundle.state} == addresses
    assert {name for name, view in views.items() if np.shares_memory(view, bundle.state[name])} == {*bundle.state}


def test_a_view_of_state_is_the_state(opened: Opened) -> None:
    bundle, other = opened("causal"), opened("causal")
    for each in (bundle, other):
        each.prefill([[1, 2, 3]])
    bundle.state[KEY][...] = other.state[KEY] + 1
    assert (bundle.step(4) != other.step(4)).any()


def test_forks_do_not_meet(opened: Opened) -> None:
    bundle = opened("window")
    alone = [bundle.prefill([[token, 2]]) for token in (1, 5)]
    one, two = bundle.fork(), bundle.fork()
    np.testing.assert_array_equal(one.prefill([[1, 2]]), alone[0])
    np.testing.assert_array_equal(two.prefill([[5, 2]]), alone[1])
    pairs = [(one.step(token), two.step(token)) for token in (3, 4, 6, 7)]
    for fork, token, place in ((one.fork(), 1, 0), (one.fork(), 5, 1)):
        fork.prefill([[token, 2]])
        for step, pair in zip((3, 4, 6, 7), pairs, strict=True):
            np.testing.assert_array_equal(fork.step(step), pair[place])
    assert one.state.address != two.state.address


def test_a_reset_forgets_everything(opened: Opened) -> None:
    bundle = opened("causal")
    bundle.prefill([[1, 2, 3], [4, 5, 6]])
    bundle.reset()
    assert bundle.length == 0
    for state in bundle.contract.states:
        assert not bundle.state.view(state, state.shape).any()
    with pytest.raises(UsageError, match="no sequence is started"):
        bundle.step(1)


def test_rows_are_reordered(opened: Opened) -> None:
    bundle, other = opened("window"), opened("window")
    bundle.prefill([[1, 2, 3, 4], [5, 6, 7, 8]], mask=[[1, 1, 1, 1], [0, 0, 1, 1]])
    bundle.reorder([1, 0, 1])
    other.prefill([[5, 6, 7, 8], [1, 2, 3, 4], [5, 6, 7, 8]], mask=[[0, 0, 1, 1], [1, 1, 1, 1], [0, 0, 1, 1]])
    for tokens in ([1, 2, 3], [4, 5, 6]):
        np.testing.assert_array_equal(bundle.step(tokens), other.step(tokens))
    bundle.reorder([2])
    other.reorder([2])
    np.testing.assert_array_equal(bundle.step(9), other.step(9))


def test_rows_of_what_an_encoder_gives_are_reordered_too(opened: Opened) -> None:
    bundle, other = opened("marian-tiny"), opened("marian-tiny")
    sources = np.array([[5, 6, 7, 8], [9, 10, 11, 0]])
    mask = np.array([[1, 1, 1, 1], [1, 1, 1, 0]])
    bundle.encode([[3], [4]], input_ids=sources, attention_mask=mask)
    bundle.reorder([1, 1, 0])
    rows = [1, 1, 0]
    other.encode([[4], [4], [3]], input_ids=sources[rows], attention_mask=mask[rows])
    for tokens in ([1, 2, 3], [4, 5, 6]):
        np.testing.assert_array_equal(bundle.step(tokens), other.step(tokens))


def test_a_state_moves_between_forks_of_one_layout_only(opened: Opened) -> None:
    bundle, other = opened("causal"), opened("window")
    bundle.prefill([[1, 2, 3]])
    fork = bundle.fork()
    fork.state = bundle.state
    assert fork.length == 3
    with pytest.raises(UsageError, match="the state has another layout than that of this bundle"):
        bundle.state = BundleState(other.contract)


# Search


def test_greedy_search_takes_the_largest_logit_and_stops_at_the_end(opened: Opened) -> None:
    bundle, other = opened("causal"), opened("causal")
    (found,) = bundle.generate([1, 2], max_new_tokens=20)
    logits, expected = other.prefill([[1, 2]]), []
    while True:
        expected.append(int(logits[0, -1].argmax()))
        if other.length == SLOTS:
            break
        logits = other.step(expected[-1])
    assert found == expected
    assert len(set(found)) > 1
    end = found[2]
    stop = found.index(end) + 1
    assert bundle.generate([1, 2], max_new_tokens=20, eos=end) == [found[:stop]]
    assert bundle.generate([1, 2], max_new_tokens=20, eos=(found[0] + 1, end)) == [found[:stop]]
    assert bundle.generate([1, 2], max_new_tokens=20, eos=()) == [found]


def test_beams_find_the_best_of_all_sequences(opened: Opened) -> None:
    """With as many beams as fit, of few tokens: the best of what was looked at, by the mean of log probabilities."""
    bundle, other = opened("causal"), opened("causal")

    def score(tokens: list[int]) -> float:
        logits, total = other.prefill([[1]])[0, -1], 0.0
        for token in tokens:
            wide = logits.astype(np.float64)
            total += wide[token] - wide.max() - np.log(np.exp(wide - wide.max()).sum())
            logits = other.step(token)[0, -1] if other.length < SLOTS else logits
        return total / len(tokens)

    (greedy,), (beams,) = (bundle.generate([1], max_new_tokens=3, beams=count, eos=-1) for count in (1, 3))
    every = [[a, b, c] for a in range(VOCABULARY) for b in range(VOCABULARY) for c in range(VOCABULARY)]
    assert beams in every
    assert bundle.generate([1], max_new_tokens=3, beams=BeamOptions(3), eos=-1) == [beams]
    assert score(beams) >= score(greedy)


# State that is replaced as a whole


@pytest.mark.parametrize("place", ["arena", "device"])
def test_rows_of_state_with_two_places_are_reordered_and_the_rest_stays(
    place: str, tmp_path: Path, request: pytest.FixtureRequest
) -> None:
    if place == "device":
        request.getfixturevalue("copies")
    text = """<ir_version: 9, opset_import: ["" : 17]>
        agraph (float[batch, 2] x, float[batch, 2] hidden, float[1] count, float rate) =>
        (float[batch, 2] y, float[batch, 2] hidden_after, float[1] count_after) <float one = {1}> {
            hidden_after = Add (hidden, x) count_after = Add (count, one)
            product = Mul (hidden_after, count_after) y = Mul (product, rate) }"""
    saved(onnx.parser.parse_model(text), tmp_path / "source")
    states = "".join(
        f'[[state]]\nname = "{name}"\nread = {{ step = "{name}" }}\nwrite = {{ step = "{name}_after" }}\n'
        for name in ("hidden", "count")
    )
    (tmp_path / "source" / "bundle.toml").write_text(f'[[method]]\nname = "step"\nmodels = ["model.onnx"]\n{states}')
    bundle = Bundle(made(tmp_path / "source", tmp_path / "bundle"), threads=1)
    assert {state.update for state in bundle.contract.states} == {"swap"}
    assert [state.batch for state in bundle.contract.states] == [0, None]
    hidden, rng = np.zeros((2, 2), np.float32), np.random.default_rng(0)
    for count, rows in enumerate(([0, 1], [1, 0], [1, 1, 0], [2, 0], [0], [0, 0]), 1):
        x = rng.integers(-9, 9, hidden.shape).astype(np.float32)
        hidden += x
        np.testing.assert_array_equal(bundle.run("step", x=x, rate=2)["y"], hidden * count * 2)
        bundle.reorder(rows)
        hidden = hidden[rows]
        np.testing.assert_array_equal(bundle.state["hidden"], hidden)
        np.testing.assert_array_equal(bundle.state["count"], [count])
