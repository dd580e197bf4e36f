"""Queues: which exist, their options, pause and resume, and the duties that keep them going."""

from __future__ import annotations

import secrets
from collections.abc import Callable, Collection, Sequence
from contextlib import suppress
from typing import Any

import msgspec

from towpath.clock import DurationLike, duration
from towpath.engine.check import integer
from towpath.engine.keys import REGISTRY
from towpath.engine.model import Call
from towpath.engine.options import Declared, QueueOptions
from towpath.engine.store import Change, Store
from towpath.errors import InvalidName, InvalidOption, QueueNotFound
from towpath.ids import QueueName, queue_name


class Queues:
    """The queues of an engine: `engine.queues`."""

    def __init__(self, store: Store) -> None:
        self._store = store

    async def list(self) -> dict[QueueName, QueueOptions]:
        """All queues that were ever used on this server, with their options.

        Leaves out, and logs once, queues that this release cannot read: of another program or of a
        newer release.
        """
        flat: list[bytes] = await self._store.command("HGETALL", REGISTRY)
        return self._store.read_listed(dict(zip(flat[::2], flat[1::2], strict=True)))

    async def names(self) -> Sequence[QueueName]:
        """The names of all queues that were ever used on this server, readable or not."""
        found: list[QueueName] = []
        for name in await self._store.command("HKEYS", REGISTRY):
            with suppress(InvalidName, UnicodeDecodeError):
                found.append(queue_name(name.decode()))
        return found

    async def configure(self, queue: str, options: QueueOptions) -> None:
        """Require that *queue* has these options. The first caller sets them.

        Raises QueueDiffers, with the names of the fields, if the queue has other options.
        `reconfigure` changes them.
        """
        await self._store.configure(queue_name(queue), options)

    async def declare(self, queue: str, **options: Any) -> Declared:
        """Declare options of *queue*, by name, as the code that uses it wants them.

        An option applies if the queue is new, or if nobody has changed the option since it was last
        declared. An operator's change stays until `reset`. One round trip, or two if something is
        new.
        """
        checked = msgspec.structs.asdict(QueueOptions(**options))
        return await self._store.declare(
            queue_name(queue), {name: checked[name] for name in options}
        )

    async def declared(self, queue: str) -> QueueOptions | None:
        """The options that code has declared for *queue*, with defaults for the others; None if
        nothing was declared.
        """
        return await self._store.declared(queue_name(queue))

    async def reset(self, queue: str, *names: str) -> Declared:
        """Undo changes of the options of *queue*: of those named, or of all.

        Each gets the value that was last declared for it, else its default. Raises InvalidOption.
        """
        known = QueueOptions.__struct_fields__
        for name in names:
            if name not in known:
                raise InvalidOption("option", name, rule=f"must be one of {', '.join(known)}")
        return await self._store.reset(queue_name(queue), names or known)

    async def introduce(self, queue: str, options: QueueOptions) -> QueueOptions:
        """Declare the fields of *options* that differ from the defaults. Returns the options of the
        queue.

        For parts that bring their own queues; call it before each use. No round trip after the
        first.
        """
        known = self._store.introduced.get(queue)
        return known or await self._store.introduce(queue_name(queue), options)

    async def reconfigure(self, queue: str, options: QueueOptions) -> None:
        """Replace all options of *queue*. They apply at once, also to jobs that exist.

        `change_options` changes only some.
        """
        await self._store.reconfigure(queue_name(queue), options)

    async def change_options(
        self, queue: str, change: Change, *, decides: Collection[str] = ()
    ) -> QueueOptions:
        """Replace the options of *queue* by what *change* returns for them. Returns the new
        options.

        Options that were never declared or changed follow the defaults of each release. *decides*
        names those that are set on purpose, although their value stays the same.
        If somebody else changes them at the same time, *change* is called again with the new ones,
        so no change is lost. Two round trips, unless that happens.
        """
        return await self._store.change_options(queue_name(queue), change, decides)

    async def options(self, queue: str) -> QueueOptions:
        """The options of *queue*; the defaults for a queue that was never used."""
        return await self._store.options(queue_name(queue))

    async def known_options(self, queue: str) -> QueueOptions:
        """The options of *queue* as this engine last read them. No round trip after the first."""
        return await self._store.known_options(queue_name(queue))

    async def largest_payload(self, queue: str, size: int) -> int:
        """The maximum bytes of a payload or a result in *queue*, for a check before a submit.

        Uses the options as this engine last read them, and reads them again if *size* is larger:
        the limit may have been raised. No round trip for what fits.
        """
        return await self._store.largest_payload(queue_name(queue), size)

    async def require(self, queue: str, covers: Callable[[str], bool] | None = None) -> QueueName:
        """The name of a queue that exists. Raises QueueNotFound, with the closest name of those
        that *covers* allows to be shown. Creates nothing. One round trip if the queue exists.
        """
        name = queue_name(queue)
        if not await self._store.exists(name):
            names = await self.names()
            raise QueueNotFound(name, filter(covers, names) if covers else names)
        return name

    async def delete(self, queue: str, *, forced: bool = False) -> bool:
        """Delete an empty queue: without jobs in any state, remembered ids and schedules, and not
        paused. Returns False, and changes nothing, if it is not empty.

        With *forced*, neither remembered ids nor a pause keep it: a repeated submit under such an
        id then makes a new job. Deletes its options and its events. The next use creates the queue
        again. Three round trips; safe to repeat.
        """
        return await self._store.delete(queue_name(queue), forced=forced)

    async def delete_unused(self, queue: str, unused_for: DurationLike) -> bool:
        """Delete an empty queue to which nobody has submitted and from which nobody has claimed for
        that time. Returns False, and changes nothing, for every other queue, and for one whose
        options somebody changed: those would be lost with it. Two round trips; safe to repeat.
        """
        return await self._store.delete_unused(
            queue_name(queue), duration("unused_for", unused_for)
        )

    async def pause(self, queue: str, *, call: Call | None = None) -> None:
        """Hand out no jobs of *queue* until `resume`. Everything else goes on."""
        await self._store.write("pause", queue_name(queue), lambda _: [[]], call)

    async def resume(self, queue: str, *, call: Call | None = None) -> None:
        """Hand out the jobs of *queue* again."""
        await self._store.write("resume", queue_name(queue), lambda _: [[]], call)

    async def incarnation(self, queue: str, *, floor: int = 0) -> str:
        """A name for this incarnation of the data of *queue*. It changes after the data was lost,
        and after Redis was restarted or replaced, because the last writes may be lost then.

        Tokens from now on are higher than *floor*, whatever the clock of Redis says. If they would
        not be, they are raised to a minute above it. One round trip; safe to repeat.
        """
        born = secrets.token_hex(8)
        parts = await self._store.read("incarnation", queue_name(queue), born, floor)
        return "/".join(part.decode() for part in parts)

    # ── duties: bounded, harmless to repeat, for queues that nobody claims from ──────────

    async def promote(self, queue: str, limit: int = 100, *, call: Call | None = None) -> int:
        """Make due jobs ready, at most *limit*. Returns how many."""
        return await self._duty("promote", queue, [limit], call)

    async def reap(self, queue: str, limit: int = 100, *, call: Call | None = None) -> int:
        """Give back jobs whose lease has ended, at most *limit*. Returns how many."""
        away = self._store.outages.args(queue_name(queue))
        return await self._duty("reap", queue, [limit, *away], call)

    async def trim(self, queue: str, limit: int = 100, *, call: Call | None = None) -> int:
        """Delete what was kept long enough, at most *limit* of each kind. Returns how many."""
        return await self._duty("trim", queue, [limit], call)

    async def _duty(self, verb: str, queue: str, item: Sequence[int], call: Call | None) -> int:
        integer("limit", item[0], 1, 1000)
        [count] = await self._store.write(verb, queue_name(queue), lambda _: [item], call)
        return count
