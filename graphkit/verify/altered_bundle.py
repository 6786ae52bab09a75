"""A bundle of other models, or with another contract, than its files."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path

from graphkit.deploy.contract.bundle_contract import BundleContract
from graphkit.deploy.hosts.bundle_host import Bundle
from graphkit.deploy.hosts.state_arena import BundleState
from graphkit.model import Model
from graphkit.runtime.session import Session

__all__ = ["AlteredBundle"]


class AlteredBundle(Bundle):
    """A bundle that runs models in the place of its files.

    Args:
        folder: The bundle.
        contract: What it does.
        models: What runs, by file.
    """

    def __init__(self, folder: Path, contract: BundleContract, models: Mapping[str, Model]) -> None:
        super().__init__(folder, optimize=False, prepack=False, unchecked=True)
        self.contract = contract
        opened = {file: Session(model, optimize=False, prepack=False) for file, model in models.items()}
        self._sessions.opened.update(opened)
        self._begin(BundleState(contract, self._state.initial))
