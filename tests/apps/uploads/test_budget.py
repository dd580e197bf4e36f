"""The budget for chunks in Redis: a whole part at a time, never too much, and no deadlock."""

import random

import pytest

from tests.apps.uploads.uploading import new_row, put_one
from towpath.apps.uploads.hashes import PartEntry
from towpath.apps.uploads.model import UploadPlan
from towpath.apps.uploads.records import SCRIPTS, Budget, UploadRecords
from towpath.apps.uploads.states import Put
from towpath.clock import ManualClock, hours, minutes
from towpath.embedded import EmbeddedServer
from towpath.engine.engine import Engine


class TestTheBudget:
    @pytest.fixture
    def budget(self, engine: Engine) -> Budget:
        record = engine.space("uploads", SCRIPTS).at("budget")
        return Budget(record, most=100, chunk_expiry=hours(1))

    async def test_is_never_exceeded_and_one_holder_has_half(self, budget: Budget) -> None:
        assert await budget.reserve("u1", 0, holder="a", size=30) is None
        refusal = await budget.reserve("u1", 1, holder="a", size=30)
        assert refusal is not None
        assert refusal.share
        assert await budget.reserve("u2", 0, holder="b", size=50) is None
        refusal = await budget.reserve("u3", 0, holder="c", size=30)
        assert refusal is not None
        assert not refusal.share
        assert await budget.used() == 80

    async def test_has_room_again_for_what_was_given_back_once(self, budget: Budget) -> None:
        await budget.reserve("u1", 0, holder="a", size=50)
        await budget.reserve("u1", 0, holder="a", size=50)
        assert await budget.used() == 50
        for _ in range(2):
            await budget.release("u1", [0])
        assert await budget.used() == 0

    async def test_takes_back_what_a_client_that_went_away_had_reserved(
        self, budget: Budget, clock: ManualClock
    ) -> None:
        await budget.reserve("u1", 0, holder="a", size=50)
        await budget.reserve("u2", 0, holder="b", size=50)
        await budget.renew("u2", [0])
        clock.advance(minutes(3))
        assert await budget.reserve("u3", 0, holder="c", size=50) is None
        assert await budget.reserve("u1", 0, holder="a", size=50) is not None

    async def test_of_those_who_went_away_is_taken_back_by_the_sweep(
        self, budget: Budget, server: EmbeddedServer, clock: ManualClock
    ) -> None:
        await budget.reserve("u1", 0, holder="a", size=8)
        await budget.tidy()
        assert await budget.used() == 8
        clock.advance(minutes(3))
        await budget.tidy()
        assert await budget.used() == 0
        assert server.ask("KEYS", "uploads:{budget}:[rst]*") == []

    async def test_of_what_may_come_is_told_from_that_of_what_is_here(self, budget: Budget) -> None:
        """The sweep takes only the latter back: a part that was reserved just now is not its."""
        await budget.reserve("u1", 0, holder="a", size=8)
        await budget.reserve("u1", 1, holder="a", size=8)
        await budget.renew("u1", [1])
        assert await budget.settled() == {"u1": {1}}

    async def test_leaves_nothing_behind(self, budget: Budget, server: EmbeddedServer) -> None:
        await budget.reserve("u1", 0, holder="a", size=50)
        await budget.release("u1", [0])
        keys = server.ask("KEYS", "uploads:*")
        assert isinstance(keys, list)
        assert [key for key in keys if b":call:" not in bytes(str(key), "ascii")] == []


class TestManyUploadsWithASmallBudget:
    async def test_all_end_and_the_budget_holds_whatever_the_order(
        self, engine: Engine, records: UploadRecords, seed: int
    ) -> None:
        """Chunks of six uploads in any order, room for four parts: whoever is refused sends what
        the open parts need first. Nobody waits for ever, and there is never more than the budget.
        """
        chance = random.Random(seed)
        plan = UploadPlan(4, 12, 50)
        budget = Budget(
            engine.space("uploads", SCRIPTS).at("budget"), most=48, chunk_expiry=hours(1)
        )
        waiting: list[tuple[str, int]] = []
        for upload_id in "abcdef":
            await records.state(upload_id).open(new_row(upload_id), {})
            waiting += [(upload_id, number) for number in range(13)]
        chance.shuffle(waiting)
        held: dict[tuple[str, int], int] = {}
        refused = rounds = 0
        while waiting:
            rounds += 1
            assert rounds < 2000, f"{len(waiting)} chunks wait for ever"
            upload_id, number = waiting.pop(0)
            part = plan.part_of(number)
            size = plan.part_length(part)
            holder = ("abc".find(upload_id) >= 0 and "k1") or "k2"
            if await budget.reserve(upload_id, part, holder=holder, size=size) is not None:
                refused += 1
                waiting.append((upload_id, number))
                await _what_has_room_first(records, upload_id, waiting)
                continue
            data = b"zz" if number == 12 else b"xxxx"
            found = await _put(records, upload_id, number, data)
            held[upload_id, number] = len(data)
            assert sum(held.values()) <= await budget.used() <= 48
            if found.turn is not None:
                await records.state(upload_id).commit(1, part, found.turn, PartEntry("e", size))
                await budget.release(upload_id, [part])
                for other in plan.chunks_of(part):
                    del held[upload_id, other]
        assert refused
        assert await budget.used() == 0
        for upload_id in "abcdef":
            assert (await records.state(upload_id).look())[0]["status"] == "COMPLETING"


async def _what_has_room_first(
    records: UploadRecords, upload_id: str, waiting: list[tuple[str, int]]
) -> None:
    chart = await records.state(upload_id).chart()
    room = [n for gap in chart.missing_of_begun() for n in range(gap.first, gap.last + 1)]
    waiting.sort(key=lambda chunk: chunk[0] != upload_id or chunk[1] not in room)


async def _put(records: UploadRecords, upload_id: str, number: int, data: bytes) -> Put:
    token, chunks = f"t{number}", records.chunks(upload_id)
    await chunks.append(token, 0, data)
    found = await put_one(records.state(upload_id), number, data, token)
    await chunks.place({number: found.token}, 1)
    return found
