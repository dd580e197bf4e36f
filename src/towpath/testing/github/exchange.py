"""Requests to the GitHub double, and its answers."""

from __future__ import annotations

import json
from dataclasses import dataclass, field
from typing import Any

DOCUMENTED = "https://docs.github.com/rest"


@dataclass(frozen=True)
class ApiRequest:
    """One request to the API."""

    method: str
    path: str
    """Without the query, as it was sent."""
    query: dict[str, list[str]]
    headers: dict[str, str]
    """By names in lower case."""
    body: bytes = b""

    @property
    def content(self) -> Any:
        """The body's JSON; None without a body. Raises ValueError if the body is no JSON."""
        return json.loads(self.body) if self.body else None

    def one(self, name: str, without: str = "") -> str:
        """The first value of that name in the query; *without* if there is none."""
        return self.query.get(name, [without])[0]


@dataclass(frozen=True)
class Reply:
    """One answer of the API."""

    status: int
    content: Any = None
    headers: dict[str, str] = field(default_factory=dict[str, str])


class EarlyAnswer(Exception):
    """Raised to answer a request at once."""

    def __init__(self, reply: Reply) -> None:
        super().__init__(reply.status)
        self.reply = reply


def refused(status: int, message: str, **more: Any) -> EarlyAnswer:
    """A refusal as GitHub writes it."""
    body = {"message": message, "documentation_url": DOCUMENTED, "status": str(status), **more}
    return EarlyAnswer(Reply(status, body))


def invalid(resource: str, name: str, message: str = "Validation Failed") -> EarlyAnswer:
    fault = {"resource": resource, "field": name, "code": "invalid"}
    return refused(422, message, errors=[fault])
