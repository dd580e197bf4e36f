"""The description of the API: OpenAPI 3.1, with what every path has in common."""

from __future__ import annotations

from typing import Any

from fastapi import FastAPI
from fastapi.openapi.utils import get_openapi

from towpath.server.auth import OPEN
from towpath.server.problems import Problem

TAGS = [
    {"name": "jobs", "description": "Submit, look, explain, list, cancel."},
    {"name": "work", "description": "Claim, renew, complete, fail, release: all a worker needs."},
    {"name": "queues", "description": "Counts, pause and resume, dead jobs."},
    {"name": "events", "description": "What happens, as a stream."},
    {"name": "messages", "description": "One at a time per user: send, look, wait, cancel."},
    {"name": "health", "description": "Whether it lives, whether it can serve, its metrics."},
]
_SCHEMES = {
    "bearer": {"type": "http", "scheme": "bearer", "description": "`Authorization: Bearer tp_…`"},
    "plain": {"type": "apiKey", "in": "header", "name": "X-API-Key", "description": "The same."},
}
_ANY_KEY: list[dict[str, list[str]]] = [{"bearer": []}, {"plain": []}]


def describe(app: FastAPI) -> None:
    """Let *app* describe itself with keys and problems. Made at the first request for it."""
    made: dict[str, Any] = {}

    def description() -> dict[str, Any]:
        if not made:
            made.update(_described(app))
        return made

    app.openapi = description


def _described(app: FastAPI) -> dict[str, Any]:
    page = get_openapi(
        title=app.title,
        version=app.version,
        summary=app.summary,
        routes=app.routes,
        tags=TAGS,
    )
    parts = page["components"]
    parts["securitySchemes"] = _SCHEMES
    parts["schemas"]["Problem"] = Problem.model_json_schema()
    for path, methods in page["paths"].items():
        for operation in methods.values():
            operation["security"] = [] if path in OPEN else _ANY_KEY
    return page
