"""Queues: which there are, their options, pause and resume, and duties that keep them going."""

from __future__ import annotations

import secrets
from collections.abc import Sequence
from contextlib import suppress
from typing import TYPE_CHECKING, Any

import msgspec

from towpath.engine.check import whole
from towpath.engine.keys import REGISTRY
from towpath.engine.model import Call
from towpath.engine.options import Declared, QueueOptions
from towpath.engine.store import Change, Store
from towpath.errors import InvalidName, InvalidOption
from towpath.ids import QueueName, queue_name


class Queues:
    """The queues of an engine, for those who look after them: `engine.queues`."""

    def __init__(self, store: Store) -> None:
        self._store = store

    async def list(self) -> dict[QueueName, QueueOptions]:
        """Every queue that was ever used on this server, with its options.

        Queues that this release cannot read (another program's, or a newer release's) are left
        out, and logged once.
        """
        flat: list[bytes] = await self._store.command("HGETALL", REGISTRY)
        return self._store.listed(dict(zip(flat[::2], flat[1::2], strict=True)))

    async def names(self) -> Sequence[QueueName]:
        """Every queue that was ever used on this server, whoever wrote its options."""
        found: list[QueueName] = []
        for name in await self._store.command("HKEYS", REGISTRY):
            with suppress(InvalidName, UnicodeDecodeError):
                found.append(queue_name(name.decode()))
        return found

    if not TYPE_CHECKING:

        def __call__(self) -> None:
            raise AttributeError("Engine.queues() is now Engine.queues.list()", name="queues")

    async def configure(self, queue: str, options: QueueOptions) -> None:
        """Use *queue* with these options. The first to use a queue decides.

        Raises QueueDiffers, naming the fields, if it has others; `reconfigure` changes them.
        """
        await self._store.configure(queue_name(queue), options)

    async def declare(self, queue: str, **options: Any) -> Declared:
        """Give *queue* these of its options, by name, as a program that uses it wants them.

        Each holds if the queue is new, or the option still is what was declared of it last. What
        an operator changed since stays, until `reset` gives it back. Two round trips where
        something is new, else one.
        """
        checked = msgspec.structs.asdict(QueueOptions(**options))
        return await self._store.declare(
            queue_name(queue), {name: checked[name] for name in options}
        )

    async def declared(self, queue: str) -> QueueOptions | None:
        """What programs declared of *queue*'s options, the defaults for the rest; None if nothing
        was declared.
        """
        return await self._store.declared(queue_name(queue))

    async def reset(self, queue: str, *names: str) -> Declared:
        """Take back what was changed of *queue*'s options: these, or without names all.

        They become what was declared of them last; what nobody declares, its default.
        """
        known = QueueOptions.__struct_fields__
        for name in names:
            if name not in known:
                raise InvalidOption("option", name, rule=f"must be one of {', '.join(known)}")
        return await self._store.reset(queue_name(queue), names or known)

    async def introduce(self, queue: str, options: QueueOptions) -> QueueOptions:
        """Declare what *options* have beside the defaults; the answer is what the queue has.

        For whoever brings queues of its own, before each use: no round trip after the first.
        """
        known = self._store.introduced.get(queue)
        return known or await self._store.introduce(queue_name(queue), options)

    async def reconfigure(self, queue: str, options: QueueOptions) -> None:
        """Give *queue* other options: in force at once, for jobs that are there too.

        All of them, whatever they were: `change_options` changes some.
        """
        await self._store.reconfigure(queue_name(queue), options)

    async def change_options(self, queue: str, change: Change) -> QueueOptions:
        """Give *queue* what *change* makes of its options; those are the answer.

        Nothing that somebody else changes at the same time is lost: *change* is then asked again,
        with what the options are now. Two round trips, unless others are at it too.
        """
        return await self._store.change_options(queue_name(queue), change)

    async def options(self, queue: str) -> QueueOptions:
        """The options of *queue*; those of one that nobody used yet are the defaults."""
        return await self._store.options(queue_name(queue))

    async def known_options(self, queue: str) -> QueueOptions:
        """The options of *queue* as this engine last heard of them; no round trip but the first."""
        return await self._store.known_options(queue_name(queue))

    async def largest_payload(self, queue: str, size: int) -> int:
        """Bytes that *queue* takes in one payload or result, for a check before it is submitted.

        As this engine last heard of it; asked for anew if *size* is beyond that, because the limit
        may have been raised since. No round trip for what fits.
        """
        return await self._store.largest_payload(queue_name(queue), size)

    async def delete(self, queue: str) -> bool:
        """Delete a queue that holds nothing: no jobs in any state, no ids that are remembered, no
        recurring work; nor may it be paused. False if it does, and nothing was changed.

        Its options and its events go. Whoever uses it again makes it anew, with the options that
        are declared then. Two round trips; safe to repeat.
        """
        return await self._store.remove(queue_name(queue))

    async def pause(self, queue: str, *, call: Call | None = None) -> None:
        """Hand out no jobs of *queue* until `resume`; everything else goes on."""
        await self._store.write("pause", queue_name(queue), lambda _: [[]], call)

    async def resume(self, queue: str, *, call: Call | None = None) -> None:
        """Hand out jobs of *queue* again."""
        await self._store.write("resume", queue_name(queue), lambda _: [[]], call)

    async def anchor(self, queue: str, *, floor: int = 0) -> str:
        """A name for the life of *queue*'s data: another one after the data was lost, and after
        its server was started anew or replaced, when the last writes may be lost.

        Tokens from now on are higher than *floor*, whatever the server's clock says. They are
        raised only if they would not be, and then by a minute more. One round trip; safe to repeat.
        """
        born = secrets.token_hex(8)
        parts = await self._store.read("anchor", queue_name(queue), born, floor)
        return "/".join(part.decode() for part in parts)

    # ── duties: bounded, harmless to repeat, for queues that nobody claims from ──────────

    async def promote(self, queue: str, limit: int = 100, *, call: Call | None = None) -> int:
        """Make due jobs ready, at most *limit*; how many it were."""
        return await self._duty("promote", queue, limit, call)

    async def reap(self, queue: str, limit: int = 100, *, call: Call | None = None) -> int:
        """Give back jobs whose lease has ended, at most *limit*; how many it were."""
        return await self._duty("reap", queue, limit, call)

    async def trim(self, queue: str, limit: int = 100, *, call: Call | None = None) -> int:
        """Delete what was kept long enough, at most *limit* of each kind; how many it were."""
        return await self._duty("trim", queue, limit, call)

    async def _duty(self, verb: str, queue: str, limit: int, call: Call | None) -> int:
        item = [whole("limit", limit, 1, 1000)]
        [count] = await self._store.write(verb, queue_name(queue), lambda _: [item], call)
        return count
