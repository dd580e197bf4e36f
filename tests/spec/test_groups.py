"""Error groups: dead jobs are counted by their errors, however they die and leave."""

from collections.abc import AsyncIterator

import pytest

from tests.spec.deployment import Deployment
from tests.spec.jobs_in_states import LEASE, REVIEWS, claim, claim_one, submit_ids
from towpath.clock import ManualClock, days, milliseconds, seconds
from towpath.engine.engine import Engine
from towpath.engine.model import job_ref, new_job
from towpath.engine.options import LanePolicy, QueueOptions
from towpath.engine.script import Scripts
from towpath.engine.states import State
from towpath.errors import InvalidName, InvalidOption


async def die(engine: Engine, id: str, reason: str, *, lane: str | None = None) -> None:
    await submit_ids(engine, id, lane=lane)
    await engine.bury(await claim_one(engine), reason)


async def counted(engine: Engine) -> dict[str, int]:
    found = await engine.inspect.dead_groups(REVIEWS)
    assert found.ungrouped == 0
    assert sum(group.count for group in found.groups) == (await engine.inspect.counts(REVIEWS)).dead
    for group in found.groups:
        page = await engine.inspect.list(REVIEWS, State.DEAD, group=group.group)
        assert len(page.jobs) == group.count
    return {group.error: group.count for group in found.groups}


class TestTheErrorOfADeadJob:
    @pytest.mark.parametrize(
        ("reason", "error"),
        [
            ("disk is full", "disk is full"),
            ("KeyError: 'mail'\nTraceback: line 7", "KeyError: 'mail'"),
            ("\n  late by 30s\rmore", "late by #"),
            ("HTTP 503 from api-2.example", "HTTP # from api-#.example"),
            ("user 4711 of 01J9ZX3K8Q7M2A5B6C7D8E9F0G", "user # of #"),
            ("no e29b4100-e29b-41d4-a716-446655440000 here", "no # here"),
            ("0x7f3a at v1.2.3", "# at v#.#.#"),
            ("tab\there", "tab here"),
            ("kaputt: Größe 5 zu groß", "kaputt: Größe # zu groß"),
            ("\n", ""),
        ],
    )
    async def test_is_the_first_line_with_numbers_and_ids_masked(
        self, engine: Engine, reason: str, error: str
    ) -> None:
        await die(engine, "a", reason)
        assert await counted(engine) == {error: 1}

    async def test_is_truncated_if_it_is_long(self, engine: Engine) -> None:
        await die(engine, "a", "ä" * 400)
        [error] = await counted(engine)
        assert error == "ä" * 60

    async def test_of_an_expired_lease_names_no_worker(
        self, engine: Engine, clock: ManualClock
    ) -> None:
        await engine.queues.configure(REVIEWS, QueueOptions(max_attempts=1))
        for id, worker in (("a", "anna"), ("b", "a worker that was silent")):
            await submit_ids(engine, id)
            await engine.claim(REVIEWS, worker=worker, lease=LEASE)
        clock.advance(seconds(31))
        await engine.queues.reap(REVIEWS)
        assert await counted(engine) == {
            "LEASE_ENDED: worker # was silent until its lease ended": 2
        }


class TestAnErrorGroup:
    async def test_has_its_count_and_times_and_the_largest_is_first(
        self, engine: Engine, clock: ManualClock
    ) -> None:
        for n, reason in enumerate(["rare", "late by 1s", "late by 2s", "late by 3s"]):
            await die(engine, str(n), reason)
            clock.advance(milliseconds(5))
        first, second = (await engine.inspect.dead_groups(REVIEWS)).groups
        assert (first.error, first.count) == ("late by #", 3)
        assert first.last - first.first == milliseconds(10)
        assert (second.error, second.first) == ("rare", second.last)

    async def test_is_listed_page_by_page(self, engine: Engine, clock: ManualClock) -> None:
        for n in range(5):
            await die(engine, str(n), f"late by {n}s" if n % 2 == 0 else "rare")
            clock.advance(milliseconds(1))
        group = (await engine.inspect.dead_groups(REVIEWS)).groups[0].group
        first = await engine.inspect.list(REVIEWS, State.DEAD, group=group, size=2)
        rest = await engine.inspect.list(
            REVIEWS, State.DEAD, group=group, size=2, after=first.after
        )
        assert [job.id for job in first.jobs + rest.jobs] == ["0", "2", "4"]
        assert (await engine.inspect.list(REVIEWS, State.DEAD, group="nobody")).jobs == []

    async def test_of_jobs_that_are_not_dead_is_refused(self, engine: Engine) -> None:
        with pytest.raises(InvalidOption) as refusal:
            await engine.inspect.list(REVIEWS, State.READY, group="abc")
        assert (refusal.value.option, refusal.value.value) == ("group", "abc")
        with pytest.raises(InvalidName):
            await engine.inspect.list(REVIEWS, State.DEAD, group="a\nb")


class TestAJobLeavesItsErrorGroup:
    @pytest.fixture(autouse=True)
    async def three_dead(self, engine: Engine) -> None:
        await engine.queues.configure(
            REVIEWS, QueueOptions(keep_dead=days(1), lanes=LanePolicy.PARK, max_attempts=1)
        )
        for id in ("a", "b", "c"):
            await die(engine, id, "late" if id != "c" else "rare")

    async def test_by_retry(self, engine: Engine) -> None:
        await engine.retry(job_ref(REVIEWS, "a"))
        assert await counted(engine) == {"late": 1, "rare": 1}

    async def test_and_joins_another_when_it_dies_of_another_error(self, engine: Engine) -> None:
        await engine.retry(job_ref(REVIEWS, "a"))
        await engine.fail(await claim_one(engine), "rare")
        assert await counted(engine) == {"late": 1, "rare": 2}

    async def test_by_delete(self, engine: Engine) -> None:
        await engine.delete(job_ref(REVIEWS, "c"))
        assert await counted(engine) == {"late": 2}

    async def test_by_set(self, engine: Engine) -> None:
        await engine.set(REVIEWS, b"", id="b")
        assert await counted(engine) == {"late": 1, "rare": 1}

    async def test_by_trim(self, engine: Engine, clock: ManualClock) -> None:
        clock.advance(days(1))
        await engine.queues.trim(REVIEWS)
        assert await counted(engine) == {}

    async def test_but_stays_in_it_while_it_parks_its_lane(
        self, engine: Engine, clock: ManualClock
    ) -> None:
        await die(engine, "d", "parked", lane="x")
        clock.advance(days(2))
        await engine.queues.trim(REVIEWS)
        [left] = (await engine.inspect.dead_groups(REVIEWS)).groups
        assert (left.error, left.count) == ("parked", 1)
        assert left.first == left.last == clock.now

    async def test_which_is_removed_when_the_last_job_leaves(
        self, engine: Engine, deployment: Deployment
    ) -> None:
        for id in ("a", "b", "c"):
            await engine.delete(job_ref(REVIEWS, id))
        assert not [name for name in deployment.key_names() if "group" in name]


class TestMoreErrorsThanGroups:
    @pytest.fixture
    async def narrow(self, engine_url: str, clock: ManualClock) -> AsyncIterator[Engine]:
        """Allows two groups and the rest, instead of a hundred."""
        few = Scripts(lambda _, text: text.replace("ID_LEAST = 100,", "ID_LEAST = 2,"))
        assert few["fail"].source != Scripts()["fail"].source
        async with Engine(engine_url, clock=clock, scripts=few) as engine:
            yield engine

    async def test_are_counted_together_as_one_group(self, narrow: Engine) -> None:
        for id in "abcde":
            await die(narrow, id, f"error {id}")
        assert await counted(narrow) == {"error a": 1, "error b": 1, "": 3}
        groups = (await narrow.inspect.dead_groups(REVIEWS)).groups
        assert groups[0].group == "other"

    async def test_are_counted_together_in_one_call_too(self, narrow: Engine) -> None:
        await submit_ids(narrow, *"abcde")
        leases = await claim(narrow, 5)
        for lease in leases:
            await narrow.bury(lease, f"error {lease.id}")
        assert len(await counted(narrow)) == 3

    async def test_get_a_group_again_when_one_is_empty(self, narrow: Engine) -> None:
        for id in "abc":
            await die(narrow, id, f"error {id}")
        for id in "ac":
            await narrow.delete(job_ref(REVIEWS, id))
        await die(narrow, "d", "error d")
        assert await counted(narrow) == {"error b": 1, "error d": 1}


class TestDataOfReleasesWithoutErrorGroups:
    async def test_a_job_that_died_before_groups_existed_is_counted_apart(
        self, engine: Engine, deployment: Deployment
    ) -> None:
        await die(engine, "a", "old")
        await die(engine, "b", "new")
        group = (await engine.inspect.dead_groups(REVIEWS)).groups[0].group
        deployment.ask("UNLINK", f"{{{REVIEWS}}}:group:{group}")
        found = await engine.inspect.dead_groups(REVIEWS)
        assert (len(found.groups), found.ungrouped) == (1, 1)

    async def test_a_job_that_an_older_release_retried_is_counted_once(
        self, engine: Engine, engine_url: str, clock: ManualClock
    ) -> None:
        """That release knows no groups: it leaves the entry of the group, and the record still
        names it.
        """
        older = Scripts(lambda _, text: text.replace("if job.group then plan_group(job) end", ""))
        await die(engine, "a", "first")
        async with Engine(engine_url, clock=clock, scripts=older) as other:
            await other.retry(job_ref(REVIEWS, "a"))
        await engine.bury(await claim_one(engine), "second")
        assert await counted(engine) == {"second": 1}

    async def test_leftovers_of_a_group_are_removed_when_no_job_is_dead(
        self, engine: Engine, deployment: Deployment
    ) -> None:
        await die(engine, "a", "here")
        tag = f"{{{REVIEWS}}}"
        deployment.ask("HSET", f"{tag}:groups", "stale", "gone long ago")
        deployment.ask("ZADD", f"{tag}:group:stale", "1", "nobody")
        await engine.delete(job_ref(REVIEWS, "a"))
        assert not [name for name in deployment.key_names() if "group" in name]

    async def test_deleting_a_queue_removes_its_groups(
        self, engine: Engine, deployment: Deployment
    ) -> None:
        tag = f"{{{REVIEWS}}}"
        await engine.submit(REVIEWS, b"")
        await engine.complete(await claim_one(engine))
        deployment.ask("HSET", f"{tag}:groups", "stale", "gone long ago")
        deployment.ask("ZADD", f"{tag}:group:stale", "1", "nobody")
        assert await engine.queues.delete(REVIEWS)
        assert not [name for name in deployment.key_names() if "group" in name]


async def test_many_jobs_that_die_in_one_call_are_counted(engine: Engine) -> None:
    """Their records are written with one command, and so are their groups."""
    await engine.submit_many(REVIEWS, [new_job(b"", id=str(n)) for n in range(20)])
    leases = await claim(engine, 20)
    for lease in leases:
        await engine.bury(lease, f"number {lease.id} is too much")
    assert await counted(engine) == {"number # is too much": 20}
