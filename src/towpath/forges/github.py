"""GitHub's webhooks about pull requests, pushes, issues, labels and repositories; and what its API
shows of issues and pull requests.

https://docs.github.com/en/webhooks/webhook-events-and-payloads
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, TypeVar
from urllib.parse import parse_qsl

import msgspec

from towpath.forges.errors import WebhookInvalid
from towpath.forges.facts import (
    Acted,
    Delivery,
    ForgeAction,
    ForgeEvent,
    IssueFact,
    LabelFact,
    PullFact,
    PushFact,
    Reader,
    RepositoryFact,
)
from towpath.forges.reading import (
    HUB_SIGNATURE,
    branch_of,
    check_hub_signature,
    checked_delivery,
    commit_or_none,
    decoded,
    event_name,
    lower,
)
from towpath.forges.spec import ForgeSpec
from towpath.forges.texts import is_url

T = TypeVar("T")

GITHUB = "https://github.com"
EVENT, DELIVERY = "X-GitHub-Event", "X-GitHub-Delivery"
_ACTIONS = {
    "opened": ForgeAction.OPENED,
    "reopened": ForgeAction.REOPENED,
    "synchronize": ForgeAction.UPDATED,
    "ready_for_review": ForgeAction.READY,
}
_FORM = "application/x-www-form-urlencoded"
_FORM_FIELDS_MOST = 10


def read(headers: Mapping[str, str], body: bytes, *, secrets: Sequence[str]) -> Delivery:
    """Check and read a webhook. *body* is the raw body.

    The signature is checked before anything is parsed. Raises SignatureInvalid, and WebhookInvalid
    for a webhook that lacks what GitHub documents.
    """
    found = lower(headers)
    check_hub_signature(secrets, found, body)
    named = event_name(EVENT, found)
    id = checked_delivery(DELIVERY, found.get(DELIVERY.lower(), ""))
    reader = _READERS.get(named)
    data = _json(found, body) if reader else body
    return Delivery(forge="github", id=id, named=named, reader=reader, data=data)


def _json(headers: Mapping[str, str], body: bytes) -> bytes:
    """Return the JSON of a body: the whole body, or the field `payload` of a form."""
    kind = headers.get("content-type", "").partition(";")[0].strip().lower()
    if kind != _FORM:
        return body
    try:
        fields = parse_qsl(body.decode("ascii"), errors="strict", max_num_fields=_FORM_FIELDS_MOST)
    except ValueError as error:
        raise WebhookInvalid("body", "must be a form with the field payload") from error
    payloads = [value for name, value in fields if name == "payload"]
    if len(payloads) != 1:
        raise WebhookInvalid("payload", "must be in the form exactly once")
    return payloads[0].encode()


class _Repository(msgspec.Struct):
    full_name: str
    html_url: str
    clone_url: str
    pushed_at: int | str | None = None

    def fact_fields(self) -> dict[str, Any]:
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
    body: str | None = None


class _Acted(msgspec.Struct):
    action: str


def _read_action(data: bytes) -> Acted:
    name = decoded(_ACTED, data, refusal=WebhookInvalid, whole="body").action
    return Acted(_ACTIONS.get(name), name)


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


def _pull(data: bytes) -> PullFact:
    event = decoded(_PULL_REQUEST, data, refusal=WebhookInvalid, whole="body")
    return _pull_request(event.pull_request, event.repository, event.before)


def _pull_request(pull: _Pull, repository: _Repository, before: str | None) -> PullFact:
    return PullFact(
        names=_PULL_NAMES,
        **repository.fact_fields(),
        number=pull.number,
        head=pull.head.sha,
        ref=pull.head.ref,
        base=pull.base.sha,
        target=pull.base.ref,
        before=commit_or_none(before),
        title=pull.title,
        body=pull.body or "",
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


def _push(data: bytes) -> PushFact:
    event = decoded(_PUSH, data, refusal=WebhookInvalid, whole="body")
    # The URL of the comparison contains the branch's name, which may make it invalid.
    page = event.compare if is_url(event.compare) else None
    return PushFact(
        names=_PUSH_NAMES,
        **event.repository.fact_fields(),
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
    updated_at: str
    state: str | None = None
    """GitHub promises `state` only for some actions of a webhook, but `closed_at` for all."""
    closed_at: str | msgspec.UnsetType | None = msgspec.UNSET
    labels: list[_Label] = []
    body: str | None = None
    user: _User | None = None
    assignees: list[_User] = []
    state_reason: str | None = None
    pull_request: dict[str, Any] | None = None

    def is_open(self) -> bool:
        """Whether it is open. Raises WebhookInvalid if `state` and `closed_at` are missing."""
        if self.state is not None:
            return self.state == "open"
        if self.closed_at is msgspec.UNSET:
            raise WebhookInvalid("issue.state", "must be there, or closed_at")
        return self.closed_at is None


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


def _issue(data: bytes) -> IssueFact:
    event = decoded(_ISSUE, data, refusal=WebhookInvalid, whole="body")
    return _issue_of(event.issue, event.repository)


def _issue_of(issue: _Issue, repository: _Repository) -> IssueFact:
    return IssueFact(
        names=_ISSUE_NAMES,
        **repository.fact_fields(),
        number=issue.number,
        title=issue.title,
        body=issue.body or "",
        labels=tuple(label.name for label in issue.labels),
        author=issue.user.login if issue.user else "",
        url=issue.html_url,
        at=issue.updated_at,
        is_open=issue.is_open(),
        assignees=tuple(user.login for user in issue.assignees if user.login),
        reopened=issue.state_reason == "reopened",
        is_pull=issue.pull_request is not None,
    )


# ── labels and repositories ──────────────────────────────────────────────────────────────


class _Before(msgspec.Struct):
    from_: str | None = msgspec.field(default=None, name="from")


class _Owner(msgspec.Struct):
    user: _User | None = None
    organization: _User | None = None


class _OwnerBefore(msgspec.Struct):
    from_: _Owner | None = msgspec.field(default=None, name="from")


class _RepositoryChanges(msgspec.Struct):
    name: _Before | None = None


class _Changes(msgspec.Struct):
    name: _Before | None = None
    repository: _RepositoryChanges | None = None
    owner: _OwnerBefore | None = None


class _LabelEvent(msgspec.Struct):
    label: _Label
    repository: _Repository
    changes: _Changes | None = None


class _RepositoryEvent(msgspec.Struct):
    repository: _Repository
    changes: _Changes | None = None


_LABEL_EVENT = msgspec.json.Decoder(_LabelEvent)
_REPOSITORY_EVENT = msgspec.json.Decoder(_RepositoryEvent)


def _label(data: bytes) -> LabelFact:
    event = decoded(_LABEL_EVENT, data, refusal=WebhookInvalid, whole="body")
    named = event.changes.name if event.changes else None
    return LabelFact(
        names=_REPOSITORY_NAMES,
        **event.repository.fact_fields(),
        title=event.label.name,
        before=named.from_ if named else None,
        author="",
        url=event.repository.html_url,
        at=None,
    )


def _repository(data: bytes) -> RepositoryFact:
    event = decoded(_REPOSITORY_EVENT, data, refusal=WebhookInvalid, whole="body")
    return RepositoryFact(
        names=_REPOSITORY_NAMES,
        **event.repository.fact_fields(),
        title=event.repository.full_name,
        before=_name_before(event),
        author="",
        url=event.repository.html_url,
        at=None,
    )


def _name_before(event: _RepositoryEvent) -> str | None:
    """Return the former `owner/name` of a repository that was renamed or transferred."""
    owner, _, name = event.repository.full_name.partition("/")
    changes = event.changes
    if changes is None:
        return None
    renamed = changes.repository.name if changes.repository else None
    if renamed and renamed.from_:
        return f"{owner}/{renamed.from_}"
    whose = changes.owner.from_ if changes.owner else None
    user = (whose.user or whose.organization) if whose else None
    return f"{user.login}/{name}" if user and user.login else None


# ── what the API shows ───────────────────────────────────────────────────────────────────


def shown_issue(entry: Mapping[str, Any], repository: str) -> IssueFact:
    """Read an issue of *repository* from an answer of the API. Raises WebhookInvalid."""
    return _issue_of(_convert(entry, _Issue), _Repository(repository, "", ""))


def shown_pull(entry: Mapping[str, Any], repository: str) -> PullFact:
    """Read a pull request of *repository* from an answer of the API. Raises WebhookInvalid."""
    return _pull_request(_convert(entry, _Pull), _Repository(repository, "", ""), None)


def _convert(entry: Mapping[str, Any], kind: type[T]) -> T:
    try:
        return msgspec.convert(entry, kind)
    except msgspec.ValidationError as error:
        raise WebhookInvalid("answer", str(error)) from error


_READERS = {
    "pull_request": Reader(ForgeEvent.PULL, _read_action, _pull),
    "push": Reader(ForgeEvent.PUSH, None, _push),
    "issues": Reader(ForgeEvent.ISSUE, _read_action, _issue),
    "issue_comment": Reader(ForgeEvent.COMMENT, _read_action, _issue),
    "pull_request_review": Reader(ForgeEvent.REVIEW, _read_action, _pull),
    "label": Reader(ForgeEvent.LABEL, _read_action, _label),
    "repository": Reader(ForgeEvent.REPOSITORY, _read_action, _repository),
}


# ── the forge ────────────────────────────────────────────────────────────────────────────


def _api(host: str) -> str:
    """The address of the API. On a server of your own, it is at /api/v3."""
    return "https://api.github.com" if host.lower() == GITHUB else f"{host}/api/v3"


FORGE = ForgeSpec(
    name="github",
    title="GitHub",
    host=GITHUB,
    api=_api,
    accept="application/vnd.github+json",
    read=read,
    events={name: reader.event for name, reader in _READERS.items()},
    event_header=EVENT,
    delivery_header=DELIVERY,
    signature_headers={HUB_SIGNATURE: "Signature of the raw body, with one of `{secrets}`."},
    signature="GitHub's signature of the body.",
    pull="pull request",
    other_action="pull_request {}",
    ready="on ready_for_review",
)
