"""Calls of our own clients to our own server, with the HTTP client of the standard library.

`towpath upload` and `TimerClient` use it: they run in a core install and in other people's
programs, which have no other client. The user of the program names the server, so nothing guards
the address.
"""

from __future__ import annotations

import http.client
import json
import socket
from collections.abc import Callable, Mapping
from contextlib import suppress
from typing import Any, NamedTuple
from urllib.parse import urlsplit

import msgspec

from towpath.calls.answer import Advice, CallAnswer, Next, advice
from towpath.errors import InvalidOption

_LARGEST_REPLY = 1 << 20
_LARGEST_HEAD = 4096


class ServerAddress(NamedTuple):
    """Where the server is, and the key for it."""

    https: bool
    host: str
    port: int | None
    path: str
    key: str

    @classmethod
    def parse(cls, url: str, key: str) -> ServerAddress:
        """Raises InvalidOption; a password in *url* is not shown."""
        try:
            parts = urlsplit(url)
            port = parts.port
        except ValueError:
            raise InvalidOption("server", "…", rule="must be an http or https URL") from None
        if parts.scheme not in {"http", "https"} or not parts.hostname:
            shown = "…" if "@" in url else url[:200]
            raise InvalidOption("server", shown, rule="must be an http or https URL")
        return cls(parts.scheme == "https", parts.hostname, port, parts.path.rstrip("/"), key)

    @property
    def url(self) -> str:
        """The address as a URL, without the key."""
        host = f"[{self.host}]" if ":" in self.host else self.host
        port = "" if self.port is None else f":{self.port}"
        return f"http{'s' if self.https else ''}://{host}{port}{self.path}"


class ServerReply(NamedTuple):
    """The server's reply to a request."""

    status: int
    headers: Mapping[str, str]
    """By name in lower case."""
    content: bytes

    @property
    def body(self) -> dict[str, Any]:
        """The JSON object in the content; empty if there is none."""
        try:
            return msgspec.json.decode(self.content, type=dict[str, Any])
        except (msgspec.MsgspecError, UnicodeDecodeError, RecursionError):
            return {}

    @property
    def code(self) -> str:
        """The code of a refusal, such as `upload-ended` or `lease-lost`."""
        return str(self.body.get("type", "")).rpartition("/")[2]

    @property
    def detail(self) -> str:
        """What a refusal says: the sentence of the problem, or else the begin of the content."""
        if body := self.body:
            return str(body.get("detail", ""))
        return self.content[:200].decode(errors="replace")

    @property
    def advice(self) -> Advice:
        """What the client should do next."""
        return advice(CallAnswer(self.status, self.headers, b""))

    @property
    def is_success(self) -> bool:
        return self.advice.next is Next.DONE

    @property
    def is_later(self) -> bool:
        """Whether the same request may succeed later."""
        return self.advice.next is Next.LATER

    @property
    def after(self) -> float:
        """Seconds to wait before another request."""
        return self.advice.after.total_seconds() or 1.0


class ServerConnection:
    """A connection to the server, made when it is needed, and again after trouble. For one thread.

    A request fails with OSError if the server is silent for *silence* seconds.
    """

    def __init__(self, address: ServerAddress, *, silence: float = 60.0) -> None:
        self._address, self._silence = address, silence
        self._open: http.client.HTTPConnection | None = None

    def connect(self) -> None:
        """Connect without a request. Raises OSError."""
        self._connection().connect()

    def close(self) -> None:
        """Close the connection, from any thread; a request that waits on it raises OSError."""
        found, self._open = self._open, None
        if found is not None:
            with suppress(OSError, AttributeError):
                found.sock.shutdown(socket.SHUT_RDWR)
            found.close()

    def request(
        self, method: str, path: str, body: Any = None, headers: Mapping[str, str] | None = None
    ) -> ServerReply:
        """Send a request with *body* as JSON. Raises OSError if there is no reply."""
        sent = b"" if body is None else json.dumps(body).encode()
        given = {**(headers or {}), "Content-Type": "application/json"} if sent else headers or {}
        connection = self._send_head(method, path, len(sent), given)
        try:
            if sent:
                connection.send(sent)
            return self._read_reply(connection)
        except http.client.HTTPException as error:
            raise ConnectionError(str(error) or type(error).__name__) from error

    def put(
        self, path: str, length: int, send: Callable[[socket.socket], None], *, ask: bool
    ) -> ServerReply:
        """Put *length* bytes, which *send* writes to a socket. Raises OSError if there is no reply.

        With *ask*, they are sent only after the server's `100 Continue`; after a refusal nothing
        is sent.
        """
        headers = {"Content-Type": "application/octet-stream"}
        if ask:
            headers["Expect"] = "100-continue"
        connection = self._send_head("PUT", path, length, headers)
        try:
            if ask and not self._may_send_body(connection):
                refusal = self._read_reply(connection)
                self.close()  # the server would take a next request for the announced body
                return refusal
            # If the server has closed the connection, it may have replied before.
            with suppress(BrokenPipeError, ConnectionResetError):
                send(connection.sock)
            return self._read_reply(connection)
        except http.client.HTTPException as error:
            raise ConnectionError(str(error) or type(error).__name__) from error

    def _send_head(
        self, method: str, path: str, length: int, headers: Mapping[str, str]
    ) -> http.client.HTTPConnection:
        connection = self._connection()
        connection.putrequest(method, self._address.path + path)
        connection.putheader("Authorization", f"Bearer {self._address.key}")
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
            self._open = kind(at.host, at.port, timeout=self._silence)
        return self._open

    @staticmethod
    def _may_send_body(connection: http.client.HTTPConnection) -> bool:
        """Whether the server asks for the body; otherwise its reply can be read."""
        head = connection.sock.recv(_LARGEST_HEAD, socket.MSG_PEEK)
        if not head.startswith(b"HTTP/1.1 100"):
            return False
        end = head.find(b"\r\n\r\n")
        connection.sock.recv(end + 4)
        return True

    def _read_reply(self, connection: http.client.HTTPConnection) -> ServerReply:
        try:
            got = connection.getresponse()
            content = got.read(_LARGEST_REPLY)
        except BaseException:
            self.close()
            raise
        if got.will_close:
            self.close()
        headers = {name.lower(): value for name, value in got.headers.items()}
        return ServerReply(got.status, headers, content)
