"""The inputs of an export's models: one name for each size, those that nothing reads, positions of the caller."""

from __future__ import annotations

from collections.abc import Iterator, Mapping

import numpy as np
from onnx import helper, numpy_helper

from graphkit.analysis.model_fit import given_states
from graphkit.errors import GraphkitError, UsageError
from graphkit.graph.cache_entries import SLIDING, Slot, count_window_slots
from graphkit.graph.declared_types import hinted_type
from graphkit.graph.new_nodes import NewNode, make_concat, make_gather, make_slice
from graphkit.graph.roles import Axis, declared_rank
from graphkit.graph.view import Value, unwrap_value
from graphkit.model import Model
from graphkit.passes.state.join_encoder import chain_models
from graphkit.rewrite import Editor
from graphkit.rewrite.base import copy_proto, keep_members
from graphkit.rewrite.edits import remove_dead_code
from graphkit.rewrite.new_interface import NewInput, drop_dead_inputs, with_interface, with_names, with_symbols
from graphkit.shapes import Expr, const, infer
from graphkit.shapes.constraints.dim_equalities import forced_sizes
from graphkit.shapes.input_dims import input_dims
from graphkit.verify.lowering_case import starts_with_zeros

MOST_STATE = 64  # tokens that a state of a few of the last ones may hold
LONG, SINCE = 1 << 20, 12  # tokens of a prompt that fills them, and the opset that has what is put before it
SHARED: tuple[Axis, ...] = ("batch", "sequence", "past", "encoder")


def share_dim_names(model: Model, first: Model | None = None, batch: Expr | None = None) -> Model:
    """Return a model whose inputs call the batch, new tokens, past and source by one name each.

    A host feeds these in one size, whatever names an exporter gives them. Dims that the nodes need to be a number, or
    that are called by one, are that number; those of states are what the first step gives. `batch` is what the other
    models call the batch.
    """
    forced = {name: int(size) for name, size in forced_sizes(model, {}).items() if size >= 1}
    given = {} if first is None or first is model else _given_sizes(model, first)
    is_start = bool(model.roles.cache) and not model.roles.pasts
    is_decoder = bool(model.roles.cache or model.roles.all("tokens", "embeddings"))
    shared: dict[Axis, Expr] = {} if batch is None else {"batch": batch}
    meanings: dict[str, set[Expr]] = {}
    for value in sorted(model.roles.inputs, key=lambda value: model.roles.of(value) != "tokens"):
        hinted, dims = hinted_type(value), input_dims(model).get(value.name)
        hints = (hinted.dims if hinted is not None else ()) or ()
        for at, (dim, hint) in enumerate(zip(dims or (), hints, strict=True)):
            axis = model.roles.axis(value, at)
            if axis == "encoder" and model.roles.of(value) == "encoder mask":  # which may count what strides join
                axis = "other"
            if axis == "total" and is_start and len(dims or ()) == 2:  # nothing is past
                axis = "sequence"
            if (size := given.get((value, at))) is None:
                is_size = isinstance(hint, int) and not (is_decoder and axis in (*SHARED, "total"))
                size = forced.get(str(dim.name), hint if is_size and isinstance(hint, int) else None)
            is_plain = dim.name is not None or (axis == "batch" and dim.constant is not None)
            if size is not None:
                meant = const(size)
            else:
                meant = shared.setdefault(axis, dim) if axis in SHARED and is_plain else dim
            if dim.name is not None:
                meanings.setdefault(dim.name, set()).add(meant)
    known = {name: meant.pop() for name, meant in meanings.items() if len(meant) == 1}  # others mean two things
    renamed = {name: meant for name, meant in known.items() if meant.name != name}
    return with_symbols(model, renamed) if renamed else model


def drop_idle_inputs(model: Model) -> Model:
    """Return a decoder without inputs that nothing reads, or that only come out as they are, but for its caches."""
    outputs = {unwrap_value(value, ("Identity",)): value.name for value in model.graph.outputs}
    idle = {
        value.name: outputs[value]
        for value in model.roles.inputs
        if value in outputs
        and value not in model.roles.pasts
        and all(node.is_op("Identity") for node, _ in value.consumers)
    }
    kept = {*model.roles.pasts, *model.roles.all("tokens", "embeddings"), *model.graph.outputs}
    unread = {value.name for value in model.roles.inputs if not value.consumers and value not in kept}
    if not (dropped := {*idle, *idle.values(), *unread}):
        return model
    made = remove_dead_code(with_interface(model, {}, {}, dropped)).model
    # without the encoder's state beside it, the name has to tell whose mask it is
    masks = {value.name for value in model.roles.all("encoder mask")}
    masks &= {value.name for value in made.roles.inputs} - {value.name for value in made.roles.all("encoder mask")}
    return with_names(made, {name: f"encoder_{name}" for name in masks}) if masks else made


def grow_window_caches(model: Model) -> Model:
    """Return a decoder whose caches of a window's tokens grow, as the others do; the same one where it has none.

    onnxruntime-genai's builder has a GroupQueryAttention over a sliding window keep the last tokens alone, in a cache
    that comes out as long as it came in. Without its `sliding_window_cache` the same attention reads all that is past.
    """
    roles, shapes = model.roles, infer(model)
    grown = {past: entry.present for past, entry in roles.pasts.items() if entry.present and count_window_slots(past)}
    tokens = roles.first("tokens") or roles.first("embeddings")
    dims = [shapes[value].dims or () for pair in grown.items() for value in pair]
    if not grown or tokens is None or {len(each) for each in dims} != {4}:
        return model
    proto = copy_proto(model)
    for node in proto.graph.node:
        keep_members(node.attribute, [attribute.name != SLIDING for attribute in node.attribute])
    past = dims[0][2]
    inputs, outputs = dict[str, NewInput](), dict[str, NewInput]()
    for before, after in grown.items():
        rows, groups, _, size = shapes[before].dims or ()
        inputs[before.name] = NewInput(before.name, shapes[before].dtype, (rows, groups, past, size))
        total = past + (shapes[tokens].dims or ())[1]
        outputs[after.name] = NewInput(after.name, shapes[after].dtype, (rows, groups, total, size))
    return with_interface(model.with_proto(proto), inputs, outputs)


def start_with_encoder(encoder: Model, step: Model) -> Model:
    """Return the first step of a decoder, of which an encoder gives the cross-attention cache and no model the logits.

    It runs the encoder, and the decoder of later steps with nothing past. Refuse caches whose sizes are not known.
    """
    editor, dims, ports = Editor(step), input_dims(step), dict[str, NewInput]()
    tokens, given = step.roles.first("tokens"), {entry.slot: entry.present for entry in encoder.roles.cache}
    links = dict[str, str]()
    for past, entry in step.roles.pasts.items():
        if (present := given.get(entry.slot)) is not None:
            links[past.name] = present.name
            tensor = infer(encoder)[present]
            ports[present.name] = NewInput(present.name, tensor.dtype, tensor.dims or ())
            continue
        _, *others = enumerate(dims[past.name] or (const(0),))
        sizes = [size for at, dim in others if (size := 0 if at == entry.axis else dim.constant) is not None]
        if tokens is None or len(sizes) < len(others) or 0 not in sizes:
            raise UsageError(f"{step.name}: the sizes of its '{past.name}' are not known - declare them with set-dims")
        rows, shape, empty = (editor.unique_name(f"{past.name}_{part}") for part in ("rows", "shape", "empty"))
        kind = helper.tensor_dtype_to_np_dtype(editor.shapes[past].dtype)
        nothing = editor.constant(np.zeros([1, *sizes], kind), f"{past.name}_nothing")
        editor.insert_first(step.graph, NewNode("Shape", [tokens], [rows], {"start": 0, "end": 1}))
        editor.insert_first(step.graph, make_concat([rows, editor.integers(sizes, f"{past.name}_sizes")], 0, shape))
        editor.insert_first(step.graph, NewNode("Expand", [nothing, shape], [empty]))
        editor.replace_all_uses(past, empty)
    joined = chain_models(encoder.name, (encoder, drop_dead_inputs(editor.result())), links)
    dropped = {value.name for value in encoder.graph.outputs} - ports.keys()
    return with_interface(joined, {}, ports, dropped)


def find_least_prompt(first: Model, step: Model) -> int:
    """Return the fewest tokens of a prompt after which all states are as long as later steps need them, 1 for any."""
    sizes = [(dim, length, need) for _, _, _, dim, length, need in _growing_states(first, step)]
    counts = range(1, MOST_STATE)
    return next(
        (n for n in counts if all(dim.substitute({x: n}).constant in (None, need) for dim, x, need in sizes)), 1
    )


def _growing_states(first: Model, step: Model) -> Iterator[tuple[Value, Value, int, Expr, str, int]]:
    """Yield states of an axis that the length of a prompt decides: input, output, axis, size, length, size needed."""
    shapes, tokens = infer(first), first.roles.first("tokens") or first.roles.first("embeddings")
    length = (shapes[tokens].dims or ())[1:2] if tokens is not None else ()
    for past, output in given_states(first, step).items():
        pairs = zip(shapes[output].dims or (), input_dims(step).get(past.name) or (), strict=False)
        for axis, (dim, need) in enumerate(pairs):
            if need.constant is not None and length and length[0].symbols & dim.symbols:
                yield past, output, axis, dim, str(length[0].name), need.constant


def pad_states(first: Model, step: Model) -> Model:
    """Return a first step that puts zeros before what states lack after a short prompt, as the cache of PyTorch does.

    A tracer leaves that out. It is done where runs show that a step which starts from no token has zeros there.
    """
    states, least = [*_growing_states(first, step)], find_least_prompt(first, step)
    axes = {past.name: axis for past, _, axis, *_ in states}
    is_full = all(dim.substitute({length: LONG}).constant == need for *_, dim, length, need in states)
    is_known = is_full and len(axes) == len(states) and first.graph.opset() >= SINCE
    try:
        if least == 1 or not is_known or not starts_with_zeros(step, axes, least):
            return first
    except GraphkitError:  # it does not start from no token
        return first
    outputs, nodes = dict[str, NewInput](), list[NewNode]()
    for _, output, axis, _, _, need in states:
        name, tensor = output.name, infer(first)[output]
        dims = [need if at == axis else dim for at, dim in enumerate(tensor.dims or ())]
        numbers = [need * (at == axis) for at in range(2 * len(dims))], [-need], [LONG], [axis]
        keys = [f"{name}_{key}" for key in ("zeros", "from", "to", "axis")]
        nodes += [NewNode("Constant", [], [key], {"value_ints": n}) for key, n in zip(keys, numbers, strict=True)]
        nodes.append(NewNode("Pad", [f"{name}_short", keys[0]], [f"{name}_long"]))
        nodes.append(make_slice(f"{name}_long", *keys[1:], out=name))
        outputs[name] = NewInput(name, tensor.dtype, dims)
    short = {name: f"{name}_short" for name in outputs}
    return with_interface(with_names(first, short), {}, outputs, [*short.values()], nodes)


def _given_sizes(step: Model, first: Model) -> Mapping[tuple[Value, int], int]:
    """Return the sizes of axes of a step's caches and states that are numbers in what the first step gives."""
    shapes, roles = infer(first), first.roles
    presents: dict[Slot, Value] = {entry.slot: entry.present for entry in roles.cache if entry.present is not None}
    pairs = [(value, presents[entry.slot]) for value, entry in step.roles.pasts.items() if entry.slot in presents]
    found = dict[tuple[Value, int], int | None]()
    for value, output in (*pairs, *given_states(first, step).items()):
        entry = step.roles.pasts.get(value)
        is_fixed = entry is None or (entry.is_static and not step.roles.is_cross(entry))
        grows = None if entry is None or is_fixed else entry.axis
        hinted = hinted_type(output)
        hints = (hinted.dims if hinted is not None else ()) or ()
        for at, dim in enumerate(shapes[output].dims or ()):
            hint = hints[at] if at < len(hints) else None
            found[value, at] = None if at == grows else dim.constant or (hint if isinstance(hint, int) else None)
    return {place: size for place, size in found.items() if size is not None}


def takes_positions(first: Model, step: Model) -> bool:
    """Whether the caller of a first step says where the tokens stand, as counting them does not tell.

    So it is where positions have planes, such as height and width beside time, and where the caller makes the mask for
    each pair of tokens, not of slots: a picture before a text may see all of itself.
    """
    positions = first.roles.first("positions")
    is_paired = not step.roles.has_slots and any(declared_rank(mask) == 4 for mask in first.roles.all("mask"))
    return positions is not None and not first.roles.pasts and (is_paired or declared_rank(positions) == 3)


def pass_positions(first: Model, step: Model) -> tuple[Model, Model]:
    """Return decoders of which the first takes positions from its caller, and later ones count on from these."""
    given, read = (model.roles.first("positions") for model in (first, step))
    dims = (infer(step)[read].dims or ()) if read is not None else ()
    if given is None or read is None or not dims or dims[-1].constant != 1 or len(dims) != declared_rank(given):
        raise UsageError(
            f"{first.name}: it takes positions from its caller, and {step.name} takes none of one token to count on "
            "from them - export both as one decoder"
        )
    return _with_next(first, given, f"next_{read.name}"), _with_next(step, read, f"next_{read.name}")


def _with_next(model: Model, positions: Value, name: str) -> Model:
    """Return a model that gives what comes behind the last of its positions, [batch, 1] or [planes, batch, 1]."""
    tensor, at, one = infer(model)[positions], f"{name}_at", f"{name}_one"
    dims, kind = tensor.dims or (), helper.tensor_dtype_to_np_dtype(tensor.dtype)
    numbers = {one: np.array([1], kind), at: np.array([-1])}
    nodes = [NewNode("Constant", [], [key], {"value": numpy_helper.from_array(each)}) for key, each in numbers.items()]
    nodes.append(make_gather(positions.name, at, len(dims) - 1, f"{name}_last"))
    if dims[-1].constant == 1:
        nodes, last = nodes[:1], positions.name
    else:
        last = f"{name}_last"
    nodes.append(NewNode("Add", [last, one], [name]))
    return with_interface(model, {}, {name: NewInput(name, tensor.dtype, (*dims[:-1], 1))}, (), nodes)
