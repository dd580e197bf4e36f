"""Checking an API key: cheap, bounded in memory, and never outdated by more than five seconds."""

import asyncio
from collections.abc import Iterator
from itertools import islice

from sqlalchemy import event
from sqlalchemy.engine import Engine

from tests.ledger.manual_time import ManualTime
from tests.waiting import eventually_async
from towpath import milliseconds, minutes, seconds
from towpath.ledger.keys.key import FRESH, MOST_WRONG, KeyEntry, KnownKeys, digest
from towpath.ledger.keys.keys import NOTED_EVERY
from towpath.ledger.ledger import Ledger


class SentStatements:
    """The statements that are sent to any database while the body runs."""

    def __init__(self) -> None:
        self.seen: list[str] = []

    def _note(self, *told: object) -> None:
        self.seen.append(str(told[2]))

    def __enter__(self) -> "SentStatements":
        self._listener = self._note
        event.listen(Engine, "before_cursor_execute", self._listener)
        return self

    def __exit__(self, *_: object) -> None:
        event.remove(Engine, "before_cursor_execute", self._listener)

    def about_keys(self) -> list[str]:
        return [statement for statement in self.seen if "towpath_api_keys" in statement]


class TestCheckingAKey:
    async def test_with_an_unknown_secret_returns_none(self, ledger: Ledger) -> None:
        made = await ledger.keys.create("shop", scopes=["read"])
        secret = made.secret.get_secret_value()
        wrong = ["", "x", secret[:-1], secret + "x", secret.upper(), f" {secret}", made.info.id]
        wrong += ["é", "\x00", "\ud800", "x" * 100_000, "' OR 1=1 --"]
        assert [secret for secret in wrong if await ledger.keys.check(secret) is not None] == []

    async def test_asks_the_database_once_while_the_answer_is_fresh(self, ledger: Ledger) -> None:
        _, secret = await ledger.keys.create("shop", scopes=["read"])
        with SentStatements() as sent:
            for _ in range(100):
                assert await ledger.keys.check(secret.get_secret_value())
                assert await ledger.keys.check("a wrong one") is None
        assert len(sent.about_keys()) == 2

    async def test_asks_once_for_all_requests_at_once(self, ledger: Ledger) -> None:
        info, secret = await ledger.keys.create("shop", scopes=["read"])
        with SentStatements() as sent:
            asked = [ledger.keys.check(secret.get_secret_value()) for _ in range(200)]
            assert await asyncio.gather(*asked) == [info] * 200
        assert len(sent.about_keys()) == 1

    async def test_goes_on_for_others_when_the_first_request_is_cancelled(
        self, ledger: Ledger
    ) -> None:
        info, secret = await ledger.keys.create("shop", scopes=["read"])
        first, *others = (
            asyncio.create_task(ledger.keys.check(secret.get_secret_value())) for _ in range(5)
        )
        await asyncio.sleep(0)
        first.cancel()
        assert await asyncio.gather(*others) == [info] * 4

    async def test_asks_again_in_the_background_before_the_answer_is_stale(
        self, ledger: Ledger, manual_time: ManualTime
    ) -> None:
        """A key in use never waits for the database."""
        info, secret = await ledger.keys.create("shop", scopes=["read"])
        assert await ledger.keys.check(secret.get_secret_value()) == info
        manual_time.advance(seconds(4))
        with SentStatements() as sent:

            async def renewed() -> bool:
                assert await ledger.keys.check(secret.get_secret_value()) == info
                return bool(sent.about_keys())

            await eventually_async(renewed)

    async def test_sees_a_revocation_by_another_process_within_five_seconds(
        self, ledger: Ledger, url: str, manual_time: ManualTime
    ) -> None:
        info, secret = await ledger.keys.create("shop", scopes=["read"])
        assert await ledger.keys.check(secret.get_secret_value()) == info
        async with Ledger(url) as other:
            await other.keys.revoke(info.id)
        manual_time.advance(FRESH)
        assert seconds(5) >= FRESH
        assert await ledger.keys.check(secret.get_secret_value()) is None

    async def test_counts_the_five_seconds_from_before_the_query(
        self, ledger: Ledger, manual_time: ManualTime
    ) -> None:
        """An answer that took long is not fresh for five more seconds."""
        info, secret = await ledger.keys.create("shop", scopes=["read"])
        checking = asyncio.create_task(ledger.keys.check(secret.get_secret_value()))
        await asyncio.sleep(0)
        manual_time.advance(seconds(4))
        assert await checking == info
        manual_time.advance(seconds(1))
        with SentStatements() as sent:
            await ledger.keys.check(secret.get_secret_value())
        assert len(sent.about_keys()) == 1

    async def test_discards_an_answer_that_a_revocation_overtook(self, ledger: Ledger) -> None:
        """A revocation in this process takes effect at once, whatever was being read meanwhile."""
        for _ in range(20):
            info, secret = await ledger.keys.create("shop", scopes=["read"])
            checks = [ledger.keys.check(secret.get_secret_value()) for _ in range(3)]
            await asyncio.gather(*checks, ledger.keys.revoke(info.id))
            assert await ledger.keys.check(secret.get_secret_value()) is None

    async def test_a_key_in_use_is_checked_without_the_database(self, ledger: Ledger) -> None:
        _, secret = await ledger.keys.create("shop", scopes=["read"])
        text = secret.get_secret_value()
        await ledger.keys.check(text)
        with SentStatements() as sent:
            for _ in range(20):
                await ledger.keys.check(text)
        assert sent.about_keys() == []


def batched(words: Iterator[str], size: int) -> Iterator[list[str]]:
    while some := list(islice(words, size)):
        yield some


class TestTheCacheOfKeys:
    async def test_keeps_valid_keys_when_wrong_ones_come(self, ledger: Ledger) -> None:
        info, secret = await ledger.keys.create("shop", scopes=["read"])
        await ledger.keys.check(secret.get_secret_value())
        with SentStatements() as sent:
            wrong = (f"wrong {n}" for n in range(MOST_WRONG + 200))
            for some in batched(wrong, 50):
                assert not any(await asyncio.gather(*map(ledger.keys.check, some)))
            before = len(sent.about_keys())
            assert await ledger.keys.check(secret.get_secret_value()) == info
            assert len(sent.about_keys()) == before

    def test_is_bounded_for_valid_and_wrong_keys(self, manual_time: ManualTime) -> None:
        keys = KnownKeys(manual_time.ticks, most_real=3, most_wrong=2)
        for n in range(1000):
            keys.put(KeyEntry(digest(str(n)), None, 0, manual_time.ticks()))
        assert len(keys) == 2
        assert keys.find(digest("999")) is not None
        assert keys.find(digest("997")) is None


class TestUsesOfKeys:
    async def test_are_stored_in_batches_and_not_by_the_check(
        self, ledger: Ledger, manual_time: ManualTime
    ) -> None:
        one = await ledger.keys.create("one", scopes=["read"])
        await ledger.keys.create("other", scopes=["read"])
        with SentStatements() as sent:
            for _ in range(100):
                await ledger.keys.check(one.secret.get_secret_value())
                manual_time.advance(milliseconds(10))
            assert [statement for statement in sent.about_keys() if "UPDATE" in statement] == []
            await ledger.keys.note_uses()
            await ledger.keys.note_uses()
            assert len([statement for statement in sent.about_keys() if "UPDATE" in statement]) == 1
        noted = {info.name: info.last_used_at for info in await ledger.keys.list()}
        assert noted == {"one": manual_time.clock.now - milliseconds(10), "other": None}

    async def test_are_not_stored_backwards(
        self, ledger: Ledger, url: str, manual_time: ManualTime
    ) -> None:
        """A process whose clock is behind does not overwrite a later time of another one."""
        _, secret = await ledger.keys.create("one", scopes=["read"])
        async with Ledger(url, wall=lambda: 1_000, ticks=manual_time.ticks) as behind:
            await behind.keys.check(secret.get_secret_value())
            await ledger.keys.check(secret.get_secret_value())
            await ledger.keys.note_uses()
        assert [info.last_used_at for info in await ledger.keys.list()] == [manual_time.clock.now]

    async def test_are_stored_in_the_background_and_at_the_end(self, url: str) -> None:
        async with Ledger(url, noted_every=milliseconds(5)) as ledger:
            await ledger.migrate()
            one = await ledger.keys.create("one", scopes=["read"])
            await ledger.keys.check(one.secret.get_secret_value())

            async def noted() -> bool:
                return all(info.last_used_at for info in await ledger.keys.list())

            await eventually_async(noted)
        async with Ledger(url) as ledger:
            other = await ledger.keys.create("other", scopes=["read"])
            await ledger.keys.check(other.secret.get_secret_value())
        async with Ledger(url) as ledger:
            assert all(info.last_used_at for info in await ledger.keys.list())

    def test_are_written_once_a_minute(self) -> None:
        assert minutes(1) == NOTED_EVERY
