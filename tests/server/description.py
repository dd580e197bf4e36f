"""The server's own description, compared with its answers."""

import re
from typing import Any

import httpx


class Description:
    """An OpenAPI description that checks answers."""

    def __init__(self, openapi: dict[str, Any]) -> None:
        self._paths = [
            (_pattern(path), operations) for path, operations in openapi["paths"].items()
        ]

    def check(self, answer: httpx.Response) -> None:
        """Fails for a status or a content type that is not described. Unknown paths pass."""
        path = answer.request.url.raw_path.decode().partition("?")[0]
        for pattern, methods in self._paths:
            operation = methods.get(answer.request.method.lower())
            if operation is not None and pattern.fullmatch(path):
                _check(operation["responses"], answer)
                return


def _pattern(template: str) -> re.Pattern[str]:
    return re.compile(re.sub(r"\\{\w+\\}", "[^/]+", re.escape(template)))


def _check(responses: dict[str, Any], answer: httpx.Response) -> None:
    status = str(answer.status_code)
    assert status in responses, f"{answer.request.method} {answer.request.url} answered {status}"
    kinds = list(responses[status].get("content", {}))
    kind = answer.headers.get("content-type", "").partition(";")[0]
    assert kind in (kinds or [""]), f"{answer.request.url} answered {status} with {kind}"
