"""A queue for a trial or a measurement, deleted afterwards."""

from __future__ import annotations

import secrets
from collections.abc import AsyncGenerator
from contextlib import asynccontextmanager

from towpath.clock import ZERO
from towpath.engine.cluster import open_cluster
from towpath.engine.engine import Engine
from towpath.engine.keys import REGISTRY, keys_of
from towpath.engine.options import EventPolicy, QueueOptions
from towpath.engine.resp import TROUBLE
from towpath.errors import ServerUnreachable
from towpath.ids import QueueName, queue_name


@asynccontextmanager
async def scratch_queue(engine: Engine) -> AsyncGenerator[QueueName]:
    """A new queue that keeps nothing: no results, no ids, no events.

    Afterwards its own keys are removed, and its entry in the list of queues. The data of jobs that
    are left in it stays. Remembered calls expire by themselves.
    """
    queue = queue_name(f"scratch-{secrets.token_hex(6)}")
    await engine.queues.configure(queue, QueueOptions(remember=ZERO, events=EventPolicy.NONE))
    try:
        yield queue
    finally:
        await _remove(engine, queue)


async def _remove(engine: Engine, queue: QueueName) -> None:
    keys, cluster = keys_of(queue), open_cluster(engine.url)
    own = [
        keys.queue, keys.retry, keys.leases, keys.waiting, keys.dead, keys.done, keys.seen,
        keys.lanes, keys.meta, keys.events, keys.wake, keys.history, keys.groups,
    ]  # fmt: skip
    try:
        channel = cluster.channel()
        await channel.send("UNLINK", *own)
        await channel.send("HDEL", REGISTRY, queue)
    except TROUBLE as error:
        raise ServerUnreachable(f"queue {queue} could not be deleted: {error}") from error
    finally:
        await cluster.close()
