"""Where the files of a lowering are not what the export says: rows of tables, weights, numbers in attributes."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

import numpy as np

from graphkit.contract import Contract
from graphkit.model import Model, load
from graphkit.verify.lowering_scene import AlteredHost, IsolatedMethods
from graphkit.verify.lowering_tables import WrongTable, wrong_tables
from graphkit.verify.originals import Originals
from graphkit.verify.same_weights import WrongAttribute, WrongWeight, mended, wrong_attributes, wrong_weights

__all__ = ["Fact", "Facts", "facts_of"]

Fact = WrongTable | WrongWeight | WrongAttribute


@dataclass(frozen=True, eq=False)
class Facts:
    """What differs in the files.

    Attributes:
        sure: What is surely another than that of the export.
        suspects: What may be, and is named only where undoing it mends the difference.
        tables: The tables, by name.
        models: The lowered models, by method.
    """

    sure: tuple[Fact, ...]
    suspects: tuple[Fact, ...]
    tables: Mapping[str, np.ndarray]
    models: Mapping[str, Model]

    def undo(self, host: AlteredHost, facts: Sequence[Fact]) -> None:
        """Let a host run with these mended, and with no others."""
        host.tables = {**self.tables, **{fact.name: fact.right for fact in facts if isinstance(fact, WrongTable)}}
        wrong = [fact for fact in facts if not isinstance(fact, WrongTable)]
        made = {name: [fact for fact in wrong if fact.file == model.name] for name, model in self.models.items()}
        assert isinstance(host.run, IsolatedMethods)
        host.run.models = {name: mended(self.models[name], found) for name, found in made.items() if found}


def facts_of(originals: Originals, folder: Path, contract: Contract, host: AlteredHost) -> Facts:
    """Compare the files of a lowering with its export."""
    found: list[Fact] = list(wrong_tables(originals, contract, host.tables))
    models = {method.name: load(folder / method.file) for method in contract.methods}
    for model in models.values():
        found += [*wrong_weights(originals.models, model), *wrong_attributes(originals.models, model)]
    sure = tuple(fact for fact in found if _is_sure(fact))
    return Facts(sure, tuple(fact for fact in found if fact not in sure), host.tables, models)


def _is_sure(fact: Fact) -> bool:
    if isinstance(fact, WrongTable):
        return not fact.is_whole
    return fact.is_sure if isinstance(fact, WrongWeight) else True
