"""Give inputs, outputs, other values and symbols other names."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass

from graphkit.errors import UsageError, did_you_mean
from graphkit.graph.declared_types import declared_dims
from graphkit.graph.names import find_value
from graphkit.graph.roles import Axis
from graphkit.graph.view import Scope, Value, as_text, graphs_with_scopes
from graphkit.model import Model
from graphkit.passes.shapes.declare_shapes import InferOutputShapes
from graphkit.rewrite import Outcome, Pass, copy_proto
from graphkit.rewrite.base import Renames
from graphkit.rewrite.new_interface import declared_dims_in, with_symbols, with_value_names
from graphkit.shapes import Expr, infer, lower, parse, symbol, upper
from graphkit.shapes.constraints.dim_equalities import equal_symbols, needed_size, sizes_beside
from graphkit.shapes.input_dims import declare_dim, declared_inputs, input_dims, read_dim

TOLD: Mapping[Axis, str] = {**{axis: axis for axis in ("batch", "sequence", "past", "total")}, "encoder": "source"}


def dims_by_role(model: Model) -> Renames:
    """Return names for the dims of inputs that say what these are: batch, sequence, past, source or total.

    A name that tells stays. Of dims with one meaning that may differ, such as the rows of a mask that broadcasts, the
    first one gets the name, those of tokens before all others.
    """
    classes, taken = equal_symbols(model), _declared_symbols(model)
    names: dict[str, str] = {}
    for value in sorted(model.roles.inputs, key=lambda value: model.roles.of(value) != "tokens"):
        for at, dim in enumerate(input_dims(model).get(value.name) or ()):
            axis, old = model.roles.axis(value, at), dim.name or ""
            new = TOLD.get(axis, "")
            is_telling = "." not in old and (new[:3] in old or axis[:3] in old)
            if not (new and old) or is_telling or new in {*taken, *names.values()}:
                continue
            if not {old, *classes.get(old, ())} & names.keys():
                names[old] = new
    return tuple(names.items())


@dataclass(frozen=True)
class Rename(Pass):
    """Give inputs, outputs, other values and dims other names, wherever these occur.

    Nodes, bodies, declared types, quantisation annotations and initializers follow. A dim that the graph forces to
    equal the renamed one gets the same name, and outputs declare what follows. `INPUT.AXIS`, such as `x.0`, is one dim,
    whether it has a name or not. Names may be swapped. A dim that the graph needs to be an expression of others, such
    as a mask that spans past and new tokens, may be called that: `total=past + sequence`.

    Legality: no other value that a node may see has the new name, and no other dim, unless the graph forces the two to
    be equal.

    Before:

        agraph (float[4, N] x, float[M, 8] z) => (float[4, 8] y) {
            y = MatMul (x, z)
        }

    After `rename{inputs=x=left;z=right,dims=N=batch}`:

        agraph (float[4, batch] left, float[batch, 8] right) => (float[4, 8] y) {
            y = MatMul (left, right)
        }

    Attributes:
        inputs, outputs: New names of inputs and outputs: `input_ids=tokens;attention_mask=mask`.
        values: New names of any values; those of bodies that have one name get one, and `BODY::NAME` is one of them.
        dims: New names of dims: `batch_size=batch`.
    """

    changes_interface = True

    inputs: Renames = ()
    outputs: Renames = ()
    values: Renames = ()
    dims: Renames = ()

    def run(self, model: Model) -> Outcome:
        model.check_soundness()
        if model.proto.training_info:
            raise UsageError(f"{model.label}: has graphs for training, whose names would not fit - drop them first")
        names = self.new_names(model)
        taken: dict[str, list[Value]] = {}  # no value gets a name that another one has, in any scope that sees both
        for value, new in names.items():
            for other in taken.setdefault(new, []):
                if _is_seen(value.scope, other.scope):
                    raise UsageError(f"{model.label}: '{other.name}' and '{value.name}' cannot both be '{new}'")
            taken[new].append(value)
        for scope in model.graph.walk():
            for name, value in scope.values.items():
                clash = next((each for each in taken.get(name, ()) if _is_seen(each.scope, scope)), None)
                if clash is not None and value not in names:
                    where = f"of '{scope.path}'" if scope.path else "of the graph"
                    problem = f"'{clash.name}' cannot be '{name}', as another value {where} is called"
                    raise UsageError(f"{model.label}: {problem} - choose another name, or rename that one too")
        result, notes = _with_dims(model, tuple(pair for pair in self.dims if not _is_expression(pair[1])))
        for old, new in self.dims:
            if _is_expression(new):
                result, more = _with_expression(result, old, new)
                notes += more
        if not names and result is model:
            return Outcome(model)
        changes = [f"{value.name} is called {new}" for value, new in names.items()]
        scopes = dict(zip(model.graph.walk(), result.graph.walk(), strict=True))
        values = {scopes[value.scope].values[value.name]: new for value, new in names.items()}
        return Outcome(with_value_names(result, values), (*changes, *notes))

    def new_names(self, model: Model) -> dict[Value, str]:
        """Return the new names of values, or raise a UsageError where there is no such value, or it gets two."""
        names: dict[Value, str] = {}
        for what, pairs in (("input", self.inputs), ("output", self.outputs), ("value", self.values)):
            for old, new in pairs:
                for value in _find_named_values(model, what, old):
                    if names.setdefault(value, new) != new:
                        both = f"'{names[value]}' and '{new}'"
                        raise UsageError(f"{model.label}: '{old}' is to be both {both} - give one name")
        return {value: new for value, new in names.items() if value.name != new}


def _find_named_values(model: Model, what: str, name: str) -> list[Value]:
    """Return the input, the output, the value of the main graph, or those of bodies that have a name."""
    if what == "value":
        path, _, inner = name.rpartition("::")
        bodies = [scope for scope in model.graph.walk() if scope is not model.graph]
        found = [scope.values[name] for scope in bodies if name in scope.values]
        found += [scope.values[inner] for scope in bodies if scope.path == path and inner in scope.values]
        is_outer = name in model.graph.values or not found
        return [find_value(model.scopes, name, model.label)] if is_outer else found
    graph = model.graph
    inputs, outputs = ({value.name: value for value in values} for values in (graph.inputs, graph.outputs))
    known = inputs if what == "input" else outputs
    if name not in known:
        raise UsageError(f"{model.label}: there is no {what} '{name}' - {did_you_mean(name, known)}")
    if name in inputs and name in outputs:
        hint = f"rename both with --value-name {name}=NEW"
        raise UsageError(f"{model.label}: '{name}' is an input and an output - {hint}")
    return [known[name]]


def _is_seen(scope: Scope, other: Scope) -> bool:
    """Whether one of two scopes is in the other, so that names in both must differ."""
    return scope.contains(other) or other.contains(scope)


def _with_dims(model: Model, renames: Renames) -> tuple[Model, list[str]]:
    placed = _with_places(model, [old for old, _ in renames])
    symbols, notes = _new_symbols(placed, renames)
    placed = _with_places(placed, symbols)
    if not symbols:
        return model, notes
    first: dict[str, str] = {}
    for old, new in symbols.items():
        first.setdefault(new, old)
    same = {old: symbol(first[new]) for old, new in symbols.items() if first[new] != old}
    unified = with_symbols(placed, same)  # as the new name may have other bounds
    is_of_inputs = not declared_inputs(placed).symbols.isdisjoint(symbols)  # outputs may call theirs anything
    inferred = InferOutputShapes().run(unified) if is_of_inputs else Outcome(unified)
    bounded = {old: symbol(new, lower(symbol(old)), upper(symbol(old))) for old, new in symbols.items()}
    return with_symbols(inferred.model, bounded), [*notes, *inferred.changes]


def _new_symbols(model: Model, renames: Renames) -> tuple[dict[str, str], list[str]]:
    """Return the new names of symbols, those included that equal others, and notes about them."""
    if not renames:
        return {}, []
    declared, classes = _declared_symbols(model), equal_symbols(model)
    new_names: dict[str, str] = {}
    notes: list[str] = []
    for old, new in renames:
        if old not in declared and old not in classes:
            raise _no_such_dim(model, old)
        if parse(new).name != new or new[:1] in "?'0123456789":
            raise UsageError(f"'{new}' is no name of a dim - write a word; `graphkit set-dims` sets a size")
        members = classes.get(old, (old,))
        for name in members:
            if new_names.setdefault(name, new) != new:
                both = f"'{new_names[name]}' and '{new}'"
                raise UsageError(f"{model.label}: the graph forces '{name}' to equal '{old}', so they cannot be {both}")
        others = [name for name in members if name not in (old, new)]
        notes.append(f"{old} is called {new}" + (f", and so is {', '.join(others)}, equal to it" if others else ""))
    first: dict[str, str] = {}
    for old, new in new_names.items():
        earlier = first.setdefault(new, old)
        if old not in classes.get(earlier, (earlier,)):
            raise UsageError(f"{model.label}: '{earlier}' and '{old}' cannot both be '{new}', for they may differ")
    for old, new in new_names.items():
        if new in declared | classes.keys() and new not in new_names:
            problem = f"'{old}' cannot be '{new}', which is another dim that may differ from it"
            raise UsageError(f"{model.label}: {problem} - choose another name")
    return {old: new for old, new in new_names.items() if old != new}, notes


def _no_such_dim(model: Model, name: str) -> UsageError:
    hint = did_you_mean(name, sorted(_declared_symbols(model) | declared_inputs(model).symbols))
    if name.startswith("?"):
        hint = "dims without a name are INPUT.AXIS, such as x.0"
    return UsageError(f"{model.label}: no dim is called '{name}' - {hint}")


def _is_expression(text: str) -> bool:
    dim = parse(text)
    return bool(dim.symbols) and dim.name is None


def _with_expression(model: Model, old: str, new: str) -> tuple[Model, list[str]]:
    """Return a model in which a dim is an expression in others, as exporters write it, and notes about that."""
    placed, dim = _with_places(model, [old]), parse(new)
    names = declared_inputs(placed).groups
    unknown = [name for name in sorted(dim.symbols) if name not in names]
    for name in unknown if old in _declared_symbols(placed) else [old]:
        raise _no_such_dim(placed, name)
    needed = needed_size(placed, old) if old in names else _size_in_outputs(placed, old)
    if old in dim.symbols or (needed != dim and dim not in sizes_beside(placed, old)):
        reason = f"the graph needs it to be {needed}" if needed is not None else "no node says that it is"
        reason = "that has it itself" if old in dim.symbols else reason
        raise UsageError(f"{model.label}: '{old}' cannot be '{new}', for {reason} - give another expression, or a word")
    inferred = InferOutputShapes().run(with_symbols(placed, {old: dim}))
    return inferred.model, [f"{old} is {dim}", *inferred.changes]


def _size_in_outputs(model: Model, name: str) -> Expr | None:
    """Return what a dim that outputs alone declare is, None where that is not known or not one size."""
    shapes, sizes = infer(model), set[Expr | None]()
    for output in model.graph.outputs:
        dims = shapes[output].dims or ()
        declared = (declared_dims(output) or ()) if dims else ()
        sizes |= {dim for text, dim in zip(declared, dims, strict=False) if text == name}
    return sizes.pop() if len(sizes) == 1 else None


def _declared_symbols(model: Model) -> set[str]:
    names, symbols = declared_inputs(model).groups, set[str]()
    for graph, _ in graphs_with_scopes(model.proto.graph, model.graph):
        for dim in declared_dims_in((*graph.input, *graph.output, *graph.value_info)):
            is_name = dim.dim_param and not as_text(dim.dim_param).startswith("?")
            symbols |= read_dim(dim.dim_param, names).symbols if is_name else set()
    return symbols


def _with_places(model: Model, symbols: Iterable[str]) -> Model:
    """Return a model in which `INPUT.AXIS`, of those to be renamed, is the name of that dim, or of its group."""
    read, proto = declared_inputs(model), copy_proto(model)
    infos = {info.name: info for info in proto.graph.input}
    wanted = [name for name in symbols if name not in read.groups]
    for name in wanted:
        groups = [group for parts in read.groups.values() for group in parts if read.at(group[0]).name == name]
        if (place := read.place_of(name)) is not None and (size := read.at(place).constant) is not None:
            raise UsageError(f"{model.label}: '{name}' is the number {size}, and has no name - leave it out")
        for input_name, axis in groups[0] if groups else [place] if place is not None else ():
            declare_dim(infos[input_name].type.tensor_type.shape.dim[axis], symbol(name))
    return model.with_proto(proto) if wanted else model
