"""`towpath doctor`: a Redis that is fit, and several that are not."""

import re
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from tests.architecture.sources import ROOT
from tests.cli.command import Command, ProgramResult
from tests.cli.jobs import bury
from towpath import Durability, Engine, hours
from towpath.embedded import EmbeddedCluster, EmbeddedServer
from towpath.engine.diagnosis import Checkup, ServerState
from towpath.engine.findings import Finding, Grade, findings
from towpath.engine.url import parse_url

CANARY = "canary-8f2e"


def by_check(ran: ProgramResult) -> dict[str, Any]:
    return {finding["check"]: finding for finding in ran.objects}


async def test_ready_jobs_without_workers_are_reported(towpath: Command, engine: Engine) -> None:
    await engine.submit("mails", b"1")
    found = by_check(towpath("doctor", "--json"))["queues"]
    assert (found["verdict"], "mails" in found["found"]) == ("warn", True)
    assert "towpath workers" in found["do"]
    await engine.claim("mails", worker="w", lease=hours(1))
    assert by_check(towpath("doctor", "--json"))["queues"]["verdict"] == "ok"


async def test_a_handler_that_no_worker_has_is_reported(towpath: Command, engine: Engine) -> None:
    await engine.submit("mails", b"1", headers={"handler": "shred"})
    await engine.submit("mails", b"1", delay=hours(2))
    [lease] = await engine.claim("mails", worker="w", lease=hours(1))
    assert "handlers" not in by_check(towpath("doctor", "--json"))
    await engine.release(lease, delay=hours(1), unhandled="HandlerNotFound")
    found = by_check(towpath("doctor", "--json"))["handlers"]
    assert found["verdict"] == "warn"
    assert {"mails", "shred", "1"} <= set(re.findall(r"\w+", found["found"]))
    shown = towpath("jobs", "show", f"mails/{lease.id}", "--json").object
    assert shown["unhandled"] == "HandlerNotFound"


async def test_options_that_were_changed_since_they_were_declared_are_shown(
    towpath: Command, engine: Engine
) -> None:
    await engine.queues.declare("mails", max_attempts=5, keep=hours(1))
    assert "options" not in by_check(towpath("doctor", "--json"))
    towpath("queues", "configure", "mails", "--set", "max_attempts=8")
    found = by_check(towpath("doctor", "--json"))["options"]
    facts = re.findall(r"\bmails\b|\bmax_attempts\b|\b\d+\b", found["found"])
    assert sorted(facts) == ["5", "8", "mails", "max_attempts"]
    assert found["verdict"] == "ok"
    assert "towpath queues reset mails" in found["do"]
    ran = towpath("queues", "reset", "mails", "--option", "max_attempts", "--json")
    assert ran.object["options"]["max_attempts"] == 5
    assert "options" not in by_check(towpath("doctor", "--json"))


def make_other_layout(server: EmbeddedServer, queue: str) -> str:
    """A queue that an older clone has made; returns the name of its `meta`."""
    meta = f"{{{queue}}}:meta"
    server.ask("HSET", "towpath:queues", queue, "{}")
    server.ask("HSET", meta, "whole", "{}", "options", "?", "version", "0123456789abcdef")
    return meta


async def test_a_queue_of_another_layout_is_reported(
    towpath: Command, engine: Engine, server: EmbeddedServer
) -> None:
    await engine.submit("mails", b"1")
    assert "layout" not in by_check(towpath("doctor", "--json"))
    meta = make_other_layout(server, "older")
    found = by_check(towpath("doctor", "--json"))["layout"]
    assert (found["verdict"], "older" in found["found"]) == ("bad", True)
    refused = towpath("submit", "older", "1", "--json")
    assert refused.code != 0
    assert "layout" in refused.err
    assert server.ask("HLEN", meta) == 3


def test_a_queue_of_another_layout_is_not_taken_for_a_missing_one(
    towpath: Command, server: EmbeddedServer
) -> None:
    meta = make_other_layout(server, "older")
    for words in (("explain",), ("jobs", "show"), ("jobs", "cancel"), ("jobs", "retry")):
        refused = towpath(*words, "older/a", "--json")
        assert "layout_differs" in refused.err, words
    listed = towpath("queues", "--over", "0")
    assert "towpath queues show older" in listed.err
    assert "no queue yet" not in listed.err
    assert server.ask("HLEN", meta) == 3


async def test_a_fit_redis_is_reported_check_by_check(towpath: Command, engine: Engine) -> None:
    await bury(engine, "mails", "m-1")
    ran = towpath("doctor", "--json")
    told = by_check(ran)
    assert ran.code == 0
    assert list(told) == [
        "address", "version", "durability", "eviction", "replicas", "clock", "scripts",
        "memory", "round trip", "latency", "tls", "write", "queues", "applications",
    ]  # fmt: skip
    assert told["version"]["found"].startswith("valkey 9.")
    assert told["durability"]["found"].startswith("memory: ")
    assert told["eviction"]["found"] == "noeviction"
    assert (told["write"]["verdict"], told["scripts"]["verdict"]) == ("ok", "ok")
    assert told["queues"]["do"] == "towpath dead list --queue mails"
    assert all(finding["do"] for finding in ran.objects if finding["verdict"] != "ok")
    assert towpath("doctor", "--strict").code == 1


@pytest.fixture(scope="module")
def unfit(tmp_path_factory: pytest.TempPathFactory) -> Iterator[EmbeddedServer]:
    """A Redis that may evict, denies CONFIG, and wants a password."""
    options = {"maxmemory-policy": "allkeys-lru", "maxmemory": "100mb"}
    with EmbeddedServer(options=options) as server:
        server.ask("ACL", "SETUSER", "anna", "on", f">{CANARY}", "~*", "+@all", "-config", "-eval")
        yield server


def test_an_unfit_redis_is_reported_with_what_to_do(unfit: EmbeddedServer, tmp_path: Path) -> None:
    towpath = Command(unfit.url, tmp_path)
    ran = towpath("doctor")
    assert ran.code == 1
    bad, do, *_ = [
        line for line in ran.out.splitlines() if "allkeys-lru" in line or "CONFIG SET" in line
    ]
    assert bad.startswith("bad   eviction")
    assert do.split()[0] == "do"
    assert "CONFIG SET maxmemory-policy noeviction" in do
    assert "eviction_unsafe" in towpath("queues").err


def test_missing_permissions_are_found_and_the_password_is_not_shown(
    unfit: EmbeddedServer, tmp_path: Path
) -> None:
    url = unfit.url.replace("unix://", "unix://anna@")
    towpath = Command(url, tmp_path)
    ran = towpath("doctor", "--json", TOWPATH_PASSWORD=CANARY)
    told = by_check(ran)
    assert (told["scripts"]["verdict"], told["durability"]["verdict"]) == ("bad", "bad")
    assert "`durability`" in told["durability"]["do"]
    wrong = towpath("doctor", TOWPATH_PASSWORD=f"{CANARY}-wrong")
    assert wrong.code == 1
    assert "server_refused" in wrong.err
    assert CANARY not in ran.out + ran.err + wrong.out + wrong.err


def test_an_unreachable_redis_exits_with_try_again_later(towpath: Command) -> None:
    url = f"redis://anna:{CANARY}@127.0.0.1:1"
    for verb in ("doctor", "queues"):
        ran = towpath(verb, "--timeout", "200ms", TOWPATH_URL=url)
        assert (ran.code, ran.out) == (75, "")
        assert "server_unreachable" in ran.err
        assert CANARY not in ran.err


def test_a_cluster_is_checked_node_by_node(cluster: EmbeddedCluster, tmp_path: Path) -> None:
    ran = Command(cluster.url, tmp_path)("doctor", "--json", "--timeout", "60s")
    assert ran.code == 0
    servers = {finding["server"] for finding in ran.objects if finding["check"] == "scripts"}
    assert len(servers) == 3


# ── verdicts about facts that no Redis of the tests has ──────────────────────────────────


SETTINGS = {"maxmemory-policy": "noeviction", "appendonly": "yes", "appendfsync": "always"}


def judged(check: str, declared: Durability | None = None, **facts: Any) -> Finding:
    usual: dict[str, Any] = {
        "info": {"redis_version": "7.2.1", "used_memory": "1", "maxmemory": "100"},
        "settings": SETTINGS,
        "skew_ms": 1.0,
        "round_trips_ms": [0.1, 0.2],
        "slowest": {},
        "scripts_known": 1,
        "scripts_all": 1,
        "scripts_refused": "",
    }  # fmt: skip
    facts["info"] = usual["info"] | facts.get("info", {})
    url = parse_url(facts.pop("url", "redis://localhost"))
    found = findings(Checkup([ServerState(**(usual | facts))], ""), url, declared)
    [finding] = [one for one in found if one.check == check]
    return finding


VERDICTS: list[tuple[str, dict[str, Any], Grade]] = [
    ("version", {"info": {"redis_version": "6.0.16"}}, Grade.BAD),
    ("version", {"info": {"redis_version": "6.2.0"}}, Grade.OK),
    ("durability", {}, Grade.OK),
    ("durability", {"info": {"aof_last_write_status": "err"}}, Grade.BAD),
    ("durability", {"settings": {}}, Grade.BAD),
    ("durability", {"settings": SETTINGS | {"appendonly": "no"}}, Grade.WARN),
    ("eviction", {"settings": SETTINGS | {"maxmemory-policy": "allkeys-lru"}}, Grade.BAD),
    ("scripts", {"scripts_refused": "NOPERM"}, Grade.BAD),
    ("durability", {"settings": {}, "declared": Durability.parse("disk")}, Grade.OK),
    ("replicas", {"info": {"slave0": "ip=a,state=online"}}, Grade.OK),
    ("replicas", {"info": {"slave0": "ip=a,state=wait_bgsave"}}, Grade.WARN),
    ("clock", {"skew_ms": -2000.0}, Grade.WARN),
    ("memory", {"info": {"used_memory": "50"}}, Grade.OK),
    ("memory", {"info": {"used_memory": "85"}}, Grade.WARN),
    ("memory", {"info": {"used_memory": "97"}}, Grade.BAD),
    ("memory", {"info": {"maxmemory": "0"}}, Grade.WARN),
    ("tls", {}, Grade.OK),
    ("tls", {"url": "rediss://h"}, Grade.OK),
    ("tls", {"url": "rediss://h?ssl_cert_reqs=none"}, Grade.WARN),
    ("round trip", {"round_trips_ms": [20.0, 21.0, 22.0]}, Grade.WARN),
    ("latency", {"slowest": {"fork": 200}}, Grade.WARN),
    ("latency", {"slowest": {"fork": 20}}, Grade.OK),
]


@pytest.mark.parametrize(("check", "facts", "verdict"), VERDICTS)
def test_a_fact_is_graded(check: str, facts: dict[str, Any], verdict: Grade) -> None:
    found = judged(check, **facts)
    assert found.verdict is verdict
    assert bool(found.do) == (verdict is not Grade.OK)


PAGE = ROOT / "docs" / "how-to" / "operate-from-the-terminal.md"


@pytest.mark.parametrize("grade", [Grade.WARN, Grade.BAD])
def test_the_page_names_the_checks_that_give_a_grade(grade: Grade) -> None:
    [row] = re.findall(rf"^\| `{grade.name.lower()}` \|.*\|(.*)\|$", PAGE.read_text(), re.MULTILINE)
    told = set(re.findall(r"`([a-z ]+)`", row))
    judged_here = {check for check, _, verdict in VERDICTS if verdict is not Grade.OK}
    given = {check for check, _, verdict in VERDICTS if verdict is grade}
    assert told & judged_here == given
