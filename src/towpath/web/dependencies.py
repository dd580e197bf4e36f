"""Dependencies of routes: the parts of the running server, and a claim that waits.

All dependencies are coroutines, even those that await nothing: FastAPI runs a plain function in a
thread, which costs more than most requests.
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncGenerator, Awaitable, Callable, Coroutine, Sequence
from contextlib import asynccontextmanager, closing
from hashlib import sha256
from typing import Annotated, Any, TypeVar

import msgspec
from fastapi import Depends, Header, Request

from towpath.app.jobs import AllJobs
from towpath.clock import Duration, milliseconds, seconds, steady
from towpath.engine.engine import Engine
from towpath.engine.model import Call, JobInfo, Lease, Release
from towpath.errors import TowpathError
from towpath.ledger.keys.key import KeyInfo
from towpath.ledger.keys.raw import RawQueues
from towpath.supervise import detached
from towpath.web.auth import Key
from towpath.web.fields import Answer
from towpath.web.open_requests import OpenKind, OpenRequests

T = TypeVar("T")

# ── long polls ───────────────────────────────────────────────────────────────────────────

_AT_LEAST = milliseconds(10)
"""Shortest pause between two claims, so that a due time can't make the loop spin."""


class ClaimRequest(msgspec.Struct, frozen=True, kw_only=True):
    """The parameters of a claim."""

    queue: str
    worker: str
    lease: Duration
    count: int
    wait: Duration
    lane: str | None = None
    selectors: Sequence[str] = ()
    max_held: int | None = None


class Poll:
    """One waiting claim. It ends early if the client leaves, its credential ends or the server
    stops.

    Leases that were claimed for a client that has left are released at once.
    """

    def __init__(
        self, engine: Engine, request: Request, stopping: asyncio.Event, open_requests: OpenRequests
    ) -> None:
        self._engine, self._request, self._stopping = engine, request, stopping
        self._open_requests = open_requests

    async def claim(self, wish: ClaimRequest, call: Call | None) -> list[Lease]:
        """Up to `count` leases; none when the time is over. With a *call*, nothing is released when
        the client leaves: it may repeat the call and get the same leases.
        """
        if wish.lane is not None or not wish.wait:
            return await self._ask(wish, call, wish.wait)
        async with self._watch_ends() as (left, stops):
            if call is not None or wish.selectors or wish.max_held is not None:
                leases = await self._claim_waiting(wish, call, left, stops)
            else:
                leases = await self._claim_until(wish, left, stops)
            if leases and left.done() and call is None:
                await self._engine.settle([Release(lease) for lease in leases])
            return leases

    async def while_connected(
        self,
        asking: Coroutine[Any, Any, T | None],
        give_back: Callable[[T], Coroutine[Any, Any, object]] | None = None,
        *,
        waits: bool = True,
    ) -> T | None:
        """Returns the result of *asking*; None if the client leaves, its credential ends or the
        server stops before. A result for a client that has left is passed to *give_back*. With
        *waits*, the request counts as a waiting claim.
        """
        with closing(asking):  # if too many claims wait, *asking* is never awaited
            return await self._while_connected(asking, give_back, waits=waits)

    async def _while_connected(
        self,
        asking: Coroutine[Any, Any, T | None],
        give_back: Callable[[T], Coroutine[Any, Any, object]] | None,
        *,
        waits: bool,
    ) -> T | None:
        task: asyncio.Future[T | None] | None = None
        given_back = False
        try:
            async with self._watch_ends(counts=waits) as (left, stops):
                task = asyncio.ensure_future(asking)
                try:
                    await _first(task, left, stops)
                    if not task.done():
                        return None
                    found = task.result()
                    if found is None or not left.done():
                        return found
                    if give_back is not None:
                        await give_back(found)
                    given_back = True
                    return None
                finally:
                    await _end(task)
        except asyncio.CancelledError:
            # The result can't be sent any more, even if it came while the block ended.
            if task is not None and not given_back and _has_answered(task):
                _give_back_later(task.result(), give_back)
            raise

    async def _claim_waiting(
        self,
        wish: ClaimRequest,
        call: Call | None,
        left: asyncio.Future[None],
        stops: asyncio.Future[Any],
    ) -> list[Lease]:
        """Claim with one waiting call of the engine. If it is cancelled, a call without a name
        releases what it got.
        """
        claiming = asyncio.ensure_future(self._ask(wish, call, wish.wait))
        await _first(claiming, left, stops)
        if claiming.done():
            return claiming.result()
        await _end(claiming)
        if left.done() or call is None:
            return []
        # It may have claimed just then: a repeat under the same name returns those leases.
        return await self._ask(wish, call, milliseconds(1))

    async def _ask(self, wish: ClaimRequest, call: Call | None, wait: Duration) -> list[Lease]:
        return await self._engine.claim(
            wish.queue,
            worker=wish.worker,
            lease=wish.lease,
            count=wish.count,
            lane=wish.lane,
            selectors=wish.selectors,
            max_held=wish.max_held,
            wait=wait,
            call=call,
        )

    async def _claim_until(
        self, wish: ClaimRequest, left: asyncio.Future[None], stops: asyncio.Future[Any]
    ) -> list[Lease]:
        until = steady() + wish.wait.total_seconds()
        while True:
            found = await self._engine.exchange(
                wish.queue, [], worker=wish.worker, lease=wish.lease, count=wish.count
            )
            rest = seconds(max(until - steady(), 0))
            if found.leases or not rest or left.done() or stops.done():
                return found.leases
            pause = rest if found.due_in is None else min(rest, max(found.due_in, _AT_LEAST))
            waiting = self._engine.wait_for_work(wish.queue, within=pause)
            woken = asyncio.ensure_future(waiting)
            try:
                await _first(woken, left, stops)
            finally:
                await _end(woken)

    @asynccontextmanager
    async def _watch_ends(
        self, *, counts: bool = True
    ) -> AsyncGenerator[tuple[asyncio.Future[None], asyncio.Future[Any]]]:
        """Two futures that end a poll early: the client has left, and the server stops.

        A client whose credential has ended counts as one that left. Raises Refused (429, 503).
        """
        hold = self._open_requests.open(self._request, OpenKind.WAIT) if counts else None
        left = asyncio.ensure_future(self._client_left())
        if hold is not None:
            hold.on_end(left.cancel)
        stops = asyncio.ensure_future(self._stopping.wait())
        try:
            yield left, stops
        finally:
            if hold is not None:
                hold.close()
            await _end(left)
            await _end(stops)

    async def _client_left(self) -> None:
        while (await self._request.receive())["type"] != "http.disconnect":
            pass


_giving_back: set[asyncio.Task[Any]] = set()


def _has_answered(task: asyncio.Future[Any]) -> bool:
    return task.done() and not task.cancelled() and task.exception() is None


def _give_back_later(
    found: T | None, give_back: Callable[[T], Coroutine[Any, Any, object]] | None
) -> None:
    """Give back *found* in the background: the request that it was for is cancelled."""
    if found is not None and give_back is not None:
        task = detached("giving back of an answer", give_back(found))
        _giving_back.add(task)
        task.add_done_callback(_giving_back.discard)


async def _first(*tasks: asyncio.Future[Any]) -> None:
    await asyncio.wait(tasks, return_when=asyncio.FIRST_COMPLETED)


async def _end(task: asyncio.Future[Any]) -> None:
    """Cancel *task* and wait for its end. Ignores its error: the next call meets it again."""
    task.cancel()
    await asyncio.wait((task,))
    if not task.cancelled():
        task.exception()


# ── dependencies ─────────────────────────────────────────────────────────────────────────

_WITHIN = 2.0


def _part(name: str) -> Callable[[Request], Awaitable[Any]]:
    async def part(request: Request) -> Any:
        return getattr(request.app.state, name)

    return part


async def _jobs(request: Request, key: Key) -> AllJobs:
    """The jobs, for a client that may see only the queues of *key*."""
    jobs: AllJobs = request.app.state.jobs
    return jobs.seen_by(key.covers)


def readable(request: Request, key: KeyInfo, job: JobInfo) -> JobInfo:
    """*job*, without payload, result and progress if *key* may not read them: the queue belongs to
    an application and the job to another owner.
    """
    raw: RawQueues = request.app.state.raw
    if raw.may_read_content(key, job.ref.queue, job.owner):
        return job
    return msgspec.structs.replace(job, payload=b"", result=None, progress=None)


def service(name: str) -> Callable[[Request], Awaitable[Any]]:
    """A dependency: the service of the application *name*, while the server runs."""

    async def serving(request: Request) -> Any:
        return request.app.state.services[name]

    return serving


class Repeatable(msgspec.Struct, frozen=True):
    """A request with an idempotency key: a repeat has no effect and gets the same answer.

    The name includes the id of the sender's API key, so that other keys can't read the answers.
    """

    name: str

    def call(self, content: bytes = b"") -> Call:
        """The call with that name; other *content* makes another call."""
        return Call(f"http/{_digest(self.name, content)}", 1)

    def job_id(self, place: int) -> str:
        """The id for the job at *place* that was sent without one; the same in each repeat."""
        return f"call-{_digest(self.name, str(place).encode())[:32]}"


def _digest(name: str, more: bytes) -> str:
    return sha256(name.encode() + b"\0" + more).hexdigest()


async def _repeatable(
    key: Key,
    idempotency_key: Annotated[
        str | None,
        Header(
            max_length=255,
            description="Makes the request safe to repeat: within ten minutes, the same key "
            "returns the same response.",
            examples=["5f0c2a7e-mail-17"],
        ),
    ] = None,
) -> Repeatable | None:
    return Repeatable(f"{key.id}/{idempotency_key}") if idempotency_key else None


async def _poll(request: Request, engine: TheEngine) -> Poll:
    return Poll(engine, request, request.app.state.stopping, request.app.state.open_requests)


# ── health ───────────────────────────────────────────────────────────────────────────────


class PartOut(Answer):
    """Whether a part of the server works."""

    ok: bool
    error: str | None = None
    """The error's code; for a background task, the error's class."""
    remedy: str | None = None
    """What to do."""
    warning: str | None = None
    """The code of something that is wrong while the part works. `ledger_differs`: the workers of a
    queue keep their records in another database."""


async def checked(probe: Awaitable[None]) -> PartOut:
    """Returns whether *probe* succeeds within two seconds."""
    try:
        async with asyncio.timeout(_WITHIN):
            await probe
    except TowpathError as error:
        return PartOut(ok=False, error=error.code, remedy=error.remedy)
    except TimeoutError:
        return PartOut(
            ok=False,
            error="timeout",
            remedy="The probe timed out after 2 s; check that this part responds.",
        )
    return PartOut(ok=True)


TheEngine = Annotated[Engine, Depends(_part("engine"))]
TheJobs = Annotated[AllJobs, Depends(_jobs)]
ThePoll = Annotated[Poll, Depends(_poll)]
Named = Annotated[Repeatable | None, Depends(_repeatable)]
