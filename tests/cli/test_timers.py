"""`towpath timers`: the command itself; no server runs."""

from datetime import UTC, datetime
from typing import Any

from tests.cli.command import Command
from towpath.apps.timers.log import FiringLog, FiringOutcome, firing_of
from towpath.apps.timers.model import TypeKey
from towpath.apps.timers.options import TimersOptions
from towpath.clock import seconds
from towpath.engine.engine import Engine

LATER = "2040-01-01T00:00:00Z"
WRONG = [
    (),
    ("--delay", "1h", "--due", LATER),
    ("--delay", "-1h"),
    ("--delay", "soon"),
    ("--due", "tomorrow"),
    ("--delay-time", "1794787200"),
    ("--delay-time", "1794787200123456789"),
    ("--delay", "1h", "--retry", "sometimes"),
    ("--delay", "1h", "--id", ""),
    ("--delay", "1h", "nonsense"),
]
"""Timers that nobody can have meant."""


def submit(towpath: Command, id: str, *words: str, type: str = "order.timeout") -> Any:
    ran = towpath("timers", "submit", type, '{"order": 7}', "--id", id, *words, "--json")
    assert ran.code == 0, ran.err
    return ran.object


def test_a_timer_is_submitted_and_shown(towpath: Command) -> None:
    made = submit(towpath, "order-7", "--due", LATER)
    assert (made["task_id"], made["state"], made["existed"]) == ("order-7", "delayed", False)
    assert made["delay_time"] == round(datetime(2040, 1, 1, tzinfo=UTC).timestamp() * 1000)
    shown = towpath("timers", "show", "order.timeout", "order-7", "--json").object
    assert shown["params"] == {"order": 7}
    assert "no worker serves the type now" in shown["why"]
    people = towpath("timers", "show", "order.timeout", "order-7").out
    assert "delayed" in people
    assert "2040-01-01" in people
    assert '{"order":7}' in people


def test_a_repeat_has_no_effect_and_other_content_is_refused(towpath: Command) -> None:
    submit(towpath, "x", "--delay", "1h")
    assert submit(towpath, "x", "--delay", "1h")["existed"] is True
    words = ("timers", "submit", "order.timeout", "[]", "--id", "x", "--delay", "1h")
    refused = towpath(*words)
    assert refused.code == 4
    assert "timer_differs" in refused.err
    assert "`set`" in refused.err


def test_a_timer_is_set_moved_and_cancelled(towpath: Command) -> None:
    submit(towpath, "x", "--delay", "1h", type="取消/订单")
    moved = towpath("timers", "move", "取消/订单", "x", "nobody", "--due", LATER, "--json")
    assert moved.code == 5
    assert moved.object["due"] == LATER
    assert "timer_not_found" in moved.err
    cancelled = towpath("timers", "cancel", "取消/订单", "x", "--json")
    assert cancelled.object["state"] == "cancelled"
    again = towpath("timers", "submit", "取消/订单", "--id", "x", "--delay", "1h")
    assert (again.code, "timer_ended" in again.err) == (4, True)
    words = ("timers", "set", "取消/订单", "x", "call Anna", "--text", "--delay", "1h", "--json")
    made = towpath(*words).object
    assert (made["state"], made["existed"]) == ("delayed", False)
    assert towpath("timers", "show", "取消/订单", "x", "--json").object["params"] == "call Anna"


def test_params_are_read_from_a_file_and_from_standard_input(towpath: Command) -> None:
    (towpath.directory / "order.json").write_text('{"order": 8}')
    words = ("timers", "submit", "t", "@order.json", "--id", "a", "--delay", "1h")
    assert towpath(*words).code == 0
    assert (
        towpath("timers", "submit", "t", "-", "--id", "b", "--delay", "1h", input="[9]").code == 0
    )
    shown = [towpath("timers", "show", "t", id, "--json").object["params"] for id in "ab"]
    assert shown == [{"order": 8}, [9]]


def test_an_invalid_timer_is_refused_before_anything_is_sent(towpath: Command) -> None:
    for words in WRONG:
        assert towpath("timers", "submit", "t", *words).code == 2, words
    assert towpath("timers", "types", "--json").objects == []


def test_timers_are_listed_in_pages_and_by_filters(towpath: Command) -> None:
    for number in range(3):
        submit(towpath, f"a{number}", "--due", f"204{number}-01-01T00:00:00Z", type="a")
    submit(towpath, "b", "--due", LATER, "--app", "shop", type="b")

    def ids(*words: str) -> list[str]:
        ran = towpath("timers", "list", *words, "--json")
        assert ran.code == 0, ran.err
        return [timer["task_id"] for timer in ran.objects]

    assert ids() == ["a0", "a1", "a2", "b"]
    assert ids("--type", "a", "--since", "2041-01-01T00:00:00Z") == ["a1", "a2"]
    assert ids("--app", "shop", "--state", "delayed") == ["b"]
    first = towpath("timers", "list", "--limit", "3")
    assert "a2" in first.out
    assert "more: towpath timers list --limit 3 --after " in first.err
    assert ids("--limit", "3", "--after", first.err.split()[-1]) == ["b"]
    assert towpath("timers", "list", "--state", "never").code == 2
    assert "no such timers" in towpath("timers", "list", "--type", "c").err


def test_types_without_a_worker_are_listed_as_such(towpath: Command) -> None:
    submit(towpath, "x", "--delay", "1h", type="取消 订单")
    ran = towpath("timers", "types")
    assert "取消 订单" in ran.out
    assert "no worker" in ran.out
    assert towpath("timers", "types", "--json").object["waiting"] == 1


async def test_the_log_shows_what_ran(towpath: Command, engine: Engine) -> None:
    log = FiringLog(engine, TimersOptions())
    now = 1_794_787_200_000
    firing = firing_of(
        "x", FiringOutcome.FAILED, due_ms=now, started_ms=now + 5, ran=0.25, attempt=2, worker="w1",
        reason="no luck",
    )  # fmt: skip
    log.add(TypeKey("t"), [firing])
    await log.close()
    told = towpath("timers", "log", "t", "--json").object
    assert (told["task_id"], told["outcome"], told["attempt"]) == ("x", "failed", 2)
    assert (told["late"], told["ran"], told["worker"]) == (0.005, 0.25, "w1")
    people = towpath("timers", "log", "t").out
    assert "no luck" in people
    assert "5 ms" in people
    assert "nothing of this type has run" in towpath("timers", "log", "u").err
    assert seconds(0.005).total_seconds() == told["late"]


def test_a_recorded_timer_needs_a_database(towpath: Command) -> None:
    ran = towpath("timers", "submit", "t", "--delay", "1h", "--record")
    assert ran.code == 2
    assert "database" in ran.err
