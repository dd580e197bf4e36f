"""Every key Towpath's engine uses, spelled here and in lua/lib/keys.lua and nowhere else.

A queue is one hash tag, so that every script stays in one slot of a cluster. Ids and lanes may
contain anything, braces and colons too, so they are always the last part of a key.
"""

from __future__ import annotations

from functools import lru_cache

from towpath.ids import QueueName, StreamName

REGISTRY = "towpath:queues"
"""hash: queue -> its options. Lists all queues of the deployment."""
PROBE = "towpath:probe"
"""Written to check that Redis accepts writes; it expires after a millisecond."""

TYPES = {
    "queue": "zset",
    "retry": "zset",
    "leases": "zset",
    "waiting": "zset",
    "dead": "zset",
    "done": "zset",
    "seen": "zset",
    "lane": "zset",
    "selector": "zset",
    "held": "zset",
    "asked": "zset",
    "group": "zset",
    "lanes": "hash",
    "meta": "hash",
    "recurring": "hash",
    "schedules": "hash",
    "loads": "hash",
    "groups": "hash",
    "history": "hash",
    "job": "string",
    "load": "string",
    "result": "string",
    "lock": "string",
    "call": "string",
    "events": "stream",
    "wake": "list",
    "wakes": "list",
}
"""The type of each key, as the scripts' headers name them."""


class DeclaredKeys:
    """The keys that every script call declares, and those of remembered calls.

    All are in the slot of *first*.
    """

    __slots__ = ("first", "never", "tag")

    def __init__(self, first: str, tag: str) -> None:
        self.first, self.tag = first, tag
        self.never = f"{tag}:never"

    def call(self, channel: str) -> str:
        return f"{self.tag}:call:{channel}"


class QueueKeys(DeclaredKeys):
    """The keys of one queue."""

    __slots__ = (
        "asked", "dead", "done", "events", "groups", "history", "lanes", "leases", "loads",
        "meta", "queue", "recurring", "retry", "schedules", "seen", "waiting", "wake",
    )  # fmt: skip

    def __init__(self, queue: QueueName) -> None:
        super().__init__(f"{{{queue}}}:meta", f"{{{queue}}}")
        self.queue = f"{self.tag}:queue"
        self.retry = f"{self.tag}:retry:queue"
        self.leases = f"{self.tag}:leases"
        self.waiting = f"{self.tag}:waiting"
        self.dead = f"{self.tag}:dead"
        self.done = f"{self.tag}:done"
        self.seen = f"{self.tag}:seen"
        self.lanes = f"{self.tag}:lanes"
        self.meta = self.first
        self.recurring = f"{self.tag}:recurring"
        self.schedules = f"{self.tag}:schedules"
        self.loads = f"{self.tag}:loads"
        self.events = f"{self.tag}:events"
        self.wake = f"{self.tag}:wake"
        self.asked = f"{self.tag}:asked"
        self.groups = f"{self.tag}:groups"
        self.history = f"{self.tag}:history"

    def job(self, id: str) -> str:
        return f"{self.tag}:job:{id}"

    def load(self, id: str) -> str:
        return f"{self.tag}:load:{id}"

    def result(self, id: str) -> str:
        return f"{self.tag}:result:{id}"

    def lock(self, id: str) -> str:
        return f"{self.tag}:lock:{id}"

    def lane(self, lane: str) -> str:
        return f"{self.tag}:lane:{lane}"

    def selector(self, selector: str) -> str:
        return f"{self.tag}:selector:{selector}"

    def wakes(self, selector: str) -> str:
        return f"{self.tag}:wakes:{selector}"

    def held(self, worker: str) -> str:
        return f"{self.tag}:held:{worker}"

    def group(self, group: str) -> str:
        return f"{self.tag}:group:{group}"

    def recall(self, name: str) -> str:
        """list: ends the blocking read of one process that waits for selectors of the queue."""
        return f"{self.tag}:recall:{name}"


def recall_key(name: str) -> str:
    """list: ends the blocking read of one process that waits on many queues."""
    return f"towpath:recall:{name}"


def stream_keys(stream: StreamName) -> DeclaredKeys:
    """A stream for other programs. It belongs to no queue, and its whole name is its hash tag."""
    key = f"towpath:stream:{stream}"
    return DeclaredKeys(key, f"{{{key}}}")


def published_keys(name: str) -> DeclaredKeys:
    """An entry with one key whose name other programs know; the whole name is its hash tag."""
    return DeclaredKeys(name, f"{{{name}}}")


# A closing brace would end the tag early: at the beginning of an id it would spread the entry
# over slots, elsewhere two entries could share a key. '%' is escaped so that no two ids become one.
_ESCAPED = str.maketrans({"}": "%7D", "%": "%25"})


def record_keys(space: str, id: str) -> DeclaredKeys:
    """An entry of a space: `upload:{<id>}:…`, all in one slot."""
    name = f"{space}:{{{id.translate(_ESCAPED)}}}"
    return DeclaredKeys(name, name)


def probe_key(key: str, channel: str) -> str:
    """A key in the slot of *key* that only *channel* writes, to check that its server answers."""
    tag = key.partition("{")[2].partition("}")[0] or key
    return f"{{{tag}}}:call:{channel}"


@lru_cache(maxsize=1024)
def keys_of(queue: QueueName) -> QueueKeys:
    return QueueKeys(queue)
