"""The wire before ours, over redis-py's connections: used where TOWPATH_WIRE=redis-py is set.

It stays for one release step, so that whoever meets trouble with the new wire has a way back. It
goes, and with it the dependency on redis-py, as soon as the new one is proven (decision 0061).
"""

from __future__ import annotations

from contextlib import suppress
from typing import Any

from redis.asyncio import Redis
from redis.asyncio.connection import AbstractConnection
from redis.asyncio.retry import Retry
from redis.backoff import NoBackoff
from redis.exceptions import RedisError as RedisPyError
from redis.exceptions import ResponseError

from towpath.engine.resp import ConnectionLost, RedisError, error_reply
from towpath.engine.wire import CONNECT_SECONDS, Endpoint, Wire
from towpath.supervise import expect_loss

_RESET = (RuntimeError, AttributeError)


class RedisPyWire(Wire):
    """A connection of redis-py as a wire."""

    def __init__(self, endpoint: Endpoint) -> None:
        super().__init__(endpoint)
        self._connection: AbstractConnection = _connection(endpoint)

    async def _exchange(self, message: list[bytes], wanted: int) -> list[Any]:
        connection = self._connection
        try:
            if not connection.is_connected:
                self._require_open()
                await connection.connect()
                self.facts = None
                if (writer := connection._writer) is not None:  # noqa: SLF001  # pyright: ignore[reportPrivateUsage] -- redis-py has no other way to it
                    expect_loss(writer)
                self._require_open()
            await connection.send_packed_command(message, check_health=False)
            return [await self._reply() for _ in range(wanted)]
        except RedisPyError as error:
            await self.drop()
            raise _translated(error) from error
        except _RESET as error:
            raise ConnectionLost(f"the connection was reset: {error}") from error
        except BaseException:
            await self.drop()
            raise

    async def _reply(self) -> Any:
        try:
            return await self._connection.read_response()  # pyright: ignore[reportUnknownVariableType] -- redis-py leaves replies untyped
        except ResponseError as error:
            self.facts = None
            return _translated(error)

    def cut(self) -> None:
        writer = self._connection._writer  # noqa: SLF001  # pyright: ignore[reportPrivateUsage] -- as above
        if writer is not None:
            writer.transport.abort()

    async def drop(self) -> None:
        self.cut()
        with suppress(*_RESET):
            await self._connection.disconnect(nowait=True)

    async def close(self) -> None:
        self._is_closed = True
        self.cut()
        with suppress(OSError, RedisPyError, *_RESET):
            await self._connection.disconnect()


def _connection(endpoint: Endpoint) -> AbstractConnection:
    host, port = endpoint.place
    at: dict[str, Any] = {"host": host, "port": port} if port else {"unix_socket_path": host}
    client = Redis(
        **at,
        username=endpoint.username,
        password=endpoint.password,
        db=endpoint.db,
        protocol=2,
        socket_timeout=None,
        socket_connect_timeout=CONNECT_SECONDS,
        retry=Retry(NoBackoff(), 0),
        driver_info=None,
        socket_read_size=1024 * 1024,
    )
    return client.connection_pool.make_connection()


def _translated(error: RedisPyError) -> RedisError:
    """Our exception for one of redis-py's, which has the reply's first word apart."""
    code = getattr(error, "status_code", None)
    if code is None and not isinstance(error, ResponseError):
        return ConnectionLost(str(error))
    return error_reply(f"{code} {error}" if code else str(error))
