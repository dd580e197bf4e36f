"""Webhooks as GitHub and GitLab send them: their documented payloads, signed here."""

from __future__ import annotations

import hashlib
import hmac
import json
import secrets
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any, NamedTuple
from urllib.parse import urlencode

from towpath.apps.reviews.hooks import reader_of
from towpath.calls.signature import headers_for, new_secret
from towpath.forges.github import FORGE as GITHUB
from towpath.forges.gitlab import FORGE as GITLAB

PAYLOADS = Path(__file__).parent / "payloads"
GITHUB_SECRET = secrets.token_hex(20)
GITLAB_TOKEN = secrets.token_hex(20)
GITLAB_SIGNING_TOKEN = new_secret()
GITHUB_DELIVERY = "72d3162e-cc78-11e3-81ab-4c9367dc0958"
GITLAB_DELIVERY = "f5e5f430-f57b-4e6e-9fac-d9128cd7232f"
read_github, read_gitlab = reader_of(GITHUB), reader_of(GITLAB)
GONE = object()
"""Given as a value, it takes the field away."""


class Delivery(NamedTuple):
    """One request of a forge."""

    headers: dict[str, str]
    body: bytes


def payload(name: str, changes: Mapping[str, Any] | None = None) -> dict[str, Any]:
    """A documented payload, with some of its fields changed: `{"pull_request.draft": True}`."""
    whole: dict[str, Any] = json.loads((PAYLOADS / f"{name}.json").read_text())
    for path, value in (changes or {}).items():
        *parents, field = path.split(".")
        place = whole
        for parent in parents:
            place = place[parent]
        if value is GONE:
            del place[field]
        else:
            place[field] = value
    return whole


def packed(value: Any) -> bytes:
    """JSON as forges write it: no spaces, no escapes."""
    return json.dumps(value, separators=(",", ":"), ensure_ascii=False).encode()


# ── GitHub ───────────────────────────────────────────────────────────────────────────────


def github(
    event: str,
    body: bytes | Mapping[str, Any],
    *,
    secret: str = GITHUB_SECRET,
    delivery: str = GITHUB_DELIVERY,
) -> Delivery:
    data = body if isinstance(body, bytes) else packed(body)
    return Delivery(
        {
            "Content-Type": "application/json",
            "User-Agent": "GitHub-Hookshot/044aadd",
            "X-GitHub-Delivery": delivery,
            "X-GitHub-Event": event,
            "X-GitHub-Hook-ID": "292430182",
            "X-Hub-Signature-256": hub_signature(secret, data),
        },
        data,
    )


def github_form(event: str, value: Mapping[str, Any]) -> Delivery:
    """The same with `application/x-www-form-urlencoded`, an option of webhooks."""
    data = urlencode({"payload": packed(value)}).encode()
    sent = github(event, data)
    return Delivery(sent.headers | {"Content-Type": "application/x-www-form-urlencoded"}, data)


def hub_signature(secret: str, body: bytes) -> str:
    return "sha256=" + hmac.new(secret.encode(), body, hashlib.sha256).hexdigest()


def pull_request(changes: Mapping[str, Any] | None = None, *, action: str = "opened") -> Delivery:
    return github(
        "pull_request", payload("github_pull_request", {"action": action, **(changes or {})})
    )


def github_push(changes: Mapping[str, Any] | None = None) -> Delivery:
    return github("push", payload("github_push", changes))


# ── GitLab ───────────────────────────────────────────────────────────────────────────────


def gitlab(
    event: str,
    body: bytes | Mapping[str, Any],
    *,
    token: str = GITLAB_TOKEN,
    delivery: str = GITLAB_DELIVERY,
) -> Delivery:
    data = body if isinstance(body, bytes) else packed(body)
    return Delivery(
        {
            "Content-Type": "application/json",
            "User-Agent": "GitLab/19.0.0",
            "Idempotency-Key": delivery,
            "X-Gitlab-Event": event,
            "X-Gitlab-Event-UUID": "13792a34-cac6-4fda-95a8-c58e00a3954e",
            "X-Gitlab-Instance": "https://gitlab.example.com",
            "X-Gitlab-Token": token,
            "X-Gitlab-Webhook-UUID": "02affd2d-2cba-4033-917d-ec22d5dc4b38",
        },
        data,
    )


def signed(
    sent: Delivery, *, secrets: Sequence[str] = (GITLAB_SIGNING_TOKEN,), id: str = GITLAB_DELIVERY
) -> Delivery:
    """The same with GitLab's signature instead of its secret token."""
    headers = {name: value for name, value in sent.headers.items() if name != "X-Gitlab-Token"}
    return Delivery(headers | headers_for(secrets, id, sent.body), sent.body)


def merge_request(changes: Mapping[str, Any] | None = None, *, action: str = "open") -> Delivery:
    changed = {"object_attributes.action": action, **(changes or {})}
    return gitlab("Merge Request Hook", payload("gitlab_merge_request", changed))


def gitlab_push(changes: Mapping[str, Any] | None = None) -> Delivery:
    return gitlab("Push Hook", payload("gitlab_push", changes))
