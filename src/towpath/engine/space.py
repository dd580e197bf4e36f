"""Records beside the queues: applications' own, and the streams that outsiders read.

    uploads = engine.space("upload", files(__package__) / "lua")
    upload = uploads.at(id)                            # its keys: upload:{<id>}:state, …
    await upload.run("store", token=7, number=3, chunk=b"…")
    chunk = await upload.read("chunk", number=3)

A folder has one file per script, and in `lib/` the pieces they share. Its header gives a script
its keys (`state` becomes STATE) and its arguments by name; it has no others (`script.py`).
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from functools import partial
from importlib.resources import files
from importlib.resources.abc import Traversable
from typing import Any

from towpath.engine.batcher import LARGEST_BATCH
from towpath.engine.channel import Channels
from towpath.engine.check import whole
from towpath.engine.codec import pack
from towpath.engine.durability import Durability
from towpath.engine.keys import DeclaredKeys, published_keys, record_keys, stream_keys
from towpath.engine.model import Call
from towpath.engine.script import RecordScript, Scripts
from towpath.engine.store import Store
from towpath.errors import InvalidName, InvalidOption, SpaceInvalid
from towpath.ids import channel_name, record_id, space_name, stream_name

MOST_KEPT = 10_000_000
_MOST_FIELDS = 100
_EXACT = 2**53
"""Up to here the numbers of Lua are exact."""
_SENT: dict[str, tuple[tuple[type, ...], Callable[[Any], bytes]]] = {
    "text": ((str,), str.encode),
    "bytes": ((bytes, memoryview), lambda value: value),
    "list": ((list, tuple), pack),
}
"""Of each type of argument, what it may be and how it is sent. Bytes are not copied."""
_ENGINES_OWN = "towpath"
BESIDE = files("towpath.engine") / "lua" / "beside"
"""The engine's own scripts that are about no queue."""


class SpaceRecord:
    """What one application keeps about one thing: keys that share a slot, changed by its scripts.

    Every call is one round trip, with the time limits of the engine's own: ServerUnreachable when
    they are over. Both methods raise TypeError for arguments that the script does not have,
    InvalidOption for values that they can't be, and ScriptDefect for a script that fails.
    """

    __slots__ = ("_channels", "_keys", "_scripts")

    def __init__(
        self,
        channels: Callable[[], Channels],
        scripts: Mapping[str, RecordScript],
        keys: DeclaredKeys,
    ) -> None:
        self._channels, self._scripts, self._keys = channels, scripts, keys

    async def run(
        self,
        script: str,
        /,
        *,
        call: Call | None = None,
        durability: Durability | None = None,
        **args: Any,
    ) -> Any:
        """The answer of a script that writes: bytes, int, list or None.

        Sent again after a lost reply, it has one effect and one answer, which the server keeps for
        ten minutes: so let it be small. Under the same *call* that holds for the caller's own
        repeats. Raises MemoryFull, CallStale, CallTaken; at a *durability* also
        DurabilityUnavailable and DurabilityNotReached.
        """
        found = self._script(script, writes=True)
        keys, channels, words = self._keys, self._channels(), _arguments(found, args)
        if durability is None:
            return await channels.ask(keys.first, channels.plain(found, keys, words, call))
        await channels.require_replicas(durability)
        confirmed = partial(channels.confirmed, durability=durability, written=lambda: None)
        return await channels.ask(keys.first, confirmed(found, keys, words, call))

    async def read(self, script: str, /, **args: Any) -> Any:
        """The answer of a script that only reads. Nothing is kept of it, however large."""
        found = self._script(script, writes=False)
        return await self._channels().clocked(found, self._keys, *_arguments(found, args))

    # ── large values ─────────────────────────────────────────────────────────────────────
    # Lua would copy them twice on the server. So these are plain commands, for bytes that count
    # only when a script says so; where that must not be, pass them to a script.

    async def keep(self, key: str, data: bytes | memoryview, *, expiry: int) -> None:
        """Put *data* under `<record>:<key>`, in place of whatever is there, for *expiry* ms."""
        await self._channels().command("PSETEX", self._key(key), expiry, data)

    async def extend(self, key: str, data: bytes | memoryview, *, expiry: int) -> int:
        """Put *data* behind what is under a key, or there for *expiry* ms: how many bytes it has.

        Other than expected: what was there is gone, or this was sent twice because a reply was
        lost. Then nobody must take it for what it should be.
        """
        name = self._key(key)
        there = ("SET", name, b"", "PX", expiry, "NX")  # so that nothing is there without its end
        return int(await self._channels().command("APPEND", name, data, behind=there))

    async def values(self, keys: Sequence[str]) -> list[bytes | None]:
        """What is under each of these keys; None = nothing."""
        return await self._channels().command("MGET", *map(self._key, keys))

    async def part(self, key: str, start: int, size: int) -> bytes:
        """Some of the bytes under a key; empty = there are none."""
        end = start + size - 1
        return await self._channels().command("GETRANGE", self._key(key), start, end)

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
    """The records of one application: a prefix of its own, and the scripts that change them."""

    def __init__(
        self,
        name: str,
        folder: Traversable,
        scripts: Mapping[str, RecordScript],
        channels: Callable[[], Channels],
    ) -> None:
        self.name, self.folder = name, folder
        self._scripts, self._channels = scripts, channels

    def at(self, id: str) -> SpaceRecord:
        """The record of that id, there or not. Raises InvalidName."""
        return SpaceRecord(self._channels, self._scripts, record_keys(self.name, record_id(id)))

    def published(self, key: str) -> SpaceRecord:
        """The record whose only key has that very name, which outsiders know: its scripts call it
        `record`. Raises InvalidName.
        """
        if set(record_id(key)) & {"{", "}"}:
            raise InvalidName("key", key, rule="must not contain braces")
        return self.record(published_keys(key))

    def record(self, keys: DeclaredKeys) -> SpaceRecord:
        """A record whose keys were published under other names than the space's."""
        return SpaceRecord(self._channels, self._scripts, keys)


class Spaces:
    """What an engine offers beside queues."""

    _store: Store
    _scripts: Scripts
    _spaces: dict[str, Space]

    def space(self, name: str, scripts: Traversable) -> Space:
        """The space of that name, whose scripts are those of a folder: one file each.

        An application asks for it when it starts, before the engine is entered or after. Raises
        InvalidName; SpaceInvalid for a name that another folder's scripts have, and for scripts
        that break a rule.
        """
        if space_name(name) == _ENGINES_OWN:
            raise SpaceInvalid(f"space {name}", "is a prefix of the engine itself")
        return self._claimed(name, scripts)

    def _claimed(self, name: str, folder: Traversable) -> Space:
        space = self._spaces.get(name)
        if space is None:
            scripts = self._scripts.of_records(folder)
            space = Space(name, folder, scripts, lambda: self._store.channels)
            self._spaces[name] = space
        if str(space.folder) != str(folder):
            raise SpaceInvalid(f"space {name}", f"has the scripts of {space.folder} already")
        return space

    def schedule_index(self) -> SpaceRecord:
        """What says which queues have schedules that were made at run time."""
        return self._claimed(_ENGINES_OWN, BESIDE).at("schedules")

    def worker_index(self) -> SpaceRecord:
        """Where workers tell that they live."""
        return self._claimed(_ENGINES_OWN, BESIDE).at("workers")

    async def publish(
        self, stream: str, entries: Sequence[Mapping[str, str | bytes]], *, cap: int
    ) -> list[str]:
        """Append *entries* to `towpath:stream:<stream>`, whole or not at all; their ids.

        The stream keeps at least the last *cap* entries and not many more. A call that was given up
        may have appended them: put something into each by which a reader knows it. At most
        LARGEST_BATCH entries. Raises MemoryFull, ServerUnreachable and, before anything is sent,
        InvalidName, InvalidOption. One round trip.
        """
        keys, cap = stream_keys(stream_name(stream)), whole("cap", cap, 1, MOST_KEPT)
        if not 1 <= len(entries) <= LARGEST_BATCH:
            raise InvalidOption("entries", len(entries), rule=f"from 1 to {LARGEST_BATCH}")
        record = self._claimed(_ENGINES_OWN, BESIDE).record(keys)
        ids: list[bytes] = await record.run("append", cap=cap, entries=list(map(_words, entries)))
        return [id.decode() for id in ids]

    async def broadcast(self, channel: str, message: bytes) -> int:
        """Tell whoever subscribes to *channel* right now; how many, as far as the server says.

        Nothing is kept of it, and it may be told twice: for watching, never for work. Raises
        InvalidName, ServerUnreachable and, for a user who may not publish there, ServerRefused.
        """
        return await self._store.channels.command("PUBLISH", channel_name(channel), message)


def _words(entry: Mapping[str, str | bytes]) -> list[str | bytes]:
    if not 1 <= len(entry) <= _MOST_FIELDS:
        raise InvalidOption("entry", len(entry), rule=f"must have 1 to {_MOST_FIELDS} fields")
    return [word for field in entry.items() for word in field]


def _arguments(script: RecordScript, given: Mapping[str, Any]) -> tuple[Any, ...]:
    """What a script is sent, in the order of its header."""
    if given.keys() != script.args.keys():
        raise TypeError(f"script {script.name} takes {', '.join(script.args) or 'no arguments'}")
    return tuple(_sent(name, kind, given[name]) for name, kind in script.args.items())


def _sent(name: str, kind: str, value: Any) -> bytes | int:
    if kind == "int":
        return whole(name, value, -_EXACT, _EXACT)
    types, sent = _SENT[kind]
    if not isinstance(value, types):
        raise InvalidOption(name, type(value).__name__, rule=f"must be {kind}")
    try:
        return sent(value)
    except (TypeError, ValueError, OverflowError) as error:
        raise InvalidOption(name, type(value).__name__, rule=f"can't be sent: {error}") from error
