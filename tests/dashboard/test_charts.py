"""Charts over time and time lines, in the browser and drawn from numbers."""

from datetime import UTC, datetime, timedelta

from playwright.sync_api import expect

from tests.dashboard.browsing import Tab
from tests.dashboard.visiting import Visitor
from tests.server.serving import Api
from towpath.clock import hours, minutes
from towpath.dashboard.charts import HEIGHT, WIDTH, charts, marks, path_of
from towpath.engine.history import History, summed

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
    def test_goes_from_left_to_right_and_up_to_its_top(self) -> None:
        assert path_of([0, 5, 10], 10) == f"M0.0 120.0 L300.0 62.0 L{WIDTH}.0 4.0"
        assert path_of([0, 0], 0) == f"M0.0 {HEIGHT}.0 L{WIDTH}.0 {HEIGHT}.0"

    def test_says_in_words_what_it_shows(self) -> None:
        drawn = charts(history(3, submitted=[4, 1, 2], ready=[0, 3, 1]))
        rates, depth, oldest, failures = drawn.charts
        assert "submitted: 2 now, at most 4" in rates.words
        assert "ready: 1 now, at most 3" in depth.words
        assert "oldest: \u2013 now" in oldest.words
        assert "died: 0 now, at most 0" in failures.words
        assert drawn.ends - drawn.begins == minutes(3)

    def test_of_a_day_has_fewer_points_and_the_same_peaks(self) -> None:
        ready = [0] * 1440
        ready[700] = 99
        [_, depth, *_] = charts(history(1440, ready=ready, submitted=[6] * 1440)).charts
        assert depth.lines[0].path.count("L") == 239
        assert depth.lines[0].most == "99"

    def test_of_hours_tells_rates_a_minute(self) -> None:
        [rates, *_] = charts(history(48, hours(1), submitted=[120] * 48)).charts
        assert rates.lines[0].now == "2"

    def test_of_several_queues_is_their_sum(self) -> None:
        whole = summed([history(2, ready=[1, 2]), history(2, ready=[10, 20])])
        assert whole is not None
        assert (whole.ready, whole.oldest) == ([11, 22], [None, None])
        assert summed([]) is None


class TestTheTimeLineOfSchedules:
    def test_has_each_next_firing_at_its_place(self) -> None:
        nexts = [(NOON + hours(3), "a", "later"), (NOON + minutes(90), "b", "sooner")]
        found, ends = marks([*nexts, (NOON - minutes(1), "c", "due")], NOON)
        assert ends == NOON + hours(6)
        assert [(it.name, it.x) for it in found] == [("due", 0), ("sooner", 150), ("later", 300)]
        assert marks([], NOON)[0] == []


class TestOnThePages:
    def test_a_queue_s_last_hour_is_drawn(self, tab: Tab, api: Api) -> None:
        for n in range(3):
            api.submit(n)
        page = tab.go(f"/ui/queues/{api.queue}")
        rates = page.get_by_role("img", name="Jobs a minute")
        expect(rates).to_be_visible()
        assert "submitted: 3 now, at most 3" in (rates.get_attribute("aria-label") or "")
        expect(page.locator(".chart path.line")).to_have_count(9)
        page.click("text=Last month")
        expect(page.locator(".spans [aria-current]")).to_have_text("Last month")
        assert tab.complaints == []

    def test_the_overview_draws_all_queues(self, tab: Tab, api: Api) -> None:
        api.submit(1)
        page = tab.go("/")
        expect(page.get_by_role("img", name="Failures a minute")).to_be_visible()
        assert tab.complaints == []

    def test_a_job_s_attempts_are_on_its_time_line(self, tab: Tab, api: Api) -> None:
        api.submit(id="twice")
        for n in range(2):
            [job] = api.claim()
            api.say("fail", job, reason=f"no answer {n}", dead=n == 1, delay=0)
        page = tab.go(f"/ui/queues/{api.queue}/jobs/twice")
        steps = page.locator(".timeline li b")
        expect(steps.first).to_have_text("submitted")
        expect(steps.last).to_have_text("dead")
        expect(page.locator(".timeline li.failed")).to_have_count(2)

    def test_another_span_is_refused(self, admin: Visitor, api: Api) -> None:
        api.submit(1)
        admin.look(f"/ui/queues/{api.queue}", 422, last="year")
        admin.look(f"/ui/queues/{api.queue}", last="day")
