"""The audit log: what is kept in it, and for which key."""

from typing import Any

from sqlalchemy import insert

from towpath.ledger.audit import API, DASHBOARD, KEPT, REFUSED_KEPT, NewEntry
from towpath.ledger.database.schema import audit
from towpath.ledger.keys.key import KeyInfo
from towpath.ledger.ledger import Ledger

ROUND = 100
"""Entries of a key after which its old ones are deleted."""


async def key_of(ledger: Ledger, name: str) -> KeyInfo:
    return (await ledger.keys.create(name, scopes=["admin"])).info


def paused(key: KeyInfo, queue: str = "q") -> NewEntry:
    path = f"/api/v1/queues/{queue}/pause"
    return NewEntry(
        key=key, via=API, method="POST", path=path, action="pause", target={"queue": queue}
    )


async def fill(ledger: Ledger, key: KeyInfo, count: int, status: int) -> None:
    """Writes *count* entries at once."""
    row: dict[str, Any] = {"at": 0, "key_id": key.id, "key_name": key.name}
    row |= {"method": "POST", "path": "/", "status": status}
    await ledger.write(lambda connection: connection.execute(insert(audit), [row] * count))


async def count(ledger: Ledger, key: KeyInfo, *, refused: bool) -> int:
    found, after = 0, None
    while True:
        page = await ledger.audit.list(key=key.id, size=1000, after=after)
        found += sum(entry.refused is refused for entry in page.actions)
        if (after := page.after) is None:
            return found


async def test_the_newest_changes_of_each_key_are_kept(ledger: Ledger) -> None:
    busy, calm = await key_of(ledger, "busy"), await key_of(ledger, "calm")
    first = await ledger.audit.begin(paused(calm))
    await fill(ledger, busy, KEPT + 50, 204)
    written = [await ledger.audit.begin(paused(busy)) for _ in range(ROUND)]
    assert await count(ledger, busy, refused=False) == KEPT
    assert (await ledger.audit.list(size=1)).actions[0].seq == written[-1]
    assert [entry.seq for entry in (await ledger.audit.list(key=calm.id)).actions] == [first]


async def test_refusals_displace_older_refusals_of_their_key_only(ledger: Ledger) -> None:
    key, other = await key_of(ledger, "a"), await key_of(ledger, "b")
    changed = await ledger.audit.begin(paused(key))
    await ledger.audit.end(changed, 204)
    await fill(ledger, other, 5, 404)
    await fill(ledger, key, 10_400, 403)
    for _ in range(ROUND):
        await ledger.audit.begin(paused(key), 403)
    assert await count(ledger, key, refused=True) <= REFUSED_KEPT + ROUND
    assert await count(ledger, key, refused=False) == 1
    assert await count(ledger, other, refused=True) == 5


async def test_an_entry_has_every_known_field(ledger: Ledger) -> None:
    key = await key_of(ledger, "ann")
    seq = await ledger.audit.begin(paused(key, "mails"))
    [entry] = (await ledger.audit.list()).actions
    assert (entry.seq, entry.status, entry.refused, entry.changed) == (seq, None, False, {})
    await ledger.audit.end(seq, 200, changed={"jobs": 3})
    [entry] = (await ledger.audit.list()).actions
    assert (entry.status, entry.changed, entry.target) == (200, {"jobs": 3}, {"queue": "mails"})
    assert (entry.key_id, entry.owner, entry.via) == (key.id, key.owner, API)


async def test_an_entry_of_an_older_release_is_shown_as_made_in_the_dashboard(
    ledger: Ledger,
) -> None:
    await fill(ledger, await key_of(ledger, "ann"), 1, 204)
    [entry] = (await ledger.audit.list()).actions
    assert (entry.via, entry.owner, entry.action) == (DASHBOARD, "", "")
    assert (entry.target, entry.changed) == ({}, {})
