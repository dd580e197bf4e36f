"""submit: accept a job, once per id."""

import pytest

from tests.spec.deployment import Deployment
from tests.spec.jobs_in_states import REVIEWS, claim, claim_one, ids_of, leased, submit_ids
from towpath.clock import ManualClock, hours, milliseconds, minutes, seconds
from towpath.engine.engine import LARGEST_BATCH, Engine
from towpath.engine.model import HIGH, Submitted, job_ref, new_job
from towpath.engine.options import QueueOptions
from towpath.engine.retry import Fixed
from towpath.engine.states import State
from towpath.errors import JobNotFound, PayloadTooLarge
from towpath.ids import QueueName

MEBIBYTE = 1024 * 1024


class TestSubmittingAJob:
    async def test_makes_it_ready(self, engine: Engine) -> None:
        submitted = await engine.submit(REVIEWS, b"thumbnail")
        assert submitted.state is State.READY
        assert not submitted.existed
        assert await engine.inspect.state(submitted.job) is State.READY

    async def test_generates_an_id(self, engine: Engine) -> None:
        one = await engine.submit(REVIEWS, b"same")
        two = await engine.submit(REVIEWS, b"same")
        assert one.id != two.id
        assert (await engine.inspect.counts(REVIEWS)).ready == 2

    async def test_accepts_an_id_of_the_caller(self, engine: Engine) -> None:
        submitted = await engine.submit(REVIEWS, b"", id="github:octo/cat#7")
        assert submitted.job == job_ref(REVIEWS, "github:octo/cat#7")

    @pytest.mark.parametrize("payload", [b"", b"\x00\xff\n\r\n", bytes(range(256)) * 100])
    async def test_keeps_every_byte_of_the_payload(self, engine: Engine, payload: bytes) -> None:
        submitted = await engine.submit(REVIEWS, payload)
        assert (await engine.inspect.job(submitted.job)).payload == payload
        assert (await claim_one(engine)).payload == payload

    async def test_keeps_all_its_options(self, engine: Engine, clock: ManualClock) -> None:
        submitted = await engine.submit(
            REVIEWS, b"x", priority=HIGH, delay=minutes(1), lane="octo/cat", max_attempts=2
        )
        job = await engine.inspect.job(submitted.job)
        assert (job.priority, job.lane, job.max_attempts) == (HIGH, "octo/cat", 2)
        assert job.submitted_at == clock.now
        assert job.due_at == clock.now + minutes(1)
        assert (job.attempts, job.worker, job.token, job.ended_at) == (0, None, None, None)

    async def test_tells_the_worker_its_own_limits(self, engine: Engine) -> None:
        policy = Fixed(seconds(3))
        await engine.submit(REVIEWS, b"", max_attempts=2, retry=policy, lane="a", priority=7)
        lease = await claim_one(engine)
        assert (lease.max_attempts, lease.retry) == (2, policy)
        assert (lease.lane, lease.priority) == ("a", 7)

    async def test_creates_a_queue_with_the_default_options(self, engine: Engine) -> None:
        await engine.submit("new", b"")
        assert await engine.queues.list() == {QueueName("new"): QueueOptions()}

    @pytest.mark.parametrize("id", ["{b}race", "a:b#c d", "jób·ß·日本", "'\"\\%s", "x" * 512])
    async def test_accepts_ids_and_lanes_that_look_like_keys(self, engine: Engine, id: str) -> None:
        await engine.submit(REVIEWS, b"", id=id, lane=id)
        lease = await claim_one(engine, lane=id)
        assert (lease.id, lease.lane) == (id, id)
        await engine.complete(lease)

    async def test_stores_every_key_of_the_queue_under_its_tag(
        self, engine: Engine, deployment: Deployment
    ) -> None:
        """One tag is one slot, so every script works on a cluster."""
        await engine.queues.configure(REVIEWS, QueueOptions(keep=hours(1)))
        await submit_ids(engine, "a", "b", lane="x")
        await engine.submit(REVIEWS, b"", delay=seconds(9), id="{c}")
        await engine.complete(await claim_one(engine))
        assert {key for key in deployment.key_names() if not key.startswith("{reviews}:")} == {
            "towpath:queues"
        }


class TestSubmittingTheSameIdTwice:
    async def test_makes_one_job(self, engine: Engine) -> None:
        first = await engine.submit(REVIEWS, b"x", id="pr-7")
        again = await engine.submit(REVIEWS, b"x", id="pr-7")
        assert again == Submitted(first.job, State.READY, existed=True, same_payload=True)
        assert (await engine.inspect.counts(REVIEWS)).ready == 1

    async def test_makes_one_job_within_a_batch_too(self, engine: Engine) -> None:
        batch = [new_job(b"x", id="pr-7"), new_job(b"y", id="pr-7")]
        answers = await engine.submit_many(REVIEWS, batch)
        ref = job_ref(REVIEWS, "pr-7")
        assert answers == [
            Submitted(ref, State.READY),
            Submitted(ref, State.READY, existed=True, same_payload=False),
        ]

    async def test_tells_whether_the_payload_is_the_same(self, engine: Engine) -> None:
        await engine.submit(REVIEWS, b"first", id="pr-7")
        again = await engine.submit(REVIEWS, b"other", id="pr-7")
        assert again.same_payload is False
        assert (await engine.inspect.job(again.job)).payload == b"first"

    async def test_keeps_everything_of_the_first_job(self, engine: Engine) -> None:
        await engine.submit(REVIEWS, b"x", id="pr-7", priority=10)
        again = await engine.submit(REVIEWS, b"x", id="pr-7", priority=90, delay=hours(1))
        assert again.state is State.READY
        assert (await engine.inspect.job(again.job)).priority == 10

    async def test_returns_the_state_the_job_is_in(self, engine: Engine) -> None:
        await leased(engine, "pr-7")
        assert (await engine.submit(REVIEWS, b"", id="pr-7")).state is State.LEASED

    async def test_returns_the_state_of_a_job_that_is_kept_after_its_end(
        self, engine: Engine
    ) -> None:
        await engine.queues.configure(REVIEWS, QueueOptions(keep=hours(1)))
        await engine.complete(await leased(engine, "pr-7"))
        again = await engine.submit(REVIEWS, b"pr-7", id="pr-7")
        assert (again.existed, again.state, again.same_payload) == (True, State.DONE, True)

    async def test_adds_nothing_while_the_id_is_remembered(
        self, engine: Engine, clock: ManualClock
    ) -> None:
        await engine.complete(await leased(engine, "pr-7"))
        clock.advance(minutes(59))
        again = await engine.submit(REVIEWS, b"x", id="pr-7")
        assert (again.existed, again.state, again.same_payload) == (True, State.GONE, None)
        assert (await engine.inspect.counts(REVIEWS)).ready == 0

    async def test_makes_a_new_job_once_the_id_is_forgotten(
        self, engine: Engine, clock: ManualClock
    ) -> None:
        await engine.complete(await leased(engine, "pr-7"))
        clock.advance(hours(1))
        again = await engine.submit(REVIEWS, b"x", id="pr-7")
        assert (again.existed, again.state) == (False, State.READY)

    async def test_remembers_the_id_from_the_end_of_the_retention(
        self, engine: Engine, clock: ManualClock
    ) -> None:
        await engine.queues.configure(REVIEWS, QueueOptions(keep=hours(2)))
        await engine.complete(await leased(engine, "pr-7"))
        clock.advance(hours(3) - milliseconds(1))
        assert (await engine.submit(REVIEWS, b"", id="pr-7")).existed
        clock.advance(milliseconds(1))
        assert not (await engine.submit(REVIEWS, b"", id="pr-7")).existed

    async def test_starts_the_new_job_without_traces_of_the_first(
        self, engine: Engine, clock: ManualClock
    ) -> None:
        await engine.queues.configure(REVIEWS, QueueOptions(keep=hours(1), remember=seconds(0)))
        await engine.complete(await leased(engine, "pr-7"), b"result")
        clock.advance(hours(1))
        again = await engine.submit(REVIEWS, b"second", id="pr-7")
        job = await engine.inspect.job(again.job)
        assert (job.payload, job.attempts, job.result) == (b"second", 0, None)
        assert (job.token, job.ended_at) == (None, None)
        await engine.queues.trim(REVIEWS)
        assert (await claim_one(engine)).payload == b"second"


class TestSubmittingManyJobs:
    async def test_answers_for_each_in_order(self, engine: Engine) -> None:
        jobs = [new_job(b"", id=f"{n}", delay=seconds(n)) for n in range(3)]
        answers = await engine.submit_many(REVIEWS, jobs)
        assert answers == [
            Submitted(job_ref(REVIEWS, "0"), State.READY),
            Submitted(job_ref(REVIEWS, "1"), State.DELAYED),
            Submitted(job_ref(REVIEWS, "2"), State.DELAYED),
        ]

    async def test_is_one_call_up_to_the_largest_batch(
        self, engine: Engine, deployment: Deployment
    ) -> None:
        await engine.submit(REVIEWS, b"warm")
        before = deployment.calls("evalsha", "eval")
        await engine.submit_many(REVIEWS, [new_job(b"") for _ in range(LARGEST_BATCH)])
        assert deployment.calls("evalsha", "eval") - before == 1

    async def test_takes_more_than_the_largest_batch(self, engine: Engine) -> None:
        jobs = [new_job(b"") for _ in range(LARGEST_BATCH + 1)]
        answers = await engine.submit_many(REVIEWS, jobs)
        assert [answer.id for answer in answers if isinstance(answer, Submitted)] == [
            job.id for job in jobs
        ]
        assert (await engine.inspect.counts(REVIEWS)).ready == LARGEST_BATCH + 1

    async def test_is_several_calls_if_the_jobs_are_large(
        self, engine: Engine, deployment: Deployment
    ) -> None:
        await engine.queues.configure(REVIEWS, QueueOptions(max_payload=4 * MEBIBYTE))
        before = deployment.calls("evalsha")
        await engine.submit_many(REVIEWS, [new_job(bytes(4 * MEBIBYTE)) for _ in range(3)])
        assert deployment.calls("evalsha") - before == 2

    async def test_without_jobs_does_nothing(self, engine: Engine) -> None:
        assert await engine.submit_many(REVIEWS, []) == []

    async def test_refuses_a_job_that_is_too_large_and_accepts_the_others(
        self, engine: Engine
    ) -> None:
        await engine.queues.configure(REVIEWS, QueueOptions(max_payload=3))
        jobs = [new_job(b"abc"), new_job(b"abcd"), new_job(b"ab")]
        first, second, third = await engine.submit_many(REVIEWS, jobs)
        assert isinstance(second, PayloadTooLarge)
        assert (second.size, second.limit) == (4, 3)
        assert [answer.job.id for answer in (first, third) if isinstance(answer, Submitted)] == [
            jobs[0].id,
            jobs[2].id,
        ]
        assert (await engine.inspect.counts(REVIEWS)).ready == 2

    async def test_keeps_the_order_of_each_lane(self, engine: Engine) -> None:
        jobs = [new_job(b"", id=f"{n}", lane="a") for n in range(3)]
        answers = await engine.submit_many(REVIEWS, jobs)
        states = [answer.state for answer in answers if isinstance(answer, Submitted)]
        assert states == [State.READY, State.WAITING, State.WAITING]


class TestARedisThatForgot:
    async def test_the_scripts_gets_them_again(
        self, engine: Engine, deployment: Deployment
    ) -> None:
        await submit_ids(engine, "a")
        for master in deployment.masters:
            master.ask("SCRIPT", "FLUSH")
        await submit_ids(engine, "b")
        assert ids_of(await claim(engine, 2)) == ["a", "b"]

    async def test_everything_accepts_jobs_again(
        self, engine: Engine, deployment: Deployment
    ) -> None:
        lease = await leased(engine, "a")
        deployment.flush()
        assert await claim(engine) == []
        with pytest.raises(JobNotFound):
            await engine.complete(lease)
        await submit_ids(engine, "a")


class TestAGeneratedId:
    async def test_is_not_remembered(self, engine: Engine) -> None:
        """Nobody else knows it, so nobody can submit it again."""
        await engine.submit(REVIEWS, b"")
        await engine.complete(await claim_one(engine))
        assert (await engine.inspect.counts(REVIEWS)).remembered == 0

    async def test_keeps_the_order_of_submission(self, engine: Engine) -> None:
        submitted = [(await engine.submit(REVIEWS, b"")).id for _ in range(5)]
        leases = await engine.claim(REVIEWS, worker="anna", lease=seconds(30), count=5)
        assert ids_of(leases) == submitted
