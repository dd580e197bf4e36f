"""A small payload is stored in the job's record, a larger one under a key of its own; readers see
no difference.
"""

import re

import pytest

from tests.queue_numbers import set_numbers
from tests.spec.deployment import Deployment
from tests.spec.jobs_in_states import LEASE, REVIEWS, claim_one
from towpath.clock import ManualClock, hours, instant_ms, minutes, seconds
from towpath.embedded.process import items
from towpath.engine.engine import Engine
from towpath.engine.keys import keys_of
from towpath.engine.model import Call, NewJob, Submitted, job_ref, new_job
from towpath.engine.options import QueueOptions
from towpath.engine.script import lua_text
from towpath.engine.states import State
from towpath.ids import QueueName, job_id

[BOUND] = map(int, re.findall(r"SMALL = (\d+)", lua_text("head")))
SIZES = (0, 1, 100, BOUND, BOUND + 1, 5000)
KEYS = keys_of(QueueName(REVIEWS))
KEEPING = QueueOptions(keep=hours(1))
REF = job_ref(REVIEWS, "a")
SMALL, LARGE = b"s" * BOUND, b"l" * (BOUND + 1)

sizes = pytest.mark.parametrize("size", SIZES)
plain_and_not = pytest.mark.parametrize("priority", [None, 90])


def payload_of(size: int) -> bytes:
    """Any bytes, including those that end names and maps in a record."""
    return (bytes(range(256)) * (size // 256 + 1))[:size]


def job_a(payload: bytes, priority: int | None) -> NewJob:
    more = {"priority": priority} if priority else None
    return NewJob(job_id("a"), payload, more)


class TestAPayload:
    def test_is_stored_in_the_record_up_to_half_a_kilobyte(self) -> None:
        assert 256 <= BOUND <= 1024

    @sizes
    @plain_and_not
    async def test_has_a_key_of_its_own_only_if_it_is_large(
        self, engine: Engine, deployment: Deployment, size: int, priority: int | None
    ) -> None:
        payload = payload_of(size)
        await engine.submit_many(REVIEWS, [job_a(payload, priority)])
        stored = deployment.ask("GET", KEYS.job("a"))
        assert isinstance(stored, bytes)
        assert stored.endswith(payload) is (size <= BOUND)
        assert deployment.ask("EXISTS", KEYS.load("a")) == int(size > BOUND)

    @sizes
    @plain_and_not
    async def test_is_given_to_every_attempt_and_every_reader(
        self, engine: Engine, clock: ManualClock, size: int, priority: int | None
    ) -> None:
        await engine.queues.configure(REVIEWS, KEEPING)
        payload = payload_of(size)
        await engine.submit_many(REVIEWS, [job_a(payload, priority)])
        lease = await claim_one(engine)
        assert lease.payload == payload
        assert await engine.release(lease) is State.READY
        lease = await claim_one(engine)
        assert (lease.payload, lease.attempt) == (payload, 1)
        clock.advance(LEASE)
        await engine.queues.reap(REVIEWS)
        lease = await claim_one(engine)
        assert (lease.payload, lease.attempt) == (payload, 2)
        await engine.progress(lease, b"half")
        await engine.complete(lease, b"result")
        job = await engine.inspect.job(REF)
        assert (job.payload, job.result, job.state) == (payload, b"result", State.DONE)
        [again] = await engine.submit_many(REVIEWS, [job_a(payload, priority)])
        assert isinstance(again, Submitted)
        assert (again.existed, again.same_payload) == (True, True)
        [differs] = await engine.submit_many(REVIEWS, [job_a(payload + b"x", priority)])
        assert isinstance(differs, Submitted)
        assert (differs.existed, differs.same_payload) == (True, False)

    @plain_and_not
    async def test_of_each_of_many_jobs_in_one_claim_is_its_own(
        self, engine: Engine, priority: int | None
    ) -> None:
        """The large ones are read in portions; one answer has room for one of any size here."""
        await engine.queues.configure(REVIEWS, QueueOptions(max_payload=8 * 1024 * 1024))
        more = {"priority": priority} if priority else None
        payloads = {f"{n:02}": bytes([n]) * (BOUND + (n % 3)) for n in range(20)}
        jobs = [NewJob(job_id(id), payload, more) for id, payload in payloads.items()]
        await engine.submit_many(REVIEWS, jobs)
        leases = await engine.claim(REVIEWS, worker="anna", lease=LEASE, count=20)
        assert {lease.id: lease.payload for lease in leases} == payloads

    @sizes
    async def test_is_in_a_repeated_claim(self, engine: Engine, size: int) -> None:
        await engine.submit(REVIEWS, payload_of(size), id="a")
        call = Call("worker-1", 7)
        [first] = await engine.claim(REVIEWS, worker="anna", lease=LEASE, call=call)
        [again] = await engine.claim(REVIEWS, worker="anna", lease=LEASE, call=call)
        assert first.payload == again.payload == payload_of(size)

    @sizes
    async def test_stays_with_a_dead_job_that_is_retried(self, engine: Engine, size: int) -> None:
        await engine.submit(REVIEWS, payload_of(size), id="a")
        await engine.bury(await claim_one(engine), "no")
        assert (await engine.inspect.job(REF)).payload == payload_of(size)
        await engine.retry(REF)
        assert (await claim_one(engine)).payload == payload_of(size)

    @sizes
    @plain_and_not
    async def test_leaves_nothing_behind(
        self, engine: Engine, deployment: Deployment, size: int, priority: int | None
    ) -> None:
        await engine.submit_many(REVIEWS, [job_a(payload_of(size), priority)])
        await engine.complete(await claim_one(engine))
        left = {KEYS.job("a"), KEYS.load("a"), KEYS.lock("a")} & set(deployment.key_names())
        assert left == set()

    @sizes
    @plain_and_not
    async def test_of_a_kept_job_expires_with_the_job(
        self, engine: Engine, deployment: Deployment, size: int, priority: int | None
    ) -> None:
        await engine.queues.configure(REVIEWS, KEEPING)
        await engine.submit_many(REVIEWS, [job_a(payload_of(size), priority)])
        await engine.complete(await claim_one(engine))
        for key in {KEYS.job("a"), KEYS.load("a")} & set(deployment.key_names()):
            left = deployment.ask("PTTL", key)
            assert isinstance(left, int)
            assert 0 < left <= 3_600_000


class TestAPayloadThatReplacesAnother:
    @pytest.mark.parametrize(
        "payloads",
        [(SMALL, LARGE), (LARGE, SMALL), (LARGE, SMALL, LARGE), (SMALL, LARGE, SMALL)],
        ids=["grows", "shrinks", "shrinks and grows", "grows and shrinks"],
    )
    @pytest.mark.parametrize("at_once", [False, True], ids=["one by one", "in one call"])
    async def test_is_the_only_one_that_is_stored(
        self, engine: Engine, deployment: Deployment, payloads: tuple[bytes, ...], *, at_once: bool
    ) -> None:
        first, *others = [new_job(payload, id="a") for payload in payloads]
        await engine.set_many(REVIEWS, [first])
        for jobs in [others] if at_once else [[job] for job in others]:
            await engine.set_many(REVIEWS, jobs)
        is_large = len(payloads[-1]) > BOUND
        assert deployment.ask("EXISTS", KEYS.load("a")) == int(is_large)
        assert (await claim_one(engine)).payload == payloads[-1]

    async def test_of_a_job_that_is_no_longer_kept_leaves_no_key(
        self, engine: Engine, deployment: Deployment, clock: ManualClock
    ) -> None:
        await engine.queues.configure(REVIEWS, QueueOptions(keep=minutes(5)))
        await engine.submit_many(REVIEWS, [job_a(LARGE, None)])
        await engine.complete(await claim_one(engine), b"result")
        clock.advance(minutes(5))
        await engine.submit_many(REVIEWS, [job_a(SMALL, None)])
        assert deployment.ask("EXISTS", KEYS.load("a"), KEYS.result("a")) == 0
        assert deployment.ask("PTTL", KEYS.job("a")) == -1
        assert (await claim_one(engine)).payload == SMALL


class TestATickThatIsAheadOfTheClock:
    """This happens after very many submits at once, or when the clock was set back."""

    @pytest.mark.parametrize(
        "ahead", [0, 1, 2**24 - 3, 2**24 - 2, 2**24 - 1, 2**24, 2**24 + 1, 86_400_000 * 30]
    )
    async def test_leaves_the_time_of_submission_as_it_was(
        self, engine: Engine, deployment: Deployment, clock: ManualClock, ahead: int
    ) -> None:
        await engine.queues.configure(REVIEWS, KEEPING)
        set_numbers(deployment.ask, KEYS.meta, tick=instant_ms("now", clock.now) + ahead)
        submitted_at, ids = clock.now, ["plain", "said", "set"]
        await engine.submit_many(REVIEWS, [NewJob(job_id("plain"), b"1")])
        await engine.submit_many(REVIEWS, [new_job(b"2", id="said")])
        await engine.set(REVIEWS, b"3", id="set")
        clock.advance(seconds(3))
        for id in ids:
            lease = await claim_one(engine)
            assert (lease.id, lease.submitted_at) == (id, submitted_at)
            await engine.release(lease)
            again = await claim_one(engine)
            assert (again.id, again.submitted_at) == (id, submitted_at)
            await engine.complete(again)
            assert (await engine.inspect.job(again.job)).submitted_at == submitted_at


class TestListsAndSearches:
    async def test_read_no_payloads(self, engine: Engine) -> None:
        """What a script answers is what is sent over the connection."""
        await engine.queues.configure(REVIEWS, KEEPING)
        jobs = [
            NewJob(job_id("plain"), b"SECRET-plain"),
            new_job(b"SECRET-said", id="said", priority=90),
            new_job(b"SECRET-dead", id="dead", priority=99),
        ]
        await engine.submit_many(REVIEWS, jobs)
        await engine.bury(await claim_one(engine), "no good")
        store = engine._store  # noqa: SLF001  # pyright: ignore[reportPrivateUsage] -- the script's answer
        pages = [
            await store.read("list", QueueName(REVIEWS), state, "", "", "", "", 10)
            for state in ("ready", "dead")
        ]
        pages.append(await store.read("search", QueueName(REVIEWS), "good", 0, 10))
        assert [len(items(page[0])) for page in pages] == [2, 1, 1]
        assert b"SECRET" not in repr(pages).encode()
        [dead] = (await engine.inspect.list(REVIEWS, State.DEAD)).jobs
        assert (dead.reason, dead.attempts) == ("no good", 1)
