"""The budget for bytes in Redis, received and on their way: never exceeded, and no deadlock."""

import random
from collections.abc import Iterator
from itertools import count
from typing import cast

import pytest

from tests.amounts import amount
from tests.apps.uploads.uploading import new_row, put_one
from towpath.apps.uploads.hashes import PartEntry
from towpath.apps.uploads.model import UploadPlan
from towpath.apps.uploads.options import MIB, UploadsOptions
from towpath.apps.uploads.records import (
    SCRIPTS,
    BodyLease,
    Budget,
    HoldAnswer,
    UploadRecords,
)
from towpath.apps.uploads.states import CountedChunk
from towpath.clock import ManualClock, hours, minutes, seconds
from towpath.embedded import EmbeddedServer
from towpath.engine.engine import Engine

NAMES: Iterator[int] = count()
LEASE = UploadsOptions().body_lease


def lease(
    upload: str, holder: str, size: int, *, part: int = 0, own: int = 0, stays: bool = False
) -> BodyLease:
    """The lease of a body in a part of *size* MiB: it brings all of it, or *own* MiB."""
    name, brings = f"body-{next(NAMES)}", own or size
    return BodyLease(name, upload, part, holder, size * MIB, brings * MIB, stays)


def budget_of(engine: Engine, *, budget: int, owner_share: int) -> Budget:
    options = UploadsOptions(budget=budget * MIB, owner_share=owner_share)
    return Budget(engine.space("uploads", SCRIPTS).at("budget"), options)


async def used(budget: Budget) -> float:
    """MiB"""
    return await budget.used() / MIB


class TestTheBudget:
    @pytest.fixture
    def budget(self, engine: Engine) -> Budget:
        """100 MiB: 75 for new parts, 40 for one owner."""
        return budget_of(engine, budget=100, owner_share=40)

    async def test_the_budget_and_the_share_of_an_owner_are_never_exceeded(
        self, budget: Budget
    ) -> None:
        assert await budget.reserve(lease("u1", "a", 30)) is None
        refusal = await budget.reserve(lease("u1", "a", 30, part=1))
        assert refusal is not None
        assert refusal.share
        assert await budget.reserve(lease("u2", "b", 40)) is None
        refusal = await budget.reserve(lease("u3", "c", 30))
        assert refusal is not None
        assert not refusal.share
        assert await used(budget) == 70

    async def test_after_a_body_only_its_received_bytes_count(self, budget: Budget) -> None:
        body = lease("u1", "a", 8, own=1)
        assert await budget.reserve(body) is None
        assert await used(budget) == 8
        await budget.finish(body, MIB)
        assert await used(budget) == 1

    async def test_bodies_of_different_chunks_count_their_part_once(self, budget: Budget) -> None:
        first, second = (lease("u1", "a", 8, own=4) for _ in range(2))
        for body in (first, first, second):
            assert await budget.reserve(body) is None
        assert await used(budget) == 8
        await budget.finish(first, 4 * MIB)
        assert await used(budget) == 8
        await budget.finish(second, 0)
        assert await used(budget) == 4

    async def test_each_body_of_the_same_chunk_counts(self, budget: Budget) -> None:
        bodies = [lease("u1", "a", 8) for _ in range(3)]
        for body in bodies:
            assert await budget.reserve(body) is None
        assert await used(budget) == 24
        for body, came in zip(bodies, (8, 0, 0), strict=True):
            await budget.finish(body, came * MIB)
        assert await used(budget) == 8

    @pytest.mark.parametrize("way", ["hangs up", "gives way"])
    async def test_refused_owners_get_room_before_a_slow_one_that_comes_back(
        self, budget: Budget, way: str
    ) -> None:
        bodies = [lease("u1", "a", 37), lease("u2", "b", 37)]
        for body in bodies:
            assert await budget.reserve(body) is None
        assert await budget.reserve(lease("u3", "c", 8)) is not None
        if way == "gives way":
            assert await budget.hold(bodies[0], slow=True) is HoldAnswer.GIVE_WAY
        await budget.finish(bodies[0], 0, slow=True)
        refusal = await budget.reserve(lease("u1", "a", 37))
        assert refusal is not None
        assert not refusal.share
        assert refusal.after >= 1
        assert await budget.reserve(lease("u1", "a", 20)) is None, "it leaves only what was refused"
        assert await budget.reserve(lease("u3", "c", 8)) is None

    async def test_an_owner_whose_body_was_quick_gets_room_again(self, budget: Budget) -> None:
        bodies = [lease("u1", "a", 37), lease("u2", "b", 37)]
        for body in bodies:
            assert await budget.reserve(body) is None
        assert await budget.reserve(lease("u3", "c", 8)) is not None
        await budget.finish(bodies[0], 0)
        assert await budget.reserve(lease("u1", "a", 37)) is None

    async def test_a_share_of_the_budget_is_kept_for_begun_parts(self, budget: Budget) -> None:
        begun = lease("u1", "a", 20, own=1)
        assert await budget.reserve(begun) is None
        await budget.finish(begun, MIB)
        for holder in "bc":
            assert await budget.reserve(lease(holder, holder, 37)) is None
        refusal = await budget.reserve(lease("u1", "a", 8, part=1))
        assert refusal is not None
        assert not refusal.share
        assert await budget.reserve(lease("u1", "a", 20, own=19)) is None

    async def test_a_repeated_release_frees_room_once(self, budget: Budget) -> None:
        body = lease("u1", "a", 40)
        await budget.reserve(body)
        await budget.finish(body, 40 * MIB)
        for _ in range(2):
            await budget.release("u1", [0])
        assert await used(budget) == 0

    @pytest.mark.parametrize("stays", [False, True])
    async def test_reservations_of_a_dead_server_expire(
        self, budget: Budget, clock: ManualClock, *, stays: bool
    ) -> None:
        """If the received bytes stay, all announced bytes count until the sweep counts them."""
        dead, alive = lease("u1", "a", 40, own=3, stays=stays), lease("u2", "b", 30)
        for body in (dead, alive):
            assert await budget.reserve(body) is None
        clock.advance(LEASE / 2)
        assert await budget.hold(alive, slow=False) is HoldAnswer.HELD
        clock.advance(LEASE / 2 + seconds(1))
        assert await budget.reserve(lease("u3", "c", 40)) is None
        assert await used(budget) == 70 + 3 * stays
        assert await budget.hold(dead, slow=False) is HoldAnswer.GONE
        await budget.finish(dead, MIB)  # what was stored before was counted already
        assert await used(budget) == 70 + (3 if stays else 1)

    async def test_parts_of_a_dead_server_must_be_counted_again(
        self, budget: Budget, clock: ManualClock
    ) -> None:
        """Unless their bytes are gone, or were counted meanwhile."""
        for upload in ("u1", "u2", "u3"):
            assert await budget.reserve(lease(upload, "a", 8, own=3, stays=True)) is None
        await budget.release("u1", [0])  # stored while the body was known
        clock.advance(LEASE + seconds(1))
        await budget.tidy()
        asks = lease("u4", "b", 8)
        spare = await budget.spare(asks)
        assert spare.unsure == {upload: {0: 3 * MIB} for upload in ("u1", "u2", "u3")}
        assert await budget.correct("u1", "", {0: (3 * MIB, 0)}) == 1
        assert await budget.correct("u2", "", {0: (3 * MIB, 3 * MIB)}) == 1
        assert (await budget.spare(asks)).unsure == {"u3": {0: 3 * MIB}}
        await budget.release("u3", [0])
        assert (await budget.spare(asks)).unsure == {}
        assert await used(budget) == 3

    async def test_silent_parts_give_way_to_others_of_their_owner(
        self, budget: Budget, clock: ManualClock
    ) -> None:
        bodies = [lease(upload, upload[0], 8) for upload in ("a1", "a2", "b1", "a3")]
        for body in bodies:
            assert await budget.reserve(body) is None
        for at, body in enumerate(bodies[:3]):
            await budget.finish(body, (at + 1) * MIB)
            clock.advance(seconds(1))
        asks = lease("a4", "a", 8)
        assert (await budget.spare(asks)).silent == []
        clock.advance(LEASE * 4 - seconds(2))
        await budget.hold(bodies[3], slow=False)
        assert (await budget.spare(asks)).silent == [("a1", 0, MIB), ("a2", 0, 2 * MIB)]
        assert (await budget.spare(lease("a1", "a", 8))).silent == [("a2", 0, 2 * MIB)]
        await budget.renew("a1", [0])
        assert (await budget.spare(asks)).silent == [("a2", 0, 2 * MIB)]

    async def test_the_sweep_releases_room_of_dead_servers(
        self, budget: Budget, server: EmbeddedServer, clock: ManualClock
    ) -> None:
        await budget.reserve(lease("u1", "a", 8))
        await budget.tidy()
        assert await used(budget) == 8
        clock.advance(LEASE + seconds(1))
        await budget.tidy()
        assert await used(budget) == 0
        assert left(server) == []

    async def test_reservations_without_a_body_are_listed_apart(self, budget: Budget) -> None:
        await budget.reserve(lease("u1", "a", 8))
        body = lease("u1", "a", 8, part=1)
        await budget.reserve(body)
        await budget.finish(body, 5)
        assert await budget.without_bodies() == {"u1": {1: 5}}

    async def test_counts_are_corrected_unless_they_have_changed(self, budget: Budget) -> None:
        body = lease("u1", "a", 8)
        await budget.reserve(body)
        assert await budget.correct("u1", "a", {0: (0, 3 * MIB)}) == 0
        await budget.finish(body, MIB)
        assert await budget.correct("u1", "a", {0: (0, 3 * MIB)}) == 0
        assert await budget.correct("u1", "a", {0: (MIB, 3 * MIB), 1: (0, MIB)}) == 2
        assert await used(budget) == 4
        assert await budget.correct("u1", "a", {0: (3 * MIB, 0), 1: (MIB, 0)}) == 2
        assert await used(budget) == 0

    async def test_a_released_budget_leaves_no_keys(
        self, budget: Budget, server: EmbeddedServer
    ) -> None:
        body = lease("u1", "a", 40)
        await budget.reserve(body)
        await budget.finish(body, 3)
        await budget.release("u1", [0])
        assert left(server) == []

    async def test_reservations_of_an_earlier_release_are_read(
        self, budget: Budget, server: EmbeddedServer, clock: ManualClock
    ) -> None:
        await budget.reserve(lease("u0", "a", 8))
        until = server.ask("ZSCORE", "uploads:{budget}:reserved", "u0/0")
        size = 8 * MIB
        server.ask("ZADD", "uploads:{budget}:reserved", cast("str", until), "u1/0")
        server.ask("HSET", "uploads:{budget}:sizes", "u1/0", f"{size} b")
        server.ask("HSET", "uploads:{budget}:shares", "b", str(size))
        server.ask("INCRBY", "uploads:{budget}:total", str(size))
        assert await budget.without_bodies() == {"u1": {0: size}}
        await budget.release("u1", [0])
        assert await used(budget) == 8


def left(server: EmbeddedServer) -> list[str]:
    keys = cast("list[bytes]", server.ask("KEYS", "uploads:*"))
    return [key.decode() for key in keys if b":call:" not in key]


class TestASlowBody:
    async def test_a_slow_body_gives_way_only_to_refused_bodies(self, engine: Engine) -> None:
        budget = budget_of(engine, budget=100, owner_share=40)
        slow, other = lease("u1", "a", 40), lease("u2", "b", 30)
        for body in (slow, other):
            assert await budget.reserve(body) is None
            assert await budget.hold(body, slow=True) is HoldAnswer.HELD
        assert await budget.reserve(lease("u3", "a", 8)) is not None
        assert await budget.hold(other, slow=True) is HoldAnswer.HELD  # another owner's
        assert await budget.hold(slow, slow=False) is HoldAnswer.HELD
        assert await budget.hold(slow, slow=True) is HoldAnswer.GIVE_WAY
        assert await budget.hold(slow, slow=True) is HoldAnswer.HELD  # one was enough
        assert await budget.reserve(lease("u3", "c", 8)) is not None
        assert await budget.hold(other, slow=True) is HoldAnswer.GIVE_WAY


class TestTheTimeToWait:
    """Retry-After: from the rate at which room is freed, and from reservations that end soon."""

    @pytest.fixture
    def budget(self, engine: Engine) -> Budget:
        return budget_of(engine, budget=100, owner_share=40)

    async def after(self, budget: Budget, holder: str, size: int) -> int:
        refusal = await budget.reserve(lease("late", holder, size))
        assert refusal is not None
        return refusal.after

    async def test_the_wait_grows_while_no_room_is_freed(
        self, budget: Budget, clock: ManualClock
    ) -> None:
        bodies = [lease(holder, holder, 37) for holder in "ab"]
        for body in bodies:
            assert await budget.reserve(body) is None
            await budget.finish(body, 37 * MIB)
        assert await self.after(budget, "c", 20) == 1
        clock.advance(seconds(17))
        assert await self.after(budget, "c", 20) == 17
        clock.advance(minutes(10))
        assert await self.after(budget, "c", 20) == 60

    async def test_the_wait_follows_the_rate_at_which_room_is_freed(
        self, budget: Budget, clock: ManualClock
    ) -> None:
        for part in range(9):
            body = lease("u", "abc"[part // 3], 8, part=part)
            assert await budget.reserve(body) is None
            await budget.finish(body, 8 * MIB)
        for part in range(3):  # 8 MiB per second
            clock.advance(seconds(1))
            await budget.release("u", [part])
            body = lease("u", "a", 8, part=10 + part)
            assert await budget.reserve(body) is None
            await budget.finish(body, 8 * MIB)
        assert 1 <= await self.after(budget, "d", 8) <= 5
        assert await self.after(budget, "d", 37) > await self.after(budget, "d", 8)

    async def test_the_wait_is_at_most_as_long_as_the_next_reservation_lasts(
        self, budget: Budget, clock: ManualClock
    ) -> None:
        for holder in "ab":
            assert await budget.reserve(lease(holder, holder, 37)) is None
        clock.advance(LEASE - seconds(3))
        assert await self.after(budget, "c", 20) == 3
        clock.advance(seconds(3))
        assert await budget.reserve(lease("late", "c", 20)) is None


class TestManyBodiesAtRandom:
    """Bodies of three owners begin, end, or die with their servers; a fourth owner sends little."""

    SHARE, ALL = 25, 100

    async def test_random_bodies_stay_within_the_budget_and_release_all_of_it(
        self, engine: Engine, server: EmbeddedServer, clock: ManualClock, seed: int
    ) -> None:
        chance, budget = random.Random(seed), budget_of(engine, budget=100, owner_share=25)
        alive: dict[BodyLease, int] = {}
        dead: list[tuple[int, int]] = []
        there: dict[tuple[str, int], int] = {}
        lasts = round(LEASE.total_seconds())
        now = 0
        for _ in range(amount(300, thoroughly=3000)):
            match chance.choice(["begin"] * 4 + ["end", "hold", "cut", "die", "store", "wait"]):
                case "begin":
                    upload, part = chance.choice("abcd"), chance.randrange(4)
                    size = chance.choice((4, 8, 12))
                    holder = "k1" if upload in "ab" else "k2"
                    own = chance.randint(1, size)
                    body = lease(upload, holder, size, part=part, own=own)
                    if await budget.reserve(body) is None:
                        alive[body] = now
                case "end" if alive:
                    body = chance.choice(list(alive))
                    del alive[body]
                    came = chance.randint(0, body.own)
                    await budget.finish(body, came)
                    key = body.upload_id, body.part
                    there[key] = there.get(key, 0) + came
                case "cut" if alive:
                    body = chance.choice(list(alive))
                    del alive[body]
                    await budget.finish(body, 0)
                case "die" if alive:
                    body = chance.choice(list(alive))
                    # its staged bytes are gone
                    dead.append((alive.pop(body) + lasts - 5, body.own))
                case "store" if there:
                    key = chance.choice(list(there))
                    del there[key]
                    await budget.release(key[0], [key[1]])
                case "wait":
                    clock.advance(seconds(5))
                    now += 5
                    for body in alive:  # live servers report in time
                        answer = await budget.hold(body, slow=chance.random() < 0.2)
                        assert answer is not HoldAnswer.GONE
                        alive[body] = now
                case _:
                    for body in alive:
                        await budget.hold(body, slow=False)
                        alive[body] = now
            staged = sum(body.own for body in alive) + sum(own for end, own in dead if end > now)
            total = await budget.used()
            assert sum(there.values()) + staged <= total <= 100 * MIB, f"at {now} s"
            assert all(share <= 25 * MIB for share in shares(server).values())
            await self.second_owner_gets_its_share(budget)
        for body in alive:
            await budget.finish(body, 0)
        clock.advance(LEASE + seconds(1))
        await budget.tidy()
        assert await budget.used() == sum(there.values())
        clock.advance(hours(2))
        await budget.tidy()
        assert await budget.used() == 0
        assert [key for key in left(server) if not key.endswith(":wanted")] == []

    async def second_owner_gets_its_share(self, budget: Budget) -> None:
        """It can use all of its share, whatever the others use."""
        bodies = [lease(f"quiet{n}", "quiet", 12) for n in range(2)]
        for body in bodies:
            assert await budget.reserve(body) is None
        for body in bodies:
            await budget.finish(body, 0)


def shares(server: EmbeddedServer) -> dict[str, int]:
    found = cast("list[bytes]", server.ask("HGETALL", "uploads:{budget}:shares"))
    return {found[i].decode(): int(found[i + 1]) for i in range(0, len(found), 2)}


class TestManyUploadsWithASmallBudget:
    async def test_all_uploads_end_within_a_small_budget_in_any_order(
        self, engine: Engine, records: UploadRecords, seed: int
    ) -> None:
        """Chunks of six uploads in any order, with room for four parts: once one is refused, some
        upload sends what its begun parts need. One of these can always go on, so none waits for
        ever, and the budget is never exceeded. A byte counts as a MiB.
        """
        chance = random.Random(seed)
        plan = UploadPlan(4, 12, 50)
        budget = budget_of(engine, budget=48, owner_share=50)
        waiting: list[tuple[str, int]] = []
        for upload_id in "abcdef":
            await records.state(upload_id).open(new_row(upload_id), {})
            waiting += [(upload_id, number) for number in range(13)]
        chance.shuffle(waiting)
        held: dict[tuple[str, int], int] = {}
        refused = rounds = 0
        while waiting:
            rounds += 1
            assert rounds < 5000, f"{len(waiting)} chunks wait for ever"
            upload_id, number = waiting.pop(0)
            part = plan.part_of(number)
            size = plan.part_length(part)
            holder = ("abc".find(upload_id) >= 0 and "k1") or "k2"
            data = b"zz" if number == 12 else b"xxxx"
            body = lease(upload_id, holder, size, part=part, own=len(data))
            if await budget.reserve(body) is not None:
                refused += 1
                waiting.append((upload_id, number))
                await _what_has_room_first(records, chance.choice("abcdef"), waiting)
                continue
            found = await _put(records, upload_id, number, data)
            held[upload_id, number] = len(data)
            assert sum(held.values()) <= await used(budget) <= 48
            await budget.finish(body, len(data) * MIB)
            assert sum(held.values()) == await used(budget)
            if found.turn is not None:
                await records.state(upload_id).note_part_stored(
                    1, part, found.turn, PartEntry("e", size)
                )
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


async def _put(records: UploadRecords, upload_id: str, number: int, data: bytes) -> CountedChunk:
    token, chunks = f"t{number}", records.chunks(upload_id)
    await chunks.append(token, 0, data)
    found = await put_one(records.state(upload_id), number, data, token)
    await chunks.place({number: found.token}, 1)
    return found
