"""The tables and rules by which a host makes values, found by running the part of the model that computed them."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Literal

import numpy as np

from graphkit.errors import UsageError
from graphkit.graph.roles import Role
from graphkit.model import Model
from graphkit.passes.npu.extract_host_values import HostInput
from graphkit.rewrite.interface import NewInput, with_outputs
from graphkit.runtime.isolated import IsolatedSession
from graphkit.runtime.session import RunError
from graphkit.shapes import Expr, Shapes
from graphkit.workflows.compared_tokens import compared_tokens
from graphkit.workflows.host_feeds import By, is_of_source, other_tokens, run_feed
from graphkit.workflows.host_masks import MASKED, columns_of, in_slots, is_bias_and_mask, raised, window_of
from graphkit.workflows.lower_sizes import Setting

__all__ = ["HostTable", "host_tables"]

Kind = Literal["mask", "rows", "constant"]


@dataclass(frozen=True, eq=False)
class HostTable:
    """The rule by which a host makes an input.

    Attributes:
        name: The input.
        kind: `mask` (0 where it counts, the floor elsewhere), `rows` of a table, or `constant`.
        by: What chooses the row or says what counts.
        window: How many tokens count, the new one included, in a mask with a sliding window; 0 for all.
        array: The rows, or the mask, for each position or length, of one sequence; the constant, of all of them.
        shape: Of the input, for all sequences.
        bias: What the model adds to a mask by itself, such as T5's biases of relative positions; None for nothing.
    """

    name: str
    kind: Kind
    by: By
    window: int
    array: np.ndarray
    shape: tuple[int, ...] = ()
    bias: np.ndarray | None = None


def host_tables(model: Model, shapes: Shapes, found: Sequence[HostInput], setting: Setting) -> list[HostTable]:
    """Return the rules by which a host makes the values that become inputs.

    Args:
        model: The model in which they are still computed.
        shapes: What is known of its shapes.
        found: The values.
        setting: The sizes.

    Raises:
        UsageError: A value depends on both the position and the valid length, or differs where it must not.
        ModelError: onnxruntime cannot run the part that computes them.
    """
    if not found:
        return []
    outputs = [(each.source.value.name, _named(each, shapes)) for each in found]
    part = with_outputs(model, outputs)
    roles = {value.name: role for value, role in model.roles.inputs.items()}
    by = {each.name: _chosen_by(each, model, setting) for each in found}
    tables = []
    with IsolatedSession(part) as session:
        counts: dict[By, Sequence[int]] = {
            "position": range(setting.capacity + 1),
            "valid_length": range(1 if setting.is_padded else setting.source, setting.source + 1),
        }
        for which, numbers in counts.items():
            wanted = [each for each in found if by[each.name] == which]
            if not wanted:
                continue
            _check_tokens(session, part, roles, setting, which, wanted)
            biased = _biased(session, part, roles, setting, [each for each in wanted if each.is_mask], which)
            tables += [_of_batch(biased[each.name], each, shapes, setting) for each in wanted if each.name in biased]
            wanted = [each for each in wanted if each.name not in biased]
            if not wanted:
                continue
            runs = _runs(session, part, roles, setting, which, numbers, [each.name for each in wanted])
            if which == "valid_length" and setting.sound is not None:
                _check_sound(runs, session, part, roles, setting, wanted)
            for each in wanted:
                arrays = [run[each.name] for run in runs]
                table = _table(each, shapes, setting, which, arrays)
                tables.append(_of_batch(table, each, shapes, setting))
    order = {each.name: index for index, each in enumerate(found)}
    return sorted(tables, key=lambda table: order[table.name])


def _runs(
    session: IsolatedSession,
    part: Model,
    roles: Mapping[str, Role],
    setting: Setting,
    which: By,
    numbers: Sequence[int],
    names: Sequence[str],
) -> list[dict[str, np.ndarray]]:
    """Return values that the part gives for each number; where its positions end with the slots, not for the last."""
    runs: list[dict[str, np.ndarray]] = []
    for number in numbers:
        try:
            outputs = session.run(run_feed(part, roles, setting, which, number))
            runs.append({name: outputs[name] for name in names})
        except RunError as error:
            if which == "position" and number == setting.capacity > 0:
                break
            if which == "position" and number > 0:
                raise UsageError(
                    f"the model has no position {number}, so its cache has at most {number} slots - "
                    f"give --max-cache-len {number}"
                ) from error
            raise
    return runs


def _biased(
    session: IsolatedSession,
    part: Model,
    roles: Mapping[str, Role],
    setting: Setting,
    masks: Sequence[HostInput],
    which: By,
) -> dict[str, HostTable]:
    """Return the masks over the source that are one array plus a mask of the length alone, by name.

    As rows for each length, which is what other masks become, they would be as large as the length to the power of 3.
    """
    if which == "position" or not masks or not setting.is_padded or setting.source < 2:
        return {}
    full = session.run(run_feed(part, roles, setting, which, setting.source))
    left = [each.name for each in masks if _may_be_bias(full[each.name], setting)]
    for valid in range(1, setting.source) if left else ():
        found = session.run(run_feed(part, roles, setting, which, valid))
        left = [name for name in left if is_bias_and_mask(found[name], full[name], valid)]
        if not left:
            return {}
    return {name: _with_bias(name, full[name]) for name in left}


def _may_be_bias(full: np.ndarray, setting: Setting) -> bool:
    """Whether an array that nothing is masked in has columns of the source, and is not the same in all of them."""
    return full.ndim > 1 and full.shape[-1] == setting.source and bool(full.any()) and bool((full > MASKED).all())


def _with_bias(name: str, full: np.ndarray) -> HostTable:
    mask = np.zeros((1, *[1] * (full.ndim - 1), full.shape[-1]), full.dtype)
    return HostTable(name, "mask", "valid_length", 0, mask, bias=full)


def _check_tokens(
    session: IsolatedSession,
    part: Model,
    roles: Mapping[str, Role],
    setting: Setting,
    which: By,
    wanted: Sequence[HostInput],
) -> None:
    """Check that values depend on which tokens pad, and not on which tokens the others are.

    Raises:
        UsageError: One does.
    """
    if not any(roles.get(value.name) in ("tokens", "encoder tokens") for value in part.graph.inputs):
        return
    number = 1 if which == "position" else setting.source
    plain = other_tokens(setting)
    special = [token for token in compared_tokens(part) if token != setting.pad]
    tokens: list[int | Sequence[int]] = [*plain, plain, plain[::-1], *special, *([token, *plain] for token in special)]
    tokens += [[*plain, token] for token in special]
    runs = [session.run(run_feed(part, roles, setting, which, number, each)) for each in tokens]
    for each in wanted:
        if any(not np.array_equal(run[each.name], runs[0][each.name]) for run in runs):
            raise UsageError(
                f"'{each.source.value.name}' depends on which tokens there are - a host that knows positions and "
                "lengths cannot make it"
            )


def _check_sound(
    runs: Sequence[Mapping[str, np.ndarray]],
    session: IsolatedSession,
    part: Model,
    roles: Mapping[str, Role],
    setting: Setting,
    wanted: Sequence[HostInput],
) -> None:
    """Check that values follow from how many positions are valid, however long the sound is that makes so many.

    Raises:
        UsageError: One does not.
    """
    for valid, run in enumerate(runs, 1):
        other = session.run(run_feed(part, roles, setting, "valid_length", valid, least=True))
        for each in wanted:
            if not np.array_equal(run[each.name], other[each.name]):
                raise UsageError(
                    f"'{each.source.value.name}' differs between sounds of which {valid} positions are valid - a host "
                    "that knows how many are cannot make it"
                )


def _named(each: HostInput, shapes: Shapes) -> NewInput:
    value = each.source.value
    dims = shapes[value].dims
    assert dims is not None
    return NewInput(each.name, shapes[value].dtype, dims)


def _chosen_by(each: HostInput, model: Model, setting: Setting) -> By:
    known = each.source.dependence
    growing = setting.past | setting.total
    by_position = bool(known.symbols & growing)
    by_length = False
    for name in known.inputs:
        if is_of_source(model.roles.of(model.graph.values[name]), setting):
            by_length = True
        else:
            by_position = True
    if by_position and by_length:
        raise UsageError(
            f"'{each.source.value.name}' depends on the position and on the valid length of the source - "
            "one input cannot follow both"
        )
    return "position" if by_position else "valid_length"


def _table(each: HostInput, shapes: Shapes, setting: Setting, by: By, arrays: list[np.ndarray]) -> HostTable:
    dims = shapes[each.source.value].dims
    assert dims is not None
    varies = any(not np.array_equal(found, arrays[-1]) for found in arrays)
    if not varies and (by == "valid_length" or len(arrays) > 1):
        return HostTable(each.name, "constant", by, 0, raised(arrays[-1], setting) if each.is_mask else arrays[-1])
    if by == "position":
        shapes_seen = zip(*(found.shape for found in arrays), strict=True)  # an axis may grow that no symbol tells of
        slots = [axis for axis, seen in enumerate(shapes_seen) if len(set(seen)) > 1]
        if slots:
            if not each.is_mask or len(slots) > 1:
                raise UsageError(f"'{each.source.value.name}' is as long as the cache, and is not a mask")
            arrays = [in_slots(found, slots[0], past, setting) for past, found in enumerate(arrays)]
    else:
        lengths = [axis for axis, dim in enumerate(dims) if _is_source(dim, setting)]
        is_added = all(node.is_op("Add") for node, _ in each.source.uses)
        if not each.is_mask and is_added and _same_where_valid(arrays, lengths):
            return HostTable(each.name, "constant", by, 0, arrays[-1])
    rows = np.stack(arrays)
    if not each.is_mask:
        return HostTable(each.name, "rows", by, 0, rows)
    rows = raised(rows, setting)
    window: int | None = window_of(rows, setting) if by == "position" else columns_of(rows, setting)
    if window is None:
        return HostTable(each.name, "rows", by, 0, rows)
    return HostTable(each.name, "mask", by, window, rows)


def _of_batch(table: HostTable, each: HostInput, shapes: Shapes, setting: Setting) -> HostTable:
    """Return a table with the shape that its input has for all sequences of a batch.

    Raises:
        UsageError: The sequences do not lie one behind the other, so that a host cannot put their parts together.
    """
    is_constant = table.kind == "constant"
    single = table.array.shape if is_constant else table.array.shape[1:]
    count = max((setting.dims[name] for name in setting.batch), default=1)
    dims = shapes[each.source.value].dims or ()
    axes = [axis for axis, dim in enumerate(dims) if dim.symbols & setting.batch]
    if count == 1 or (not axes and (is_constant or table.by == "position")):
        return replace(table, shape=single)
    if len(axes) != 1 or (not is_constant and any(size != 1 for size in single[: axes[0]])):
        raise UsageError(
            f"'{each.source.value.name}', {shapes[each.source.value]}, does not hold the sequences of a batch one "
            "behind the other - lower with --batch 1"
        )
    (axis,) = axes
    shape = (*single[:axis], single[axis] * count, *single[axis + 1 :])
    array = np.concatenate([table.array] * count, axis) if is_constant else table.array
    return replace(table, shape=shape, array=array)


def _is_source(dim: Expr, setting: Setting) -> bool:
    try:
        return bool(dim.symbols) and int(dim.evaluate(setting.dims)) == setting.source
    except KeyError:
        return False


def _same_where_valid(arrays: list[np.ndarray], axes: list[int]) -> bool:
    """Whether the arrays for fewer valid positions agree, at these, with that for all of them."""
    full = arrays[-1]
    for valid, found in enumerate(arrays, 1):
        part = tuple(slice(valid) if axis in axes else slice(None) for axis in range(full.ndim))
        if not np.array_equal(found[part], full[part]):
            return False
    return True
