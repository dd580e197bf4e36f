"""Moves slots from one master of a cluster to another, key by key."""

from collections.abc import Iterable

from tests.waiting import eventually
from towpath.embedded import CommandRefused, EmbeddedCluster, EmbeddedServer
from towpath.embedded.process import items, text

_HOST = "127.0.0.1"
_WITHIN_MS = 5000
_MOST_KEYS = 100_000


class MovingSlot:
    """The slot of *key*, to be moved from its master to the next one."""

    def __init__(self, cluster: EmbeddedCluster, key: str) -> None:
        self._masters = cluster.masters
        self.number = slot_of(cluster, key)
        self.source = next(master for master in cluster.masters if _serves(master, key))
        at = cluster.masters.index(self.source)
        self.target = cluster.masters[(at + 1) % len(cluster.masters)]

    def begin(self) -> None:
        """Marks the slot: from now on the source serves only keys that it still has."""
        self._set(self.target, "IMPORTING", _id(self.source))
        self._set(self.source, "MIGRATING", _id(self.target))

    def left(self) -> list[bytes]:
        """The keys that are still at the source."""
        found = self.source.ask("CLUSTER", "GETKEYSINSLOT", self.number, _MOST_KEYS)
        return [key for key in items(found) if isinstance(key, bytes)]

    def move(self, keys: Iterable[bytes]) -> None:
        """Moves some keys. Raises CommandRefused (BUSYKEY) if the target has a key of that name
        already.
        """
        if names := list(keys):
            to = (_HOST, self.target.port, "", 0, _WITHIN_MS)
            self.source.ask("MIGRATE", *to, "KEYS", *names)

    def finish(self) -> None:
        """Moves the rest; from now on the target has the slot."""
        self.move(self.left())
        others = [master for master in self._masters if master not in (self.target, self.source)]
        for node in (self.target, self.source, *others):
            self._set(node, "NODE", _id(self.target))

    def abandon(self) -> None:
        """Stops an unfinished move; a finished one stays."""
        for node in self._masters:
            self._set(node, "STABLE")

    def _set(self, node: EmbeddedServer, *words: str) -> None:
        node.ask("CLUSTER", "SETSLOT", self.number, *words)


def slot_of(cluster: EmbeddedCluster, key: str) -> int:
    number = cluster.masters[0].ask("CLUSTER", "KEYSLOT", key)
    assert isinstance(number, int)
    return number


def wait_until_agreed(cluster: EmbeddedCluster) -> None:
    """Returns once all masters agree on who has which slot, and since when."""
    eventually(lambda: len({_layout(master) for master in cluster.masters}) == 1)


def _layout(node: EmbeddedServer) -> frozenset[tuple[str, ...]]:
    """The name, epoch and slots of each node."""
    rows = (line.split() for line in text(node.ask("CLUSTER", "NODES")).splitlines())
    return frozenset((row[0], row[6], *row[8:]) for row in rows)


def _id(node: EmbeddedServer) -> str:
    return text(node.ask("CLUSTER", "MYID"))


def _serves(node: EmbeddedServer, key: str) -> bool:
    try:
        node.ask("EXISTS", key)
    except CommandRefused:
        return False
    return True
