"""Keeps an instance registered from its own process: by a thread, over HTTP.

Uses only the HTTP client of the standard library, because it runs in other people's programs.
"""

from __future__ import annotations

import json
import logging
import os
import threading
from collections.abc import Callable
from contextlib import suppress
from typing import Any
from urllib.parse import quote

from towpath.calls.own_server import ServerAddress, ServerConnection, ServerReply
from towpath.clock import steady
from towpath.errors import RetryAdvice, TowpathError

_log = logging.getLogger("towpath.timers.client")
_ANSWER_WITHIN_S = 10.0
_RETRY_S, _RETRY_REFUSED_S = 1.0, 15.0
"""Seconds until the next try: after a failure that may pass, and after a refusal."""
_REGISTER_EVERY_S = 600.0
"""Seconds after which an instance registers again, to get the current secret."""
_INSTANCE_UNKNOWN = "instance-not-found"
"""The code of the problem if the server does not know the instance."""


class ServerAnswered(TowpathError):
    """The Towpath server refused what the client asked for."""

    code = "timer_server_answered"
    remedy = "Check the server's address, the key and its scopes; the server's message says more."
    retry = RetryAdvice.LATER

    def __init__(self, what: str, reply: ServerReply) -> None:
        super().__init__(f"{what}: the server answered {reply.status}: {reply.detail}")
        self.status = reply.status
        self.problem = reply.code
        """The code of the problem: `lease-lost`, `instance-not-found`, …"""
        self.later = reply.is_later
        """Whether the same request may succeed later."""


class Server:
    """The Towpath server, as a client of its HTTP API. Threads may share it."""

    def __init__(self, url: str, key: str) -> None:
        self._address = ServerAddress.parse(url, key)

    def post(self, path: str, body: Any = None) -> Any:
        return self._request("POST", path, body)

    def delete(self, path: str) -> Any:
        return self._request("DELETE", path, None)

    def _request(self, method: str, path: str, body: Any) -> Any:
        """Send a request on a connection of its own, and return the answer. Raises ServerAnswered
        if it is a refusal, OSError without an answer.
        """
        connection = ServerConnection(self._address, silence=_ANSWER_WITHIN_S)
        try:
            reply = connection.request(method, path, body)
        finally:
            connection.close()
        if not reply.is_success:
            raise ServerAnswered(f"{method} {path}", reply)
        return json.loads(reply.content) if reply.content else None


class Registration:
    """The thread that registers an instance and keeps it alive."""

    def __init__(self, register: Callable[[], tuple[str, float]], server: Server, app: str) -> None:
        self._register, self._server, self._app = register, server, app
        self._pid = os.getpid()
        self._wake, self._stopped = threading.Event(), False
        self._register_at = 0.0
        self.instance_id: str | None = None
        self._heartbeat_s = 10.0
        self._thread = threading.Thread(target=self._run, name="towpath-timers", daemon=True)

    def start(self) -> None:
        self._thread.start()

    def is_of_this_process(self) -> bool:
        """Whether it runs in this process: a thread does not survive a fork."""
        return self._pid == os.getpid()

    def register_again(self) -> None:
        """Register again at once, because the task types of the instance have changed."""
        self._register_at = 0.0
        self._wake.set()

    def stop(self) -> None:
        """Send no more heartbeats, and deregister the instance."""
        self._stopped = True
        self._wake.set()
        self._thread.join(2 * _ANSWER_WITHIN_S)
        if self.instance_id is not None:
            # without heartbeats, it counts as dead after 30 s
            with suppress(ServerAnswered, OSError, ValueError):
                self._server.delete(self._path())
        self.instance_id = None

    def _path(self) -> str:
        return f"/api/v1/apps/{quote(self._app, safe='')}/instances/{self.instance_id}"

    def _run(self) -> None:
        while not self._stopped:
            try:
                pause = self._step()
            except Exception:  # noqa: BLE001 -- there is no caller to raise it to
                _log.exception("the registration of app %s failed", self._app)
                pause = _RETRY_REFUSED_S
            self._wake.wait(pause)
            self._wake.clear()

    def _step(self) -> float:
        """Register or send a heartbeat. Returns the seconds until the next step."""
        try:
            if self.instance_id is None or steady() >= self._register_at:
                self._register_at = steady() + _REGISTER_EVERY_S
                self.instance_id, self._heartbeat_s = self._register()
            else:
                self._server.post(f"{self._path()}/heartbeat")
        except ServerAnswered as error:
            if error.problem == _INSTANCE_UNKNOWN and self.instance_id is not None:
                self.instance_id = None  # Redis lost it, or no heartbeat came for long
                return 0.0
            _log.warning("%s", error)
            return _RETRY_S if error.later else _RETRY_REFUSED_S
        except (OSError, ValueError, KeyError, TypeError) as error:
            _log.warning("the server can't be reached: %s", error)
            return _RETRY_S
        return self._heartbeat_s
