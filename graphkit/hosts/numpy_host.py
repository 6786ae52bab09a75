"""The reference host: embedding lookup, masks, cache slots and a greedy loop, driven by `contract.json` alone."""

from __future__ import annotations

import math
import os
from collections.abc import Callable, Iterable, Mapping, Sequence
from pathlib import Path
from typing import Literal

import numpy as np
import numpy.typing as npt

from graphkit.contract import By, Contract, Generation, Method, Port, State, Table, read_contract, sound_axis
from graphkit.errors import ModelError, UsageError
from graphkit.hosts.method_feeds import Inputs, check_folder, join_inputs
from graphkit.hosts.token_search import (
    SamplingOptions,
    TokenRules,
    choose_token,
    end_tokens,
    most_new_tokens,
    warn_of_settings,
)
from graphkit.progress import machine_memory
from graphkit.runtime.providers import CPU, Provider

NOT_PADDED = (
    " - zeros behind a shorter sound would change its results: lower again for its length with --dim, or pad it as the "
    "original's caller does and say how many of its places are valid, such as start([24], ...)"
)
Arrays = dict[str, np.ndarray]
Ids = list[list[int]]  # tokens of each sequence
Tokens = Sequence[int] | Sequence[Sequence[int]]
Run = Callable[[Method, Mapping[str, np.ndarray]], Mapping[str, np.ndarray]]


class Host:
    """Runs lowered models.

        host = Host("out")
        host.start([12, 7, 2])
        logits = host.step(0)

    Models of a batch run several sequences at a time: a source and a token are then one for each, and so are logits.
    All sequences begin at slot 0 and have the same number of tokens in the cache; their sources differ in length.

    Args:
        folder: The folder of `contract.json`, or the file itself.
        run: What runs a method; onnxruntime by default.
        checksums: Whether to compare the checksums of all files, which reads them; else their sizes alone.
        unchecked: Whether to take the folder as it is, whatever it records of its files and its proof.
        provider: Where onnxruntime runs the models, such as "webgpu": see `graphkit providers`. An option that lets a
            device record a run, such as "cuda:enable_cuda_graph=1", works here.

    Attributes:
        contract: What it follows.
        state: The state, by name: written in place.
        position: Tokens in the cache.
        valid: Valid positions of the source of each sequence.

    Raises:
        ModelError: The contract or a file of it is missing, broken or another than was recorded, or asks for more
            memory than there is.

    Warns:
        UnprovenWarning: The proof failed or was not run.
    """

    def __init__(
        self,
        folder: str | os.PathLike[str],
        run: Run | None = None,
        *,
        checksums: bool = False,
        unchecked: bool = False,
        provider: Provider | str = CPU,
    ) -> None:
        path = Path(folder)
        file = path if path.suffix == ".json" else path / "contract.json"
        self.folder = file.parent
        self.contract: Contract = read_contract(file, altered=unchecked)
        if not unchecked:
            check_folder(self.folder, self.contract, file.name, checksums=checksums)
        self.tables = {table.name: _table_rows(self.folder, table) for table in self.contract.tables}
        ports = [port for method in self.contract.methods for port in (*method.inputs, *method.outputs)]
        tensors: list[State | Port] = [*self.contract.states, *ports]
        size = sum(math.prod(tensor.shape) * np.dtype(tensor.dtype).itemsize for tensor in tensors)
        if 0 < machine_memory() < size:
            problem = f"its states, inputs and outputs take {size:,} bytes, more than this machine has"
            raise ModelError(problem, file=str(path), hint="lower again with a smaller --max-cache-len or --src-len")
        self.state = {state.name: np.zeros(state.shape, state.dtype) for state in self.contract.states}
        self.axis = {state.name: state.axis for state in self.contract.states}
        self.given: dict[str, np.ndarray] = {}
        self.batch = self.contract.sequences
        self.position, self.valid = 0, [0] * self.batch
        self.run = run if run is not None else _run_in_onnxruntime(self.folder, provider)

    @property
    def pads_sounds(self) -> bool:
        """Whether it puts zeros behind sounds that are shorter than the models take them."""
        return any(port.is_sound for method in self.contract.methods for port in method.inputs)

    def start(self, source: Tokens | Inputs = (), /, inputs: Inputs | None = None, **named: npt.ArrayLike) -> Arrays:
        """Forget the state, and run the models that run once for a source.

        Args:
            source: Token ids of the source, of a batch a list for each sequence; none for a decoder-only model. Of a
                sound, how many samples or frames are valid in each sequence; by default all that its array has. Zeros
                make it as long as the models take it, unless they change results. Inputs by name may stand here where
                there is no source.
            inputs: Inputs that the caller makes, by name: `{"input_features": ...}`.
            named: The same by keyword, for names that are not those above: `input_features=...`.

        Returns:
            The outputs of the methods that ran, by name.

        Raises:
            UsageError: The source is empty where there must be one, too short or too long; there is not one a sequence;
                or an input is given twice, is unknown, or has another shape.
        """
        source, arrays = source_and_inputs(source, inputs, named)
        ports = {port.name: port for method in self.contract.methods for port in method.inputs if port.kind == "user"}
        for name, array in arrays.items():
            if name not in ports:  # what it holds would be ignored
                took = next((m.became[name] for m in self.contract.methods if name in m.became), "")
                why = f"it became {took}" if took else f"they take {', '.join(map(repr, ports)) or 'none'}"
                raise UsageError(f"the models have no input '{name}': {why} - leave it out")
            port = ports[name]
            if not port.is_sound and array.shape != port.shape:
                hint = "" if self.pads_sounds or not self.contract.sizes.get("sound") else NOT_PADDED
                raise UsageError(f"input '{name}' is {list(array.shape)}, and the model takes {list(port.shape)}{hint}")
        is_sound = self.contract.sizes.get("sound", 0) > 0
        ids: Ids = [[] for _ in range(self.batch)]
        if len(source) and not is_sound:
            ids = self._split_sequences(source, "source")
        for array in self.state.values():
            array[...] = 0
        self.position = 0
        length = self.contract.sizes["source"]
        for tokens in ids if self.contract.takes_text else ():
            if not 0 < len(tokens) <= length:
                raise UsageError(f"the source has {len(tokens)} tokens - it takes 1 to {length}")
        self.valid = [len(tokens) or length for tokens in ids]
        self.given = arrays
        if is_sound:
            self._take_sound([int(length) for length in source])  # type: ignore[arg-type]
        outputs: Arrays = {}
        for method in self.contract.methods:
            if method.when == "once":
                outputs.update(self._call_method(method, ids))
        return outputs

    def _take_sound(self, valid: Sequence[int]) -> None:
        """Fill the sound with zeros, and take note of how many positions are valid."""
        sizes = self.contract.sizes
        most, stride, offset = sizes["sound"], sizes["stride"], sizes["offset"]
        ports = [port for method in self.contract.methods for port in method.inputs if port.is_sound]
        for port in ports:
            if port.name in self.given and not valid:
                valid = [sound_length(self.given[port.name], port, most)] * self.batch
        valid = valid or [most] * self.batch
        if len(valid) != self.batch:
            raise UsageError(f"there are {len(valid)} lengths of sounds - give {self.batch}")
        for length in valid:
            if not max(1, stride - offset) <= length <= most:
                raise UsageError(f"the sound has {length} valid places - it takes {max(1, stride - offset)} to {most}")
        for port in ports:
            if port.name in self.given:
                self.given[port.name] = with_zeros(self.given[port.name], port, most, valid)
        self.valid = [min((length + offset) // stride, sizes["source"]) for length in valid]

    def step(self, token: int | Sequence[int]) -> np.ndarray:
        """Run one token through the decoder and return its logits, [vocabulary].

        Of a batch, one token for each sequence, and [batch, vocabulary].

        Raises:
            UsageError: The cache is full, or there is not one token a sequence.
        """
        tokens = [token] if isinstance(token, (int, np.integer)) else list(token)
        if len(tokens) != self.batch:
            raise UsageError(f"there are tokens of {len(tokens)} sequences - give those of {self.batch}")
        if self.position >= self.contract.sizes["positions"]:
            raise UsageError(f"the cache is full: it has {self.contract.sizes['capacity']} slots")
        for method in self.contract.methods:
            if method.when == "step":
                outputs = self._call_method(method, [[each] for each in tokens])
                scores = next(port.name for port in method.outputs if not port.writes)
        self.position += 1
        logits = np.asarray(outputs[scores])
        return logits.reshape(-1) if self.batch == 1 else logits.reshape(self.batch, -1)

    def generate(
        self,
        source: Sequence[int] | None,
        prompt: Iterable[int] | None = None,
        steps: int | None = None,
        end: int | Sequence[int] | None = None,
        generation: Generation | None = None,
        sampling: SamplingOptions | None = None,
    ) -> list[int]:
        """Return the tokens that greedy decoding or sampling gives, by the rules of the contract.

        Args:
            source: Token ids of the source; empty or None for a decoder-only model.
            prompt: What the decoder starts with: a start token, or a prompt; by default what the contract says.
            steps: The most tokens to give; by default as many as the contract says.
            end: A token to stop at, or several of which any stops; by default those of the contract.
            generation: Rules in place of those of the contract, such as `Generation()` for none.
            sampling: How tokens are drawn; by default the most likely one is taken.

        Raises:
            UsageError: The prompt is empty, or it or the source is too long; or the models run a batch; or nothing says
                how many tokens to give.

        Warns:
            GenerationWarning: The export chooses tokens by settings that are not followed here.
        """
        if self.batch > 1:
            raise UsageError(f"the models run {self.batch} sequences at a time - call generate_batch()")
        sources = [source] if source is not None and len(source) else []
        prompts = None if prompt is None else [list(prompt)]
        return self.generate_batch(sources, prompts, steps, end, generation, sampling)[0]

    def generate_batch(
        self,
        sources: Sequence[Sequence[int]],
        prompts: Sequence[Sequence[int]] | None = None,
        steps: int | None = None,
        end: int | Sequence[int] | None = None,
        generation: Generation | None = None,
        sampling: SamplingOptions | None = None,
    ) -> list[list[int]]:
        """Return the tokens that greedy decoding or sampling gives for each sequence; prompts may differ in length.

        Raises:
            UsageError: A prompt is empty, or it or a source is too long; or there is not one a sequence.
        """
        rules, first = generation or self.contract.generation, self.contract.tokens["start"]
        warn_of_settings(rules, self.folder, has_beams=False, has_prompt=prompts is not None)
        if prompts is None and first is not None:
            prompts = [[first, *rules.prompt]] * self.batch
        starts = self._split_sequences(prompts or [[]] * self.batch, "prompt")
        if not all(starts):
            raise UsageError("the prompt is empty - give at least the token that decoding starts with")
        if any(token is None for tokens in starts for token in tokens):
            raise UsageError("the prompt has no number for a token - the contract does not know it, so give the number")
        self.start(sources)
        answers: list[list[int]] = [[] for _ in starts]
        most = self.contract.sizes["positions"]
        ends = self.contract.ends if end is None else end_tokens(end)
        limits = [min(most_new_tokens(rules, steps, len(prompt)), most - len(prompt) + 1) for prompt in starts]
        allowed = [TokenRules(rules, ends, len(prompt), limit) for prompt, limit in zip(starts, limits, strict=True)]
        while any(_goes_on(tokens, limit, ends) for tokens, limit in zip(answers, limits, strict=True)):
            at = self.position
            texts = [[*prompt, *tokens] for prompt, tokens in zip(starts, answers, strict=True)]
            logits = self.step([text[min(at, len(text) - 1)] for text in texts])
            rows = zip(logits.reshape(self.batch, -1), allowed, answers, strict=True)
            for place, (row, rule, tokens) in enumerate(rows):
                if at + 1 >= rule.prompt and _goes_on(tokens, rule.steps, ends):
                    tokens.append(choose_token(rule.allowed_scores(row, len(tokens)), place, len(tokens), sampling))
        return answers

    def _split_sequences(self, ids: Tokens, what: str) -> Ids:
        is_one = self.batch == 1 and not isinstance(ids[0] if len(ids) else 0, Sequence)
        sequences = [list(ids)] if is_one else [list(sequence) for sequence in ids]  # type: ignore[arg-type]
        if len(sequences) != self.batch:
            raise UsageError(f"there are {len(sequences)} sequences of tokens as {what} - give {self.batch}")
        return sequences  # type: ignore[return-value]

    def _call_method(self, method: Method, ids: Ids) -> Arrays:
        outputs = dict(self.run(method, {port.name: self._input(port, ids) for port in method.inputs}))
        for port in method.outputs:
            self.given[f"{method.name}/{port.name}"] = outputs[port.name]
            if port.writes:
                self._write(port.writes, outputs[port.name])
        return outputs

    def _input(self, port: Port, ids: Ids) -> np.ndarray:
        source, contract = port.source, self.contract
        assert source is not None
        if source.kind == "state":
            return self.state[source.of]
        if source.kind == "output":
            return self.given[source.of]
        if source.kind == "user":
            if port.name not in self.given:
                raise UsageError(f"input '{port.name}' is missing - give it to start()")
            return self.given[port.name]
        if source.kind == "slots_mask":
            mask = slots_mask(self.position, contract.sizes["capacity"], source.window, contract.floor)
            return _fill_mask(mask, port)
        if source.kind == "source_mask":
            masks = [source_mask(valid, contract.sizes["source"], contract.floor) for valid in self.valid]
            shape = (self.batch, math.prod(port.shape) // (self.batch * len(masks[0])), len(masks[0]))
            return _fill_mask(np.stack(masks)[:, None], port, shape)
        rows = self.tables[source.of]
        if source.kind == "rows":
            chosen = [self.position]
            if source.by != "position":
                chosen = [self._chosen_place(source.by, row, ids[row]) for row in range(self.batch)]
            return np.ascontiguousarray(np.resize(rows[np.array(chosen)], port.shape))
        count = math.prod(port.shape) // (self.batch * math.prod(rows.shape[1:]))
        pad = self.contract.tokens["pad"] or 0
        padded = [[0] * count if port.by == "type" else [*tokens, *[pad] * (count - len(tokens))] for tokens in ids]
        for tokens in padded:
            if not 0 <= min(tokens) <= max(tokens) < len(rows):
                raise UsageError(f"table '{source.of}' has rows 0 to {len(rows) - 1}, and the tokens are {tokens}")
        return np.ascontiguousarray(rows[np.array(padded)]).reshape(port.shape)

    def _chosen_place(self, by: By | Literal[""], row: int, ids: list[int]) -> int:
        """Return the place of a source that chooses a row: of its largest id, of the first of a token, or its last."""
        if by == "largest_id":
            return ids.index(max(ids))
        pooled = self.contract.tokens.get("pooled")
        if by == "first_token":
            return ids.index(pooled) if pooled in ids else 0
        return self.valid[row] - 1

    def _write(self, name: str, new: np.ndarray) -> None:
        axis, state = self.axis[name], self.state[name]
        if axis is None:
            state[...] = new
        elif self.position < state.shape[axis]:
            state[(slice(None),) * axis + (self.position,)] = np.take(new, 0, axis)


def source_and_inputs(
    source: Tokens | Inputs, inputs: Inputs | None, named: Inputs
) -> tuple[Tokens, dict[str, np.ndarray]]:
    """Return the source and the inputs by name, which may stand in its place, none given twice."""
    ids: Tokens = () if isinstance(source, Mapping) else source
    arrays = join_inputs(source if isinstance(source, Mapping) else {}, inputs or {}, named)
    return ids, {name: np.asarray(array) for name, array in arrays.items()}


def _goes_on(tokens: Sequence[int], steps: int, ends: Sequence[int]) -> bool:
    return not tokens or (len(tokens) < steps and tokens[-1] not in ends)


def _fill_mask(mask: np.ndarray, port: Port, shape: Sequence[int] = ()) -> np.ndarray:
    typed = np.maximum(mask, np.finfo(port.dtype).min).astype(port.dtype)  # an infinite floor could give NaN
    return np.ascontiguousarray(np.broadcast_to(typed, shape or port.shape)).reshape(port.shape)


def _table_rows(folder: Path, table: Table) -> np.ndarray:
    try:
        return np.memmap(folder / table.file, table.dtype, "r", table.offset, (table.rows, *table.shape))
    except (OSError, ValueError) as error:  # it is missing, or shorter than the table
        raise ModelError(f"table '{table.name}' cannot be read: {error}", file=str(folder / table.file)) from error


def _run_in_onnxruntime(folder: Path, provider: Provider | str) -> Run:
    """Return what runs methods in onnxruntime, each opened when it is first run."""
    from graphkit.runtime.session import CapturedSession, Session, as_provider

    known, opened = as_provider(provider), dict[str, Session]()

    def run(method: Method, feed: Mapping[str, np.ndarray]) -> Mapping[str, np.ndarray]:
        if method.name not in opened and known.capture:
            zeros = {port.name: np.zeros(port.shape, port.dtype) for port in (*method.inputs, *method.outputs)}
            opened[method.name] = CapturedSession(folder / method.file, zeros, optimize=True, provider=known)
        elif method.name not in opened:
            opened[method.name] = Session(folder / method.file, optimize=True, provider=known)
        return opened[method.name].run(feed)

    return run


def slots_mask(past: int, capacity: int, window: int, floor: float) -> np.ndarray:
    """Return the mask over the slots of a cache and, last, the new token: float32 [capacity + 1].

    So many slots are `past`; of these as many count as a window takes, the new token included, all for 0. The floor is
    added where nothing counts.
    """
    mask = np.full(capacity + 1, floor, np.float32)
    mask[max(0, past + 1 - window) if window else 0 : past] = 0
    mask[capacity] = 0
    return mask


def source_mask(valid: int, source: int, floor: float) -> np.ndarray:
    """Return the mask over the positions of a padded source: float32 [source]."""
    mask = np.full(source, floor, np.float32)
    mask[:valid] = 0
    return mask


def sound_length(array: np.ndarray, port: Port, most: int) -> int:
    """Return how long a sound is. Raises UsageError where it has other axes than its port."""
    if array.ndim != len(port.shape):
        raise UsageError(f"'{port.name}' is {list(array.shape)}, and takes at most {list(port.shape)}")
    return int(array.shape[sound_axis(port, most)])


def with_zeros(array: np.ndarray, port: Port, most: int, valid: Sequence[int]) -> np.ndarray:
    """Return sounds with zeros behind the valid samples of each, as long as their port; UsageError for longer ones."""
    axis = sound_axis(port, most)
    if sound_length(array, port, most) > most or len(array) != port.shape[0]:
        raise UsageError(f"'{port.name}' is {list(array.shape)}, and takes at most {list(port.shape)}")
    padded = np.pad(array, [(0, most - array.shape[axis] if at == axis else 0) for at in range(array.ndim)])
    for length, part in zip(valid, np.split(padded, len(valid)), strict=True):
        np.moveaxis(part, axis, 0)[length:] = 0
    return padded
