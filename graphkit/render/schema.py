"""JSON Schemas of results, made from the annotations of their fields: each class defines its result once."""

from __future__ import annotations

import dataclasses
import types
from collections.abc import Mapping, Sequence
from typing import Any, Literal, Union, get_args, get_origin, get_type_hints

from graphkit.render.result import Result, Sizes, versioned

__all__ = ["Maker", "Schema", "closed", "document_schema", "result_schema"]

Schema = dict[str, Any]
DIALECT = "https://json-schema.org/draft/2020-12/schema"
PLAIN: Mapping[object, Schema] = {
    str: {"type": "string"},
    int: {"type": "integer"},
    float: {"type": "number"},
    bool: {"type": "boolean"},
    type(None): {"type": "null"},
    Any: {},
    object: {},
    Sizes: {"type": "object", "additionalProperties": {"type": "integer"}},
}


def result_schema(kind: type[Result]) -> Schema:
    """Return the schema of the JSON that a result of a class writes."""
    maker = Maker()
    return document_schema(kind.schema(), maker.fields(kind), maker.named, _first_line(kind))


def document_schema(name: str, properties: Mapping[str, Schema], named: Mapping[str, Schema], text: str) -> Schema:
    """Return the schema of a document: the versions of graphkit and of the schema, and some properties.

    Args:
        name: What `graphkit schema` calls it.
        properties: The schema of each property.
        named: Schemas that others refer to, by name.
        text: What the document is, in a sentence.
    """
    begin: Schema = {"graphkit": {"type": "string"}, "schema": {"const": versioned(name)}}
    return {
        "$schema": DIALECT,
        "title": versioned(name),
        "description": text,
        **closed({**begin, **properties}),
        "$defs": dict(sorted(named.items())),
    }


class Maker:
    """Makes schemas of types, and keeps those of dataclasses under their names.

    Attributes:
        known: Schemas of further types.
    """

    def __init__(self, known: Mapping[object, Schema] = PLAIN) -> None:
        self.known = {**PLAIN, **known}
        self.named: dict[str, Schema] = {}

    def fields(self, kind: type) -> dict[str, Schema]:
        """Return the schema of each property that the JSON of a dataclass has."""
        hints = get_type_hints(kind)
        found = {field.name: self.of(hints[field.name]) for field in dataclasses.fields(kind)}
        for name in kind.computed if issubclass(kind, Result) else ():
            found[name] = self.of(get_type_hints(getattr(kind, name).fget)["return"])
        return found

    def of(self, hint: Any) -> Schema:
        """Return the schema of a type."""
        if hint in self.known:
            return self.known[hint]
        origin, arguments = get_origin(hint), get_args(hint)
        if origin is Literal:
            return {"enum": list(arguments)}
        if origin in (Union, types.UnionType):
            return {"anyOf": [self.of(argument) for argument in arguments]}
        if origin is tuple and arguments[-1] is not Ellipsis:
            size = len(arguments)
            items = {"prefixItems": [self.of(argument) for argument in arguments], "items": False}
            return {"type": "array", **items, "minItems": size, "maxItems": size}
        if origin in (tuple, list, Sequence):
            return {"type": "array", "items": self.of(arguments[0])}
        if origin in (dict, Mapping):
            return {"type": "object", "additionalProperties": self.of(arguments[1])}
        if isinstance(hint, type) and dataclasses.is_dataclass(hint):
            return self.reference(hint)
        raise TypeError(f"{hint} has no JSON Schema")

    def reference(self, kind: type) -> Schema:
        """Return a reference to the schema of a dataclass, which is made once."""
        name = kind.__name__
        if name not in self.named:
            self.named[name] = {}  # it may refer to itself
            self.named[name] = {"description": _first_line(kind), **closed(self.fields(kind))}
        return {"$ref": f"#/$defs/{name}"}


def closed(properties: Mapping[str, Schema]) -> Schema:
    """Return the schema of an object that has these properties and no others."""
    return {
        "type": "object",
        "additionalProperties": False,
        "required": list(properties),
        "properties": dict(properties),
    }


def _first_line(kind: type) -> str:
    return (kind.__doc__ or "").strip().splitlines()[0]
