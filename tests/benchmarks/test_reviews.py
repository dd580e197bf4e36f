"""The benchmarks of reviews notice errors that would make their figures wrong."""

import asyncio
from collections.abc import Awaitable, Callable, Iterator

import pytest

from benchmarks import postgres
from benchmarks.databases import DatabaseKind, database
from benchmarks.figure import Reference, measured, not_measured
from benchmarks.report import summary, table
from benchmarks.web import offered
from benchmarks.web.deliveries import SECRET, deliveries
from benchmarks.web.offered import OfferedLoad
from benchmarks.web.rate_search import CpuSpent, RateStep, highest_rate
from benchmarks.web.reviewing import ReviewWorker
from towpath.apps.reviews.hooks import Hook, reader_of
from towpath.forges.github import FORGE


@pytest.fixture
def no_postgres(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(postgres, "_WHEEL", "no_such_wheel")


class TestDeliveries:
    def read(self, request: bytes) -> Hook:
        head, _, body = request.partition(b"\r\n\r\n")
        lines = head.decode().split("\r\n")[1:]
        headers = dict(line.split(": ", 1) for line in lines)
        assert int(headers["Content-Length"]) == len(body)
        found = reader_of(FORGE)(headers, body, secrets=[SECRET])
        assert isinstance(found, Hook)
        return found

    def test_are_signed_pull_requests_of_real_size_and_all_different(self) -> None:
        made = list(deliveries(3))
        hooks = [self.read(request) for _, request in made]
        assert [hook.id for hook in hooks] == [id for id, _ in made]
        assert len({hook.task.number for hook in hooks}) == 3
        assert len({hook.task.head for hook in hooks}) == 3
        assert all(20_000 < len(request) < 25_000 for _, request in made)


class TestADatabase:
    @pytest.mark.usefixtures("no_postgres")
    async def test_that_is_missing_is_an_error(self) -> None:
        with pytest.raises(postgres.PostgresMissing, match="no_such_wheel"):
            async with database(DatabaseKind.POSTGRES):
                pass


def test_a_figure_that_was_not_measured_has_the_reason() -> None:
    figure = not_measured("some.figure", "what", "s", why="it is not installed")
    assert "not measured" in table([figure])
    assert summary([figure])[-1] == "some.figure was not measured: it is not installed."


@pytest.mark.parametrize(("beside", "ratio"), [((2, 0, 5), 2), ((0, 0, 0), None)])
def test_a_round_without_anything_to_compare_with_has_no_ratio(
    beside: tuple[float, ...], ratio: float | None
) -> None:
    """CPU is counted in ticks of 10 ms, so a short round may have none."""
    figure = measured("some.cpu", "CPU", "µs", (4, 4, 10), beside=Reference("µs", beside))
    assert figure.ratio == ratio
    assert "some.cpu" in table([figure])


class PipelineUpTo:
    """A pipeline that succeeds up to some rate."""

    def __init__(self, limit: int) -> None:
        self._limit = limit
        self.tried: list[int] = []

    async def step(self, rate: int, count: int) -> RateStep:
        self.tried.append(rate)
        late = 10.0 if rate <= self._limit else 5_000.0
        return RateStep(rate, [late] * count, CpuSpent(0, 0, 0, 0, 0))


class TestTheHighestRate:
    @pytest.mark.parametrize(
        ("limit", "tried", "found"),
        [
            (600, [500, 600, 750], 600),
            (300, [500, 400, 300], 300),
            (9_999, [500, 600, 750, 1_000, 1_250, 1_500, 1_750, 2_000, 2_500, 3_000, 4_000, 5_000],
             5_000),
        ],
    )  # fmt: skip
    async def test_is_searched_upwards_or_downwards(
        self, limit: int, tried: list[int], found: int
    ) -> None:
        pipeline = PipelineUpTo(limit)
        assert (await highest_rate(pipeline, 500, 1)).rate == found
        assert pipeline.tried == tried

    def test_counts_only_if_nearly_all_tasks_start_in_time(self) -> None:
        nothing = CpuSpent(0, 0, 0, 0, 0)
        assert RateStep(1, [999.0] * 96 + [1_999.0] * 4, nothing).went_well
        assert not RateStep(1, [999.0] * 94 + [1_999.0] * 6, nothing).went_well
        assert not RateStep(1, [10.0] * 98 + [2_001.0] * 2, nothing).went_well


Handle = Callable[[asyncio.StreamReader, asyncio.StreamWriter], Awaitable[None]]
TAKEN = b"HTTP/1.1 202 Accepted\r\nContent-Length: 0\r\n\r\n"


def few(count: int) -> Iterator[tuple[str, bytes]]:
    return ((str(number), b"GET / HTTP/1.1\r\n\r\n") for number in range(count))


class TestOfferedLoad:
    async def send(self, handle: Handle, requests: OfferedLoad, count: int) -> None:
        async with await asyncio.start_server(handle, "127.0.0.1", 0) as server:
            place = server.sockets[0].getsockname()[:2]
            await requests.send(place, few(count), rate=1_000, count=count)

    async def test_counts_the_time_of_a_request_from_when_it_was_due(
        self, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        """Requests that wait for a free connection are included."""
        monkeypatch.setattr(offered, "CONNECTIONS", 1)
        requests = OfferedLoad()

        async def handle(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
            for _ in range(4):
                await reader.readuntil(b"\r\n\r\n")
                while len(requests.due) < 4:  # noqa: ASYNC110 -- the first answer waits for all others to be due
                    await asyncio.sleep(0)
                writer.write(TAKEN)
            writer.close()

        await self.send(handle, requests, 4)
        due = list(requests.due.values())
        assert [later - due[0] for later in due] == [0, 1_000_000, 2_000_000, 3_000_000]
        assert requests.answered["0"] >= due[3]
        assert list(requests.answered) == ["0", "1", "2", "3"]

    async def test_is_an_error_if_one_request_is_refused(self) -> None:
        async def handle(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
            await reader.readuntil(b"\r\n\r\n")
            writer.write(TAKEN.replace(b"202 Accepted", b"503 Busy"))
            writer.close()

        with pytest.raises(AssertionError, match="503"):
            await self.send(handle, OfferedLoad(), 1)

    async def test_is_an_error_if_the_server_closes_a_connection(self) -> None:
        async def handle(_: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
            writer.close()

        with pytest.raises(AssertionError, match="connection"):
            await self.send(handle, OfferedLoad(), 1)


async def test_a_review_that_begins_twice_is_noticed() -> None:
    reviews, said = ReviewWorker(), asyncio.StreamReader()
    said.feed_data(b'[["a", 1], ["b", 2]]\n[["a", 3]]\n')
    said.feed_eof()
    await reviews.listen(said)
    await reviews.until(2, within=1)
    assert reviews.began == {"a": 1, "b": 2}
    assert reviews.twice == 1
