"""The reservations of a body: made before it is read, renewed while it arrives, then released.

A body that is slower than `uploads.slowest` is ended if others were refused for lack of room. The
reservations of a server that died end with their leases (`uploads.body_lease`).
"""

from __future__ import annotations

import asyncio
import math
import secrets
from collections.abc import AsyncGenerator, AsyncIterator, Sequence
from contextlib import asynccontextmanager, suppress

from towpath.apps.uploads.errors import BodyGaveWay, BudgetFull, ShareFull, UploadGone
from towpath.apps.uploads.model import Range
from towpath.apps.uploads.records import BodyLease, HoldAnswer, NoRoom, UploadRecords
from towpath.apps.uploads.states import UploadUnknown
from towpath.clock import steady
from towpath.errors import ServerError

_HOLD_AFTER = 1 / 6
"""The time between two renewals of a lease, as a fraction of the lease."""
_UNHEARD = 1 / 3
"""The time without a renewal after which no byte is staged before the next one, as a fraction of
the lease. Otherwise staged bytes (`staged_for`) could outlive their reservation."""


class BodyRoom:
    """The reservations of one body: a lease for each part that it brings bytes of."""

    def __init__(self, records: UploadRecords, upload_id: str, holder: str) -> None:
        self._records, self._id, self._holder = records, upload_id, holder
        self._leases: dict[int, BodyLease] = {}
        self._lasts = records.options.body_lease.total_seconds()
        self._came: dict[int, int] = {}
        self._arrived, self._measured, self._measured_at, self._renewed_at = (
            0,
            0,
            steady(),
            steady(),
        )
        self._is_whole, self._began = False, steady()
        self._deadline: asyncio.Timeout | None = None
        self._refusal: BudgetFull | None = None
        self.tokens: set[str] = set()
        """The staging tokens of bytes that expire unless their body still arrives."""

    @asynccontextmanager
    async def opened(self) -> AsyncGenerator[BodyRoom]:
        """Renew the leases while the block runs, then end them.

        Raises BodyGaveWay, BudgetFull, ShareFull.
        """
        holding = asyncio.create_task(self._renew_regularly())
        try:
            async with asyncio.timeout(None) as self._deadline:
                yield self
        except TimeoutError:
            if self._refusal is None:
                raise
            raise self._refusal from None
        except (UploadGone, UploadUnknown):  # the bytes are gone, too
            self._came.clear()
            raise
        finally:
            self._deadline = None
            holding.cancel()
            await asyncio.shield(self._end(holding))

    async def reserve(
        self, part: int, *, extent: int, own: int, stays: bool = False
    ) -> NoRoom | None:
        """Reserve the *own* bytes that the body brings, and its part up to *extent*.

        *stays* = received bytes count at once, and stay if this server dies. None = it has room.
        """
        if part in self._leases:
            return None
        name = secrets.token_hex(8)
        lease = BodyLease(name, self._id, part, self._holder, extent, own, stays)
        refusal = await self._reserve(lease)
        if refusal is None:
            self._leases[part], self._came[part] = lease, 0
        return refusal

    async def _reserve(self, lease: BodyLease) -> NoRoom | None:
        refusal = await self._records.budget.reserve(lease)
        while refusal is not None and await self._records.make_room(lease, refusal):
            refusal = await self._records.budget.reserve(lease, lacked=refusal.lack)
        return refusal

    def has(self, part: int) -> bool:
        """Whether there is room for bytes of *part*."""
        return part in self._leases

    def keep(self, part: int, size: int) -> None:
        """Note that *size* bytes are in Redis or may be; they stay counted after the body."""
        if part in self._came:
            self._came[part] += size

    async def finish(self, part: int, *, slow: bool = False) -> None:
        """End the lease of *part*: its bytes have arrived."""
        if (lease := self._leases.pop(part, None)) is not None:
            came = max(self._came.get(part, 0), 0)
            await self._records.budget.finish(lease, came, slow=slow)

    async def watch(self, body: AsyncIterator[bytes]) -> AsyncGenerator[bytes]:
        """Yields *body*; before a piece, renews the leases if the last renewal is old.

        Raises BudgetFull, ShareFull.
        """
        async for data in body:
            self._arrived += len(data)
            if steady() - self._renewed_at > self._lasts * _UNHEARD:
                await self._renew()
                if self._refusal is not None:
                    # wait for the deadline, which is now
                    await asyncio.get_running_loop().create_future()
            yield data
        self._is_whole = True

    async def _renew_regularly(self) -> None:
        while True:
            await asyncio.sleep(self._lasts * _HOLD_AFTER)
            with suppress(ServerError):
                await self._renew()

    async def _renew(self) -> None:
        """Renew the leases, and end the body if it must give way or has lost its room."""
        arrived, now = self._arrived - self._measured, steady()
        enough = self._records.options.slowest * (now - self._measured_at)
        slow = arrived < enough and not self._is_whole
        self._measured, self._measured_at = self._arrived, now
        for lease in list(self._leases.values()):
            answer = await self._records.budget.hold(lease, slow=slow)
            if answer is HoldAnswer.GIVE_WAY:
                what = "its body arrived too slowly, and others need the room"
                after = math.ceil(self._lasts * _HOLD_AFTER)
                self._give_up(BodyGaveWay(self._id, (), after=after, what=what))
                return
            if answer is HoldAnswer.GONE and self._leases.get(lease.part) is lease:
                refusal = await self._reserve(lease)
                if refusal is not None:
                    self._give_up(refused(self._id, refusal))
                    return
        if self.tokens:
            await self._records.chunks(self._id).stay(self.tokens)
        self._renewed_at = now

    def _give_up(self, refusal: BudgetFull) -> None:
        if self._deadline is not None:
            self._refusal = refusal
            self._deadline.reschedule(asyncio.get_running_loop().time())

    async def _end(self, holding: asyncio.Task[None]) -> None:
        await asyncio.gather(holding, return_exceptions=True)
        enough = self._records.options.slowest * (steady() - self._began)
        slow = not self._is_whole and self._arrived < enough
        for part in list(self._leases):
            with suppress(ServerError):  # the lease expires
                await self.finish(part, slow=slow)


def refused(upload_id: str, refusal: NoRoom, missing: Sequence[Range] = ()) -> BudgetFull:
    """The error for a body that has no room."""
    kind = ShareFull if refusal.share else BudgetFull
    what = (
        "the uploads of this owner use their share of the budget"
        if refusal.share
        else "the budget has no room for another part"
    )
    return kind(upload_id, missing, after=refusal.after, what=what)
