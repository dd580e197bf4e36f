"""A real cluster of private servers on this machine, formed with raw commands."""

from collections.abc import Callable, Mapping
from contextlib import ExitStack
from typing import Self

from towpath.embedded.binary import ServerBinary, find_server
from towpath.embedded.config import Listen
from towpath.embedded.errors import CommandRefused
from towpath.embedded.forming import FORMED_WITHIN, expect
from towpath.embedded.ports import LOOPBACK
from towpath.embedded.resp import ask_fields, text
from towpath.embedded.running import Running
from towpath.embedded.server import EmbeddedServer

SLOTS = 16_384


class EmbeddedCluster(Running):
    """*masters* nodes that share the slots evenly, each with *replicas* replicas.

    A node that is silent for *node_timeout* seconds is taken for dead. Without replicas a dead
    node's slots stay uncovered until it is restarted; with them, a replica takes over. Starting
    takes about 2 s: a cluster's nodes wait that long by design before they accept writes.
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
        """All nodes: the masters as formed, then the replicas (which of them lead may change)."""
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
        """Return once every running node sees all slots covered; else TopologyNotFormed."""
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
        # Everybody meets everybody: waiting for gossip to spread would take seconds more.
        for node in self.nodes:
            for other in self.nodes:
                if node is not other:
                    node.ask("CLUSTER", "MEET", LOOPBACK, other.port)

    def _attach_replicas(self) -> None:
        for number, replica in enumerate(self.replicas):
            master = self.masters[number % len(self.masters)]
            attached = _attachment(replica, _node_id(master))
            expect("a replica accepts its master", attached)

    def _all_known(self) -> bool:
        wanted = (str(len(self.nodes)), str(len(self.masters)))
        return all(_known(node) == wanted for node in self.nodes)

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


def _known(node: EmbeddedServer) -> tuple[str, str]:
    state = ask_fields(node.address, "CLUSTER", "INFO")
    return state["cluster_known_nodes"], state["cluster_size"]


def _node_id(node: EmbeddedServer) -> str:
    return text(node.ask("CLUSTER", "MYID"))


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
