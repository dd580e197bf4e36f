"""GitHub's webhooks: `pull_request`, `push` and `issues`.

https://docs.github.com/en/webhooks/webhook-events-and-payloads
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any
from urllib.parse import parse_qsl

import msgspec

from towpath.forges.errors import WebhookInvalid
from towpath.forges.facts import (
    Acted,
    Action,
    Delivery,
    Event,
    Issue,
    PullRequest,
    Push,
    Reader,
)
from towpath.forges.reading import (
    branch_of,
    checked_delivery,
    commit_or_none,
    decoded,
    event_name,
    lower,
)
from towpath.forges.signing import check_hub_signature
from towpath.forges.texts import is_url

EVENT, DELIVERY = "X-GitHub-Event", "X-GitHub-Delivery"
_ACTIONS = {
    "opened": Action.OPENED,
    "reopened": Action.REOPENED,
    "synchronize": Action.UPDATED,
    "ready_for_review": Action.READY,
}
_FORM = "application/x-www-form-urlencoded"
_FORM_FIELDS_MOST = 10


def read(headers: Mapping[str, str], body: bytes, *, secrets: Sequence[str]) -> Delivery:
    """A delivery. *body* is what came over the wire.

    Nothing of it is looked at before its signature was found good: SignatureInvalid. Raises
    WebhookInvalid for a message that lacks what GitHub documents.
    """
    found = lower(headers)
    check_hub_signature(secrets, found, body)
    named = event_name(EVENT, found)
    id = checked_delivery(DELIVERY, found.get(DELIVERY.lower(), ""))
    reader = _READERS.get(named)
    data = _json(found, body) if reader else body
    return Delivery(forge="github", id=id, named=named, reader=reader, data=data)


def _json(headers: Mapping[str, str], body: bytes) -> bytes:
    """The JSON of a body: the whole, or the form's one field."""
    kind = headers.get("content-type", "").partition(";")[0].strip().lower()
    if kind != _FORM:
        return body
    try:
        fields = parse_qsl(body.decode("ascii"), errors="strict", max_num_fields=_FORM_FIELDS_MOST)
    except ValueError as error:
        raise WebhookInvalid("body", "must be a form with the field payload") from error
    payloads = [value for name, value in fields if name == "payload"]
    if len(payloads) != 1:
        raise WebhookInvalid("payload", "must be in the form once")
    return payloads[0].encode()


class _Repository(msgspec.Struct):
    full_name: str
    html_url: str
    clone_url: str
    pushed_at: int | str | None = None

    def told(self) -> dict[str, Any]:
        return {"repository": self.full_name, "page": self.html_url, "clone_url": self.clone_url}


# ── pull requests ────────────────────────────────────────────────────────────────────────


class _User(msgspec.Struct):
    login: str = ""


class _Side(msgspec.Struct):
    ref: str
    sha: str


class _Pull(msgspec.Struct):
    number: int
    title: str
    html_url: str
    updated_at: str
    head: _Side
    base: _Side
    user: _User | None = None
    draft: bool = False
    state: str = "open"


class _Acted(msgspec.Struct):
    action: str


def _acted(data: bytes) -> Acted:
    said = decoded(_ACTED, data, refusal=WebhookInvalid, whole="body").action
    return Acted(_ACTIONS.get(said), said)


class _PullRequest(msgspec.Struct):
    pull_request: _Pull
    repository: _Repository
    before: str | None = None


_ACTED = msgspec.json.Decoder(_Acted)
_PULL_REQUEST = msgspec.json.Decoder(_PullRequest)
_REPOSITORY_NAMES = {
    "repository": "repository.full_name",
    "clone_url": "repository.clone_url",
    "host": "repository.html_url",
}
_PULL_NAMES = _REPOSITORY_NAMES | {
    "number": "pull_request.number",
    "head": "pull_request.head.sha",
    "ref": "pull_request.head.ref",
    "base": "pull_request.base.sha",
    "target": "pull_request.base.ref",
    "url": "pull_request.html_url",
    "at": "pull_request.updated_at",
}


def _pull(data: bytes) -> PullRequest:
    event = decoded(_PULL_REQUEST, data, refusal=WebhookInvalid, whole="body")
    pull = event.pull_request
    return PullRequest(
        names=_PULL_NAMES,
        **event.repository.told(),
        number=pull.number,
        head=pull.head.sha,
        ref=pull.head.ref,
        base=pull.base.sha,
        target=pull.base.ref,
        before=commit_or_none(event.before),
        title=pull.title,
        author=pull.user.login if pull.user else "",
        url=pull.html_url,
        at=pull.updated_at,
        is_open=pull.state == "open",
        is_draft=pull.draft,
    )


# ── pushes ───────────────────────────────────────────────────────────────────────────────


class _Commit(msgspec.Struct):
    message: str = ""


class _Pusher(msgspec.Struct):
    name: str = ""


class _Push(msgspec.Struct):
    ref: str
    before: str
    after: str
    compare: str
    repository: _Repository
    deleted: bool = False
    pusher: _Pusher | None = None
    head_commit: _Commit | None = None


_PUSH = msgspec.json.Decoder(_Push)
_PUSH_NAMES = _REPOSITORY_NAMES | {"head": "after", "at": "repository.pushed_at"}


def _push(data: bytes) -> Push:
    event = decoded(_PUSH, data, refusal=WebhookInvalid, whole="body")
    # A branch's name may make the page of the comparison none.
    page = event.compare if is_url(event.compare) else None
    return Push(
        names=_PUSH_NAMES,
        **event.repository.told(),
        ref=branch_of(event.ref),
        head=None if event.deleted else commit_or_none(event.after),
        before=commit_or_none(event.before),
        title=event.head_commit.message.partition("\n")[0] if event.head_commit else "",
        author=event.pusher.name if event.pusher else "",
        url=page or f"{event.repository.html_url}/commit/{event.after}",
        at=event.repository.pushed_at,
    )


# ── issues ───────────────────────────────────────────────────────────────────────────────


class _Label(msgspec.Struct):
    name: str


class _Issue(msgspec.Struct):
    number: int
    title: str
    html_url: str
    state: str
    updated_at: str
    labels: list[_Label] = []
    body: str | None = None
    user: _User | None = None


class _IssueEvent(msgspec.Struct):
    issue: _Issue
    repository: _Repository


_ISSUE = msgspec.json.Decoder(_IssueEvent)
_ISSUE_NAMES = _REPOSITORY_NAMES | {
    "number": "issue.number",
    "url": "issue.html_url",
    "labels": "issue.labels",
    "at": "issue.updated_at",
}


def _issue(data: bytes) -> Issue:
    event = decoded(_ISSUE, data, refusal=WebhookInvalid, whole="body")
    issue = event.issue
    return Issue(
        names=_ISSUE_NAMES,
        **event.repository.told(),
        number=issue.number,
        title=issue.title,
        body=issue.body or "",
        labels=tuple(label.name for label in issue.labels),
        author=issue.user.login if issue.user else "",
        url=issue.html_url,
        at=issue.updated_at,
        is_open=issue.state == "open",
    )


_READERS = {
    "pull_request": Reader(Event.PULL, _acted, _pull),
    "push": Reader(Event.PUSH, None, _push),
    "issues": Reader(Event.ISSUE, _acted, _issue),
}
