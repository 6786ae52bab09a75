"""Bundles that do something else than a host asks for: with other models, another contract, or other logits."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path

import numpy as np

from graphkit.deploy.contract.bundle_contract import BundleContract, BundleMethod
from graphkit.deploy.hosts.bundle_host import Bundle
from graphkit.deploy.hosts.method_feeds import Inputs, Tokens
from graphkit.deploy.hosts.state_arena import BundleState
from graphkit.model import Model
from graphkit.runtime.isolated_session import IsolatedSession
from graphkit.runtime.shared_memory import shared_zeros

__all__ = ["AlteredBundle", "IsolatedBundle", "KeepingBundle"]


class IsolatedBundle(Bundle):
    """A bundle whose models run in a process that may die, on state that both processes have."""

    _open = IsolatedSession

    def _fresh(self, initial: Mapping[str, np.ndarray]) -> BundleState:
        return BundleState(self.contract, initial, shared_zeros)


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


class KeepingBundle(Bundle):
    """A bundle that asks for the logits of so many of the last tokens where a host asks for those of the last one.

    Args:
        bundle: The bundle, whose sessions and state it uses.
        kept: How many tokens.
    """

    def __init__(self, bundle: Bundle, kept: int) -> None:
        self.__dict__.update(bundle.__dict__)
        self._kept = kept

    def _decode(
        self, method: BundleMethod, tokens: Tokens | None, mask: Tokens | None, inputs: Inputs, kept: int = 0
    ) -> dict[str, np.ndarray]:
        return super()._decode(method, tokens, mask, inputs, kept and self._kept)
