"""Checks that the scripts of a space keep to their headers. Run by tests, not when a space is used:
a script that breaks a rule harms only its own application.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from typing import TYPE_CHECKING

from towpath.engine.script import (
    LUA_STRING,
    RecordScript,
    Scripts,
    constant_name,
)
from towpath.errors import SpaceInvalid

if TYPE_CHECKING:
    from importlib.resources.abc import Traversable

_COMMANDS = {
    "any": ("EXISTS PTTL TYPE", "DEL PERSIST PEXPIRE PEXPIREAT UNLINK"),
    "string": (
        "BITCOUNT BITPOS GET GETBIT GETRANGE MGET STRLEN",
        "APPEND DECRBY GETDEL INCRBY RENAME SET SETBIT SETRANGE",
    ),
    "hash": (
        "HEXISTS HGET HGETALL HKEYS HLEN HMGET HSTRLEN HVALS",
        "HDEL HINCRBY HSET HSETNX",
    ),
    "list": ("LINDEX LLEN LRANGE", "LPOP LPUSH LREM LSET LTRIM RPOP RPUSH"),
    "set": ("SCARD SISMEMBER SMEMBERS SMISMEMBER", "SADD SREM"),
    "zset": (
        "ZCARD ZCOUNT ZMSCORE ZRANGE ZRANGEBYSCORE ZRANK ZREVRANGE ZREVRANGEBYSCORE ZSCORE",
        "ZADD ZINCRBY ZPOPMAX ZPOPMIN ZREM ZREMRANGEBYRANK ZREMRANGEBYSCORE",
    ),
    "stream": ("XLEN XRANGE XREVRANGE", "XADD XDEL XTRIM"),
}
"""The allowed commands, by type of key: those that read, and those that write. Redis 6.2 has all of
them, and their keys come first."""
_ALL_KEYS = ("DEL", "EXISTS", "MGET", "RENAME", "UNLINK")
"""Commands of which every argument is a key."""
_TOKEN = re.compile(rf"{LUA_STRING}|.", re.DOTALL)
_FORBIDDEN = re.compile(r"\b(?:KEYS|ARGV|_G)\b|\[=*\[|\bredis\b(?!\.(?:call|pcall|error_reply)\()")
_CALL = re.compile(r"\bredis\.p?call\(")


def check_scripts(folder: Traversable) -> None:
    """Check the scripts in the folder of a space. Raises SpaceInvalid for one that breaks a rule.

    Each command must be for a key of the script's header, and for the type of that key. So the
    script can't leave the slot of its entry, and the header is true. Call it in a test of your
    application.
    """
    types: dict[str, str] = {}
    for script in Scripts().of_records(folder).values():
        for key, kind in script.keys.items():
            if types.setdefault(key, kind) != kind:
                raise SpaceInvalid(script.name, f"key {key} is a {types[key]} elsewhere")
        _check_commands(script)


def writing_commands() -> set[str]:
    """The writing commands that scripts of spaces may use."""
    return {command for _, writes in _COMMANDS.values() for command in writes.split()}


def _check_commands(script: RecordScript) -> None:
    name, keys, code = script.name, script.keys, script.own
    bare = re.sub(LUA_STRING, lambda match: "_" * len(match[0]), code)
    types = {own.upper(): keys[own] for own in keys}
    names = "|".join(map(constant_name, keys)) or "-"
    if found := _FORBIDDEN.search(bare):
        raise SpaceInvalid(name, f"must not use {found[0]}")
    if found := re.search(rf"\b({names})\b\s*(?:,[\w\s,]*)?=(?!=)", bare):
        raise SpaceInvalid(name, f"must not change {found[1]}")
    for call in _CALL.finditer(bare):
        command, *words = _arguments(code[call.end() :])
        _check_command(name, command.strip("'\""), words, types)


def _check_command(name: str, command: str, words: list[str], types: Mapping[str, str]) -> None:
    """Raises SpaceInvalid unless each key of the command is in *types*, with a type that it has."""
    for word in (words if command in _ALL_KEYS else words[:1]) or [""]:
        key, _, more = map(str.strip, word.partition(".."))
        kind = types.get(key + ":" * bool(more))
        if kind is None:
            raise SpaceInvalid(name, f"{command} {word}: {word} is not a key in its header")
        reads, writes = (f"{_COMMANDS['any'][n]} {_COMMANDS[kind][n]}".split() for n in (0, 1))
        if command not in reads + writes:
            raise SpaceInvalid(name, f"{command} is not an allowed command for a {kind}")


def _arguments(code: str) -> list[str]:
    """The arguments of a call whose parenthesis was opened just before *code*."""
    found, depth = [""], 0
    for part in _TOKEN.findall(code):
        if depth == 0 and part == ")":
            break
        if depth == 0 and part == ",":
            found.append("")
            continue
        depth += (part in "([{") - (part in ")]}")
        found[-1] += part
    return [argument.strip() for argument in found]
