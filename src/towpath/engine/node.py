"""One Redis server as its callers see it: the channels to it, and whether it answers.

Every server of a cluster has channels of its own, so calls to an unreachable server take no channel
from calls to the others. After a call was given up, the server is probed. If it does not answer the
probe either, calls fail at once until it answers one.
"""

from __future__ import annotations

import asyncio
from collections import deque
from collections.abc import Awaitable, Callable, Sequence
from functools import partial
from typing import NamedTuple

from towpath.clock import steady
from towpath.engine.channel import Channel
from towpath.engine.time_limit import Deadline
from towpath.errors import EngineClosed, ServerError, ServerUnreachable
from towpath.supervise import Background
from towpath.telemetry import events
from towpath.telemetry.logs import Log

PROBE_EVERY = 1.0

Probe = Callable[[str], Awaitable[None]]
"""Checks that the Redis server responsible for a key answers. Raises ServerError."""


class Outage(NamedTuple):
    """From when to when a Redis server gave no answer, by the steady clock."""

    away: float
    back: float


class Node:
    """The channels to one Redis server, and whether it answers."""

    def __init__(self, name: str, channels: Sequence[Channel], probe: Probe, log: Log) -> None:
        self._name, self._probe, self._log = name, probe, log
        self.idle = list(channels)
        """Channels that no call uses."""
        self._queued: deque[asyncio.Future[Channel]] = deque()
        self._probing: Background | None = None
        self._probed_at = float("-inf")
        self._away_since: float | None = None
        self._is_given_up = False
        self.refusal: ServerError | None = None
        """The error that every call raises until a probe is answered; None = calls are sent."""
        self.last_outage: Outage | None = None
        """The last outage that is over."""

    async def take(self, deadline: Deadline) -> Channel:
        """Take a free channel, or wait for one. Raises ServerUnreachable, and the last probe's
        error.
        """
        if self.refusal is not None:
            # A caller that retries without a pause must not starve the probe.
            await asyncio.sleep(0)
        if self.refusal is not None:
            raise self.refusal.with_traceback(None)
        if self.idle:
            return self.idle.pop()
        while True:
            turn: asyncio.Future[Channel] = asyncio.get_running_loop().create_future()
            self._queued.append(turn)
            try:
                async with asyncio.timeout(deadline.left(steady())):
                    return await turn
            except BaseException as error:
                if turn.done() and not turn.cancelled():
                    self.give_back(turn.result())
                if not isinstance(error, TimeoutError):
                    raise
                # If the event loop stood still meanwhile, there is time left.
                if deadline.left(steady()) <= 0:
                    raise ServerUnreachable("all connections were waiting for answers") from error

    def give_back(self, channel: Channel) -> None:
        while self._queued:
            turn = self._queued.popleft()
            if not turn.done():
                turn.set_result(channel)
                return
        self.idle.append(channel)

    # ── whether it answers ───────────────────────────────────────────────────────────────

    def gave_up(self, key: str, since: float) -> None:
        """Note that a call about *key* that began at *since* was given up, and probe the server.

        If it does not answer the probe either, the call was not at fault: then calls fail at once.
        """
        self._is_given_up = True
        self._start(key, since)

    @property
    def is_away(self) -> bool:
        """Whether `server.unreachable` was logged without a `server.back` since."""
        return self._away_since is not None

    def answered(self) -> None:
        """Note that a call was answered. A running probe continues, because it checks more."""
        if isinstance(self.refusal, ServerUnreachable):
            self.refusal = None  # no longer true: the next call must not fail
        if self.refusal is None:
            self._log_back()

    def reconnected(self, key: str) -> None:
        """Note an answer after trouble, and probe: another or changed server may answer now."""
        if steady() - self._probed_at >= PROBE_EVERY:
            self._start(key, steady())

    def begin_away(self, trouble: ServerError, key: str) -> None:
        """Log that the server does not answer, or is unfit, before the first call; and probe it
        until it answers and is fit.
        """
        if not isinstance(trouble, ServerUnreachable):
            self.refusal = trouble
        self._log_unreachable(trouble, steady())
        self._start(key, steady())

    async def close(self) -> None:
        if self._probing is not None:
            await self._probing.stop()

    def _start(self, key: str, since: float) -> None:
        if self._probing is None or not self._probing.running:
            probe = partial(self._probe_until_answered, key, since)
            self._probing = Background("probe of the server", probe, log=self._log).start()

    async def _probe_until_answered(self, key: str, since: float) -> None:
        while (trouble := await self._try_probe(key)) is not None:
            self._note_trouble(trouble, since)
            await asyncio.sleep(PROBE_EVERY)
        self._note_answer()
        if self._probing is not None:
            self._probing.retire()

    def _note_trouble(self, trouble: ServerError, since: float) -> None:
        """Note that a probe was not answered, or refused. Permanent errors fail all calls at once.
        A silent server fails later calls only after one call has used up its time.
        """
        if isinstance(trouble, EngineClosed):
            return  # the server is not at fault
        self._log_unreachable(trouble, since)
        if self._is_given_up or not isinstance(trouble, ServerUnreachable):
            self.refusal = trouble

    def _note_answer(self) -> None:
        self.refusal, self._is_given_up, self._probed_at = None, False, steady()
        self._log_back()

    async def _try_probe(self, key: str) -> ServerError | None:
        try:
            await self._probe(key)
        except ServerError as error:
            return error
        return None

    def _log_back(self) -> None:
        if self._away_since is not None:
            since, back, self._away_since = self._away_since, steady(), None
            self.last_outage = Outage(since, back)
            self._log.emit(events.SERVER_BACK, server=self._name, away=back - since)

    def _log_unreachable(self, trouble: ServerError, since: float) -> None:
        if self._away_since is None:
            self._away_since = since
            name = type(trouble).__qualname__
            self._log.emit(
                events.SERVER_UNREACHABLE, server=self._name, error=name, reason=str(trouble)
            )
