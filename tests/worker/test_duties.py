"""What a worker does for queues that it does not serve."""

from tests.worker.in_process_worker import LogLines
from towpath import Engine
from towpath.clock import ManualClock, days, hours
from towpath.embedded import EmbeddedServer
from towpath.engine.states import State
from towpath.telemetry.logs import Log
from towpath.worker.duties import (
    UNUSED_FOR,
    _OtherQueues,  # pyright: ignore[reportPrivateUsage] -- one round
)


async def test_an_empty_unused_queue_is_removed_from_the_directory(
    server: EmbeddedServer, lines: LogLines
) -> None:
    clock = ManualClock()
    async with Engine(server.url, clock=clock) as engine:
        for queue in ("old", "full", "served"):
            await engine.submit(queue, b"")
        await engine.cancel((await engine.inspect.list("old", State.READY)).jobs[0].ref)
        await engine.cancel((await engine.inspect.list("served", State.READY)).jobs[0].ref)
        clock.advance(UNUSED_FOR - hours(1))
        await _OtherQueues(engine, {"served"}, Log()).sweep()
        assert set(await engine.queues.names()) == {"old", "full", "served"}
        clock.advance(days(1))
        await engine.submit("fresh", b"")
        await _OtherQueues(engine, {"served"}, Log()).sweep()
        assert set(await engine.queues.names()) == {"full", "served", "fresh"}
        assert [line["queue"] for line in lines.of("queue.deleted")] == ["old"]
        await engine.submit("old", b"")
        assert "old" in await engine.queues.names()
