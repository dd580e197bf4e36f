"""The outbox: events are stored if, and only if, their change is."""

import json
from typing import Any

import msgspec
import pytest
from sqlalchemy import text, update
from sqlalchemy.engine import Connection

from tests.ledger.manual_time import ManualTime
from tests.ledger.memory_sinks import MemorySink
from tests.ledger.numbered_events import QUICK, an_event, put
from tests.ledger.outbox_facts import all_gone, pending
from towpath.clock import ManualClock, seconds
from towpath.errors import InvalidName, InvalidOption, PayloadInvalid, PayloadTooLarge
from towpath.ledger.database.schema import outbox
from towpath.ledger.ledger import Ledger
from towpath.ledger.outbox.courier import Courier
from towpath.ledger.outbox.event import LARGEST_DATA, NewEvent, OutboxEvent, Refusal
from towpath.ledger.outbox.outbox import OutboxCounts


@pytest.fixture
def ledger_options(manual_time: ManualTime) -> dict[str, Any]:
    return {"sinks": ["events"], "wall": manual_time.wall}


class _Undo(Exception):
    pass


class TestPuttingEvents:
    async def test_writes_them_with_the_change_that_they_describe(self, ledger: Ledger) -> None:
        await put(ledger, an_event("a", 1), an_event("b", 1))
        assert await pending(ledger) == 2

    async def test_writes_nothing_if_the_change_is_rolled_back(self, ledger: Ledger) -> None:
        def change(connection: Connection) -> None:
            ledger.outbox.put(connection, [an_event("a", 1)])
            raise _Undo

        with pytest.raises(_Undo):
            await ledger.write(change)
        await put(ledger, an_event("b", 1))
        sink = MemorySink()
        async with Courier(ledger, [sink], options=QUICK):
            await all_gone(ledger)
        assert sink.ids == ["b/1"]

    async def test_writes_a_row_for_each_sink(self, url: str) -> None:
        async with Ledger(url, sinks=["events", "audit"]) as ledger:
            await ledger.migrate()
            await put(ledger, an_event("a", 1))
            assert await pending(ledger, "events") == 1
            assert await pending(ledger, "audit") == 1

    async def test_writes_nothing_without_a_sink(self, url: str) -> None:
        async with Ledger(url) as ledger:
            await ledger.migrate()
            await put(ledger, an_event("a", 1))
            assert await ledger.outbox.counts() == {}

    @pytest.mark.parametrize("sinks", [["Events"], ["a", "a"], "events", [""]])
    def test_is_only_for_sinks_with_names_of_their_own(self, sinks: list[str]) -> None:
        with pytest.raises((InvalidName, InvalidOption)):
            Ledger("sqlite:///never.db", sinks=sinks)


class TestAnEvent:
    def test_is_a_cloud_event_in_one_json_document(self) -> None:
        new = NewEvent(
            type="towpath.review.completed",
            key="github:octo/repo#7",
            data=b'{"verdict": "approve"}',
            id="e-1",
            at=int(ManualClock().stamp()),
        )
        event = OutboxEvent(seq=1, **msgspec.structs.asdict(new))
        assert json.loads(event.encoded()) == {
            "specversion": "1.0",
            "id": "e-1",
            "source": "towpath",
            "type": "towpath.review.completed",
            "subject": "github:octo/repo#7",
            "time": "2026-01-01T00:00:00Z",
            "datacontenttype": "application/json",
            "data": {"verdict": "approve"},
        }

    def test_has_an_id_of_its_own_from_the_start(self) -> None:
        made = [NewEvent(type="a", key="k", data=b"1") for _ in range(100)]
        assert len({event.id for event in made}) == 100

    @pytest.mark.parametrize(
        "wrong",
        [
            {"type": ""}, {"type": "Towpath.X"}, {"type": "x" * 129}, {"key": ""}, {"key": "a\nb"},
            {"key": "x" * 1025}, {"id": ""}, {"id": "x" * 1025}, {"source": "with blanks"},
            {"source": ""}, {"at": -1}, {"at": 10**18}, {"data": "{}"},
        ],
    )  # fmt: skip
    def test_with_invalid_fields_is_refused_where_it_is_made(
        self, wrong: dict[str, object]
    ) -> None:
        whole = {"type": "a.b", "key": "k", "data": b"{}"}
        with pytest.raises((InvalidName, InvalidOption)):
            NewEvent(**whole | wrong)  # pyright: ignore[reportArgumentType] -- wrong on purpose

    @pytest.mark.parametrize(
        "data", [b"", b"{", b"NaN", b"\xff", b"{} {}", b'"\xc3"', b"[" * 100_000]
    )
    def test_has_data_that_json_can_encode(self, data: bytes) -> None:
        with pytest.raises(PayloadInvalid):
            NewEvent(type="a", key="k", data=data)

    def test_has_data_of_a_bounded_size(self) -> None:
        largest = b'"' + b"x" * (LARGEST_DATA - 2) + b'"'
        NewEvent(type="a", key="k", data=largest)
        with pytest.raises(PayloadTooLarge):
            NewEvent(type="a", key="k", data=largest + b" ")


class TestCountingEvents:
    async def test_shows_how_far_behind_a_sink_is(
        self, ledger: Ledger, manual_time: ManualTime
    ) -> None:
        assert await ledger.outbox.counts() == {"events": OutboxCounts()}
        began = manual_time.clock.now
        await put(ledger, an_event("a", 1))
        manual_time.advance(seconds(7))
        await put(ledger, an_event("a", 2))
        counts = (await ledger.outbox.counts())["events"]
        assert counts == OutboxCounts(pending=2, refused=0, oldest_at=began)
        assert counts.lag(manual_time.clock.now) == seconds(7)

    async def test_includes_sinks_that_are_no_longer_served(self, ledger: Ledger) -> None:
        await put(ledger, an_event("a", 1))
        other = update(outbox).values(sink="former")
        await ledger.write(lambda connection: connection.execute(other))
        assert await pending(ledger, "former") == 1


class TestRefusedEvents:
    @pytest.fixture(autouse=True)
    async def two_refused(self, ledger: Ledger) -> None:
        await put(ledger, an_event("a", 1), an_event("a", 2), an_event("b", 1))
        no = Refusal("the address is wrong")
        async with Courier(ledger, [MemorySink(answers={"a/1": no, "b/1": no})], options=QUICK):
            await all_gone(ledger)

    async def test_are_listed_with_the_reason(self, ledger: Ledger) -> None:
        refused = await ledger.outbox.refused("events")
        assert [row.event.id for row in refused] == ["a/1", "b/1"]
        assert {row.reason for row in refused} == {"the address is wrong"}
        [second] = await ledger.outbox.refused("events", after=refused[0].event.seq, size=1)
        assert second == refused[1]

    async def test_are_counted(self, ledger: Ledger) -> None:
        assert (await ledger.outbox.counts())["events"] == OutboxCounts(pending=0, refused=2)

    async def test_can_be_sent_again(self, ledger: Ledger) -> None:
        assert await ledger.outbox.resend("events", ["a/1", "nobody"]) == 1
        sink = MemorySink()
        async with Courier(ledger, [sink], options=QUICK):
            await all_gone(ledger)
        assert sink.ids == ["a/1"]

    async def test_can_be_sent_again_all_at_once(self, ledger: Ledger) -> None:
        assert await ledger.outbox.resend_all("events") == 2
        assert await pending(ledger) == 2

    async def test_are_sent_before_later_ones(self, ledger: Ledger) -> None:
        await put(ledger, an_event("a", 3))
        await ledger.outbox.resend_all("events")
        sink = MemorySink()
        async with Courier(ledger, [sink], options=QUICK):
            await all_gone(ledger)
        assert sink.ids == ["a/1", "b/1", "a/3"]

    async def test_can_be_discarded(self, ledger: Ledger) -> None:
        await put(ledger, an_event("c", 1))
        assert await ledger.outbox.delete("events", ["a/1", "c/1"]) == 1
        assert [row.event.id for row in await ledger.outbox.refused("events")] == ["b/1"]
        assert await pending(ledger) == 1


async def test_a_row_with_an_invalid_value_is_refused_and_stops_no_other(file_url: str) -> None:
    """SQLite stores any value in a column."""
    async with Ledger(file_url, sinks=["events"]) as ledger:
        await ledger.migrate()
        await put(ledger, an_event("a", 1), an_event("a", 2))
        wrong = text("UPDATE towpath_outbox SET at = 'yesterday' WHERE id = 'a/1'")
        await ledger.write(lambda connection: connection.execute(wrong))
        sink = MemorySink()
        async with Courier(ledger, [sink], options=QUICK):
            await all_gone(ledger)
        assert sink.ids == ["a/2"]
        [refused] = await ledger.outbox.refused("events")
        assert refused.event.id == "a/1"
        assert refused.reason
