"""The sizes that `lower` and `bundle` are asked for, those of each symbol of a model, and errors about others."""

from __future__ import annotations

import shlex
from bisect import bisect_left
from collections.abc import Collection, Iterable, Mapping, Sequence
from dataclasses import replace
from functools import lru_cache
from pathlib import Path
from typing import Any, NamedTuple, TypeVar

from msgspec import Struct, field
from onnx import TensorProto

from graphkit.analysis.kv_cache import table_positions
from graphkit.analysis.model_interface import check_frozen_sizes
from graphkit.deploy.export_pipeline import MASK_LENGTH, MOST
from graphkit.errors import UsageError, did_you_mean
from graphkit.graph.declared_types import declared_dims, declared_type
from graphkit.graph.roles import Axis
from graphkit.model import Model
from graphkit.ops.registry import forget_on_registration
from graphkit.options import BUNDLED, LOWERED, SOURCE, BundleOptions, DeployOptions, LowerOptions
from graphkit.passes.fold_pipeline import fold
from graphkit.passes.state.static_cache import count_slots
from graphkit.runtime.session import as_provider
from graphkit.save import check_targets
from graphkit.shapes import DimSpec, infer
from graphkit.shapes.constraints.dim_equalities import forced_sizes
from graphkit.shapes.constraints.failing_sizes import SizeCheck, check_sizes, find_triggers, impossible_sizes_error
from graphkit.shapes.constraints.legal_sizes import symbol_roles, tied_symbols
from graphkit.shapes.graph_inputs import Inputs
from graphkit.shapes.input_dims import declared_inputs
from graphkit.targets import Target, load_target

SizeOptions = LowerOptions | BundleOptions
Asked = TypeVar("Asked", LowerOptions, BundleOptions)
MOST_POSITIONS = 1 << 16  # of a lowering: the host's inputs are computed for each
MAX_REACH = 4096  # how far a length is looked for at which a model runs


class DeploySizes(Struct, frozen=True, kw_only=True):
    """The only sizes of a lowering, or the largest of a bundle; `source` is as the encoder's input counts it."""

    batch: int
    slots: int
    source: int
    dims: Mapping[str, int] = field(default_factory=dict)


class _Lengths(NamedTuple):
    """The lengths that options ask for, the flags and the defaults of these, and the most; None for any number."""

    slots: int | None
    source: int
    slots_flag: str
    source_flag: str
    default_slots: int
    default_source: int
    most: int | None = None


def _asked_lengths(options: SizeOptions) -> _Lengths:
    if isinstance(options, LowerOptions):
        flags = "--max-cache-len", "--src-len"
        return _Lengths(options.max_cache_len, options.src_len, *flags, LOWERED, LOWERED, MOST_POSITIONS)
    return _Lengths(options.max_cache, options.max_source, "--max-cache", "--max-source", BUNDLED, SOURCE)


def check_asked_sizes(options: SizeOptions) -> None:
    """Refuse a size below 1, or above what is counted."""
    asked = _asked_lengths(options)
    sizes = {f"{asked.slots_flag} ": asked.slots, f"{asked.source_flag} ": asked.source, "--batch ": options.batch}
    for flag, size in {**sizes, **{f"--dim {name}=": size for name, size in options.dims}}.items():
        if size is not None and size < 1:
            raise UsageError(f"{flag}{size}: give at least 1")
        _check_most(flag, size or 0, None if flag.startswith("--dim") else asked.most)


def _check_most(flag: str, size: int, most: int | None) -> None:
    why = "" if most is None else "what the host feeds is computed for each - "
    if size > (most or MOST):
        raise UsageError(f"{flag}{size:,}: {why}give at most {most or MOST:,}")


def with_input_sizes(options: Asked, models: Sequence[Model]) -> Asked:
    """Return options in which the shapes of inputs are sizes: of the batch, of a source of text, of other symbols."""
    if not options.inputs:
        return options
    inputs = {model: {value.name for value in model.graph.inputs} for model in models}
    source = "src_len" if isinstance(options, LowerOptions) else "max_source"
    default, found = type(options)(), dict[str, int]()
    for name, shape in options.inputs:
        if not (having := [model for model in models if name in inputs[model]]):
            raise UsageError(f"--input {name}: no model has it - {did_you_mean(name, set().union(*inputs.values()))}")
        for model in [each for each in having if not each.roles.cache] or having:  # the encoder's, of its decoders
            roles, has_tokens = symbol_roles(model), bool(model.roles.all("tokens", "encoder tokens"))
            for symbol, size in Inputs(model, DimSpec(inputs=((name, shape),))).numbers.items():
                role = roles.get(symbol)
                if role == "sequence" and model.roles.cache:
                    raise UsageError(
                        f"--input {name}: '{symbol}' counts new tokens, which no option sets - leave it out"
                    )
                of_text = has_tokens and role in ("encoder", "sequence", "total") and not model.roles.cache
                option = "batch" if role == "batch" else source if of_text else symbol
                given = {**dict(options.dims), "batch": options.batch, source: getattr(options, source)}
                asked, unset = given.get(option, size), getattr(default, option, size)
                if (other := found.setdefault(option, size)) != size or asked not in (size, unset):
                    other = other if other != size else asked
                    raise UsageError(f"--input {name}: '{symbol}' is {size} here, and {other} elsewhere")
    fields: dict[str, Any] = {name: found.pop(name) for name in ("batch", source) if name in found}
    return replace(options, inputs=(), dims=tuple({**dict(options.dims), **found}.items()), **fields)


def resolve_sizes(
    options: SizeOptions,
    models: Sequence[Model],
    *,
    encoder: Model | None,
    step: Model | None,
    first: Model | None = None,
) -> DeploySizes:
    """Return the sizes for a pipeline; refuse what its models do not have: positions, another length, a symbol."""
    check_asked_sizes(options)
    asked = _asked_lengths(options)
    check_frozen_sizes(models, options.batch)
    for model in models:  # a host feeds as many texts as pictures, of which an exporter may have frozen other numbers
        fed = model.roles.all("tokens", "mask", "image")
        rows = {value.name: dims[0] for value in fed if (dims := declared_dims(value)) and isinstance(dims[0], int)}
        if other := next((name for name in rows if rows[name] != next(iter(rows.values()))), ""):
            first_name = next(iter(rows))
            counts = f"'{first_name}' holds {rows[first_name]} rows, and '{other}' {rows[other]}"
            raise UsageError(f"{model.name}: {counts} - export it with as many texts as pictures")
    # symbols that do not exist, or that count sequences or slots, which have options of their own, are refused
    roles = [(decoder, symbol_roles(decoder)) for decoder in models]
    known = sorted({name for _, symbols in roles for name in symbols})
    for name, number in options.dims:
        if name not in known:
            raise UsageError(f"no input has a dim '{name}' - {did_you_mean(name, known)}")
        for decoder, symbols in roles:
            if decoder.roles.pasts and symbols.get(name) in ("past", "total"):
                raise UsageError(f"{decoder.name}: '{name}' grows with the cache - give {asked.slots_flag}")
            if decoder.roles.pasts and symbols.get(name) == "batch" and number != options.batch:
                raise UsageError(f"{decoder.name}: '{name}' is {options.batch}, not {number} - give --batch {number}")
    slots, source = _count_slots(asked, step, first), _count_source(asked, options, encoder)
    _check_most(f"{asked.slots_flag} ", slots, asked.most)  # which a model may fix
    _check_most(f"{asked.source_flag} ", source, asked.most)
    return DeploySizes(batch=options.batch, slots=slots, source=source, dims=dict(options.dims))


def _count_slots(asked: _Lengths, step: Model | None, first: Model | None) -> int:
    most = None
    if step is not None:
        static, beside = count_slots(step, first or step), ""
        if static is not None and asked.most is not None:  # a lowering
            static, beside = static - 1, " beside the new token"
        if static is not None and asked.slots not in (None, static):
            problem = f"its cache has {static} slots{beside} from the start, not {asked.slots}"
            raise UsageError(f"{step.name}: {problem} - leave out {asked.slots_flag}, or export it with as many")
        if static is not None:
            return static
        most = most_positions(step)
        if most is not None and asked.slots is not None and asked.slots > most:
            problem = f"the model has {most} positions, so its cache has at most {most} slots"
            raise UsageError(f"{step.name}: {problem} - give {asked.slots_flag} {most}")
    slots = asked.slots or min(asked.default_slots, most or asked.default_slots)
    return slots if asked.slots or first is None else _most_tokens(first, slots)


def _most_tokens(first: Model, most: int) -> int:
    """Return the length of the longest prompt, up to one, at which the nodes of a first step are known to run."""
    roles, check = symbol_roles(first), SizeCheck(first)
    names = frozenset(name for name, role in roles.items() if role == "sequence")
    start = {name: int(role == "batch") for name, role in roles.items() if role in ("batch", "past")}

    def fits(length: int) -> bool:
        return not check.fault({**start, **dict.fromkeys(names, length)})

    if not names or fits(most) or not fits(1):
        return most
    return bisect_left(range(1, most), True, key=lambda length: not fits(length))


def _count_source(asked: _Lengths, options: DeployOptions, encoder: Model | None) -> int:
    if encoder is None:
        return asked.source
    ids = encoder.roles.first("tokens")
    dims = (declared_dims(ids) if ids is not None else None) or ()
    fixed = dims[1] if len(dims) == 2 and isinstance(dims[1], int) and dims[1] > 0 else None
    if fixed is None and ids is not None and asked.source == asked.default_source:
        return SourceLengths(encoder, options.batch, dict(options.dims)).most(asked.source) or asked.source
    if fixed is None or asked.source == fixed:
        return asked.source
    if asked.source != asked.default_source:
        problem = f"{encoder.name} takes {fixed} tokens, not {asked.source}"
        raise UsageError(f"{problem} - leave out {asked.source_flag}, or export it with a dynamic length")
    return fixed


@lru_cache(maxsize=1)
def fold_decoder(model: Model) -> Model:
    """Return a decoder folded as its nodes need its dims, with which both its sizes and its methods begin."""
    return fold(model, dims=_needed_numbers(model, symbol_roles(model))).model


forget_on_registration(fold_decoder.cache_clear)


def _needed_numbers(model: Model, roles: Mapping[str, Axis]) -> dict[str, int]:
    forced = forced_sizes(model, {})
    return {n: int(size) for n, size in forced.items() if size >= 1 and roles.get(n) not in ("past", "total")}


def most_positions(model: Model) -> int | None:
    """Return how many positions the tables of a decoder have, None where it has none or it is not known."""
    return table_positions(fold_decoder(model))


def missing_sizes(model: Model, names: Collection[str]) -> UsageError:
    """Return the error about symbols without a number, one of those tied by broadcasts, and their legal sizes."""
    tied = {name: group for group in tied_symbols(model) for name in group}
    order = [name for name in symbol_roles(model) if name in names]  # masks last
    needed = {name for at, name in enumerate(order) if tied.get(name, frozenset()).isdisjoint(order[:at])}
    names = [name for name in names if name in needed]
    quoted = ", ".join(f"'{name}'" for name in names)
    flags = " ".join(f"--dim {shlex.quote(name)}=NUMBER" for name in names)
    have = "has no number - give it" if len(names) == 1 else "have no numbers - give them"
    found = find_triggers(infer(model))
    rules = [f"{rule.name}: {rule}" for rule in found.rules if rule.name in names]
    sizes = " ".join(f"--dim {shlex.quote(name)}={found.base.get(name, 'NUMBER')}" for name in names if found.base)
    legal = f" ({'; '.join(rules)}; such as {sizes})" if rules else ""
    return UsageError(f"{model.name}: {quoted} {have} with {flags}{legal}")


def check_request(path: Path, output: Path, options: SizeOptions, files: Iterable[str]) -> None:
    """Refuse sizes, a provider or an output that cannot be used; `files` are those that the output has in any case."""
    check_asked_sizes(options)
    if not (as_provider(options.provider).is_cpu or options.verify):
        raise UsageError("a provider is for the proof - leave out --no-verify, or --provider")
    if path.is_dir() and output.resolve() == path.resolve():
        raise UsageError(
            f"{output} is the folder of the export, whose models it would be mixed with - name another one"
        )
    if output.is_dir():
        check_targets([output / file for file in files], [], overwrite=options.overwrite)


def check_dtypes(models: Iterable[Model]) -> None:
    """Refuse models with inputs or weights in bfloat16, which onnxruntime does not run on a CPU."""
    for model in models:
        for value in (*model.graph.inputs, *model.graph.initializers):
            declared = declared_type(value)
            if declared is not None and declared.dtype == TensorProto.BFLOAT16:
                problem = f"'{value.name}' is bfloat16, in which onnxruntime runs nothing on a CPU"
                raise UsageError(f"{model.name}: {problem} - export it in float16 or float32")


class Sound(Struct, frozen=True):
    """How many positions of a sound are valid: `(valid + offset) // stride`, and no more than there are.

    Where masks count frames and what strides make of them, positions are those of the finest one.
    """

    length: int  # samples or frames of the padded sound
    stride: int  # how many of them make a position
    offset: int  # added to the valid ones
    is_whole: bool = False  # whether the caller pads it: zeros behind a shorter one change results whatever the mask is

    @property
    def positions(self) -> int:
        return (self.length + self.offset) // self.stride

    def least(self, positions: int) -> int:
        return max(1, positions * self.stride - self.offset)


class LowerSizes(DeploySizes, frozen=True, kw_only=True):
    """The sizes for which models are lowered, whose source is padded."""

    floor: float = -1e9  # the addend of masked scores
    pad: int = 0  # the token that pads
    target: Target = field(default_factory=lambda: load_target("generic-npu"))
    sound: Sound | None = None  # the rule for the valid positions of a source that is a sound with a mask
    passes: frozenset[str] = frozenset()  # the names of passes that judges ask for, beside those that the target does


class Setting(Struct, frozen=True):
    """The sizes for which a model is lowered."""

    dims: Mapping[str, int]  # numbers for symbols that stay what they are: batch, new tokens, source
    batch: frozenset[str]  # the symbols of these that count sequences
    past: frozenset[str]  # the symbols of the length of the past, and of past and new tokens together
    total: frozenset[str]
    capacity: int  # slots of the cache; 0 where there is none
    source: int  # positions of the source; 0 where there is none
    is_padded: bool  # whether some of these may be padding: tokens may, and sounds with a mask
    floor: float  # as in `LowerSizes`
    pad: int
    sound: Sound | None = None

    @property
    def positions(self) -> int:
        """How many positions of the source may be valid, as the host counts them."""
        return self.source if self.sound is None else self.sound.positions

    def masked_places(self, valid: int, *, least: bool = False) -> int:
        """Return the most places of a source's mask that count at so many valid positions, or the fewest of a sound."""
        if self.sound is None:
            return valid
        if least:
            return self.sound.least(valid)
        return self.sound.length if valid >= self.positions else self.sound.least(valid + 1) - 1

    def at(self, past: int) -> dict[str, int]:
        """Return all dims of one sequence where the cache holds so many tokens."""
        new = dict.fromkeys(self.past, past)
        return {**self.dims, **dict.fromkeys(self.batch, 1), **new, **dict.fromkeys(self.total, past + 1)}


def setting_of(model: Model, original: Model, sizes: LowerSizes, *, is_decoder: bool) -> Setting:
    """Return the size of each symbol of a folded model's inputs, by its role; refuse one that is not known."""
    found = symbol_roles(original)  # what folding leaves says less of which dims belong together
    roles = {name: found.get(name, role) if role == "other" else role for name, role in symbol_roles(model).items()}
    by_role = {"batch": sizes.batch, "encoder": sizes.source}
    by_role |= {"sequence": 1} if is_decoder else {"sequence": sizes.source, "total": sizes.source}
    of_role = {name: by_role[role] for name, role in roles.items() if role in by_role}
    if sizes.sound is not None and MASK_LENGTH in of_role:
        of_role[MASK_LENGTH] = sizes.sound.length
    asked = _sizes_of_names(original, dict(sizes.dims))
    groups = tied_symbols(original) if asked else ()  # which nodes broadcast to each other, or need to be equal
    tied = {name: asked[known] for group in groups for known in sorted(group & asked.keys()) for name in group}
    numbers = _needed_numbers(model, roles) | of_role | tied | asked
    has_cache = bool(original.roles.pasts)
    is_padded = has_cache or (not is_decoder and bool(model.roles.all("tokens", "encoder tokens", "embeddings")))
    for name, size in sizes.dims.items() if is_padded else ():  # batch and length have options of their own
        if size != of_role.get(name, size):
            flag = "--batch" if symbol_roles(model)[name] == "batch" else "--src-len"
            raise UsageError(f"{model.name}: '{name}' is {of_role[name]}, not {size} - give {flag} {size}")
    past, total = (
        frozenset(name for name, role in roles.items() if role == growing and name not in numbers)
        for growing in ("past", "total")
    )
    if has_cache and not past and not original.roles.has_slots:
        raise UsageError(f"{model.name}: its cache has a fixed length already - lower an export whose cache grows")
    if unknown := sorted(set(roles) - set(numbers) - past - total):
        raise missing_sizes(original, unknown)
    if not is_decoder:
        _check_sizes(original, numbers, frozenset(name for name in of_role if roles[name] in ("encoder", "sequence")))
    return Setting(
        dims=numbers,
        batch=frozenset(name for name in of_role if roles[name] == "batch" and name not in sizes.dims),
        past=past,
        total=total,
        capacity=sizes.slots if has_cache else 0,
        source=sizes.source,
        is_padded=is_padded,
        floor=sizes.floor,
        pad=sizes.pad,
        sound=sizes.sound,
    )


def _sizes_of_names(model: Model, dims: Mapping[str, int]) -> dict[str, int]:
    """Return sizes by symbol: a name that stands for several means those that have no size of their own."""
    read = declared_inputs(model)
    groups = ((group, size) for name, size in dims.items() for group in read.groups.get(name, ()))
    return {**{str(read.at(group[0]).name): size for group, size in groups}, **dims}


def _check_sizes(model: Model, numbers: Mapping[str, int], lengths: frozenset[str]) -> None:
    """Refuse sizes at which a model does not run, with the nearest length at which it does."""
    check = SizeCheck(model)
    if not (fault := check.fault(numbers)):
        return
    start = next((numbers[name] for name in sorted(lengths)), 0)
    if start and (nearest := check.nearest(numbers, lengths, start, MAX_REACH)):
        hint = f"the nearest length at which it runs is --src-len {nearest}"
        raise UsageError(f"{model.name} does not run at these sizes: {fault} - {hint}")
    raise impossible_sizes_error(model, numbers, fault)


class SourceLengths:
    """Tells at which lengths of its source an encoder runs, where no dim by name says so."""

    def __init__(self, encoder: Model, batch: int, dims: Mapping[str, int]) -> None:
        roles = symbol_roles(encoder)
        named = {name for name, role in roles.items() if role in ("encoder", "sequence", "total")}
        self.lengths = frozenset(named - dims.keys())
        self.numbers = {**{name: batch for name, role in roles.items() if role == "batch"}, **dims}
        self.check = SizeCheck(encoder)

    def fault(self, length: int) -> str:
        """Return why it does not run at a length, "" where nothing is known."""
        return self.check.fault({**self.numbers, **dict.fromkeys(self.lengths, length)}) if self.lengths else ""

    def most(self, length: int) -> int | None:
        return next((size for size in range(length, max(length - MAX_REACH, 0), -1) if not self.fault(size)), None)

    def nearest(self, length: int) -> int | None:
        return self.check.nearest(self.numbers, self.lengths, length, MAX_REACH)


def check_source(encoder: Model, sizes: DeploySizes) -> None:
    """Refuse an encoder that does not run at its dims, or at no length of the source up to the longest of a bundle."""
    roles, source = symbol_roles(encoder), sizes.source
    if dims := {name: size for name, size in sizes.dims.items() if name in roles}:
        forced = {name: int(size) for name, size in forced_sizes(encoder, dims).items() if size >= 1}
        rows = {name: sizes.batch for name, role in roles.items() if role == "batch"}
        check_sizes(encoder, DimSpec.of(dims), {**rows, **forced, **dims})
    check = SourceLengths(encoder, sizes.batch, sizes.dims)
    if check.most(source) is not None:
        return
    rules = {str(rule) for rule in find_triggers(infer(encoder)).rules if rule.name in check.lengths}
    legal = f"legal lengths: {rules.pop()}; " if len(rules) == 1 else ""
    nearest = check.nearest(source)
    hint = "a longer one with --max-source" if nearest is None else f"--max-source {nearest} or more"
    problem = f"{encoder.name} does not run with a source of {source}, nor of less: {check.fault(source)}"
    raise UsageError(f"{problem} - {legal}give {hint}")
