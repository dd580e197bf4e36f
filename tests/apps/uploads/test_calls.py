"""How often Redis is called for a body, and for how many of these calls the body waits."""

from collections import Counter
from collections.abc import Awaitable, Callable
from typing import Any

import pytest

from tests.apps.uploads.uploading import UploadServices, in_pieces
from towpath.apps.uploads.appending import Appending
from towpath.apps.uploads.options import KIB, MIB
from towpath.apps.uploads.service import View
from towpath.engine.engine import Engine
from towpath.engine.space import SpaceRecord

P = 8 * MIB
"""One part."""
Sending = Callable[[UploadServices, View], Awaitable[object]]


async def alone(uploads: UploadServices, view: View) -> object:
    return await uploads.put(view, 0, bytes(view.upload.chunk_size))


async def together(uploads: UploadServices, view: View) -> object:
    return await uploads.put(view, 0, bytes(P), count=P // view.upload.chunk_size)


async def appended(uploads: UploadServices, view: View) -> object:
    body, id = in_pieces(bytes(P)), view.upload.upload_id
    return await Appending(uploads.service).append(id, 0, body, holder="key", length=P)


class RedisCalls:
    """The calls to Redis by the name of the script or command, and the round trips that they took.

    Calls that are under way at the same time share a round trip.
    """

    def __init__(self) -> None:
        self.names, self.round_trips, self._under_way = Counter[str](), 0, 0

    async def call(self, name: str, send: Callable[[], Awaitable[Any]]) -> Any:
        self.names[name] += 1
        self.round_trips += not self._under_way
        self._under_way += 1
        try:
            return await send()
        finally:
            self._under_way -= 1

    def clear(self) -> None:
        self.names.clear()
        self.round_trips = 0


@pytest.fixture
def calls(monkeypatch: pytest.MonkeyPatch) -> RedisCalls:
    found = RedisCalls()

    def count(kind: type, name: str) -> None:
        real = getattr(kind, name)

        async def call(*args: Any, **more: Any) -> Any:
            called = args[1] if name in ("run", "read") else name
            return await found.call(called, lambda: real(*args, **more))

        monkeypatch.setattr(kind, name, call)

    for name in ("run", "read", "keep", "extend"):
        count(SpaceRecord, name)
    for name in ("broadcast", "submit"):
        count(Engine, name)
    return found


@pytest.mark.parametrize(
    ("sending", "chunk", "names", "round_trips"),
    [
        (alone, P, "admit reserve keep extend*3 put place finish broadcast submit", 9),
        (alone, 64 * KIB, "admit reserve keep put place finish broadcast", 6),
        (together, MIB, "admit reserve keep*8 put*8 place*8 finish broadcast*8 submit", 34),
        (
            appended,
            P,
            "progress staged_size reserve append*8 put place finish broadcast submit",
            14,
        ),
    ],
    ids=["alone", "alone, small", "together", "appended"],
)
async def test_a_body_makes_a_fixed_number_of_calls_to_redis(  # noqa: PLR0917 -- two fixtures and a row of the table
    uploads: UploadServices,
    calls: RedisCalls,
    sending: Sending,
    chunk: int,
    names: str,
    round_trips: int,
) -> None:
    view = await uploads.start(size=P, chunk_size=chunk)
    calls.clear()
    await sending(uploads, view)
    wanted = (word.partition("*") for word in names.split())
    assert calls.names == Counter({name: int(times or 1) for name, _, times in wanted})
    assert calls.round_trips == round_trips
