"""Tokens are drawn from transformers' probabilities, the same ones in Python and in JavaScript.

`sampling.json` has tokens by the temperature, top-k and top-p of transformers 5.24: the first whose summed probability
is above a number of SplitMix64.
"""

from __future__ import annotations

import json
import shutil
import subprocess
from dataclasses import asdict
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from npm_packages import JAVASCRIPT
from test_beam_search import POSITIONS, Table, generated_in_node

from graphkit.contract import Generation
from graphkit.errors import ModelError, UsageError
from graphkit.hosts.token_search import SamplingOptions, greedy_search, uniform_number

CASES: list[dict[str, Any]] = json.loads(Path(__file__).with_name("sampling.json").read_text())
SPLITMIX64 = [  # of the seed 1234567: the outputs that its author's program gives
    6457827717110365317, 3203168211198807973, 9817491932198370423, 4593380528125082431, 16408922859458223821,
]  # fmt: skip


def table_of(case: dict[str, Any]) -> np.ndarray:
    """Return a table of the same logits everywhere."""
    logits = np.array(case["logits"], np.float32)
    return np.broadcast_to(logits, (POSITIONS, len(logits), len(logits)))


def options_of(case: dict[str, Any]) -> SamplingOptions:
    return SamplingOptions(**{name: case[name] for name in ("seed", "temperature", "top_k", "top_p")})


def drawn(case: dict[str, Any], rows: int = 1) -> list[list[int]]:
    model = Table(table_of(case), np.zeros(rows, int))
    return greedy_search(model, model.first(), len(case["tokens"]), (), sampling=options_of(case))


def test_numbers_are_those_of_splitmix64() -> None:
    assert [uniform_number(1234567, place) for place in range(5)] == [(bits >> 11) / 2**53 for bits in SPLITMIX64]


def test_tokens_are_drawn_by_the_probabilities_of_transformers() -> None:
    assert [drawn(case) for case in CASES] == [[case["tokens"]] for case in CASES]


def test_a_row_of_a_batch_draws_as_a_row_alone_with_its_own_seed() -> None:
    for case in CASES[::5]:
        assert drawn(case, 3) == [drawn({**case, "seed": case["seed"] + row})[0] for row in range(3)]


ODD = [
    *({"temperature": value} for value in (0, float("inf"), float("nan"))),
    *({"seed": 1.5}, {"top_k": -1}, {"top_k": 1.5}, {"top_p": 0}, {"top_p": 1.5}),
]


@pytest.mark.parametrize("odd", ODD)
def test_options_that_leave_nothing_to_draw_are_refused(odd: dict[str, float]) -> None:
    with pytest.raises(UsageError, match="give a whole seed, a finite temperature above 0, a whole top_k of at least"):
        SamplingOptions(**{"seed": 1, **odd})  # type: ignore[arg-type]


def test_nothing_is_drawn_from_logits_that_are_no_numbers() -> None:
    for options in ({}, {"top_k": 2}, {"top_p": 0.5}):
        with pytest.raises(ModelError, match="the logits are NaN, so no token can be drawn"):
            SamplingOptions(np.int64(1), **options).draw(np.array([1, np.nan, 0]), 0, 0)  # type: ignore[arg-type]


@pytest.mark.skipif(shutil.which("node") is None, reason="there is no Node")
def test_javascript_refuses_what_python_refuses() -> None:
    cases = [f"[[1, 0], {{seed: 1, temperature: {value}}}]" for value in ("0", "Infinity", "NaN")]
    cases += [f"[[1, 0], {{seed: {seed}, {odd}}}]" for seed, odd in (("1.5", ""), (1, "topK: -1"), (1, "topK: 1.5"))]
    cases += ["[[1, 0], {seed: 1, topP: 0}]", *(f"[[1, NaN], {{seed: 1, {o}}}]" for o in ("", "topK: 1", "topP: 0.5"))]
    script = f"""
        import {{ choose }} from '{(JAVASCRIPT / "tokens.mjs").as_uri()}';
        const rules = {json.dumps(asdict(Generation()))};
        for (const [logits, sampling] of [{", ".join(cases)}]) {{
            try {{ console.log(choose(logits, 0, 0, {{ sampling, rules, ends: [], steps: 9, width: 1 }})); }}
            catch (error) {{ console.log(error.name, error.message.slice(0, 18)); }}
        }}"""
    command = ["node", "--input-type=module", "--eval", script]
    said = subprocess.run(command, capture_output=True, text=True, check=True).stdout.splitlines()
    assert said == ["GraphkitError give a whole seed,"] * 7 + ["GraphkitError the logits are NaN"] * 3


@pytest.mark.skipif(shutil.which("node") is None, reason="there is no Node")
def test_the_tokens_are_the_same_in_javascript() -> None:
    plans = []
    for case in CASES:
        sampling = {"seed": case["seed"], "temperature": case["temperature"]}
        sampling |= {"topK": case["top_k"], "topP": case["top_p"]}
        plan = {"vocabulary": len(case["logits"]), "prompts": [[0], [0]], "beams": 1, "ends": [-1]}
        options = {"maxNewTokens": len(case["tokens"]), "sampling": sampling}
        table = table_of(case).reshape(-1).tolist()
        plans.append({**plan, "table": table, "generation": asdict(Generation()), "options": options})
    assert generated_in_node(plans) == [drawn(case, 2) for case in CASES]
