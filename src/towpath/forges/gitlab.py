"""GitLab's webhooks: `Merge Request Hook`, `Push Hook` and `Issue Hook`.

https://docs.gitlab.com/user/project/integrations/webhook_events/
"""

from __future__ import annotations

import hashlib
from collections.abc import Mapping, Sequence
from datetime import datetime
from typing import Any

import msgspec

from towpath.calls.signature import ID, SIGNATURE
from towpath.forges.errors import WebhookInvalid
from towpath.forges.facts import (
    Acted,
    Delivery,
    ForgeAction,
    ForgeEvent,
    IssueFact,
    PullFact,
    PushFact,
    Reader,
)
from towpath.forges.reading import (
    TOKEN,
    branch_of,
    check_gitlab,
    checked_delivery,
    commit_or_none,
    decoded,
    event_name,
    lower,
)
from towpath.forges.spec import ForgeSpec

GITLAB = "https://gitlab.com"
EVENT, DELIVERY, EVENT_ID = "X-Gitlab-Event", "Idempotency-Key", "X-Gitlab-Event-UUID"
_DIGEST = 32
"""Number of hexadecimal digits: as many as a UUID has."""


def read(
    headers: Mapping[str, str],
    body: bytes,
    *,
    secrets: Sequence[str],
    now: datetime | None = None,
) -> Delivery:
    """Check and read a webhook. *body* is the raw body; *now* replaces the clock for checking the
    age of signed messages.

    The signature or the token is checked before anything is parsed. Raises SignatureRefused, and
    WebhookInvalid for a webhook that lacks what GitLab documents.
    """
    found = lower(headers)
    signed = check_gitlab(secrets, found, body, now=now)
    named = event_name(EVENT, found)
    id = checked_delivery(ID, signed) if signed else _delivery(found, body)
    return Delivery(forge="gitlab", id=id, named=named, reader=_READERS.get(named), data=body)


def _delivery(headers: Mapping[str, str], body: bytes) -> str:
    """Return an id that is the same for all attempts: GitLab's key, or before 17.4 a digest.

    The digest covers the event's id and the body. The event's id alone is not enough because hooks
    that trigger each other share it; the body alone is the same when a branch goes back and forth.
    """
    if key := headers.get(DELIVERY.lower(), ""):
        return checked_delivery(DELIVERY, key)
    event_id = headers.get(EVENT_ID.lower(), "").encode("latin-1", "backslashreplace")
    return hashlib.sha256(event_id + b"\0" + body).hexdigest()[:_DIGEST]


class _Project(msgspec.Struct):
    path_with_namespace: str
    web_url: str
    git_http_url: str

    def fact_fields(self) -> dict[str, Any]:
        return {
            "repository": self.path_with_namespace,
            "page": self.web_url,
            "clone_url": self.git_http_url,
        }


_PROJECT_NAMES = {
    "repository": "project.path_with_namespace",
    "clone_url": "project.git_http_url",
    "host": "project.web_url",
}


# ── merge requests ───────────────────────────────────────────────────────────────────────


class _User(msgspec.Struct):
    username: str = ""


class _Head(msgspec.Struct):
    id: str


class _Acted(msgspec.Struct):
    action: str | None = None
    oldrev: str | None = None


class _MergeRequest(msgspec.Struct):
    iid: int
    title: str
    source_branch: str
    target_branch: str
    url: str
    updated_at: str
    last_commit: _Head | None = None
    state: str = "opened"
    draft: bool | None = None
    work_in_progress: bool | None = None
    oldrev: str | None = None


class _Flag(msgspec.Struct):
    previous: bool | None = None
    current: bool | None = None


class _Changes(msgspec.Struct):
    draft: _Flag | None = None


class _Action(msgspec.Struct):
    object_attributes: _Acted
    changes: _Changes | None = None


class _MergeRequestEvent(msgspec.Struct):
    object_attributes: _MergeRequest
    project: _Project
    user: _User | None = None


_ACTION = msgspec.json.Decoder(_Action)
_MERGE_REQUEST = msgspec.json.Decoder(_MergeRequestEvent)
_MERGE_REQUEST_NAMES = _PROJECT_NAMES | {
    "number": "object_attributes.iid",
    "head": "object_attributes.last_commit.id",
    "before": "object_attributes.oldrev",
    "ref": "object_attributes.source_branch",
    "target": "object_attributes.target_branch",
    "url": "object_attributes.url",
    "at": "object_attributes.updated_at",
}


def _merge_request(data: bytes) -> PullFact:
    event = decoded(_MERGE_REQUEST, data, refusal=WebhookInvalid, whole="body")
    merge = event.object_attributes
    return PullFact(
        names=_MERGE_REQUEST_NAMES,
        **event.project.fact_fields(),
        number=merge.iid,
        head=merge.last_commit.id if merge.last_commit else None,
        ref=merge.source_branch,
        target=merge.target_branch,
        before=commit_or_none(merge.oldrev),
        title=merge.title,
        author=event.user.username if event.user else "",
        url=merge.url,
        at=merge.updated_at,
        is_open=merge.state == "opened",
        is_draft=bool(merge.draft or merge.work_in_progress),
    )


def _read_action(data: bytes) -> Acted:
    event = decoded(_ACTION, data, refusal=WebhookInvalid, whole="body")
    attributes = event.object_attributes
    draft = event.changes.draft if event.changes else None
    action = None
    match attributes.action:
        case "open":
            action = ForgeAction.OPENED
        case "reopen":
            action = ForgeAction.REOPENED
        case "update" if draft and draft.previous and not draft.current:
            action = ForgeAction.READY
        case "update" if attributes.oldrev:
            action = ForgeAction.UPDATED
        case _:
            pass
    return Acted(action, attributes.action or "without an action")


# ── pushes ───────────────────────────────────────────────────────────────────────────────


class _Commit(msgspec.Struct):
    id: str
    message: str = ""


class _Push(msgspec.Struct):
    ref: str
    before: str
    after: str
    project: _Project
    user_username: str = ""
    commits: list[_Commit] = []


_PUSH = msgspec.json.Decoder(_Push)


def _push(data: bytes) -> PushFact:
    event = decoded(_PUSH, data, refusal=WebhookInvalid, whole="body")
    head = next((commit for commit in event.commits if commit.id == event.after), None)
    return PushFact(
        names=_PROJECT_NAMES | {"head": "after", "url": "project.web_url"},
        **event.project.fact_fields(),
        ref=branch_of(event.ref),
        head=commit_or_none(event.after),
        before=commit_or_none(event.before),
        title=head.message.partition("\n")[0] if head else "",
        author=event.user_username,
        url=f"{event.project.web_url}/-/commit/{event.after}",
        at=None,  # the author of a commit can choose its time
    )


# ── issues ───────────────────────────────────────────────────────────────────────────────


class _Label(msgspec.Struct):
    title: str


class _Issue(msgspec.Struct):
    iid: int
    title: str
    url: str
    state: str
    updated_at: str
    description: str | None = None


class _IssueEvent(msgspec.Struct):
    object_attributes: _Issue
    project: _Project
    labels: list[_Label] = []
    user: _User | None = None


_ISSUE = msgspec.json.Decoder(_IssueEvent)
_ISSUE_NAMES = _PROJECT_NAMES | {
    "number": "object_attributes.iid",
    "url": "object_attributes.url",
    "at": "object_attributes.updated_at",
}


def _issue(data: bytes) -> IssueFact:
    event = decoded(_ISSUE, data, refusal=WebhookInvalid, whole="body")
    issue = event.object_attributes
    return IssueFact(
        names=_ISSUE_NAMES,
        **event.project.fact_fields(),
        number=issue.iid,
        title=issue.title,
        body=issue.description or "",
        labels=tuple(label.title for label in event.labels),
        author=event.user.username if event.user else "",
        url=issue.url,
        at=issue.updated_at,
        is_open=issue.state == "opened",
    )


_READERS = {
    "Merge Request Hook": Reader(ForgeEvent.PULL, _read_action, _merge_request),
    "Push Hook": Reader(ForgeEvent.PUSH, None, _push),
    "Issue Hook": Reader(ForgeEvent.ISSUE, _read_action, _issue),
}


# ── the forge ────────────────────────────────────────────────────────────────────────────


FORGE = ForgeSpec(
    name="gitlab",
    title="GitLab",
    host=GITLAB,
    api=lambda host: f"{host}/api/v4",
    accept="application/json",
    read=read,
    events={name: reader.event for name, reader in _READERS.items()},
    event_header=EVENT,
    delivery_header=DELIVERY,
    signature_headers={
        TOKEN: "One of `{secrets}`; or use `webhook-signature`.",
        SIGNATURE: "Signature of the raw body, with a signing token (`whsec_…`).",
    },
    signature="The webhook's secret token; or `webhook-signature`, a signature of the body.",
    pull="merge request",
    other_action="merge request {}, no new commits",
    ready="once it is ready",
)
