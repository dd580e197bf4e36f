"""Calls that may be repeated: sent again after a lost reply, they have one effect and one answer.

Every writing script gets (channel, number) and stores its last answer to that channel. An engine
has a few channels with one call in flight each; a call is repeated under the same number until it
is answered or the time is up.
"""

from __future__ import annotations

import asyncio
import itertools
import secrets
from collections.abc import Awaitable, Callable, Sequence
from contextlib import suppress
from functools import partial
from typing import Any, TypeVar

from towpath.backoff import pause_after
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
from towpath.engine.refusals import translate_error
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
"""Called once with a channel; returns the function that sends the call. That may be called more
than once."""
_CHECK_S = 2.0
_ENGINE_LEFT = "the engine was left"
NOT_ENTERED = "the engine is not open: use `async with Engine(…)`"


class Calls:
    """The calls of one engine to Redis."""

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
        self._name = ""
        """The beginning of the names of the channels; empty until `open`."""
        self._numbers = itertools.count()
        self._nodes: dict[Place | None, Node] = {}
        self._is_closed = True
        self.facts: ServerFacts | None = None
        """What the Redis servers reported about themselves when they were last asked."""
        self._facts_asked_at, self._asking_facts = float("-inf"), asyncio.Lock()
        self.trouble: ServerError | None = None
        """Why `facts` could not be read when the engine was entered."""

    def open(self) -> None:
        """Take calls from now on, under a name of this process: an engine that was made before a
        fork may be entered in each child.
        """
        self._name, self._is_closed = secrets.token_hex(8), False

    @property
    def was_opened(self) -> bool:
        return bool(self._name)

    # ── calls ────────────────────────────────────────────────────────────────────────────

    def plain(
        self, script: Script, keys: DeclaredKeys, args: tuple[Any, ...], call: Call | None
    ) -> Prepare[Any]:
        """A call of a writing script, repeated safely after any trouble. If the caller cancels it,
        its effect is unknown.
        """
        return lambda channel: partial(
            channel.run, script, self._make_args(keys, args, call, channel)
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
        """A call of a writing script at *durability*. *written* is called when Redis has answered,
        before it counts the replicas that have the write.

        The server's durability is read, and its replicas are counted, on the connection that takes
        the call: so they are those of the server that stored the answer, not of one that was
        promoted meanwhile. The call may raise DurabilityUnavailable, DurabilityNotReached.
        """
        wanted, limit_ms = durability.replicas, int(self._answer_s * 500)
        # Half of the time for a reply, so that the count arrives in time.

        def prepare(channel: Channel) -> Send[Any]:
            key = keys.call(f"{channel.name}.confirm")
            script_args = self._make_args(keys, args, call, channel)
            trust = partial(self._check_durability, durability)

            async def send_confirmed() -> Any:
                answer = await channel.run(script, script_args, trust)
                written()
                if wanted:
                    command = ("EVALSHA", script.sha, KEYS, *script_args)
                    answer, have = await channel.confirmed(command, trust, key, wanted, limit_ms)
                    if have < wanted:
                        raise DurabilityNotReached(wanted, have)
                return answer

            return send_confirmed

        return prepare

    def _make_args(
        self, keys: DeclaredKeys, args: tuple[Any, ...], call: Call | None, channel: Channel
    ) -> tuple[Any, ...]:
        """The arguments of a writing script, with the caller's name for the call, or else the
        channel's.
        """
        if call is None:
            channel.number += 1
        name, number = (call.channel, call.number) if call else (channel.name, channel.number)
        return (keys.first, keys.never, self._clock.stamp(), name, number, *args)

    async def _check_durability(self, wanted: Durability, connection: Connection) -> None:
        connection.facts = await require(connection.ask, connection.facts, wanted, self._declared)

    async def require_replicas(self, wanted: Durability) -> None:
        """Raises DurabilityUnavailable, before the call is sent, if too few replicas are
        attached.
        """
        facts = self.facts
        if wanted.replicas and (facts is None or wanted.replicas > facts.replicas):
            facts = await self.check()  # a replica may have been attached since
            if wanted.replicas > facts.replicas:
                raise DurabilityUnavailable(str(wanted), f"replica:{facts.replicas}")

    async def read(self, script: Script, keys: DeclaredKeys, *args: Any) -> Any:
        """The answer of a script that only reads, or that may be repeated by its nature."""
        script_args = (keys.first, keys.never, *args)
        return await self.ask(keys.first, lambda channel: partial(channel.run, script, script_args))

    async def clocked(self, script: Script, keys: DeclaredKeys, *args: Any) -> Any:
        """The answer of such a script whose first argument is the clock."""
        return await self.read(script, keys, self._clock.stamp(), *args)

    async def clocked_each(
        self, script: Script, every: Sequence[DeclaredKeys], *args: Any
    ) -> list[Any]:
        """The answers of such a script for each of *every*, in one message to the server of the
        first keys. An error is returned in its place.
        """
        stamp = self._clock.stamp()
        asked = [("EVALSHA", script.sha, KEYS, k.first, k.never, stamp, *args) for k in every]
        return await self.ask(every[0].first, lambda to: partial(to.send_all, asked))

    async def clocked_in_turn(
        self,
        keys: DeclaredKeys,
        asked: Sequence[tuple[Script, tuple[Any, ...]]],
        deadline: Deadline,
    ) -> list[Any]:
        """The answers of several such scripts, in order: in one message if Redis has them all
        loaded.
        """
        fixed = (keys.first, keys.never, self._clock.stamp())
        if len(asked) > 1:
            commands = [("EVALSHA", one.sha, KEYS, *fixed, *args) for one, args in asked]
            answers = await self.ask(
                keys.first, lambda to: partial(to.send_all, commands), deadline=deadline
            )
            if not any(isinstance(answer, Exception) for answer in answers):
                return answers
        # Sent one by one, each is loaded, redirected or refused.
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
        """The answer to a plain command that may be repeated. *behind* is another command about the
        same key, which is sent before it in the same message.
        """
        return await self.ask(
            key_of(command),
            lambda channel: partial(channel.send, *command, behind=behind),
            deadline=deadline,
        )

    def new_deadline(self, within: float | None = None) -> Deadline:
        """The deadline of a call that begins now: `limits.give_up`, or *within* if that is
        sooner.
        """
        longest = self._give_up_s
        return Deadline(self._watch, longest if within is None else min(within, longest))

    async def ask(self, key: str, prepare: Prepare[T], *, deadline: Deadline | None = None) -> T:
        """The answer to the call that *prepare* makes: made once, sent until it is answered.

        Raises ServerUnreachable when the time is up. A caller that has waited already passes its
        own *deadline*.
        """
        if self._is_closed:
            raise self._closed_error()
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
                        raise EngineClosed(_ENGINE_LEFT) from error
                    await self._pause_or_raise(error, attempt, deadline, channel.hang_up, key=key)
                    attempt += 1
                except ServerError:
                    if attempt:
                        node.reconnected(
                            key
                        )  # the next answer may come from another server, which may not refuse
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
        """What the Redis servers that answer report about themselves, within about two seconds.

        Raises ServerUnreachable if none answers, EvictionUnsafe, DurabilityUnknown, ServerRefused.
        """
        began = steady()
        self.facts = await self._repeat_question(
            lambda: probe(self._cluster, self._declared), _do_nothing
        )
        self._facts_asked_at = began
        return self.facts

    async def current_facts(self) -> ServerFacts:
        """The result of `check`, at most as old as `FACTS_LAST`; concurrent calls share one
        check.
        """
        async with self._asking_facts:
            age = steady() - self._facts_asked_at
            if self.facts is not None and age < FACTS_LAST.total_seconds():
                return self.facts
            return await self.check()

    def are_away(self, trouble: ServerError) -> None:
        """Log that no server answered, or that one is unfit, and probe until all answer and are
        fit.
        """
        self.trouble = trouble
        self._node_of(PROBE).begin_away(trouble, PROBE)

    async def _probe(self, channel: Channel, key: str) -> None:
        """Check that the server of *key* takes a write and is fit; then read the facts of all."""
        command = ("SET", probe_key(key, f"{self._name}.probe"), "1", "PX", 1)

        async def check_fit(connection: Connection) -> None:
            connection.facts = await ask_known(connection.ask, self._declared)

        async def send() -> None:
            try:
                await channel.send(*command, trust=check_fit)
            except ErrorReply as error:
                # A server that is full, or that denies the key, has answered.
                if error.code not in {"OOM", "NOPERM"}:
                    raise

        await self._repeat_question(send, channel.hang_up)
        if self._cluster.port.in_threads:
            await channel.close()  # to make room for the connection of `check`
        with suppress(ServerError):
            await self.check()

    async def close(self) -> None:
        """Refuse every call from now on."""
        self._is_closed = True
        self._watch.close()
        for node in self._nodes.values():
            await node.close()

    def last_outage(self, key: str) -> Outage | None:
        """The last outage of the server of *key* that is over, if any."""
        for node in self._nodes.values():
            if node.last_outage is not None:
                return self._node_of(key).last_outage
        return None  # the usual case, without looking up the server

    # ── internals ────────────────────────────────────────────────────────────────────────

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
            node = self._nodes.setdefault(
                place, new
            )  # another thread may have made a node for this place
        return node

    def _new_channel(self) -> Channel:
        return self._cluster.channel(f"{self._name}.{next(self._numbers)}")

    def _closed_error(self) -> Exception:
        return EngineClosed(_ENGINE_LEFT) if self._name else RuntimeError(NOT_ENTERED)

    async def _repeat_question(self, send: Send[T], hang_up: Callable[[], Awaitable[None]]) -> T:
        """The answer to a question about the server itself, repeated for up to two seconds."""
        if self._is_closed:
            raise self._closed_error()
        deadline = Deadline(self._watch, self._check_s)
        for attempt in itertools.count():
            try:
                with self._watch.until(deadline):
                    return await send()
            except TROUBLE as error:
                if self._is_closed:
                    raise EngineClosed(_ENGINE_LEFT) from error
                await self._pause_or_raise(error, attempt, deadline, hang_up)
        raise AssertionError("unreachable")

    async def _pause_or_raise(
        self,
        error: Exception,
        attempt: int,
        deadline: Deadline,
        hang_up: Callable[[], Awaitable[None]],
        *,
        key: str = "",
    ) -> None:
        """Return when a call may be sent again after *error*. Raises the error's meaning if it may
        not, ServerUnreachable if the time is up.
        """
        trouble = translate_error(error, key)
        # The connection is still good if the reply only refused the call.
        if trouble is None or not isinstance(error, ErrorReply) or isinstance(error, LoginRefused):
            await hang_up()
        if trouble is not None:
            raise trouble from error
        pause = pause_after(attempt + 1, 0.02, 0.5)
        if pause >= deadline.left(steady()):
            raise ServerUnreachable(
                f"no answer within {deadline.limit} s: {error or type(error).__name__}"
            ) from error
        await self._cluster.port.pause(pause)


async def _do_nothing() -> None:
    """Does nothing: `check` has no channel to hang up."""
