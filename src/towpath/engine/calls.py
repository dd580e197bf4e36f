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

from towpath.clock import Clock, steady
from towpath.engine.channel import KEYS, Channel, Limits
from towpath.engine.cluster import Cluster
from towpath.engine.connection import Connection, Place
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
from towpath.engine.node import Node, Outage
from towpath.engine.refusals import translated
from towpath.engine.resp import TROUBLE, ErrorReply, LoginRefused
from towpath.engine.script import Script
from towpath.engine.time_limit import Deadline
from towpath.errors import (
    DurabilityNotReached,
    DurabilityUnavailable,
    EngineClosed,
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


class Calls:
    """The calls of one engine to its servers."""

    def __init__(
        self,
        cluster: Cluster,
        clock: Clock,
        limits: Limits,
        *,
        declared: Durability | None,
        log: Log,
    ) -> None:
        self._cluster, self._clock, self._limits = cluster, clock, limits
        self._declared, self._log = declared, log
        self._answer_s = limits.answer.total_seconds()
        self._watch = cluster.port.time_limit(limits.answer, cluster.look_again)
        self._give_up_s = limits.give_up.total_seconds()
        self._check_s = min(_CHECK_S, self._give_up_s)
        self._own = secrets.token_hex(8)
        self._numbers = itertools.count()
        self._nodes: dict[Place | None, Node] = {}
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
        return lambda channel: partial(channel.run, script, self._named(keys, args, call, channel))

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
            key = keys.call(f"{channel.name}.confirm")
            words, trust = self._named(keys, args, call, channel), partial(self._trust, durability)

            async def sent() -> Any:
                answer = await channel.run(script, words, trust)
                written()
                if wanted:
                    command = ("EVALSHA", script.sha, KEYS, *words)
                    answer, have = await channel.confirmed(command, trust, key, wanted, limit_ms)
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

    async def _trust(self, wanted: Durability, connection: Connection) -> None:
        connection.facts = await require(connection.ask, connection.facts, wanted, self._declared)

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
        return await self.ask(keys.first, lambda channel: partial(channel.run, script, words))

    async def clocked(self, script: Script, keys: DeclaredKeys, *args: Any) -> Any:
        """The same, for a script whose first argument is the clock."""
        return await self.read(script, keys, self._clock.stamp(), *args)

    async def clocked_each(
        self, script: Script, every: Sequence[DeclaredKeys], *args: Any
    ) -> list[Any]:
        """The same about each, in one message to the first one's server; errors in their places."""
        stamp = self._clock.stamp()
        asked = [("EVALSHA", script.sha, KEYS, k.first, k.never, stamp, *args) for k in every]
        return await self.ask(every[0].first, lambda to: partial(to.send_all, asked))

    async def clocked_in_turn(
        self,
        keys: DeclaredKeys,
        asked: Sequence[tuple[Script, tuple[Any, ...]]],
        deadline: Deadline,
    ) -> list[Any]:
        """The answers to several such scripts, in order: in one message where the server knows
        them.
        """
        fixed = (keys.first, keys.never, self._clock.stamp())
        if len(asked) > 1:
            commands = [("EVALSHA", one.sha, KEYS, *fixed, *args) for one, args in asked]
            answers = await self.ask(
                keys.first, lambda to: partial(to.send_all, commands), deadline=deadline
            )
            if not any(isinstance(answer, Exception) for answer in answers):
                return answers
        # One by one, each is taught, redirected or refused.
        return [
            await self.ask(
                keys.first,
                lambda to, one=one, args=args: partial(to.run, one, (*fixed, *args)),
                deadline=deadline,
            )
            for one, args in asked
        ]

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
            lambda channel: partial(channel.send, *command, behind=behind),
            deadline=deadline,
        )

    def new_deadline(self, within: float | None = None) -> Deadline:
        """When a call that begins now is given up: *within* so many seconds, if that is sooner."""
        longest = self._give_up_s
        return Deadline(self._watch, longest if within is None else min(within, longest))

    async def ask(self, key: str, prepare: Prepare[T], *, deadline: Deadline | None = None) -> T:
        """The answer to what *prepare* makes for a channel: made once, sent until answered.

        Raises ServerUnreachable when the time is up. A caller that has waited before gives its own
        *deadline*.
        """
        if self._is_closed:
            raise EngineClosed(_LEFT)
        deadline, attempt = deadline or self.new_deadline(), 0
        node = self._node_of(key)
        free = node.idle and node.refusal is None
        channel = node.idle.pop() if free else await node.take(deadline)
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
                    await self._pause(error, attempt, deadline, channel.hang_up, key=key)
                    attempt += 1
                except ServerError:
                    if attempt:
                        node.reconnected(key)  # it can't give that: it may be another than before
                    raise
        except ServerUnreachable:
            node.gave_up(key, deadline.began(steady()))
            raise
        finally:
            node.give_back(channel)
        if attempt:
            node.reconnected(key)
        if node.is_away:
            node.answered()
        return answer

    # ── whether the servers answer ───────────────────────────────────────────────────────

    async def check(self) -> ServerFacts:
        """What the servers that answer say about themselves, within two seconds or so.

        Raises ServerUnreachable if none answers, EvictionUnsafe, DurabilityUnknown, ServerRefused.
        """
        began = steady()
        self.facts = await self._repeated(lambda: probe(self._cluster, self._declared), _nothing)
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
        self._node_of(PROBE).begin_away(trouble, PROBE)

    async def _probe(self, channel: Channel, key: str) -> None:
        """See that the server of *key* takes a write and is fit; then ask all about themselves."""
        command = ("SET", probe_key(key, f"{self._own}.probe"), "1", "PX", 1)

        async def fit(connection: Connection) -> None:
            connection.facts = await ask_known(connection.ask, self._declared)

        async def send() -> None:
            try:
                await channel.send(*command, trust=fit)
            except ErrorReply as error:
                # That it is full, or that the key is not allowed, is an answer too.
                if error.code not in {"OOM", "NOPERM"}:
                    raise

        await self._repeated(send, channel.hang_up)
        if self._cluster.port.in_threads:
            await channel.close()  # the next question takes a connection in its place
        with suppress(ServerError):
            await self.check()

    async def close(self) -> None:
        """From now on every call is refused."""
        self._is_closed = True
        self._watch.close()
        for node in self._nodes.values():
            await node.close()

    def last_outage(self, key: str) -> Outage | None:
        """When the server of *key* last gave no answer, if it ever gave none."""
        for node in self._nodes.values():
            if node.last_outage is not None:
                return self._node_of(key).last_outage
        return None  # the rule: no need to look for the server

    # ── how it is done ───────────────────────────────────────────────────────────────────

    def _node_of(self, key: str) -> Node:
        place = self._cluster.owner(key)
        node = self._nodes.get(place)
        if node is None:
            new = self._cluster.port.node(
                self._cluster.name(place),
                self._new_channel,
                self._limits.channels,
                self._probe,
                self._log,
            )
            node = self._nodes.setdefault(place, new)  # another thread may have been faster
        return node

    def _new_channel(self) -> Channel:
        return self._cluster.channel(f"{self._own}.{next(self._numbers)}")

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
        await self._cluster.port.pause(pause)


async def _nothing() -> None:
    """There is no channel to hang up."""
