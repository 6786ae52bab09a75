"""Run a bundle: methods over one state, which they update in place."""

from __future__ import annotations

import os
from collections.abc import Mapping, Sequence
from functools import partial
from pathlib import Path
from typing import ClassVar

import numpy as np
import numpy.typing as npt

from graphkit.contract.bundle_contract import BundleContract, BundleMethod
from graphkit.contract.contract_files import read_bundle
from graphkit.contract.host_contract import Generation
from graphkit.errors import GraphkitError, UsageError
from graphkit.hosts.bound_state import BoundMethods, BundleState, Sessions
from graphkit.hosts.method_feeds import (
    Inputs,
    Tokens,
    as_array,
    as_rows,
    check_bundle,
    check_folder,
    checked_feeds,
    of_source,
    told_apart,
)
from graphkit.hosts.token_search import (
    BeamOptions,
    SamplingOptions,
    TokenRules,
    beam_search,
    end_tokens,
    greedy_search,
    most_new_tokens,
    warn_of_settings,
)
from graphkit.runtime.providers import CPU, Provider
from graphkit.runtime.session import IsolatedSession, Session, as_provider


class Bundle:
    """The methods of a bundle, and the state of one user.

        bundle = Bundle("opus.bundle")
        logits = bundle.encode([0], input_ids=ids, attention_mask=mask)
        logits = bundle.step(logits[:, -1].argmax())

    Args:
        folder: The folder of `bundle.json`.
        threads: Threads inside an operator; 0 for onnxruntime's choice.
        prepack: Whether kernels may keep a copy of the weights in the layout that they like. By default those of a step
            do, and of an encoder with its decoder, as those of an export do; a prompt of a decoder does not where it
            has a file of its own, for that would hold the weights of the step once more.
        optimize: Whether onnxruntime may fuse operators.
        checksums: Whether to compare the checksums of all files, which reads them; else their sizes alone.
        unchecked: Whether to take the folder as it is, whatever it records of its files and its proof.
        provider: Where onnxruntime runs the models, such as "webgpu": see `graphkit providers`. What of the state its
            models read and write on a device stays in the memory of that.

    Attributes:
        contract: What `bundle.json` says.

    Raises:
        ModelError: The bundle or a file of it is missing, broken or another than was recorded, or a model is not what
            `bundle.json` says.
        UsageError: There is no memory for its state.

    Warns:
        UnprovenWarning: The proof failed or was not run.
    """

    _open: ClassVar[type[Session | IsolatedSession]] = Session

    def __init__(
        self,
        folder: str | os.PathLike[str],
        *,
        threads: int = 0,
        prepack: bool | None = None,
        optimize: bool = True,
        checksums: bool = False,
        unchecked: bool = False,
        provider: Provider | str = CPU,
    ) -> None:
        file = Path(folder) / "bundle.json"
        self.contract: BundleContract = read_bundle(file, altered=unchecked)
        if not unchecked:
            check_folder(Path(folder), self.contract, file.name, checksums=checksums)
            check_bundle(Path(folder), self.contract)
        methods, chosen = self.contract.methods, as_provider(provider)
        prompts = {m.file for m in methods if m.when == "once" and all(port.kind != "user" for port in m.inputs)}
        steps = {method.file for method in methods if method.when == "step"}
        packed = frozenset(method.file for method in methods if method.file in steps or method.file not in prompts)
        if chosen.capture:
            problem = f"{chosen.capture} is for fixed shapes, and a bundle takes prompts of any length"
            hint = "leave it out, or lower the export, whose models have fixed shapes"
            raise UsageError(f"provider '{chosen}': {problem} - {hint}")
        self._sessions = Sessions(Path(folder), threads, prepack, optimize, packed, self._open, provider=chosen)
        states = [state for state in self.contract.states if state.initial is None]
        method, initial = self.contract.method("init"), dict[str, np.ndarray]()
        if states and method is not None:
            state = self._fresh({})
            state.rows = self.contract.sizes["batch"]
            BoundMethods(self.contract, self._sessions, state).run(method)
            initial = {each.name: state.view(each, each.shape).copy() for each in states}
        self._begin(self._fresh(initial))

    def _fresh(self, initial: Mapping[str, np.ndarray]) -> BundleState:
        return BundleState(self.contract, initial)

    def _begin(self, state: BundleState) -> None:
        self._state = state
        self._methods = BoundMethods(self.contract, self._sessions, state)

    # State

    @property
    def state(self) -> BundleState:
        """The state: each tensor by name, as a view."""
        return self._state

    @state.setter
    def state(self, state: BundleState) -> None:
        if state.contract.states != self.contract.states:
            raise UsageError("the state has another layout than that of this bundle - give one of the same bundle")
        self._begin(state)

    @property
    def length(self) -> int:
        """How many tokens the decoder has seen: the first length, 0 where there is none."""
        return int(next(iter(self._state.lengths.values()), (0,))[0])

    def reset(self) -> None:
        """Give all state its initial value, and forget the sequence."""
        self._state.clear()
        if (method := self.contract.method("init")) is not None:
            self._state.rows = self.contract.sizes["batch"]
            self._methods.run(method)
            self._state.clear()

    def fork(self) -> Bundle:
        """Return a bundle for another user: the same sessions and weights, and a state of its own, at its start.

        Raises:
            UsageError: There is no memory for its state.
        """
        other = object.__new__(type(self))
        other.__dict__.update(self.__dict__)
        other._begin(self._fresh(self._state.initial))
        return other

    # Methods

    def encode(
        self,
        tokens: Tokens | Inputs | None = None,
        /,
        inputs: Inputs | None = None,
        *,
        mask: npt.ArrayLike | None = None,
        all_logits: bool = False,
        **named: npt.ArrayLike,
    ) -> np.ndarray:
        """Start a sequence: run the encoder on a source, and the decoder on its first tokens.

        Args:
            tokens: What the decoder starts with: a token, one for each row, or [batch, tokens]; by default the start
                token of the export, and what it lets follow.
            mask: 1 for each of these that counts, 0 for padding, [batch, tokens]; ones by default.
            all_logits: Whether to give the logits of each token; by default those of the last one alone, where the
                bundle can choose.
            inputs: What the encoder reads, by name: `{"input_ids": ..., "attention_mask": ...}`; a mask is ones by
                default. The decoder's tokens and mask may be among them, by the names that the model has for them.
            named: The same by keyword, for names that are not those above: `input_ids=...`.

        Returns:
            The logits of the decoder, [batch, 1, vocabulary], or [batch, tokens, vocabulary].

        Raises:
            UsageError: An input is missing or does not fit, or it is too long. The state is as before.
            RunError: onnxruntime fails.
        """
        self._check_once("encode")
        return self.start(tokens, inputs, mask=mask, all_logits=all_logits, **named)

    def prefill(
        self,
        tokens: Tokens | Inputs | None = None,
        /,
        inputs: Inputs | None = None,
        *,
        mask: npt.ArrayLike | None = None,
        all_logits: bool = False,
        **named: npt.ArrayLike,
    ) -> np.ndarray:
        """Start a sequence of a decoder-only model: run it on a prompt.

        Args, results and errors are those of `encode`.
        """
        self._check_once("prefill")
        return self.start(tokens, inputs, mask=mask, all_logits=all_logits, **named)

    def start(
        self,
        tokens: Tokens | Inputs | None = None,
        /,
        inputs: Inputs | None = None,
        *,
        mask: npt.ArrayLike | None = None,
        all_logits: bool = False,
        **named: npt.ArrayLike,
    ) -> np.ndarray:
        """Start a sequence, with `encode` or `prefill`, whichever the bundle has."""
        method = self._method("once")
        tokens, mask, inputs = told_apart(method, tokens, mask, inputs, named)
        return self._read_first(method, self._begins_with(tokens, inputs), mask, inputs, kept=0 if all_logits else 1)

    def _read_first(
        self,
        method: BundleMethod,
        tokens: np.ndarray,
        mask: npt.ArrayLike | None,
        inputs: Mapping[str, npt.ArrayLike],
        kept: int,
    ) -> np.ndarray:
        """Run the method that starts a sequence; steps read the tokens that are more than it takes."""
        last = next((port.shape[1] for port in method.inputs if port.kind == "tokens"), "")
        width = tokens.shape[1]
        if last != 1 or width <= 1 or mask is not None:  # of more tokens, each may be told of all of them
            return _first_output(self._decode(method, tokens, mask, inputs, kept))
        logits = [_first_output(self._decode(method, tokens[:, :1], None, inputs, kept))]
        logits += [self.step(tokens[:, at : at + 1]) for at in range(1, width)]
        return logits[-1] if kept else np.concatenate(logits, 1)

    def step(self, tokens: Tokens, *, mask: npt.ArrayLike | None = None) -> np.ndarray:
        """Run the decoder on the next token of each row.

        Args:
            tokens: A token, one for each row, or [batch, tokens].
            mask: 1 for each that counts, 0 for padding, [batch, tokens]; ones by default.

        Returns:
            The logits, [batch, tokens, vocabulary].

        Raises:
            UsageError: Nothing is started, the rows are others than those that are, or there are no slots left. The
                state is as before.
            RunError: onnxruntime fails.
        """
        method = self._method("step")
        if not self._state.rows and self.contract.method("once") is not None:
            raise UsageError("no sequence is started - call encode or prefill first")
        return _first_output(self._decode(method, tokens, mask, {}))

    def run(
        self,
        name: str,
        tokens: Tokens | Inputs | None = None,
        /,
        inputs: Inputs | None = None,
        *,
        mask: npt.ArrayLike | None = None,
        **named: npt.ArrayLike,
    ) -> dict[str, np.ndarray]:
        """Run a method by name, such as one that a `bundle.toml` names.

        Args:
            name: Of the method; `init` and `reorder` have methods of their own here.
            tokens: Its tokens, for a method that takes some: see `step`.
            mask: See `step`.
            inputs: Its inputs, by name: `bundle.run("hear", {"audio": audio})`.
            named: The same by keyword, for names that are not those above.

        Returns:
            Its outputs that are no state, by name.

        Raises:
            UsageError: There is no such method, or an input is missing or does not fit. The state is as before.
            RunError: onnxruntime fails.
        """
        methods = {method.name: method for method in self.contract.methods if method.when in ("once", "step")}
        if name not in methods:
            raise UsageError(f"the bundle has no method '{name}': it has {', '.join(methods)}")
        return self._decode(methods[name], *told_apart(methods[name], tokens, mask, inputs, named))

    def rewind(self, length: int, name: str = "") -> None:
        """Forget the last tokens, so that only so many slots are in use: to try others in their place.

        Args:
            length: How many tokens stay.
            name: Which length; by default the first.

        Raises:
            UsageError: There are not so many tokens, or a ring has lost what would be needed.
        """
        lengths = self._state.lengths
        chosen = name or next(iter(lengths), "")
        if chosen not in lengths:
            raise UsageError(f"the bundle has no length '{chosen}': it has {', '.join(lengths) or 'none'}")
        now = int(lengths[chosen][0])
        if not 0 <= length <= now:
            raise UsageError(f"{length} tokens cannot stay of {now}")
        rings = [s.shape[s.axis or 0] for s in self.contract.states if s.update == "ring" and s.length == chosen]
        if length < now and any(now > slots for slots in rings):
            raise UsageError(f"a ring of {min(rings)} slots has lost tokens that {length} would need - start again")
        rolled = next((state.name for state in self.contract.states if state.update == "swap"), "")
        if length < now and rolled:
            raise UsageError(f"state '{rolled}' cannot go back to what it was after {length} tokens - start again")
        lengths[chosen][0] = length

    def reorder(self, rows: Sequence[int]) -> None:
        """Let each row of the state be a copy of another: `reorder([0, 0, 1])` makes three rows of two.

        Raises:
            UsageError: There is no such row, or there are more than the bundle takes.
        """
        method, state = self._method("reorder"), self._state
        if not state.rows:
            raise UsageError("no sequence is started, so that there are no rows - start one first")
        given = as_array("rows", rows)
        if given.size and given.dtype.kind not in "iu":
            raise UsageError(f"rows are numbers of rows, and these are {given.dtype}")
        indices = given.astype(np.int64).reshape(-1)
        most = self.contract.sizes["batch"]
        if not 0 < len(indices) <= most:
            raise UsageError(f"{len(indices)} rows, and the bundle takes 1 to {most} - make one of a larger --batch")
        if indices.min() < 0 or indices.max() >= state.rows:
            raise UsageError(f"rows {indices.tolist()}, and the state has rows 0 to {state.rows - 1}")
        self._methods.reorder(method, indices)

    def generate(
        self,
        ids: npt.ArrayLike | None = None,
        *,
        max_new_tokens: int | None = None,
        eos: int | Sequence[int] | None = None,
        beams: int | BeamOptions | None = None,
        sampling: SamplingOptions | None = None,
        prompt: Tokens | None = None,
        mask: npt.ArrayLike | None = None,
        generation: Generation | None = None,
        inputs: Inputs | None = None,
        **named: npt.ArrayLike,
    ) -> list[list[int]]:
        """Return the tokens that greedy decoding, beam search or sampling gives for each row.

        Args:
            ids: Token ids, [batch, tokens] or of one row: of the source for an encoder, else the prompt.
            max_new_tokens: The most tokens to give; by default as many as the export says.
            eos: A token to stop at, or several of which any stops, which is given too; by default those of the export.
            beams: Beams of each row; 1, the default, is greedy. The rule is that of transformers' `generate`, and a row
                gives the same tokens alone and in a batch. With another penalty of length, or another end of the
                search, than the export's it is a `graphkit.hosts.token_search.BeamOptions`.
            sampling: How tokens are drawn, such as `graphkit.hosts.token_search.SamplingOptions(seed=7, top_p=0.9)`.
            prompt: What the decoder beside an encoder starts with; by default what the export says.
            mask: 1 for each of `ids` that counts, 0 for padding; ones by default.
            generation: Rules in place of the export's, such as `Generation()` for none, or
                `dataclasses.replace(bundle.contract.generation, forced_bos_token_id=7)` for another language.
            inputs: Other inputs by name, such as `{"input_features": ...}`.
            named: The same by keyword.

        Raises:
            UsageError: As for `encode`; or there are fewer than one token or beam, or too many rows; or nothing says
                how many tokens to give.

        Warns:
            GenerationWarning: The export chooses tokens by settings that are not followed here.
        """
        rules = self.contract.generation if generation is None else generation
        search = 1 if beams is None else beams
        if not isinstance(search, BeamOptions):
            search = BeamOptions(search, rules.length_penalty, rules.early_stopping)
        if search.beams < 1 or (max_new_tokens is not None and max_new_tokens < 1):
            raise UsageError(f"{max_new_tokens} tokens and {search.beams} beams: give at least 1 of each")
        if sampling is not None and search.beams > 1:
            raise UsageError("tokens are drawn for 1 beam - give beams or sampling")
        ends = self.contract.ends if eos is None else end_tokens(eos)
        method, most = self.contract.method("once") or self._method("step"), self.contract.sizes["batch"]
        by_name = {**(inputs or {}), **named}
        if ids is not None:
            source = of_source(method, ids, mask)
            if source.keys() <= {*by_name, *(name for name in source if "mask" in name)}:  # they are the prompt's
                prompt = np.atleast_2d(as_array("ids", ids))
            if not source.keys() <= by_name.keys():
                mask = None
            by_name |= source
        axes = {port.name: port.shape.index("batch") for port in method.inputs if "batch" in port.shape}
        known = {name: np.atleast_2d(as_array(name, by_name[name])) for name in axes if name in by_name}
        counts = [known[name].shape[axes[name]] for name in known if axes[name] < known[name].ndim]
        rows = max(1 if prompt is None else len(as_rows(prompt)), *(counts or [1]))
        if rows * search.beams > most:
            count = f"{rows * search.beams} rows and beams"
            raise UsageError(f"{count}, and the bundle takes {most} - make one of a larger --batch")
        warn_of_settings(rules, self._sessions.folder, has_beams=beams is not None, has_prompt=prompt is not None)
        tokens, mask, rest = told_apart(method, prompt, mask, by_name, {})
        begins = self._begins_with(tokens, rest)
        width = begins.shape[1]
        steps = most_new_tokens(rules, max_new_tokens, width)
        read = partial(self._read_first, kept=1) if method.when == "once" else self._read_prompt
        logits = read(method, begins, mask, rest)
        steps = min([steps, *(each.most - self.length + 1 for each in self.contract.lengths[:1])])
        allowed = TokenRules(rules, ends, width, steps)
        if search.beams == 1:
            return greedy_search(self, logits[:, -1], steps, ends, allowed, sampling)
        return beam_search(self, logits[:, -1], steps, ends, search, allowed)

    def _read_prompt(
        self, step: BundleMethod, tokens: np.ndarray, mask: npt.ArrayLike | None, inputs: Mapping[str, npt.ArrayLike]
    ) -> np.ndarray:
        """Run a step on a prompt from the initial state, and return its logits; at once, or token by token."""
        self.reset()
        shapes = [port.shape for port in step.inputs if port.kind == "tokens"]
        if any(isinstance(shape[-1], str) for shape in shapes):
            return _first_output(self._decode(step, tokens, mask, inputs))
        if mask is not None and not np.asarray(mask).all():
            raise UsageError(f"'{step.name}' takes no mask: give prompts of one length")
        logits = np.empty(0)
        for place in range(tokens.shape[1]):
            logits = _first_output(self._decode(step, tokens[:, place : place + 1], None, inputs))
        return logits

    # How a method runs

    def _method(self, when: str) -> BundleMethod:
        if (method := self.contract.method(when)) is None:
            raise UsageError(f"the bundle has no method for '{when}'")
        return method

    def _check_once(self, name: str) -> None:
        method = self._method("once")
        if method.name != name:
            raise UsageError(f"the bundle has no '{name}' - call {method.name}")

    def _begins_with(self, tokens: Tokens | None, inputs: Mapping[str, npt.ArrayLike]) -> np.ndarray:
        """Return what the decoder starts with, [batch, tokens]: what is given, else what the export says."""
        if tokens is None:
            if (start := self.contract.tokens.get("start")) is None:
                hint = "give its first tokens as prompt"
                raise UsageError(f"the export does not say what the decoder starts with - {hint}")
            array = np.array([start, *self.contract.generation.prompt])
        else:
            array = as_array("tokens", tokens)
            if array.ndim:
                return as_rows(array)
        arrays = [as_array(given, array) for given, array in inputs.items()]
        rows = max((len(array) for array in arrays if array.ndim > 1), default=1)
        return np.tile(array.reshape(1, -1), (rows, 1))

    def _decode(
        self,
        method: BundleMethod,
        tokens: Tokens | None,
        mask: npt.ArrayLike | None,
        inputs: Mapping[str, npt.ArrayLike],
        kept: int = 0,
    ) -> dict[str, np.ndarray]:
        fed = checked_feeds(method, self.contract.sizes, tokens, mask, inputs, kept, self.contract.legal)
        feeds, state = fed.arrays, self._state
        rows = max(state.rows, 1) if fed.rows is None else fed.rows
        for change in method.changes:
            count = feeds[change.input].shape[change.axis]
            most = next(each.most for each in self.contract.lengths if each.name == change.length)
            past = 0 if method.when == "once" else int(state.lengths[change.length][0])
            if past + count > most:
                problem = f"{count} tokens do not fit: {past} of {most} slots are in use"
                raise UsageError(f"{problem} - reset, or make a bundle of more slots")
        if set(method.access.values()) <= {"none"}:
            return self._methods.run(method, feeds, fed.sizes)
        if method.when != "once" and state.rows and rows != state.rows:
            raise UsageError(f"{rows} rows, and the sequence has {state.rows} - give as many")
        lengths = {change.length for change in method.changes}
        others = [name for name, length in state.lengths.items() if name not in lengths and length[0]]
        if method.when == "once":
            if others and rows != state.rows:
                raise UsageError(f"{rows} rows, and '{others[0]}' counts {state.rows} - give as many, or reset first")
            state.clear(lengths)
        state.rows = rows
        if method.when == "once":
            state.restart(name for name, access in method.access.items() if access == "read and write")
        try:
            outputs = self._methods.run(method, feeds, fed.sizes)
        except GraphkitError:
            if method.when == "once":
                state.clear(lengths)
                state.rows = state.rows if others else 0
            raise
        for change in method.changes:
            state.lengths[change.length][0] += feeds[change.input].shape[change.axis]
        return outputs


def _first_output(outputs: Mapping[str, np.ndarray]) -> np.ndarray:
    if not outputs:
        raise UsageError("the method gives nothing but state - call it with run")
    return next(iter(outputs.values()))
