"""Resources that handlers share: created once per worker and once per process, and closed again."""

import asyncio
import os
import re
from collections.abc import AsyncGenerator, AsyncIterator, Iterator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import pytest

from tests.worker import lifespan_app
from tests.worker.in_process_worker import SOON, ended, working
from towpath.app.app import Towpath
from towpath.embedded import EmbeddedServer
from towpath.errors import HandlerInvalid, LifespanFailed
from towpath.worker.context import Context
from towpath.worker.worker import Worker


@pytest.fixture
def journal(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setenv("SHARED_JOURNAL", str(tmp_path / "journal"))
    return tmp_path / "journal"


class TestALifespan:
    async def test_wraps_a_worker_but_not_a_producer(self, server: EmbeddedServer) -> None:
        said: list[str] = []

        @asynccontextmanager
        async def resources() -> AsyncGenerator[list[str]]:
            said.append("start")
            yield said
            said.append("end")

        app = Towpath(server.url, lifespan=resources)

        @app.handler("mails")
        async def send(name: str, ctx: Context[list[str]]) -> None:
            ctx.state.append(name)

        @app.handler("threads")
        def copy(name: str, ctx: Context[list[str]] | None = None) -> None:
            assert ctx is not None
            ctx.state.append(name)

        async with app:
            jobs = [await send.submit("anna"), await send.submit("ben"), await copy.submit("carla")]
            assert said == []
            async with working(app, concurrency=1):
                for job in jobs:
                    await job.result(within=SOON)
        assert (said[0], sorted(said[1:-1]), said[-1]) == ("start", ["anna", "ben", "carla"], "end")

    async def test_runs_once_per_process_too(self, server: EmbeddedServer, journal: Path) -> None:
        with lifespan_app.living.pointed_at(server.url):
            async with lifespan_app.living as app:
                jobs = await lifespan_app.predict.submit_many(range(3))
                mail = await lifespan_app.send.submit()
                async with working(app):
                    results = [await job.result(within=SOON) for job in jobs]
                    assert await mail.result(within=SOON) == os.getpid()
        [child] = {pid for pid, _ in results}
        assert child != os.getpid()
        assert sorted(used for _, used in results) == [1, 2, 3]
        said = await asyncio.to_thread(lambda: journal.read_text().splitlines())
        assert sorted(said) == sorted(
            f"{pid} {words}" for pid in (child, os.getpid()) for words in ("start", "end")
        )

    async def test_that_fails_in_a_process_fails_the_attempt(
        self, server: EmbeddedServer, journal: Path, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        with lifespan_app.living.pointed_at(server.url):
            async with lifespan_app.living as app:
                job = await lifespan_app.predict.submit(1, max_attempts=1)
                monkeypatch.setenv("SHARED_WORKS_IN", str(os.getpid()))
                async with working(app):
                    dead = await ended(job)
        assert "LifespanFailed: " in str(dead.reason)
        assert {"resources", "LookupError"} <= set(re.findall(r"\w+", str(dead.reason)))

    @pytest.mark.parametrize(
        ("how", "cause", "named"),
        [
            ("raises", LookupError, "LookupError: no pool"),
            ("hangs", TimeoutError, "0.2 s"),
            ("yields never", RuntimeError, "yield"),
        ],
    )
    async def test_that_fails_at_its_start_keeps_the_worker_from_starting(
        self, server: EmbeddedServer, how: str, cause: type[Exception], named: str
    ) -> None:
        async def resources() -> AsyncIterator[None]:
            if how == "raises":
                raise LookupError("no pool")
            if how == "hangs":
                await asyncio.Event().wait()
            if how != "yields never":
                yield

        app = Towpath(server.url, lifespan=resources, lifespan_limit="200ms")
        job = await self._submitted(app)
        with pytest.raises(LifespanFailed) as refusal:
            await Worker(app).run()
        assert named in refusal.value.problem
        assert refusal.value.name == resources.__qualname__
        assert type(refusal.value.__cause__) is cause
        async with app:
            assert (await app.engine.inspect.state(job.ref)) == "ready"

    @pytest.mark.parametrize(
        ("how", "cause", "named"),
        [
            ("yields twice", RuntimeError, "yield"),
            ("raises", LookupError, "LookupError: lost"),
            ("hangs", TimeoutError, "0.2 s"),
        ],
    )
    async def test_that_fails_at_its_end_is_reported_after_all_jobs_are_settled(
        self, server: EmbeddedServer, how: str, cause: type[Exception], named: str
    ) -> None:
        async def resources() -> AsyncIterator[int]:
            yield 1
            if how == "yields twice":
                yield 2
            if how == "raises":
                raise LookupError("lost")
            await asyncio.Event().wait()

        app = Towpath(server.url, lifespan=resources, lifespan_limit="200ms")
        job = await self._submitted(app)
        with pytest.raises(LifespanFailed) as failure:
            await Worker(app).drain()
        assert named in failure.value.problem
        assert failure.value.name == resources.__qualname__
        assert type(failure.value.__cause__) is cause
        async with app:
            assert (await app.engine.inspect.state(job.ref)) == "done"

    @staticmethod
    async def _submitted(app: Towpath) -> Any:
        @app.handler("mails")
        async def send() -> None: ...

        async with app:
            return await send.submit()

    def test_that_is_no_async_generator_is_refused(self) -> None:
        async def no_generator() -> None: ...

        def not_async() -> Iterator[int]:
            yield 1

        wrong: list[Any] = [no_generator, not_async, 5, object()]
        for lifespan in wrong:
            with pytest.raises(LifespanFailed) as refusal:
                Towpath("redis://nowhere", lifespan=lifespan)
            assert "`yield`" in refusal.value.problem
            assert refusal.value.name == getattr(lifespan, "__qualname__", repr(lifespan))

    def test_that_takes_the_app_as_a_parameter_is_refused(self) -> None:
        """Lifespans of web frameworks have that parameter."""

        async def resources(_: object) -> AsyncGenerator[int]:
            yield 1

        wrong: list[Any] = [resources, asynccontextmanager(resources)]
        for lifespan in wrong:
            with pytest.raises(LifespanFailed) as refusal:
                Towpath("redis://nowhere", lifespan=lifespan)
            assert refusal.value.name == resources.__qualname__
            assert "`yield`" not in refusal.value.problem, "it yields; only its argument is wrong"

    async def test_that_is_missing_leaves_the_context_without_state(self, app: Towpath) -> None:
        @app.handler("mails", max_attempts=1)
        async def send(ctx: Context[int]) -> int:
            return ctx.state

        async with working(app):
            dead = await ended(await send.submit())
        assert "lifespan=" in str(dead.reason)
        with pytest.raises(HandlerInvalid, match="lifespan=") as refusal:
            await send()
        assert refusal.value.handler == "send"
