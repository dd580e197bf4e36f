"""I15: an error at any command of any script leaves the state as before.

Until its first write a script has changed nothing, so an error there is harmless. After it,
nothing may fail any more: no command that reads follows, and the types of keys that are written
later were checked before (`test_wrong_types.py`, `test_moving_slot.py`).
"""

from collections.abc import Awaitable

import pytest

from tests.faults.filled_queue import FilledQueue, filled_queue_on
from tests.faults.probed_scripts import PLANTED, WRITING, ScriptCommand, ScriptProbe, probed
from tests.faults.redis_dump import changed, dump, restore
from tests.faults.script_calls import CASES, Case
from towpath.embedded import EmbeddedServer
from towpath.engine.script import Scripts
from towpath.errors import TowpathError


def test_every_writing_script_is_tried() -> None:
    assert sorted({case.script for case in CASES}) == WRITING


@pytest.mark.parametrize("case", CASES, ids=str)
async def test_an_error_before_or_at_the_first_write_changes_nothing(
    server: EmbeddedServer, observed: Scripts, case: Case
) -> None:
    """An error is planted at every command up to the first that writes, and instead of that one
    too.
    """
    async with filled_queue_on(server.url, case.policy, observed) as filled:
        failed = await fail_until_first_write(server, case, filled)
        tried = await undisturbed(server, case, filled)
        assert [command.name for command in failed] == [
            command.name for command in tried[: len(failed)]
        ]
        assert failed[-1].writes


@pytest.mark.parametrize("case", CASES, ids=str)
async def test_nothing_is_read_after_the_first_write(
    server: EmbeddedServer, observed: Scripts, case: Case
) -> None:
    async with filled_queue_on(server.url, case.policy, observed) as filled:
        tried = await undisturbed(server, case, filled)
        assert read_after_write(tried) == []
        assert any(command.writes for command in tried)


@pytest.mark.parametrize("name", ["submit alone", "submit a large one alone"])
async def test_a_lone_submit_is_tried_on_its_shortest_path(
    server: EmbeddedServer, observed: Scripts, name: str
) -> None:
    [case] = [case for case in CASES if case.name == name]
    async with filled_queue_on(server.url, case.policy, observed) as filled:
        tried = await undisturbed(server, case, filled)
        assert next(command.words[-1] for command in tried if command.name == "SET") == b"GET"


async def test_a_script_that_writes_too_early_is_caught(server: EmbeddedServer) -> None:
    """Shows that the check can fail: every script begins with a write."""
    hasty = probed("probe_call('INCR', KEYS[1] .. ':early')")
    async with filled_queue_on(server.url, CASES[0].policy, hasty) as filled:
        tried = await undisturbed(server, CASES[0], filled)
        assert read_after_write(tried) != []


async def fail_until_first_write(
    server: EmbeddedServer, case: Case, filled: FilledQueue
) -> list[ScriptCommand]:
    """Plants an error at each command in turn; returns the commands that were made to fail, in
    order.
    """
    probe, before = ScriptProbe(server), dump(server)
    failed: list[ScriptCommand] = []
    while not (failed and failed[-1].writes):
        probe.fail_at(len(failed) + 1)
        raised = await is_planted_error(case.call(filled))
        failed.append(probe.trace()[len(failed)])
        assert raised is not failed[-1].tolerated
        if failed[-1].tolerated:
            # No job depends on that command, so the call succeeded: restore the state and go on.
            restore(server, before)
            before = dump(server)
        assert changed(before, dump(server)) == set(), f"after an error at {failed[-1]}"
    return failed


async def is_planted_error(call: Awaitable[object]) -> bool:
    try:
        await call
    except TowpathError as error:
        if PLANTED in str(error):
            return True
        raise
    return False


async def undisturbed(
    server: EmbeddedServer, case: Case, filled: FilledQueue
) -> list[ScriptCommand]:
    """The commands of the call when nothing fails; it must change something then."""
    probe, before = ScriptProbe(server), dump(server)
    probe.fail_at(0)
    await case.call(filled)
    assert changed(before, dump(server)) != set()
    return probe.trace()


def read_after_write(commands: list[ScriptCommand]) -> list[str]:
    writes = [command.writes for command in commands]
    first = writes.index(True) if True in writes else len(writes)
    return [command.name for command in commands[first:] if not command.writes]
