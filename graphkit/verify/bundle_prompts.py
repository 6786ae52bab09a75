"""What a bundle and its originals are asked in a proof: prompts around the lengths of rings, calls, results."""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from functools import partial
from typing import Protocol

import numpy as np
from msgspec import Struct, field
from msgspec.structs import replace

from graphkit.contract.bundle_contract import BundleContract, BundleMethod, BundlePort
from graphkit.equivalence.originals import Originals
from graphkit.errors import GraphkitError, ModelError, UsageError, count_things
from graphkit.hosts.token_search import BeamOptions, Stepper, beam_search, greedy_search
from graphkit.model import Model
from graphkit.progress import Progress
from graphkit.runtime.session import IsolatedSession, RunError
from graphkit.shapes.constraints.failing_sizes import sizes_that_run
from graphkit.verify.decoding import decode_greedily
from graphkit.verify.input_elements import UNPADDED, Padding, special_tokens
from graphkit.verify.input_generator import ExportInputs, InputSpec
from graphkit.verify.oracle import Oracle
from graphkit.verify.probe_inputs import nearest_length
from graphkit.verify.proof_engine import tell_each

STEPS = 4  # at the end of a longer prompt
LONG = 24  # from a prompt of one token
FEW = 4  # tokens of a prompt of all rows, and of one where the logits of longer ones would be too large
SHORT = 64  # tokens of a prompt that is tried with padding and without
LONGEST = 600  # tokens of a prompt that is tried at both levels, the longest of them, and again in each check
COMPARED = 32 << 20  # bytes of logits that are compared token by token
SPECIAL = 6  # tokens of which each is tried at each place
AT_ONCE = 16
CHUNK = 3  # tokens of a step of several
PATTERN = "a.b.b.c"  # where three of them stand in a prompt; each is each of these in turn
Feed = Mapping[str, np.ndarray]


class Prompt(Struct, frozen=True):
    """A prompt with its masks, encoder inputs and the tokens of later steps."""

    tokens: np.ndarray  # what the decoder starts with, [batch, tokens]
    mask: np.ndarray  # 1 for each of these that counts, 0 for padding
    inputs: Mapping[str, np.ndarray]  # what the encoder reads, by name
    steps: tuple[np.ndarray, ...]  # the tokens of later steps, [batch, 1] each
    has_mask: bool  # whether the bundle takes the mask
    source: int  # positions of the source; 0 without an encoder
    is_padded: bool  # whether the last row is padded
    all_logits: bool  # whether the logits of each token are compared, not of the last one alone
    at_both_levels: bool  # whether it is also tried where onnxruntime may fuse operators
    row_axes: Mapping[str, int]  # the axis of each input that counts rows, where one does
    # what an encoder apart reads, by name, whose states are among the inputs
    encoded: Mapping[str, np.ndarray] = field(default_factory=dict)

    @property
    def work(self) -> float:
        """About how much work it is: a step reads all weights, as many tokens at once do."""
        return self.tokens.size + AT_ONCE * len(self.steps)

    def first_row(self) -> Prompt:
        """Return it without the other rows."""
        cut = {name: self.inputs[name].take([0], axis) for name, axis in self.row_axes.items()}
        return replace(self, tokens=self.tokens[:1], mask=self.mask[:1], inputs={**self.inputs, **cut})

    def counted_logits(self, logits: np.ndarray, number: int) -> np.ndarray:
        """Return the logits of tokens that are no padding: of the prompt for number 0, else of a step after it."""
        if number or not self.all_logits or self.mask.all() or logits.shape[:2] != self.mask.shape:
            return logits
        return np.asarray(logits[self.mask.astype(bool)])

    def chunks(self) -> Iterator[tuple[np.ndarray, np.ndarray]]:
        """Yield the tokens of later steps and their mask, several at once, then one, then all others.

        The last row of a chunk is padded where that of the prompt is, and the bundle takes the mask.
        """
        for part in np.split(np.concatenate(self.steps, 1), [CHUNK, CHUNK + 1], 1):
            mask = np.ones_like(part)
            if self.has_mask and self.is_padded:
                mask[-1, : part.shape[1] // 2] = 0
            if part.size:
                yield part, mask


def input_spec(method: BundleMethod, port: BundlePort) -> InputSpec:
    """Return an input of a method, as its array is made."""
    return InputSpec(port.name, port.dtype, port.kind == "tokens", logits_of(method))


def logits_of(method: BundleMethod) -> int | None:
    """Return how many logits a method gives for a token."""
    shape = next((port.shape for port in method.outputs if not port.writes), ())
    return shape[-1] if shape and isinstance(shape[-1], int) else None


def make_prompts(contract: BundleContract, originals: Originals, seed: int) -> list[Prompt]:
    """Return prompts of 1, some and all but one of the slots, and around each window: of one row, two, and all rows.

    Of two rows, one is padded; where a bundle takes one row, that is padded too. One prompt of several tokens at least
    is no longer than `LONGEST`, and of one the logits of each token are compared. Those that are tried at both levels
    come first. The encoder of the originals need not take every length.
    """
    maker = _Maker(contract, originals, np.random.default_rng(seed))
    slots = contract.lengths[0].most
    windows = {state.shape[state.axis or 0] for state in contract.states if state.update == "ring"}
    lengths = {1, max(slots - 1, 1), *(each for w in windows for each in (w - 1, w + 1))}
    if slots // 2 <= LONGEST or not any(1 < length <= LONGEST for length in lengths):
        lengths.add(max(min(slots // 2, LONGEST), 1))
    if not any(length * maker.logit_bytes <= COMPARED for length in lengths - {1}):
        lengths.add(FEW)
    batch = contract.sizes["batch"]
    chosen: list[Prompt] = []
    lengths = {maker.legal_length(length) for length in lengths}
    maker.longest = max((length for length in lengths if length <= LONGEST), default=0)
    legal = [each for each in lengths if 0 < each < slots or each == 1]
    for length in sorted(legal, key=lambda each: (not maker.runs_at_both_levels(each), each)):
        ways = [(1, False), (2, True)] if batch > 1 else [(1, False), (1, True)][: 1 + maker.takes_padding(length)]
        if length > LONGEST:
            ways = ways[:1]
        elif length > SHORT:  # once each: with two rows, or without padding and with it in turn
            ways = ways[-1:] if batch > 1 or (chosen and not chosen[-1].is_padded) else ways[:1]
        for rows, is_padded in ways:
            source = maker.sources[len(chosen) % len(maker.sources)]
            chosen.append(maker.make(length, rows, slots, source, is_padded=is_padded))
    if batch > 2:  # each row may read what is another's; the longest of those that are tried at both levels stays last
        place = max(1, sum(prompt.at_both_levels for prompt in chosen) - 1)
        length = maker.legal_length(min(FEW, max(slots - 1, 1)))
        chosen.insert(place, maker.make(length, batch, slots, maker.sources[0], is_padded=True))
    chosen[1:1] = maker.special(originals.models, slots) if len(chosen) > 1 else []
    return chosen


class _Maker:
    def __init__(self, contract: BundleContract, originals: Originals, random: np.random.Generator) -> None:
        if (method := contract.method("once")) is None:
            raise UsageError("the bundle has no method that starts a sequence")
        self.inputs, self.sizes, self.longest = ExportInputs(originals.models, random), contract.sizes, 0
        self.ports = [port for port in method.inputs if port.kind == "user"]
        self.has_mask = "mask" in {port.kind for port in method.inputs}
        self.tokens = next(port for port in map(partial(input_spec, method), method.inputs) if port.takes_tokens)
        shape = next(port.shape for port in method.inputs if port.kind == "tokens")
        last, self.width = shape[1], [dim for dim in shape[2:] if isinstance(dim, int)]  # the width of embeddings
        ports = [input_spec(each, port) for each in contract.methods if each.when == "step" for port in each.inputs]
        self.later = next((port for port in ports if port.takes_tokens), self.tokens)
        self.legal = contract.legal.get("tokens")
        self.fixed = last if isinstance(last, int) else 0  # how many tokens it takes, 0 for any number
        self.apart = _EncoderApart(contract, originals) if contract.options.encode_apart else None
        encoder = originals.encoder if self.apart is None else self.apart.model
        if encoder is not None:  # an image may have to have certain sizes
            read = self.ports if self.apart is None else self.apart.ports
            dims = {dim for port in read for dim in port.shape if isinstance(dim, str)}
            self.sizes = {**sizes_that_run(encoder, dims - self.sizes.keys()), **self.sizes}
        most = contract.sizes.get("source", 1) if any("source" in port.shape for port in self.ports) else 0
        lengths = {most, (most + 1) // 2, min(2, most)}
        if encoder is not None and most:
            nearest = {nearest_length(encoder, length) for length in lengths}
            lengths = {length for length in nearest if length is not None and length <= most} or {most}
        self.sources = sorted(lengths, reverse=True)
        self.ids = [] if encoder is None else [value.name for value in encoder.roles.all("tokens")]
        logits = next(port for port in method.outputs if not port.writes)
        self.logit_bytes = (logits_of(method) or 1) * np.dtype(logits.dtype).itemsize

    def takes_padding(self, length: int) -> bool:
        """Whether one row of a prompt can be padded."""
        return (self.has_mask and length > 1) or any("mask" in port.name for port in self.ports)

    def runs_at_both_levels(self, length: int) -> bool:
        """Whether a prompt is short, or the longest of those that are not very long."""
        return length <= SHORT or length == self.longest

    def make(self, length: int, rows: int, slots: int, source: int, *, is_padded: bool) -> Prompt:
        """Return a prompt, whose last row is padded."""
        tokens = self.inputs.array(self.tokens, (rows, length, *self.width))
        mask = np.ones(tokens.shape[:2], np.int64)
        if self.has_mask and is_padded and length > 1:
            mask[-1, : max(1, length // 3)] = 0
        count = min(slots - length, LONG if length == 1 else STEPS)
        padded = is_padded and self.takes_padding(length)
        steps = tuple(self.inputs.array(self.later, (rows, 1)) for _ in range(count))
        sizes = {**self.sizes, "batch": rows, "source": source, "tokens": length}
        padding: list[Padding] = ["full"] * (rows - 1)
        draw = replace(UNPADDED, padding=(*padding, "right")) if is_padded else UNPADDED

        def drawn(ports: Sequence[BundlePort]) -> Feed:
            shapes = ([dim if isinstance(dim, int) else sizes.get(dim, 2) for dim in port.shape] for port in ports)
            specs = (InputSpec(port.name, port.dtype) for port in ports)
            return {spec.name: self.inputs.array(spec, shape, draw) for spec, shape in zip(specs, shapes, strict=True)}

        encoded, inputs = ({}, drawn(self.ports)) if self.apart is None else self.apart.inputs(drawn)
        return Prompt(
            tokens=tokens,
            mask=mask,
            inputs=inputs,
            steps=steps,
            has_mask=self.has_mask,
            source=source,
            is_padded=padded,
            all_logits=tokens.size * self.logit_bytes <= COMPARED,
            at_both_levels=self.runs_at_both_levels(length),
            row_axes={port.name: port.shape.index("batch") for port in self.ports if "batch" in port.shape},
            encoded=encoded,
        )

    def special(self, models: Sequence[Model], slots: int) -> Iterator[Prompt]:
        """Yield prompts of one row with special tokens at the first, a middle and the last place, and twice."""
        if self.width:
            return
        special, pads = special_tokens(models, self.inputs.bound(self.tokens) or 0)
        tokens, length = [*pads, *special][:SPECIAL], self.legal_length(min(len(PATTERN), slots - 1))
        for turn in range(len(tokens)):
            named = {name: tokens[(turn + place) % len(tokens)] for place, name in enumerate("abc")}
            prompt = self.make(length, 1, slots, self.sources[0], is_padded=False)
            read = prompt.encoded if self.apart is not None else prompt.inputs
            for array in (prompt.tokens, *(read[name] for name in self.ids if name in read)):
                row = array[0]  # the first and the last token of the pattern stand at its ends
                for place, name in enumerate(PATTERN):
                    if name in named:
                        row[round(place * (len(row) - 1) / (len(PATTERN) - 1))] = named[name]
            for step, name in zip(prompt.steps, "ac", strict=False):
                step[...] = named[name]
            states = {} if self.apart is None else self.apart.encode(prompt.encoded)
            yield replace(prompt, inputs={**prompt.inputs, **states})

    def legal_length(self, length: int) -> int:
        """Return the length of a prompt that the export takes, near a wish."""
        return self.fixed or (length if self.legal is None else self.legal.nearest(length))


class _EncoderApart:
    """An encoder that the caller runs, and whose states the first step reads."""

    def __init__(self, contract: BundleContract, originals: Originals) -> None:
        assert originals.first is not None
        (self.model,), first = originals.parts, originals.first
        method = contract.method("once")
        self.first = [port for port in (method.inputs if method is not None else ()) if port.kind == "user"]
        self.ports = next(each for each in contract.methods if each.name == "encoder").inputs
        self.reads = first.roles.all("encoder state")[0].name
        self.masks = first.roles.first("encoder mask"), self.model.roles.first("mask")
        self.session = IsolatedSession(self.model, optimize=False)

    def encode(self, source: Feed) -> Feed:
        """Return the states of a source, by the name of the input that takes them."""
        return {self.reads: self.session.run(source)[self.model.graph.outputs[0].name]}

    def inputs(self, draw: Callable[[Sequence[BundlePort]], Feed]) -> tuple[Feed, Feed]:
        """Return a source that is drawn, and inputs of the first step: its states, and its mask."""
        source = draw(self.ports)
        arrays = {**draw([port for port in self.first if port.name != self.reads])}
        read, own = self.masks
        if read is not None and own is not None:
            arrays[read.name] = source[own.name].astype(arrays[read.name].dtype)
        return source, {**arrays, **self.encode(source)}


class Decoding(Protocol):
    """A decoder that has begun: an oracle or a bundle."""

    def step(self, tokens: np.ndarray, *, mask: np.ndarray | None = None) -> np.ndarray:
        """Return the logits of the next tokens, whose mask is ones where none is given."""

    def reorder(self, rows: Sequence[int], /) -> None:
        """Let each row be a copy of another."""


Begin = Callable[[Prompt], np.ndarray]  # starts a decoder on a prompt
Calls = Callable[[Begin, Decoding], Sequence[np.ndarray]]  # decodes, and returns the logits of each call


def decode_reordered_rows(prompt: Prompt, rows: Sequence[int], begins: Begin, decoding: Decoding) -> list[np.ndarray]:
    """Decode two steps of a prompt whose rows have changed places."""
    begins(prompt)
    decoding.reorder(rows)
    return [decoding.step(tokens[rows]) for tokens in prompt.steps[:2]]


def several_at_once(prompt: Prompt, begins: Begin, decoding: Decoding) -> list[np.ndarray]:
    """Decode a prompt, and its later steps with several tokens at once; return the logits of tokens that count."""
    begins(prompt)
    found = []
    for tokens, mask in prompt.chunks():
        logits = decoding.step(tokens, mask=mask if prompt.has_mask else None)
        found.append(logits if mask.all() else logits[mask[:, -logits.shape[1] :].astype(bool)])
    return found


class Recording(Struct, frozen=True, eq=False):
    """The results of the originals at one level."""

    logits: Sequence[Sequence[np.ndarray]]  # of each prompt: its own, [rows, tokens or 1, vocabulary], and of each step
    tokens: Mapping[int, list[list[int]]]  # of each search, by its number of beams: the tokens of each row
    reordered: Sequence[np.ndarray]  # the logits of steps after the rows of the first prompt of two changed places
    chunks: Mapping[int, Sequence[np.ndarray]]  # of steps of several tokens, by prompt; none if the export takes none


def record_originals(
    originals: Originals,
    prompts: Sequence[Prompt],
    *,
    optimize: bool,
    prepack: bool = False,
    beams: Sequence[int] = (),
    steps: int = 0,
    rows: Sequence[int] = (),
    several: Sequence[int] = (),
    progress: Progress = lambda _: None,
) -> Recording:
    """Decode the prompts with the originals. Raises ModelError where onnxruntime cannot run them.

    From the first row of the first prompt, `steps` tokens at the most are searched for with each number of `beams`. The
    rows of a prompt of two become `rows`; none are for a bundle that takes one row alone. The prompts of the numbers
    `several` are decoded once more with several tokens in a step, where the export takes these.
    """
    name = f"proving: the export, {'default' if optimize else 'plain'} level"
    has_long = not all(prompt.all_logits for prompt in prompts)
    oracle = Oracle(originals, optimize=optimize, prepack=optimize or prepack, can_choose=has_long)
    logits = [
        [_begin_recorded(oracle, prompt), *(oracle.step(tokens) for tokens in prompt.steps)]
        for prompt in tell_each(prompts, name, progress, "prompt", lambda prompt: prompt.work)
    ]
    begins, first = partial(begin_prompt, oracle), prompts[0].first_row()
    tokens = {width: search_tokens(oracle, begins(first)[:, -1], steps, width) for width in beams}
    pair = next((prompt for prompt in prompts if len(prompt.tokens) == 2 and prompt.steps), None)
    moved = decode_reordered_rows(pair, rows, begins, oracle) if rows and pair is not None else []
    try:
        chunks = {number: several_at_once(prompts[number], begins, oracle) for number in several}
    except GraphkitError:  # a decoder that takes one token at a time
        chunks = {}
    return Recording(logits, tokens, moved, chunks)


def _begin_recorded(oracle: Oracle, prompt: Prompt) -> np.ndarray:
    try:
        return begin_prompt(oracle, prompt)
    except RunError as error:
        if error.signal or error.timed_out:
            raise
        rows, length = prompt.tokens.shape[:2]
        sizes = f"{count_things(rows, 'row(s)')} of {count_things(length, 'token(s)')}"
        elsewhere = "graphkit report with --only hazards says at which sizes it runs; export it anew for others"
        problem = f"it does not run with a prompt of {sizes}: {error.problem}"
        raise ModelError(problem, file=error.file, hint=error.hint or elsewhere) from error


def search_tokens(oracle: Oracle, logits: np.ndarray, steps: int, beams: int) -> list[list[int]]:
    """Return the tokens that the originals choose; for more than one beam by the beam search of hosts."""
    if beams > 1:
        return search_of(beams)(oracle, logits, steps, ())
    chosen = [tokens for tokens, _ in decode_greedily(logits, lambda tokens: oracle.step(tokens)[:, -1], steps)]
    return [list(map(int, row)) for row in zip(*chosen, strict=True)]


def search_of(beams: int) -> Callable[[Stepper, np.ndarray, int, Collection[int]], list[list[int]]]:
    """Return the search with so many beams; one beam is greedy."""
    return greedy_search if beams == 1 else partial(beam_search, options=BeamOptions(beams))


def begin_prompt(oracle: Oracle, prompt: Prompt) -> np.ndarray:
    """Return the logits of each token of a prompt, or of the last one alone."""
    return oracle.start(prompt.tokens, prompt.mask, prompt.inputs, last=None if prompt.all_logits else 1)
