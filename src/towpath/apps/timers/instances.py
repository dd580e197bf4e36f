"""Instances of applications that are called when timers are due: which exist, which are alive.

They are stored in a space of their own, in one slot, so that a scheduler reads them in one call. An
instance is alive until a time that each heartbeat moves on, by Redis's clock.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from hashlib import sha256
from importlib.resources import files
from typing import Any

import msgspec

from towpath.apps.timers.errors import InstanceNotFound, TooManyInstances
from towpath.apps.timers.options import TimersOptions
from towpath.clock import Duration, duration_ms, instant, minutes, seconds, steady, wall_ms
from towpath.engine.engine import Engine
from towpath.engine.space import SpaceRecord
from towpath.errors import InvalidOption

SPACE = "timers.instances"
ALIVE_FOR = seconds(30)
"""How long an instance is alive without a heartbeat."""
HEARTBEAT = seconds(10)
"""How often an instance should send a heartbeat: two in a row may be lost."""
LISTED_FOR = minutes(10)
"""How long a dead instance stays in the list."""
MOST_OF_APP = 100
"""Live instances that one owner may have of one app. The settings limit those of all its apps, and
those of all owners together."""
MOST_TYPES = 100
LARGEST = 8192
"""Maximum size of an instance's description, in bytes."""
MOST_WEIGHT = 100
_PAGE = 100
_MOST_BREAKERS = 1000
_SCRIPTS = files("towpath.apps.timers") / "lua" / "instances"


class Instance(msgspec.Struct, frozen=True, kw_only=True):
    """One address at which an app is called, and the types that it is called for."""

    id: str
    app: str
    address: str
    types: tuple[str, ...]
    weight: int = 1
    registered_ms: int
    owner: str = ""
    """Its owner; '' = registered without a key, or while all keys share."""
    alive_until_ms: int = 0

    @property
    def last_heartbeat(self) -> Any:
        """When the last heartbeat came, by Redis's clock."""
        return instant(self.alive_until_ms - duration_ms("alive", ALIVE_FOR))


class _Description(msgspec.Struct, frozen=True, kw_only=True):
    """The description of an instance, as Redis stores it."""

    app: str
    address: str
    types: tuple[str, ...]
    weight: int
    registered_ms: int
    owner: str = ""

    def instance(self, id: str, alive_until_ms: int) -> Instance:
        fields = msgspec.structs.asdict(self)
        return Instance(id=id, alive_until_ms=alive_until_ms, **fields)


_read = msgspec.json.Decoder(_Description).decode


def instance_id(app: str, address: str, owner: str = "") -> str:
    """Returns the id of the app's instance at *address*; it is the same for each registration.

    Instances of different owners at one address have different ids, so that no owner can replace
    another owner's instance.
    """
    parts = (app, address, owner) if owner else (app, address)
    return sha256("\0".join(parts).encode()).hexdigest()[:32]


def _app_and_owner(app: str, owner: str) -> str:
    """Returns the key for counting the instances of an app and an owner. Names have no NUL."""
    return f"{app}\0{owner}" if owner else app


class Instances:
    """The registered instances. Each method is one round trip; `roster`, one per 100 instances."""

    def __init__(self, engine: Engine, options: TimersOptions | None = None) -> None:
        self._record: SpaceRecord = engine.space(SPACE, _SCRIPTS).at("all")
        self._options = options or TimersOptions()

    async def register(
        self, app: str, address: str, types: Sequence[str], *, weight: int = 1, owner: str = ""
    ) -> Instance:
        """Register an instance; it replaces the one with the same app, address and owner.

        Raises TooManyInstances; InvalidOption for too many types, or too long ones.
        """
        most, per_owner = self._options.instances, self._options.instances_per_owner
        if not 1 <= len(types) <= MOST_TYPES:
            raise InvalidOption("task_types", len(types), rule=f"must be 1 to {MOST_TYPES} types")
        description = _Description(
            app=app,
            address=address,
            types=tuple(dict.fromkeys(types)),
            weight=weight,
            registered_ms=wall_ms(),
            owner=owner,
        )
        about, id = msgspec.json.encode(description), instance_id(app, address, owner)
        if len(about) > LARGEST:
            rule = f"must have at most {LARGEST} bytes, together with the address"
            raise InvalidOption("task_types", f"{len(about)} bytes", rule=rule)
        answer = await self._record.run(
            "register",
            id=id,
            app=_app_and_owner(app, owner),
            owner=owner,
            about=about,
            lasts=duration_ms("lasts", ALIVE_FOR),
            keep=duration_ms("keep", LISTED_FOR),
            most_of_app=MOST_OF_APP,
            instances_per_owner=per_owner,
            most=most,
        )
        match answer:
            case b"TOO_MANY_OF_APP":
                raise TooManyInstances(f"app {app} has", MOST_OF_APP, limit="app")
            case b"TOO_MANY_OF_OWNER":
                raise TooManyInstances("the owner has", per_owner, limit="owner")
            case b"TOO_MANY":
                raise TooManyInstances("there are", most, limit="total")
            case _:
                return description.instance(id, 0)

    async def beat(self, app: str, id: str, *, owner: str = "") -> None:
        """Keep the instance alive for another 30 seconds. Raises InstanceNotFound."""
        lasts = duration_ms("lasts", ALIVE_FOR)
        whose = _app_and_owner(app, owner)
        if await self._record.run("beat", id=id, app=whose, lasts=lasts) != b"ok":
            raise InstanceNotFound(app, id)

    async def leave(self, app: str, id: str, *, owner: str = "") -> None:
        """Delete the instance: it is not called any more. Raises InstanceNotFound."""
        whose = _app_and_owner(app, owner)
        if await self._record.run("leave", id=id, app=whose, owner=owner) != b"ok":
            raise InstanceNotFound(app, id)

    async def find(self, app: str, id: str) -> Instance | None:
        """Returns the instance with `alive_until_ms` 0; None if the app has no such instance."""
        about: bytes | None = await self._record.read("description", id=id)
        description = _read(about) if about else None
        return (
            description.instance(id, 0)
            if description is not None and description.app == app
            else None
        )

    async def roster(self) -> Roster:
        """Returns a roster of all instances, read now."""
        roster = Roster(self)
        await roster.refresh()
        return roster

    async def publish_breaker(self, id: str, by: str, pause: Duration) -> None:
        """Publish that the scheduler *by* avoids the instance for *pause*; zero = it calls it."""
        await self._record.run("publish_breaker", id=id, by=by, pause=duration_ms("pause", pause))

    async def breakers(self) -> dict[str, list[str]]:
        """Returns, by instance id, the schedulers that do not call it now."""
        found: list[bytes] = await self._record.read("breakers", most=_MOST_BREAKERS)
        open_: dict[str, list[str]] = {}
        for word in found[::2]:
            id, _, by = word.decode().partition(" ")
            open_.setdefault(id, []).append(by)
        return open_

    async def changes_since(
        self, seen: int
    ) -> tuple[int, dict[str, int], list[tuple[str, int, bytes]]]:
        """Returns Redis's time, the end of life of each id, and changes since version *seen*."""
        now, ids, flat = await self._record.read("roster", seen=seen, most=_PAGE)
        ends = {id.decode(): int(end) for id, end in zip(ids[::2], ids[1::2], strict=True)}
        changes = zip(flat[::3], flat[1::3], flat[2::3], strict=True)
        return int(now), ends, [(id.decode(), int(at), about) for id, at, about in changes]


class Roster:
    """The instances as of the last `refresh`; they still expire as time passes."""

    def __init__(self, instances: Instances) -> None:
        self._instances = instances
        self._seen = 0
        self._descriptions: dict[str, _Description] = {}
        self._ends: dict[str, int] = {}
        self._now_ms, self._read_at = 0, 0.0

    async def refresh(self) -> None:
        """Read changes: one round trip, and one more per 100 changed instances."""
        while True:
            now_ms, ends, changes = await self._instances.changes_since(self._seen)
            for id, version, about in changes:
                self._seen = max(self._seen, version)
                self._descriptions[id] = _read(about)
            if len(changes) < _PAGE:
                break
        self._descriptions = {
            id: description for id, description in self._descriptions.items() if id in ends
        }
        self._ends, self._now_ms, self._read_at = ends, now_ms, steady()

    def all(self) -> list[Instance]:
        """Returns all listed instances, alive or dead."""
        return [
            description.instance(id, self._ends[id])
            for id, description in self._descriptions.items()
        ]

    def alive(self) -> list[Instance]:
        """Returns the instances that are alive now."""
        return [instance for instance in self.all() if self.is_alive(instance)]

    def is_alive(self, instance: Instance) -> bool:
        now_ms = self._now_ms + (steady() - self._read_at) * 1000
        return self._ends.get(instance.id, 0) > now_ms


def serving(instances: Iterable[Instance], app: str, task_type: str) -> list[Instance]:
    """Returns the instances of *app* that serve *task_type*."""
    return [
        instance for instance in instances if instance.app == app and task_type in instance.types
    ]
