"""Bad input: every invalid name, number, size and time is refused before it is sent."""

from collections.abc import Awaitable, Callable
from datetime import UTC, datetime, timedelta
from typing import Any

import pytest

from tests.spec.deployment import Deployment
from tests.spec.jobs_in_states import LEASE, REVIEWS, leased
from towpath.clock import days, seconds
from towpath.embedded import EmbeddedServer
from towpath.engine.engine import Engine
from towpath.engine.model import Complete, Fail, Lease, Release, Renew, job_ref, new_job
from towpath.engine.schedule import Every
from towpath.engine.states import State
from towpath.errors import InvalidInput, InvalidName, InvalidOption, PayloadTooLarge

BAD_QUEUES = [
    "", "Reviews", "_x", "-x", ".x", "a b", "a:b", "{a}", "a/b", "a\n", "a\x00", "ü", "x" * 65,
    7, None, b"reviews",
]  # fmt: skip
BAD_TEXTS = [
    "", "x" * 513, "ß" * 257, "a\nb", "a\x00b", "a\x7fb", "a\x85b", "\u2028", "\udcff",
    7, b"a",
]  # fmt: skip
NEW_YEAR = datetime(2026, 1, 1, tzinfo=UTC)
BAD_TIMES = [-seconds(1), days(40_000), -5, float("nan"), "5", "5 fortnights", None]


def named(value: object) -> str:
    return repr(value)[:20]


@pytest.fixture
def deployment(server: EmbeddedServer) -> Deployment:
    """One deployment is enough: these tests never reach Redis."""
    return Deployment.of(server)


@pytest.fixture
def nothing_sent(engine: Engine, deployment: Deployment) -> Callable[[], bool]:
    """Whether Redis has got no call since the test began."""
    before = deployment.calls("evalsha", "eval", "hset")
    return lambda: deployment.calls("evalsha", "eval", "hset") == before


NothingSent = Callable[[], bool]
Use = Callable[[Engine, Any], Awaitable[object]]


async def follow(engine: Engine, queue: Any) -> None:
    async with engine.events.follow(queue):
        pass


QUEUE_VERBS: dict[str, Use] = {
    "submit": lambda engine, q: engine.submit(q, b""),
    "submit_many": lambda engine, q: engine.submit_many(q, [new_job(b"")]),
    "set": lambda engine, q: engine.set(q, b"", id="a"),
    "set_many": lambda engine, q: engine.set_many(q, [new_job(b"")]),
    "move_many": lambda engine, q: engine.move_many(q, {"a": LEASE}),
    "claim": lambda engine, q: engine.claim(q, worker="anna", lease=LEASE),
    "exchange": lambda engine, q: engine.exchange(q, [], worker="anna", lease=LEASE, count=1),
    "pause": lambda engine, q: engine.queues.pause(q),
    "resume": lambda engine, q: engine.queues.resume(q),
    "promote": lambda engine, q: engine.queues.promote(q),
    "reap": lambda engine, q: engine.queues.reap(q),
    "trim": lambda engine, q: engine.queues.trim(q),
    "drop": lambda engine, q: engine.drop(q, "lane"),
    "fire": lambda engine, q: engine.schedules.fire_due(
        q, "nightly", [], after=None, upto=NEW_YEAR
    ),
    "delete_declared": lambda engine, q: engine.schedules.delete_declared(q, "nightly"),
    "schedules": lambda engine, q: engine.schedules.of(q),
    "schedules.set": lambda engine, q: engine.schedules.set(q, "nightly", Every(LEASE)),
    "schedules.get": lambda engine, q: engine.schedules.get(q, "nightly"),
    "list": lambda engine, q: engine.inspect.list(q, State.READY),
    "counts": lambda engine, q: engine.inspect.counts(q),
    "events": lambda engine, q: engine.events.list(q),
    "follow": follow,
    "options": lambda engine, q: engine.queues.options(q),
    "incarnation": lambda engine, q: engine.queues.incarnation(q),
}


class TestAQueueName:
    @pytest.mark.parametrize("verb", QUEUE_VERBS)
    async def test_is_checked_by_every_verb(
        self, engine: Engine, nothing_sent: NothingSent, verb: str
    ) -> None:
        with pytest.raises(InvalidName) as refusal:
            await QUEUE_VERBS[verb](engine, "no:queue")
        assert refusal.value.kind == "queue"
        assert nothing_sent()

    @pytest.mark.parametrize("queue", BAD_QUEUES, ids=named)
    async def test_that_breaks_the_rule_is_refused(
        self, engine: Engine, nothing_sent: NothingSent, queue: Any
    ) -> None:
        with pytest.raises(InvalidName):
            await engine.submit(queue, b"")
        assert nothing_sent()

    @pytest.mark.parametrize("queue", ["a", "9", "x" * 64, "a.b_c-d", "0-"])
    async def test_that_follows_the_rule_is_accepted(self, engine: Engine, queue: str) -> None:
        assert (await engine.submit(queue, b"")).job.queue == queue

    async def test_is_in_the_error_with_the_rule_and_a_remedy(self, engine: Engine) -> None:
        with pytest.raises(InvalidName, match="'No'") as refusal:
            await engine.submit("No", b"")
        assert (refusal.value.kind, refusal.value.value) == ("queue", "No")
        assert refusal.value.code == "invalid_name"
        assert refusal.value.rule
        assert refusal.value.remedy

    async def test_of_any_length_makes_a_short_message(self, engine: Engine) -> None:
        with pytest.raises(InvalidName) as refusal:
            await engine.submit("x" * 1_000_000, b"")
        assert len(str(refusal.value)) < 300


TEXT_USES: dict[str, Use] = {
    "id": lambda engine, value: engine.submit(REVIEWS, b"", id=value),
    "id of a set": lambda engine, value: engine.set(REVIEWS, b"", id=value),
    "id of a move": lambda engine, value: engine.move_many(REVIEWS, {value: LEASE}),
    "lane": lambda engine, value: engine.submit(REVIEWS, b"", lane=value),
    "worker": lambda engine, value: engine.claim(REVIEWS, worker=value, lease=LEASE),
    "lane of a claim": lambda engine, value: engine.claim(
        REVIEWS, worker="anna", lease=LEASE, lane=value
    ),
    "selector": lambda engine, value: engine.submit(REVIEWS, b"", selector=value),
    "selector of a claim": lambda engine, value: engine.claim(
        REVIEWS, worker="anna", lease=LEASE, selectors=[value]
    ),
    "lane of a drop": lambda engine, value: engine.drop(REVIEWS, value),
    "lane of a list": lambda engine, value: engine.inspect.list(REVIEWS, State.WAITING, lane=value),
}


class TestTheNamesOfJobsLanesAndWorkers:
    @pytest.mark.parametrize("text", BAD_TEXTS, ids=named)
    @pytest.mark.parametrize("use", TEXT_USES)
    async def test_that_break_the_rule_are_refused(
        self, engine: Engine, nothing_sent: NothingSent, use: str, text: Any
    ) -> None:
        with pytest.raises(InvalidName):
            await TEXT_USES[use](engine, text)
        assert nothing_sent()

    def test_in_a_reference_follow_the_rule_too(self) -> None:
        with pytest.raises(InvalidName):
            job_ref("No", "a")
        with pytest.raises(InvalidName):
            job_ref(REVIEWS, "")


class TestANewJob:
    @pytest.mark.parametrize("priority", [-1, 101, 50.5, 50.0, "50", None, True], ids=named)
    def test_has_a_priority_from_0_to_100(self, priority: Any) -> None:
        with pytest.raises(InvalidOption, match="priority"):
            new_job(b"", priority=priority)

    @pytest.mark.parametrize("attempts", [0, -1, 1_000_001, 1.0, "3", True], ids=named)
    def test_has_at_least_one_attempt(self, attempts: Any) -> None:
        with pytest.raises(InvalidOption, match="max_attempts"):
            new_job(b"", max_attempts=attempts)

    @pytest.mark.parametrize("delay", BAD_TIMES, ids=named)
    def test_has_a_delay_that_is_a_duration(self, delay: Any) -> None:
        with pytest.raises(InvalidOption, match="delay"):
            new_job(b"", delay=delay)

    @pytest.mark.parametrize("time", [*BAD_TIMES[:-1], timedelta(0)], ids=named)
    def test_has_a_lease_of_at_least_a_millisecond(self, time: Any) -> None:
        with pytest.raises(InvalidOption, match="lease"):
            new_job(b"", lease=time)

    @pytest.mark.parametrize("time", BAD_TIMES[:-1], ids=named)
    def test_has_a_retention_that_is_a_duration(self, time: Any) -> None:
        with pytest.raises(InvalidOption, match="keep"):
            new_job(b"", keep=time)

    @pytest.mark.parametrize(
        "due",
        [
            datetime(2026, 1, 1),  # noqa: DTZ001 -- the very mistake
            datetime(1969, 12, 31, tzinfo=UTC),
            datetime(2300, 1, 1, tzinfo=UTC),
            1767225600000,
            "2026-01-01",
        ],
        ids=named,
    )
    def test_has_a_due_time_with_a_time_zone(self, due: Any) -> None:
        with pytest.raises(InvalidOption, match="due"):
            new_job(b"", due=due)

    @pytest.mark.parametrize("payload", ["text", None, 7, bytearray(b"x"), [b"x"]], ids=named)
    def test_has_a_payload_of_bytes(self, payload: Any) -> None:
        with pytest.raises(InvalidOption, match="payload"):
            new_job(payload)

    @pytest.mark.parametrize("retry", ["soon", 3, seconds(3)], ids=named)
    def test_has_a_retry_policy_of_a_known_class(self, retry: Any) -> None:
        """Otherwise only the worker that claims the job would notice, too late."""
        with pytest.raises(InvalidOption, match="retry"):
            new_job(b"", retry=retry)


NUMBERS: dict[str, Use] = {
    "count": lambda engine, value: engine.claim(REVIEWS, worker="anna", lease=LEASE, count=value),
    "count of an exchange": lambda engine, value: engine.exchange(
        REVIEWS, [], worker="anna", lease=LEASE, count=value
    ),
    "promote": lambda engine, value: engine.queues.promote(REVIEWS, value),
    "reap": lambda engine, value: engine.queues.reap(REVIEWS, value),
    "trim": lambda engine, value: engine.queues.trim(REVIEWS, value),
    "size of a list": lambda engine, value: engine.inspect.list(REVIEWS, State.READY, size=value),
    "size of events": lambda engine, value: engine.events.list(REVIEWS, size=value),
}


class TestANumberArgument:
    @pytest.mark.parametrize("number", [-1, 1001, 1.5, "1", None, True], ids=named)
    @pytest.mark.parametrize("use", NUMBERS)
    async def test_is_whole_and_in_its_range(
        self, engine: Engine, nothing_sent: NothingSent, use: str, number: Any
    ) -> None:
        with pytest.raises(InvalidOption):
            await NUMBERS[use](engine, number)
        assert nothing_sent()


TIMES: dict[str, Use] = {
    "lease": lambda engine, value: engine.claim(REVIEWS, worker="anna", lease=value),
    "wait": lambda engine, value: engine.claim(REVIEWS, worker="anna", lease=LEASE, wait=value),
    "wait for a lane": lambda engine, value: engine.claim(
        REVIEWS, worker="anna", lease=LEASE, lane="octo", wait=value
    ),
    "lease of an exchange": lambda engine, value: engine.exchange(
        REVIEWS, [], worker="anna", lease=value, count=1
    ),
}


class TestATimeArgument:
    @pytest.mark.parametrize("time", BAD_TIMES, ids=named)
    @pytest.mark.parametrize("use", TIMES)
    async def test_is_a_duration_in_its_range(
        self, engine: Engine, nothing_sent: NothingSent, use: str, time: Any
    ) -> None:
        with pytest.raises(InvalidOption):
            await TIMES[use](engine, time)
        assert nothing_sent()

    async def test_of_waiting_is_refused_in_a_claim_from_one_lane(self, engine: Engine) -> None:
        with pytest.raises(InvalidOption, match="wait"):
            await engine.claim(REVIEWS, worker="a", lease=LEASE, lane="octo", wait=seconds(1))


SETTLEMENTS: dict[str, Callable[[Lease], Any]] = {
    "renewed for no time": lambda lease: Renew(lease, seconds(0)),
    "renewed for a number without a unit": lambda lease: Renew(lease, "30"),  # pyright: ignore[reportArgumentType] -- the mistake
    "failed without a reason": lambda lease: Fail(lease, ""),
    "failed for bytes": lambda lease: Fail(lease, b"503"),  # pyright: ignore[reportArgumentType] -- the mistake
    "failed until the past": lambda lease: Fail(lease, "503", -seconds(1)),
    "released until the past": lambda lease: Release(lease, -seconds(1)),
    "completed with text": lambda lease: Complete(lease, "done"),  # pyright: ignore[reportArgumentType] -- the mistake
    "completed with too much": lambda lease: Complete(lease, b"x" * (1024 * 1024 + 1)),
}


class TestASettlement:
    @pytest.mark.parametrize("kind", SETTLEMENTS)
    async def test_that_is_invalid_is_refused_and_the_lease_stays(
        self, engine: Engine, deployment: Deployment, kind: str
    ) -> None:
        lease = await leased(engine)
        before = deployment.dump()
        with pytest.raises(InvalidInput) as refusal:
            await engine.settle([SETTLEMENTS[kind](lease)])
        assert isinstance(refusal.value, InvalidOption | PayloadTooLarge)
        assert deployment.dump() == before

    async def test_of_progress_must_be_bytes(self, engine: Engine) -> None:
        lease = await leased(engine)
        text: Any = "50 %"
        with pytest.raises(InvalidOption, match="progress"):
            await engine.progress(lease, text)
