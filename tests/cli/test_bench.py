"""`towpath bench`: figures, and nothing left behind."""

from tests.cli.command import Command
from towpath.embedded import EmbeddedServer


def test_every_step_is_measured_and_the_queue_is_deleted(
    towpath: Command, server: EmbeddedServer
) -> None:
    ran = towpath("bench", "--jobs", "1000", "--json")
    assert [(row["step"], row["jobs"]) for row in ran.objects] == [
        ("submit one by one", 100),
        ("claim and complete, one", 100),
        ("submit in bulk", 1000),
        ("claim and complete, batch", 1000),
    ]
    assert all(row["per_second"] > 0 and row["p50_ms"] <= row["p99_ms"] for row in ran.objects)
    left = server.ask("KEYS", "*")
    assert isinstance(left, list)
    # Notes about calls expire by themselves.
    assert [key for key in left if b":call:" not in bytes(str(key), "utf-8")] == []


def test_a_redis_on_another_machine_is_not_used_without_yes(towpath: Command) -> None:
    ran = towpath("bench", "--json", TOWPATH_URL="redis://queue.example:6379")
    assert (ran.code, ran.refusal["refused"]) == (2, "not_confirmed")
    assert "queue.example" in ran.refusal["message"]
