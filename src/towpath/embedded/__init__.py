"""Private servers for one process: a Valkey, a cluster, a set of sentinels. No client library.

The object store is in `towpath.embedded.objects`, because few need it and its imports are slow.
"""

from towpath.embedded.errors import (
    CommandRefused,
    DataDirectoryInUse,
    EmbeddedError,
    NotAServer,
    ObjectsNotFound,
    ServerDidNotStart,
    ServerNotFound,
    ServerNotRunning,
    TopologyNotFormed,
)
from towpath.embedded.groups import EmbeddedCluster, EmbeddedSentinel
from towpath.embedded.home import Flavour, Listen, ServerBinary, find_server
from towpath.embedded.process import Address, RedisConnection, Reply
from towpath.embedded.server import EmbeddedServer

__all__ = [
    "Address",
    "CommandRefused",
    "DataDirectoryInUse",
    "EmbeddedCluster",
    "EmbeddedError",
    "EmbeddedSentinel",
    "EmbeddedServer",
    "Flavour",
    "Listen",
    "NotAServer",
    "ObjectsNotFound",
    "RedisConnection",
    "Reply",
    "ServerBinary",
    "ServerDidNotStart",
    "ServerNotFound",
    "ServerNotRunning",
    "TopologyNotFormed",
    "find_server",
]
