"""I15: where a key has another type than expected, a call fails whole or succeeds whole.

This is the error that could really occur in the middle of a script's writes. Each key that a call
touches is replaced in turn; the scripts check every key before they write the first.
"""

import pytest

from tests.faults.filled_queue import TAG, FilledQueue, filled_queue_on
from tests.faults.probed_scripts import ScriptProbe, probed
from tests.faults.redis_dump import Dump, changed, dump, restore
from tests.faults.script_calls import CASES, Case
from towpath.embedded import EmbeddedServer
from towpath.engine.keys import TYPES
from towpath.engine.script import Scripts
from towpath.errors import JobError, LeaseError, ServerError, TowpathError, WrongKeyType

OVERWRITTEN = {"job", "load", "result", "lock"}
"""Keys of one job: whoever writes them anew need not mind what was there."""
PASSED_OVER = {"events", "wake", "wakes"}
"""Nobody's job depends on them: work goes on without."""
CHECKED = TYPES.keys() - OVERWRITTEN - PASSED_OVER


@pytest.mark.parametrize("case", CASES, ids=str)
async def test_a_key_of_the_wrong_type_stops_the_call_before_it_writes(
    server: EmbeddedServer, observed: Scripts, case: Case
) -> None:
    async with filled_queue_on(server.url, case.policy, observed) as filled:
        saved = dump(server)
        touched = await touched_keys(server, case, filled)
        refused = [key for key in touched if await fails_whole(server, saved, case, filled, key)]
        accepted = {kind(key) for key in touched} - {kind(key) for key in refused}
        assert accepted & CHECKED == set()
        restore(server, saved)
        await case.call(filled)
        assert changed(saved, dump(server)) != set()


async def test_a_script_that_does_not_check_first_is_caught(server: EmbeddedServer) -> None:
    """Shows that the check can fail: these scripts write to a key whose type they did not check."""
    careless = probed(
        "probe_call('INCR', KEYS[1] .. ':early')\nprobe_call('INCR', KEYS[1] .. ':other')"
    )
    async with filled_queue_on(server.url, CASES[0].policy, careless) as filled:
        saved = dump(server)
        with pytest.raises(AssertionError, match="half-written"):
            await fails_whole(server, saved, CASES[0], filled, TAG + b"meta:other")


def test_a_key_that_is_about_to_expire_is_no_part_of_a_dump(server: EmbeddedServer) -> None:
    """The key of a write probe lives for a millisecond: dumped, it would look like a change of
    every call.
    """
    for _ in range(20):
        server.ask("SET", "towpath:probe", "1", "PX", 1)
        assert dump(server, "towpath:probe") == {}


async def touched_keys(server: EmbeddedServer, case: Case, filled: FilledQueue) -> list[bytes]:
    """Every key of the queue that the call names to Redis, in order of appearance."""
    saved, probe = dump(server), ScriptProbe(server)
    probe.fail_at(0)
    await case.call(filled)
    trace = probe.trace()
    restore(server, saved)
    return list(dict.fromkeys(key for command in trace for key in command.keys(TAG)))


async def fails_whole(
    server: EmbeddedServer, saved: Dump, case: Case, filled: FilledQueue, key: bytes
) -> bool:
    """Whether the call is refused while *key* has the wrong type; then it must not have written a
    part.
    """
    put_in_the_way(server, key)
    before = dump(server)
    try:
        refusal = await refusal_of(case, filled)
        written = changed(before, dump(server))
    finally:
        restore(server, saved)
    match refusal:
        case None:
            return False
        case ServerError():
            assert written == set(), f"half-written with a wrong {key}"
            assert isinstance(refusal, WrongKeyType)
            assert refusal.keys == TAG.decode().removesuffix(":")
        case _:
            # The refusal is remembered as an answer: nothing else was written.
            assert {kind(name) for name in written} <= {"call"}
    return True


async def refusal_of(case: Case, filled: FilledQueue) -> TowpathError | None:
    try:
        await case.call(filled)
    except (ServerError, JobError, LeaseError) as refusal:
        return refusal
    return None


def put_in_the_way(server: EmbeddedServer, key: bytes) -> None:
    """Replaces the key by one of another type than it has or would have."""
    text = server.ask("TYPE", key) == b"string" or kind(key) in {*OVERWRITTEN, "call"}
    server.ask("DEL", key)
    if text:
        server.ask("RPUSH", key, "in the way")
    else:
        server.ask("SET", key, "in the way")


def kind(key: bytes) -> str:
    """`job` for `{queue}:job:<id>`, `retry` for `{queue}:retry:queue`."""
    return key.removeprefix(TAG).decode().partition(":")[0]
