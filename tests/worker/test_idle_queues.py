"""Many idle queues are cheap, and none of them is forgotten."""

from tests.faults.redis_facts import blocked_clients
from tests.queue_numbers import number
from tests.waiting import eventually_in_loop
from tests.worker.in_process_worker import LogLines, working
from towpath.app.app import Towpath
from towpath.clock import seconds, steady
from towpath.embedded import EmbeddedServer
from towpath.embedded.process import ask_fields
from towpath.worker.context import Context

MANY = 300


def _queues(app: Towpath, begun: set[str]) -> list[str]:
    async def note(_: int, ctx: Context) -> None:
        assert ctx.due_at is None or ctx.claimed_at >= ctx.due_at
        begun.add(ctx.queue)

    return [app.handler(f"type.{n}")(note).queue for n in range(MANY)]


async def _all_wait(server: EmbeddedServer) -> None:
    """Each queue was claimed from once, and reads are under way for the rest."""

    def asked() -> bool:
        keys = [f"{{type.{n}}}:meta" for n in range(0, MANY, 10)]
        return all(number(server.ask, key, "asked_at") for key in keys)

    await eventually_in_loop(lambda: asked() and blocked_clients(server) >= 17)


class _FewScripts:
    """Returns whether six seconds passed with few scripts. The worker may still have started its
    queues in the first ones. Six seconds would show ten polls' worth of claims, if there were any.
    """

    def __init__(self, server: EmbeddedServer) -> None:
        self._server = server
        self._before, self._over = _scripts(server), steady() + 6

    def __call__(self) -> bool:
        if steady() < self._over:
            return False
        now = _scripts(self._server)
        few, self._before, self._over = now - self._before < 150, now, steady() + 6
        return few


class TestManyIdleQueues:
    async def test_cost_few_commands_and_connections(
        self, app: Towpath, server: EmbeddedServer, lines: LogLines
    ) -> None:
        """If each queue claimed every five seconds, there would be 60 scripts a second."""
        _queues(app, set())
        async with working(app):
            await lines.next("worker.started")
            await _all_wait(server)
            await eventually_in_loop(_FewScripts(server))
            clients = ask_fields(server.address, "INFO", "clients")["connected_clients"]
            assert int(clients) < 60

    async def test_start_a_job_that_falls_due_in_any_of_them(
        self, app: Towpath, server: EmbeddedServer, lines: LogLines
    ) -> None:
        """No job starts early, and all start, though no wake-up announces jobs that fall due more
        than five seconds later.
        """
        begun: set[str] = set()
        queues = _queues(app, begun)
        async with working(app):
            await lines.next("worker.started")
            await _all_wait(server)
            for queue in queues:
                await app.engine.submit(queue, b"1", delay=seconds(7))
            await eventually_in_loop(lambda: len(begun) == MANY)


def _scripts(server: EmbeddedServer) -> int:
    stats = ask_fields(server.address, "INFO", "commandstats")
    return int(stats["cmdstat_evalsha"].split("calls=")[1].split(",")[0])
