"""A login session without a browser: a client, and the token that its pages gave it."""

import re
from dataclasses import dataclass
from typing import Any

import httpx

from tests.server.serving import RunningServer

COOKIE = "towpath_session"


@dataclass
class SessionClient:
    """A client that has logged in: its login session, and the token of its pages."""

    client: httpx.Client
    csrf: str

    def get(self, path: str, **params: Any) -> httpx.Response:
        return self.client.get(path, params=params)

    def send(self, method: str, path: str, **more: Any) -> httpx.Response:
        """Sends a change, as a page of the login session does."""
        return self.client.request(method, path, headers={"X-Towpath-CSRF": self.csrf}, **more)

    def look(self, path: str, status: int = 200, **params: Any) -> str:
        answer = self.get(path, **params)
        assert answer.status_code == status, answer.text[:2000]
        assert answer.headers["content-type"].startswith("text/html")
        return answer.text


def log_in(running: RunningServer, key: str) -> SessionClient:
    client = running.client(key="")
    answer = client.post("/", data={"key": key})
    assert answer.status_code == 303, answer.text[-1500:]
    return SessionClient(client, csrf_in(client.get("/").text))


def csrf_in(page: str) -> str:
    found = re.search(r'data-csrf="([0-9a-f]{64})"', page)
    assert found, page[:3000]
    return found[1]
