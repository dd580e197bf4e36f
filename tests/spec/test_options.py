"""The options of a queue: stored at its first use, and the same for every process."""

import asyncio
import re
from collections.abc import Callable, Coroutine
from typing import Any, cast

import msgspec
import pytest

from tests.blocking.engine_without_loop import engine_here
from tests.spec.deployment import Deployment
from tests.spec.jobs_in_states import (
    REVIEWS,
    buried,
    claim,
    claim_one,
    leased,
    submit_ids,
)
from towpath.clock import ZERO, ManualClock, days, hours, minutes, seconds
from towpath.engine.blocking import run_to_end
from towpath.engine.codec import pack, unpack_raw
from towpath.engine.engine import Engine
from towpath.engine.keys import REGISTRY, keys_of
from towpath.engine.model import Call, Submitted, new_job
from towpath.engine.options import (
    LARGEST_PAYLOAD,
    SCRIPTED,
    EventPolicy,
    LanePolicy,
    QueueOptions,
    ScriptedOptions,
    version_of,
)
from towpath.engine.retry import Exponential, Fixed, Listed, Never, RetryPolicy
from towpath.engine.states import State
from towpath.errors import (
    InvalidOption,
    PayloadTooLarge,
    QueueDiffers,
    QueueFull,
    RetryAdvice,
)
from towpath.ids import QueueName

EVERY_OPTION = QueueOptions(
    max_attempts=2,
    retry=Exponential(first=seconds(2), factor=1.5, longest=minutes(3), jitter=0.25),
    lanes=LanePolicy.SKIP,
    keep=hours(1),
    keep_most=10,
    keep_dead=days(2),
    keep_dead_most=20,
    remember=minutes(5),
    remember_most=30,
    max_length=40,
    max_payload=50,
    events_most=60,
)


class TestConfiguring:
    async def test_sets_the_options_at_the_first_use(self, engine: Engine) -> None:
        await engine.queues.configure(REVIEWS, EVERY_OPTION)
        assert await engine.queues.options(REVIEWS) == EVERY_OPTION

    async def test_is_seen_by_every_engine(self, engine: Engine, other_engine: Engine) -> None:
        await engine.queues.configure(REVIEWS, EVERY_OPTION)
        assert await other_engine.queues.options(REVIEWS) == EVERY_OPTION

    async def test_with_the_same_options_again_changes_nothing(
        self, engine: Engine, other_engine: Engine
    ) -> None:
        for caller in (engine, other_engine, engine):
            await caller.queues.configure(REVIEWS, EVERY_OPTION)

    async def test_with_other_options_is_refused_and_names_the_differences(
        self, engine: Engine, other_engine: Engine
    ) -> None:
        await engine.queues.configure(REVIEWS, QueueOptions(max_attempts=3, keep=hours(1)))
        with pytest.raises(QueueDiffers) as refusal:
            await other_engine.queues.configure(
                REVIEWS, QueueOptions(max_attempts=4, keep=hours(1))
            )
        assert re.search(r"max_attempts\b.*\b3\b.*\b4\b", refusal.value.differences)
        assert "keep" not in refusal.value.differences
        assert "reconfigure" in refusal.value.remedy
        assert (await engine.queues.options(REVIEWS)).max_attempts == 3

    async def test_after_a_first_use_without_options_is_refused(self, engine: Engine) -> None:
        """The first submit gave the queue the defaults."""
        await submit_ids(engine, "a")
        with pytest.raises(QueueDiffers):
            await engine.queues.configure(REVIEWS, EVERY_OPTION)

    @pytest.mark.parametrize(
        "policy", [Exponential(), Fixed(seconds(3)), Listed((seconds(1), minutes(2))), Never()]
    )
    async def test_keeps_every_retry_policy(
        self, engine: Engine, other_engine: Engine, policy: Any
    ) -> None:
        await engine.queues.configure(REVIEWS, QueueOptions(retry=policy))
        assert (await other_engine.queues.options(REVIEWS)).retry == policy

    async def test_is_repeated_after_redis_lost_everything(
        self, engine: Engine, deployment: Deployment
    ) -> None:
        await engine.queues.configure(REVIEWS, EVERY_OPTION)
        deployment.flush()
        await submit_ids(engine, "a")
        async with Engine(deployment.url) as later:
            assert await later.queues.options(REVIEWS) == EVERY_OPTION


class TestReconfiguring:
    async def test_changes_the_options_for_everybody(
        self, engine: Engine, deployment: Deployment
    ) -> None:
        await engine.queues.configure(REVIEWS, QueueOptions())
        await engine.queues.reconfigure(REVIEWS, EVERY_OPTION)
        assert await engine.queues.options(REVIEWS) == EVERY_OPTION
        async with Engine(deployment.url) as later:
            assert await later.queues.options(REVIEWS) == EVERY_OPTION
            assert (await later.queues.list()).popitem()[1] == EVERY_OPTION

    async def test_takes_effect_at_once_for_existing_jobs(self, engine: Engine) -> None:
        lease = await leased(engine)
        await engine.queues.reconfigure(REVIEWS, QueueOptions(max_attempts=1))
        assert await engine.fail(lease, "503") is State.DEAD

    async def test_takes_effect_in_an_engine_that_used_the_queue_before(
        self, engine: Engine, other_engine: Engine
    ) -> None:
        await submit_ids(other_engine, "a")
        await engine.queues.reconfigure(REVIEWS, QueueOptions(max_payload=3, retry=Fixed(hours(7))))
        assert (await other_engine.queues.options(REVIEWS)).max_payload == 3

    async def test_limits_payloads_in_an_engine_that_used_the_queue_before(
        self, engine: Engine, other_engine: Engine
    ) -> None:
        await submit_ids(other_engine, "a")
        await engine.queues.reconfigure(REVIEWS, QueueOptions(max_payload=3))
        with pytest.raises(PayloadTooLarge):
            await other_engine.submit(REVIEWS, b"four")

    async def test_changes_the_retries_of_an_engine_that_used_the_queue_before(
        self, engine: Engine, other_engine: Engine, clock: ManualClock
    ) -> None:
        lease = await leased(other_engine)
        await engine.queues.reconfigure(REVIEWS, QueueOptions(retry=Fixed(hours(7))))
        await other_engine.fail(lease, "503")
        assert (await engine.inspect.job(lease.job)).next_try_at == clock.now + hours(7)

    async def test_starts_events_in_an_engine_that_knew_of_none(
        self, engine: Engine, other_engine: Engine
    ) -> None:
        await engine.queues.configure(REVIEWS, QueueOptions(events=EventPolicy.NONE))
        await other_engine.queues.reconfigure(REVIEWS, QueueOptions(events_most=10))
        async with engine.events.follow(REVIEWS):
            pass

    async def test_creates_a_new_queue(self, engine: Engine) -> None:
        await engine.queues.reconfigure("new", EVERY_OPTION)
        assert await engine.queues.options("new") == EVERY_OPTION


class TestChangingSomeOptions:
    async def test_keeps_the_others(self, engine: Engine) -> None:
        await engine.queues.configure(REVIEWS, EVERY_OPTION)
        answer = await engine.queues.change_options(REVIEWS, more_attempts)
        assert answer == msgspec.structs.replace(EVERY_OPTION, max_attempts=3)
        assert await engine.queues.options(REVIEWS) == answer

    async def test_of_a_new_queue_starts_with_the_defaults(self, engine: Engine) -> None:
        await engine.queues.change_options("new", more_attempts)
        assert await engine.queues.options("new") == QueueOptions(max_attempts=6)

    async def test_at_the_same_time_loses_none_of_the_changes(
        self, engine: Engine, other_engine: Engine
    ) -> None:
        """The second change starts from the result of the first."""
        changes = [
            caller.queues.change_options(REVIEWS, more_attempts)
            for caller in (engine, other_engine) * 25
        ]
        answers = await asyncio.gather(*changes)
        assert sorted(answer.max_attempts or 0 for answer in answers) == list(range(6, 56))
        assert (await engine.queues.options(REVIEWS)).max_attempts == 55

    async def test_to_their_present_values_writes_nothing(
        self, engine: Engine, deployment: Deployment
    ) -> None:
        await engine.queues.configure(REVIEWS, EVERY_OPTION)
        before = deployment.dump()
        assert await engine.queues.change_options(REVIEWS, lambda options: options) == EVERY_OPTION
        assert deployment.dump() == before


def more_attempts(options: QueueOptions) -> QueueOptions:
    return msgspec.structs.replace(options, max_attempts=(options.max_attempts or 5) + 1)


class TestAttemptsWithoutALimit:
    """Neither the job nor the queue sets a limit."""

    @pytest.mark.parametrize(
        ("lanes", "lane", "most"),
        [
            (LanePolicy.BLOCK, None, 20),
            (LanePolicy.BLOCK, "octo", 10),
            (LanePolicy.PARK, "octo", 10),
            (LanePolicy.SKIP, "octo", 20),
        ],
    )
    async def test_are_fewer_for_a_job_that_blocks_its_lane(
        self, engine: Engine, lanes: LanePolicy, lane: str | None, most: int
    ) -> None:
        await engine.queues.configure(REVIEWS, QueueOptions(lanes=lanes))
        assert QueueOptions(lanes=lanes).attempts_of(lane) == most
        [job] = await submit_ids(engine, "a", lane=lane)
        for _ in range(most):
            assert await engine.inspect.state(job) is State.READY
            await engine.fail(await claim_one(engine), "no printer", delay=ZERO)
            await engine.queues.promote(REVIEWS)
        assert await engine.inspect.state(job) is State.DEAD

    async def test_take_about_a_day_and_in_a_lane_minutes(self) -> None:
        """With the shortest and the longest waits of the default policy."""
        options = QueueOptions()
        for chance in (0.0, 1.0):
            waits = [options.retry.delay(attempt, chance) for attempt in range(1, 20)]
            assert hours(19) < sum(filter(None, waits), ZERO) < hours(25)
            assert minutes(5) < sum(filter(None, waits[:9]), ZERO) < minutes(15)

    async def test_are_as_many_as_the_queue_says_in_lanes_too(self, engine: Engine) -> None:
        await engine.queues.configure(REVIEWS, QueueOptions(max_attempts=1))
        [job] = await submit_ids(engine, "a", lane="octo")
        await engine.fail(await claim_one(engine), "no printer", delay=ZERO)
        assert await engine.inspect.state(job) is State.DEAD


class TestOptionsWithTheirDefaultValues:
    """They follow the defaults of the release that uses the queue."""

    async def test_are_not_stored(self, engine: Engine, deployment: Deployment) -> None:
        await submit_ids(engine, "a")
        assert deployment.ask("HGET", keys_of(QueueName(REVIEWS)).meta, "whole") == b"[1,{}]"
        await engine.queues.declare(REVIEWS, keep=hours(1))
        await engine.queues.change_options(REVIEWS, more_attempts)
        stored = deployment.ask("HGET", keys_of(QueueName(REVIEWS)).meta, "whole")
        assert msgspec.json.decode(cast("bytes", stored))[1].keys() == {"keep", "max_attempts"}
        await engine.queues.reset(REVIEWS)
        stored = deployment.ask("HGET", keys_of(QueueName(REVIEWS)).meta, "whole")
        assert msgspec.json.decode(cast("bytes", stored))[1].keys() == {"keep"}

    @pytest.mark.parametrize("decided", [True, False])
    async def test_have_the_defaults_of_the_release_that_reads_them(
        self, engine: Engine, deployment: Deployment, *, decided: bool
    ) -> None:
        """A release with another default has written the queue."""
        await submit_ids(engine, "a")
        small, keys = QueueOptions(max_payload=1), keys_of(QueueName(REVIEWS))
        packed = SCRIPTED.pack(small).replace(SCRIPTED.form.encode(), b"another1")
        by_name = SCRIPTED.decided_values(small, {"max_payload"} if decided else ())
        deployment.ask("HSET", keys.meta, "options", packed, "decided", pack(by_name))
        if decided:
            with pytest.raises(PayloadTooLarge):
                await engine.submit(REVIEWS, b"more")
        else:
            await engine.submit(REVIEWS, b"more")

    async def test_that_are_set_to_their_default_stay_so(
        self, engine: Engine, deployment: Deployment
    ) -> None:
        await engine.queues.change_options(REVIEWS, lambda options: options, decides=["events"])
        stored = deployment.ask("HGET", keys_of(QueueName(REVIEWS)).meta, "whole")
        assert msgspec.json.decode(cast("bytes", stored))[1] == {"events": QueueOptions().events}

    async def test_are_encoded_anew_by_the_next_declaration(
        self, engine: Engine, other_engine: Engine, deployment: Deployment
    ) -> None:
        """The scripts of this release then read them in one step, whichever release encoded
        them.
        """
        await engine.queues.configure(REVIEWS, QueueOptions(max_payload=1))
        meta = keys_of(QueueName(REVIEWS)).meta
        await engine.queues.declare(REVIEWS, max_length=3)
        before = deployment.ask("HMGET", meta, "whole", "options", "declared")
        deployment.ask("HSET", meta, "options", b"another1")
        await other_engine.queues.declare(REVIEWS, max_length=3)
        assert deployment.ask("HMGET", meta, "whole", "options", "declared") == before

    @pytest.mark.parametrize("is_decided", [True, False])
    async def test_of_a_newer_release_may_be_added(
        self, engine: Engine, deployment: Deployment, *, is_decided: bool
    ) -> None:
        """A release that declares one more option uses the queue together with this release."""
        await engine.queues.configure(REVIEWS, QueueOptions(max_length=1))

        class More(QueueOptions, frozen=True, kw_only=True):
            another: int = 7

        newer = ScriptedOptions(More)
        assert set(newer.names) == {*SCRIPTED.names, "another"}
        assert newer.form != SCRIPTED.form
        meta, options = keys_of(QueueName(REVIEWS)).meta, More(max_length=1, another=8)
        by_name = newer.decided_values(
            options, {"max_length", *(["another"] if is_decided else [])}
        )
        assert by_name.get("another") == (8 if is_decided else None)
        deployment.ask("HSET", meta, "options", newer.pack(options), "decided", pack(by_name))
        await engine.submit(REVIEWS, b"1")
        with pytest.raises(QueueFull):
            await engine.submit(REVIEWS, b"2")
        await engine.complete(await claim_one(engine))
        await engine.submit(REVIEWS, b"3")


class Newer(QueueOptions, frozen=True, kw_only=True):
    """The options of a release that has two more; its scripts use one of them."""

    zeal: int = 0
    moods: RetryPolicy = Never()


NEWER = ScriptedOptions(Newer)
BEYOND = {"moods": {"calm": 1.0}, "zeal": 5}
"""What it has decided, and today's release does not know."""


def newer_release_decides(deployment: Deployment, max_length: int, max_deaths: int = 5) -> None:
    """Stores options as the newer release does: it declared *max_length* and an operator changed
    *max_deaths*.
    """
    options = Newer(max_length=max_length, max_deaths=max_deaths, zeal=5)
    whole = msgspec.json.encode(
        [1, {"max_deaths": max_deaths, "max_length": max_length, **BEYOND}], order="sorted"
    )
    declared = msgspec.json.encode({"max_length": max_length, **BEYOND})
    by_name = NEWER.decided_values(options, {"max_deaths", "max_length", "zeal"})
    meta = keys_of(QueueName(REVIEWS)).meta
    deployment.ask(
        *("HSET", meta, "whole", whole, "version", version_of(whole)),
        *("options", NEWER.pack(options), "decided", pack(by_name), "declared", declared),
    )


def stored_options(
    deployment: Deployment,
) -> tuple[dict[str, Any], dict[str, Any], dict[str, Any]]:
    """The chosen options, those that scripts use, and the declared ones."""
    meta = keys_of(QueueName(REVIEWS)).meta
    whole, by_name, declared = (
        cast("bytes", deployment.ask("HGET", meta, field))
        for field in ("whole", "decided", "declared")
    )
    scripted = {name.decode(): value for name, value in unpack_raw(by_name).items()}
    return msgspec.json.decode(whole)[1], scripted, msgspec.json.decode(declared)


USES: dict[str, Callable[[Engine], Coroutine[Any, Any, object]]] = {
    "submit": lambda engine: engine.submit(REVIEWS, b"x"),
    "claim": lambda engine: engine.claim(REVIEWS, worker="anna", lease=minutes(1)),
    "declare": lambda engine: engine.queues.declare(REVIEWS, keep_most=3),
    "change": lambda engine: engine.queues.change_options(REVIEWS, more_attempts),
    "reconfigure": lambda engine: engine.queues.reconfigure(REVIEWS, EVERY_OPTION),
    "reset": lambda engine: engine.queues.reset(REVIEWS),
    "reset one": lambda engine: engine.queues.reset(REVIEWS, "max_deaths"),
    "options": lambda engine: engine.queues.options(REVIEWS),
    "declared": lambda engine: engine.queues.declared(REVIEWS),
    "list": lambda engine: engine.queues.list(),
}


class TestAnOptionThatOnlyANewerReleaseKnows:
    """The newer release has set it. Workers of both releases use the queue side by side."""

    @pytest.mark.parametrize("use", USES)
    async def test_is_kept_by_every_change(
        self, engine: Engine, deployment: Deployment, use: str
    ) -> None:
        await submit_ids(engine, "a")
        for max_length in (70, 80):
            newer_release_decides(deployment, max_length)
            await USES[use](engine)
            decided, by_name, declared = stored_options(deployment)
            assert decided.items() >= BEYOND.items()
            assert by_name["zeal"] == 5
            assert declared.items() >= BEYOND.items()
        async with Engine(deployment.url) as later:
            await later.queues.options(REVIEWS)
            assert REVIEWS in await later.queues.list()

    @pytest.mark.parametrize("use", USES)
    def test_is_kept_by_every_change_without_an_event_loop(
        self, deployment: Deployment, use: str
    ) -> None:
        with engine_here(deployment.url) as engine:
            run_to_end(engine.submit(REVIEWS, b"x"))
            for max_length in (70, 80):
                newer_release_decides(deployment, max_length)
                run_to_end(USES[use](engine))
                decided, by_name, declared = stored_options(deployment)
                assert decided.items() >= BEYOND.items()
                assert by_name["zeal"] == 5
                assert declared.items() >= BEYOND.items()

    async def test_leaves_the_options_that_both_know_in_effect(
        self, engine: Engine, deployment: Deployment
    ) -> None:
        await submit_ids(engine, "a")
        newer_release_decides(deployment, 1)
        with pytest.raises(QueueFull):
            await engine.submit(REVIEWS, b"x")
        newer_release_decides(deployment, 2)
        await engine.submit(REVIEWS, b"x")

    async def test_is_removed_when_the_newer_release_resets_it(
        self, engine: Engine, deployment: Deployment
    ) -> None:
        newer_release_decides(deployment, 70, max_deaths=9)
        assert stored_options(deployment)[1]["max_deaths"] == 9
        await engine.queues.reset(REVIEWS)
        decided, by_name, _ = stored_options(deployment)
        assert decided == {"max_length": 70, **BEYOND}
        assert by_name == {"max_length": 70, "zeal": 5}

    async def test_is_kept_in_the_directory_too(
        self, engine: Engine, deployment: Deployment
    ) -> None:
        newer_release_decides(deployment, 70)
        await engine.queues.change_options(REVIEWS, more_attempts)
        entry = cast("bytes", deployment.ask("HGET", REGISTRY, REVIEWS))
        assert msgspec.json.decode(entry)[1] == stored_options(deployment)[0]

    async def test_is_restored_after_redis_lost_it(
        self, engine: Engine, deployment: Deployment
    ) -> None:
        newer_release_decides(deployment, 70)
        await engine.submit(REVIEWS, b"x")
        deployment.flush()
        await engine.submit(REVIEWS, b"x")
        decided, _, declared = stored_options(deployment)
        assert decided.items() >= BEYOND.items()
        assert declared.items() >= BEYOND.items()

    async def test_protects_a_queue_from_the_sweep_if_an_operator_changed_it(
        self, engine: Engine, deployment: Deployment, clock: ManualClock
    ) -> None:
        """A change of any other option does the same."""
        newer_release_decides(deployment, 70)
        meta = keys_of(QueueName(REVIEWS)).meta
        deployment.ask("HSET", meta, "declared", b'{"max_length":70,"moods":{"calm":1.0}}')
        assert not await engine.queues.delete_unused(REVIEWS, minutes(1))
        clock.advance(hours(1))
        assert not await engine.queues.delete_unused(REVIEWS, minutes(1))
        newer_release_decides(deployment, 70)
        await engine.queues.delete_unused(REVIEWS, minutes(1))
        clock.advance(hours(1))
        assert await engine.queues.delete_unused(REVIEWS, minutes(1))


class TestTheLengthLimitOfAQueue:
    @pytest.fixture(autouse=True)
    async def two_at_most(self, engine: Engine) -> None:
        await engine.queues.configure(REVIEWS, QueueOptions(max_length=2))

    async def test_refuses_a_job_beyond_it(self, engine: Engine) -> None:
        await submit_ids(engine, "a", "b")
        with pytest.raises(QueueFull) as refusal:
            await engine.submit(REVIEWS, b"")
        assert (refusal.value.queue, refusal.value.length) == (REVIEWS, 2)
        assert refusal.value.retry is RetryAdvice.LATER
        assert (await engine.inspect.counts(REVIEWS)).ready == 2

    async def test_counts_ready_delayed_and_waiting_jobs(self, engine: Engine) -> None:
        await engine.submit(REVIEWS, b"", lane="octo", delay=hours(1))
        await engine.submit(REVIEWS, b"", lane="octo")
        with pytest.raises(QueueFull):
            await engine.submit(REVIEWS, b"")

    async def test_does_not_count_leased_and_ended_jobs(self, engine: Engine) -> None:
        await buried(engine, "dead")
        await leased(engine, "leased")
        await submit_ids(engine, "a", "b")
        assert (await engine.inspect.counts(REVIEWS)).ready == 2

    async def test_refuses_single_jobs_of_a_batch(self, engine: Engine) -> None:
        jobs = [new_job(b"", id=id) for id in ("a", "b", "c", "a")]
        first, second, third, again = await engine.submit_many(REVIEWS, jobs)
        assert isinstance(first, Submitted)
        assert isinstance(second, Submitted)
        assert isinstance(third, QueueFull)
        assert isinstance(again, Submitted)
        assert again.existed

    async def test_accepts_a_job_that_exists_already(self, engine: Engine) -> None:
        await submit_ids(engine, "a", "b")
        assert (await engine.submit(REVIEWS, b"a", id="a")).existed

    async def test_accepts_jobs_again_when_there_is_room(self, engine: Engine) -> None:
        await submit_ids(engine, "a", "b")
        await claim_one(engine)
        await submit_ids(engine, "c")


class TestTheSizeLimitOfPayloads:
    async def test_refuses_a_larger_payload_without_sending_it(
        self, engine: Engine, deployment: Deployment
    ) -> None:
        """The engine only asks whether the limit is still the same."""
        await engine.queues.configure(REVIEWS, QueueOptions(max_payload=10))
        await engine.submit(REVIEWS, b"x" * 10)
        scripts, looks = deployment.calls("evalsha", "eval"), deployment.calls("hmget")
        with pytest.raises(PayloadTooLarge) as refusal:
            await engine.submit(REVIEWS, b"x" * 11)
        assert (refusal.value.size, refusal.value.limit) == (11, 10)
        assert deployment.calls("evalsha", "eval") == scripts
        assert deployment.calls("hmget") == looks + 1

    async def test_that_was_raised_by_another_process_is_noticed(
        self, engine: Engine, other_engine: Engine, clock: ManualClock
    ) -> None:
        """In a submit, a batch, a firing and a result."""
        await engine.queues.configure(REVIEWS, QueueOptions(max_payload=3, keep=hours(1)))
        lease = await leased(engine, "one")
        for verb in (
            lambda: engine.submit(REVIEWS, b"1" * 4),
            lambda: engine.submit_many(REVIEWS, [new_job(b"2" * 5)]),
            lambda: engine.schedules.fire_due(
                REVIEWS, "nightly", [new_job(b"3" * 6)], after=None, upto=clock.now
            ),
            lambda: engine.complete(lease, b"4" * 7),
        ):
            options = await other_engine.queues.options(REVIEWS)
            raised = msgspec.structs.replace(options, max_payload=options.max_payload + 1)
            await other_engine.queues.reconfigure(REVIEWS, raised)
            await verb()
        assert (await engine.inspect.counts(REVIEWS)).ready == 3
        assert (await engine.inspect.job(lease.job)).result == b"4" * 7

    async def test_is_checked_by_redis_for_a_call_that_has_a_name(
        self, engine: Engine, other_engine: Engine
    ) -> None:
        """It may be a repeat: a job that was accepted before the limit was lowered is not
        refused.
        """
        jobs, call = [new_job(b"four", id="a"), new_job(b"1", id="b")], Call("client-7", 1)
        answers = await engine.submit_many(REVIEWS, jobs, call=call)
        await other_engine.queues.reconfigure(REVIEWS, QueueOptions(max_payload=3))
        await engine.queues.options(REVIEWS)
        assert await engine.submit_many(REVIEWS, jobs, call=call) == answers
        [refused] = await engine.submit_many(REVIEWS, jobs[:1], call=Call("client-7", 2))
        assert isinstance(refused, PayloadTooLarge)

    async def test_is_the_limit_of_results_too(self, engine: Engine) -> None:
        size = 1024 * 1024 + 1
        await engine.queues.configure(REVIEWS, QueueOptions(max_payload=size, keep=hours(1)))
        lease = await leased(engine)
        await engine.complete(lease, bytes(size))
        assert len((await engine.inspect.job(lease.job)).result or b"") == size

    async def test_is_a_mebibyte_by_default(self, engine: Engine) -> None:
        await engine.submit(REVIEWS, b"x" * 1024 * 1024)
        [lease] = await claim(engine)
        assert len(lease.payload) == 1024 * 1024
        with pytest.raises(PayloadTooLarge):
            await engine.submit(REVIEWS, b"x" * (1024 * 1024 + 1))


class TestInvalidOptions:
    @pytest.mark.parametrize(
        ("option", "value"),
        [
            ("max_attempts", 0),
            ("max_attempts", 1_000_001),
            ("max_attempts", 2.0),
            ("max_attempts", True),
            ("keep_most", -1),
            ("keep_dead_most", 0),
            ("remember_most", -1),
            ("max_length", -1),
            ("max_payload", 0),
            ("max_payload", LARGEST_PAYLOAD + 1),
            ("events", "some"),
            ("events_most", 0),
            ("keep", -seconds(1)),
            ("keep", "3600"),
            ("keep_dead", days(40_000)),
            ("remember", None),
            ("lanes", "sideways"),
            ("retry", "soon"),
        ],
    )
    def test_are_refused_by_name(self, option: str, value: Any) -> None:
        with pytest.raises(InvalidOption) as refusal:
            QueueOptions(**{option: value})
        assert refusal.value.option == option
