"""Beam search gives the tokens of transformers, in Python and in JavaScript, for each row alone and in a batch.

`beams.json` has what `generate` of transformers 4.57 gives for a table: the logits of a token depend on the one before
and on its position.
"""

from __future__ import annotations

import json
import shutil
import subprocess
from collections.abc import Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from npm_packages import JAVASCRIPT

from graphkit.contract import Generation
from graphkit.errors import ModelError, UsageError
from graphkit.hosts.token_search import BeamOptions, beam_search

CASES: list[dict[str, Any]] = json.loads(Path(__file__).with_name("beams.json").read_text())
ROWS, POSITIONS = 3, 6


@dataclass
class Table:
    """A decoder whose logits are rows of a table."""

    table: np.ndarray
    tokens: np.ndarray
    position: int = 0

    def first(self) -> np.ndarray:
        return self.table[0, self.tokens]

    def step(self, tokens: np.ndarray) -> np.ndarray:
        self.tokens, self.position = tokens, self.position + 1
        return self.table[self.position % POSITIONS, tokens][:, None]

    def reorder(self, rows: Sequence[int]) -> None:
        self.tokens = self.tokens[np.asarray(rows)]


def table_of(case: dict[str, Any]) -> tuple[np.ndarray, np.ndarray]:
    """Return the table of a case, and the token that each row starts with: drawn as for transformers."""
    random, size = np.random.RandomState(case["seed"]), case["vocabulary"]
    table = (random.standard_normal((POSITIONS, size, size)) * 2).astype(np.float32)
    table[..., case["ends"]] += random.choice([-1.0, 0.5, 1.5])
    return np.round(table, 3).astype(np.float32), random.randint(0, size, ROWS)


def searched(case: dict[str, Any], rows: slice) -> list[list[int]]:
    table, start = table_of(case)
    model = Table(table, start[rows])
    options = BeamOptions(case["beams"], case["penalty"], case["early"])
    return beam_search(model, model.first(), case["steps"], case["ends"], options)


def test_the_tokens_are_those_of_transformers() -> None:
    assert len(CASES) == 168
    for case in CASES:
        assert searched(case, slice(None)) == case["tokens"], case


def test_a_row_gives_the_same_alone_and_in_a_batch() -> None:
    for case in CASES[::7]:
        alone = [searched(case, slice(row, row + 1))[0] for row in range(ROWS)]
        assert alone == case["tokens"], case


def test_more_beams_than_tokens_are_refused() -> None:
    with pytest.raises(UsageError, match="6 beams, and there are 5 tokens - give fewer beams"):
        beam_search(Table(np.zeros((1, 5, 5)), np.zeros(1, int)), np.zeros((1, 5)), 2, (), BeamOptions(6))


def test_logits_that_are_no_numbers_are_an_error() -> None:
    table = np.zeros((POSITIONS, 5, 5))
    table[1, 2, 3] = np.nan
    with pytest.raises(ModelError, match="the logits are NaN, so no beam is the best"):
        beam_search(model := Table(table, np.zeros(1, int)), model.first(), 3, (), BeamOptions(5))


@pytest.mark.skipif(shutil.which("node") is None, reason="there is no Node")
def test_the_tokens_are_the_same_in_javascript() -> None:
    cases = CASES[::3]
    assert generated_in_node([in_javascript(case) for case in cases]) == [case["tokens"] for case in cases]


def in_javascript(case: dict[str, Any]) -> dict[str, Any]:
    """Return a case as `beams_in_node.mjs` takes it."""
    table, start = table_of(case)
    options = {"maxNewTokens": case["steps"], "lengthPenalty": case["penalty"], "earlyStopping": case["early"]}
    decoder = {"table": table.reshape(-1).tolist(), "prompts": start.reshape(-1, 1).tolist()}
    return {**case, **decoder, "generation": asdict(Generation()), "options": options}


def generated_in_node(cases: list[dict[str, Any]]) -> Any:
    """Return what `bundle.mjs` generates in each case."""
    plan = {"host": str(JAVASCRIPT / "bundle.mjs"), "cases": cases}
    script = Path(__file__).with_name("beams_in_node.mjs")
    ran = subprocess.run(["node", script], input=json.dumps(plan), capture_output=True, text=True, timeout=300)
    assert ran.returncode == 0, ran.stderr
    return json.loads(ran.stdout)
