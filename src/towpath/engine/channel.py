"""Calls that may be repeated: sent again after a lost reply, they have one effect and one answer.

Every writing script is told (channel, number) and remembers the channel's last answer. An
engine owns a few channels with one call in flight each; a call is repeated under the same
number until it is answered or the time is up.
"""

from __future__ import annotations

import asyncio
import itertools
import secrets
from collections.abc import Awaitable, Callable, Sequence
from contextlib import suppress
from functools import partial
from typing import Any, TypeVar

import msgspec

from towpath.clock import Clock, Duration, DurationField, duration, seconds, steady, usually
from towpath.engine.connect import KEYS, Line, Link
from towpath.engine.durability import (
    FACTS_LAST,
    Durability,
    ServerFacts,
    ask_known,
    probe,
    require,
)
from towpath.engine.keys import PROBE, DeclaredKeys, probe_key
from towpath.engine.layout import key_of
from towpath.engine.model import Call
from towpath.engine.refusals import translated
from towpath.engine.resp import TROUBLE, ErrorReply, LoginRefused
from towpath.engine.script import Script
from towpath.engine.submit_timeout import GIVE_UP_AFTER
from towpath.engine.target import Channel, Outage, Target
from towpath.engine.time_limit import Deadline
from towpath.engine.wire import Place, Wire
from towpath.errors import (
    DurabilityNotReached,
    DurabilityUnavailable,
    EngineClosed,
    InvalidOption,
    ServerError,
    ServerUnreachable,
)
from towpath.telemetry.logs import Log

T = TypeVar("T")

Send = Callable[[], Awaitable[T]]
Prepare = Callable[[Channel], Send[T]]
"""Makes what is sent on a channel, once; it may be sent more than once."""
_CHECK_S = 2.0
_LEFT = "the engine was left"


class Limits(msgspec.Struct, frozen=True, kw_only=True):
    """How long the engine waits for its server."""

    answer: DurationField = usually(seconds(5))
    """Time to wait for one reply before the call is sent again."""
    give_up: DurationField = usually(GIVE_UP_AFTER)
    """Time to wait for a call with all its repeats; then it raises ServerUnreachable."""
    channels: int = 4
    """Number of calls in flight at once; on a cluster, per master."""

    def __post_init__(self) -> None:
        for name in ("answer", "give_up"):
            value = duration(f"limits.{name}", getattr(self, name))
            msgspec.structs.force_setattr(self, name, value)
        if not seconds(0) < self.answer <= self.give_up:
            raise InvalidOption("limits.answer", self.answer, rule="must be above 0, up to give_up")
        if not 1 <= self.channels <= 1000:
            raise InvalidOption("limits.channels", self.channels, rule="must be from 1 to 1000")


def limits_within(timeout: Duration) -> Limits:
    """The usual limits, for calls that raise ServerUnreachable after *timeout*."""
    return Limits(answer=min(Limits().answer, timeout), give_up=timeout)


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
        self._watch = link.port.time_limit(limits.answer, link.look_again)
        self._give_up_s = limits.give_up.total_seconds()
        self._check_s = min(_CHECK_S, self._give_up_s)
        self._own = secrets.token_hex(8)
        self._numbers = itertools.count()
        self._targets: dict[Place | None, Target] = {}
        self._is_closed = False
        self.facts: ServerFacts | None = None
        """What the servers said about themselves when they were last asked."""
        self._facts_asked_at, self._asking_facts = float("-inf"), asyncio.Lock()
        self.trouble: ServerError | None = None
        """Why they said nothing at the beginning."""

    # ── what may be asked ────────────────────────────────────────────────────────────────

    def plain(
        self, script: Script, keys: DeclaredKeys, args: tuple[Any, ...], call: Call | None
    ) -> Prepare[Any]:
        """A call of a writing script: safe to be interrupted anywhere but by the caller."""
        return lambda channel: partial(
            channel.line.run, script, self._named(keys, args, call, channel)
        )

    def confirmed(
        self,
        script: Script,
        keys: DeclaredKeys,
        args: tuple[Any, ...],
        call: Call | None,
        *,
        durability: Durability,
        written: Callable[[], None],
    ) -> Prepare[Any]:
        """The same to a server that gives *durability*; *written* is called before it is counted
        how many replicas have what it wrote.

        The server is asked what it gives, and how many have it, on the connection that takes the
        call: so it is the server that has the answer which counts, not one that was promoted
        meanwhile. It may raise DurabilityUnavailable, DurabilityNotReached.
        """
        wanted, limit_ms = durability.replicas, int(self._answer_s * 500)
        # Half of the time for an answer, so that the count comes back in time.

        def prepare(channel: Channel) -> Send[Any]:
            line, key = channel.line, keys.call(f"{channel.name}.confirm")
            words, trust = self._named(keys, args, call, channel), partial(self._trust, durability)

            async def sent() -> Any:
                answer = await line.run(script, words, trust)
                written()
                if wanted:
                    command = ("EVALSHA", script.sha, KEYS, *words)
                    answer, have = await line.confirmed(command, trust, key, wanted, limit_ms)
                    if have < wanted:
                        raise DurabilityNotReached(wanted, have)
                return answer

            return sent

        return prepare

    def _named(
        self, keys: DeclaredKeys, args: tuple[Any, ...], call: Call | None, channel: Channel
    ) -> tuple[Any, ...]:
        """What a writing script is told: under the caller's name for the call, or the channel's."""
        if call is None:
            channel.number += 1
        name, number = (call.channel, call.number) if call else (channel.name, channel.number)
        return (keys.first, keys.never, self._clock.stamp(), name, number, *args)

    async def _trust(self, wanted: Durability, wire: Wire) -> None:
        wire.facts = await require(wire.ask, wire.facts, wanted, self._declared)

    async def require_replicas(self, wanted: Durability) -> None:
        """Refuse before anything is sent what too few replicas are attached for."""
        facts = self.facts
        if wanted.replicas and (facts is None or wanted.replicas > facts.replicas):
            facts = await self.check()  # one may have been attached since
            if wanted.replicas > facts.replicas:
                raise DurabilityUnavailable(str(wanted), f"replica:{facts.replicas}")

    async def read(self, script: Script, keys: DeclaredKeys, *args: Any) -> Any:
        """The answer to a script that only reads, or that may be repeated by its nature."""
        words = (keys.first, keys.never, *args)
        return await self.ask(keys.first, lambda channel: partial(channel.line.run, script, words))

    async def clocked(self, script: Script, keys: DeclaredKeys, *args: Any) -> Any:
        """The same, for a script whose first argument is the clock."""
        return await self.read(script, keys, self._clock.stamp(), *args)

    async def clocked_each(
        self, script: Script, every: Sequence[DeclaredKeys], *args: Any
    ) -> list[Any]:
        """The same about each, in one message to the first one's server; errors in their places."""
        stamp = self._clock.stamp()
        asked = [("EVALSHA", script.sha, KEYS, k.first, k.never, stamp, *args) for k in every]
        return await self.ask(every[0].first, lambda to: partial(to.line.send_all, asked))

    async def command(
        self,
        *command: Any,
        behind: tuple[Any, ...] | None = None,
        deadline: Deadline | None = None,
    ) -> Any:
        """The answer to a plain command that may be repeated; *behind* another about the same key,
        which is sent with it.
        """
        return await self.ask(
            key_of(command),
            lambda channel: partial(channel.line.send, *command, behind=behind),
            deadline=deadline,
        )

    def new_deadline(self, within: float | None = None) -> Deadline:
        """When a call that begins now is given up."""
        return Deadline(self._watch, self._give_up_s if within is None else within)

    async def ask(self, key: str, prepare: Prepare[T], *, deadline: Deadline | None = None) -> T:
        """The answer to what *prepare* makes for a channel: made once, sent until answered.

        Raises ServerUnreachable when the time is up. A caller that has waited before gives its own
        *deadline*.
        """
        if self._is_closed:
            raise EngineClosed(_LEFT)
        deadline, attempt = deadline or self.new_deadline(), 0
        target = self._target(key)
        free = target.idle and target.refusal is None
        channel = target.idle.pop() if free else await target.take(deadline)
        try:
            send = prepare(channel)
            while True:
                try:
                    with self._watch.until(deadline):
                        answer = await send()
                    break
                except TROUBLE as error:
                    if self._is_closed:
                        raise EngineClosed(_LEFT) from error
                    hang_up = channel.line.hang_up
                    await self._pause(error, attempt, deadline, hang_up, key=key)
                    attempt += 1
                except ServerError:
                    if attempt:
                        target.reconnected(key)  # it can't give that: it may be another than before
                    raise
        except ServerUnreachable:
            target.gave_up(key, deadline.began(steady()))
            raise
        finally:
            target.give_back(channel)
        if attempt:
            target.reconnected(key)
        if target.is_away:
            target.answered()
        return answer

    # ── whether the servers answer ───────────────────────────────────────────────────────

    async def check(self) -> ServerFacts:
        """What the servers that answer say about themselves, within two seconds or so.

        Raises ServerUnreachable if none answers, EvictionUnsafe, DurabilityUnknown, ServerRefused.
        """
        began = steady()
        self.facts = await self._repeated(lambda: probe(self._link, self._declared), _nothing)
        self._facts_asked_at = began
        return self.facts

    async def current_facts(self) -> ServerFacts:
        """The same, at most as old as `FACTS_LAST`: calls at the same time share one question."""
        async with self._asking_facts:
            age = steady() - self._facts_asked_at
            if self.facts is not None and age < FACTS_LAST.total_seconds():
                return self.facts
            return await self.check()

    def are_away(self, trouble: ServerError) -> None:
        """None answered, or one is not fit: say so, and probe until that is over."""
        self.trouble = trouble
        self._target(PROBE).begin_away(trouble, PROBE)

    async def _probe(self, line: Line, key: str) -> None:
        """See that the server of *key* takes a write and is fit; then ask all about themselves."""
        command = ("SET", probe_key(key, f"{self._own}.probe"), "1", "PX", 1)

        async def fit(wire: Wire) -> None:
            wire.facts = await ask_known(wire.ask, self._declared)

        async def send() -> None:
            try:
                await line.send(*command, trust=fit)
            except ErrorReply as error:
                # That it is full, or that the key is not allowed, is an answer too.
                if error.code not in {"OOM", "NOPERM"}:
                    raise

        await self._repeated(send, line.hang_up)
        if self._link.port.in_threads:
            await line.close()  # the next question takes a connection in its place
        with suppress(ServerError):
            await self.check()

    async def close(self) -> None:
        """From now on every call is refused."""
        self._is_closed = True
        self._watch.close()
        for target in self._targets.values():
            await target.close()

    def last_outage(self, key: str) -> Outage | None:
        """When the server of *key* last gave no answer, if it ever gave none."""
        if all(target.last_outage is None for target in self._targets.values()):
            return None  # the rule: no need to look for the server
        return self._target(key).last_outage

    # ── how it is done ───────────────────────────────────────────────────────────────────

    def _target(self, key: str) -> Target:
        place = self._link.target(key)
        target = self._targets.get(place)
        if target is None:
            new = self._link.port.target(
                self._link.name(place),
                self._new_channel,
                self._limits.channels,
                self._probe,
                self._log,
            )
            target = self._targets.setdefault(place, new)  # another thread may have been faster
        return target

    def _new_channel(self) -> Channel:
        return Channel(f"{self._own}.{next(self._numbers)}", self._link.line())

    async def _repeated(self, send: Send[T], hang_up: Callable[[], Awaitable[None]]) -> T:
        """The answer of a server that is asked about itself, for as long as nobody minds."""
        deadline = Deadline(self._watch, self._check_s)
        for attempt in itertools.count():
            try:
                with self._watch.until(deadline):
                    return await send()
            except TROUBLE as error:
                if self._is_closed:
                    raise EngineClosed(_LEFT) from error
                await self._pause(error, attempt, deadline, hang_up)
        raise AssertionError("unreachable")

    async def _pause(
        self,
        error: Exception,
        attempt: int,
        deadline: Deadline,
        hang_up: Callable[[], Awaitable[None]],
        *,
        key: str = "",
    ) -> None:
        """Return when a call may be sent again after *error*. Raises what it means if it may
        not.
        """
        trouble = translated(error, key)
        # After a reply that refuses the call, its connection is as good as before.
        if trouble is None or not isinstance(error, ErrorReply) or isinstance(error, LoginRefused):
            await hang_up()
        if trouble is not None:
            raise trouble from error
        pause = min(0.02 * 2**attempt, 0.5)
        if pause >= deadline.left(steady()):
            raise ServerUnreachable(
                f"no answer within {deadline.limit} s: {error or type(error).__name__}"
            ) from error
        await self._link.port.pause(pause)


async def _nothing() -> None:
    """There is no line to hang up."""
