"""Timers whose call was answered with 202: the instance holds them until it settles them, by
token.
"""

from collections.abc import AsyncIterator
from typing import Any
from urllib.parse import quote

import httpx
import msgspec
import pytest
from fastapi import FastAPI

from tests.apps.timers.service_mode import InstancesApi, with_key
from tests.calls.receivers import Receiver, http
from tests.server.serving import code
from tests.waiting import eventually_async
from towpath.apps.timers.model import RECORDED, TypeKey
from towpath.engine.engine import Engine
from towpath.engine.model import JobInfo, job_ref
from towpath.engine.states import State
from towpath.ledger.records.record import RecordState

TYPE = "取消 a/b"


class AcceptingInstance:
    """An instance that answers 202 to all calls, and its key."""

    def __init__(self, app: FastAPI, api: InstancesApi, receiver: Receiver) -> None:
        self.app, self.api, self.receiver = app, api, receiver
        self.queue = ""

    @property
    def engine(self) -> Engine:
        return self.app.state.engine

    async def called(self, id: str, times: int = 1) -> Any:
        """Returns the body of the call, once the instance holds the timer."""

        async def handed() -> bool:
            job = await self.look(id)
            return len(self.receiver.requests) == times and job.state is State.LEASED

        await eventually_async(handed)
        return msgspec.json.decode(self.receiver.requests[-1].body)

    async def lengthened(self, id: str) -> None:
        """Return once the lease is as long as the instance has asked for."""

        async def held() -> bool:
            job = await self.look(id)
            assert job.expires_at is not None
            assert job.claimed_at is not None
            return (job.expires_at - job.claimed_at).total_seconds() > 500

        await eventually_async(held)

    async def look(self, id: str) -> JobInfo:
        return await self.engine.inspect.job(job_ref(self.queue, id))

    async def say(self, verb: str, id: str, **body: Any) -> httpx.Response:
        path = f"timers/{quote(TYPE, safe='')}/{quote(id, safe='')}/{verb}"
        return await self.api.say("POST", path, {"app": "shop", **body})


@pytest.fixture
async def instance(app: FastAPI, receiver: Receiver) -> AsyncIterator[AcceptingInstance]:
    receiver.answer = http("202 Accepted", b'{"lease_s": 600}')
    async with with_key(app, "work", "read") as api:
        await api.register(receiver.url(), TYPE)
        instance = AcceptingInstance(app, api, receiver)
        [info] = await app.state.services["timers"].types.all()
        instance.queue = info.queue
        yield instance


async def test_a_handed_over_timer_has_the_lease_that_the_instance_asks_for(
    instance: AcceptingInstance,
) -> None:
    await instance.engine.submit(instance.queue, b'{"params": 1}', id="a/b")
    await instance.called("a/b")
    await instance.lengthened("a/b")


async def test_a_handed_over_timer_is_completed_by_its_token_once(
    instance: AcceptingInstance,
) -> None:
    await instance.engine.submit(instance.queue, b'{"params": 1}', id="a/b")
    call = await instance.called("a/b")
    answer = await instance.say("complete", "a/b", token=call["token"])
    assert answer.status_code == 200, answer.text
    assert answer.json() == {"task_id": "a/b", "task_type": TYPE, "state": "done"}
    assert (await instance.look("a/b")).state is State.DONE
    code(await instance.say("fail", "a/b", token=call["token"]), 409)
    assert (await instance.look("a/b")).state is State.DONE
    log, key = instance.app.state.services["timers"].log, TypeKey(TYPE, "shop")

    async def logged() -> bool:
        found = [firing.outcome for firing in (await log.read(key)).firings]
        return sorted(found) == ["done", "handed_over"]

    await eventually_async(logged)


async def test_a_repeated_completion_is_logged_once(instance: AcceptingInstance) -> None:
    log, key = instance.app.state.services["timers"].log, TypeKey(TYPE, "shop")
    await instance.engine.submit(instance.queue, b'{"params": 1}', id="plain")
    await instance.called("plain")
    headers = {"handler": RECORDED}
    jobs = instance.app.state.ledger.jobs
    await jobs.submit(instance.queue, b'{"params": 1}', id="recorded", headers=headers)
    await eventually_async(lambda: _is(len(instance.receiver.requests) == 2))
    for request in instance.receiver.requests:
        call = msgspec.json.decode(request.body)
        for _ in range(2):
            answer = await instance.say("complete", call["task_id"], token=call["token"])
            assert (answer.status_code, answer.json()["state"]) == (200, "done")
    await log.flush()
    found = [firing for firing in (await log.read(key)).firings if firing.outcome == "done"]
    assert sorted(firing.task_id for firing in found) == ["plain", "recorded"]


async def test_a_completion_after_an_answer_of_200_is_not_logged_again(
    instance: AcceptingInstance,
) -> None:
    log, key = instance.app.state.services["timers"].log, TypeKey(TYPE, "shop")
    instance.receiver.answer = http()
    await instance.engine.submit(instance.queue, b'{"params": 1}', id="a")

    async def logged() -> bool:
        return [firing.outcome for firing in (await log.read(key)).firings] == ["done"]

    await eventually_async(logged)
    call = msgspec.json.decode(instance.receiver.requests[0].body)
    answer = await instance.say("complete", "a", token=call["token"])
    assert (answer.status_code, answer.json()["state"]) == (200, "done")
    await log.flush()
    assert await logged()


async def _is(fact: bool) -> bool:  # noqa: FBT001 -- a fact
    return fact


async def test_the_app_of_a_handed_over_timer_may_be_in_the_body_or_the_query(
    instance: AcceptingInstance,
) -> None:
    """GET, PATCH and DELETE take `?app=`."""
    await instance.engine.submit(instance.queue, b'{"params": 1}', id="a")
    call = await instance.called("a")
    path = f"timers/{quote(TYPE, safe='')}/a"
    body = {"token": call["token"]}
    assert code(
        await instance.api.say("POST", f"{path}/renew?app=mail", body | {"app": "shop"}), 422
    )
    assert code(await instance.api.say("POST", f"{path}/renew?app=mail", body), 404)
    for verb in ("renew", "complete"):
        answer = await instance.api.say("POST", f"{path}/{verb}?app=shop", body)
        assert answer.status_code == 200, answer.text
    assert (await instance.look("a")).state is State.DONE


async def test_a_handed_over_timer_that_failed_comes_again_under_a_higher_token(
    instance: AcceptingInstance,
) -> None:
    await instance.engine.submit(instance.queue, b'{"params": 1}', id="a", max_attempts=2)
    first = await instance.called("a")
    answer = await instance.say("fail", "a", token=first["token"], reason="closed")
    assert (answer.status_code, answer.json()["state"]) == (200, "delayed")
    assert (await instance.look("a")).reason == "closed"
    second = await instance.called("a", times=2)
    assert second["attempt"] == 2
    assert second["token"] > first["token"]
    answer = await instance.say("fail", "a", token=second["token"])
    assert answer.json()["state"] == "dead"


async def test_an_outdated_token_changes_nothing(instance: AcceptingInstance, app: FastAPI) -> None:
    """A stale or guessed token, or a key that does not cover the type."""
    await instance.engine.submit(instance.queue, b'{"params": 1}', id="a")
    call = await instance.called("a")
    for verb in ("complete", "fail", "renew"):
        for token in (call["token"] - 1, call["token"] + 1, 1):
            assert code(await instance.say(verb, "a", token=token), 409) == "lease-lost"
        assert code(await instance.say(verb, "b", token=call["token"]), 404) == "timer-not-found"
        for bad in (None, "1", 0, -1, 1.5, 2**63):
            code(await instance.say(verb, "a", token=bad), 422)
        path = f"timers/{quote(TYPE, safe='')}/a/{verb}"
        body = {"token": call["token"], "app": "shop"}
        async with with_key(app, "work", queues=("timers.mail--*",)) as thief:
            assert code(await thief.say("POST", path, body), 403) == "queue-forbidden"
        async with with_key(app, "submit", "read") as thief:
            assert code(await thief.say("POST", path, body), 403) == "scope-missing"
    job = await instance.look("a")
    assert (job.state, job.attempts) == (State.LEASED, 1)


async def test_the_lease_of_a_handed_over_timer_is_renewed(instance: AcceptingInstance) -> None:
    await instance.engine.submit(instance.queue, b'{"params": 1}', id="a")
    call = await instance.called("a")
    await instance.lengthened("a")  # otherwise it could be taken for a renewal at the same moment
    answer = await instance.say("renew", "a", token=call["token"], lease_s=3600)
    assert answer.status_code == 200, answer.text
    assert answer.json()["cancel_requested"] is False
    job = await instance.look("a")
    assert job.expires_at is not None
    assert job.claimed_at is not None
    assert (job.expires_at - job.claimed_at).total_seconds() > 3000


async def test_an_expired_lease_of_a_handed_over_timer_is_a_failed_attempt(
    instance: AcceptingInstance,
) -> None:
    instance.receiver.answer = http("202 Accepted", b'{"lease_s": 1}')
    await instance.engine.submit(instance.queue, b'{"params": 1}', id="a", max_attempts=2)

    async def dead() -> bool:
        return (await instance.look("a")).state is State.DEAD

    await eventually_async(dead)
    calls = [msgspec.json.decode(request.body) for request in instance.receiver.requests]
    assert [call["attempt"] for call in calls] == [1, 2]


@pytest.mark.parametrize("body", [b"x", b'{"lease_s": -1}'])
async def test_an_unreadable_lease_in_an_answer_lasts_a_minute(
    instance: AcceptingInstance, body: bytes
) -> None:
    instance.receiver.answer = http("202 Accepted", body)
    await instance.engine.submit(instance.queue, b'{"params": 1}', id="a")
    await instance.called("a")

    async def held() -> bool:
        job = await instance.look("a")
        assert job.expires_at is not None
        assert job.claimed_at is not None
        return 59 < (job.expires_at - job.claimed_at).total_seconds() < 70

    await eventually_async(held)


async def test_the_row_decides_about_a_recorded_timer_that_was_handed_over(
    instance: AcceptingInstance,
) -> None:
    jobs = instance.app.state.ledger.jobs
    for id in ("done", "failed"):
        headers = {"handler": RECORDED}
        await jobs.submit(instance.queue, b'{"params": 1}', id=id, headers=headers, max_attempts=1)
    tokens: dict[str, int] = {}

    async def both() -> bool:
        for request in instance.receiver.requests:
            told = msgspec.json.decode(request.body)
            tokens[told["task_id"]] = told["token"]
        return len(tokens) == 2

    await eventually_async(both)
    stale = await instance.say("complete", "done", token=tokens["done"] - 1)
    assert code(stale, 409) == "lease-lost"
    answer = await instance.say("complete", "done", token=tokens["done"])
    assert (answer.status_code, answer.json()["state"]) == (200, "done")
    assert (await jobs.get(instance.queue, "done")).state is RecordState.COMPLETED
    answer = await instance.say("fail", "failed", token=tokens["failed"], reason="closed")
    assert (answer.status_code, answer.json()["state"]) == (200, "dead")
    record = await jobs.get(instance.queue, "failed")
    assert (record.state, record.last_error) == (RecordState.DEAD, "closed")
