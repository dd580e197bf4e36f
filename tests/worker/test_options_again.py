"""Workers declare the options of their handlers again when a queue is created anew."""

from collections.abc import AsyncGenerator
from contextlib import asynccontextmanager

import pytest

from tests.worker.in_process_worker import SOON, working
from towpath import Towpath
from towpath.clock import hours, minutes
from towpath.embedded import EmbeddedServer
from towpath.engine.engine import Engine
from towpath.engine.keys import keys_of
from towpath.engine.model import JobInfo
from towpath.engine.options import QueueOptions
from towpath.ids import queue_name

QUEUE, OTHER = "mails", "other"
_CREATE_ANEW = """
local created = redis.call('HMGET', KEYS[1], 'whole', 'options', 'version', 'decided')
if ARGV[1] == 'all' then redis.call('FLUSHALL') else redis.call('DEL', KEYS[2]) end
redis.call('HSET', KEYS[2], 'whole', created[1], 'options', created[2], 'version', created[3],
  'decided', created[4])
"""
"""A queue is lost, and a producer that knows no handler creates it with the defaults at once."""


@pytest.fixture
def app(server: EmbeddedServer) -> Towpath:
    app = Towpath(server.url)

    @app.handler(QUEUE, keep=hours(2), max_attempts=7)
    async def send(name: str) -> str:
        return f"sent to {name}"

    return app


@asynccontextmanager
async def with_worker(
    app: Towpath, server: EmbeddedServer, options: QueueOptions | None = None
) -> AsyncGenerator[Engine]:
    """Runs a producer beside a worker that has run a job, so that the worker has declared its
    options. `create_anew` then creates the queue again with *options*, or with the defaults.
    """
    async with app, working(app), Engine(server.url) as producer:
        await producer.queues.configure(OTHER, options or QueueOptions())
        await run_a_job(producer)
        yield producer


def create_anew(server: EmbeddedServer, *, lost: str) -> None:
    defaults, queue = (keys_of(queue_name(name)).meta for name in (OTHER, QUEUE))
    server.ask("EVAL", _CREATE_ANEW, 2, defaults, queue, lost)


async def run_a_job(engine: Engine) -> JobInfo:
    job = await engine.submit(QUEUE, b'"anna"')
    return await engine.events.ended(job.job, within=SOON)


@pytest.mark.parametrize("lost", ["all", "the queue"])
async def test_a_worker_declares_its_options_for_a_queue_that_others_created_anew(
    app: Towpath, server: EmbeddedServer, lost: str
) -> None:
    async with with_worker(app, server) as producer:
        create_anew(server, lost=lost)
        assert (await run_a_job(producer)).result == b'"sent to anna"'
        options = await producer.queues.options(QUEUE)
        assert (options.keep, options.max_attempts) == (hours(2), 7)


async def test_options_that_an_operator_changed_on_the_new_queue_stay(
    app: Towpath, server: EmbeddedServer
) -> None:
    async with with_worker(app, server, QueueOptions(keep=minutes(3))) as operator:
        create_anew(server, lost="all")
        await run_a_job(operator)
        options = await operator.queues.options(QUEUE)
        assert (options.keep, options.max_attempts) == (minutes(3), 7)
