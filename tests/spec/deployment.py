"""The deployments of Redis that the specification runs on: one server, a cluster, or a primary
behind sentinels. Tests ask them directly where the engine does not tell.
"""

import re
from dataclasses import dataclass
from datetime import datetime
from pathlib import Path
from typing import Self

from tests.key_snapshot import KeySnapshot
from towpath.clock import instant
from towpath.embedded import (
    CommandRefused,
    EmbeddedCluster,
    EmbeddedSentinel,
    EmbeddedServer,
    Reply,
)
from towpath.embedded.process import Word, fields, items

PAGE = Path(__file__).parents[2] / "docs" / "how-to" / "connect-over-tls.md"
USER, PASSWORD = "towpath", "of-the-tests"


@dataclass(frozen=True)
class Deployment:
    """A running deployment of Redis or Valkey."""

    url: str
    masters: tuple[EmbeddedServer, ...]

    @classmethod
    def of(cls, running: EmbeddedServer | EmbeddedCluster | EmbeddedSentinel) -> Self:
        """Connects as a user with only the permissions that the documentation says Towpath
        needs.
        """
        match running:
            case EmbeddedServer():
                masters = (running,)
            case EmbeddedCluster():
                masters = running.masters
            case EmbeddedSentinel():
                masters = (running.primary,)
        for master in masters:
            master.ask(*documented_user())
        return cls(as_documented_user(running.url), masters)

    def denied(self) -> list[str]:
        """What Redis refused to the user since it was emptied."""
        return [entry for master in self.masters for entry in denied_on(master)]

    def flush(self) -> None:
        for master in self.masters:
            master.ask("FLUSHALL")
            master.ask("ACL", "LOG", "RESET")

    def ask(self, command: Word, key: Word, *words: Word) -> Reply:
        """The reply of the master that serves *key*."""
        for master in self.masters:
            try:
                return master.ask(command, key, *words)
            except CommandRefused as refusal:
                if "MOVED" not in refusal.said:
                    raise
        raise AssertionError(f"no master serves {key!r}")

    def key_names(self) -> set[str]:
        return {key.decode() for master in self.masters for key in _keys_on(master)}

    def dump(self) -> KeySnapshot[str, object]:
        """Every key with its value, except the memory of calls, which refusals write too."""
        found = KeySnapshot[str, object]()
        for master in self.masters:
            for key in _keys_on(master):
                value, now, ttl = _value(master, key), _now_ms(master), master.ask("PTTL", key)
                assert isinstance(ttl, int)
                is_gone = ttl == -2  # it expired meanwhile
                if b":call:" not in key and not is_gone:
                    found.note(key.decode(), value, now, ttl)
        found.taken_ms = _now_ms(self.masters[0])
        return found

    def calls(self, *commands: str) -> int:
        """How often these commands were sent since Redis started."""
        return sum(_calls(master, command) for master in self.masters for command in commands)

    def time(self) -> datetime:
        """The clock of Redis."""
        return instant(_now_ms(self.masters[0]) // 1000 * 1000)

    def connections(self) -> int:
        """Clients that are connected."""
        infos = (fields(master.ask("INFO", "clients")) for master in self.masters)
        return sum(int(info["connected_clients"]) for info in infos)

    def blocked(self) -> int:
        """Clients that wait in a blocking command."""
        infos = (fields(master.ask("INFO", "clients")) for master in self.masters)
        return sum(int(info["blocked_clients"]) for info in infos)


def documented_user() -> list[str]:
    """The command in the documentation that creates a user for Towpath."""
    [line] = re.findall(r"^    (ACL SETUSER towpath .*)$", PAGE.read_text(), re.MULTILINE)
    return line.replace("PASSWORD", PASSWORD).split()


def as_documented_user(url: str) -> str:
    """The URL of that user. The user may not read the configuration, so the URL declares the
    durability class.
    """
    scheme, _, place = url.partition("://")
    return f"{scheme}://{USER}:{PASSWORD}@{place}{'&' if '?' in url else '?'}durability=memory"


def denied_on(master: EmbeddedServer) -> list[str]:
    """What a node has refused to users, except CONFIG GET, which may be denied."""
    entries = [items(entry) for entry in items(master.ask("ACL", "LOG"))]
    asked = {b"config|get", b"config"}  # Redis 6.2 logs the command without its subcommand
    return [" ".join(map(str, entry[:10])) for entry in entries if not asked.intersection(entry)]


def _keys_on(master: EmbeddedServer) -> list[bytes]:
    found: list[bytes] = []
    cursor: Reply = b"0"
    while True:
        assert isinstance(cursor, bytes)
        cursor, page = items(master.ask("SCAN", cursor, "COUNT", 1000))
        found += [key for key in items(page) if isinstance(key, bytes)]
        if cursor == b"0":
            return found


_READ: dict[Reply, tuple[str, ...]] = {
    b"string": ("GET",),
    b"list": ("LRANGE", "0", "-1"),
    b"zset": ("ZRANGE", "0", "-1", "WITHSCORES"),
    b"stream": ("XRANGE", "-", "+"),
    b"hash": ("HGETALL",),
}


def _now_ms(master: EmbeddedServer) -> int:
    now_s, micros = items(master.ask("TIME"))
    assert isinstance(now_s, bytes)
    assert isinstance(micros, bytes)
    return int(now_s) * 1000 + int(micros) // 1000


def _value(master: EmbeddedServer, key: bytes) -> object:
    kind = master.ask("TYPE", key)
    if kind == b"none":
        return None
    command, *words = _READ[kind]
    value = master.ask(command, key, *words)
    if kind != b"hash":
        return value
    flat = items(value)  # Redis keeps these in any order
    return {str(name): field for name, field in zip(flat[::2], flat[1::2], strict=True)}


def _calls(master: EmbeddedServer, command: str) -> int:
    stats = fields(master.ask("INFO", "commandstats")).get(f"cmdstat_{command}", "")
    counts = dict(part.split("=") for part in stats.split(",") if part)
    return int(counts.get("calls", "0"))
