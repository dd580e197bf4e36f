"""The benchmarks over HTTP notice a violated guarantee, and then report no figure."""

import asyncio
import re
from collections.abc import AsyncIterator, Sequence

import pytest

from benchmarks import http_consumers, http_message
from benchmarks.bench import bench
from benchmarks.web.account import HeldMessage, MessageAccount, Violation
from benchmarks.web.load import load
from benchmarks.web.serving import KEY, ServerProcess, empty, served
from benchmarks.web.wire import ConnectionLeft, HttpAnswer, HttpConnection, client, request
from tests.amounts import slow

pytestmark = slow


class TestTheRateOfMessages:
    async def test_counts_messages_that_are_in_the_queue(self) -> None:
        async with bench() as workbench, served(workbench) as (serving, _):
            trial = await load(workbench, serving, http_message.bodies(64, each=2))
            counts = await workbench.engine.inspect.counts("messages")
        assert len(trial.times_ms) == 64
        assert (counts.ready, counts.waiting, counts.lanes) == (32, 32, 32)

    async def test_is_an_error_if_not_every_message_was_accepted(self) -> None:
        async with bench() as workbench, served(workbench) as (serving, _):
            with pytest.raises(AssertionError, match="422"):
                await load(workbench, serving, [b"{}"])


class TestTheEmptyEndpoint:
    @pytest.fixture
    async def serving(self) -> AsyncIterator[ServerProcess]:
        async with (
            bench() as workbench,
            served(workbench) as (_, database),
            empty(database) as serving,
        ):
            yield serving

    async def test_requires_the_same_key_and_body(self, serving: ServerProcess) -> None:
        [body] = http_message.bodies(1, each=1)
        async with client(serving.place) as sender:
            asked = [
                await sender.ask(request("POST", "/api/v1/message", key, sent))
                for key, sent in ((KEY, body), ("tp_wrong", body), (KEY, b'{"user_id": "ann"}'))
            ]
        assert [answer.status for answer in asked] == [200, 401, 422]


async def test_a_server_ends_with_its_block() -> None:
    async with (
        bench() as workbench,
        served(workbench) as (serving, _),
        client(serving.place) as asking,
    ):
        assert (await asking.ask(request("GET", "/livez", ""))).status == 200
    with pytest.raises(ConnectionRefusedError):
        await asyncio.open_connection(*serving.place)


class TestConsumersOverHttp:
    async def test_lose_no_message_though_some_die(self, monkeypatch: pytest.MonkeyPatch) -> None:
        monkeypatch.setattr(http_consumers, "DEATHS", 0.15)
        size = http_consumers.ConsumersSize(users=20, each=4, consumers=8)
        cost, account = await http_consumers.consumers_round(size, seed=1)
        assert account.done == cost.jobs == 80
        assert account.deaths > 0

    async def test_fail_if_the_server_refuses_a_request(
        self, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        monkeypatch.setattr(http_consumers, "LEASE_S", -1)
        with pytest.raises(Violation, match="422"):
            await http_consumers.consumers_round(
                http_consumers.ConsumersSize(users=2, each=1, consumers=1), seed=1
            )


def history(*claims: tuple[int, int], completed: Sequence[int] = ()) -> MessageAccount:
    """One user's three messages: which were delivered at what time; the last claim is completed."""
    account = MessageAccount(users=1, each=3)
    for number, token in claims:
        message = HeldMessage("ann", number, token)
        account.given(message)
        account.completing(message)
        if token in completed:
            account.completed(message)
    return account


class TestTheMessageAccount:
    def test_accepts_messages_that_are_delivered_again_in_order(self) -> None:
        account = history((0, 1), (0, 2), (1, 3), (2, 4), completed=[2, 3, 4])
        account.check({"completed": 3})

    @pytest.mark.parametrize(
        ("account", "named"),
        [
            (history((0, 1), (1, 2), completed=[1, 2]), ["1", "3"]),
            (history((0, 1), (1, 2), (2, 3), completed=[1, 3]), ["1"]),
            (history((0, 1), (0, 2), (1, 3), (2, 4), completed=[1, 2, 3, 4]), ["1"]),
            (history((0, 1), (0, 2), (1, 3), (2, 4), completed=[1, 3, 4]), ["0", "ann"]),
            (history((0, 1), (1, 3), (2, 2), completed=[1, 2, 3]), ["2", "ann"]),
        ],
        ids=["never given", "not completed", "completed twice", "given again", "out of order"],
    )
    def test_finds_violations_of_the_order(self, account: MessageAccount, named: list[str]) -> None:
        with pytest.raises(Violation) as found:
            account.check({"completed": 3})
        assert re.findall(r"\d+|\bann\b", str(found.value)) == named

    def test_finds_a_message_that_was_delivered_too_early(self) -> None:
        account = MessageAccount(users=1, each=2)
        account.given(HeldMessage("ann", 0, 1))
        with pytest.raises(Violation, match=r"\b1\b.*\bann\b"):
            account.given(HeldMessage("ann", 1, 2))

    def test_refuses_a_different_count_of_the_server(self) -> None:
        account = history((0, 1), (1, 2), (2, 3), completed=[1, 2, 3])
        with pytest.raises(Violation, match=r"\b4\b.*\b3\b"):
            account.check({"completed": 4})


class TestTheHttpClient:
    def answers(self, *pieces: bytes) -> list[HttpAnswer]:
        heard: list[HttpAnswer] = []
        wire = HttpConnection(heard.append, lambda: None)
        for piece in pieces:
            wire.data_received(piece)
        return heard

    def test_reads_an_answer_in_pieces(self) -> None:
        head = b"HTTP/1.1 200 OK\r\nContent-Length: 5\r\n\r\n"
        assert self.answers(head[:9], head[9:] + b"he", b"llo") == [HttpAnswer(200, b"hello")]

    def test_reads_an_answer_without_a_body(self) -> None:
        assert self.answers(b"HTTP/1.1 204 No Content\r\n\r\n") == [HttpAnswer(204, b"")]

    async def test_reports_a_closed_connection(self) -> None:
        async def hang_up(_: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
            writer.close()

        async with await asyncio.start_server(hang_up, "127.0.0.1", 0) as server:
            host, port = server.sockets[0].getsockname()
            async with client((host, port)) as sender:
                with pytest.raises(ConnectionLeft):
                    await sender.ask(request("GET", "/", KEY))
