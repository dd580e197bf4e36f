"""The scripts: read from lua/, joined with the pieces that each one uses, named by a digest."""

from __future__ import annotations

import hashlib
import itertools
import re
import sys
from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from functools import cache, cached_property, lru_cache
from pathlib import Path
from types import MappingProxyType
from typing import TYPE_CHECKING

import msgspec

from towpath.engine.model import LEASE_FIELDS
from towpath.engine.numbers import FIELD_OF, NUMBERS, number_bytes, number_format
from towpath.engine.options import ATTEMPTS, LANE_ATTEMPTS, LAYOUT_MARK, SCRIPTED
from towpath.errors import SpaceInvalid

if TYPE_CHECKING:
    from importlib.resources.abc import Traversable

ARGS: Mapping[str, tuple[str, ...]] = MappingProxyType(
    {
        "submit": ("id", "payload", "more"),
        "claim": (
            *("worker", "lease", "count", "lane"),
            *("away", "back", "sent", "selectors", "max_held", "called"),
        ),
        "renew": ("id", "token", "ttl"),
        "progress": ("id", "token", "note"),
        "complete": ("id", "token", "result"),
        "fail": ("id", "token", "delay", "reason", "traceback", "keep_turn"),
        "release": ("id", "token", "delay", "unhandled", "anew"),
        "cancel": ("id", "by_record", "owner"),
        "move": ("id", "due", "delay", "owner"),
        "set": ("id", "payload", "more", "owner"),
        "exchange": ("settle", "claim"),
        **dict.fromkeys(("promote", "trim"), ("limit",)),
        "reap": ("limit", "away", "back", "sent"),
        "retry": ("id",),
        "delete": ("id", "by_record"),
        "drop": ("lane",),
        **dict.fromkeys(("pause", "resume"), ()),
        "delete_queue": ("clock", "forced", "unused_for", "version"),
        "wake": ("selector",),
        "configure": ("whole", "options", "version", "over", "declared", "decided", "known"),
        "incarnation": ("clock", "born", "floor"),
        "fire": ("name", "after", "upto", "about", "jobs", "version"),
        "delete_declared": ("name",),
        "schedules": ("clock", "known"),
        "schedule": ("name", "over", "version", "about", "plan", "payload", "anew", "most"),
        "delete_schedule": ("name", "over", "version"),
        "scheduled": ("clock", "name"),
        "job_facts": ("clock", "id"),
        "ended": ("clock", "room", "ids"),
        "follow": ("clock", "wanted", "lasting", "name"),
        "lanes_without_backlog": ("clock", "limit"),
        "lane": ("clock", "lane", "id"),
        "list": ("clock", "state", "lane", "group", "after", "score", "size"),
        **dict.fromkeys(("counts", "groups"), ("clock",)),
        "history": ("clock", "kind", "span", "count"),
        "search": ("clock", "text", "looked", "count"),
    }
)
"""Every script and its arguments in order; a test compares them with the headers."""

INDEX_SCRIPTS = Path(__file__).parent / "lua" / "index"
"""The engine's own scripts that belong to no queue."""
_HEADER = re.compile(r"\A(?:--.*\n)+")


class Header(msgspec.Struct, frozen=True):
    """What the comment at the top of a script promises."""

    title: str
    fields: dict[str, list[str]]
    """keys, args, reply, moves, cost, full, short, stored, uses, runs: the lines of each."""
    stored: str
    """The word under which its calls are remembered."""


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
    stored = fields.get("stored", lines)[0].split()[0].rstrip(":")
    return Header(lines[0].strip(), fields, stored)


@cache
def lua_text(name: str) -> str:
    """The text of a verb, or of a piece of lib/ that verbs are joined with."""
    folder = Path(__file__).parent / "lua"
    verb = folder / f"{name}.lua"
    return (verb if verb.is_file() else folder / "lib" / f"{name}.lua").read_text("utf-8")


def _header_words(text: str, field: str) -> list[str]:
    if f"-- {field} " not in text:
        return []
    return " ".join(header_of(text).fields[field]).split()


def _resolve_pieces(names: list[str], text_of: Callable[[str], str] = lua_text) -> list[str]:
    order: list[str] = []

    def add(piece: str) -> None:
        for used in _header_words(text_of(piece), "uses"):
            if used not in order:
                add(used)
        if piece not in order:
            order.append(piece)

    for name in names:
        add(name)
    return order


def pieces_of(name: str) -> list[str]:
    """The names of all texts a script is made of, each once, in order, its own last."""
    return _resolve_pieces([*_short_pieces(name), name])


def _short_pieces(name: str) -> list[str]:
    return _resolve_pieces(_header_words(lua_text(name), "short"))


_NUMBER = re.compile(r"\bmeta\.(\w+)|\b(?:count|set_meta)\('(\w+)'")
_PACKED = re.compile(r"\bPACKED_([A-Z]+)\b")
_OPTION = re.compile(r"\boptions\.(\w+)")
_NUL = r"\000"


def _number_fields(text: str) -> list[str]:
    """The fields of `meta` with the numbers that a script's *text* names."""
    names = [first or second for first, second in _NUMBER.findall(text)]
    if unknown := ", ".join(sorted(set(names) - FIELD_OF.keys())):
        raise ValueError(f"a script names the number {unknown}, which engine/numbers.py lacks")
    found = {FIELD_OF[name] for name in names} | {word.lower() for word in _PACKED.findall(text)}
    return [field for field in NUMBERS if field in found]


def _quote_names(names: Iterable[str]) -> str:
    return ", ".join(f"'{name}'" for name in names)


def _zeros(field: str) -> str:
    return _NUL * number_bytes(field)


def _unpack_expressions(fields: Sequence[str], at: int) -> list[tuple[str, str]]:
    """For each field: its names in `meta`, and the Lua expression that reads them in `values`."""
    return [
        (
            ", ".join(f"meta.{name}" for name in NUMBERS[field]),
            f"struct.unpack('{number_format(field)}', values[{place}] or '{_zeros(field)}')",
        )
        for place, field in enumerate(fields, at)
    ]


def _lua_to_read(fields: Sequence[str]) -> str:
    """Lua that makes `meta` from `values`, in one step: a growing table is made several times."""
    names = [name for field in fields for name in NUMBERS[field]]
    table = ", ".join(f"{name} = {name}" for name in names)
    return "\n".join([*_lua_to_read_locals(fields), f"meta = {{ {table} }}"])


def _lua_to_read_locals(fields: Sequence[str]) -> list[str]:
    """Lua that makes a variable of each number in `values`."""
    return [
        f"local {names.replace('meta.', '')} = {text}"
        for names, text in _unpack_expressions(fields, 3)
    ]


def _lua_to_read_more(fields: Sequence[str]) -> str:
    """Lua that reads more fields into `meta`, with a command of its own."""
    if not fields:
        return ""
    read = [f"{names} = {text}" for names, text in _unpack_expressions(fields, 1)]
    return "\n".join([f"local values = redis.call('HMGET', META, {_quote_names(fields)})", *read])


def _lua_to_pack(field: str) -> str:
    names = ", ".join(f"meta.{name}" for name in NUMBERS[field])
    return f"struct.pack('{number_format(field)}', {names})"


def _number_constants(fields: Sequence[str], more: Sequence[str]) -> dict[str, str]:
    """The constants of the queue's numbers: *fields* are read first, *more* on the long way."""
    every = [*fields, *more]
    names = [f"{name} = '{field}'" for field in every for name in NUMBERS[field]]
    writing = [
        f"if meta_changes['{field}'] then add('{field}', {_lua_to_pack(field)}) end"
        for field in every
    ]
    tables = [
        f"['{field}'] = {{ '{number_format(field)}', {_quote_names(NUMBERS[field])} }}"
        for field in NUMBERS
    ]
    read_options = (
        f"local {', '.join(SCRIPTED.names)} = struct.unpack('{SCRIPTED.format}', packed, 9)"
    )
    return {
        "READ_LOCALS": "\n".join([read_options, *_lua_to_read_locals(["in", "state"])]),
        "META_FIELDS": _quote_names(["options", "version", *fields]),
        "READ_NUMBERS": _lua_to_read(fields),
        "READ_MORE_NUMBERS": _lua_to_read_more(more),
        "WRITE_NUMBERS": "\n".join(writing),
        "FIELD_OF": f"{{ {', '.join(names)} }}",
        "NUMBER_FIELDS": f"{{ {', '.join(tables)} }}",
        **{f"PACKED_{field.upper()}": _lua_to_pack(field) for field in NUMBERS},
    }


def _option_constants() -> dict[str, str]:
    """The constants of the queue's options."""
    names = SCRIPTED.names
    places = (f"{name} = {at}" for at, name in enumerate(names, 1))
    return {
        "LAYOUT": f"'{LAYOUT_MARK}'",
        "OPTIONS_FORM": f"'{SCRIPTED.form}'",
        "OPTIONS_FORMAT": f"'{SCRIPTED.format}'",
        "OPTION_DEFAULTS": f"{{ {', '.join(map(SCRIPTED.default, names))} }}",
        "OPTION_PLACES": f"{{ {', '.join(places)} }}",
        "LANE_ATTEMPTS": str(LANE_ATTEMPTS),
        "ATTEMPTS": str(ATTEMPTS),
    }


_WORDS = re.compile(r"\b[A-Z]+\b(?! *(?:, [A-Z, ]+)?= tag)")
_KEY_NAMES = re.compile(r"^local ([A-Z, ]+) = (tag \.\. .*?) *(?:--.*)?$", re.MULTILINE)


def _keep_named_keys(text: str, named: Collection[str], *, with_code: bool = True) -> str:
    """A piece that makes only those keys that are *named*, because every call makes them again."""

    def chosen(match: re.Match[str]) -> str:
        pairs = zip(match[1].split(", "), match[2].split(", "), strict=True)
        return "\n".join(f"local {key} = {made}" for key, made in pairs if key in named)

    if with_code:
        return _KEY_NAMES.sub(chosen, text)
    return "\n".join(chosen(match) for match in _KEY_NAMES.finditer(text))


def _compose(name: str, edit: Callable[[str, str], str]) -> Script:
    """The pieces in one text, those of the short way first.

    The others are inside one function, which runs only if the short way can't handle the call:
    to create so many functions costs more than to run those that a plain job needs.
    """
    header, short = header_of(lua_text(name)), _short_pieces(name)
    texts = {piece: edit(piece, lua_text(piece)) for piece in pieces_of(name)}
    made = [texts.pop(piece) for piece in short]
    later = list(texts.values())
    if "runs" in header.fields:
        later.append(f"return {header.fields['runs'][0]}")
    every = _WORDS.findall("\n".join([*made, *later]))
    named = set(_WORDS.findall("\n".join(made))) if short else set(every)
    kept = [_keep_named_keys(text, named) for text in made]
    first = "\n".join(kept)
    missing = [_keep_named_keys(text, set(every) - named, with_code=False) for text in made]
    rest = "\n".join([*missing, *(_keep_named_keys(text, set(every)) for text in later)])
    fields, more = _number_fields(first), _number_fields(rest)
    if not short:
        fields, more = more, fields
    more = [field for field in more if field not in fields]
    parts = [
        edit("", ""),
        f"local VERB = '{header.stored}'",
        f"local full = '{header.fields['full'][0]}'",
        first,
        "return (function()" if short else "",
        f"local LEASE_FIELDS = {{ {_quote_names(LEASE_FIELDS)} }}"
        if "LEASE_FIELDS" in rest
        else "",
        rest,
        "end)()" if short else "",
    ]
    source = "\n".join(parts)
    # Constants replace their names in the text, because each call would create a local again.
    constants = _number_constants(fields, more) | _option_constants()
    source = _without_comments(source)
    for constant, value in constants.items():
        source = re.sub(rf"\b{constant}\b", lambda _, value=value: value, source)
    source = _OPTION.sub(lambda match: f"options[{SCRIPTED.names.index(match[1]) + 1}]", source)
    return Script(name, source, _digest(source))


def _without_comments(text: str) -> str:
    return _COMMENT.sub(lambda match: match[1] or "", text)


def _digest(source: str) -> str:
    return hashlib.sha1(source.encode(), usedforsecurity=False).hexdigest()


class Scripts(dict[str, Script]):
    """All scripts, by name. Tests plant faults with *edit*: it may change the text of each piece,
    and the text before the first one, which has an empty name.
    """

    def __init__(self, edit: Callable[[str, str], str] = lambda _, text: text) -> None:
        super().__init__({name: _compose(name, edit) for name in ARGS})
        self._edit = edit

    @cached_property
    def index(self) -> dict[str, RecordScript]:
        """The scripts of `INDEX_SCRIPTS`."""
        return self.of_records(INDEX_SCRIPTS)

    def of_records(self, folder: Traversable) -> dict[str, RecordScript]:
        """The scripts in the folder of a space. Each is about one entry of the space, and gets only
        the keys and arguments that its header names.

        Raises SpaceInvalid for one whose header or pieces cannot be read. Whether a script keeps to
        its header is for a test: `towpath.testing.check_scripts`.
        """
        files = folder.iterdir() if folder.is_dir() else ()
        names = sorted(file.name for file in files if file.name.endswith(".lua"))
        if not names:
            raise SpaceInvalid(str(folder), "has no scripts")
        return {name[:-4]: _compose_record(folder, name[:-4], self._edit) for name in names}


@lru_cache(maxsize=1)
def shipped_scripts() -> Scripts:
    """The scripts as they are shipped: composed once in a process, which takes some 50 ms."""
    return Scripts()


# ── scripts about records ────────────────────────────────────────────────────────────────

KEY_TYPES = ("string", "hash", "list", "set", "zset", "stream")
_WRITING = (
    "APPEND|DECRBY|DEL|GETDEL|HDEL|HINCRBY|HSET|HSETNX|INCRBY|LPOP|LPUSH|LREM|LSET|LTRIM|PERSIST|"
    "PEXPIRE|PEXPIREAT|RENAME|RPOP|RPUSH|SADD|SET|SETBIT|SETRANGE|SREM|UNLINK|XADD|XDEL|XTRIM|ZADD|"
    "ZINCRBY|ZPOPMAX|ZPOPMIN|ZREM|ZREMRANGEBYRANK|ZREMRANGEBYSCORE"
)
"""The writing commands that scripts of spaces may use. A script with one of them remembers its
calls."""
_ARGUMENTS = {
    "int": "tonumber(ARGV[%d])",
    "text": "ARGV[%d]",
    "bytes": "ARGV[%d]",
    "list": "cmsgpack.unpack(ARGV[%d])",
}
"""The types of arguments, and how a script reads them."""
_REQUIRED_FIELDS = ("keys", "args", "reply", "cost", "full")
_SHARED_PIECES = ("clock",)
"""The engine's pieces that other scripts may use."""
_NAME, _WORD = re.compile(r"[a-z]+"), re.compile(r"[a-z]+(?:_[a-z]+)*")
_KEY = re.compile(rf"{_WORD.pattern}:?")
_RESERVED = re.compile(
    "call|durability|now|and|break|do|else|elseif|end|false|for|function|if|in|local|nil|not|or|"
    "repeat|return|then|true|until|while"
)
"""Names that arguments can't have: options of a call, `now`, and the keywords of Lua."""
LUA_STRING = r"'(?:\\.|[^'\\\n])*'|\"(?:\\.|[^\"\\\n])*\""
_COMMENT = re.compile(rf"({LUA_STRING})|--[^\n]*")
_WRITE = re.compile(rf"\bredis\.p?call\(\s*['\"](?:{_WRITING})['\"]")


class RecordScript(Script, frozen=True):
    """A script about one record."""

    keys: dict[str, str]
    """Name -> type. A name that ends with a colon stands for all keys that begin with it."""
    args: dict[str, str]
    writes: bool
    own: str
    """The text of its file and of its own pieces, without comments."""


def _compose_record(
    folder: Traversable, name: str, edit: Callable[[str, str], str]
) -> RecordScript:
    """Join keys, arguments and pieces. A script that writes also remembers its calls."""

    def text_of(piece: str) -> str:
        file = folder / f"{name}.lua" if piece == name else folder / "lib" / f"{piece}.lua"
        return lua_text(piece) if piece in _SHARED_PIECES else file.read_text("utf-8")

    try:
        header, pieces = header_of(text_of(name)), _resolve_pieces([name], text_of)
    except (OSError, ValueError) as error:
        raise SpaceInvalid(name, str(error)) from error
    keys, args = _check_header(name, header)
    texts = {piece: edit(piece, text_of(piece)) for piece in pieces}
    offered = [texts.pop(piece) for piece in pieces if piece in _SHARED_PIECES]
    own = _without_comments("\n".join(texts.values()))
    writes = _WRITE.search(own) is not None
    at = itertools.count(4 if writes else 2)
    parts = [
        *offered,
        *(f"local {constant_name(key)} = KEYS[1] .. '{_key_suffix(key)}'" for key in keys),
        *(f"local {arg} = {_ARGUMENTS[kind] % next(at)}" for arg, kind in args.items()),
        *texts.values(),
    ]
    source = "\n".join(_wrap_in_memory(parts, header, edit) if writes else parts)
    return RecordScript(name, source, _digest(source), keys, args, writes, own)


def _wrap_in_memory(own: list[str], header: Header, edit: Callable[[str, str], str]) -> list[str]:
    """Put a script's own parts into a function, and the code that remembers its calls around it.

    The function keeps the names of the two apart. With memory full, Redis refuses a script whose
    first write may need memory: a script that must work then first deletes a key that never exists.
    An error is not remembered, so the call may be made again.
    """
    return [
        f"local VERB, CALL = '{header.stored}', string.sub(KEYS[2], 1, -6) .. 'call:'",
        edit("calls", lua_text("calls")),
        "if remembered then return remembered[1] end",
        "redis.call('UNLINK', KEYS[2])" if header.fields["full"][0] == "works" else "",
        "local answer = (function()",
        *own,
        "end)()",
        "if type(answer) ~= 'table' or not answer.err then remember({ answer }) end",
        "return answer",
    ]


def _check_header(name: str, header: Header) -> tuple[dict[str, str], dict[str, str]]:
    """The keys and the arguments of a header, each with its type."""
    if _WORD.fullmatch(name) is None or not header.title.startswith(f"{name}: "):
        raise SpaceInvalid(name, "must be named by letters a-z, in its header's first line too")
    if _NAME.fullmatch(header.stored) is None:
        raise SpaceInvalid(name, "a name of several words needs one word in the line `stored`")
    if missing := [field for field in _REQUIRED_FIELDS if not header.fields.get(field)]:
        raise SpaceInvalid(name, f"its header lacks: {', '.join(missing)}")
    if header.fields["full"][0] not in {"works", "refused"}:
        raise SpaceInvalid(name, "full must be works or refused")
    keys = _parse_typed(name, "key", header.fields["keys"], _KEY, KEY_TYPES)
    args = _parse_typed(name, "argument", header.fields["args"], _WORD, _ARGUMENTS.keys())
    taken = [key for key in keys if key in {"never", "call", "call:"}]
    if taken := taken + [arg for arg in args if _RESERVED.fullmatch(arg)]:
        raise SpaceInvalid(name, f"the name {taken[0]} is taken")
    return keys, args


def _parse_typed(
    name: str, what: str, lines: list[str], rule: re.Pattern[str], types: Collection[str]
) -> dict[str, str]:
    found: dict[str, str] = {}
    for line in [] if lines == ["none"] else lines:
        word, kind, sentence = [*line.split(None, 2), "", ""][:3]
        if rule.fullmatch(word) is None or kind not in types or not sentence or word in found:
            problem = f"each {what} needs a name of its own, a type and a sentence: {line!r}"
            raise SpaceInvalid(name, f"{problem}; types are {', '.join(sorted(types))}")
        found[word] = kind
    return found


def constant_name(key: str) -> str:
    return key.rstrip(":").upper()


def _key_suffix(key: str) -> str:
    return "" if key == "record" else f":{key}"


if __name__ == "__main__":
    if sys.argv[1:2] == []:
        print(*ARGS, sep="\n")  # noqa: T201 -- what it is for
    elif sys.argv[1] in ARGS:
        print(Scripts()[sys.argv[1]].source)  # noqa: T201 -- what it is for
    else:
        sys.exit(f"{sys.argv[1]} is not a script; there are {', '.join(ARGS)}")
