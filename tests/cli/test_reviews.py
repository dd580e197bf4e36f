"""`towpath reviews`, on a database of its own; no server runs."""

import asyncio
import json
import re

import pytest

from tests.apps.reviews.reviewing import a_comment, a_review, a_task
from tests.cli.command import Command
from towpath.apps.reviews.model import POSTS, REVIEWS, Forge
from towpath.apps.reviews.service import Reviews
from towpath.engine.model import Bury, Complete, Lease, Settlement, job_ref
from towpath.ids import Token
from towpath.ledger.ledger import Ledger
from towpath.ledger.records.attempts import Ending

HEAD = "a1" * 20


@pytest.fixture
def reviews(without_redis: Command) -> Command:
    return without_redis


def end(
    reviews: Command, id: str, result: bytes | None, *, queue: str = REVIEWS, why: str = "no luck"
) -> None:
    """Ends an attempt with *result*; None = it is dead."""

    async def end() -> None:
        async with Ledger(reviews.env["DATABASE_URL"]) as ledger:
            lease = await begun(ledger, queue, id)
            word: Settlement = Bury(lease, why) if result is None else Complete(lease, result)
            await ledger.jobs.end(Ending(lease, word, cancelled=False))

    asyncio.run(end())


def begin(reviews: Command, id: str) -> None:
    """Begins an attempt that goes on."""

    async def begin() -> None:
        async with Ledger(reviews.env["DATABASE_URL"]) as ledger:
            await begun(ledger, REVIEWS, id)

    asyncio.run(begin())


async def begun(ledger: Ledger, queue: str, id: str) -> Lease:
    job = (await ledger.jobs.get(queue, id)).job
    lease = Lease(job_ref(queue, job), b"", Token(1), 1, "w", 0, 0)
    await ledger.jobs.begin(lease)
    return lease


def posted(reviews: Command, id: str) -> None:
    """The record of a posting."""

    async def submit() -> None:
        async with Ledger(reviews.env["DATABASE_URL"]) as ledger:
            await ledger.jobs.submit(POSTS, b"{}", id=id)

    asyncio.run(submit())


def made(reviews: Command, *numbers: int) -> list[str]:
    """Reviews of these pull requests, made without the command."""

    async def make() -> list[str]:
        async with Ledger(reviews.env["DATABASE_URL"]) as ledger:
            service = Reviews(ledger.jobs)
            tasks = [a_task(forge=Forge.API, number=number) for number in numbers]
            return [(await service.submit(task)).id for task in tasks]

    return asyncio.run(make())


class TestSubmit:
    def test_saves_the_task_and_prints_its_id(self, reviews: Command) -> None:
        words = ("--number", "7", "--id", "nightly", "--title", "A fix", "--priority", "low")
        ran = reviews("reviews", "submit", "octo/repo", HEAD, *words)
        assert (ran.code, ran.out) == (0, "api-nightly\n")
        told = reviews("reviews", "show", "api-nightly", "--json").object
        assert (told["state"], told["priority"]) == ("PENDING", 0)
        assert told["task"]["title"] == "A fix"

    def test_again_has_no_effect_and_another_task_under_the_id_is_refused(
        self, reviews: Command
    ) -> None:
        words = ("reviews", "submit", "octo/repo", HEAD, "--ref", "main", "--id", "a", "--json")
        first, again = reviews(*words).object, reviews(*words).object
        assert first == {"id": "api-a", "state": "PENDING", "existed": False, "superseded": []}
        assert again == {**first, "existed": True}
        other = reviews("reviews", "submit", "octo/repo", HEAD, "--number", "1", "--id", "a")
        assert other.code == 4
        assert "review_differs" in other.err

    @pytest.mark.parametrize(
        "words",
        [
            ("octo", HEAD, "--number", "7"),
            ("octo/repo", "main", "--number", "7"),
            ("octo/repo", HEAD),
            ("octo/repo", HEAD, "--number", "7", "--priority", "101"),
        ],
        ids=str,
    )
    def test_of_an_invalid_task_is_refused(self, reviews: Command, words: tuple[str, ...]) -> None:
        assert reviews("reviews", "submit", *words).code == 2

    def test_without_a_branch_or_a_number_names_the_options_for_them(
        self, reviews: Command
    ) -> None:
        ran = reviews("reviews", "submit", "octo/repo", HEAD)
        assert "invalid_option" in ran.err
        assert all(option in ran.err for option in ("--ref", "--number"))


class TestList:
    def test_is_a_table_newest_first_page_by_page(self, reviews: Command) -> None:
        ids = made(reviews, 1, 2, 3)
        first = reviews("reviews", "list", "--limit", "2", "--repository", "octo/repo")
        assert first.out.split()[:3] == ["REVIEW", "STATE", "ABOUT"]
        assert [line.split()[0] for line in first.out.splitlines()[1:]] == [ids[2], ids[1]]
        command, _, cursor = first.err.splitlines()[-1].rpartition(" ")
        assert command == "more: towpath reviews list --repository octo/repo --limit 2 --after"
        rest = reviews("reviews", "list", "--after", cursor, "--json").objects
        assert [review["id"] for review in rest] == [ids[0]]

    def test_is_filtered(self, reviews: Command) -> None:
        ids = made(reviews, 1, 2, 3)
        reviews("reviews", "cancel", ids[0])

        def listed(*words: str) -> list[str]:
            ran = reviews("reviews", "list", "--json", *words)
            assert ran.code == 0, ran
            return [review["id"] for review in ran.objects]

        assert listed("--state", "cancelled") == [ids[0]]
        assert listed("--repository", "octo/repo", "--number", "2") == [ids[1]]
        assert listed("--forge", "github") == []
        assert reviews("reviews", "list", "--state", "ready").code == 2

    def test_a_long_reason_is_cut_to_its_beginning_and_end(self, reviews: Command) -> None:
        [id] = made(reviews, 7)
        end(reviews, id, None, why=f"ReviewerFailed: {'x' * 900} ValueError: boom")
        [_, row] = reviews("reviews", "list").out.splitlines()
        assert "ReviewerFailed: xxx" in row
        assert row.endswith("ValueError: boom")
        assert len(row) < 300


class TestShow:
    def test_shows_what_the_reviewer_said(self, reviews: Command) -> None:
        [id] = made(reviews, 7)
        said = a_review(a_comment(), a_comment(line=None, body="A word\nand another."))
        end(reviews, id, said.packed())
        ran = reviews("reviews", "show", id)
        assert "COMPLETED" in ran.out
        assert "request_changes" in ran.out
        assert ran.out.endswith(
            "\nTwo things.\n\nsrc/a.py:3  warning\nThis is unused.\n"
            "\nsrc/a.py  warning\nA word\nand another.\n"
        )
        told = reviews("reviews", "show", id, "--json").object
        assert told["review"]["comments"][0]["line"] == 3

    def test_names_the_setting_for_a_reviewer_unless_one_is_set(self, reviews: Command) -> None:
        [id] = made(reviews, 7)
        for words in (("show", id), ("list",)):
            assert "reviews.reviewer" in reviews("reviews", *words).err
            set_ = {"TOWPATH_REVIEWS__REVIEWER_COMMAND": "true"}
            assert reviews("reviews", *words, **set_).err == ""

    def test_shows_that_a_running_review_was_asked_to_stop(self, reviews: Command) -> None:
        [id] = made(reviews, 7)
        begin(reviews, id)
        for words in (("cancel", id), ("show", id), ("list",)):
            assert "RUNNING (asked to stop)" in reviews("reviews", *words).out

    def test_says_why_a_review_was_not_posted(self, reviews: Command) -> None:
        [id] = made(reviews, 7)
        end(reviews, id, a_review().packed())
        posted(reviews, id)
        end(reviews, id, None, queue=POSTS)
        told = reviews("reviews", "show", id).out
        assert re.search(r"^posting +DEAD: no luck$", told, re.MULTILINE)
        assert "\nposted " not in told

    def test_of_an_unknown_review_is_refused(self, reviews: Command) -> None:
        for verb in ("show", "cancel", "retry"):
            ran = reviews("reviews", verb, "nobody", "--json")
            assert (ran.code, ran.refusal["refused"]) == (5, "record_not_found")
            assert all(f"{forge}-" in ran.refusal["do"] for forge in Forge)


class TestCancelAndRetry:
    def test_change_the_reviews_of_every_owner(self, reviews: Command) -> None:
        async def submit() -> str:
            async with Ledger(reviews.env["DATABASE_URL"]) as ledger:
                task = a_task(forge=Forge.API)
                return (await Reviews(ledger.jobs).submit(task, owner="shop")).id

        id = asyncio.run(submit())
        shown = reviews("reviews", "show", id)
        assert re.search(r"^owner +shop$", shown.out, re.MULTILINE)
        told = reviews("reviews", "cancel", id, "--json").object
        assert (told["state"], told["owner"]) == ("CANCELLED", "shop")

    def test_end_a_review_and_give_it_new_attempts(self, reviews: Command) -> None:
        [id] = made(reviews, 7)
        assert reviews("reviews", "cancel", id).out == f"{id}  CANCELLED\n"
        assert reviews("reviews", "retry", id).out == f"{id}  PENDING\n"
        assert reviews("reviews", "retry", id).code == 4
        end(reviews, id, None)
        dead = reviews("reviews", "show", id, "--json").object
        assert (dead["state"], dead["last_error"]) == ("DEAD", "no luck")
        assert reviews("reviews", "cancel", id).code == 4
        assert reviews("reviews", "retry", id, "--json").object["attempts"] == 0

    def test_of_several_continue_after_a_refusal_and_exit_with_the_first_one(
        self, reviews: Command
    ) -> None:
        one, two, over = made(reviews, 1, 2, 3)
        end(reviews, over, a_review().packed())
        ran = reviews("reviews", "cancel", one, "nope", over, two)
        assert (ran.code, ran.out) == (5, f"{one}  CANCELLED\n{two}  CANCELLED\n")
        assert ran.err.index("record_not_found") < ran.err.index("record_ended")
        again = reviews("reviews", "retry", over, two)
        assert (again.code, again.out) == (4, f"{two}  PENDING\n")
        assert re.search(r"^do .*POST /api/v1/reviews", again.err, re.MULTILINE)


def test_a_command_without_a_database_names_the_settings_for_one(towpath: Command) -> None:
    ran = towpath("reviews", "list", "--json")
    assert (ran.code, ran.refusal["refused"]) == (2, "invalid_option")
    assert "towpath-data" in ran.refusal["message"]
    assert "sqlite:///path/to/towpath-data/towpath.db" in ran.refusal["message"]


def test_an_unreachable_database_is_reported(towpath: Command) -> None:
    where = f"postgresql://anna:canary@/jobs?host={towpath.directory}"
    ran = towpath("reviews", "list", "--json", DATABASE_URL=where)
    assert (ran.code, ran.refusal["refused"]) == (75, "ledger_unreachable")
    assert "canary" not in ran.out + ran.err


def test_every_verb_has_examples(towpath: Command) -> None:
    for verb in ("submit", "list", "show", "cancel", "retry"):
        assert f"$ towpath reviews {verb}" in towpath("reviews", verb, "--help").out


@pytest.mark.parametrize("form", [(), ("--json",)])
def test_the_name_of_a_branch_cannot_control_the_terminal(
    reviews: Command, form: tuple[str, ...]
) -> None:
    name = "a\u202eb\x9b2Jc"
    made = reviews("reviews", "submit", "octo/repo", HEAD, f"--ref={name}", "--id=x", *form)
    shown = reviews("reviews", "show", "api-x", *form)
    listed = reviews("reviews", "list", *form)
    for ran in (made, shown, listed):
        assert ran.code == 0, ran.err
        assert all(letter.isprintable() for line in ran.out.splitlines() for letter in line)
    if form:
        assert json.loads(shown.out)["task"]["ref"] == name
