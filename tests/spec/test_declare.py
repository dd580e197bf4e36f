"""The options of a queue that programs declare, and the changes that operators make to them."""

import asyncio
from typing import Any

import msgspec
import pytest

from tests.spec.deployment import Deployment
from tests.spec.jobs_in_states import REVIEWS, submit_ids
from tests.spec.test_options import EVERY_OPTION, more_attempts
from towpath.clock import hours, seconds
from towpath.engine.engine import Engine
from towpath.engine.keys import keys_of
from towpath.engine.options import LanePolicy, QueueOptions
from towpath.engine.retry import Fixed, Never
from towpath.errors import InvalidOption
from towpath.ids import queue_name


class TestDeclaring:
    async def test_sets_the_options_of_a_new_queue(self, engine: Engine) -> None:
        await engine.queues.declare(REVIEWS, keep=hours(1), max_attempts=8)
        assert await engine.queues.options(REVIEWS) == QueueOptions(keep=hours(1), max_attempts=8)
        assert await engine.queues.declared(REVIEWS) == QueueOptions(keep=hours(1), max_attempts=8)

    async def test_sets_the_options_of_a_queue_whose_options_nobody_chose(
        self, engine: Engine
    ) -> None:
        await submit_ids(engine, "a")
        told = await engine.queues.declare(REVIEWS, keep=hours(1))
        assert told == (QueueOptions(), QueueOptions(keep=hours(1)))

    async def test_replaces_options_only_while_they_are_those_declared_last(
        self, engine: Engine, other_engine: Engine
    ) -> None:
        await engine.queues.declare(REVIEWS, keep=hours(1), retry=Fixed(seconds(3)))
        await other_engine.queues.declare(REVIEWS, keep=hours(2), retry=Never())
        await engine.queues.declare(REVIEWS, keep=hours(3))
        assert await engine.queues.options(REVIEWS) == QueueOptions(keep=hours(3), retry=Never())

    @pytest.mark.parametrize("again", [hours(1), hours(5)], ids=["the same", "another"])
    @pytest.mark.parametrize("changed", [hours(2), seconds(0)], ids=["a value", "the default"])
    async def test_keeps_what_an_operator_changed(
        self, engine: Engine, other_engine: Engine, changed: Any, again: Any
    ) -> None:
        await engine.queues.declare(REVIEWS, keep=hours(1), max_attempts=8)
        await other_engine.queues.change_options(
            REVIEWS, lambda options: msgspec.structs.replace(options, keep=changed)
        )
        for _ in range(2):
            await engine.queues.declare(REVIEWS, keep=again, max_attempts=9)
        assert await engine.queues.options(REVIEWS) == QueueOptions(keep=changed, max_attempts=9)
        assert await engine.queues.declared(REVIEWS) == QueueOptions(keep=again, max_attempts=9)

    async def test_a_declared_value_of_a_newer_release_does_not_hide_the_others(
        self, engine: Engine, deployment: Deployment
    ) -> None:
        """That release declared a lane policy that this one cannot read; an operator changed it."""
        await engine.queues.declare(REVIEWS, max_attempts=8, lanes=LanePolicy.SKIP)
        declared = b'{"lanes":"rotate","max_attempts":8}'
        deployment.ask("HSET", keys_of(queue_name(REVIEWS)).meta, "declared", declared)
        await engine.queues.declare(REVIEWS, max_attempts=9)
        wanted = QueueOptions(max_attempts=9, lanes=LanePolicy.SKIP)
        assert await engine.queues.options(REVIEWS) == wanted
        assert await engine.queues.declared(REVIEWS) == QueueOptions(max_attempts=9)

    async def test_keeps_what_was_chosen_before_the_first_declaration(self, engine: Engine) -> None:
        await engine.queues.configure(REVIEWS, QueueOptions(keep=hours(2), max_length=10))
        await engine.queues.declare(REVIEWS, keep=hours(1), max_attempts=8)
        wanted = QueueOptions(keep=hours(2), max_length=10, max_attempts=8)
        assert await engine.queues.options(REVIEWS) == wanted

    async def test_keeps_what_another_program_declares(self, engine: Engine) -> None:
        await engine.queues.declare(REVIEWS, lanes=LanePolicy.PARK)
        await engine.queues.declare(REVIEWS, keep=hours(1))
        assert await engine.queues.options(REVIEWS) == QueueOptions(
            lanes=LanePolicy.PARK, keep=hours(1)
        )

    async def test_the_same_options_again_writes_nothing(
        self, engine: Engine, other_engine: Engine, deployment: Deployment
    ) -> None:
        await engine.queues.declare(REVIEWS, keep=hours(1), retry=Never())
        before = deployment.dump()
        await other_engine.queues.declare(REVIEWS, retry=Never(), keep=hours(1))
        assert deployment.dump() == before

    async def test_during_another_change_loses_neither(
        self, engine: Engine, other_engine: Engine
    ) -> None:
        await engine.queues.declare(REVIEWS, keep=hours(1))
        await asyncio.gather(
            *(
                caller.queues.change_options(REVIEWS, more_attempts)
                for caller in (engine, other_engine) * 5
            ),
            *(engine.queues.declare(REVIEWS, keep=hours(n)) for n in range(2, 7)),
        )
        now, declared = await engine.queues.options(REVIEWS), await engine.queues.declared(REVIEWS)
        assert declared is not None
        assert now == QueueOptions(max_attempts=15, keep=declared.keep)
        assert now.keep > hours(1)

    async def test_is_repeated_after_redis_lost_everything(
        self, engine: Engine, other_engine: Engine, deployment: Deployment
    ) -> None:
        await engine.queues.declare(REVIEWS, keep=hours(1))
        await engine.queues.change_options(REVIEWS, more_attempts)
        deployment.flush()
        await submit_ids(engine, "a")
        await other_engine.queues.declare(REVIEWS, keep=hours(2), max_attempts=8)
        assert await other_engine.queues.options(REVIEWS) == QueueOptions(
            keep=hours(2), max_attempts=6
        )

    async def test_ignores_options_that_this_release_cannot_read(
        self, engine: Engine, deployment: Deployment
    ) -> None:
        """A newer release may declare options that this one does not know, and somebody may corrupt
        the entry.
        """
        await engine.queues.declare(REVIEWS, keep=hours(1))
        for declared in ('{"keep": "PT1H", "colour": "red"}', '{"retry": {"type": "odd"}}', "{"):
            deployment.ask("HSET", keys_of(REVIEWS).meta, "declared", declared)
            await engine.queues.declare(REVIEWS, max_attempts=8)
        assert await engine.queues.options(REVIEWS) == QueueOptions(keep=hours(1), max_attempts=8)

    async def test_invalid_options_is_refused(self, engine: Engine) -> None:
        with pytest.raises(InvalidOption):
            await engine.queues.declare(REVIEWS, keep=-hours(1))
        assert await engine.queues.list() == {}


class TestResetting:
    async def test_restores_what_is_declared_and_the_defaults(self, engine: Engine) -> None:
        await engine.queues.declare(REVIEWS, keep=hours(1))
        await engine.queues.reconfigure(REVIEWS, EVERY_OPTION)
        assert (await engine.queues.reset(REVIEWS)).now == QueueOptions(keep=hours(1))
        assert await engine.queues.options(REVIEWS) == QueueOptions(keep=hours(1))

    async def test_some_options_leaves_the_others(self, engine: Engine) -> None:
        await engine.queues.declare(REVIEWS, keep=hours(2))
        await engine.queues.reconfigure(REVIEWS, EVERY_OPTION)
        await engine.queues.reset(REVIEWS, "keep", "events_most")
        usual = QueueOptions()
        wanted = msgspec.structs.replace(EVERY_OPTION, keep=hours(2), events_most=usual.events_most)
        assert await engine.queues.options(REVIEWS) == wanted

    async def test_lets_declarations_take_effect_again(self, engine: Engine) -> None:
        await engine.queues.declare(REVIEWS, keep=hours(1))
        await engine.queues.reconfigure(REVIEWS, QueueOptions(keep=hours(2)))
        await engine.queues.reset(REVIEWS)
        await engine.queues.declare(REVIEWS, keep=hours(3))
        assert (await engine.queues.options(REVIEWS)).keep == hours(3)

    async def test_an_unknown_option_is_refused(self, engine: Engine) -> None:
        with pytest.raises(InvalidOption, match="max_attempts") as refusal:
            await engine.queues.reset(REVIEWS, "colour")
        assert refusal.value.value == "colour"
