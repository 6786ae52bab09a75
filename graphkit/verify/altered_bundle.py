"""Bundles for proofs: their models run in a process of their own, and may be others, such as copies in float32."""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path
from typing import NamedTuple

import numpy as np

from graphkit.contract.bundle_contract import BundleContract, BundleMethod, BundlePort, StateTensor
from graphkit.equivalence.originals import Originals
from graphkit.errors import ModelError
from graphkit.hosts.bound_state import BundleState
from graphkit.hosts.bundle_host import Bundle
from graphkit.hosts.method_feeds import Inputs, Tokens
from graphkit.model import Model, load
from graphkit.runtime.session import IsolatedSession
from graphkit.runtime.shared_memory import shared_zeros
from graphkit.verify.rounding import in_float32

HALF, SINGLE = "float16", "float32"


class IsolatedBundle(Bundle):
    """A bundle whose models run in a process that may die, on state that both processes have."""

    _open = IsolatedSession

    @property
    def placed(self) -> Mapping[str, int]:
        """How many nodes of the models that ran are on each provider, where that is not the CPU."""
        counts = (Counter(getattr(session, "placed", {})) for session in self._sessions.opened.values())
        return sum(counts, Counter())

    def _fresh(self, initial: Mapping[str, np.ndarray]) -> BundleState:
        return BundleState(self.contract, initial, shared_zeros)

    def start_keeping(self, kept: int, tokens: Tokens, mask: Tokens | None, inputs: Inputs) -> np.ndarray:
        """Start a sequence, and return the logits of so many of the last tokens; a host asks for one, or for all."""
        return next(iter(self._decode(self._method("once"), tokens, mask, inputs, kept).values()))


class AlteredBundle(IsolatedBundle):
    """A bundle that runs other models in the place of its files."""

    def __init__(self, folder: Path, contract: BundleContract, sessions: Mapping[str, IsolatedSession]) -> None:
        super().__init__(folder, prepack=False, unchecked=True)
        self.contract = contract
        self._sessions.opened.update(sessions)
        self._begin(self._fresh(self._state.initial))


class WideBundle(NamedTuple):
    """A bundle of float16 and the models that it was made of, in float32."""

    originals: Originals
    contract: BundleContract
    models: Mapping[str, Model]

    def open(self, folder: Path, *, optimize: bool) -> AlteredBundle:
        """Return the bundle in float32."""
        models = self.models.items()
        sessions = {file: IsolatedSession(model, optimize=optimize, prepack=False) for file, model in models}
        return AlteredBundle(folder, self.contract, sessions)


def widen_model(model: Model) -> Model:
    """Return a model of float16 in float32. Raises ModelError where it is not converted."""
    return in_float32(model, wide_inputs=True)[0]


def widen_bundle(originals: Originals, folder: Path, contract: BundleContract) -> WideBundle | None:
    """Return a bundle and its originals in float32; None where a model is not converted.

    Floats take twice the room in its arena: each state lies twice as far from the start.
    """

    def state(tensor: StateTensor) -> StateTensor:
        is_half = tensor.dtype == HALF
        dtype = SINGLE if is_half else tensor.dtype
        return replace(tensor, dtype=dtype, bytes=tensor.bytes << is_half, offset=2 * tensor.offset)

    def ports(narrow: tuple[BundlePort, ...]) -> tuple[BundlePort, ...]:
        return tuple(replace(port, dtype=SINGLE if port.dtype == HALF else port.dtype) for port in narrow)

    def method(narrow: BundleMethod) -> BundleMethod:
        return replace(narrow, inputs=ports(narrow.inputs), outputs=ports(narrow.outputs))

    try:
        wide = {model: widen_model(model) for model in originals.models}
        files = dict.fromkeys(method.file for method in contract.methods)
        models = {file: widen_model(load(folder / file)) for file in files}
    except ModelError:
        return None
    parts = (originals.encoder, originals.first, originals.step)
    encoder, first, step = (None if part is None else wide[part] for part in parts)
    states, methods = tuple(map(state, contract.states)), tuple(map(method, contract.methods))
    wide_contract = replace(contract, arena=2 * contract.arena, states=states, methods=methods)
    return WideBundle(Originals(encoder, first, step, is_changed=True), wide_contract, models)
