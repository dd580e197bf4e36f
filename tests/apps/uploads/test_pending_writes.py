"""Pieces of a chunk: the next one is read while the one before is on its way to Redis."""

import asyncio

import pytest

from tests.waiting import HANGS
from towpath.apps.uploads.ingest import PendingWrite


class TestAPieceOnItsWay:
    @pytest.mark.parametrize("cancelled", [False, True])
    async def test_is_over_before_its_chunk_is_removed(self, *, cancelled: bool) -> None:
        """Else it would come after the removal, and stay: a client hung up, or the server stops."""
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
