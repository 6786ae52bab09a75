"""The constants of a contract as code for host programs: each language fills its template, such as `contract.h`."""

from __future__ import annotations

import json
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import asdict
from pathlib import Path
from string import Template
from typing import ClassVar, get_args

from graphkit.deploy.contract.contract_constants import (
    RULES,
    Array,
    Fields,
    Group,
    MadeBy,
    Number,
    Record,
    Slots,
    comment_text,
    contract_facts,
    item_bytes,
)
from graphkit.deploy.contract.host_contract import By, Contract, Kind
from graphkit.errors import UsageError

__all__ = ["SUFFIXES", "WRITERS"]

SUFFIXES = {".h": "c", ".hpp": "c", ".rs": "rust", ".ts": "typescript", ".mts": "typescript"}  # of files


class _Language:
    """A language in which constants can be written.

    Attributes:
        template: The file that has all but the values of a contract.
        doc: A comment.
        constant: A number.
        opening: The first line of an array.
    """

    template: ClassVar[str]
    doc: ClassVar[str]
    constant: ClassVar[str]
    opening: ClassVar[str]

    def write(self, contract: Contract) -> str:
        """Return the constants of a contract.

        Raises:
            UsageError: The floor is not a float32, or a dtype has no size in bytes; in C, a name holds a NUL.
        """
        known = contract_facts(contract)
        template = Template(Path(__file__).with_name(self.template).read_text(encoding="utf-8"))
        return template.substitute(
            target=comment_text(contract.target),
            numbers="".join(f"\n{line}" for number in known.numbers for line in self._number(number)),
            lists="\n".join(self.tokens(name, *listed) for name, listed in known.lists.items()),
            floor=repr(known.floor),
            floor_half=f"0x{known.floor_half:04x}",
            max_rank=known.max_rank,
            places="".join(_paragraph_text(self._places(group)) for group in known.groups if group.items),
            arrays="".join(_paragraph_text(self._array(array)) for array in known.arrays),
            **self._more(contract),
        )

    def tokens(self, name: str, meaning: str, tokens: Sequence[int]) -> str:
        """Return a list of tokens."""
        raise NotImplementedError

    def _more(self, contract: Contract) -> Mapping[str, object]:
        """Return the values that the template of this language has alone."""
        raise NotImplementedError

    def _number(self, number: Number) -> Iterable[str]:
        may_be_negative = number.name.startswith("token_") or number.name in ("offset", *RULES)
        kind = "i64" if may_be_negative else "usize"
        yield self.doc.format(comment_text(number.comment))
        yield self.constant.format(name=number.name.upper(), kind=kind, value=number.value)

    def _places(self, group: Group) -> Iterable[str]:
        for place, (name, original) in enumerate(group.items):
            yield self.doc.format(f"Place of the {comment_text(group.what)} `{comment_text(original)}`.")
            yield self.constant.format(name=name.upper(), kind="usize", value=place)

    def _array(self, array: Array) -> Iterable[str]:
        opening = self.opening.format(name=array.name.upper(), kind=array.kind, count=len(array.records))
        if not array.records:
            return (f"{opening}];",)
        return (opening, *(self._row(array, record) for record in array.records), "];")

    def _row(self, array: Array, record: Record) -> str:
        raise NotImplementedError


def _paragraph_text(lines: Iterable[str]) -> str:
    return "".join(f"\n{line}" for line in ("", *lines))


class _Code(str):
    """Text that is code in C, not the content of a string."""

    __slots__ = ()


class C(_Language):
    """C99 and C++, which have no empty arrays."""

    template = "contract.h"

    def _more(self, contract: Contract) -> Mapping[str, object]:
        counts = {name: len(getattr(contract, f"{name}s")) for name in ("file", "table", "state", "method")}
        kinds = {"sources": ("source", get_args(Kind)), "choices": ("by", get_args(By))}
        return {
            **{f"{name}_count": count for name, count in counts.items()},
            **{key: "\n".join(_enumeration_lines(what, ("none", *names))) for key, (what, names) in kinds.items()},
        }

    def tokens(self, name: str, meaning: str, tokens: Sequence[int]) -> str:
        name, listed = f"HOST_{name.upper()}_TOKEN", ", ".join(map(str, tokens or (-1,)))
        return (
            f"#define {name}_COUNT {len(tokens)} /* Of {name}S. {meaning} */\n"
            f"static const long long {name}S[] = {{{listed}}};"
        )

    def _number(self, number: Number) -> Iterable[str]:
        value = str(number.value) if number.value >= 0 else f"({number.value})"
        return (f"#define HOST_{number.name.upper()} {value} /* {comment_text(number.comment)} */",)

    def _places(self, group: Group) -> Iterable[str]:
        places = (f"    HOST_{name.upper()} = {place}," for place, (name, _) in enumerate(group.items))
        return (f"enum {{ /* places in HOST_{group.name.upper()} */", *places, "};")

    def _array(self, array: Array) -> Iterable[str]:
        kind = {"RecordedFile": "File", "Input": "Port", "Output": "Port"}.get(array.kind, array.kind)
        name = f"HOST_{array.name.upper()}"
        if not array.records:
            yield f"static const Host{kind} *const {name} = NULL; /* there are none */"
            return
        yield f"static const Host{kind} {name}[] = {{"
        for record in array.records:
            if record.meaning:
                yield f"    /* {comment_text(record.meaning)} */"
            yield f"    {{{', '.join(map(_c_value, _flat_members(record.fields)))}}},"
        yield "};"


def _enumeration_lines(what: str, names: Iterable[str]) -> Iterator[str]:
    return (f"    HOST_{what.upper()}_{name.upper()} = {place}," for place, name in enumerate(names))


def _flat_members(fields: Fields) -> Iterator[object]:
    """Yield the members of a flat struct in C, with numbers for missing ones."""
    for name, value in fields.items():
        if name == "slots":
            slots = value if isinstance(value, Slots) else Slots(-1, 0, fields["bytes"], 1)
            yield from vars(slots).values()
        elif name == "source":
            assert isinstance(value, MadeBy)
            yield from (_Code(f"HOST_SOURCE_{value.kind.upper()}"), value.of, value.output)
            yield from (_Code(f"HOST_BY_{(value.by or 'none').upper()}"), value.window, -1)
        elif name == "writes":
            yield from (_Code("HOST_SOURCE_NONE"), -1, -1, _Code("HOST_BY_NONE"), 0, -1 if value is None else value)
        elif name == "bytes" and ("source" in fields or "writes" in fields):
            yield from (item_bytes(str(fields["dtype"])), value)
        else:
            yield value


def _c_value(value: object) -> str:
    if isinstance(value, Group):
        return f"HOST_{value.name.upper()}, {len(value.items)}"
    if isinstance(value, tuple):
        return f"{len(value)}, {{{', '.join(map(str, value)) or '0'}}}"
    if isinstance(value, str) and not isinstance(value, _Code):
        return _c_text(value)
    return str(int(value)) if isinstance(value, bool) else str(value)


def _c_text(text: str) -> str:
    """Return a string literal of UTF-8 bytes; a question mark is escaped because of trigraphs."""
    content = text.encode()
    if b"\0" in content:
        raise UsageError(f"{text!r} holds a NUL, which ends a string in C - rename it in the model")
    return '"' + "".join(map(_c_byte, content)) + '"'


def _c_byte(byte: int) -> str:
    if chr(byte) in '"\\?':
        return f"\\{chr(byte)}"
    return chr(byte) if 0x20 <= byte < 0x7F else f"\\{byte:03o}"


class Rust(_Language):
    """Rust."""

    template = "contract.rs"
    doc = "/// {}"
    constant = "pub const {name}: {kind} = {value};"
    opening = "pub static {name}: [{kind}; {count}] = ["

    def _more(self, _: Contract) -> Mapping[str, object]:
        return {"choices": "\n".join(f"    {_camel_case(name)}," for name in get_args(By))}

    def tokens(self, name: str, meaning: str, tokens: Sequence[int]) -> str:
        return f"/// {meaning}\npub const {name.upper()}_TOKENS: [i64; {len(tokens)}] = {list(tokens)};"

    def _row(self, array: Array, record: Record) -> str:
        return f"    {array.kind} {self._braced(record.fields)},"

    def _braced(self, fields: Fields) -> str:
        return f"{{ {', '.join(f'{name}: {self._value(name, value)}' for name, value in fields.items())} }}"

    def _value(self, name: str, value: object) -> str:
        if isinstance(value, MadeBy):
            return f"Source::{_camel_case(value.kind)}" + (f" {self._braced(value.fields)}" if value.fields else "")
        if name in ("slots", "writes"):
            inner = f"Slots {self._braced(asdict(value))}" if isinstance(value, Slots) else value
            return "None" if value is None else f"Some({inner})"
        if name == "by":
            return f"By::{_camel_case(str(value))}"
        if isinstance(value, Group):
            return f"&{value.name.upper()}"
        if isinstance(value, tuple):
            return f"&{list(value)}"
        if isinstance(value, str):
            return '"' + "".join(map(_rust_char, value)) + '"'
        return json.dumps(value)


def _camel_case(name: str) -> str:
    return "".join(word.capitalize() for word in name.split("_"))


def _rust_char(char: str) -> str:
    if char in '"\\':
        return f"\\{char}"
    return char if " " <= char <= "~" else f"\\u{{{ord(char):x}}}"


class TypeScript(_Language):
    """TypeScript, whose text is ASCII with escapes, as in JSON."""

    template = "contract.ts"
    doc = "/** {} */"
    constant = "export const {name} = {value};"
    opening = "export const {name}: readonly {kind}[] = ["

    def _more(self, _: Contract) -> Mapping[str, object]:
        return {"choices": " | ".join(map(json.dumps, get_args(By)))}

    def tokens(self, name: str, meaning: str, tokens: Sequence[int]) -> str:
        return f"/** {meaning} */\nexport const {name.upper()}_TOKENS: readonly number[] = {list(tokens)};"

    def _row(self, _: Array, record: Record) -> str:
        return f"  {self._object(record.fields)},"

    def _object(self, fields: Fields) -> str:
        named = ((_camel_case(name)[0].lower() + _camel_case(name)[1:], value) for name, value in fields.items())
        return f"{{ {', '.join(f'{name}: {self._value(value)}' for name, value in named)} }}"

    def _value(self, value: object) -> str:
        if isinstance(value, MadeBy):
            return self._object({"kind": value.kind, **value.fields})
        if isinstance(value, Slots):
            return self._object(asdict(value))
        return value.name.upper() if isinstance(value, Group) else json.dumps(value)


WRITERS = {"c": C().write, "rust": Rust().write, "typescript": TypeScript().write}
