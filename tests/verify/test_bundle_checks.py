"""Checks of a bundle's state find hosts that mix users up, remember what they should forget, or refuse nothing."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from functools import partial
from pathlib import Path

import numpy as np
import pytest
from bundles import SLOTS, WINDOW, decoder

from graphkit.contract.contract_files import read_bundle
from graphkit.equivalence.originals import Originals
from graphkit.hosts.bundle_host import Bundle
from graphkit.model import Model
from graphkit.verify.bundle_prompts import make_prompts
from graphkit.verify.bundle_state_checks import CHECKS, STEPS, Subject, try_check

BundleOf = Callable[[str], Path]
FORKS, LEAKS = "sequences stay independent", "no state is left of an earlier sequence"
REFUSALS = "what cannot run is refused, and the state is as before"


class Sharing(Bundle):
    """A bundle whose forks have one state."""

    def fork(self) -> Bundle:
        other: Bundle = object.__new__(Bundle)
        other.__dict__.update(self.__dict__)
        return other


class Remembering(Bundle):
    """A bundle whose logits tell how many sequences its state has seen."""

    forgets = False
    count = 0

    def _decode(self, *given, **named):  # type: ignore[no-untyped-def]
        self.count += given[0].when == "once"
        return {name: array + (self.count - 1) for name, array in super()._decode(*given, **named).items()}

    def fork(self) -> Bundle:
        other = super().fork()
        other.__class__, other.__dict__["count"] = type(self), 0
        return other


class RememberingResets(Remembering):
    """A bundle whose logits tell whether it was reset."""

    def _decode(self, *given, **named):  # type: ignore[no-untyped-def]
        return {name: array + self.count for name, array in Bundle._decode(self, *given, **named).items()}

    def reset(self) -> None:
        super().reset()
        self.count += 1


class Taking(Bundle):
    """A bundle that takes a step of any rows."""

    def step(self, tokens, *, mask=None):  # type: ignore[no-untyped-def]
        return super().step(np.resize(tokens, (max(self.state.rows, 1), 1)), mask=mask)

    def fork(self) -> Bundle:
        other = super().fork()
        other.__class__ = Taking
        return other


@pytest.mark.cases(5)
@pytest.mark.parametrize(("kind", "check", "found"), [
    (Bundle, FORKS, ""),
    (Bundle, LEAKS, ""),
    (Bundle, REFUSALS, ""),
    (Sharing, FORKS, "1 rows, and the sequence has 2 - give as many"),
    (Remembering, LEAKS, "what was decoded before changes the logits"),
    (RememberingResets, LEAKS, "what was decoded before a reset changes the logits"),
    (Taking, REFUSALS, "a step of other rows is taken"),
])  # fmt: skip
@pytest.mark.parametrize("name", ["causal", "window"])
def test_hosts_are_told_apart(name: str, kind: type[Bundle], check: str, found: str, bundle_of: BundleOf) -> None:
    assert try_check(partial(CHECKS[check], subject_of(bundle_of(name), kind))) == found


def subject_of(folder: Path, kind: type[Bundle] = Bundle) -> Subject:
    bundle = kind(folder, threads=1, optimize=False, unchecked=True)
    model = Model.from_proto(decoder(folder.name))
    return Subject(bundle, make_prompts(bundle.contract, Originals(None, model, model), 0), folder)


def test_the_first_prompt_goes_round_the_shortest_ring(bundle_of: BundleOf) -> None:
    plain, ringed = subject_of(bundle_of("causal")), subject_of(bundle_of("window"))
    assert len(plain.first.steps) == min(STEPS, SLOTS - 1)
    assert len(ringed.first.steps) > WINDOW


@pytest.mark.parametrize(("slots", "window", "both", "plain"), [
    (8, 0, [1, 4, 7], []),
    (256, 0, [1, 255], [128]),
    (2048, 0, [1, 600], [2047]),
    (2048, 512, [1, 513], [511, 2047]),
    (4096, 1024, [1, 600], [1023, 1025, 4095]),
])  # fmt: skip
def test_a_prompt_of_several_tokens_is_short_enough_for_both_levels_and_for_checks(
    slots: int, window: int, both: list[int], plain: list[int], bundle_of: BundleOf
) -> None:
    contract = read_bundle(bundle_of("window" if window else "causal") / "bundle.json")
    states = [
        replace(state, shape=tuple(window if axis == state.axis else size for axis, size in enumerate(state.shape)))
        if state.update == "ring"
        else state
        for state in contract.states
    ]
    longest, sizes = replace(contract.lengths[0], most=slots), {**contract.sizes, "batch": 1}
    longer = replace(contract, states=tuple(states), lengths=(longest,), sizes=sizes)
    model = Model.from_proto(decoder("window" if window else "causal"))
    prompts = make_prompts(longer, Originals(None, model, model), 0)
    assert [*dict.fromkeys(prompt.tokens.shape[1] for prompt in prompts)] == both + plain  # those at both levels first
    assert {prompt.tokens.shape[1] for prompt in prompts if prompt.at_both_levels} == {*both}
