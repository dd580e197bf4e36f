"""Charts over time and time lines, in the browser and drawn from numbers."""

import re
from datetime import UTC, datetime, timedelta
from typing import Any

from playwright.sync_api import expect

from tests.dashboard.browsing import Tab
from tests.dashboard.sessions import SessionClient
from tests.server.serving import Api
from towpath.clock import hours, minutes, seconds
from towpath.dashboard.charts import (
    HEIGHT,
    ROWS_MOST,
    RUNS_MOST,
    WIDTH,
    charts,
    coming,
    path_of,
)
from towpath.engine.history import History, sum_columns
from towpath.engine.schedule import Cron, Every, Schedule
from towpath.engine.stored_schedules import ScheduleInfo, ScheduleSource
from towpath.ids import queue_name

MINUTE = minutes(1)
NOON = datetime(2026, 3, 1, 12, tzinfo=UTC)


def history(count: int, step: timedelta = MINUTE, **columns: list[int]) -> History:
    nought: dict[str, list[int]] = {
        name: [0] * count
        for name in ("submitted", "completed", "failed", "died", "ready", "delayed", "waiting")
    }
    rest = {"leased": [0] * count, "dead": [0] * count}
    given = nought | rest | columns
    return History(begins=NOON, step=step, oldest=[None] * count, **given)


class TestAChart:
    def test_goes_from_left_to_right_and_uses_its_whole_height(self) -> None:
        assert path_of([0, 5, 10], 10) == f"M0.0 120.0 L300.0 62.0 L{WIDTH}.0 4.0"
        assert path_of([0, 0], 0) == f"M0.0 {HEIGHT}.0 L{WIDTH}.0 {HEIGHT}.0"

    def test_says_in_words_what_it_shows(self) -> None:
        drawn = charts(history(3, submitted=[4, 1, 2], ready=[0, 3, 1]))
        rates, depth, oldest, failures = drawn.charts
        for chart, name, now, most in (
            (rates, "submitted", "2", "4"),
            (depth, "ready", "1", "3"),
            (oldest, "oldest", "\u2013", "\u2013"),
            (failures, "died", "0", "0"),
        ):
            [line] = [line for line in chart.lines if line.name == name]
            assert (line.now, line.most) == (now, most)
            [part] = [part for part in chart.words.split(";") if f"{name}:" in part]
            assert re.findall(r"\d+|\u2013", part) == [now, most]
        assert drawn.ends - drawn.begins == minutes(3)

    def test_of_a_day_has_fewer_points_and_the_same_peaks(self) -> None:
        ready = [0] * 1440
        ready[700] = 99
        [_, depth, *_] = charts(history(1440, ready=ready, submitted=[6] * 1440)).charts
        assert depth.lines[0].path.count("L") == 239
        assert depth.lines[0].most == "99"

    def test_of_hours_shows_rates_per_minute(self) -> None:
        [rates, *_] = charts(history(48, hours(1), submitted=[120] * 48)).charts
        assert rates.lines[0].now == "2"

    def test_of_several_queues_is_their_sum(self) -> None:
        whole = sum_columns([history(2, ready=[1, 2]), history(2, ready=[10, 20])])
        assert whole is not None
        assert (whole.ready, whole.oldest) == ([11, 22], [None, None])
        assert sum_columns([]) is None


def scheduled(name: str, when: Schedule | None, **more: Any) -> ScheduleInfo:
    first = next(when.after(NOON)) if when else NOON + minutes(1)
    given: dict[str, Any] = {"next": first, "source": ScheduleSource.STORED, "about": "", **more}
    return ScheduleInfo(queue=queue_name("q"), name=name, when=when, **given)


class TestTheTimeLineOfSchedules:
    def test_has_every_firing_at_its_place_and_the_soonest_schedule_first(self) -> None:
        found = coming(
            [scheduled("six", Every(hours(6))), scheduled("at 15", Cron("0 15 * * *"))], NOON, "day"
        )
        assert found.ends == NOON + hours(24)
        assert [(row.name, row.many) for row in found.rows] == [
            ("at 15", "1 run"),
            ("six", "4 runs"),
        ]
        assert [row.path for row in found.rows] == [
            "M75.0 3 V17",
            "M150.0 3 V17 M300.0 3 V17 M450.0 3 V17 M600.0 3 V17",
        ]

    def test_says_in_words_what_it_shows(self) -> None:
        [row] = coming([scheduled("six", Every(hours(6)))], NOON, "day").rows
        assert row.words == "4 runs: 18:00, 00:00, 06:00, 12:00 UTC"
        [row] = coming([scheduled("ten", Every(minutes(10)))], NOON, "hour").rows
        assert row.words == "6 runs: 12:10:00, 12:20:00, 12:30:00, 12:40:00, 12:50:00 … UTC"
        [row] = coming([scheduled("daily", Cron("0 3 * * *", "Asia/Tokyo"))], NOON, "week").rows
        assert row.words.startswith("7 runs: Sun 18:00, Mon 18:00")

    def test_shows_a_frequent_schedule_as_a_bar_without_computing_each_firing(self) -> None:
        """Sixty runs are drawn; of a week of seconds no more than 61 are reckoned."""
        found = coming([scheduled("second", Every(seconds(1)))], NOON, "week")
        [row] = found.rows
        assert (row.dense, row.many) == (True, f"more than {RUNS_MOST} runs")
        assert row.path == f"M0.0 10 H{WIDTH}"
        [row] = coming([scheduled("minute", Every(minutes(1)))], NOON, "hour").rows
        assert (row.dense, row.many, row.path.count("M")) == (False, "60 runs", 60)

    def test_draws_no_more_than_forty_and_counts_the_others(self) -> None:
        many = [scheduled(f"s{n:03}", Every(minutes(n + 1))) for n in range(55)]
        late = [scheduled(f"late{n}", Cron("0 3 1 1 *")) for n in range(3)]
        found = coming([*late, *many], NOON, "hour")
        assert (len(found.rows), found.undrawn, found.later) == (ROWS_MOST, 15, 3)
        assert found.rows[0].name == "s000"

    def test_leaves_out_paused_and_ended_schedules_and_keeps_overdue_ones(self) -> None:
        found = coming(
            [
                scheduled("paused", Every(minutes(1)), paused=True),
                scheduled("never", None, next=None),
                scheduled("newer release", None),
                scheduled("overdue", Cron("0 3 * * *"), next=NOON - hours(9)),
            ],
            NOON,
            "day",
        )
        assert [(row.name, row.path) for row in found.rows] == [
            ("overdue", "M0.0 3 V17 M375.0 3 V17"),
            ("newer release", "M0.4 3 V17"),
        ]
        assert coming([], NOON, "day").rows == []


class TestOnThePages:
    def test_a_queues_last_hour_is_drawn(self, tab: Tab, api: Api) -> None:
        for n in range(3):
            api.submit(n)
        page = tab.go(f"/ui/queues/{api.queue}")
        rates = page.get_by_role("img", name="Jobs a minute")
        expect(rates).to_be_visible()
        assert re.search(r"submitted\D+3\D+3\b", rates.get_attribute("aria-label") or "")
        expect(page.locator(".chart path.line")).to_have_count(9)
        page.click("text=Last month")
        expect(page.locator(".spans [aria-current]")).to_have_text("Last month")
        assert tab.complaints == []

    def test_the_overview_draws_all_queues(self, tab: Tab, api: Api) -> None:
        api.submit(1)
        page = tab.go("/")
        expect(page.get_by_role("img", name="Failures a minute")).to_be_visible()
        assert tab.complaints == []

    def test_a_jobs_attempts_are_on_its_time_line(self, tab: Tab, api: Api) -> None:
        api.submit(id="twice")
        for n in range(2):
            [job] = api.claim()
            api.say("fail", job, reason=f"no answer {n}", dead=n == 1, delay=0)
        page = tab.go(f"/ui/queues/{api.queue}/jobs/twice")
        steps = page.locator(".timeline li b")
        expect(steps.first).to_have_text("submitted")
        expect(steps.last).to_have_text("dead")
        expect(page.locator(".timeline li.failed")).to_have_count(2)

    def test_schedules_show_their_coming_runs(self, tab: Tab, api: Api) -> None:
        for name, when in {"often": {"every": 1}, "six": {"every": 21600}}.items():
            path = f"/api/v1/schedules/{api.queue}/{name}"
            api.client.put(path, json={"payload": 1, **when}).raise_for_status()
        page = tab.go("/ui/schedules")
        mine = page.locator(".runs li").filter(has_text=api.queue)
        expect(mine).to_have_count(2)
        six = mine.get_by_role("img", name="six: 4 runs")
        assert (six.locator("path.at").get_attribute("d") or "").count("M") == 4
        expect(mine.locator("path.dense")).to_have_count(1)
        page.click("text=Next hour")
        expect(page.locator(".spans [aria-current]")).to_have_text("Next hour")
        assert tab.fits()
        assert tab.faults() == []
        assert tab.complaints == []
        for name in ("often", "six"):
            api.client.delete(f"/api/v1/schedules/{api.queue}/{name}").raise_for_status()

    def test_an_unknown_time_window_is_refused(self, admin: SessionClient) -> None:
        admin.look("/ui/schedules", 422, within="year")

    def test_an_unknown_period_is_refused(self, admin: SessionClient, api: Api) -> None:
        api.submit(1)
        admin.look(f"/ui/queues/{api.queue}", 422, last="year")
        admin.look(f"/ui/queues/{api.queue}", last="day")
