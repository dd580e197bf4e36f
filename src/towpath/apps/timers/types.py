"""The types of timers: their queues, who serves them, and who owns those without an app.

A type exists from its first timer or its first worker on, and is deleted when it is unused. All
types are in one entry of a space in Redis; its version changes when types or owners do.
"""

from __future__ import annotations

import asyncio
import re
from collections.abc import AsyncGenerator, Sequence
from datetime import datetime
from hashlib import sha256
from importlib.resources import files
from typing import Any, NamedTuple

import msgspec

from towpath.apps.timers.errors import TimerTypeAmbiguous, TimerTypesFull, TimerTypeTaken
from towpath.apps.timers.model import PREFIX, TIMER_OPTIONS, TypeKey
from towpath.apps.timers.options import TimersOptions
from towpath.clock import Duration, duration_ms, instant, seconds
from towpath.engine.engine import Engine
from towpath.engine.space import SpaceRecord
from towpath.errors import ServerError
from towpath.ids import QueueName, queue_name, worker_name
from towpath.recent import RecentCache

ALIVE = seconds(30)
"""How long a worker or an instance counts as alive after its last heartbeat."""
READ_EVERY_S = 0.5
"""Seconds between two checks whether types have changed."""
_ENSURED_FOR_S = 1.0
"""Seconds in which `ensure` does not write the same type again."""
SCRIPTS = files("towpath.apps.timers") / "lua"

# ── names ────────────────────────────────────────────────────────────────────────────────

# A queue name has at most 64 characters of a-z, 0-9, '.', '_' and '-'. Here, '--' separates app and
# type, and '__' a hash. Names with one of them are never used unchanged, so no two types share a
# queue.
_PLAIN = re.compile(r"(?!.*(?:--|__))(?!-)[a-z0-9._-]+(?<!-)")
_LONGEST = 64 - len(PREFIX)
_HASH = 24


def queue_of(key: TypeKey) -> QueueName:
    """Returns the queue of a type: `timers.order.timeout`, or `timers.shop--order.timeout` with an
    app. A name that does not fit into a queue name is shortened, and gets a hash.
    """
    parts = [key.task_type] if key.app is None else [key.app, key.task_type]
    plain = "--".join(parts)
    if len(plain) <= _LONGEST and all(map(_PLAIN.fullmatch, parts)):
        return queue_name(PREFIX + plain)
    room = (_LONGEST - _HASH - 2 - 2 * (len(parts) - 1)) // len(parts)
    readable = "--".join(_readable(part)[:room].strip("-_.") for part in parts)
    digest = sha256(msgspec.json.encode([key.app, key.task_type])).hexdigest()[:_HASH]
    return queue_name(f"{PREFIX}{readable}__{digest}")


def _readable(name: str) -> str:
    return re.sub(r"[^a-z0-9.]+", "-", name.lower()).strip("-")


# ── types ────────────────────────────────────────────────────────────────────────────────


class Owner(NamedTuple):
    """The owner of a type: plug-in workers, or an app."""

    app: str | None = None
    """None = plug-in workers."""

    def __str__(self) -> str:
        return "plug-in workers" if self.app is None else f"app {self.app}"


class TypeInfo(msgspec.Struct, frozen=True, kw_only=True):
    """A type as it is at one moment."""

    key: TypeKey
    queue: QueueName
    owner: Owner | None
    """The owner; for the type of an app, that app. None = no worker or app has registered yet."""
    alive: int
    """Number of live workers or instances that serve it."""
    last_alive: datetime | None
    """When one of them was last alive (now, if one is); None = there never was one."""
    used_at: datetime
    """When a timer was last submitted, or the last heartbeat of a worker or an instance came."""


class Types:
    """The types on one Redis. Calls take one round trip, unless they introduce queues."""

    def __init__(self, engine: Engine, options: TimersOptions) -> None:
        self._engine = engine
        self._record: SpaceRecord = engine.space("timers", SCRIPTS).at("types")
        self._most, self._unused = options.types, options.unused
        self._keeps = duration_ms("owner_keeps", options.owner_keeps)
        self._ensured = RecentCache[TypeKey, QueueName](self._most, _ENSURED_FOR_S)

    async def ensure(self, key: TypeKey) -> QueueName:
        """Create the type *key* unless it exists, and store when it was used. Returns its queue.

        To be called before a timer is submitted. Takes no round trip for a type that was ensured
        within the last second. Raises TimerTypesFull, and TimerTypeAmbiguous for a type without an
        app that several apps serve.
        """
        known = self._ensured.get(key)
        if known is not None:
            return known
        queue = queue_of(key)
        await self._engine.queues.introduce(queue, TIMER_OPTIONS)
        answer = await self._record.run(
            "ensure",
            app=key.app or "",
            name=key.task_type,
            key=_packed(key),
            queue=queue,
            owner_keeps=self._keeps,
            most=self._most,
        )
        self._raise_refusal(answer, key.task_type)
        self._ensured.put(key, queue)
        return queue

    async def serve(
        self, app: str | None, task_types: Sequence[str], *, who: str, alive: Duration = ALIVE
    ) -> list[QueueName]:
        """Register that *who* (a plug-in worker or an instance of *app*) serves these types, for
        *alive* from now; repeat it in time. Returns the queues of the types, in order.

        An app also serves a type without an app if it owns that type (see `all`). Registers all
        types or none. Raises TimerTypeTaken if one belongs to another owner, TimerTypesFull.
        """
        keys = [TypeKey(name, app) for name in task_types]
        queues = [queue_of(key) for key in keys]
        for queue in queues:
            await self._engine.queues.introduce(queue, TIMER_OPTIONS)
        answer = await self._record.run(
            "serve",
            app=app or "",
            who=worker_name(who),
            types=_types(keys),
            alive=duration_ms("alive", alive),
            owner_keeps=self._keeps,
            most=self._most,
        )
        self._raise_refusal(answer, "")
        return queues

    async def leave(self, app: str | None, task_types: Sequence[str], *, who: str) -> None:
        """Register that *who* does not serve these types any more. Ignores types that it did not
        serve.
        """
        keys = [TypeKey(name, app) for name in task_types]
        await self._record.run("leave", app=app or "", who=worker_name(who), types=_types(keys))

    async def all(self) -> list[TypeInfo]:
        """Returns all types, sorted by name."""
        return (await self._listing())[1]

    async def idle(self) -> list[TypeInfo]:
        """Returns the types that have no live worker or instance and were not used for long."""
        now, rows = await self._listing()
        return [info for info in rows if not info.alive and now - info.used_at >= self._unused]

    async def version(self) -> int:
        """Returns a number that grows when a type is added or deleted, or an owner changes."""
        return int(await self._record.read("version"))

    async def follow(self) -> AsyncGenerator[list[TypeInfo]]:
        """Yields all types now, and again within a second after each change of types or owners.

        Waits while Redis is away.
        """
        last = -1
        while True:
            try:
                version = await self.version()
                if version != last:
                    found = await self.all()
                    last = version
                    yield found
            except ServerError:
                last = -1  # read all types again, as a change may have been missed
            await asyncio.sleep(READ_EVERY_S)

    async def delete(self, info: TypeInfo) -> bool:
        """Delete an unused type. Returns False if it was used after *info* was read."""
        self._ensured.pop(info.key)
        answer = await self._record.run(
            "delete_type",
            app=info.key.app or "",
            name=info.key.task_type,
            key=_packed(info.key),
            queue=info.queue,
            seen=round(info.used_at.timestamp() * 1000),
        )
        return answer == b"ok"

    async def _listing(self) -> tuple[datetime, list[TypeInfo]]:
        """Returns Redis's time and all types."""
        now, rows, flat = await self._record.read("listing")
        owners = {flat[i].decode(): flat[i + 1].decode() for i in range(0, len(flat), 2)}
        found = {info.key: info for info in (_info(row, owners, now) for row in rows)}
        infos = [_with_owners_instances(found[key], found) for key in sorted(found, key=_order)]
        return instant(now), infos

    def _raise_refusal(self, answer: Sequence[bytes], task_type: str) -> None:
        word, *more = (part.decode() for part in answer)
        match word:
            case "TYPES_FULL":
                raise TimerTypesFull(self._most)
            case "TYPE_AMBIGUOUS":
                raise TimerTypeAmbiguous(task_type, more)
            case "TYPE_TAKEN":
                raise TimerTypeTaken(more[0], str(_owner(more[1])))
            case _:
                pass


def _packed(key: TypeKey) -> str:
    return msgspec.json.encode([key.app, key.task_type]).decode()


def _types(keys: Sequence[TypeKey]) -> list[list[str]]:
    return [
        [key.task_type, _packed(key), queue_of(key), queue_of(TypeKey(key.task_type))]
        for key in keys
    ]


def _owner(text: str) -> Owner | None:
    if text == "plugin":
        return Owner()
    return Owner(text.removeprefix("app:")) if text else None


def _info(row: Sequence[Any], owners: dict[str, str], now: int) -> TypeInfo:
    packed, queue, used, alive, last = row
    app, task_type = msgspec.json.decode(packed, type=tuple[str | None, str])
    until = min(int(float(last)), now)
    owner = _owner(owners.get(task_type, "")) if app is None else Owner(app)
    return TypeInfo(
        key=TypeKey(task_type, app),
        queue=queue_name(queue.decode()),
        owner=owner,
        alive=alive,
        last_alive=instant(until) if until else None,
        used_at=instant(int(float(used))),
    )


def _with_owners_instances(info: TypeInfo, found: dict[TypeKey, TypeInfo]) -> TypeInfo:
    """If an app owns the type, its instances serve it: take over their number and time."""
    if info.key.app is not None or info.owner is None or info.owner.app is None:
        return info
    its = found.get(TypeKey(info.key.task_type, info.owner.app))
    alive, last = (its.alive, its.last_alive) if its else (0, None)
    return msgspec.structs.replace(info, alive=alive, last_alive=last)


def _order(key: TypeKey) -> tuple[str, str]:
    return key.task_type, key.app or ""
