"""Several private servers that belong together: clusters, and primaries with their sentinels."""

from collections.abc import Callable, Mapping
from contextlib import ExitStack
from typing import Self

from towpath.embedded.errors import CommandRefused, TopologyNotFormed
from towpath.embedded.home import LOOPBACK, Listen, ServerBinary, find_server, rendered
from towpath.embedded.process import Startable, ask_fields, items, text, wait_until
from towpath.embedded.server import EmbeddedServer

FORMED_WITHIN = 60.0


def expect(fact: str, check: Callable[[], bool], *, within: float = FORMED_WITHIN) -> None:
    """Return once *check* is true. Raises TopologyNotFormed, which names the *fact*, if not."""
    if not wait_until(check, within=within):
        raise TopologyNotFormed(fact, within)


SLOTS = 16_384


class EmbeddedCluster(Startable):
    """*masters* nodes that share the slots evenly, each with *replicas* replicas.

    A node that is silent for *node_timeout* seconds counts as dead. Without replicas, a dead node's
    slots stay uncovered until it is restarted; with them, a replica takes over. Starting takes
    about 2 s, because the nodes of a cluster wait that long before they accept writes.
    """

    def __init__(
        self,
        *,
        masters: int = 3,
        replicas: int = 0,
        node_timeout: float = 5.0,
        options: Mapping[str, str] | None = None,
        binary: ServerBinary | None = None,
    ) -> None:
        program = binary or find_server()
        lines = _cluster_options(node_timeout) | dict(options or {})

        def node() -> EmbeddedServer:
            return EmbeddedServer(listen=Listen.PORT, options=lines, binary=program)

        self.masters = tuple(node() for _ in range(masters))
        self.replicas = tuple(node() for _ in range(masters * replicas))
        self._formed = False

    @property
    def nodes(self) -> tuple[EmbeddedServer, ...]:
        """All nodes: the first masters, then the first replicas. The roles may have changed."""
        return self.masters + self.replicas

    @property
    def url(self) -> str:
        """`redis+cluster://127.0.0.1:p1,127.0.0.1:p2,…` with every node."""
        return "redis+cluster://" + ",".join(f"{LOOPBACK}:{node.port}" for node in self.nodes)

    def start(self) -> Self:
        """Start all nodes and return once each of them says that the cluster is up.

        Raises TopologyNotFormed, with all nodes stopped, if that does not happen in time.
        """
        with ExitStack() as undo:
            undo.callback(self.stop)
            for node in self.nodes:
                node.start()
            self._form()
            undo.pop_all()
        return self

    def stop(self) -> None:
        """Stop all nodes; a later `start` brings the same cluster back."""
        for node in self.nodes:
            node.stop()

    def wait_until_ok(self, *, within: float = FORMED_WITHIN) -> None:
        """Return once every running node sees all slots covered. Raises TopologyNotFormed."""
        running = [node for node in self.nodes if node.running]
        expect("every node says cluster_state:ok", lambda: all(map(_is_ok, running)), within=within)

    def _form(self) -> None:
        if not self._formed:
            self._share_slots()
            self._introduce()
            self._attach_replicas()
            self._formed = True
        expect("every node knows every other", self._all_known)
        self.wait_until_ok()
        expect("every replica follows its master", self._all_follow)

    def _share_slots(self) -> None:
        count = len(self.masters)
        for number, master in enumerate(self.masters):
            first, end = number * SLOTS // count, (number + 1) * SLOTS // count
            # ADDSLOTSRANGE would be shorter, but Redis 6.2 has no such command.
            master.ask("CLUSTER", "ADDSLOTS", *range(first, end))
            master.ask("CLUSTER", "SET-CONFIG-EPOCH", number + 1)

    def _introduce(self) -> None:
        # Every node meets every other: waiting for gossip to spread would take seconds more.
        for node in self.nodes:
            for other in self.nodes:
                if node is not other:
                    node.ask("CLUSTER", "MEET", LOOPBACK, other.port)

    def _attach_replicas(self) -> None:
        for number, replica in enumerate(self.replicas):
            master = self.masters[number % len(self.masters)]
            attached = _attachment(replica, text(master.ask("CLUSTER", "MYID")))
            expect("a replica accepts its master", attached)

    def _all_known(self) -> bool:
        wanted = (str(len(self.nodes)), str(len(self.masters)))
        states = (ask_fields(node.address, "CLUSTER", "INFO") for node in self.nodes)
        return all(
            (state["cluster_known_nodes"], state["cluster_size"]) == wanted for state in states
        )

    def _all_follow(self) -> bool:
        links = (ask_fields(node.address, "INFO", "replication") for node in self.replicas)
        return all(link.get("master_link_status", "up") == "up" for link in links)


def _cluster_options(node_timeout: float) -> dict[str, str]:
    return {
        "cluster-enabled": "yes",
        "cluster-config-file": "nodes.conf",
        "cluster-node-timeout": str(round(node_timeout * 1000)),
        "repl-diskless-sync": "yes",
        "repl-diskless-sync-delay": "0",
    }


def _is_ok(node: EmbeddedServer) -> bool:
    state = ask_fields(node.address, "CLUSTER", "INFO")
    return state["cluster_state"] == "ok" and state["cluster_slots_ok"] == str(SLOTS)


def _attachment(replica: EmbeddedServer, master: str) -> Callable[[], bool]:
    def attached() -> bool:
        try:
            replica.ask("CLUSTER", "REPLICATE", master)
        except CommandRefused as refusal:
            if "Unknown node" in refusal.said:
                return False
            raise
        return True

    return attached


SERVICE = "mymaster"
_SENTINELS = 3
_QUORUM = 2
_REPLICATION = {"repl-diskless-sync": "yes", "repl-diskless-sync-delay": "0"}


class EmbeddedSentinel(Startable):
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
        """Start all servers and return once a fail-over could succeed.

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
        """Stop all servers, the sentinels first, so that they start no fail-over."""
        for server in self.sentinels + self.servers:
            server.stop()
        self.servers = self.sentinels = ()

    def _start_servers(self) -> None:
        primary = self._add_server({})
        follow = {"replicaof": f"{LOOPBACK} {primary.port}"}
        for _ in range(self._replica_count):
            self._add_server(follow)
        expect("every replica follows the primary", lambda: self._follower_state() == "online")

    def _add_server(self, role: Mapping[str, str]) -> EmbeddedServer:
        server = EmbeddedServer(
            listen=Listen.PORT, options=self._options | dict(role), binary=self._binary
        )
        self.servers += (server,)
        return server.start()

    def _follower_state(self) -> str:
        """The state of all replicas on the primary; empty while their states differ."""
        fields = ask_fields(self.servers[0].address, "INFO", "replication")
        states = {
            fields.get(f"slave{n}", "").partition("state=")[2].partition(",")[0]
            for n in range(self._replica_count)
        }
        return states.pop() if len(states) == 1 else ""

    def _start_sentinels(self) -> None:
        watch = _sentinel_config(self.servers[0].port, self._down_after)
        for _ in range(_SENTINELS):
            sentinel = _Sentinel(watch, self._binary)
            self.sentinels += (sentinel,)
            sentinel.start()
        expect(
            "every sentinel knows all others and all replicas",
            lambda: all(_knows_group(each, self._replica_count) for each in self.sentinels),
        )


class _Sentinel(EmbeddedServer):
    """A sentinel: the server's program, started in its other mode."""

    def __init__(self, watch: str, binary: ServerBinary) -> None:
        super().__init__(listen=Listen.PORT, binary=binary)
        self._watch = watch

    def _command(self) -> list[str]:
        return [*super()._command(), "--sentinel"]

    def _config_text(self) -> str:
        return rendered(self._place()) + self._watch

    def _write_config(self) -> None:
        # A sentinel keeps its state in this file, so a restart must not overwrite it.
        if self._may_choose_port:
            super()._write_config()


def _sentinel_config(port: int, down_after: float) -> str:
    silence = round(down_after * 1000)
    return (
        f"sentinel monitor {SERVICE} {LOOPBACK} {port} {_QUORUM}\n"
        f"sentinel down-after-milliseconds {SERVICE} {silence}\n"
        f"sentinel failover-timeout {SERVICE} {silence * 5}\n"
        f"sentinel parallel-syncs {SERVICE} 1\n"
    )


def _knows_group(sentinel: EmbeddedServer, replicas: int) -> bool:
    others = items(sentinel.ask("SENTINEL", "SENTINELS", SERVICE))
    known = items(sentinel.ask("SENTINEL", "REPLICAS", SERVICE))
    if (len(others), len(known)) != (_SENTINELS - 1, replicas):
        return False
    try:
        sentinel.ask("SENTINEL", "CKQUORUM", SERVICE)
    except CommandRefused:
        return False
    return True
