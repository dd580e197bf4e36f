"""The webhooks of the GitHub double: events, signed and sent to the URLs that listen."""

from __future__ import annotations

import hmac
import http.client
import json
import threading
import uuid
from collections.abc import Collection
from dataclasses import dataclass
from queue import SimpleQueue
from typing import Any
from urllib.parse import urlsplit

_WITHIN = 10.0
"""Seconds that GitHub waits for an answer."""


@dataclass(frozen=True)
class GitHubHook:
    """A URL, and the events that are sent to it."""

    url: str
    secret: str
    events: Collection[str]
    """Empty = all."""


@dataclass
class GitHubDelivery:
    """One message to one hook."""

    hook: GitHubHook
    id: str
    event: str
    payload: dict[str, Any]
    statuses: list[int]
    """The status of each answer so far; 0 = no answer came."""

    @property
    def body(self) -> bytes:
        return json.dumps(self.payload).encode()

    @property
    def headers(self) -> dict[str, str]:
        """The headers as GitHub sends them, with the signature."""
        body = self.body
        signature = hmac.digest(self.hook.secret.encode(), body, "sha256").hex()
        return {
            "Content-Type": "application/json",
            "User-Agent": "GitHub-Hookshot/double",
            "X-GitHub-Event": self.event,
            "X-GitHub-Delivery": self.id,
            "X-Hub-Signature-256": f"sha256={signature}",
        }

    def send(self) -> int:
        """Send it; a repeat has the same id. Returns the status of the answer, 0 if none came."""
        place = urlsplit(self.hook.url)
        connection_class = (
            http.client.HTTPSConnection if place.scheme == "https" else http.client.HTTPConnection
        )
        connection = connection_class(place.hostname or "", place.port, timeout=_WITHIN)
        try:
            connection.request("POST", place.path or "/", body=self.body, headers=self.headers)
            answer = connection.getresponse()
            answer.read()
            self.statuses.append(answer.status)
        except (OSError, http.client.HTTPException):
            self.statuses.append(0)
        finally:
            connection.close()
        return self.statuses[-1]


class Hooks:
    """Keeps the deliveries of events, in the order in which these happened.

    With *live*, a thread sends each at once, one after the other. Otherwise the test sends them, in
    any order.
    """

    def __init__(self, *, live: bool) -> None:
        self.live = live
        self.all: list[GitHubHook] = []
        self.deliveries: list[GitHubDelivery] = []
        self._due: SimpleQueue[GitHubDelivery | None] = SimpleQueue()
        self._sending: threading.Thread | None = None

    def emit(self, event: str, payload: dict[str, Any]) -> None:
        """Keep a delivery of the event for each URL that listens; with `live`, send it."""
        for hook in self.all:
            if hook.events and event not in hook.events:
                continue
            delivery = GitHubDelivery(hook, str(uuid.uuid4()), event, payload, [])
            self.deliveries.append(delivery)
            if self.live:
                self._start()
                self._due.put(delivery)

    def stop(self) -> None:
        """Send no more."""
        if self._sending is not None:
            self._due.put(None)
            self._sending.join()
            self._sending = None

    def _start(self) -> None:
        if self._sending is None:
            self._sending = threading.Thread(target=self._send, name="github-hooks", daemon=True)
            self._sending.start()

    def _send(self) -> None:
        while (due := self._due.get()) is not None:
            due.send()
