"""Snapshots of keys: an expired key is no change, everything else is."""

import pytest

from tests.faults.redis_dump import changed, dump
from tests.key_snapshot import KeySnapshot
from tests.spec.deployment import Deployment
from tests.waiting import eventually
from towpath.embedded import EmbeddedServer


def dumped(taken_ms: int, keys: dict[str, tuple[bytes, int]]) -> KeySnapshot[str, bytes]:
    found = KeySnapshot[str, bytes](taken_ms)
    for key, (value, ttl_ms) in keys.items():
        found.note(key, value, taken_ms, ttl_ms)
    return found


BEFORE = dumped(1000, {"brief": (b"b", 10), "lasting": (b"l", -1)})


class TestAKeyThatIsGone:
    def test_is_no_change_if_it_has_expired(self) -> None:
        after = dumped(1010, {"lasting": (b"l", -1)})
        assert BEFORE.changed(after) == set()
        assert after == BEFORE
        assert after == BEFORE

    def test_is_a_change_before_its_expiry(self) -> None:
        after = dumped(1009, {"lasting": (b"l", -1)})
        assert BEFORE.changed(after) == {"brief"}
        assert after != BEFORE
        assert after != BEFORE

    def test_is_a_change_if_it_had_no_time_to_live(self) -> None:
        assert BEFORE.changed(dumped(10**6, {})) == {"lasting"}


@pytest.mark.parametrize("taken_ms", [1001, 10**6])
def test_a_key_that_is_new_or_has_another_value_is_a_change(taken_ms: int) -> None:
    keys = {"brief": (b"B", 10), "lasting": (b"l", -1), "new": (b"n", 10)}
    assert BEFORE.changed(dumped(taken_ms, keys)) == {"brief", "new"}


def test_snapshots_know_which_keys_expire(server: EmbeddedServer) -> None:
    server.ask("SET", "brief", "x", "PX", 200)
    server.ask("SET", "lasting", "x")
    whole, plain = dump(server), Deployment(server.url, (server,))
    held = plain.dump()
    eventually(lambda: server.ask("EXISTS", "brief") == 0)
    assert changed(whole, dump(server)) == set()
    assert held == plain.dump()
    server.ask("DEL", "lasting")
    assert changed(whole, dump(server)) == {b"lasting"}
    assert held != plain.dump()
