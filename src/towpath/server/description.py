"""The description of the API: OpenAPI 3.1, with what every path has in common."""

from __future__ import annotations

from typing import Any

from fastapi import FastAPI
from fastapi.openapi.utils import get_openapi

from towpath.web.auth import OPEN
from towpath.web.paths import WEBHOOKS
from towpath.web.problems import Problem

TAGS = [
    {"name": "jobs", "description": "Submit, look, explain, list, cancel."},
    {"name": "work", "description": "Claim, renew, complete, fail, release: all a worker needs."},
    {"name": "queues", "description": "Counts, pause and resume, dead jobs."},
    {"name": "events", "description": "What happens, as a stream."},
    {"name": "messages", "description": "One at a time per user: send, look, wait, cancel."},
    {"name": "reviews", "description": "Webhooks of forges; reviews to ask for and to read."},
    {"name": "health", "description": "Whether it lives, whether it can serve, its metrics."},
]
_SCHEMES = {
    "bearer": {"type": "http", "scheme": "bearer", "description": "`Authorization: Bearer tp_…`"},
    "plain": {"type": "apiKey", "in": "header", "name": "X-API-Key", "description": "The same."},
    "github": {
        "type": "apiKey",
        "in": "header",
        "name": "X-Hub-Signature-256",
        "description": "Not a key: GitHub's signature of this very body.",
    },
    "gitlab": {
        "type": "apiKey",
        "in": "header",
        "name": "X-Gitlab-Token",
        "description": "The webhook's secret token; or `webhook-signature`, of this very body.",
    },
}
_DELIVERY: dict[str, Any] = {
    "type": "object",
    "description": "A delivery as its forge documents it.",
    "examples": [{"action": "opened", "pull_request": {}, "repository": {}}],
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
    parts["schemas"]["Delivery"] = _DELIVERY
    for path, methods in page["paths"].items():
        for operation in methods.values():
            operation["security"] = _needed(path)
    return page


def _needed(path: str) -> list[dict[str, list[str]]]:
    """What a request to *path* has to show."""
    if path in OPEN:
        return []
    return [{path.rpartition("/")[2]: []}] if path in WEBHOOKS else _ANY_KEY
