"""`towpath.recent`: a cache of limited size whose entries end."""

from towpath.recent import RecentCache


class Clock:
    def __init__(self) -> None:
        self.now = 100.0

    def ticks(self) -> float:
        return self.now


def test_a_value_is_returned_until_its_time_has_passed() -> None:
    clock = Clock()
    cache = RecentCache[str, int](10, 5.0, ticks=clock.ticks)
    cache.put("a", 1)
    clock.now += 4.9
    assert cache.get("a") == 1
    clock.now += 0.2
    assert cache.get("a") is None
    assert "a" in cache


def test_the_time_of_a_value_can_begin_before_it_was_stored() -> None:
    clock = Clock()
    cache = RecentCache[str, int](10, 5.0, ticks=clock.ticks)
    cache.put("a", 1, since=clock.now - 4)
    clock.now += 1.1
    assert cache.get("a") is None


def test_without_a_time_values_do_not_end() -> None:
    clock = Clock()
    cache = RecentCache[str, int](10, ticks=clock.ticks)
    cache.put("a", 1)
    clock.now += 1e9
    assert cache.get("a") == 1


def test_a_full_cache_drops_the_value_that_was_used_least_recently() -> None:
    cache = RecentCache[str, int](2)
    assert cache.put("a", 1) is None
    assert cache.put("b", 2) is None
    assert cache.get("a") == 1
    assert cache.put("c", 3) == 2
    assert [cache.get(key) for key in "abc"] == [1, None, 3]
    assert len(cache) == 2


def test_storing_a_key_again_drops_no_other() -> None:
    cache = RecentCache[str, int](2)
    cache.put("a", 1)
    cache.put("b", 2)
    assert cache.put("a", 3) is None
    assert cache.put("c", 4) == 2
    assert cache.pop("a") == 3
    assert cache.pop("a") is None
    cache.clear()
    assert len(cache) == 0
