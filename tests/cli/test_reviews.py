"""`towpath reviews`, on a database of its own; nothing else runs."""

import asyncio

import pytest

from tests.apps.reviews.reviewing import a_comment, a_review, a_task
from tests.cli.command import Command
from towpath.apps.reviews.model import REVIEWS, Forge
from towpath.apps.reviews.service import Reviews
from towpath.engine.model import Bury, Complete, Lease, Settlement, job_ref
from towpath.ids import Token
from towpath.ledger.attempts import Ending
from towpath.ledger.ledger import Ledger

HEAD = "a1" * 20


@pytest.fixture
def reviews(towpath: Command) -> Command:
    """The command, with a database that is up to date and a Redis that is away."""
    url = towpath.env["DATABASE_URL"] = f"sqlite:///{towpath.directory}/ledger.db"
    towpath.env["TOWPATH_URL"] = f"unix://{towpath.directory}/nobody.sock"
    asyncio.run(migrated(url))
    return towpath


async def migrated(url: str) -> None:
    async with Ledger(url) as ledger:
        await ledger.migrate()


def end(reviews: Command, id: str, result: bytes | None) -> None:
    """An attempt that ends with *result*; none = it is dead."""

    async def end() -> None:
        async with Ledger(reviews.env["DATABASE_URL"]) as ledger:
            job = (await ledger.jobs.get(REVIEWS, id)).job
            lease = Lease(job_ref(REVIEWS, job), b"", Token(1), 1, "w", 0, 0)
            await ledger.jobs.begin(lease)
            word: Settlement = Bury(lease, "no luck") if result is None else Complete(lease, result)
            await ledger.jobs.end(Ending(lease, word, cancelled=False))

    asyncio.run(end())


def made(reviews: Command, *numbers: int) -> list[str]:
    """Reviews of these pull requests, made without the command."""

    async def make() -> list[str]:
        async with Ledger(reviews.env["DATABASE_URL"]) as ledger:
            service = Reviews(ledger.jobs)
            tasks = [a_task(forge=Forge.API, number=it) for it in numbers]
            return [(await service.submit(task)).id for task in tasks]

    return asyncio.run(make())


class TestSubmit:
    def test_saves_the_task_and_says_its_id(self, reviews: Command) -> None:
        words = ("--number", "7", "--id", "nightly", "--title", "A fix", "--priority", "low")
        ran = reviews("reviews", "submit", "octo/repo", HEAD, *words)
        assert (ran.code, ran.out) == (0, "api-nightly\n")
        told = reviews("reviews", "show", "api-nightly", "--json").object
        assert (told["state"], told["priority"]) == ("PENDING", 0)
        assert told["task"]["title"] == "A fix"

    def test_again_is_harmless_and_another_task_is_refused(self, reviews: Command) -> None:
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
    def test_of_what_can_not_be_right_is_refused(
        self, reviews: Command, words: tuple[str, ...]
    ) -> None:
        assert reviews("reviews", "submit", *words).code == 2


class TestList:
    def test_is_a_table_newest_first_page_by_page(self, reviews: Command) -> None:
        ids = made(reviews, 1, 2, 3)
        first = reviews("reviews", "list", "--limit", "2", "--repository", "octo/repo")
        assert first.out.split()[:3] == ["REVIEW", "STATE", "ABOUT"]
        assert [line.split()[0] for line in first.out.splitlines()[1:]] == [ids[2], ids[1]]
        command, _, cursor = first.err.strip().rpartition(" ")
        assert command == "more: towpath reviews list --repository octo/repo --limit 2 --after"
        rest = reviews("reviews", "list", "--after", cursor, "--json").objects
        assert [it["id"] for it in rest] == [ids[0]]

    def test_is_filtered(self, reviews: Command) -> None:
        ids = made(reviews, 1, 2, 3)
        reviews("reviews", "cancel", ids[0])

        def listed(*words: str) -> list[str]:
            ran = reviews("reviews", "list", "--json", *words)
            assert ran.code == 0, ran
            return [it["id"] for it in ran.objects]

        assert listed("--state", "cancelled") == [ids[0]]
        assert listed("--repository", "octo/repo", "--number", "2") == [ids[1]]
        assert "no such reviews" in reviews("reviews", "list", "--forge", "github").err
        assert reviews("reviews", "list", "--state", "ready").code == 2


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

    def test_what_is_not_there_is_not_found(self, reviews: Command) -> None:
        for verb in ("show", "cancel", "retry"):
            ran = reviews("reviews", verb, "nobody", "--json")
            assert (ran.code, ran.refusal["refused"]) == (5, "record_not_found")


class TestCancelAndRetry:
    def test_end_one_and_give_it_new_attempts(self, reviews: Command) -> None:
        [id] = made(reviews, 7)
        assert reviews("reviews", "cancel", id).out == f"{id}  CANCELLED\n"
        assert reviews("reviews", "retry", id).out == f"{id}  PENDING\n"
        assert reviews("reviews", "retry", id).code == 4
        end(reviews, id, None)
        dead = reviews("reviews", "show", id, "--json").object
        assert (dead["state"], dead["last_error"]) == ("DEAD", "no luck")
        assert reviews("reviews", "cancel", id).code == 4
        assert reviews("reviews", "retry", id, "--json").object["attempts"] == 0


def test_the_database_may_be_away(towpath: Command) -> None:
    where = f"postgresql://anna:canary@/jobs?host={towpath.directory}"
    ran = towpath("reviews", "list", "--json", DATABASE_URL=where)
    assert (ran.code, ran.refusal["refused"]) == (75, "ledger_unreachable")
    assert "canary" not in ran.out + ran.err


def test_every_verb_has_examples(towpath: Command) -> None:
    for verb in ("submit", "list", "show", "cancel", "retry"):
        assert f"$ towpath reviews {verb}" in towpath("reviews", verb, "--help").out
