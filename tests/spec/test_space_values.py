"""space: large values of a record, which are read and written without a script."""

import pytest

from tests.spec import parcels
from tests.spec.deployment import USER, Deployment
from towpath.engine.engine import Engine
from towpath.engine.space import Space

MEBIBYTE = 1024 * 1024


@pytest.fixture
def parcel_space(deployment: Deployment, engine: Engine) -> Space:
    """As a user with the necessary permissions on the keys of the space."""
    for master in deployment.masters:
        master.ask("ACL", "SETUSER", USER, "~parcel:*", "+append", "+getrange", "+psetex")
    return engine.space("parcel", parcels.SCRIPTS)


class TestLargeValues:
    @pytest.mark.parametrize("size", [1, 64 * 1024 - 1, 64 * 1024, MEBIBYTE])
    async def test_are_read_as_they_were_written(self, parcel_space: Space, size: int) -> None:
        parcel = parcel_space.at("p-1")
        one, other = bytes(size), memoryview(bytearray(b"\r\n" * size))
        await parcel.keep("piece:1", one, expiry=60_000)
        assert await parcel.extend("piece:1", other, expiry=60_000) == 3 * size
        await parcel.keep("piece:2", other, expiry=60_000)
        whole = one + bytes(other)
        assert await parcel.values(["piece:1", "none", "piece:2"]) == [whole, None, bytes(other)]
        assert await parcel.part("piece:1", size, 2 * size) == bytes(other)
        assert await parcel.part("piece:1", 3 * size, 1) == b""

    async def test_are_replaced_whole_and_expire(
        self, parcel_space: Space, deployment: Deployment
    ) -> None:
        parcel = parcel_space.at("p-1")
        await parcel.keep("piece:1", b"aa", expiry=60_000)
        await parcel.keep("piece:1", b"b", expiry=60_000)
        assert await parcel.values(["piece:1"]) == [b"b"]
        assert await parcel.extend("piece:2", b"c", expiry=60_000) == 1
        times = [deployment.ask("PTTL", f"parcel:{{p-1}}:piece:{number}") for number in (1, 2)]
        assert all(isinstance(time, int) and 0 < time <= 60_000 for time in times)
