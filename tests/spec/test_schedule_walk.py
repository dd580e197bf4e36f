"""Random walks of schedules: nothing fires twice, by an old definition, or unnoticed; and the walks
must find planted faults.
"""

import pytest

from tests.spec.deployment import Deployment
from tests.spec.schedule_random_walk import walk
from towpath.embedded import EmbeddedServer
from towpath.engine.script import Scripts
from towpath.errors import TowpathError

SEEDS = range(6)
TRIES = 12
MUTANTS: dict[str, tuple[str, str, str]] = {
    "a firing does not compare the definition": (
        "fire", "if kept ~= version then", "if false then",
    ),
    "a firing does not compare the last one": (
        "fire", "if upto > 0 and last ~= after then", "if false then",
    ),
    "a firing has the payload of the caller": (
        "fire", "version ~= '' and redis", "false and redis",
    ),
    "a firing by hand moves the rhythm": ("fire", "if upto > 0 then redis", "if true then redis"),
    "what was passed over counts as fired": ("fire", "unfired(words) or ''", "'' or ''"),
    "a change does not compare what it replaces": (
        "schedule", "if kept ~= over then", "if false then",
    ),
    "a change takes the name of code": (
        "schedule", "if words ~= '' then return", "if false then return",
    ),
    "a changed one begins anew": ("schedule", "and now or last", "and now or now"),
    "a resumed one makes up for its pause": ("schedule", "anew == 1) and now", "false) and now"),
    "a resumed one forgets its last firing": (
        "schedule", "anew == 1) and unfired", "false) and unfired",
    ),
    "a change keeps the old payload": (
        "schedule", "'HSET', LOADS, name", "'HSETNX', LOADS, name",
    ),
    "a change is not told to those who look": (
        "schedule", "redis.call('HSET', META, 'schedules', version)", "",
    ),
    "what was removed goes on from its last firing": (
        "delete_schedule", "redis.call('HDEL', RECURRING, name)", "",
    ),
    "the index keeps a queue that has none": (
        "end_schedule_change", "redis.call('HDEL', INDEX, queue)", "",
    ),
    "the index never says done": ("end_schedule_change", "'done ' .. change", "'begun ' .. change"),
    "the index does not tell of changes": (
        "end_schedule_change", "redis.call('HSET', INDEX, '*', news)", "",
    ),
}  # fmt: skip


@pytest.mark.parametrize("seed", SEEDS)
async def test_a_walk_agrees_with_its_model(deployment: Deployment, seed: int) -> None:
    await walk(deployment.url, seed)


@pytest.mark.parametrize("mutant", MUTANTS)
async def test_a_planted_fault_is_found(server: EmbeddedServer, mutant: str) -> None:
    piece, before, after = MUTANTS[mutant]

    def edit(name: str, text: str) -> str:
        if name != piece:
            return text
        assert text.count(before) == 1, (mutant, text.count(before))
        return text.replace(before, after)

    scripts = Scripts(edit)
    for seed in range(TRIES):
        server.ask("FLUSHALL")
        try:
            await walk(server.url, seed, scripts=scripts)
        except (AssertionError, TowpathError, BaseExceptionGroup):
            return
        except BaseException as error:
            if type(error).__name__ != "Failed":  # pytest.raises found nothing raised
                raise
            return
    pytest.fail(f"{mutant}: {TRIES} walks found nothing")
