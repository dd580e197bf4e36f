"""The HTTP client of `towpath upload`, on the standard library.

A core install has no other HTTP client, and `sendfile` sends a file without copying it.
"""

from __future__ import annotations

import http.client
import json
import socket
from collections.abc import Mapping
from contextlib import suppress
from typing import IO, Any, NamedTuple
from urllib.parse import urlsplit

import msgspec

from towpath.apps.uploads.client.errors import FileChanged
from towpath.calls.answer import Advice, CallAnswer, Next, advice
from towpath.errors import InvalidOption

PATH = "/api/v1/uploads"
_SILENCE = 60.0
"""Seconds that the client waits for a silent server."""
_LARGEST_ANSWER = 1 << 20
_HEAD_MOST = 4096


class ServerReply(NamedTuple):
    """The server's reply to a request."""

    status: int
    headers: Mapping[str, str]
    body: dict[str, Any]

    @property
    def code(self) -> str:
        """The code of a refusal, such as `upload-ended`."""
        return str(self.body.get("type", "")).rpartition("/")[2]

    @property
    def advice(self) -> Advice:
        """What the client should do next."""
        headers = {name.lower(): value for name, value in self.headers.items()}
        return advice(CallAnswer(self.status, headers, b""))

    @property
    def taken(self) -> bool:
        return self.advice.next is Next.DONE

    @property
    def later(self) -> bool:
        """Whether the same request may work later."""
        return self.advice.next is Next.LATER

    @property
    def ended(self) -> bool:
        """Whether the upload has ended, or must be resumed first."""
        return self.code in ("upload-ended", "upload-failed")

    @property
    def full(self) -> bool:
        """Whether the only reason is lack of room."""
        return self.code in ("budget-full", "share-full")

    @property
    def after(self) -> float:
        """Seconds to wait."""
        return self.advice.after.total_seconds() or 1.0

    @property
    def missing(self) -> list[tuple[int, int]]:
        """Ranges of chunks that are missing, or that should be sent first."""
        found: list[list[int]] = self.body.get("missing", [])
        return [(first, last) for first, last in found]


class Address(NamedTuple):
    """Where the server is, and the key for it."""

    https: bool
    host: str
    port: int | None
    path: str
    key: str

    @classmethod
    def parse(cls, url: str, key: str) -> Address:
        """Raises InvalidOption; the key is never shown."""
        try:
            parts = urlsplit(url)
            port = parts.port
        except ValueError:
            raise InvalidOption("server", "…", rule="must be an http or https URL") from None
        if parts.scheme not in {"http", "https"} or not parts.hostname or "@" in parts.netloc:
            rule = "must be an http or https URL without a user or password"
            raise InvalidOption("server", "…" if "@" in url else url[:200], rule=rule)
        if not key or not key.isprintable() or " " in key or not key.isascii():
            raise InvalidOption(
                "key", "…", rule="must be a key, as printed by `towpath keys create`"
            )
        return cls(parts.scheme == "https", parts.hostname, port, parts.path.rstrip("/"), key)

    @property
    def url(self) -> str:
        """The address as a URL, without the key."""
        host = f"[{self.host}]" if ":" in self.host else self.host
        port = "" if self.port is None else f":{self.port}"
        return f"http{'s' if self.https else ''}://{host}{port}{self.path}"


class UploadConnection:
    """One connection, made when it is needed, and made anew after trouble. For one thread."""

    def __init__(self, address: Address) -> None:
        self._address = address
        self._open: http.client.HTTPConnection | None = None

    def close(self) -> None:
        """Close the connection, from any thread; a call that waits on it raises OSError."""
        found, self._open = self._open, None
        if found is not None:
            with suppress(OSError, AttributeError):
                found.sock.shutdown(socket.SHUT_RDWR)
            found.close()

    def connect(self) -> None:
        """Connect without a request. Raises OSError."""
        self._connection().connect()

    def ask(
        self, method: str, path: str, body: Any = None, headers: Mapping[str, str] | None = None
    ) -> ServerReply:
        """Make a request with JSON. Raises OSError if there is no answer."""
        sent = b"" if body is None else json.dumps(body).encode()
        given = {**(headers or {}), "Content-Type": "application/json"} if sent else headers or {}
        connection = self._send_head(method, path, len(sent), given)
        try:
            if sent:
                connection.send(sent)
            return self._read_answer(connection)
        except http.client.HTTPException as error:
            raise ConnectionError(str(error) or type(error).__name__) from error

    def put(self, path: str, file: IO[bytes], start: int, length: int, *, ask: bool) -> ServerReply:
        """Send bytes of a file. Raises OSError if there is no answer.

        With *ask*, they are sent only after the server's `100 Continue`; after a refusal nothing
        is sent.
        """
        headers = {"Content-Type": "application/octet-stream"}
        if ask:
            headers["Expect"] = "100-continue"
        connection = self._send_head("PUT", path, length, headers)
        try:
            if ask and not self._may_go_on(connection):
                refusal = self._read_answer(connection)
                self.close()  # the server would take a next request for the announced body
                return refusal
            self._send(connection, file, start, length)
            return self._read_answer(connection)
        except http.client.HTTPException as error:
            raise ConnectionError(str(error) or type(error).__name__) from error

    def _send_head(
        self, method: str, path: str, length: int, headers: Mapping[str, str]
    ) -> http.client.HTTPConnection:
        at, connection = self._address, self._connection()
        connection.putrequest(method, at.path + path)
        connection.putheader("Authorization", f"Bearer {at.key}")
        connection.putheader("Content-Length", str(length))
        for name, value in headers.items():
            connection.putheader(name, value)
        connection.endheaders()
        return connection

    def _connection(self) -> http.client.HTTPConnection:
        """The connection; a new one connects when it is used."""
        if self._open is None:
            at = self._address
            kind = http.client.HTTPSConnection if at.https else http.client.HTTPConnection
            self._open = kind(at.host, at.port, timeout=_SILENCE)
        return self._open

    @staticmethod
    def _may_go_on(connection: http.client.HTTPConnection) -> bool:
        """Whether the server asks for the body; otherwise its answer can be read."""
        head = connection.sock.recv(_HEAD_MOST, socket.MSG_PEEK)
        if not head.startswith(b"HTTP/1.1 100"):
            return False
        end = head.find(b"\r\n\r\n")
        connection.sock.recv(end + 4)
        return True

    @staticmethod
    def _send(
        connection: http.client.HTTPConnection, file: IO[bytes], start: int, length: int
    ) -> None:
        try:
            sent = connection.sock.sendfile(file, start, length)
        except (BrokenPipeError, ConnectionResetError):
            return  # the server may have answered before it read everything
        if sent != length:
            raise FileChanged(str(file.name))

    def _read_answer(self, connection: http.client.HTTPConnection) -> ServerReply:
        try:
            got = connection.getresponse()
            text = got.read(_LARGEST_ANSWER)
        except BaseException:
            self.close()
            raise
        if got.will_close:
            self.close()
        try:
            body = msgspec.json.decode(text, type=dict[str, Any])
        except (msgspec.MsgspecError, UnicodeDecodeError):
            body = {}
        return ServerReply(got.status, dict(got.headers.items()), body)
