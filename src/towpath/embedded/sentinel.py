"""A primary with replicas, watched by three sentinels: for trying a fail-over."""

from collections.abc import Mapping
from contextlib import ExitStack
from typing import Self

from towpath.embedded.binary import ServerBinary, find_server
from towpath.embedded.config import Listen, rendered
from towpath.embedded.errors import CommandRefused
from towpath.embedded.forming import expect
from towpath.embedded.ports import LOOPBACK
from towpath.embedded.resp import ask_fields, items
from towpath.embedded.running import Running
from towpath.embedded.server import EmbeddedServer

SERVICE = "mymaster"
_SENTINELS = 3
_QUORUM = 2
_REPLICATION = {"repl-diskless-sync": "yes", "repl-diskless-sync-delay": "0"}


class EmbeddedSentinel(Running):
    """One primary, *replicas* replicas and three sentinels, all on this machine.

    *down_after* is how many seconds of silence make a sentinel suspect the primary: below 1 s,
    cascading fail-overs lose acknowledged writes (RELIABILITY, fact 6). Two sentinels must agree.
    """

    def __init__(
        self,
        *,
        replicas: int = 1,
        down_after: float = 1.0,
        options: Mapping[str, str] | None = None,
        binary: ServerBinary | None = None,
    ) -> None:
        self._binary = binary or find_server()
        self._replica_count = replicas
        self._down_after = down_after
        self._options = _REPLICATION | dict(options or {})
        self.servers: tuple[EmbeddedServer, ...] = ()
        self.sentinels: tuple[EmbeddedServer, ...] = ()

    @property
    def url(self) -> str:
        """`redis+sentinel://127.0.0.1:s1,127.0.0.1:s2,127.0.0.1:s3/mymaster`."""
        hosts = ",".join(f"{LOOPBACK}:{sentinel.port}" for sentinel in self.sentinels)
        return f"redis+sentinel://{hosts}/{SERVICE}"

    @property
    def primary(self) -> EmbeddedServer:
        """The server that the first running sentinel takes for the primary now."""
        sentinel = next(sentinel for sentinel in self.sentinels if sentinel.running)
        reply = items(sentinel.ask("SENTINEL", "GET-MASTER-ADDR-BY-NAME", SERVICE))
        return next(server for server in self.servers if str(server.port).encode() in reply)

    def start(self) -> Self:
        """Start all of them and return once a fail-over could succeed.

        Raises TopologyNotFormed, with everything stopped, if that does not happen in time.
        """
        if self.servers:
            return self
        with ExitStack() as undo:
            undo.callback(self.stop)
            self._start_servers()
            self._start_sentinels()
            undo.pop_all()
        return self

    def stop(self) -> None:
        """Stop all of them, the sentinels first: a stopping primary is no reason to fail over."""
        for server in self.sentinels + self.servers:
            server.stop()
        self.servers = self.sentinels = ()

    def _start_servers(self) -> None:
        primary = self._add_server({})
        follow = {"replicaof": f"{LOOPBACK} {primary.port}"}
        for _ in range(self._replica_count):
            self._add_server(follow)
        expect("every replica follows the primary", lambda: self._followers() == "online")

    def _add_server(self, role: Mapping[str, str]) -> EmbeddedServer:
        server = EmbeddedServer(
            listen=Listen.PORT, options=self._options | dict(role), binary=self._binary
        )
        self.servers += (server,)
        return server.start()

    def _followers(self) -> str:
        """The state that all replicas have on the primary; empty while it is not one state."""
        said = ask_fields(self.servers[0].address, "INFO", "replication")
        states = {
            said.get(f"slave{n}", "").partition("state=")[2].partition(",")[0]
            for n in range(self._replica_count)
        }
        return states.pop() if len(states) == 1 else ""

    def _start_sentinels(self) -> None:
        watch = _watch(self.servers[0].port, self._down_after)
        for _ in range(_SENTINELS):
            sentinel = _Sentinel(watch, self._binary)
            self.sentinels += (sentinel,)
            sentinel.start()
        expect("every sentinel knows all others and all replicas", self._all_acquainted)

    def _all_acquainted(self) -> bool:
        return all(_acquainted(sentinel, self._replica_count) for sentinel in self.sentinels)


class _Sentinel(EmbeddedServer):
    """The same program in its other role."""

    def __init__(self, watch: str, binary: ServerBinary) -> None:
        super().__init__(listen=Listen.PORT, binary=binary)
        self._watch = watch

    def _command(self) -> list[str]:
        return [*super()._command(), "--sentinel"]

    def _config_text(self) -> str:
        return rendered(self._place()) + self._watch

    def _write_config(self) -> None:
        # A sentinel keeps what it learned in this file: a restart must not wipe it out.
        if self._may_choose_port:
            super()._write_config()


def _watch(port: int, down_after: float) -> str:
    silence = round(down_after * 1000)
    return (
        f"sentinel monitor {SERVICE} {LOOPBACK} {port} {_QUORUM}\n"
        f"sentinel down-after-milliseconds {SERVICE} {silence}\n"
        f"sentinel failover-timeout {SERVICE} {silence * 5}\n"
        f"sentinel parallel-syncs {SERVICE} 1\n"
    )


def _acquainted(sentinel: EmbeddedServer, replicas: int) -> bool:
    others = items(sentinel.ask("SENTINEL", "SENTINELS", SERVICE))
    known = items(sentinel.ask("SENTINEL", "REPLICAS", SERVICE))
    if (len(others), len(known)) != (_SENTINELS - 1, replicas):
        return False
    try:
        sentinel.ask("SENTINEL", "CKQUORUM", SERVICE)
    except CommandRefused:
        return False
    return True
