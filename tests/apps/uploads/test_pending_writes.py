"""Pending writes: a piece of a body is read while the previous one is written to Redis."""

import asyncio

import pytest

from tests.waiting import HANGS
from towpath.apps.uploads.ingest import PendingWrite


class TestAPieceThatIsBeingWritten:
    @pytest.mark.parametrize("cancelled", [False, True])
    async def test_a_pending_write_ends_before_its_chunk_is_deleted(
        self, *, cancelled: bool
    ) -> None:
        """A write after the deletion would leave bytes behind when a client hangs up."""
        before, sent, go_on = PendingWrite(), list[str](), asyncio.Event()

        async def sending() -> None:
            await go_on.wait()
            sent.append("piece")

        async def receiving() -> None:
            before.start(sending())
            try:
                if cancelled:
                    await before.wait()
                else:
                    raise ConnectionError
            finally:
                await before.give_up()

        async with asyncio.timeout(HANGS):
            receiver = asyncio.create_task(receiving())
            await asyncio.sleep(0)
            if cancelled:
                await asyncio.sleep(0)
                receiver.cancel()
            asyncio.get_running_loop().call_soon(go_on.set)
            await asyncio.wait([receiver])
        assert sent == ["piece"]
