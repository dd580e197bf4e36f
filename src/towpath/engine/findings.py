"""Whether Redis and the queues are fit for work, and what to do if not: for `towpath doctor`."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from enum import IntEnum
from typing import TYPE_CHECKING, NamedTuple

from towpath.errors import DurabilityUnknown, EvictionUnsafe, LayoutDiffers, ServerRefused

if TYPE_CHECKING:
    from towpath.engine.diagnosis import Checkup, ServerState
    from towpath.engine.durability import Durability
    from towpath.engine.engine import Engine
    from towpath.engine.url import ServerUrl

OLDEST = (6, 2)
SKEW_MS = 500
SLOW_MS, VERY_SLOW_MS = 5, 50
FULL, NEARLY_FULL = 0.95, 0.8
_GIB = 2**30


# ── one function per check ───────────────────────────────────────────────────────────────


class Grade(IntEnum):
    OK = 0
    WARN = 1
    BAD = 2


class Finding(NamedTuple):
    """The result of one check: what was found, how good that is, and what to do."""

    check: str
    verdict: Grade
    found: str
    do: str = ""
    server: str = ""
    """The server's name, if there are several."""


def findings(checkup: Checkup, url: ServerUrl, declared: Durability | None) -> list[Finding]:
    """The findings about a Redis deployment, server by server."""
    found: list[Finding] = []
    for server in checkup.servers:
        name = f"port {server.info.get('tcp_port')}" if len(checkup.servers) > 1 else ""
        of_server = [_version(server), _durability(server, declared)]
        of_server += [check(server) for check in _CHECKS]
        found += [finding._replace(server=name) for finding in of_server]
    return [*found, _tls(url), _write(checkup)]


def _version(server: ServerState) -> Finding:
    info = server.info
    flavour = "valkey" if "valkey_version" in info else "redis"
    version = info.get("valkey_version") or info.get("redis_version", "0")
    numbers = tuple(int(part) for part in version.split(".")[:2] if part.isdecimal())
    if flavour == "redis" and numbers < OLDEST:
        do = "Use Redis 6.2 or newer, or Valkey."
        return Finding("version", Grade.BAD, f"{flavour} {version}", do)
    mode = info.get("redis_mode", "standalone")
    return Finding("version", Grade.OK, f"{flavour} {version}, {mode}")


def _eviction(server: ServerState) -> Finding:
    policy = server.settings.get("maxmemory-policy") or server.info.get("maxmemory_policy", "")
    if policy != "noeviction":
        text = f"{policy or 'not known'}: when memory is full, live jobs are deleted"
        return Finding("eviction", Grade.BAD, text, EvictionUnsafe.remedy)
    return Finding("eviction", Grade.OK, policy)


def _durability(server: ServerState, declared: Durability | None) -> Finding:
    from towpath.engine.durability import Disk  # noqa: PLC0415 -- slow to import

    settings, info = server.settings, server.info
    if info.get("aof_last_write_status", "ok") != "ok":
        do = "Check the server's log and disk: its last write to the append-only file failed."
        return Finding("durability", Grade.BAD, "the append-only file can't be written", do)
    if not settings and declared is None:
        text = "unknown: CONFIG GET is denied, and no class is declared"
        return Finding("durability", Grade.BAD, text, DurabilityUnknown.remedy)
    if not settings and declared is not None:
        return Finding("durability", Grade.OK, f"{declared}, as declared: CONFIG GET is denied")
    syncs = {"always": Disk.DISK, "everysec": Disk.SECOND}
    on_disk = syncs.get(settings["appendfsync"], Disk.MEMORY)
    match on_disk if settings["appendonly"] == "yes" else Disk.MEMORY:
        case Disk.MEMORY:
            do = "Set `appendonly yes`; add `appendfsync always` if not even a second may be lost."
            text = "memory: all data is lost when the server ends"
            return Finding("durability", Grade.WARN, text, do)
        case Disk.SECOND:
            text = "second: a crash may lose the last second"
        case Disk.DISK:
            text = "disk: a crash loses nothing that was acknowledged"
    return Finding("durability", Grade.OK, text)


def _replicas(server: ServerState) -> Finding:
    info = server.info
    lines = [info[name] for name in info if name.startswith("slave") and "state=" in info[name]]
    behind = [line for line in lines if "state=online" not in line]
    if behind:
        do = "Check the replicas' logs and the network between them."
        text = f"{len(lines)}, {len(behind)} of them out of sync"
        return Finding("replicas", Grade.WARN, text, do)
    return Finding("replicas", Grade.OK, f"{len(lines)}" if lines else "none")


def _clock(server: ServerState) -> Finding:
    skew = server.skew_ms
    text = f"{abs(skew):.0f} ms {'ahead of' if skew > 0 else 'behind'} this machine's"
    if abs(skew) > SKEW_MS:
        do = "Run NTP on both machines. The server's clock decides when jobs are due."
        return Finding("clock", Grade.WARN, text, do)
    return Finding("clock", Grade.OK, text)


def _scripts(server: ServerState) -> Finding:
    if server.scripts_refused:
        do = "Allow EVAL, EVALSHA and SCRIPT for this user: Towpath runs Lua scripts."
        return Finding("scripts", Grade.BAD, server.scripts_refused, do)
    text = f"{server.scripts_all} can be loaded, {server.scripts_known} were already loaded"
    return Finding("scripts", Grade.OK, text)


def _memory(server: ServerState) -> Finding:
    used, limit = int(server.info.get("used_memory", 0)), int(server.info.get("maxmemory", 0))
    if not limit:
        do = "Set `maxmemory`: submits are then refused before the machine runs out of memory."
        return Finding("memory", Grade.WARN, f"{_spell_size(used)} used, no limit", do)
    share = used / limit
    text = f"{_spell_size(used)} of {_spell_size(limit)} used ({share:.0%})"
    if share > NEARLY_FULL:
        verdict = Grade.BAD if share > FULL else Grade.WARN
        do = "Raise `maxmemory`, shorten `keep` or add workers: full memory means refused submits."
        return Finding("memory", verdict, text, do)
    return Finding("memory", Grade.OK, text)


def _round_trip(server: ServerState) -> Finding:
    from statistics import median  # noqa: PLC0415 -- slow to import

    typical, worst = median(server.round_trips_ms), server.round_trips_ms[-1]
    text = f"{typical:.2f} ms, at worst {worst:.2f} ms in {len(server.round_trips_ms)}"
    if typical > SLOW_MS:
        do = "Run workers closer to the server: each batch of jobs takes one round trip."
        return Finding("round trip", Grade.WARN, text, do)
    return Finding("round trip", Grade.OK, text)


def _latency(server: ServerState) -> Finding:
    slow = {kind: ms for kind, ms in server.slowest.items() if ms > VERY_SLOW_MS}
    if slow:
        text = "the server was blocked: " + ", ".join(
            f"{kind} {ms} ms" for kind, ms in slow.items()
        )
        do = "Run LATENCY DOCTOR; a slow disk or a large fork is the usual cause."
        return Finding("latency", Grade.WARN, text, do)
    if server.settings.get("latency-monitor-threshold", "0") == "0":
        return Finding("latency", Grade.OK, "not measured (latency-monitor-threshold is 0)")
    return Finding("latency", Grade.OK, f"nothing above {VERY_SLOW_MS} ms")


_CHECKS: tuple[Callable[[ServerState], Finding], ...] = (
    _eviction, _replicas, _clock, _scripts, _memory, _round_trip, _latency,
)  # fmt: skip


def _tls(url: ServerUrl) -> Finding:
    from towpath.engine.tls import Verify  # noqa: PLC0415 -- slow to import

    if url.tls is None:
        return Finding("tls", Grade.OK, "not used")
    if url.tls.verify is Verify.NONE:
        text = "the server's certificate is not checked: another server could answer"
        do = "Set `tls.ca` to the authority that signed it, and `tls.verify` to full."
        return Finding("tls", Grade.WARN, text, do)
    return Finding("tls", Grade.OK, f"the server's certificate is checked ({url.tls.verify})")


def _write(checkup: Checkup) -> Finding:
    if checkup.write_refused:
        do = "Read the server's message: full disk or memory, a replica, or no permission."
        return Finding("write", Grade.BAD, checkup.write_refused, do)
    return Finding("write", Grade.OK, "works")


async def of_queues(engine: Engine) -> list[Finding]:
    """The findings about the queues: what an operator may want to look at."""
    from towpath.engine.options import differences  # noqa: PLC0415 -- slow to import

    names = sorted(await engine.queues.list())
    counts = await engine.inspect.counts_of(names)
    found = [Finding("queues", Grade.OK, f"{len(names)}")]
    found += await _find_other_layouts(engine, names)
    for name in names:
        if name not in counts:
            do = f"`towpath queues show {name}` says why."
            found.append(Finding("queues", Grade.BAD, f"{name} cannot be read", do))
    for name, queue in counts.items():
        if queue.no_worker:
            text = f"{name} has {queue.ready} ready jobs, and no worker asks for them"
            do = "Start a worker with the queue's handlers; `towpath workers` lists those that run."
            found.append(Finding("queues", Grade.WARN, text, do))
        if queue.totals["unhandled"] and queue.delayed:
            found += await _find_unhandled(engine, name)
        if queue.dead:
            text = f"{name} has {queue.dead} dead"
            found.append(Finding("queues", Grade.WARN, text, f"towpath dead list --queue {name}"))
        declared, options = await engine.queues.declared(name), await engine.queues.options(name)
        if declared and (changed := differences(options, declared)):
            text = f"{name}, changed since they were declared: {changed}"
            do = f"To go back to the declared options: towpath queues reset {name}"
            found.append(Finding("options", Grade.OK, text, do))
        if queue.paused:
            text = f"{name} is paused"
            found.append(Finding("queues", Grade.WARN, text, f"towpath resume {name}"))
    return found


async def _find_other_layouts(engine: Engine, readable: Sequence[str]) -> list[Finding]:
    """The queues that another version of Towpath has made in another layout."""
    found: list[Finding] = []
    for name in sorted({*await engine.queues.names()} - {*readable}):
        try:
            await engine.queues.options(name)
        except LayoutDiffers as refusal:
            text = f"{name}: its data has another layout than this version writes"
            found.append(Finding("layout", Grade.BAD, text, refusal.remedy))
        except ServerRefused:
            pass  # it is in the log, and using the queue raises it
    return found


_UNHANDLED_LOOK = 1000
"""The number of delayed jobs that are checked. Jobs that no worker could run are tried again within
30 s, so they are among the first."""


async def _find_unhandled(engine: Engine, queue: str) -> list[Finding]:
    """The handlers that live workers lack to run delayed jobs of *queue*."""
    from towpath.engine.explain import HANDLER_MISSING, spell_handler, spell_handlers  # noqa: PLC0415 -- slow to import
    from towpath.engine.states import State  # noqa: PLC0415 -- the same

    page = await engine.inspect.list(queue, State.DELAYED, size=_UNHANDLED_LOOK)
    lacking: dict[tuple[str | None, bool], int] = {}
    for job in page.jobs:
        if job.unhandled is not None:
            kind = job.headers.get("handler"), job.unhandled == HANDLER_MISSING
            lacking[kind] = lacking.get(kind, 0) + 1
    workers = [worker.report for worker in await engine.workers.list()] if lacking else []
    have = spell_handlers((report for report in workers if report.may_serve(queue)), queue)
    do = "Start a worker of the release that has it; the jobs are dead after `unhandled_for`."
    found: list[Finding] = []
    for (name, is_missing), count in lacking.items():
        asked, jobs = spell_handler(name), "1 job" if count == 1 else f"{count} jobs"
        text = f"{queue} has {jobs} for {asked}"
        if is_missing:
            text = f"{text}, which the workers that got them lack; live workers have: {have}"
        else:
            text = f"{text} whose payload does not fit it; live workers have: {have}"
        found.append(Finding("handlers", Grade.WARN, text, do))
    return found


SAME_DATABASE = (
    "Start servers, workers and commands with the same TOWPATH_DATABASE: the payload, the attempts"
    " and the state of a job with a record are in its database."
)


def of_records(elsewhere: Mapping[str, Sequence[str]]) -> list[Finding]:
    """Findings for queues whose workers have another database than this process."""
    return [
        Finding(
            "ledger",
            Grade.WARN,
            f"{queue}: the records of its jobs are in another database than the one here, says"
            f" worker {workers[0]}" + (f" and {len(workers) - 1} more" if workers[1:] else ""),
            SAME_DATABASE,
        )
        for queue, workers in sorted(elsewhere.items())
    ]


def _spell_size(count: int) -> str:
    return f"{count / _GIB:.1f} GiB" if count > _GIB else f"{count / 2**20:.1f} MiB"
