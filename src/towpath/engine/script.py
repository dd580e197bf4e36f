"""The scripts: read from lua/, joined with the pieces each one names, known by their digest."""

from __future__ import annotations

import hashlib
import re
from collections.abc import Callable, Iterable, Mapping
from functools import cache
from importlib.resources import files
from types import MappingProxyType

import msgspec

from towpath.engine.options import OPTIONS

ARGS: Mapping[str, tuple[str, ...]] = MappingProxyType(
    {
        "submit": ("id", "load", "more"),
        "claim": ("worker", "lease", "count", "lane"),
        "renew": ("id", "token", "ttl"),
        "progress": ("id", "token", "note"),
        "complete": ("id", "token", "result"),
        "fail": ("id", "token", "delay", "reason"),
        "release": ("id", "token", "delay"),
        "cancel": ("id",),
        "exchange": ("settle", "claim"),
        "promote": ("limit",),
        "reap": ("limit",),
        "trim": ("limit",),
        "retry": ("id",),
        "delete": ("id",),
        "drop": ("lane",),
        "pause": (),
        "resume": (),
        "configure": ("whole", "options", "version", "over"),
        "anchor": ("clock", "born", "floor"),
        "fire": ("name", "after", "upto", "about", "jobs"),
        "forget": ("name",),
        "recurring": ("clock",),
        "look": ("clock", "id"),
        "ended": ("clock", "room", "ids"),
        "alone": ("clock", "limit"),
        "lane": ("clock", "lane", "id"),
        "list": ("clock", "state", "lane", "after", "score", "size"),
        "counts": ("clock",),
    }
)
"""Every script and its arguments in order; a test compares them with the headers."""

_HEADER = re.compile(r"\A(?:--.*\n)+")


class Header(msgspec.Struct, frozen=True):
    """What the comment at the top of a script promises."""

    title: str
    fields: dict[str, list[str]]
    """keys, args, reply, moves, cost, full, short, uses, runs: the lines of each."""


class Script(msgspec.Struct, frozen=True):
    name: str
    source: str
    sha: str


def header_of(text: str) -> Header:
    """The header of a Lua file. Raises ValueError if it has none."""
    match = _HEADER.match(text)
    if match is None:
        raise ValueError("a script must open with its header")
    lines = [line[2:].rstrip() for line in match.group().splitlines()]
    fields: dict[str, list[str]] = {}
    current: list[str] = []
    for line in lines[2:]:
        word, rest = line[1:8].strip(), line[8:].strip()
        if word:
            current = fields.setdefault(word, [])
        current.append(rest)
    return Header(lines[0].strip(), fields)


@cache
def lua_text(name: str) -> str:
    """The text of a verb, or of a piece of lib/ that verbs are joined with."""
    folder = files("towpath.engine") / "lua"
    verb = folder / f"{name}.lua"
    return (verb if verb.is_file() else folder / "lib" / f"{name}.lua").read_text("utf-8")


def _named_in(text: str, field: str) -> list[str]:
    if f"-- {field} " not in text:
        return []
    return " ".join(header_of(text).fields[field]).split()


def _joined(names: list[str]) -> list[str]:
    order: list[str] = []

    def add(piece: str) -> None:
        for used in _named_in(lua_text(piece), "uses"):
            if used not in order:
                add(used)
        if piece not in order:
            order.append(piece)

    for name in names:
        add(name)
    return order


def pieces_of(name: str) -> list[str]:
    """The names of all texts a script is made of, each once, in order, its own last."""
    return _joined([*_short_way(name), name])


def _short_way(name: str) -> list[str]:
    return _joined(_named_in(lua_text(name), "short"))


_META_FIELD = re.compile(r"\bmeta\.(\w+)|\bcount\('(\w+)'\)")
_OPTION = re.compile(r"\boptions\.(\w+)")


def _meta_fields(text: str) -> set[str]:
    """The queue's numbers that a script reads: those its text names, and no others."""
    return {first or second for first, second in _META_FIELD.findall(text)}


def _listed(name: str, fields: Iterable[str]) -> str:
    quoted = ", ".join(f"'{field}'" for field in fields)
    return f"local {name} = {{ {quoted} }}"


def _compose(name: str, edit: Callable[[str, str], str]) -> Script:
    """The pieces in one text, those of the short way first.

    The others are made only if the short way was too short for the call: in a function, because
    to make so many functions costs more than to run those that a plain job needs.
    """
    header, short = header_of(lua_text(name)), _short_way(name)
    texts = {piece: edit(piece, lua_text(piece)) for piece in pieces_of(name)}
    first = "\n".join(texts.pop(piece) for piece in short)
    rest = "\n".join(texts.values())
    if "runs" in header.fields:
        rest += f"\nreturn {header.fields['runs'][0]}"
    fields, more = _meta_fields(first), _meta_fields(rest)
    if not short:
        fields, more = more, fields
    parts = [
        f"local VERB = '{name}'",
        f"local full = '{header.fields['full'][0]}'",
        _listed("META_FIELDS", ["options", "version", *sorted(fields)]),
        first,
        "return (function()" if short else "",
        _listed("MORE_FIELDS", sorted(more - fields)),
        rest,
        "end)()" if short else "",
    ]
    source = _OPTION.sub(lambda it: f"options[{OPTIONS.index(it[1]) + 1}]", "\n".join(parts))
    digest = hashlib.sha1(source.encode(), usedforsecurity=False).hexdigest()
    return Script(name, source, digest)


def _unchanged(_name: str, text: str) -> str:
    return text


class Scripts:
    """All scripts. *edit* may change the text of each piece: how tests plant faults."""

    def __init__(self, edit: Callable[[str, str], str] = _unchanged) -> None:
        self._scripts = {name: _compose(name, edit) for name in ARGS}

    def __getitem__(self, name: str) -> Script:
        return self._scripts[name]
