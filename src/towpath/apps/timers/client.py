"""The client for applications that are called when timers are due: registers and answers.

    timers = TimerClient("shop", "http://10.0.0.7:8000/timers", server="http://towpath:8080", key=…)

    @timers.on("order.timeout")
    def cancel(order): ...

    timers.serve()                                   # without any framework; or in a view of yours:
    body, status = timers.answer(request.headers, request.body)

    timers.submit("order.timeout", {"order": 7}, task_id="order-7", delay="30m")

Needs nothing but the standard library beside Towpath itself: it runs in other people's programs.
"""

from __future__ import annotations

import asyncio
import atexit
import inspect
import json
import logging
import signal
import threading
from collections import OrderedDict
from collections.abc import AsyncGenerator, Awaitable, Callable, Iterable
from contextlib import asynccontextmanager
from datetime import datetime
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any, NamedTuple, Protocol, Self, TypeVar, cast
from urllib.parse import quote, urlsplit

from towpath.apps.timers.registration import Registration, Server, ServerAnswered
from towpath.calls.errors import SignatureRefused
from towpath.calls.signature import verify
from towpath.clock import Duration, duration_ms, instant, seconds
from towpath.errors import HandlerInvalid

__all__ = ["GiveUp", "Later", "ServerAnswered", "TimerAnswer", "TimerCall", "TimerClient"]

_log = logging.getLogger("towpath.timers.client")
_F = TypeVar("_F", bound=Callable[..., Any])
_W = TypeVar("_W")
_MOST_REMEMBERED = 10_000
"""Number of timers whose last call is remembered."""
_LARGEST_CALL = 16 << 20
HANDED_OVER = seconds(60)


class TimerCall(NamedTuple):
    """A timer that is due."""

    task_id: str
    task_type: str
    app: str | None
    params: Any
    attempt: int
    """1 for the first."""
    delay_time: int
    """When it was due, in ms since 1970."""
    token: int
    """Grows with every attempt. Pass it to the systems that the handler changes, so that they can
    refuse changes with a lower one."""


class TimerAnswer(NamedTuple):
    """What to answer to a call."""

    body: bytes
    status: int


class Headers(Protocol):
    """A request's headers, as every framework has them."""

    def items(self) -> Iterable[tuple[str, str]]: ...


class Later(Exception):
    """Raised or returned by a handler: the work goes on after the call.

    The timer is yours for *lease*; `complete`, `fail` or `renew` it before that is over, or it
    counts as a failed attempt.
    """

    def __init__(self, lease: Duration = HANDED_OVER) -> None:
        super().__init__(f"for {lease}")
        self.lease_s = max(1, duration_ms("lease", lease) // 1000)


class GiveUp(Exception):
    """Raised by a handler: no other attempt can help. The timer is dead, with this reason."""


class _Handler(NamedTuple):
    function: Callable[..., Any]
    with_call: bool


class _Remembered:
    """The last call for a timer that was run in this process."""

    __slots__ = ("answer", "sent", "token")

    def __init__(self, token: int, sent: datetime) -> None:
        self.token, self.sent = token, sent
        self.answer: TimerAnswer | None = None
        """The answer to the call; None while its handler runs."""


class TimerClient:
    """One instance of an app: its address, and the types that it is called for.

    *address* is where the server reaches it, *server* where it reaches the server, *key* an API
    key with the scope `work` for its types, and `submit` where it submits timers. Of several
    instances one with twice the *weight* is called twice as often.
    """

    def __init__(self, app: str, address: str, *, server: str, key: str, weight: int = 1) -> None:
        self.app, self.address, self.weight = app, address, weight
        self._server = Server(server, key)
        self._handlers: dict[str, _Handler] = {}
        self._secrets: list[str] = []
        # Not a RecentCache: a replay must not keep its entry longer, because later calls are
        # refused by the time of the entries that were dropped.
        self._remembered: OrderedDict[tuple[str | None, str, str], _Remembered] = OrderedDict()
        self._forgotten_until = instant(0)
        """When the latest of the calls that were forgotten was signed."""
        self._lock = threading.Lock()
        self._registration: Registration | None = None

    def on(self, task_type: str) -> Callable[[_F], _F]:
        """Make a function the handler of *task_type*: `(params)` or `(params, call)`, async too.

        What it returns is ignored. If it raises, the timer comes again later.
        """

        def add(function: _F) -> _F:
            if task_type in self._handlers:
                raise HandlerInvalid(task_type, rule="already has a handler")
            with_call = len(inspect.signature(function).parameters) > 1
            self._handlers[task_type] = _Handler(function, with_call)
            if self._registration is not None:
                self._registration.register_again()
            return function

        return add

    def worker(self, kind: type[_W]) -> type[_W]:
        """Make a class with `type()`, `clazz()` and `invoke(message)` the handler of its type.

        *message* is the params as text: a string as it is, everything else as JSON. The class is
        called without arguments. Raises HandlerInvalid.
        """
        from towpath.apps.timers.workers import TaskWorker, is_task_worker  # noqa: PLC0415 -- slow to import

        made: Any = kind()
        if not is_task_worker(made):
            raise HandlerInvalid(repr(kind), rule="needs type(), clazz() and invoke(message)")
        worker = cast("TaskWorker", made)

        def invoke(params: Any) -> Any:
            return worker.invoke(params if isinstance(params, str) else json.dumps(params))

        self.on(worker.type())(invoke)
        return kind

    # ── timers ───────────────────────────────────────────────────────────────────────────

    def submit(
        self,
        task_type: str,
        params: Any = None,
        *,
        task_id: str | None = None,
        delay: float | str | None = None,
        delay_time: int | None = None,
    ) -> dict[str, Any]:
        """Submit a timer of this app, over HTTP. Returns it once it is stored.

        Its time is `delay` (seconds, or text such as "30m") or `delay_time` (13 digits ms, 16
        digits µs). The same *task_id* with the same content again is the timer that is there.
        Raises ServerAnswered (`problem`: `timer-differs`, `timer-ended`, …), and OSError where the
        server can't be reached: then submit it again under the same id.
        """
        asked = {"task_id": task_id, "delay": delay, "delay_time": delay_time}
        given = {name: value for name, value in asked.items() if value is not None}
        timer = {"task_type": task_type, "app": self.app, "params": params, **given}
        return self._server.post("/api/v1/timers", timer)

    # ── being there ──────────────────────────────────────────────────────────────────────

    def start(self) -> Self:
        """Register and send heartbeats in a thread. Has no effect if that thread runs already.

        Does not wait for the server: the thread tries again until the server answers. Call it in
        the process that answers calls, after any fork.
        """
        if self._registration is None or not self._registration.is_of_this_process():
            self._registration = Registration(self.register, self._server, self.app)
            self._registration.start()
            atexit.register(self.stop)
        return self

    def stop(self) -> None:
        """Deregister: no more calls come. May be called twice."""
        registration, self._registration = self._registration, None
        if registration is not None and registration.is_of_this_process():
            registration.stop()
        atexit.unregister(self.stop)

    def __enter__(self) -> Self:
        return self.start()

    def __exit__(self, *_: object) -> None:
        self.stop()

    @asynccontextmanager
    async def lifespan(self, _: object = None) -> AsyncGenerator[None]:
        """Register while an event loop runs: `FastAPI(lifespan=timers.lifespan)`."""
        self.start()
        try:
            yield
        finally:
            await asyncio.to_thread(self.stop)

    @property
    def registered(self) -> bool:
        """Whether the server knows this instance, as far as this process can tell."""
        return self._registration is not None and self._registration.instance_id is not None

    def register(self) -> tuple[str, float]:
        """Register once, now. Returns the instance's id and the seconds between heartbeats.

        Raises ServerAnswered, and OSError where the server can't be reached.
        """
        registered = self._server.post(
            f"/api/v1/apps/{quote(self.app, safe='')}/instances",
            {"address": self.address, "task_types": list(self._handlers), "weight": self.weight},
        )
        with self._lock:
            # The previous secret stays valid: calls may be on their way, and other servers may
            # still sign with it.
            self._secrets = list(dict.fromkeys([registered["secret"], *self._secrets]))[:2]
        return registered["instance_id"], float(registered["heartbeat_s"])

    # ── being called ─────────────────────────────────────────────────────────────────────

    def answer(self, headers: Headers, body: bytes) -> TimerAnswer:
        """Check a call and run its handler. Returns what to answer. For code without an event loop.

        *body* is what came over the wire. A call that was run here before is not run again: it
        gets the answer of the first time. Never raises for an invalid call.
        """
        call = self._check_call(headers, body)
        if isinstance(call, TimerAnswer):
            return call
        try:
            result = self._run(call)
            if inspect.isawaitable(result):
                result = asyncio.run(_wait_for(result))
        except BaseException as error:  # noqa: BLE001 -- a handler may raise anything
            return self._store_answer(call, self._answer_failure(call, error))
        return self._store_answer(call, _answer_of(result))

    async def answer_async(self, headers: Headers, body: bytes) -> TimerAnswer:
        """Do what `answer` does, in an event loop: plain handlers run in a thread."""
        call = self._check_call(headers, body)
        if isinstance(call, TimerAnswer):
            return call
        try:
            if inspect.iscoroutinefunction(self._handlers[call.task_type].function):
                result = await self._run(call)
            else:
                result = await asyncio.to_thread(self._run, call)
        except asyncio.CancelledError:
            raise
        except BaseException as error:  # noqa: BLE001 -- a handler may raise anything
            return self._store_answer(call, self._answer_failure(call, error))
        return self._store_answer(call, _answer_of(result))

    def complete(self, call: TimerCall) -> None:
        """End a timer that was answered with `Later`.

        Raises ServerAnswered; `problem` is `lease-lost` once another attempt has begun.
        """
        self._settle(call, "complete", {})

    def fail(self, call: TimerCall, reason: str) -> None:
        """Report that the work failed: the timer comes again, or is dead after its last attempt."""
        self._settle(call, "fail", {"reason": reason})

    def renew(self, call: TimerCall, lease: Duration = HANDED_OVER) -> None:
        """Extend the lease of the timer to *lease* from now."""
        self._settle(call, "renew", {"lease_s": duration_ms("lease", lease) / 1000})

    def _settle(self, call: TimerCall, verb: str, more: dict[str, Any]) -> None:
        path = f"/api/v1/timers/{quote(call.task_type, safe='')}/{quote(call.task_id, safe='')}"
        app = {} if call.app is None else {"app": call.app}
        self._server.post(f"{path}/{verb}", {"token": call.token, **app, **more})

    def _check_call(self, headers: Headers, body: bytes) -> TimerCall | TimerAnswer:
        """Check signature and form. Returns the call to run, or the answer if it must not run."""
        with self._lock:
            secrets = list(self._secrets)
        if not secrets:
            return TimerAnswer(b"not registered yet", 503)
        try:
            sent = verify(secrets, dict(headers.items()), body).sent
        except SignatureRefused as error:
            return TimerAnswer(str(error).encode(), 401)
        try:
            call = TimerCall(**json.loads(body))
        except (ValueError, TypeError, RecursionError):
            return TimerAnswer(b"not a call of a timer", 400)
        if call.task_type not in self._handlers:
            return TimerAnswer(b"no handler for this type", 404)
        return self._remember(call, sent) or call

    def _remember(self, call: TimerCall, sent: datetime) -> TimerAnswer | None:
        """Remember that the call runs now. Returns an answer instead if it must not run.

        The fencing token is part of the signed body: a replay has the same one, the next attempt at
        the timer has a higher one.
        """
        timer = (call.app, call.task_type, call.task_id)
        with self._lock:
            known = self._remembered.get(timer)
            if known is None and sent <= self._forgotten_until:
                return TimerAnswer(b"too old: it may have been run here before", 409)
            if known is not None and call.token < known.token:
                return TimerAnswer(b"a newer attempt at this timer has begun here", 409)
            if known is not None and call.token == known.token:
                return known.answer or TimerAnswer(b"this attempt is being run here", 409)
            self._remembered[timer] = _Remembered(call.token, sent)
            self._remembered.move_to_end(timer)
            if len(self._remembered) > _MOST_REMEMBERED:
                _, oldest = self._remembered.popitem(last=False)
                self._forgotten_until = max(self._forgotten_until, oldest.sent)
        return None

    def _store_answer(self, call: TimerCall, answer: TimerAnswer) -> TimerAnswer:
        """Store *answer* for replays of the call, and return it."""
        with self._lock:
            known = self._remembered.get((call.app, call.task_type, call.task_id))
            if known is not None and known.token == call.token:
                known.answer = answer
        return answer

    def _run(self, call: TimerCall) -> Any:
        function, with_call = self._handlers[call.task_type]
        return function(call.params, call) if with_call else function(call.params)

    def _answer_failure(self, call: TimerCall, error: BaseException) -> TimerAnswer:
        match error:
            case Later():
                return _answer_of(error)
            case GiveUp():
                return TimerAnswer(str(error).encode()[:1000], 422)
            case _:
                _log.error("the handler of %s failed", call.task_type, exc_info=error)
                return TimerAnswer(type(error).__qualname__.encode(), 500)

    # ── without any framework ────────────────────────────────────────────────────────────

    def serve(self, host: str | None = None, port: int | None = None) -> None:
        """Answer calls until SIGTERM or SIGINT, a thread each; registered meanwhile.

        Listens at the host and port of its address, unless *host* and *port* are given.
        """
        own = urlsplit(self.address)
        where = (host or own.hostname or "", own.port or 80 if port is None else port)
        with ThreadingHTTPServer(where, _handler_of(self)) as server:
            stopping = threading.Event()

            def stop(_signal: int, _frame: object) -> None:
                stopping.set()

            before = {number: signal.signal(number, stop) for number in _STOPPING}
            thread = threading.Thread(target=server.serve_forever, daemon=True)
            thread.start()
            try:
                with self:
                    stopping.wait()
            finally:
                server.shutdown()
                thread.join()
                for one, handler in before.items():
                    signal.signal(one, handler)


_STOPPING = (signal.SIGTERM, signal.SIGINT)


async def _wait_for(result: Awaitable[Any]) -> Any:
    return await result


def _answer_of(result: object) -> TimerAnswer:
    if isinstance(result, Later):
        return TimerAnswer(json.dumps({"lease_s": result.lease_s}).encode(), 202)
    return TimerAnswer(b"", 200)


def _handler_of(client: TimerClient) -> type[BaseHTTPRequestHandler]:
    class Calls(BaseHTTPRequestHandler):
        protocol_version = "HTTP/1.1"  # connections are kept for the next call
        timeout = 60

        def do_POST(self) -> None:
            size = self.headers.get("content-length", "")
            if not size.isascii() or not size.isdecimal() or int(size) > _LARGEST_CALL:
                self.close_connection = True
                return self._say(TimerAnswer(b"too large", 413))
            return self._say(client.answer(self.headers, self.rfile.read(int(size))))

        def _say(self, answer: TimerAnswer) -> None:
            self.send_response(answer.status)
            self.send_header("Content-Length", str(len(answer.body)))
            self.end_headers()
            self.wfile.write(answer.body)

        def log_message(self, format: str, *args: Any) -> None:
            """Log nothing: a line per request is too much."""

    return Calls
