"""Operating a queue: its options, pause and resume, dead jobs, parked lanes, duties."""

from __future__ import annotations

import secrets
from typing import Any

import msgspec

from towpath.engine import codec
from towpath.engine.check import whole
from towpath.engine.follow import Following
from towpath.engine.keys import PROBE
from towpath.engine.model import Call, JobRef
from towpath.engine.options import Declared, QueueOptions
from towpath.engine.states import State
from towpath.engine.store import Change
from towpath.errors import InvalidOption, LaneNotParked
from towpath.ids import lane_key, queue_name


class Operating(Following):
    """What an engine offers those who look after its queues."""

    async def try_write(self) -> None:
        """See that the server takes a write, and leave nothing. Raises ServerError. One round trip.

        On a cluster, that is the server of one slot.
        """
        await self._store.command("SET", PROBE, "1", "PX", 1)

    # ── queues ───────────────────────────────────────────────────────────────────────────

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

    async def remove(self, queue: str) -> bool:
        """Remove a queue that holds nothing: no jobs in any state, no ids that are remembered, no
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

    # ── dead jobs and parked lanes ───────────────────────────────────────────────────────

    async def retry(self, job: JobRef, *, call: Call | None = None) -> State:
        """Give a dead job its attempts back: READY, or WAITING behind its lane's head.

        A lane that the job parks goes on with it. Raises JobNotFound, JobNotDead.
        """
        return await self._one_state("retry", job, call)

    async def delete(self, job: JobRef, *, call: Call | None = None) -> None:
        """Remove a dead, done or cancelled job now. A lane that it parks goes on without it.

        Raises JobNotFound, JobOpen.
        """
        await self._one_state("delete", job, call)

    async def drop(self, queue: str, lane: str, *, call: Call | None = None) -> JobRef:
        """Let a parked lane go on without its dead head, which stays listed as dead.

        Answers which job that was. Raises LaneNotParked.
        """
        name, key = queue_name(queue), lane_key(lane)
        [answer] = await self._store.write("drop", name, lambda _: [[key]], call)
        if answer[0] != b"dropped":
            raise LaneNotParked(name, key)
        return JobRef(name, answer[1].decode())

    # ── duties: bounded, harmless to repeat, for queues that nobody claims from ──────────

    async def promote(self, queue: str, limit: int = 100, *, call: Call | None = None) -> int:
        """Make due jobs ready, at most *limit*; how many it were."""
        return await self._duty("promote", queue, limit, call)

    async def reap(self, queue: str, limit: int = 100, *, call: Call | None = None) -> int:
        """Give back jobs whose lease has ended, at most *limit*; how many it were."""
        return await self._duty("reap", queue, limit, call)

    async def trim(self, queue: str, limit: int = 100, *, call: Call | None = None) -> int:
        """Remove what was kept long enough, at most *limit* of each kind; how many it were."""
        return await self._duty("trim", queue, limit, call)

    async def _duty(self, verb: str, queue: str, limit: int, call: Call | None) -> int:
        item = [whole("limit", limit, 1, 1000)]
        [count] = await self._store.write(verb, queue_name(queue), lambda _: [item], call)
        return count

    async def _one_state(self, verb: str, job: JobRef, call: Call | None) -> State:
        [answer] = await self._store.write(verb, job.queue, lambda _: [[job.id]], call)
        if isinstance(answer, bytes):
            return codec.STATES[answer]
        raise codec.refusal(job, answer)
