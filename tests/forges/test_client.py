"""The API of a forge: paging, unchanged pages, rate limits, and what the client refuses."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from contextlib import suppress
from typing import Any

import pytest

from tests.forges.serving import TOKEN, ForgeRequest, ForgeServer, Reply, running_forge
from tests.waiting import eventually_async
from towpath.calls.caller import Caller
from towpath.calls.errors import AnswerRefused, AnswerTooLarge, CallFailed, RefusedForGood
from towpath.clock import ZERO, Duration, days, hours, milliseconds, minutes, seconds, wall_ms
from towpath.errors import RetryAdvice
from towpath.forges.client import ForgeClient
from towpath.forges.github import FORGE

ISSUES = "/repos/octo/repo/issues"
LISTED = f"{ISSUES}?per_page=2"


@pytest.fixture
def forge(forge: ForgeServer) -> ForgeServer:
    """A forge with some issues."""
    forge.kept[ISSUES] = [{"number": number} for number in range(1, 6)]
    return forge


@pytest.fixture
async def client(forge: ForgeServer) -> AsyncIterator[ForgeClient]:
    async with Caller(allow=["127.0.0.0/8"], timeout=seconds(30)) as caller:
        yield ForgeClient(caller, FORGE, token=TOKEN, api=forge.url)


def says(server: ForgeServer, status: int, message: str = "", **headers: str) -> None:
    """Answers every request so from now on."""
    named = tuple((name.replace("_", "-"), value) for name, value in headers.items())
    server.rules[:] = [lambda _: Reply(status, {"message": message}, named)]


async def numbers(client: ForgeClient, path: str = LISTED, **options: Any) -> list[int]:
    return [
        entry["number"] async for page in client.pages(path, **options) for entry in page.entries
    ]


class TestALongListOfAForge:
    async def test_is_read_page_by_page(self, client: ForgeClient, forge: ForgeServer) -> None:
        assert await numbers(client) == [1, 2, 3, 4, 5]
        assert [asked.query.get("page", ["1"]) for asked in forge.asked] == [["1"], ["2"], ["3"]]

    async def test_is_read_by_the_page_numbers_that_gitlab_gives(
        self, client: ForgeClient, forge: ForgeServer, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        def number_of(_: str, size: int, page: int) -> tuple[tuple[str, str], ...]:
            return (("x-next-page", str(page)), ("x-per-page", str(size)))

        monkeypatch.setattr(forge, "more", number_of)
        assert await numbers(client, f"{LISTED}&state=all") == [1, 2, 3, 4, 5]
        assert {tuple(asked.query["state"]) for asked in forge.asked} == {("all",)}

    async def test_ends_where_the_reader_says(
        self, client: ForgeClient, forge: ForgeServer
    ) -> None:
        assert await numbers(client, most=2) == [1, 2, 3, 4]
        assert len(forge.asked) == 2

    async def test_sends_the_token_to_no_other_host(
        self, client: ForgeClient, forge: ForgeServer
    ) -> None:
        """The links in the answers lead to another host: only their queries are used."""
        async with running_forge() as other:
            link = f'<{other.url}{ISSUES}?per_page=2&page=2>; rel="next"'
            forge.rules.append(
                lambda asked: None if "page" in asked.query else Reply(200, [], (("link", link),))
            )
            assert await numbers(client) == [3, 4, 5]
            assert other.asked == []

    async def test_with_circular_links_has_an_end(
        self, client: ForgeClient, forge: ForgeServer
    ) -> None:
        link = f'<{forge.url}{ISSUES}?page=1>; rel="next"'
        forge.rules.append(lambda _: Reply(200, [{"number": 1}], (("link", link),)))
        assert await numbers(client) == [1] * 20

    @pytest.mark.parametrize("content", [{"message": "no list"}, [1, 2], "text"])
    async def test_that_is_no_list_is_refused(
        self, client: ForgeClient, forge: ForgeServer, content: Any
    ) -> None:
        forge.rules.append(lambda _: Reply(200, content))
        with pytest.raises(AnswerRefused, match="GitHub") as raised:
            await numbers(client)
        assert raised.value.status == 200


class TestAnUnchangedPage:
    async def test_is_not_sent_again(self, client: ForgeClient, forge: ForgeServer) -> None:
        page = await client.page(LISTED)
        assert page is not None
        assert page.etag.startswith('W/"')
        assert await client.page(LISTED, etag=page.etag) is None
        forge.kept[ISSUES][0]["number"] = 7
        changed = await client.page(LISTED, etag=page.etag)
        assert changed is not None
        assert changed.entries[0] == {"number": 7}
        assert changed.etag != page.etag

    async def test_is_no_answer_to_a_request_without_an_etag(
        self, client: ForgeClient, forge: ForgeServer
    ) -> None:
        says(forge, 304)
        with pytest.raises(RefusedForGood) as raised:
            await client.page(LISTED)
        assert raised.value.status == 304


LATER = str(wall_ms() // 1000 + 3000)


class TestARateLimitOfAForge:
    @pytest.mark.parametrize(
        ("status", "said", "most"),
        [
            (429, {"retry_after": "40"}, seconds(40)),
            (403, {"message": "secondary rate limit", "retry_after": "60"}, seconds(60)),
            (403, {"message": "You have exceeded a secondary rate limit"}, minutes(1)),
            (403, {"x_ratelimit_remaining": "0", "x_ratelimit_reset": LATER}, hours(1)),
            (429, {"ratelimit_remaining": "0", "ratelimit_reset": LATER}, hours(1)),
        ],
        ids=["429", "secondary", "secondary without a time", "github", "gitlab"],
    )
    async def test_is_respected(
        self,
        client: ForgeClient,
        forge: ForgeServer,
        status: int,
        said: dict[str, str],
        most: Duration,
    ) -> None:
        says(forge, status, **said)
        with pytest.raises(AnswerRefused, match="GitHub") as raised:
            await client.get(ISSUES)
        assert raised.value.status == status
        assert seconds(30) < raised.value.after <= most
        forge.rules.clear()
        for call in (client.get(ISSUES), client.post(ISSUES, {}), numbers(client)):
            with pytest.raises(AnswerRefused, match="GitHub") as held:
                await call
            assert held.value.status == status
            assert ZERO < held.value.after <= raised.value.after
            assert held.value.retry is RetryAdvice.LATER
        assert len(forge.asked) == 1  # no request is sent

    async def test_that_has_ended_is_forgotten(
        self, client: ForgeClient, forge: ForgeServer
    ) -> None:
        past = str(wall_ms() // 1000 - 10)
        says(forge, 403, x_ratelimit_remaining="0", x_ratelimit_reset=past)
        with pytest.raises(AnswerRefused) as raised:
            await client.get(ISSUES)
        assert raised.value.after == seconds(1)
        forge.rules.clear()

        async def is_asked_again() -> bool:
            with suppress(AnswerRefused):
                return (await client.get(LISTED)).status == 200
            return False

        await eventually_async(is_asked_again)

    @pytest.mark.parametrize("reset", ["", "soon", "٣", "9" * 40])
    async def test_that_cannot_be_read_ends_after_a_time(
        self, client: ForgeClient, forge: ForgeServer, reset: str
    ) -> None:
        named = (
            ("x-ratelimit-remaining", "0"),
            ("x-ratelimit-reset", reset.encode().decode("latin-1")),
        )
        forge.rules.append(lambda _: Reply(429, {}, named))
        with pytest.raises(AnswerRefused) as raised:
            await client.get(ISSUES)
        assert raised.value.after <= days(1)

    async def test_is_distinguished_from_other_refusals(
        self, client: ForgeClient, forge: ForgeServer
    ) -> None:
        says(forge, 403, "Resource not accessible", x_ratelimit_remaining="4999")
        with pytest.raises(AnswerRefused, match="403: Resource not accessible") as raised:
            await client.get(ISSUES)
        assert raised.value.after == ZERO
        forge.rules.clear()
        assert (await client.get(LISTED)).status == 200


class TestAForge:
    @pytest.mark.parametrize("status", [500, 502, 503])
    async def test_in_trouble_is_reported_as_temporary(
        self, client: ForgeClient, forge: ForgeServer, status: int
    ) -> None:
        says(forge, status)
        with pytest.raises(AnswerRefused) as raised:
            await client.get(ISSUES)
        assert type(raised.value) is AnswerRefused
        forge.rules.clear()
        assert (await client.get(LISTED)).status == 200

    @pytest.mark.parametrize("status", [404, 410, 422])
    async def test_that_does_not_know_the_object_is_reported_as_permanent(
        self, client: ForgeClient, forge: ForgeServer, status: int
    ) -> None:
        says(forge, status, f"Not Found {TOKEN}")
        with pytest.raises(RefusedForGood, match=f"{status}: Not Found …"):
            await client.get(ISSUES)

    async def test_that_is_slow_is_given_up(self, forge: ForgeServer) -> None:
        never = asyncio.Event()
        forge.rules.append(lambda _: Reply(200, [], waits=never))
        async with Caller(allow=["127.0.0.0/8"], timeout=milliseconds(300)) as caller:
            client = ForgeClient(caller, FORGE, token=TOKEN, api=forge.url)
            with pytest.raises(CallFailed, match=r"0\.3 s") as failure:
                await client.get(ISSUES)
        assert isinstance(failure.value.__cause__, TimeoutError)

    async def test_that_hangs_up_is_given_up(self, client: ForgeClient, forge: ForgeServer) -> None:
        forge.hangs_up_after_posts = True
        with pytest.raises(CallFailed):
            await client.post(ISSUES, {"title": "x"})

    async def test_that_answers_too_much_is_not_read(self, forge: ForgeServer) -> None:
        async with Caller(allow=["127.0.0.0/8"], largest_answer=10) as caller:
            client = ForgeClient(caller, FORGE, token=TOKEN, api=forge.url)
            with pytest.raises(AnswerTooLarge):
                await client.get(LISTED)
            assert await client.find(ISSUES, "mark", field="body") is None

    @pytest.mark.parametrize("method", ["POST", "PUT", "PATCH", "DELETE"])
    async def test_gets_changes_with_their_content(
        self, client: ForgeClient, forge: ForgeServer, method: str
    ) -> None:
        answer = await client.send(method, f"{ISSUES}/1/labels", {"labels": ["P1"]})
        client.require_taken(answer)
        [asked] = forge.asked
        assert (asked.method, asked.content) == (method, {"labels": ["P1"]})

    async def test_gets_the_token_which_is_shown_nowhere(
        self, client: ForgeClient, forge: ForgeServer
    ) -> None:
        await client.get(LISTED)
        [asked] = forge.asked
        assert isinstance(asked, ForgeRequest)
        assert asked.headers["authorization"] == f"Bearer {TOKEN}"
        assert TOKEN not in repr(client)
