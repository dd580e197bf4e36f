"""The engine in threads without an event loop: the blocking form of `port.py`.

`run_to_end(engine.submit(…))` runs the same functions as on an event loop, in the caller's thread.
What they await blocks that thread and never suspends. Threads share the connections: at most
`limits.channels` per Redis server; a thread that finds none free waits for its turn. There are no
background tasks: the next caller does their work.
"""

from __future__ import annotations

import asyncio
import math
import socket
import ssl
import threading
import time
import weakref
from collections import deque
from collections.abc import Awaitable, Callable, Coroutine, Generator, Sequence
from contextlib import (
    AbstractAsyncContextManager,
    AbstractContextManager,
    contextmanager,
    suppress,
)
from typing import TYPE_CHECKING, Any, TypeVar

from towpath.clock import Duration, steady
from towpath.engine.channel import Channel
from towpath.engine.connection import (
    CLOSED_BY_SERVER,
    CONNECT_SECONDS,
    Connection,
    Endpoint,
    Place,
    keep_alive,
)
from towpath.engine.green import patching_library
from towpath.engine.lookup import connect_within
from towpath.engine.node import PROBE_EVERY, Node
from towpath.engine.port import ProbeOn, Running
from towpath.engine.resp import (
    NOT_ENOUGH,
    TROUBLE,
    ConnectionLost,
    RedisError,
    encode_command,
    new_reader,
)
from towpath.engine.thread_signal import ThreadSignal
from towpath.engine.time_limit import Deadline, TimeLimit
from towpath.engine.tls import LISTEN_SECONDS
from towpath.errors import ServerError, ServerUnreachable, ThreadsPatched
from towpath.telemetry.logs import Log

if TYPE_CHECKING:
    from towpath.engine.cluster import Cluster

T = TypeVar("T")

_SLICE = 0.25
"""Seconds that a thread waits for data before it looks at its time limit."""
_LOOK_EVERY = 1.0
"""Seconds of silence after which a caller checks whether its Redis server was replaced."""
_PROBE_LASTS = 30.0
"""Seconds after which a probe that never returned counts as over, as Ctrl-C may have ended it."""
_IDLE_TRUSTED = 0.5
"""Seconds after its last use for which a connection is assumed to be open."""
_PIECE = 65_536


def run_to_end(work: Coroutine[Any, Any, T]) -> T:
    """Run a coroutine of an engine in this thread. Returns its result.

    Raises RuntimeError if the coroutine suspends: then it waits for an event loop, which is a
    defect.
    """
    try:
        work.send(None)
    except StopIteration as end:
        return end.value
    work.close()
    name = getattr(work, "__qualname__", repr(work))
    raise RuntimeError(f"{name} waits for an event loop, and there is none: please report this")


# ── time limits ──────────────────────────────────────────────────────────────────────────


class _Clock(threading.local):
    """The time limit of the call that a thread makes now."""

    until: float = math.inf
    """When the thread stops waiting for a reply."""
    looked_at: float = 0.0
    """When the thread last read the time. A large gap means that the process was stopped."""
    silent_since: float = 0.0
    stood_still: float = 0.0
    """Total seconds for which the process was stopped while this thread waited."""
    is_looking: bool = False
    """Whether the thread is asking other servers who is responsible now."""
    expects_silence: bool = False
    """Whether the thread is in a blocking read: then silence says nothing about the server."""


class _TimeBlock:
    """A block that limits how long its thread waits for replies."""

    __slots__ = ("_before", "_clock", "_until")

    def __init__(self, clock: _Clock, now: float, seconds: float, outer: float) -> None:
        """*outer* is when the block around this one ends, or infinity if that end does not
        count.
        """
        # What is restored is not *outer*: a signal handler may call the engine while its thread
        # waits for a reply.
        self._clock, self._before = clock, clock.until
        self._until = min(now + seconds, outer)
        clock.until = self._until
        clock.looked_at = clock.silent_since = now

    def __enter__(self) -> None:
        """Does nothing: the block began in `__init__`."""

    def __exit__(self, *_: object) -> None:
        clock = self._clock
        # Time for which the process was stopped extends this block, and so the outer one too.
        clock.until = self._before + (clock.until - self._until)

    async def __aenter__(self) -> None:
        """Does nothing: the block began in `__init__`."""

    async def __aexit__(self, *_: object) -> None:
        self.__exit__()


class BlockingTimeLimit:
    """The limit for each reply, as the connections of *clock* obey it."""

    def __init__(self, clock: _Clock, limit: Duration) -> None:
        self._clock, self._limit = clock, limit.total_seconds()

    def stood_still(self, now: float) -> float:
        return self._clock.stood_still

    def until(self, deadline: Deadline) -> AbstractContextManager[None]:
        now = steady()
        is_far = now - deadline.made_at <= deadline.limit - self._limit
        limit = self._limit if is_far else min(self._limit, deadline.left(now))
        clock = self._clock
        # Only questions about a silent server are asked within the block of another call. A call
        # ignores `clock.until`, where Ctrl-C may have left the end of an earlier call.
        return _TimeBlock(clock, now, limit, clock.until if clock.is_looking else math.inf)

    def close(self) -> None:
        """There is no timer."""


# ── connections ──────────────────────────────────────────────────────────────────────────


class _Stream:
    """An open socket, and the replies to the last message."""

    __slots__ = ("_port", "_reader", "sock", "used_at")

    def __init__(self, sock: socket.socket, port: BlockingPort) -> None:
        self.sock, self._port, self._reader = sock, port, new_reader()
        self.used_at = port.clock.looked_at = steady()

    def exchange(self, message: list[bytes], wanted: int) -> list[Any]:
        """Send *message*. Returns the *wanted* number of replies. Raises ConnectionLost,
        TimeoutError.
        """
        try:
            for part in message:
                self._send(part)
            return self._receive(wanted)
        except TimeoutError:
            raise
        except OSError as error:
            raise ConnectionLost(f"the connection was reset: {error}") from error

    def _send(self, data: bytes) -> None:
        left: bytes | memoryview = data
        while True:
            try:
                sent = self.sock.send(left)
            except TimeoutError:
                self._port.keep_waiting()
                continue
            if sent == len(left):
                return
            left = memoryview(left)[sent:]
            self._port.note_progress()

    def _receive(self, wanted: int) -> list[Any]:
        reader, replies = self._reader, list[Any]()
        while True:
            try:
                data = self.sock.recv(_PIECE)
            except TimeoutError:
                self._port.keep_waiting()
                continue
            if not data:
                raise ConnectionLost(CLOSED_BY_SERVER)
            reader.feed(data)
            while len(replies) < wanted:
                reply = reader.gets()
                if reply is NOT_ENOUGH:
                    self._port.note_progress()
                    break
                replies.append(reply)
            else:
                if reader.has_data():
                    raise ConnectionLost("the server sent more replies than it was asked for")
                self.used_at = self._port.clock.looked_at = steady()
                return replies

    def is_open(self) -> bool:
        """Whether Redis has neither closed the connection nor sent anything unasked."""
        if steady() - self.used_at < _IDLE_TRUSTED:
            return True
        try:
            self.sock.settimeout(0)
            self.sock.recv(1)
        except (BlockingIOError, ssl.SSLWantReadError):
            self.sock.settimeout(_SLICE)
            return True
        except OSError:
            pass
        return False


class BlockingConnection(Connection):
    """A connection that blocks the caller's thread. It never suspends.

    During an exchange, `_idle` is None. So an exchange that is interrupted anywhere, also by
    Ctrl-C, leaves no socket behind on which another call could read its late reply.
    """

    def __init__(self, endpoint: Endpoint, port: BlockingPort) -> None:
        super().__init__(endpoint)
        self._port = port
        self._idle: _Stream | None = None
        self._busy: socket.socket | None = None
        """The socket of the exchange in progress, so that another thread can cut it."""

    async def exchange(self, message: list[bytes], wanted: int) -> list[Any]:
        stream, self._idle = self._idle, None
        try:
            if stream is not None and not stream.is_open():
                stream.sock.close()
                stream = None
            if stream is None:
                stream = self._new_stream()
            self._busy = stream.sock
            replies = stream.exchange(message, wanted)
        except BaseException as error:
            self._busy = None
            if stream is not None:
                stream.sock.close()
            if isinstance(error, ConnectionLost) and not self._was_answered:
                self._raise_tls_refusal_here()
            raise
        self._busy, self._was_answered = None, True
        if self._is_closed:
            stream.sock.close()
        else:
            self._idle = stream
        for reply in replies:
            if isinstance(reply, RedisError):
                self.facts = None  # the server may be another, or its settings changed
        return replies

    def _new_stream(self) -> _Stream:
        self._require_open()
        endpoint, clock = self._endpoint, self._port.clock
        limit = min(CONNECT_SECONDS, max(clock.until - steady(), 0.001))
        with self._port.narrow(limit):
            try:
                stream = _Stream(self._open_socket(limit), self._port)
            except TimeoutError as error:
                text = f"{endpoint} gave no answer to a new connection in {limit:.1f} s"
                raise ConnectionLost(text) from error
            except OSError as error:
                text = f"can't connect to {endpoint}: {error.strerror or error}"
                raise ConnectionLost(text) from error
            try:
                self._greet_here(stream)
            except TimeoutError as error:
                stream.sock.close()
                text = f"{endpoint} gave no answer to a new connection in {limit:.1f} s"
                raise ConnectionLost(text) from error
            except BaseException:
                stream.sock.close()
                raise
        self.facts = None
        return stream

    def _open_socket(self, limit: float) -> socket.socket:
        host, port = self._endpoint.place
        sock = connect_within((host, port), limit) if port else socket.socket(socket.AF_UNIX)
        try:
            if port:
                sock.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
                keep_alive(sock)
            else:
                sock.settimeout(limit)
                sock.connect(host)
            if self._endpoint.tls is not None:
                sock = self._endpoint.tls.wrap_socket(sock, server_hostname=host)
            sock.settimeout(_SLICE)
        except BaseException:
            sock.close()
            raise
        return sock

    def _greet_here(self, stream: _Stream) -> None:
        greetings = self._endpoint.greetings()
        if greetings:
            message = [part for command in greetings for part in encode_command(command)]
            for reply in stream.exchange(message, len(greetings)):
                if isinstance(reply, RedisError):
                    raise reply

    def _raise_tls_refusal_here(self) -> None:
        """Raises ConnectionLost with the reason why Redis refused our certificate, if it sends one:
        see `tls.refusal_at`.
        """
        limit = min(LISTEN_SECONDS, self._port.clock.until - steady())
        if self._endpoint.tls is None or limit <= 0:
            return
        try:
            with self._open_socket(limit) as sock:
                sock.settimeout(limit)
                sock.recv(1)
        except ssl.SSLError as refusal:
            raise ConnectionLost(str(refusal)) from refusal
        except OSError:
            return

    def cut(self) -> None:
        busy = self._busy
        if busy is not None:
            with suppress(OSError):  # the connection may have ended meanwhile
                # `SSLSocket.shutdown` would drop the TLS layer: a thread that is sending would go
                # on in clear text.
                socket.socket.shutdown(busy, socket.SHUT_RDWR)

    async def drop(self) -> None:
        idle, self._idle = self._idle, None
        if idle is not None:
            idle.sock.close()

    async def close(self) -> None:
        """Close now, or after the reply that a thread is waiting for."""
        self._is_closed = True
        await self.drop()


# ── a server ─────────────────────────────────────────────────────────────────────────────


class _Turn:
    """A thread that waits for a channel."""

    __slots__ = ("channel", "has_come")

    def __init__(self) -> None:
        self.has_come = ThreadSignal()
        self.channel: Channel | None = None


class BlockingNode(Node):
    """A Redis server whose channels are shared by threads, first come, first served.

    After trouble, the next caller probes the server, at most once a second. While the server is
    known to be away, the other callers are refused at once.
    """

    def __init__(
        self, name: str, new_channel: Callable[[], Channel], count: int, probe: ProbeOn, log: Log
    ) -> None:
        super().__init__(name, (), _no_probe, log)
        # `idle` stays empty, so that every caller goes through `take`, which has the lock.
        self._new_channel, self._count, self._probe_on = new_channel, count, probe
        # A signal handler may submit while its own thread is in here: so the lock is reentrant, and
        # a channel is taken in one step.
        self._lock = threading.RLock()
        self._free: list[Channel] = []
        self._channels: weakref.WeakSet[Channel] = weakref.WeakSet()
        self._turns: deque[_Turn] = deque()
        self._suspected: tuple[str, float] | None = None
        """The key of a call that met trouble, and when the trouble began; until a probe succeeds.
        """
        self._probe_at = float("-inf")
        self._probed_until = float("-inf")
        """While a caller probes: until when others leave the probe to it. It has an end because
        Ctrl-C may end the caller without a trace.
        """

    async def take(self, deadline: Deadline) -> Channel:
        if self._suspected is not None:
            await self._probe_if_due(deadline, *self._suspected)
        return self._take(deadline)

    def _take(self, deadline: Deadline) -> Channel:
        with self._lock:
            try:
                return self._free.pop()
            except IndexError:
                turn = _Turn()
        try:
            while (channel := self._take_turn(turn)) is None:
                if (left := deadline.left(steady())) <= 0:
                    channel = self._leave(turn)
                    break
                # Ctrl-C may end a thread that has a channel, or a turn, without a signal to others.
                turn.has_come.wait(min(left, _SLICE))
        except BaseException:
            if (channel := self._leave(turn)) is not None:
                self.give_back(channel)
            raise
        if channel is None:
            raise ServerUnreachable("all connections were waiting for answers")
        return channel

    def _take_turn(self, turn: _Turn) -> Channel | None:
        """A channel for *turn*. Returns None and queues *turn* if there is none."""
        with self._lock:
            if turn.channel is not None:
                return turn.channel
            with suppress(IndexError):
                turn.channel = self._free.pop()
            # A channel that was lost to Ctrl-C is no longer counted: a new one replaces it.
            if turn.channel is None and len(self._channels) < self._count:
                turn.channel = self._make_channel()
            if turn.channel is None and turn not in self._turns:
                self._turns.append(turn)
            return None if turn.channel is None else self._leave(turn)

    def _make_channel(self) -> Channel:
        channel = self._new_channel()
        self._channels.add(channel)
        weakref.finalize(
            channel, _release_connections, channel.cluster, channel.connections
        ).atexit = False
        return channel

    def _leave(self, turn: _Turn) -> Channel | None:
        """Leave the queue. Returns the channel that *turn* was given meanwhile, if any."""
        with self._lock:
            with suppress(ValueError):  # `give_back` removes a turn that it gives a channel
                self._turns.remove(turn)
            return turn.channel

    def give_back(self, channel: Channel) -> None:
        with self._lock:
            try:
                turn = self._turns.popleft()
            except IndexError:
                self._free.append(channel)
            else:
                turn.channel = channel
                turn.has_come.set()

    async def close(self) -> None:
        """There is no probe task to stop."""

    def _start(self, key: str, since: float) -> None:
        if self._suspected is None:
            self._suspected = key, since

    async def _probe_if_due(self, deadline: Deadline, key: str, since: float) -> None:
        """Probe the server if that is due. Raises the reason why the server cannot be used, if
        any.
        """
        is_due = False
        try:
            with self._lock:
                now = steady()
                if now >= max(self._probe_at, self._probed_until):
                    is_due = True
                    self._probed_until = now + _PROBE_LASTS
            if is_due:
                await self._probe_now(deadline, key, since)
        finally:
            if is_due:
                self._probe_at, self._probed_until = steady() + PROBE_EVERY, float("-inf")
        if self.refusal is not None:
            raise self.refusal.with_traceback(None)

    async def _probe_now(self, deadline: Deadline, key: str, since: float) -> None:
        channel = self._take(deadline)
        try:
            await self._probe_on(channel, key)
        except ServerError as trouble:
            self._note_trouble(trouble, since)
        else:
            self._suspected = None
            self._note_answer()
        finally:
            self.give_back(channel)


async def _no_probe(key: str) -> None:
    """Never called: callers probe on their own channels."""


def _release_connections(cluster: Cluster, connections: dict[Place, Connection]) -> None:
    run_to_end(cluster.release(connections))


# ── the port ─────────────────────────────────────────────────────────────────────────────


class BlockingPort:
    """The port for threads without an event loop: it waits in the caller's thread."""

    in_threads = True

    def __init__(self) -> None:
        """Raises ThreadsPatched if a library such as gevent has replaced `threading.local` since
        import: then all greenlets of a thread would share its clock.
        """
        if not issubclass(_Clock, threading.local):  # pyright: ignore[reportUnnecessaryIsInstance] -- it may have been replaced since
            raise ThreadsPatched(patching_library() or "a library", "after Towpath was imported")
        self.clock = _Clock()
        self._silence: Callable[[], None] = _ignore_silence

    def connection(self, endpoint: Endpoint) -> Connection:
        return BlockingConnection(endpoint, self)

    def time_limit(self, limit: Duration, silence: Callable[[], None]) -> TimeLimit:
        self._silence = silence
        return BlockingTimeLimit(self.clock, limit)

    def node(
        self, name: str, new_channel: Callable[[], Channel], count: int, probe: ProbeOn, log: Log
    ) -> Node:
        return BlockingNode(name, new_channel, count, probe, log)

    async def pause(self, seconds: float) -> None:
        time.sleep(seconds)  # noqa: ASYNC251 -- there is no event loop

    def narrow(self, seconds: float) -> _TimeBlock:
        """A block in which waiting for a reply raises TimeoutError after that time."""
        return _TimeBlock(self.clock, steady(), seconds, self.clock.until)

    def within(self, seconds: float) -> AbstractAsyncContextManager[object]:
        return self.narrow(seconds)

    @contextmanager
    def long_read(self, seconds: float) -> Generator[None]:
        """A block for a blocking read, which raises TimeoutError after that time."""
        clock = self.clock
        before = clock.expects_silence
        try:
            clock.expects_silence = True
            with _TimeBlock(clock, steady(), seconds, math.inf):
                yield
        finally:
            clock.expects_silence = before

    async def every(self, asks: Sequence[Callable[[], Coroutine[Any, Any, T]]]) -> list[Any]:
        """All answers, asked for one after the other; an error is in its place."""
        answers: list[Any] = []
        for ask in asks:
            try:
                answers.append(await ask())
            except Exception as error:  # noqa: BLE001 -- the caller looks at it
                answers.append(error)
        return answers

    async def first(self, asks: Sequence[Callable[[], Awaitable[T]]], every: float) -> T:
        """The first good answer, asked for one after the other. Each question has an equal share of
        the time that is left, so that a silent server cannot use it all up.
        """
        trouble: Exception | None = None
        for at, ask in enumerate(asks):
            try:
                with self.narrow((self.clock.until - steady()) / (len(asks) - at)):
                    return await ask()
            except TROUBLE as error:
                trouble = error
        raise ConnectionLost(f"no server tells who is responsible: {trouble}") from trouble

    async def share(
        self,
        running: Running[T],
        key: str,
        work: Callable[[], Coroutine[Any, Any, T]],
    ) -> T:
        return await work()

    def detach(
        self,
        name: str,
        work: Callable[[], Coroutine[Any, Any, None]],
        before: asyncio.Task[None] | None,
    ) -> asyncio.Task[None] | None:
        run_to_end(work())
        return None

    def note_progress(self) -> None:
        """Note that part of a message was received or sent. Raises TimeoutError at the end of the
        limit.
        """
        clock = self.clock
        clock.looked_at = clock.silent_since = now = steady()
        if now >= clock.until:
            raise TimeoutError("no whole answer within the time limit")

    def keep_waiting(self) -> None:
        """Go on waiting after a slice without data. Raises TimeoutError at the end of the limit.

        Time in which the process was stopped does not count: no answer could be read in it.
        """
        clock, now = self.clock, steady()
        late = now - clock.looked_at - _SLICE
        clock.looked_at = now
        if late > _LOOK_EVERY:
            clock.stood_still += late
            clock.until += late
        if now >= clock.until:
            raise TimeoutError("no answer within the time limit")
        is_silent = now - clock.silent_since >= _LOOK_EVERY and not clock.expects_silence
        if is_silent and not clock.is_looking:
            clock.is_looking = True
            try:
                self._silence()
            finally:
                clock.is_looking = False
                clock.looked_at = clock.silent_since = steady()


def _ignore_silence() -> None:
    """Silence is ignored until `time_limit` sets what to call."""
