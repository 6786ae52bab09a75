"""How often a bundle chooses the tokens that its export chooses."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import numpy as np

from graphkit.contract.reading import read_bundle
from graphkit.host.bundle import Bundle
from graphkit.runtime.isolation import isolation
from graphkit.runtime.limits import DEFAULT_LIMITS, Limits
from graphkit.verify.bundle_checks import start
from graphkit.verify.bundle_prompts import prompts
from graphkit.verify.counting import numbered
from graphkit.verify.oracle import Oracle
from graphkit.verify.originals import Originals

__all__ = ["equal_tokens"]

STEPS = 12


def equal_tokens(
    originals: Originals,
    folder: Path,
    *,
    seed: int = 0,
    limits: Limits = DEFAULT_LIMITS,
    progress: Callable[[str], None] = lambda _: None,
) -> tuple[int, int]:
    """Return how many greedy tokens of the export the bundle chooses too, and how many there are.

    The export decodes greedily from the first row of each prompt; both go on with its tokens.

    Raises:
        ModelError: A model is broken, or onnxruntime cannot run it.
    """
    contract = read_bundle(folder / "bundle.json", altered=True)
    equal = tried = 0
    made = prompts(contract, originals, seed)
    with isolation(limits):
        oracle, bundle = Oracle(originals, optimize=False), Bundle(folder, optimize=False, unchecked=True)
        for prompt in numbered([each.first_row() for each in made], "counting equal tokens", progress, "prompt"):
            expected = oracle.start(prompt.tokens, prompt.mask, prompt.inputs)[:, -1]
            actual = start(bundle, prompt)[:, -1]
            steps = min(STEPS, contract.lengths[0].most - prompt.tokens.shape[1] + 1)
            for step in range(steps):
                tokens = np.asarray(expected.argmax(-1)).reshape(-1, 1)
                equal += int((actual.argmax(-1) == tokens[:, 0]).sum())
                tried += len(tokens)
                if step < steps - 1:
                    expected, actual = oracle.step(tokens)[:, -1], bundle.step(tokens)[:, -1]
    return equal, tried
