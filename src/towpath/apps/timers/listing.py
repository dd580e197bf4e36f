"""Timers in pages, by app, type, state and time; and types with their numbers of timers."""

from __future__ import annotations

import base64
from collections.abc import Callable, Iterator, Sequence
from datetime import datetime
from typing import NamedTuple

import msgspec

from towpath.apps.owners import ALL, Access
from towpath.apps.timers.model import Timer, TypeKey, timer_of
from towpath.apps.timers.types import TypeInfo
from towpath.clock import instant_ms
from towpath.engine.check import integer
from towpath.engine.engine import Engine
from towpath.engine.inspect import Counts, cursor_at
from towpath.engine.states import State
from towpath.errors import InvalidOption

LARGEST_PAGE = 1000
LISTED = (State.DELAYED, State.READY, State.LEASED, State.DEAD, State.DONE, State.CANCELLED)
"""The states of a type's timers, in the order of the list."""
_MOST_READ = 10_000
"""Maximum number of timers that are read for one page; then the page is returned as it is."""


class TimerQuery(msgspec.Struct, frozen=True, kw_only=True):
    """Selects timers."""

    app: str | None = None
    """'' = types without an app; None = all."""
    task_type: str | None = None
    state: State | None = None
    since: datetime | None = None
    """Due at this time or later; the time of the next attempt counts for timers that wait for
    one."""
    until: datetime | None = None
    """Due before this time; counts in the same way."""

    def __post_init__(self) -> None:
        if self.state is not None and self.state not in LISTED:
            raise InvalidOption("state", self.state, rule=f"must be one of {', '.join(LISTED)}")
        for name, value in (("since", self.since), ("until", self.until)):
            if value is not None:
                instant_ms(name, value)

    def types(self, infos: Sequence[TypeInfo]) -> list[TypeInfo]:
        """Returns the types of *infos* that match."""
        return [
            info
            for info in infos
            if (self.app is None or (info.key.app or "") == self.app)
            and (self.task_type is None or info.key.task_type == self.task_type)
        ]

    def fits(self, timer: Timer) -> bool:
        """Whether *timer* is due in the range."""
        return not self.is_past(timer) and (self.since is None or _runs_at(timer) >= self.since)

    def is_past(self, timer: Timer) -> bool:
        """Whether *timer* is due after the range."""
        return self.until is not None and _runs_at(timer) >= self.until


def _runs_at(timer: Timer) -> datetime:
    """Returns the time by which delayed timers are sorted."""
    return timer.next_try_at or timer.due


class TimerPage(msgspec.Struct, frozen=True):
    """Timers by type, state and time; give *after* to get the next page. None = this was the last.

    Params are left out.
    """

    timers: list[Timer]
    after: str | None


class _Cursor(NamedTuple):
    """Where a page ended: in which type and state, and at which cursor."""

    app: str | None
    task_type: str
    state: State
    after: str | None = None

    def encode(self) -> str:
        return base64.urlsafe_b64encode(msgspec.json.encode(self)).decode()

    @classmethod
    def read(cls, text: str) -> _Cursor:
        try:
            return msgspec.json.decode(base64.urlsafe_b64decode(text.encode()), type=cls)
        except (ValueError, msgspec.MsgspecError) as error:
            raise InvalidOption(
                "after", text, rule="must be the `after` value returned with the previous page"
            ) from error


async def page_of(
    engine: Engine,
    infos: Sequence[TypeInfo],
    wanted: TimerQuery,
    *,
    after: str | None,
    size: int,
    access: Access = ALL,
) -> TimerPage:
    """Returns a page of the timers of these types, sorted by type. Raises InvalidOption."""
    search = _Search(engine, wanted, integer("size", size, 1, LARGEST_PAGE), access)
    begin = None if after is None else _Cursor.read(after)
    for info, state, inner in _lists(wanted.types(infos), wanted, begin):
        rest = inner
        if not search.full:
            rest = await search.collect(info, state, inner)
            if rest is None:
                continue
        place = _Cursor(info.key.app, info.key.task_type, state, rest)
        return TimerPage(search.found, place.encode())
    return TimerPage(search.found, None)


class _Search:
    """Collects the timers of one page."""

    def __init__(self, engine: Engine, wanted: TimerQuery, size: int, access: Access) -> None:
        self._engine, self._wanted, self._size, self._access = engine, wanted, size, access
        self.found: list[Timer] = []
        self._jobs_read = 0
        self._counts: dict[TypeKey, Counts] = {}

    @property
    def full(self) -> bool:
        """Whether the page has to be returned now."""
        return len(self.found) >= self._size or self._jobs_read >= _MOST_READ

    async def collect(self, info: TypeInfo, state: State, after: str | None) -> str | None:
        """Collect timers of a type in one state. Returns where it stopped; None = at the end."""
        if info.key not in self._counts:
            self._counts[info.key] = await self._engine.inspect.counts(info.queue)
        if not _has(self._counts[info.key], state):
            return None
        by_due, since = state is State.DELAYED, self._wanted.since
        if after is None and by_due and since is not None:
            after = cursor_at(since)
        while not self.full:
            size = self._size - len(self.found)
            page = await self._engine.inspect.list(info.queue, state, after=after, size=size)
            self._jobs_read += len(page.jobs)
            timers = [timer_of(info.key, job) for job in page.jobs]
            self.found += [
                timer
                for timer in timers
                if self._wanted.fits(timer) and self._access.owns(timer.owner)
            ]
            after = page.after
            if after is None or (by_due and timers and self._wanted.is_past(timers[-1])):
                return None
        return after


def _lists(
    infos: Sequence[TypeInfo], wanted: TimerQuery, begin: _Cursor | None
) -> Iterator[tuple[TypeInfo, State, str | None]]:
    """Yields each type and state to search, with a cursor, from where the last page ended."""
    states = LISTED if wanted.state is None else (wanted.state,)
    for info in infos:
        at = (info.key.task_type, info.key.app or "")
        for number, state in enumerate(states):
            if begin is None:
                yield info, state, None
                continue
            first = (begin.task_type, begin.app or "")
            number_of_first = states.index(begin.state) if begin.state in states else 0
            if (at, number) == (first, number_of_first):
                yield info, state, begin.after
            elif (at, number) > (first, number_of_first):
                yield info, state, None


def _has(counts: Counts, state: State) -> bool:
    if state in (State.DONE, State.CANCELLED):
        return counts.kept > 0
    return getattr(counts, state.value) > 0


# ── types ────────────────────────────────────────────────────────────────────────────────


SERVED, NO_WORKER, NO_INSTANCE = "served", "no_worker", "no_instance"


class TypeView(msgspec.Struct, frozen=True, kw_only=True):
    """A type: who serves it, and how many timers it has."""

    task_type: str
    app: str | None
    """The app that the type belongs to, if any."""
    queue: str
    """The queue of the type; an API key covers the type if its patterns match this name."""
    owner: str | None
    """Who serves it: `plug-in workers` or the name of an app; None if nobody has registered."""
    alive: int
    """Number of workers or instances that serve it now."""
    status: str
    """`served`, `no_worker` or `no_instance`."""
    last_alive: datetime | None
    """When a worker or an instance was last seen."""
    waiting: int
    """Timers that are not due yet, or are due and wait for a worker."""
    running: int
    dead: int
    used_at: datetime
    """When the type was last used."""


def status_of(info: TypeInfo) -> str:
    """Returns whether a worker or an instance serves a type, and which of them is missing."""
    if info.alive:
        return SERVED
    return NO_INSTANCE if info.owner is not None and info.owner.app else NO_WORKER


async def views_of(
    engine: Engine, infos: Sequence[TypeInfo], covers: Callable[[str], bool]
) -> list[TypeView]:
    """Returns the types whose queues are covered."""
    chosen = [info for info in infos if covers(info.queue)]
    counts = await engine.inspect.counts_of(info.queue for info in chosen)
    return [_view(info, counts[info.queue]) for info in chosen]


def _view(info: TypeInfo, counts: Counts) -> TypeView:
    owner = info.owner
    return TypeView(
        task_type=info.key.task_type,
        app=info.key.app,
        queue=info.queue,
        owner=None if owner is None else owner.app or str(owner),
        alive=info.alive,
        status=status_of(info),
        last_alive=info.last_alive,
        waiting=counts.ready + counts.delayed + counts.waiting,
        running=counts.leased,
        dead=counts.dead,
        used_at=info.used_at,
    )
