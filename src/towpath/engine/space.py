"""Records of applications beside the queues, and the streams that other programs read.

    uploads = engine.space("upload", files(__package__) / "lua")
    upload = uploads.at(id)                            # its keys: upload:{<id>}:state, …
    await upload.run("store", token=7, number=3, chunk=b"…")
    chunk = await upload.read("chunk", number=3)

A folder has one file per script, and in `lib/` the pieces that they share. The header of a script
names its keys (`state` becomes STATE) and its arguments; it has no others (`script.py`).
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from functools import partial
from typing import TYPE_CHECKING, Any

from towpath.engine.calls import Calls
from towpath.engine.check import integer
from towpath.engine.codec import pack
from towpath.engine.durability import Durability
from towpath.engine.keys import DeclaredKeys, published_keys, record_keys
from towpath.engine.model import Call
from towpath.engine.script import INDEX_SCRIPTS, RecordScript, Scripts
from towpath.errors import InvalidName, InvalidOption, SpaceInvalid
from towpath.ids import record_id, space_name

if TYPE_CHECKING:
    from importlib.resources.abc import Traversable

MOST_KEPT = 10_000_000
_MOST_FIELDS = 100
_EXACT = 2**53
"""The largest number up to which Lua represents every integer exactly."""
_ENCODINGS: dict[str, tuple[tuple[type, ...], Callable[[Any], bytes]]] = {
    "text": ((str,), str.encode),
    "bytes": ((bytes, memoryview), lambda value: value),
    "list": ((list, tuple), pack),
}
"""Type of an argument -> its types in Python, and how it is encoded. Bytes are not copied."""
_OWN_SPACE = "towpath"


class SpaceRecord:
    """A record of an application: keys in one slot, which only its scripts change.

    Every call is one round trip, with the time limits of the engine; then it raises
    ServerUnreachable. Raises TypeError for arguments that the script does not have, InvalidOption
    for values that do not fit, and ScriptDefect if the script fails.
    """

    __slots__ = ("_calls", "_keys", "_scripts")

    def __init__(
        self,
        calls: Calls,
        scripts: Mapping[str, RecordScript],
        keys: DeclaredKeys,
    ) -> None:
        self._calls, self._scripts, self._keys = calls, scripts, keys

    async def run(
        self,
        script: str,
        /,
        *,
        call: Call | None = None,
        durability: Durability | None = None,
        **args: Any,
    ) -> Any:
        """Run a script that writes. Returns its answer: bytes, int, list or None.

        If the reply is lost, the call is repeated; it then has one effect and the same answer,
        which the server keeps for ten minutes: keep answers small. With *call*, this also holds for
        the caller's own repeats. *args* are the arguments that the header of the script names.
        Raises MemoryFull, CallStale, CallTaken; with a *durability* also DurabilityUnavailable and
        DurabilityNotReached.
        """
        found = self._script(script, writes=True)
        keys, calls, words = self._keys, self._calls, _arguments(found, args)
        if durability is None:
            return await calls.ask(keys.first, calls.plain(found, keys, words, call))
        await calls.require_replicas(durability)
        confirmed = partial(calls.confirmed, durability=durability, written=lambda: None)
        return await calls.ask(keys.first, confirmed(found, keys, words, call))

    async def read(self, script: str, /, **args: Any) -> Any:
        """Run a script that only reads. Returns its answer, of any size."""
        found = self._script(script, writes=False)
        return await self._calls.clocked(found, self._keys, *_arguments(found, args))

    # ── large values ─────────────────────────────────────────────────────────────────────
    # Lua would copy them twice in Redis, so these are plain commands. The bytes count only after a
    # script says so; where that is not enough, pass them to a script.

    async def keep(self, key: str, data: bytes | memoryview, *, expiry: int) -> None:
        """Store *data* under `<record>:<key>` for *expiry* ms, in place of what is there."""
        await self._calls.command("PSETEX", self._key(key), expiry, data)

    async def extend(self, key: str, data: bytes | memoryview, *, expiry: int) -> int:
        """Append *data* to what is stored under *key*, or store it for *expiry* ms. Returns the new
        size.

        If the size is not the expected one, the old data was gone, or the call was repeated after a
        lost reply: then the data must not be used.
        """
        name = self._key(key)
        there = ("SET", name, b"", "PX", expiry, "NX")  # so that no data is without expiry
        return int(await self._calls.command("APPEND", name, data, behind=there))

    async def values(self, keys: Sequence[str]) -> list[bytes | None]:
        """What is stored under each of these keys; None = nothing."""
        return await self._calls.command("MGET", *map(self._key, keys))

    async def part(self, key: str, start: int, size: int) -> bytes:
        """A range of the bytes stored under *key*; empty if there are none."""
        end = start + size - 1
        return await self._calls.command("GETRANGE", self._key(key), start, end)

    def _key(self, key: str) -> str:
        return f"{self._keys.first}:{key}"

    def _script(self, name: str, *, writes: bool) -> RecordScript:
        found = self._scripts.get(name)
        if found is None or found.writes is not writes:
            kind = "writes" if writes else "only reads"
            fitting = ", ".join(
                script.name for script in self._scripts.values() if script.writes is writes
            )
            raise TypeError(f"there is no script {name} that {kind}; there are: {fitting}")
        return found


class Space:
    """The records of one application: a prefix for their keys, and the scripts that change them."""

    def __init__(
        self,
        name: str,
        folder: Traversable,
        scripts: Mapping[str, RecordScript],
        calls: Calls,
    ) -> None:
        self.name, self.folder = name, folder
        self._scripts, self._calls = scripts, calls

    def at(self, id: str) -> SpaceRecord:
        """The record with that id, existing or not. Raises InvalidName."""
        return SpaceRecord(self._calls, self._scripts, record_keys(self.name, record_id(id)))

    def published(self, key: str) -> SpaceRecord:
        """The record whose only key has this name, which other programs know. Scripts call the key
        `record`. Raises InvalidName.
        """
        if set(record_id(key)) & {"{", "}"}:
            raise InvalidName("key", key, rule="must not contain braces")
        return self.record(published_keys(key))

    def record(self, keys: DeclaredKeys) -> SpaceRecord:
        """Internal: a record whose keys were published under other names than the space's."""
        return SpaceRecord(self._calls, self._scripts, keys)


class Spaces:
    """The spaces of an engine, by name."""

    def __init__(self, scripts: Scripts, calls: Calls) -> None:
        self._scripts, self._calls = scripts, calls
        self._by_name: dict[str, Space] = {}
        self.own = Space(_OWN_SPACE, INDEX_SCRIPTS, scripts.index, calls)
        """The space of the engine itself: what belongs to no queue."""

    def get(self, name: str, folder: Traversable) -> Space:
        """The space called *name*. Raises what `Engine.space` raises."""
        if space_name(name) == _OWN_SPACE:
            raise SpaceInvalid(f"space {name}", "is a prefix of the engine itself")
        space = self._by_name.get(name)
        if space is None:
            scripts = self._scripts.of_records(folder)
            space = self._by_name[name] = Space(name, folder, scripts, self._calls)
        if str(space.folder) != str(folder):
            raise SpaceInvalid(f"space {name}", f"has the scripts of {space.folder} already")
        return space


def flatten_entry(entry: Mapping[str, str | bytes]) -> list[str | bytes]:
    """The fields of a stream's entry: name, value, name, value, … Raises InvalidOption."""
    if not 1 <= len(entry) <= _MOST_FIELDS:
        raise InvalidOption("entry", len(entry), rule=f"must have 1 to {_MOST_FIELDS} fields")
    return [word for field in entry.items() for word in field]


def _arguments(script: RecordScript, given: Mapping[str, Any]) -> tuple[Any, ...]:
    """The arguments of a script as they are sent, in the order of its header."""
    if given.keys() != script.args.keys():
        raise TypeError(f"script {script.name} takes {', '.join(script.args) or 'no arguments'}")
    return tuple(_encode_argument(name, kind, given[name]) for name, kind in script.args.items())


def _encode_argument(name: str, kind: str, value: Any) -> bytes | int:
    if kind == "int":
        return integer(name, value, -_EXACT, _EXACT)
    types, encode = _ENCODINGS[kind]
    if not isinstance(value, types):
        raise InvalidOption(name, type(value).__name__, rule=f"must be {kind}")
    try:
        return encode(value)
    except (TypeError, ValueError, OverflowError) as error:
        raise InvalidOption(name, type(value).__name__, rule=f"can't be sent: {error}") from error
