"""`towpath audit`, on a database of its own; no server runs."""

import asyncio
import json

import pytest

from tests.cli.command import Command
from towpath.ledger.audit import API, NewEntry
from towpath.ledger.ledger import Ledger


@pytest.fixture
def audit(without_redis: Command) -> Command:
    return without_redis


def write(audit: Command, *queues: str) -> str:
    """Records that a key has paused these queues; returns the id of the key."""

    async def write() -> str:
        async with Ledger(audit.env["DATABASE_URL"]) as ledger:
            key = (await ledger.keys.create("ann", scopes=["admin"])).info
            for queue in queues:
                path, target = f"/api/v1/queues/{queue}/pause", {"queue": queue}
                entry = NewEntry(
                    key=key, via=API, method="POST", path=path, action="pause", target=target
                )
                await ledger.audit.end(await ledger.audit.begin(entry), 204)
            return key.id

    return asyncio.run(write())


def test_an_empty_log_is_no_error(audit: Command) -> None:
    ran = audit("audit")
    assert (ran.code, ran.out) == (0, "")
    assert audit("audit", "--json").objects == []


def test_audit_lists_who_changed_what(audit: Command) -> None:
    key = write(audit, "mails", "pictures")
    ran = audit("audit")
    assert ran.code == 0, ran.err
    head, newest, oldest = ran.out.splitlines()
    assert head.split()[:5] == ["WHEN", "KEY", "NAME", "VIA", "ACTION"]
    assert {key, "ann", "api", "pause", "queue=pictures", "204"} <= set(newest.split())
    assert "queue=mails" in oldest


def test_audit_as_json_has_every_field_and_pages(audit: Command) -> None:
    key = write(audit, "mails", "pictures")
    ran = audit("audit", "--json", "--limit", "1")
    [entry] = ran.objects
    assert entry["target"] == {"queue": "pictures"}
    assert (entry["key_id"], entry["owner"], entry["status"]) == (key, key, 204)
    assert entry["refused"] is False
    after = str(json.loads(ran.err.splitlines()[-1])["after"])
    [older] = audit("audit", "--json", "--after", after).objects
    assert older["target"] == {"queue": "mails"}


def test_audit_filters_by_key_and_time(audit: Command) -> None:
    key, other = write(audit, "mails"), write(audit, "pictures")
    [entry] = audit("audit", "--json", "--key", key).objects
    assert entry["key_id"] == key
    assert audit("audit", "--json", "--key", other, "--until", entry["at"]).objects == []
    assert len(audit("audit", "--json", "--since", entry["at"]).objects) == 2


@pytest.mark.parametrize("wrong", [("--after", "x"), ("--since", "soon"), ("--limit", "0")])
def test_audit_refuses_invalid_arguments(audit: Command, wrong: tuple[str, str]) -> None:
    assert audit("audit", *wrong).code == 2
