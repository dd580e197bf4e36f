"""The numbers of the demo: each kind of fault has a number of its own."""

import json
from pathlib import Path

from towpath.demo import results
from towpath.demo.results import Note, Row

ANN = [("ann", 1), ("ann", 2)]


def told(*steps: tuple[str, int]) -> list[Note]:
    """The history of one user's messages, one step per millisecond."""
    return [
        {"what": f"message.{what}", "user": "ann", "number": number, "at": at, "token": at}
        for at, (what, number) in enumerate(steps)
    ]


IN_ORDER = told(("begun", 1), ("ended", 1), ("begun", 2), ("ended", 2))


class TestMessages:
    def test_messages_in_order_are_no_fault(self) -> None:
        row = results.count_messages(IN_ORDER, ANN, ANN, completed=2)
        assert (row.sent, row.done, row.lost, row.doubled, row.again) == (2, 2, 0, 0, 0)
        assert row.misordered == 0
        assert row.kept

    def test_a_message_without_an_answer_is_lost(self) -> None:
        row = results.count_messages(IN_ORDER[:2], ANN, ANN[:1], completed=1)
        assert (row.lost, row.kept) == (1, False)

    def test_a_message_that_is_answered_without_an_attempt_is_lost(self) -> None:
        assert results.count_messages(IN_ORDER[:2], ANN, ANN, completed=2).lost == 1

    def test_a_message_that_is_completed_twice_is_doubled(self) -> None:
        row = results.count_messages(IN_ORDER, ANN, ANN, completed=3)
        assert (row.doubled, row.kept) == (1, False)

    def test_a_message_that_is_begun_again_after_a_crash_is_no_fault(self) -> None:
        notes = told(("begun", 1), ("begun", 1), ("ended", 1), ("begun", 2), ("ended", 2))
        row = results.count_messages(notes, ANN, ANN, completed=2)
        assert (row.again, row.misordered, row.kept) == (1, 0, True)

    def test_a_message_that_is_begun_before_the_end_of_its_predecessor_is_out_of_order(
        self,
    ) -> None:
        notes = told(("begun", 1), ("begun", 2), ("ended", 1), ("ended", 2))
        row = results.count_messages(notes, ANN, ANN, completed=2)
        assert (row.misordered, row.kept) == (1, False)

    def test_a_message_that_is_begun_again_after_a_later_one_is_out_of_order(self) -> None:
        steps = [("begun", 1), ("ended", 1), ("begun", 2), ("ended", 2), ("begun", 1)]
        row = results.count_messages(told(*steps), ANN, ANN, completed=2)
        assert (row.misordered, row.kept) == (1, False)

    def test_an_abandoned_attempt_that_goes_on_late_is_recognised_by_its_token(self) -> None:
        late = [{**fact, "at": 9} for fact in told(("begun", 1))]
        row = results.count_messages([*IN_ORDER, *late], ANN, ANN, completed=2)
        assert (row.again, row.misordered, row.kept) == (1, 0, True)


def fired(number: int, *, at: int, due: int) -> Note:
    return {"what": "timer", "number": number, "at": at, "due": due, "pid": 1}


class TestTimers:
    def test_the_latest_timer_gives_the_delay(self) -> None:
        notes = [fired(1, at=1_010, due=1_000), fired(2, at=1_250, due=1_000)]
        row = results.count_timers(notes, [1, 2], completed=2)
        assert (row.done, row.late, row.kept) == (2, 0.25, True)

    def test_a_timer_that_never_ran_is_lost(self) -> None:
        assert results.count_timers([fired(1, at=1, due=1)], [1, 2], completed=1).lost == 1

    def test_a_timer_that_ran_before_its_time_is_out_of_order(self) -> None:
        row = results.count_timers([fired(1, at=999, due=1_000)], [1], completed=1)
        assert (row.misordered, row.kept) == (1, False)

    def test_a_timer_that_is_completed_twice_is_doubled(self) -> None:
        notes = [fired(1, at=1, due=1), fired(1, at=2, due=1)]
        row = results.count_timers(notes, [1], completed=2)
        assert (row.doubled, row.again) == (1, 1)


class TestOtherApplications:
    def test_a_review_is_done_once_github_has_it(self) -> None:
        assert results.count_reviews(["a", "b"], ["a", "b"], ["a"]).lost == 1

    def test_a_review_that_is_on_github_twice_is_doubled(self) -> None:
        assert results.count_reviews(["a"], ["a"], ["a", "a"]).doubled == 1

    def test_a_file_is_done_if_it_is_stored_as_it_was_sent(self) -> None:
        row = results.count_uploads(["a", "b"], ["a", "b", "b"], ["a"])
        assert (row.lost, row.doubled) == (1, 1)

    def test_an_issue_is_done_by_one_agent(self) -> None:
        row = results.count_issues([1, 2, 3], [1, 1, 2], agents=2, taken=4)
        assert (row.done, row.lost, row.doubled, row.again) == (2, 1, 1, 2)


def test_a_truncated_line_is_left_out(tmp_path: Path) -> None:
    """Its process was killed while it wrote."""
    whole = json.dumps({"what": "timer", "at": 1})
    (tmp_path / "7.notes").write_text(f'{whole}\n{{"what": "ti')
    assert results.read_notes(tmp_path) == [{"what": "timer", "at": 1}]


def test_every_column_has_a_value() -> None:
    row = Row(application="a", what="b", sent=1, done=1, doubled=0, late=0.0125)
    assert len(results.cells(row)) == len(results.COLUMNS)
    assert results.cells(row)[-1] == "12 ms"
