"""The S3 client: one pool of connections, calls with a time limit, bodies that are not copied."""

from __future__ import annotations

import asyncio
import socket
from collections.abc import AsyncIterator, Callable
from contextlib import AsyncExitStack
from functools import cache
from typing import Any

from aiobotocore import config as boto_config  # pyright: ignore[reportMissingTypeStubs] -- it has none
from aiobotocore import session as boto_session  # pyright: ignore[reportMissingTypeStubs] -- it has none
from botocore import loaders as boto_loaders  # pyright: ignore[reportMissingTypeStubs] -- it has none

from towpath.apps.uploads.stores.checksums import Piece
from towpath.apps.uploads.stores.errors import StoreUnreachable
from towpath.apps.uploads.stores.options import StoreOptions
from towpath.apps.uploads.stores.port import PIECE, Body, size_of
from towpath.apps.uploads.stores.s3.answers import About, translated

_session: Any = boto_session
_config: Any = boto_config
_loaders: Any = boto_loaders
_REGION = "us-east-1"
_SENT = 256 * 1024
"""Bytes that must be sent within `silence`, so that a slow connection is not called silent."""
_LONGER = 4
"""Times the usual limit for calls that join or copy parts, as these take longer."""
_USER_TIMEOUT: int | None = getattr(socket, "TCP_USER_TIMEOUT", None)
"""Linux has this socket option; elsewhere the limits of the system apply."""
_Place = tuple[int, int, int, str, tuple[Any, ...]]
"""An address as `getaddrinfo` returns it."""


class Client:
    """An S3 client, made when it is entered. The first call looks for credentials."""

    def __init__(self, options: StoreOptions) -> None:
        self._options, self._silence = options, options.silence.total_seconds()
        self._client: Any = None
        self._stack = AsyncExitStack()

    async def enter(self) -> None:
        options, session = self._options, _session.get_session()
        session.register_component("data_loader", _loader())
        region = options.region or session.get_config_variable("region") or _REGION
        made: Any = session.create_client(
            "s3",
            region_name=region,
            endpoint_url=options.endpoint,
            aws_access_key_id=options.access_key,
            aws_secret_access_key=options.secret_key,
            aws_session_token=options.session_token,
            config=self._config(),
        )
        with translated(About(options.bucket or "")):
            self._client = await self._stack.enter_async_context(made)
        self._client.meta.events.register("before-call.s3", _without_expectation)

    async def leave(self) -> None:
        self._client = None
        await self._stack.aclose()

    async def call(
        self, verb: str, about: About, *, longer: bool = False, **given: Any
    ) -> dict[str, Any]:
        """Call *verb*; the time limit starts anew when bytes were sent. Raises StoreError."""
        if self._client is None:
            raise StoreUnreachable("its client is not open")
        within = self._silence * (_LONGER if longer else 1)
        with translated(about):
            async with asyncio.timeout(within) as limit:
                if "Body" in given:
                    loop = asyncio.get_running_loop()
                    given["Body"] = BodyStream(
                        given["Body"], lambda: limit.reschedule(loop.time() + within)
                    )
                return await getattr(self._client, verb)(**given)

    async def pieces(self, stream: Any, about: About) -> AsyncIterator[bytes]:
        """The bytes of *stream*, as they arrive."""
        while True:
            with translated(about):
                async with asyncio.timeout(self._silence):
                    piece: bytes = await stream.read(PIECE)
            if not piece:
                return
            yield piece

    def _config(self) -> Any:
        options, longest = self._options, self._silence * _LONGER
        in_path = options.path_style
        if in_path is None:
            in_path = options.endpoint is not None
        return _config.AioConfig(
            connect_timeout=self._silence,
            read_timeout=longest,
            max_pool_connections=options.connections,
            connector_args={"socket_factory": self._socket},
            # The caller retries: it first checks whether a call without an answer had an effect.
            retries={"total_max_attempts": 1},
            signature_version="s3v4",
            # Bodies have a checksum that the server compares. The SHA-256 of a signed body would
            # cost more than all other work for a part.
            s3={
                "addressing_style": "path" if in_path else "auto",
                "payload_signing_enabled": False,
            },
            request_checksum_calculation="when_required",
            response_checksum_validation="when_required",
            # Only the options decide where traffic goes.
            proxies={},
            ignore_configured_endpoint_urls=True,
        )

    def _socket(self, place: _Place) -> socket.socket:
        """A socket that the system closes if sent bytes are not acknowledged within `silence`.

        After a time-out the HTTP client closes the connection, but the system keeps the socket
        until its last bytes are acknowledged. A frozen store acknowledges none, so each attempt
        would leave one more socket.
        """
        made = socket.socket(place[0], place[1], place[2])
        if _USER_TIMEOUT is not None:
            made.setsockopt(socket.IPPROTO_TCP, _USER_TIMEOUT, int(self._silence * 1000))
        return made


@cache
def _loader() -> Any:
    """The loader of the S3 model; it caches the model for further clients."""
    return _loaders.create_loader()


def _without_expectation(params: dict[str, Any], **_: Any) -> None:
    """Remove `Expect: 100-continue`: not every server answers it, and the client would wait."""
    params["headers"].pop("Expect", None)


class BodyStream:
    """A body that the client sends piece by piece, without joining the pieces.

    The client requires an object with `read`, but only iterates over it. *sent* is called each time
    that the client has taken some bytes.
    """

    def __init__(self, body: Body, sent: Callable[[], None]) -> None:
        self._body, self._sent = body, sent
        self._size = size_of(body)

    def __len__(self) -> int:
        return self._size

    def read(self, _: int = -1) -> bytes:
        raise NotImplementedError("it is iterated")

    def tell(self) -> int:
        return 0

    def seek(self, offset: int, _: int = 0) -> int:
        """Nothing to do: each iteration starts at the beginning."""
        return offset

    async def __aiter__(self) -> AsyncIterator[Piece]:
        for piece in self._body:
            view = memoryview(piece)
            for start in range(0, len(view), _SENT):
                yield view[start : start + _SENT]
                self._sent()
