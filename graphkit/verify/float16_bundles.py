"""Float16 in bundles: where rounding alone decides the digits of logits, bundle and export are compared in float32.

onnxruntime computes float16 in float32, and rounds only where operators meet that it has kernels for. A bundle has
fewer of these places than its export, and attention amplifies the difference. Both of onnxruntime's levels round an
export at the same places, so that the distance between these levels says nothing about it.

A difference above the tolerance is therefore judged by a third decoder, the export in float32, on the same tokens:

1. The bundle in float32 has to give its logits, within the tolerance of float32.
2. The bundle as it is may be `FACTOR` times as far from its logits as the export as it is.

A wrong bundle is wrong in float32 too, where much smaller differences can be seen. Measured on exports of four families
in float16, 600 prompts: bundle and export differ by at most 4.2e-7 in float32, the export in float16 is up to 6.3e-2
from itself in float32, and the bundle up to 1.8 times as far.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field, replace
from functools import cache, partial
from pathlib import Path

import numpy as np

from graphkit.deploy.contract.bundle_contract import BundleContract, BundleMethod, BundlePort, StateTensor
from graphkit.deploy.hosts.bundle_host import Bundle
from graphkit.errors import GraphkitError, ModelError
from graphkit.model import Model, load
from graphkit.verify.altered_bundle import AlteredBundle
from graphkit.verify.bundle_calls import Calls, decode_given_steps
from graphkit.verify.bundle_prompts import Prompt
from graphkit.verify.bundle_recording import Recording, begin_prompt, search_of, search_tokens
from graphkit.verify.bundle_state_checks import start_bundle
from graphkit.verify.comparator import distance_of_spread
from graphkit.verify.deployment_proofs import BundleRun
from graphkit.verify.float16_error import FACTOR
from graphkit.verify.float32_copies import in_float32
from graphkit.verify.oracle import Oracle
from graphkit.verify.originals import Originals
from graphkit.verify.tolerances import FLOAT32_TOLERANCE

__all__ = ["Float16Judge"]

HALF, SINGLE = "float16", "float32"


@dataclass(frozen=True)
class Verdict:
    """How far logits are apart where the rounding of float16 explains it.

    Attributes:
        as_it_is: The bundle from the export, in float16.
        own: The export in float16 from itself in float32.
        in_float32: The bundle from the export, both in float32.
    """

    as_it_is: float
    own: float
    in_float32: float


@dataclass
class Float16Judge:
    """The judge of logits of a bundle that are further from those of its export in float16 than the tolerance.

    Attributes:
        originals: The models that the bundle was made of.
        folder: The bundle.
        contract: What `bundle.json` says.
        explained: What rounding was found to explain.
    """

    originals: Originals
    folder: Path
    contract: BundleContract
    explained: list[Verdict] = field(default_factory=list)

    def judged(
        self, bundle: Bundle, prompts: Sequence[Prompt], runs: Sequence[BundleRun], truth: Recording, tolerance: float
    ) -> list[BundleRun]:
        """Return the runs of a bundle, those as passed that rounding explains.

        Args:
            bundle: The bundle as it is.
            prompts: What it decodes in the runs.
            runs: The runs.
            truth: What the export gives.
            tolerance: The largest difference that is allowed in float16 anyway.
        """

        def judged(run: BundleRun, prompt: Prompt, logits: Sequence[np.ndarray]) -> BundleRun:
            if not run.failure or not math.isfinite(run.logits):
                return run
            expected = [prompt.counted(array, number) for number, array in enumerate(logits)]
            verdict = self._judge_calls(partial(decode_given_steps, prompt), expected, bundle, tolerance, opened)
            if verdict is None:
                return run
            steps = len(prompt.steps)
            return replace(run, failure="", steps=steps, logits=verdict.as_it_is, in_float32=verdict.in_float32)

        opened = cache(self._opened)
        return [judged(*case) for case in zip(runs, prompts, truth.logits, strict=True)]

    def explains(self, calls: Calls, expected: Sequence[np.ndarray], bundle: Bundle, tolerance: float) -> bool:
        """Whether rounding explains the logits that a bundle decodes so."""
        return self._judge_calls(calls, expected, bundle, tolerance, self._opened) is not None

    def explains_tokens(
        self, bundle: Bundle, prompt: Prompt, beams: int, expected: Sequence[Sequence[int]], tolerance: float
    ) -> bool:
        """Whether rounding explains that a search with a bundle chooses others than the tokens of the export.

        In float32 both have to choose the same ones, and on the tokens of the export in float16, rounding has to
        explain the logits of the bundle.
        """
        steps = tuple(np.array(tokens, np.int64).reshape(-1, 1) for tokens in zip(*expected, strict=True))
        half = Oracle(self.originals, prepack=False)
        calls = partial(decode_given_steps, replace(prompt, steps=steps[:-1]))
        logits = calls(partial(begin_prompt, half), half)
        if self._judge_calls(calls, logits, bundle, tolerance, self._opened) is None:
            return False
        oracle, wide = self._opened()
        tokens = search_tokens(oracle, begin_prompt(oracle, prompt)[:, -1], len(steps), beams)
        return tokens == search_of(beams)(wide, start_bundle(wide, prompt)[:, -1], len(steps), ())

    def _opened(self) -> tuple[Oracle, Bundle]:
        """Return the export and the bundle in float32."""
        files = dict.fromkeys(method.file for method in self.contract.methods)
        models = {file: _in_float32(load(self.folder / file)) for file in files}
        wide = AlteredBundle(self.folder, _wide_contract(self.contract), models)
        return Oracle(_wide_originals(self.originals), prepack=False, can_choose=True), wide

    def _judge_calls(
        self,
        calls: Calls,
        expected: Sequence[np.ndarray],
        bundle: Bundle,
        tolerance: float,
        opened: Callable[[], tuple[Oracle, Bundle]],
    ) -> Verdict | None:
        """Decode in float32, and return how far logits are apart, None where rounding does not explain it."""
        try:
            oracle, wide = opened()
            exact = calls(partial(begin_prompt, oracle), oracle)
            actual, single = (calls(partial(start_bundle, decoder), decoder) for decoder in (bundle, wide))
        except GraphkitError:
            return None
        verdict = Verdict(
            _worst_distance(expected, actual), _worst_distance(exact, expected), _worst_distance(exact, single)
        )
        within = max(tolerance, FACTOR * verdict.own) if math.isfinite(verdict.own) else tolerance
        if verdict.in_float32 > FLOAT32_TOLERANCE or _worst_distance(exact, actual) > within:
            return None
        self.explained.append(verdict)
        return verdict

    def notes(self) -> Iterator[str]:
        """Yield a sentence about the differences that rounding explains, if there are any."""
        if self.explained:
            of_export, single = (
                max(values) for values in zip(*((v.own, v.in_float32) for v in self.explained), strict=True)
            )
            yield (
                f"Where logits are compared in float32, float16 puts those of the export itself {of_export:.1e} off; "
                f"in float32 bundle and export differ by at most {single:.1e}."
            )


def _worst_distance(expected: Sequence[np.ndarray], actual: Sequence[np.ndarray]) -> float:
    return max((distance_of_spread(*pair) for pair in zip(expected, actual, strict=True)), default=0.0)


def _in_float32(model: Model) -> Model:
    conversion = in_float32(model, wide_inputs=True)
    if conversion is None:
        raise ModelError("it has functions or bfloat16, and is not converted", file=model.label)
    return conversion[0]


def _wide_originals(originals: Originals) -> Originals:
    wide_models = {model: _in_float32(model) for model in originals.models}
    parts = (originals.encoder, originals.first, originals.step)
    encoder, first, step = (None if part is None else wide_models[part] for part in parts)
    return Originals(encoder, first, step, is_changed=True)


def _wide_contract(contract: BundleContract) -> BundleContract:
    """Return a contract whose floats take twice the room: each state lies twice as far from the start."""

    def state(tensor: StateTensor) -> StateTensor:
        is_half = tensor.dtype == HALF
        return replace(tensor, dtype=_wide_dtype(tensor.dtype), bytes=tensor.bytes << is_half, offset=2 * tensor.offset)

    def port(narrow: BundlePort) -> BundlePort:
        return replace(narrow, dtype=_wide_dtype(narrow.dtype))

    def method(narrow: BundleMethod) -> BundleMethod:
        return replace(narrow, inputs=tuple(map(port, narrow.inputs)), outputs=tuple(map(port, narrow.outputs)))

    states, methods = tuple(map(state, contract.states)), tuple(map(method, contract.methods))
    return replace(contract, arena=2 * contract.arena, states=states, methods=methods)


def _wide_dtype(dtype: str) -> str:
    return SINGLE if dtype == HALF else dtype
