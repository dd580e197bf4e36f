"""Calls that may be repeated: sent again after a lost reply, they have one effect and one answer.

Every writing script is told (channel, number) and remembers the channel's last answer. An
engine owns a few channels with one call in flight each; a call is repeated under the same
number until it is answered or the time is up.
"""

from __future__ import annotations

import asyncio
import itertools
import re
import secrets
from collections import deque
from collections.abc import Awaitable, Callable
from typing import Any, TypeVar

import msgspec
from redis.exceptions import (
    AskError,
    AuthenticationError,
    AuthorizationError,
    BusyLoadingError,
    ClusterDownError,
    MasterDownError,
    MovedError,
    NoScriptError,
    OutOfMemoryError,
    ReadOnlyError,
    RedisClusterException,
    ResponseError,
    TryAgainError,
)
from redis.exceptions import ConnectionError as RedisConnectionError
from redis.exceptions import TimeoutError as RedisTimeoutError

from towpath.clock import Clock, Duration, seconds, steady
from towpath.engine.connect import Line, Link
from towpath.engine.durability import Durability, ServerFacts, probe
from towpath.engine.keys import keys_of
from towpath.engine.layout import TROUBLE
from towpath.engine.limit import Watch
from towpath.engine.model import Call
from towpath.engine.script import Script
from towpath.engine.tls import failed_handshake
from towpath.errors import (
    CallStale,
    CallTaken,
    EngineClosed,
    InvalidOption,
    MemoryFull,
    ScriptDefect,
    ServerError,
    ServerRefused,
    ServerUnreachable,
)
from towpath.ids import QueueName

T = TypeVar("T")

_KEYS = 2
"""Every script declares a key that is always there and one that never is: while their slot is on
its way to another node, the server then refuses the call whole, and it is sent again."""


class Limits(msgspec.Struct, frozen=True, kw_only=True):
    """How long the engine waits for its server."""

    answer: Duration = seconds(5)
    """For one reply; then the call is sent again."""
    give_up: Duration = seconds(15)
    """For a call with all its repeats; then ServerUnreachable."""
    channels: int = 4
    """Calls in flight at once."""

    def __post_init__(self) -> None:
        if not seconds(0) < self.answer <= self.give_up:
            raise InvalidOption("limits.answer", self.answer, rule="must be above 0, up to give_up")
        if not 1 <= self.channels <= 1000:
            raise InvalidOption("limits.channels", self.channels, rule="must be from 1 to 1000")


class QueueUnknown(ServerError):
    """The server knows no options of the queue: it is new there. The engine introduces it."""

    code = "queue_unknown"


class QueueChanged(ServerError):
    """The queue has other options than the caller went by. The engine asks for them."""

    code = "queue_changed"


_PASSING = (
    RedisConnectionError,
    RedisTimeoutError,
    TimeoutError,
    OSError,
    ReadOnlyError,
    BusyLoadingError,
    TryAgainError,
    ClusterDownError,
    MasterDownError,
    MovedError,
    AskError,
    RedisClusterException,
)
"""Trouble that passes by itself: a fail-over, a start, a slot on its way, a disk that is full."""
_PASSING_TEXT = re.compile(
    r"-?\b(?:READONLY|LOADING|BUSY|TRYAGAIN|CLUSTERDOWN|MASTERDOWN|NOREPLICAS|MISCONF)\b"
    r"|non local key|read only replica"
)
"""The same, where an error inside a script is told in the words of another."""

_NOT_ALLOWED = re.compile(r"\b(?:NOPERM|ACL failure|can't run this command|can't access)\b")


class Channels:
    """The calls of one engine to its server."""

    def __init__(self, link: Link, clock: Clock, limits: Limits) -> None:
        self._link, self._clock = link, clock
        self._answer_s = limits.answer.total_seconds()
        self._watch = Watch(limits.answer, link.look_again)
        self._give_up_s = limits.give_up.total_seconds()
        name = secrets.token_hex(8)
        self._idle = [_Channel(f"{name}.{i}", link.line()) for i in range(limits.channels)]
        self._queued: deque[asyncio.Future[_Channel]] = deque()
        self._closed = False

    async def call(
        self, script: Script, queue: QueueName, body: bytes, version: str, call: Call | None
    ) -> Any:
        """The answer to a writing script; safe to be interrupted anywhere but by the caller.

        Raises ServerUnreachable when the time is up, QueueUnknown, QueueChanged, MemoryFull,
        CallStale.
        """
        give_up_at = steady() + self._give_up_s
        channel = await self._take(give_up_at)
        try:
            args = self._named(channel, queue, body, version, call)
            return await self._answer(channel.line, script, args, give_up_at)
        finally:
            self._give_back(channel)

    async def confirmed_call(
        self,
        script: Script,
        queue: QueueName,
        body: bytes,
        version: str,
        call: Call | None,
        *,
        replicas: int,
        written: Callable[[], None],
    ) -> tuple[Any, int]:
        """The same, and how many replicas have what it wrote; *written* is called before that.

        The call is repeated on the connection that then asks for the count: so it is the
        server that has the answer which counts, not one that was promoted meanwhile.
        """
        give_up_at = steady() + self._give_up_s
        channel = await self._take(give_up_at)
        line = channel.line
        limit_ms = int(self._answer_s * 500)  # half of it, so that the count comes back in time
        try:
            args = self._named(channel, queue, body, version, call)
            key = keys_of(queue).call(f"{channel.name}.confirm")

            async def send() -> tuple[Any, int]:
                await _send(line, script, args)
                written()
                command = ("EVALSHA", script.sha, _KEYS, *args)
                return await line.confirmed(command, key, replicas, limit_ms)

            return await self._until_answered(send, line.hang_up, give_up_at)
        finally:
            self._give_back(channel)

    def _named(
        self, channel: _Channel, queue: QueueName, body: bytes, version: str, call: Call | None
    ) -> tuple[Any, ...]:
        name, number = (call.channel, call.number) if call else channel.next_call()
        keys = keys_of(queue)
        return (keys.meta, keys.never, self._clock.stamp(), name, number, body, version)

    async def read(self, script: Script, queue: QueueName, *args: Any) -> Any:
        """The answer to a script that only reads, or that may be repeated by its nature."""
        give_up_at = steady() + self._give_up_s
        channel = await self._take(give_up_at)
        keys = keys_of(queue)
        try:
            args = (keys.meta, keys.never, *args)
            return await self._answer(channel.line, script, args, give_up_at)
        finally:
            self._give_back(channel)

    async def clocked(self, script: Script, queue: QueueName, *args: Any) -> Any:
        """The same, for a script whose first argument is the clock."""
        return await self.read(script, queue, self._clock.stamp(), *args)

    async def command(self, *command: Any) -> Any:
        """The answer to a plain command that may be repeated."""
        give_up_at = steady() + self._give_up_s
        channel = await self._take(give_up_at)
        try:
            return await self._answer(channel.line, None, command, give_up_at)
        finally:
            self._give_back(channel)

    async def probe(self, declared: Durability | None) -> ServerFacts:
        """What the servers say about themselves, within the same time limits."""
        give_up_at = steady() + self._give_up_s
        return await self._until_answered(lambda: probe(self._link, declared), _nothing, give_up_at)

    def close(self) -> None:
        """From now on every call is refused."""
        self._closed = True
        self._watch.close()

    async def _take(self, give_up_at: float) -> _Channel:
        if self._closed:
            raise EngineClosed("the engine was left")
        if self._idle:
            return self._idle.pop()
        turn: asyncio.Future[_Channel] = asyncio.get_running_loop().create_future()
        self._queued.append(turn)
        try:
            async with asyncio.timeout(give_up_at - steady()):
                return await turn
        except BaseException as error:
            if turn.done() and not turn.cancelled():
                self._give_back(turn.result())
            if isinstance(error, TimeoutError):
                text = f"all channels were waiting for {self._give_up_s} s"
                raise ServerUnreachable(text) from error
            raise

    def _give_back(self, channel: _Channel) -> None:
        while self._queued:
            turn = self._queued.popleft()
            if not turn.done():
                turn.set_result(channel)
                return
        self._idle.append(channel)

    async def _answer(self, line: Line, script: Script | None, args: Any, give_up_at: float) -> Any:
        return await self._until_answered(
            lambda: _send(line, script, args), line.hang_up, give_up_at
        )

    async def _until_answered(
        self,
        send: Callable[[], Awaitable[T]],
        hang_up: Callable[[], Awaitable[None]],
        give_up_at: float,
    ) -> T:
        for attempt in itertools.count():
            try:
                return await self._watch.within(send(), give_up_at)
            except TROUBLE as error:
                trouble = _translated(error)
                # After a reply that refuses the call, its connection is as good as before.
                if trouble is None or not isinstance(error, ResponseError):
                    await hang_up()
                if trouble is not None:
                    raise trouble from error
                pause = min(0.02 * 2**attempt, 0.5)
                if steady() + pause >= give_up_at:
                    raise ServerUnreachable(
                        f"no answer within {self._give_up_s} s: {error or type(error).__name__}"
                    ) from error
            await asyncio.sleep(pause)
        raise AssertionError("unreachable")


class _Channel:
    __slots__ = ("_number", "line", "name")

    def __init__(self, name: str, line: Line) -> None:
        self.name, self.line = name, line
        self._number = 0

    def next_call(self) -> tuple[str, int]:
        self._number += 1
        return self.name, self._number


async def _nothing() -> None:
    """There is no line to hang up."""


async def _send(line: Line, script: Script | None, args: Any) -> Any:
    if script is None:
        return await line.send(*args)
    try:
        return await line.send("EVALSHA", script.sha, _KEYS, *args)
    except NoScriptError:
        # A new or restarted server, or one that was promoted: it learns the script this way.
        return await line.send("EVAL", script.source, _KEYS, *args)


CALL_WORDS: dict[str, Callable[[str], ServerError]] = {
    "QUEUE_UNKNOWN": QueueUnknown,
    "QUEUE_CHANGED": QueueChanged,
    "CALL_TAKEN": lambda text: CallTaken(f"the call was a {text.split()[1]} before"),
    "CALL_STALE": lambda text: CallStale(int(text.split()[1])),
}
"""The words by which a script refuses a whole call; a test compares them with the Lua."""


def _translated(error: Exception) -> ServerError | None:
    """Towpath's error for the server's; None for what passes by itself."""
    text = str(error)
    # A refused login comes wrapped in an error of the connection.
    for cause in (error, error.__cause__):
        if isinstance(cause, AuthenticationError | AuthorizationError):
            return ServerRefused(str(cause))
    if (failed := failed_handshake(error)) is not None:
        return failed
    if isinstance(error, _PASSING) or _PASSING_TEXT.search(text):
        return None
    if (word := text.partition(" ")[0]) in CALL_WORDS:
        return CALL_WORDS[word](text)
    if isinstance(error, OutOfMemoryError) or "'maxmemory'" in text:
        return MemoryFull("the server's memory is full")
    # What a user may not do in a script, the server tells as an error of the script.
    defect = "user_script" in text and not _NOT_ALLOWED.search(text)
    return ScriptDefect(text) if defect else ServerRefused(text)
