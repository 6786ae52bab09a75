"""Give inputs, outputs, other values and symbols other names."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass
from typing import ClassVar

from graphkit.errors import UsageError
from graphkit.graph.declared_types import declared_dims
from graphkit.graph.find_by_name import find_value
from graphkit.graph.view import Value
from graphkit.model import Model
from graphkit.passes.shapes.declare_shapes import InferOutputShapes
from graphkit.rewrite import Outcome, Pass, copy_proto
from graphkit.rewrite.new_interface import with_names
from graphkit.rewrite.pass_options import Renames
from graphkit.rewrite.renaming import declared_dims_in, graphs_with_scopes, with_symbols
from graphkit.shapes import Expr, lower, parse, symbol, upper
from graphkit.shapes.constraints.dim_equalities import equal_symbols
from graphkit.suggest import did_you_mean

__all__ = ["Rename"]


@dataclass(frozen=True)
class Rename(Pass):
    """Give inputs, outputs, other values and symbols of dims other names, wherever these occur.

    Nodes, bodies, declared types, quantisation annotations and initializers follow. A symbol that the graph forces to
    equal the renamed one gets the same name, and outputs declare what follows. A dim without a symbol is `INPUT.AXIS`,
    such as `x.0`. Names may be swapped.

    Legality: no other value has the new name in the main graph or in a body, and no other symbol, unless the graph
    forces the two to be equal.

    Before:

        agraph (float[N, 4] x, float[M, 4] z) => (float[N, 8] y) {
            y = Concat <axis = 1> (x, z)
        }

    After `rename{inputs=x=left;z=right,dims=N=batch}`:

        agraph (float[batch, 4] left, float[batch, 4] right) => (float[batch, 8] y) {
            y = Concat <axis = 1> (left, right)
        }

    Attributes:
        inputs, outputs: New names of inputs and outputs: `input_ids=tokens;attention_mask=mask`.
        values: New names of any values of the main graph.
        dims: New names of symbols: `batch_size=batch`.
    """

    changes_interface: ClassVar[bool] = True

    inputs: Renames = ()
    outputs: Renames = ()
    values: Renames = ()
    dims: Renames = ()

    def run(self, model: Model) -> Outcome:
        model.check_soundness()
        if model.proto.training_info:
            raise UsageError(f"{model.label}: has graphs for training, whose names would not fit - drop them first")
        names = self.new_names(model)
        _check_free(model, names)
        symbols, notes = _symbols(model, self.dims)
        if not names and not symbols:
            return Outcome(model)
        changes = [f"{value.name} is called {new}" for value, new in names.items()]
        result = model
        if symbols:
            inferred = InferOutputShapes().run(_unified(_with_places(model, symbols), symbols))
            notes += inferred.changes
            result = with_symbols(inferred.model, {old: _with_bounds_of(old, new) for old, new in symbols.items()})
        result = with_names(result, {value.name: new for value, new in names.items()})
        return Outcome(result, (*changes, *notes))

    def new_names(self, model: Model) -> dict[Value, str]:
        """Return the new names of values.

        Raises:
            UsageError: There is no such value, or it gets two names.
        """
        names: dict[Value, str] = {}
        for what, pairs in (("input", self.inputs), ("output", self.outputs), ("value", self.values)):
            for old, new in pairs:
                value = _find(model, what, old)
                if names.setdefault(value, new) != new:
                    both = f"'{names[value]}' and '{new}'"
                    raise UsageError(f"{model.label}: '{old}' is to be both {both} - give one name")
        return {value: new for value, new in names.items() if value.name != new}


def _find(model: Model, what: str, name: str) -> Value:
    if what == "value":
        return find_value(model.scopes, name, model.label)
    graph = model.graph
    inputs, outputs = ({value.name: value for value in values} for values in (graph.inputs, graph.outputs))
    known = inputs if what == "input" else outputs
    if name not in known:
        raise UsageError(f"{model.label}: there is no {what} '{name}' - {did_you_mean(name, known)}")
    if name in inputs and name in outputs:
        raise UsageError(
            f"{model.label}: '{name}' is an input and an output - rename both with --value-name {name}=NEW"
        )
    return known[name]


def _check_free(model: Model, names: Mapping[Value, str]) -> None:
    """Check that no value gets a name that another one has, in any scope."""
    taken: dict[str, Value] = {}
    for value, new in names.items():
        if new in taken:
            raise UsageError(f"{model.label}: '{taken[new].name}' and '{value.name}' cannot both be '{new}'")
        taken[new] = value
    for scope in model.graph.walk():
        for name, value in scope.values.items():
            if name in taken and value not in names:
                where = f"of '{scope.path}'" if scope.path else "of the graph"
                raise UsageError(
                    f"{model.label}: '{taken[name].name}' cannot be '{name}', as another value {where} is called - "
                    "choose another name, or rename that one too"
                )


def _symbols(model: Model, renames: Renames) -> tuple[dict[str, str], list[str]]:
    """Return the new names of symbols, those included that equal others, and notes about them."""
    if not renames:
        return {}, []
    declared, classes = _declared_symbols(model), equal_symbols(model)
    new_names: dict[str, str] = {}
    notes: list[str] = []
    for old, new in renames:
        if old not in declared and old not in classes:
            hint = did_you_mean(old, sorted(declared | classes.keys()))
            raise UsageError(f"{model.label}: no dim is called '{old}' - {hint}")
        if parse(new) != symbol(new) or new[:1] in "?0123456789":
            raise UsageError(f"'{new}' is no name of a dim - write a word; `graphkit set-dims` sets a size")
        members = classes.get(old, (old,))
        for name in members:
            if new_names.setdefault(name, new) != new:
                both = f"'{new_names[name]}' and '{new}'"
                raise UsageError(f"{model.label}: the graph forces '{name}' to equal '{old}', so they cannot be {both}")
        others = [name for name in members if name not in (old, new)]
        notes.append(f"{old} is called {new}" + (f", and so is {', '.join(others)}, equal to it" if others else ""))
    _check_equal(model, new_names, classes)
    for old, new in new_names.items():
        if new in declared | classes.keys() and new not in new_names:
            raise UsageError(
                f"{model.label}: '{old}' cannot be '{new}', which is another dim that may differ from it - choose "
                "another name"
            )
    return {old: new for old, new in new_names.items() if old != new}, notes


def _check_equal(model: Model, names: Mapping[str, str], classes: Mapping[str, tuple[str, ...]]) -> None:
    """Check that symbols that get one name are equal."""
    first: dict[str, str] = {}
    for old, new in names.items():
        earlier = first.setdefault(new, old)
        if old not in classes.get(earlier, (earlier,)):
            raise UsageError(f"{model.label}: '{earlier}' and '{old}' cannot both be '{new}', for they may differ")


def _unified(model: Model, symbols: Mapping[str, str]) -> Model:
    """Return a model in which the symbols that get one name are one already: a new name may have other bounds."""
    first: dict[str, str] = {}
    for old, new in symbols.items():
        first.setdefault(new, old)
    return with_symbols(model, {old: symbol(first[new]) for old, new in symbols.items() if first[new] != old})


def _with_bounds_of(old: str, new: str) -> Expr:
    """Return a symbol of another name and the same bounds, by which expressions are simplified."""
    return symbol(new, lower(symbol(old)), upper(symbol(old)))


def _declared_symbols(model: Model) -> set[str]:
    """Return the symbols in all declarations of the main graph and its bodies."""
    symbols: set[str] = set()
    for graph, _ in graphs_with_scopes(model.proto.graph, model.graph):
        for dim in declared_dims_in((*graph.input, *graph.output, *graph.value_info)):
            if dim.dim_param:
                symbols |= {dim.dim_param} if _is_name(dim.dim_param) else parse(dim.dim_param).symbols
    return symbols


def _is_name(text: str) -> bool:
    return parse(text) == symbol(text)


def _with_places(model: Model, symbols: Iterable[str]) -> Model:
    """Return a model in which the dims without a symbol that are to get one are called `INPUT.AXIS`."""
    places = list(_places(model, symbols))
    if not places:
        return model
    proto = copy_proto(model)
    infos = {info.name: info for info in proto.graph.input}
    for name, axis in places:
        infos[name].type.tensor_type.shape.dim[axis].dim_param = f"{name}.{axis}"
    return model.with_proto(proto)


def _places(model: Model, symbols: Iterable[str]) -> Iterator[tuple[str, int]]:
    renamed = set(symbols)
    for value in model.graph.inputs:
        for axis in range(len(declared_dims(value) or ())):
            if f"{value.name}.{axis}" in renamed:
                yield value.name, axis
