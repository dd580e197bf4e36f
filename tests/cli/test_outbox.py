"""`towpath outbox`, on a database of its own; no server runs."""

import asyncio
import re
from datetime import datetime

import pytest

from tests.architecture.sources import ROOT
from tests.cli.command import Command
from tests.cli.test_howto import BLOCK, run
from tests.ledger.numbered_events import an_event
from towpath.ledger.ledger import Ledger
from towpath.ledger.outbox.batch import BatchOutcome, next_batch, outcome_statements
from towpath.ledger.outbox.event import NewEvent, Refusal

PAGE = ROOT / "docs" / "how-to" / "send-events-out.md"
GONE = Refusal("the receiver answered 410")


@pytest.fixture
def outbox(towpath: Command) -> Command:
    """The command, with a migrated database and a Redis that is away."""
    towpath.env["DATABASE_URL"] = f"sqlite:///{towpath.directory}/ledger.db"
    towpath.env["TOWPATH_URL"] = f"unix://{towpath.directory}/nobody.sock"
    put(towpath)
    return towpath


def put(outbox: Command, *made: NewEvent, refused: bool = False) -> None:
    """Stores events that wait for the webhook, or that it has refused."""

    async def put() -> None:
        async with Ledger(outbox.env["DATABASE_URL"], sinks=["webhook"]) as ledger:
            await ledger.migrate()
            await ledger.write(lambda connection: ledger.outbox.put(connection, made))
            batch = await ledger.read(
                lambda connection: next_batch(connection, "webhook", [], size=100)
            )
            if refused:
                outcome = BatchOutcome(refused=[(event, GONE) for event in batch])
                statements = outcome_statements(outcome)
                await ledger.write(
                    lambda connection: [connection.execute(*each) for each in statements]
                )

    asyncio.run(put())


class TestCounting:
    def test_shows_each_sink_that_is_set_or_has_events(self, outbox: Command) -> None:
        put(outbox, an_event("a"), refused=True)
        put(outbox, an_event("a", 2), an_event("b"))
        for words in (("outbox",), ("outbox", "list")):
            ran = outbox(*words)
            assert ran.code == 0
            head, redis, webhook = ran.out.splitlines()
            assert head.split() == ["SINK", "PENDING", "REFUSED", "LAG"]
            assert redis.split()[:3] == ["redis", "0", "0"]
            assert webhook.split()[:3] == ["webhook", "2", "1"]
            assert "towpath outbox refused webhook" in ran.err
            assert "outbox.sinks" in ran.err

    def test_for_programs_has_the_same_words(self, outbox: Command) -> None:
        put(outbox, an_event("a"))
        redis, webhook = outbox("outbox", "--json", TOWPATH_OUTBOX__SINKS="redis,webhook").objects
        assert redis == {"sink": "redis", "pending": 0, "refused": 0, "lag": 0, "oldest_at": None}
        assert (webhook["sink"], webhook["pending"]) == ("webhook", 1)
        assert webhook["lag"] > 0
        assert datetime.fromisoformat(webhook["oldest_at"])

    def test_shows_a_hint_without_sinks(self, outbox: Command) -> None:
        ran = outbox("outbox", TOWPATH_OUTBOX__SINKS="none")
        assert (ran.code, ran.out) == (0, "")
        assert ran.err

    def test_needs_a_database(self, towpath: Command) -> None:
        ran = towpath("outbox", "--json")
        assert (ran.code, ran.refusal["refused"]) == (2, "invalid_option")
        assert "DATABASE_URL" in ran.refusal["message"]


class TestTheListOfRefusedEvents:
    def test_has_the_reasons_and_no_data(self, outbox: Command) -> None:
        put(outbox, an_event("a"), refused=True)
        told = outbox("outbox", "refused", "webhook", "--json").object
        assert set(told) == {"id", "type", "subject", "at", "refused_at", "reason"}
        assert (told["id"], told["subject"], told["reason"]) == ("a/1", "a", GONE.reason)
        shown = outbox("outbox", "refused", "webhook").out
        assert "a/1" in shown
        assert GONE.reason in shown

    def test_comes_page_by_page(self, outbox: Command) -> None:
        put(outbox, *(an_event("a", n) for n in range(1, 6)), refused=True)
        seen: list[str] = []
        after: tuple[str, ...] = ()
        while True:
            ran = outbox("outbox", "refused", "webhook", "--limit", "2", "--json", *after)
            seen += [event["id"] for event in ran.objects]
            if not ran.err:
                break
            after = ("--after", ran.refusal["after"])
        assert seen == [f"a/{n}" for n in range(1, 6)]
        people = outbox("outbox", "refused", "webhook", "--limit", "2")
        assert "more: towpath outbox refused webhook --limit 2 --after" in people.err

    def test_may_be_empty(self, outbox: Command) -> None:
        ran = outbox("outbox", "refused", "redis")
        assert (ran.code, ran.out) == (0, "")

    @pytest.mark.parametrize("words", [("--after", "x"), ("--limit", "0")], ids=str)
    def test_is_refused_for_invalid_arguments(
        self, outbox: Command, words: tuple[str, ...]
    ) -> None:
        assert outbox("outbox", "refused", "redis", *words).code == 2


class TestResendAndDelete:
    def test_resend_sends_some_or_all_again(self, outbox: Command) -> None:
        put(outbox, *(an_event("a", n) for n in range(1, 4)), refused=True)
        ran = outbox("outbox", "resend", "webhook", "a/1")
        assert (ran.code, ran.out) == (0, "a/1  resent\n")
        assert outbox("outbox", "--json").objects[1]["pending"] == 1
        every = outbox("outbox", "resend", "webhook", "--all", "--json")
        assert every.object == {"sink": "webhook", "resent": 2}
        told = outbox("outbox", "--json").objects[1]
        assert (told["pending"], told["refused"]) == (3, 0)

    @pytest.mark.parametrize("words", [(), ("a/1", "--all")], ids=str)
    def test_resend_needs_the_ids_of_events_or_all(
        self, outbox: Command, words: tuple[str, ...]
    ) -> None:
        put(outbox, an_event("a"), refused=True)
        ran = outbox("outbox", "resend", "webhook", *words, "--json")
        assert (ran.code, ran.refusal["refused"]) == (2, "invalid_option")
        assert "--all" in ran.refusal["message"]

    def test_delete_deletes_what_was_refused(self, outbox: Command) -> None:
        put(outbox, an_event("a"), an_event("b"), refused=True)
        ran = outbox("outbox", "delete", "webhook", "a/1", "--yes", "--json")
        assert ran.object == {"sink": "webhook", "id": "a/1", "deleted": True}
        assert [
            event["id"] for event in outbox("outbox", "refused", "webhook", "--json").objects
        ] == ["b/1"]

    def test_delete_asks_first(self, outbox: Command) -> None:
        put(outbox, an_event("a"), refused=True)
        ran = outbox("outbox", "delete", "webhook", "a/1", "--json")
        assert (ran.code, ran.refusal["refused"]) == (2, "not_confirmed")
        assert outbox("outbox", "--json").objects[1]["refused"] == 1

    @pytest.mark.parametrize("verb", [("resend",), ("delete", "--yes")], ids=str)
    def test_an_event_that_was_not_refused_is_not_found(
        self, outbox: Command, verb: tuple[str, ...]
    ) -> None:
        """Neither can a pending event be deleted: it is on its way."""
        put(outbox, an_event("a"))
        ran = outbox("outbox", *verb, "webhook", "a/1", "--json")
        assert (ran.code, ran.refusal["refused"]) == (5, "event_not_found")
        assert outbox("outbox", "--json").objects[1]["pending"] == 1

    @pytest.mark.parametrize("verb", [("resend",), ("delete", "--yes")], ids=str)
    def test_an_event_that_is_not_found_does_not_stop_the_others(
        self, outbox: Command, verb: tuple[str, ...]
    ) -> None:
        put(outbox, an_event("a"), an_event("b"), refused=True)
        ran = outbox("outbox", *verb, "webhook", "a/1", "nowhere/1", "b/1", "--json")
        assert (ran.code, ran.refusal["refused"]) == (5, "event_not_found")
        assert [event["id"] for event in ran.objects] == ["a/1", "b/1"]

    @pytest.mark.parametrize(
        "verb", [("refused",), ("resend", "--all"), ("delete", "a/1", "--yes")], ids=str
    )
    def test_an_unknown_sink_is_refused_with_the_nearest_name(
        self, outbox: Command, verb: tuple[str, ...]
    ) -> None:
        first, *rest = verb
        ran = outbox("outbox", first, "rediss", *rest, "--json")
        assert (ran.code, ran.refusal["refused"]) == (5, "sink_not_found")
        assert set(re.findall(r"\brediss?\b", ran.refusal["message"])) == {"redis", "rediss"}


def test_a_review_that_the_command_line_cancels_makes_an_event(outbox: Command) -> None:
    """The event waits for a server that sends it."""
    words = ("octo/repo", "a1" * 20, "--number", "7", "--id", "a")
    assert outbox("reviews", "submit", *words).code == 0
    assert outbox("reviews", "cancel", "api-a").code == 0
    assert outbox("outbox", "--json").object["pending"] == 1


def test_the_commands_of_the_page_run(outbox: Command) -> None:
    dead = NewEvent(id="reviews/r-7/dead", type="towpath.job.dead", key="reviews/r-7", data=b"{}")
    put(outbox, dead, an_event("a"), refused=True)
    blocks = "".join(BLOCK.findall(PAGE.read_text()))
    commands = [line.removeprefix("$ ") for line in blocks.splitlines() if line.startswith("$ ")]
    assert len(commands) == 4
    run(outbox, commands)
    assert outbox("outbox", "--json").objects[1]["pending"] == 1
