"""The proof of a bundle of methods that a `bundle.toml` names, against the models that it names."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from functools import partial
from pathlib import Path

import numpy as np
from msgspec import Struct

from graphkit.contract.bundle_contract import BundleMethod
from graphkit.equivalence.originals import Originals
from graphkit.hosts.bundle_host import Bundle
from graphkit.model import Model
from graphkit.options import ProofOptions
from graphkit.progress import Progress, portion_of
from graphkit.runtime.session import IsolatedSession, as_provider, as_read
from graphkit.verify.bundle_prompts import input_spec
from graphkit.verify.bundle_state_checks import IsolatedBundle, try_check
from graphkit.verify.comparator import BUNDLE_TOLERANCE, FLOAT16_TOLERANCE, Difference, has_float16, level_tolerance
from graphkit.verify.deployment_proofs import BundleProof, BundleRun
from graphkit.verify.input_generator import ExportInputs
from graphkit.verify.oracle import Oracle
from graphkit.verify.proof_engine import Step, follow_steps, run_isolated, tell_each
from graphkit.verify.rewrite_proof import placement_fault

STEPS = 8
SIZE = 4  # of a dim that nothing fixes
Arrays = dict[str, np.ndarray]


class Chain(Struct, frozen=True, eq=False):
    """A method before it was bundled: models that run one after the other."""

    name: str
    when: str  # `once` or `step`
    models: tuple[Model, ...]
    links: Mapping[str, str]  # the output that an input of a later model is, by input; others are linked by name
    cache: str  # what its KV cache is called; "" where it keeps none in slots
    reads: Mapping[str, str]  # the state that each input is, by input
    writes: Mapping[str, str]  # the state that each output is, by output
    tokens: str = ""  # the input that takes tokens; "" where the caller knows it by its name
    prompt: Model | None = None  # a model that reads prompts of one length alone, which it reads token by token instead


def verify_methods(
    chains: Sequence[Chain],
    folder: Path,
    options: ProofOptions = ProofOptions(),
    *,
    exact: bool,
    initial: Mapping[str, np.ndarray] = {},
    progress: Progress = lambda _: None,
) -> BundleProof:
    """Prove that methods give the results of the chains of models that they were made of, step after step.

    What runs once runs first; then the others run in turn, on random inputs. All outputs are compared: with `exact`
    they must be equal to the last bit in plain onnxruntime, else within the tolerance, `BUNDLE_TOLERANCE` by default.
    States begin with 0 where they are not among the `initial` ones. Raises ModelError where a model is broken, or
    onnxruntime cannot run it.
    """
    models = [model for chain in chains for model in chain.models]
    tolerance, seed = BUNDLE_TOLERANCE if options.tolerance is None else options.tolerance, options.seed
    provider = as_provider(options.provider)
    if not provider.is_cpu and options.tolerance is None:
        tolerance = max(level_tolerance(model, provider) for model in models)
    fused, placed = max(tolerance, *map(level_tolerance, models)), dict[str, int]()
    levels = (False, True) if provider.is_cpu else (True,)  # on a device as its users run it
    if any(map(has_float16, models)):
        exact, tolerance = False, max(tolerance, FLOAT16_TOLERANCE)
    runs, checks = [], dict[str, str]()
    with run_isolated(options.limits):
        for optimized in levels:
            level = f"proving: {'default' if optimized else 'plain'} level"
            told = portion_of(progress, 0.5 * optimized, 0.5 + 0.5 * optimized)
            told(level)
            prepack = None if optimized else False
            bundle = IsolatedBundle(folder, optimize=optimized, prepack=prepack, unchecked=True, provider=provider)
            originals = _Originals(chains, bundle, initial, optimize=optimized)
            allowed = fused if optimized else 0.0 if exact else tolerance
            for rows in tell_each((1, 2) if bundle.contract.sizes["batch"] > 1 else (1,), level, told):
                feeds = _Feeds(chains, bundle, rows, np.random.default_rng(seed))
                runs.append(_run_chains(originals, bundle, feeds, optimized, allowed))
            if not (optimized and provider.is_cpu):
                checks = _repeat_checks(chains, bundle, seed)
            placed = dict(bundle.placed)
    if provider.is_cpu:
        return BundleProof(0.0 if exact else tolerance, fused, tuple(runs), checks)
    causes = tuple(filter(None, [placement_fault(placed, provider)]))
    return BundleProof(fused, fused, tuple(runs), checks, (), causes, provider=str(provider))


class _Originals:
    def __init__(
        self, chains: Sequence[Chain], bundle: Bundle, initial: Mapping[str, np.ndarray], *, optimize: bool
    ) -> None:
        self.chains = {chain.name: chain for chain in chains}
        self.bundle, self.initial = bundle, initial
        self.sessions = {
            chain.name: [IsolatedSession(as_read(each), optimize=optimize, prepack=optimize) for each in chain.models]
            for chain in chains
            if not chain.cache
        }
        self.caches: dict[str, Oracle] = {}
        for cache in dict.fromkeys(chain.cache for chain in chains if chain.cache):
            sharing = [chain for chain in chains if chain.cache == cache]
            first = next((chain for chain in sharing if chain.when == "once"), sharing[0])
            later = next((chain for chain in sharing if chain.when == "step"), sharing[0])
            pair = Originals(None, first.models[0], later.models[0])
            self.caches[cache] = Oracle(pair, optimize=optimize, prepack=optimize)
        self.state: Arrays = {}
        self.started: set[str] = set()

    def begin(self, rows: int) -> None:
        """Give all state its initial value."""
        self.started.clear()
        self.state = {}
        for state in self.bundle.contract.states:
            if state.axis is None:
                shape = [rows if axis == state.batch else size for axis, size in enumerate(state.shape)]
                initial = self.initial.get(state.name, np.zeros((), state.dtype))
                self.state[state.name] = np.broadcast_to(initial, shape).astype(state.dtype)

    def run(self, name: str, feed: Mapping[str, np.ndarray]) -> Arrays:
        """Return all that a method's models compute."""
        chain = self.chains[name]
        if chain.cache:
            return self._run_cached(chain, feed)
        known: Arrays = {**feed, **{port: self.state[state] for port, state in chain.reads.items()}}
        for session in self.sessions[name]:
            known |= session.run({port: known[chain.links.get(port, port)] for port in session.inputs})
        for port, state in chain.writes.items():
            self.state[state] = known[port]
        return known

    def _run_cached(self, chain: Chain, feed: Mapping[str, np.ndarray]) -> Arrays:
        oracle, roles = self.caches[chain.cache], chain.models[0].roles
        names = [value.name for value in roles.all("tokens")]
        tokens = feed[next(name for name in names if name in feed)]
        beside = {name: array for name, array in feed.items() if name not in names}
        beside |= {port: self.state[state] for port, state in chain.reads.items() if state in self.state}
        if chain.when == "once" or chain.cache not in self.started:
            oracle.start(tokens, np.ones_like(tokens), beside)
        else:
            oracle.step(tokens, beside=beside)
        self.started.add(chain.cache)
        for port, state in chain.writes.items():
            if state in self.state:  # others, such as counters, follow from the length of the cache
                self.state[state] = oracle.outputs[port]
        return oracle.outputs


class _Feeds:
    def __init__(self, chains: Sequence[Chain], bundle: Bundle, rows: int, random: np.random.Generator) -> None:
        self.contract, self.rows = bundle.contract, rows
        self.inputs = {chain.name: ExportInputs(chain.models, random) for chain in chains}

    def of(self, method: BundleMethod) -> Arrays:
        """Return the inputs that a caller feeds, by name."""
        sizes = {name: min(SIZE, size) for name, size in self.contract.sizes.items()}
        legal = self.contract.legal.get("tokens")
        sizes |= {"batch": self.rows, "tokens": 1 if legal is None or method.when == "step" else legal.nearest(SIZE)}
        arrays: Arrays = {}
        for port in (port for port in method.inputs if port.kind in ("user", "tokens")):
            shape = [dim if isinstance(dim, int) else sizes.get(dim, SIZE) for dim in port.shape]
            arrays[port.name] = self.inputs[method.name].array(input_spec(method, port), shape)
        return arrays


def _call_method(bundle: Bundle, method: BundleMethod, feed: Arrays) -> Arrays:
    tokens = next((p.name for p in method.inputs if p.kind == "tokens"), "")
    return bundle.run(method.name, feed.get(tokens), {name: array for name, array in feed.items() if name != tokens})


def _method_order(bundle: Bundle) -> list[BundleMethod]:
    once = [method for method in bundle.contract.methods if method.when == "once"]
    steps = [method for method in bundle.contract.methods if method.when == "step"]
    most = min(length.most for length in bundle.contract.lengths) if bundle.contract.lengths else STEPS
    return [*once, *steps * min(STEPS, most - len(once))]


def _run_chains(originals: _Originals, bundle: Bundle, feeds: _Feeds, optimized: bool, allowed: float) -> BundleRun:
    originals.begin(feeds.rows)
    bundle.reset()
    fixed_states = [state.name for state in bundle.contract.states if state.axis is None]

    def repeat_call(method: BundleMethod, feed: Arrays) -> Arrays:
        outputs = {f"'{name}' of {method.name}": array for name, array in _call_method(bundle, method, feed).items()}
        return outputs | {f"state '{name}' after {method.name}": bundle.state[name] for name in fixed_states}

    def steps() -> Iterator[Step]:
        for number, method in enumerate(_method_order(bundle), 1):
            feed = feeds.of(method)
            expected = {f"'{name}' of {method.name}": array for name, array in originals.run(method.name, feed).items()}
            expected |= {f"state '{name}' after {method.name}": originals.state[name] for name in fixed_states}
            yield Step(f"run {number}", expected, partial(repeat_call, method, feed))

    def rule(step: Step, difference: Difference, _: object) -> tuple[float, str]:
        distance = difference.of_spread
        return distance, "" if distance <= allowed else f"{difference.output} differs by {distance:.1e} at {step.where}"

    agreement = follow_steps(steps(), rule)
    count, worst, failure = agreement.steps, agreement.worst, agreement.failure
    return BundleRun(optimized=optimized, rows=feeds.rows, steps=count, logits=worst, failure=failure)


def _repeat_checks(chains: Sequence[Chain], bundle: Bundle, seed: int) -> dict[str, str]:
    def results(*users: Bundle) -> list[list[bytes]]:
        feeds = [_Feeds(chains, user, 1, np.random.default_rng(seed + number)) for number, user in enumerate(users)]
        found: list[list[bytes]] = [[] for _ in users]
        for method in _method_order(bundle):
            for user, user_feeds, given in zip(users, feeds, found, strict=True):
                outputs = _call_method(user, method, user_feeds.of(method))
                given += [array.tobytes() for _, array in sorted(outputs.items())]
        return found

    def again() -> str:
        used = bundle.fork()
        first = results(used)
        used.reset()
        return "" if results(used) == first else "what ran before a reset changes outputs"

    def apart() -> str:
        together = results(bundle.fork(), bundle.fork())
        return "" if together[0] == results(bundle.fork())[0] else "a fork changes what another gives"

    return {"no state is left of an earlier sequence": try_check(again), "sequences stay independent": try_check(apart)}
