"""The values that a host makes: runs of the part of a model that computes them, and the tables and rules found so."""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from typing import Literal

import numpy as np
from msgspec import Struct, field
from msgspec.structs import replace

from graphkit.deploy.deploy_sizes import Setting, Sound
from graphkit.deploy.export_pipeline import compared_tokens
from graphkit.dtypes import dtype_name
from graphkit.errors import ModelError, UsageError
from graphkit.graph.declared_types import declared_dims, declared_type
from graphkit.graph.mask_polarity import Polarity, mask_elements
from graphkit.graph.roles import MASKS, Role
from graphkit.graph.view import Value
from graphkit.hosts.numpy_host import slots_mask, source_mask
from graphkit.model import Model
from graphkit.passes.npu.host_inputs import HostInput
from graphkit.rewrite.new_interface import with_outputs
from graphkit.runtime.session import IsolatedSession, RunError
from graphkit.shapes import Expr, infer
from graphkit.shapes.constraints.legal_sizes import tied_symbols
from graphkit.shapes.input_dims import read_dim

MOST_BYTES = 1 << 30  # of an input of the part that is run
TOKENS = range(8)  # that stand for all others, but for the one that pads
By = Literal["position", "valid_length"]
Ids = int | Sequence[int]  # one id for all tokens, or ids that repeat
Run = dict[str, np.ndarray]
Kind = Literal["mask", "rows", "constant"]
MASKED = -1e4  # the largest addend of masked scores, in any export


@contextmanager
def host_part(model: Model, host_inputs: Sequence[HostInput], setting: Setting) -> Iterator[HostPart]:
    """Open the part of a model that computes some values, under the names of the inputs that take their place."""
    part = with_outputs(model, [(host_input.source.value.name, host_input.declared) for host_input in host_inputs])
    roles = {value.name: role for value, role in model.roles.inputs.items()}
    polarities = {value.name: polarity for value, polarity in model.roles.polarities.items()}
    with IsolatedSession(part) as session:
        yield HostPart(part, roles, setting, session, polarities)


class HostPart(Struct, frozen=True, eq=False):
    """The part of a model that computes values for its host."""

    model: Model
    roles: Mapping[str, Role]  # the role of each input of the whole model, by name
    setting: Setting
    session: IsolatedSession | None = None  # runs it; None where feeds alone are asked for
    # which elements of the masks of the whole model hide, by name
    polarities: Mapping[str, Polarity | None] = field(default_factory=dict)

    @property
    def takes_tokens(self) -> bool:
        return any(self.roles.get(value.name) in ("tokens", "encoder tokens") for value in self.model.graph.inputs)

    @property
    def tokens(self) -> list[int]:
        """Tokens that do not pad."""
        return [token for token in TOKENS if token != self.setting.pad]

    def run(self, by: By, number: int, tokens: Ids | None = None, *, least: bool = False) -> Run:
        """Return the values after so many tokens, or where so many positions of the source are valid.

        `least` takes the shortest sound of so many positions, not the longest.
        """
        assert self.session is not None
        return self.session.run(self.feed(by, number, tokens, least=least))

    def feed(self, by: By, number: int, tokens: Ids | None = None, *, least: bool = False) -> Run:
        """Return the inputs for a run; see `run`."""
        setting = self.setting
        dims = setting.at(number if by == "position" else min(1, setting.capacity))
        valid = setting.masked_places(number if by == "valid_length" else setting.positions, least=least)
        ids = self.tokens[0] if tokens is None else tokens
        arrays = {}
        for value in self.model.graph.inputs:
            if value.tensor is not None:
                continue
            if (declared := declared_type(value)) is None or declared.dims is None:
                raise ModelError(f"the shape of input '{value.name}' is not declared", hint="declare it")
            shape = tuple(_evaluate_size(dim, dims) for dim in declared.dims)
            kind = declared.numpy_dtype
            if (size := math.prod(shape) * kind.itemsize) > MOST_BYTES:
                raise UsageError(
                    f"input '{value.name}' is {list(shape)} at these sizes, {size:,} bytes, and is fed here to find "
                    "out what the host makes - give smaller sizes"
                )
            role = self.roles.get(value.name, "other")
            if role in MASKS:
                counts = np.ones(shape, np.bool_)
                if shape and is_of_source(role, setting) and role != "image mask" and setting.is_padded:
                    counts[..., valid:] = False
                array = mask_elements(counts, self.polarities.get(value.name))
            elif kind.kind == "f" or role == "token types":
                array = np.zeros(shape)
            elif role == "positions":
                start = number if setting.capacity else 0
                array = np.broadcast_to(np.arange(start, start + shape[-1]), shape)
            else:
                array = np.resize(np.asarray(ids), shape)
                if shape and is_of_source(role, setting):
                    array[..., valid:] = setting.pad
            arrays[value.name] = array.astype(kind)
        return arrays


def _evaluate_size(dim: int | str | None, dims: Mapping[str, int]) -> int:
    if isinstance(dim, int):
        return dim
    if dim is None:
        raise ModelError("a dim of an input is not declared", hint="give it a name")
    expr = read_dim(dim, dims)
    if not expr.symbols <= dims.keys():
        raise ModelError(f"the host has to make an input with a dim '{dim}', whose size is not known")
    return int(expr.evaluate(dims))


def is_of_source(role: Role, setting: Setting) -> bool:
    """Whether an integer input says which tokens of the source are valid."""
    return role == "encoder mask" or not setting.capacity


def kept_inputs(model: Model, original: Model, *, has_text: bool) -> frozenset[str]:
    """Return the tokens and masks that the host of a model which runs once cannot make: the caller gives them.

    A host knows how long the text is, where it looks up its tokens, or the sound. So it makes a mask over one of these,
    if it is known which of its elements hide. A mask over patches or over another model's output counts something else.
    A mask of an image is fixed: the image fills its size. What only folding shows to be a mask is the caller's.
    """
    known = {value.name for value in original.roles.all(*MASKS)}
    sound, polarities = sound_mask(model), model.roles.polarities
    masks = [value for value in model.roles.all("mask", "encoder mask") if value.consumers]
    made = [mask for mask in masks if mask is sound or (has_text and _counts_tokens(mask, model, original))]
    kept = [mask for mask in masks if mask not in made or polarities[mask] is None or mask.name not in known]
    tokens = () if has_text else model.roles.all("tokens", "encoder tokens")
    return frozenset(value.name for value in (*kept, *tokens))


def _counts_tokens(mask: Value, model: Model, original: Model) -> bool:
    """Whether a mask has the length of the tokens: the same dim, or one that nodes bring together with it."""
    roles, dims = model.roles, declared_dims(mask)
    texts: tuple[Role, ...] = ("tokens", "encoder tokens", "embeddings")
    lengths = {dim for value in roles.all(*texts) for dim in (declared_dims(value) or ())[1:2]}
    if not lengths or not dims:
        return False
    of_tokens = (*texts, "positions", "token types", *MASKS)
    others = {
        dim
        for value, role in roles.inputs.items()
        if role not in of_tokens and value.name in original.graph.values
        for dim in declared_dims(value) or ()
    }
    if dims[-1] in lengths:
        return dims[-1] not in others or not isinstance(dims[-1], int)
    tied = [group for group in tied_symbols(model) if dims[-1] in group]
    return bool(tied and tied[0] & lengths) or not (tied or others or isinstance(dims[-1], int))


def sound_mask(model: Model) -> Value | None:
    """Return the input that says which samples or frames of a sound are valid, None for a model without one."""
    mask = model.roles.first("mask")
    declared = declared_type(mask) if mask is not None else None
    is_text = bool(model.roles.all("tokens", "encoder tokens", "embeddings"))
    if is_text or model.roles.pasts or not model.roles.all("audio") or declared is None or declared.rank != 2:
        return None
    return mask


def with_sound(model: Model, host_inputs: Sequence[HostInput], setting: Setting) -> Setting | None:
    """Return the setting of a model of sound, of which a part may be valid.

    The valid positions of a sound of `length` samples or frames are `(length + offset) // stride`; of the masks that
    count differently, the finest one counts. Without a mask it is the same; it is None where no such rule holds.
    """
    mask = sound_mask(model)
    made = [each for each in host_inputs if mask is not None and mask.name in each.source.dependence.inputs]
    if mask is None or not made:
        return setting
    shapes = infer(model)
    dims = shapes[mask].dims
    length = dims[1].substitute(setting.dims).constant if dims is not None and len(dims) > 1 else None
    if length is None or length < 1:
        raise UsageError(f"how long '{mask.name}' is is not known: {shapes[mask]} - give its dims with --dim")
    whole = replace(setting, source=length, is_padded=True)
    with host_part(model, made, whole) as part:
        sound = _sound_rule(part, length)
    return None if sound is None else replace(whole, source=sound.positions, sound=sound)


def _sound_rule(part: HostPart, length: int) -> Sound | None:
    """Return the rule by the lengths at which values change, from the longest down; None where there is none."""

    def values_at(valid: int) -> list[np.ndarray]:
        with suppress(ModelError):
            return list(part.run("valid_length", valid).values())
        return []

    def are_equal(valid: int, other: int) -> bool:
        values, others = values_at(valid), values_at(other)
        return len(values) == len(others) and all(map(np.array_equal, values, others))

    def run_start(valid: int) -> int:
        """Return the least length with the values of this one; they change in one direction."""
        low, high = 1, valid
        while low < high:
            middle = (low + high) // 2
            low, high = (low, middle) if are_equal(middle, valid) else (middle + 1, high)
        return low

    part.run("valid_length", length)  # raises where it does not run at all
    last = run_start(length)
    if last == 1:
        return Sound(length, length, length - 1)
    stride = last - run_start(last - 1)
    pairs = [*zip(values_at(last), values_at(last - 1), strict=False)]
    if not pairs or any(after.shape != before.shape for after, before in pairs):
        return None
    sizes = set[int]()
    for after, before in pairs:
        changed = after != before
        sizes |= {size for axis, size in enumerate(changed.shape) if (changed != np.take(changed, [0], axis)).any()}
    for positions in sorted(sizes or {1}, reverse=True):
        first = last - (positions - 1) * stride  # from which on there is a position
        if first == 1 or (first > 1 and not are_equal(first, first - 1)):
            return Sound(length, stride, positions * stride - last)
    return None


class HostTable(Struct, frozen=True, eq=False):
    """The rule by which a host makes an input."""

    input: HostInput  # the input, and the value of the model that it takes the place of
    kind: Kind  # `mask` (0 where it counts, the floor elsewhere), `rows` of a table, or `constant`
    by: By  # the number that chooses the row, or how far a mask is open
    window: int  # how many tokens count, the new one included, in a mask with a sliding window; 0 for all
    array: np.ndarray  # the rows, or the mask, for each position or length, of one sequence; the constant, of all
    shape: tuple[int, ...] = ()  # of the input, for all sequences
    bias: np.ndarray | None = None  # what the model adds to a mask, such as T5's biases of relative positions; or None

    @property
    def name(self) -> str:
        return self.input.name


def host_tables(model: Model, host_inputs: Sequence[HostInput], setting: Setting) -> list[HostTable]:
    """Return the rules by which a host makes the values that become inputs of a model, in their order.

    Refuse a value that depends on both the position and the valid length, or differs where it must not.
    """
    if not host_inputs:
        return []
    by = {each.name: _chosen_by(each, model, setting) for each in host_inputs}
    tables: dict[str, HostTable] = {}
    with host_part(model, host_inputs, setting) as part:
        counts: dict[By, Sequence[int]] = {
            "position": range(setting.capacity + 1),
            "valid_length": range(1 if setting.is_padded else setting.positions, setting.positions + 1),
        }
        for which, numbers in counts.items():
            if not (chosen := [each for each in host_inputs if by[each.name] == which]):
                continue
            _check_tokens(part, which, chosen)
            if which == "valid_length":
                tables |= _biased_masks(part, [each for each in chosen if each.is_mask])
            if not (plain := [each for each in chosen if each.name not in tables]):
                continue
            runs = _run_numbers(part, which, numbers)
            # values must not differ between sounds of as many valid positions
            for valid, longest in enumerate(runs if which == "valid_length" and setting.sound is not None else (), 1):
                shortest = part.run("valid_length", valid, least=True)
                for each in plain:
                    if not np.array_equal(longest[each.name], shortest[each.name]):
                        raise UsageError(
                            f"'{each.source.value.name}' differs between sounds of which {valid} positions are valid - "
                            "a host that knows how many are cannot make it"
                        )
            for each in plain:
                tables[each.name] = _make_table(each, setting, which, [run[each.name] for run in runs])
    return [_of_batch(tables[each.name], setting) for each in host_inputs]


def _run_numbers(part: HostPart, by: By, numbers: Sequence[int]) -> list[Run]:
    """Return the values for each number; where the positions of the model end with the slots, not for the last."""
    runs: list[Run] = []
    for number in numbers:
        try:
            runs.append(part.run(by, number))
        except RunError as error:
            if by == "position" and number == part.setting.capacity > 0:
                break
            if by == "position" and number > 0:
                problem = f"the model has no position {number}, so its cache has at most {number} slots"
                raise UsageError(f"{problem} - give --max-cache-len {number}") from error
            raise
    return runs


def _biased_masks(part: HostPart, masks: Sequence[HostInput]) -> dict[str, HostTable]:
    """Return the masks over the source that are one array plus a mask of the length alone, by name.

    As rows for each length, which other masks become, they would be as large as the length to the power of 3.
    """
    length = part.setting.positions
    if not masks or not part.setting.is_padded or length < 2:
        return {}
    full = part.run("valid_length", length)
    wide = [mask for mask in masks if full[mask.name].ndim > 1 and full[mask.name].shape[-1] == length]
    candidates = [mask for mask in wide if full[mask.name].any() and (full[mask.name] > MASKED).all()]
    for valid in range(1, length) if candidates else ():
        run = part.run("valid_length", valid)
        candidates = [mask for mask in candidates if is_bias_and_mask(run[mask.name], full[mask.name], valid)]
        if not candidates:
            return {}
    tables = {}
    for mask in candidates:
        bias = full[mask.name]
        open_mask = np.zeros((1, *[1] * (bias.ndim - 1), length), bias.dtype)
        tables[mask.name] = HostTable(mask, "mask", "valid_length", 0, open_mask, bias=bias)
    return tables


def is_bias_and_mask(mask: np.ndarray, full: np.ndarray, valid: int) -> bool:
    """Whether an additive mask equals the one without padding at valid columns, and hides all columns that pad."""
    if mask.shape != full.shape or not bool((mask[..., valid:] <= MASKED).all()):
        return False
    return np.array_equal(mask[..., :valid], full[..., :valid])


def _check_tokens(part: HostPart, by: By, host_inputs: Sequence[HostInput]) -> None:
    """Refuse values that depend on which tokens there are, but for those that pad."""
    if not part.takes_tokens:
        return
    number, plain = 1 if by == "position" else part.setting.positions, part.tokens
    special = [token for token in compared_tokens(part.model) if token != part.setting.pad]
    tokens: list[int | Sequence[int]] = [*plain, plain, plain[::-1], *special, *([token, *plain] for token in special)]
    tokens += [[*plain, token] for token in special]
    runs = [part.run(by, number, ids) for ids in tokens]
    for host_input in host_inputs:
        if any(not np.array_equal(run[host_input.name], runs[0][host_input.name]) for run in runs):
            raise UsageError(
                f"'{host_input.source.value.name}' depends on which tokens there are, and not on positions and lengths "
                "alone, so the host cannot make it - export the model from its embeddings (inputs_embeds), or without "
                "what compares tokens"
            )


def _chosen_by(host_input: HostInput, model: Model, setting: Setting) -> By:
    dependence = host_input.source.dependence
    of_source = [is_of_source(model.roles.of(model.graph.values[name]), setting) for name in dependence.inputs]
    by_position = bool(dependence.symbols & (setting.past | setting.total)) or not all(of_source)
    if by_position and any(of_source):
        problem = f"'{host_input.source.value.name}' depends on the position and on the valid length of the source"
        raise UsageError(f"{problem} - one input cannot follow both")
    return "position" if by_position else "valid_length"


class NotAddedError(UsageError):
    """A value that is as long as the cache, and not added to scores."""

    hint = "bundle it instead: graphkit bundle"

    def __init__(self, name: str) -> None:
        self.problem = f"'{name}' is as long as the cache, and not added to scores"
        super().__init__(f"{self.problem} - {self.hint}")


def _make_table(host_input: HostInput, setting: Setting, by: By, arrays: list[np.ndarray]) -> HostTable:
    is_static = by == "position" and setting.capacity > 0 and not setting.past
    if is_static and host_input.is_mask and arrays[0].shape[-1] == setting.capacity + 1:
        for past, mask in enumerate(arrays):  # what it says of the new token becomes the last, and its slot is closed
            if bool((mask[..., past + 1 :] > MASKED).any()):
                raise UsageError(f"a mask shows slots behind token {past}, which hold nothing yet")
            arrays[past] = np.append(mask[..., :-1], mask[..., past : past + 1], -1)
            arrays[past][..., past:-1] = setting.floor
    varies = any(not np.array_equal(array, arrays[-1]) for array in arrays)
    if not varies and (by == "valid_length" or len(arrays) > 1):
        constant = _raise_mask(arrays[-1], setting) if host_input.is_mask else arrays[-1]
        return HostTable(host_input, "constant", by, 0, constant)
    if by == "position":
        sizes = zip(*(array.shape for array in arrays), strict=True)  # an axis may grow that no symbol tells of
        if slots := [axis for axis, seen in enumerate(sizes) if len(set(seen)) > 1]:
            if not host_input.is_mask or len(slots) > 1:
                raise NotAddedError(host_input.source.value.name)
            arrays = [_in_slots(array, slots[0], past, setting) for past, array in enumerate(arrays)]
    elif len({array.shape for array in arrays}) > 1:
        raise UsageError(
            f"'{host_input.source.value.name}' has another size for each length of the tokens, and an NPU takes one - "
            "end the model before it, with graphkit extract"
        )
    else:
        lengths = [axis for axis, dim in enumerate(host_input.declared.dims) if _is_source(Expr.of(dim), setting)]
        is_added = all(node.is_op("Add") for node, _ in host_input.source.uses)
        if not host_input.is_mask and is_added and _same_where_valid(arrays, lengths):
            return HostTable(host_input, "constant", by, 0, arrays[-1])
    rows = np.stack(arrays)
    if not host_input.is_mask:
        return HostTable(host_input, "rows", by, 0, rows)
    rows = _raise_mask(rows, setting)
    window = _mask_window(rows, setting) if by == "position" else 0 if _hides_padding(rows, setting) else None
    return HostTable(host_input, "rows" if window is None else "mask", by, window or 0, rows)


def _of_batch(table: HostTable, setting: Setting) -> HostTable:
    """Return a table for all sequences of a batch; refuse one whose parts do not lie one behind the other."""
    is_constant = table.kind == "constant"
    single = table.array.shape if is_constant else table.array.shape[1:]
    count = max((setting.dims[name] for name in setting.batch), default=1)
    dims = [Expr.of(dim) for dim in table.input.declared.dims]
    axes = [axis for axis, dim in enumerate(dims) if dim.symbols & setting.batch]
    if count == 1 or (not axes and (is_constant or table.by == "position")):
        return replace(table, shape=single)
    if len(axes) != 1 or (not is_constant and any(size != 1 for size in single[: axes[0]])):
        declared = f"{dtype_name(table.input.declared.dtype)}[{', '.join(map(str, dims))}]"
        raise UsageError(
            f"'{table.input.source.value.name}', {declared}, does not hold the sequences of a batch one "
            "behind the other - lower with --batch 1"
        )
    (axis,) = axes
    array = np.concatenate([table.array] * count, axis) if is_constant else table.array
    return replace(table, shape=(*single[:axis], single[axis] * count, *single[axis + 1 :]), array=array)


def _is_source(dim: Expr, setting: Setting) -> bool:
    try:
        return bool(dim.symbols) and int(dim.evaluate(setting.dims)) == setting.positions
    except KeyError:
        return False


def _same_where_valid(arrays: list[np.ndarray], axes: list[int]) -> bool:
    """Whether the arrays for fewer valid positions agree, at these, with that for all of them."""
    full = arrays[-1]
    for valid, array in enumerate(arrays, 1):
        part = tuple(slice(valid) if axis in axes else slice(None) for axis in range(full.ndim))
        if not np.array_equal(array[part], full[part]):
            return False
    return True


def _raise_mask(mask: np.ndarray, setting: Setting) -> np.ndarray:
    return np.where(mask <= MASKED, np.float32(setting.floor), mask).astype(mask.dtype)


def _in_slots(mask: np.ndarray, axis: int, past: int, setting: Setting) -> np.ndarray:
    """Return an additive mask moved to the slots: the past first, the new token last, the floor between."""
    if mask.shape[axis] != past + 1:
        raise UsageError(f"a mask has {mask.shape[axis]} keys after {past} tokens, not {past + 1}")
    moved = np.moveaxis(mask, axis, -1)
    fixed = np.full((*moved.shape[:-1], setting.capacity + 1), setting.floor, mask.dtype)
    fixed[..., :past] = moved[..., :past]
    fixed[..., -1] = moved[..., -1]
    return np.moveaxis(fixed, -1, axis)


def _mask_window(rows: np.ndarray, setting: Setting) -> int | None:
    """Return the window of a mask over slots, 0 for none, None where it is another function of the position."""
    if rows.shape[-1] != setting.capacity + 1:
        return None
    for window in range(setting.capacity + 1):
        masks = (slots_mask(past, setting.capacity, window, setting.floor) for past in range(len(rows)))
        if all(_is_broadcast(mask, row) for mask, row in zip(masks, rows, strict=True)):
            return window
    return None


def _hides_padding(rows: np.ndarray, setting: Setting) -> bool:
    """Whether a mask hides the columns past the valid ones, at all valid rows, and no others."""
    if rows.shape[-1] != setting.positions:  # of a source that convolutions have made shorter
        return False
    for valid, row in enumerate(rows, 1):
        queries = valid if row.ndim > 1 and row.shape[-2] == setting.positions else row.shape[-2] if row.ndim > 1 else 1
        if not _is_broadcast(source_mask(valid, setting.positions, setting.floor), row[..., :queries, :]):
            return False
    return True


def _is_broadcast(mask: np.ndarray, array: np.ndarray) -> bool:
    return np.array_equal(array, np.broadcast_to(mask.astype(array.dtype), array.shape))
