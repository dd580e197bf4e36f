"""Calls that may be repeated: sent again after a lost reply, they have one effect and one answer.

Every writing script is told (channel, number) and remembers the channel's last answer. An
engine owns a few channels with one call in flight each; a call is repeated under the same
number until it is answered or the time is up.
"""

from __future__ import annotations

import asyncio
import itertools
import secrets
from collections.abc import Awaitable, Callable
from contextlib import suppress
from functools import partial
from typing import Any, TypeVar

import msgspec
from redis.exceptions import (
    NoPermissionError,
    NoScriptError,
    OutOfMemoryError,
    ResponseError,
)

from towpath.clock import Clock, Duration, seconds, steady
from towpath.engine.connect import Line, Link, Wire
from towpath.engine.durability import Durability, ServerFacts, ask_facts, probe, require
from towpath.engine.keys import PROBE, Declared, probe_key
from towpath.engine.layout import TROUBLE, Place, key_of
from towpath.engine.limit import Watch
from towpath.engine.model import Call
from towpath.engine.refusals import translated
from towpath.engine.script import Script
from towpath.engine.target import Channel, Target
from towpath.errors import (
    DurabilityUnavailable,
    EngineClosed,
    InvalidOption,
    ServerError,
    ServerUnreachable,
)
from towpath.telemetry.logs import Log

T = TypeVar("T")

_CHECK_S = 2.0
_KEYS = 2
"""Every script declares a key that never is there, beside another: while their slot is on
its way to another node, the server then refuses the call whole, and it is sent again."""


class Limits(msgspec.Struct, frozen=True, kw_only=True):
    """How long the engine waits for its server."""

    answer: Duration = seconds(5)
    """For one reply; then the call is sent again."""
    give_up: Duration = seconds(15)
    """For a call with all its repeats; then ServerUnreachable."""
    channels: int = 4
    """Calls in flight at once; on a cluster, to each master."""

    def __post_init__(self) -> None:
        if not seconds(0) < self.answer <= self.give_up:
            raise InvalidOption("limits.answer", self.answer, rule="must be above 0, up to give_up")
        if not 1 <= self.channels <= 1000:
            raise InvalidOption("limits.channels", self.channels, rule="must be from 1 to 1000")


class Channels:
    """The calls of one engine to its servers."""

    def __init__(
        self,
        link: Link,
        clock: Clock,
        limits: Limits,
        *,
        declared: Durability | None,
        log: Log,
    ) -> None:
        self._link, self._clock, self._limits = link, clock, limits
        self._declared, self._log = declared, log
        self._answer_s = limits.answer.total_seconds()
        self._watch = Watch(limits.answer, link.look_again)
        self._give_up_s = limits.give_up.total_seconds()
        self._check_s = min(_CHECK_S, self._give_up_s)
        self._own = secrets.token_hex(8)
        self._numbers = itertools.count()
        self._targets: dict[Place | None, Target] = {}
        self._is_closed = False
        self.facts: ServerFacts | None = None
        """What the servers said about themselves when they were last asked."""
        self.trouble: ServerError | None = None
        """Why they said nothing at the beginning."""

    async def call(
        self, script: Script, keys: Declared, args: tuple[Any, ...], call: Call | None
    ) -> Any:
        """The answer to a writing script; safe to be interrupted anywhere but by the caller.

        Raises ServerUnreachable when the time is up, QueueUnknown, QueueChanged, MemoryFull,
        CallStale.
        """

        def send(channel: Channel) -> Callable[[], Awaitable[Any]]:
            words = self._named(channel, keys, args, call)
            return lambda: _send(channel.line.send, script, words)

        return await self._answer(keys.first, send)

    async def confirmed_call(
        self,
        script: Script,
        keys: Declared,
        args: tuple[Any, ...],
        call: Call | None,
        *,
        durability: Durability,
        written: Callable[[], None],
    ) -> tuple[Any, int]:
        """The same by a server that gives *durability*, and how many replicas have what it wrote;
        *written* is called before they are counted.

        The server is asked what it gives, and how many have it, on the connection that takes the
        call: so it is the server that has the answer which counts, not one that was promoted
        meanwhile. Raises DurabilityUnavailable.
        """
        await self._require_replicas(durability)
        limit_ms = int(self._answer_s * 500)  # half of it, so that the count comes back in time

        def send(channel: Channel) -> Callable[[], Awaitable[tuple[Any, int]]]:
            line, trust = channel.line, partial(self._trust, durability)
            words = self._named(channel, keys, args, call)
            key = keys.call(f"{channel.name}.confirm")

            async def sent() -> tuple[Any, int]:
                answer = await _send(lambda *it: line.send_trusted(it, trust), script, words)
                written()
                if not durability.replicas:
                    return answer, 0
                command = ("EVALSHA", script.sha, _KEYS, *words)
                return await line.confirmed(command, trust, key, durability.replicas, limit_ms)

            return sent

        return await self._answer(keys.first, send)

    def _named(
        self, channel: Channel, keys: Declared, args: tuple[Any, ...], call: Call | None
    ) -> tuple[Any, ...]:
        name, number = (call.channel, call.number) if call else channel.next_call()
        return (keys.first, keys.never, self._clock.stamp(), name, number, *args)

    async def _trust(self, wanted: Durability, wire: Wire) -> None:
        wire.facts = await require(wire.ask, wire.facts, wanted, self._declared)

    async def _require_replicas(self, wanted: Durability) -> None:
        """Refuse before anything is sent what too few replicas are attached for."""
        facts = self.facts
        if wanted.replicas and (facts is None or wanted.replicas > facts.replicas):
            facts = await self.check()  # one may have been attached since
            if wanted.replicas > facts.replicas:
                raise DurabilityUnavailable(str(wanted), f"replica:{facts.replicas}")

    async def read(self, script: Script, keys: Declared, *args: Any) -> Any:
        """The answer to a script that only reads, or that may be repeated by its nature."""
        words = (keys.first, keys.never, *args)
        return await self._answer(
            keys.first, lambda channel: lambda: _send(channel.line.send, script, words)
        )

    async def clocked(self, script: Script, keys: Declared, *args: Any) -> Any:
        """The same, for a script whose first argument is the clock."""
        return await self.read(script, keys, self._clock.stamp(), *args)

    async def command(self, *command: Any) -> Any:
        """The answer to a plain command that may be repeated."""
        return await self._answer(
            key_of(command), lambda channel: lambda: channel.line.send(*command)
        )

    # ── whether the servers answer ───────────────────────────────────────────────────────

    async def check(self) -> ServerFacts:
        """What the servers that answer say about themselves, within two seconds or so.

        Raises ServerUnreachable if none answers, EvictionUnsafe, DurabilityUnknown, ServerRefused.
        """
        self.facts = await self._until_answered(
            lambda: probe(self._link, self._declared), _nothing, steady(), self._check_s
        )
        return self.facts

    def are_away(self, trouble: ServerError) -> None:
        """None answered, or one is not fit: say so, and probe until that is over."""
        self.trouble = trouble
        self._target(PROBE).begin_away(trouble, PROBE)

    async def _probe(self, line: Line, key: str) -> None:
        """See that the server of *key* takes a write and is fit; then ask all about themselves."""
        command = ("SET", probe_key(key, f"{self._own}.probe"), "1", "PX", 1)

        async def fit(wire: Wire) -> None:
            wire.facts = await ask_facts(wire.ask, self._declared)

        async def send() -> None:
            # That it is full, or that the key is not allowed, is an answer too.
            with suppress(OutOfMemoryError, NoPermissionError):
                await line.send_trusted(command, fit)

        await self._until_answered(send, line.hang_up, steady(), self._check_s)
        with suppress(ServerError):
            await self.check()

    async def close(self) -> None:
        """From now on every call is refused."""
        self._is_closed = True
        self._watch.close()
        for target in self._targets.values():
            await target.close()

    # ── how it is done ───────────────────────────────────────────────────────────────────

    async def _answer(
        self, key: str, prepare: Callable[[Channel], Callable[[], Awaitable[T]]]
    ) -> T:
        """The answer to what *prepare* makes for a channel: made once, sent until answered."""
        if self._is_closed:
            raise EngineClosed("the engine was left")
        began = steady()
        target = self._target(key)
        channel = await target.take(began + self._give_up_s)
        try:
            answer = await self._until_answered(
                prepare(channel), channel.line.hang_up, began, self._give_up_s,
                lambda: target.reconnected(key),
            )  # fmt: skip
        except ServerUnreachable:
            target.gave_up(key, began)
            raise
        else:
            if target.is_away:
                target.answered()
            return answer
        finally:
            target.give_back(channel)

    def _target(self, key: str) -> Target:
        place = self._link.target(key)
        target = self._targets.get(place)
        if target is None:
            channels = [
                Channel(f"{self._own}.{next(self._numbers)}", self._link.line())
                for _ in range(self._limits.channels)
            ]
            probe = partial(self._probe, self._link.line())
            target = Target(self._link.name(place), channels, probe, self._log)
            self._targets[place] = target
        return target

    async def _until_answered(
        self,
        send: Callable[[], Awaitable[T]],
        hang_up: Callable[[], Awaitable[None]],
        began: float,
        give_up_s: float,
        reconnected: Callable[[], None] | None = None,
    ) -> T:
        for attempt in itertools.count():
            try:
                answer = await self._watch.within(send(), began + give_up_s)
            except TROUBLE as error:
                trouble = translated(error)
                # After a reply that refuses the call, its connection is as good as before.
                if trouble is None or not isinstance(error, ResponseError):
                    await hang_up()
                if trouble is not None:
                    raise trouble from error
                pause = min(0.02 * 2**attempt, 0.5)
                if steady() + pause >= began + give_up_s:
                    raise ServerUnreachable(
                        f"no answer within {give_up_s} s: {error or type(error).__name__}"
                    ) from error
            except ServerError:
                if attempt and reconnected is not None:
                    reconnected()  # it can't give what was asked for: it may be another than before
                raise
            else:
                if attempt and reconnected is not None:
                    reconnected()
                return answer
            await asyncio.sleep(pause)
        raise AssertionError("unreachable")


async def _nothing() -> None:
    """There is no line to hang up."""


async def _send(send: Callable[..., Awaitable[Any]], script: Script, args: Any) -> Any:
    try:
        return await send("EVALSHA", script.sha, _KEYS, *args)
    except NoScriptError:
        # A new or restarted server, or one that was promoted: it learns the script this way.
        return await send("EVAL", script.source, _KEYS, *args)
