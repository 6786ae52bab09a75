"""Bundles for proofs: their models run in a process of their own, and may be others, as may the contract."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path

import numpy as np

from graphkit.deploy.contract.bundle_contract import BundleContract
from graphkit.deploy.hosts.bound_state import BundleState
from graphkit.deploy.hosts.bundle_host import Bundle
from graphkit.deploy.hosts.method_feeds import Inputs, Tokens
from graphkit.model import Model
from graphkit.runtime.session import IsolatedSession
from graphkit.runtime.shared_memory import shared_zeros

__all__ = ["AlteredBundle", "IsolatedBundle"]


class IsolatedBundle(Bundle):
    """A bundle whose models run in a process that may die, on state that both processes have."""

    _open = IsolatedSession

    def _fresh(self, initial: Mapping[str, np.ndarray]) -> BundleState:
        return BundleState(self.contract, initial, shared_zeros)

    def keeping(self, kept: int, tokens: Tokens, mask: Tokens | None, inputs: Inputs) -> np.ndarray:
        """Start a sequence, and return the logits of so many of the last tokens; a host asks for one, or for all."""
        return next(iter(self._decode(self._method("once"), tokens, mask, inputs, kept).values()))


class AlteredBundle(IsolatedBundle):
    """A bundle that runs models in the place of its files.

    Args:
        folder: The bundle.
        contract: What it does.
        models: What runs, by file.
    """

    def __init__(self, folder: Path, contract: BundleContract, models: Mapping[str, Model]) -> None:
        super().__init__(folder, optimize=False, prepack=False, unchecked=True)
        self.contract = contract
        opened = {file: IsolatedSession(model, optimize=False, prepack=False) for file, model in models.items()}
        self._sessions.opened.update(opened)
        self._begin(self._fresh(self._state.initial))
