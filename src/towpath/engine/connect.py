"""Connections: one server, Sentinel or Cluster behind the same small face.

A `Line` carries one command at a time and sends it once: whoever calls knows whether a repeat
is safe (`channel.py`), so redis-py's own retries are off. Time limits are the caller's too.
"""

from __future__ import annotations

from typing import Any, Protocol, cast

from hiredis import pack_command  # pyright: ignore[reportUnknownVariableType] -- typed in part
from redis.asyncio import Redis, RedisCluster, Sentinel
from redis.asyncio.cluster import ClusterNode
from redis.asyncio.connection import AbstractConnection
from redis.asyncio.retry import Retry
from redis.backoff import NoBackoff
from redis.exceptions import SlotNotCoveredError

from towpath.engine.url import ServerUrl, Topology

CONNECT_SECONDS = 3.0
_CONFIRM_KEPT_MS = 600_000


class Line(Protocol):
    """One command at a time, to whichever server is responsible for its key."""

    async def send(self, *command: Any) -> Any:
        """The reply. Raises redis-py's errors, an error reply included."""
        ...

    async def confirmed(
        self, command: tuple[Any, ...], key: str, replicas: int, limit_ms: int
    ) -> tuple[Any, int]:
        """The reply to *command*, and how many replicas have all that its server has written.

        All on one connection. WAIT looks at the last write of its own connection, and a
        repeated call writes nothing: so *key*, which nobody reads, is written in between.
        """
        ...

    async def hang_up(self) -> None:
        """Drop the connection; the next command makes a new one, to the server responsible then."""
        ...


class Link(Protocol):
    """The way to one deployment of Redis or Valkey."""

    def line(self) -> Line: ...

    async def primaries(self) -> list[Line]:
        """A line to each server that takes writes."""
        ...

    async def close(self) -> None: ...


class _DirectLine:
    """A connection of its own to one server, or to the primary that the sentinels name."""

    def __init__(self, connection: AbstractConnection) -> None:
        self._connection = connection

    async def send(self, *command: Any) -> Any:
        connection = await self._connected()
        # redis-py's asyncio packer is Python; hiredis does the same in a tenth of the time.
        packed = cast("bytes", pack_command(command))  # pyright: ignore[reportUnknownVariableType]
        await connection.send_packed_command(packed, check_health=False)
        return await _reply(connection)

    async def confirmed(
        self, command: tuple[Any, ...], key: str, replicas: int, limit_ms: int
    ) -> tuple[Any, int]:
        return await _confirmed(await self._connected(), command, key, replicas, limit_ms)

    async def hang_up(self) -> None:
        await self._connection.disconnect(nowait=True)

    async def _connected(self) -> AbstractConnection:
        # A command would connect by itself, but without asking the sentinels who is primary.
        if not self._connection.is_connected:
            await self._connection.connect()
        return self._connection


class _ClusterLine:
    """Commands that redis-py's cluster client sends to the node of their key."""

    def __init__(self, client: RedisCluster) -> None:
        self._client = client

    async def send(self, *command: Any) -> Any:
        return await self._client.execute_command(*command)

    async def confirmed(
        self, command: tuple[Any, ...], key: str, replicas: int, limit_ms: int
    ) -> tuple[Any, int]:
        node = self._client.get_node_from_key(key)
        if node is None:
            raise SlotNotCoveredError(f"no node serves the slot of {key}")
        connection = node.acquire_connection()
        try:
            return await _confirmed(connection, command, key, replicas, limit_ms)
        except BaseException:
            # Replies may be left unread: the next one to get it must not take them for his.
            await connection.disconnect(nowait=True)
            raise
        finally:
            node.release(connection)

    async def hang_up(self) -> None:
        """Nothing to do: the client drops broken connections and learns the slots anew."""


class _NodeLine:
    """Commands to one node of a cluster, whatever their key."""

    def __init__(self, node: ClusterNode) -> None:
        self._node = node

    async def send(self, *command: Any) -> Any:
        return await self._node.execute_command(*command)

    async def confirmed(
        self, command: tuple[Any, ...], key: str, replicas: int, limit_ms: int
    ) -> tuple[Any, int]:
        raise NotImplementedError("a node line only asks a node about itself")

    async def hang_up(self) -> None:
        await self._node.disconnect()


async def _confirmed(
    connection: AbstractConnection,
    command: tuple[Any, ...],
    key: str,
    replicas: int,
    limit_ms: int,
) -> tuple[Any, int]:
    await connection.send_command(*command)
    answer = await _reply(connection)
    await connection.send_command("SET", key, "1", "PX", _CONFIRM_KEPT_MS)
    await connection.send_command("WAIT", replicas, limit_ms)
    await _reply(connection)
    return answer, int(await _reply(connection))


async def _reply(connection: AbstractConnection) -> Any:
    return await connection.read_response()  # pyright: ignore[reportUnknownVariableType] -- redis-py leaves replies untyped


class _DirectLink:
    def __init__(self, client: Redis, sentinel: Sentinel | None = None) -> None:
        self._client = client
        self._sentinel = sentinel
        self._connections: list[AbstractConnection] = []

    def line(self) -> _DirectLine:
        connection = self._client.connection_pool.make_connection()
        self._connections.append(connection)
        return _DirectLine(connection)

    async def primaries(self) -> list[Line]:
        return [self.line()]

    async def close(self) -> None:
        for connection in self._connections:
            await connection.disconnect()
        await self._client.aclose()
        if self._sentinel is not None:
            for watcher in self._sentinel.sentinels:
                await watcher.aclose()


class _ClusterLink:
    def __init__(self, client: RedisCluster) -> None:
        self._client = client
        # Replies are wanted as the server gives them, like those of a single server.
        for command in ("INFO", "HGETALL", "XRANGE", "XREVRANGE", "XREAD", "BLPOP"):
            client.response_callbacks.pop(command, None)

    def line(self) -> _ClusterLine:
        return _ClusterLine(self._client)

    async def primaries(self) -> list[Line]:
        await self._client.initialize()
        return [_NodeLine(node) for node in self._client.get_primaries()]

    async def close(self) -> None:
        await self._client.aclose()


def open_link(url: ServerUrl) -> Link:
    """The link to the deployment that *url* names. Nothing is connected yet."""
    options: dict[str, Any] = {
        "username": url.username,
        "password": url.password,
        "protocol": 2,
        "socket_timeout": None,
        "socket_connect_timeout": CONNECT_SECONDS,
        "retry": Retry(NoBackoff(), 0),
    }
    match url.topology:
        case Topology.CLUSTER:
            # Redirections and a changed layout are the cluster client's own affair: two tries.
            options["retry"] = Retry(NoBackoff(), 2)
            nodes = [ClusterNode(host, port) for host, port in url.hosts]
            return _ClusterLink(RedisCluster(startup_nodes=nodes, ssl=url.tls, **options))
        case Topology.SENTINEL:
            watching = {
                "username": url.sentinel_username,
                "password": url.sentinel_password,
                "socket_timeout": CONNECT_SECONDS,
                "socket_connect_timeout": CONNECT_SECONDS,
            }
            sentinel = Sentinel(list(url.hosts), sentinel_kwargs=watching)
            client: Redis = sentinel.master_for(  # pyright: ignore[reportUnknownMemberType] -- redis-py types it in part
                url.path, db=url.db, ssl=url.tls, **options
            )
            return _DirectLink(client, sentinel)
        case Topology.SINGLE:
            if not url.hosts:
                return _DirectLink(Redis(unix_socket_path=url.path, db=url.db, **options))
            [(host, port)] = url.hosts
            return _DirectLink(Redis(host=host, port=port, db=url.db, ssl=url.tls, **options))
