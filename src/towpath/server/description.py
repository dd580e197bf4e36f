"""The description of the API: OpenAPI 3.1, with what every path has in common."""

from __future__ import annotations

from collections.abc import Collection
from typing import Any

from fastapi import FastAPI
from fastapi.openapi.utils import get_openapi

from towpath.server.applications import Applications
from towpath.web.mount import Listener, scheme_of
from towpath.web.problems import Problem

TAGS = [
    {"name": "jobs", "description": "Submit, look, explain, list, cancel."},
    {"name": "work", "description": "Claim, renew, complete, fail, release: all a worker needs."},
    {"name": "queues", "description": "Counts, pause and resume, dead jobs."},
    {"name": "events", "description": "What happens, as a stream."},
]
_HEALTH = {
    "name": "health",
    "description": "Whether it lives, whether it can serve, its metrics.",
}
_SCHEMES = {
    "bearer": {"type": "http", "scheme": "bearer", "description": "`Authorization: Bearer tp_…`"},
    "plain": {"type": "apiKey", "in": "header", "name": "X-API-Key", "description": "The same."},
}
_DELIVERY: dict[str, Any] = {
    "type": "object",
    "description": "A delivery as its forge documents it.",
    "examples": [{"action": "opened", "pull_request": {}, "repository": {}}],
}
_Shown = list[dict[str, list[str]]]
"""What a request has to show: one of these."""
_ANY_KEY: _Shown = [{"bearer": []}, {"plain": []}]


def describe(app: FastAPI, mounted: Applications, *, open: Collection[str]) -> None:
    """Let *app* describe itself with keys and problems. Made at the first request for it."""
    made: dict[str, Any] = {}

    def description() -> dict[str, Any]:
        if not made:
            made.update(_described(app, mounted, open))
        return made

    app.openapi = description


def _described(app: FastAPI, mounted: Applications, open: Collection[str]) -> dict[str, Any]:
    page = get_openapi(
        title=app.title,
        version=app.version,
        summary=app.summary,
        routes=app.routes,
        tags=[*TAGS, *mounted.tags, _HEALTH],
    )
    parts = page["components"]
    schemes = {scheme_of(it): _scheme(it) for it in mounted.webhooks.values()}
    parts["securitySchemes"] = _SCHEMES | schemes
    parts["schemas"]["Problem"] = Problem.model_json_schema()
    parts["schemas"]["Delivery"] = _DELIVERY
    for path, methods in page["paths"].items():
        for operation in methods.values():
            listener = mounted.webhooks.get(path)
            signed: _Shown = [{scheme_of(listener): []}] if listener else _ANY_KEY
            operation["security"] = [] if path in open else signed
    return page


def _scheme(listener: Listener) -> dict[str, str]:
    header, about = listener.signature, listener.signed
    return {"type": "apiKey", "in": "header", "name": header, "description": about}
