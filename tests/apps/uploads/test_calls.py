"""How often a body asks Redis: its room costs two calls, one before it and one behind it."""

from collections import Counter
from collections.abc import Awaitable, Callable
from typing import Any

import pytest

from tests.apps.uploads.uploading import UploadServices, in_pieces
from towpath.apps.uploads.appending import Appending
from towpath.apps.uploads.options import KIB, MIB
from towpath.apps.uploads.service import View
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


@pytest.fixture
def calls(monkeypatch: pytest.MonkeyPatch) -> Counter[str]:
    """Calls to Redis by the name of the script or command."""
    found = Counter[str]()

    def counted(name: str) -> None:
        real = getattr(SpaceRecord, name)

        async def call(*args: Any, **more: Any) -> Any:
            found[args[1] if name in ("run", "read") else name] += 1
            return await real(*args, **more)

        monkeypatch.setattr(SpaceRecord, name, call)

    for name in ("run", "read", "keep", "extend"):
        counted(name)
    return found


@pytest.mark.parametrize(
    ("sending", "chunk", "wanted"),
    [
        (alone, P, "admit reserve keep extend*7 put place finish"),
        (alone, 64 * KIB, "admit reserve keep put place finish"),
        (together, MIB, "admit reserve keep*8 put*8 place*8 finish"),
        (appended, P, "front staged reserve append*8 put place finish"),
    ],
    ids=["alone", "alone, small", "together", "appended"],
)
async def test_a_body_asks_redis_so_often(
    uploads: UploadServices, calls: Counter[str], sending: Sending, chunk: int, wanted: str
) -> None:
    view = await uploads.start(size=P, chunk_size=chunk)
    calls.clear()
    await sending(uploads, view)
    told = Counter({word.split("*")[0]: int(f"{word}*1".split("*")[1]) for word in wanted.split()})
    assert calls == told
