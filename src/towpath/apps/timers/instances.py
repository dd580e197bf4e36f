"""Instances of applications that are called when timers are due: which exist, which are alive.

They are kept in a space of their own, all in one slot: what a scheduler needs is one read. An
instance is alive until a time that every heartbeat moves on, compared with the server's clock.
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
"""How often instances are asked to send one: two may be lost."""
LISTED_FOR = minutes(10)
"""How long an instance that is not alive any more is listed."""
MOST_OF_APP = 100
"""Live instances that one owner may have of one app. The settings limit those of all its apps, and
those of all owners together."""
MOST_TYPES = 100
LARGEST = 8192
"""Bytes that an instance may say of itself."""
MOST_WEIGHT = 100
_PAGE = 100
_MOST_BREAKERS = 1000
_SCRIPTS = files("towpath.apps.timers") / "lua" / "instances"


class Instance(msgspec.Struct, frozen=True, kw_only=True):
    """One address at which an app is called, and what for."""

    id: str
    app: str
    address: str
    types: tuple[str, ...]
    weight: int = 1
    registered_ms: int
    owner: str = ""
    """Whose it is; '' = registered without a key, or where all keys share."""
    alive_until_ms: int = 0

    @property
    def last_heartbeat(self) -> Any:
        """When it was heard of last, by the server's clock."""
        return instant(self.alive_until_ms - duration_ms("alive", ALIVE_FOR))


class _Said(msgspec.Struct, frozen=True, kw_only=True):
    """What the store keeps of an instance."""

    app: str
    address: str
    types: tuple[str, ...]
    weight: int
    registered_ms: int
    owner: str = ""

    def instance(self, id: str, alive_until_ms: int) -> Instance:
        fields = msgspec.structs.asdict(self)
        return Instance(id=id, alive_until_ms=alive_until_ms, **fields)


_read = msgspec.json.Decoder(_Said).decode


def instance_id(app: str, address: str, owner: str = "") -> str:
    """The id of the app's instance at that address: the same one whenever it registers. Another
    owner's at the same address is another instance, so nobody can replace it.
    """
    parts = (app, address, owner) if owner else (app, address)
    return sha256("\0".join(parts).encode()).hexdigest()[:32]


def _app_and_owner(app: str, owner: str) -> str:
    """Under which name the instances of an app are counted. Names have no control characters."""
    return f"{app}\0{owner}" if owner else app


class Instances:
    """Who there is. Every method is one round trip, but for `all`, which is one per 100."""

    def __init__(self, engine: Engine, options: TimersOptions | None = None) -> None:
        self._record: SpaceRecord = engine.space(SPACE, _SCRIPTS).at("all")
        self._options = options or TimersOptions()

    async def register(
        self, app: str, address: str, types: Sequence[str], *, weight: int = 1, owner: str = ""
    ) -> Instance:
        """An instance that is alive from now; one of the same app, address and owner is replaced.

        Raises TooManyInstances; InvalidOption for too many types, or too long ones.
        """
        most, per_owner = self._options.instances, self._options.instances_per_owner
        if not 1 <= len(types) <= MOST_TYPES:
            raise InvalidOption("task_types", len(types), rule=f"must be 1 to {MOST_TYPES} types")
        said = _Said(
            app=app,
            address=address,
            types=tuple(dict.fromkeys(types)),
            weight=weight,
            registered_ms=wall_ms(),
            owner=owner,
        )
        about, id = msgspec.json.encode(said), instance_id(app, address, owner)
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
                return said.instance(id, 0)

    async def beat(self, app: str, id: str, *, owner: str = "") -> None:
        """It is alive for another 30 seconds. Raises InstanceNotFound."""
        lasts = duration_ms("lasts", ALIVE_FOR)
        whose = _app_and_owner(app, owner)
        if await self._record.run("beat", id=id, app=whose, lasts=lasts) != b"ok":
            raise InstanceNotFound(app, id)

    async def leave(self, app: str, id: str, *, owner: str = "") -> None:
        """It is called no more. Raises InstanceNotFound."""
        whose = _app_and_owner(app, owner)
        if await self._record.run("leave", id=id, app=whose, owner=owner) != b"ok":
            raise InstanceNotFound(app, id)

    async def find(self, app: str, id: str) -> Instance | None:
        """What it said of itself; None if there is no such instance of that app."""
        about: bytes | None = await self._record.read("about", id=id)
        said = _read(about) if about else None
        return said.instance(id, 0) if said is not None and said.app == app else None

    async def roster(self) -> Roster:
        """All of them, read now."""
        roster = Roster(self)
        await roster.refresh()
        return roster

    async def tell_breaker(self, id: str, by: str, pause: Duration) -> None:
        """Let others see that the scheduler *by* does not call it for so long; zero = it does."""
        await self._record.run("trip", id=id, by=by, pause=duration_ms("pause", pause))

    async def breakers(self) -> dict[str, list[str]]:
        """The instances that schedulers do not call at the moment: by id, who does not."""
        found: list[bytes] = await self._record.read("trips", most=_MOST_BREAKERS)
        open_: dict[str, list[str]] = {}
        for word in found[::2]:
            id, _, by = word.decode().partition(" ")
            open_.setdefault(id, []).append(by)
        return open_

    async def look(self, seen: int) -> tuple[int, dict[str, int], list[tuple[str, int, bytes]]]:
        """The server's time; all ids with the end of their time; what changed since *seen*."""
        now, ids, told = await self._record.read("look", seen=seen, most=_PAGE)
        ends = {id.decode(): int(end) for id, end in zip(ids[::2], ids[1::2], strict=True)}
        changes = zip(told[::3], told[1::3], told[2::3], strict=True)
        return int(now), ends, [(id.decode(), int(at), about) for id, at, about in changes]


class Roster:
    """The instances as of the last `refresh`; they expire as time passes."""

    def __init__(self, instances: Instances) -> None:
        self._instances = instances
        self._seen = 0
        self._said: dict[str, _Said] = {}
        self._ends: dict[str, int] = {}
        self._now_ms, self._read_at = 0, 0.0

    async def refresh(self) -> None:
        """Read what changed: one round trip, and one more per 100 that are new."""
        while True:
            now_ms, ends, changes = await self._instances.look(self._seen)
            for id, version, about in changes:
                self._seen = max(self._seen, version)
                self._said[id] = _read(about)
            if len(changes) < _PAGE:
                break
        self._said = {id: said for id, said in self._said.items() if id in ends}
        self._ends, self._now_ms, self._read_at = ends, now_ms, steady()

    def all(self) -> list[Instance]:
        """All that are listed, alive or not."""
        return [said.instance(id, self._ends[id]) for id, said in self._said.items()]

    def alive(self) -> list[Instance]:
        """Those that are alive now."""
        return [instance for instance in self.all() if self.is_alive(instance)]

    def is_alive(self, instance: Instance) -> bool:
        now_ms = self._now_ms + (steady() - self._read_at) * 1000
        return self._ends.get(instance.id, 0) > now_ms


def serving(instances: Iterable[Instance], app: str, task_type: str) -> list[Instance]:
    """Those of *instances* that the app has for that type."""
    return [
        instance for instance in instances if instance.app == app and task_type in instance.types
    ]
